// SPDX-License-Identifier: MIT OR Apache-2.0
//! The errors of each kind of invalid WR on each interface; and that an error changes nothing.
#![expect(unsafe_code)]
// UNSAFETY: posts WRs; no device reads the memory that they name.

use crate::testing::{BLUE_FLAME, Sends, send_config};
use crate::{Ah, Remote, Sge};
use uverbs_core::attr::{QpState, QpType, SendOpsFlags};
use uverbs_core::provider::op::{FlushArgs, MwBind, TsoArgs};
use uverbs_core::provider::wire::MAX_SGE_LENGTH;
use uverbs_core::provider::{
    DcTarget, Dest, Head, Inline, Op, PostError, RemoteAddr, SendBatch as _, SendQueue as _, To,
    WireRemote as _, WireSge as _, Wr, WrBuilder as _,
};
use uverbs_core::wr::{RawAh, SendFlags};
use uverbs_mlx5_hw::wqe::{Av, DataSeg};
use uverbs_testkit::{self as testkit, Face, Refused};
use zerocopy::IntoBytes as _;

type Request<'a> = Wr<'a, RawAh<Ah>>;

fn sends(qp_type: QpType) -> Sends {
    Sends::new(&send_config(qp_type), 64, BLUE_FLAME)
}

fn remote() -> Remote {
    Remote::new(0x1000, 1)
}

fn sge(length: u32) -> Sge {
    Sge::new(0x2000, length, 3).unwrap()
}

/// The same entry in C's form.
fn raw_sge(length: u32) -> uverbs_core::wr::Sge {
    uverbs_core::wr::Sge { addr: 0x2000, length, lkey: 3 }
}

/// The results of a request on each interface.
fn results(s: &mut Sends, request: Request<'_>) -> [Result<(), PostError>; 4] {
    // SAFETY: there is no device that would access the memory.
    let post = |face| unsafe { testkit::post(&mut s.queue, face, &[request]) };
    Face::ALL.map(post).map(|result| result.map_err(|refused| refused.error.unwrap()))
}

fn ah() -> Ah {
    Ah::new(&Av::default())
}

/// Posts an invalid WR in a batch, followed by a valid one, and by `post`: both report the same error, and neither rings
/// the doorbell.
fn refused(s: &mut Sends, wr: Wr<'_, Ah, Sge, Remote>) -> PostError {
    let before = (s.queue.published(), s.posted());
    let mut batch = s.queue.batch();
    // SAFETY: there is no device that would read the memory.
    unsafe { batch.push(&wr) };
    // SAFETY: there is no device that would read the memory; after an error, this push is ignored.
    unsafe { batch.push(&Wr::new(0, Op::Send).sges(&[sge(9)])) };
    let error = batch.complete().unwrap_err();
    // SAFETY: there is no device that would read the memory.
    assert_eq!(unsafe { s.queue.post(&wr) }, Err(error));
    assert_eq!((s.queue.published(), s.posted()), before);
    assert!(s.bell.take().is_empty());
    error
}

