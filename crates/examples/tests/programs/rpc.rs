// SPDX-License-Identifier: MIT OR Apache-2.0
//! Calls with deadlines on software NICs: 500 clients, loss, removal of devices, killed peers, calls that are late or dropped.

use crate::process::{Process, output};
use core::net::SocketAddr;
use core::time::Duration;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use uverbs::hca::{Fabric, Hca};
use uverbs_examples::nic::Nic;
use uverbs_examples::rpc::wire::MAX_BODY;
use uverbs_examples::rpc::{CallError, Client, ClientConfig, Host, Report, Server, ServerConfig, load};

/// Ends a test that hangs.
const LIMIT: Duration = Duration::from_secs(90);

/// Time enough for a call, also under loss on a busy machine.
const AMPLE: Duration = Duration::from_secs(30);

fn block_on<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(LIMIT, future).await.expect("in time") })
}

/// Runs a test with a device that is unplugged, and with one that is killed: beside each other, because most of the time the ends wait.
fn in_both_ways(test: impl Fn(bool) + Sync) {
    std::thread::scope(|scope| {
        scope.spawn(|| test(true));
        test(false);
    });
}

/// A server that runs.
struct Running {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<anyhow::Result<Report>>,
}

impl Running {
    fn start(hca: &Hca, config: ServerConfig, port: u16) -> Self {
        let at = (hca.addresses()[0], port).into();
        let server = Server::open(&Nic::software(hca), at, config).unwrap();
        let (address, (stop, stopped)) = (server.address(), oneshot::channel());
        let serving = tokio::spawn(server.serve(load::execute, async { _ = stopped.await }));
        Self { address, stop, serving }
    }

    /// Ends it. It has lost no buffer.
    async fn end(self) -> Report {
        _ = self.stop.send(());
        let report = self.serving.await.unwrap().unwrap();
        assert_eq!(report.lost, 0, "{report:?}");
        report
    }
}

fn host(hca: &Hca, clients: u32) -> Arc<Host> {
    let mut config = ClientConfig::new(clients);
    // A machine with two processors and other work may need seconds for a call of each of 500 clients.
    config.dead = AMPLE;
    Host::open(&Nic::software(hca), config).unwrap()
}

fn server_config(clients: u32) -> ServerConfig {
    let mut config = ServerConfig::new(clients);
    config.idle = 2 * AMPLE;
    config
}

/// No connection has ended.
fn stayed(clients: &[Arc<Client>]) {
    for client in clients {
        assert_eq!(client.ends(), (0, None));
    }
}

async fn connected(host: &Arc<Host>, servers: &[SocketAddr], count: u32) -> Vec<Arc<Client>> {
    let clients: Vec<_> = (0..count).map(|_| Arc::new(host.client(servers.to_vec()))).collect();
    for client in &clients {
        assert!(client.connected(AMPLE).await);
    }
    clients
}

async fn close(clients: Vec<Arc<Client>>) {
    for client in clients {
        Arc::into_inner(client).unwrap().close().await;
    }
}

fn at_once(_: u32) -> Duration {
    Duration::ZERO
}

