// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands for the firmware that this driver sends by itself, for settings of QPs that the kernel's verbs lack: UDP
//! source port, port of a link aggregation, streams of DC initiators, reserved QP numbers, the mapping of an address to a
//! QP, the order in which data is written, and the limits of DC.
//!
//! They need a context with [`Options::devx`](crate::Options). Each function queries the device's capability first, and
//! fails with [`Error::Unsupported`] without it, because firmware may ignore a field that it does not know.
//! Positions of fields are bits from the start of a mailbox; facts from the PRM and the kernel's `mlx5_ifc.h`.
#![expect(unsafe_code)]
// UNSAFETY: commands may name memory. Those of this module name none.

use super::Mlx5;
use super::devx::DevxObject;
use crate::Ah;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::MutexGuard;
use uverbs_core::Errno;
use uverbs_core::attr::QpType;
use uverbs_core::error::{Error, Result};

/// `MLX5_CMD_OP_*`
pub(super) mod op {
    pub(super) const QUERY_HCA_CAP: u16 = 0x100;
    pub(in super::super) const CREATE_MKEY: u16 = 0x200;
    pub(in super::super) const INIT2INIT_QP: u16 = 0x50e;
    pub(in super::super) const CREATE_PSV: u16 = 0x600;
    pub(super) const RTS2RTS_QP: u16 = 0x505;
    pub(super) const QUERY_QP: u16 = 0x50b;
    pub(super) const QUERY_DCT: u16 = 0x713;
    pub(super) const QUERY_LAG: u16 = 0x842;
    pub(super) const CREATE_GENERAL_OBJECT: u16 = 0xa00;
}

/// `MLX5_OBJ_TYPE_*`
const RESERVED_QPN: u32 = 0x2c;
const AV_QP_MAPPING: u32 = 0x3a;
/// Groups of capabilities (`enum mlx5_cap_type`).
const GENERAL: u32 = 0;
const GENERAL_2: u32 = 0x20;
/// Bytes of an answer without a context, of a group of capabilities, of a QP's and a DC target's context.
const ANSWER: usize = 16;
const CAPABILITIES: usize = ANSWER + 4096;
const QP: usize = 0x110;
const DCT: usize = 0x80;
/// Bytes of the command that changes a QP, with the extension of its context.
const RTS2RTS: usize = 0x1d0;
/// The position of a QP's context in that command, and in the answer to a query of a QP.
const QPC: usize = 0xc0;
/// Position and bits of the second mask of the fields to change (`MLX5_QPC_OPT_MASK_32_*`).
const MASK_2: usize = 0x860;
const DCI_STREAM: u32 = 1 << 0;
const UDP_SPORT: u32 = 1 << 2;
/// `MLX5_QPC_OPT_MASK_RTS2RTS_LAG_TX_PORT_AFFINITY` of the first mask.
const LAG_PORT: u32 = 1 << 15;
/// The primary address path in a QP's context.
const PATH: usize = QPC + 0xc0;

/// A mailbox of `N` bytes.
pub(super) struct Mailbox<const N: usize>(pub(super) [u8; N]);

impl<const N: usize> Mailbox<N> {
    pub(super) fn empty() -> Self {
        Self([0; N])
    }

    pub(super) fn command(opcode: u16) -> Self {
        let mut this = Self::empty();
        this.0[..2].copy_from_slice(&opcode.to_be_bytes());
        this
    }

    /// Sets a field of up to 32 bits. The callers' fields are inside of the mailbox; others would be dropped.
    pub(super) fn set(mut self, at: usize, len: usize, value: u32) -> Self {
        for bit in 0..len {
            if let Some(byte) = self.0.get_mut((at + bit) / 8)
                && value >> (len - 1 - bit) & 1 != 0
            {
                *byte |= 0x80 >> ((at + bit) % 8);
            }
        }
        self
    }

    /// A field of up to 32 bits.
    pub(super) fn get(&self, at: usize, len: usize) -> u32 {
        (at..at + len).fold(0, |value, bit| {
            value << 1 | self.0.get(bit / 8).map_or(0, |byte| u32::from(byte >> (7 - bit % 8) & 1))
        })
    }

    fn has(&self, at: usize) -> bool {
        self.get(at, 1) != 0
    }
}

