// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bulk transfers on software NICs: in one process and in two, under loss, removal of a NIC, and the death of either side.

use crate::process::{Process, output, within};
use core::time::Duration;
use std::io::{BufRead as _, BufReader};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Instant;
use uverbs::efa_device::{self, EfaDevice};
use uverbs::hca::{Fabric, Hca};
use uverbs_examples::bulk::area::Kind;
use uverbs_examples::bulk::lanes::{self, Way};
use uverbs_examples::bulk::{Figures, Plan, receiver, sender};
use uverbs_examples::nic::Nic;

/// Small, with a queue that is much shorter than a batch.
const PLAN: Plan =
    Plan { blocks: 300, block_size: 1000, qps: 3, batches: 24, window: 2, depth: 16, stamps_only: false };

/// What the two sides say: the figures, and the lanes that the receiver has lost.
type Ends = (anyhow::Result<Figures>, anyhow::Result<Vec<String>>);

/// Two NICs for each side: first those of the sender.
struct Bed {
    fabric: Fabric,
    hcas: Vec<Hca>,
}

impl Bed {
    fn new(seed: u64) -> Self {
        let fabric = Fabric::new(seed);
        let hcas = (0..4).map(|n| fabric.device(&format!("hca{n}")).build()).collect();
        Self { fabric, hcas }
    }

    /// Transfers, and meanwhile calls `disturb`.
    fn both(&self, way: Way, plan: Plan, kind: Kind, disturb: impl FnOnce(&[Hca]) + Send + 'static) -> Ends {
        let hcas = self.hcas.clone();
        within(move || {
            let nics: Vec<_> = hcas.iter().map(Nic::software).collect();
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (from, to) = nics.split_at(2);
            std::thread::scope(|scope| {
                let (way, plan) = (&way, &plan);
                let received = scope.spawn(move || {
                    let (stream, _) = listener.accept()?;
                    receiver::receive(to, plan, kind, stream, way)
                });
                let sent = scope.spawn(move || sender::send(from, plan, stream, way));
                disturb(&hcas);
                (sent.join().unwrap(), received.join().unwrap())
            })
        })
    }

    fn transfer(&self, way: Way, plan: Plan, kind: Kind) -> Figures {
        let (sent, received) = self.both(way, plan, kind, |_| ());
        assert_eq!(received.unwrap(), [""; 0]);
        let figures = sent.unwrap();
        assert_eq!(figures.failed, [""; 0]);
        for hca in &self.hcas {
            assert_eq!(hca.violations(), []);
        }
        figures
    }
}

#[test]
fn all_blocks_arrive() {
    let figures = Bed::new(3).transfer(Way::default(), PLAN, Kind::Windows);
    assert_eq!((figures.devices.len(), figures.again), (2, 0));
    assert_eq!(figures.devices, ["hca0", "hca1"]);
    assert!(figures.megabytes > 0.0 && figures.p50 > 0.0 && figures.p50 <= figures.p99, "{figures:?}");
}

#[test]
fn a_dma_buf_and_lost_packets_make_no_difference() {
    let bed = Bed::new(3);
    bed.fabric.loss(0.01).duplicate(0.01).reorder(0.01);
    for kind in [Kind::Windows, Kind::Keys, Kind::DmaBuf] {
        bed.transfer(Way::default(), Plan { batches: 8, ..PLAN }, kind);
    }
}

/// Also the last acknowledgements are repeated.
#[test]
fn lost_packets_at_the_end_make_no_difference() {
    let plan = Plan { blocks: 8, block_size: 64, batches: 4, qps: 1, ..PLAN };
    // Beside each other: they wait for the timers of lost packets.
    std::thread::scope(|scope| {
        for seed in 0..16 {
            scope.spawn(move || {
                let bed = Bed::new(seed);
                bed.fabric.loss(0.05);
                bed.transfer(Way::default(), plan, Kind::Windows);
            });
        }
    });
}

#[test]
fn the_connection_manager_connects_all_qps() {
    Bed::new(3).transfer(Way::Cm(Vec::new()), PLAN, Kind::Windows);
}

