// SPDX-License-Identifier: MIT OR Apache-2.0
//! One WR at the cursor: what the queue allows, and the order of the segments.
//!
//! What most WRs are, an opcode of the queue's transport with plain flags, is decided by one test of a set that was made
//! when the queue was created. All else takes the long way, [`Encoder::push_rare`], which also finds the reason why
//! something can't be posted.
#![expect(unsafe_code)]
// UNSAFETY: passes on the promise about the memory that WRs name, for the one place that looks at it (`wqe::eth`).

mod table;

pub(crate) use table::{First, Hot, Kind, op_units};

use crate::memory::{BlockIndex, CompletedCount, SendQueueRef};
use crate::sq::cursor::Cursor;
use crate::sq::producer::Producer;
use crate::sq::shared::umr_op;
use crate::wqe::eth;
use crate::wqe::umr;
use crate::wqe::{
    AV_UNITS, Ah, CTRL_UNITS, DataLimits, Ordinary, Remote, Sge, WqeWriter, are_plain, ctrl_base, ctrl1,
    fm_ce_se, hw_opcode, put_inline, put_sges, units_of,
};
use core::hint::cold_path;
use table::{OPCODES, Short, ops_of};
use uverbs_core::attr::{QpType, SendOpsFlags};
use uverbs_core::provider::op::MwBind;
use uverbs_core::provider::opcodes::{builder_opcodes, is_atomic, opcode_bit, opcodes, takes_inline};
use uverbs_core::provider::{Address, Operation, Payload, PostError, WireSge, Wr};
use uverbs_core::wr::{SendFlags, Sge as RawSge, WrOpcode};
use uverbs_mlx5_hw::wqe::{ETH_L2_INLINE_HEADER_SIZE, MLX5_WQE_CTRL_CQ_UPDATE};

/// What a send queue is made with: what the QP was asked for, and what kernel and device answered.
#[derive(Clone, Copy, Debug)]
pub struct SendConfig {
    /// Transport; `Driver` is a DC initiator.
    pub qp_type: QpType,
    /// Number that WQEs carry.
    pub qp_num: u32,
    /// Whether every WR makes a completion.
    pub sq_sig_all: bool,
    /// Operations of the `wr_*` builders.
    pub send_ops_flags: SendOpsFlags,
    /// WRs that the queue takes.
    pub max_send_wr: u32,
    /// Entries of a WR.
    pub max_send_sge: u32,
    /// Inline bytes of a WR.
    pub max_inline_data: u32,
    /// Whether the device has atomics.
    pub atomics: bool,
    /// The device's longest message.
    pub max_msg_sz: u64,
    /// The device's longest payload of a segmented send.
    pub max_tso: u32,
    /// Longest header of a segmented send.
    pub max_tso_header: u32,
    /// Whether the device wants the Ethernet header of raw packets in the WQE.
    pub l2_inline: bool,
}

/// What is constant in a queue's WQEs, and what it allows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Encoder {
    pub(crate) hot: Hot,
    short: Short,
    /// Which entries alone can be posted from registers, by the opcode of a WR to the connected peer: none by a slow doorbell.
    fused: [Ordinary; OPCODES],
    /// Builders that take the short way.
    hot_builders: u32,
    /// The first words with one entry, by opcode.
    with_one: [First; OPCODES],
    /// Those of builders that take the short way and need no address.
    plain_builders: [First; OPCODES],
    /// [`Hot::ctrl1`] of all plain flags, with nothing immediate.
    plain_ctrl1: [u64; 16],
    /// Units between a WR's control segment and what its opcode asks for.
    pub(crate) address_units: u32,
    /// All that the transport has.
    ops: u32,
    builders: u32,
    pub(crate) kind: Kind,
    pub(crate) limits: DataLimits,
    /// Blocks that every WR may take.
    wr_blocks: u32,
    atomics: bool,
    max_tso: u32,
    pub(crate) max_tso_header: u32,
    pub(crate) l2: bool,
}

