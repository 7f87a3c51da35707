// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sequences of verbs on a simulated kernel that may give any answer.
//!
//! Checked: every verb returns an error or a usable object, for any answers of the kernel and any writes to the shared
//! rings; each object that the kernel reported is destroyed once, and no other is; no descriptor is left open; a kernel
//! whose answers are correct is never reported as faulty.
#![no_main]
#![expect(unsafe_code)]
// UNSAFETY: a bind is posted, and the simulated kernel has no device that executes it. The sanitizer finds its options
// by name. See also `uses`.

#[path = "ioctl_answers/action.rs"]
mod action;
#[path = "ioctl_answers/objects.rs"]
mod objects;
#[path = "ioctl_answers/uses.rs"]
mod uses;

use action::{Access, Action, Ah, Input, NewQp, UseQp};
use core::fmt::{Debug, Display};
use libfuzzer_sys::fuzz_target;
use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;
use uverbs::rxe::Rxe;
use uverbs::{
    AddressHandle, CompletionChannel, Context, Exclusive, MemoryRegion, MemoryWindow, PageBuf,
    ProtectionDomain, Rc, Shared, ThreadDomain, Uc, Ud, WorkCompletion, XrcDomain,
    raw::{Cq, Qp, Srq},
};
use uverbs::{
    Exposed,
    attr::{AccessFlags, MwType, SendOpsFlags, SrqAttr, SrqInitAttr, SrqType},
};
use uverbs_fuzz::kernel::FuzzKernel;
use uverbs_fuzz::steps::MAX_STEPS;
use uverbs_testkit::kernel::Scripted;

/// Objects whose destruction the kernel refuses are leaked intentionally; the port limits their number.
#[unsafe(no_mangle)]
extern "C" fn __asan_default_options() -> *const core::ffi::c_char {
    c"detect_leaks=0".as_ptr()
}

#[derive(Debug)]
enum AnyCq {
    Shared(Cq<Shared, Rxe>),
    Exclusive(Cq<Exclusive, Rxe>),
}

#[derive(Debug)]
enum AnyQp {
    Rc(Qp<Rc, Exclusive, Rxe>),
    Uc(Qp<Uc, Shared, Rxe>),
    Ud(Qp<Ud, Exclusive, Rxe>),
}

/// Evaluates an expression with the CQ of either locking.
macro_rules! each_cq {
    ($value:expr, |$it:ident| $body:expr) => {
        match $value {
            $crate::AnyCq::Shared($it) => $body,
            $crate::AnyCq::Exclusive($it) => $body,
        }
    };
}

/// Evaluates an expression with the QP of any transport.
macro_rules! each_qp {
    ($value:expr, |$it:ident| $body:expr) => {
        match $value {
            $crate::AnyQp::Rc($it) => $body,
            $crate::AnyQp::Uc($it) => $body,
            $crate::AnyQp::Ud($it) => $body,
        }
    };
}

use {each_cq, each_qp};

struct World {
    kernel: Arc<Scripted<FuzzKernel>>,
    context: Option<Context<Rxe>>,
    pds: Vec<ProtectionDomain<Rxe>>,
    tds: Vec<ThreadDomain<Rxe>>,
    channels: Vec<CompletionChannel<Rxe>>,
    cqs: Vec<AnyCq>,
    mrs: Vec<MemoryRegion<PageBuf, Exposed, Rxe>>,
    mws: Vec<MemoryWindow<Rxe>>,
    ahs: Vec<AddressHandle<Rxe>>,
    srqs: Vec<Srq<Exclusive, Rxe>>,
    qps: Vec<AnyQp>,
    xrcds: Vec<XrcDomain<Rxe>>,
}

fuzz_target!(|input: Input<'_>| {
    let kernel = FuzzKernel::new(input.answers);
    let context = kept(Context::<Rxe>::from_kernel(kernel.clone()));
    assert!(context.is_some() || !kernel.was_correct());
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
        kernel.without_faults(|| world.furnish());
    }
    for action in input.actions.iter().take(MAX_STEPS) {
        world.run(action);
    }
    drop(world);
    kernel.done();
});

/// The result of a verb, or `None` for an error, which must be printable.
fn kept<T, E: Display + Debug>(result: Result<T, E>) -> Option<T> {
    result.inspect_err(|e| assert!(!format!("{e} {e:?}").is_empty())).ok()
}

/// One of these objects.
fn pick<T>(list: &mut [T], which: u8) -> Option<&mut T> {
    let len = list.len().max(1);
    list.get_mut(usize::from(which) % len)
}

/// Removes one of these objects.
fn take<T>(list: &mut Vec<T>, which: u8) -> Option<T> {
    (!list.is_empty()).then(|| list.swap_remove(usize::from(which) % list.len()))
}

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
                assert!(pd.is_some() || !self.kernel.was_correct());
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
                assert!(channel.is_some() || !self.kernel.was_correct());
                self.channels.extend(channel);
            }
            Action::Cq { .. } => self.create_cq(action),
            Action::Mr { pd, len, access, private } => {
                let (Some(pd), Some(buf)) = (pick(&mut self.pds, *pd), kept(PageBuf::new((*len).into())))
                else {
                    return;
                };
                if *private {
                    if let Some(mr) = kept(pd.reg_private(buf, access.flags()).map_err(|e| e.error)) {
                        assert_eq!(mr.as_slice().iter().map(|b| u64::from(*b)).sum::<u64>(), 0);
                        let _ = kept(mr.close().map_err(|(_, e)| e));
                    }
                } else {
                    self.mrs.extend(kept(pd.reg_mr(buf, access.flags()).map_err(|e| e.error)));
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
                        // SAFETY: the simulated kernel has no device, so nothing is bound.
                        let _ = unsafe { qp.sq().post(1).bind_mw(bind) };
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
                let attr = SrqAttr::new(max_wr).max_sge(max_sge).srq_limit(srq_limit);
                let srq = pd.create_srq(&SrqInitAttr::new(attr).srq_type(srq_type));
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
            Action::Format(kind, which) => self.format(*kind, *which),
            Action::Fork => self.kernel.fork(),
        }
    }
}
