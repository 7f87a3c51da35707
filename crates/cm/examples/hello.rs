// SPDX-License-Identifier: MIT OR Apache-2.0
//! Connects by IP address, transfers a message, and shuts down, on software NICs.
#![forbid(unsafe_code)]
use core::error::Error;
use uverbs::attr::{AccessFlags, QpCap};
use uverbs::remote::REMOTE_REGION_LEN;
use uverbs::{Context, PageBuf, Rc, RemoteRegion, WorkCompletion, mlx5::Mlx5};
use uverbs_cm::{ConnParam, EventChannel, Listener, Resolved};
use uverbs_hca::Fabric;

const CAP: QpCap =
    QpCap { max_send_wr: 4, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 64 };

/// Offers a region to the client, in the private data, and returns what the client wrote there.
fn serve(context: &Context<Mlx5>, listener: &Listener) -> Result<String, Box<dyn Error + Send + Sync>> {
    let request = listener.accept()?;
    let (pd, cq) = (context.alloc_pd()?, context.create_cq(4, None)?);
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    let region = pd.reg_mr(PageBuf::new(4096)?, access).map_err(|failed| failed.error)?;
    let offer = region.remote_region(0..4096)?.encode();
    let param = ConnParam { access: AccessFlags::REMOTE_WRITE, ..ConnParam::with_private_data(offer) };
    let connection = request.accept(pd.qp::<Rc>().cq(&cq).cap(CAP).create()?, &param, None)?;
    // The client disconnects when its write is complete.
    connection.wait_disconnected(None)?;
    let mut message = [0; 5];
    region.read_at(0, &mut message)?;
    connection.close()?;
    Ok(String::from_utf8(message.to_vec())?)
}

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let fabric = Fabric::new(1);
    let (client, server) = (fabric.device("hca0").build(), fabric.device("hca1").build());
    // On a machine with a NIC: EventChannel::open()?.
    let here = EventChannel::from_port(client.connection_manager()?);
    let listener =
        Listener::bind(&EventChannel::from_port(server.connection_manager()?), "0.0.0.0:7471".parse()?)?;
    let context = Context::from_kernel(server.open())?;
    let serving = std::thread::spawn(move || serve(&context, &listener));

    let resolved = Resolved::new(&here, (server.addresses()[0], 7471).into())?;
    // On a machine with a NIC: Context::open(&resolved.device()?)?, or open_with for any driver.
    let context = Context::<Mlx5>::from_kernel(client.open())?;
    let (pd, cq) = (context.alloc_pd()?, context.create_cq(4, None)?);
    let qp = pd.qp::<Rc>().cq(&cq).cap(CAP).create()?;
    let mut connection = resolved.connect(qp, &ConnParam::default(), None)?;

    // Private data are padded with zeros.
    let offer = RemoteRegion::decode(&connection.peer().private_data[..REMOTE_REGION_LEN])?;
    connection.qp.sq()?.post(1).signaled().write_inline(b"hello", offer.remote(0..5)?)?;
    let mut wc = [WorkCompletion::default()];
    while cq.poll(&mut wc)?.is_empty() {}
    wc[0].status.ok()?;
    connection.disconnect()?;
    assert_eq!(serving.join().expect("the server does not panic")?, "hello");
    Ok(())
}
