// SPDX-License-Identifier: MIT OR Apache-2.0
//! C's lists of work requests (ibv_post_send(3), ibv_post_recv(3), ibv_post_srq_recv(3)): what does not depend on the queue.
//!
//! A driver opens its queue, passes the value of each node ([`Wr::from_c`]) to its encoder ([`push_nodes`]), publishes what was
//! written, and returns [`outcome`]. The WRs before the first one that can't be posted are published with one doorbell.
#![expect(unsafe_code)]
// UNSAFETY: lists and entries are C pointers; the contracts of the functions require that they are valid.

use super::error::{BadWr, PostError};
use super::inline::{Inline, InlineSges};
use super::op::{Op, TsoArgs};
use super::opcodes::{opcode_bit, takes_inline};
use super::raw::{Room, resolve_bind, slice_from_c};
use super::wire::WireRemote;
use super::wr::{Data, Dest, Head, To, Wr};
use crate::attr::QpType;
use crate::wr::{ImmData, RawAh, RecvWr, SendFlags, SendWr, Sge, WrOpcode};

/// A node of a list: [`SendWr`], [`RecvWr`].
pub trait Node {
    /// The next node, or NULL.
    fn next(&self) -> *const Self;

    /// The entries.
    fn sg_list(&self) -> *const Sge;
}

