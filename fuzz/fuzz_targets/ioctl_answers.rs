// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs of verbs on a kernel that may answer anything.
//!
//! Held: every verb ends in an error or a usable object, whatever the kernel says and writes into the shared rings; an
//! object that the kernel told of is destroyed once, no other is, and no descriptor is left; a kernel that tells the truth
//! is never found wrong.
#![no_main]
#![expect(unsafe_code)]
// UNSAFETY: posting is an `unsafe fn`; the kernel that is played here looks at no memory, and lists live as long as the
// call. The sanitizer asks for its options by name.

use arbitrary::Arbitrary;
use core::fmt::{Debug, Display};
use core::ptr::null;
use libfuzzer_sys::fuzz_target;
use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;
use uverbs::attr::{
    AccessFlags, AdviseFlags, AhAttr, CqFlags, CqInitAttr, CqModeration, Gid, GlobalRoute, MrAdvice, MwType,
    QpAttr, QpAttrMask, QpCap, QpCreateFlags, QpState, SendOpsFlags, SrqAttr, SrqAttrMask, SrqInitAttr,
    SrqType, WcExFlags,
};
use uverbs::provider::{Completion as _, PollError, PostError};
use uverbs::rxe::Rxe;
use uverbs::wr::{RecvWr, SendWr, Sge, WrOpcode};
use uverbs::{
    AddressHandle, CompletionChannel, CompletionQueue, ConnectAttr, Context, Endpoint, Exclusive,
    MemoryRegion, MemoryWindow, PageBuf, ProtectionDomain, Qp, RawPacket, Rc, Shared, SharedReceiveQueue,
    ThreadDomain, Uc, Ud, WorkCompletion, XrcDomain,
};
use uverbs_core::provider::raw::QpEx;
use uverbs_fuzz::kernel::FuzzKernel;
use uverbs_fuzz::steps::{Index, MAX_STEPS};

/// Objects whose destruction the kernel refuses are leaked on purpose, and their number is limited by the port.
#[unsafe(no_mangle)]
extern "C" fn __asan_default_options() -> *const core::ffi::c_char {
    c"detect_leaks=0".as_ptr()
}

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    /// Begins with one object of each kind, made by a kernel that tells the truth.
    furnished: bool,
    actions: Vec<Action>,
    answers: &'a [u8],
}

#[derive(Arbitrary, Debug)]
enum Action {
    Query(Query),
    Pd,
    Td(u8),
    Channel,
    Cq { cqe: u8, huge: bool, wc_flags: u16, flags: u8, channel: Option<u8>, shared: bool },
    Mr { pd: u8, len: u16, access: Access, private: bool },
    DmaBuf { pd: u8, offset: u64, length: u64, access: Access },
    UseMr(u8, UseMr),
    Mw { pd: u8, type_2: bool, mr: u8 },
    Ah { pd: u8, attr: Ah },
    AhFromWc { pd: u8, slid: u16, flags: u8, grh: [u8; 8] },
    Srq { pd: u8, max_wr: u8, max_sge: u8, limit: u8, xrc: bool },
    UseSrq(u8, UseSrq),
    Qp(NewQp),
    UseQp(u8, UseQp),
    UseCq(u8, UseCq),
    Xrcd { create: bool, exclusive: bool },
    UseXrcd(u8, u32, bool),
    AsyncEvent,
    CqEvent(u8),
    Deliver(u8, [u8; 16], u8),
    Scribble(u8, u16, u64),
    SetIndex(u8, bool, Index),
    Close(Kind, u8),
    Drop(Kind, u8),
    Show(Kind, u8),
    Fork,
}

#[derive(Arbitrary, Debug)]
enum Query {
    Device,
    Port(u8),
    Gid(u8, u32),
    GidTable,
    Pkey(u8, u16),
}

/// Rights: usual ones, or any.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum Access {
    Local,
    Remote,
    Any(u32),
}

