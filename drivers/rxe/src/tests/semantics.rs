// SPDX-License-Identifier: MIT OR Apache-2.0
//! Invalid sends that the tables in docs/src/reference/semantics.md do not list, through every interface, in every state.
//! (`tests/semantics` checks the rows of the tables over heap rings.)

use super::*;
use crate::Ah;
use crate::testing::{FakeBell, KernelSide, ah, decode_send, send_queue};
use core::ptr::null;
use uverbs_core::Errno;
use uverbs_core::attr::QpState;
use uverbs_core::provider::op::{FlushArgs, MwBind};
use uverbs_core::provider::raw::{self, QpEx};
use uverbs_core::provider::{
    BadWr, Connected, Inline, NoData, Operation, PostError, SendBatch as _, SendQueue as _, To, Wr, WrBuilder,
};
use uverbs_core::sync::{Exclusive, Locked, Shared};
use uverbs_core::wr::{
    IbvAh, IbvMw, IbvMwBindInfo, RawAh, SendFlags, SendWr, WrBindMw, WrOpcode, WrRdma, WrTail, WrUd, WrUnion,
};

type Queue = crate::SendQueue<FakeBell>;
type Batch<'q> = crate::SendBatch<'q, FakeBell>;

pub(super) const STATES: [QpState; 7] =
    [QpState::RESET, QpState::INIT, QpState::RTR, QpState::RTS, QpState::SQD, QpState::SQE, QpState::ERR];

/// The result of a list call, in a form that can be compared.
pub(super) fn reported<W>(result: Result<(), BadWr<W>>) -> Result<(), (PostError, *const W)> {
    result.map_err(|bad| (bad.error, bad.wr))
}

fn can_send(state: QpState) -> bool {
    state.0 >= QpState::RTS.0
}

/// An invalid or valid WR.
struct Case {
    name: &'static str,
    qp_type: QpType,
    want: Result<(), PostError>,
    /// Makes a list node; `None` if a list can't express the WR.
    list: Option<fn(&Stage) -> SendWr>,
    batch: Option<fn(&mut Batch<'_>, &Stage)>,
    builder: Option<fn(&mut Queue, &Stage)>,
}

/// The memory that the WRs of all cases point to.
struct Stage {
    sges: [Sge; 5],
    inline: [Sge; 2],
    handle: RawAh<Ah>,
    mw: IbvMw,
}

impl Stage {
    fn new() -> Self {
        static BYTES: [u8; 65] = [7; 65];
        let bytes = BYTES.as_ptr().expose_provenance() as u64;
        let null = core::ptr::null_mut::<core::ffi::c_void>();
        Self {
            sges: [sge(0x1000, 8, 1); 5],
            inline: [sge(bytes, 60, 0), sge(bytes, 5, 0)],
            handle: RawAh { base: IbvAh { context: null, pd: null, handle: 0 }, driver: ah(3, 1) },
            mw: IbvMw { context: null, pd: null, rkey: 0x100, handle: 0, mw_type: 1 },
        }
    }

    fn node(&self, opcode: WrOpcode, sges: &[Sge], flags: u32) -> SendWr {
        let mut wr = SendWr::new(7, opcode);
        (wr.sg_list, wr.num_sge, wr.send_flags) = (sges.as_ptr(), sges.len() as i32, flags);
        wr
    }

    fn datagram(&self, opcode: WrOpcode, sges: &[Sge], flags: u32) -> SendWr {
        let ah = (&raw const self.handle).cast();
        let wr = WrUnion { ud: WrUd { ah, remote_qpn: 1, remote_qkey: 2 } };
        SendWr { wr, ..self.node(opcode, sges, flags) }
    }

    fn to(&self) -> To<'_, Ah> {
        To { ah: &self.handle.driver, remote_qpn: 1, remote_qkey: 2 }
    }
}

fn wr(flags: u32) -> Wr {
    Wr { wr_id: 7, flags: SendFlags::from_bits_retain(flags) }
}

/// SAFETY of every use: the simulated kernel does not access the memory that is named.
fn push<O: Operation<Remote = RemoteAddr>>(b: &mut Batch<'_>, flags: u32, op: O, sges: &[Sge]) {
    // SAFETY: the simulated kernel does not access the memory that is named.
    unsafe { b.push(wr(flags), Connected, op, sges) }
}

fn set(q: &mut Queue, sges: &[Sge]) {
    // SAFETY: the simulated kernel does not access the memory that is named.
    unsafe { q.wr_set_sges(sges) }
}

