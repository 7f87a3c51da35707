// SPDX-License-Identifier: MIT OR Apache-2.0
//! Connecting two QPs: the exchange of endpoints over any byte stream, and one call from INIT to RTS.
//!
//! The exchange is that of rdma-core's pingpong programs (`libibverbs/examples`): one line of hexadecimal text each
//! way, so either end may be a C program. The active side (client) calls [`Endpoint::exchange`], the passive side
//! (server) [`Endpoint::answer`]. With a stream in a [`WithDeadline`], both fail after a time limit if the peer does
//! not answer.
//!
//! ```
//! use std::net::{TcpListener, TcpStream};
//! use std::time::Duration;
//! use uverbs::{ConnectAttr, Context, Rc, WithDeadline, mlx5::Mlx5};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let fabric = uverbs_hca::Fabric::new(0);
//! # let (a, b) = (fabric.device("hca0").build(), fabric.device("hca1").build());
//! let attr = ConnectAttr::default();
//! let limit = Duration::from_secs(60);
//! let listener = TcpListener::bind("127.0.0.1:0")?;
//! let server = listener.local_addr()?;
//!
//! let client = std::thread::spawn(move || -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//!     let context = Context::<Mlx5>::from_kernel(a.open())?;
//!     let (pd, cq) = (context.alloc_pd()?, context.create_cq(16, None)?);
//!     let qp = pd.raw_qp::<Rc>().cq(&cq).create()?;
//!     qp.init(&attr)?;
//!     let here = qp.control.endpoint(1, &attr)?;
//!     let there = here.exchange(WithDeadline::new(TcpStream::connect(server)?, limit))?;
//!     qp.connect(&here, &there, &attr)?;
//!     Ok(())
//! });
//!
//! let context = Context::<Mlx5>::from_kernel(b.open())?;
//! let (pd, cq) = (context.alloc_pd()?, context.create_cq(16, None)?);
//! let qp = pd.raw_qp::<Rc>().cq(&cq).create()?;
//! qp.init(&attr)?;
//! let here = qp.control.endpoint(2, &attr)?;
//! let (stream, _) = listener.accept()?;
//! // The QP can receive before the client gets its endpoint.
//! here.answer(WithDeadline::new(stream, limit), |there| Ok(qp.connect(&here, there, &attr)?))?;
//! client.join().unwrap().unwrap();
//! # Ok(())
//! # }
//! ```

use crate::context::{Context, ContextInner};
use core::fmt;
use core::str::FromStr;
use core::time::Duration;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::time::Instant;
use uverbs_core::attr::{AccessFlags, AhAttr, Gid, GlobalRoute, LinkLayer, Mtu};
use uverbs_core::control::query;
use uverbs_core::errno::Errno;
use uverbs_core::error::Error;
use uverbs_core::provider::Driver;

/// The address of a QP: the values that its peer needs to connect to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Endpoint {
    /// Local identifier of the port; 0 on RoCE.
    pub lid: u16,
    /// QP number, 24 bits.
    pub qp_num: u32,
    /// First packet sequence number that it sends, 24 bits.
    pub psn: u32,
    /// The GID of the port and index that it uses.
    pub gid: Gid,
}

/// Bytes of an endpoint's text: `lid:qpn:psn:gid` in hexadecimal, and the NUL, which the C programs also send.
pub const ENDPOINT_LEN: usize = 52;

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:06x}:{:06x}:", self.lid, self.qp_num, self.psn)?;
        self.gid.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

/// The text is not an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseEndpointError;

impl fmt::Display for ParseEndpointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not an endpoint: expected lid:qpn:psn:gid in hexadecimal")
    }
}

impl core::error::Error for ParseEndpointError {}

impl FromStr for Endpoint {
    type Err = ParseEndpointError;

