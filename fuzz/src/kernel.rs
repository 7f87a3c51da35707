// SPDX-License-Identifier: MIT OR Apache-2.0
//! A kernel port that answers as rxe's kernel, unless its input selects another answer: then it refuses, or returns any
//! bytes, handles, descriptors and rings.
//!
//! It records the objects that it has created: the driver must destroy an object whose handle it got when it is no
//! longer needed, and no other object.
#![expect(unsafe_code)]
// UNSAFETY: an answer goes to an address that the request names, as in the kernel.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixDatagram;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use uverbs_core::Errno;
use uverbs_core::kernel::{Mapping, Protection, RawCommand, WriteCommand};
use uverbs_testkit::kernel::{Script, Scripted, mapping};
use uverbs_uapi::cmd::{
    IB_USER_VERBS_CMD_ALLOC_MW, IB_USER_VERBS_CMD_ALLOC_PD, IB_USER_VERBS_CMD_CREATE_AH,
    IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL, IB_USER_VERBS_CMD_FLAG_EXTENDED, IB_USER_VERBS_CMD_MODIFY_SRQ,
    IB_USER_VERBS_CMD_OPEN_QP, IB_USER_VERBS_CMD_OPEN_XRCD, IB_USER_VERBS_CMD_REG_MR,
    IB_USER_VERBS_CMD_RESIZE_CQ, IB_USER_VERBS_EX_CMD_QUERY_DEVICE, ib_uverbs_ex_query_device_resp,
    ib_uverbs_modify_srq, ib_uverbs_resize_cq,
};
use uverbs_uapi::ids::{
    UVERBS_ATTR_CORE_IN, UVERBS_ATTR_CORE_OUT, UVERBS_ATTR_CREATE_CQ_CQE, UVERBS_ATTR_CREATE_CQ_RESP_CQE,
    UVERBS_ATTR_CREATE_QP_CAP, UVERBS_ATTR_CREATE_QP_RESP_CAP, UVERBS_ATTR_CREATE_QP_RESP_QP_NUM,
    UVERBS_ATTR_CREATE_SRQ_MAX_SGE, UVERBS_ATTR_CREATE_SRQ_MAX_WR, UVERBS_ATTR_CREATE_SRQ_RESP_MAX_SGE,
    UVERBS_ATTR_CREATE_SRQ_RESP_MAX_WR, UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT,
    UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS, UVERBS_ATTR_UHW_IN, UVERBS_ATTR_UHW_OUT, UVERBS_ATTR_WRITE_CMD,
    UVERBS_METHOD_AH_DESTROY, UVERBS_METHOD_CQ_CREATE, UVERBS_METHOD_CQ_DESTROY, UVERBS_METHOD_GET_CONTEXT,
    UVERBS_METHOD_INVOKE_WRITE, UVERBS_METHOD_MR_DESTROY, UVERBS_METHOD_MW_DESTROY, UVERBS_METHOD_PD_DESTROY,
    UVERBS_METHOD_QP_CREATE, UVERBS_METHOD_QP_DESTROY, UVERBS_METHOD_SRQ_CREATE, UVERBS_METHOD_SRQ_DESTROY,
    UVERBS_METHOD_XRCD_DESTROY, UVERBS_OBJECT_AH, UVERBS_OBJECT_ASYNC_EVENT, UVERBS_OBJECT_CQ,
    UVERBS_OBJECT_DEVICE, UVERBS_OBJECT_MR, UVERBS_OBJECT_MW, UVERBS_OBJECT_PD, UVERBS_OBJECT_QP,
    UVERBS_OBJECT_SRQ, UVERBS_OBJECT_XRCD,
};
use uverbs_uapi::rxe::{mminfo, rxe_create_qp_resp};
use uverbs_uapi::verbs::RDMA_DRIVER_RXE;
use zerocopy::{FromBytes, IntoBytes};

/// Objects with a refused destruction are leaked intentionally; after this many, no destruction is refused.
const LEAK_BUDGET: u32 = 10_000;
static LEAKS: AtomicU32 = AtomicU32::new(0);

const QUERY_DEVICE_EX: u32 = IB_USER_VERBS_EX_CMD_QUERY_DEVICE | IB_USER_VERBS_CMD_FLAG_EXTENDED;

/// The maximum size of a ring.
const MAX_RING: usize = 1 << 15;