#[test]
fn batches_and_single_posts_report_the_same_errors() {
    use PostError as E;
    let mut s = sends(QpType::Rc);
    let five = [sge(8); 5];
    assert_eq!(refused(&mut s, Wr::new(1, Op::Send).sges(&five)), E::TooManySge);
    assert_eq!(refused(&mut s, Wr::new(1, Op::Send).inline(&[0; 65])), E::InlineTooLong);
    assert_eq!(refused(&mut s, Wr::new(1, Op::Read(remote())).inline(&[0; 8])), E::IllegalFlag);
    assert_eq!(
        refused(&mut s, Wr::new(1, Op::Send).flags(SendFlags::IP_CSUM).sges(&[sge(8)])),
        E::IllegalFlag
    );
    let odd = SendFlags::from_bits_retain(1 << 9);
    assert_eq!(refused(&mut s, Wr::new(1, Op::Send).flags(odd).sges(&[sge(8)])), E::IllegalFlag);
    assert_eq!(refused(&mut s, Wr::new(1, Op::Send).sges(&[sge(MAX_SGE_LENGTH)])), E::InvalidLength);
    let both = [sge(MAX_SGE_LENGTH - 1), sge(1)];
    assert_eq!(refused(&mut s, Wr::new(1, Op::Send).sges(&both)), E::InvalidLength);
    let misaligned = Op::CmpSwp(Remote::new(0x1004, 1), 1, 2);
    assert_eq!(refused(&mut s, Wr::new(1, misaligned).sges(&[sge(8)])), E::Misaligned);
    assert_eq!(refused(&mut s, Wr::new(1, Op::FetchAdd(remote(), 1)).sges(&[sge(7)])), E::InvalidLength);
    let flush = Op::Flush(remote(), FlushArgs { length: 1, placement: 1, level: 0 });
    assert_eq!(refused(&mut s, Wr::new(1, flush)), E::IllegalOpcode);
    let tso = Op::Tso(TsoArgs { header: &[0; 20], mss: 100 });
    assert_eq!(refused(&mut s, Wr::new(1, tso).sges(&[sge(8)])), E::IllegalOpcode);
    assert_eq!(refused(&mut s, Wr::new(1, Op::Send).to(Dest::Xrc(1)).sges(&[sge(8)])), E::InvalidArgument);
    let bind = |length, mw_type| {
        Op::BindMw(MwBind { mw_rkey: 1, mw_type, rkey: 2, mr_lkey: 3, addr: 0, length, access: 0 })
    };
    assert_eq!(refused(&mut s, Wr::new(1, bind((1 << 31) + 1, 2))), E::Unsupported);
    assert_eq!(refused(&mut s, Wr::new(1, bind(8, 3))), E::InvalidArgument);
    assert_eq!(refused(&mut s, Wr::new(1, bind(8, 2)).sges(&[sge(8)])), E::InvalidArgument);
    let a = ah();
    let to = Dest::Ud(To { ah: &a, remote_qpn: 1, remote_qkey: 1 });
    assert_eq!(refused(&mut s, Wr::new(1, Op::Send).to(to).sges(&[sge(8)])), E::InvalidArgument);

    let mut s = sends(QpType::Ud);
    assert_eq!(refused(&mut s, Wr::new(1, Op::Send).sges(&[sge(8)])), E::InvalidArgument);
    assert_eq!(refused(&mut s, Wr::new(1, Op::Read(remote())).to(to).sges(&[sge(8)])), E::IllegalOpcode);
    let mut s = sends(QpType::RawPacket);
    assert_eq!(refused(&mut s, Wr::new(1, Op::Send)), E::InvalidArgument);
    let short = Op::Tso(TsoArgs { header: &[0; 13], mss: 100 });
    assert_eq!(refused(&mut s, Wr::new(1, short).sges(&[sge(8)])), E::InvalidArgument);
    assert_eq!(refused(&mut s, Wr::new(1, tso).sges(&[sge((1 << 18) + 1)])), E::InvalidLength);
    // The header is too long for the QP, and needs more room than this short queue has; the error is not `QueueFull`.
    let mut s = Sends::new(&send_config(QpType::RawPacket), 4, BLUE_FLAME);
    let long = Op::Tso(TsoArgs { header: &[0; 255], mss: 100 });
    assert_eq!(refused(&mut s, Wr::new(1, long).sges(&[sge(8)])), E::InvalidArgument);
    s.queue.wr_start();
    // SAFETY: the operation is not a bind.
    unsafe { s.queue.wr_begin(Head::default(), long) };
    assert_eq!(s.queue.wr_complete(), Err(E::InvalidArgument));

    let mut config = send_config(QpType::Rc);
    config.atomics = false;
    let mut s = Sends::new(&config, 64, BLUE_FLAME);
    assert_eq!(refused(&mut s, Wr::new(1, Op::FetchAdd(remote(), 1)).sges(&[sge(8)])), E::Unsupported);
}

#[test]
fn sends_are_refused_before_rts() {
    let mut s = sends(QpType::Rc);
    for state in [QpState::RESET, QpState::INIT, QpState::RTR] {
        s.qp.set_state(state);
        let error = refused(&mut s, Wr::new(1, Op::Send).sges(&[sge(8)]));
        assert_eq!(error, PostError::BadState);
    }
    for state in [QpState::RTS, QpState::SQD, QpState::SQE, QpState::ERR] {
        s.qp.set_state(state);
        // SAFETY: there is no device that would read the memory.
        assert_eq!(unsafe { s.queue.post(&Wr::new(0, Op::Send).sges(&[sge(8)])) }, Ok(()));
    }
    // A batch from before a reset is not published after it.
    let mut batch = s.queue.batch();
    // SAFETY: there is no device that would read the memory.
    unsafe { batch.push(&Wr::new(0, Op::Send).sges(&[sge(8)])) };
    s.qp.set_state(QpState::RESET);
    s.qp.set_state(QpState::RTS);
    assert_eq!(batch.complete(), Err(PostError::BadState));
}

