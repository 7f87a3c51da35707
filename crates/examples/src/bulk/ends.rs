// SPDX-License-Identifier: MIT OR Apache-2.0
//! The queues of one NIC, and their connection. The two sides also have a TCP stream, over which they compare their sizes and
//! exchange addresses.

use super::Plan;
use super::memory::Memory;
use crate::link::{self, LIMIT, Path};
use crate::nic::Nic;
use anyhow::{Context as _, Result, ensure};
use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use core::time::Duration;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::AsFd as _;
use std::time::Instant;
use uverbs::{
    Context, Driver, ProtectionDomain, Rc, RemoteRegion, Shared, WithDeadline, WorkCompletion,
    raw::{Cq, Qp},
};
use uverbs::{
    Exclusive,
    attr::{AccessFlags, QpCap, SendOpsFlags},
};
use uverbs_cm::{Id, Listener, PortSpace, Resolved};

/// How the QPs are connected.
#[derive(Clone, Debug)]
pub enum Way {
    /// By an exchange of endpoints over the TCP stream.
    Exchange(Path),
    /// By the RDMA connection manager. The receiver listens on these addresses, one for each NIC, or, if there are none, on
    /// those of the NICs' GIDs.
    Cm(Vec<IpAddr>),
}

impl Default for Way {
    fn default() -> Self {
        Self::Exchange(Path::default())
    }
}

/// Bytes of a message that carries the number of a batch.
pub const NUMBER: usize = 4;

/// The queues and the memory of one NIC. The order of the fields is that of their drops: the queues end before the memory.
#[derive(Debug)]
pub struct End<D: Driver> {
    /// The QPs.
    pub qps: Vec<Qp<Rc, Exclusive, D>>,
    /// The identifiers of their connections, if they are those of the connection manager.
    ids: Vec<Id>,
    /// Their CQ.
    pub cq: Cq<Shared, D>,
    /// The blocks.
    pub memory: Memory<D>,
    /// Messages that arrive by SEND: `receives` for each QP.
    pub inbox: Memory<D>,
    /// Receives of each QP.
    pub receives: u32,
    /// Whether the device has immediate data.
    pub immediate: bool,
    /// The NIC.
    pub nic: Nic,
    /// The rights of the peer.
    access: AccessFlags,
    context: Context<D>,
    _pd: ProtectionDomain<D>,
}

impl<D: Driver> End<D> {
    /// Creates the queues.
    ///
    /// # Errors
    /// A size is above the device's limits, or there is too little memory.
    pub fn new(nic: &Nic, plan: &Plan, access: AccessFlags, dmabuf: bool) -> Result<Self> {
        let context: Context<D> = nic.open()?;
        let pd = context.alloc_pd()?;
        let len = plan.bytes()?;
        let memory = match (dmabuf, nic) {
            (true, Nic::Software(_)) => Memory::dma_buf(&pd, len, access, true)?,
            (true, Nic::Machine(_)) => Memory::dma_buf(&pd, len, access, false)?,
            (false, _) => Memory::pages(&pd, len, access)?,
        };
        // The peer is at most a window ahead, and has one message for each batch on each QP.
        let receives = plan.window + 1;
        let inbox_len = plan.qps as usize * receives as usize * NUMBER;
        let inbox = Memory::pages(&pd, inbox_len, AccessFlags::empty())?;
        let cq = context.create_cq(plan.qps * (plan.depth + receives), None)?;
        let cap = QpCap::new(plan.depth, receives).inline(NUMBER as u32);
        let (mut qps, mut immediate) = (Vec::new(), true);
        for _ in 0..plan.qps {
            let ops = SendOpsFlags::SEND | SendOpsFlags::RDMA_WRITE;
            let create = |ops| pd.raw_qp::<Rc>().cq(&cq).cap(cap).send_ops(ops).create();
            let qp = match create(ops | SendOpsFlags::RDMA_WRITE_WITH_IMM) {
                Err(error) if error.is_unsupported() => {
                    immediate = false;
                    create(ops)?
                }
                created => created?,
            };
            qps.push(qp);
        }
        let (ids, nic) = (Vec::new(), nic.clone());
        Ok(Self { qps, ids, cq, memory, inbox, receives, immediate, nic, access, context, _pd: pd })
    }

