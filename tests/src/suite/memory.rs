// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory regions: other addresses, rights, re-registration, unsupported operations; device memory.

use crate::pair::region;
use crate::post::post_recv;
use crate::sges::sge;
use crate::{Face, Lab, Op, Outcome, Pair, RemoteAddr, Req, Spec, pattern};
use anyhow::{Context as _, Result, ensure};
use core::sync::atomic::Ordering;
use std::os::fd::AsFd;
use uverbs::provider::{WireRemote as _, WireSge as _};
use uverbs::wr::Sge;
use uverbs::{Driver, Errno, Exclusive, MemoryRegion, PageBuf, Rc, RegError, WcStatus};
use uverbs::{
    Exposed,
    attr::{AccessFlags, AdviseFlags, MrAdvice, OdpGeneralCaps},
};

type RcPair<D> = Pair<D, Rc, Exclusive>;
type Region<D> = MemoryRegion<PageBuf, Exposed, D>;

fn place<D: Driver>(mr: &Region<D>, offset: usize) -> RemoteAddr {
    RemoteAddr { addr: mr.addr() + offset as u64, rkey: mr.rkey() }
}

/// Writes a pattern from A into a region of B, and reads it back through another.
fn round_trip<D: Driver>(pair: &mut RcPair<D>, mr: &Region<D>, seed: u64) -> Result<()> {
    let len = mr.len().min(8000) - 3;
    pair.a.fill(0..len, seed)?;
    let (from, to) = ([pair.a.sge(0..len)], [pair.a.sge(16 << 10..(16 << 10) + len)]);
    let reqs = [
        Req::new(1, Op::Write(place(mr, 1))).sges(&from),
        Req::new(2, Op::Read(place(mr, 1))).signaled().sges(&to),
    ];
    pair.a.post(Face::Batch, &reqs)?;
    pair.a.ok(1)?;
    pair.a.check(16 << 10..(16 << 10) + len, seed)?;
    let mut bytes = vec![0; len];
    mr.read_at(1, &mut bytes)?;
    ensure!(bytes == pattern::bytes(seed, len), "the region's memory differs");
    Ok(())
}

/// A region can have an arbitrary IOVA.
fn regions_work_at_any_iova<D: Driver>(lab: &Lab<D>) -> Outcome {
    let mut pair = RcPair::with(lab, &Spec { data_in_completions: false, ..Spec::new(lab) })?;
    for (i, iova) in [0x1000, 0x7f00_0000_0000, 0xffff_ffff_f000 - 0x10000].into_iter().enumerate() {
        let buf = PageBuf::new(16 << 10)?;
        let mr = pair.b.pd.reg_mr_iova(buf, iova, lab.full_access()).map_err(|e| e.error)?;
        ensure!(mr.addr() == iova);
        round_trip(&mut pair, &mr, i as u64).with_context(|| format!("iova {iova:#x}"))?;
        // The region also works as the local end.
        let from = [sge(&mr, 1..101)];
        pair.b.post(Face::Single, &[Req::new(1, Op::Write(pair.a.remote(60_000))).signaled().sges(&from)])?;
        pair.b.ok(1)?;
        pair.a.check(60_000..60_100, i as u64)?;
        // Short data, which a device could put into the completion, arrive in the region's memory.
        let (into, word) = ([sge(&mr, 200..216)], [sge(&mr, 304..312)]);
        pair.a.fill(0..16, 77)?;
        let old = pair.a.word(0)?.load(Ordering::Relaxed);
        let reqs = [
            Req::new(2, Op::Read(pair.a.remote(0))).sges(&into),
            Req::new(3, Op::FetchAdd(pair.a.remote(0), 1)).signaled().sges(&word),
        ];
        pair.b.post(Face::Batch, &reqs)?;
        pair.b.ok(1)?;
        let into = [sge(&mr, 400..450)];
        post_recv(pair.b.qp.rq()?, Face::Single, &[(4, &into)])?;
        let from = [pair.a.sge(8..24)];
        pair.a.post(Face::Single, &[Req::new(5, Op::Send).signaled().sges(&from)])?;
        pair.a.ok(1)?;
        pair.b.ok(1)?;
        let mut bytes = [0; 450];
        mr.read_at(0, &mut bytes)?;
        ensure!(bytes[200..216] == pattern::bytes(77, 16), "a read of 16 bytes");
        ensure!(bytes[304..312] == old.to_ne_bytes(), "an atomic");
        ensure!(bytes[400..416] == pair.a.bytes(8..24)?, "a receive of 16 bytes");
    }
    // An IOVA with another page offset is refused without a system call.
    let e =
        pair.b.pd.reg_mr_iova(PageBuf::new(4096)?, 0x1234, lab.full_access()).err().context("0x1234")?.error;
    ensure!(e.to_string().contains("reg_mr: invalid iova"), "{e}");
    Ok(())
}