/// Runs a session and returns its result; checks that an error changes nothing.
fn session(s: &mut Sends, f: impl FnOnce(&mut crate::SendQueue)) -> Result<(), PostError> {
    let before = s.queue.published();
    s.queue.wr_start();
    f(&mut s.queue);
    let result = s.queue.wr_complete();
    assert_eq!(s.bell.take().is_empty(), result.is_err());
    if result.is_err() {
        assert_eq!(s.queue.published(), before);
    }
    assert!(!s.queue.wr_is_open());
    result
}

fn set(q: &mut crate::SendQueue) {
    // SAFETY: there is no device that would read the memory.
    unsafe { q.wr_set_sges(&[raw_sge(8)]) };
}

/// The tables of semantics (`tests/semantics`) have the other errors of sessions.
#[test]
fn the_first_error_of_a_session_is_reported() {
    use PostError as E;
    let head = Head::default();
    let mut s = sends(QpType::Rc);
    let two = |q: &mut crate::SendQueue| {
        set(q);
        // SAFETY: the operation is not a bind.
        unsafe { q.wr_begin(head, Op::Send) };
        q.wr_set_inline(Inline::Bytes(&[0; 999]));
        q.wr_latch(E::InvalidArgument);
    };
    assert_eq!(session(&mut s, two), Err(E::OrphanSetter));
    // During a session no other interface posts, and the session continues.
    s.queue.wr_start();
    // SAFETY: there is no device that would read the memory.
    let inside = unsafe { s.queue.post(&Wr::new(0, Op::Send).sges(&[sge(8)])) };
    assert_eq!(inside, Err(E::SessionOpen));
    // An open session is reported even if the list is NULL.
    // SAFETY: NULL is allowed as the list.
    let null = unsafe { s.queue.post_send(core::ptr::null()) };
    assert_eq!(null.map_err(|bad| bad.error), Err(E::SessionOpen));
    // SAFETY: the operation is not a bind.
    unsafe { s.queue.wr_begin(head, Op::Send) };
    set(&mut s.queue);
    assert_eq!(s.queue.wr_complete(), Ok(()));
}

#[test]
fn address_and_data_setters_may_be_called_in_any_order() {
    let entries = [raw_sge(8)];
    let written = |face, wr_id| {
        let (mut s, ah) = (sends(QpType::Ud), testkit::handle(ah()));
        let to = Dest::Ud(To { ah: &ah, remote_qpn: 5, remote_qkey: 6 });
        let request = Request::new(wr_id, Op::Send).sges(&entries).to(to);
        // SAFETY: there is no device that would read the memory.
        unsafe { testkit::post(&mut s.queue, face, &[request]) }.unwrap();
        s.blocks(0, 2)
    };
    for face in Face::ALL {
        // The order of the setters depends on the id.
        assert_eq!(written(face, 0), written(Face::Batch, 0), "{face:?}");
        assert_eq!(written(face, 1), written(Face::Batch, 0), "{face:?}");
    }

    let (head, a) = (Head::default(), ah());
    let mut dc = sends(QpType::Driver);
    dc.queue.wr_start();
    // SAFETY: the operation is not a bind.
    unsafe { dc.queue.wr_begin(head, Op::Write(remote())) };
    dc.queue.wr_set_dc_addr(&a, 5, 0x0102_0304_0506_0708);
    set(&mut dc.queue);
    assert_eq!(dc.queue.wr_complete(), Ok(()));
    let mut typed = sends(QpType::Driver);
    let to = Dest::Dc(DcTarget { ah: &a, remote_dctn: 5, remote_dc_key: 0x0102_0304_0506_0708 });
    // SAFETY: there is no device that would read the memory.
    unsafe { typed.queue.post(&Wr::new(0, Op::Write(remote())).to(to).sges(&[sge(8)])) }.unwrap();
    assert_eq!(dc.blocks(0, 2), typed.blocks(0, 2));

    let mut xrc = sends(QpType::XrcSend);
    let before = |q: &mut crate::SendQueue| {
        q.wr_set_xrc_srqn(9);
        // SAFETY: the operation is not a bind.
        unsafe { q.wr_begin(head, Op::Send) };
    };
    assert_eq!(session(&mut xrc, before), Err(PostError::OrphanSetter));
}

