// SPDX-License-Identifier: MIT OR Apache-2.0
//! The message exchanges of librdmacm's example programs, from either side, and one of our own.
// UNSAFETY: posts of registered memory.
#![expect(unsafe_code)]

use super::rsocket::{self, Socket};
use anyhow::{Context as _, Result, ensure};
use core::ops::Range;
use core::time::Duration;
use uverbs::provider::wire::WireRemote as _;
use uverbs::qp::transport::Sends;
use uverbs::{
    Context, Driver, DriverVisitor, ImmData, MemoryRegion, PageBuf, ProtectionDomain, Rc, Shared, Ud,
    open_with,
    raw::{Cq, Qp},
};
use uverbs::{
    Exclusive, Exposed,
    attr::{AccessFlags, QpCap},
};
use uverbs_cm::{ConnParam, Connection, Request, Resolved};
use uverbs_tests::LabEnv;
use uverbs_tests::pair::region;
use uverbs_tests::wait::{LIMIT, successes};

/// The exchange of the two sides after they are connected.
#[derive(Clone, Copy, Debug)]
pub(super) enum Exchange {
    /// A message each way, and private data both ways.
    Greeting,
    /// `rping -C`: this many times the server reads and writes the client's memory.
    Rping(usize),
    /// `ucmatose -C -S`: messages of the server, then of the client.
    Cmatose(usize, usize),
    /// `rstream -C -S`: transfers of a stream of the client, then of the server.
    Rstream(usize, usize),
    /// `udaddy -C -S`: datagrams of the client, then of the server.
    Udaddy(usize, usize),
}

/// The limit of a wait for the connection manager.
const SOON: Option<Duration> = Some(LIMIT);
/// Bytes of a slot of the region.
pub(super) const SLOT: usize = 4096;
const SLOTS: usize = 16;
/// The global route header before a datagram.
const GRH: usize = 40;
pub(super) const HELLO: &[u8] = b"from the client";
pub(super) const WELCOME: &[u8] = b"from the server";

/// The bytes that rstream exchanges before its transfers.
const SYNC: usize = 16;

/// The objects of one end.
pub(super) struct Gear<D: Driver> {
    pd: ProtectionDomain<D>,
    pub(super) sends: Cq<Shared, D>,
    pub(super) recvs: Cq<Shared, D>,
    pub(super) mr: MemoryRegion<PageBuf, Exposed, D>,
}

const CAP: QpCap = QpCap::new(16, 16).inline(16);

fn access() -> AccessFlags {
    AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE
}

impl<D: Driver> Gear<D> {
    fn new(context: &Context<D>) -> Result<Self> {
        let pd = context.alloc_pd()?;
        let mr = region(&pd, SLOT * SLOTS, access() | AccessFlags::LOCAL_WRITE)?;
        Ok(Self { sends: context.create_cq(64, None)?, recvs: context.create_cq(64, None)?, mr, pd })
    }

    fn qp<T: Sends>(&self) -> Result<Qp<T, Exclusive, D>> {
        Ok(self.pd.raw_qp::<T>().send_cq(&self.sends).recv_cq(&self.recvs).cap(CAP).create()?)
    }

    /// A part of a slot.
    pub(super) fn slot(slot: usize, len: usize) -> Range<usize> {
        slot * SLOT..slot * SLOT + len
    }

    fn recv<T: Sends>(&self, qp: &mut Qp<T, Exclusive, D>, slot: usize, len: usize) -> Result<()> {
        let sge = [self.mr.sge(Self::slot(slot, len))?];
        // SAFETY: the region lives as long as the QP, and the slot is not accessed until the completion.
        unsafe { qp.rq()?.post(slot as u64, &sge)? };
        Ok(())
    }

    fn send(&self, qp: &mut Qp<Rc, Exclusive, D>, slot: usize, len: usize) -> Result<()> {
        let sge = [self.mr.sge(Self::slot(slot, len))?];
        // SAFETY: the region lives as long as the QP, and the slot is not written until the completion.
        unsafe { qp.sq().post(slot as u64).signaled().send(&sge)? };
        successes(&self.sends, 1)?;
        Ok(())
    }

