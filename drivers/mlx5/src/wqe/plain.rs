// SPDX-License-Identifier: MIT OR Apache-2.0
//! Encodes the common WQE: control segment, destination, remote address, operands of an atomic, data.
//!
//! All interfaces pass the core's value of a WR. Parts that the typed interface has at compile time are constants here and
//! are folded. A list makes the value of C's struct. A builder first writes the segments that the opcode determines, and
//! then the data when a setter is called. A WQE is written once; the values that the doorbell needs are returned
//! ([`Written`]).

use super::data::copy_inline;
use super::{AV_UNITS, Ah, Answer, CTRL_UNITS, DataLimits, Remote, SendEntry, WqeWriter, eth};
use super::{ctrl_base, ctrl0, ctrl1, fm_ce_se, hw_opcode, one_entry, put_entries};
use crate::memory::{BlockIndex, SqView};
use crate::sq::cursor::SqCursor;
use uverbs_core::provider::op::TsoArgs;
use uverbs_core::provider::opcodes::is_atomic;
use uverbs_core::provider::{Data, DcTarget, Op, PostError, To, WireRemote as _};
use uverbs_core::wr::{SendFlags, WrOpcode};
use uverbs_mlx5_hw::wqe::MLX5_WQE_CTRL_INITIATOR_SMALL_FENCE as SMALL_FENCE;

/// The destination of a message.
pub(crate) type Dest<'a> = uverbs_core::provider::Dest<'a, Ah>;

/// A work request with entries of the form `E`.
pub(crate) type Wr<'a, E> = uverbs_core::provider::Wr<'a, Ah, E, Remote>;

/// The units of a destination's segment.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) const fn dest_units(to: &Dest<'_>) -> u32 {
    match to {
        Dest::Peer => 0,
        Dest::Xrc(_) | Dest::Frame => 1,
        Dest::Ud(_) | Dest::Dc(_) => AV_UNITS,
    }
}

/// Immediate data or a key, as in the control segment, in host order.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) const fn imm_or_key(op: &Op<'_, Remote>) -> u32 {
    match *op {
        Op::SendImm(value) | Op::WriteImm(_, value) | Op::SendInv(value) | Op::LocalInv(value) => value,
        _ => 0,
    }
}

/// The operands of an atomic, in wire order.
#[cfg_attr(not(debug_assertions), inline(always))]
const fn operands(op: &Op<'_, Remote>) -> Option<[u64; 2]> {
    match *op {
        Op::CmpSwp(_, compare, swap) => Some([swap.to_be(), compare.to_be()]),
        Op::FetchAdd(_, add) => Some([add.to_be(), 0]),
        _ => None,
    }
}

/// The header of a TSO send.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) const fn tso_args<'a>(op: &Op<'a, Remote>) -> Option<TsoArgs<'a>> {
    match *op {
        Op::Tso(args) => Some(args),
        _ => None,
    }
}

/// Whether a WR is a bind or an invalidation.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) const fn is_local(op: &Op<'_, Remote>) -> bool {
    matches!(op, Op::BindMw(_) | Op::LocalInv(_))
}

/// The response that the device writes to the entries of a WR of a list or of the typed interface.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) const fn answer_of(op: &Op<'_, Remote>) -> Answer {
    if is_atomic(op.opcode()) { Answer::CountEight } else { Answer::None }
}

/// Who finds that the remote address of an atomic is not aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alignment {
    /// The encoder, for the typed interface.
    Checked,
    /// The peer, for lists and builders, as with libmlx5.
    ByPeer,
}

/// The units of an opcode between destination and data.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) const fn op_units(opcode: WrOpcode) -> u32 {
    match opcode {
        WrOpcode::RDMA_WRITE | WrOpcode::RDMA_WRITE_WITH_IMM | WrOpcode::RDMA_READ => 1,
        WrOpcode::ATOMIC_CMP_AND_SWP | WrOpcode::ATOMIC_FETCH_AND_ADD => 2,
        _ => 0,
    }
}