/// Raw packets and segmented sends: lists and builders take the fast path, and so does the typed interface with the address
/// `Frame`; with the address `Peer` it takes the slow path.
#[test]
fn frames_are_written_alike_by_each_path() {
    let (one, two) = ([raw_sge(64)], [raw_sge(64), raw_sge(9)]);
    let (bytes, header) = ([7; 40], [5; 54]);
    let tso = |header| Op::Tso(TsoArgs { header, mss: 100 });
    let requests = [
        Request::new(1, Op::Send).sges(&one),
        Request::new(2, Op::Send).sges(&two),
        Request::new(3, Op::Send).inline(&bytes).signaled(),
        Request::new(4, tso(&header)).sges(&one),
        Request::new(5, tso(&header[..14])).sges(&two).signaled(),
        Request::new(6, tso(&header)).inline(&bytes),
    ];
    let written = |requests: &[Request<'_>], face| {
        let mut s = sends(QpType::RawPacket);
        s.fill(0xee);
        // SAFETY: there is no device that would read the memory.
        unsafe { testkit::post(&mut s.queue, face, requests) }.unwrap();
        let (blocks, wrs) = s.queue.published();
        let ids: Vec<_> = (0..blocks).map(|at| s.qp.sq.as_ref().unwrap().ring.view().head(at)).collect();
        (s.blocks(0, blocks), wrs, ids)
    };
    for face in Face::ALL {
        for request in requests {
            assert_eq!(written(&[request], face), written(&[request], Face::Batch), "{request:?} {face:?}");
        }
        assert_eq!(written(&requests, face), written(&requests, Face::Batch), "{face:?}");
    }
    let args = TsoArgs { header: &header, mss: 100 };
    let typed = |f: &dyn Fn(&mut crate::SendQueue)| {
        let mut s = sends(QpType::RawPacket);
        s.fill(0xee);
        f(&mut s.queue);
        s.blocks(0, s.queue.published().0)
    };
    // SAFETY: there is no device that would read the memory.
    let sent = typed(&|q| unsafe { q.post(&Wr::new(1, Op::Send).to(Dest::Frame).sges(&[sge(64)])) }.unwrap());
    assert_eq!(sent, written(&requests[..1], Face::Batch).0);
    // SAFETY: there is no device that would read the memory.
    let sent =
        typed(&|q| unsafe { q.post(&Wr::new(4, Op::Tso(args)).to(Dest::Frame).sges(&[sge(64)])) }.unwrap());
    assert_eq!(sent, written(&requests[3..4], Face::Batch).0);
    let mut s = sends(QpType::RawPacket);
    assert_eq!(refused(&mut s, Wr::new(1, Op::Send).to(Dest::Frame)), PostError::InvalidArgument);
}

/// A ring in which each lap is full: a single post finds the room that completions make.
#[test]
fn a_single_post_finds_the_room_of_a_small_ring() {
    let mut config = send_config(QpType::Rc);
    config.max_send_wr = 4;
    for face in [Face::List, Face::Single] {
        let mut s = Sends::new(&config, 16, BLUE_FLAME);
        let entries = [raw_sge(8)];
        for lap in 0..3_u64 {
            for i in 0..4 {
                let request = Request::new(lap * 4 + i, Op::Send).sges(&entries);
                // SAFETY: there is no device that would read the memory.
                unsafe { testkit::post(&mut s.queue, face, &[request]) }.unwrap();
            }
            let request = Request::new(99, Op::Send).sges(&entries);
            // SAFETY: there is no device that would read the memory.
            let refused = unsafe { testkit::post(&mut s.queue, face, &[request]) }.unwrap_err();
            assert_eq!(refused.error, Some(PostError::QueueFull), "{face:?}");
            assert_eq!(s.retire(s.queue.published().0 as u16 - 1), lap * 4 + 3);
        }
        // A reset closes the queue although its limit was reached.
        s.qp.set_state(QpState::RESET);
        let request = Request::new(99, Op::Send).sges(&entries);
        // SAFETY: there is no device that would read the memory.
        let refused = unsafe { testkit::post(&mut s.queue, face, &[request]) }.unwrap_err();
        assert_eq!(refused.error, Some(PostError::BadState), "{face:?}");
    }
}

