// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queues above the limit of locked memory.

use super::*;

/// The kernel pins the queue and the page of its doorbell record.
#[test]
fn a_refused_queue_names_the_limit_of_locked_memory() {
    let test = "control::tests::locked::a_refused_queue_names_the_limit_of_locked_memory";
    if !uverbs_testkit::machine::in_user_process(test, 4096) {
        return;
    }
    let mut stage = Stage::plain();
    stage.kernel.refuse_pin.store(true, Relaxed);
    // `kib` is the least that the entries need, with a page for the doorbell record.
    let check = |error: Error, verb: &str, kib: u64| {
        assert_eq!(error.errno(), Errno::ENOMEM);
        let text = error.to_string();
        assert!(text.starts_with(&format!("{verb}(")), "{text}");
        let Error::LockedMemory { sizes, .. } = error else { panic!("{text}") };
        assert_eq!((sizes.limit, sizes.pinned, sizes.needed % 4096), (4096, 0, 0), "{text}");
        assert!((kib..=kib + 8).contains(&(sizes.needed / 1024)), "{text}");
    };
    let cq = CqInitAttr::new(100);
    // 128 entries of 64 bytes
    check(stage.mlx5.create_cq(&cq, None, 0).unwrap_err(), "create_cq", 12);
    let resized = stage.cq.cq.resize(&mut stage.cq.queue, 255);
    check(resized.unwrap_err(), "resize_cq", 16);
    let attr = Stage::attr(QpType::Rc);
    check(stage.try_qp(&attr, None).unwrap_err(), "create_qp", 8);
    let raw = stage.try_qp(&Stage::attr(QpType::RawPacket), None).unwrap_err();
    check(raw, "create_qp", 12);
    let init = SrqInitAttr::new(SrqAttr::new(100).max_sge(2).srq_limit(5));
    let create = SrqCreate { pd: &stage.pd, attr: &init, xrc: None, td: None, user_handle: 0 };
    // 128 entries of 64 bytes
    check(stage.mlx5.create_srq(&create).unwrap_err(), "create_srq", 12);
    let attr = WqInitAttr::new(100).max_sge(3);
    let cq = &stage.cq.cq;
    let create = WqCreate { pd: &stage.pd, cq, attr: &attr, user_handle: 0 };
    check(stage.mlx5.create_wq(&create).unwrap_err(), "create_wq", 12);
    let memory = core::ptr::without_provenance_mut(0x1_0800);
    let umem = played!(stage.mlx5.devx_reg_umem(memory, 4096, 0, 4096));
    check(umem.unwrap_err(), "devx_umem_reg", 8);
}
