// SPDX-License-Identifier: MIT OR Apache-2.0
//! The key-value store on software NICs: against a model, with clients that are killed or hostile, and by processes.

use core::cell::RefCell;
use core::time::Duration;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, TestRunner};
use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Instant;
use uverbs::hca::{Fabric, Hca};
use uverbs::mlx5::Mlx5;
use uverbs::{AnyDriver, Context, ImmData, Rc, RemoteRegion};
use uverbs::{Cq, Pool, Qp};
use uverbs::{
    Exclusive, Private,
    attr::{AccessFlags, QpCap},
};
use uverbs_examples::kv::aio;
use uverbs_examples::kv::bench::{check, measure};
use uverbs_examples::kv::client::{Ask, Way};
use uverbs_examples::kv::proto::{Answer, HEADER, MESSAGE, Op, Request, Status, Welcome};
use uverbs_examples::kv::{Client, Config, Listen, Outcome, Report, Server};
use uverbs_examples::link::{self, Link, Path, Target};
use uverbs_examples::nic::{Joint, Nic, find};

/// Ends a test that hangs.
const LIMIT: Duration = Duration::from_secs(120);

fn small() -> Config {
    Config {
        clients: 12,
        credits: 8,
        slots: 2,
        max_value: 8192,
        values: 200,
        keys: 1000,
        ..Config::default()
    }
}

/// A server on a software NIC, and another NIC for clients.
fn server(config: Config) -> (Server, Target, Hca, Fabric) {
    let fabric = Fabric::new(7);
    let (there, here) = (fabric.device("hca0").build(), fabric.device("hca1").build());
    let at = Listen::Tcp(([127, 0, 0, 1], 0).into());
    let server = Server::start::<Mlx5>(&Nic::software(&there), at, config).unwrap();
    let target = Target::Tcp(server.address());
    (server, target, here, fabric)
}

fn client(hca: &Hca, target: &Target, way: Way) -> Client<Mlx5> {
    Client::connect(&Nic::software(hca), target, Path::default(), way).unwrap()
}

/// The server ends, and has lost no buffer and no object.
fn ended(server: Server) -> Report {
    let report = server.shutdown().unwrap();
    assert_eq!(report.lost, 0, "{report:?}");
    report
}

