// SPDX-License-Identifier: MIT OR Apache-2.0
//! The doorbell registers of QPs: dedicated, shared, and the uncached page.

use super::*;

#[test]
fn registers_are_shared_when_they_run_out() {
    let kernel = FakeKernel::default();
    let options = Options { total_uuars: 8, num_low_lat_uuars: 4, ..Options::default() };
    let stage = Stage::new(kernel, &options);
    let shared = |qp: &QpParts<Mlx5>| format!("{:?}", qp.send.as_ref().unwrap()).contains("shared: true");
    let qps: Vec<_> = (0..12).map(|_| stage.qp(QpType::Uc)).collect();
    assert_eq!(qps.iter().map(shared).collect::<Vec<_>>(), [[false; 4], [true; 4], [true; 4]].concat());
    // Two pages with dedicated registers, two with shared ones.
    assert_eq!(stage.kernel.take_log(), ["alloc uar type 0"; 4]);
    // A thread domain has its own register in addition to these.
    let td = stage.mlx5.alloc_td().unwrap();
    let own = stage.try_qp(&Stage::attr(QpType::Uc), Some(&td)).unwrap();
    assert!(!shared(&own));
    assert_eq!(stage.kernel.take_log(), ["alloc uar type 0"]);

    // A register that was returned is used again.
    let mut qps = qps;
    let gone = qps.remove(0);
    let QpParts { qp, send, recv, .. } = gone;
    qp.destroy().unwrap();
    drop((send, recv));
    let new = stage.qp(QpType::Uc);
    assert!(!shared(&new));
    assert_eq!(stage.kernel.take_log(), ["destroy qp"]);
}

#[test]
fn without_more_registers_all_qps_use_the_uncached_page() {
    let kernel = FakeKernel::default();
    kernel.uars_left.store(2, Relaxed);
    let stage = Stage::new(kernel, &Options::default());
    // One page for the CQs, one for two QPs.
    let _own = (stage.qp(QpType::Uc), stage.qp(QpType::Uc));
    let mut qp = stage.qp(QpType::Uc);
    let request: mlx5_ib_create_qp = stage.kernel.private();
    assert_eq!(request.bfreg_index, stage.mlx5.uars.arm_page().unwrap());
    for state in [QpState::INIT, QpState::RTR, QpState::RTS] {
        stage.to(&qp, state).unwrap();
    }
    post_send(&mut qp).unwrap();
    post_send(&mut qp).unwrap();
    let rung: Vec<_> = stage.kernel.rung().iter().map(|(_, at, n)| (*at, *n)).collect();
    assert_eq!(rung, [(0x800, 8), (0x800, 8)], "no halves, no bursts");
    // The QPs of a thread domain use the available registers, as exclusive ones do.
    let td = stage.mlx5.alloc_td().unwrap();
    for (td, exclusive) in [(Some(&td), false), (None, true)] {
        stage.try_qp_of(&Stage::attr(QpType::Uc), td, exclusive).unwrap();
        let request: mlx5_ib_create_qp = stage.kernel.private();
        assert_eq!(request.bfreg_index, stage.mlx5.uars.arm_page().unwrap());
    }
}

#[test]
fn exclusive_qps_have_dedicated_registers_while_there_are_pages() {
    let kernel = FakeKernel::default();
    // One page for the CQs, three for six QPs, one with shared registers.
    kernel.uars_left.store(5, Relaxed);
    let stage = Stage::new(kernel, &Options::default());
    let is_shared = |qp: &QpParts<Mlx5>| format!("{:?}", qp.send.as_ref().unwrap()).contains("shared: true");
    let exclusive = || stage.try_qp_of(&Stage::attr(QpType::Uc), None, true).unwrap();
    let mut qps: Vec<_> = (0..6).map(|_| exclusive()).collect();
    assert_eq!(stage.kernel.take_log(), ["alloc uar type 0"; 3]);
    assert!(!qps.iter().any(is_shared));
    // QPs with a lock have used none of the pages, so one page is left for them.
    stage.kernel.uars_left.store(1, Relaxed);
    let locked = stage.qp(QpType::Uc);
    assert!(!is_shared(&locked), "one of the four dedicated registers");
    stage.kernel.uars_left.store(0, Relaxed);
    let other = exclusive();
    assert!(!is_shared(&other), "the page's other register");
    let last = exclusive();
    let request: mlx5_ib_create_qp = stage.kernel.private();
    assert_eq!(request.bfreg_index, stage.mlx5.uars.arm_page().unwrap(), "no page is left");
    drop(last);
    // A register that was returned is used again.
    stage.kernel.take_log();
    let QpParts { qp, send, recv, .. } = qps.remove(0);
    qp.destroy().unwrap();
    drop((send, recv));
    exclusive();
    let request: mlx5_ib_create_qp = stage.kernel.private();
    assert_ne!(request.bfreg_index, stage.mlx5.uars.arm_page().unwrap());
}

