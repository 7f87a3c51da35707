// SPDX-License-Identifier: MIT OR Apache-2.0
//! The table of sends over mlx5's rings in plain memory, also for transports that rxe does not have and for a device
//! without atomics. (The software HCA runs the rows of RC, UC and UD, too.)

use anyhow::{Context as _, Result, ensure};
use core::sync::atomic::Ordering;
use std::sync::Arc;
use uverbs::attr::{QpState, QpType, SendOpsFlags};
use uverbs::wc::WcStatus;
use uverbs::wr::{IbvAh, RawAh};
use uverbs_core::kernel::DoorbellPage;
use uverbs_core::sync::{Exclusive, Locked, Locking, Shared};
use uverbs_mlx5::testing::{self, BLUE_FLAME, Bell, DbRec, QpShared, QueueBuf, send_config, send_parts};
use uverbs_mlx5::{Ah, SendQueue};
use uverbs_mlx5_hw::wqe::Av;
use uverbs_tests::semantics::{Facts, RowCounts, SendBench, sends};

const WRS: u32 = 8;
/// Room for the longest WRs.
const BLOCKS: u32 = 64;
const MAX_SGE: u32 = 4;

struct Sends<L: Locking> {
    qp_type: QpType,
    device: &'static str,
    queue: Locked<SendQueue, L>,
    qp: Arc<QpShared>,
    buf: Arc<QueueBuf>,
    record: Arc<DbRec>,
    bell: Arc<Bell>,
    ah: RawAh<Ah>,
    /// Block of the next WQE.
    next: u16,
}

impl<L: Locking> Sends<L> {
    fn new(qp_type: QpType, atomics: bool) -> Result<Self> {
        let mut config = send_config(qp_type);
        config.send_ops_flags = SendOpsFlags::all() - sends::operation_left_out(qp_type);
        config.atomics = atomics;
        (config.max_send_wr, config.max_send_sge) = (WRS, MAX_SGE);
        let bell = Arc::new(Bell::default());
        let page = DoorbellPage::Port(bell.clone());
        let (queue, qp, buf, record) = send_parts(&config, BLOCKS, BLUE_FLAME, &page, None);
        let null = core::ptr::null_mut();
        let base = IbvAh { context: null, pd: null, handle: 0 };
        let ah = RawAh { base, driver: Ah::new(&Av::default()) };
        let device = if atomics { Self::DRIVER } else { "mlx5-without-atomics" };
        Ok(Self { qp_type, device, queue: Locked::new(queue), qp, buf, record, bell, ah, next: 0 })
    }
}

impl<L: Locking> SendBench for Sends<L> {
    type Queue = SendQueue;
    type Lock = L;
    const DRIVER: &'static str = "mlx5";

    fn device(&self) -> &'static str {
        self.device
    }
    fn qp_type(&self) -> QpType {
        self.qp_type
    }
    fn queue(&self) -> &Locked<SendQueue, L> {
        &self.queue
    }
    fn facts(&self) -> Facts {
        Facts::without_device((&raw const self.ah).cast(), MAX_SGE, WRS)
    }
    fn enter(&mut self, state: QpState) -> Result<bool> {
        testing::set_state(&self.qp, state);
        Ok(true)
    }

    /// Completes the WRs before the doorbell record.
    fn posted(&mut self, _: WcStatus) -> Result<Vec<u64>> {
        let end = u32::from_be(self.record.word(1).load(Ordering::Relaxed)) as u16;
        let sq = self.qp.sq.as_ref().context("a send queue")?;
        let mut ids = Vec::new();
        while self.next != end {
            ensure!(ids.len() < WRS as usize, "more WQEs than fit before block {end}");
            let control = &self.buf.words()[usize::from(self.next) % BLOCKS as usize * 8];
            // The last byte of the first 8 has the number of 16-byte units.
            let units = control.load(Ordering::Relaxed).to_ne_bytes()[7] & 0x3f;
            ensure!(units != 0, "no WQE at block {}", self.next);
            ids.push(sq.retire(self.next).wr_id);
            self.next = self.next.wrapping_add(u16::from(units).div_ceil(4));
        }
        // A call rings one doorbell, or none if it posted nothing.
        let rings = self.bell.take().len();
        ensure!(rings == usize::from(!ids.is_empty()), "{rings} doorbells for {} WRs", ids.len());
        Ok(ids)
    }
    fn leave(&mut self) -> Result<()> {
        ensure!(self.posted(WcStatus::SUCCESS)?.is_empty());
        Ok(())
    }
}

fn hold<L: Locking>(atomics: bool, qp_types: &[QpType]) -> Result<()> {
    let mut all = RowCounts::default();
    for qp_type in qp_types {
        all += sends::hold(&mut Sends::<L>::new(*qp_type, atomics)?).with_context(|| format!("{qp_type}"))?;
    }
    println!("{all:?}");
    Ok(())
}

const ALL: [QpType; 6] =
    [QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcSend, QpType::RawPacket, QpType::Driver];

#[test]
fn sends_of_exclusive_queues_match_the_table() -> Result<()> {
    hold::<Exclusive>(true, &ALL)
}

#[test]
fn sends_of_shared_queues_match_the_table() -> Result<()> {
    hold::<Shared>(true, &ALL)
}

#[test]
fn sends_without_atomics_match_the_table() -> Result<()> {
    hold::<Exclusive>(false, &[QpType::Rc, QpType::XrcSend, QpType::Driver])
}