    fn from_str(text: &str) -> Result<Self, ParseEndpointError> {
        let mut fields = text.split(':');
        let mut field = |max_len: usize| -> Result<&str, ParseEndpointError> {
            let f = fields.next().ok_or(ParseEndpointError)?;
            let is_hex = f.bytes().all(|b| b.is_ascii_hexdigit());
            if f.is_empty() || f.len() > max_len || !is_hex { Err(ParseEndpointError) } else { Ok(f) }
        };
        let number = |f: &str| u32::from_str_radix(f, 16).map_err(|_| ParseEndpointError);
        let lid = u16::try_from(number(field(4)?)?).map_err(|_| ParseEndpointError)?;
        let qp_num = number(field(6)?)?;
        let psn = number(field(6)?)?;
        let gid_text = field(32)?;
        if gid_text.len() != 32 || fields.next().is_some() {
            return Err(ParseEndpointError);
        }
        let gid = u128::from_str_radix(gid_text, 16).map_err(|_| ParseEndpointError)?;
        Ok(Self { lid, qp_num, psn, gid: Gid(gid.to_be_bytes()) })
    }
}

impl Endpoint {
    /// Sends this endpoint.
    ///
    /// # Errors
    /// Those of the stream.
    pub fn send(&self, mut stream: impl Write) -> io::Result<()> {
        let mut text = self.to_string().into_bytes();
        text.resize(ENDPOINT_LEN, 0);
        stream.write_all(&text)?;
        stream.flush()
    }

    /// Receives the peer's.
    ///
    /// # Errors
    /// Those of the stream; `InvalidData` if the text is not an endpoint.
    pub fn receive(mut stream: impl Read) -> io::Result<Self> {
        let mut text = [0u8; ENDPOINT_LEN];
        stream.read_exact(&mut text)?;
        let end = text.iter().position(|b| *b == 0).unwrap_or(ENDPOINT_LEN);
        let text = core::str::from_utf8(&text[..end]).map_err(|_| ParseEndpointError);
        text.and_then(str::parse).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
    }

    /// Sends this endpoint and receives the peer's, as the active side (client) does.
    ///
    /// # Errors
    /// Those of [`send`](Self::send) and [`receive`](Self::receive).
    pub fn exchange(&self, mut stream: impl Read + Write) -> io::Result<Self> {
        self.send(&mut stream)?;
        Self::receive(&mut stream)
    }

    /// Receives the peer's endpoint, calls `connect` with it, and then sends this one, as the passive side (server)
    /// does. So the QP of this side is ready before the peer begins to send.
    ///
    /// # Errors
    /// Those of [`receive`](Self::receive) and [`send`](Self::send), and those of `connect`. In these cases the peer
    /// gets no endpoint; it reads the end of the stream when the stream is dropped.
    pub fn answer(
        &self,
        mut stream: impl Read + Write,
        connect: impl FnOnce(&Self) -> io::Result<()>,
    ) -> io::Result<Self> {
        let peer = Self::receive(&mut stream)?;
        connect(&peer)?;
        self.send(&mut stream)?;
        Ok(peer)
    }
}

/// The byte that says that a QP can receive.
const READY: u8 = b'R';

/// Exchanges endpoints with the other end, which makes the same call, and calls `connect` with that of the peer. Returns when the QP of the
/// peer is connected, too.
pub(crate) fn meet(
    mut stream: impl Read + Write,
    here: &Endpoint,
    connect: impl FnOnce(&Endpoint) -> uverbs_core::error::Result<()>,
) -> uverbs_core::error::Result<()> {
    let failed = |what: &str, e: &io::Error| match e.kind() {
        io::ErrorKind::InvalidData => Error::protocol("connect", format!("{what}: {e}")),
        kind => {
            let errno = match (e.raw_os_error(), kind) {
                (Some(errno), _) => Errno::from_raw(errno),
                (None, io::ErrorKind::UnexpectedEof) => Errno::ECONNRESET,
                (None, io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock) => Errno::ETIMEDOUT,
                (None, _) => Errno::EIO,
            };
            Error::os("connect", format!("stream, {what}: {e}"), errno)
        }
    };
    here.send(&mut stream).map_err(|e| failed("to send the endpoint", &e))?;
    let there =
        Endpoint::receive(&mut stream).map_err(|e| failed("to receive the endpoint of the peer", &e))?;
    connect(&there)?;
    let mut ready = [READY];
    stream
        .write_all(&ready)
        .and_then(|()| stream.flush())
        .map_err(|e| failed("to send that the QP is ready", &e))?;
    stream.read_exact(&mut ready).map_err(|e| failed("to receive that the QP of the peer is ready", &e))?;
    if ready == [READY] {
        Ok(())
    } else {
        Err(Error::protocol("connect", "the peer sent an endpoint and then something else"))
    }
}