impl Node for SendWr {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn next(&self) -> *const Self {
        self.next
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn sg_list(&self) -> *const Sge {
        self.sg_list
    }
}

impl Node for RecvWr {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn next(&self) -> *const Self {
        self.next
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn sg_list(&self) -> *const Sge {
        self.sg_list
    }
}

/// Passes each node of a list to `push`, up to the first one that `push` refuses, and returns that one.
///
/// # Safety
/// `list`, and `next` of each node, are NULL or valid.
#[cfg_attr(not(debug_assertions), inline(always))]
pub unsafe fn push_nodes<W: Node>(
    list: *const W,
    mut push: impl FnMut(&W) -> Result<(), PostError>,
) -> Option<BadWr<W>> {
    let mut next = list;
    // SAFETY: each node is NULL or valid (the contract of this function).
    while let Some(wr) = unsafe { next.as_ref() } {
        if let Err(error) = push(wr) {
            return Some(BadWr { error, wr: next });
        }
        next = wr.next();
    }
    None
}

/// The node of a list of one, if it has entries.
///
/// # Safety
/// `list` is NULL or valid.
#[cfg_attr(not(debug_assertions), inline(always))]
pub unsafe fn lone<'a, W: Node>(list: *const W) -> Option<&'a W> {
    // SAFETY: the contract of this function.
    unsafe { list.as_ref() }.filter(|node| node.next().is_null() && !node.sg_list().is_null())
}

/// The entries of a node that has `N`, which need not be aligned.
///
/// # Safety
/// `list` points to `N` valid entries.
#[cfg_attr(not(debug_assertions), inline(always))]
#[must_use]
pub unsafe fn read_entries<const N: usize>(list: *const Sge) -> [Sge; N] {
    // SAFETY: the contract of this function.
    unsafe { list.cast::<[Sge; N]>().read_unaligned() }
}

/// [`push_nodes`] of receives, of at most `max_sge` entries: passes `wr_id` and entries.
///
/// # Safety
/// As [`push_nodes`]; `sg_list` of each node is NULL or points to `num_sge` valid entries.
#[cfg_attr(not(debug_assertions), inline(always))]
pub unsafe fn push_receives(
    list: *const RecvWr,
    max_sge: u32,
    mut push: impl FnMut(u64, &[Sge]) -> Result<(), PostError>,
) -> Option<BadWr<RecvWr>> {
    let push = |node: &RecvWr| {
        let mut room = Room::new();
        // SAFETY: the contract of this function.
        let sges = unsafe { entries(node.sg_list, node.num_sge, max_sge, &mut room) }?;
        push(node.wr_id, sges)
    };
    // SAFETY: the contract of this function.
    unsafe { push_nodes(list, push) }
}

/// The result of a call with a list, from that of the publication and the WR that was refused.
///
/// # Errors
/// `bad`; or the error of the publication.
#[inline]
pub fn outcome<W>(
    published: Result<(), PostError>,
    list: *const W,
    bad: Option<BadWr<W>>,
) -> Result<(), BadWr<W>> {
    match published {
        Ok(()) => bad.map_or(Ok(()), Err),
        // A failed doorbell is reported before a bad WR, because the WRs before the bad one may not run. `wr` is the
        // bad WR, or NULL.
        Err(error @ PostError::Doorbell(_)) => {
            Err(BadWr { error, wr: bad.map_or(core::ptr::null(), |b| b.wr) })
        }
        // The state changed meanwhile, and nothing was posted.
        Err(error) => Err(BadWr { error, wr: list }),
    }
}

/// The number of entries of a WR, which is at most `max`.
///
/// # Errors
/// [`PostError::TooManySge`], also for a negative number.
#[cfg_attr(not(debug_assertions), inline(always))]
pub fn num_sge(num: i32, max: u32) -> Result<usize, PostError> {
    match usize::try_from(num) {
        Ok(n) if n <= max as usize => Ok(n),
        _ => Err(PostError::TooManySge),
    }
}

/// The entries of a WR, copied to `room` if the list is not aligned.
///
/// # Errors
/// As [`num_sge`]; [`PostError::InvalidArgument`] if the pointer is NULL and the number is not 0.
///
/// # Safety
/// `list` is NULL or points to `num` entries.
#[cfg_attr(not(debug_assertions), inline(always))]
pub unsafe fn entries(list: *const Sge, num: i32, max: u32, room: &mut Room) -> Result<&[Sge], PostError> {
    let num = num_sge(num, max)?;
    // SAFETY: `list` is NULL or points to `num` valid entries (the contract of this function).
    unsafe { room.entries(list, num) }.ok_or(PostError::InvalidArgument)
}

/// The WRs that a queue takes in lists.
#[derive(Clone, Copy, Debug)]
pub struct ListRules {
    /// The transport, which determines how a node names its destination.
    pub qp_type: QpType,
    /// The set of the opcodes ([`opcode_bit`]).
    pub opcodes: u32,
    /// The maximum number of entries of a WR.
    pub max_sge: u32,
}

impl Head {
    /// The id and the flags of a node; the flags include `INLINE`.
    #[must_use]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub const fn from_c(node: &SendWr) -> Self {
        Self { wr_id: node.wr_id, flags: SendFlags::from_bits_retain(node.send_flags) }
    }
}

impl<'a, R: WireRemote> Op<'a, R> {
    /// The operation of a node with this opcode.
    ///
    /// # Errors
    /// [`PostError::IllegalOpcode`] if lists do not have the opcode; [`PostError::InvalidArgument`] for a NULL pointer.
    ///
    /// # Safety
    /// `node` is a valid node of a list ([`SendQueue::post_send`](super::SendQueue::post_send)); it has this opcode if that is a
    /// bind or a TSO send.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub unsafe fn from_c(opcode: WrOpcode, node: &'a SendWr) -> Result<Self, PostError> {
        let key = node.imm_data_or_invalidate_rkey;
        let imm = ImmData::from_be(key).get();
        // SAFETY: fields of plain integers, for which all bytes are valid.
        let rdma = || unsafe { node.wr.rdma };
        // SAFETY: as above.
        let atomic = || unsafe { node.wr.atomic };
        let remote = || R::new(rdma().remote_addr, rdma().rkey);
        let at = || R::new(atomic().remote_addr, atomic().rkey);
        Ok(match opcode {
            WrOpcode::SEND => Op::Send,
            WrOpcode::SEND_WITH_IMM => Op::SendImm(imm),
            WrOpcode::SEND_WITH_INV => Op::SendInv(key),
            WrOpcode::RDMA_WRITE => Op::Write(remote()),
            WrOpcode::RDMA_WRITE_WITH_IMM => Op::WriteImm(remote(), imm),
            WrOpcode::RDMA_READ => Op::Read(remote()),
            WrOpcode::ATOMIC_CMP_AND_SWP => Op::CmpSwp(at(), atomic().compare_add, atomic().swap),
            WrOpcode::ATOMIC_FETCH_AND_ADD => Op::FetchAdd(at(), atomic().compare_add),
            WrOpcode::LOCAL_INV => Op::LocalInv(key),
            WrOpcode::BIND_MW => {
                // SAFETY: a WR with this opcode has this field of the union (the contract of this function).
                let bind = unsafe { node.tail.bind_mw };
                // SAFETY: the window and the region are NULL or valid (the contract of this function).
                Op::BindMw(unsafe { resolve_bind(bind.mw, bind.rkey, &bind.bind_info) }?)
            }
            WrOpcode::TSO => {
                // SAFETY: a WR with this opcode has this field of the union (the contract of this function).
                let tso = unsafe { node.tail.tso };
                // SAFETY: `hdr` is NULL or points to `hdr_sz` readable bytes (the contract of this function).
                let header = unsafe { slice_from_c(tso.hdr, tso.hdr_sz.into()) };
                Op::Tso(TsoArgs { header: header.ok_or(PostError::InvalidArgument)?, mss: tso.mss })
            }
            // `struct ibv_send_wr` has no fields for flush and atomic write; only builders have them.
            _ => return Err(PostError::IllegalOpcode),
        })
    }
}