/// The errno for the status of a command that the firmware refused (`MLX5_CMD_STAT_*`).
pub(super) fn refused(error: Error, verb: &'static str, status: u8) -> Error {
    if error.errno() != Errno::EREMOTEIO {
        return error;
    }
    let errno = match status {
        0x02 | 0x03 | 0x05 | 0x09 | 0x0a | 0x10 | 0x30 | 0x40 => Errno::EINVAL,
        0x06 => Errno::EBUSY,
        0x08 => Errno::ENOMEM,
        0x0f => Errno::EAGAIN,
        _ => Errno::EIO,
    };
    Error::os(verb, format!("the firmware's status {status:#x}"), errno)
}

/// QP numbers that the firmware reserves as one object. Each is used once.
#[derive(Debug)]
struct QpnBlock {
    object: DevxObject,
    /// The numbers that were given out and are not released yet, by their offset.
    used: BTreeSet<u32>,
    /// The next number to give out, and the number of numbers.
    next: u32,
    len: u32,
}

/// The blocks by their first number.
#[derive(Debug, Default)]
pub(super) struct QpnBlocks {
    blocks: BTreeMap<u32, QpnBlock>,
    /// The block that numbers are given out of.
    current: Option<u32>,
}

/// The maximum number of receives of QPs whose receives may be consumed out of order (`struct mlx5dv_ooo_recv_wrs_caps`); 0 for
/// types that the device lacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutOfOrderCaps {
    /// RC
    pub max_rc: u32,
    /// XRC
    pub max_xrc: u32,
    /// DC
    pub max_dct: u32,
    /// UD
    pub max_ud: u32,
    /// UC
    pub max_uc: u32,
}

impl OutOfOrderCaps {
    /// The number for a type; `QpType::Driver` is DC.
    pub(super) fn of(&self, qp_type: QpType) -> u32 {
        match qp_type {
            QpType::Rc => self.max_rc,
            QpType::Uc => self.max_uc,
            QpType::Ud => self.max_ud,
            QpType::XrcSend | QpType::XrcRecv => self.max_xrc,
            QpType::Driver => self.max_dct,
            QpType::RawPacket => 0,
        }
    }
}

impl Mlx5 {
    /// The limits of QPs whose receives may be consumed out of order. As in libmlx5, they are 0 in a context without commands
    /// for the firmware, which reports the types.
    ///
    /// # Errors
    /// [`Error::Unsupported`] unless both the device and the kernel have them; errors of the command.
    pub fn out_of_order_caps(&self) -> Result<OutOfOrderCaps> {
        const VERB: &str = "out_of_order_caps";
        if !self.facts.out_of_order {
            return Err(Error::unsupported(VERB, "the device or its kernel driver keeps receives in order"));
        }
        if !self.facts.may_command {
            return Ok(OutOfOrderCaps::default());
        }
        let caps = self.capabilities(VERB, GENERAL)?;
        // `dp_ordering_ooo_all_{ud,uc,xrc,dc,rc}`. A ring of an RQ has twice as many entries as receives can be posted.
        let all = self.facts.limits.max_recv_wr;
        let cyclic = (all / 2).max(1);
        let has = |at, most| if caps.has(ANSWER * 8 + at) { most } else { 0 };
        Ok(OutOfOrderCaps {
            max_ud: has(0x330, cyclic),
            max_uc: has(0x331, cyclic),
            max_xrc: has(0x332, all),
            max_dct: has(0x333, all),
            max_rc: has(0x334, cyclic),
        })
    }

    /// The limit of [`out_of_order_caps`](Self::out_of_order_caps) for a type that the device has.
    pub(super) fn need_out_of_order(&self, verb: &'static str, qp_type: QpType) -> Result<u32> {
        match self.out_of_order_caps().map(|caps| caps.of(qp_type)) {
            Ok(0) => Err(Error::unsupported(verb, format!("receives out of order on {qp_type} QPs"))),
            Ok(most) => Ok(most),
            Err(Error::Unsupported { .. }) => Err(Error::unsupported(verb, "receives out of order")),
            Err(error) => Err(error),
        }
    }

    pub(super) fn unless_devx(&self, verb: &'static str) -> Result<()> {
        match self.facts.may_command {
            true => Ok(()),
            false => Err(Error::unsupported(verb, "a context without commands for the firmware")),
        }
    }

    /// The current capabilities of a group.
    fn capabilities(&self, verb: &'static str, group: u32) -> Result<Box<Mailbox<CAPABILITIES>>> {
        self.unless_devx(verb)?;
        let mut answer = Box::new(Mailbox::empty());
        let command = Mailbox::<ANSWER>::command(op::QUERY_HCA_CAP).set(0x30, 16, group << 1 | 1);
        // SAFETY: the command names no memory.
        let done = unsafe { self.devx_general_command(&command.0, &mut answer.0) };
        done.map_err(|error| refused(error, verb, answer.0[0]))?;
        Ok(answer)
    }

