// SPDX-License-Identifier: MIT OR Apache-2.0
//! mlx5's control path on the software HCA's kernel, whose answers are changed: errors, other bytes, other handles,
//! shorter mappings.
//!
//! Checked: every verb returns an error or a usable object, and does not panic; for any sizes and numbers in the
//! answers, posts and polls stay inside the objects' memory. A kernel whose answers are not changed is never reported
//! as faulty.
#![no_main]
#![expect(unsafe_code)]
// UNSAFETY: posting is an `unsafe fn`; the entries name no memory. A shorter mapping is made from a longer one. The
// sanitizer finds its options by name.

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use std::sync::{Arc, Mutex, PoisonError};
use uverbs_core::attr::{
    AhAttr, CqFlags, CqInitAttr, Gid, QpAttr, QpAttrMask, QpCap, QpInitAttr, QpState, QpType, SendOpsFlags,
    SrqAttr, SrqAttrMask, SrqInitAttr, SrqType, WcExFlags,
};
use uverbs_core::control::{PdHandle, query, xrcd};
use uverbs_core::kernel::{DoorbellPage, Kernel, Mapping, Protection, RawCommand};
use uverbs_core::provider::{
    CompletionQueue as _, CqObject as _, CqParts, Driver, Object as _, Op, QpCreate, QpObject as _, QpParts,
    RecvQueue as _, SendQueue as _, SrqCreate, SrqObject as _, SrqParts, WireRemote as _, Wr,
};
use uverbs_core::{Errno, Error};
use uverbs_hca::Fabric;
use uverbs_mlx5::testing;
use uverbs_mlx5::{Mlx5, Options, Remote};
use uverbs_testkit::kernel::{Script, Scripted};

/// Objects that the kernel refuses to destroy are leaked intentionally.
#[unsafe(no_mangle)]
extern "C" fn __asan_default_options() -> *const core::ffi::c_char {
    c"detect_leaks=0".as_ptr()
}

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    wide: bool,
    actions: Vec<Action>,
    answers: &'a [u8],
}

#[derive(Arbitrary, Debug)]
enum Action {
    Query(u8),
    Cq { cqe: u8, fields: u16, flags: u8 },
    Srq { max_wr: u8, max_sge: u8, xrc: bool },
    Qp(NewQp),
    Ah { port: u8, sgid_index: u8, global: bool },
    Modify(u8, u8),
    Post(u8, u8, bool),
    Recv(u8, u8),
    SrqRecv(u8, u8),
    Poll(u8, u8),
    Session(u8),
    Resize(u8, u8),
    Arm(u8),
    Limit(u8, u8),
    DropQp(u8),
    DropCq(u8),
    DropSrq(u8),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
struct NewQp {
    transport: u8,
    cq: u8,
    recv_cq: u8,
    srq: Option<u8>,
    max_wr: u8,
    max_sge: u8,
    max_inline: u8,
    ops: Option<u16>,
    td: bool,
    tso: bool,
}

const MAX_ACTIONS: usize = 40;

/// The changes of an answer, as bits; they have no effect unless the two top bits are set.
mod change {
    pub(super) const MARK: u8 = 0xc0;
    pub(super) const REFUSE: u8 = 1;
    pub(super) const BYTES: u8 = 2;
    pub(super) const HANDLE: u8 = 4;
    pub(super) const SHORT: u8 = 8;
}

#[derive(Default)]
struct Changes {
    bytes: Vec<u8>,
    at: usize,
    has_changed: bool,
}

impl Changes {
    fn byte(&mut self) -> u8 {
        let byte = self.bytes.get(self.at).copied().unwrap_or(0);
        self.at += 1;
        byte
    }

    fn next(&mut self) -> u8 {
        let byte = self.byte();
        if byte & change::MARK != change::MARK {
            return 0;
        }
        self.has_changed |= byte & !change::MARK != 0;
        byte & !change::MARK
    }
}

/// A kernel that changes the answers of another kernel.
struct ChangingKernel {
    inner: Arc<dyn Kernel>,
    changes: Mutex<Changes>,
}

impl ChangingKernel {
    fn changes(&self) -> std::sync::MutexGuard<'_, Changes> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_unchanged(&self) -> bool {
        !self.changes().has_changed
    }
}

