// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sends on every interface, as the device sees them.
#![expect(unsafe_code)]
// UNSAFETY: posts requests whose memory no device accesses.

use super::{Request, post, sge, to};
use crate::testing::{Rig, SEND_BELL, Sent, Shape, send_config};
use crate::{Ah, SendConfig};
use proptest::prelude::*;
use uverbs_core::provider::opcodes::UD_OPCODES;
use uverbs_core::provider::requests::Requests;
use uverbs_core::provider::{
    Completion as _, CompletionQueue as _, Data, Dest, Head, Inline, Op, PostError, RemoteAddr,
    SendBatch as _, SendQueue as _, To, Wr, WrBuilder as _,
};
use uverbs_core::wr::{RawAh, SendFlags, Sge};
use uverbs_testkit::{Face, handle};

const REMOTE: RemoteAddr = RemoteAddr { addr: 0x7766_5544_3322_1100, rkey: 0x8765_4321 };

fn wide() -> Shape {
    Shape { wide: true, ..Shape::default() }
}

/// What the device sees of a request that an interface posts; the same on all that have it, and with doorbells of both kinds.
fn seen(shape: Shape, config: SendConfig, request: Request<'_>) -> Result<Sent, PostError> {
    let port = seen_by(shape, config, request);
    assert_eq!(seen_by(Shape { mapped: true, ..shape }, config, request), port);
    port
}

fn seen_by(shape: Shape, config: SendConfig, request: Request<'_>) -> Result<Sent, PostError> {
    let on = |face| {
        let mut rig = Rig::new(shape, config);
        post(&mut rig.send, face, &[request])?;
        let bells = rig.device.rung();
        assert_eq!(bells, [(SEND_BELL, 1)]);
        let [sent] = rig.device.sends(&bells).try_into().expect("one send");
        Ok(sent)
    };
    let first = on(Face::Single);
    for face in [Face::Batch, Face::Builder] {
        assert_eq!(on(face), first, "{face:?}");
    }
    // C's lists have no reads and writes, because an entry names either an address handle or a remote address.
    if request.op.remote().is_none() {
        assert_eq!(on(Face::List), first);
    }
    first
}

fn expected(op: u8) -> Sent {
    let (ah, qpn, qkey) = (0x1234, 0xbeef, 0x1111_1111);
    // The generation is 3, above an index of 3 bits.
    Sent { req_id: 3 << 3, op, imm: None, ah, qpn, qkey, hints: 0, remote: None, inline: None, sges: vec![] }
}

#[test]
fn inline_data_of_every_length_are_copied() {
    let ah = handle(Ah(0x1234));
    let bytes: Vec<u8> = (1..=80).collect();
    for length in 0..=80 {
        let data = &bytes[..length];
        let sent = seen(wide(), send_config(), to(&ah, Wr::new(1, Op::Send).inline(data))).unwrap();
        assert_eq!(sent.inline.as_deref(), Some(data), "{length}");
        // The second buffer begins where the first one ends.
        let (one, two) = data.split_at(length / 3);
        let bufs = [one, two];
        let wr = Wr::new(1, Op::Send).data(Data::Inline(Inline::List(&bufs)));
        assert_eq!(seen(wide(), send_config(), to(&ah, wr)).unwrap(), sent, "{length}");
    }
}