#[derive(Clone, Debug)]
enum Step {
    Put(u8, usize, u8),
    Get(u8),
    Delete(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let len = prop_oneof![Just(0), 1..760_usize, 700..800_usize, Just(8192), 1..8192_usize];
    let step = prop_oneof![
        3 => (0..6_u8, len, any::<u8>()).prop_map(|(key, len, seed)| Step::Put(key, len, seed)),
        3 => (0..6_u8).prop_map(Step::Get),
        1 => (0..6_u8).prop_map(Step::Delete),
    ];
    vec(step, 1..40)
}

#[test]
fn any_requests_have_the_results_of_a_map() {
    let (server, target, hca, _fabric) = server(small());
    for way in [Way::Best, Way::WriteThenSend] {
        let client = client(&hca, &target, way);
        assert_eq!(client.has_immediate(), way == Way::Best);
        let client = RefCell::new(client);
        let cases = Cases { cases: 24, failure_persistence: None, ..Cases::default() };
        TestRunner::new(cases)
            .run(&steps(), |steps| {
                let mut client = client.borrow_mut();
                let mut model: HashMap<u8, Vec<u8>> = HashMap::new();
                for step in &steps {
                    match *step {
                        Step::Put(key, len, seed) => {
                            let value: Vec<u8> = (0..len).map(|i| seed.wrapping_add(i as u8)).collect();
                            client.put(&[key], &value).unwrap();
                            model.insert(key, value);
                        }
                        Step::Get(key) => {
                            let got = client.get(&[key]).unwrap();
                            prop_assert_eq!(got.as_deref(), model.get(&key).map(Vec::as_slice));
                        }
                        Step::Delete(key) => {
                            prop_assert_eq!(client.delete(&[key]).unwrap(), model.remove(&key).is_some());
                        }
                    }
                }
                for key in model.keys() {
                    client.delete(&[*key]).unwrap();
                }
                Ok(())
            })
            .unwrap();
    }
    assert_eq!(ended(server).malformed, 0);
    assert_eq!(hca.violations(), []);
}

/// Eight clients; another one is killed with requests outstanding.
#[test]
fn a_killed_client_does_not_stop_the_others() {
    let (server, target, hca, fabric) = server(small());
    let victim_hca = fabric.device("hca2").build();
    let mut victim = client(&victim_hca, &target, Way::Best);
    victim.put(b"large", &[1; 5000]).unwrap();
    // A lease is held, and gets are outstanding, when the device forgets the client.
    for _ in 0..4 {
        victim.start(&Ask::Get(b"large")).unwrap().unwrap();
    }
    victim_hca.kill();
    std::thread::scope(|scope| {
        for number in 0..8 {
            let (hca, target) = (&hca, &target);
            scope.spawn(move || check(&mut client(hca, target, Way::Best), number, 60).unwrap());
        }
    });
    drop(victim);
    let mut late = client(&hca, &target, Way::Best);
    assert_eq!(late.get(b"large").unwrap().as_deref(), Some(&[1; 5000][..]));
    assert_eq!(ended(server).clients, 10);
    drop(late);
    assert_eq!(hca.violations(), []);
}

/// Ends a test in which a client waits for the time limit of a request.
const SOON: Duration = Duration::from_secs(30);

/// The device of the server has taken the request, so the client's queue does not fail.
#[test]
fn a_client_sees_the_end_of_a_server_that_does_not_answer() {
    let (error, _) = sees_the_end(false, |_, link| link.close());
    assert!(error.contains("has ended"), "{error}");
}

#[test]
fn a_client_of_futures_sees_the_end_of_a_server_that_does_not_answer() {
    let (error, _) = sees_the_end(true, |_, link| link.close());
    assert!(error.contains("has ended"), "{error}");
}

/// Nothing is said: the TCP connection remains, as one of the connection manager does. The request was acknowledged.
#[test]
fn a_client_sees_that_the_device_of_its_server_was_killed() {
    let killed = |futures| {
        let (error, cause) = sees_the_end(futures, |hca, _| hca.kill());
        assert!(cause.contains("retry"), "{error}: {cause}");
    };
    // Beside each other: each waits until the device has sent its request again several times.
    std::thread::scope(|scope| [false, true].map(|futures| _ = scope.spawn(move || killed(futures))));
}

/// The error of a request after the server has received it, did not answer, and ended; and the reason of the error.
fn sees_the_end(futures: bool, end: fn(&Hca, &Link)) -> (String, String) {
    let fabric = Fabric::new(7);
    let (there, here) = (fabric.device("hca0").build(), fabric.device("hca1").build());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = Target::Tcp(listener.local_addr().unwrap());
    let (ended, ending) = channel::<()>();
    let server = std::thread::spawn(move || {
        let context = Context::<Mlx5>::from_kernel(there.open()).unwrap();
        let pd = context.alloc_pd().unwrap();
        let pool = pd.pool(4, MESSAGE as u32).unwrap();
        let mut cq: Cq<Exclusive, Mlx5> = context.cq_with(16, None).unwrap();
        let cap = QpCap::new(4, 4);
        let qp: Qp<Rc, Exclusive, Mlx5> = pd.qp().cq(&cq).cap(cap).create().unwrap();
        let mut connected = None;
        let (stream, _) = listener.accept().unwrap();
        let access = AccessFlags::REMOTE_WRITE;
        let link = link::accept_tcp(qp, stream, Path::default(), access, |mut qp, _| {
            for _ in 0..2 {
                qp.rq().unwrap().post(1, pool.get().unwrap())?;
            }
            connected = Some(qp);
            Ok(())
        });
        let (link, mut qp) = (link.unwrap(), connected.unwrap());
        let mut received = || {
            while cq.poll_one().unwrap().is_none_or(|done| done.wc.wr_id != 1) {
                std::thread::yield_now();
            }
        };
        received();
        let region = RemoteRegion::new(0, 0, 0).unwrap();
        let welcome = Welcome {
            credits: 1,
            max_value: 1,
            slot_size: 512,
            slot_stride: 512,
            slots: 0,
            immediate: true,
            region,
        };
        let mut answer = [0; MESSAGE];
        let hello = Answer { status: Status::Ok, id: 0, arg: 0, value: &welcome.encode() };
        hello.encode(&mut answer);
        let mut buf = pool.get().unwrap();
        buf.fill(&answer[..hello.len()]).unwrap();
        qp.sq().post(0).send(buf).unwrap();
        // The request.
        received();
        end(&there, &link);
        ending.recv().unwrap_err();
    });
    let begin = Instant::now();
    let error: anyhow::Error = if futures {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let nic = Nic::software(&here);
            let mut client = aio::Client::<Mlx5>::connect(&nic, &target, Path::default()).await.unwrap();
            client.ask(&Ask::Get(b"key")).await.unwrap_err()
        })
    } else {
        client(&here, &target, Way::Best).get(b"key").unwrap_err()
    };
    assert!(begin.elapsed() < SOON, "{error}, {:?}", begin.elapsed());
    drop(ended);
    server.join().unwrap();
    (error.to_string(), error.root_cause().to_string())
}