/// A first packet sequence number, 24 bits, that an earlier connection of the same QP numbers has probably not used.
pub(crate) fn random_psn() -> u32 {
    use core::hash::{BuildHasher as _, Hasher as _};
    let hash = std::hash::RandomState::new().build_hasher().finish();
    (hash as u32) & 0xff_ffff
}

/// A stream with a time limit for the sum of its reads and writes: for [`Endpoint::exchange`], [`Endpoint::answer`] and
/// [`RemoteRegion::receive`](crate::RemoteRegion::receive). A read or write after the limit fails with `TimedOut`.
///
/// It waits by poll(2) and does not change the options of the stream. The messages of an exchange are short, so a write
/// to a writable socket does not block.
#[derive(Debug)]
pub struct WithDeadline<S> {
    stream: S,
    /// `None` means no limit.
    end: Option<Instant>,
}

impl<S: AsFd> WithDeadline<S> {
    /// Wraps a stream. The time limit begins now.
    pub fn new(stream: S, limit: Duration) -> Self {
        Self { stream, end: Instant::now().checked_add(limit) }
    }

    /// The stream.
    pub fn into_inner(self) -> S {
        self.stream
    }

    fn wait(&self, flags: PollFlags) -> io::Result<()> {
        loop {
            let timeout = match self.end.map(|end| end.saturating_duration_since(Instant::now())) {
                Some(Duration::ZERO) => {
                    return Err(io::Error::new(io::ErrorKind::TimedOut, "the peer did not answer in time"));
                }
                // Rounded up, so that the last round does not spin.
                Some(left) => {
                    PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
                }
                None => PollTimeout::NONE,
            };
            match poll(&mut [PollFd::new(self.stream.as_fd(), flags)], timeout) {
                Ok(0) | Err(nix::errno::Errno::EINTR) => {}
                Ok(_) => return Ok(()),
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl<S: AsFd + Read> Read for WithDeadline<S> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            self.wait(PollFlags::POLLIN)?;
            match self.stream.read(out) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
        }
    }
}

impl<S: AsFd + Write> Write for WithDeadline<S> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        loop {
            self.wait(PollFlags::POLLOUT)?;
            match self.stream.write(data) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// The parameters of a connection, except its two endpoints.
///
/// ```
/// use uverbs::ConnectAttr;
/// use uverbs::attr::AccessFlags;
///
/// let attr = ConnectAttr::new().access(AccessFlags::REMOTE_WRITE).timeout(16);
/// assert_eq!((attr.timeout, attr.retry_cnt), (16, 7));
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ConnectAttr {
    /// Local port, from 1.
    pub port_num: u8,
    /// Index of the local GID in the port's table. The GID determines the addresses of packets, and on RoCE their
    /// format.
    ///
    /// `None` is the default: on Ethernet (RoCE) and devices with SRD the index of [`best_gid`](crate::Context::best_gid), on InfiniBand a
    /// connection without a global route. Both ends should use the default, or indices of matching GIDs.
    pub sgid_index: Option<u8>,
    /// Index of the partition key.
    pub pkey_index: u16,
    /// Path MTU. Both ends must use the same.
    ///
    /// `None` is the default: that of the port (`active_mtu`), or 1024 if the port has none. Ends whose ports have different ones must name a value that both have, and an
    /// end whose peer is a program with a fixed value, such as rdma-core's pingpong programs with 1024, must name it.
    pub path_mtu: Option<Mtu>,
    /// Service level, 4 bits.
    pub sl: u8,
    /// The access of the peer to exposed regions of this QP's domain. None by default. Remote access to a region needs
    /// the right in this field and in the region.
    pub access: AccessFlags,
    /// Traffic class (DSCP and ECN on RoCE v2) of packets with a global route.
    pub traffic_class: u8,
    /// Flow label of packets with a global route, 20 bits.
    pub flow_label: u32,
    /// `enum ibv_rate`: the maximum rate of packets; 0 means the port's rate.
    pub static_rate: u8,
    /// Hops that packets may take.
    pub hop_limit: u8,
    /// `ack_timeout`: the time limit is 4.096 us times 2 to this power; 0 means no limit. 5 bits.
    pub timeout: u8,
    /// Retransmissions before [`WcStatus::RETRY_EXC_ERR`](uverbs_core::wc::WcStatus). 3 bits.
    pub retry_cnt: u8,
    /// Retries when the peer has no receive posted; 7 means no limit. 3 bits.
    pub rnr_retry: u8,
    /// The time that the peer must wait before it retries if no receive is posted here: a code of 5 bits (1 is 0.01 ms, 12
    /// is 0.64 ms, 31 is 491.52 ms, 0 is 655.36 ms; InfiniBand specification, 9.7.5.2.8).
    pub min_rnr_timer: u8,
    /// The maximum number of outstanding reads and atomics of this side.
    pub max_rd_atomic: u8,
    /// The maximum number of outstanding reads and atomics of the peer.
    pub max_dest_rd_atomic: u8,
    /// Queue key of a datagram QP.
    pub qkey: u32,
}

impl Default for ConnectAttr {
    /// The values of rdma-core's pingpong programs, which grant the peer no access, and the MTU of the port.
    fn default() -> Self {
        Self {
            port_num: 1,
            sgid_index: None,
            pkey_index: 0,
            path_mtu: None,
            sl: 0,
            access: AccessFlags::empty(),
            traffic_class: 0,
            flow_label: 0,
            static_rate: 0,
            hop_limit: 1,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            qkey: 0x1111_1111,
        }
    }
}

impl ConnectAttr {
    /// The default.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    uverbs_core::setters! {
        port_num: u8,
        sgid_index: Option<u8>,
        pkey_index: u16,
        sl: u8,
        access: AccessFlags,
        traffic_class: u8,
        flow_label: u32,
        static_rate: u8,
        hop_limit: u8,
        timeout: u8,
        retry_cnt: u8,
        rnr_retry: u8,
        min_rnr_timer: u8,
        max_rd_atomic: u8,
        max_dest_rd_atomic: u8,
        qkey: u32,
    }

