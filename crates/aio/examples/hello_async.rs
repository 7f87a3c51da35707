// SPDX-License-Identifier: MIT OR Apache-2.0
//! Connects by IP address; sends, receives, writes, reads, and shuts down, on software NICs.
#![forbid(unsafe_code)]
use uverbs::Pool;
use uverbs::Rc;
use uverbs::mlx5::Mlx5;
use uverbs::{Context, ProtectionDomain, RemoteRegion};
use uverbs::{Private, attr::AccessFlags};
use uverbs_aio::{Dispatcher, Listener, Qp, Result};
use uverbs_cm::{ConnParam, EventChannel};
use uverbs_hca::{Fabric, Hca};

/// What each end needs. On a machine with a NIC: `uverbs::open(&device)?` and `EventChannel::open()?`.
struct End(Dispatcher<Mlx5>, ProtectionDomain<Mlx5>, Pool<Private, Mlx5>, Qp<Rc, Mlx5>, EventChannel);

fn end(hca: &Hca) -> Result<End> {
    let context = Context::<Mlx5>::from_kernel(hca.open())?;
    let (dispatcher, pd) = (Dispatcher::new(&context)?, context.alloc_pd()?);
    // Receives are posted with buffers of their pool, and again when a message is taken.
    let (outgoing, incoming) = (pd.pool(16, 4096)?, pd.pool(32, 4096)?);
    let qp = dispatcher.qp(&pd).depth(16, 16).pool(&incoming).create()?;
    let manager = EventChannel::from_port(hca.connection_manager()?);
    Ok(End(dispatcher, pd, outgoing, qp, manager))
}

async fn serve(End(_, pd, _, qp, _): &End, listener: &Listener<Mlx5>) -> Result<()> {
    let access = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
    let table = pd.pool_with(1, 4096).exposed(access).build()?.get()?;
    let link = listener.accept().await?.accept(qp, &ConnParam::new().access(access)).await?;
    qp.send_inline(&table.remote_region().encode()).await?;
    assert_eq!(&*qp.recv().await?, b"goodbye");
    qp.shutdown().await?;
    link.disconnect()
}

fn main() -> Result<()> {
    let fabric = Fabric::new(1);
    let (client, server) = (fabric.device("hca0").build(), fabric.device("hca1").build());
    let address = (server.addresses()[0], 7471).into();
    let server = end(&server)?;
    let listener = Listener::bind(&server.0, &server.4, address)?;
    // Each thread runs the dispatcher for which it waits.
    let serving = std::thread::spawn(move || server.0.block_on(serve(&server, &listener)));
    let End(dispatcher, _, pool, qp, manager) = end(&client)?;
    dispatcher.block_on(async {
        let link = qp.connect_to(&manager, address, &ConnParam::default()).await?;
        let remote = RemoteRegion::decode(&qp.recv().await?)?;
        let mut buf = pool.get()?;
        buf.fill(b"stored")?;
        let buf = qp.write(buf, &remote).await?;
        assert_eq!(&*qp.read(buf, &remote).await?, b"stored");
        qp.send_inline(b"goodbye").await?;
        link.disconnected(&dispatcher).await
    })?;
    serving.join().expect("the server does not panic")
}