#[derive(Arbitrary, Debug)]
enum UseMr {
    Rereg(Option<u8>, Option<Access>),
    ReregBuf(u16),
    Advise(u8, u16, u16),
    Copy(u16, u8),
    Sge(u16, u16),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
struct Ah {
    port_num: u8,
    global: Option<(u8, u8)>,
    dlid: u16,
    sl: u8,
}

#[derive(Arbitrary, Debug)]
enum UseSrq {
    Post(u8, u8),
    Modify { max_wr: u8, limit: u8, mask: u8 },
    Query,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
struct NewQp {
    pd: u8,
    cq: u8,
    recv_cq: u8,
    srq: Option<u8>,
    transport: u8,
    max_wr: u8,
    max_sge: u8,
    max_inline: u8,
    ops: Option<u16>,
    odd_flags: u8,
}

#[derive(Arbitrary, Debug)]
enum UseQp {
    State(u8),
    Modify(u8, u32, u8),
    Connect,
    Query,
    Mcast(bool, bool),
    Batch(u8, bool),
    List(u8, u8),
    Builder(u8, bool),
    Recv(u8, u8),
}

#[derive(Arbitrary, Debug)]
enum UseCq {
    Poll(u8),
    Each(u8),
    Session(u8),
    Arm(bool),
    Resize(u8, bool),
    Moderate(u16, u16),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Kind {
    Pd,
    Channel,
    Cq,
    Mr,
    Mw,
    Ah,
    Srq,
    Qp,
    Xrcd,
    Context,
}

#[derive(Debug)]
enum AnyCq {
    Shared(CompletionQueue<Rxe, Shared>),
    Exclusive(CompletionQueue<Rxe, Exclusive>),
}

#[derive(Debug)]
enum AnyQp {
    Rc(Qp<Rxe, Rc>),
    Uc(Qp<Rxe, Uc, Shared>),
    Ud(Qp<Rxe, Ud>),
}

/// The same of a CQ of any locking.
macro_rules! each_cq {
    ($value:expr, |$it:ident| $body:expr) => {
        match $value {
            AnyCq::Shared($it) => $body,
            AnyCq::Exclusive($it) => $body,
        }
    };
}

/// The same of a QP of any type.
macro_rules! each_qp {
    ($value:expr, |$it:ident| $body:expr) => {
        match $value {
            AnyQp::Rc($it) => $body,
            AnyQp::Uc($it) => $body,
            AnyQp::Ud($it) => $body,
        }
    };
}

struct World {
    kernel: Arc<FuzzKernel>,
    context: Option<Context<Rxe>>,
    pds: Vec<ProtectionDomain<Rxe>>,
    tds: Vec<ThreadDomain<Rxe>>,
    channels: Vec<CompletionChannel<Rxe>>,
    cqs: Vec<AnyCq>,
    mrs: Vec<MemoryRegion<Rxe, PageBuf>>,
    mws: Vec<MemoryWindow<Rxe>>,
    ahs: Vec<AddressHandle<Rxe>>,
    srqs: Vec<SharedReceiveQueue<Rxe, Exclusive>>,
    qps: Vec<AnyQp>,
    xrcds: Vec<XrcDomain<Rxe>>,
}

fuzz_target!(|input: Input<'_>| {
    let kernel = FuzzKernel::new(input.answers);
    let context = kept(Context::<Rxe>::from_kernel(kernel.clone()));
    assert!(context.is_some() || !kernel.was_honest());
    let mut world = World {
        kernel: kernel.clone(),
        context,
        pds: Vec::new(),
        tds: Vec::new(),
        channels: Vec::new(),
        cqs: Vec::new(),
        mrs: Vec::new(),
        mws: Vec::new(),
        ahs: Vec::new(),
        srqs: Vec::new(),
        qps: Vec::new(),
        xrcds: Vec::new(),
    };
    if input.furnished {
        kernel.calmly(|| world.furnish());
    }
    for action in input.actions.iter().take(MAX_STEPS) {
        world.run(action);
    }
    drop(world);
    kernel.done();
});

/// What a verb gave, unless it gave an error; that one can be shown.
fn kept<T, E: Display + Debug>(result: Result<T, E>) -> Option<T> {
    result.inspect_err(|e| assert!(!format!("{e} {e:?}").is_empty())).ok()
}

/// One of these.
fn pick<T>(list: &mut [T], which: u8) -> Option<&mut T> {
    let len = list.len().max(1);
    list.get_mut(usize::from(which) % len)
}

/// Takes one of these out.
fn take<T>(list: &mut Vec<T>, which: u8) -> Option<T> {
    (!list.is_empty()).then(|| list.swap_remove(usize::from(which) % list.len()))
}

impl Access {
    fn flags(self) -> AccessFlags {
        match self {
            Self::Local => AccessFlags::LOCAL_WRITE,
            Self::Remote => AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ,
            Self::Any(bits) => AccessFlags::from_bits_retain(bits),
        }
    }
}

impl Ah {
    fn attr(self) -> AhAttr {
        let route =
            |(sgid_index, byte)| GlobalRoute { dgid: Gid([byte; 16]), sgid_index, ..GlobalRoute::default() };
        AhAttr {
            grh: self.global.map(route),
            dlid: self.dlid,
            sl: self.sl,
            port_num: self.port_num,
            ..AhAttr::default()
        }
    }
}

const SGE: Sge = Sge { addr: 0x1000, length: 8, lkey: 1 };

impl World {
    fn furnish(&mut self) {
        let access = Access::Remote;
        let global = Some((1, 7));
        let ops = Some(SendOpsFlags::SEND.bits() as u16);
        let cq = |shared| Action::Cq { cqe: 7, huge: false, wc_flags: 0, flags: 0, channel: Some(0), shared };
        let qp = |transport, srq| {
            let max_wr = 7;
            Action::Qp(NewQp {
                pd: 0,
                cq: 0,
                recv_cq: 1,
                srq,
                transport,
                max_wr,
                max_sge: 3,
                max_inline: 32,
                ops,
                odd_flags: 8,
            })
        };
        let connected = self.context.is_some();
        for action in [
            Action::Pd,
            Action::Pd,
            Action::Channel,
            cq(false),
            cq(true),
            Action::Mr { pd: 0, len: 4096, access, private: false },
            Action::Ah { pd: 0, attr: Ah { port_num: 1, global, dlid: 0, sl: 0 } },
            Action::Srq { pd: 0, max_wr: 7, max_sge: 2, limit: 0, xrc: false },
            qp(0, None),
            qp(1, None),
            qp(2, Some(0)),
            Action::Mw { pd: 0, type_2: true, mr: 0 },
            Action::UseQp(0, UseQp::Connect),
            Action::UseQp(1, UseQp::Connect),
            Action::UseQp(2, UseQp::Connect),
        ] {
            self.run(&action);
        }
        let made =
            [self.cqs.len(), self.mrs.len(), self.ahs.len(), self.srqs.len(), self.qps.len(), self.mws.len()];
        assert_eq!(made, if connected { [2, 1, 1, 1, 3, 1] } else { [0; 6] });
    }

