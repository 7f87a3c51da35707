// SPDX-License-Identifier: MIT OR Apache-2.0
//! Computes the sizes of queues from the requested capacities.
//!
//! The sizes are those of libmlx5 65, so that a program gets the same capacities, with one exception: without inline
//! data and entries libmlx5 returns a negative inline limit, which is 0 here.

use uverbs_core::attr::{QpCap, QpType, SendOpsFlags};
use uverbs_core::error::{Error, Result};
use uverbs_mlx5_hw::wqe::{
    AtomicSeg, Av, CtrlSeg, DataSeg, EthSeg, InlineSeg, MLX5_SEND_WQE_BB, MkeyContextSeg, RaddrSeg,
    SrqNextSeg, UmrCtrlSeg, XrcSeg,
};

/// Bytes of the translation entries that a UMR WQE ends with: one entry of 16, padded.
const UMR_ENTRIES: u32 = 64;
/// The maximum number of CQEs: the consumer index has 24 bits, one of which distinguishes two laps.
const MAX_CQE: u32 = 1 << 23;

/// Limits of the device and its kernel driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Bytes of a send WQE.
    pub(crate) max_sq_desc_sz: u32,
    /// Bytes of a receive WQE.
    pub(crate) max_rq_desc_sz: u32,
    /// Basic blocks of a send queue.
    pub(crate) max_send_wqebb: u32,
    /// WQEs of a receive queue.
    pub(crate) max_recv_wr: u32,
    /// WQEs of an SRQ.
    pub(crate) max_srq_recv_wr: u32,
}

/// The operations of a send queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendUse {
    /// `Driver` is a DC initiator.
    pub(crate) qp_type: QpType,
    /// Operations that its builders must support; empty for all operations of `ibv_post_send`.
    pub(crate) ops: SendOpsFlags,
    /// Bytes of the longest TSO header.
    pub(crate) max_tso_header: u16,
    /// Whether its builders configure indirect keys.
    pub(crate) mkeys: bool,
}

/// A send queue's size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SqSize {
    /// Basic blocks, a power of two; 0 if there is no queue.
    pub(crate) wqe_cnt: u32,
    /// WRs that always fit.
    pub(crate) max_wr: u32,
    /// Entries of a WR.
    pub(crate) max_sge: u32,
    /// Bytes that can be sent inline.
    pub(crate) max_inline: u32,
}

impl SqSize {
    /// Bytes.
    pub(crate) const fn bytes(&self) -> usize {
        self.wqe_cnt as usize * MLX5_SEND_WQE_BB
    }
}

/// The size of a receive queue, of an SRQ or of a WQ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RqSize {
    /// WQEs, a power of two; 0 if there is no queue.
    pub(crate) wqe_cnt: u32,
    /// WQEs that can be posted.
    pub(crate) max_wr: u32,
    /// log2 of the bytes of a WQE.
    pub(crate) wqe_shift: u32,
    /// Entries of a WR.
    pub(crate) max_sge: u32,
}

impl RqSize {
    /// Bytes of a WQE.
    pub(crate) const fn stride(&self) -> u32 {
        1 << self.wqe_shift
    }

    /// Bytes.
    pub(crate) const fn bytes(&self) -> usize {
        (self.wqe_cnt as usize) << self.wqe_shift
    }
}

const fn size<T>() -> u32 {
    size_of::<T>() as u32
}

/// The operations of a QP that requested none.
const fn all_ops(qp_type: QpType) -> SendOpsFlags {
    match qp_type {
        QpType::Ud => SendOpsFlags::SEND.union(SendOpsFlags::SEND_WITH_IMM).union(SendOpsFlags::TSO),
        QpType::RawPacket => SendOpsFlags::SEND.union(SendOpsFlags::TSO),
        _ => crate::control::ops::RC,
    }
}