    /// Posts all receives of a QP, which is in INIT.
    fn receive_all(&mut self, qp: usize) -> Result<()> {
        (0..self.receives).try_for_each(|n| self.receive(qp as u32, n))
    }

    /// Moves all QPs to INIT and posts their receives.
    fn init(&mut self, path: Path) -> Result<()> {
        let attr = link::attr(path, self.access);
        for qp in 0..self.qps.len() {
            self.qps[qp].init(&attr)?;
            self.receive_all(qp)?;
        }
        Ok(())
    }

    /// Connects all QPs to those of a receiver that listens at this address.
    fn connect_cm(&mut self, to: SocketAddr) -> Result<()> {
        let manager = self.nic.connection_manager()?;
        let param = link::param(self.access, false);
        let local = link::source(&self.context, to.is_ipv4());
        for n in 0..self.qps.len() {
            let resolved = Resolved::with(&manager, PortSpace::Tcp, local, to, LIMIT)?;
            link::check_device(resolved.device(), self.nic.name())?;
            let prepared = resolved.prepare(&self.qps[n], &param)?;
            self.receive_all(n)?;
            let (qp, id) = prepared.connect(self.qps.remove(n), &param, Some(LIMIT))?.into_parts();
            self.qps.insert(n, qp);
            self.ids.push(id);
        }
        Ok(())
    }

    /// Listens for the sender, at the `n`th address.
    fn listen(&self, addresses: &[IpAddr], n: usize) -> Result<Listener> {
        let own = match &self.nic {
            Nic::Software(hca) => hca.addresses().first().copied(),
            Nic::Machine(_) => link::source(&self.context, true).map(|address| address.ip()),
        };
        let at = addresses.get(n).copied().or(own);
        let at = at.with_context(|| format!("the address of {} is needed: --cm IP", self.nic.name()))?;
        Ok(Listener::bind(&self.nic.connection_manager()?, (at, 0).into())?)
    }

    /// Accepts the connections of all QPs, in their order.
    fn accept_cm(&mut self, listener: &Listener) -> Result<()> {
        let param = link::param(self.access, false);
        for n in 0..self.qps.len() {
            let request = listener.wait(Some(LIMIT))?.context("the sender does not connect")?;
            link::check_device(request.device(), self.nic.name())?;
            request.prepare(&self.qps[n], &param)?;
            self.receive_all(n)?;
            let (qp, id) = request.accept(self.qps.remove(n), &param, Some(LIMIT))?.into_parts();
            self.qps.insert(n, qp);
            self.ids.push(id);
        }
        Ok(())
    }

    /// Posts the `n`th receive of a QP. Its `wr_id` has both numbers.
    ///
    /// # Errors
    /// The queue is full or has failed.
    pub fn receive(&mut self, qp: u32, n: u32) -> Result<()> {
        let at = self.inbox_offset(qp, n);
        let sge = self.inbox.sge(at, NUMBER)?;
        let queue = self.qps[qp as usize].rq()?;
        #[expect(unsafe_code, reason = "the device writes to the entry later")]
        // SAFETY: the entry is in `inbox`, which this value drops after its QPs. The bytes are read by copies only, after the
        // completion and before the receive is posted again.
        unsafe { queue.post(receive_id(qp, n), &[sge]) }?;
        Ok(())
    }

    fn inbox_offset(&self, qp: u32, n: u32) -> usize {
        (qp * self.receives + n) as usize * NUMBER
    }

