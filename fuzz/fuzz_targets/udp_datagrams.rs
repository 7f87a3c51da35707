// SPDX-License-Identifier: MIT OR Apache-2.0
//! Datagrams that a device with a UDP socket receives: any bytes, any transport packets with a right ICRC, from the peer of its
//! connections and from another host, while it has requests in flight.
//!
//! Checked: every datagram is received and counted, none makes the device panic; what the device answers is a packet with a right ICRC;
//! no datagram is a mistake of the program; the rights of the region hold (the memory that no peer may write is unchanged); another
//! connection of the same device works after each input.
#![no_main]
#![expect(unsafe_code)]
// UNSAFETY: posting is an `unsafe fn`; the entries name regions that are exposed, and live longer than the queues.

use arbitrary::Arbitrary;
use core::cell::RefCell;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::time::Duration;
use libfuzzer_sys::fuzz_target;
use std::net::UdpSocket;
use std::time::Instant;
use uverbs::attr::{AccessFlags, Gid, Mtu, QpCap};
use uverbs::provider::{Completion as _, Op, RemoteAddr};
use uverbs::qp::transport::Sends;
use uverbs::raw::{Cq, Qp};
use uverbs::wr::Sge;
use uverbs::{
    ConnectAttr, Context, Endpoint, Exclusive, Exposed, MemoryRegion, PageBuf, ProtectionDomain, Rc, Shared,
    Uc, Ud,
};
use uverbs_hca::{Fabric, Hca};
use uverbs_mlx5::Mlx5;
use uverbs_roce::datagram;
use uverbs_roce::frame::{Grh, UDP_PORT};
use uverbs_roce::opcode::Opcode;
use uverbs_roce::transport::{Aeth, AtomicEth, Bth, Deth, Headers, Nak, Packet, Reth, Syndrome};
use uverbs_testkit::verbs::{self, Face, Lock as _, Req, Typed};

/// Bytes of a region; the first half of the shared one may be written by peers, the second has no rights.
const LEN: usize = 32 << 10;
/// Steps of an input, and datagrams of a step, which the socket has room for.
const MAX_STEPS: usize = 24;
const MAX_DATAGRAMS: usize = 16;
/// The time within which the device must have received what was sent.
const LIMIT: Duration = Duration::from_secs(10);
const QKEY: u32 = 0x1111_1111;

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    retry_cnt: u8,
    rnr_timer: u8,
    psn: u32,
    steps: Vec<Step<'a>>,
}

#[derive(Arbitrary, Debug)]
enum Step<'a> {
    Arrive(Vec<Datagram<'a>>),
    Send(u16),
    Write(u16),
    Read(u16),
    Add,
    Recv(u16),
    UcSend(u16),
    UdRecv(u16),
    Poll,
}