impl Script for ChangingKernel {
    fn inner(&self) -> Option<&dyn Kernel> {
        Some(&*self.inner)
    }

    fn ioctl(&self, command: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        let mut changes = self.changes();
        let change = changes.next();
        if change & change::REFUSE != 0 {
            let errno = [Errno::EINVAL, Errno::EBUSY, Errno::EOPNOTSUPP, Errno::ENOMEM, Errno::EIO];
            return Err(errno[usize::from(changes.byte()) % errno.len()]);
        }
        self.inner.ioctl(command)?;
        let ids: Vec<u16> = command.attrs().map(|a| a.id).collect();
        for id in ids {
            if change & change::HANDLE != 0 {
                let handle = u64::from(changes.byte()) << (changes.byte() % 40);
                command.new_handle(id, handle);
            }
            if change & change::BYTES != 0
                && let Some(output) = command.output(id)
            {
                let count = changes.byte() % 8;
                for _ in 0..count {
                    let (at, value) = (usize::from(changes.byte()), changes.byte());
                    let at = at % output.len().max(1);
                    if let Some(byte) = output.get_mut(at) {
                        *byte = value;
                    }
                }
            }
        }
        Ok(())
    }

    fn mmap(&self, offset: u64, len: usize, protection: Protection) -> Result<Mapping, Errno> {
        let change = self.changes().next();
        if change & change::REFUSE != 0 || len > 1 << 20 {
            return Err(Errno::EAGAIN);
        }
        let mapping = self.inner.mmap(offset, len, protection)?;
        if change & change::SHORT == 0 {
            return Ok(mapping);
        }
        let (ptr, len) = (mapping.as_ptr(), mapping.len() / 3);
        // SAFETY: the first part of a mapping, which the new one owns.
        Ok(unsafe { Mapping::new(ptr, len, mapping) })
    }

    fn doorbells(&self, _: &dyn Kernel, offset: u64, len: usize) -> Result<DoorbellPage, Errno> {
        if self.changes().next() & change::REFUSE != 0 {
            return Err(Errno::EAGAIN);
        }
        self.inner.doorbells(offset, len)
    }
}

struct World {
    mlx5: Mlx5,
    pd: PdHandle,
    cqs: Vec<CqParts<Mlx5>>,
    srqs: Vec<SrqParts<Mlx5>>,
    qps: Vec<QpParts<Mlx5>>,
}

fuzz_target!(|input: Input<'_>| {
    let fabric = Fabric::deterministic(1);
    let hca = fabric.device("hca0").build();
    let changes = Changes { bytes: input.answers.to_vec(), ..Changes::default() };
    let kernel = Arc::new(Scripted(ChangingKernel { inner: hca.open(), changes: Mutex::new(changes) }));
    let mut options = Options::default();
    options.cqe_size = if input.wide { 128 } else { 64 };
    let port = Arc::clone(&kernel) as Arc<dyn Kernel>;
    let opened =
        Mlx5::open_with(port, &options).and_then(|(mlx5, _info)| mlx5.alloc_pd().map(|pd| (mlx5, pd)));
    let (mlx5, pd) = match opened {
        Ok(both) => both,
        Err(error) => {
            assert!(!kernel.is_unchanged(), "{error}");
            return;
        }
    };
    let mut world = World { mlx5, pd, cqs: Vec::new(), srqs: Vec::new(), qps: Vec::new() };
    for action in input.actions.iter().take(MAX_ACTIONS) {
        if let Err(error) = world.run(action) {
            assert!(!error.to_string().is_empty());
        }
    }
    world.destroy_all();
    drop(fabric);
});

/// The object with an index, if there is one.
fn pick<T>(all: &mut [T], index: u8) -> Option<&mut T> {
    let len = all.len();
    all.get_mut(usize::from(index) % len.max(1))
}

