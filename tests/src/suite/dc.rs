// SPDX-License-Identifier: MIT OR Apache-2.0
//! Dynamic connections, where driver and device have them: one initiator, several targets, every opcode.
#![expect(unsafe_code)]
// UNSAFETY: posts WRs whose memory each test keeps until their completions are polled.

use crate::pair::region;
use crate::{Lab, Outcome, pattern, wait};
use anyhow::{Result, ensure};
use uverbs::mlx5::Mlx5;
use uverbs::qp::transport::Dci;
use uverbs::{
    AddressHandle, ConnectAttr, Context, DcTarget, Driver, Exclusive, ImmData, MemoryRegion, PageBuf,
    ProtectionDomain, Shared, WcOpcode, WcStatus, WorkCompletion,
    raw::{Cq, Qp, Srq},
};
use uverbs::{
    Exposed,
    attr::{AhAttr, QpCap, SrqAttr, SrqInitAttr},
};

/// The key of the first target; the second has the next one.
const KEY: u64 = 0x1122_3344_5566_7788;
/// Longer than a packet.
const LONG: usize = 5003;

/// The initiating end: A. The fields are dropped from the first to the last.
struct Initiator {
    qp: Qp<Dci, Exclusive, Mlx5>,
    ah: AddressHandle<Mlx5>,
    cq: Cq<Shared, Mlx5>,
    mr: MemoryRegion<PageBuf, Exposed, Mlx5>,
    _pd: ProtectionDomain<Mlx5>,
}

/// The targets: at B, with an SRQ.
struct Targets {
    numbers: [u32; 2],
    _targets: [DcTarget<Mlx5>; 2],
    srq: Srq<Exclusive, Mlx5>,
    cq: Cq<Shared, Mlx5>,
    mr: MemoryRegion<PageBuf, Exposed, Mlx5>,
    _pd: ProtectionDomain<Mlx5>,
}

/// The path to the other end.
fn path_to(lab: &Lab<Mlx5>, peer: &Context<Mlx5>) -> Result<AhAttr> {
    let gid = peer.query_gid(crate::lab::PORT, lab.gid_index.into())?;
    let lid = peer.query_port(crate::lab::PORT)?.lid;
    Ok(crate::pair::ah_attr(lab, gid, lid))
}

/// Both ends; `None` if the device has no DC.
fn ends<D: Driver>(lab: &Lab<D>) -> Result<Option<(Initiator, Targets)>> {
    ends_with(lab, &lab.connect_attr())
}

/// The same, with other attributes.
fn ends_with<D: Driver>(lab: &Lab<D>, attr: &ConnectAttr) -> Result<Option<(Initiator, Targets)>> {
    let Some(lab) = lab.mlx5() else {
        lab.note("the driver has no dynamic connections");
        return Ok(None);
    };
    match initiator(lab, attr) {
        Ok(a) => Ok(Some((a, targets(lab, attr)?))),
        Err(e) if e.downcast_ref::<uverbs::Error>().is_some_and(uverbs::Error::is_unsupported) => {
            lab.note(format_args!("{e:#}"));
            Ok(None)
        }
        Err(e) => Err(e),
    }
}

fn initiator(lab: &Lab<Mlx5>, attr: &ConnectAttr) -> Result<Initiator> {
    let pd = lab.a.alloc_pd()?;
    let cq = lab.a.create_cq(64, None)?;
    let mr = region(&pd, 64 << 10, lab.full_access())?;
    let cap = QpCap::new(16, 0).sge(4, 0).inline(64);
    let qp = pd.raw_dci().cq(&cq).cap(cap).create()?;
    qp.control.connect_dci(attr)?;
    let ah = pd.create_ah(&path_to(lab, &lab.b)?)?;
    Ok(Initiator { qp, ah, cq, mr, _pd: pd })
}