#[test]
fn a_client_names_the_address_at_which_there_is_no_server() {
    let nic = Nic::software(&Hca::new());
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (target, path) = (Target::Tcp(nobody), Path::default());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for error in [
        Client::<Mlx5>::connect(&nic, &target, path, Way::Best).map(drop).unwrap_err(),
        runtime.block_on(aio::Client::<Mlx5>::connect(&nic, &target, path)).map(drop).unwrap_err(),
    ] {
        assert_eq!(error.to_string(), format!("no server at {nobody}"));
    }
}

/// The client has no request outstanding, so it does not see the end.
#[test]
fn a_server_whose_device_is_removed_does_not_wait_for_its_clients() {
    let fabric = Fabric::new(7);
    let (there, here) = (fabric.device("hca0").build(), fabric.device("hca1").build());
    let at = Listen::Tcp(([127, 0, 0, 1], 0).into());
    let server = Server::start::<Mlx5>(&Nic::software(&there), at, small()).unwrap();
    let idle = client(&here, &Target::Tcp(server.address()), Way::Best);
    there.unplug();
    let (result, ended) = channel();
    std::thread::spawn(move || result.send(server.shutdown()));
    assert!(ended.recv_timeout(SOON).unwrap().is_err());
    drop(idle);
}

#[test]
fn the_connection_manager_connects_too() {
    let fabric = Fabric::new(7);
    let (there, hca) = (fabric.device("hca0").build(), fabric.device("hca1").build());
    let at = (there.addresses()[0], 0).into();
    let server = Server::start::<AnyDriver>(&Nic::software(&there), Listen::Cm(at), small()).unwrap();
    let target = Target::Cm(server.address());
    let nic = Nic::software(&hca);
    let mut all: Vec<_> = (0..3)
        .map(|_| Client::<AnyDriver>::connect(&nic, &target, Path::default(), Way::Best).unwrap())
        .collect();
    for (number, client) in (0..).zip(&mut all) {
        check(client, number, 30).unwrap();
    }
    all.truncate(1);
    let figures = measure("hca1", &mut all, &[16, 5000], 4, 50).unwrap();
    assert_eq!(figures.rows.len(), 4);
    assert!(
        figures.rows.iter().all(|row| row.rate > 0.0 && row.p50 > 0.0 && row.p50 <= row.max),
        "{figures:?}"
    );
    assert_eq!(ended(server).clients, 3);
    // The server closed everything on its device.
    assert!(there.objects().values().all(|count| *count == 0), "{:?}", there.objects());
}

/// What a hostile client gets.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    Answer(Status, u32),
    Disconnected,
}

