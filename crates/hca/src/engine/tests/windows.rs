// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory windows: bound by the format of a key update, used, invalidated at either end.

use super::rig::{BASE, End, PD, on, pair, remote};
use crate::decode::{KeyUpdate, Umr};
use crate::engine::mkey::{Denied, Kind, Translate};
use crate::engine::qp::QpKind;
use crate::fabric::Fabric;
use crate::memory::Memory;
use std::sync::Arc;
use uverbs_mlx5_hw::cqe as hw;
use uverbs_mlx5_hw::wqe::{
    KlmSeg, MLX5_OPCODE_RDMA_WRITE, MLX5_OPCODE_SEND_INVAL, MLX5_OPCODE_UMR,
    MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_REMOTE_READ as READ,
    MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_REMOTE_WRITE as WRITE, MLX5_WQE_MKEY_CONTEXT_FREE,
    MLX5_WQE_UMR_CTRL_FLAG_CHECK_FREE, MLX5_WQE_UMR_CTRL_FLAG_CHECK_QPN, MLX5_WQE_UMR_CTRL_FLAG_INLINE,
    MLX5_WQE_UMR_CTRL_FLAG_TRNSLATION_OFFSET, MkeyContextSeg, UmrCtrlSeg,
};
use uverbs_mlx5_hw::{Be16, Be32, Be64};
use zerocopy::{FromZeros, IntoBytes};

/// FREE, MKEY, and for a window of type 2 QPN.
const KEY_FIELDS: u64 = 1 << 29 | 1 << 13;
const QPN_FIELD: u64 = 1 << 14;
/// LEN, START_ADDR, access.
const BIND_FIELDS: u64 = 1 | 1 << 6 | 0xf << 18;

pub(super) fn window(end: &End, two: bool) -> u32 {
    on(&end.hca, |device, _| {
        let window = device.mkeys.window(two);
        device.mkeys.add(0, PD, 0, window).unwrap()
    })
}

/// Binds as the owner of the window. Returns the new key and the syndrome.
pub(super) fn bind(
    end: &mut End,
    mw: u32,
    two: bool,
    variant: u8,
    at: u64,
    len: u32,
    access: u8,
) -> (u32, u8) {
    let flags = MLX5_WQE_UMR_CTRL_FLAG_INLINE | MLX5_WQE_UMR_CTRL_FLAG_TRNSLATION_OFFSET;
    let ctrl = UmrCtrlSeg {
        flags: flags | if two { MLX5_WQE_UMR_CTRL_FLAG_CHECK_FREE } else { 0 },
        klm_octowords: Be16::new(4),
        mkey_mask: Be64::new(KEY_FIELDS | BIND_FIELDS | if two { QPN_FIELD } else { 0 }),
        ..FromZeros::new_zeroed()
    };
    let qpn = if two { end.qpn } else { 0xff_ffff };
    let mkey = MkeyContextSeg {
        access_flags: access,
        qpn_mkey: Be32::new(qpn << 8 | u32::from(variant)),
        start_addr: Be64::new(BASE + at),
        len: Be64::new(len.into()),
        // Unwritten bytes of the ring are those of the previous lap.
        reserved1: 0x5a,
        ..FromZeros::new_zeroed()
    };
    let klm = KlmSeg { byte_count: Be32::new(len), mkey: Be32::new(end.key), address: Be64::new(BASE + at) };
    let klm = [klm.as_bytes(), &[0; 48]].concat();
    end.post(MLX5_OPCODE_UMR, mw, &[ctrl.as_bytes(), mkey.as_bytes(), &klm]);
    let wc = end.send_cq.poll().unwrap();
    (mw & !0xff | u32::from(variant), wc.syndrome)
}

pub(super) fn local_invalidate(end: &mut End, rkey: u32) -> u8 {
    let ctrl = UmrCtrlSeg {
        flags: MLX5_WQE_UMR_CTRL_FLAG_INLINE
            | MLX5_WQE_UMR_CTRL_FLAG_TRNSLATION_OFFSET
            | MLX5_WQE_UMR_CTRL_FLAG_CHECK_QPN,
        mkey_mask: Be64::new(KEY_FIELDS | QPN_FIELD),
        ..FromZeros::new_zeroed()
    };
    let mkey = MkeyContextSeg {
        free: MLX5_WQE_MKEY_CONTEXT_FREE,
        qpn_mkey: Be32::new(0xffff_ff00),
        ..FromZeros::new_zeroed()
    };
    end.post(MLX5_OPCODE_UMR, rkey, &[ctrl.as_bytes(), mkey.as_bytes()]);
    end.send_cq.poll().unwrap().syndrome
}

fn write_at(from: &mut End, at: u64, rkey: u32) -> u8 {
    let sge = from.sge(0, 16);
    from.post(MLX5_OPCODE_RDMA_WRITE, 0, &[remote(BASE + at, rkey).as_bytes(), sge.as_bytes()]);
    from.send_cq.poll().unwrap().syndrome
}

#[test]
fn a_window_gives_access_to_its_range_until_invalidated() {
    let (mut a, mut b) = pair(&Fabric::deterministic(1), QpKind::Rc, 0);
    a.fill(0, 16, 7);
    let mw = window(&b, true);
    let (rkey, syndrome) = bind(&mut b, mw, true, 0x55, 1000, 100, WRITE | READ);
    assert_eq!(syndrome, 0);
    assert_eq!(write_at(&mut a, 1084, rkey), 0);
    assert_eq!(b.memory.get(1084, 16), a.memory.get(0, 16));
    assert_eq!(local_invalidate(&mut b, rkey), 0);
    assert_eq!(write_at(&mut a, 1000, rkey), hw::MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR);
}