    /// The number of the batch that a completed receive has brought, as immediate data or as the message. Posts it again.
    ///
    /// # Errors
    /// The completion is not of a receive of this end.
    pub fn received(&mut self, wc: &WorkCompletion) -> Result<u32> {
        let (qp, n) = receive_of(wc.wr_id);
        ensure!((qp as usize) < self.qps.len() && n < self.receives, "a stray receive");
        let mut number = [0; NUMBER];
        let at = self.inbox_offset(qp, n);
        if let Memory::Pages(region) = &self.inbox {
            region.read_at(at, &mut number)?;
        }
        self.receive(qp, n)?;
        Ok(wc.imm_data().map_or(u32::from_be_bytes(number), uverbs::ImmData::get))
    }
}

const RECEIVE: u64 = 1 << 63;

fn receive_id(qp: u32, n: u32) -> u64 {
    RECEIVE | u64::from(qp) << 32 | u64::from(n)
}

fn receive_of(wr_id: u64) -> (u32, u32) {
    ((wr_id >> 32) as u32 & 0x7fff_ffff, wr_id as u32)
}

/// Whether a completion is of a receive.
#[must_use]
pub fn is_receive(wc: &WorkCompletion) -> bool {
    wc.wr_id & RECEIVE != 0
}

/// The sizes and the way of connecting as they are sent, so that both sides have the same.
fn sizes(plan: &Plan, nics: usize, way: &Way) -> [u8; 28] {
    let Plan { blocks, block_size, qps, batches, window, .. } = *plan;
    let mut out = [0; 28];
    for (word, n) in out.chunks_exact_mut(4).zip([
        if matches!(way, Way::Cm(_)) { *b"blkc" } else { *b"blk1" },
        nics_bytes(nics),
        blocks.to_be_bytes(),
        block_size.to_be_bytes(),
        qps.to_be_bytes(),
        batches.to_be_bytes(),
        window.to_be_bytes(),
    ]) {
        word.copy_from_slice(&n);
    }
    out
}

fn nics_bytes(nics: usize) -> [u8; 4] {
    u32::try_from(nics).unwrap_or(u32::MAX).to_be_bytes()
}

fn same_sizes(stream: &mut WithDeadline<&TcpStream>, plan: &Plan, nics: usize, way: &Way) -> Result<()> {
    let ours = sizes(plan, nics, way);
    stream.write_all(&ours)?;
    let mut theirs = [0; 28];
    stream.read_exact(&mut theirs)?;
    ensure!(ours == theirs, "the other side has other sizes: give both the same options");
    Ok(())
}

/// Bytes of an address: that of IPv6, to which one of IPv4 is mapped, and the port.
const ADDRESS: usize = 18;

fn send_address(stream: &mut WithDeadline<&TcpStream>, address: SocketAddr) -> Result<()> {
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let mut bytes = [0; ADDRESS];
    bytes[..16].copy_from_slice(&ip.octets());
    bytes[16..].copy_from_slice(&address.port().to_be_bytes());
    Ok(stream.write_all(&bytes)?)
}

fn receive_address(stream: &mut WithDeadline<&TcpStream>) -> Result<SocketAddr> {
    let (mut ip, mut port) = ([0; 16], [0; 2]);
    stream.read_exact(&mut ip)?;
    stream.read_exact(&mut port)?;
    Ok((Ipv6Addr::from(ip).to_canonical(), u16::from_be_bytes(port)).into())
}

/// Connects to the receiver. Returns the memory of each of its NICs, and whether both sides have immediate data.
///
/// # Errors
/// The receiver does not answer in time, or has other sizes.
pub fn connect_sender<D: Driver>(
    ends: &mut [End<D>],
    stream: &TcpStream,
    plan: &Plan,
    way: &Way,
) -> Result<(Vec<RemoteRegion>, bool)> {
    let mut stream = WithDeadline::new(stream, LIMIT);
    same_sizes(&mut stream, plan, ends.len(), way)?;
    for end in &mut *ends {
        match *way {
            Way::Exchange(path) => {
                let attr = link::attr(path, end.access);
                end.init(path)?;
                for qp in &end.qps {
                    let here = qp.control.endpoint(qp.control.qp_num(), &attr)?;
                    let there = here.exchange(&mut stream).context("exchange with the receiver")?;
                    qp.connect(&here, &there, &attr)?;
                }
            }
            Way::Cm(_) => end.connect_cm(receive_address(&mut stream)?)?,
        }
    }
    let regions = ends.iter().map(|_| RemoteRegion::receive(&mut stream)).collect::<Result<_, _>>()?;
    let immediate = agree(&mut stream, ends)?;
    Ok((regions, immediate))
}