/// Memory may begin and end at any byte.
fn unaligned_memory_works<D: Driver>(lab: &Lab<D>) -> Outcome {
    let mut pair = RcPair::new(lab)?;
    for len in [64, 4097, 9000] {
        let mr = pair.b.pd.reg_mr(vec![0_u8; len], lab.full_access()).map_err(|e| e.error)?;
        let at = RemoteAddr { addr: mr.addr() + 1, rkey: mr.rkey() };
        pair.a.fill(0..len - 2, len as u64)?;
        let from = [pair.a.sge(0..len - 2)];
        pair.a.post(Face::Single, &[Req::new(1, Op::Write(at)).signaled().sges(&from)])?;
        pair.a.ok(1)?;
        let bytes = mr.close().map_err(|(_, e)| e)?;
        ensure!((bytes[0], bytes[len - 1]) == (0, 0), "written beyond the ends");
        ensure!(bytes[1..len - 1] == pattern::bytes(len as u64, len - 2));
    }
    Ok(())
}

/// A private region lends its bytes, and refuses access rights with which a peer could write to them.
fn private_regions_refuse_remote_writes<D: Driver>(lab: &Lab<D>) -> Outcome {
    use AccessFlags as F;
    let mut pair = RcPair::new(lab)?;
    for access in [F::REMOTE_WRITE, F::REMOTE_ATOMIC, F::MW_BIND] {
        let refused = pair.a.pd.reg_private(PageBuf::new(4096)?, F::LOCAL_WRITE | access);
        let e = refused.err().context("exposed")?.error;
        ensure!(e.to_string().contains("reg_mr: invalid access"), "{e}");
    }
    let mut mr = pair.a.pd.reg_private(PageBuf::new(4096)?, F::LOCAL_WRITE).map_err(|e| e.error)?;
    mr.as_mut_slice()[..5].copy_from_slice(b"hello");
    let from = [sge(&mr, 0..5)];
    pair.a.post(Face::Single, &[Req::new(1, Op::Write(pair.b.remote(0))).signaled().sges(&from)])?;
    pair.a.ok(1)?;
    ensure!(pair.b.bytes(0..5)? == b"hello");
    ensure!(&mr.as_slice()[..6] == b"hello\0");
    // A receive is possible while the memory is not borrowed.
    let recv = [sge(&mr, 100..110)];
    post_recv(pair.a.qp.rq()?, Face::Single, &[(1, &recv)])?;
    pair.b.post(Face::Single, &[Req::new(1, Op::Send).inline(b"0123456789")])?;
    pair.a.ok(1)?;
    ensure!(&mr.as_slice()[100..110] == b"0123456789");
    Ok(())
}

/// Atomics of the peer and of this process on the same word lose no update.
fn cpu_and_peer_atomics_lose_no_update<D: Driver>(lab: &Lab<D>) -> Outcome {
    use uverbs::attr::AtomicCap;
    let mut pair = RcPair::new(lab)?;
    let sges = [pair.a.sge(0..8)];
    let at = pair.b.remote(64);
    let both = lab.device.atomic_cap >= AtomicCap::GLOB;
    for _ in 0..100 {
        pair.a.post(Face::Single, &[Req::new(1, Op::FetchAdd(at, 1)).signaled().sges(&sges)])?;
        if both {
            pair.b.word(64)?.fetch_add(1 << 32, Ordering::AcqRel);
        }
        pair.a.ok(1)?;
    }
    let word = pair.b.word(64)?.load(Ordering::Acquire);
    ensure!(word == if both { 100 << 32 | 100 } else { 100 }, "{word:#x}");
    Ok(())
}

