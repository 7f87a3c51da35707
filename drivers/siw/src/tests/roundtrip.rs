// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random WRs through all faces: the decoder reads the request from the element.

use super::{config, sge};
use crate::Ah;
use crate::testing::{DecodedSend, decode_recv, decode_send, recv_queue, send_queue};
use proptest::prelude::*;
use uverbs_core::attr::QpState;
use uverbs_core::provider::{Op, RemoteAddr, Wr};
use uverbs_core::provider::{PostError, RecvQueue as _};
use uverbs_core::wr::{RawAh, SendFlags};
use uverbs_testkit::{Face, OwnedData, OwnedDest, OwnedRequest, post};

type Request = OwnedRequest<'static, RawAh<Ah>>;
type OneRequest<'a> = Wr<'a, RawAh<Ah>>;

const SLOTS: u32 = 8;

fn remote() -> impl Strategy<Value = RemoteAddr> {
    any::<(u64, u32)>().prop_map(|(addr, rkey)| RemoteAddr { addr, rkey })
}

fn sges(max: usize) -> impl Strategy<Value = OwnedData> {
    let sge = (any::<u64>(), 0_u32..0x1000_0000, any::<u32>()).prop_map(|(a, l, k)| sge(a, l, k));
    prop::collection::vec(sge, 0..=max).prop_map(OwnedData::Sges)
}

fn inline() -> impl Strategy<Value = OwnedData> {
    prop::collection::vec(prop::collection::vec(any::<u8>(), 0..=16), 0..=5).prop_map(OwnedData::Inline)
}

fn op_and_data() -> impl Strategy<Value = (Op<'static>, OwnedData)> {
    prop_oneof![
        (Just(Op::Send), prop_oneof![sges(6), inline()]),
        (remote().prop_map(Op::Write), prop_oneof![sges(6), inline()]),
        (any::<u32>().prop_map(Op::SendInv), sges(6)),
        (remote().prop_map(Op::Read), sges(1)),
    ]
}

fn request() -> impl Strategy<Value = Request> {
    (any::<u64>(), 0_u32..8, op_and_data()).prop_map(|(wr_id, flags, (op, data))| Request {
        wr_id,
        flags: SendFlags::from_bits_retain(flags),
        op,
        data,
        to: OwnedDest::Peer,
    })
}

/// The expected element.
fn expected(request: &Request) -> DecodedSend {
    let at = |r: RemoteAddr| (r.rkey, r.addr);
    let (opcode, (rkey, raddr)) = match request.op {
        Op::Write(r) => (0, at(r)),
        Op::Read(r) => (1, at(r)),
        Op::SendInv(key) => (5, (key, 0)),
        _ => (3, (0, 0)),
    };
    let (mut sges, inline) = match &request.data {
        OwnedData::Inline(bufs) => (vec![], Some(bufs.concat())),
        OwnedData::Sges(sges) => {
            (sges.iter().filter(|s| s.length != 0).map(|s| (s.addr, s.length, s.lkey)).collect(), None)
        }
        _ => (vec![], None),
    };
    if opcode == 1 && sges.is_empty() {
        sges = vec![(0, 0, 0)];
    }
    // Valid; inline; FENCE (1) to 16, but not of a read; SIGNALED (2) to 4; SOLICITED (4) to 8.
    let given = request.flags.bits() as u16;
    let fence = if opcode == 1 { 0 } else { (given & 1) << 4 };
    let flags = 1 | (u16::from(inline.is_some()) << 1) | (given & 6) << 1 | fence;
    DecodedSend { id: request.wr_id, flags, opcode, rkey, raddr, sges, inline: inline.unwrap_or_default() }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_face_writes_the_request(
        requests in prop::collection::vec(request(), 1..=SLOTS as usize),
        dirt in any::<u8>(),
    ) {
        for face in Face::ALL {
            let (mut q, kernel, bell, _) = send_queue(SLOTS, &config(), QpState::RTS);
            kernel.fill(dirt);
            OwnedRequest::with_wrs(&requests, |all| {
                // SAFETY: the simulated kernel does not access the memory that is named.
                unsafe { post(&mut q, face, all) }
            })
            .unwrap();
            for request in &requests {
                let element = decode_send(&kernel.consume().unwrap());
                prop_assert_eq!(element, expected(request), "{:?}", face);
            }
            prop_assert!(kernel.consume().is_none());
            prop_assert!(bell.rings() != 0);
        }
    }

    #[test]
    fn a_receive_has_its_entries(
        entries in prop::collection::vec((any::<u64>(), 0_u32..100, any::<u32>()), 0..=6),
        id in any::<u64>(),
        dirt in any::<u8>(),
    ) {
        let (mut q, kernel, _) = recv_queue(4, 6);
        kernel.fill(dirt);
        let sges: Vec<_> = entries.iter().map(|(a, l, k)| sge(*a, *l, *k)).collect();
        // SAFETY: the simulated kernel does not access the memory that is named.
        unsafe { q.post(id, &sges) }.unwrap();
        let kept: Vec<_> = entries.into_iter().filter(|(_, length, _)| *length != 0).collect();
        prop_assert_eq!(decode_recv(&kernel.consume().unwrap()), (id, 1, kept));
    }
}