    fn run(&mut self, action: &Action) {
        match action {
            Action::Query(query) => self.query(query),
            Action::Pd => {
                let Some(context) = &self.context else { return };
                let pd = kept(context.alloc_pd());
                assert!(pd.is_some() || !self.kernel.was_honest());
                self.pds.extend(pd);
            }
            Action::Td(pd) => {
                let Some(context) = &self.context else { return };
                self.tds.extend(kept(context.alloc_td()));
                if let (Some(pd), Some(td)) = (pick(&mut self.pds, *pd), self.tds.last()) {
                    let parent = kept(pd.parent_domain(td));
                    self.pds.extend(parent);
                }
            }
            Action::Channel => {
                let Some(context) = &self.context else { return };
                let channel = kept(context.create_comp_channel());
                assert!(channel.is_some() || !self.kernel.was_honest());
                self.channels.extend(channel);
            }
            Action::Cq { .. } => self.create_cq(action),
            Action::Mr { pd, len, access, private } => {
                let (Some(pd), Some(buf)) = (pick(&mut self.pds, *pd), kept(PageBuf::new((*len).into())))
                else {
                    return;
                };
                if *private {
                    if let Some(mr) = kept(pd.reg_private(buf, access.flags()).map_err(|(_, e)| e)) {
                        assert_eq!(mr.as_slice().iter().map(|b| u64::from(*b)).sum::<u64>(), 0);
                        let _ = kept(mr.close().map_err(|(_, e)| e));
                    }
                } else {
                    self.mrs.extend(kept(pd.reg_mr(buf, access.flags()).map_err(|(_, e)| e)));
                }
            }
            Action::DmaBuf { pd, offset, length, access } => {
                let (Some(pd), Ok(file)) = (pick(&mut self.pds, *pd), File::open("/dev/null")) else {
                    return;
                };
                let mr = pd.reg_dmabuf_mr(file.as_fd(), *offset, *length, *offset, access.flags());
                if let Some(mr) = kept(mr) {
                    assert_eq!(mr.len() as u64, *length);
                    let _ = kept(mr.read_at(0, &mut [0; 3]));
                    let _ = kept(mr.atomic_u64(0));
                }
            }
            Action::UseMr(mr, what) => self.use_mr(*mr, what),
            Action::Mw { pd, type_2, mr } => {
                let mw_type = if *type_2 { MwType::Type2 } else { MwType::Type1 };
                let Some(pd) = pick(&mut self.pds, *pd) else { return };
                let Some(mut mw) = kept(pd.alloc_mw(mw_type)) else { return };
                if let Some(mr) = pick(&mut self.mrs, *mr) {
                    let bind = mw.bind(mr, mr.addr(), 8, AccessFlags::REMOTE_READ);
                    mw.bound(&bind);
                    if let Some(AnyQp::Rc(qp)) = self.qps.last_mut() {
                        // SAFETY: behind the kernel that lies is no device: nothing is bound.
                        let _ = qp.sq().and_then(|sq| unsafe { sq.post(1).bind_mw(bind) });
                    }
                }
                self.mws.push(mw);
            }
            Action::Ah { pd, attr } => {
                let Some(pd) = pick(&mut self.pds, *pd) else { return };
                self.ahs.extend(kept(pd.create_ah(&attr.attr())));
            }
            Action::AhFromWc { pd, slid, flags, grh } => {
                let Some(pd) = pick(&mut self.pds, *pd) else { return };
                let wc_flags = uverbs::WcFlags::from_bits_retain((*flags).into());
                let wc = WorkCompletion { slid: *slid, wc_flags, ..WorkCompletion::default() };
                let mut header = [0; 40];
                header[..4].copy_from_slice(&grh[..4]);
                header[20..24].copy_from_slice(&grh[4..]);
                self.ahs.extend(kept(pd.create_ah_from_wc(&wc, &header, 1)));
            }
            Action::Srq { pd, max_wr, max_sge, limit, xrc } => {
                let Some(pd) = pick(&mut self.pds, *pd) else { return };
                let (max_wr, max_sge, srq_limit) = ((*max_wr).into(), (*max_sge).into(), (*limit).into());
                let srq_type = if *xrc { SrqType::Xrc } else { SrqType::Basic };
                let attr = SrqAttr { max_wr, max_sge, srq_limit };
                let srq = pd.create_srq(&SrqInitAttr { attr, srq_type, max_num_tags: 0, max_ops: 0 });
                if let Some(srq) = kept(srq) {
                    assert!(srq.attr().max_wr >= max_wr && srq.attr().max_sge >= max_sge);
                    let _ = kept(srq.srq_num());
                    self.srqs.push(srq);
                }
            }
            Action::UseSrq(srq, what) => self.use_srq(*srq, what),
            Action::Qp(new) => self.create_qp(*new),
            Action::UseQp(qp, what) => self.use_qp(*qp, what),
            Action::UseCq(cq, what) => self.use_cq(*cq, what),
            Action::Xrcd { create, exclusive } => {
                let Some(context) = &self.context else { return };
                self.xrcds.extend(kept(context.open_xrcd(None, *create, *exclusive)));
            }
            Action::UseXrcd(xrcd, qp_num, open) => {
                let Some(xrcd) = pick(&mut self.xrcds, *xrcd) else { return };
                let qp = if *open { xrcd.open_qp(*qp_num) } else { xrcd.recv_qp().create_recv() };
                assert!(kept(qp).is_none(), "rxe has no XRC");
            }
            Action::AsyncEvent => {
                let Some(context) = &self.context else { return };
                if kept(context.set_async_nonblocking(true)).is_some() {
                    let _ = kept(context.get_async_event());
                }
            }
            Action::CqEvent(channel) => {
                let Some(channel) = pick(&mut self.channels, *channel) else { return };
                if kept(channel.set_nonblocking(true)).is_some() {
                    let _ = kept(channel.get_event());
                }
            }
            Action::Deliver(which, bytes, len) => {
                self.kernel.deliver(*which, &bytes[..usize::from(*len % 17)]);
            }
            Action::Scribble(ring, at, value) => self.kernel.scribble(*ring, *at, *value),
            Action::SetIndex(ring, consumer, index) => self.kernel.set_index(*ring, *consumer, index.value()),
            Action::Close(kind, which) => self.close(*kind, *which),
            Action::Drop(kind, which) => self.drop_one(*kind, *which),
            Action::Show(kind, which) => self.show(*kind, *which),
            Action::Fork => self.kernel.fork(),
        }
    }