/// The maximum number of units that data take.
pub(crate) fn max_units<E>(data: &Data<'_, E>) -> u32 {
    let units = match data {
        Data::Sges(entries) => entries.len(),
        Data::Inline(data) => data.len().saturating_add(19) / 16,
    };
    u32::try_from(units).unwrap_or(u32::MAX)
}

/// Calls `f`, which should not be inlined, with a copy.
// codegen: address
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn by_copy<E: Copy, R>(wr: &Wr<'_, E>, f: impl FnOnce(&Wr<'_, E>) -> R) -> R {
    match wr.data {
        Data::Sges(&[one]) => f(&Wr { data: Data::Sges(&[one]), ..*wr }),
        data => f(&Wr { data, ..*wr }),
    }
}

/// The kind of a WQE's data, as the doorbell needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Carries {
    /// Entries, or segments of an opcode.
    Entries = 0,
    /// Inline data.
    Inline = 1,
    /// Only the control segment.
    Nothing = 2,
}

/// A WQE that was written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written {
    /// The number of units.
    pub(crate) ds: u32,
    /// The kind of its data.
    pub(crate) carries: Carries,
}

impl Written {
    /// A WQE of `ds` units with data of the kind `carries`.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) const fn new(ds: u32, carries: Carries) -> Self {
        Self { ds, carries: if ds == CTRL_UNITS { Carries::Nothing } else { carries } }
    }
}

/// The place to which a WQE is written: the ring, or registers of the CPU.
pub(crate) trait Units {
    /// Writes the 16 bytes at `unit`.
    fn put_unit(&mut self, unit: u32, words: [u64; 2]);
}

impl Units for WqeWriter<'_> {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn put_unit(&mut self, unit: u32, words: [u64; 2]) {
        self.put(unit, words);
    }
}

impl Units for [u64; 8] {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn put_unit(&mut self, unit: u32, [a, b]: [u64; 2]) {
        let first = (unit % 4) as usize * 2;
        (self[first], self[first + 1]) = (a, b);
    }
}

/// The constant parts of a queue's control segments.
// codegen: lines
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct CtrlConsts {
    /// The first half of the second word by flags; the other half is the immediate data.
    second: [Half; 16],
    /// The first word by opcode, in host order, of a WQE with one unit of data, without its index.
    first: [u64; 16],
    /// As `second`, with a small fence, unless the flags have a fence.
    waiting: [Half; 16],
}

/// The first 4 bytes of a word, as in memory.
#[derive(Clone, Copy, Debug)]
struct Half(u32);

impl Half {
    /// That of a word.
    const fn of(word: u64) -> Self {
        Self(((u64::from_be(word) >> 32) as u32).to_be())
    }

    /// The word whose other half is 0.
    #[cfg_attr(not(debug_assertions), inline(always))]
    const fn word(self) -> u64 {
        // One load on a CPU with little-endian words.
        if cfg!(target_endian = "little") { self.0 as u64 } else { (self.0 as u64) << 32 }
    }
}

#[cfg(test)]
impl CtrlConsts {
    /// The words of the common operations end here.
    pub(crate) const USED: usize = core::mem::offset_of!(Self, first) + 7 * size_of::<u64>();
}

impl CtrlConsts {
    /// The constants of the QP with this number, whose destinations have `address_units`. `signal` is set in every WQE.
    pub(crate) fn new(qp_num: u32, address_units: u32, signal: u8) -> Self {
        let first = |opcode| {
            let opcode = WrOpcode(opcode as u32);
            let ds = CTRL_UNITS + address_units + op_units(opcode) + 1;
            u64::from(hw_opcode(opcode)) << 32 | ctrl_base(qp_num) | u64::from(ds)
        };
        let second = |flags| ctrl1(signal | fm_ce_se(SendFlags::from_bits_retain(flags as u32)), 0);
        let waiting = |flags| {
            let fence = if flags & SendFlags::FENCE.bits() as usize == 0 { SMALL_FENCE } else { 0 };
            second(flags) | ctrl1(fence, 0)
        };
        Self {
            second: core::array::from_fn(|flags| Half::of(second(flags))),
            first: core::array::from_fn(first),
            waiting: core::array::from_fn(|flags| Half::of(waiting(flags))),
        }
    }

