// SPDX-License-Identifier: MIT OR Apache-2.0
//! Objects own what the device uses: engines that are dropped first, objects that are dropped or not destroyed, objects and engines of
//! others.

use super::*;
use uverbs_core::attr::{CounterAttachAttr, CounterDescription, FlowAttr};
use uverbs_core::control::counters;
use uverbs_core::provider::PollError;
use uverbs_testkit::machine;

/// The objects with queues, large enough that each ring has pages of its own.
struct Objects {
    cq: CqParts<Mlx5>,
    srq: SrqParts<Mlx5>,
    wq: WqParts<Mlx5>,
    qps: [QpParts<Mlx5>; 2],
    /// The addresses of their rings.
    rings: Vec<u64>,
}

impl Objects {
    fn new(stage: &Stage) -> Self {
        let cq = stage.mlx5.create_cq(&CqInitAttr::new(4096), None, 0).unwrap();
        let mut rings = vec![stage.kernel.private::<mlx5_ib_create_cq>().buf_addr];
        let init = SrqInitAttr::new(SrqAttr::new(4096));
        let create = SrqCreate { pd: &stage.pd, attr: &init, xrc: None, td: None, user_handle: 0 };
        let srq = stage.mlx5.create_srq(&create).unwrap();
        rings.push(stage.kernel.private::<mlx5_ib_create_srq>().buf_addr);
        let attr = WqInitAttr::new(4096);
        let create = WqCreate { pd: &stage.pd, cq: &cq.cq, attr: &attr, user_handle: 0 };
        let wq = stage.mlx5.create_wq(&create).unwrap();
        rings.push(stage.kernel.private::<mlx5_ib_create_wq>().buf_addr);
        let qps = [QpType::Rc, QpType::RawPacket].map(|qp_type| {
            let attr = QpInitAttr { cap: QpCap::new(4096, 4096), ..QpInitAttr::new(qp_type) };
            let qp = stage.try_qp(&attr, None).unwrap();
            let request: mlx5_ib_create_qp = stage.kernel.private();
            rings.extend([request.buf_addr, request.sq_buf_addr].into_iter().filter(|addr| *addr != 0));
            qp
        });
        assert!(rings.len() == 6 && rings.iter().all(|ring| is_mapped(*ring)));
        Self { cq, srq, wq, qps, rings }
    }

    /// Whether something is at these addresses. A test that expects nothing there runs in a process of its own: another one maps memory, too.
    fn are_mapped(rings: &[u64]) -> Vec<bool> {
        rings.iter().map(|ring| is_mapped(*ring)).collect()
    }
}

#[test]
fn an_engine_that_is_dropped_first_leaves_the_memory_to_its_object() {
    if !machine::in_own_process(
        "control::tests::objects::an_engine_that_is_dropped_first_leaves_the_memory_to_its_object",
    ) {
        return;
    }
    let stage = Stage::plain();
    let Objects { cq, srq, wq, qps: [rc, raw], rings } = Objects::new(&stage);
    drop((cq.queue, srq.queue, wq.queue, rc.send, rc.recv, raw.send, raw.recv));
    assert_eq!(Objects::are_mapped(&rings), [true; 6], "the device still uses it");
    stage.kernel.take_log();
    rc.qp.destroy().unwrap();
    raw.qp.destroy().unwrap();
    wq.wq.destroy().unwrap();
    srq.srq.destroy().unwrap();
    assert_eq!(Objects::are_mapped(&rings)[1..], [false; 5]);
    cq.cq.destroy().unwrap();
    assert!(!is_mapped(rings[0]));
    assert_eq!(
        stage.kernel.take_log(),
        ["destroy qp", "destroy qp", "destroy wq", "destroy srq", "destroy cq"]
    );
}

#[test]
fn the_memory_of_a_destroyed_object_stays_as_long_as_its_engine() {
    if !machine::in_own_process(
        "control::tests::objects::the_memory_of_a_destroyed_object_stays_as_long_as_its_engine",
    ) {
        return;
    }
    let stage = Stage::plain();
    let Objects { cq, srq, mut wq, qps: [rc, raw], rings } = Objects::new(&stage);
    let (mut srq_queue, mut cq_queue) = (srq.queue, cq.queue);
    let [rc_queues, raw_queues] = [rc, raw].map(|qp| {
        qp.qp.destroy().unwrap();
        (qp.send, qp.recv)
    });
    wq.wq.destroy().unwrap();
    srq.srq.destroy().unwrap();
    cq.cq.destroy().unwrap();
    assert_eq!(Objects::are_mapped(&rings), [true; 6]);
    // Posts and polls have no effect outside of this memory.
    post_recv(&mut srq_queue);
    // SAFETY: the receive has no entries, so it names no memory.
    assert_eq!(unsafe { wq.queue.post(1, &[]) }, Err(PostError::BadState));
    stage.kernel.rung();
    for _ in 0..2 {
        assert_eq!(cq_queue.poll_each(1, |_| ()), Ok(0));
        assert_eq!(cq_queue.req_notify(false), Err(PollError::Arm(Errno::EINVAL)));
    }
    assert!(stage.kernel.rung().is_empty(), "another CQ may have the number");
    drop((srq_queue, cq_queue, wq.queue, rc_queues, raw_queues));
    assert_eq!(Objects::are_mapped(&rings), [false; 6]);
}