const AT: RemoteAddr = RemoteAddr { addr: 0x1000, rkey: 5 };
const ODD: RemoteAddr = RemoteAddr { addr: 0x1004, rkey: 5 };
/// A bind of 0 bytes.
fn unbind() -> BindMw {
    // SAFETY: a bind of 0 bytes gives no access.
    unsafe { BindMw::new(BIND) }
}

const BIND: MwBind =
    MwBind { mw_rkey: 0x100, mw_type: 1, rkey: 0x101, mr_lkey: 0, addr: 0, length: 0, access: 0 };

fn bind_node(stage: &Stage, mw: *const IbvMw, length: u64) -> SendWr {
    let bind_info = IbvMwBindInfo { mr: null(), addr: 0, length, mw_access_flags: 0 };
    let tail = WrTail { bind_mw: WrBindMw { mw, rkey: 0x101, bind_info } };
    SendWr { tail, ..stage.node(WrOpcode::BIND_MW, &[], 0) }
}

macro_rules! cases {
    ($($name:literal, $qp:ident, $want:expr, $list:expr, $batch:expr, $builder:expr;)*) => {
        vec![$(Case {
            name: $name,
            qp_type: QpType::$qp,
            want: $want,
            list: $list,
            batch: $batch,
            builder: $builder,
        }),*]
    };
}

fn cases() -> Vec<Case> {
    use PostError as E;
    use WrOpcode as O;
    cases! {
        "a send", Rc, Ok(()),
            Some(|s| s.node(O::SEND, &s.sges[..4], 7)),
            Some(|b, s| push(b, 7, Send::new(), &s.sges[..4])),
            Some(|q, s| { q.wr_begin(wr(7), Send::new()); set(q, &s.sges[..4]) });
        "a datagram", Ud, Ok(()),
            Some(|s| s.datagram(O::SEND, &s.sges[..1], 0)),
            // SAFETY: the simulated kernel does not access the memory that is named.
            Some(|b, s| unsafe { b.push(wr(0), s.to(), Send::new(), &s.sges[..1]) }),
            Some(|q, s| { q.wr_begin(wr(0), Send::new()); set(q, &s.sges[..1]); q.wr_set_ud_addr(&s.handle.driver, 1, 2) });
        "an unbind of a type 1 window", Rc, Ok(()),
            Some(|s| bind_node(s, &raw const s.mw, 0)),
            Some(|b, _| push(b, 0, unbind(), &[])),
            Some(|q, _| q.wr_begin(wr(0), unbind()));
        "too many entries on a local invalidation", Rc, Err(E::TooManySge),
            Some(|s| s.node(O::LOCAL_INV, &s.sges, 0)), None, None;
        "an opcode whose bit would wrap", Rc, Err(E::IllegalOpcode), Some(|s| s.node(O(34), &[], 0)), None, None;
        "an inline read on UC", Uc, Err(E::IllegalOpcode), Some(|s| s.node(O::RDMA_READ, &s.inline[..1], 8)), None, None;
        "a misaligned atomic write", Rc, Err(E::Misaligned), None,
            Some(|b, _| push(b, 0, AtomicWrite::new(ODD, [0; 8]), &[])),
            Some(|q, _| q.wr_begin(wr(0), AtomicWrite::new(ODD, [0; 8])));
        "data on an atomic write", Rc, Err(E::OrphanSetter), None, None,
            Some(|q, _| { q.wr_begin(wr(0), AtomicWrite::new(AT, [0; 8])); q.wr_set_inline(Inline(&[])) });
        "a NULL handle, found above", Ud, Err(E::InvalidArgument), None, None,
            Some(|q, _| { q.wr_begin(wr(0), Send::new()); q.wr_latch(PostError::InvalidArgument) });
    }
}

fn new_queue(qp_type: QpType, state: QpState) -> (Queue, KernelSide, FakeBell) {
    let (q, kernel, bell, shared) = send_queue(8, &config(qp_type)).unwrap();
    shared.set_state(state);
    (q, kernel, bell)
}

fn good(stage: &Stage, qp_type: QpType, wr_id: u64) -> SendWr {
    let mut wr = match qp_type {
        QpType::Ud => stage.datagram(WrOpcode::SEND, &stage.sges[..1], 0),
        _ => stage.node(WrOpcode::SEND, &stage.sges[..1], 0),
    };
    wr.wr_id = wr_id;
    wr
}