impl Encoder {
    /// Of a queue with `blocks` basic blocks.
    pub(crate) fn new(config: &SendConfig, blocks: u32, fast_bell: bool) -> Self {
        let kind = Kind::of(config.qp_type);
        let ops = ops_of(config.qp_type);
        let wr_blocks = blocks.checked_div(config.max_send_wr).unwrap_or(blocks).max(1);
        // A short way where every WR's room is certain: no opcode's longest WQE is longer than its share.
        let fits = |opcode: WrOpcode| {
            let inline = config.max_inline_data.saturating_add(19) / 16;
            let data = config.max_send_sge.max(if takes_inline(opcode) { inline } else { 0 });
            (CTRL_UNITS + kind.units() + op_units(opcode)).saturating_add(data).div_ceil(4) <= wr_blocks
        };
        let plain = opcodes(&[
            WrOpcode::SEND,
            WrOpcode::SEND_WITH_IMM,
            WrOpcode::SEND_WITH_INV,
            WrOpcode::RDMA_WRITE,
            WrOpcode::RDMA_WRITE_WITH_IMM,
            WrOpcode::RDMA_READ,
            WrOpcode::ATOMIC_CMP_AND_SWP,
            WrOpcode::ATOMIC_FETCH_AND_ADD,
        ]);
        let hot = (0..32)
            .map(WrOpcode)
            .filter(|op| plain & ops & opcode_bit(*op) != 0 && fits(*op))
            .filter(|op| config.max_send_sge != 0 && (config.atomics || !is_atomic(*op)))
            .fold(0, |set, op| set | opcode_bit(op));
        let only = |k| if kind == k { hot } else { 0 };
        let builders = ops & builder_opcodes(config.send_ops_flags);
        let base = ctrl_base(config.qp_num);
        let with_one = core::array::from_fn(|op| {
            let opcode = WrOpcode(op as u32);
            First::new(base, hw_opcode(opcode), CTRL_UNITS + kind.units() + op_units(opcode) + 1)
        });
        Self {
            hot: Hot {
                base,
                signal: ctrl1(if config.sq_sig_all { MLX5_WQE_CTRL_CQ_UPDATE } else { 0 }, 0),
                connected: only(Kind::Connected),
                datagram: only(Kind::Datagram),
                xrc: only(Kind::Xrc),
                dc: only(Kind::Dc),
                max_inline: config.max_inline_data,
            },
            short: Short::new(kind, hot),
            fused: Short::new(kind, if fast_bell { hot } else { 0 }).connected,
            plain_ctrl1: core::array::from_fn(|flags| {
                let signal = if config.sq_sig_all { MLX5_WQE_CTRL_CQ_UPDATE } else { 0 };
                ctrl1(signal | fm_ce_se(SendFlags::from_bits_retain(flags as u32)), 0)
            }),
            address_units: kind.units(),
            hot_builders: if kind == Kind::Raw { 0 } else { hot & builders },
            with_one,
            plain_builders: core::array::from_fn(|op| {
                let is_plain = hot & builders & opcode_bit(WrOpcode(op as u32)) != 0;
                if is_plain && kind == Kind::Connected { with_one[op] } else { First::NONE }
            }),
            ops,
            builders,
            kind,
            limits: DataLimits {
                max_sge: config.max_send_sge,
                max_inline: config.max_inline_data,
                max_msg: config.max_msg_sz,
            },
            wr_blocks,
            atomics: config.atomics,
            max_tso: config.max_tso,
            max_tso_header: config.max_tso_header,
            l2: config.l2_inline,
        }
    }