/// The receiver's side of [`connect_sender`].
///
/// # Errors
/// The sender does not answer in time, or has other sizes.
pub fn connect_receiver<D: Driver>(
    ends: &mut [End<D>],
    stream: &TcpStream,
    plan: &Plan,
    way: &Way,
) -> Result<bool> {
    let mut stream = WithDeadline::new(stream, LIMIT);
    same_sizes(&mut stream, plan, ends.len(), way)?;
    for (n, end) in ends.iter_mut().enumerate() {
        match way {
            Way::Exchange(path) => {
                let attr = link::attr(*path, end.access);
                end.init(*path)?;
                for qp in &end.qps {
                    let here = qp.control.endpoint(qp.control.qp_num(), &attr)?;
                    here.answer(&mut stream, |there| Ok(qp.connect(&here, there, &attr)?))?;
                }
            }
            Way::Cm(addresses) => {
                let listener = end.listen(addresses, n)?;
                send_address(&mut stream, listener.local_addr()?)?;
                end.accept_cm(&listener)?;
            }
        }
    }
    for end in &*ends {
        end.memory.remote_region()?.send(&mut stream)?;
    }
    agree(&mut stream, ends)
}

/// Whether both sides have immediate data. It is also the end of the exchange: both sides are connected then.
fn agree<D: Driver>(stream: &mut WithDeadline<&TcpStream>, ends: &[End<D>]) -> Result<bool> {
    let ours = ends.iter().all(|end| end.immediate);
    stream.write_all(&[ours.into()])?;
    let mut theirs = [0];
    stream.read_exact(&mut theirs)?;
    Ok(ours && theirs == [1])
}

/// After this number of polls that find nothing, an end looks whether the other side has gone.
const IDLE: u32 = 1024;

/// The wait of an end for the other side.
#[derive(Debug)]
pub struct Wait<'a> {
    stream: &'a TcpStream,
    limit: Duration,
    since: Instant,
    polls: u32,
    gone: bool,
}

impl<'a> Wait<'a> {
    /// Begins now.
    #[must_use]
    pub fn new(stream: &'a TcpStream, limit: Duration) -> Self {
        Self { stream, limit, since: Instant::now(), polls: 0, gone: false }
    }

    /// After a poll that has found `polled` completions.
    ///
    /// # Errors
    /// The time is over, or the other side has gone and all that it has sent was polled.
    pub fn polled(&mut self, polled: usize, what: &str) -> Result<()> {
        if polled > 0 {
            *self = Self::new(self.stream, self.limit);
            return Ok(());
        }
        ensure!(!self.gone, "the other side has gone; waited for {what}");
        ensure!(self.since.elapsed() < self.limit, "waited {:?} for {what}", self.limit);
        self.polls = self.polls.wrapping_add(1);
        self.gone = self.polls.is_multiple_of(IDLE) && is_gone(self.stream);
        std::thread::yield_now();
        Ok(())
    }
}

/// Whether the other side has closed the stream. It does not before this side is complete.
fn is_gone(stream: &TcpStream) -> bool {
    let readable = poll(&mut [PollFd::new(stream.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO);
    readable.is_ok_and(|count| count > 0) && stream.peek(&mut [0]).map_or(true, |count| count == 0)
}

/// Waits until the other side has all its completions, too. The queues must not end before: the device does not repeat a lost
/// acknowledgement of a queue pair that is destroyed.
///
/// # Errors
/// The other side has failed, or does not end in time.
pub fn part(stream: &TcpStream) -> Result<()> {
    let mut stream = WithDeadline::new(stream, LIMIT);
    stream.write_all(&[1]).and_then(|()| stream.read_exact(&mut [0])).context("the other side has failed")
}