fn refused(request: OneRequest<'_>, config: &crate::SendConfig) -> Vec<PostError> {
    let post = |face| {
        let (mut q, kernel, bell, _) = send_queue(4, config, QpState::RTS);
        // SAFETY: nothing is posted.
        let error = unsafe { post(&mut q, face, &[request]) }.unwrap_err().error.unwrap();
        assert!(kernel.consume().is_none());
        assert_eq!(bell.rings(), 0);
        error
    };
    Face::ALL.into_iter().map(post).collect()
}

#[test]
fn what_the_device_lacks_is_refused_on_every_face() {
    let to = RemoteAddr { addr: 8, rkey: 1 };
    let (one, two) = ([sge(8, 8, 1)], [sge(8, 8, 1), sge(16, 8, 1)]);
    for op in [Op::SendImm(1), Op::WriteImm(to, 1), Op::CmpSwp(to, 1, 2), Op::FetchAdd(to, 1)] {
        let errors = refused(OneRequest::new(1, op).sges(&one), &config());
        assert!(errors.iter().all(|e| *e == PostError::IllegalOpcode), "{op:?}: {errors:?}");
    }
    let errors = refused(OneRequest::new(1, Op::LocalInv(1)), &config());
    assert!(errors.iter().all(|e| *e == PostError::IllegalOpcode), "{errors:?}");
    // The kernel would end the connection.
    let errors = refused(OneRequest::new(1, Op::Read(to)).sges(&two), &config());
    assert!(errors.iter().all(|e| *e == PostError::TooManySge), "{errors:?}");
    let errors = refused(OneRequest::new(1, Op::SendInv(1)).inline(b"x"), &config());
    assert!(errors.iter().all(|e| *e == PostError::Unsupported), "{errors:?}");
    let errors = refused(OneRequest::new(1, Op::Send).inline(&[0; 81]), &config());
    assert!(errors.iter().all(|e| *e == PostError::InlineTooLong), "{errors:?}");
    let long = [sge(0, 1 << 30, 1); 2];
    let errors = refused(OneRequest::new(1, Op::Send).sges(&long), &config());
    assert!(errors.iter().all(|e| *e == PostError::InvalidLength), "{errors:?}");
    let checksums = OneRequest::new(1, Op::Send).sges(&one).flags(SendFlags::IP_CSUM);
    let errors = refused(checksums, &config());
    assert!(errors.iter().all(|e| *e == PostError::IllegalFlag), "{errors:?}");
}

#[test]
fn sq_sig_all_signals_every_request() {
    for face in Face::ALL {
        let config = crate::SendConfig { sq_sig_all: true, ..config() };
        let (mut q, kernel, _, _) = send_queue(4, &config, QpState::RTS);
        // SAFETY: inline data are copied by the call.
        unsafe { post(&mut q, face, &[OneRequest::new(1, Op::Send).inline(b"x")]) }.unwrap();
        assert_eq!(decode_send(&kernel.consume().unwrap()).flags, 1 | 2 | 4);
    }
}