/// Each client has more calls than credits. A sender that finds no receive would lose its connection, and its calls.
#[test]
fn five_hundred_clients_get_the_right_answers() {
    const CLIENTS: u32 = 500;
    block_on(async {
        let fabric = Fabric::new(1);
        let [there, here] = ["hca0", "hca1"].map(|name| fabric.device(name).build());
        let server = Running::start(&there, server_config(CLIENTS), 0);
        let host = host(&here, CLIENTS);
        let clients = connected(&host, &[server.address], CLIENTS).await;
        let idle = host.free_buffers();
        let figures = load::run(&clients, 10, 8, AMPLE, at_once).await.unwrap();
        stayed(&clients);
        assert_eq!((figures.right, figures.calls()), (5000, 5000), "{figures:?}");
        assert!(clients.iter().all(|client| client.counts() == (0, 0)));
        // The acknowledgement of the last request may be on its way.
        while host.free_buffers() < idle {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        close(clients).await;
        let report = server.end().await;
        assert_eq!((report.clients, report.broken, report.calls), (500, 0, 5000), "{report:?}");
        assert_eq!((here.violations(), there.violations()), (vec![], vec![]));
    });
}

/// Some calls are late, some are dropped: no answer goes to another call, and each credit comes back.
#[test]
fn a_late_answer_goes_to_no_other_call() {
    block_on(async {
        let fabric = Fabric::new(2);
        let [there, here] = ["hca0", "hca1"].map(|name| fabric.device(name).build());
        let server = Running::start(&there, server_config(20), 0);
        let host = host(&here, 20);
        let clients = connected(&host, &[server.address], 20).await;
        // Every third call is executed for longer than its limit.
        let time = |call| Duration::from_millis(if call % 3 == 0 { 400 } else { 0 });
        let figures = load::run(&clients, 24, 4, Duration::from_millis(200), time).await.unwrap();
        assert_eq!((figures.wrong, figures.lost), (0, 0), "{figures:?}");
        assert!(figures.late >= 20 * 8, "{figures:?}");
        // Calls that are dropped: at once, before and after they are sent, and while they are executed.
        for round in 0..40_u32 {
            let client = &clients[round as usize % clients.len()];
            let request = load::request(Duration::from_millis(u64::from(round % 3) * 10), 99, round);
            let call = client.call(&request, AMPLE);
            let cut = Duration::from_micros(u64::from(round) * 25);
            if let Ok(answer) = tokio::time::timeout(cut, call).await {
                assert!(load::is_right(&request, &answer.unwrap()));
            }
            let request = load::request(Duration::ZERO, 77, round);
            let answer = client.call(&request, AMPLE).await.unwrap();
            assert!(load::is_right(&request, &answer), "after a call that was dropped");
        }
        let late: u64 = clients.iter().map(|client| client.counts().1).sum();
        assert!(late > 0, "no answer was discarded");
        // All credits are back.
        for client in &clients {
            while client.counts().0 > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        let figures = load::run(&clients, 8, 8, AMPLE, at_once).await.unwrap();
        assert_eq!((figures.right, figures.calls()), (160, 160), "{figures:?}");
        let too_long = clients[0].call(&[0; MAX_BODY + 1], AMPLE).await;
        assert_eq!(too_long.unwrap_err(), CallError::TooLong);
        close(clients).await;
        let report = server.end().await;
        assert!(report.expired > 0 && report.broken == 0, "{report:?}");
    });
}

#[test]
fn packets_are_lost_and_no_answer_is_wrong() {
    block_on(async {
        let fabric = Fabric::new(3);
        let [there, here] = ["hca0", "hca1"].map(|name| fabric.device(name).build());
        let server = Running::start(&there, server_config(60), 0);
        let host = host(&here, 60);
        let clients = connected(&host, &[server.address], 60).await;
        fabric.loss(0.01).duplicate(0.01).reorder(0.02);
        let figures = load::run(&clients, 20, 4, AMPLE, at_once).await.unwrap();
        assert_eq!((figures.right, figures.calls()), (1200, 1200), "{figures:?}");
        // With limits that many calls exceed.
        let figures = load::run(&clients, 20, 4, Duration::from_millis(30), at_once).await.unwrap();
        assert_eq!((figures.wrong, figures.lost, figures.right + figures.late), (0, 0, 1200), "{figures:?}");
        assert!(here.repairs() + there.repairs() > 0);
        stayed(&clients);
        fabric.loss(0.0).duplicate(0.0).reorder(0.0);
        let figures = load::run(&clients, 4, 4, AMPLE, at_once).await.unwrap();
        assert_eq!(figures.right, 240, "{figures:?}");
        close(clients).await;
        server.end().await;
    });
}

/// The device of some clients is removed, or its host dies: their calls end, and the server forgets them.
#[test]
fn clients_whose_device_goes_do_not_disturb_the_others() {
    in_both_ways(|unplug| {
        block_on(async {
            let fabric = Fabric::new(4);
            let [there, here, victim] = ["hca0", "hca1", "hca2"].map(|name| fabric.device(name).build());
            let mut config = ServerConfig::new(20);
            config.idle = Duration::from_secs(2);
            let server = Running::start(&there, config, 0);
            let (host, lost) = (host(&here, 10), host(&victim, 10));
            let clients = connected(&host, &[server.address], 10).await;
            let victims = connected(&lost, &[server.address], 10).await;
            let begin = Instant::now();
            let calls = load::run(&victims, 8, 4, AMPLE, |_| Duration::from_millis(300));
            let remove = async {
                tokio::time::sleep(Duration::from_millis(100)).await;
                if unplug { victim.unplug() } else { victim.kill() }
            };
            let (figures, ()) = tokio::join!(calls, remove);
            let figures = figures.unwrap();
            assert!(figures.wrong == 0 && figures.lost + figures.ended > 0, "{unplug}: {figures:?}");
            assert!(begin.elapsed() < Duration::from_secs(15), "{unplug}: {:?}", begin.elapsed());
            let error = victims[0].call(b"no device", AMPLE).await.unwrap_err();
            assert!(matches!(error, CallError::Ended(_)), "{unplug}: {error:?}");
            let figures = load::run(&clients, 20, 4, AMPLE, at_once).await.unwrap();
            assert_eq!(figures.right, 200, "{figures:?}");
            // The server has room for as many again.
            let next = fabric.device("hca3").build();
            let again = Host::open(&Nic::software(&next), ClientConfig::new(10)).unwrap();
            let more = connected(&again, &[server.address], 10).await;
            let figures = load::run(&more, 4, 1, AMPLE, at_once).await.unwrap();
            assert_eq!(figures.right, 40, "{figures:?}");
            close(victims).await;
            close(more).await;
            close(clients).await;
            let report = server.end().await;
            assert_eq!((report.clients, report.broken), (30, 0), "{report:?}");
        });
    });
}

/// The device of the server is removed, or its host dies: the clients find the next server. With `kill` the first one comes back.
#[test]
fn clients_connect_again_when_their_server_has_gone() {
    in_both_ways(|unplug| {
        block_on(async {
            let fabric = Fabric::new(5);
            let [first, second, here] = ["hca0", "hca1", "hca2"].map(|name| fabric.device(name).build());
            let server = Running::start(&first, ServerConfig::new(40), 7000);
            let other = unplug.then(|| Running::start(&second, ServerConfig::new(40), 7000));
            let servers: Vec<_> = other.iter().map(|other| other.address).collect();
            let host = host(&here, 40);
            let clients = connected(&host, &[vec![server.address], servers].concat(), 40).await;
            let begin = Instant::now();
            let calls = load::run(&clients, 8, 4, AMPLE, |_| Duration::from_millis(300));
            let remove = async {
                tokio::time::sleep(Duration::from_millis(100)).await;
                if unplug {
                    first.unplug()
                } else {
                    first.kill()
                }
                let ended = server.serving.await.unwrap();
                assert!(ended.is_err(), "{unplug}: {ended:?}");
                (!unplug).then(|| Running::start(&first, ServerConfig::new(40), 7000))
            };
            let (figures, restarted) = tokio::join!(calls, remove);
            let figures = figures.unwrap();
            assert!(figures.wrong == 0 && figures.late == 0 && figures.ended == 0, "{unplug}: {figures:?}");
            assert!(figures.lost >= 40 && figures.right > 0, "{unplug}: {figures:?}");
            assert!(begin.elapsed() < Duration::from_secs(30), "{unplug}: {:?}", begin.elapsed());
            let figures = load::run(&clients, 20, 8, AMPLE, at_once).await.unwrap();
            assert_eq!(figures.right, 800, "{unplug}: {figures:?}");
            close(clients).await;
            let report = restarted.or(other).unwrap().end().await;
            assert_eq!(report.broken, 0, "{report:?}");
        });
    });
}

/// The greatest time limit is none, and sizes that no device has are errors.
#[test]
fn limits_and_sizes_may_be_any_number() {
    block_on(async {
        let hca = Fabric::new(8).device("hca0").build();
        let server = Running::start(&hca, ServerConfig::new(1), 0);
        let host = host(&hca, 1);
        let client = host.client(vec![server.address]);
        assert!(client.connected(Duration::MAX).await);
        let request = load::request(Duration::from_millis(1), 0, 0);
        let answer = client.call(&request, Duration::MAX).await.unwrap();
        assert!(load::is_right(&request, &answer));
        client.close().await;
        server.end().await;

        let nic = Nic::software(&hca);
        for clients in [u32::MAX, 1 << 30] {
            let at = (hca.addresses()[0], 0).into();
            let error = Server::open(&nic, at, ServerConfig::new(clients)).unwrap_err();
            assert!(error.to_string().contains("too many clients"), "{error}");
            let error = Host::open(&nic, ClientConfig::new(clients)).unwrap_err();
            assert!(error.to_string().contains("too many clients"), "{error}");
        }
    });
}

/// A server that ends answers what it executes.
#[test]
fn a_server_that_ends_answers_what_it_executes() {
    block_on(async {
        let fabric = Fabric::new(6);
        let [there, here] = ["hca0", "hca1"].map(|name| fabric.device(name).build());
        let server = Running::start(&there, ServerConfig::new(10), 0);
        let host = host(&here, 10);
        let clients = connected(&host, &[server.address], 10).await;
        let calls = load::run(&clients, 4, 4, AMPLE, |_| Duration::from_millis(500));
        let end = async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            server.end().await
        };
        let (figures, report) = tokio::join!(calls, end);
        assert_eq!((figures.unwrap().right, report.calls), (40, 40), "{report:?}");
        let begin = Instant::now();
        let error = clients[0].call(b"nobody", Duration::from_millis(100)).await.unwrap_err();
        assert_eq!(error, CallError::Deadline);
        assert!(begin.elapsed() < Duration::from_secs(2));
        close(clients).await;
    });
}

fn process(socket: &Path, args: &[&str]) -> Process {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rpc"));
    command.arg("--fabric").arg(socket).args(args).stdin(Stdio::null()).stdout(Stdio::piped());
    Process::start(&mut command)
}

/// A process of clients, and then the process of the server, are killed by SIGKILL while they make and answer calls.
#[test]
fn processes_are_killed() {
    let folder = std::env::temp_dir().join(format!("uverbs-rpc-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let socket = folder.join("fabric");
    let fabric = Fabric::new(7);
    fabric.listen(&socket).unwrap();
    let mut servers = [(); 2].map(|()| process(&socket, &["--serve", "-c", "100"]));
    let addresses = servers.each_mut().map(|server| {
        server
            .first_line()
            .0
            .strip_prefix("listening on ")
            .expect("the address")
            .parse::<SocketAddr>()
            .unwrap()
    });
    block_on(async {
        let here = fabric.device("hca0").build();
        let host = host(&here, 50);
        let clients = connected(&host, &addresses, 50).await;
        let at = addresses[0].to_string();
        let mut victim = process(&socket, &["--connect", &at, "-c", "50", "-n", "4000000"]);
        let said = tokio::task::spawn_blocking(move || (victim.first_line(), victim)).await.unwrap();
        assert!(said.0.0.starts_with("50 clients are connected"), "{}", said.0.0);
        drop(said);
        let figures = load::run(&clients, 40, 4, AMPLE, at_once).await.unwrap();
        assert_eq!((figures.right, figures.calls()), (2000, 2000), "{figures:?}");
        let begin = Instant::now();
        let calls = load::run(&clients, 8, 4, AMPLE, |_| Duration::from_millis(300));
        let kill = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            servers[0].0.kill().unwrap();
            servers[0].wait();
        };
        let (figures, ()) = tokio::join!(calls, kill);
        let figures = figures.unwrap();
        assert_eq!((figures.wrong, figures.late, figures.ended), (0, 0, 0), "{figures:?}");
        assert!(figures.lost >= 50 && figures.right > 0, "{figures:?}");
        assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
        let figures = load::run(&clients, 20, 4, AMPLE, at_once).await.unwrap();
        assert_eq!(figures.right, 1000, "{figures:?}");
        close(clients).await;
    });
    // The other server ends in order: it has lost no buffer.
    let pid = nix::unistd::Pid::from_raw(servers[1].0.id().try_into().unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    assert!(servers[1].wait().success());
    drop(servers);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn the_program_runs_in_one_process() {
    for args in
        [&["-c", "20", "-n", "20"][..], &["-c", "20", "-n", "20", "--outstanding", "8", "--loss", "0.005"]]
    {
        let output = output(Command::new(env!("CARGO_BIN_EXE_rpc")).args(args));
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("400 right, 0 wrong"), "{output:?}");
    }
}