#[test]
fn every_operation_has_its_entry() {
    let ah = handle(Ah(0x1234));
    let two = [sge(0x1000_0000_0000, 5, 0xff_1234), sge(0x2000, 0x8000_0000, 7)];
    let local = vec![(0x1000_0000_0000, 5, 0xff_1234)];
    let remote = |length| Some((REMOTE.addr, length, REMOTE.rkey));
    for shape in [Shape::default(), wide()] {
        let seen = |wr| seen(shape, send_config(), to(&ah, wr)).unwrap();
        assert_eq!(seen(Wr::new(1, Op::Send)), expected(0));
        let sges = vec![local[0], (0x2000, 0x8000_0000, 7)];
        assert_eq!(seen(Wr::new(1, Op::Send).sges(&two)), Sent { sges, ..expected(0) });
        let imm = seen(Wr::new(1, Op::SendImm(0x0a0b_0c0d)).sges(&two[..1]));
        assert_eq!(imm, Sent { imm: Some(0x0a0b_0c0d), sges: local.clone(), ..expected(0) });
        let inline = seen(Wr::new(2, Op::Send).inline(&[7; 32]));
        assert_eq!(inline, Sent { inline: Some(vec![7; 32]), ..expected(0) });
        let bufs: [&[u8]; 3] = [b"ab", b"", b"cde"];
        let inline = seen(Wr::new(2, Op::SendImm(0)).data(Data::Inline(Inline::List(&bufs))));
        assert_eq!(inline, Sent { imm: Some(0), inline: Some(b"abcde".to_vec()), ..expected(0) });

        let with = |op| Sent { sges: local.clone(), remote: remote(5), ..expected(op) };
        assert_eq!(seen(Wr::new(1, Op::Read(REMOTE)).sges(&two[..1])), with(1));
        assert_eq!(seen(Wr::new(1, Op::Write(REMOTE)).sges(&two[..1])), with(2));
        let imm = seen(Wr::new(1, Op::WriteImm(REMOTE, 9)).sges(&two[..1]));
        assert_eq!(imm, Sent { imm: Some(9), ..with(2) });
        assert_eq!(seen(Wr::new(1, Op::Write(REMOTE))), Sent { remote: remote(0), ..expected(2) });
    }
    let inline =
        seen(wide(), send_config(), to(&ah, Wr::new(1, Op::WriteImm(REMOTE, 1)).inline(&[3; 80]))).unwrap();
    assert_eq!(inline, Sent { imm: Some(1), remote: remote(80), inline: Some(vec![3; 80]), ..expected(2) });
    let inline = seen(wide(), send_config(), to(&ah, Wr::new(1, Op::Send).inline(&[3; 80]))).unwrap();
    assert_eq!(inline, Sent { inline: Some(vec![3; 80]), ..expected(0) });
}

#[test]
fn what_the_device_lacks_is_an_error_on_every_interface() {
    use PostError as E;
    let ah = handle(Ah(1));
    let three = [sge(1, 1, 1); 3];
    let narrow = Shape::default();
    let error = |shape, config, wr| seen(shape, config, wr).unwrap_err();
    let refused = |wr| error(narrow, send_config(), to(&ah, wr));
    assert_eq!(refused(Wr::new(1, Op::Send).sges(&three)), E::TooManySge);
    assert_eq!(refused(Wr::new(1, Op::Read(REMOTE)).sges(&three[..2])), E::TooManySge);
    assert_eq!(refused(Wr::new(1, Op::Send).inline(&[0; 33])), E::InlineTooLong);
    assert_eq!(refused(Wr::new(1, Op::Write(REMOTE)).inline(&[0; 4])), E::IllegalFlag);
    assert_eq!(refused(Wr::new(1, Op::FetchAdd(REMOTE, 1)).sges(&three[..1])), E::IllegalOpcode);
    assert_eq!(refused(Wr::new(1, Op::SendInv(1))), E::IllegalOpcode);
    assert_eq!(refused(Wr::new(1, Op::Send).flags(SendFlags::SOLICITED)), E::IllegalFlag);
    assert_eq!(refused(Wr::new(1, Op::Send).flags(SendFlags::FENCE)), E::IllegalFlag);
    let read = to(&ah, Wr::new(1, Op::Read(REMOTE)).inline(&[0; 4]));
    assert_eq!(error(wide(), send_config(), read), E::IllegalFlag);
    assert_eq!(
        error(wide(), send_config(), to(&ah, Wr::new(1, Op::Send).inline(&[0; 81]))),
        E::InlineTooLong
    );
    let no_writes = SendConfig { inline_write: false, ..send_config() };
    assert_eq!(
        error(wide(), no_writes, to(&ah, Wr::new(1, Op::Write(REMOTE)).inline(&[0; 4]))),
        E::IllegalFlag
    );
    let ud = SendConfig { ops: UD_OPCODES, ..send_config() };
    assert_eq!(error(narrow, ud, to(&ah, Wr::new(1, Op::Read(REMOTE)))), E::IllegalOpcode);
    let no_entry = SendConfig { max_rdma_sge: 0, ..send_config() };
    for op in [Op::Read(REMOTE), Op::Write(REMOTE), Op::WriteImm(REMOTE, 1)] {
        assert_eq!(error(narrow, no_entry, to(&ah, Wr::new(1, op).sges(&three[..1]))), E::IllegalOpcode);
    }
    assert!(seen(narrow, no_entry, to(&ah, Wr::new(1, Op::Send).sges(&three[..1]))).is_ok());

    let far = Dest::Ud(To { ah: &ah, remote_qpn: 0x1_0000, remote_qkey: 0 });
    assert_eq!(error(narrow, send_config(), Wr::new(1, Op::Send).signaled().to(far)), E::InvalidArgument);

    let unsignaled = to(&ah, Wr::new(1, Op::Send));
    let unsignaled = Wr { flags: SendFlags::empty(), ..unsignaled };
    assert_eq!(error(narrow, send_config(), unsignaled), E::Unsignaled);
    assert_eq!(E::Unsignaled.errno(), uverbs_core::Errno::EINVAL);
    let all = SendConfig { always: SendFlags::SIGNALED, ..send_config() };
    assert_eq!(seen(narrow, all, unsignaled).unwrap().sges, []);
}