    /// The general capabilities by their positions.
    pub(super) fn general_capabilities(&self, verb: &'static str) -> Result<impl Fn(usize) -> bool + use<>> {
        let caps = self.capabilities(verb, GENERAL)?;
        Ok(move |at| caps.has(ANSWER * 8 + at))
    }

    /// Fails unless the device has a general capability, the bit at a position.
    fn need(&self, verb: &'static str, at: usize, what: &'static str) -> Result<()> {
        match self.capabilities(verb, GENERAL)?.has(ANSWER * 8 + at) {
            true => Ok(()),
            false => Err(Error::unsupported(verb, what)),
        }
    }

    /// Fails unless the device has a type of general objects.
    fn need_object(&self, verb: &'static str, object: u32) -> Result<()> {
        // The list of types has its first type in its last bit.
        self.need(verb, 0x400 + 63 - object as usize, "the device lacks this type of objects")
    }

    fn modify(&self, verb: &'static str, handle: u32, command: &Mailbox<RTS2RTS>) -> Result<()> {
        let mut answer = Mailbox::<ANSWER>::empty();
        // SAFETY: the fields that the commands of this module change name no memory and no queue.
        let done = unsafe { self.devx_modify(handle, &command.0, &mut answer.0) };
        done.map_err(|error| refused(error, verb, answer.0[0]))
    }

    fn query<const N: usize>(
        &self,
        verb: &'static str,
        handle: u32,
        opcode: u16,
        number: u32,
    ) -> Result<Mailbox<N>> {
        let mut answer = Mailbox::empty();
        let command = Mailbox::<ANSWER>::command(opcode).set(0x48, 24, number);
        let done = self.devx_query(handle, &command.0, &mut answer.0);
        done.map_err(|error| refused(error, verb, answer.0[0]))?;
        Ok(answer)
    }

    /// Changes the UDP source port of an RC or UC QP in RTS, given by its handle and number.
    ///
    /// # Errors
    /// [`Error::Unsupported`] without [`Options::devx`](crate::Options) or without the capability; the kernel's or the
    /// firmware's error.
    pub fn modify_qp_udp_sport(&self, handle: u32, qpn: u32, udp_sport: u16) -> Result<()> {
        const VERB: &str = "modify_qp_udp_sport";
        self.need(VERB, 0x151, "the device can't change it")?;
        let command = Mailbox::command(op::RTS2RTS_QP).set(0x48, 24, qpn).set(MASK_2, 32, UDP_SPORT);
        self.modify(VERB, handle, &command.set(PATH + 0x110, 16, udp_sport.into()))
    }

    /// Resets a stream of a DC initiator in RTS after an error.
    ///
    /// # Errors
    /// As for [`modify_qp_udp_sport`](Self::modify_qp_udp_sport).
    pub fn reset_dci_stream(&self, handle: u32, qpn: u32, stream_id: u16) -> Result<()> {
        const VERB: &str = "dci_stream_id_reset";
        self.need(VERB, 0x122, "the device has no extended context of QPs")?;
        let command = Mailbox::command(op::RTS2RTS_QP).set(0x40, 1, 1).set(0x48, 24, qpn);
        let command = command.set(MASK_2, 32, DCI_STREAM).set(0x890, 16, stream_id.into());
        self.modify(VERB, handle, &command)
    }

    /// The port of a link aggregation by which a QP, not of raw packets, sends: the configured one and the one that is
    /// active.
    ///
    /// # Errors
    /// [`Error::Unsupported`] without a link aggregation, too; otherwise as for
    /// [`modify_qp_udp_sport`](Self::modify_qp_udp_sport).
    pub fn query_qp_lag_port(&self, handle: u32, qpn: u32) -> Result<(u8, u8)> {
        const VERB: &str = "query_qp_lag_port";
        let none = || Error::unsupported(VERB, "the port is not part of a link aggregation");
        let caps = self.capabilities(VERB, GENERAL)?;
        if caps.get(ANSWER * 8 + 0x27c, 4) <= 1 {
            return Err(none());
        }
        let mut lag = Mailbox::<ANSWER>::empty();
        let command = Mailbox::<ANSWER>::command(op::QUERY_LAG);
        // SAFETY: the command names no memory.
        let done = unsafe { self.devx_general_command(&command.0, &mut lag.0) };
        done.map_err(|error| refused(error, VERB, lag.0[0]))?;
        if lag.get(0x5d, 3) == 0 && !caps.has(ANSWER * 8 + 0x278) {
            return Err(none());
        }
        let configured = self.query::<QP>(VERB, handle, op::QUERY_QP, qpn)?.get(QPC + 4, 4);
        let active = match configured {
            1 => lag.get(0x7c, 4),
            2 => lag.get(0x74, 4),
            _ => return Err(none()),
        };
        Ok((configured as u8, active as u8))
    }