fn ids(kernel: &KernelSide, datagram: bool) -> Vec<u64> {
    core::iter::from_fn(|| kernel.consume()).map(|b| decode_send(&b, datagram).wr_id).collect()
}

#[test]
fn lists_report_the_first_bad_wr() {
    let stage = Stage::new();
    for case in cases() {
        let Some(make) = case.list else { continue };
        for state in STATES {
            let at = format!("{} in {state:?}", case.name);
            let (mut q, kernel, bell) = new_queue(case.qp_type, state);
            let third = good(&stage, case.qp_type, 9);
            let second = SendWr { next: &raw const third, ..make(&stage) };
            let first = SendWr { next: &raw const second, ..good(&stage, case.qp_type, 5) };
            // SAFETY: the list is well formed, and inline data are locals; the simulated kernel does not access other
            // memory.
            let got = reported(unsafe { q.post_send(&raw const first) });
            if !can_send(state) {
                assert_eq!(got, Err((PostError::BadState, &raw const first)), "{at}");
                assert_eq!((ids(&kernel, false), bell.rings()), (vec![], 0), "{at}");
                continue;
            }
            let datagram = case.qp_type == QpType::Ud;
            match case.want {
                Ok(()) => {
                    assert_eq!(got, Ok(()), "{at}");
                    assert_eq!(ids(&kernel, datagram), [5, 7, 9], "{at}");
                }
                Err(error) => {
                    assert_eq!(got, Err((error, &raw const second)), "{at}");
                    assert_eq!(ids(&kernel, datagram), [5], "{at}: those before it are posted");
                }
            }
            assert_eq!(bell.rings(), 1, "{at}: rings once");
            // A bad WR at the front posts nothing and does not ring.
            if let Err(error) = case.want {
                // SAFETY: the list is well formed, and inline data are locals; the simulated kernel does not access other
                // memory.
                let got = reported(unsafe { q.post_send(&raw const second) });
                assert_eq!(got, Err((error, &raw const second)), "{at}");
                assert_eq!((ids(&kernel, datagram), bell.rings()), (vec![], 1), "{at}");
            }
        }
    }
}

#[test]
fn batches_report_the_first_error() {
    let stage = Stage::new();
    for case in cases() {
        let Some(push_case) = case.batch else { continue };
        for state in STATES {
            let at = format!("{} in {state:?}", case.name);
            let (mut q, kernel, bell) = new_queue(case.qp_type, state);
            let mut batch = q.batch();
            let push_good = |batch: &mut Batch<'_>| match case.qp_type {
                // SAFETY: the simulated kernel does not access the memory that is named.
                QpType::Ud => unsafe { batch.push(wr(0), stage.to(), Send::new(), &stage.sges[..1]) },
                _ => push(batch, 0, Send::new(), &stage.sges[..1]),
            };
            push_good(&mut batch);
            push_case(&mut batch, &stage);
            push_good(&mut batch);
            let want = if can_send(state) { case.want } else { Err(PostError::BadState) };
            assert_eq!(batch.complete(), want, "{at}");
            let n = if want.is_ok() { 3 } else { 0 };
            assert_eq!((kernel.producer(), bell.rings()), (n, n.min(1)), "{at}: all or nothing");
        }
    }
}

#[test]
fn sessions_report_the_first_error() {
    let stage = Stage::new();
    for case in cases() {
        let Some(build) = case.builder else { continue };
        for state in STATES {
            let at = format!("{} in {state:?}", case.name);
            let (mut q, kernel, bell) = new_queue(case.qp_type, state);
            let build_good = |q: &mut Queue| {
                q.wr_begin(wr(0), Send::new());
                set(q, &stage.sges[..1]);
                if case.qp_type == QpType::Ud {
                    q.wr_set_ud_addr(&stage.handle.driver, 1, 2);
                }
            };
            q.wr_start();
            assert!(q.wr_is_open());
            build_good(&mut q);
            build(&mut q, &stage);
            build_good(&mut q);
            let want = if can_send(state) { case.want } else { Err(PostError::BadState) };
            assert_eq!(q.wr_complete(), want, "{at}");
            assert!(!q.wr_is_open());
            let n = if want.is_ok() { 3 } else { 0 };
            assert_eq!((kernel.producer(), bell.rings()), (n, n.min(1)), "{at}: all or nothing");
            // An error of the last WR is reported, too.
            q.wr_start();
            build(&mut q, &stage);
            assert_eq!(q.wr_complete(), want, "{at}, alone");
        }
    }
}