    fn query(&self, query: &Query) {
        let Some(context) = &self.context else { return };
        match query {
            Query::Device => {
                let attr = kept(context.query_device());
                assert!(attr.is_none_or(|a| !format!("{a:?}").is_empty()));
            }
            Query::Port(port) => {
                let attr = kept(context.query_port(*port));
                assert!(attr.is_none_or(|a| !format!("{a:?}").is_empty()));
            }
            Query::Gid(port, index) => drop(kept(context.query_gid(*port, *index))),
            Query::GidTable => {
                let table = kept(context.query_gid_table());
                assert!(table.is_none_or(|t| t.len() < 2048));
            }
            Query::Pkey(port, index) => drop(kept(context.query_pkey(*port, *index))),
        }
        assert!(
            context.name() == "fuzz0" && context.num_comp_vectors() < u32::MAX || !self.kernel.was_honest()
        );
    }

    fn create_cq(&mut self, action: &Action) {
        let Action::Cq { cqe, huge, wc_flags, flags, channel, shared } = action else { return };
        let Some(context) = &self.context else { return };
        let attr = CqInitAttr {
            cqe: if *huge { u32::MAX - u32::from(*cqe) } else { (*cqe).into() },
            comp_vector: 0,
            wc_flags: WcExFlags::from_bits_retain((*wc_flags).into()),
            flags: CqFlags::from_bits_retain((*flags).into()),
        };
        let channel = channel.and_then(|c| pick(&mut self.channels, c)).map(|c| &*c);
        let cq = if *shared {
            kept(context.create_cq_ex(&attr, channel)).map(AnyCq::Shared)
        } else {
            kept(context.create_cq_ex(&attr, channel)).map(AnyCq::Exclusive)
        };
        let plain = (1..200).contains(&attr.cqe) && *wc_flags == 0 && *flags == 0;
        assert!(cq.is_some() || !plain || !self.kernel.was_honest());
        self.cqs.extend(cq);
    }