impl World {
    /// Objects that the kernel does not destroy are leaked.
    fn destroy_all(self) {
        self.qps.into_iter().for_each(|qp| drop(qp.qp.destroy()));
        self.srqs.into_iter().for_each(|srq| drop(srq.srq.destroy()));
        self.cqs.into_iter().for_each(|cq| drop(cq.cq.destroy()));
    }

    fn run(&mut self, action: &Action) -> Result<(), Error> {
        match action {
            Action::Query(n) => {
                let _ = self.mlx5.query_device()?;
                let _ = query::port(self.mlx5.kernel(), *n)?;
                let _ = query::gid_table(self.mlx5.kernel())?;
            }
            Action::Cq { cqe, fields, flags } => {
                let attr = CqInitAttr::new((*cqe).into())
                    .wc_flags(WcExFlags::from_bits_retain((*fields).into()))
                    .flags(CqFlags::from_bits_truncate((*flags).into()));
                self.cqs.push(self.mlx5.create_cq(&attr, None, 1)?);
            }
            Action::Srq { max_wr, max_sge, xrc } => {
                let attr = SrqAttr::new((*max_wr).into()).max_sge((*max_sge).into());
                let srq_type = if *xrc { SrqType::Xrc } else { SrqType::Basic };
                let attr = SrqInitAttr::new(attr).srq_type(srq_type);
                let domain = xrc.then(|| xrcd::open(self.mlx5.kernel(), None, true, false)).transpose()?;
                let xrc = domain.as_ref().zip(self.cqs.first()).map(|(d, cq)| (d, &cq.cq));
                let create = SrqCreate { pd: &self.pd, attr: &attr, xrc, td: None, user_handle: 2 };
                self.srqs.push(self.mlx5.create_srq(&create)?);
            }
            Action::Qp(new) => self.create_qp(new)?,
            Action::Ah { port, sgid_index, global } => {
                let attr = match global {
                    true => AhAttr::global(*port, *sgid_index, Gid([7; 16])),
                    false => AhAttr::new(*port).dlid(5),
                };
                let _ = self.mlx5.create_ah(&self.pd, &attr)?;
            }
            Action::Modify(which, state) => {
                let Some(qp) = pick(&mut self.qps, *which) else { return Ok(()) };
                let attr = QpAttr::new().qp_state(QpState(u32::from(*state) % 8)).port_num(1);
                let mask = QpAttrMask::STATE | QpAttrMask::PORT;
                qp.qp.modify(&attr, mask)?;
                if *state & 0x80 != 0 {
                    // As if the kernel had changed the state, so that the queues can be posted to.
                    testing::set_state(qp.qp.control()?.shared(), attr.qp_state);
                }
            }
            Action::Post(which, count, inline) => {
                let Some(queue) = pick(&mut self.qps, *which).and_then(|qp| qp.send.as_mut()) else {
                    return Ok(());
                };
                for i in 0..*count {
                    let wr = |op| Wr::new(i.into(), op).signaled();
                    let bytes = vec![i; i.into()];
                    let _ = if *inline {
                        // SAFETY: the WR names no memory.
                        unsafe { queue.post(&wr(Op::Send).inline(&bytes)) }
                    } else {
                        let to = Remote::new(0, 0);
                        // SAFETY: as above.
                        unsafe { queue.post(&wr(Op::Write(to))) }
                    };
                }
            }
            Action::Recv(which, count) => {
                if let Some(queue) = pick(&mut self.qps, *which).and_then(|qp| qp.recv.as_mut()) {
                    for i in 0..*count {
                        // SAFETY: the WR names no memory.
                        let _ = unsafe { queue.post(i.into(), &[]) };
                    }
                }
            }
            Action::SrqRecv(which, count) => {
                if let Some(srq) = pick(&mut self.srqs, *which) {
                    for i in 0..*count {
                        // SAFETY: the WR names no memory.
                        let _ = unsafe { srq.queue.post(i.into(), &[]) };
                    }
                }
            }
            Action::Poll(which, max) => {
                if let Some(cq) = pick(&mut self.cqs, *which) {
                    let _ = cq.queue.poll_each((*max).into(), |_| ());
                }
            }
            Action::Session(which) => {
                if let Some(cq) = pick(&mut self.cqs, *which)
                    && cq.queue.start_poll().is_ok()
                {
                    while cq.queue.next_poll().is_ok() {}
                    cq.queue.end_poll();
                }
            }
            Action::Resize(which, cqe) => {
                if let Some(cq) = pick(&mut self.cqs, *which) {
                    cq.cq.resize(&mut cq.queue, (*cqe).into())?;
                }
            }
            Action::Arm(which) => {
                if let Some(cq) = pick(&mut self.cqs, *which) {
                    let _ = cq.queue.req_notify(false);
                }
            }
            Action::Limit(which, limit) => {
                if let Some(srq) = pick(&mut self.srqs, *which) {
                    let attr = SrqAttr::new(0).srq_limit((*limit).into()).max_sge(0);
                    srq.srq.modify(&mut srq.queue, &attr, SrqAttrMask::LIMIT)?;
                }
            }
            Action::DropQp(which) => {
                if !self.qps.is_empty() {
                    let qp = self.qps.swap_remove(usize::from(*which) % self.qps.len());
                    qp.qp.destroy().map_err(|(_, error)| error)?;
                }
            }
            Action::DropCq(which) => {
                if !self.cqs.is_empty() {
                    let cq = self.cqs.swap_remove(usize::from(*which) % self.cqs.len());
                    cq.cq.destroy().map_err(|(_, error)| error)?;
                }
            }
            Action::DropSrq(which) => {
                if !self.srqs.is_empty() {
                    let srq = self.srqs.swap_remove(usize::from(*which) % self.srqs.len());
                    srq.srq.destroy().map_err(|(_, error)| error)?;
                }
            }
        }
        Ok(())
    }

