// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program with a mistake that no status tells: it is correct, and slow. `docs/src/guides/finding-a-bug.md` finds it with a trace.
//!
//! A client sends a burst of messages. The server posts each receive again when it has processed the message.

use crate::nic::Nic;
use anyhow::{Context as _, Result, ensure};
use core::time::Duration;
use uverbs::hca::Fabric;
use uverbs::{ConnectAttr, Context, Cq, Done, Pool, Qp, Rc};

/// The messages of a burst, and their bytes.
pub const BURST: u32 = 5;
const BYTES: u32 = 64;
/// The receives that the program posts.
pub const RECEIVES: u32 = 4;

/// The objects of one end.
struct End {
    qp: Qp<Rc>,
    cq: Cq,
    pool: Pool,
}

impl End {
    fn new(fabric: &Fabric, name: &str, depth: u32) -> Result<Self> {
        let context: Context = Nic::Software(fabric.device(name).build()).open()?;
        let (pd, cq) = (context.alloc_pd()?, context.cq(2 * depth)?);
        let qp = pd.qp::<Rc>().cq(&cq).depth(depth, depth).create()?;
        let pool = pd.pool(depth, BYTES)?;
        Ok(Self { qp, cq, pool })
    }

    fn receive(&mut self) -> Result<()> {
        let buf = self.pool.get().context("a buffer for each receive")?;
        Ok(self.qp.recv(buf)?)
    }
}

/// Sends a burst to a server that has so many receives. Returns how long it took by the fabric's clock.
///
/// # Errors
/// A verb failed, or a message has another content.
pub fn run(fabric: &Fabric, receives: u32) -> Result<Duration> {
    let depth = receives.max(BURST);
    let mut client = End::new(fabric, "hca0", depth)?;
    let mut server = End::new(fabric, "hca1", depth)?;
    // The time that a sender waits if there is no receive: 0, the shortest.
    let attr = ConnectAttr::new().min_rnr_timer(0);
    client.qp.init(&attr)?;
    server.qp.init(&attr)?;
    let (here, there) =
        (client.qp.control().endpoint(100, &attr)?, server.qp.control().endpoint(200, &attr)?);
    client.qp.connect(&here, &there, &attr)?;
    server.qp.connect(&there, &here, &attr)?;
    for _ in 0..receives {
        server.receive()?;
    }
    let begin = fabric.now();
    for number in 0..BURST {
        let mut message = client.pool.get().context("a buffer for each message")?;
        message[0] = number as u8;
        client.qp.send(message)?;
    }
    let (mut sent, mut received) = (0, 0);
    while sent < BURST || received < BURST {
        while let Some(completed) = server.cq.poll_one()? {
            if let Done::Received(message) = completed.ok()? {
                ensure!(message[0] == received as u8, "message {} came as number {received}", message[0]);
                received += 1;
                drop(message);
                server.receive()?;
            }
        }
        while let Some(completed) = client.cq.poll_one()? {
            drop(completed.ok()?);
            sent += 1;
        }
        // A virtual clock advances only here.
        fabric.run();
    }
    Ok(fabric.now() - begin)
}

/// The program of the page "Finding a bug with a trace", its trace, and the page's picture.
#[cfg(test)]
mod tests {
    use super::{Duration, Fabric, RECEIVES, run};
    use std::path::Path;
    use std::sync::{Arc, Mutex};
    use uverbs::hca::trace::{Step, StepKind, chart};

    /// How the page makes its picture.
    const COMMAND: &str = "uverbs trace --svg docs/src/img/burst.svg --title \"A burst of 5 messages, 4 receives\" -- burst --virtual";

    /// What the page shows, by the run that its command makes.
    fn traced(receives: u32) -> (Duration, Vec<Step>) {
        let fabric = Fabric::deterministic(1);
        let steps = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&steps);
        fabric.trace(&[], Some(Box::new(move |step: &Step| sink.lock().unwrap().push(step.clone()))));
        let took = run(&fabric, receives).unwrap();
        fabric.trace(&[], None);
        let steps = steps.lock().unwrap().clone();
        (took, steps)
    }

    #[test]
    fn the_fifth_message_waits_for_a_receive() {
        let (took, steps) = traced(RECEIVES);
        assert!(took >= Duration::from_millis(655), "{took:?}");
        let refused: Vec<_> = steps.iter().filter(|step| step.words.starts_with("RNR NAK")).collect();
        assert!(refused.iter().all(|step| step.words.contains("wait 655.36 ms, PSN 104")), "{refused:#?}");
        assert!(!refused.is_empty());
        // Each completion is successful, so no status shows that the requests waited.
        let failed = |step: &&Step| step.kind == StepKind::Completion && step.words.contains("failed");
        assert_eq!(steps.iter().find(failed), None);
    }

    #[test]
    fn a_receive_for_each_message_needs_no_wait() {
        let (took, steps) = traced(5);
        assert_eq!(took, Duration::ZERO);
        assert!(steps.iter().all(|step| step.kind != StepKind::Timer));
    }

    /// The picture and the excerpt are of this version of the program and of the devices.
    #[test]
    fn the_page_shows_this_trace() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src");
        let page = std::fs::read_to_string(docs.join("guides/finding-a-bug.md")).unwrap();
        assert!(page.contains(COMMAND), "the page has no line {COMMAND}");
        let (_, steps) = traced(RECEIVES);
        let svg = chart("A burst of 5 messages, 4 receives", &steps);
        let file = docs.join("img/burst.svg");
        let drawn = std::fs::read_to_string(&file).unwrap_or_default();
        let is_same = drawn == svg;
        if !is_same {
            std::fs::write(docs.join("../../target/burst.svg"), &svg).unwrap();
        }
        assert!(is_same, "{} is not target/burst.svg, the chart of the program: {COMMAND}", file.display());
        // Lines of the excerpt: addresses, which differ from run to run, are left out.
        let lines: Vec<String> = steps
            .iter()
            .map(|step| {
                let step = Step { detail: String::new(), ..step.clone() };
                format!("{:>5}.{:09}  {step}", step.at / 1_000_000_000, step.at % 1_000_000_000)
            })
            .collect();
        let excerpt = page.split("```text\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
        for line in excerpt.lines().filter(|line| *line != "...") {
            assert!(
                lines.iter().any(|known| known == line),
                "the run has no line {line:?}:\n{}",
                lines.join("\n")
            );
        }
    }
}
