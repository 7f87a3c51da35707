// SPDX-License-Identifier: MIT OR Apache-2.0
//! Encodes the common WQE: control segment, destination, remote address, operands of an atomic, data.
//!
//! All interfaces describe a WR by the same types. Values that the typed interface has at compile time are constants
//! here and are folded. A list fills the description from C's struct. A builder first writes the segments that the
//! opcode determines, and then the data when a setter is called. A WQE is written once; the values that the doorbell
//! needs are returned ([`Written`]).

use super::data::copy_inline;
use super::{AV_UNITS, Ah, Answer, CTRL_UNITS, DataLimits, Remote, SendEntry, Sge, WqeWriter, eth};
use super::{ctrl_base, ctrl0, ctrl1, fm_ce_se, hw_opcode, one_entry, put_entries};
use crate::memory::{BlockIndex, SqView};
use crate::sq::cursor::Cursor;
use uverbs_core::provider::op::{MwBind, TsoArgs};
use uverbs_core::provider::opcodes::is_atomic;
use uverbs_core::provider::{Address, Operation, Payload, PostError, WireRemote as _};
use uverbs_core::wr::{SendFlags, WrOpcode};
use uverbs_mlx5_hw::wqe::MLX5_WQE_CTRL_INITIATOR_SMALL_FENCE as SMALL_FENCE;

/// The destination of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Destination<'a> {
    /// The peer of the connection, or the address in the frame.
    Connection,
    /// The address in the frame, of a queue of raw packets whose headers are in memory: the WQE has an Ethernet segment.
    Frame,
    /// Address handle, QP number and Q_Key.
    Datagram(&'a Ah, u32, u32),
    /// Address handle, number and access key of a DC target.
    DcTarget(&'a Ah, u32, u64),
    /// The peer of the connection, and the number of an SRQ there.
    Srq(u32),
}

impl<'a> Destination<'a> {
    /// The destination of the typed interface.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn of<A: Address<Ah>>(to: &'a A) -> Self {
        if let Some((ah, qpn, qkey)) = to.datagram() {
            Self::Datagram(ah, qpn, qkey)
        } else if let Some((ah, dctn, key)) = to.dc_target() {
            Self::DcTarget(ah, dctn, key)
        } else if let Some(srqn) = to.remote_srqn() {
            Self::Srq(srqn)
        } else if to.is_frame() {
            Self::Frame
        } else {
            Self::Connection
        }
    }

    /// The units of the destination's segment.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) const fn units(&self) -> u32 {
        match self {
            Self::Connection => 0,
            Self::Srq(_) | Self::Frame => 1,
            Self::Datagram(..) | Self::DcTarget(..) => AV_UNITS,
        }
    }
}

/// A local operation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Local {
    /// Binds a memory window.
    Bind(MwBind),
    /// Invalidates a key.
    Invalidate(u32),
}

/// The operation of a WR.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WqeOp<'a> {
    /// The verbs opcode.
    pub(crate) opcode: WrOpcode,
    /// Immediate data or a key, as in the control segment, in host order.
    pub(crate) imm: u32,
    /// The remote address of RDMA and atomics.
    pub(crate) remote: Option<Remote>,
    /// The operands of an atomic, in wire order.
    pub(crate) operands: Option<[u64; 2]>,
    /// Whether an atomic must have an aligned remote address. As in libmlx5, lists and builders leave this to the peer.
    pub(crate) is_aligned: bool,
    /// Header and segment size of a TSO send.
    pub(crate) tso: Option<TsoArgs<'a>>,
    /// A local operation, which has no data.
    pub(crate) local: Option<Local>,
}

impl<'a> WqeOp<'a> {
    /// A message that consists of data only.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) const fn new(opcode: WrOpcode) -> Self {
        Self { opcode, imm: 0, remote: None, operands: None, is_aligned: false, tso: None, local: None }
    }

    /// The operation of the typed interface or of a builder.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn of<O: Operation<Remote = Remote>>(op: &'a O) -> Self {
        let imm = match (op.imm_data(), op.invalidate_rkey()) {
            (Some(imm), _) => imm.get(),
            (None, Some(rkey)) => rkey,
            (None, None) => 0,
        };
        let operands = op.atomic().map(|args| {
            let is_swap = matches!(O::OPCODE, WrOpcode::ATOMIC_CMP_AND_SWP);
            let words = if is_swap { [args.swap, args.compare_add] } else { [args.compare_add, 0] };
            words.map(u64::to_be)
        });
        let local = match (op.bind_mw(), op.invalidate_rkey()) {
            _ if O::HAS_DATA => None,
            (Some(bind), _) => Some(Local::Bind(bind)),
            (None, Some(key)) => Some(Local::Invalidate(key)),
            (None, None) => None,
        };
        Self {
            opcode: O::OPCODE,
            imm,
            remote: op.remote(),
            operands,
            is_aligned: false,
            tso: op.tso(),
            local,
        }
    }

    /// The response that the device writes to the WR's entries.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn answer(&self) -> Answer {
        if is_atomic(self.opcode) { Answer::CountEight } else { Answer::None }
    }
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

