// SPDX-License-Identifier: MIT OR Apache-2.0
//! The source of the two devices of a test, and operations on them and on their link other than verbs.
//!
//! The bed of the VM is here. That of software HCAs in this process is in the test target `hca`.

use crate::child::{rdma_resources, run};
use crate::env::{End, LabEnv};
use crate::lab::find;
use crate::roles;
use crate::runner::{LabTest, Outcome};
use crate::wait::{LIMIT, until};
use anyhow::{Context as _, Result, ensure};
use core::any::Any;
use core::fmt;
use core::time::Duration;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::Command;
use uverbs::attr::{Gid, LinkLayer};
use uverbs::{Context, Driver};

/// A kind of test bed, which runs each test on a new bed.
pub trait TestBed: Send + 'static {
    /// The prefix of the names of its tests.
    const PREFIX: &'static str = "";
    /// Opens the devices with their driver, runs the test, and checks that no object or file is left open.
    fn run(test: impl LabTest) -> Outcome;
}

/// A change that lasts until this is dropped.
pub type DropGuard = Box<dyn Any>;

/// Two devices that a driver can open.
pub trait Bed<D: Driver>: fmt::Debug {
    /// Opens the device at an end; each call returns a new context.
    fn open(&self, end: End) -> Result<Context<D>>;
    /// The name of the device at an end.
    fn name(&self, end: End) -> &str;
    /// Index of the GID with which the ends address each other.
    fn gid_index(&self) -> u8;
    /// The link layer.
    fn link_layer(&self) -> LinkLayer;
    /// The GID at that index.
    fn gid(&self, end: End) -> Result<Gid>;
    /// Counts of the kernel's objects at an end: `qp 1 cq 1 ...`.
    fn resources(&self, end: End) -> Result<String>;
    /// Makes the host at an end join a multicast group.
    fn join_group(&self, end: End, group: &str) -> Result<DropGuard>;
    /// Disturbs the link in both directions.
    fn disturb(&self, what: &Disturbance) -> Result<DropGuard>;
    /// The number of retransmissions so far, by the devices' counters.
    fn repairs(&self) -> u64;
    /// Clears the recorded violations of these kinds, which a test caused intentionally. Returns their number, or
    /// `None` if the devices do not record violations.
    fn forgive(&self, kinds: &[&str]) -> Result<Option<usize>>;
    /// Whether a message on UC may invalidate a key. The specification has no opcode for that (IBA volume 1, table 38); libmlx5 permits it.
    fn invalidates_on_uc(&self) -> bool {
        true
    }
    /// The lab's environment, if this is the VM.
    fn env(&self) -> Option<&LabEnv>;
}

/// The faults of a link, in percent of the packets. The default is none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Disturbance {
    /// Lost.
    pub loss: u8,
    /// Delayed by this.
    pub delay: Duration,
    /// Percentage of the packets that are sent without the delay, so that they overtake others, and its correlation
    /// with the previous packet.
    pub reorder: Option<(u8, u8)>,
    /// Sent twice.
    pub duplicate: u8,
    /// Damaged by a bit.
    pub corrupt: u8,
}

/// The arguments for netem.
impl fmt::Display for Disturbance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { loss, delay, reorder, duplicate, corrupt } = *self;
        let mut words = Vec::new();
        if loss != 0 {
            words.push(format!("loss {loss}%"));
        }
        if !delay.is_zero() {
            words.push(format!("delay {}ms", delay.as_millis()));
        }
        if let Some((share, correlation)) = reorder {
            words.push(format!("reorder {share}% {correlation}%"));
        }
        if duplicate != 0 {
            words.push(format!("duplicate {duplicate}%"));
        }
        if corrupt != 0 {
            words.push(format!("corrupt {corrupt}%"));
        }
        f.write_str(&words.join(" "))
    }
}

/// The devices of the VM, by the names in its environment.
#[derive(Debug)]
pub struct VmBed(pub LabEnv);