    /// The number of the QP.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn qp_num(&self) -> u32 {
        (self.first[0] >> 8) as u32 & 0xff_ffff
    }

    /// The first word of a common WQE with `data_units` units of data. All opcodes of a queue are below 16.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn first(&self, place: BlockIndex, opcode: WrOpcode, data_units: u64) -> u64 {
        let one = self.first[(opcode.0 & 15) as usize];
        ctrl0(one.wrapping_add(data_units.wrapping_sub(1)), place, 0, 0)
    }

    /// The first word of a WQE of `ds` units, for any layout.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn first_of_units(&self, place: BlockIndex, opcode: WrOpcode, ds: u32) -> u64 {
        ctrl0(self.first[(opcode.0 & 15) as usize] & !0xff, place, 0, ds.into())
    }

    /// [`second`](Self::second) of a local operation, which `waits` for the one before it. (A fence of the WR is stronger.)
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn second_behind_local(&self, flags: SendFlags, imm: u32, waits: bool) -> u64 {
        let words = if waits { &self.waiting } else { &self.second };
        words[(flags.bits() & 15) as usize].word() | ctrl1(0, imm)
    }

    /// The second word. Flags that are not plain are ignored.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn second(&self, flags: SendFlags, imm_or_key: u32) -> u64 {
        self.second[(flags.bits() & 15) as usize].word() | ctrl1(0, imm_or_key)
    }
}

/// Writes the destination after the control segment; returns the next unit.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn put_destination(units: &mut impl Units, to: &Dest<'_>) -> u32 {
    match *to {
        Dest::Peer => return CTRL_UNITS,
        Dest::Frame => {
            units.put_unit(CTRL_UNITS, [0; 2]);
            return CTRL_UNITS + 1;
        }
        Dest::Xrc(srqn) => {
            units.put_unit(CTRL_UNITS, [(u64::from(srqn) << 32).to_be(), 0]);
            return CTRL_UNITS + 1;
        }
        Dest::Ud(To { ah, remote_qpn, remote_qkey }) => {
            ah.put(units, CTRL_UNITS, u64::from(remote_qkey) << 32, remote_qpn);
        }
        Dest::Dc(DcTarget { ah, remote_dctn, remote_dc_key }) => {
            ah.put(units, CTRL_UNITS, remote_dc_key, remote_dctn);
        }
    }
    CTRL_UNITS + AV_UNITS
}

/// Checks the address of an atomic.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn check_op(op: &Op<'_, Remote>, alignment: Alignment) -> Result<(), PostError> {
    // IBA 9.4.5: an atomic operates on 8 aligned bytes. The peer refuses any other address.
    if alignment == Alignment::Checked
        && is_atomic(op.opcode())
        && op.remote().is_some_and(|remote| !remote.addr().is_multiple_of(8))
    {
        return Err(PostError::Misaligned);
    }
    Ok(())
}

/// Writes the segments of the opcode from `unit` on; returns the next unit.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn put_op(units: &mut impl Units, unit: u32, op: &Op<'_, Remote>) -> u32 {
    let Some(remote) = op.remote() else { return unit };
    units.put_unit(unit, remote.words());
    let Some(operands) = operands(op) else { return unit + 1 };
    units.put_unit(unit + 1, operands);
    unit + 2
}

