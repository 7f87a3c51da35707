// SPDX-License-Identifier: MIT OR Apache-2.0
//! The public interface of the crate, on software NICs: accepted arguments, errors and returned values.

#![expect(unsafe_code)]
// UNSAFETY: posts receives with memory, which the tests keep until the completions.

mod any;
mod connect;
mod drain;
mod import;
mod many;
mod memory;
mod removal;

use core::time::Duration;
use std::time::Instant;
use uverbs::mlx5::Mlx5;
use uverbs::{
    ConnectAttr, Context, ProtectionDomain, Rc, Shared, WorkCompletion,
    raw::{Cq, Qp},
};
use uverbs::{Exclusive, attr::QpCap};
use uverbs_hca::{Fabric, Hca, Link};

/// A time limit that is long enough on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

const CAP: QpCap = QpCap::new(16, 16).inline(64);

/// A context of a new software NIC.
fn context() -> Context<Mlx5> {
    Context::from_kernel(Hca::new().open()).unwrap()
}

/// One end of a connection.
struct End {
    hca: Hca,
    context: Context<Mlx5>,
    pd: ProtectionDomain<Mlx5>,
    cq: Cq<Shared, Mlx5>,
    qp: Qp<Rc, Exclusive, Mlx5>,
}

impl End {
    fn new(hca: Hca) -> Self {
        let context = Context::from_kernel(hca.open()).unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(64, None).unwrap();
        let qp = pd.raw_qp::<Rc>().cq(&cq).cap(CAP).create().unwrap();
        qp.init(&ConnectAttr::default()).unwrap();
        Self { hca, context, pd, cq, qp }
    }

    fn connect(&self, peer: &Self) {
        let attr = ConnectAttr::default();
        let [here, there] = [self, peer].map(|end| end.qp.control.endpoint(7, &attr).unwrap());
        self.qp.connect(&here, &there, &attr).unwrap();
    }

    /// Waits for one completion.
    fn completion(&self) -> WorkCompletion {
        poll(&self.cq)
    }

    /// Waits for one completion without an error.
    fn poll(&self) -> WorkCompletion {
        let wc = self.completion();
        wc.status.ok().unwrap();
        wc
    }
}

fn poll(cq: &Cq<Shared, Mlx5>) -> WorkCompletion {
    let begin = Instant::now();
    let mut wc = [WorkCompletion::default()];
    while cq.poll(&mut wc).unwrap().is_empty() {
        assert!(begin.elapsed() < LIMIT, "no completion");
        std::thread::yield_now();
    }
    wc[0]
}

/// A connected client and server.
struct Pair {
    client: End,
    server: End,
}

impl Pair {
    fn new() -> Self {
        Self::on(&Fabric::new(0), Link::Ethernet)
    }

    fn on(fabric: &Fabric, link: Link) -> Self {
        let end = |name| End::new(fabric.device(name).link(link).build());
        let (client, server) = (end("hca0"), end("hca1"));
        client.connect(&server);
        server.connect(&client);
        Self { client, server }
    }

    fn send(&mut self, data: &[u8]) {
        self.client.qp.sq().post(1).signaled().send_inline(data).unwrap();
        self.client.poll();
    }
}