/// The data of a WR.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Data<'a, E, P> {
    /// Scatter/gather entries.
    Entries(&'a [E]),
    /// Inline data.
    Inline(P),
}

impl<'a, P: Payload<Sge>> Data<'a, Sge, &'a P> {
    /// The data of the typed interface.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn of(data: &'a P) -> Self {
        if P::INLINE { Self::Inline(data) } else { Self::Entries(data.sges()) }
    }
}

impl<E, P: Payload<Sge>> Data<'_, E, &P> {
    /// The maximum number of units that the data take.
    pub(crate) fn max_units(&self) -> u32 {
        let units = match self {
            Self::Entries(entries) => entries.len(),
            Self::Inline(data) => data.inline_len().saturating_add(19) / 16,
        };
        u32::try_from(units).unwrap_or(u32::MAX)
    }
}

/// A WR without its id.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Description<'a, E, P> {
    /// The flags, which determine the kind of the data.
    pub(crate) flags: SendFlags,
    /// The destination.
    pub(crate) to: Destination<'a>,
    /// The operation.
    pub(crate) op: WqeOp<'a>,
    /// The data.
    pub(crate) data: Data<'a, E, P>,
}

impl<E: Copy, P: Copy> Description<'_, E, &P> {
    /// Calls `f`, which should not be inlined, with a copy. If the address of the description, of a single entry or of the
    /// inline data's reference were passed, they would be kept in memory instead of registers, in the fast path, too.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn lend<R>(&self, f: impl FnOnce(&Description<'_, E, &P>) -> R) -> R {
        match self.data {
            Data::Entries(&[one]) => f(&Description { data: Data::Entries(&[one]), ..*self }),
            Data::Entries(many) => f(&Description { data: Data::Entries(many), ..*self }),
            Data::Inline(&data) => f(&Description { data: Data::Inline(&data), ..*self }),
        }
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
#[derive(Clone, Copy, Debug)]
pub(crate) struct CtrlConsts {
    /// The first word by opcode, in host order, of a WQE with one unit of data, without its index.
    first: [u64; 16],
    /// The second word by flags, without immediate data.
    second: [u64; 16],
    /// The same with a small fence, unless the flags have a fence.
    waiting: [u64; 16],
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
            first: core::array::from_fn(first),
            second: core::array::from_fn(second),
            waiting: core::array::from_fn(waiting),
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
        words[(flags.bits() & 15) as usize] | ctrl1(0, imm)
    }

    /// The second word. Flags that are not plain are ignored.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn second(&self, flags: SendFlags, imm: u32) -> u64 {
        self.second[(flags.bits() & 15) as usize] | ctrl1(0, imm)
    }
}

/// Writes the destination after the control segment; returns the next unit.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn put_destination(units: &mut impl Units, to: Destination<'_>) -> u32 {
    let av = match to {
        Destination::Connection => return CTRL_UNITS,
        Destination::Frame => {
            units.put_unit(CTRL_UNITS, [0; 2]);
            return CTRL_UNITS + 1;
        }
        Destination::Srq(srqn) => {
            units.put_unit(CTRL_UNITS, [(u64::from(srqn) << 32).to_be(), 0]);
            return CTRL_UNITS + 1;
        }
        Destination::Datagram(ah, qpn, qkey) => ah.to(u64::from(qkey) << 32, qpn),
        Destination::DcTarget(ah, dctn, key) => ah.to(key, dctn),
    };
    let [a, b, c, d, e, f] = av;
    units.put_unit(CTRL_UNITS, [a, b]);
    units.put_unit(CTRL_UNITS + 1, [c, d]);
    units.put_unit(CTRL_UNITS + 2, [e, f]);
    CTRL_UNITS + AV_UNITS
}