#[test]
fn a_request_without_an_address_is_refused() {
    let mut rig = Rig::new(Shape::default(), send_config());
    let request: Request<'_> = Wr::new(1, Op::Send).signaled();
    for face in [Face::Batch, Face::Single] {
        assert_eq!(post(&mut rig.send, face, &[request]), Err(PostError::InvalidArgument));
    }
    assert_eq!(post(&mut rig.send, Face::Builder, &[request]), Err(PostError::MissingSetter));
    assert_eq!(rig.device.bells.take(), []);
}

#[test]
fn builders_latch_the_mistakes_of_setters() {
    use PostError as E;
    let mut rig = Rig::new(Shape::default(), send_config());
    let queue = &mut rig.send;
    let head = Head { wr_id: 1, flags: SendFlags::SIGNALED };
    // SAFETY: not a bind.
    let begin = |queue: &mut crate::SendQueue| unsafe { queue.wr_begin(head, Op::Send) };
    assert_eq!(queue.wr_complete(), Err(E::NoSession));
    queue.wr_start();
    queue.wr_set_ud_addr(&Ah(1), 1, 1);
    assert_eq!(queue.wr_complete(), Err(E::OrphanSetter));
    queue.wr_start();
    begin(queue);
    queue.wr_set_ud_addr(&Ah(1), 1, 1);
    queue.wr_set_ud_addr(&Ah(2), 1, 1);
    assert_eq!(queue.wr_complete(), Err(E::DoubledSetter));
    queue.wr_start();
    begin(queue);
    queue.wr_set_ud_addr(&Ah(1), 1, 1);
    begin(queue);
    assert_eq!(queue.wr_complete(), Err(E::MissingSetter));
    queue.wr_start();
    assert!(queue.wr_is_open());
    assert_eq!(queue.batch().complete(), Err(E::SessionOpen));
    queue.wr_start();
    assert_eq!(queue.wr_complete(), Err(E::SessionOpen));
    queue.wr_start();
    queue.wr_set_processing_hints(1);
    assert_eq!(queue.wr_complete(), Err(E::OrphanSetter));
    queue.wr_start();
    begin(queue);
    queue.wr_set_xrc_srqn(1);
    assert_eq!(queue.wr_complete(), Err(E::OrphanSetter));
    queue.wr_start();
    begin(queue);
    queue.wr_abort();
    assert_eq!(rig.device.bells.take(), []);

    let queue = &mut rig.send;
    queue.wr_start();
    begin(queue);
    queue.wr_set_inline(Inline::Bytes(b"x"));
    queue.wr_set_processing_hints(0xff);
    queue.wr_set_ud_addr(&Ah(0x1234), 0xbeef, 0x1111_1111);
    assert_eq!(queue.wr_complete(), Ok(()));
    let (sent, _) = rig.device.take();
    assert_eq!(sent, [Sent { hints: 3, inline: Some(b"x".to_vec()), ..expected(0) }]);
}