    /// Selects the port of a link aggregation for an RC, UC or UD QP, or a DC initiator, in RTS.
    ///
    /// # Errors
    /// As for [`query_qp_lag_port`](Self::query_qp_lag_port).
    pub fn modify_qp_lag_port(&self, handle: u32, qpn: u32, port_num: u8) -> Result<()> {
        const VERB: &str = "modify_qp_lag_port";
        // Outside of an aggregation the firmware may ignore the command and succeed.
        self.query_qp_lag_port(handle, qpn)?;
        self.need(VERB, 0x152, "the device can't change it")?;
        let command = Mailbox::command(op::RTS2RTS_QP).set(0x48, 24, qpn).set(0x80, 32, LAG_PORT);
        self.modify(VERB, handle, &command.set(QPC + 4, 4, port_num.into()))
    }

    /// The largest numbers of outstanding reads and atomics of a DC QP: those that it requests, and those that it responds to. They are
    /// 1 if the device reports none.
    ///
    /// # Errors
    /// [`Error::Unsupported`] without [`Options::devx`](crate::Options); the kernel's or the firmware's error.
    pub fn dc_limits(&self) -> Result<(u64, u64)> {
        let caps = self.capabilities("query_device", GENERAL)?;
        let limit = |at| 1 << caps.get(ANSWER * 8 + at, 6);
        Ok((limit(0x12a), limit(0x13a)))
    }

    /// The block of the send queue that the device fetches next, of a QP that is drained (SQD).
    ///
    /// # Errors
    /// The QP is in another state; [`Error::Unsupported`] without [`Options::devx`](crate::Options); the kernel's or the
    /// firmware's error.
    pub fn drained_at(&self, handle: u32, qpn: u32) -> Result<u16> {
        const VERB: &str = "qp_cancel_posted_send_wrs";
        /// `MLX5_QPC_STATE_SQDRAINED`, and the position of `hw_sq_wqebb_counter`.
        const DRAINED: u32 = 5;
        const NEXT: usize = QPC + 0x5a0;
        self.unless_devx(VERB)?;
        let context = self.query::<QP>(VERB, handle, op::QUERY_QP, qpn)?;
        if context.get(QPC, 4) != DRAINED {
            return Err(Error::invalid(VERB, "qp", format!("{qpn:#x} is not in the state SQD")));
        }
        Ok(context.get(NEXT, 16) as u16)
    }

    /// Whether the data that arrives for a QP in RTS, or for a DC target, is written in order.
    ///
    /// # Errors
    /// [`Error::Unsupported`] without [`Options::devx`](crate::Options) or without the capability: then nothing is
    /// guaranteed. The kernel's or the firmware's error.
    pub fn query_qp_data_in_order(&self, handle: u32, number: u32, is_dct: bool) -> Result<bool> {
        const VERB: &str = "query_qp_data_in_order";
        self.need(VERB, 0x62, "the device does not report it")?;
        if is_dct {
            Ok(self.query::<DCT>(VERB, handle, op::QUERY_DCT, number)?.has(0x80 + 0x1d))
        } else {
            Ok(self.query::<QP>(VERB, handle, op::QUERY_QP, number)?.has(QPC + 0x5a))
        }
    }

