// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory windows: the access that they give, their invalidation, and the QPs that may use them. (`opcodes` binds on
//! every face.)

use crate::pair::region;
use crate::wait::{list, statuses};
use crate::{Dialect, Face, Lab, Op, Outcome, Pair, RemoteAddr, Req, Spec};
use anyhow::{Context as _, Result, ensure};
use uverbs::attr::{AccessFlags, DeviceCapFlags, MwType};
use uverbs::{Driver, Errno, Exclusive, MemoryWindow, Rc, WcStatus};

type RcPair<D> = Pair<D, Rc, Exclusive>;

/// The window types that the device has.
pub(super) fn types<D: Driver>(lab: &Lab<D>) -> Vec<MwType> {
    let mut types = vec![];
    if lab.has(DeviceCapFlags::MEM_WINDOW) {
        types.push(MwType::Type1);
    }
    if lab.has(DeviceCapFlags::MEM_WINDOW_TYPE_2A) || lab.has(DeviceCapFlags::MEM_WINDOW_TYPE_2B) {
        types.push(MwType::Type2);
    }
    types
}

/// Opens bytes 4096..8192 of B's region by B's QP.
pub(super) fn bound<D: Driver>(
    pair: &mut RcPair<D>,
    mw_type: MwType,
    access: AccessFlags,
) -> Result<MemoryWindow<D>> {
    let b = &mut pair.b;
    let mut mw = b.pd.alloc_mw(mw_type)?;
    ensure!(mw.mw_type() == mw_type);
    let bind = mw.bind(&b.mr, b.mr.addr() + 4096, 4096, access);
    b.post(Face::Batch, &[Req::new(1, Op::BindMw(bind)).signaled()])?;
    b.ok(1)?;
    mw.bound(&bind);
    Ok(mw)
}

/// A write of 8 bytes by A; its status.
fn write<D: Driver>(pair: &mut RcPair<D>, to: RemoteAddr) -> Result<WcStatus> {
    pair.a.post(Face::Single, &[Req::new(2, Op::Write(to)).signaled().inline(b"8 bytes!")])?;
    Ok(pair.a.wait(1)?[0].status)
}

/// The window's bounds are exact, if the device checks them; the region's bounds are always exact.
fn window_bounds_are_exact<D: Driver>(lab: &Lab<D>) -> Outcome {
    for mw_type in types(lab) {
        let mut checks = true;
        let end = Spec::new(lab).len;
        for (offset, fits) in
            [(4096, true), (8184, true), (4095, false), (8185, false), (0, false), (end - 7, false)]
        {
            let mut pair = RcPair::new(lab)?;
            let mw = bound(&mut pair, mw_type, AccessFlags::REMOTE_WRITE)?;
            let at = RemoteAddr { rkey: mw.rkey(), ..pair.b.remote(offset) };
            let status = write(&mut pair, at)?;
            let in_region = offset + 8 <= end;
            if !fits && in_region && status == WcStatus::SUCCESS {
                // rxe checks a window's requests only against the region's range (`check_rkey()`).
                checks = false;
                continue;
            }
            let want = if fits { WcStatus::SUCCESS } else { WcStatus::REM_ACCESS_ERR };
            ensure!(status == want, "{mw_type:?}, 8 bytes at {offset}: {status:?}");
            let written = in_region && pair.b.bytes(offset..offset + 8)? == *b"8 bytes!";
            ensure!(written == fits, "{mw_type:?} at {offset}");
        }
        if !checks {
            lab.note(format_args!("the device does not check the bounds of a window of {mw_type:?}"));
        }
    }
    Ok(())
}