/// The maximum number of bytes of a WQE before its data.
fn overhead(what: &SendUse) -> u32 {
    use SendOpsFlags as F;
    let ops = if what.ops.is_empty() { all_ops(what.qp_type) } else { what.ops };
    let mut bytes = size::<CtrlSeg>();
    if ops.intersects(F::RDMA_WRITE | F::RDMA_WRITE_WITH_IMM | F::RDMA_READ) {
        bytes = bytes.max(size::<CtrlSeg>() + size::<RaddrSeg>());
    }
    if ops.intersects(F::ATOMIC_CMP_AND_SWP | F::ATOMIC_FETCH_AND_ADD) {
        bytes = bytes.max(size::<CtrlSeg>() + size::<RaddrSeg>() + size::<AtomicSeg>());
    }
    if ops.intersects(F::BIND_MW | F::LOCAL_INV) || what.mkeys {
        bytes = bytes.max(size::<CtrlSeg>() + size::<UmrCtrlSeg>() + size::<MkeyContextSeg>() + UMR_ENTRIES);
    }
    bytes
        + match what.qp_type {
            QpType::Ud | QpType::Driver => size::<Av>(),
            QpType::XrcSend | QpType::XrcRecv => size::<XrcSeg>(),
            QpType::RawPacket => size::<EthSeg>(),
            QpType::Rc | QpType::Uc => 0,
        }
}

/// The send queue for `cap`.
pub(crate) fn send_queue(verb: &'static str, limits: &Limits, what: &SendUse, cap: &QpCap) -> Result<SqSize> {
    if cap.max_send_wr == 0 {
        return Ok(SqSize { max_sge: cap.max_send_sge, ..SqSize::default() });
    }
    let head = overhead(what);
    let max = limits.max_sq_desc_sz;
    // This does not overflow 64 bits: of every two factors, one has at most 32 bits and the other at most 16.
    let inline = match cap.max_inline_data {
        0 => 0,
        bytes => u64::from(head) + (u64::from(size::<InlineSeg>()) + u64::from(bytes)).next_multiple_of(16),
    };
    if inline > max.into() {
        let reason =
            format!("{} with {head} bytes before it is above the device's {max}", cap.max_inline_data);
        return Err(Error::invalid(verb, "max_inline_data", reason));
    }
    let before = head + u32::from(what.max_tso_header).next_multiple_of(16);
    let gather = u64::from(before) + u64::from(cap.max_send_sge) * u64::from(size::<DataSeg>());
    if gather > max.into() {
        let reason =
            format!("{} with {before} bytes before them is above the device's {max}", cap.max_send_sge);
        return Err(Error::invalid(verb, "max_send_sge", reason));
    }
    let wqe = gather.max(inline).next_multiple_of(MLX5_SEND_WQE_BB as u64);
    if wqe > max.into() {
        return Err(Error::invalid(
            verb,
            "cap",
            format!("a work request of {wqe} bytes is above the device's {max}"),
        ));
    }
    let bytes = (u64::from(cap.max_send_wr) * wqe).next_power_of_two();
    let wqe_cnt = bytes / MLX5_SEND_WQE_BB as u64;
    let most = u64::from(limits.max_send_wqebb.min(1 << 16));
    if wqe_cnt > most {
        let most = most * MLX5_SEND_WQE_BB as u64 / wqe;
        let asked = cap.max_send_wr;
        let reason = format!("{asked} is above the device's {most} for work requests of {wqe} bytes");
        return Err(Error::invalid(verb, "max_send_wr", reason));
    }
    Ok(SqSize {
        wqe_cnt: wqe_cnt as u32,
        max_wr: (bytes / wqe) as u32,
        max_sge: cap.max_send_sge,
        max_inline: (wqe as u32).saturating_sub(head + size::<InlineSeg>()),
    })
}