#[test]
fn a_kernel_without_uar_objects_has_thread_domains() {
    let kernel = FakeKernel::default();
    kernel.context.lock().unwrap().tot_bfregs = 16;
    kernel.bfreg_index.store(8, Relaxed);
    let stage = Stage::new(kernel, &Options::default());
    let td = stage.mlx5.alloc_td().unwrap();
    for exclusive in [false, true] {
        let qp = stage.try_qp_of(&Stage::attr(QpType::Rc), Some(&td), exclusive).unwrap();
        let request: mlx5_ib_create_qp = stage.kernel.private();
        assert_eq!((request.flags, request.bfreg_index), (MLX5_QP_FLAG_SCATTER_CQE, 0));
        assert!(
            format!("{:?}", qp.send).contains("shared: true"),
            "the kernel's register, which other QPs may use"
        );
    }
}

#[test]
fn a_thread_domains_register_alternates_its_halves_without_blueflame() {
    let options = Options { shut_up_bf: true, ..Options::default() };
    let stage = Stage::new(FakeKernel::default(), &options);
    let td = stage.mlx5.alloc_td().unwrap();
    assert_eq!(stage.kernel.take_log(), ["alloc uar type 0"]);
    let mut qp = stage.try_qp(&Stage::attr(QpType::Uc), Some(&td)).unwrap();
    for state in [QpState::INIT, QpState::RTR, QpState::RTS] {
        stage.to(&qp, state).unwrap();
    }
    for _ in 0..3 {
        post_send(&mut qp).unwrap();
    }
    let rung: Vec<_> = stage.kernel.rung().iter().map(|(_, at, n)| (*at, *n)).collect();
    assert_eq!(rung, [(0x800, 8), (0x900, 8), (0x800, 8)], "8 bytes each");
}

#[test]
fn without_blueflame_all_qps_write_to_one_register() {
    let options = Options { shut_up_bf: true, ..Options::default() };
    let stage = Stage::new(FakeKernel::default(), &options);
    let (_a, _b) = (stage.qp(QpType::Rc), stage.qp(QpType::Rc));
    assert!(stage.kernel.take_log().is_empty());
    let request: mlx5_ib_create_qp = stage.kernel.private();
    assert_eq!(request.bfreg_index, stage.mlx5.uars.arm_page().unwrap());
}

#[test]
fn an_old_kernel_returns_the_register_of_a_qp() {
    let kernel = FakeKernel::default();
    {
        let mut context = kernel.context.lock().unwrap();
        (context.tot_bfregs, context.num_dyn_bfregs) = (16, 4);
    }
    kernel.bfreg_index.store(8, Relaxed);
    let stage = Stage::new(kernel, &Options::default());
    assert!(stage.kernel.take_log().is_empty(), "no UAR objects");
    let request: mlx5_ib_create_cq = stage.kernel.private();
    assert_eq!(request.flags & MLX5_IB_CREATE_CQ_FLAGS_UAR_PAGE_INDEX, 0);
    let mut qp = stage.qp(QpType::Rc);
    let request: mlx5_ib_create_qp = stage.kernel.private();
    assert_eq!((request.flags, request.bfreg_index), (MLX5_QP_FLAG_SCATTER_CQE, 0));
    for state in [QpState::INIT, QpState::RTR, QpState::RTS] {
        stage.to(&qp, state).unwrap();
    }
    post_send(&mut qp).unwrap();
    // Register 8 is the first of the third page.
    assert_eq!(stage.kernel.rung(), [(2 * u64::from(page_size()), 0x800, 64)]);
    // Those of a thread domain are in the second set of pages, whose number is limited.
    let td = stage.mlx5.alloc_td().unwrap();
    for i in 0..4 {
        let qp = stage.try_qp(&Stage::attr(QpType::Rc), Some(&td)).unwrap();
        core::mem::forget(qp);
        let request: mlx5_ib_create_qp = stage.kernel.private();
        assert_eq!(
            (request.flags & MLX5_QP_FLAG_BFREG_INDEX, request.bfreg_index),
            (MLX5_QP_FLAG_BFREG_INDEX, i)
        );
    }
    // When they are used up, the kernel returns a register again.
    stage.try_qp(&Stage::attr(QpType::Rc), Some(&td)).unwrap();
    let request: mlx5_ib_create_qp = stage.kernel.private();
    assert_eq!(request.flags & MLX5_QP_FLAG_BFREG_INDEX, 0);
    // A register that does not exist.
    stage.kernel.bfreg_index.store(32, Relaxed);
    assert_eq!(stage.try_qp(&Stage::attr(QpType::Rc), None).unwrap_err().errno(), Errno::EPROTO);
    assert_eq!(stage.kernel.take_log().last().unwrap(), "destroy qp");
}
