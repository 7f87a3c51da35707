// SPDX-License-Identifier: MIT OR Apache-2.0
//! Readers of events, and the lives of a QP whose events they record.

use super::*;
use crate::qp::QpControl;
use crate::{
    ConnectAttr, ProtectionDomain, Rc,
    raw::{Qp, Srq},
};
use core::time::Duration;
use std::thread;
use uverbs_core::attr::{QpCap, QpState, SrqAttr, SrqInitAttr};
use uverbs_core::sync::{Exclusive, Shared};
use uverbs_hca::Hca;
use uverbs_mlx5::Mlx5;

struct Bed {
    qp: Qp<Rc, Exclusive, Mlx5>,
    srq: Srq<Exclusive, Mlx5>,
    cq: crate::raw::Cq<Shared, Mlx5>,
    pd: ProtectionDomain<Mlx5>,
    context: Context<Mlx5>,
    hca: Hca,
}

impl Bed {
    fn new() -> Self {
        let hca = Hca::new();
        let context = Context::<Mlx5>::from_kernel(hca.open()).unwrap();
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(16, None).unwrap());
        let limits = SrqAttr::new(8);
        let srq = pd.create_srq(&SrqInitAttr::new(limits)).unwrap();
        let qp = Self::qp(&pd, &cq, &srq);
        Self { qp, srq, cq, pd, context, hca }
    }

    fn qp(
        pd: &ProtectionDomain<Mlx5>,
        cq: &crate::raw::Cq<Shared, Mlx5>,
        srq: &Srq<Exclusive, Mlx5>,
    ) -> Qp<Rc, Exclusive, Mlx5> {
        let cap = QpCap::new(4, 0).sge(1, 0).inline(64);
        let qp = pd.raw_qp::<Rc>().cq(cq).srq(srq).cap(cap).create().unwrap();
        connect(&qp.control);
        qp
    }

    /// The event is in the file.
    fn fail(&self) {
        self.qp.control.modify_state(QpState::ERR).unwrap();
        let mut files = [PollFd::new(self.context.inner().async_fd().as_fd(), PollFlags::POLLIN)];
        assert_eq!(poll(&mut files, PollTimeout::from(10_000_u16)), Ok(1));
    }

    /// The types of the events that the program gets.
    fn events(&self) -> Vec<EventType> {
        self.context.set_async_nonblocking(true).unwrap();
        core::iter::from_fn(|| self.context.get_async_event().ok()).map(|event| event.event_type).collect()
    }
}

fn connect(control: &QpControl<Mlx5>) {
    let attr = ConnectAttr::default();
    control.init(&attr).unwrap();
    let here = control.endpoint(1, &attr).unwrap();
    control.connect(&here, &here, &attr).unwrap();
}

/// A reader has the event, and is stopped before it records it. The RESET of the QP waits for the reader.
#[test]
fn an_event_that_is_read_before_a_reset_is_not_recorded_after_it() {
    let bed = Bed::new();
    bed.fail();
    let (context, control) = (bed.context.inner(), &bed.qp.control);
    let mut turn = context.event_reader().turn.lock().unwrap();
    let raw = context.async_fd().read().unwrap();
    assert_eq!(raw.event_type, EventType::QP_LAST_WQE_REACHED);
    thread::scope(|scope| {
        let reset = scope.spawn(|| control.modify_state(QpState::RESET).unwrap());
        thread::sleep(Duration::from_millis(200));
        assert!(!reset.is_finished(), "the reader has not recorded the event yet");
        assert!(EventSource::of(context, raw).is_some());
        assert!(control.has_last_wqe());
        assert!(matches!(turn.read(context), Ok(Read::Nothing)));
        drop(turn);
        reset.join().unwrap();
    });
    assert!(!control.has_last_wqe(), "the event of the life before");
}

/// An event that the kernel queues after the RESET does not count for the next connection either.
#[test]
fn an_event_of_the_life_before_that_comes_late_does_not_count() {
    let bed = Bed::new();
    bed.fail();
    let (context, control) = (bed.context.inner(), &bed.qp.control);
    let raw = context.async_fd().read().unwrap();
    control.modify_state(QpState::RESET).unwrap();
    EventSource::of(context, raw);
    connect(control);
    assert!(!control.has_last_wqe());
    bed.fail();
    assert_eq!(bed.events(), [EventType::QP_LAST_WQE_REACHED]);
    assert!(control.has_last_wqe(), "that of this life");
}

/// A RESET that the kernel refuses leaves the QP in ERR: the event comes once only.
#[test]
fn a_reset_that_fails_forgets_nothing() {
    let bed = Bed::new();
    bed.fail();
    assert_eq!(bed.events(), [EventType::QP_LAST_WQE_REACHED]);
    bed.hca.unplug();
    assert!(bed.qp.control.modify_state(QpState::RESET).is_err());
    assert!(bed.qp.control.has_last_wqe());
}

/// A reader that waits does not have the turn, and gets events that another thread has read and kept.
#[test]
fn a_reader_that_waits_stops_nobody_and_gets_what_others_keep() {
    let bed = Bed::new();
    thread::scope(|scope| {
        let readers = [(); 2].map(|()| scope.spawn(|| bed.context.get_async_event().unwrap()));
        thread::sleep(Duration::from_millis(50));
        // A RESET has its turn while they wait.
        bed.qp.control.modify_state(QpState::RESET).unwrap();
        assert!(readers.iter().all(|reader| !reader.is_finished()));
        for event_type in [EventType::PORT_ERR, EventType::PORT_ACTIVE] {
            let event = Event { event_type, source: EventSource::Port(1) };
            bed.context.inner().event_reader().keep(bed.context.inner(), Kept { id: 1, event });
        }
        let mut types = readers.map(|reader| reader.join().unwrap().event_type);
        types.sort_by_key(|event_type| event_type.0);
        assert_eq!(types, [EventType::PORT_ACTIVE, EventType::PORT_ERR]);
    });
}

/// A peer can end any number of connections; the events that the program does not read stay few.
#[test]
fn events_that_nobody_reads_are_kept_once() {
    let bed = Bed::new();
    for _ in 0..2 * KeptEvents::LIMIT {
        bed.fail();
        bed.qp.control.modify_state(QpState::RESET).unwrap();
        connect(&bed.qp.control);
    }
    let kept = || bed.context.inner().event_reader().kept.lock().unwrap().events.len();
    assert!(kept() <= KeptEvents::LIMIT, "{}", kept());
    // Of QPs that are destroyed, none are kept in the end.
    for _ in 0..2 * KeptEvents::LIMIT {
        let qp = Bed::qp(&bed.pd, &bed.cq, &bed.srq);
        qp.drain(&bed.cq, Duration::from_secs(20), |_| ()).map_err(|(_, error)| error).unwrap();
    }
    assert!(kept() <= KeptEvents::LIMIT, "{}", kept());
    bed.hca.set_link_up(false);
    EventReader::begin_life(bed.context.inner(), &QpEvents::new(1));
    assert_eq!(bed.events().last(), Some(&EventType::PORT_ERR));
}