    fn use_mr(&mut self, mr: u8, what: &UseMr) {
        let Some(mr) = pick(&mut self.mrs, mr) else { return };
        match what {
            UseMr::Rereg(pd, access) => {
                let pd = pd.and_then(|pd| pick(&mut self.pds, pd)).map(|pd| &*pd);
                let _ = kept(mr.rereg(pd, access.map(Access::flags)));
            }
            UseMr::ReregBuf(len) => {
                let Some(buf) = kept(PageBuf::new((*len).into())) else { return };
                let _ = kept(mr.rereg_buf(buf).map_err(|(_, e)| e));
            }
            UseMr::Advise(advice, from, to) => {
                let advice = match advice % 3 {
                    0 => MrAdvice::Prefetch,
                    1 => MrAdvice::PrefetchWrite,
                    _ => MrAdvice::PrefetchNoFault,
                };
                let flags = AdviseFlags::empty();
                let _ = kept(mr.advise(advice, flags, usize::from(*from)..usize::from(*to)));
            }
            UseMr::Copy(offset, byte) => {
                let mut back = [0; 5];
                let offset = usize::from(*offset);
                if kept(mr.write_at(offset, &[*byte; 5])).is_some() {
                    kept(mr.read_at(offset, &mut back)).expect("what can be written can be read");
                    assert_eq!(back, [*byte; 5]);
                } else {
                    assert!(offset + 5 > mr.len());
                }
                let _ = kept(mr.atomic_u64(offset));
            }
            UseMr::Sge(from, to) => {
                let range = usize::from(*from)..usize::from(*to);
                assert_eq!(kept(mr.sge(range.clone())).is_some(), from <= to && range.end <= mr.len());
                let _ = (mr.remote(range.start), mr.as_raw());
            }
        }
    }

    fn use_srq(&mut self, srq: u8, what: &UseSrq) {
        let Some(srq) = pick(&mut self.srqs, srq) else { return };
        match what {
            UseSrq::Post(n, num_sge) => {
                let sges = vec![SGE; (*num_sge).into()];
                let mut batch = srq.batch();
                for i in 0..*n {
                    // SAFETY: nobody touches the memory that is named.
                    unsafe { batch.push(i.into(), &sges) };
                }
                let _ = kept(batch.complete());
                let wr = RecvWr { sg_list: sges.as_ptr(), num_sge: (*num_sge).into(), ..RecvWr::new(7) };
                // SAFETY: the list and its entries are alive; one thread.
                let _ = unsafe { srq.post_srq_recv(&raw const wr) };
            }
            UseSrq::Modify { max_wr, limit, mask } => {
                let attr = SrqAttr { max_wr: (*max_wr).into(), max_sge: 0, srq_limit: (*limit).into() };
                let _ = kept(srq.modify(&attr, SrqAttrMask::from_bits_retain((*mask).into())));
            }
            UseSrq::Query => drop(kept(srq.query())),
        }
    }