    fn create_qp(&mut self, new: &NewQp) -> Result<(), Error> {
        const TYPES: [QpType; 7] = [
            QpType::Rc,
            QpType::Uc,
            QpType::Ud,
            QpType::RawPacket,
            QpType::XrcSend,
            QpType::XrcRecv,
            QpType::Driver,
        ];
        let qp_type = TYPES[usize::from(new.transport) % TYPES.len()];
        let mut attr = QpInitAttr::new(qp_type);
        attr.cap =
            QpCap::new(new.max_wr.into(), if qp_type.has_recv_queue() { new.max_wr.into() } else { 0 })
                .sge(u32::from(new.max_sge % 40), u32::from(new.max_sge % 9))
                .inline(new.max_inline.into());
        attr.max_tso_header = if new.tso { 128 } else { 0 };
        attr.send_ops_flags = SendOpsFlags::from_bits_retain(new.ops.unwrap_or(0).into());
        let td = new.td.then(|| self.mlx5.alloc_td()).transpose()?;
        let domain = (qp_type == QpType::XrcRecv)
            .then(|| xrcd::open(self.mlx5.kernel(), None, true, false))
            .transpose()?;
        let cq = |n: u8| self.cqs.get(usize::from(n) % self.cqs.len().max(1)).map(|cq| &cq.cq);
        let srq = new.srq.and_then(|n| self.srqs.get(usize::from(n) % self.srqs.len().max(1)));
        let create = QpCreate {
            pd: qp_type.has_send_queue().then_some(&self.pd),
            send_cq: cq(new.cq).filter(|_| qp_type.has_send_queue()),
            recv_cq: cq(new.recv_cq).filter(|_| qp_type.has_recv_queue()),
            srq: srq.map(|srq| &srq.srq),
            xrcd: domain.as_ref(),
            attr: &attr,
            td: td.as_ref(),
            exclusive: new.max_inline % 2 == 1,
            data_in_completions: true,
            user_handle: 3,
        };
        // SAFETY: the entries name no memory.
        let qp = unsafe { self.mlx5.create_qp(&create) }?;
        self.qps.push(qp);
        Ok(())
    }
}