#[test]
fn a_null_list_is_an_error_without_a_bad_wr() {
    for state in STATES {
        let (mut q, _, bell) = new_queue(QpType::Rc, state);
        // SAFETY: NULL is allowed.
        let got = reported(unsafe { q.post_send(null()) });
        assert_eq!(got, Err((PostError::NullList, null())));
        assert_eq!(bell.rings(), 0);
    }
}

#[test]
fn a_full_queue_names_the_wr_that_did_not_fit() {
    let stage = Stage::new();
    let (mut q, kernel, bell) = new_queue(QpType::Rc, QpState::RTS);
    let mut nodes: Vec<SendWr> = (0..9).map(|i| good(&stage, QpType::Rc, i)).collect();
    for i in 0..8 {
        nodes[i].next = &raw const nodes[i + 1];
    }
    // SAFETY: the list is well formed; the simulated kernel does not access the memory that is named.
    let got = reported(unsafe { q.post_send(&raw const nodes[0]) });
    assert_eq!(got, Err((PostError::QueueFull, &raw const nodes[7])));
    assert_eq!(<Queue as uverbs_core::provider::SendQueue>::errno(PostError::QueueFull), Errno::ENOMEM);
    assert_eq!((bell.rings(), kernel.producer()), (1, 7));
    q.wr_start();
    q.wr_begin(wr(0), LocalInv::new(1));
    assert_eq!(q.wr_complete(), Err(PostError::QueueFull));
    kernel.consume().unwrap();
    // SAFETY: the rest of the list is well formed; the simulated kernel does not access the memory that is named. One WR
    // fits.
    let got = reported(unsafe { q.post_send(&raw const nodes[7]) });
    assert_eq!(got, Err((PostError::QueueFull, &raw const nodes[8])));
    assert_eq!(ids(&kernel, false), [1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn a_failed_doorbell_and_a_bad_wr_are_both_reported() {
    let stage = Stage::new();
    let (mut q, kernel, bell) = new_queue(QpType::Rc, QpState::RTS);
    bell.fail(Some(Errno::ENODEV));
    let bad = stage.node(WrOpcode::TSO, &[], 0);
    let first = SendWr { next: &raw const bad, ..good(&stage, QpType::Rc, 1) };
    // SAFETY: the list is well formed; the simulated kernel does not access the memory that is named.
    let got = reported(unsafe { q.post_send(&raw const first) });
    assert_eq!(got, Err((PostError::Doorbell(Errno::ENODEV), &raw const bad)));
    assert_eq!(ids(&kernel, false), [1]);
}

#[test]
fn other_posts_are_refused_during_a_session() {
    let stage = Stage::new();
    let (mut q, kernel, bell) = new_queue(QpType::Rc, QpState::RTS);
    assert_eq!(q.wr_complete(), Err(PostError::NoSession));
    q.wr_abort();
    q.wr_begin(wr(0), Send::new());
    set(&mut q, &[]);
    q.wr_latch(PostError::Misaligned);
    assert_eq!(q.wr_complete(), Err(PostError::NoSession));

    q.wr_start();
    // An open session is reported even if the list is NULL.
    // SAFETY: NULL is allowed as the list.
    let null = unsafe { q.post_send(null()) };
    assert_eq!(null.map_err(|bad| bad.error), Err(PostError::SessionOpen));
    q.wr_begin(wr(0), Send::new());
    set(&mut q, &[]);
    let node = good(&stage, QpType::Rc, 3);
    // SAFETY: the list is well formed; the simulated kernel does not access the memory that is named.
    let got = reported(unsafe { q.post_send(&raw const node) });
    assert_eq!(got, Err((PostError::SessionOpen, &raw const node)));
    let mut batch = q.batch();
    push(&mut batch, 0, Send::new(), &[]);
    assert_eq!(batch.complete(), Err(PostError::SessionOpen));
    // The refused calls do not change the session.
    q.wr_complete().unwrap();
    assert_eq!((ids(&kernel, false), bell.rings()), (vec![7], 1));

    // A setter before any builder.
    q.wr_start();
    set(&mut q, &[]);
    assert_eq!(q.wr_complete(), Err(PostError::OrphanSetter));
    q.wr_start();
    q.wr_abort();
    assert_eq!(q.wr_complete(), Err(PostError::NoSession));
}

#[test]
fn builders_without_their_flag_are_refused() {
    use uverbs_core::attr::SendOpsFlags as F;
    let mut c = config(QpType::Rc);
    c.send_ops_flags = F::SEND;
    let (mut q, kernel, _, _) = send_queue(4, &c).unwrap();
    q.wr_start();
    q.wr_begin(wr(0), Write::new(AT));
    set(&mut q, &[]);
    assert_eq!(q.wr_complete(), Err(PostError::IllegalOpcode));
    q.wr_start();
    q.wr_begin(wr(0), Send::new());
    set(&mut q, &[]);
    q.wr_complete().unwrap();
    // Lists and batches allow every operation of the QP type.
    // SAFETY: the WR has no data, so it names no memory.
    unsafe { q.post(wr(0), Connected, Write::new(AT), NoData) }.unwrap();
    assert_eq!(kernel.producer(), 2);
}

#[test]
fn flush_and_atomic_write_need_the_devices_support() {
    let mut c = config(QpType::Rc);
    c.extensions = Extensions::default();
    let (mut q, kernel, _, _) = send_queue(4, &c).unwrap();
    let flush = Flush::new(AT, FlushArgs { length: 1, placement: 1, level: 0 });
    // SAFETY: the WR has no data, so it names no memory.
    assert_eq!(unsafe { q.post(wr(0), Connected, flush, NoData) }, Err(PostError::IllegalOpcode));
    let write = AtomicWrite::new(AT, [0; 8]);
    // SAFETY: the WR has no data, so it names no memory.
    assert_eq!(unsafe { q.post(wr(0), Connected, write, NoData) }, Err(PostError::IllegalOpcode));
    q.wr_start();
    q.wr_begin(wr(0), flush);
    assert_eq!(q.wr_complete(), Err(PostError::IllegalOpcode));
    assert_eq!(kernel.producer(), 0);
}

#[test]
fn every_opcode_on_every_qp_type() {
    // Rows: ibv_post_send(3). Columns: RC, UC, UD.
    let table = [
        (WrOpcode::SEND, [true, true, true]),
        (WrOpcode::SEND_WITH_IMM, [true, true, true]),
        (WrOpcode::RDMA_WRITE, [true, true, false]),
        (WrOpcode::RDMA_WRITE_WITH_IMM, [true, true, false]),
        (WrOpcode::RDMA_READ, [true, false, false]),
        (WrOpcode::ATOMIC_CMP_AND_SWP, [true, false, false]),
        (WrOpcode::ATOMIC_FETCH_AND_ADD, [true, false, false]),
        (WrOpcode::LOCAL_INV, [true, true, false]),
        (WrOpcode::BIND_MW, [true, true, false]),
        (WrOpcode::SEND_WITH_INV, [true, true, false]),
        (WrOpcode::TSO, [false, false, false]),
    ];
    let stage = Stage::new();
    for (opcode, legal) in table {
        for (qp_type, legal) in [QpType::Rc, QpType::Uc, QpType::Ud].into_iter().zip(legal) {
            let (mut q, kernel, _) = new_queue(qp_type, QpState::RTS);
            let mut node = match (qp_type, opcode) {
                (_, WrOpcode::BIND_MW) => bind_node(&stage, &raw const stage.mw, 0),
                (QpType::Ud, _) => stage.datagram(opcode, &stage.sges[..1], 0),
                _ => SendWr {
                    wr: WrUnion { rdma: WrRdma { remote_addr: 64, rkey: 1 } },
                    ..stage.node(opcode, &stage.sges[..1], 0)
                },
            };
            node.wr_id = 11;
            // SAFETY: the list is well formed; the simulated kernel does not access the memory that is named.
            let got = reported(unsafe { q.post_send(&raw const node) });
            let want = if legal { Ok(()) } else { Err((PostError::IllegalOpcode, &raw const node)) };
            assert_eq!(got, want, "{opcode:?} on {qp_type:?}");
            assert_eq!(ids(&kernel, false).len(), usize::from(legal));
        }
    }
}

#[test]
fn a_queue_key_with_the_top_bit_means_the_qps_own() {
    use crate::testing::Part;
    let (mut q, kernel, _, shared) = send_queue(4, &config(QpType::Ud)).unwrap();
    shared.set_qkey(0x1111_1111);
    let handle = ah(1, 0);
    let to = To { ah: &handle, remote_qpn: 5, remote_qkey: 0x8000_0000 };
    // SAFETY: the WR has no data, so it names no memory.
    unsafe { q.post(wr(0), to, Send::new(), NoData) }.unwrap();
    q.wr_start();
    q.wr_begin(wr(0), Send::new());
    q.wr_set_ud_addr(&handle, 5, 0xffff_ffff);
    set(&mut q, &[]);
    q.wr_complete().unwrap();
    for _ in 0..2 {
        let Part::Ud { remote_qkey, .. } = decode_send(&kernel.consume().unwrap(), true).part else {
            panic!()
        };
        assert_eq!(remote_qkey, 0x1111_1111);
    }
}

#[test]
fn inline_data_may_be_overwritten_after_the_call() {
    let (mut q, kernel, _) = new_queue(QpType::Rc, QpState::RTS);
    let mut data = *b"first";
    let sges = [sge(data.as_ptr().expose_provenance() as u64, 5, 0)];
    let mut node = SendWr::new(1, WrOpcode::SEND);
    (node.sg_list, node.num_sge, node.send_flags) = (sges.as_ptr(), 1, 8);
    // SAFETY: the list is well formed, and its inline data are local arrays.
    unsafe { q.post_send(&raw const node) }.unwrap();
    data.copy_from_slice(b"later");
    assert_eq!(decode_send(&kernel.consume().unwrap(), false).inline, b"first");
    assert_eq!(&data, b"later");
}

/// A payload with more bytes than its `inline_len`.
#[derive(Clone, Copy)]
struct TooLong;
impl uverbs_core::provider::Payload<Sge> for TooLong {
    const INLINE: bool = true;
    fn for_each_buf(&self, mut f: impl FnMut(&[u8])) {
        f(&[1; 60]);
        f(&[2; 60]);
        f(&[3; 1]);
    }
    fn inline_len(&self) -> usize {
        1
    }
}

#[test]
fn a_payload_longer_than_its_inline_len_is_limited() {
    let (mut q, kernel, _) = new_queue(QpType::Rc, QpState::RTS);
    let before = kernel.element(1);
    // SAFETY: inline data are copied by the call, so no memory is used later.
    assert_eq!(unsafe { q.post(wr(0), Connected, Send::new(), TooLong) }, Err(PostError::InlineTooLong));
    assert_eq!(kernel.element(1), before);
}

#[test]
fn the_vtable_posts_with_and_without_a_lock() {
    fn run<L: uverbs_core::sync::Locking>() {
        let (q, kernel, bell, shared) = send_queue(8, &config(QpType::Rc)).unwrap();
        let q = Locked::<_, L>::new(q);
        let mut ex = QpEx::new(&q);
        // SAFETY: only this thread uses the queue; the WRs name no memory that is accessed.
        unsafe {
            (ex.wr_id, ex.wr_flags) = (1, 2);
            ex.wr_start();
            ex.wr_send();
            // The builder samples `wr_id` and `wr_flags`; the next one samples the same values.
            (ex.wr_id, ex.wr_flags) = (2, 4 | 8);
            ex.wr_set_sge(1, 0x1000, 4);
            ex.wr_rdma_write(5, 0x2000);
            ex.wr_set_sge_list(0, null());
            ex.wr_local_inv(9);
            ex.wr_complete().unwrap();

            ex.wr_start();
            ex.wr_send();
            ex.wr_start();
            let node = SendWr::new(1, WrOpcode::SEND);
            assert_eq!(raw::post_send(&q, &raw const node).unwrap_err().error, PostError::SessionOpen);
            assert_eq!(ex.wr_complete(), Err(PostError::SessionOpen));
            // Without a lock, only the queue itself knows that there is no session.
            assert_eq!(ex.wr_complete(), Err(PostError::NoSession));

            shared.set_state(QpState::INIT);
            ex.wr_start();
            ex.wr_send();
            ex.wr_set_sge(1, 0x1000, 4);
            assert_eq!(ex.wr_complete(), Err(PostError::BadState));
        }
        assert_eq!(bell.rings(), 1);
        let got: Vec<_> = core::iter::from_fn(|| kernel.consume())
            .map(|b| decode_send(&b, false))
            .map(|d| (d.wr_id, d.opcode, d.send_flags, d.length))
            .collect();
        assert_eq!(got, [(1, 2, 2, 4), (2, 0, 4, 0), (2, 7, 4, 0)]);
    }
    run::<Exclusive>();
    run::<Shared>();
}