    /// The next message's slot and length.
    fn message(&self) -> Result<(usize, usize)> {
        let all = successes(&self.recvs, 1)?;
        let wc = all.first().context("one completion")?;
        Ok((usize::try_from(wc.wr_id)?, usize::try_from(wc.byte_len)?))
    }

    fn read(&self, slot: usize, len: usize) -> Result<Vec<u8>> {
        let mut data = vec![0; len];
        self.mr.read_at(slot * SLOT, &mut data)?;
        Ok(data)
    }

    /// A READ or WRITE of the peer's memory.
    fn rdma(&self, qp: &mut Qp<Rc, Exclusive, D>, slot: usize, info: Info, is_read: bool) -> Result<()> {
        ensure!(info.size as usize <= SLOT, "{} bytes", info.size);
        let sge = [self.mr.sge(Self::slot(slot, info.size as usize))?];
        let remote = D::Remote::new(info.addr, info.rkey);
        let wr = qp.sq().post(slot as u64).signaled();
        if is_read {
            // SAFETY: the region lives as long as the QP, and the slot is not accessed until the completion.
            unsafe { wr.read(&sge, remote)? };
        } else {
            // SAFETY: as for the READ.
            unsafe { wr.write(&sge, remote)? };
        }
        successes(&self.sends, 1)?;
        Ok(())
    }
}

/// The message of rping: a piece of memory.
#[derive(Clone, Copy)]
struct Info {
    addr: u64,
    rkey: u32,
    size: u32,
}

impl Info {
    const LEN: usize = 16;

    fn decode(data: &[u8]) -> Result<Self> {
        let word = |at: usize| data.get(at..).and_then(|d| d.first_chunk()).map(|w| u32::from_be_bytes(*w));
        let addr = data.first_chunk().map(|w| u64::from_be_bytes(*w));
        let wrong = "a message of rping has 16 bytes";
        Ok(Self { addr: addr.context(wrong)?, rkey: word(8).context(wrong)?, size: word(12).context(wrong)? })
    }

    fn encode(self) -> Vec<u8> {
        [&self.addr.to_be_bytes()[..], &self.rkey.to_be_bytes(), &self.size.to_be_bytes()].concat()
    }
}

fn param<D: Driver>(gear: &Gear<D>, exchange: Exchange, greeting: &[u8]) -> ConnParam {
    let private_data = match exchange {
        Exchange::Greeting => greeting.to_vec(),
        Exchange::Rstream(..) => rsocket::private_data(gear),
        _ => vec![],
    };
    ConnParam::new().private_data(private_data).access(access())
}

/// Posts the receives of a connection.
fn receives<D: Driver>(gear: &Gear<D>, qp: &mut Qp<Rc, Exclusive, D>, exchange: Exchange) -> Result<()> {
    match exchange {
        Exchange::Rstream(..) => rsocket::prepare(gear, qp),
        _ => (0..8).try_for_each(|slot| gear.recv(qp, slot, SLOT)),
    }
}

/// The stream of a connection.
fn socket<'a, D: Driver>(
    gear: &'a Gear<D>,
    c: &'a mut Connection<Qp<Rc, Exclusive, D>>,
) -> Result<Socket<'a, D>> {
    let has_immediate = !LabEnv::get().is_some_and(|env| env.siw);
    let peer = c.peer().private_data.clone();
    Socket::new(gear, &mut c.qp, has_immediate, &peer)
}

/// Serves one request.
pub(super) fn serve(request: Request, exchange: Exchange) -> Result<()> {
    struct Visit(Request, Exchange);
    impl DriverVisitor for Visit {
        type Out = Result<()>;
        fn visit<D: Driver>(self, context: Context<D>) -> Result<()> {
            match self.1 {
                Exchange::Udaddy(count, size) => serve_datagrams(&context, self.0, count, size),
                _ => serve_connection(&context, self.0, self.1),
            }
        }
    }
    open_with(&request.device()?, Visit(request, exchange))?
}