fn targets(lab: &Lab<Mlx5>, attr: &ConnectAttr) -> Result<Targets> {
    let pd = lab.b.alloc_pd()?;
    let cq = lab.b.create_cq(64, None)?;
    let mr = region(&pd, 64 << 10, lab.full_access())?;
    let srq_attr = SrqInitAttr::new(SrqAttr::new(16).max_sge(2));
    let srq = pd.create_srq(&srq_attr)?;
    #[expect(unsafe_code, reason = "addresses of entries become pointers")]
    // SAFETY: the receives name an ordinary region.
    let scattering = unsafe { pd.create_dct_with_data_in_completions(&cq, &srq, KEY) }?;
    let targets = [scattering, pd.create_dct(&cq, &srq, KEY + 1)?];
    ensure!(targets[0].dctn().is_none(), "a number before RTR");
    let path = path_to(lab, &lab.a)?;
    let numbers = [targets[0].connect(attr, &path)?, targets[1].connect(attr, &path)?];
    ensure!(numbers[0] != numbers[1]);
    Ok(Targets { numbers, _targets: targets, srq, cq, mr, _pd: pd })
}

impl Initiator {
    fn ok(&self, wr_id: u64, opcode: WcOpcode) -> Result<()> {
        let wc = wait::successes(&self.cq, 1)?[0];
        ensure!((wc.wr_id, wc.opcode) == (wr_id, opcode), "{wc:?}");
        Ok(())
    }

    fn bytes(&self, at: usize, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.mr.read_at(at, &mut bytes)?;
        Ok(bytes)
    }
}

impl Targets {
    /// Receives at the start of the region.
    fn recv(&mut self, wr_id: u64) -> Result<()> {
        let sge = self.mr.sge(0..LONG)?;
        // SAFETY: the region lives as long as the queue.
        unsafe { self.srq.post(wr_id, &[sge]) }?;
        Ok(())
    }

    fn bytes(&self, at: usize, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.mr.read_at(at, &mut bytes)?;
        Ok(bytes)
    }

    fn received(&self, wr_id: u64, len: usize) -> Result<WorkCompletion> {
        let wc = wait::successes(&self.cq, 1)?[0];
        ensure!((wc.wr_id, wc.byte_len as usize) == (wr_id, len), "{wc:?}");
        ensure!(self.bytes(0, len)? == pattern::bytes(wr_id, len), "the data of {wr_id}");
        Ok(wc)
    }
}

/// One initiator sends to two targets in turn, short messages and long ones, inline and not.
fn one_initiator_reaches_two_targets<D: Driver>(lab: &Lab<D>) -> Outcome {
    let Some((mut a, mut b)) = ends(lab)? else { return Ok(()) };
    for n in 0..12_u64 {
        let which = n as usize % 2;
        let (dctn, key) = (b.numbers[which], KEY + which as u64);
        let len = [8, 64, LONG][n as usize % 3];
        b.recv(n)?;
        let data = pattern::bytes(n, len);
        a.mr.write_at(0, &data)?;
        let sge = a.mr.sge(0..len)?;
        let wr = a.qp.sq().post_dc(n, &a.ah, dctn, key).signaled();
        if len <= 64 {
            wr.send_inline(&data)?;
        } else {
            // SAFETY: the region lives until the completion is polled.
            unsafe { wr.send(&[sge]) }?;
        }
        a.ok(n, WcOpcode::SEND)?;
        b.received(n, len)?;
    }
    Ok(())
}