/// A client that sends what it likes.
struct Hostile {
    qp: Qp<Rc, Exclusive, Mlx5>,
    cq: Cq<Exclusive, Mlx5>,
    pool: Pool<Private, Mlx5>,
    link: Link,
}

impl Hostile {
    fn new(hca: &Hca, target: &Target, receives: u32) -> Self {
        let nic = Nic::software(hca);
        let context: Context<Mlx5> = nic.open().unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.cq_with(256, None).unwrap();
        let cap = QpCap::new(128, 64).inline(64);
        let qp = pd.qp::<Rc>().cq(&cq).cap(cap).create().unwrap();
        let pool = pd.pool(192, 4096).unwrap();
        let receive = |qp: &mut Qp<Rc, Exclusive, Mlx5>| {
            for _ in 0..receives {
                qp.rq().unwrap().post(1, pool.get().unwrap()).unwrap();
            }
            Ok(())
        };
        let (qp, link) = link::connect(qp, &context, &nic, target, Path::default(), receive).unwrap();
        Self { qp, cq, pool, link }
    }

    fn send(&mut self, message: &[u8]) {
        let mut buf = self.pool.get().unwrap();
        buf.fill(message).unwrap();
        self.qp.sq().post(0).signaled().send(buf).unwrap();
    }

    fn is_disconnected(&self) -> bool {
        let Link::Tcp(stream) = &self.link else { panic!("{:?}", self.link) };
        stream.set_nonblocking(true).unwrap();
        matches!((&*stream).read(&mut [0]), Ok(0))
    }

    fn fate(&mut self) -> Fate {
        self.answer(|answer| Fate::Answer(answer.status, answer.id)).unwrap_or(Fate::Disconnected)
    }

    /// The next answer; `None` after the end of the connection.
    fn answer<R>(&mut self, f: impl Fn(&Answer<'_>) -> R) -> Option<R> {
        let begin = Instant::now();
        loop {
            let is_gone = self.is_disconnected();
            match self.cq.poll_one().unwrap() {
                Some(done) if done.wc.status.ok().is_err() => return None,
                Some(done) if done.wc.wr_id == 1 => {
                    let buf = done.buf().unwrap();
                    let result = f(&Answer::decode(&buf).expect("the server's answers are valid"));
                    self.qp.rq().unwrap().post(1, buf).unwrap();
                    return Some(result);
                }
                Some(_) => {}
                None if is_gone => return None,
                None => {
                    assert!(begin.elapsed() < LIMIT, "neither an answer nor the end");
                    std::thread::yield_now();
                }
            }
        }
    }

    fn welcome(&mut self) -> Welcome {
        self.send(&message(Op::Hello, 9, 0, b"", b""));
        self.answer(|answer| Welcome::decode(answer.value)).unwrap().expect("a welcome")
    }
}

fn message(op: Op, id: u32, arg: u32, key: &[u8], value: &[u8]) -> Vec<u8> {
    let request = Request { op, id, arg, key, value };
    let mut out = vec![0; request.len()];
    request.encode(&mut out);
    out
}

#[test]
fn malformed_requests_are_answered_or_end_the_connection() {
    let (server, target, hca, _fabric) = server(small());
    let mut honest = client(&hca, &target, Way::Best);
    let good = message(Op::Put, 5, 0, b"key", b"value");
    let changed = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        bytes
    };
    let mut hostile = Hostile::new(&hca, &target, 16);
    for bad in [
        changed(0, 77),
        changed(1, 0),
        changed(1, 200),
        changed(2, 255),
        changed(11, 200),
        good[..20].to_vec(),
    ] {
        hostile.send(&bad);
        assert_eq!(hostile.fate(), Fate::Answer(Status::Malformed, 5), "{bad:?}");
    }
    hostile.send(&message(Op::Release, 6, 12345, b"", b""));
    assert_eq!(hostile.fate(), Fate::Answer(Status::Malformed, 6));

