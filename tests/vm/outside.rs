// SPDX-License-Identifier: MIT OR Apache-2.0
//! The software ConnectX and the kernel's rxe exchange packets of RoCE version 2: over a pair of network devices, one of which has an rxe
//! device, and the other one, in a namespace of its own, the address of the software ConnectX' UDP socket.
//!
//! The programs are `uverbs` at one end and rdma-core's or perftest's at the other; the suite's tests have one device at either end, by
//! `AnyDriver`. The link also loses, reorders and repeats packets.

use crate::tools::{TOOL_LIMIT, both, counter, start};
use anyhow::{Context as _, Result, bail, ensure};
use core::time::Duration;
use nix::sched::{CloneFlags, setns};
use std::fs::File;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use uverbs::attr::{Gid, LinkLayer};
use uverbs::{AnyDriver, Context};
use uverbs_hca::{Fabric, Hca, UdpStat, Violation};
use uverbs_tests::bed::{Bed, Disturbance, DropGuard};
use uverbs_tests::child::{Ended, rdma_resources};
use uverbs_tests::env::End;
use uverbs_tests::lab::find;
use uverbs_tests::runner::note;
use uverbs_tests::suite::{netem, opcodes, ud};
use uverbs_tests::wait::until;
use uverbs_tests::{Lab, LabEnv, LabTest, Outcome, Test, TestBed, run};

/// The time limit of a command for the network.
const SETUP: Duration = Duration::from_secs(20);
/// The rxe device, its network device and address.
const RXE: (&str, &str, &str) = ("rxo", "wire0", "192.168.77.1");
/// The namespace of the software ConnectX, its network device there, and address.
const OURS: (&str, &str, &str) = ("outside", "wire1", "192.168.77.2");
/// The index of the address' GID at both ends.
const GID_INDEX: u8 = 1;
/// The TCP port of the first pair of programs.
const FIRST_PORT: u16 = 19_300;
/// The time that the second of two programs may take after the first one has ended.
const LAST: Duration = Duration::from_secs(15);
/// The arguments of programs on a link that loses packets, and what ours says if only the acknowledgement of its last message is missing.
const LOSSY: &str = "-g 1 -n 60 -s 8192 -e -c";
const LEFT: &str = "59 of 60 sent, 60 received: completion with error RETRY_EXC_ERR";
/// The disturbance of the programs' link.
const NETEM: &str = "loss 1% delay 1ms reorder 95% 25%";

/// The link and the rxe device, until this is dropped.
#[derive(Debug)]
struct Link;

/// The link of all tests, because making one takes as long as a test. The last test, or one that fails, removes it.
static LINK: Mutex<Option<Link>> = Mutex::new(None);

fn link() -> MutexGuard<'static, Option<Link>> {
    LINK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a test with the link.
fn with_link(test: impl FnOnce() -> Outcome) -> Outcome {
    if link().is_none() {
        let new = Link::new()?;
        *link() = Some(new);
    }
    let result = test();
    if result.is_err() {
        *link() = None;
    }
    result
}

impl Link {
    fn new() -> Result<Self> {
        Self::remove();
        let this = Self;
        let ((rxe, wire0, address0), (namespace, wire1, address1)) = (RXE, OURS);
        for line in [
            format!("ip netns add {namespace}"),
            format!("ip link add {wire0} type veth peer name {wire1} netns {namespace}"),
            format!("ip addr add {address0}/24 dev {wire0}"),
            format!("ip link set {wire0} up"),
            format!("ip -n {namespace} addr add {address1}/24 dev {wire1}"),
            format!("ip -n {namespace} link set {wire1} up"),
            format!("rdma link add {rxe} type rxe netdev {wire0}"),
        ] {
            words(&line)?;
        }
        Ok(this)
    }

    /// Removes what exists of it.
    fn remove() {
        let _ = words(&format!("rdma link del {}", RXE.0));
        let _ = words(&format!("ip link del {}", RXE.1));
        let _ = words(&format!("ip netns del {}", OURS.0));
    }

    /// Disturbs both directions, or ends that with nothing.
    fn netem(what: &str) -> Result<()> {
        for (prefix, device) in [("", RXE.1), (&*format!("-n {} ", OURS.0), OURS.1)] {
            let _ = words(&format!("tc {prefix}qdisc del dev {device} root"));
            if !what.is_empty() {
                words(&format!("tc {prefix}qdisc add dev {device} root netem {what}"))?;
            }
        }
        Ok(())
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        Self::remove();
    }
}