#[derive(Arbitrary, Debug)]
enum Datagram<'a> {
    /// Any bytes.
    Bytes { is_peer: bool, bytes: &'a [u8] },
    /// Any bytes with a right ICRC, perhaps with the number of a QP.
    Framed { is_peer: bool, to: Option<To>, bytes: &'a [u8] },
    /// A packet.
    Packet { is_peer: bool, to: To, packet: Fields },
}

/// The QP and the distance from its next sequence number.
#[derive(Arbitrary, Debug)]
struct To {
    qp: u8,
    psn: i8,
}

#[derive(Arbitrary, Debug)]
struct Fields {
    opcode: u8,
    flags: u8,
    pkey: Option<u16>,
    at: u16,
    key: u8,
    len: Length,
    payload: u8,
    cut: u16,
    numbers: u64,
    syndrome: u8,
    msn: u8,
}

#[derive(Arbitrary, Debug)]
enum Length {
    Short(u16),
    Any(u32),
}

type Region = MemoryRegion<PageBuf, Exposed, Mlx5>;

/// A QP with its CQ.
struct Queue<T: Sends> {
    qp: Qp<T, Exclusive, Mlx5>,
    cq: Cq<Shared, Mlx5>,
}

impl<T: Typed<Mlx5>> Queue<T> {
    fn new(bed: &Bed, attr: &ConnectAttr, psn: u32) -> Self {
        let cq = bed.context.create_cq(256, None).expect("a CQ");
        let cap = QpCap::new(64, 64).sge(2, 2).inline(64);
        let qp = bed.pd.raw_qp::<T>().cq(&cq).cap(cap).create().expect("a QP");
        qp.control.init(attr).expect("INIT");
        let here = qp.control.endpoint(psn, attr).expect("an endpoint");
        let gid = Gid(bed.peer.gid);
        qp.control
            .connect(&here, &Endpoint { qp_num: 5, psn, gid, ..Endpoint::default() }, attr)
            .expect("RTS");
        Self { qp, cq }
    }

    /// Posts a request; it may be refused.
    fn post(&mut self, op: Op<'static>, sges: &[Sge]) {
        // SAFETY: see above.
        let _ =
            unsafe { verbs::post(self.qp.sq_mut(), Face::Single, &[Req::new(1, op).signaled().sges(sges)]) };
    }

    fn recv(&mut self, sge: Sge) {
        let Ok(rq) = self.qp.rq_mut() else { return };
        // SAFETY: see above.
        let _ = unsafe { Exclusive::recv_batch(rq, &[(2, &[sge][..])]) };
    }

    fn poll(&self) -> usize {
        let mut ok = 0;
        while self
            .cq
            .poll_each(16, |c| ok += usize::from(c.to_wc().status.is_success()))
            .expect("completions")
            > 0
        {}
        ok
    }
}

/// A host that is not part of the fabric.
struct Host {
    socket: UdpSocket,
    gid: [u8; 16],
    port: u16,
}

impl Host {
    fn new(ip: Ipv4Addr, port: u16) -> Self {
        let socket = UdpSocket::bind((ip, port)).expect("an address of this host");
        socket.set_nonblocking(true).expect("a socket");
        let port = socket.local_addr().expect("an address").port();
        Self { socket, gid: ip.to_ipv6_mapped().octets(), port }
    }
}

struct Bed {
    hca: Hca,
    context: Context<Mlx5>,
    pd: ProtectionDomain<Mlx5>,
    /// The peers may write and read it.
    shared: Region,
    /// They may not.
    own: Region,
    ip: Ipv4Addr,
    peer: Host,
    stranger: Host,
    sent: u64,
}

impl Bed {
    fn new() -> Self {
        let [.., a, b] = std::process::id().to_be_bytes();
        let ip = |last| Ipv4Addr::new(127, a, b, last);
        let hca = Fabric::new(1).device("hca0").build_udp(IpAddr::V4(ip(1))).expect("a socket");
        let context = Context::<Mlx5>::from_kernel(hca.open()).expect("a context");
        let pd = context.alloc_pd().expect("a domain");
        let region = |access| {
            pd.reg_mr(PageBuf::new(LEN).expect("pages"), access).map_err(|e| e.error).expect("a region")
        };
        let remote = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC;
        let shared = region(AccessFlags::LOCAL_WRITE | remote);
        let own = region(AccessFlags::empty());
        own.write_at(0, &[0x5a; LEN]).expect("memory");
        let (peer, stranger) = (Host::new(ip(2), UDP_PORT), Host::new(ip(3), 0));
        Self { hca, context, pd, shared, own, ip: ip(1), peer, stranger, sent: 0 }
    }

    fn run(&mut self, input: &Input<'_>) {
        let remote = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC;
        let attr = connect_attr()
            .access(remote)
            .retry_cnt(input.retry_cnt & 7)
            .min_rnr_timer(input.rnr_timer & 31)
            .qkey(QKEY);
        let psn = input.psn & 0xff_ffff;
        let mut rc = Queue::<Rc>::new(self, &attr, psn);
        let mut uc = Queue::<Uc>::new(self, &attr, psn);
        let mut ud = Queue::<Ud>::new(self, &attr, psn);
        let numbers = [rc.qp.control.qp_num(), uc.qp.control.qp_num(), ud.qp.control.qp_num(), 1];
        for step in input.steps.iter().take(MAX_STEPS) {
            let sge = |len: u16| {
                let len = u32::from(len) % (LEN as u32 / 2);
                Sge { addr: self.shared.addr(), length: len, lkey: self.shared.lkey() }
            };
            let remote = RemoteAddr { addr: self.shared.addr() + 64, rkey: self.shared.rkey() };
            match step {
                Step::Arrive(all) => {
                    all.iter().take(MAX_DATAGRAMS).for_each(|datagram| self.send(datagram, &numbers, psn));
                    self.arrived();
                }
                Step::Send(len) => rc.post(Op::Send, &[sge(*len)]),
                Step::Write(len) => rc.post(Op::WriteImm(remote, 3), &[sge(*len)]),
                Step::Read(len) => rc.post(Op::Read(remote), &[sge(*len)]),
                Step::Add => rc.post(Op::FetchAdd(remote, 1), &[sge(8)]),
                Step::Recv(len) => {
                    rc.recv(sge(*len));
                    uc.recv(sge(*len));
                }
                Step::UcSend(len) => uc.post(Op::Send, &[sge(*len)]),
                Step::UdRecv(len) => ud.recv(sge(*len)),
                Step::Poll => {
                    rc.poll();
                    uc.poll();
                    ud.poll();
                }
            }
        }
        drop((rc, uc, ud));
        self.answers();
        self.works();
        let mut own = [0; LEN];
        self.own.read_at(0, &mut own).expect("memory");
        assert!(own.iter().all(|byte| *byte == 0x5a), "memory without rights was written");
        let violations = self.hca.take_violations_if(|_| true);
        assert!(violations.is_empty(), "{violations:?}");
    }

    /// Another connection of the device, with itself.
    fn works(&self) {
        let attr = connect_attr();
        let cq = self.context.create_cq(8, None).expect("a CQ");
        let qp = || self.pd.raw_qp::<Rc>().cq(&cq).cap(QpCap::new(4, 4)).create().expect("a QP");
        let mut both = [qp(), qp()];
        let ends = [0, 1].map(|i| {
            both[i].control.init(&attr).expect("INIT");
            both[i].control.endpoint(7, &attr).expect("an endpoint")
        });
        both[0].control.connect(&ends[0], &ends[1], &attr).expect("RTS");
        both[1].control.connect(&ends[1], &ends[0], &attr).expect("RTS");
        let sge = Sge { addr: self.shared.addr(), length: 1000, lkey: self.shared.lkey() };
        // SAFETY: see above.
        unsafe { Exclusive::recv_batch(both[1].rq_mut().expect("a queue"), &[(1, &[sge][..])]) }
            .expect("a receive");
        let req = Req::new(2, Op::Send).signaled();
        let sges = [sge];
        // SAFETY: see above.
        unsafe { verbs::post(both[0].sq_mut(), Face::Single, &[req.sges(&sges)]) }.expect("a send");
        let (end, mut done) = (Instant::now() + LIMIT, 0);
        while done < 2 {
            cq.poll_each(2, |c| {
                assert!(c.to_wc().status.is_success(), "{:?}", c.to_wc());
                done += 1;
            })
            .expect("completions");
            assert!(Instant::now() < end, "another connection does not work");
        }
    }

    /// Waits until the device has received everything.
    fn arrived(&self) {
        let end = Instant::now() + LIMIT;
        loop {
            let stat = self.hca.udp_stat().expect("a socket");
            assert!(stat.received <= self.sent, "{stat:?}");
            if stat.received == self.sent {
                break;
            }
            assert!(Instant::now() < end, "{} were sent: {stat:?}", self.sent);
            std::thread::yield_now();
        }
        self.answers();
    }

    /// Reads what the device has sent to the peer.
    fn answers(&self) {
        let mut bytes = [0; 9000];
        while let Ok((len, from)) = self.peer.socket.recv_from(&mut bytes) {
            assert_eq!(from, SocketAddr::new(self.ip.into(), UDP_PORT));
            let grh = self.grh(self.ip.to_ipv6_mapped().octets(), self.peer.gid);
            let packet = datagram::decode(&datagram::route(&grh, UDP_PORT), &bytes[..len]);
            packet.unwrap_or_else(|error| panic!("{error}: {:02x?}", &bytes[..len]));
        }
    }

    fn grh(&self, sgid: [u8; 16], dgid: [u8; 16]) -> Grh {
        Grh { sgid, dgid, tclass: 0, flow_label: 0, hop_limit: 64 }
    }

    fn send(&mut self, datagram: &Datagram<'_>, numbers: &[u32; 4], psn: u32) {
        let (Datagram::Bytes { is_peer, .. }
        | Datagram::Framed { is_peer, .. }
        | Datagram::Packet { is_peer, .. }) = *datagram;
        let from = if is_peer { &self.peer } else { &self.stranger };
        let net = datagram::route(&self.grh(from.gid, self.ip.to_ipv6_mapped().octets()), from.port);
        let number =
            |to: &To| (numbers[usize::from(to.qp) % 4], psn.wrapping_add_signed(to.psn.into()) & 0xff_ffff);
        let bytes = match datagram {
            Datagram::Bytes { bytes, .. } => bytes.to_vec(),
            Datagram::Framed { to, bytes, .. } => {
                let mut bytes = bytes.to_vec();
                if let (Some(to), 12..) = (to, bytes.len()) {
                    let (qpn, psn) = number(to);
                    bytes[5..8].copy_from_slice(&qpn.to_be_bytes()[1..]);
                    bytes[9..12].copy_from_slice(&psn.to_be_bytes()[1..]);
                }
                // One that is too short has no ICRC.
                datagram::seal(&net, bytes.clone()).unwrap_or(bytes)
            }
            Datagram::Packet { to, packet, .. } => {
                let Some(packet) = self.packet(packet, number(to)) else { return };
                let Ok(bytes) = datagram::encode(&net, &packet) else { return };
                bytes
            }
        };
        let to = (self.ip, UDP_PORT);
        if from.socket.send_to(&bytes, to).is_ok() {
            self.sent += 1;
        }
    }

    fn packet(&self, fields: &Fields, (dest_qpn, psn): (u32, u32)) -> Option<Packet> {
        let opcode = Opcode::from_bits(fields.opcode)?;
        let bit = |n: u8| fields.flags & 1 << n != 0;
        let has = opcode.extended();
        let (region, rkey) = match fields.key {
            0..240 => (&self.shared, self.shared.rkey()),
            240..250 => (&self.own, self.own.rkey()),
            250.. => (&self.shared, u32::from(fields.key)),
        };
        let addr = region.addr().wrapping_add(u64::from(fields.at)).wrapping_sub(16);
        let len = match fields.len {
            Length::Short(len) => u32::from(len) % (2 * LEN as u32),
            Length::Any(len) => len,
        };
        let syndrome = match fields.syndrome >> 5 {
            0 => Syndrome::Ack(fields.syndrome & 31),
            1 => Syndrome::Rnr(fields.syndrome & 31),
            2 => Syndrome::Nak(Nak::Sequence),
            3 => Syndrome::Nak(Nak::Invalid),
            4 => Syndrome::Nak(Nak::Access),
            5 => Syndrome::Nak(Nak::Operation),
            _ => Syndrome::NO_CREDITS,
        };
        let word = fields.numbers as u32;
        let headers = Headers {
            deth: has
                .deth
                .then_some(Deth { qkey: if bit(3) { QKEY } else { word }, src_qpn: word & 0xff_ffff }),
            xrc_srqn: has.xrceth.then_some(word & 0xff_ffff),
            reth: has.reth.then_some(Reth { addr, rkey, len }),
            atomic: has.atomic.then_some(AtomicEth { addr, rkey, swap_add: fields.numbers, compare: 0 }),
            aeth: has.aeth.then_some(Aeth { syndrome, msn: fields.msn.into() }),
            atomic_ack: has.atomic_ack.then_some(fields.numbers),
            imm: has.imm.then_some(word),
            ieth: has.ieth.then_some(rkey),
        };
        let bth = Bth {
            solicited: bit(0),
            ack_req: bit(1),
            dest_qpn,
            psn,
            pkey: fields.pkey.unwrap_or(0xffff),
            ..Bth::new(opcode)
        };
        // Most packets have the length of the path MTU.
        let len = if bit(2) { 256 } else { usize::from(fields.cut) % 5000 };
        Some(Packet { bth, headers, payload: vec![fields.payload; len] })
    }
}

/// The attributes of connections by the address of the socket.
fn connect_attr() -> ConnectAttr {
    ConnectAttr::new().sgid_index(Some(1)).path_mtu(Mtu::MTU_256)
}

thread_local! {
    static BED: RefCell<Bed> = RefCell::new(Bed::new());
}

fuzz_target!(|input: Input<'_>| BED.with_borrow_mut(|bed| bed.run(&input)));