    // A message without a header, one that is longer than a receive, a slot that does not exist.
    for bad in [&good[..HEADER - 1], &[], &[3; MESSAGE + 1], &message(Op::PutSlot, 7, 99, b"", b"")] {
        let mut hostile = Hostile::new(&hca, &target, 16);
        hostile.send(bad);
        assert_eq!(hostile.fate(), Fate::Disconnected, "{} bytes", bad.len());
    }
    let mut hostile = Hostile::new(&hca, &target, 16);
    let region = hostile.welcome().region;
    let buf = hostile.pool.get().unwrap();
    hostile.qp.sq().post(0).write_imm(buf, &region, ImmData::new(u32::MAX)).unwrap();
    assert_eq!(hostile.fate(), Fate::Disconnected);

    honest.put(b"key", b"still here").unwrap();
    assert_eq!(honest.get(b"key").unwrap().as_deref(), Some(&b"still here"[..]));
    let report = ended(server);
    // The client of the long message may notice its end first.
    assert_eq!((report.malformed, report.broken >= 4), (11, true), "{report:?}");
}

#[test]
fn slots_with_any_bytes_are_refused_or_stored() {
    let (server, target, hca, _fabric) = server(small());
    let mut hostile = Hostile::new(&hca, &target, 16);
    let region = hostile.welcome().region;
    let put = |key_len: usize, value_len: usize| {
        message(Op::Put, 3, 0, &vec![1; key_len], &vec![2; value_len])[..HEADER].to_vec()
    };
    let good = message(Op::Put, 3, 0, b"key", &[9; 2000]);
    let nested = message(Op::PutSlot, 3, 0, b"key", b"value");
    for (bytes, expected) in [
        (&good, Status::Ok),
        (&nested, Status::Malformed),
        (&message(Op::Get, 3, 0, b"key", b""), Status::Malformed),
        // Longer than the slot, with and without an overflow of 32 bits.
        (&put(256, 8193 + 256), Status::Malformed),
        (&[&put(0, 0)[..8], &[0xff; 8]].concat(), Status::Malformed),
    ] {
        let mut buf = hostile.pool.get().unwrap();
        buf.fill(bytes).unwrap();
        hostile.qp.sq().post(0).write_imm(buf, &region, ImmData::new(0)).unwrap();
        assert_eq!(hostile.fate(), Fate::Answer(expected, 3), "{:?}", &bytes[..HEADER]);
    }
    assert_eq!(ended(server).malformed, 4);
}

#[test]
fn random_messages_do_not_stop_the_server() {
    let (server, target, hca, _fabric) = server(small());
    let mut honest = client(&hca, &target, Way::Best);
    let hostile = RefCell::new(Hostile::new(&hca, &target, 16));
    let valid_front = (0..9_u8, vec(any::<u8>(), 14)).prop_map(|(op, rest)| [&[1, op], &rest[..]].concat());
    let bytes = prop_oneof![vec(any::<u8>(), 0..200), valid_front];
    TestRunner::new(Cases { cases: 200, failure_persistence: None, ..Cases::default() })
        .run(&bytes, |bytes| {
            let mut hostile = hostile.borrow_mut();
            hostile.send(&bytes);
            // A valid release would have no answer, but nothing is leased.
            if hostile.fate() == Fate::Disconnected {
                *hostile = Hostile::new(&hca, &target, 16);
            }
            Ok(())
        })
        .unwrap();
    check(&mut honest, 1, 30).unwrap();
    ended(server);
}

/// A client that takes no answers, or keeps its leases, harms only itself.
#[test]
fn clients_that_ignore_their_limits_are_stopped() {
    let (server, target, hca, _fabric) = server(small());
    let mut honest = client(&hca, &target, Way::Best);
    honest.put(b"large", &[7; 8000]).unwrap();

    let mut greedy = Hostile::new(&hca, &target, 32);
    greedy.welcome();
    let mut fates = Vec::new();
    for id in 0..10 {
        greedy.send(&message(Op::Get, id, 0, b"large", b""));
        fates.push(greedy.fate());
    }
    let expected: Vec<_> = (0..10)
        .map(|id| Fate::Answer(if id < small().credits { Status::Large } else { Status::Busy }, id))
        .collect();
    assert_eq!(fates, expected);

    let mut deaf = Hostile::new(&hca, &target, 0);
    for id in 0..100 {
        deaf.send(&message(Op::Get, id, 0, b"no such key", b""));
    }
    assert_eq!(deaf.fate(), Fate::Disconnected);
    check(&mut honest, 1, 30).unwrap();
    // The leases end with their client.
    let report = ended(server);
    assert_eq!(report.broken, 1, "{report:?}");
}