/// The receive queue for `cap`.
pub(crate) fn recv_queue(verb: &'static str, limits: &Limits, max_wr: u32, max_sge: u32) -> Result<RqSize> {
    if max_wr == 0 {
        return Ok(RqSize::default());
    }
    if max_wr > limits.max_recv_wr {
        return Err(Error::invalid(
            verb,
            "max_recv_wr",
            format!("{max_wr} is above the device's {}", limits.max_recv_wr),
        ));
    }
    let stride = u64::from(max_sge.max(1)) * u64::from(size::<DataSeg>());
    if stride > limits.max_rq_desc_sz.into() {
        let most = limits.max_rq_desc_sz / size::<DataSeg>();
        return Err(Error::invalid(verb, "max_recv_sge", format!("{max_sge} is above the device's {most}")));
    }
    let stride = stride.next_power_of_two() as u32;
    let bytes = (u64::from(max_wr).next_power_of_two() * u64::from(stride)).max(MLX5_SEND_WQE_BB as u64);
    let wqe_cnt = bytes / u64::from(stride);
    if wqe_cnt > 1 << 16 {
        // A completion identifies a receive by a 16-bit index.
        return Err(Error::invalid(verb, "max_recv_wr", format!("{wqe_cnt} elements are above 65536")));
    }
    Ok(RqSize {
        wqe_cnt: wqe_cnt as u32,
        max_wr: wqe_cnt as u32,
        wqe_shift: stride.trailing_zeros(),
        max_sge: stride / size::<DataSeg>(),
    })
}

/// [`recv_queue`] whose WQEs the device may consume out of order: the ring has twice as many as can be posted, unless that is
/// one. `most` can be posted.
pub(crate) fn unordered_queue(
    verb: &'static str,
    limits: &Limits,
    most: u32,
    max_wr: u32,
    max_sge: u32,
) -> Result<RqSize> {
    if max_wr <= 1 {
        return recv_queue(verb, limits, max_wr, max_sge);
    }
    if max_wr > most {
        let reason = format!("{max_wr} is above the device's {most} out of order");
        return Err(Error::invalid(verb, "max_recv_wr", reason));
    }
    let size = recv_queue(verb, limits, max_wr.saturating_mul(2), max_sge)?;
    Ok(RqSize { max_wr: size.wqe_cnt / 2, ..size })
}

/// An SRQ's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SrqSize {
    /// The ring, with the elements that the device needs for receives that wait for a page.
    pub(crate) ring: RqSize,
    /// Elements in the list of free elements; one less can be posted.
    pub(crate) slots: u32,
}

/// The sizes of an SRQ for this number of WRs with this number of entries each.
pub(crate) fn shared_queue(
    verb: &'static str,
    limits: &Limits,
    max_wr: u32,
    max_sge: u32,
) -> Result<SrqSize> {
    if max_wr > limits.max_srq_recv_wr {
        return Err(Error::invalid(
            verb,
            "max_wr",
            format!("{max_wr} is above the device's {}", limits.max_srq_recv_wr),
        ));
    }
    let most = limits.max_rq_desc_sz / size::<DataSeg>();
    if max_sge > most {
        return Err(Error::invalid(verb, "max_sge", format!("{max_sge} is above the device's {most}")));
    }
    let stride = (size::<SrqNextSeg>() + max_sge * size::<DataSeg>()).max(32).next_power_of_two();
    let slots = (u64::from(max_wr) + 1).next_power_of_two();
    // The same number of elements is added, and one more, unless that exceeds the device's limit.
    let wanted = u64::from(max_wr) * 2 + 1;
    let wqe_cnt = if wanted > limits.max_srq_recv_wr.into() { slots } else { wanted.next_power_of_two() };
    if wqe_cnt > 1 << 16 {
        return Err(Error::invalid(
            verb,
            "max_wr",
            format!("{max_wr} takes {wqe_cnt} elements, above 65536"),
        ));
    }
    let max_sge = (stride - size::<SrqNextSeg>()) / size::<DataSeg>();
    let ring = RqSize {
        wqe_cnt: wqe_cnt as u32,
        max_wr: slots as u32 - 1,
        wqe_shift: stride.trailing_zeros(),
        max_sge,
    };
    Ok(SrqSize { ring, slots: slots as u32 })
}

