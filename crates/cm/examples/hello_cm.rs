// SPDX-License-Identifier: MIT OR Apache-2.0
//! Connects by IP address, sends, receives, and shuts down, on software NICs.
#![forbid(unsafe_code)]
use core::error::Error;
use uverbs::{Buf, Cq, Pool, Qp};
use uverbs::{Context, Rc, mlx5::Mlx5};
use uverbs::{Exclusive, Private, attr::QpCap};
use uverbs_cm::{ConnParam, EventChannel, Listener, Resolved};
use uverbs_hca::{Fabric, Hca};

type Any<T> = Result<T, Box<dyn Error + Send + Sync>>;
type Objects = (Pool<Private, Mlx5>, Cq<Exclusive, Mlx5>, Qp<Rc, Exclusive, Mlx5>);

/// What each end needs. On a machine with a NIC the context is that of `resolved.device()` or `request.device()`.
fn objects(hca: &Hca) -> Any<Objects> {
    let cap = QpCap::new(4, 4).inline(64);
    let context = Context::<Mlx5>::from_kernel(hca.open())?;
    let (pd, cq) = (context.alloc_pd()?, context.cq_with(8, None)?);
    let qp = pd.qp::<Rc>().cq(&cq).cap(cap).create()?;
    Ok((pd.pool(8, 4096)?, cq, qp))
}

fn received(cq: &mut Cq<Exclusive, Mlx5>) -> Any<Buf<Private, Mlx5>> {
    loop {
        if let Some(done) = cq.poll_one()? {
            done.wc.ok()?;
            return done.buf().ok_or_else(|| "not a receive".into());
        }
    }
}

fn serve(hca: &Hca, listener: &Listener) -> Any<()> {
    let (request, param) = (listener.accept()?, ConnParam::with_private_data(*b"welcome"));
    let (pool, mut cq, mut qp) = objects(hca)?;
    request.prepare(&qp, &param)?;
    qp.rq().ok_or("no receive queue")?.post(1, pool.get()?)?;
    let mut connection = request.accept(qp, &param, None)?;
    connection.qp.sq().post(2).send_inline(&received(&mut cq)?)?;
    connection.wait_disconnected(None)?;
    Ok(connection.close()?)
}

fn main() -> Any<()> {
    let fabric = Fabric::new(1);
    let (client, server) = (fabric.device("hca0").build(), fabric.device("hca1").build());
    let address = (server.addresses()[0], 7471).into();
    // On a machine with a NIC: EventChannel::open()?.
    let listener = Listener::bind(&EventChannel::from_port(server.connection_manager()?), address)?;
    let serving = std::thread::spawn(move || serve(&server, &listener));
    let resolved = Resolved::new(&EventChannel::from_port(client.connection_manager()?), address)?;
    let (pool, mut cq, mut qp) = objects(&client)?;
    let prepared = resolved.prepare(&qp, &ConnParam::default())?;
    qp.rq().ok_or("no receive queue")?.post(1, pool.get()?)?;
    let mut connection = prepared.connect(qp, &ConnParam::default(), None)?;
    connection.qp.sq().post(2).send_inline(b"hello")?;
    assert_eq!(&*received(&mut cq)?, b"hello");
    connection.disconnect()?;
    serving.join().expect("the server does not panic")
}