/// Immediate data, writes, reads and atomics.
fn every_opcode_works<D: Driver>(lab: &Lab<D>) -> Outcome {
    let Some((mut a, mut b)) = ends(lab)? else { return Ok(()) };
    let (dctn, key) = (b.numbers[1], KEY + 1);
    let data = pattern::bytes(2, LONG);
    a.mr.write_at(0, &data)?;
    let sge = a.mr.sge(0..LONG)?;
    let old = a.mr.sge(8192..8200)?;

    b.recv(2)?;
    let wr = a.qp.sq().post_dc(1, &a.ah, dctn, key).signaled();
    // SAFETY: the region lives until the completion is polled; so it is for all below.
    unsafe { wr.send_imm(&[sge], ImmData::new(0xabcd)) }?;
    a.ok(1, WcOpcode::SEND)?;
    let wc = b.received(2, LONG)?;
    ensure!(wc.imm_data().map(ImmData::get) == Some(0xabcd), "{wc:?}");

    let wr = a.qp.sq().post_dc(3, &a.ah, dctn, key).signaled();
    // SAFETY: the region lives until the completion is polled, and is not accessed before.
    unsafe { wr.write(&[sge], b.mr.remote(16384)?) }?;
    a.ok(3, WcOpcode::RDMA_WRITE)?;
    ensure!(b.bytes(16384, LONG)? == data);

    b.recv(4)?;
    let wr = a.qp.sq().post_dc(5, &a.ah, dctn, key).signaled();
    wr.write_imm_inline(&[7; 8], b.mr.remote(32768)?, ImmData::new(9))?;
    a.ok(5, WcOpcode::RDMA_WRITE)?;
    let wc = wait::successes(&b.cq, 1)?[0];
    ensure!(wc.wr_id == 4 && wc.opcode == WcOpcode::RECV_RDMA_WITH_IMM, "{wc:?}");
    ensure!(b.bytes(32768, 8)? == [7; 8]);

    let into = a.mr.sge(16384..16384 + LONG)?;
    let wr = a.qp.sq().post_dc(6, &a.ah, dctn, key).signaled();
    // SAFETY: the region lives until the completion is polled, and is not accessed before.
    unsafe { wr.read(&[into], b.mr.remote(16384)?) }?;
    a.ok(6, WcOpcode::RDMA_READ)?;
    ensure!(a.bytes(16384, LONG)? == data);

    let word = u64::from_ne_bytes([7; 8]);
    let wr = a.qp.sq().post_dc(7, &a.ah, dctn, key).signaled();
    // SAFETY: the region lives until the completion is polled, and is not accessed before.
    unsafe { wr.fetch_add(&[old], b.mr.remote(32768)?, 5) }?;
    a.ok(7, WcOpcode::FETCH_ADD)?;
    ensure!(a.bytes(8192, 8)? == word.to_ne_bytes());
    let wr = a.qp.sq().post_dc(8, &a.ah, dctn, key).signaled();
    // SAFETY: the region lives until the completion is polled, and is not accessed before.
    unsafe { wr.compare_swap(&[old], b.mr.remote(32768)?, word + 5, 11) }?;
    a.ok(8, WcOpcode::COMP_SWAP)?;
    ensure!(a.bytes(8192, 8)? == (word + 5).to_ne_bytes());
    ensure!(b.bytes(32768, 8)? == 11_u64.to_ne_bytes());
    Ok(())
}

/// An initiator whose depth is 0 has one read or atomic at a time: the kernel passes the depth as a logarithm.
fn a_depth_of_zero_is_one<D: Driver>(lab: &Lab<D>) -> Outcome {
    let attr = lab.connect_attr().max_rd_atomic(0);
    let Some((mut a, b)) = ends_with(lab, &attr)? else { return Ok(()) };
    b.mr.write_at(0, &3_u64.to_ne_bytes())?;
    for n in 0..4_u64 {
        let at = n as usize * 8;
        let old = a.mr.sge(at..at + 8)?;
        let wr = a.qp.sq().post_dc(n, &a.ah, b.numbers[0], KEY).signaled();
        // SAFETY: the region lives until the completion is polled, and is not accessed before.
        unsafe { wr.fetch_add(&[old], b.mr.remote(0)?, 5) }?;
    }
    for (n, wc) in (0..).zip(wait::successes(&a.cq, 4)?) {
        ensure!((wc.wr_id, wc.opcode) == (n, WcOpcode::FETCH_ADD), "{wc:?}");
        ensure!(a.bytes(n as usize * 8, 8)? == (3 + 5 * n).to_ne_bytes(), "the value before request {n}");
    }
    ensure!(b.bytes(0, 8)? == 23_u64.to_ne_bytes());
    Ok(())
}