    fn create_qp(&mut self, new: NewQp) {
        let Some(pd) = pick(&mut self.pds, new.pd).map(|pd| &*pd) else { return };
        let cap = QpCap {
            max_send_wr: new.max_wr.into(),
            max_recv_wr: (new.max_wr / 2).into(),
            max_send_sge: (new.max_sge % 8).into(),
            max_recv_sge: (new.max_sge / 32).into(),
            max_inline_data: new.max_inline.into(),
        };
        let ops = new.ops.map_or(SendOpsFlags::empty(), |bits| SendOpsFlags::from_bits_retain(bits.into()));
        let flags = if new.odd_flags < 8 {
            QpCreateFlags::from_bits_retain(1 << new.odd_flags)
        } else {
            QpCreateFlags::empty()
        };
        let tso = u16::from(new.odd_flags == 9);
        let srq = new.srq.and_then(|s| pick(&mut self.srqs, s)).map(|s| &*s);
        let index = |which: u8| usize::from(which) % self.cqs.len().max(1);
        let cq = self.cqs.get(index(new.cq));
        let recv_cq = self.cqs.get(index(new.recv_cq));
        macro_rules! create {
            ($transport:ty, $($shared:ident)?) => {{
                let mut builder = pd.qp::<$transport>()$(.$shared())?;
                builder = builder.cap(cap).send_ops(ops).create_flags(flags).max_tso_header(tso);
                if let Some(cq) = cq {
                    builder = each_cq!(cq, |cq| builder.send_cq(cq));
                }
                if let Some(cq) = recv_cq {
                    builder = each_cq!(cq, |cq| builder.recv_cq(cq));
                }
                if let Some(srq) = srq {
                    builder = builder.srq(srq);
                }
                builder.sq_sig_all(new.odd_flags % 2 == 0).create()
            }};
        }
        let qp = match new.transport % 4 {
            0 => kept(create!(Rc,)).map(AnyQp::Rc),
            1 => kept(create!(Uc, shared)).map(AnyQp::Uc),
            2 => kept(create!(Ud,)).map(AnyQp::Ud),
            _ => {
                assert!(kept(create!(RawPacket,)).is_none(), "rxe has no raw packet QPs");
                None
            }
        };
        if let Some(qp) = &qp {
            let got = each_qp!(qp, |qp| *qp.cap());
            assert!(got.max_send_wr >= cap.max_send_wr && got.max_inline_data >= cap.max_inline_data);
        }
        let plain = ops.is_empty() && flags.is_empty() && tso == 0 && new.transport % 4 < 3;
        let small = new.max_wr < 16 && new.max_inline < 64;
        assert!(qp.is_some() || cq.is_none() || !plain || !small || !self.kernel.was_honest());
        self.qps.extend(qp);
    }