#[test]
fn a_doorbell_comes_before_a_batch_is_too_long() {
    let ah = handle(Ah(1));
    for face in [Face::Batch, Face::Builder, Face::List] {
        let config = SendConfig { max_batch: 3, ..send_config() };
        let mut rig = Rig::new(Shape::default(), config);
        let wrs: Vec<_> = (0..8).map(|id| to(&ah, Wr::new(id, Op::Send))).collect();
        assert_eq!(post(&mut rig.send, face, &wrs[..3]), Ok(()));
        assert_eq!(post(&mut rig.send, face, &wrs[3..8]), Ok(()));
        let bells = rig.device.bells.take();
        assert_eq!(bells, [3, 6, 8].map(|value| (SEND_BELL, value)));
        assert_eq!(rig.device.sends(&bells).len(), 8);
        assert_eq!(post(&mut rig.send, face, &wrs[..1]), Err(PostError::QueueFull));
        assert_eq!(rig.device.bells.take(), []);
    }
}

#[test]
fn a_list_posts_what_is_before_the_bad_request() {
    let ah = handle(Ah(1));
    let good = to(&ah, Wr::new(1, Op::Send));
    let bad = Wr { flags: SendFlags::empty(), ..good };
    let mut rig = Rig::new(Shape::default(), send_config());
    let list = uverbs_testkit::List::new(&[good, good, bad, good]);
    // SAFETY: a valid list, without memory.
    let refused = unsafe { rig.send.post_send(list.first()) }.unwrap_err();
    assert_eq!((refused.error, refused.wr), (PostError::Unsignaled, &raw const list.nodes()[2]));
    assert_eq!(rig.device.take().0.len(), 2);
    // SAFETY: NULL is refused.
    let refused = unsafe { rig.send.post_send(core::ptr::null()) }.unwrap_err();
    assert_eq!(refused.error, PostError::NullList);
}

#[test]
fn inline_data_of_a_list_have_any_number_of_entries() {
    let ah = handle(Ah(1));
    let bufs: Vec<&[u8]> = vec![b"x"; 9];
    let wr = to(&ah, Wr::new(1, Op::Send).data(Data::Inline(Inline::List(&bufs))));
    let mut rig = Rig::new(Shape::default(), send_config());
    assert_eq!(post(&mut rig.send, Face::List, &[wr]), Ok(()));
    assert_eq!(rig.device.take().0[0].inline.as_deref(), Some(&b"xxxxxxxxx"[..]));
}

/// What a random step does.
#[derive(Clone, Debug)]
enum Step {
    Post(usize, Vec<Vec<u8>>),
    Abort(u8),
    Complete(Vec<u16>),
}

fn step() -> impl Strategy<Value = Step> {
    let data = prop::collection::vec(any::<u8>(), 0..33);
    prop_oneof![
        (0..4_usize, prop::collection::vec(data, 1..5)).prop_map(|(face, data)| Step::Post(face, data)),
        any::<u8>().prop_map(Step::Abort),
        prop::collection::vec(any::<u16>(), 1..6).prop_map(Step::Complete),
    ]
}

