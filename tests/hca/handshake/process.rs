// SPDX-License-Identifier: MIT OR Apache-2.0
//! fork(2) while another thread is inside a queue, and a kernel that refuses membarrier(2).
#![expect(unsafe_code)]
// UNSAFETY: prctl(2) with a filter.

use super::rig::{Elsewhere, Rig, polled, reconnect, send, works};
use anyhow::{Context as _, Result, ensure};
use core::time::Duration;
use std::process::Command;
use std::sync::mpsc::channel;
use std::thread;
use uverbs::attr::QpState;
use uverbs::{Errno, PollError, PostError};
use uverbs_tests::child::in_fork;
use uverbs_tests::{Outcome, Test, run};

/// A process forks while a thread is in the callback of a poll: in the child every call is refused and none waits; the
/// parent continues.
fn child_forked_in_a_poll_is_refused() -> Outcome {
    let rig = Rig::new(1)?;
    let cq = rig.a.cq(63)?;
    let mut other =
        rig.a.context.create_cq_ex::<uverbs::Exclusive>(&uverbs::attr::CqInitAttr::new(15), None)?;
    let (mut a, mut b) = rig.pair(&cq, 8)?;
    send(&mut a, &mut b, 0..4)?;
    let (inside, is_inside) = channel();
    let (go_on, may_go_on) = channel::<()>();
    thread::scope(|scope| -> Outcome {
        let cq = &cq;
        let poller = scope.spawn(move || -> Result<Vec<u64>> {
            use uverbs_core::provider::Completion as _;
            let mut ids = Vec::new();
            cq.poll_each(16, |completion| {
                ids.push(completion.wr_id());
                if ids.len() == 2 {
                    let _ = inside.send(());
                    let _ = may_go_on.recv_timeout(Duration::from_secs(120));
                }
            })?;
            Ok(ids)
        });
        is_inside.recv_timeout(Duration::from_secs(60))?;
        let child = in_fork(Duration::from_secs(60), || {
            let polled = other.poll(&mut [Default::default()]).map(<[_]>::len);
            ensure!(polled == Err(PollError::Forked), "poll: {polled:?}");
            let post = a.sq().post(9).send_inline(b"");
            ensure!(post.is_err_and(|error| error == PostError::Forked), "post: {post:?}");
            // SAFETY: names no memory.
            let recv = unsafe { a.rq()?.post(9, &[]) };
            ensure!(recv.is_err_and(|error| error == PostError::Forked), "receive: {recv:?}");
            let reset = a.control.modify_state(QpState::RESET).map_err(|e| e.errno());
            ensure!(reset == Err(Errno::ESTALE), "reset: {reset:?}");
            Ok(())
        });
        go_on.send(())?;
        let ids = poller.join().map_err(|_| anyhow::anyhow!("the poller panicked"))??;
        child.context("in the child")?;
        ensure!(ids == [0, 1, 2, 3], "{ids:?}");
        Ok(())
    })?;
    let (ac, bc, attr) = (a.control.clone(), b.control.clone(), rig.attr);
    Elsewhere::new(move || reconnect(&ac, &bc, &attr)).join()??;
    ensure!(polled(&cq)?.is_empty());
    works(&rig, &mut a, &mut b, &cq, 8)
}

/// The environment variable that makes the suite run without membarrier(2).
pub(crate) const WITHOUT_MEMBARRIER: &str = "UVERBS_TEST_WITHOUT_MEMBARRIER";

/// Installs a filter that refuses membarrier(2), as an old kernel or a sandbox does.
pub(crate) fn refuse_membarrier() -> Outcome {
    const LOAD_NUMBER: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut filter = [
        step(LOAD_NUMBER, 0, 0, 0),
        step(IF_EQUAL, 0, 1, libc::SYS_membarrier as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: takes numbers only.
    let result = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    ensure!(result == 0, "PR_SET_NO_NEW_PRIVS: {}", std::io::Error::last_os_error());
    // SAFETY: a filter of four instructions, which is valid during the call.
    let result = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    ensure!(result == 0, "PR_SET_SECCOMP: {}", std::io::Error::last_os_error());
    // SAFETY: queries the supported commands.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, 0, 0, 0) };
    ensure!(result == -1, "membarrier(2) is still available");
    Ok(())
}

/// Runs all tests of this folder, and the stress test with all control calls, in a process where membarrier(2) is refused.
fn handshake_and_stress_pass_without_membarrier() -> Outcome {
    let mut suite = Command::new(std::env::current_exe()?);
    suite.env(WITHOUT_MEMBARRIER, "1").args([
        "handshake::",
        // The other stress tests do a part of what this one does.
        "stress::traffic_during_all_control_calls",
        // These have the same waits, in other scenes.
        "--skip",
        "udp::",
        "--skip",
        "handshake_and_stress_pass_without_membarrier",
    ]);
    let said = run(&mut suite, super::LIMIT + uverbs_tests::stress::length() * 3)?;
    let passed = said.lines().find(|line| line.starts_with("test result: ok")).context("no result")?;
    uverbs_tests::runner::note(passed);
    Ok(())
}

pub(super) fn tests() -> Vec<Test> {
    let long = super::LIMIT * 2 + uverbs_tests::stress::length() * 3;
    vec![
        Test::long(
            "handshake::process::child_forked_in_a_poll_is_refused",
            super::LIMIT,
            child_forked_in_a_poll_is_refused,
        ),
        Test::long(
            "handshake::process::handshake_and_stress_pass_without_membarrier",
            long,
            handshake_and_stress_pass_without_membarrier,
        ),
    ]
}
