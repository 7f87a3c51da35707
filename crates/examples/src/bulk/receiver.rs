// SPDX-License-Identifier: MIT OR Apache-2.0
//! The receiver: it waits for the last message of each QP, checks the data, and acknowledges the batch.

use super::Plan;
use super::ends::{self, End, Wait, Way};
use crate::nic::Nic;
use anyhow::{Context as _, Result, anyhow};
use core::time::Duration;
use std::net::TcpStream;
use uverbs::attr::AccessFlags;
use uverbs::{Driver, WorkCompletion};

/// The time limit for the next completion.
const LIMIT: Duration = Duration::from_secs(60);

/// Receives all batches from the sender behind `stream`, and checks the data.
///
/// # Errors
/// A device can't be used, the sender ends early, or data are wrong.
pub fn receive<D: Driver>(
    nics: &[Nic],
    plan: &Plan,
    dmabuf: bool,
    stream: &TcpStream,
    way: &Way,
) -> Result<()> {
    let access = AccessFlags::REMOTE_WRITE;
    let mut all =
        nics.iter().map(|nic| End::<D>::new(nic, plan, access, dmabuf)).collect::<Result<Vec<_>>>()?;
    ends::connect_receiver(&mut all, stream, plan, way)?;
    std::thread::scope(|scope| {
        let threads: Vec<_> = all.iter_mut().map(|end| scope.spawn(move || run(end, plan, stream))).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().map_err(|_| anyhow!("a receiver panicked"))?)
    })?;
    ends::part(stream)
}

/// One NIC of the receiver.
fn run<D: Driver>(end: &mut End<D>, plan: &Plan, stream: &TcpStream) -> Result<()> {
    // The QPs that have ended each batch.
    let mut ended = vec![0; plan.batches as usize];
    let mut scratch = [Vec::new(), Vec::new()];
    let mut sends = 0;
    for batch in 0..plan.batches {
        poll(end, stream, (&mut ended, &mut sends), |ended, _| ended[batch as usize] == plan.qps)?;
        end.memory.check(plan, batch, &mut scratch).with_context(|| format!("on {}", end.nic.name()))?;
        // The sender may write to this area again.
        end.qps[0].sq()?.post(0).signaled().send_inline(&batch.to_be_bytes())?;
        sends += 1;
    }
    poll(end, stream, (&mut ended, &mut sends), |_, sends| sends == 0)
}

fn poll<D: Driver>(
    end: &mut End<D>,
    stream: &TcpStream,
    (ended, sends): (&mut [u32], &mut u32),
    condition: impl Fn(&[u32], u32) -> bool,
) -> Result<()> {
    let mut wait = Wait::new(stream, LIMIT);
    while !condition(ended, *sends) {
        let mut wc = [WorkCompletion::default(); 16];
        let polled = end.cq.poll(&mut wc)?.len();
        for wc in &wc[..polled] {
            wc.status.ok().with_context(|| format!("a work request of {} failed", end.nic.name()))?;
            if ends::is_receive(wc) {
                let batch = end.received(wc)?;
                *ended.get_mut(batch as usize).context("the end of a batch that does not exist")? += 1;
            } else {
                *sends -= 1;
            }
        }
        wait.polled(polled, "the sender")?;
    }
    Ok(())
}
