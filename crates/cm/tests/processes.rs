// SPDX-License-Identifier: MIT OR Apache-2.0
//! The connection manager between software NICs of several processes. They are fabrics of this process that are joined by a
//! socket, which carries the same bytes.

use core::net::SocketAddr;
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use std::path::PathBuf;
use std::time::Instant;
use uverbs::{Context, Rc, mlx5::Mlx5};
use uverbs::{Cq, Pool, Qp};
use uverbs::{Exclusive, Private, attr::QpCap};
use uverbs_cm::{ConnParam, Connection, Error, EventChannel, Listener, PortSpace, RejectReason, Resolved};
use uverbs_hca::{Fabric, Hca};

const PORT: u16 = 7471;
/// What a connection needs on a host.
type Queues = (Pool<Private, Mlx5>, Cq<Exclusive, Mlx5>, Qp<Rc, Exclusive, Mlx5>);

/// A time limit that ends a test that hangs.
const LONG: Duration = Duration::from_secs(60);

/// A process with a device.
struct Process {
    manager: EventChannel,
    hca: Hca,
    _fabric: Fabric,
}

/// The path of the socket, which is removed at the end.
struct Socket(PathBuf);

impl Socket {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        Self(std::env::temp_dir().join(format!("uverbs-cm-{}-{count}", std::process::id())))
    }

    /// The first process listens, the others join it.
    fn process(&self) -> Process {
        let fabric = Fabric::new(1);
        fabric.meet(&self.0).unwrap();
        let hca = fabric.device("hca0").build();
        let manager = EventChannel::from_port(hca.connection_manager().unwrap());
        Process { manager, hca, _fabric: fabric }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Process {
    fn address(&self) -> SocketAddr {
        (self.hca.addresses()[0], PORT).into()
    }

    fn listen(&self, space: PortSpace) -> Listener {
        Listener::with(&self.manager, space, self.address(), 0).unwrap()
    }

    fn resolve(&self, space: PortSpace, to: SocketAddr) -> Resolved {
        Resolved::with(&self.manager, space, None, to, LONG).unwrap()
    }

    fn queues(&self) -> Queues {
        let cap = QpCap::new(4, 4).inline(64);
        let context = Context::<Mlx5>::from_kernel(self.hca.open()).unwrap();
        let (pd, cq) = (context.alloc_pd().unwrap(), context.cq_with(8, None).unwrap());
        let qp = pd.qp::<Rc>().cq(&cq).cap(cap).create().unwrap();
        (pd.pool(4, 4096).unwrap(), cq, qp)
    }
}

/// An end of a connection.
struct End {
    connection: Connection<Qp<Rc, Exclusive, Mlx5>>,
    cq: Cq<Exclusive, Mlx5>,
}

/// Connects two processes. The server has posted a receive.
fn connect(client: &Process, server: &Process) -> [End; 2] {
    let listener = server.listen(PortSpace::Tcp);
    std::thread::scope(|scope| {
        let passive = scope.spawn(|| {
            let request = listener.wait(Some(LONG)).unwrap().expect("a request");
            assert_eq!(request.peer().private_data[..8], *b"question");
            let ((pool, cq, mut qp), param) = (server.queues(), ConnParam::with_private_data(*b"answer"));
            request.prepare(&qp, &param).unwrap();
            qp.rq().unwrap().post(1, pool.get().unwrap()).unwrap();
            End { connection: request.accept(qp, &param, Some(LONG)).unwrap(), cq }
        });
        let (_pool, cq, qp) = client.queues();
        let param = ConnParam::with_private_data(*b"question");
        let resolved = client.resolve(PortSpace::Tcp, server.address());
        let connection = resolved.connect(qp, &param, Some(LONG)).unwrap();
        assert_eq!(connection.peer().private_data[..6], *b"answer");
        [End { connection, cq }, passive.join().unwrap()]
    })
}

#[test]
fn processes_connect_and_disconnect() {
    let socket = Socket::new();
    // The first one forwards the messages of the others.
    let (_first, client, server) = (socket.process(), socket.process(), socket.process());
    for (client, server) in [(&client, &server), (&server, &client)] {
        let [mut active, mut passive] = connect(client, server);
        assert_eq!(active.connection.peer().qp_num, passive.connection.qp.qp_num());
        active.connection.qp.sq().post(2).send_inline(b"hello").unwrap();
        let done = loop {
            if let Some(done) = passive.cq.poll_one().unwrap() {
                break done;
            }
        };
        done.wc.ok().unwrap();
        assert_eq!(*done.buf().unwrap(), *b"hello");
        active.connection.disconnect().unwrap();
        assert!(passive.connection.wait_disconnected(Some(LONG)).unwrap());
        passive.connection.close().unwrap();
        active.connection.close().unwrap();
    }
}

#[test]
fn refusals_have_their_reason() {
    let socket = Socket::new();
    let (client, server) = (socket.process(), socket.process());
    let reason = |space| {
        let (_pool, _cq, qp) = client.queues();
        match client.resolve(space, server.address()).connect(qp, &ConnParam::default(), Some(LONG)) {
            Err(Error::Rejected { reason, .. }) => reason,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(reason(PortSpace::Tcp), RejectReason::INVALID_SERVICE_ID);
    let listener = server.listen(PortSpace::Tcp);
    std::thread::scope(|scope| {
        scope.spawn(|| drop(listener.wait(Some(LONG)).unwrap().expect("a request")));
        assert_eq!(reason(PortSpace::Tcp), RejectReason::CONSUMER_DEFINED);
    });
}

#[test]
fn a_client_that_gives_up_is_an_error_of_the_acceptance_at_once() {
    let socket = Socket::new();
    // The first one forwards the messages of the others.
    let (_first, client, server) = (socket.process(), socket.process(), socket.process());
    let listener = server.listen(PortSpace::Tcp);
    let resolved = client.resolve(PortSpace::Tcp, server.address());
    let (_pool, _cq, qp) = client.queues();
    let failed = resolved.connect(qp, &ConnParam::default(), Some(Duration::from_millis(50)));
    assert!(matches!(failed, Err(Error::TimedOut { .. })), "{failed:?}");
    let request = listener.wait(Some(LONG)).unwrap().expect("a request");
    let (_pool, _cq, qp) = server.queues();
    let (begin, error) = (Instant::now(), request.accept(qp, &ConnParam::default(), Some(LONG)).unwrap_err());
    // The message may come after the acceptance.
    assert!(
        matches!(error, Error::Disconnected { .. } | Error::Rejected { reason: RejectReason::TIMEOUT, .. }),
        "{error}"
    );
    assert!(begin.elapsed() < LONG / 2);
}

#[test]
fn a_client_whose_process_is_lost_is_an_error_of_the_acceptance_at_once() {
    let socket = Socket::new();
    let (first, client, server) = (socket.process(), socket.process(), socket.process());
    let listener = server.listen(PortSpace::Tcp);
    let resolved = client.resolve(PortSpace::Tcp, server.address());
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| {
            let (_pool, _cq, qp) = client.queues();
            resolved.connect(qp, &ConnParam::default(), None).map(drop)
        });
        let request = listener.wait(Some(LONG)).unwrap().expect("a request");
        drop(first);
        assert!(matches!(connecting.join().unwrap(), Err(Error::Rejected { .. })));
        let (_pool, _cq, qp) = server.queues();
        let (begin, error) =
            (Instant::now(), request.accept(qp, &ConnParam::default(), Some(LONG)).unwrap_err());
        assert!(matches!(error, Error::Disconnected { .. }), "{error}");
        assert!(begin.elapsed() < LONG / 2);
    });
}

#[test]
fn the_end_of_a_process_ends_its_connections() {
    let socket = Socket::new();
    let (client, server) = (socket.process(), socket.process());
    let [active, passive] = connect(&client, &server);
    drop((passive, server));
    assert!(active.connection.wait_disconnected(Some(LONG)).unwrap());
}

#[test]
fn a_broken_socket_ends_the_connections_behind_it() {
    let socket = Socket::new();
    let (first, client, server) = (socket.process(), socket.process(), socket.process());
    let [active, passive] = connect(&client, &server);
    drop(first);
    assert!(active.connection.wait_disconnected(Some(LONG)).unwrap());
    assert!(passive.connection.wait_disconnected(Some(LONG)).unwrap());
}