    fn use_qp(&mut self, which: u8, what: &UseQp) {
        let Some(qp) = pick(&mut self.qps, which) else { return };
        match what {
            UseQp::State(state) => {
                let state = QpState(u32::from(state % 9));
                let _ = kept(each_qp!(qp, |qp| qp.control.modify_state(state)));
            }
            UseQp::Modify(state, mask, byte) => {
                let attr = QpAttr {
                    qp_state: QpState((*state).into()),
                    qkey: u32::from(*byte) << 24,
                    timeout: *byte,
                    dest_qp_num: u32::from(*byte) << 17,
                    ..QpAttr::default()
                };
                let mask = QpAttrMask::from_bits_retain(*mask);
                let _ = kept(each_qp!(qp, |qp| qp.modify(&attr, mask)));
            }
            UseQp::Connect => {
                let (attr, end) = (ConnectAttr::default(), Endpoint::default());
                let honest = self.kernel.was_honest();
                let fresh = each_qp!(qp, |qp| kept(qp.init(&attr)).is_some());
                let done = each_qp!(qp, |qp| kept(qp.connect(&end, &end, &attr)).is_some());
                assert!(fresh && done || !honest || !self.kernel.was_honest());
            }
            UseQp::Query => {
                let _ = kept(each_qp!(qp, |qp| qp.query(QpAttrMask::all())));
                let _ = kept(each_qp!(qp, |qp| qp.control.state()));
            }
            UseQp::Mcast(attach, right) => {
                let gid = Gid([if *right { 0xff } else { 0 }; 16]);
                let _ = kept(each_qp!(qp, |qp| if *attach {
                    qp.control.attach_mcast(gid, 0)
                } else {
                    qp.control.detach_mcast(gid, 0)
                }));
            }
            UseQp::Batch(n, complete) => {
                let result = match qp {
                    AnyQp::Rc(qp) => qp.sq().and_then(|sq| {
                        let mut batch = sq.batch();
                        for i in 0..*n {
                            // SAFETY: nobody touches the memory that is named.
                            unsafe { batch.wr(i.into()).signaled().send(&[SGE; 2]) };
                            batch.wr(i.into()).send_inline(&[1; 9]);
                        }
                        if *complete {
                            return batch.complete();
                        }
                        batch.abort();
                        Ok(())
                    }),
                    AnyQp::Uc(qp) => {
                        qp.sq().and_then(|sq| sq.lock()?.post(1).send_inline(&vec![2; (*n).into()]))
                    }
                    AnyQp::Ud(qp) => match self.ahs.last() {
                        Some(ah) => {
                            qp.sq().and_then(|sq| sq.post_to(1, ah, 2, 3).send_inline(&vec![2; (*n).into()]))
                        }
                        None => Err(PostError::InvalidArgument),
                    },
                };
                let _ = kept(result);
            }
            UseQp::List(n, opcode) => {
                let list: Vec<SendWr> =
                    (0..*n).map(|i| SendWr::new(i.into(), WrOpcode((*opcode).into()))).collect();
                let mut list = list;
                for i in (1..list.len()).rev() {
                    let next = &raw const list[i];
                    list[i - 1].next = next;
                }
                let first = list.first().map_or(null(), |wr| &raw const *wr);
                let range = list.as_ptr_range();
                let result = each_qp!(qp, |qp| qp.sq().map(|sq| {
                    // SAFETY: the list is alive, has no data and no pointers; one thread.
                    unsafe { sq.post_send(first) }
                }));
                if let Ok(Err(bad)) = result {
                    assert!(bad.wr.is_null() || range.contains(&bad.wr));
                }
            }
            UseQp::Builder(n, complete) => {
                each_qp!(qp, |qp| if let Some(ex) = qp.sq().ok().and_then(|sq| sq.qp_ex()) {
                    builder(ex, *n, *complete);
                });
            }
            UseQp::Recv(n, num_sge) => {
                let sges = vec![SGE; usize::from(num_sge % 16)];
                let num_sge = sges.len() as i32;
                let list: Vec<RecvWr> = (0..*n)
                    .map(|i| RecvWr { sg_list: sges.as_ptr(), num_sge, ..RecvWr::new(i.into()) })
                    .collect();
                for wr in &list {
                    // SAFETY: the list of one and its entries are alive; one thread.
                    let _ = each_qp!(qp, |qp| unsafe { qp.post_recv(&raw const *wr) });
                }
                if let AnyQp::Rc(qp) = qp {
                    // SAFETY: nobody touches the memory that is named.
                    let _ = kept(qp.rq().and_then(|rq| unsafe { rq.post(1, &sges) }));
                }
            }
        }
    }

    fn use_cq(&mut self, which: u8, what: &UseCq) {
        let Some(cq) = pick(&mut self.cqs, which) else { return };
        match what {
            UseCq::Poll(max) => {
                let mut wc = vec![WorkCompletion::default(); (*max).into()];
                let n = kept(each_cq!(cq, |cq| cq.poll(&mut wc).map(<[_]>::len)));
                assert!(n.is_none_or(|n| n <= usize::from(*max)));
            }
            UseCq::Each(max) => {
                let mut seen = 0;
                let see = |c: &uverbs::rxe::Completion| {
                    seen += 1;
                    assert!(!format!("{:?}", c.to_wc()).is_empty());
                };
                let n = kept(each_cq!(cq, |cq| cq.poll_each((*max).into(), see)));
                assert_eq!(n.unwrap_or(0), seen);
                assert!(seen <= usize::from(*max));
            }
            UseCq::Session(max) => {
                let result = each_cq!(cq, |cq| cq.poll_session(|poll| {
                    for _ in 0..*max {
                        assert!(poll.current().is_some_and(|c| c.wr_id() == c.to_wc().wr_id));
                        if let Err(error) = poll.next() {
                            return Some(error);
                        }
                    }
                    None
                }));
                assert!(!matches!(result, Ok(Some(PollError::NoSession))));
            }
            UseCq::Arm(solicited) => {
                let _ = kept(each_cq!(cq, |cq| cq.req_notify(*solicited)));
            }
            UseCq::Resize(cqe, huge) => {
                let cqe = if *huge { u32::MAX / 2 + u32::from(*cqe) } else { (*cqe).into() };
                let got = kept(each_cq!(cq, |cq| cq.resize(cqe)));
                assert!(got.is_none_or(|got| got >= cqe));
            }
            UseCq::Moderate(cq_count, cq_period) => {
                let moderation = CqModeration { cq_count: *cq_count, cq_period: *cq_period };
                let _ = kept(each_cq!(cq, |cq| cq.modify_moderation(moderation)));
            }
        }
    }

