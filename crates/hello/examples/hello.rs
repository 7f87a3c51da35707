// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program of README: two software NICs in this process, a connection between them, and one message.
//! `cargo run -p uverbs-hello --example hello`
#![expect(clippy::std_instead_of_core, reason = "as a program that does not name core")]
#![expect(unsafe_code)]
// UNSAFETY: the device writes to the memory of a posted receive.

use uverbs::attr::{AccessFlags, QpCap};
use uverbs::{ConnectAttr, Context, PageBuf, Rc, WorkCompletion, mlx5::Mlx5};
use uverbs_hca::Fabric;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let fabric = Fabric::new(1);
    let cap =
        QpCap { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 64 };
    let attr = ConnectAttr::default();

    // One end: a device, a protection domain, a completion queue, a queue pair.
    let end = |name| -> uverbs::Result<_> {
        let context = Context::<Mlx5>::from_kernel(fabric.device(name).build().open())?;
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(16, None)?;
        let qp = pd.raw_qp::<Rc>().cq(&cq).cap(cap).create()?;
        qp.init(&attr)?;
        let here = qp.control.endpoint(0x123456, &attr)?;
        Ok((pd, qp, cq, here))
    };
    let (_, mut client, sends, a) = end("hca0")?;
    let (pd, mut server, receives, b) = end("hca1")?;

    // Two hosts exchange their endpoints over any byte stream: the client `a.exchange(stream)`, the server `b.answer(stream, ..)`.
    client.connect(&a, &b, &attr)?;
    server.connect(&b, &a, &attr)?;

    // The server registers memory and posts a receive. The device writes to that memory later, so the post is `unsafe`.
    let region = pd.reg_private(PageBuf::new(4096)?, AccessFlags::LOCAL_WRITE)?;
    // SAFETY: the region lives until the receive has completed, and is not borrowed before.
    unsafe { server.rq()?.post(7, &[region.sge(0..4096)?])? };
    // The bytes of an inline send are copied during the call.
    client.sq()?.post(1).signaled().send_inline(b"hello")?;

    let mut wc = [WorkCompletion::default(); 1];
    while sends.poll(&mut wc)?.is_empty() {}
    wc[0].status.ok()?;
    while receives.poll(&mut wc)?.is_empty() {}
    assert_eq!((wc[0].wr_id, region.slice(0..wc[0].byte_len as usize)?), (7, &b"hello"[..]));
    println!("hello from hca0 to hca1, by RDMA");
    Ok(())
}