impl<'a, A> Dest<'a, A> {
    /// The destination of a node of a queue of this transport. A list can't name a DC target.
    ///
    /// # Errors
    /// [`PostError::InvalidArgument`] if the address handle of a datagram is NULL.
    ///
    /// # Safety
    /// `node` is a valid node of a list ([`SendQueue::post_send`](super::SendQueue::post_send)), for a queue of this transport and
    /// of the driver with this data of address handles.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub unsafe fn from_c(qp_type: QpType, node: &'a SendWr) -> Result<Self, PostError> {
        match qp_type {
            QpType::Ud => {
                // SAFETY: the WR of a UD QP has this field of the union (the contract of this function).
                let ud = unsafe { node.wr.ud };
                // SAFETY: `ah` is NULL or an address handle of this driver (the contract of this function).
                let Some(ah) = (unsafe { ud.ah.cast::<RawAh<A>>().as_ref() }) else {
                    return Err(PostError::InvalidArgument);
                };
                let (remote_qpn, remote_qkey) = (ud.remote_qpn, ud.remote_qkey);
                Ok(Dest::Ud(To { ah: &ah.driver, remote_qpn, remote_qkey }))
            }
            QpType::XrcSend | QpType::XrcRecv => Ok(Dest::Xrc(node.xrc_remote_srqn)),
            QpType::RawPacket => Ok(Dest::Frame),
            QpType::Rc | QpType::Uc | QpType::Driver => Ok(Dest::Peer),
        }
    }
}

impl<'a> Data<'a> {
    /// The data of a node with these flags.
    ///
    /// # Safety
    /// With `INLINE` the memory of every entry is readable as long as the result is used.
    #[must_use]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub unsafe fn from_c(flags: SendFlags, sges: &'a [Sge]) -> Self {
        if flags.contains(SendFlags::INLINE) {
            // SAFETY: the contract of this function.
            Self::Inline(Inline::Sges(unsafe { InlineSges::new(sges) }))
        } else {
            Self::Sges(sges)
        }
    }
}