/// The WQEs between local operations, which have fences, are the same on each interface, also across posts.
#[test]
fn local_operations_are_chained_alike_by_each_interface() {
    let entries = [raw_sge(8)];
    let bind =
        MwBind { mw_rkey: 0x100, mw_type: 2, rkey: 0x103, mr_lkey: 3, addr: 0x2000, length: 64, access: 6 };
    let requests = [
        Request::new(1, Op::LocalInv(5)),
        Request::new(2, Op::LocalInv(6)).signaled(),
        Request::new(3, Op::BindMw(bind)),
        Request::new(4, Op::Send).sges(&entries),
        Request::new(5, Op::LocalInv(7)).flags(SendFlags::FENCE),
        Request::new(6, Op::BindMw(MwBind { length: 0, ..bind })).flags(SendFlags::FENCE),
    ];
    let written = |face, at_once: usize| {
        let mut s = sends(QpType::Rc);
        s.fill(0xee);
        for part in requests.chunks(at_once) {
            // SAFETY: there is no device that would read the memory.
            unsafe { testkit::post(&mut s.queue, face, part) }.unwrap();
        }
        // A dropped batch leaves no fence.
        let mut batch = s.queue.batch();
        // SAFETY: the operation names no memory.
        unsafe { batch.push(&Wr::new(0, Op::LocalInv(1))) };
        drop(batch);
        // SAFETY: there is no device that would read the memory.
        unsafe { testkit::post(&mut s.queue, face, &requests[3..5]) }.unwrap();
        let blocks = s.queue.published().0;
        let flags: Vec<_> = (0..blocks).map(|at| s.blocks(at, 1)[11]).collect();
        (s.blocks(0, blocks), flags)
    };
    let expected = written(Face::Batch, requests.len());
    // Invalidations have 2 blocks, a bind has 3, an unbind 2. After a local operation: a small fence (0x20), unless the WR
    // has a fence (0x80).
    let flags = &expected.1;
    assert_eq!(
        [flags[0], flags[2], flags[4], flags[7], flags[8], flags[10], flags[12]],
        [0, 0x28, 0x20, 0x20, 0x80, 0x80, 0x20]
    );
    for face in Face::ALL {
        for at_once in [1, 2, 3, requests.len()] {
            assert_eq!(written(face, at_once), expected, "{face:?} {at_once}");
        }
    }
}

#[test]
fn builders_without_their_flag_are_refused() {
    let mut config = send_config(QpType::Rc);
    config.send_ops_flags = SendOpsFlags::SEND;
    let mut s = Sends::new(&config, 64, BLUE_FLAME);
    let write = |q: &mut crate::SendQueue| {
        // SAFETY: the operation is not a bind.
        unsafe { q.wr_begin(Head::default(), Op::Write(remote())) };
        set(q);
    };
    assert_eq!(session(&mut s, write), Err(PostError::IllegalOpcode));
    // SAFETY: there is no device that would read the memory.
    let typed = unsafe { s.queue.post(&Wr::new(0, Op::Write(remote())).sges(&[sge(8)])) };
    assert_eq!(typed, Ok(()));
}

/// A WR that counts as several because its WQE is long, and that is refused: no room is taken.
#[test]
fn a_long_wr_that_is_refused_takes_no_room() {
    let mut s = Sends::new(&send_config(QpType::Rc), 16, BLUE_FLAME);
    let (good, long) = ([raw_sge(8)], [raw_sge(1 << 30); 4]);
    let (good, long) = (Request::new(1, Op::Send).sges(&good), Request::new(2, Op::Send).sges(&long));
    for (list, published) in [(&[long][..], (0, 0)), (&[good, long], (1, 1))] {
        let refused = Refused::new(PostError::InvalidLength, Some(list.len() - 1));
        // SAFETY: there is no device that would read the memory.
        let posted = unsafe { testkit::post(&mut s.queue, Face::List, list) };
        assert_eq!(posted, Err(refused));
        assert_eq!((s.queue.published(), s.bell.take().len()), (published, list.len() - 1));
    }
    let room = s.queue.max_send_wr() - 1;
    for i in 0..=room {
        // SAFETY: there is no device that would read the memory.
        let posted = unsafe { s.queue.post(&Wr::new(0, Op::Send).sges(&[sge(8)])) };
        assert_eq!(posted.is_ok(), i < room, "{i}");
    }
}