    fn lock_qpns(&self, verb: &'static str) -> Result<MutexGuard<'_, QpnBlocks>> {
        let forked = |_| Error::os(verb, "reserved numbers of the parent process", Errno::ESTALE);
        self.qpns.lock().map_err(forked)
    }

    /// Reserves a QP number that no QP of the device has or gets. Numbers are given out in ascending order, so that one
    /// that was released is not used again soon.
    ///
    /// # Errors
    /// As for [`modify_qp_udp_sport`](Self::modify_qp_udp_sport).
    pub fn reserve_qpn(&self) -> Result<u32> {
        const VERB: &str = "reserved_qpn_alloc";
        self.need_object(VERB, RESERVED_QPN)?;
        let mut guard = self.lock_qpns(VERB)?;
        let QpnBlocks { blocks, current } = &mut *guard;
        if current.and_then(|first| blocks.get(&first)).is_none_or(|block| block.next == block.len) {
            let log_len = match self.capabilities(VERB, GENERAL)?.has(ANSWER * 8 + 0x20) {
                true => self.capabilities(VERB, GENERAL_2)?.get(ANSWER * 8 + 0x93, 5).min(23),
                false => 0,
            };
            let command = Mailbox::<32>::command(op::CREATE_GENERAL_OBJECT).set(0x30, 16, RESERVED_QPN);
            let (object, first) = self.create_object(VERB, &command.set(0x63, 5, log_len).0)?;
            blocks.insert(first, QpnBlock { object, used: BTreeSet::new(), next: 0, len: 1 << log_len });
            *current = Some(first);
        }
        let missing = || Error::protocol(VERB, "no block of numbers");
        let first = current.ok_or_else(missing)?;
        let block = blocks.get_mut(&first).ok_or_else(missing)?;
        let offset = block.next;
        block.used.insert(offset);
        block.next += 1;
        Ok(first.wrapping_add(offset))
    }

    /// Releases a reserved QP number.
    ///
    /// # Errors
    /// The number is not reserved.
    pub fn release_qpn(&self, qpn: u32) -> Result<()> {
        const VERB: &str = "reserved_qpn_dealloc";
        let invalid = || Error::invalid(VERB, "qpn", format!("{qpn:#x} is not reserved"));
        let mut guard = self.lock_qpns(VERB)?;
        let found = guard.blocks.range_mut(..=qpn).next_back();
        let (first, block) = found.map(|(first, block)| (*first, block)).ok_or_else(invalid)?;
        if !block.used.remove(&(qpn - first)) {
            return Err(invalid());
        }
        if block.used.is_empty()
            && block.next == block.len
            && let Some(block) = guard.blocks.remove(&first)
        {
            // If the firmware refuses, the numbers stay reserved until the context ends.
            let _ = block.object.destroy();
        }
        Ok(())
    }

    /// Maps an address with a global route to a QP number. The mapping exists until the object is destroyed.
    ///
    /// # Errors
    /// As for [`modify_qp_udp_sport`](Self::modify_qp_udp_sport).
    pub fn map_ah_to_qp(&self, ah: &Ah, is_global: bool, qpn: u32) -> Result<DevxObject> {
        const VERB: &str = "map_ah_to_qp";
        if !is_global {
            return Err(Error::unsupported(VERB, "an address without a global route"));
        }
        self.need_object(VERB, AV_QP_MAPPING)?;
        let av = ah.av();
        let command = Mailbox::<0x50>::command(op::CREATE_GENERAL_OBJECT).set(0x30, 16, AV_QP_MAPPING);
        let command = command.set(0xe0, 32, qpn).set(0x164, 4, u32::from(av.stat_rate_sl & 0xf));
        let mut command = command.set(0x1e4, 8, av.grh_gid_fl.get() >> 20 & 0xff);
        command.0[0x40..0x50].copy_from_slice(&av.rgid);
        Ok(self.create_object(VERB, &command.0)?.0)
    }

    /// Creates a general object. Returns its number, too.
    fn create_object(&self, verb: &'static str, command: &[u8]) -> Result<(DevxObject, u32)> {
        let mut answer = Mailbox::<ANSWER>::empty();
        // SAFETY: the commands of this module name no memory.
        let object = unsafe { self.devx_create(command, &mut answer.0) };
        let object = object.map_err(|error| refused(error, verb, answer.0[0]))?;
        Ok((object, answer.get(0x40, 32)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_at_their_bits() {
        let mailbox = Mailbox::<8>::command(0x1234).set(0x1c, 8, 0xab).set(0x3f, 1, 1);
        assert_eq!(mailbox.0, [0x12, 0x34, 0, 0x0a, 0xb0, 0, 0, 1]);
        assert_eq!((mailbox.get(0, 16), mailbox.get(0x1c, 8), mailbox.has(0x3f)), (0x1234, 0xab, true));
        assert_eq!(mailbox.get(0x38, 32), 0x100_0000, "what is outside reads as 0");
        assert_eq!(Mailbox::<1>::empty().set(4, 32, u32::MAX).0, [0x0f], "what is outside is dropped");
    }

    #[test]
    fn statuses_are_errnos_as_in_rdma_core() {
        let remote = || Error::os("v", "o", Errno::EREMOTEIO);
        let errno = |status| refused(remote(), "v", status).errno();
        assert_eq!([0x02, 0x03, 0x06, 0x08, 0x0f, 0x51].map(errno).map(Errno::raw), [22, 22, 16, 12, 11, 5]);
        assert_eq!(refused(Error::os("v", "o", Errno::EPERM), "v", 6).errno(), Errno::EPERM);
    }
}