#[test]
fn peers_that_are_no_clients_are_refused() {
    let (server, target, hca, _fabric) = server(small());
    let Target::Tcp(address) = target else { panic!("{target:?}") };
    let silent = TcpStream::connect(address).unwrap();
    let mut noisy = TcpStream::connect(address).unwrap();
    noisy.write_all(&[0xff; 100]).unwrap();
    noisy.set_read_timeout(Some(LIMIT)).unwrap();
    assert!(!matches!(noisy.read(&mut [0; 1]), Ok(1..)), "it got an answer");
    check(&mut client(&hca, &target, Way::Best), 0, 20).unwrap();
    drop(silent);
    assert_eq!(ended(server).clients, 1);
}

#[test]
fn results_come_in_any_order_and_limits_are_back_pressure() {
    let (server, target, hca, _fabric) = server(small());
    let mut client = client(&hca, &target, Way::Best);
    let values: Vec<Vec<u8>> = (0..20).map(|n| vec![n; 3000 + usize::from(n)]).collect();
    let (mut started, mut done) = (0, 0);
    while done < values.len() {
        while started < values.len()
            && client.start(&Ask::Put(&[started as u8], &values[started])).unwrap().is_some()
        {
            started += 1;
        }
        assert!(started - done <= small().slots as usize, "no more than the slots");
        assert!(matches!(client.next_result().unwrap(), Some((_, Outcome::Done))));
        done += 1;
    }
    let mut asked = HashMap::new();
    for n in 0..small().credits as u8 {
        asked.insert(client.start(&Ask::Get(&[n])).unwrap().unwrap(), n);
    }
    assert!(client.start(&Ask::Get(b"x")).unwrap().is_none(), "the credits are used up");
    while let Some((id, outcome)) = client.next_result().unwrap() {
        let n = asked.remove(&id).unwrap();
        assert!(matches!(outcome, Outcome::Value(value) if *value == *values[usize::from(n)]));
    }
    assert!(asked.is_empty());
    ended(server);
}