    /// The WQE of a WR to the connected peer, with or without a remote address, and with one ordinary entry, which fits
    /// in a block; and its units. `None` for all else.
    #[inline(always)]
    pub(crate) fn block<A, O>(
        &self,
        wr: Wr,
        to: &A,
        op: &O,
        sges: &[Sge],
    ) -> Option<(u32, impl FnOnce(BlockIndex) -> [u64; 8] + use<'_, A, O>)>
    where
        A: Address<Ah>,
        O: Operation<Remote = Remote>,
    {
        let &[sge] = sges else { return None };
        let elsewhere = to.datagram().is_some() || to.remote_srqn().is_some() || to.dc_target().is_some();
        if elsewhere
            || !O::HAS_DATA
            || is_atomic(O::OPCODE)
            || !sge.is_ordinary(self.fused[O::OPCODE.0 as usize % OPCODES])
        {
            return None;
        }
        let (second, remote) = (self.plain_ctrl1(wr.flags, imm_of(op))?, op.remote());
        let ds = CTRL_UNITS + 1 + u32::from(remote.is_some());
        Some((ds, move |place| {
            let first = self.with_one(O::OPCODE).at(place);
            let [a, b] = sge.words;
            match remote {
                Some(Remote { words: [c, d] }) => [first, second, c, d, a, b, 0, 0],
                None => [first, second, a, b, 0, 0, 0, 0],
            }
        }))
    }

    /// Whether a WR of this opcode with an ordinary entry can be posted from registers.
    #[inline(always)]
    pub(crate) fn is_fused(&self, opcode: WrOpcode) -> bool {
        self.fused[opcode.0 as usize % OPCODES] != Ordinary::NONE
    }

    /// The first word of a WQE of this opcode with one entry.
    #[inline(always)]
    pub(crate) fn with_one(&self, opcode: WrOpcode) -> First {
        self.with_one[opcode.0 as usize % OPCODES]
    }

    /// The same if the opcode's builder takes the short way and needs no address.
    #[inline(always)]
    pub(crate) fn plain_builder(&self, opcode: WrOpcode) -> Option<First> {
        let first = self.plain_builders[opcode.0 as usize % OPCODES];
        (first != First::NONE).then_some(first)
    }

    /// [`Hot::ctrl1`] for flags that only the run tells; `None` if they are not plain.
    #[inline(always)]
    pub(crate) fn plain_ctrl1(&self, flags: SendFlags, imm: u32) -> Option<u64> {
        const { assert!(are_plain(SendFlags::from_bits_retain(15))) };
        let word = self.plain_ctrl1.get(flags.bits() as usize)?;
        Some(word | ctrl1(0, imm))
    }

    /// Whether a builder takes the short way.
    #[inline(always)]
    pub(crate) fn is_hot_builder(&self, opcode: WrOpcode) -> bool {
        self.hot_builders & opcode_bit(opcode) != 0
    }

    /// Whether lists and batches may use this opcode.
    pub(crate) fn has(&self, opcode: WrOpcode) -> bool {
        self.ops & opcode_bit(opcode) != 0
    }

    /// Whether there is a builder for this opcode.
    pub(crate) fn has_builder(&self, opcode: WrOpcode) -> bool {
        self.builders & opcode_bit(opcode) != 0
    }

    /// The control segment's second word for plain flags.
    #[inline(always)]
    pub(crate) fn ctrl1(&self, flags: SendFlags, imm: u32) -> u64 {
        self.hot.ctrl1(flags, imm)
    }

    /// The control segment's first word.
    #[inline(always)]
    pub(crate) fn ctrl0(&self, place: BlockIndex, opcode: u8, ds: u32) -> u64 {
        self.hot.ctrl0(place, opcode, ds)
    }

    /// Bytes of a frame's header in the WQE.
    pub(crate) fn header_len(&self) -> usize {
        if self.l2 { ETH_L2_INLINE_HEADER_SIZE } else { 0 }
    }

    /// Whether the device has this opcode, if it is an atomic.
    pub(crate) fn check_atomics(&self, opcode: WrOpcode) -> Result<(), PostError> {
        if is_atomic(opcode) && !self.atomics { Err(PostError::Unsupported) } else { Ok(()) }
    }

    /// Whether a segmented send may have so many bytes.
    pub(crate) fn check_tso(&self, length: u64) -> Result<(), PostError> {
        if length > self.max_tso.into() { Err(PostError::InvalidLength) } else { Ok(()) }
    }

    /// Writes one WR at the cursor and moves it on.
    ///
    /// # Safety
    /// On a raw packet QP of a device that wants Ethernet headers in the WQE, the entries are readable memory at their
    /// addresses.
    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "what a WR is made of")]
    pub(crate) unsafe fn push<A, O, P>(
        &self,
        hot: &Hot,
        poster: &mut Producer,
        held: &SendQueueRef,
        cursor: &mut Cursor,
        wr: Wr,
        to: &A,
        op: &O,
        data: &P,
    ) -> Result<(), PostError>
    where
        A: Address<Ah>,
        O: Operation<Remote = Remote>,
        P: Payload<Sge>,
    {
        // One entry that is empty or longest is rare; more than one are looked at one by one.
        let is_short = match data.sges() {
            _ if P::INLINE => takes_inline(O::OPCODE) && hot.has::<A, O>(to),
            [sge] => sge.is_ordinary(self.short.entries::<A, O>(to)),
            _ => hot.has::<A, O>(to),
        };
        if !is_short || !are_plain(wr.flags) {
            cold_path();
            // All that is lent out is a copy; see `Cursor::lend`.
            let (to, op) = (*to, *op);
            return cursor.lend(|cursor| match data.sges() {
                // SAFETY: the caller's promise.
                _ if P::INLINE => unsafe { self.push_rare(poster, held, cursor, wr, &to, &op, data) },
                [one] => {
                    let one = [*one];
                    // SAFETY: the caller's promise.
                    unsafe { self.push_rare(poster, held, cursor, wr, &to, &op, &&one[..]) }
                }
                // SAFETY: the caller's promise.
                many => unsafe { self.push_rare(poster, held, cursor, wr, &to, &op, &many) },
            });
        }
        poster.reserve(held, cursor)?;
        self.write::<A, O, P, false>(hot, held, cursor, wr, to, op, data)
    }

    /// Writes a WR whose opcode, flags and room are checked.
    ///
    /// Unless `SPECIAL`, a single entry is known to be neither empty nor longest.
    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "what a WR is made of")]
    fn write<A, O, P, const SPECIAL: bool>(
        &self,
        hot: &Hot,
        held: &SendQueueRef,
        cursor: &mut Cursor,
        wr: Wr,
        to: &A,
        op: &O,
        data: &P,
    ) -> Result<(), PostError>
    where
        A: Address<Ah>,
        O: Operation<Remote = Remote>,
        P: Payload<Sge>,
    {
        let slot = WqeWriter::new(held.view(), cursor.at);
        let mut unit = CTRL_UNITS + put_address(slot, to);
        unit += put_op(slot, unit, op)?;
        let ctrl0 = match data.sges() {
            [sge] if !P::INLINE && !SPECIAL && !is_atomic(O::OPCODE) => {
                slot.put_ctrl1(self.plain_ctrl1(wr.flags, imm_of(op)).unwrap_or_default());
                slot.put(unit, sge.words);
                unit += 1;
                self.with_one(O::OPCODE).at(cursor.at)
            }
            sges => {
                slot.put_ctrl1(hot.ctrl1(wr.flags, imm_of(op)));
                unit += if P::INLINE {
                    put_inline(slot, unit, DataLimits { max_inline: hot.max_inline, ..self.limits }, data)?
                } else {
                    put_sges(slot, unit, self.limits, is_atomic(O::OPCODE), sges)?
                };
                hot.ctrl0(cursor.at, const { hw_opcode(O::OPCODE) }, unit)
            }
        };
        slot.put_ctrl0(ctrl0);
        cursor.finish(held.view(), wr.wr_id, unit, P::INLINE);
        Ok(())
    }

    /// Checks that a WR of up to `units` fits in the queue, and takes what it counts beyond one WR. Of that, `taken` is
    /// taken already.
    pub(crate) fn reserve_units(
        &self,
        poster: &mut Producer,
        held: &SendQueueRef,
        cursor: &mut Cursor,
        units: u32,
        taken: u32,
    ) -> Result<u32, PostError> {
        if units > MAX_UNITS {
            return Err(PostError::InvalidArgument);
        }
        let more = (units.div_ceil(4).max(1) - 1) / self.wr_blocks;
        poster.reserve_more(held, cursor, more.saturating_sub(taken))?;
        Ok(more)
    }

    /// The long way: everything but the plainest WRs.
    ///
    /// # Safety
    /// As [`push`](Self::push).
    #[inline(never)]
    #[expect(clippy::too_many_arguments, reason = "what a WR is made of")]
    unsafe fn push_rare<A, O, P>(
        &self,
        poster: &mut Producer,
        held: &SendQueueRef,
        cursor: &mut Cursor,
        wr: Wr,
        to: &A,
        op: &O,
        data: &P,
    ) -> Result<(), PostError>
    where
        A: Address<Ah>,
        O: Operation<Remote = Remote>,
        P: Payload<Sge>,
    {
        poster.ensure_begun(held, cursor)?;
        if !self.has(O::OPCODE) {
            return Err(PostError::IllegalOpcode);
        }
        if !O::HAS_DATA {
            return self.push_local(poster, held, cursor, wr, op, data.sges().len());
        }
        if !self.kind.matches(to) {
            return Err(PostError::InvalidArgument);
        }
        let csum = self.check_csum(held, wr.flags)?;
        if P::INLINE && !takes_inline(O::OPCODE) {
            return Err(PostError::IllegalFlag);
        }
        self.check_atomics(O::OPCODE)?;
        if !P::INLINE && data.sges().len() > self.limits.max_sge as usize {
            return Err(PostError::TooManySge);
        }
        if P::INLINE && data.inline_len() > self.limits.max_inline as usize + ETH_L2_INLINE_HEADER_SIZE {
            return Err(PostError::InlineTooLong);
        }
        if self.kind == Kind::Raw {
            // SAFETY: the caller's promise.
            return unsafe { self.push_frame(poster, held, cursor, wr, csum, op, data) };
        }
        let head = CTRL_UNITS + self.kind.units() + op_units(O::OPCODE);
        self.reserve_units(poster, held, cursor, head.saturating_add(units_of(data)), 0)?;
        self.write::<A, O, P, true>(&self.hot, held, cursor, wr, to, op, data)
    }

    /// Whether checksums are asked for; an error if they can't be, or for any other flag.
    pub(crate) fn check_csum(&self, held: &SendQueueRef, flags: SendFlags) -> Result<bool, PostError> {
        let csum = flags.contains(SendFlags::IP_CSUM);
        let rest = flags.difference(SendFlags::IP_CSUM);
        if !are_plain(rest) || (csum && (self.kind != Kind::Raw || !held.qp.csum())) {
            return Err(PostError::IllegalFlag);
        }
        Ok(csum)
    }

    /// A raw packet.
    ///
    /// # Safety
    /// As [`push`](Self::push).
    #[expect(clippy::too_many_arguments, reason = "what a WR is made of")]
    unsafe fn push_frame<O, P>(
        &self,
        poster: &mut Producer,
        held: &SendQueueRef,
        cursor: &mut Cursor,
        wr: Wr,
        csum: bool,
        op: &O,
        data: &P,
    ) -> Result<(), PostError>
    where
        O: Operation<Remote = Remote>,
        P: Payload<Sge>,
    {
        let header = match op.tso() {
            Some(args) => eth::tso_units(self.max_tso_header, args)?,
            None => eth::units(self.header_len()),
        };
        let units = (CTRL_UNITS + header).saturating_add(units_of(data));
        self.reserve_units(poster, held, cursor, units, 0)?;
        let slot = WqeWriter::new(held.view(), cursor.at);
        let units = if let Some(args) = op.tso() {
            let length: u64 = data.sges().iter().map(|sge| u64::from(sge.length())).sum();
            self.check_tso(length)?;
            let at = CTRL_UNITS + eth::put_tso(slot, csum, args)?;
            at + if P::INLINE {
                put_inline(slot, at, self.limits, data)?
            } else {
                put_sges(slot, at, self.limits, false, data.sges())?
            }
        } else if P::INLINE {
            eth::put_frame_inline(slot, self.limits, csum, self.l2, data)?
        } else if data.sges().is_empty() {
            // A frame has a header at least.
            return Err(PostError::InvalidArgument);
        } else {
            // SAFETY: the caller's promise.
            unsafe { eth::put_frame_sges(slot, self.limits, csum, self.l2, data.sges().iter().map(raw)) }?
        };
        slot.put_ctrl1(self.ctrl1(wr.flags, 0));
        slot.put_ctrl0(self.ctrl0(cursor.at, hw_opcode(O::OPCODE), units));
        cursor.finish(held.view(), wr.wr_id, units, P::INLINE);
        Ok(())
    }

    /// A bind or an invalidation: a local operation, after which the next WR must wait.
    pub(crate) fn push_local<O: Operation<Remote = Remote>>(
        &self,
        poster: &mut Producer,
        held: &SendQueueRef,
        cursor: &mut Cursor,
        wr: Wr,
        op: &O,
        num_sge: usize,
    ) -> Result<(), PostError> {
        self.check_csum(held, wr.flags)?;
        match (op.bind_mw(), op.invalidate_rkey()) {
            (Some(_), _) if num_sge != 0 => Err(PostError::InvalidArgument),
            (Some(bind), _) => self.push_umr(poster, held, cursor, wr, Some(&bind), bind.mw_rkey),
            (None, Some(rkey)) => self.push_umr(poster, held, cursor, wr, None, rkey),
            (None, None) => Err(PostError::IllegalOpcode),
        }
    }

    fn push_umr(
        &self,
        poster: &mut Producer,
        held: &SendQueueRef,
        cursor: &mut Cursor,
        wr: Wr,
        bind: Option<&MwBind>,
        key: u32,
    ) -> Result<(), PostError> {
        self.reserve_units(poster, held, cursor, bind.map_or(umr::FREE_UNITS, |_| umr::BIND_UNITS), 0)?;
        let slot = WqeWriter::new(held.view(), cursor.at);
        let units = match bind {
            Some(bind) => umr::put_bind(slot, (self.hot.base >> 8) as u32, bind)?,
            None => umr::put_local_inv(slot),
        };
        slot.put_ctrl1(self.ctrl1(wr.flags, key));
        if poster.fence_local(held.view(), cursor.at, units.div_ceil(4)) {
            slot.add_small_fence();
        }
        let op = if bind.is_some() { umr_op::BIND_MW } else { umr_op::LOCAL_INV };
        slot.put_ctrl0(self.ctrl0(cursor.at, hw_opcode(WrOpcode::BIND_MW), units));
        let record = held.view().record(cursor.at);
        cursor.finish(held.view(), wr.wr_id, units, false);
        record.set_done(CompletedCount::new(cursor.head, op));
        Ok(())
    }
}