/// Re-registration with other rights, another domain, other memory: it succeeds, or is unsupported and changes nothing.
fn rereg_mr_succeeds_or_changes_nothing<D: Driver>(lab: &Lab<D>) -> Outcome {
    use AccessFlags as F;
    let mut pair = RcPair::new(lab)?;
    let read_only = F::LOCAL_WRITE | F::REMOTE_READ;
    let mut mr = region(&pair.b.pd, 8192, read_only)?;
    match mr.rereg(None, Some(lab.full_access())) {
        Ok(()) => round_trip(&mut pair, &mr, 3).context("with more rights")?,
        Err(e) => {
            ensure!(e.is_unsupported() && e.verb() == "rereg_mr", "{e}");
            lab.note(format_args!("{e}"));
            let to = [pair.a.sge(0..100)];
            pair.a.post(Face::Single, &[Req::new(1, Op::Read(place(&mr, 0))).signaled().sges(&to)])?;
            pair.a.ok(1).context("the region after a refused rereg_mr")?;
            return Ok(());
        }
    }
    // In another domain, QPs of that domain can access it, and QPs of this one can't.
    let mut mr = region(&pair.b.pd, 8192, lab.full_access())?;
    let other = RcPair::new(lab)?;
    match mr.rereg(Some(&other.b.pd), None) {
        Ok(()) => {
            let mut other = other;
            round_trip(&mut other, &mr, 4).context("in another domain")?;
            let data = [pair.a.sge(0..8)];
            pair.a.post(Face::Single, &[Req::new(1, Op::Write(place(&mr, 0))).signaled().sges(&data)])?;
            ensure!(pair.a.wait(1)?[0].status == WcStatus::REM_ACCESS_ERR);
        }
        Err(e) => ensure!(e.is_unsupported(), "{e}"),
    }
    // Other memory.
    let mut pair = RcPair::new(lab)?;
    let mut mr = region(&pair.b.pd, 8192, lab.full_access())?;
    match mr.rereg_buf(PageBuf::new(16 << 10)?) {
        Ok(old) => {
            ensure!(uverbs::StableBuf::len(&old) >= 8192);
            round_trip(&mut pair, &mr, 5).context("on other memory")
        }
        Err(RegError { error: e, .. }) => {
            ensure!(e.is_unsupported(), "{e}");
            lab.note(format_args!("of the memory: {e}"));
            round_trip(&mut pair, &mr, 6).context("the region after a refused rereg_mr")
        }
    }
}

/// As [`round_trip`], with one packet to the start of each page: rxe of 7.2 ignores the offset in the page
/// (`__rxe_odp_mr_copy()`), so other data arrive at wrong addresses.
fn page_round_trip<D: Driver>(pair: &mut RcPair<D>, mr: &Region<D>, seed: u64) -> Result<()> {
    const LEN: usize = 1000;
    let (pages, page, back) = (4, 4096, 32 << 10);
    pair.a.fill(0..pages * LEN, seed)?;
    pair.a.clear(back..back + pages * LEN)?;
    for i in 0..pages {
        let from = [pair.a.sge(i * LEN..(i + 1) * LEN)];
        let to = [pair.a.sge(back + i * LEN..back + (i + 1) * LEN)];
        let reqs = [
            Req::new(1, Op::Write(place(mr, i * page))).sges(&from),
            Req::new(2, Op::Read(place(mr, i * page))).signaled().sges(&to),
        ];
        pair.a.post(Face::Batch, &reqs)?;
        pair.a.ok(1)?;
        let (mut sent, mut there) = ([0; LEN], [0; LEN]);
        pair.a.mr.read_at(i * LEN, &mut sent)?;
        mr.read_at(i * page, &mut there)?;
        ensure!(there == sent, "page {i} of the region differs");
    }
    pair.a.check(back..back + pages * LEN, seed)
}

/// Memory that is faulted in at the first access.
fn on_demand_regions_fault_in<D: Driver>(lab: &Lab<D>) -> Outcome {
    let mut pair = RcPair::new(lab)?;
    let offered = lab.device.odp_caps.general_caps.contains(OdpGeneralCaps::SUPPORT);
    let access = AccessFlags::LOCAL_WRITE
        | AccessFlags::REMOTE_WRITE
        | AccessFlags::REMOTE_READ
        | AccessFlags::ON_DEMAND;
    match pair.b.pd.reg_mr(PageBuf::new(64 << 10)?, access) {
        Ok(mr) => {
            ensure!(offered, "registered, though the device has no on-demand paging");
            page_round_trip(&mut pair, &mr, 1)?;
            match mr.advise(MrAdvice::PrefetchWrite, AdviseFlags::FLUSH, 0..8192) {
                Ok(()) => lab.note("advise_mr works"),
                Err(e) => lab.note(format_args!("advise_mr: {e}")),
            }
            page_round_trip(&mut pair, &mr, 2)
        }
        Err(RegError { error: e, .. }) => {
            ensure!(!offered && e.verb() == "reg_mr", "{e}");
            lab.note(format_args!("{e}"));
            Ok(())
        }
    }
}