fn words(line: &str) -> Result<String> {
    let mut words = line.split_whitespace();
    let program = words.next().context("no program")?;
    run(Command::new(program).args(words), SETUP).with_context(|| line.to_owned())
}

/// A program with the software ConnectX.
fn ours(args: &str) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", OURS.0, "/usr/bin/uverbs"]).env("UVERBS_HCA_UDP", OURS.2);
    command.args(args.split_whitespace()).args(["-d", "hca0"]);
    command
}

/// A program on the rxe device.
fn theirs(program: &str, args: &str) -> Command {
    let mut command = Command::new(format!("/usr/bin/{program}"));
    command.args(args.split_whitespace()).args(["-d", RXE.0]);
    command
}

/// Two programs, one of which has the software ConnectX.
#[derive(Clone, Copy, Debug)]
struct Programs {
    /// That with the software ConnectX: arguments of `uverbs`.
    ours: &'static str,
    /// The program on rxe, and its arguments.
    theirs: (&'static str, &'static str),
    /// The arguments of both.
    args: &'static str,
    ours_serves: bool,
    /// A text in the output of the client.
    says: &'static str,
    netem: &'static str,
    port: u16,
}

impl Programs {
    fn run(&self) -> Outcome {
        if !self.netem.is_empty() {
            Link::netem(self.netem)?;
        }
        let args = format!("{} -p {}", self.args, self.port);
        let ours = ours(&format!("{} {args}", self.ours));
        let theirs = theirs(self.theirs.0, &format!("{} {args}", self.theirs.1));
        let before = [counter(RXE.0, "sent_pkts")?, counter(RXE.0, "rcvd_pkts")?];
        let (mut server, mut client, host) =
            if self.ours_serves { (ours, theirs, OURS.2) } else { (theirs, ours, RXE.2) };
        client.arg(host);
        let output = if self.netem.is_empty() {
            both(&mut server, &mut client, self.port)?[1].clone()
        } else {
            self.run_lossy(&mut server, &mut client)?
        };
        ensure!(output.contains(self.says) && !output.contains("invalid data"), "{output}");
        let after = [counter(RXE.0, "sent_pkts")?, counter(RXE.0, "rcvd_pkts")?];
        let [sent, received] = [0, 1].map(|i| after[i] - before[i]);
        // Requests that arrive together have one acknowledgement.
        ensure!(sent + received >= 100 && sent.min(received) >= 5, "packets of rxe: {before:?}, {after:?}");
        if !self.netem.is_empty() {
            Link::netem("")?;
        }
        Ok(())
    }

    /// Runs both over a link that loses packets, and returns the output of one that has succeeded. That one has received all messages, and
    /// all of its own were acknowledged. Its last acknowledgement may be lost, and is not repeated after its end. Then the other program,
    /// which has received all messages, too, fails; with the rxe of Linux 6.1 it may also wait for ever.
    fn run_lossy(&self, server: &mut Command, client: &mut Command) -> Result<String> {
        let [mut server, mut client] = start(server, client, |server| server.wait_listening(self.port))?;
        until("one of the programs ends", TOOL_LIMIT, || Ok(!server.is_running()? || !client.is_running()?))?;
        let [client, server] = &[client.end(LAST), server.end(LAST)];
        let output = |end: &Result<Ended>| {
            end.as_ref().ok().filter(|end| end.status.success()).map(|end| end.output.clone())
        };
        let was_left = |is_ours: bool, end: &Result<Ended>| match end {
            Ok(end) if is_ours => end.output.contains(LEFT),
            Ok(end) => end.output.contains("transport retry counter exceeded"),
            Err(_) => !is_ours,
        };
        let (output, other) = match (output(client), output(server)) {
            (Some(output), Some(_)) => return Ok(output),
            (Some(output), None) if was_left(self.ours_serves, server) => (output, server),
            (None, Some(output)) if was_left(!self.ours_serves, client) => (output, client),
            _ => bail!("client: {client:?}\nserver: {server:?}"),
        };
        let how = if other.is_ok() { "failed" } else { "did not end" };
        note(format_args!("the last acknowledgement was lost: the other program {how}"));
        Ok(output)
    }
}