/// The doorbell has 16 bits of the position. It is another one than before.
#[test]
fn a_batch_of_the_longest_queue_reaches_the_device() {
    let mut rig = Rig::new(Shape { sends: Requests::MAX, ..Shape::default() }, send_config());
    let wr: Wr<'_, Ah> =
        Wr::new(9, Op::Send).signaled().to(Dest::Ud(To { ah: &Ah(1), remote_qpn: 1, remote_qkey: 1 }));
    let mut batch = rig.send.batch();
    for _ in 0..Requests::MAX {
        // SAFETY: no memory is named.
        unsafe { batch.push(&wr) };
    }
    batch.complete().unwrap();
    assert_eq!(rig.device.take().0.len(), Requests::MAX as usize);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Posts on every interface, drops some, and completes in any order: entries, phases and doorbells are those that a device expects over
    /// many rounds, and each completion has the `wr_id` of its request.
    #[test]
    fn requests_survive_wraps_and_completions_in_any_order(
        wide: bool,
        mapped: bool,
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let shape = Shape { sends: 4, wide, mapped, cqes: 4, ..Shape::default() };
        let mut rig = Rig::new(shape, send_config());
        let ah = handle(Ah(5));
        let mut outstanding: Vec<(u16, u64)> = Vec::new();
        let mut next_id = 0_u64;
        for step in steps {
            match step {
                Step::Post(face, data) => {
                    let wrs: Vec<Request<'_>> =
                        data.iter().zip(next_id..).map(|(data, id)| to(&ah, Wr::new(id, Op::Send).inline(data))).collect();
                    let result = post(&mut rig.send, Face::ALL[face], &wrs);
                    let (sent, _) = rig.device.take();
                    let room = 4 - outstanding.len();
                    let posted = match Face::ALL[face] {
                        Face::List | Face::Single => room.min(wrs.len()),
                        _ if wrs.len() > room => 0,
                        _ => wrs.len(),
                    };
                    prop_assert_eq!(result.is_ok(), posted == wrs.len());
                    prop_assert_eq!(sent.len(), posted);
                    for (sent, (data, id)) in sent.iter().zip(data.iter().zip(next_id..)) {
                        prop_assert_eq!(sent.inline.as_ref(), Some(data));
                        prop_assert!(outstanding.iter().all(|(number, _)| *number != sent.req_id));
                        outstanding.push((sent.req_id, id));
                    }
                    next_id += data.len() as u64;
                }
                Step::Abort(which) => {
                    let wr: Wr<'_, Ah, Sge> = Wr::new(99, Op::Send).signaled();
                    let to = Dest::Ud(To { ah: &Ah(6), remote_qpn: 1, remote_qkey: 2 });
                    if which % 2 == 0 {
                        let mut batch = rig.send.batch();
                        // SAFETY: no memory is named.
                        unsafe { batch.push(&wr.to(to)) };
                        drop(batch);
                    } else {
                        rig.send.wr_start();
                        // SAFETY: not a bind.
                        unsafe { rig.send.wr_begin(Head { wr_id: 99, flags: SendFlags::SIGNALED }, Op::Send) };
                        rig.send.wr_abort();
                    }
                    prop_assert_eq!(rig.device.rung(), []);
                }
                Step::Complete(which) => {
                    let mut expected = Vec::new();
                    for which in which {
                        if outstanding.is_empty() {
                            break;
                        }
                        let (number, id) = outstanding.swap_remove(usize::from(which) % outstanding.len());
                        rig.device.complete(0, &rig.device.sent(number));
                        expected.push(id);
                    }
                    let mut polled = Vec::new();
                    rig.cq.poll_each(16, |completion| polled.push(completion.wr_id())).unwrap();
                    prop_assert_eq!(polled, expected);
                    rig.device.rung();
                }
            }
        }
    }
}

#[test]
fn handles_are_the_devices_numbers() {
    let ah: RawAh<Ah> = handle(Ah(0xffff));
    let sent = seen(Shape::default(), send_config(), to(&ah, Wr::new(1, Op::Send))).unwrap();
    assert_eq!(sent.ah, 0xffff);
}