    /// Sets [`path_mtu`](field@Self::path_mtu): to an MTU, or with `None` to that of the port.
    #[must_use]
    pub fn path_mtu(mut self, path_mtu: impl Into<Option<Mtu>>) -> Self {
        self.path_mtu = path_mtu.into();
        self
    }

    /// Returns these parameters with the index of the GID and the MTU that are used: where they are `None`, those of the
    /// port. [`QpControl`](crate::qp::QpControl) calls it itself; for an address handle the program calls it before
    /// [`ah_attr`](Self::ah_attr).
    ///
    /// # Errors
    /// On RoCE, those of [`Context::best_gid`]; otherwise the kernel's error for the query of the port.
    pub fn on<D: Driver>(&self, context: &Context<D>) -> uverbs_core::error::Result<Self> {
        self.resolve(context.inner())
    }

    pub(crate) fn resolve<D: Driver>(&self, context: &ContextInner<D>) -> uverbs_core::error::Result<Self> {
        let sgid_index = match self.sgid_index {
            None => crate::gid::default_index(context, self.port_num)?,
            some => some,
        };
        let path_mtu = Some(self.mtu_on(context)?);
        Ok(Self { sgid_index, path_mtu, ..*self })
    }

    /// The path MTU on a device.
    pub(crate) fn mtu_on<D: Driver>(&self, context: &ContextInner<D>) -> uverbs_core::error::Result<Mtu> {
        match self.path_mtu {
            Some(mtu) => Ok(mtu),
            None => {
                let active = query::port(context.kernel(), self.port_num)?.active_mtu;
                // A port may have none while it is down.
                Ok(if active.bytes().is_some() { active } else { Mtu::MTU_1024 })
            }
        }
    }