fn programs() -> Vec<Test> {
    let pingpong = |name, ours, theirs, netem, ours_serves| {
        // With events, because two polling processes wait for each other's time slices.
        let args = match netem {
            "" => "-g 1 -n 50 -e -c",
            _ => LOSSY,
        };
        (name, Programs { ours, theirs: (theirs, ""), args, ours_serves, says: "iters in ", netem, port: 0 })
    };
    let perf = |name: &'static str, ours, theirs, ours_serves| {
        // Atomics have one length.
        let is_long = name.ends_with("bw") && name != "atomic_bw";
        let args = if is_long { "-x 1 -n 50 -s 16384 -F" } else { "-x 1 -n 50 -F" };
        // 4.096 us << 18 is a second: nothing is lost here, and rxe repeats all of its window for each timeout on a slow machine.
        let theirs = (theirs, "-u 18");
        (name, Programs { ours, theirs, args, ours_serves, says: "#bytes", netem: "", port: 0 })
    };
    // The requests of perftest go from the client to the server; those of the latencies of SEND and WRITE both ways.
    let all = [
        pingpong("rc_client", "pingpong rc", "ibv_rc_pingpong", "", false),
        pingpong("rc_server", "pingpong rc", "ibv_rc_pingpong", "", true),
        pingpong("uc_client", "pingpong uc", "ibv_uc_pingpong", "", false),
        pingpong("uc_server", "pingpong uc", "ibv_uc_pingpong", "", true),
        pingpong("ud_client", "pingpong ud", "ibv_ud_pingpong", "", false),
        pingpong("ud_server", "pingpong ud", "ibv_ud_pingpong", "", true),
        pingpong("srq_client", "pingpong srq", "ibv_srq_pingpong", "", false),
        pingpong("netem_rc_client", "pingpong rc", "ibv_rc_pingpong", NETEM, false),
        pingpong("netem_rc_server", "pingpong rc", "ibv_rc_pingpong", NETEM, true),
        perf("send_lat", "perf send-lat", "ib_send_lat", false),
        perf("write_lat", "perf write-lat", "ib_write_lat", true),
        perf("read_lat", "perf read-lat", "ib_read_lat", false),
        perf("atomic_lat", "perf atomic-lat", "ib_atomic_lat", true),
        perf("send_bw", "perf send-bw", "ib_send_bw", true),
        perf("write_bw", "perf write-bw", "ib_write_bw", false),
        perf("read_bw", "perf read-bw", "ib_read_bw", true),
        perf("atomic_bw", "perf atomic-bw", "ib_atomic_bw", false),
    ];
    let test = |((name, programs), port): ((&str, Programs), u16)| {
        let programs = Programs { port, ..programs };
        Test::without_devices(&format!("outside::programs::{name}"), move |_| with_link(|| programs.run()))
    };
    all.into_iter().zip(FIRST_PORT..).map(test).collect()
}

/// A software ConnectX and an rxe device.
#[derive(Debug)]
struct Mixed {
    hca: Hca,
    /// The end of the software ConnectX.
    ours: End,
}

impl Mixed {
    fn new(ours: End) -> Result<Self> {
        let address = OURS.2.parse()?;
        // A socket belongs to the namespace of the thread that creates it.
        let built = thread::spawn(move || -> Result<Hca> {
            setns(File::open(format!("/run/netns/{}", OURS.0))?, CloneFlags::CLONE_NEWNET)?;
            Ok(Fabric::new(1).device("hca0").build_udp(address)?)
        });
        let hca = built.join().ok().context("the thread that builds the device")??;
        Ok(Self { hca, ours })
    }
}

