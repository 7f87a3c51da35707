// SPDX-License-Identifier: MIT OR Apache-2.0
//! Large regions and messages: lists of hundreds of thousands of pages, tens of thousands of packets.

use crate::pair::Spec;
use crate::sges::sge;
use crate::{Face, Lab, Op, Outcome, Pair, RemoteAddr, Req, pattern};
use anyhow::{Context as _, Result, ensure};
use uverbs::{Driver, Exclusive, Exposed, MemoryRegion, PageBuf, Rc, WcStatus};

type RcPair<D> = Pair<D, Rc, Exclusive>;
type Region<D> = MemoryRegion<PageBuf, Exposed, D>;

const GIB: usize = 1 << 30;
const PAGE: usize = 4096;
/// Bytes moved at each place: more than two pages.
const LEN: usize = 10_000;

/// In the VM, a test that pins memory checks for it first, before the kernel kills it.
fn needs<D: Driver>(lab: &Lab<D>, bytes: usize) -> Result<()> {
    if lab.env().is_err() {
        // In this process no memory is pinned, and memory that is not accessed is not allocated.
        return Ok(());
    }
    let info = std::fs::read_to_string("/proc/meminfo")?;
    let line = info.lines().find_map(|l| l.strip_prefix("MemAvailable:")).context("MemAvailable")?;
    let available: usize = line.trim_end_matches("kB").trim().parse()?;
    ensure!(
        available >> 10 >= bytes >> 20,
        "{} MiB are free and {} needed: cargo xtask vm test --mem 2048",
        available >> 10,
        bytes >> 20
    );
    Ok(())
}

/// Writes to a place in a large region of B, and reads it back; then the same with the region as the local end.
fn visit<D: Driver>(pair: &mut RcPair<D>, mr: &Region<D>, offset: usize) -> Result<()> {
    let seed = offset as u64 + mr.addr();
    let at = RemoteAddr { addr: mr.addr() + offset as u64, rkey: mr.rkey() };
    let back = 20_000..20_000 + LEN;
    pair.a.fill(0..LEN, seed)?;
    pair.a.clear(back.clone())?;
    let (from, to) = ([pair.a.sge(0..LEN)], [pair.a.sge(back.clone())]);
    let reqs = [Req::new(1, Op::Write(at)).sges(&from), Req::new(2, Op::Read(at)).signaled().sges(&to)];
    pair.a.post(Face::Batch, &reqs)?;
    pair.a.ok(1)?;
    pair.a.check(back, seed)?;
    let mut bytes = vec![0; LEN];
    mr.read_at(offset, &mut bytes)?;
    ensure!(pattern::first_difference(seed, &bytes).is_none(), "the region's memory differs");
    let from = [sge(mr, offset..offset + LEN)];
    pair.b.post(Face::Single, &[Req::new(3, Op::Write(pair.a.remote(40_000))).signaled().sges(&from)])?;
    pair.b.ok(1)?;
    pair.a.check(40_000..40_000 + LEN, seed)
}

/// A region of 1 GiB works near its start, middle and end, and not beyond it. Also with an IOVA that equals the address
/// of the memory only modulo the page size: then the device can only use small pages, so the list has its maximum
/// length.
fn regions_of_1_gib_work<D: Driver>(lab: &Lab<D>) -> Outcome {
    needs(lab, GIB + (64 << 20))?;
    let mut pair = RcPair::new(lab)?;
    let mut memory = PageBuf::new(GIB)?;
    for shift in [0, PAGE as u64] {
        let at = uverbs::StableBuf::ptr(&memory).addr().get() as u64;
        let mr = match shift {
            0 => pair.b.pd.reg_mr(memory, lab.full_access()),
            _ => pair.b.pd.reg_mr_iova(memory, at + shift, lab.full_access()),
        };
        let mr = mr?;
        for offset in [0, 3 * PAGE - 5, GIB / 2 - LEN / 2, GIB / 2 + 12_345, GIB - LEN - PAGE, GIB - LEN] {
            visit(&mut pair, &mr, offset)
                .with_context(|| format!("at {offset:#x}, shifted by {shift:#x}"))?;
        }
        let from = [pair.a.sge(0..LEN)];
        let beyond = RemoteAddr { addr: mr.addr() + (GIB - LEN + 1) as u64, rkey: mr.rkey() };
        pair.a.post(Face::Single, &[Req::new(1, Op::Write(beyond)).signaled().sges(&from)])?;
        ensure!(pair.a.wait(1)?[0].status == WcStatus::REM_ACCESS_ERR);
        pair.reconnect(&lab.connect_attr())?;
        memory = mr.close().map_err(|(_, e)| e)?;
    }
    Ok(())
}

/// A message of 64 MiB, written and read: every page has its number, and some pages are checked byte by byte. The
/// message is shorter on rxe, because an emulated kernel makes two or three MiB of packets per second.
fn messages_of_64_mib_arrive<D: Driver>(lab: &Lab<D>) -> Outcome {
    let size: usize = if lab.mlx5().is_some() { 64 << 20 } else { 16 << 20 };
    needs(lab, 3 * size)?;
    let mut pair = RcPair::with(lab, &Spec { len: size, ..Spec::new(lab) })?;
    let looked_at = [0, size / 2 - PAGE, size / 2, size - PAGE];
    for offset in looked_at {
        pair.a.fill(offset..offset + PAGE, offset as u64)?;
    }
    for page in 0..size / PAGE {
        pair.a.mr.write_at(page * PAGE, &(page as u64).to_le_bytes())?;
    }
    let check = |side: &Region<D>| {
        for page in 0..size / PAGE {
            let mut number = [0; 8];
            side.read_at(page * PAGE, &mut number)?;
            ensure!(u64::from_le_bytes(number) == page as u64, "page {page} has {number:02x?}");
        }
        for offset in looked_at {
            let mut bytes = vec![0; PAGE - 8];
            side.read_at(offset + 8, &mut bytes)?;
            ensure!(bytes == pattern::bytes(offset as u64, PAGE)[8..], "the page at {offset:#x} differs");
        }
        Ok(())
    };
    let (mine, its) = ([pair.a.sge(0..size)], pair.b.remote(0));
    pair.a.post(Face::Single, &[Req::new(1, Op::Write(its)).signaled().sges(&mine)])?;
    pair.a.ok(1).context("written")?;
    check(&pair.b.mr).context("written")?;
    for page in 0..size / PAGE {
        pair.a.mr.write_at(page * PAGE, &[0xff; 16])?;
    }
    // On rxe of 6.1 the response to such a long read never completes: its requester repeats the whole request when its
    // timer expires.
    let part = if lab.mlx5().is_some() { size } else { 4 << 20 };
    for start in (0..size).step_by(part) {
        let into = [pair.a.sge(start..start + part)];
        let from = pair.b.remote(start);
        pair.a.post(Face::Single, &[Req::new(2, Op::Read(from)).signaled().sges(&into)])?;
        let wc = pair.a.ok(1).context("read")?;
        ensure!(wc[0].byte_len as usize == part, "{} bytes read", wc[0].byte_len);
    }
    check(&pair.a.mr).context("read")
}

crate::tests!(regions_of_1_gib_work, messages_of_64_mib_arrive);
