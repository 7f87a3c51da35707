// SPDX-License-Identifier: MIT OR Apache-2.0
//! The bandwidth tests: as many outstanding messages as the send queue may have.

use super::carrier::Carrier;
use super::clock::{Clock, Phase};
use super::end::{End, Shot};
use super::options::{Plan, Verb};
use super::progress::Progress;
use super::wire::Report;
use anyhow::Result;
use core::time::Duration;
use std::time::Instant;
use uverbs::Driver;

/// What this end does in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Role {
    pub(super) sends: bool,
    pub(super) receives: bool,
}

impl Role {
    /// The part of this end; `None` if only the other end's device works.
    pub(super) fn of(plan: &Plan) -> Option<Self> {
        let is_send = plan.verb == Verb::Send;
        match (plan.bidirectional, plan.is_client()) {
            (true, _) => Some(Self { sends: true, receives: is_send }),
            (false, true) => Some(Self { sends: true, receives: false }),
            (false, false) => is_send.then_some(Self { sends: false, receives: true }),
        }
    }
}

/// The times of lists of messages, to compute the peak.
#[derive(Debug, Default)]
struct Times {
    /// The messages before each list, and when it was posted.
    posted: Vec<(u64, Instant)>,
    /// The messages that were complete at a time.
    completed: Vec<(u64, Instant)>,
}

/// A message count for each QP.
#[derive(Clone, Copy, Debug, Default)]
struct Sender {
    posted: u64,
    done: u64,
}

/// Runs the test for one size. The receives of sends must be posted.
pub(super) fn run<D: Driver, T: Carrier<D>>(
    end: &mut End<D, T>,
    plan: &Plan,
    role: Role,
    bytes: u32,
    progress: &Progress,
) -> Result<Report> {
    let mut clock = Clock::new(plan.duration);
    let is_timed = clock.is_timed();
    let shot = Shot { bytes, moves: true };
    let iters = u64::from(plan.iters);
    let (depth, list, cq_mod) = (u64::from(plan.tx_depth), plan.post_list, u64::from(plan.cq_mod));
    let mut senders = vec![Sender::default(); if role.sends { end.senders() } else { 0 }];
    let receivers = end.receivers();
    // The number of receives that were posted for each QP.
    let mut receives = vec![u64::from(plan.rx_depth); receivers.end];
    // Those that are complete and were not posted again.
    let mut taken = vec![0_u64; receivers.end];
    let recv_list = u64::from(plan.recv_post_list);
    let expected = iters * receivers.len() as u64;
    let (mut received, mut done, mut posted, mut measured) = (0_u64, 0_u64, 0_u64, 0_u64);
    let mut times = Times::default();
    let keeps_times = role.sends && !plan.no_peak;
    let wanted = iters * senders.len() as u64;
    // A server waits for the first message, so that its time begins with that of the client.
    let mut may_send = plan.is_client() || !role.receives;
    if may_send {
        clock.start();
    }
    let mut begin = Instant::now();
    let mut reposts = Vec::new();

    loop {
        let is_complete = done >= wanted && (!role.receives || received >= expected);
        if if is_timed { clock.is_over() } else { is_complete } {
            break;
        }
        // Datagrams and messages of UC can be sent to an end that has gone.
        end.cqs.look_at_times()?;
        let mut is_idle = true;
        for (i, sender) in senders.iter_mut().enumerate().filter(|_| may_send) {
            while (is_timed || sender.posted < iters)
                && sender.posted - sender.done + u64::from(list) <= depth
            {
                if keeps_times {
                    times.posted.push((posted, Instant::now()));
                }
                let is_signaled = |n: u64| n.is_multiple_of(cq_mod) || (!is_timed && n == iters);
                end.post(i, shot, (sender.posted, list), is_signaled)?;
                sender.posted += u64::from(list);
                posted += u64::from(list);
                is_idle = false;
                if is_timed && clock.is_over() {
                    break;
                }
            }
        }
        if role.receives {
            let found = end.cqs.received(|i, _| reposts.push(i))?;
            if found > 0 {
                is_idle = false;
                if received == 0 {
                    if !may_send {
                        begin = Instant::now();
                    }
                    may_send = true;
                    clock.start();
                }
                received += found as u64;
                for i in reposts.drain(..) {
                    taken[i] += 1;
                    let left = if is_timed { recv_list } else { iters.saturating_sub(receives[i]) };
                    let list = recv_list.min(left);
                    if list > 0 && taken[i] >= list {
                        end.post_recv(i, bytes, list as u32)?;
                        receives[i] += list;
                        taken[i] -= list;
                    }
                }
                if is_timed && clock.phase() == Phase::Measured {
                    measured += found as u64;
                }
                if !role.sends {
                    progress.set(received);
                }
            }
        }
        if role.sends && done < posted {
            let before = done;
            let in_order = end.in_order;
            let found = end.cqs.sent(|i, n| {
                if let Some(sender) = senders.get_mut(i) {
                    let n = if in_order { n } else { sender.done + 1 };
                    done += n - sender.done;
                    sender.done = n;
                }
            })?;
            if found > 0 {
                is_idle = false;
                if keeps_times {
                    times.completed.push((done, Instant::now()));
                }
                if is_timed && clock.phase() == Phase::Measured {
                    measured += done - before;
                }
                progress.set(done);
            }
        }
        if is_idle {
            end.cqs.idle("a completion")?;
        }
    }

    let elapsed = if is_timed { clock.measured() } else { begin.elapsed() };
    let count = if is_timed {
        measured
    } else if role.sends {
        wanted
    } else {
        expected
    };
    Ok(report(plan, bytes, (count, elapsed), peak(&times)))
}