/// A window grants only the rights that it was bound with.
fn windows_grant_only_their_rights<D: Driver>(lab: &Lab<D>) -> Outcome {
    use AccessFlags as F;
    for mw_type in types(lab) {
        for (access, can_write, can_read) in [
            (F::REMOTE_WRITE, true, false),
            (F::REMOTE_READ, false, true),
            (F::REMOTE_WRITE | F::REMOTE_READ, true, true),
        ] {
            for op in [Op::Write as fn(RemoteAddr) -> Op, Op::Read] {
                let mut pair = RcPair::new(lab)?;
                let mw = bound(&mut pair, mw_type, access)?;
                let op = op(RemoteAddr { rkey: mw.rkey(), ..pair.b.remote(4096) });
                let sges = [pair.a.sge(0..16)];
                pair.a.post(Face::Single, &[Req::new(2, op).signaled().sges(&sges)])?;
                let status = pair.a.wait(1)?[0].status;
                let may = if matches!(op, Op::Write(_)) { can_write } else { can_read };
                let want = if may { WcStatus::SUCCESS } else { WcStatus::REM_ACCESS_ERR };
                ensure!(status == want, "{mw_type:?} with {access:?}, {op:?}: {status:?}");
            }
        }
    }
    Ok(())
}

/// A type 2 window gives no access after it was invalidated locally or by the peer's send; after another bind it has
/// another key.
fn invalidated_windows_give_no_access<D: Driver>(lab: &Lab<D>) -> Outcome {
    if !types(lab).contains(&MwType::Type2) {
        return Ok(());
    }
    for by_the_peer in [false, true] {
        let mut pair = RcPair::new(lab)?;
        let mut mw = bound(&mut pair, MwType::Type2, AccessFlags::REMOTE_WRITE)?;
        let at = RemoteAddr { rkey: mw.rkey(), ..pair.b.remote(4096) };
        ensure!(write(&mut pair, at)? == WcStatus::SUCCESS);
        if by_the_peer {
            pair.b.recv_empty(1)?;
            pair.a.post(Face::Single, &[Req::new(1, Op::SendInv(mw.rkey())).signaled()])?;
            pair.a.ok(1)?;
            let got = pair.b.ok(1)?[0];
            ensure!(got.invalidated_rkey() == Some(mw.rkey()), "{got:?}");
        } else {
            pair.b.post(Face::Single, &[Req::new(1, Op::LocalInv(mw.rkey())).signaled()])?;
            pair.b.ok(1)?;
        }
        // Bound again, to another place, under the next key.
        let bind = mw.bind(&pair.b.mr, pair.b.mr.addr(), 64, AccessFlags::REMOTE_WRITE);
        pair.b.post(Face::List, &[Req::new(1, Op::BindMw(bind)).signaled()])?;
        pair.b.ok(1)?;
        mw.bound(&bind);
        ensure!(mw.rkey() != at.rkey);
        let new = RemoteAddr { rkey: mw.rkey(), ..pair.b.remote(0) };
        ensure!(write(&mut pair, new)? == WcStatus::SUCCESS);
        // The old key gives no access.
        ensure!(write(&mut pair, at)? == WcStatus::REM_ACCESS_ERR, "by the peer: {by_the_peer}");
    }
    Ok(())
}

/// A bind of 0 bytes closes a type 1 window.
fn bind_of_0_bytes_closes_a_window<D: Driver>(lab: &Lab<D>) -> Outcome {
    if !types(lab).contains(&MwType::Type1) {
        return Ok(());
    }
    let mut pair = RcPair::new(lab)?;
    let mut mw = bound(&mut pair, MwType::Type1, AccessFlags::REMOTE_WRITE)?;
    let at = RemoteAddr { rkey: mw.rkey(), ..pair.b.remote(4096) };
    ensure!(write(&mut pair, at)? == WcStatus::SUCCESS);
    let bind = mw.bind(&pair.b.mr, 0, 0, AccessFlags::empty());
    let face = if Dialect::of::<D>().builder_binds_type1 { Face::Builder } else { Face::List };
    pair.b.post(face, &[Req::new(1, Op::BindMw(bind)).signaled()])?;
    pair.b.ok(1)?;
    mw.bound(&bind);
    ensure!(write(&mut pair, at)? == WcStatus::REM_ACCESS_ERR);
    Ok(())
}

