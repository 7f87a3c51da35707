// SPDX-License-Identifier: MIT OR Apache-2.0
//! Invalid sends that the tables in docs/src/reference/semantics.md do not list. (`tests/semantics` checks the rows of the
//! tables over heap rings.)

use super::*;
use crate::testing::{FakeBell, KernelSide, ah, decode_send, send_queue};
use uverbs_core::provider::op::FlushArgs;
use uverbs_core::provider::{
    BadWr, DcTarget, Dest, Inline, Op, PostError, RemoteAddr, SendBatch as _, SendQueue as _, Wr,
    WrBuilder as _,
};
use uverbs_core::wr::{SendWr, WrOpcode};
use uverbs_soft::testing::begin;

type Queue = crate::SendQueue<FakeBell>;

const AT: RemoteAddr = RemoteAddr { addr: 0x1000, rkey: 5 };

fn new_queue() -> (Queue, KernelSide, FakeBell) {
    let (queue, kernel, bell, _) = send_queue(8, &config(QpType::Rc)).unwrap();
    (queue, kernel, bell)
}

/// Posts a list. The result is in a form that can be compared.
fn post_list(q: &mut Queue, list: *const SendWr) -> Result<(), (PostError, *const SendWr)> {
    // SAFETY: all lists of the tests are NULL or well formed; the simulated kernel does not access the memory that is named.
    unsafe { q.post_send(list) }.map_err(|BadWr { error, wr }| (error, wr))
}

fn ids(kernel: &KernelSide) -> Vec<u64> {
    core::iter::from_fn(|| kernel.consume()).map(|b| decode_send(&b, false).wr_id).collect()
}

/// The WRs before an invalid one are posted, and the doorbell is rung once.
#[test]
fn lists_end_at_an_invalid_local_invalidation_and_at_an_opcode_above_31() {
    let sges = [sge(0x1000, 8, 1); 5];
    let many = SendWr { sg_list: sges.as_ptr(), num_sge: 5, ..SendWr::new(7, WrOpcode::LOCAL_INV) };
    // The bit of the opcode would wrap to that of SEND.
    let wraps = SendWr::new(7, WrOpcode(34));
    for (invalid, error) in [(many, PostError::TooManySge), (wraps, PostError::IllegalOpcode)] {
        let (mut q, kernel, bell) = new_queue();
        let first = SendWr { next: &raw const invalid, ..SendWr::new(5, WrOpcode::SEND) };
        assert_eq!(post_list(&mut q, &raw const first), Err((error, &raw const invalid)));
        assert_eq!((ids(&kernel), bell.rings()), (vec![5], 1));
    }
}

/// The peer of a connected QP would get what is meant for a target.
#[test]
fn a_dynamically_connected_target_is_refused() {
    let (mut q, kernel, _) = new_queue();
    let ah = ah(1, 1);
    let to = Dest::Dc(DcTarget { ah: &ah, remote_dctn: 3, remote_dc_key: 4 });
    // SAFETY: the WR has no data, so it names no memory.
    let refused = unsafe { q.post(&Wr::new(7, Op::Send).to(to)) };
    assert_eq!((refused, ids(&kernel)), (Err(PostError::InvalidArgument), vec![]));
}

#[test]
fn atomic_writes_are_aligned_and_take_no_setter() {
    let odd = Op::AtomicWrite(RemoteAddr { addr: 0x1004, rkey: 5 }, [0; 8]);
    let (mut q, kernel, bell) = new_queue();
    let mut batch = q.batch();
    // SAFETY: the WR has no data, so it names no memory.
    unsafe { batch.push(&Wr::new(7, odd)) };
    assert_eq!(batch.complete(), Err(PostError::Misaligned));
    q.wr_start();
    begin(&mut q, 7, odd);
    assert_eq!(q.wr_complete(), Err(PostError::Misaligned));
    q.wr_start();
    begin(&mut q, 7, Op::AtomicWrite(AT, [0; 8]));
    q.wr_set_inline(Inline::Bytes(&[]));
    assert_eq!(q.wr_complete(), Err(PostError::OrphanSetter));
    assert_eq!((kernel.producer(), bell.rings()), (0, 0));
}

#[test]
fn flush_and_atomic_write_need_the_devices_support() {
    let mut c = config(QpType::Rc);
    c.extensions = Extensions::default();
    let (mut q, kernel, _, _) = send_queue(4, &c).unwrap();
    let flush = Op::Flush(AT, FlushArgs { length: 1, placement: 1, level: 0 });
    // SAFETY: the WR has no data, so it names no memory.
    assert_eq!(unsafe { q.post(&Wr::new(7, flush)) }, Err(PostError::IllegalOpcode));
    let write = Op::AtomicWrite(AT, [0; 8]);
    // SAFETY: the WR has no data, so it names no memory.
    assert_eq!(unsafe { q.post(&Wr::new(7, write)) }, Err(PostError::IllegalOpcode));
    q.wr_start();
    begin(&mut q, 7, flush);
    assert_eq!(q.wr_complete(), Err(PostError::IllegalOpcode));
    assert_eq!(kernel.producer(), 0);
}