/// Writes the WQE of a WR, and moves the cursor past it. The caller has checked that the queue allows the WR's opcode,
/// destination and flags.
///
/// A WR with one entry has its own code, in which the length is constant if all else is.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn put_wqe<E: SendEntry>(
    view: SqView<'_>,
    cursor: &mut SqCursor,
    consts: &CtrlConsts,
    limits: &DataLimits,
    wr: &Wr<'_, E>,
    alignment: Alignment,
) -> Result<(), PostError> {
    if let Op::Tso(args) = wr.op {
        return put_tso(view, cursor, consts, limits, args, wr);
    }
    let mut writer = WqeWriter::new(view, cursor.at);
    let unit = put_destination(&mut writer, &wr.to);
    let unit = put_op(&mut writer, unit, &wr.op);
    check_op(&wr.op, alignment)?;
    let answer = answer_of(&wr.op);
    let (units, carries) = match wr.data {
        Data::Inline(data) => (copy_inline(writer, unit, limits, &data)?, Carries::Inline),
        Data::Sges(entries) => {
            if let [one] = entries
                && let Some(words) = one_entry(answer, *one)
            {
                writer.put(unit, words);
                put_ctrl(writer, consts, wr.flags, &wr.op, 1);
                cursor.finish(view, wr.wr_id, Written::new(unit + 1, Carries::Entries));
                return Ok(());
            }
            (put_entries(writer, unit, limits, answer, entries)?.into(), Carries::Entries)
        }
    };
    if matches!(wr.to, Dest::Frame) && units == 0 {
        // The second half of the Ethernet segment must not have bytes of an old WQE.
        writer.put(unit, [0; 2]);
    }
    put_ctrl(writer, consts, wr.flags, &wr.op, units);
    cursor.finish(view, wr.wr_id, Written::new(unit + units as u32, carries));
    Ok(())
}

/// [`put_wqe`] for a TSO send of entries: the Ethernet segment contains the header.
#[cfg_attr(not(debug_assertions), inline(always))]
fn put_tso<E: SendEntry>(
    view: SqView<'_>,
    cursor: &mut SqCursor,
    consts: &CtrlConsts,
    limits: &DataLimits,
    args: TsoArgs<'_>,
    wr: &Wr<'_, E>,
) -> Result<(), PostError> {
    let writer = WqeWriter::new(view, cursor.at);
    let header = eth::tso_units(limits.max_tso_header, args)?;
    let units = match wr.data {
        Data::Sges(entries) => {
            limits.check_tso(entries.iter().map(|entry| u64::from(entry.length())).sum())?;
            eth::put_tso(writer, false, args)?;
            if let [one] = entries
                && let Some(words) = one_entry(Answer::None, *one)
            {
                writer.put_far(CTRL_UNITS + header, words);
                1
            } else {
                put_entries(writer, CTRL_UNITS + header, limits, Answer::None, entries)?
            }
        }
        // Takes the slow path.
        Data::Inline(_) => return Err(PostError::InvalidArgument),
    };
    // The constants are those of a segment of one unit.
    put_ctrl(writer, consts, wr.flags, &wr.op, u64::from(header - 1 + units));
    cursor.finish(view, wr.wr_id, Written::new(CTRL_UNITS + header + units, Carries::Entries));
    Ok(())
}

/// Writes the control segment of a common WQE with `data_units` units of data.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn put_ctrl(
    writer: WqeWriter<'_>,
    consts: &CtrlConsts,
    flags: SendFlags,
    op: &Op<'_, Remote>,
    data_units: u64,
) {
    writer.put_ctrl1(consts.second(flags, imm_or_key(op)));
    writer.put_ctrl0(consts.first(writer.place(), op.opcode(), data_units));
}

/// Whether [`block`] composes WRs of this kind.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn has_block<E>(wr: &Wr<'_, E>) -> bool {
    let units = CTRL_UNITS + dest_units(&wr.to) + op_units(wr.op.opcode()) + 1;
    matches!(wr.data, Data::Sges([_])) && tso_args(&wr.op).is_none() && units <= 4
}

/// Composes a WQE of one block with one entry: returns its words, except the first, and its units. `None` for
/// other WRs, and for WRs with an error.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn block<E: SendEntry>(
    consts: &CtrlConsts,
    wr: &Wr<'_, E>,
    alignment: Alignment,
) -> Option<([u64; 8], u32)> {
    let Data::Sges(&[entry]) = wr.data else { return None };
    if !has_block(wr) {
        return None;
    }
    let words = one_entry(answer_of(&wr.op), entry)?;
    check_op(&wr.op, alignment).ok()?;
    let mut block = [0; 8];
    let unit = put_destination(&mut block, &wr.to);
    let unit = put_op(&mut block, unit, &wr.op);
    block.put_unit(unit, words);
    block[1] = consts.second(wr.flags, imm_or_key(&wr.op));
    Some((block, unit + 1))
}