    /// Refuses a peer without a GID on a port that needs one. The kernel would return `EINVAL` without a reason.
    pub(crate) fn check_peer<D: Driver>(
        &self,
        context: &ContextInner<D>,
        remote: &Endpoint,
    ) -> uverbs_core::error::Result<()> {
        if remote.gid.is_zero()
            && query::port(context.kernel(), self.port_num)?.link_layer == LinkLayer::ETHERNET
        {
            let reason = format!(
                "the peer's endpoint has no GID, and port {} is Ethernet (RoCE): the peer must use a GID, too",
                self.port_num
            );
            return Err(Error::invalid("connect", "remote", reason));
        }
        Ok(())
    }

    /// The address attributes of the path to `remote`.
    #[must_use]
    pub fn ah_attr(&self, remote: &Endpoint) -> AhAttr {
        let route = |sgid_index| {
            GlobalRoute::new(remote.gid)
                .sgid_index(sgid_index)
                .hop_limit(self.hop_limit)
                .flow_label(self.flow_label)
                .traffic_class(self.traffic_class)
        };
        let has_gid = remote.gid != Gid::default();
        AhAttr::new(self.port_num)
            .grh(self.sgid_index.filter(|_| has_gid).map(route))
            .dlid(remote.lid)
            .sl(self.sl)
            .static_rate(self.static_rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoints_text_is_that_of_the_c_programs() {
        let mut gid = [0u8; 16];
        gid[10..].copy_from_slice(&[0xff, 0xff, 10, 0, 0, 2]);
        let e = Endpoint { lid: 0x12, qp_num: 0x11, psn: 0xabc123, gid: Gid(gid) };
        let text = "0012:000011:abc123:00000000000000000000ffff0a000002";
        assert_eq!(e.to_string(), text);
        assert_eq!(text.parse(), Ok(e));
        let mut wire = Vec::new();
        e.send(&mut wire).unwrap();
        assert_eq!(wire.len(), ENDPOINT_LEN);
        assert_eq!(Endpoint::receive(&wire[..]).unwrap(), e);
    }

    #[test]
    fn the_path_mtu_is_that_of_the_port_unless_it_is_named() {
        use crate::{Exclusive, Rc, mlx5::Mlx5, raw};
        use uverbs_core::attr::QpAttrMask;
        let context = Context::<Mlx5>::from_kernel(uverbs_hca::Hca::new().open()).unwrap();
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(16, None).unwrap());
        assert_eq!(context.query_port(1).unwrap().active_mtu, Mtu::MTU_4096);
        for (named, used) in [(None, Mtu::MTU_4096), (Some(Mtu::MTU_512), Mtu::MTU_512)] {
            let qp: raw::Qp<Rc, Exclusive, Mlx5> = pd.raw_qp::<Rc>().cq(&cq).create().unwrap();
            let attr = ConnectAttr::new().path_mtu(named);
            qp.init(&attr).unwrap();
            let here = qp.control.endpoint(1, &attr).unwrap();
            qp.connect(&here, &here, &attr).unwrap();
            assert_eq!(qp.control.query(QpAttrMask::PATH_MTU).unwrap().0.path_mtu, used);
        }
    }

    #[test]
    fn the_address_has_every_attribute_of_the_path() {
        let attr = ConnectAttr::new()
            .sgid_index(Some(3))
            .sl(4)
            .traffic_class(0x60)
            .flow_label(0x12345)
            .static_rate(5)
            .hop_limit(9);
        let way = attr.ah_attr(&Endpoint { gid: Gid([1; 16]), lid: 7, ..Endpoint::default() });
        let grh = way.grh.unwrap();
        assert_eq!((grh.traffic_class, grh.flow_label, grh.hop_limit, grh.sgid_index), (0x60, 0x12345, 9, 3));
        assert_eq!((way.sl, way.static_rate, way.dlid, way.port_num), (4, 5, 7, 1));
    }

    #[test]
    fn invalid_text_is_an_error() {
        for text in ["", ":::", "0:0:0:0", "0012:000011:abc123:+0000000000000000000ffff0a000002", "12:1:1:é"]
        {
            assert_eq!(text.parse::<Endpoint>(), Err(ParseEndpointError), "{text}");
        }
        assert!(Endpoint::receive(&[0xff; ENDPOINT_LEN][..]).is_err());
        assert!(Endpoint::receive(&[b'0'; 10][..]).is_err());
    }
}