impl<D: Driver> Bed<D> for VmBed {
    fn open(&self, end: End) -> Result<Context<D>> {
        Ok(Context::open(&find(self.0.dev(end))?)?)
    }
    fn name(&self, end: End) -> &str {
        self.0.dev(end)
    }
    fn gid_index(&self) -> u8 {
        self.0.gid_index
    }
    fn link_layer(&self) -> LinkLayer {
        if self.0.infiniband { LinkLayer::INFINIBAND } else { LinkLayer::ETHERNET }
    }
    fn gid(&self, end: End) -> Result<Gid> {
        if !self.0.infiniband {
            return self.0.ip[end as usize].parse().ok().context("an address of the lab");
        }
        let path = format!("/sys/class/infiniband/{}/ports/1/gids/{}", self.0.dev(end), self.0.gid_index);
        let text = fs::read_to_string(&path).with_context(|| path.clone())?;
        text.trim().parse().ok().with_context(|| format!("{path}: {text}"))
    }
    fn resources(&self, end: End) -> Result<String> {
        rdma_resources(self.0.dev(end))
    }
    fn join_group(&self, end: End, group: &str) -> Result<DropGuard> {
        if self.0.infiniband {
            // On InfiniBand, the fabric delivers packets of a group to attached QPs; hosts need not join it.
            return Ok(Box::new(()));
        }
        Ok(Box::new(roles::join_group(&self.0, end, group)?))
    }
    fn disturb(&self, what: &Disturbance) -> Result<DropGuard> {
        Ok(Box::new(Netem::new(&what.to_string())?))
    }
    fn repairs(&self) -> u64 {
        if self.0.is_beside() {
            return hca(&["repairs"]).ok().and_then(|answer| answer.trim().parse().ok()).unwrap_or(0);
        }
        const NAMES: [&str; 5] = [
            "duplicate_request",
            "out_of_seq_request",
            "rcvd_seq_err",
            "completer_retry_err",
            "retry_rnr_exceeded_err",
        ];
        let read = |dev: &str, name: &str| -> Option<u64> {
            let path = format!("/sys/class/infiniband/{dev}/ports/1/hw_counters/{name}");
            fs::read_to_string(path).ok()?.trim().parse().ok()
        };
        self.0.dev.iter().flat_map(|dev| NAMES.map(|name| read(dev, name).unwrap_or(0))).sum()
    }
    fn forgive(&self, kinds: &[&str]) -> Result<Option<usize>> {
        if !self.0.is_beside() {
            return Ok(None);
        }
        Ok(Some(violations(&hca(&[&["forgive"], kinds].concat())?).count()))
    }
    fn env(&self) -> Option<&LabEnv> {
        Some(&self.0)
    }
}

/// Sends a command to the fabric of the software NICs, as the lab's `lab-hca` does. Returns the answer without the
/// `ok`.
pub fn hca(words: &[&str]) -> Result<String> {
    /// The port can be open only once. The directory is its lock.
    struct Busy;
    impl Busy {
        const PATH: &str = "/lab/hca.busy";
        fn new() -> Result<Self> {
            until("the port of the NICs is free", LIMIT, || Ok(fs::create_dir(Self::PATH).is_ok()))?;
            Ok(Self)
        }
    }
    impl Drop for Busy {
        fn drop(&mut self) {
            let _ = fs::remove_dir(Self::PATH);
        }
    }
    let _busy = Busy::new()?;
    let port = File::options().read(true).write(true).open("/dev/lab/hca").context("/dev/lab/hca")?;
    writeln!(&port, "{}", words.join(" "))?;
    let mut answer = String::new();
    BufReader::new(&port).read_line(&mut answer)?;
    let what = || format!("{}: {}", words.join(" "), answer.trim());
    Ok(answer.strip_prefix("ok").with_context(what)?.trim().to_owned())
}

/// The violations in an answer of the NICs.
fn violations(answer: &str) -> impl Iterator<Item = &str> {
    answer.split("; ").filter(|violation| !violation.is_empty())
}

/// Runs a test, and checks that the software NICs recorded no violation.
pub(crate) fn without_violations(env: &LabEnv, test: &dyn Fn() -> Result<()>) -> Result<()> {
    if !env.is_beside() {
        return test();
    }
    let result = test();
    let seen = hca(&["forgive"])?;
    // The violations may explain the failure.
    result.with_context(|| format!("violations: [{seen}]"))?;
    let wrong: Vec<_> = violations(&seen).collect();
    ensure!(wrong.is_empty(), "violations of the driver: {wrong:?}");
    Ok(())
}

/// A disturbance of both ends of the VM's link, until this is dropped.
struct Netem;

impl Netem {
    fn new(what: &str) -> Result<Self> {
        let this = Self;
        for end in [End::A, End::B] {
            Self::set(end, what).with_context(|| format!("lab-netem {} {what}", end.name()))?;
        }
        Ok(this)
    }

    fn set(end: End, what: &str) -> Result<String> {
        let words = what.split_whitespace();
        run(Command::new("lab-netem").arg(end.name()).args(words), LIMIT)
    }
}

impl Drop for Netem {
    fn drop(&mut self) {
        for end in [End::A, End::B] {
            if let Err(e) = Self::set(end, "off") {
                eprintln!("    the link stays disturbed: {e:#}");
            }
        }
    }
}