/// The result in the unit of the plan.
fn report(plan: &Plan, bytes: u32, (iters, elapsed): (u64, Duration), peak: Option<f64>) -> Report {
    // Bytes per second in a unit of the result.
    let unit = if plan.gbits { 125e6 } else { f64::from(1 << 20) };
    let rate = iters as f64 / elapsed.as_secs_f64().max(1e-9);
    let bandwidth = |rate: f64| rate * f64::from(bytes) / unit;
    let average = bandwidth(rate);
    let peak = peak.map_or(0.0, |peak| bandwidth(peak).max(average));
    Report { bytes: bytes.into(), iters, peak, average, rate: rate / 1e6 }
}

/// The longest stretch of the peak, in polls that found completions.
const STRETCH: usize = 64;

/// The peak, in messages per second: the fastest stretch from the post of a list to a poll that found this list, or a
/// later one, complete.
fn peak(times: &Times) -> Option<f64> {
    let mut best: Option<f64> = None;
    let mut first = 0;
    for (before, posted) in &times.posted {
        while times.completed.get(first).is_some_and(|(done, _)| done <= before) {
            first += 1;
        }
        for (done, completed) in times.completed.iter().skip(first).take(STRETCH) {
            let seconds = completed.saturating_duration_since(*posted).as_secs_f64().max(1e-9);
            let rate = (done - before) as f64 / seconds;
            best = Some(best.map_or(rate, |b| b.max(rate)));
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::options::tests::parse;

    #[test]
    fn the_peak_is_the_fastest_stretch() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        // 4 messages in 100 ms, then 4 in 20 ms.
        let times =
            Times { posted: vec![(0, at(0)), (4, at(100))], completed: vec![(4, at(100)), (8, at(120))] };
        assert!((peak(&times).unwrap() - 200.0).abs() < 1e-6);
        assert_eq!(peak(&Times::default()), None);
    }

    #[test]
    fn units_are_those_of_perftest() {
        let one = |line| report(&parse(line).unwrap(), 1 << 20, (10, Duration::from_secs(1)), None);
        assert!((one("send-bw").average - 10.0).abs() < 1e-9);
        assert!((one("send-bw --report_gbits").average - 0.083_886_08).abs() < 1e-9);
        assert!((one("send-bw").rate - 1e-5).abs() < 1e-12);
    }

    #[test]
    fn the_server_of_a_one_sided_test_waits() {
        let role = |line| Role::of(&parse(line).unwrap());
        assert_eq!(role("write-bw"), None);
        assert_eq!(role("write-bw host"), Some(Role { sends: true, receives: false }));
        assert_eq!(role("send-bw"), Some(Role { sends: false, receives: true }));
        assert_eq!(role("send-bw -b"), Some(Role { sends: true, receives: true }));
        assert_eq!(role("read-bw -b"), Some(Role { sends: true, receives: false }));
    }
}