/// Connects to a server and runs the exchange.
pub(super) fn call(resolved: Resolved, exchange: Exchange) -> Result<()> {
    struct Visit(Resolved, Exchange);
    impl DriverVisitor for Visit {
        type Out = Result<()>;
        fn visit<D: Driver>(self, context: Context<D>) -> Result<()> {
            match self.1 {
                Exchange::Udaddy(count, size) => call_datagrams(&context, self.0, count, size),
                _ => call_connection(&context, self.0, self.1),
            }
        }
    }
    open_with(&resolved.device()?, Visit(resolved, exchange))?
}

fn serve_connection<D: Driver>(context: &Context<D>, request: Request, exchange: Exchange) -> Result<()> {
    let gear = Gear::new(context)?;
    let mut qp = gear.qp::<Rc>()?;
    let param = param(&gear, exchange, WELCOME);
    request.prepare(&qp, &param)?;
    receives(&gear, &mut qp, exchange)?;
    if matches!(exchange, Exchange::Greeting) {
        ensure!(request.peer().private_data.starts_with(HELLO), "{:?}", request.peer());
    }
    let mut c = request.accept(qp, &param, SOON)?;
    match exchange {
        Exchange::Greeting => {
            let (slot, len) = gear.message()?;
            gear.send(&mut c.qp, slot, len)?;
            ensure!(c.wait_disconnected(SOON)?, "the client did not disconnect");
        }
        Exchange::Rping(count) => {
            for _ in 0..count {
                for is_read in [true, false] {
                    let (slot, len) = gear.message()?;
                    let info = Info::decode(&gear.read(slot, len)?)?;
                    gear.recv(&mut c.qp, slot, SLOT)?;
                    gear.rdma(&mut c.qp, 10, info, is_read)?;
                    gear.send(&mut c.qp, 11, Info::LEN)?;
                }
            }
            ensure!(c.wait_disconnected(SOON)?, "the client did not disconnect");
        }
        Exchange::Cmatose(count, size) => {
            for _ in 0..count {
                gear.send(&mut c.qp, 9, size)?;
            }
            receive(&gear, &mut c, count, size)?;
            c.disconnect()?;
            ensure!(c.wait_disconnected(SOON)?, "no event of the disconnection");
        }
        Exchange::Rstream(count, size) => {
            let mut socket = socket(&gear, &mut c)?;
            socket.recv(SYNC)?;
            socket.send(SYNC)?;
            socket.recv(count * size)?;
            socket.send(count * size)?;
            socket.end()?;
            ensure!(c.wait_disconnected(SOON)?, "the client did not disconnect");
        }
        Exchange::Udaddy(..) => unreachable!("datagrams have no connection"),
    }
    Ok(c.close()?)
}

fn receive<D: Driver>(
    gear: &Gear<D>,
    c: &mut Connection<Qp<Rc, Exclusive, D>>,
    count: usize,
    size: usize,
) -> Result<()> {
    for _ in 0..count {
        let (slot, len) = gear.message()?;
        ensure!(len == size, "{len} bytes");
        gear.recv(&mut c.qp, slot, SLOT)?;
    }
    Ok(())
}

fn call_connection<D: Driver>(context: &Context<D>, resolved: Resolved, exchange: Exchange) -> Result<()> {
    let gear = Gear::new(context)?;
    let mut qp = gear.qp::<Rc>()?;
    let param = param(&gear, exchange, HELLO);
    let prepared = resolved.prepare(&qp, &param)?;
    receives(&gear, &mut qp, exchange)?;
    let mut c = prepared.connect(qp, &param, SOON)?;
    match exchange {
        Exchange::Greeting => {
            ensure!(c.peer().private_data.starts_with(WELCOME), "{:?}", c.peer());
            gear.mr.write_at(9 * SLOT, HELLO)?;
            gear.send(&mut c.qp, 9, HELLO.len())?;
            let (slot, len) = gear.message()?;
            ensure!(gear.read(slot, len)? == HELLO, "another message came back");
            c.disconnect()?;
        }
        Exchange::Rping(count) => {
            for turn in 0..count {
                // rping's server writes a string.
                let mut data: Vec<u8> = (0..64_usize).map(|i| b'A' + ((i + turn) % 50) as u8).collect();
                data[63] = 0;
                gear.mr.write_at(9 * SLOT, &data)?;
                for source in [9, 10] {
                    let info = Info {
                        addr: gear.mr.addr() + (source * SLOT) as u64,
                        rkey: gear.mr.rkey(),
                        size: u32::try_from(data.len())?,
                    };
                    gear.mr.write_at(11 * SLOT, &info.encode())?;
                    gear.send(&mut c.qp, 11, Info::LEN)?;
                    let (slot, _) = gear.message()?;
                    gear.recv(&mut c.qp, slot, SLOT)?;
                }
                ensure!(gear.read(10, data.len())? == data, "turn {turn}: other data came back");
            }
            c.disconnect()?;
        }
        Exchange::Cmatose(count, size) => {
            receive(&gear, &mut c, count, size)?;
            for _ in 0..count {
                gear.send(&mut c.qp, 9, size)?;
            }
            ensure!(c.wait_disconnected(SOON)?, "the server did not disconnect");
            c.disconnect()?;
        }
        Exchange::Rstream(count, size) => {
            let mut socket = socket(&gear, &mut c)?;
            socket.send(SYNC)?;
            socket.recv(SYNC)?;
            socket.send(count * size)?;
            socket.recv(count * size)?;
            socket.wait_ended()?;
            c.disconnect()?;
        }
        Exchange::Udaddy(..) => unreachable!("datagrams have no connection"),
    }
    Ok(c.close()?)
}

