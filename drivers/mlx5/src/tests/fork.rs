// SPDX-License-Identifier: MIT OR Apache-2.0
//! A child of fork(2) has copies of its parent's queues, and the same doorbells. No call in the child may use them.
#![expect(unsafe_code)]
// UNSAFETY: calls fork(2), and posts WRs that name no memory.

use crate::cq::{CompletionQueue, CqConfig, CqRing, CqeVersion};
use crate::doorbell::ArmRegister;
use crate::memory::QueueBuf;
use crate::memory::dbrec::DbRecPages;
use crate::testing::{self, BLUE_FLAME, Receives, Sends, SharedReceives, heap_page, send_config};
use crate::{RecvConfig, Remote};
use std::sync::Arc;
use uverbs_core::attr::{QpType, WcExFlags};
use uverbs_core::provider::{
    CompletionQueue as _, Head, Op, PollError, PostError, RecvBatch as _, RecvQueue as _, SendBatch as _,
    SendQueue as _, WireRemote as _, Wr, WrBuilder as _,
};
use uverbs_core::wr::SendFlags;

fn completions() -> CompletionQueue {
    let ring = CqRing::new(QueueBuf::new(4096).unwrap(), 64, 64).unwrap();
    ring.clear();
    let (queue, _) = CompletionQueue::new(CqConfig {
        cqn: 1,
        ring,
        dbrec: DbRecPages::default().alloc().unwrap(),
        access: testing::cq_access(),
        arm: Arc::new(ArmRegister::new(&heap_page(), 0).unwrap()),
        version: CqeVersion::V1,
        dump_fill_mkey: 0,
        fields: WcExFlags::STANDARD,
        clock: None,
        mkeys: Default::default(),
    });
    queue
}

/// Runs `f` in a child and returns how many of its results were true. `f` must not allocate.
fn in_a_child(f: impl FnOnce() -> [bool; 10]) -> i32 {
    // SAFETY: the child calls only `f`, which takes no lock and does not allocate, and `_exit`.
    match unsafe { libc::fork() } {
        0 => {
            let right = f().into_iter().filter(|right| *right).count();
            // SAFETY: `_exit` ends the child without running the parent's exit handlers.
            unsafe { libc::_exit(right as i32) }
        }
        -1 => panic!("fork failed"),
        child => {
            let mut status = 0;
            // SAFETY: `child` is a child of this process, and `status` is a valid local.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert!(libc::WIFEXITED(status), "the child was killed: {status:#x}");
            libc::WEXITSTATUS(status)
        }
    }
}

#[test]
fn every_call_in_a_child_is_refused_and_the_parent_continues() {
    let mut sends = Sends::new(&send_config(QpType::Rc), 64, BLUE_FLAME);
    let config = RecvConfig { qp_type: QpType::Rc, max_recv_wr: 16, max_recv_sge: 1, max_msg_sz: 1 << 30 };
    let mut receives = Receives::new(&config, 16, 16);
    let mut shared = SharedReceives::new(16, 32, 1);
    let mut cq = completions();
    let head = Head { wr_id: 1, flags: SendFlags::SIGNALED };
    let op = || Op::Write(Remote::new(0x1000, 1));
    // SAFETY: the WR has no data, so it names no memory.
    let post = |sends: &mut Sends| unsafe { sends.queue.post(&Wr::new(1, op()).signaled()) };
    // The queues have been used before the fork, so the child does not take the path of a first call.
    post(&mut sends).unwrap();
    // SAFETY: the receive has no entries, so it names no memory.
    unsafe { receives.queue.post(2, &[]) }.unwrap();
    assert_eq!(cq.poll_each(1, |_| ()), Ok(0));

    let mut second = Sends::new(&send_config(QpType::Rc), 64, BLUE_FLAME);
    post(&mut second).unwrap();
    let mut open = second.queue.batch();
    // SAFETY: the WR has no data, so it names no memory.
    unsafe { open.push(&Wr::new(1, op()).signaled()) };
    let mut open = Some(open);

    let right = in_a_child(|| {
        let open = open.take().map(|batch| batch.complete());
        let fused = post(&mut sends);
        let mut batch = sends.queue.batch();
        // SAFETY: the WR has no data, so it names no memory.
        unsafe { batch.push(&Wr::new(1, op()).signaled()) };
        let batch = batch.complete();
        sends.queue.wr_start();
        // SAFETY: the operation is not a bind.
        unsafe { sends.queue.wr_begin(head, op()) };
        let session = sends.queue.wr_complete();
        // SAFETY: the receive has no entries, so it names no memory.
        let receive = unsafe { receives.queue.post(3, &[]) };
        let mut receive_batch = receives.queue.batch();
        // SAFETY: the receive has no entries, so it names no memory.
        unsafe { receive_batch.push(3, &[]) };
        let receive_batch = receive_batch.complete();
        // SAFETY: the receive has no entries, so it names no memory.
        let shared = unsafe { shared.queue.post(3, &[]) };
        [
            open == Some(Err(PostError::Forked)),
            fused == Err(PostError::Forked),
            batch == Err(PostError::Forked),
            session == Err(PostError::Forked),
            receive == Err(PostError::Forked),
            receive_batch == Err(PostError::Forked),
            shared == Err(PostError::Forked),
            cq.poll_each(1, |_| ()) == Err(PollError::Forked),
            cq.start_poll() == Err(PollError::Forked),
            cq.req_notify(false) == Err(PollError::Forked),
        ]
    });
    assert_eq!(right, 10, "calls with the right error");

    assert_eq!(open.map(|batch| batch.complete()), Some(Ok(())));
    post(&mut sends).unwrap();
    // SAFETY: the receive has no entries, so it names no memory.
    unsafe { receives.queue.post(4, &[]) }.unwrap();
    assert_eq!((sends.queue.published().1, receives.posted()), (2, 2));
    assert_eq!(cq.poll_each(1, |_| ()), Ok(0));
}