/// With a wrong key, or a target that does not exist, the initiator gets an error.
fn wrong_keys_and_targets_are_errors<D: Driver>(lab: &Lab<D>) -> Outcome {
    for wrong in [true, false] {
        let Some((mut a, b)) = ends(lab)? else { return Ok(()) };
        let (dctn, key) = if wrong { (b.numbers[0], KEY + 1) } else { (b.numbers[0] ^ 0x8000, KEY) };
        let wr = a.qp.sq().post_dc(1, &a.ah, dctn, key).signaled();
        wr.write_inline(&[1; 8], b.mr.remote(0)?)?;
        let wc = wait::completions(&a.cq, 1)?[0];
        ensure!(wc.wr_id == 1 && wc.status != WcStatus::SUCCESS, "{wc:?}");
        ensure!(b.bytes(0, 8)? == [0; 8], "written despite the error");
    }
    Ok(())
}

/// Faults are those of an RC QP (`faults`); the target stays usable.
fn faults_end_the_session_only<D: Driver>(lab: &Lab<D>) -> Outcome {
    let attr = super::errors::hasty(lab).attr;
    for fault in 0..5 {
        let Some((mut a, mut b)) = ends_with(lab, &attr)? else { return Ok(()) };
        let Some(mlx5) = lab.mlx5() else { return Ok(()) };
        b.recv(1)?;
        b.recv(2)?;
        b.mr.write_at(8192, &2_u64.to_ne_bytes())?;
        let (dctn, key) = (b.numbers[1], KEY + 1);
        let unknown = uverbs::RemoteRegion::new(b.mr.addr(), 64, b.mr.rkey() ^ 0x00ff_ff00)?;
        let other = mlx5.a.alloc_pd()?;
        let foreign = region(&other, 4096, lab.full_access())?;
        let bad = foreign.sge(0..8)?;
        let wr = a.qp.sq().post_dc(5, &a.ah, dctn, key).signaled();
        let (sent, got) = match fault {
            0 => {
                wr.write_imm_inline(&[7; 8], unknown.remote(0..8)?, ImmData::new(9))?;
                (WcStatus::REM_ACCESS_ERR, Some(WcStatus::LOC_ACCESS_ERR))
            }
            1 => {
                // SAFETY: the region lives until the completion is polled, and is not accessed before; so it is below.
                unsafe { wr.read(&[bad], b.mr.remote(8192)?) }?;
                (WcStatus::LOC_PROT_ERR, None)
            }
            3 => {
                wr.send_inv_inline(&[7; 8], unknown.rkey())?;
                (WcStatus::RETRY_EXC_ERR, Some(WcStatus::MW_BIND_ERR))
            }
            _ => {
                let (at, status) = match fault {
                    2 => (b.mr.remote(8192)?, WcStatus::LOC_PROT_ERR),
                    _ => (unknown.remote(0..8)?, WcStatus::REM_ACCESS_ERR),
                };
                // SAFETY: as above.
                unsafe { wr.compare_swap(&[bad], at, 2, 3) }?;
                (status, None)
            }
        };
        let wc = wait::completions(&a.cq, 1)?[0];
        ensure!((wc.wr_id, wc.status) == (5, sent), "{fault}: {wc:?}");
        if let Some(status) = got {
            let wc = wait::completions(&b.cq, 1)?[0];
            ensure!((wc.wr_id, wc.status) == (1, status), "{fault}: {wc:?}");
        }
        wait::none(&b.cq)?;
        let left = if fault == 2 { 3_u64 } else { 2 };
        ensure!(b.bytes(8192, 8)? == left.to_ne_bytes(), "{fault}: the word at the target");
        let mut second = initiator(mlx5, &attr)?;
        let wr = second.qp.sq().post_dc(6, &second.ah, dctn, key).signaled();
        wr.send_inline(&pattern::bytes(6, 8))?;
        second.ok(6, WcOpcode::SEND)?;
        wait::successes(&b.cq, 1)?;
    }
    Ok(())
}

crate::tests!(
    one_initiator_reaches_two_targets,
    every_opcode_works,
    a_depth_of_zero_is_one,
    wrong_keys_and_targets_are_errors,
    faults_end_the_session_only
);