impl<'a, A, R: WireRemote> Wr<'a, A, Sge, R> {
    /// The value of a node. `room` is for its entries, if they are not aligned.
    ///
    /// # Errors
    /// In this order: [`PostError::IllegalOpcode`]; [`PostError::TooManySge`] of a bind; [`PostError::InvalidArgument`] for a NULL
    /// pointer of the operation or of the destination; [`PostError::TooManySge`]; [`PostError::InvalidArgument`] if the entries are
    /// NULL; [`PostError::IllegalFlag`] if they are inline and the opcode has no inline data.
    ///
    /// # Safety
    /// As [`Dest::from_c`].
    #[inline]
    pub unsafe fn from_c(node: &'a SendWr, rules: &ListRules, room: &'a mut Room) -> Result<Self, PostError> {
        let opcode = node.opcode;
        if rules.opcodes & opcode_bit(opcode) == 0 {
            return Err(PostError::IllegalOpcode);
        }
        if opcode == WrOpcode::BIND_MW {
            num_sge(node.num_sge, rules.max_sge)?;
        }
        // SAFETY: `node` is a valid node (the contract of this function).
        let op = unsafe { Op::from_c(opcode, node) }?;
        let to = if op.has_data() {
            // SAFETY: the contract of this function.
            unsafe { Dest::from_c(rules.qp_type, node) }?
        } else {
            Dest::Peer
        };
        let num = num_sge(node.num_sge, rules.max_sge)?;
        // An invalidation ignores its entries; only their number is compared with the limit, as for any WR.
        let num = if opcode == WrOpcode::LOCAL_INV { 0 } else { num };
        // SAFETY: `sg_list` is NULL or points to `num_sge` valid entries (the contract of this function).
        let sges = unsafe { room.entries(node.sg_list, num) }.ok_or(PostError::InvalidArgument)?;
        let Head { wr_id, flags } = Head::from_c(node);
        let is_inline = flags.contains(SendFlags::INLINE) && op.has_data();
        if is_inline && !takes_inline(opcode) {
            return Err(PostError::IllegalFlag);
        }
        // SAFETY: with `INLINE` the memory of every entry is readable (the contract of this function).
        let data = if is_inline { unsafe { Data::from_c(flags, sges) } } else { Data::Sges(sges) };
        Ok(Self { wr_id, flags, to, op, data })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errno::Errno;
    use crate::provider::op::AtomicArgs;
    use crate::provider::wire::RemoteAddr;
    use crate::wr::{IbvAh, IbvMw, IbvMwBindInfo, WrAtomic, WrBindMw, WrRdma, WrTail, WrTso, WrUd, WrUnion};
    use core::ptr;

    fn chain() -> [RecvWr; 3] {
        [0, 1, 2].map(RecvWr::new)
    }

    #[test]
    fn a_list_ends_at_the_first_wr_that_is_refused() {
        let mut wrs = chain();
        let (second, third) = (&raw mut wrs[1], &raw mut wrs[2]);
        wrs[0].next = second;
        wrs[1].next = third;
        let mut ids = Vec::new();
        let mut push = |limit: u64, wr: &RecvWr| {
            ids.push(wr.wr_id);
            if wr.wr_id < limit { Ok(()) } else { Err(PostError::QueueFull) }
        };
        // SAFETY: the nodes are valid.
        let bad = unsafe { push_nodes(&raw const wrs[0], |wr| push(1, wr)) }.unwrap();
        assert_eq!((bad.error, bad.wr), (PostError::QueueFull, second.cast_const()));
        // SAFETY: the nodes are valid.
        assert!(unsafe { push_nodes(&raw const wrs[0], |wr| push(3, wr)) }.is_none());
        // SAFETY: an empty list has no nodes.
        assert!(unsafe { push_nodes(ptr::null(), |wr| push(0, wr)) }.is_none());
        assert_eq!(ids, [0, 1, 0, 1, 2]);
    }

    #[test]
    fn the_doorbell_is_reported_before_a_bad_wr_and_the_state_for_the_whole_list() {
        let wrs = chain();
        let (first, second) = (&raw const wrs[0], &raw const wrs[1]);
        let bad = || Some(BadWr { error: PostError::QueueFull, wr: second });
        let got = |published, bad| outcome(published, first, bad).map_err(|bad| (bad.error, bad.wr));
        assert_eq!(got(Ok(()), None), Ok(()));
        assert_eq!(got(Ok(()), bad()), Err((PostError::QueueFull, second)));
        let doorbell = PostError::Doorbell(Errno::EINVAL);
        assert_eq!(got(Err(doorbell), None), Err((doorbell, ptr::null())));
        assert_eq!(got(Err(doorbell), bad()), Err((doorbell, second)));
        assert_eq!(got(Err(PostError::BadState), bad()), Err((PostError::BadState, first)));
    }

    #[test]
    fn entries_are_compared_with_the_limit_before_they_are_read() {
        let one = [Sge { addr: 1, length: 2, lkey: 3 }];
        let got = |list, num| {
            let mut room = Room::new();
            // SAFETY: NULL, or as many entries as the number says.
            unsafe { entries(list, num, 1, &mut room) }.map(<[Sge]>::len)
        };
        assert_eq!(got(one.as_ptr(), 1), Ok(1));
        assert_eq!(got(ptr::null(), 0), Ok(0));
        assert_eq!(got(ptr::null(), 1), Err(PostError::InvalidArgument));
        assert_eq!(got(ptr::null(), 2), Err(PostError::TooManySge));
        assert_eq!(got(ptr::null(), -1), Err(PostError::TooManySge));
    }

    const RULES: ListRules = ListRules { qp_type: QpType::Rc, opcodes: u32::MAX, max_sge: 2 };

    /// The value of a node on a queue with these rules, with handles whose data are numbers.
    fn value<R>(node: &SendWr, rules: &ListRules, f: impl FnOnce(&Wr<'_, u32>) -> R) -> Result<R, PostError> {
        let mut room = Room::new();
        // SAFETY: the nodes of the tests are valid.
        unsafe { Wr::from_c(node, rules, &mut room) }.map(|wr| f(&wr))
    }

    #[test]
    fn a_node_has_the_value_of_its_opcode() {
        let remote = RemoteAddr { addr: 0x1000, rkey: 5 };
        for opcode in (0..16).map(WrOpcode) {
            let mut node = SendWr::new(7, opcode);
            node.imm_data_or_invalidate_rkey = 0x0102_0304_u32.to_be();
            node.send_flags = SendFlags::SIGNALED.bits();
            node.wr = match opcode {
                WrOpcode::ATOMIC_CMP_AND_SWP | WrOpcode::ATOMIC_FETCH_AND_ADD => {
                    WrUnion { atomic: WrAtomic { remote_addr: 0x1000, compare_add: 8, swap: 9, rkey: 5 } }
                }
                _ => WrUnion { rdma: WrRdma { remote_addr: 0x1000, rkey: 5 } },
            };
            let mw = IbvMw { context: ptr::null_mut(), pd: ptr::null_mut(), rkey: 1, handle: 0, mw_type: 2 };
            let bind_info = IbvMwBindInfo { mr: ptr::null(), addr: 3, length: 0, mw_access_flags: 4 };
            node.tail = match opcode {
                WrOpcode::TSO => WrTail { tso: WrTso { hdr: b"head".as_ptr(), hdr_sz: 4, mss: 100 } },
                _ => WrTail { bind_mw: WrBindMw { mw: &raw const mw, rkey: 2, bind_info } },
            };
            let got = value(&node, &RULES, |wr| {
                assert_eq!(wr.head(), Head { wr_id: 7, flags: SendFlags::SIGNALED });
                assert!(matches!((wr.to, wr.data), (Dest::Peer, Data::Sges([]))));
                let op = wr.op;
                let text = format!("{op:?}");
                (op.opcode(), op.remote(), op.imm_data(), op.atomic(), op.invalidate_rkey(), text)
            });
            if matches!(opcode, WrOpcode(11..=15)) {
                assert_eq!(got.unwrap_err(), PostError::IllegalOpcode, "{opcode:?}");
                continue;
            }
            let (is, at, imm, atomic, key, text) = got.unwrap();
            assert_eq!(is, opcode);
            let has_remote = matches!(opcode.0, 0 | 1 | 4 | 5 | 6);
            assert_eq!(at, has_remote.then_some(remote));
            assert_eq!(imm, matches!(opcode.0, 1 | 3).then(|| ImmData::new(0x0102_0304)));
            let raw_key = 0x0102_0304_u32.to_be();
            assert_eq!(key, matches!(opcode.0, 7 | 9).then_some(raw_key));
            let swap = if opcode.0 == 5 { 9 } else { 0 };
            let operands = AtomicArgs { compare_add: 8, swap };
            assert_eq!(atomic, matches!(opcode.0, 5 | 6).then_some(operands));
            match opcode {
                WrOpcode::BIND_MW => assert!(text.contains("mw_rkey: 1, mw_type: 2, rkey: 2"), "{text}"),
                WrOpcode::TSO => assert!(text.contains("[104, 101, 97, 100], mss: 100"), "{text}"),
                _ => {}
            }
        }
    }

    #[test]
    fn the_first_error_of_a_node_is_that_of_the_documented_order() {
        use PostError as E;
        let error = |node: &SendWr, rules: &ListRules| value(node, rules, |_| ()).unwrap_err();
        let many = SendWr { num_sge: 3, ..SendWr::new(1, WrOpcode::BIND_MW) };
        let none = ListRules { opcodes: 0, ..RULES };
        assert_eq!(error(&many, &none), E::IllegalOpcode);
        // The opcode has no bit in a set of 32.
        assert_eq!(error(&SendWr::new(1, WrOpcode(34)), &RULES), E::IllegalOpcode);
        // The window is NULL, too.
        assert_eq!(error(&many, &RULES), E::TooManySge);
        assert_eq!(error(&SendWr { num_sge: 2, ..many }, &RULES), E::InvalidArgument);
        let ud = ListRules { qp_type: QpType::Ud, ..RULES };
        let mut send = SendWr { num_sge: 3, ..SendWr::new(1, WrOpcode::SEND) };
        send.wr = WrUnion { ud: WrUd { ah: ptr::null(), remote_qpn: 1, remote_qkey: 2 } };
        assert_eq!(error(&send, &ud), E::InvalidArgument);
        let base = IbvAh { context: ptr::null_mut(), pd: ptr::null_mut(), handle: 0 };
        let ah = RawAh { base, driver: 77_u32 };
        send.wr.ud.ah = (&raw const ah).cast();
        assert_eq!(error(&send, &ud), E::TooManySge);
        send.num_sge = 1;
        assert_eq!(error(&send, &ud), E::InvalidArgument);
        let sge = Sge { addr: 1, length: 2, lkey: 3 };
        send.sg_list = &raw const sge;
        let to = value(&send, &ud, |wr| match (wr.to, wr.data) {
            (Dest::Ud(to), Data::Sges(sges)) => (*to.ah, to.remote_qpn, to.remote_qkey, sges.len()),
            _ => panic!("{wr:?}"),
        });
        assert_eq!(to, Ok((77, 1, 2, 1)));
        let read = SendWr {
            send_flags: SendFlags::INLINE.bits(),
            opcode: WrOpcode::RDMA_READ,
            wr: WrUnion { rdma: WrRdma { remote_addr: 0, rkey: 0 } },
            ..send
        };
        assert_eq!(error(&read, &RULES), E::IllegalFlag);
        // An invalidation ignores its entries, but not their number.
        let inv = SendWr { opcode: WrOpcode::LOCAL_INV, sg_list: ptr::null(), num_sge: 2, ..read };
        assert!(value(&inv, &RULES, |wr| wr.data.sges().is_empty()).unwrap());
        assert_eq!(error(&SendWr { num_sge: -1, ..inv }, &RULES), E::TooManySge);
    }
}
