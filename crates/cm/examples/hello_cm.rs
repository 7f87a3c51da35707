// SPDX-License-Identifier: MIT OR Apache-2.0
//! Connects by IP address, sends, receives, and shuts down, on software NICs.
#![forbid(unsafe_code)]
use core::error::Error;
use uverbs::{Buf, Context, Cq, Done, Rc};
use uverbs_cm::{ConnParam, ConnectTo as _, EventChannel, Listener};
use uverbs_hca::Fabric;

type Any<T> = Result<T, Box<dyn Error + Send + Sync>>;

fn received(cq: &mut Cq) -> Any<Buf> {
    loop {
        if let Done::Received(message) = cq.wait()?.ok()? {
            return Ok(message);
        }
    }
}

fn serve(context: &Context, listener: &Listener) -> Any<()> {
    let (pd, mut cq) = (context.alloc_pd()?, context.cq(8)?);
    let pool = pd.pool(8, 4096)?;
    // The request names the device, `request.device()`, where a machine has several.
    let request = listener.accept()?;
    let builder = pd.qp::<Rc>().cq(&cq).depth(4, 4);
    let mut connection = builder.accept(request, &ConnParam::with_private_data(*b"welcome"))?;
    connection.qp.recv(pool.get()?)?;
    connection.qp.send(received(&mut cq)?)?;
    connection.wait_disconnected(None)?;
    Ok(connection.close()?)
}

fn main() -> Any<()> {
    let fabric = Fabric::new(1);
    let (client, server) = (fabric.device("hca0").build(), fabric.device("hca1").build());
    let address = (server.addresses()[0], 7471).into();
    // On a machine with a NIC: `uverbs::open("mlx5_0")`.
    let (client, server) = (uverbs::open(client.open())?, uverbs::open(server.open())?);
    let listener = Listener::bind(&EventChannel::of(&server)?, address)?;
    let serving = std::thread::spawn(move || serve(&server, &listener));
    let (pd, mut cq) = (client.alloc_pd()?, client.cq(8)?);
    let pool = pd.pool(8, 4096)?;
    let mut connection = pd.qp::<Rc>().cq(&cq).depth(4, 4).connect_to(address)?;
    assert_eq!(connection.peer().private_data[..7], *b"welcome");
    connection.qp.recv(pool.get()?)?;
    connection.qp.send(pool.get()?.filled(b"hello"))?;
    assert_eq!(&*received(&mut cq)?, b"hello");
    connection.disconnect()?;
    serving.join().expect("the server does not panic")
}
