// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bulk transfers on software NICs: in one process and in two, to memory and to a dma-buf.

use std::io::{BufRead as _, BufReader};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Instant;
use uverbs::attr::AccessFlags;
use uverbs::hca::Fabric;
use uverbs::mlx5::Mlx5;
use uverbs_examples::bulk::ends::{self, End, Way};
use uverbs_examples::bulk::{Figures, Plan, receiver, sender};
use uverbs_examples::nic::Nic;

/// Small, with a queue that is much shorter than a batch.
const PLAN: Plan =
    Plan { blocks: 300, block_size: 1000, qps: 3, batches: 6, window: 2, depth: 16, stamps_only: false };

fn transfer(plan: &Plan, dmabuf: bool, disturb: impl FnOnce(&Fabric)) -> anyhow::Result<Figures> {
    transfer_by(Way::default(), plan, dmabuf, disturb)
}

fn transfer_by(
    way: Way,
    plan: &Plan,
    dmabuf: bool,
    disturb: impl FnOnce(&Fabric),
) -> anyhow::Result<Figures> {
    transfer_on(&Fabric::new(3), way, plan, dmabuf, disturb)
}

fn transfer_on(
    fabric: &Fabric,
    way: Way,
    plan: &Plan,
    dmabuf: bool,
    disturb: impl FnOnce(&Fabric),
) -> anyhow::Result<Figures> {
    let hcas: Vec<_> = (0..4).map(|n| fabric.device(&format!("hca{n}")).build()).collect();
    let nics: Vec<_> = hcas.iter().cloned().map(Nic::Software).collect();
    disturb(fabric);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (from, to) = nics.split_at(2);
    let figures = std::thread::scope(|scope| {
        let received = scope.spawn(|| {
            let (stream, _) = listener.accept()?;
            receiver::receive::<Mlx5>(to, plan, dmabuf, &stream, &way)
        });
        let sent = sender::send::<Mlx5>(from, plan, &stream, &way);
        drop(stream);
        let received = received.join().unwrap();
        sent.and_then(|figures| received.map(|()| figures))
    })?;
    for hca in &hcas {
        assert_eq!(hca.violations(), []);
    }
    Ok(figures)
}

#[test]
fn all_blocks_arrive_and_full_queues_hold_the_sender_back() {
    let figures = transfer(&PLAN, false, |_| ()).unwrap();
    assert!(figures.immediate);
    assert_eq!(figures.devices, ["hca0", "hca1"]);
    assert!(figures.megabytes > 0.0 && figures.p50 > 0.0 && figures.p50 <= figures.p99, "{figures:?}");
}

#[test]
fn a_dma_buf_and_lost_packets_make_no_difference() {
    transfer(&PLAN, true, |fabric| _ = fabric.loss(0.01).duplicate(0.01)).unwrap();
}

/// Also the last acknowledgements are repeated.
#[test]
fn lost_packets_at_the_end_make_no_difference() {
    let plan = Plan { blocks: 8, block_size: 64, batches: 2, ..PLAN };
    let transfer = |seed| {
        let lossy = |fabric: &Fabric| _ = fabric.loss(0.1);
        transfer_on(&Fabric::new(seed), Way::default(), &plan, false, lossy).unwrap();
    };
    // Beside each other: they wait for the timers of lost packets.
    std::thread::scope(|scope| (0..16).for_each(|seed| _ = scope.spawn(move || transfer(seed))));
}

/// The queues of the other side are still there, so the device reports nothing.
#[test]
fn each_side_sees_that_the_other_has_gone() {
    for sends in [false, true] {
        let fabric = Fabric::new(3);
        let [here, there] = ["hca0", "hca1"].map(|name| [Nic::Software(fabric.device(name).build())]);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (theirs, _) = listener.accept().unwrap();
        let (ended, end) = channel::<()>();
        let other = std::thread::spawn(move || {
            let mut ends = [End::<Mlx5>::new(&there[0], &PLAN, AccessFlags::REMOTE_WRITE, false).unwrap()];
            if sends {
                ends::connect_receiver(&mut ends, &theirs, &PLAN, &Way::default()).unwrap();
            } else {
                ends::connect_sender(&mut ends, &theirs, &PLAN, &Way::default()).unwrap();
            }
            drop(theirs);
            end.recv().unwrap_err();
        });
        let begin = Instant::now();
        let error = if sends {
            sender::send::<Mlx5>(&here, &PLAN, &stream, &Way::default()).unwrap_err()
        } else {
            receiver::receive::<Mlx5>(&here, &PLAN, false, &stream, &Way::default()).unwrap_err()
        };
        assert!(error.to_string().contains("has gone") && begin.elapsed().as_secs() < 30, "{error:#}");
        drop(ended);
        other.join().unwrap();
    }
}

#[test]
fn the_connection_manager_connects_all_qps() {
    transfer_by(Way::Cm(Vec::new()), &PLAN, false, |_| ()).unwrap();
}

#[test]
fn more_qps_than_blocks_are_possible() {
    transfer(&Plan { blocks: 2, qps: 5, depth: 4, ..PLAN }, false, |_| ()).unwrap();
}

#[test]
fn impossible_sizes_are_refused() {
    for plan in [
        Plan { blocks: 0, ..PLAN },
        Plan { window: 0, ..PLAN },
        Plan { depth: 3, ..PLAN },
        Plan { block_size: 7, ..PLAN },
        Plan { blocks: u32::MAX, block_size: u32::MAX, ..PLAN },
    ] {
        assert!(plan.bytes().is_err(), "{plan:?}");
    }
}

#[test]
fn two_processes_transfer_over_a_fabric() {
    let folder = std::env::temp_dir().join(format!("uverbs-bulk-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let bulk = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bulk"));
        command.arg("--fabric").arg(folder.join("fabric"));
        command.args(["-d", "hca0,hca1", "-b", "200", "-s", "512", "-n", "4"]).args(args);
        command
    };
    let mut receiver = bulk(&["--serve", "127.0.0.1:0"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(receiver.stdout.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("listening on ").expect("the address");
    let sent = bulk(&["--connect", address, "--json"]).output().unwrap();
    if !sent.status.success() {
        receiver.kill().unwrap();
    }
    assert!(receiver.wait().unwrap().success(), "{sent:?}");
    line.clear();
    said.read_line(&mut line).unwrap();
    assert_eq!(line, "received 4 batches; all data were right\n");
    let figures: serde_json::Value = serde_json::from_slice(&sent.stdout).unwrap();
    assert_eq!(figures["plan"]["blocks"], 200);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn the_program_needs_no_options() {
    for cm in [None, Some("--cm")] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bulk"));
        let output = command.args(["-b", "64", "--bench", "--dmabuf"]).args(cm).output().unwrap();
        let text = String::from_utf8(output.stdout.clone()).unwrap();
        assert!(output.status.success() && text.contains("a dma-buf") && text.contains("MB/s"), "{output:?}");
    }
}