#[test]
fn access_outside_a_window_or_its_rights_fails() {
    for (at, access) in [(1085, WRITE), (999, WRITE), (1000, READ)] {
        let (mut a, mut b) = pair(&Fabric::deterministic(1), QpKind::Rc, 0);
        let mw = window(&b, true);
        let (rkey, _) = bind(&mut b, mw, true, 1, 1000, 100, access);
        assert_eq!(write_at(&mut a, at, rkey), hw::MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR);
    }
}

#[test]
fn a_peer_can_invalidate_and_the_window_can_be_bound_again() {
    let (mut a, mut b) = pair(&Fabric::deterministic(1), QpKind::Rc, 0);
    let mw = window(&b, true);
    let (rkey, _) = bind(&mut b, mw, true, 1, 0, 100, WRITE);
    b.recv(5000, 16);
    let sge = a.sge(0, 16);
    a.post(MLX5_OPCODE_SEND_INVAL, rkey, &[sge.as_bytes()]);
    assert_eq!(a.send_cq.poll().unwrap().syndrome, 0);
    let wc = b.recv_cq.poll().unwrap();
    assert_eq!((wc.kind, wc.imm), (hw::MLX5_CQE_RESP_SEND_INV, rkey));
    let (rkey, syndrome) = bind(&mut b, mw, true, 2, 0, 100, WRITE);
    assert_eq!(syndrome, 0);
    assert_eq!(write_at(&mut a, 0, rkey), 0);
    // It is already bound; a type 2 window must be free.
    assert_eq!(bind(&mut b, mw, true, 3, 0, 100, WRITE).1, hw::MLX5_CQE_SYNDROME_MW_BIND_ERR);
}

#[test]
fn a_type_1_window_can_be_rebound_and_not_invalidated_by_peers() {
    let (mut a, mut b) = pair(&Fabric::deterministic(1), QpKind::Rc, 0);
    let mw = window(&b, false);
    let (first, _) = bind(&mut b, mw, false, 1, 0, 100, WRITE);
    let (second, syndrome) = bind(&mut b, first, false, 2, 200, 100, WRITE);
    assert_eq!(syndrome, 0);
    assert_eq!(write_at(&mut a, 200, second), 0);
    b.recv(5000, 16);
    let sge = a.sge(0, 16);
    a.post(MLX5_OPCODE_SEND_INVAL, second, &[sge.as_bytes()]);
    assert!(a.send_cq.poll().is_none());
    assert_eq!(b.recv_cq.poll().unwrap().syndrome, hw::MLX5_CQE_SYNDROME_MW_BIND_ERR);
}

#[test]
fn a_region_under_a_window_is_not_freed_by_the_kernels_queue() {
    /// This page list is never used.
    #[derive(Debug)]
    struct NoPages;
    impl Translate for NoPages {
        fn pages(&self, _: Vec<u64>, _: u32, _: u64, _: u64) -> Option<Arc<dyn Memory>> {
            None
        }
    }
    let (mut a, mut b) = pair(&Fabric::deterministic(1), QpKind::Rc, 0);
    let mw = window(&b, true);
    let (rkey, _) = bind(&mut b, mw, true, 1, 0, 100, WRITE);
    let mut fields = vec![0; 64];
    fields[0] = MLX5_WQE_MKEY_CONTEXT_FREE;
    let free = KeyUpdate {
        mkey: b.key,
        must_be_free: false,
        must_be_used: true,
        mask: Umr::MASK_FREE,
        fields,
        at: 0,
        entries: 0,
        list: None,
    };
    let update = |end: &End| {
        on(&end.hca, |device, _| {
            device.translate = Some(Arc::new(NoPages));
            device.update_key(&free)
        })
    };
    assert_eq!(update(&b), Err(Denied));
    assert_eq!(write_at(&mut a, 0, rkey), 0);
    assert_eq!(local_invalidate(&mut b, rkey), 0);
    assert_eq!(update(&b), Ok(()));
    assert!(on(&b.hca, |device, _| matches!(device.mkeys.get(b.key).unwrap().kind, Kind::Free)));
}

#[test]
fn a_bind_beyond_the_region_or_its_rights_fails() {
    const LOCAL_WRITE: u32 = 1;
    const MW_BIND: u32 = 1 << 4;
    let (_a, mut b) = pair(&Fabric::deterministic(1), QpKind::Rc, 0);
    let mw = window(&b, true);
    let far = super::rig::MEMORY as u64 - 50;
    assert_eq!(bind(&mut b, mw, true, 1, far, 100, WRITE).1, hw::MLX5_CQE_SYNDROME_MW_BIND_ERR);
    // Remote writes need a region with local write access. Reads need no right, and no access needs the right to bind.
    for (rights, access, fits) in [
        (MW_BIND, WRITE, false),
        (MW_BIND, READ, true),
        (0, READ, true),
        (LOCAL_WRITE, WRITE, true),
        (LOCAL_WRITE, WRITE | READ, true),
    ] {
        let (_a, mut b) = pair(&Fabric::deterministic(1), QpKind::Rc, 0);
        let mw = window(&b, true);
        on(&b.hca, |device, _| device.mkeys.set_rights(b.key, PD, rights));
        let want = if fits { 0 } else { hw::MLX5_CQE_SYNDROME_MW_BIND_ERR };
        assert_eq!(bind(&mut b, mw, true, 1, 0, 100, access).1, want, "{rights:#x} {access:#x}");
    }
}