impl Bed<AnyDriver> for Mixed {
    fn open(&self, end: End) -> Result<Context<AnyDriver>> {
        if end == self.ours {
            return Ok(Context::from_kernel(self.hca.open())?);
        }
        Ok(Context::open(&find(RXE.0)?)?)
    }
    fn name(&self, end: End) -> &str {
        if end == self.ours { self.hca.name() } else { RXE.0 }
    }
    fn gid_index(&self) -> u8 {
        GID_INDEX
    }
    fn link_layer(&self) -> LinkLayer {
        LinkLayer::ETHERNET
    }
    fn gid(&self, end: End) -> Result<Gid> {
        let address = if end == self.ours { OURS.2 } else { RXE.2 };
        format!("::ffff:{address}").parse().ok().context("an address")
    }
    fn resources(&self, end: End) -> Result<String> {
        if end == self.ours { Ok(format!("{:?}", self.hca.objects())) } else { rdma_resources(RXE.0) }
    }
    fn join_group(&self, _: End, _: &str) -> Result<DropGuard> {
        Ok(Box::new(()))
    }
    fn disturb(&self, what: &Disturbance) -> Result<DropGuard> {
        struct Off;
        impl Drop for Off {
            fn drop(&mut self) {
                if let Err(error) = Link::netem("") {
                    eprintln!("    the link stays disturbed: {error:#}");
                }
            }
        }
        Link::netem(&what.to_string())?;
        Ok(Box::new(Off))
    }
    fn repairs(&self) -> u64 {
        let names = ["duplicate_request", "out_of_seq_request", "rcvd_seq_err", "completer_retry_err"];
        let theirs: u64 = names.iter().filter_map(|name| counter(RXE.0, name).ok()).sum();
        theirs + self.hca.repairs()
    }
    fn forgive(&self, kinds: &[&str]) -> Result<Option<usize>> {
        let wanted = |v: &Violation| kinds.contains(&v.mistake.kind().as_str());
        Ok(Some(self.hca.take_violations_if(wanted).len()))
    }
    fn invalidates_on_uc(&self) -> bool {
        false
    }
    fn env(&self) -> Option<&LabEnv> {
        None
    }
}

/// Runs a test with the software ConnectX at an end.
fn mixed(ours: End, test: impl LabTest) -> Outcome {
    let bed = Mixed::new(ours)?;
    let hca = bed.hca.clone();
    let lab = Lab::new(Bed::open(&bed, End::A)?, Box::new(bed))?;
    let result = test.run(&lab);
    let (stat, violations) = (hca.udp_stat().context("no socket")?, hca.violations());
    result.with_context(|| format!("{stat:?}, {violations:?}"))?;
    ensure!(violations.is_empty(), "violations of the driver: {violations:?}");
    // Netem damages no packet in these tests.
    let UdpStat { damaged, malformed, lost, unsendable, .. } = stat;
    ensure!((damaged, malformed, lost, unsendable) == (0, 0, 0, 0), "{stat:?}");
    Ok(())
}

/// Requests of the software ConnectX to rxe.
struct ToRxe;

impl TestBed for ToRxe {
    const PREFIX: &'static str = "outside::to_rxe::";

    fn run(test: impl LabTest) -> Outcome {
        with_link(|| mixed(End::A, test))
    }
}

/// Requests of rxe to the software ConnectX.
struct FromRxe;

impl TestBed for FromRxe {
    const PREFIX: &'static str = "outside::from_rxe::";

    fn run(test: impl LabTest) -> Outcome {
        with_link(|| mixed(End::B, test))
    }
}

/// The tests of this file.
pub(crate) fn tests() -> Vec<Test> {
    if LabEnv::get().is_some_and(|env| env.mlx5) {
        return Vec::new();
    }
    let has = |test: &Test, parts: &[&str]| parts.iter().any(|part| test.name().ends_with(part));
    let faces = ["exclusive_builder", "shared_single"];
    let mut all = programs();
    all.extend(opcodes::tests::<ToRxe>().into_iter().filter(|test| has(test, &faces)));
    all.extend(opcodes::tests::<FromRxe>().into_iter().filter(|test| has(test, &faces)));
    let to_rxe = ["survive_loss", "survive_reordering", "whole_and_in_order"];
    all.extend(netem::tests::<ToRxe>().into_iter().filter(|test| has(test, &to_rxe)));
    let from_rxe = ["survive_loss", "survive_reordering", "survive_duplicates", "whole_and_in_order"];
    all.extend(netem::tests::<FromRxe>().into_iter().filter(|test| has(test, &from_rxe)));
    let datagrams = ["precedes_the_data", "address_a_reply", "reach_their_receivers"];
    all.extend(ud::tests::<ToRxe>().into_iter().filter(|test| has(test, &datagrams)));
    all.push(Test::without_devices("outside::the_link_is_removed", |_| {
        *link() = None;
        let left = words("rdma link show")?;
        ensure!(!left.contains(RXE.0), "{left}");
        Ok(())
    }));
    all
}