/// The longest WQE: `ds` has six bits.
pub(crate) const MAX_UNITS: u32 = 63;

/// An entry in C's form.
fn raw(sge: &Sge) -> RawSge {
    RawSge { addr: sge.addr(), length: sge.length(), lkey: sge.lkey() }
}

/// What the control segment's last word holds, in host order.
#[inline(always)]
pub(crate) fn imm_of<O: Operation>(op: &O) -> u32 {
    match (op.imm_data(), op.invalidate_rkey()) {
        (Some(imm), _) => imm.get(),
        (None, Some(rkey)) => rkey,
        (None, None) => 0,
    }
}

/// Writes where the WR goes, behind the control segment; how many units it took.
#[inline(always)]
pub(crate) fn put_address<A: Address<Ah>>(slot: WqeWriter<'_>, to: &A) -> u32 {
    if let Some((ah, qpn, qkey)) = to.datagram() {
        slot.put_av(ah.to(u64::from(qkey) << 32, qpn));
        AV_UNITS
    } else if let Some((ah, dctn, key)) = to.dc_target() {
        slot.put_av(ah.to(key, dctn));
        AV_UNITS
    } else if let Some(srqn) = to.remote_srqn() {
        slot.put_srqn(srqn);
        1
    } else {
        0
    }
}

/// Writes what the opcode asks for, from `unit` on; how many units it took.
#[inline(always)]
pub(crate) fn put_op<O: Operation<Remote = Remote>>(
    slot: WqeWriter<'_>,
    unit: u32,
    op: &O,
) -> Result<u32, PostError> {
    let Some(remote) = op.remote() else { return Ok(0) };
    slot.put(unit, remote.words);
    let Some(atomic) = op.atomic() else { return Ok(1) };
    // IBA 9.4.5: an atomic works on 8 aligned bytes.
    if !u64::from_be(remote.words[0]).is_multiple_of(8) {
        return Err(PostError::Misaligned);
    }
    let words = if matches!(O::OPCODE, WrOpcode::ATOMIC_CMP_AND_SWP) {
        [atomic.swap, atomic.compare_add]
    } else {
        [atomic.compare_add, 0]
    };
    slot.put(unit + 1, words.map(u64::to_be));
    Ok(2)
}