/// Writes the segments of the opcode from `unit` on; returns the next unit.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn put_op(units: &mut impl Units, unit: u32, op: &WqeOp<'_>) -> Result<u32, PostError> {
    let Some(remote) = op.remote else { return Ok(unit) };
    units.put_unit(unit, remote.words());
    let Some(operands) = op.operands else { return Ok(unit + 1) };
    // IBA 9.4.5: an atomic operates on 8 aligned bytes. The peer refuses any other address.
    if op.is_aligned && !remote.addr().is_multiple_of(8) {
        return Err(PostError::Misaligned);
    }
    units.put_unit(unit + 1, operands);
    Ok(unit + 2)
}

/// Writes the WQE of a WR, and moves the cursor past it. The caller has checked that the queue allows the WR's opcode,
/// destination and flags.
///
/// A WR with one entry has its own code, in which the length is constant if all else is.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn put_wqe<E: SendEntry, P: Payload<Sge>>(
    view: SqView<'_>,
    cursor: &mut Cursor,
    consts: &CtrlConsts,
    limits: &DataLimits,
    wr_id: u64,
    wr: &Description<'_, E, &P>,
) -> Result<(), PostError> {
    if let Some(args) = wr.op.tso {
        return put_tso(view, cursor, consts, limits, wr_id, args, wr);
    }
    let mut writer = WqeWriter::new(view, cursor.at);
    let unit = put_destination(&mut writer, wr.to);
    let unit = put_op(&mut writer, unit, &wr.op)?;
    let answer = wr.op.answer();
    let (units, carries) = match wr.data {
        Data::Inline(data) => (copy_inline(writer, unit, limits, data)?, Carries::Inline),
        Data::Entries(entries) => {
            if let [one] = entries
                && let Some(words) = one_entry(answer, *one)
            {
                writer.put(unit, words);
                put_ctrl(writer, consts, wr.flags, &wr.op, 1);
                cursor.finish(view, wr_id, Written::new(unit + 1, Carries::Entries));
                return Ok(());
            }
            (put_entries(writer, unit, limits, answer, entries)?.into(), Carries::Entries)
        }
    };
    if matches!(wr.to, Destination::Frame) && units == 0 {
        // The second half of the Ethernet segment must not have bytes of an old WQE.
        writer.put(unit, [0; 2]);
    }
    put_ctrl(writer, consts, wr.flags, &wr.op, units);
    cursor.finish(view, wr_id, Written::new(unit + units as u32, carries));
    Ok(())
}

/// [`put_wqe`] for a TSO send of entries: the Ethernet segment contains the header.
#[cfg_attr(not(debug_assertions), inline(always))]
fn put_tso<E: SendEntry, P: Payload<Sge>>(
    view: SqView<'_>,
    cursor: &mut Cursor,
    consts: &CtrlConsts,
    limits: &DataLimits,
    wr_id: u64,
    args: TsoArgs<'_>,
    wr: &Description<'_, E, &P>,
) -> Result<(), PostError> {
    let writer = WqeWriter::new(view, cursor.at);
    let header = eth::tso_units(limits.max_tso_header, args)?;
    let units = match wr.data {
        Data::Entries(entries) => {
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
    cursor.finish(view, wr_id, Written::new(CTRL_UNITS + header + units, Carries::Entries));
    Ok(())
}

/// Writes the control segment of a common WQE with `data_units` units of data.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn put_ctrl(
    writer: WqeWriter<'_>,
    consts: &CtrlConsts,
    flags: SendFlags,
    op: &WqeOp<'_>,
    data_units: u64,
) {
    writer.put_ctrl1(consts.second(flags, op.imm));
    writer.put_ctrl0(consts.first(writer.place(), op.opcode, data_units));
}

/// Whether [`block`] composes WRs of this kind.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn has_block<E, P>(wr: &Description<'_, E, P>) -> bool {
    let units = CTRL_UNITS + wr.to.units() + op_units(wr.op.opcode) + 1;
    matches!(wr.data, Data::Entries([_])) && wr.op.tso.is_none() && units <= 4
}

/// Composes a WQE of one block with one entry in registers: returns its words, except the first, and its units. `None` for
/// other WRs, and for WRs with an error.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn block<E: SendEntry, P>(
    consts: &CtrlConsts,
    wr: &Description<'_, E, P>,
) -> Option<([u64; 8], u32)> {
    let Data::Entries(&[entry]) = wr.data else { return None };
    if !has_block(wr) {
        return None;
    }
    let words = one_entry(wr.op.answer(), entry)?;
    let mut block = [0; 8];
    let unit = put_destination(&mut block, wr.to);
    let unit = put_op(&mut block, unit, &wr.op).ok()?;
    block.put_unit(unit, words);
    block[1] = consts.second(wr.flags, wr.op.imm);
    Some((block, unit + 1))
}
