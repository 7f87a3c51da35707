// SPDX-License-Identifier: MIT OR Apache-2.0
//! Invalid receives that the tables in docs/src/reference/semantics.md do not list, in every state.

use super::semantics::{STATES, reported};
use super::*;
use crate::testing::{FakeBell, recv_queue};
use core::ptr::null;
use uverbs_core::attr::QpState;
use uverbs_core::provider::{PostError, RecvBatch as _, RecvQueue as _};
use uverbs_core::wr::RecvWr;

#[test]
fn receives_report_the_error_of_state_or_wr() {
    let five = [sge(0, 1, 1); 5];
    let large = [sge(0, 1 << 31, 1)];
    type Make<'a> = &'a dyn Fn() -> RecvWr;
    let make = |sges: &[Sge]| RecvWr { sg_list: sges.as_ptr(), num_sge: sges.len() as i32, ..RecvWr::new(7) };
    let cases: [(&str, Result<(), PostError>, Make<'_>); 6] = [
        ("valid", Ok(()), &|| make(&five[..4])),
        ("empty", Ok(()), &|| RecvWr::new(7)),
        ("too many entries", Err(PostError::TooManySge), &|| make(&five)),
        ("a negative number", Err(PostError::TooManySge), &|| RecvWr { num_sge: i32::MIN, ..make(&five) }),
        ("NULL entries", Err(PostError::InvalidArgument), &|| RecvWr { num_sge: 1, ..RecvWr::new(7) }),
        ("2^31 bytes", Err(PostError::InvalidLength), &|| make(&large)),
    ];
    for (name, want, case) in cases {
        for state in STATES {
            let at = format!("{name} in {state:?}");
            let (mut q, kernel, bell, shared) = recv_queue(8, 4).unwrap();
            shared.set_state(state);
            let third = RecvWr::new(9);
            let second = RecvWr { next: &raw const third, ..case() };
            let first = RecvWr { next: &raw const second, ..RecvWr::new(5) };
            // SAFETY: the list is well formed; the simulated kernel does not access the memory that is named.
            let got = reported(unsafe { q.post_recv(&raw const first) });
            let posted = match want {
                _ if state == QpState::RESET => {
                    assert_eq!(got, Err((PostError::BadState, &raw const first)), "{at}");
                    0
                }
                Ok(()) => {
                    assert_eq!(got, Ok(()), "{at}");
                    3
                }
                Err(error) => {
                    assert_eq!(got, Err((error, &raw const second)), "{at}");
                    1
                }
            };
            assert_eq!(kernel.producer(), posted, "{at}");
            assert_eq!(bell.flushes(), u32::from(state == QpState::ERR), "{at}");
        }
    }
    for state in STATES {
        let (mut q, kernel, _, shared) = recv_queue(8, 4).unwrap();
        shared.set_state(state);
        for (sges, error) in [(&five[..], PostError::TooManySge), (&large[..], PostError::InvalidLength)] {
            let mut batch = q.batch();
            // SAFETY: the simulated kernel does not access the memory that is named.
            unsafe {
                batch.push(1, &[]);
                batch.push(2, sges);
                batch.push(3, &[]);
            }
            let want = if state == QpState::RESET { PostError::BadState } else { error };
            assert_eq!(batch.complete(), Err(want));
        }
        assert_eq!(kernel.producer(), 0);
    }
}

#[test]
fn a_null_list_is_an_error_without_a_bad_wr() {
    for state in STATES {
        let (mut q, _, _, shared) = recv_queue(4, 1).unwrap();
        shared.set_state(state);
        // SAFETY: NULL is allowed.
        let got = reported(unsafe { q.post_recv(null()) });
        assert_eq!(got, Err((PostError::NullList, null())));
    }
}

#[test]
fn a_shared_receive_queue_has_no_state_and_never_flushes() {
    let (ring, kernel) = crate::testing::ring(6, 4, 16);
    let bell = FakeBell::default();
    let mut q = crate::RecvQueue::new_shared(ring, 1, bell.clone()).unwrap();
    for id in 0..3 {
        // SAFETY: the receive has no entries, so it names no memory.
        unsafe { q.post(id, &[]) }.unwrap();
    }
    // SAFETY: the receive has no entries, so it names no memory.
    assert_eq!(unsafe { q.post(3, &[]) }, Err(PostError::QueueFull));
    assert_eq!((kernel.producer(), bell.flushes()), (3, 0));
}