/// Invalid binds: outside the region, of a region without `MW_BIND`, with more rights than the region has.
fn invalid_binds_fail<D: Driver>(lab: &Lab<D>) -> Outcome {
    use AccessFlags as F;
    for mw_type in types(lab) {
        let spec = lab.full_access();
        for (what, access, offset, length, rights) in [
            ("outside the region", spec, 60 << 10, 8192, F::REMOTE_WRITE),
            ("without MW_BIND", spec - F::MW_BIND, 0, 4096, F::REMOTE_WRITE),
            ("write access to a region without it", F::REMOTE_READ | F::MW_BIND, 0, 4096, F::REMOTE_WRITE),
        ] {
            let mut pair = RcPair::new(lab)?;
            let mr = region(&pair.b.pd, 64 << 10, access)?;
            let mw = pair.b.pd.alloc_mw(mw_type)?;
            let bind = mw.bind(&mr, mr.addr() + offset, length, rights);
            let reqs = [Req::new(1, Op::BindMw(bind)).signaled(), Req::new(2, Op::Write(pair.a.remote(0)))];
            let reqs = reqs.map(Req::signaled);
            pair.b.post(Face::Batch, &reqs)?;
            let got = pair.b.wait(2)?;
            if access == spec - F::MW_BIND && Dialect::of::<D>().binds_without_mw_bind {
                ensure!(got[0].status.is_success(), "{what}, {mw_type:?}: {}", list(&got));
                continue;
            }
            // This must be the last request: see LOCAL_PROTECTION in `errors`.
            let want = [
                WcStatus::MW_BIND_ERR,
                WcStatus::LOC_QP_OP_ERR,
                WcStatus::LOC_PROT_ERR,
                WcStatus::WR_FLUSH_ERR,
            ];
            ensure!(want.contains(&got[0].status), "{what}, {mw_type:?}: {}", list(&got));
            ensure!(statuses(&got)[1] == (2, WcStatus::WR_FLUSH_ERR), "{what}: {}", list(&got));
        }
    }
    Ok(())
}

/// A region with a bound window is not deregistered until the window is deallocated.
fn region_with_a_bound_window_is_busy<D: Driver>(lab: &Lab<D>) -> Outcome {
    for mw_type in types(lab) {
        let mut pair = RcPair::new(lab)?;
        let mr = region(&pair.b.pd, 4096, lab.full_access())?;
        let mut mw = pair.b.pd.alloc_mw(mw_type)?;
        let bind = mw.bind(&mr, mr.addr(), 4096, AccessFlags::REMOTE_WRITE);
        pair.b.post(Face::Single, &[Req::new(1, Op::BindMw(bind)).signaled()])?;
        pair.b.ok(1)?;
        mw.bound(&bind);
        let mr = match mr.close() {
            Err((mr, e)) => {
                ensure!([Errno::EBUSY, Errno::EINVAL].contains(&e.errno()), "{e}");
                mr
            }
            Ok(_) => anyhow::bail!("deregistered with a bound {mw_type:?} window"),
        };
        mw.close()?;
        mr.close().map_err(|(_, e)| e).context("after the window is deallocated")?;
    }
    Ok(())
}

/// A device without windows of a type returns `Unsupported`.
fn missing_types_are_unsupported<D: Driver>(lab: &Lab<D>) -> Outcome {
    let pd = lab.a.alloc_pd()?;
    for mw_type in [MwType::Type1, MwType::Type2] {
        let made = pd.alloc_mw(mw_type);
        if types(lab).contains(&mw_type) {
            made?;
        } else {
            ensure!(made.is_err_and(|e| e.is_unsupported()), "{mw_type:?}");
        }
    }
    Ok(())
}

crate::tests!(
    window_bounds_are_exact,
    windows_grant_only_their_rights,
    invalidated_windows_give_no_access,
    bind_of_0_bytes_closes_a_window,
    invalid_binds_fail,
    region_with_a_bound_window_is_busy,
    missing_types_are_unsupported
);