/// The control segment has six bits for the number of units.
#[test]
fn a_wqe_has_at_most_63_units() {
    let mut config = send_config(QpType::Rc);
    (config.max_send_wr, config.max_send_sge) = (2, 63);
    for (entries, expected, published) in
        [(62, Ok(()), (16, 2)), (63, Err(PostError::InvalidArgument), (0, 0))]
    {
        let mut s = Sends::new(&config, 16, BLUE_FLAME);
        // SAFETY: there is no device that would read the memory.
        let posted = unsafe { s.queue.post(&Wr::new(0, Op::Send).sges(&vec![sge(8); entries][..])) };
        assert_eq!((posted, s.queue.published()), (expected, published), "{entries} entries");
    }
}

/// The device writes an atomic's 8 bytes to the first entry that is not empty, which must have room for them.
#[test]
fn the_first_entry_of_an_atomic_must_have_eight_bytes() {
    let atomic = |lengths: &[u32]| {
        let entries: Vec<_> = lengths.iter().copied().map(raw_sge).collect();
        let remote = RemoteAddr { addr: 0x1000, rkey: 1 };
        let request = Request::new(1, Op::FetchAdd(remote, 1)).sges(&entries);
        let results = results(&mut sends(QpType::Rc), request);
        assert!(results.iter().all(|result| *result == results[0]), "{lengths:?}: {results:?}");
        results[0]
    };
    let short = Err(PostError::InvalidLength);
    for (lengths, expected) in [
        (&[8][..], Ok(())),
        (&[9], Ok(())),
        (&[0, 8], Ok(())),
        (&[8, 4], Ok(())),
        (&[7], short),
        (&[4, 4], short),
        (&[0, 4, 8], short),
        (&[0], short),
        (&[], short),
    ] {
        assert_eq!(atomic(lengths), expected, "{lengths:?}");
    }
}

/// The longest message has 2^31 bytes; its entry has the count 0. A device's own limit may be lower.
#[test]
fn the_longest_message_has_the_count_0() {
    let results = |max_msg_sz, lengths: &[u32]| {
        let mut config = send_config(QpType::Rc);
        config.max_msg_sz = max_msg_sz;
        let mut s = Sends::new(&config, 64, BLUE_FLAME);
        let entries: Vec<_> = lengths.iter().copied().map(raw_sge).collect();
        let results = results(&mut s, Request::new(1, Op::Send).sges(&entries));
        let written = DataSeg::new(0, 3, 0x2000);
        (0..s.queue.published().0).for_each(|at| assert_eq!(s.blocks(at, 1)[16..32], *written.as_bytes()));
        results
    };
    let too_long = [Err(PostError::InvalidLength); 4];
    assert_eq!(results(1 << 31, &[1 << 31]), [Ok(()); 4]);
    assert_eq!(results(1 << 32, &[1 << 31]), [Ok(()); 4]);
    assert_eq!(results(1 << 30, &[1 << 31]), too_long);
    assert_eq!(results(1 << 32, &[1 << 31, 1]), too_long);
}

/// A batch that was dropped left WQEs and their records in slots that are then inner blocks of a longer WQE. A completion
/// that names such a block is not that of an outstanding WR.
#[test]
fn no_wr_is_outstanding_inside_a_wqe() {
    let mut config = send_config(QpType::Rc);
    config.max_inline_data = 160;
    let mut s = Sends::new(&config, 64, BLUE_FLAME);
    let mut batch = s.queue.batch();
    for _ in 0..8 {
        // SAFETY: the batch is dropped, so nothing is posted.
        unsafe { batch.push(&Wr::new(0, Op::Read(remote())).sges(&[sge(8)])) };
    }
    drop(batch);
    let long = [7; 160];
    // SAFETY: inline data are copied by the call, so no memory is used later.
    unsafe { s.queue.post(&Wr::new(0, Op::Write(remote())).inline(&long)) }.unwrap();
    // SAFETY: inline data are copied by the call, so no memory is used later.
    unsafe { s.queue.post(&Wr::new(0, Op::Write(remote())).inline(&long[..32])) }.unwrap();
    // The first WQE has 4 blocks, the second one has 2.
    assert_eq!(s.queue.published(), (6, 2));
    let sq = s.qp.sq.as_ref().unwrap();
    let outstanding: Vec<_> = (0..8).filter(|block| sq.is_outstanding(*block)).collect();
    assert_eq!(outstanding, [0, 4]);
}