/// Without a destruction by the kernel, the device may use the memory at any time.
#[test]
fn an_object_that_is_dropped_is_leaked() {
    for refused in [false, true] {
        let stage = Stage::plain();
        let Objects { cq, srq, wq, qps: [rc, raw], rings } = Objects::new(&stage);
        drop((cq.queue, srq.queue, wq.queue, rc.send, rc.recv, raw.send, raw.recv));
        stage.kernel.take_log();
        stage.kernel.refuse_destroy.store(refused, Relaxed);
        if refused {
            for qp in [rc.qp, raw.qp] {
                let (_qp, error) = qp.destroy().unwrap_err();
                assert_eq!(error.errno(), Errno::EBUSY);
            }
            assert!(wq.wq.destroy().is_err() && srq.srq.destroy().is_err() && cq.cq.destroy().is_err());
        } else {
            let _dropped = (rc.qp, raw.qp, wq.wq, srq.srq, cq.cq);
        }
        assert_eq!(stage.kernel.take_log(), [""; 0], "nothing was destroyed");
        drop(stage);
        assert_eq!(Objects::are_mapped(&rings), [true; 6], "{refused}");
    }
}

#[test]
fn objects_of_two_contexts_are_refused() {
    let here = Stage::plain();
    // Another device file, and another context of the same one.
    let (port, options) = (Arc::clone(&here.kernel) as Arc<dyn Kernel>, Options::default());
    let (again, _) = Mlx5::open_with(port, &options).unwrap();
    let second = again.create_cq(&CqInitAttr::new(10), None, 0).unwrap();
    let other = Stage::plain();
    let init = SrqInitAttr::new(SrqAttr::new(4));
    let srq_of = |stage: &Stage| {
        let create = SrqCreate { pd: &stage.pd, attr: &init, xrc: None, td: None, user_handle: 0 };
        stage.mlx5.create_srq(&create).unwrap().srq
    };
    let (mine, foreign) = (srq_of(&here), srq_of(&other));
    let (td, foreign_td) = (here.mlx5.alloc_td().unwrap(), again.alloc_td().unwrap());
    here.kernel.take_log();
    let refuses = |error: Option<Error>, verb: &str, field: &str| {
        let text = error.expect("an error").to_string();
        assert!(
            text.starts_with(&format!("{verb}: invalid {field}: ")) && text.contains("context"),
            "{text}"
        );
    };

    let attr = Stage::attr(QpType::Rc);
    let qp = QpCreate::<Mlx5> {
        pd: Some(&here.pd),
        send_cq: Some(&here.cq.cq),
        recv_cq: Some(&here.cq.cq),
        srq: None,
        xrcd: None,
        attr: &attr,
        td: Some(&td),
        exclusive: false,
        data_in_completions: false,
        user_handle: 0,
    };
    let foreign_cqs = [&other.cq.cq, &second.cq];
    refuses(played!(here.mlx5.create_qp(&QpCreate { pd: Some(&other.pd), ..qp })).err(), "create_qp", "pd");
    for cq in foreign_cqs {
        refuses(
            played!(here.mlx5.create_qp(&QpCreate { send_cq: Some(cq), ..qp })).err(),
            "create_qp",
            "send_cq",
        );
        refuses(
            played!(here.mlx5.create_qp(&QpCreate { recv_cq: Some(cq), ..qp })).err(),
            "create_qp",
            "recv_cq",
        );
    }
    refuses(played!(here.mlx5.create_qp(&QpCreate { srq: Some(&foreign), ..qp })).err(), "create_qp", "srq");
    refuses(played!(here.mlx5.create_qp(&QpCreate { td: Some(&foreign_td), ..qp })).err(), "create_qp", "td");

    let xrcd = xrcd::open(here.mlx5.kernel(), None, false, false).unwrap();
    let xrc_init = init.srq_type(SrqType::Xrc);
    for cq in foreign_cqs {
        let xrc = Some((&xrcd, cq));
        let create = SrqCreate { pd: &here.pd, attr: &xrc_init, xrc, td: None, user_handle: 0 };
        refuses(here.mlx5.create_srq(&create).err(), "create_srq", "cq");
        let attr = WqInitAttr::new(5);
        let create = WqCreate { pd: &here.pd, cq, attr: &attr, user_handle: 0 };
        refuses(here.mlx5.create_wq(&create).err(), "create_wq", "cq");
        let dct =
            DctCreate { pd: &here.pd, cq, srq: &mine, dc_key: 1, data_in_completions: false, user_handle: 0 };
        refuses(played!(here.mlx5.create_dct(&dct)).err(), "create_qp", "cq");
    }
    let cq = &here.cq.cq;
    let dct =
        DctCreate { pd: &here.pd, cq, srq: &foreign, dc_key: 1, data_in_completions: false, user_handle: 0 };
    refuses(played!(here.mlx5.create_dct(&dct)).err(), "create_qp", "srq");
    let create = SrqCreate { pd: &here.pd, attr: &init, xrc: None, td: Some(&foreign_td), user_handle: 0 };
    refuses(here.mlx5.create_srq(&create).err(), "create_srq", "td");
    assert_eq!(here.kernel.take_log(), [""; 0], "no command");
    // The right ones are accepted.
    played!(here.mlx5.create_qp(&qp)).unwrap();
}