/// Advice for memory without on-demand paging, or for a range beyond the region, is refused.
fn advise_mr_refuses_other_ranges<D: Driver>(lab: &Lab<D>) -> Outcome {
    let pd = lab.a.alloc_pd()?;
    let mr = region(&pd, 4096, lab.full_access())?;
    let e = mr.advise(MrAdvice::Prefetch, AdviseFlags::empty(), 0..4097).err().context("beyond")?;
    ensure!(e.to_string().contains("advise_mr: invalid range"), "{e}");
    let e = mr.advise(MrAdvice::Prefetch, AdviseFlags::FLUSH, 0..4096).err().context("not on demand")?;
    ensure!(e.verb() == "advise_mr", "{e}");
    Ok(())
}

/// A file that is not a dma-buf is refused with the expected error.
fn invalid_dmabuf_is_refused<D: Driver>(lab: &Lab<D>) -> Outcome {
    let pd = lab.a.alloc_pd()?;
    // The lab has no dma-buf file, so a driver that supports them returns EINVAL, and another one `Unsupported`.
    let file = std::fs::File::open("/dev/null")?;
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ;
    let e = pd.reg_dmabuf_mr(file.as_fd(), 0, 4096, 0, access).err().context("/dev/null")?;
    ensure!(e.verb() == "reg_dmabuf_mr", "{e}");
    lab.note(format_args!("{e}"));
    let e = pd.reg_dmabuf_mr(file.as_fd(), 1, 4096, 0, access).err().context("iova")?;
    ensure!(e.to_string().contains("invalid iova"), "{e}");
    Ok(())
}

/// Flags that a device may ignore are not an error.
fn relaxed_ordering_is_accepted<D: Driver>(lab: &Lab<D>) -> Outcome {
    let mut pair = RcPair::new(lab)?;
    let mr = region(&pair.b.pd, 8192, lab.full_access() | AccessFlags::RELAXED_ORDERING)?;
    round_trip(&mut pair, &mr, 12)
}

/// After deregistration the keys give no access.
fn deregistered_keys_are_invalid<D: Driver>(lab: &Lab<D>) -> Outcome {
    let mut pair = RcPair::new(lab)?;
    let mr = region(&pair.b.pd, 4096, lab.full_access())?;
    let at = place(&mr, 0);
    let mine = region(&pair.a.pd, 4096, lab.full_access())?;
    let from = [sge(&mine, 0..8)];
    pair.a.post(Face::Single, &[Req::new(1, Op::Write(at)).signaled().sges(&from)])?;
    pair.a.ok(1)?;
    mr.close().map_err(|(_, e)| e)?;
    pair.a.post(Face::Single, &[Req::new(1, Op::Write(at)).signaled().sges(&from)])?;
    ensure!(pair.a.wait(1)?[0].status == WcStatus::REM_ACCESS_ERR);
    pair.reconnect(&lab.connect_attr())?;
    mine.close().map_err(|(_, e)| e)?;
    pair.a.post(Face::Single, &[Req::new(1, Op::Write(pair.b.remote(0))).signaled().sges(&from)])?;
    let status = pair.a.wait(1)?[0].status;
    // This must be the last request: see LOCAL_PROTECTION in `errors`.
    let local = [WcStatus::LOC_PROT_ERR, WcStatus::LOC_QP_OP_ERR, WcStatus::WR_FLUSH_ERR];
    ensure!(local.contains(&status), "{status:?}");
    Ok(())
}

/// A buffer that counts its `Debug` calls and is not `Sync`.
struct Counting {
    bytes: Vec<u8>,
    shown: core::cell::Cell<u64>,
}

impl core::fmt::Debug for Counting {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.shown.set(self.shown.get() + 1);
        self.bytes.fmt(f)
    }
}

#[expect(unsafe_code, reason = "the buffer's address is stable")]
// SAFETY: the range is that of a `Vec<u8>`, which meets the contract, and this type gives no access to it.
unsafe impl uverbs::StableBuf for Counting {
    fn ptr(&self) -> core::ptr::NonNull<u8> {
        uverbs::StableBuf::ptr(&self.bytes)
    }

    fn len(&self) -> usize {
        self.bytes.len()
    }
}