/// The changes of an answer, as bits. They have no effect unless the two top bits are set.
mod fault {
    pub(super) const MARK: u8 = 0xc0;
    pub(super) const REFUSE: u8 = 1 << 0;
    pub(super) const BYTES: u8 = 1 << 1;
    pub(super) const UNANSWERED: u8 = 1 << 2;
    pub(super) const HANDLE: u8 = 1 << 3;
    pub(super) const NOTHING: u8 = 1 << 4;
    pub(super) const RING: u8 = 1 << 5;
}

/// The object that a command creates or destroys: object type, handle.
type Key = (u16, u32);

/// An object whose handle the kernel returned.
#[derive(Clone, Copy, Debug, Default)]
struct Given {
    count: u32,
    /// Whether its destruction was requested and refused.
    refused: bool,
}

#[derive(Debug)]
struct RingInfo {
    offset: u64,
    log2: u32,
    slots: u32,
    fault: u8,
    words: Option<Arc<[AtomicU64]>>,
}

#[derive(Default)]
struct State {
    answers: Vec<u8>,
    at: usize,
    has_faults: bool,
    /// Gives correct answers, without reading the input.
    without_faults: bool,
    forked: bool,
    next_handle: u32,
    given: HashMap<Key, Given>,
    rings: Vec<RingInfo>,
    events: Vec<UnixDatagram>,
    fds: Vec<RawFd>,
}

/// See the module.
pub struct FuzzKernel {
    state: Mutex<State>,
}

impl State {
    fn byte(&mut self) -> u8 {
        if self.without_faults {
            return 0;
        }
        let byte = self.answers.get(self.at).copied().unwrap_or(0);
        self.at += 1;
        byte
    }

    fn u32(&mut self) -> u32 {
        u32::from_ne_bytes([self.byte(), self.byte(), self.byte(), self.byte()])
    }

    fn fault(&mut self) -> u8 {
        let byte = self.byte();
        if byte & fault::MARK != fault::MARK {
            return 0;
        }
        self.has_faults |= byte & !fault::MARK != 0;
        byte & !fault::MARK
    }

    fn errno(&mut self) -> Errno {
        const USUAL: [Errno; 12] = [
            Errno::EINVAL,
            Errno::EBUSY,
            Errno::EIO,
            Errno::EOPNOTSUPP,
            Errno::EPROTONOSUPPORT,
            Errno::ENOSYS,
            Errno::ENOMEM,
            Errno::EACCES,
            Errno::EPERM,
            Errno::EAGAIN,
            Errno::ENODEV,
            Errno::ESTALE,
        ];
        match self.byte() {
            n @ 0..=0xdf => USUAL[usize::from(n) % USUAL.len()],
            _ => Errno::from_raw(self.u32().cast_signed()),
        }
    }

    /// Announces a ring of elements of `size` bytes that takes `num` of them.
    fn ring(&mut self, size: u64, num: u32, fault: u8) -> Result<mminfo, Errno> {
        let log2 = size.next_power_of_two().trailing_zeros().max(6);
        let slots = num.checked_add(1).and_then(u32::checked_next_power_of_two).ok_or(Errno::ENOMEM)?;
        let len = u64::from(slots) << log2;
        if size > MAX_RING as u64 || len > MAX_RING as u64 {
            return Err(Errno::ENOMEM);
        }
        let offset = self.rings.len() as u64 * 0x10_0000;
        self.rings.push(RingInfo { offset, log2, slots, fault, words: None });
        Ok(mminfo { offset, size: 384 + len as u32, pad: 0 })
    }

    /// A descriptor with the delivered records, as an event file; or another kind of descriptor.
    fn fd(&mut self, fault: u8) -> Option<OwnedFd> {
        let fd: OwnedFd = if fault & fault::NOTHING != 0 {
            match self.byte() % 3 {
                0 => return None,
                1 => File::open("/dev/null").ok()?.into(),
                // Reads return end of file immediately.
                _ => std::io::pipe().ok()?.0.into(),
            }
        } else {
            let (read, write) = UnixDatagram::pair().ok()?;
            self.events.push(write);
            read.into()
        };
        self.fds.push(fd.as_raw_fd());
        Some(fd)
    }

    fn handle(&mut self, fault: u8) -> u64 {
        if fault & fault::HANDLE != 0 {
            let low = self.u32();
            return u64::from(low) | u64::from(self.byte() / 128) << 32;
        }
        self.next_handle += 1;
        self.next_handle.into()
    }