/// The entries of a CQ for `cqe` completions, a power of two. One stays empty.
pub(crate) fn completion_queue(verb: &'static str, cqe: u32) -> Result<u32> {
    let entries = (u64::from(cqe) + 1).next_power_of_two();
    if cqe == 0 || entries > MAX_CQE.into() {
        return Err(Error::invalid(verb, "cqe", format!("{cqe} is not from 1 to {}", MAX_CQE - 1)));
    }
    Ok(entries as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        max_sq_desc_sz: 1024,
        max_rq_desc_sz: 512,
        max_send_wqebb: 32768,
        max_recv_wr: 32768,
        max_srq_recv_wr: 32768,
    };

    fn sq(qp_type: QpType, wr: u32, sge: u32, inline: u32) -> Result<SqSize> {
        let cap = QpCap::new(wr, 0).sge(sge, 0).inline(inline);
        send_queue(
            "t",
            &LIMITS,
            &SendUse { qp_type, ops: SendOpsFlags::empty(), max_tso_header: 0, mkeys: false },
            &cap,
        )
    }

    #[test]
    fn a_reliable_qp_reserves_room_for_binds() {
        let size = sq(QpType::Rc, 16, 1, 0).unwrap();
        assert_eq!(size, SqSize { wqe_cnt: 64, max_wr: 16, max_sge: 1, max_inline: 60 });
        assert_eq!(sq(QpType::Rc, 17, 1, 0).unwrap().max_wr, 32);
        assert!(sq(QpType::Rc, 32768, 1, 0).is_err());
    }

    #[test]
    fn without_entries_and_inline_data_the_inline_limit_is_0() {
        let size = sq(QpType::Rc, 16, 0, 0).unwrap();
        assert_eq!((size.max_wr, size.max_inline), (21, 0));
    }

    #[test]
    fn sizes_that_do_not_fit_are_refused() {
        let field = |r: Result<SqSize>| r.unwrap_err().to_string();
        assert!(field(sq(QpType::Rc, 16, 58, 0)).contains("max_send_sge"));
        assert!(field(sq(QpType::Rc, 16, 1, 892)).contains("max_inline_data"));
        assert!(field(sq(QpType::Rc, u32::MAX, 1, 0)).contains("max_send_wr"));
        assert!(field(sq(QpType::Rc, 16, u32::MAX, 0)).contains("max_send_sge"));
        assert!(field(sq(QpType::Rc, 16, 1, u32::MAX)).contains("max_inline_data"));
        assert!(recv_queue("t", &LIMITS, 32769, 1).is_err());
        assert!(recv_queue("t", &LIMITS, 1, 33).is_err());
        assert!(recv_queue("t", &LIMITS, 1, u32::MAX).is_err());
        assert!(completion_queue("t", 0).is_err() && completion_queue("t", u32::MAX).is_err());
    }

    #[test]
    fn receive_queues_are_rounded_up() {
        let size = recv_queue("t", &LIMITS, 5, 3).unwrap();
        assert_eq!(size, RqSize { wqe_cnt: 8, max_wr: 8, wqe_shift: 6, max_sge: 4 });
        let size = unordered_queue("t", &LIMITS, 16384, 5, 3).unwrap();
        assert_eq!(size, RqSize { wqe_cnt: 16, max_wr: 8, wqe_shift: 6, max_sge: 4 });
        // One receive has no order.
        assert_eq!(
            unordered_queue("t", &LIMITS, 16384, 1, 1).unwrap(),
            recv_queue("t", &LIMITS, 1, 1).unwrap()
        );
        assert_eq!(unordered_queue("t", &LIMITS, 16384, 16384, 1).unwrap().max_wr, 16384);
        assert!(unordered_queue("t", &LIMITS, 16384, 16385, 1).is_err());
        // A queue has a block at least.
        assert_eq!(recv_queue("t", &LIMITS, 1, 1).unwrap().wqe_cnt, 4);
        assert_eq!(recv_queue("t", &LIMITS, 0, 9).unwrap(), RqSize::default());
    }

    #[test]
    fn srqs_reserve_as_many_elements_again() {
        let size = shared_queue("t", &LIMITS, 100, 2).unwrap();
        assert_eq!((size.slots, size.ring.wqe_cnt, size.ring.stride(), size.ring.max_sge), (128, 256, 64, 3));
        // Not above the device's limit.
        let size = shared_queue("t", &LIMITS, 32768, 1).unwrap();
        assert_eq!((size.slots, size.ring.wqe_cnt), (65536, 65536));
        assert!(shared_queue("t", &LIMITS, 32769, 1).is_err());
        assert!(shared_queue("t", &LIMITS, 8, 33).is_err());
    }
}