/// A region is formatted with `Debug` while peers and threads write to it: this does not read its bytes and does not
/// access its owner.
fn debug_output_reads_no_memory<D: Driver>(lab: &Lab<D>) -> Outcome {
    let pd = lab.a.alloc_pd()?;
    let buf = Counting { bytes: vec![0x5a; 64], shown: Default::default() };
    let mr = pd.reg_mr(buf, lab.full_access()).map_err(|e| e.error)?;
    std::thread::scope(|scope| {
        scope.spawn(|| (0..200).try_for_each(|i| mr.write_at(0, &[i; 64])));
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let text = format!("{mr:?}");
                    assert!(text.contains("lkey") && text.len() < 300, "{text}");
                }
            });
        }
    });
    let buf = mr.close().map_err(|(_, e)| e)?;
    ensure!(buf.shown.get() == 0, "formatted {} times", buf.shown.get());
    Ok(())
}

/// Memory of the device: peers write and read it, this process copies to and from it, and its regions keep it alive.
fn peers_and_copies_reach_device_memory<D: Driver>(lab: &Lab<D>) -> Outcome {
    if lab.device.max_dm_size == 0 {
        lab.note("the device has no memory");
        return Ok(());
    }
    let mut pair = RcPair::new(lab)?;
    let dm = lab.b.alloc_dm(256, 6)?;
    let access = lab.full_access() - AccessFlags::MW_BIND;
    let mr = pair.b.pd.reg_dm_mr(&dm, 64..256, access)?;
    let at = |offset| -> uverbs::Result<RemoteAddr> {
        let at = mr.remote(offset)?;
        Ok(RemoteAddr { addr: at.addr(), rkey: at.rkey() })
    };
    pair.a.fill(0..16, 21)?;
    let from = [pair.a.sge(0..16)];
    pair.a.post(Face::Single, &[Req::new(1, Op::Write(at(8)?)).signaled().sges(&from)])?;
    pair.a.ok(1)?;
    let mut out = [0; 16];
    dm.copy_from(64 + 8, &mut out)?;
    ensure!(out[..] == pattern::bytes(21, 16), "{out:02x?}");

    dm.copy_to(64, &pattern::bytes(22, 8))?;
    let into = [pair.a.sge(100..108)];
    pair.a.post(Face::Single, &[Req::new(2, Op::Read(at(0)?)).signaled().sges(&into)])?;
    pair.a.ok(1)?;
    pair.a.check(100..108, 22)?;

    ensure!(dm.copy_to(252, &[0; 8]).is_err() && dm.copy_from(0, &mut [0; 3]).is_err());
    ensure!(pair.b.pd.reg_dm_mr(&dm, 0..257, access).is_err());
    let (dm, error) = dm.close().err().context("closed while a region uses it")?;
    ensure!(error.errno() == Errno::EBUSY, "{error}");
    mr.close()?;
    dm.close().map_err(|(_, e)| e)?;
    Ok(())
}

/// A part of the read data goes to the null region, which drops it.
fn null_region_drops_data<D: Driver>(lab: &Lab<D>) -> Outcome {
    let mut pair = RcPair::new(lab)?;
    let null = match pair.a.pd.null_sge(6) {
        Ok(null) => Sge { addr: null.addr(), length: null.length(), lkey: null.lkey() },
        Err(e) if e.is_unsupported() => {
            lab.note(format_args!("{e}"));
            return Ok(());
        }
        Err(e) => return Err(e.into()),
    };
    pair.b.fill(0..13, 23)?;
    let sges = [null, pair.a.sge(0..7)];
    pair.a.post(Face::Single, &[Req::new(1, Op::Read(pair.b.remote(0))).signaled().sges(&sges)])?;
    pair.a.ok(1)?;
    ensure!(pair.a.bytes(0..7)? == pattern::bytes(23, 13)[6..]);
    Ok(())
}

crate::tests!(
    regions_work_at_any_iova,
    unaligned_memory_works,
    private_regions_refuse_remote_writes,
    cpu_and_peer_atomics_lose_no_update,
    rereg_mr_succeeds_or_changes_nothing,
    on_demand_regions_fault_in,
    advise_mr_refuses_other_ranges,
    invalid_dmabuf_is_refused,
    relaxed_ordering_is_accepted,
    deregistered_keys_are_invalid,
    debug_output_reads_no_memory,
    peers_and_copies_reach_device_memory,
    null_region_drops_data,
);