/// Kills the process when the test fails.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Server and clients are processes; one client is killed by SIGKILL while it makes requests.
#[test]
fn processes_share_a_fabric() {
    let folder = std::env::temp_dir().join(format!("uverbs-kv-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let socket = folder.join("fabric");
    let kv = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kv"));
        command.arg("--fabric").arg(&socket).args(args).stdin(Stdio::null());
        command
    };
    let mut server = Process(
        kv(&["--serve", "127.0.0.1:0"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap(),
    );
    let mut line = String::new();
    BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("listening on ").expect("the address").to_owned();

    let mut victim = Process(
        kv(&["--connect", &address, "-c", "2", "-n", "4000000000"]).stdout(Stdio::null()).spawn().unwrap(),
    );
    let nic = find(&["hca0".into()], Joint::Join(&socket)).unwrap().remove(0);
    let target = Target::Tcp(address.parse().unwrap());
    let mut client = Client::<Mlx5>::connect(&nic, &target, Path::default(), Way::Best).unwrap();
    let begin = Instant::now();
    // The first key of the victim's first client appears now and then.
    while client.get(b"client..\0\0\0\0\0\0\0\0").unwrap().is_none() {
        assert!(begin.elapsed() < LIMIT, "the other client makes no requests");
        assert!(victim.0.try_wait().unwrap().is_none(), "it ended");
    }
    victim.0.kill().unwrap();
    check(&mut client, 7, 30).unwrap();
    let run = |args: &[&str]| {
        let output = kv(&[&["--connect", &address], args].concat()).output().unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    run(&["--put", "greeting", "hello"]);
    assert_eq!(run(&["--get", "greeting"]), "hello\n");
    run(&["--delete", "greeting"]);
    assert!(run(&["-c", "2", "-n", "10"]).contains("every result was right"));

    let pid = nix::unistd::Pid::from_raw(server.0.id().try_into().unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    let mut said = String::new();
    server.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(server.0.wait().unwrap().success(), "{said}");
    assert!(said.contains("(0 malformed"), "{said}");
    std::fs::remove_dir_all(&folder).unwrap();
}

/// The server waits for the endpoint of a client.
#[test]
fn a_server_ends_while_a_client_says_nothing() {
    let begin = Instant::now();
    let (server, target, ..) = server(small());
    let Target::Tcp(address) = target else { panic!("TCP") };
    let silent = TcpStream::connect(address).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(ended(server).clients, 0);
    drop(silent);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let report = runtime.block_on(async {
        let at = Listen::Tcp(([127, 0, 0, 1], 0).into());
        let server = aio::Server::<Mlx5>::open(&Nic::software(&Hca::new()), at, small()).await.unwrap();
        let _silent = TcpStream::connect(server.address()).unwrap();
        server.serve(tokio::time::sleep(Duration::from_millis(300))).await.unwrap()
    });
    drop(runtime);
    assert_eq!((report.clients, report.lost), (0, 0));
    assert!(begin.elapsed() < Duration::from_secs(15), "{:?}", begin.elapsed());
}

/// Clients that say nothing use up the files that the server may open. It serves the next ones when these have gone.
#[test]
fn a_server_without_free_files_does_not_end() {
    for options in ["", "--async"] {
        let mut command = Command::new("sh");
        let kv = format!("ulimit -n 40 && exec {} --serve 127.0.0.1:0 {options}", env!("CARGO_BIN_EXE_kv"));
        command.args(["-c", &kv]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut server = Process(command.spawn().unwrap());
        let mut line = String::new();
        BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on ").expect("the address");
        let crowd: Vec<_> = (0..60).map(|_| TcpStream::connect(address).unwrap()).collect();
        // Some of them wait to be accepted.
        std::thread::sleep(Duration::from_millis(500));
        assert!(server.0.try_wait().unwrap().is_none(), "{options}: it ended");
        drop(crowd);
        let pid = nix::unistd::Pid::from_raw(server.0.id().try_into().unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
        assert!(server.0.wait().unwrap().success(), "{options}");
    }
}

/// The server and the clients that are futures; and a client of each kind with the server of the other.
#[test]
fn futures_speak_the_same_protocol() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (sync_server, target, hca, fabric) = server(small());
    let nic = Nic::software(&hca);
    let report = runtime.block_on(async {
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let there = Nic::software(&fabric.device("hca2").build());
        let at = Listen::Tcp(([127, 0, 0, 1], 0).into());
        let serving = aio::Server::<Mlx5>::open(&there, at, small()).await.unwrap();
        let address = serving.address();
        let serving = tokio::spawn(serving.serve(async { _ = stopped.await }));
        let (there, sync_there) = (Target::Tcp(address), target);
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..4 {
            let mut client = aio::Client::<Mlx5>::connect(&nic, &there, Path::default()).await.unwrap();
            tasks.spawn(async move { aio::check(&mut client, number, 50).await });
        }
        let mut other = aio::Client::<Mlx5>::connect(&nic, &sync_there, Path::default()).await.unwrap();
        aio::check(&mut other, 4, 50).await.unwrap();
        other.shutdown().await.unwrap();
        while let Some(task) = tasks.join_next().await {
            task.unwrap().unwrap();
        }
        let (blocking, target) = (hca.clone(), there.clone());
        let sync = move || check(&mut client(&blocking, &target, Way::Best), 5, 50).unwrap();
        tokio::task::spawn_blocking(sync).await.unwrap();
        // One client is still connected when the server ends.
        let mut late = aio::Client::<Mlx5>::connect(&nic, &there, Path::default()).await.unwrap();
        drop(stop);
        let report = serving.await.unwrap().unwrap();
        // It does not wait for the retries of its message.
        let begin = Instant::now();
        let error = late.ask(&Ask::Get(b"key")).await.unwrap_err().to_string();
        assert!(begin.elapsed() < SOON / 5 && error.contains("has ended"), "{error}, {:?}", begin.elapsed());
        report
    });
    assert_eq!((report.clients, report.malformed, report.lost), (6, 0, 0), "{report:?}");
    assert_eq!(ended(sync_server).clients, 1);
    assert_eq!(hca.violations(), []);
}

#[test]
fn hostile_clients_do_not_stop_the_server_of_futures() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let fabric = Fabric::new(7);
    let (there, hca) = (fabric.device("hca0").build(), fabric.device("hca1").build());
    let at = Listen::Tcp(([127, 0, 0, 1], 0).into());
    let there = Nic::software(&there);
    let serving = runtime.block_on(aio::Server::<Mlx5>::open(&there, at, small())).unwrap();
    let target = Target::Tcp(serving.address());
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = runtime.spawn(serving.serve(async { _ = stopped.await }));
    let mut hostile = Hostile::new(&hca, &target, 16);
    hostile.send(&message(Op::Release, 6, 12345, b"", b""));
    assert_eq!(hostile.fate(), Fate::Answer(Status::Malformed, 6));
    hostile.send(&[1; HEADER - 1]);
    assert_eq!(hostile.fate(), Fate::Disconnected);
    // This one takes no answers. Its task waits for it, and only its task.
    let mut deaf = Hostile::new(&hca, &target, 0);
    deaf.send(&message(Op::Get, 1, 0, b"no such key", b""));
    check(&mut client(&hca, &target, Way::Best), 1, 30).unwrap();
    drop(stop);
    let report = runtime.block_on(serving).unwrap().unwrap();
    assert_eq!((report.clients, report.malformed, report.broken, report.lost), (3, 2, 1, 0), "{report:?}");
    drop(deaf);
}

#[test]
fn the_program_also_runs_on_futures() {
    for (options, says) in [
        (&["--async"][..], "every result was right"),
        (&["--async", "--cm"], "every result was right"),
        (&["--async", "--bench"], "p99.9"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_kv"))
            .args(["-c", "2", "-n", "20", "--sizes", "16,4096"])
            .args(options)
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout.clone()).unwrap();
        assert!(output.status.success() && text.contains(says), "{output:?}");
    }
}

/// Together they store more large values than the server of a few clients has room for.
#[test]
fn the_program_has_room_for_the_values_of_all_its_clients() {
    let sizes = ["-c", "40", "-n", "8", "--bench", "--sizes", "4096"];
    for way in [&[][..], &["--async"]] {
        let output = Command::new(env!("CARGO_BIN_EXE_kv")).args(sizes).args(way).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
}

/// Also if there is no memory of that size.
#[test]
fn a_measurement_of_values_above_the_limit_is_refused() {
    for way in [&[][..], &["--async"]] {
        for bytes in ["65537", "18446744073709551615"] {
            let args = ["-c", "2", "-n", "20", "--bench", "--sizes", bytes];
            let output = Command::new(env!("CARGO_BIN_EXE_kv")).args(args).args(way).output().unwrap();
            let text = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{text}");
            assert!(text.contains("is longer than 65536") && !text.contains("panicked"), "{text}");
        }
    }
}

#[test]
fn a_measurement_is_printed_as_json() {
    let kv = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_kv"))
            .args(["-c", "2", "-n", "20", "--bench", "--sizes", "0,16,4096"])
            .args(args)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let figures: serde_json::Value = serde_json::from_str(&kv(&["--json", "--cm"])).unwrap();
    let rows = figures["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 6, "{figures}");
    assert!(rows.iter().all(|row| row["rate"].as_f64().unwrap() > 0.0), "{figures}");
    assert_eq!(figures["immediate"], true);
    let table = kv(&["--no-imm"]);
    assert_eq!(table.lines().count(), 8, "{table}");
    assert!(table.contains("WRITE and SEND"), "{table}");
}