    fn give(&mut self, object: u16, handle: u64) {
        if let Some(handle) = u32::try_from(handle).ok().filter(|h| i32::try_from(*h).is_ok()) {
            self.given.entry((object, handle)).or_default().count += 1;
        }
    }

    /// Records a request to destroy an object. Returns whether the kernel refuses.
    fn destroy(&mut self, key: Key, fault: u8) -> Result<(), Errno> {
        let refuse = fault & fault::REFUSE != 0 && LEAKS.load(Ordering::Relaxed) < LEAK_BUDGET;
        let given = self.given.get_mut(&key);
        let given = given.unwrap_or_else(|| panic!("destroys object {key:?}, which does not exist"));
        if refuse {
            LEAKS.fetch_add(1, Ordering::Relaxed);
            given.refused = true;
            return Err(self.errno());
        }
        given.count -= 1;
        if given.count == 0 {
            self.given.remove(&key);
        }
        Ok(())
    }
}

/// The destroy method of an object, and the object.
fn destroys(command: &RawCommand<'_, '_>) -> Option<Key> {
    let object = command.object();
    let method = match object {
        UVERBS_OBJECT_PD => UVERBS_METHOD_PD_DESTROY,
        UVERBS_OBJECT_CQ => UVERBS_METHOD_CQ_DESTROY,
        UVERBS_OBJECT_QP => UVERBS_METHOD_QP_DESTROY,
        UVERBS_OBJECT_SRQ => UVERBS_METHOD_SRQ_DESTROY,
        UVERBS_OBJECT_AH => UVERBS_METHOD_AH_DESTROY,
        UVERBS_OBJECT_MR => UVERBS_METHOD_MR_DESTROY,
        UVERBS_OBJECT_MW => UVERBS_METHOD_MW_DESTROY,
        UVERBS_OBJECT_XRCD => UVERBS_METHOD_XRCD_DESTROY,
        _ => return None,
    };
    // Attribute 0 is the handle in all these methods.
    let handle = command.handle(0).filter(|_| command.method() == method)?;
    Some((object, u32::try_from(handle).expect("handles have 32 bits")))
}

/// The object that a write command creates, whose handle is the first field of the answer.
fn makes(write: Option<u32>) -> Option<u16> {
    match write? {
        IB_USER_VERBS_CMD_ALLOC_PD => Some(UVERBS_OBJECT_PD),
        IB_USER_VERBS_CMD_REG_MR => Some(UVERBS_OBJECT_MR),
        IB_USER_VERBS_CMD_ALLOC_MW => Some(UVERBS_OBJECT_MW),
        IB_USER_VERBS_CMD_CREATE_AH => Some(UVERBS_OBJECT_AH),
        IB_USER_VERBS_CMD_OPEN_XRCD => Some(UVERBS_OBJECT_XRCD),
        IB_USER_VERBS_CMD_OPEN_QP => Some(UVERBS_OBJECT_QP),
        _ => None,
    }
}

fn input_u32(command: &RawCommand<'_, '_>, id: u16) -> u32 {
    command.input(id).and_then(|b| u32::read_from_bytes(b).ok()).unwrap_or(0)
}