#[test]
fn more_qps_than_batches_are_possible() {
    Bed::new(3).transfer(
        Way::default(),
        Plan { blocks: 2, qps: 5, depth: 4, batches: 3, ..PLAN },
        Kind::Windows,
    );
}

/// Large enough for a NIC to go in its middle.
const LONG: Plan =
    Plan { blocks: 64, block_size: 1024, qps: 2, batches: 400, window: 2, depth: 32, stamps_only: false };

/// Waits until this NIC transfers data, and for this time.
fn after(hca: &Hca, pause: Duration) {
    let begin = Instant::now();
    // The sides connect their QPs before they send anything, on a busy machine long after they have created them.
    while hca.stat().received < 50 {
        assert!(begin.elapsed() < Duration::from_secs(30), "it transfers nothing");
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(pause);
}

/// The batches of a NIC that is removed, at either side, are sent again by the other one. All data are compared.
#[test]
fn the_other_nic_takes_over() {
    // Without windows, the end of the QP ends the access of its lane.
    let cases = [(0, 0.0, 60), (1, 0.005, 120), (2, 0.0, 60), (3, 0.005, 120), (0, 0.0, 90), (3, 0.0, 90)];
    for (n, (victim, loss, pause)) in cases.into_iter().enumerate() {
        let kind = if n < 4 { Kind::Windows } else { Kind::Keys };
        let bed = Bed::new(victim as u64);
        bed.fabric.loss(loss);
        let (sent, received) = bed.both(Way::default(), LONG, kind, move |hcas| {
            after(&hcas[victim], Duration::from_millis(pause));
            hcas[victim].unplug();
        });
        let (figures, lost) = (sent.unwrap(), received.unwrap());
        assert_eq!((figures.failed.len(), lost.len()), (2, 2), "{figures:?}, {lost:?}");
        let own = |lanes: &[String], nic: usize| {
            let name = format!("hca{nic}");
            assert!(lanes.iter().all(|lane| lane.contains(&name)), "{lanes:?}");
        };
        own(&figures.failed, victim % 2);
        own(&lost, victim % 2 + 2);
        for (n, hca) in bed.hcas.iter().enumerate().filter(|(n, _)| *n != victim) {
            assert_eq!(hca.violations(), [], "hca{n}");
        }
    }
}

/// The process of a NIC's context is gone, so nothing answers; this side finds out by its timers.
#[test]
fn a_nic_that_ends_without_a_notice_is_replaced() {
    for victim in [0, 3] {
        let bed = Bed::new(victim as u64);
        let (sent, received) = bed.both(Way::default(), LONG, Kind::Windows, move |hcas| {
            after(&hcas[victim], Duration::from_millis(60));
            hcas[victim].kill();
        });
        assert_eq!((sent.unwrap().failed.len(), received.unwrap().len()), (2, 2));
    }
}

/// A dma-buf has the keys of one NIC, so its areas are not moved.
#[test]
fn areas_of_a_dma_buf_stay_with_their_nic() {
    let bed = Bed::new(5);
    let (sent, received) = bed.both(Way::default(), LONG, Kind::DmaBuf, |hcas| {
        after(&hcas[3], Duration::from_millis(60));
        hcas[3].unplug();
    });
    assert_eq!((sent.unwrap().failed.len(), received.unwrap().len()), (2, 2));
}

#[test]
fn without_a_nic_both_sides_end() {
    let begin = Instant::now();
    let (sent, received) = Bed::new(6).both(Way::default(), LONG, Kind::Windows, |hcas| {
        after(&hcas[0], Duration::from_millis(50));
        hcas[..2].iter().for_each(Hca::unplug);
    });
    let (sent, received) = (sent.unwrap_err().to_string(), received.unwrap_err().to_string());
    assert!(sent.contains("all lanes have failed"), "{sent}");
    assert!(received.contains("has gone") || received.contains("all lanes have failed"), "{received}");
    assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", begin.elapsed());
}

/// The sender writes only the stamps of the blocks, and the receiver compares all bytes: no other lane makes them right.
#[test]
fn wrong_data_end_the_transfer() {
    let bed = Bed::new(8);
    let nics: Vec<_> = bed.hcas.iter().map(Nic::software).collect();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (sent, received) = within(move || {
        std::thread::scope(|scope| {
            let (from, to) = nics.split_at(2);
            let received = scope.spawn(move || {
                let (stream, _) = listener.accept()?;
                receiver::receive(to, &PLAN, Kind::Windows, stream, &Way::default())
            });
            let plan = Plan { stamps_only: true, ..PLAN };
            (sender::send(from, &plan, stream, &Way::default()), received.join().unwrap())
        })
    });
    let error = format!("{:#}", received.unwrap_err());
    assert!(sent.is_err() && error.contains("block 0: wrong data from byte Some(8) on"), "{error}");
}

/// The queues of the other side are still there, so the device reports nothing.
#[test]
fn each_side_sees_that_the_other_has_gone() {
    for sends in [false, true] {
        let fabric = Fabric::new(3);
        let [here, there] = ["hca0", "hca1"].map(|name| [Nic::software(&fabric.device(name).build())]);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (theirs, _) = listener.accept().unwrap();
        let (ended, end) = channel::<()>();
        let other = std::thread::spawn(move || {
            let ports = lanes::ports(&there, &PLAN).unwrap();
            let lanes = match sends {
                true => lanes::accept(&ports, &theirs, &PLAN, &Way::default()),
                false => lanes::connect(&ports, &theirs, &PLAN, &Way::default()),
            };
            drop(theirs);
            end.recv().unwrap_err();
            drop((lanes, ports));
        });
        let begin = Instant::now();
        let error = within(move || match sends {
            true => sender::send(&here, &PLAN, stream, &Way::default()).unwrap_err(),
            false => receiver::receive(&here, &PLAN, Kind::Windows, stream, &Way::default()).unwrap_err(),
        });
        assert!(error.to_string().contains("has gone") && begin.elapsed().as_secs() < 30, "{error:#}");
        drop(ended);
        other.join().unwrap();
    }
}

#[test]
fn impossible_sizes_are_refused() {
    for plan in [
        Plan { blocks: 0, ..PLAN },
        Plan { window: 0, ..PLAN },
        Plan { depth: 3, ..PLAN },
        Plan { block_size: 7, ..PLAN },
        Plan { blocks: u32::MAX, block_size: u32::MAX, ..PLAN },
        Plan { blocks: 1 << 10, block_size: 1 << 20, qps: 64, window: 2, ..PLAN },
    ] {
        assert!(plan.bytes().is_err(), "{plan:?}");
    }
}

/// A receiver and a sender with these options, each a process on one fabric. Also the output of the receiver after its address.
fn processes(
    name: &str,
    options: &[&str],
) -> (Process, BufReader<std::process::ChildStdout>, Process, std::path::PathBuf) {
    let folder = std::env::temp_dir().join(format!("uverbs-bulk-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let bulk = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bulk"));
        command.arg("--fabric").arg(folder.join("fabric"));
        command.args(["-d", "hca0,hca1"]).args(options).args(args);
        Process::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()))
    };
    let mut receiver = bulk(&["--serve", "127.0.0.1:0"]);
    let (line, said) = receiver.first_line();
    let address = line.strip_prefix("listening on ").expect("the address").to_owned();
    let sender = bulk(&["--connect", &address, "--json"]);
    (receiver, said, sender, folder)
}