#[test]
fn the_engine_of_another_object_is_refused() {
    let mut stage = Stage::plain();
    let other = stage.mlx5.create_cq(&CqInitAttr::new(10), None, 0).unwrap();
    let error = other.cq.resize(&mut stage.cq.queue, 1000).unwrap_err();
    assert_eq!(error.to_string(), "resize_cq: invalid cq: the engine of another CQ");
    assert_eq!(stage.cq.queue.cqe(), 127);
    let init = SrqInitAttr::new(SrqAttr::new(4));
    let create = SrqCreate { pd: &stage.pd, attr: &init, xrc: None, td: None, user_handle: 0 };
    let [one, mut two] = [(); 2].map(|()| stage.mlx5.create_srq(&create).unwrap());
    let error = one.srq.modify(&mut two.queue, &init.attr, SrqAttrMask::LIMIT).unwrap_err();
    assert_eq!(error.to_string(), "modify_srq: invalid srq: the engine of another SRQ");
    two.srq.modify(&mut two.queue, &init.attr, SrqAttrMask::LIMIT).unwrap();
}

#[test]
fn verbs_refuse_what_belongs_to_another_context() {
    let (here, other) = (Stage::plain(), Stage::plain());
    let qp = here.qp(QpType::RawPacket);
    let xrcd = xrcd::open(other.mlx5.kernel(), None, false, false).unwrap();
    let counters = counters::create(other.mlx5.kernel()).unwrap();
    counters.attach(CounterAttachAttr::new(CounterDescription::PACKETS, 0)).unwrap();
    let attr = WqInitAttr::new(5);
    let create = WqCreate { pd: &other.pd, cq: &other.cq.cq, attr: &attr, user_handle: 0 };
    let wq = other.mlx5.create_wq(&create).unwrap();
    here.kernel.take_log();
    other.kernel.take_log();
    let ah = AhAttr::global(1, 3, "10.0.0.9".parse::<Gid>().unwrap());
    let flow = FlowAttr::new(1);
    let refusals = [
        (here.mlx5.open_qp(&xrcd, 17, 0).map(drop), "open_qp: invalid xrcd: "),
        (here.mlx5.create_ah(&other.pd, &ah).map(drop), "create_ah: invalid pd: "),
        (qp.qp.create_flow(&flow, Some(&counters)).map(drop), "create_flow: invalid counters: "),
        (
            wq::create_rwq_ind_table(here.mlx5.kernel(), &[wq.wq.handle()], Uhw::none()).map(drop),
            "create_rwq_ind_table: invalid ind_tbl: ",
        ),
    ];
    for (refused, start) in refusals {
        let text = refused.unwrap_err().to_string();
        assert!(text.starts_with(&format!("{start}created from another context")), "{text}");
    }
    assert_eq!((here.kernel.take_log(), other.kernel.take_log()), (vec![], vec![]), "no command");
}

/// With CQE version 0 completions name a QP by its number, which the device may give to the next QP at once.
#[test]
fn no_qp_gets_the_number_of_one_whose_completions_are_not_removed() {
    let kernel = FakeKernel::default();
    kernel.context.lock().unwrap().cqe_version = 0;
    let stage = Stage::new(kernel, &Options::default());
    let old = stage.qp(QpType::Rc);
    stage.kernel.slow_destroy.store(true, Relaxed);
    std::thread::scope(|scope| {
        let ended = scope.spawn(|| old.qp.destroy().map(drop).is_ok());
        while !stage.kernel.has_logged("destroy qp") {
            std::thread::yield_now();
        }
        stage.qp(QpType::Rc);
        assert!(stage.kernel.has_logged("qp destroyed"));
        assert!(ended.join().unwrap());
    });
}