    fn close(&mut self, kind: Kind, which: u8) {
        match kind {
            Kind::Pd => {
                if let Some(Err((pd, error))) = take(&mut self.pds, which).map(ProtectionDomain::close) {
                    assert!(!error.to_string().is_empty());
                    self.pds.push(pd);
                }
            }
            Kind::Cq => {
                let back = match take(&mut self.cqs, which) {
                    Some(AnyCq::Shared(cq)) => cq.close().err().map(|(cq, _)| AnyCq::Shared(cq)),
                    Some(AnyCq::Exclusive(cq)) => cq.close().err().map(|(cq, _)| AnyCq::Exclusive(cq)),
                    None => None,
                };
                self.cqs.extend(back);
            }
            Kind::Mr => {
                if let Some(Err((mr, error))) = take(&mut self.mrs, which).map(MemoryRegion::close) {
                    assert!(!error.to_string().is_empty());
                    self.mrs.push(mr);
                }
            }
            Kind::Mw => drop(take(&mut self.mws, which).and_then(|mw| kept(mw.close()))),
            Kind::Ah => drop(take(&mut self.ahs, which).and_then(|ah| kept(ah.close()))),
            Kind::Qp => {
                if let Some(qp) = take(&mut self.qps, which) {
                    let _ = kept(each_qp!(qp, |qp| qp.close()));
                }
            }
            Kind::Channel | Kind::Srq | Kind::Xrcd | Kind::Context => self.drop_one(kind, which),
        }
    }

    fn drop_one(&mut self, kind: Kind, which: u8) {
        match kind {
            Kind::Pd => drop(take(&mut self.pds, which)),
            Kind::Channel => drop(take(&mut self.channels, which)),
            Kind::Cq => drop(take(&mut self.cqs, which)),
            Kind::Mr => drop(take(&mut self.mrs, which)),
            Kind::Mw => drop(take(&mut self.mws, which)),
            Kind::Ah => drop(take(&mut self.ahs, which)),
            Kind::Srq => drop(take(&mut self.srqs, which)),
            Kind::Qp => drop(take(&mut self.qps, which)),
            Kind::Xrcd => drop(take(&mut self.xrcds, which)),
            Kind::Context => self.context = None,
        }
    }

    fn show(&mut self, kind: Kind, which: u8) {
        let text = match kind {
            Kind::Cq => pick(&mut self.cqs, which).map(|cq| format!("{cq:?}")),
            Kind::Qp => pick(&mut self.qps, which).map(|qp| format!("{qp:?}")),
            Kind::Srq => pick(&mut self.srqs, which).map(|srq| format!("{srq:?}")),
            _ => self.context.as_ref().map(|context| format!("{context:?}")),
        };
        assert!(text.is_none_or(|text| !text.is_empty()));
    }
}

fn builder(mut ex: QpEx<'_>, n: u8, complete: bool) {
    // SAFETY: one thread; ended below.
    unsafe { ex.wr_start() };
    for i in 0..n {
        ex.wr_id = i.into();
        // SAFETY: inside the session.
        unsafe { ex.wr_send() };
        // SAFETY: inside the session; the bytes are there.
        unsafe { ex.wr_set_inline_data(b"abc".as_ptr(), 3) };
    }
    if complete {
        // SAFETY: the thread that began it.
        let _ = kept(unsafe { ex.wr_complete() });
    } else {
        // SAFETY: the thread that began it.
        unsafe { ex.wr_abort() };
    }
}
