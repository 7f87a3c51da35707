// SPDX-License-Identifier: MIT OR Apache-2.0
//! XRC over the connection manager: a send QP and a receive QP are connected, and the client writes to the server's memory and names
//! its SRQ. The client's identifier moves to another event channel before it is used.

use super::{address, at};
use anyhow::{Context as _, Result, ensure};
use std::thread;
use uverbs::remote::REMOTE_REGION_LEN;
use uverbs::{Context, Driver, DriverVisitor, RemoteRegion, XrcSend, open_with, raw::Srq};
use uverbs::{
    Exclusive,
    attr::{AccessFlags, QpCap, QpType, SrqAttr, SrqInitAttr, SrqType},
};
use uverbs_cm::{ConnParam, EventChannel, Listener, PortSpace, Request, Resolved};
use uverbs_tests::env::End;
use uverbs_tests::pair::region;
use uverbs_tests::wait::{LIMIT, successes};
use uverbs_tests::{LabEnv, Outcome};

const HELLO: &[u8; 8] = b"from XRC";

/// The test.
pub(super) fn run(env: &LabEnv, port: u16) -> Outcome {
    let server = address(env, End::A, false, port)?;
    let here = address(env, End::B, false, 0)?;
    let manager = EventChannel::open()?;
    let listener =
        at(env, End::A, || Ok(Listener::with(&manager, PortSpace::Ib(QpType::XrcRecv), server, 1)?))?;
    thread::scope(|scope| {
        let serving = scope.spawn(|| -> Result<()> {
            let request = listener.wait(Some(LIMIT))?.context("no request")?;
            open_with(&request.device()?, Serve(request))?
        });
        let call = || -> Result<()> {
            let (first, second) = (EventChannel::open()?, EventChannel::open()?);
            let mut id = at(env, End::B, || Ok(first.create_id(PortSpace::Ib(QpType::XrcSend))?))?;
            id.migrate(&second)?;
            drop(first);
            let resolved = Resolved::from_id(id, Some(here), server, LIMIT)?;
            open_with(&resolved.device()?, Call(resolved))?
        };
        let called = call();
        let served = serving.join().map_err(|_| anyhow::anyhow!("the server panicked"))?;
        ensure!(served.is_ok() && called.is_ok(), "server: {served:?}\nclient: {called:?}");
        Ok(())
    })
}

struct Serve(Request);

impl DriverVisitor for Serve {
    type Out = Result<()>;

    fn visit<D: Driver>(self, context: Context<D>) -> Result<()> {
        let (pd, cq) = (context.alloc_pd()?, context.create_cq(4, None)?);
        let xrcd = context.open_xrcd(None, true, false)?;
        let attr = SrqInitAttr::new(SrqAttr::new(4)).srq_type(SrqType::Xrc);
        let srq: Srq<Exclusive, D> = Srq::create_xrc(&pd, &attr, &xrcd, &cq)?;
        let memory = region(&pd, 64, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE)?;
        let mut data = srq.srq_num()?.to_be_bytes().to_vec();
        data.extend(memory.remote_region(0..64)?.encode());
        let param = ConnParam::with_private_data(data).access(AccessFlags::REMOTE_WRITE);
        let connection = self.0.accept(xrcd.recv_qp().create_recv()?, &param, Some(LIMIT))?;
        ensure!(connection.wait_disconnected(Some(LIMIT))?, "the client did not disconnect");
        let mut arrived = [0; HELLO.len()];
        memory.read_at(0, &mut arrived)?;
        ensure!(arrived == *HELLO, "{arrived:?}");
        Ok(connection.close()?)
    }
}

struct Call(Resolved);

impl DriverVisitor for Call {
    type Out = Result<()>;

    fn visit<D: Driver>(self, context: Context<D>) -> Result<()> {
        let (pd, cq) = (context.alloc_pd()?, context.create_cq(4, None)?);
        let cap = QpCap::new(1, 0).sge(1, 0).inline(8);
        let qp = pd.raw_qp::<XrcSend>().send_cq(&cq).cap(cap).create()?;
        let mut connection = self.0.connect(qp, &ConnParam::default(), Some(LIMIT))?;
        let data = connection.peer().private_data.clone();
        let (srq_num, rest) = data.split_first_chunk().context("no SRQ")?;
        let remote = RemoteRegion::decode(rest.get(..REMOTE_REGION_LEN).context("no region")?)?;
        let to = remote.remote(0..HELLO.len() as u64)?;
        let post = connection.qp.sq().post_srq(1, u32::from_be_bytes(*srq_num));
        post.signaled().write_inline(HELLO, to)?;
        successes(&cq, 1)?;
        connection.disconnect()?;
        Ok(connection.close()?)
    }
}