#[test]
fn two_processes_transfer_over_a_fabric() {
    let (mut receiver, mut said, mut sender, folder) =
        processes("two", &["-b", "200", "-s", "512", "-n", "8"]);
    assert!(sender.wait().success() && receiver.wait().success());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert_eq!(line, "received 8 batches; all data were right\n");
    let figures: serde_json::Value = serde_json::from_reader(sender.0.stdout.take().unwrap()).unwrap();
    assert_eq!((&figures["plan"]["blocks"], &figures["again"]), (&200.into(), &0.into()));
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Kills the sender or the receiver after a time. Returns what the other one says on stderr.
fn kill_one(kill_sender: bool, after: Duration) -> String {
    // So many batches that neither side ends by itself.
    let (mut receiver, _said, mut sender, folder) =
        processes(&format!("kill{kill_sender}"), &["-b", "64", "-s", "512", "-n", "4000000"]);
    std::thread::sleep(after);
    let (killed, other) =
        if kill_sender { (&mut sender, &mut receiver) } else { (&mut receiver, &mut sender) };
    assert!(killed.0.try_wait().unwrap().is_none() && other.0.try_wait().unwrap().is_none());
    killed.0.kill().unwrap();
    let begin = Instant::now();
    assert!(!other.wait().success());
    assert!(begin.elapsed() < Duration::from_secs(120), "{:?}", begin.elapsed());
    std::fs::remove_dir_all(&folder).unwrap();
    std::io::read_to_string(other.0.stderr.take().unwrap()).unwrap()
}

#[test]
fn a_killed_process_ends_the_other_one() {
    for kill_sender in [false, true] {
        // On a busy machine the two may still exchange their plans then.
        let mut after = Duration::from_millis(700);
        let text = loop {
            let text = kill_one(kill_sender, after);
            if !text.contains("failed to fill whole buffer") || after > Duration::from_secs(10) {
                break text;
            }
            after *= 4;
        };
        assert!(text.contains("has gone") || text.contains("all lanes have failed"), "{text}");
    }
}

#[test]
fn the_program_needs_no_options() {
    for options in
        [["-b", "16"].as_slice(), &["-b", "16", "--bench", "--dmabuf", "--cm"], &["-b", "16", "--keys"]]
    {
        let output = output(Command::new(env!("CARGO_BIN_EXE_bulk")).args(options));
        let text = String::from_utf8(output.stdout.clone()).unwrap();
        assert!(output.status.success() && text.contains("MB/s"), "{output:?}");
    }
}

/// Transfers on four software EFAs, of which two are the sender's.
fn datagrams(efas: [EfaDevice; 4], plan: Plan, disturb: fn(&[EfaDevice; 4])) -> Ends {
    within(move || {
        let nics = efas.each_ref().map(Nic::software);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (from, to) = nics.split_at(2);
        std::thread::scope(|scope| {
            let plan = &plan;
            let received = scope.spawn(move || {
                let (stream, _) = listener.accept()?;
                receiver::receive(to, plan, Kind::Windows, stream, &Way::default())
            });
            let sent = scope.spawn(move || sender::send(from, plan, stream, &Way::default()));
            disturb(&efas);
            (sent.join().unwrap(), received.join().unwrap())
        })
    })
}

fn lossy_efas(seed: u64) -> [EfaDevice; 4] {
    let fabric = efa_device::Fabric::new(seed);
    fabric.loss(0.01);
    [0, 1, 2, 3].map(|n| fabric.device(&format!("efa{n}")).build())
}

/// On EFA nothing has an order: a batch is told when its writes are complete. The areas are opened by the key of the pool.
#[test]
fn reliable_datagrams_carry_the_blocks() {
    let efas = lossy_efas(1);
    let (sent, received) = datagrams(efas.clone(), PLAN, |_| ());
    assert_eq!((sent.unwrap().failed, received.unwrap()), (vec![], vec![]));
    assert!(efas.iter().all(|efa| efa.violations().is_empty()));
}

/// A NIC of the receiver is removed in the middle: the other one has all batches.
#[test]
fn the_other_efa_takes_over() {
    let plan = Plan { blocks: 60, batches: 120, ..PLAN };
    let (sent, received) = datagrams(lossy_efas(2), plan, |efas| {
        while efas[2].stat().received < 500 {
            std::thread::sleep(Duration::from_millis(2));
        }
        efas[2].unplug();
    });
    assert_eq!(sent.unwrap().failed.len(), PLAN.qps as usize);
    assert_eq!(received.unwrap().len(), PLAN.qps as usize);
}