fn serve_datagrams<D: Driver>(
    context: &Context<D>,
    request: Request,
    count: usize,
    size: usize,
) -> Result<()> {
    let gear = Gear::new(context)?;
    let port_num = request.id().bound()?.port_num;
    let mut qp = gear.qp::<Ud>()?;
    let param = ConnParam::default();
    request.prepare(&qp, &param)?;
    for slot in 0..count {
        gear.recv(&mut qp, slot, SLOT)?;
    }
    let mut c = request.accept(qp, &param, SOON)?;
    let all = successes(&gear.recvs, count)?;
    let first = all.first().context("a datagram")?;
    let mut grh = [0; GRH];
    gear.mr.read_at(usize::try_from(first.wr_id)? * SLOT, &mut grh)?;
    ensure!(all.iter().all(|wc| wc.byte_len as usize == GRH + size), "other sizes: {all:?}");
    let ah = gear.pd.create_ah_from_wc(first, &grh, port_num)?;
    let remote = first.imm_data().context("the client's QP number")?.get();
    for _ in 0..count {
        datagram(&gear, &mut c, &ah, (remote, uverbs_uapi::rdma_cm::RDMA_UDP_QKEY), size)?;
    }
    Ok(c.close()?)
}

fn call_datagrams<D: Driver>(
    context: &Context<D>,
    resolved: Resolved,
    count: usize,
    size: usize,
) -> Result<()> {
    let gear = Gear::new(context)?;
    let mut qp = gear.qp::<Ud>()?;
    let param = ConnParam::default();
    let prepared = resolved.prepare(&qp, &param)?;
    for slot in 0..count {
        gear.recv(&mut qp, slot, SLOT)?;
    }
    let mut c = prepared.connect(qp, &param, SOON)?;
    let peer = c.peer().clone();
    let ah = gear.pd.create_ah(&peer.ah_attr.context("the way to the server")?)?;
    for _ in 0..count {
        datagram(&gear, &mut c, &ah, (peer.qp_num, peer.qkey), size)?;
    }
    let all = successes(&gear.recvs, count)?;
    ensure!(all.iter().all(|wc| wc.byte_len as usize == GRH + size), "other sizes: {all:?}");
    Ok(c.close()?)
}

fn datagram<D: Driver>(
    gear: &Gear<D>,
    c: &mut Connection<Qp<Ud, Exclusive, D>>,
    ah: &uverbs::AddressHandle<D>,
    (remote_qpn, remote_qkey): (u32, u32),
    size: usize,
) -> Result<()> {
    let sge = [gear.mr.sge(Gear::<D>::slot(15, size))?];
    let imm = ImmData::new(c.qp.qp_num());
    let wr = c.qp.sq().post_to(1, ah, remote_qpn, remote_qkey).signaled();
    // SAFETY: the region lives as long as the QP, and the slot is not written until the completion.
    unsafe { wr.send_imm(&sge, imm)? };
    successes(&gear.sends, 1)?;
    Ok(())
}