impl FuzzKernel {
    /// A kernel whose answers these bytes select. When there are no more bytes, the answers are correct.
    #[must_use]
    pub fn new(answers: &[u8]) -> Arc<Scripted<Self>> {
        let state = State { answers: answers.to_vec(), ..State::default() };
        Arc::new(Scripted(Self { state: Mutex::new(state) }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether all answers were correct.
    #[must_use]
    pub fn was_correct(&self) -> bool {
        let state = self.state();
        !state.has_faults && !state.forked
    }

    /// Gives correct answers while `f` runs, without reading the input.
    pub fn without_faults<R>(&self, f: impl FnOnce() -> R) -> R {
        self.state().without_faults = true;
        let result = f();
        self.state().without_faults = false;
        result
    }

    /// Simulates that this is a child process from now on.
    pub fn fork(&self) {
        self.state().forked = true;
    }

    /// Writes to an arbitrary position of a ring.
    pub fn scribble(&self, ring: u8, at: u16, value: u64) {
        let state = self.state();
        let mapped: Vec<_> = state.rings.iter().filter_map(|r| r.words.as_ref()).collect();
        let Some(words) = mapped.get(usize::from(ring) % mapped.len().max(1)) else { return };
        if let Some(word) = words.get(usize::from(at) % words.len().max(1)) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// Writes an index of a ring.
    pub fn set_index(&self, ring: u8, consumer: bool, index: u32) {
        self.scribble_at(ring, if consumer { 256 } else { 128 }, index.into());
    }

    fn scribble_at(&self, ring: u8, at: usize, value: u64) {
        self.scribble(ring, (at / 8) as u16, value);
    }

    /// Writes a record to an event file.
    pub fn deliver(&self, which: u8, bytes: &[u8]) {
        let state = self.state();
        if let Some(file) = state.events.get(usize::from(which) % state.events.len().max(1)) {
            // It may be closed, or full.
            let _ = file.set_nonblocking(true).and_then(|()| file.send(bytes));
        }
    }

    /// Panics if an object was not destroyed, or a descriptor is still open. All objects must be dropped before.
    pub fn done(&self) {
        let mut state = self.state();
        // The numbers may have been used for other descriptors.
        state.events.clear();
        if !state.forked {
            for (key, given) in &state.given {
                assert!(given.refused, "{given:?} objects {key:?} were not destroyed");
            }
        }
        for fd in &state.fds {
            // SAFETY: queries the flags of a number.
            let flags = unsafe { libc::fcntl(*fd, libc::F_GETFD) };
            assert_eq!(flags, -1, "descriptor {fd} is still open");
        }
    }

    /// Answers as rxe's kernel does.
    fn answer(
        state: &mut State,
        c: &mut RawCommand<'_, '_>,
        write: Option<u32>,
        fault: u8,
    ) -> Result<(), Errno> {
        let ids: Vec<u16> = c.attrs().map(|a| a.id).collect();
        // A handle that is not returned is 0, which is a valid handle.
        let handle = if fault & fault::NOTHING != 0 { 0 } else { state.handle(fault) };
        for id in ids {
            if c.new_handle(id, handle) {
                state.give(c.object(), handle);
            }
            if fault & fault::UNANSWERED == 0 {
                c.answer(id, &[]);
            }
        }
        if fault & fault::UNANSWERED != 0 {
            return Ok(());
        }
        match (c.object(), c.method()) {
            (UVERBS_OBJECT_DEVICE, UVERBS_METHOD_GET_CONTEXT) => {
                c.answer(UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS, &4_u32.to_ne_bytes());
                c.answer(UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT, &1_u64.to_ne_bytes());
            }
            (UVERBS_OBJECT_ASYNC_EVENT, _) => {
                if let Some(fd) = state.fd(fault) {
                    c.new_fd(0, fd);
                }
            }
            (UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_CREATE) => {
                let cqe = input_u32(c, UVERBS_ATTR_CREATE_CQ_CQE);
                c.answer(UVERBS_ATTR_CREATE_CQ_RESP_CQE, &cqe.to_ne_bytes());
                let ring = state.ring(128, cqe, fault)?;
                c.answer(UVERBS_ATTR_UHW_OUT, ring.as_bytes());
            }
            (UVERBS_OBJECT_SRQ, UVERBS_METHOD_SRQ_CREATE) => {
                let max_wr = input_u32(c, UVERBS_ATTR_CREATE_SRQ_MAX_WR);
                let max_sge = input_u32(c, UVERBS_ATTR_CREATE_SRQ_MAX_SGE);
                c.answer(UVERBS_ATTR_CREATE_SRQ_RESP_MAX_WR, &max_wr.to_ne_bytes());
                c.answer(UVERBS_ATTR_CREATE_SRQ_RESP_MAX_SGE, &max_sge.to_ne_bytes());
                let ring = state.ring(40 + 16 * u64::from(max_sge), max_wr, fault)?;
                c.answer(UVERBS_ATTR_UHW_OUT, ring.as_bytes());
            }
            (UVERBS_OBJECT_QP, UVERBS_METHOD_QP_CREATE) => {
                let cap =
                    c.input(UVERBS_ATTR_CREATE_QP_CAP).and_then(|b| <[u32; 5]>::read_from_bytes(b).ok());
                let cap = cap.expect("five sizes");
                // In the order of `struct ib_uverbs_qp_cap`.
                let [send_wr, recv_wr, send_sge, recv_sge, inline] = cap;
                c.answer(UVERBS_ATTR_CREATE_QP_RESP_CAP, cap.as_bytes());
                c.answer(UVERBS_ATTR_CREATE_QP_RESP_QP_NUM, &17_u32.to_ne_bytes());
                let data = (16 * u64::from(send_sge)).max(inline.into());
                let rings = rxe_create_qp_resp {
                    rq_mi: state.ring(40 + 16 * u64::from(recv_sge), recv_wr, fault)?,
                    sq_mi: state.ring(208 + data, send_wr, fault)?,
                };
                c.answer(UVERBS_ATTR_UHW_OUT, rings.as_bytes());
            }
            (UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE) => match write {
                Some(IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL) => {
                    if let Some(fd) = state.fd(fault) {
                        c.new_fd(UVERBS_ATTR_CORE_OUT, fd);
                    }
                }
                Some(QUERY_DEVICE_EX) => {
                    let device_cap_flags_ex = u64::from(state.byte() % 8) << 38;
                    let response_length = size_of::<ib_uverbs_ex_query_device_resp>() as u32;
                    let mut device = ib_uverbs_ex_query_device_resp {
                        response_length,
                        device_cap_flags_ex,
                        ..Default::default()
                    };
                    // Drivers compare requests with it.
                    device.base.max_qp_rd_atom = 128;
                    c.answer(UVERBS_ATTR_CORE_OUT, device.as_bytes());
                }
                Some(IB_USER_VERBS_CMD_RESIZE_CQ) => {
                    let request = c.input(UVERBS_ATTR_CORE_IN).expect("the request");
                    let cqe = ib_uverbs_resize_cq::read_from_bytes(request).expect("the request").cqe;
                    c.answer(UVERBS_ATTR_CORE_OUT, &cqe.to_ne_bytes());
                    let ring = state.ring(128, cqe, fault)?;
                    c.answer(UVERBS_ATTR_UHW_OUT, ring.as_bytes());
                }
                Some(IB_USER_VERBS_CMD_MODIFY_SRQ) => Self::modify_srq(state, c, fault)?,
                Some(number) => {
                    if makes(Some(number)).is_some() {
                        let handle = handle as u32;
                        let keys = [handle, handle << 8, handle << 8];
                        c.answer(UVERBS_ATTR_CORE_OUT, keys.as_bytes());
                    }
                    // The number of an address handle; older kernels return none.
                    let number = u32::from(state.byte());
                    c.answer(UVERBS_ATTR_UHW_OUT, &number.to_ne_bytes());
                }
                None => {}
            },
            _ => {}
        }
        Ok(())
    }

    fn modify_srq(state: &mut State, c: &RawCommand<'_, '_>, fault: u8) -> Result<(), Errno> {
        const MAX_WR: u32 = 1;
        let request = c.input(UVERBS_ATTR_CORE_IN).expect("the request");
        let request = ib_uverbs_modify_srq::read_from_bytes(request).expect("the request");
        if request.attr_mask & MAX_WR == 0 {
            return Ok(());
        }
        let mut ring = state.ring(128, request.max_wr, fault)?;
        if fault & fault::BYTES != 0 {
            (ring.offset, ring.size) = (state.u32().into(), state.u32());
        }
        let address = c.input(UVERBS_ATTR_UHW_IN).and_then(|b| u64::read_from_bytes(b).ok());
        let address =
            core::ptr::with_exposed_provenance_mut::<AtomicU64>(address.expect("an address") as usize);
        for (i, word) in <[u64; 2]>::read_from_bytes(ring.as_bytes()).into_iter().flatten().enumerate() {
            // SAFETY: the driver passes an address at which the kernel may write a `struct mminfo`.
            let place = unsafe { address.add(i) };
            // SAFETY: the access is atomic, and the driver's memory consists of atomics.
            let place = unsafe { AtomicU64::from_ptr(place.cast()) };
            place.store(word, Ordering::Release);
        }
        Ok(())
    }
}

impl Script for FuzzKernel {
    fn ioctl(&self, command: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        let mut state = self.state();
        let state = &mut *state;
        assert!(!state.forked || destroys(command).is_none(), "a child destroys");
        assert!(!command.to_bytes().is_empty() && command.driver_id() == RDMA_DRIVER_RXE);
        if state.forked {
            return Err(Errno::ESTALE);
        }
        let fault = state.fault();
        let destroys = destroys(command);
        if let Some(key) = destroys {
            state.destroy(key, fault)?;
        } else if fault & fault::REFUSE != 0 {
            return Err(state.errno());
        }
        let write = command.input(UVERBS_ATTR_WRITE_CMD).and_then(|b| u64::read_from_bytes(b).ok());
        let write = write.map(|number| number as u32);
        let write = write.filter(|_| (command.object(), command.method()) == (UVERBS_OBJECT_DEVICE, 0));
        let given = state.given.clone();
        if let Err(errno) = Self::answer(state, command, write, fault) {
            // A refused creation creates no object.
            state.given = given;
            return Err(errno);
        }
        if fault & fault::BYTES != 0 {
            let ids: Vec<u16> = command.attrs().map(|a| a.id).collect();
            for id in ids {
                // Changes the answer from some byte on; the bytes before it stay correct.
                let from = usize::from(state.byte() % 64) * 4;
                let Some(place) = command.output(id).and_then(|o| o.get_mut(from..)) else { continue };
                place.iter_mut().take(64).for_each(|b| *b = state.byte());
            }
        }
        let is_valid = |c: &RawCommand<'_, '_>| {
            let flags = c.attrs().find(|a| a.id == UVERBS_ATTR_CORE_OUT).map_or(0, |a| a.flags);
            flags & uverbs_uapi::ioctl::UVERBS_ATTR_F_VALID_OUTPUT != 0
        };
        if let Some(object) = makes(write)
            && is_valid(command)
            && let Some(handle) = command.output(UVERBS_ATTR_CORE_OUT).and_then(|o| o.get(..4))
        {
            let handle = u32::read_from_bytes(handle).expect("4 bytes");
            state.give(object, handle.into());
        }
        Ok(())
    }

    fn write(&self, command: &mut WriteCommand<'_>) -> Result<(), Errno> {
        let mut state = self.state();
        assert!(!command.request().is_empty());
        if state.fault() & fault::REFUSE != 0 {
            return Err(state.errno());
        }
        Ok(())
    }

    fn mmap(&self, offset: u64, len: usize, _: Protection) -> Result<Mapping, Errno> {
        let mut state = self.state();
        let state = &mut *state;
        let fault = state.fault();
        if state.forked || fault & fault::REFUSE != 0 {
            return Err(state.errno());
        }
        let known = state.rings.iter().position(|r| r.offset == offset && r.words.is_none());
        let (log2, slots, announced) = match known {
            Some(i) => (state.rings[i].log2, state.rings[i].slots, state.rings[i].fault),
            None if fault == 0 => return Err(Errno::EINVAL),
            None => (7, 4, 0),
        };
        let right = 384 + ((slots as usize) << log2);
        let mut header = [log2, slots - 1, 0, 0];
        let mut mapped = right;
        if (fault | announced) & fault::RING != 0 {
            state.has_faults = true;
            for field in &mut header {
                // Most fields stay correct.
                match state.byte() {
                    0..=0x7f => {}
                    n @ 0x80..=0xbf => *field = u32::from(n & 0x3f),
                    _ => *field = state.u32(),
                }
            }
            mapped = match state.byte() {
                0..=0x7f => right,
                n @ 0x80..=0xbf => right.saturating_sub(usize::from(n & 0x3f)),
                _ => len.min(MAX_RING),
            };
        }
        let words: Arc<[AtomicU64]> = (0..mapped.div_ceil(8)).map(|_| AtomicU64::new(0)).collect();
        let [log2, mask, producer, consumer] = header.map(u64::from);
        for (at, value) in [(0, log2 | mask << 32), (128, producer), (256, consumer)] {
            if let Some(word) = words.get(at / 8) {
                word.store(value, Ordering::Relaxed);
            }
        }
        match known {
            Some(i) => state.rings[i].words = Some(Arc::clone(&words)),
            None => {
                let words = Some(Arc::clone(&words));
                state.rings.push(RingInfo { offset: u64::MAX, log2: 0, slots: 0, fault: 0, words });
            }
        }
        Ok(mapping(words, mapped))
    }

    fn attribute(&self, path: &str) -> Result<Vec<u8>, Errno> {
        assert!(!path.contains("..") && !path.starts_with('/'));
        let mut state = self.state();
        let fault = state.fault();
        if fault & fault::REFUSE != 0 {
            return Err(state.errno());
        }
        if fault & fault::BYTES != 0 {
            return Ok((0..state.byte()).map(|_| state.byte()).collect());
        }
        Ok(b"0xffff\n".to_vec())
    }

    fn driver_id(&self) -> u32 {
        RDMA_DRIVER_RXE
    }

    fn is_creator_process(&self) -> bool {
        !self.state().forked
    }
}
