// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tables of docs/src/reference/semantics.md over rings in plain memory: every row in every state, without a kernel.

mod mlx5;

use anyhow::{Context as _, Result, ensure};
use core::marker::PhantomData;
use std::sync::Arc;
use uverbs::attr::{QpState, QpType, SendOpsFlags};
use uverbs::wc::WcStatus;
use uverbs::wr::{IbvAh, RawAh};
use uverbs_core::sync::{Exclusive, Locked, Locking, Shared};
use uverbs_rxe::testing::{FakeBell, KernelSide, ah, decode_recv, decode_send, recv_queue, ring, send_queue};
use uverbs_rxe::{Ah, Extensions, QpShared, RecvQueue, SendConfig, SendQueue};
use uverbs_tests::semantics::{Facts, RecvBench, RecvFacts, RowCounts, SendBench, Table, recvs, sends};

const SLOTS: u32 = 8;
const MAX_SGE: u32 = 4;

struct Sends<L: Locking> {
    qp_type: QpType,
    queue: Locked<SendQueue<FakeBell>, L>,
    kernel: KernelSide,
    bell: FakeBell,
    shared: Arc<QpShared>,
    ah: RawAh<Ah>,
    rings: u32,
}

impl<L: Locking> Sends<L> {
    fn new(qp_type: QpType) -> Result<Self> {
        let config = SendConfig {
            qp_type,
            send_ops_flags: SendOpsFlags::all() - sends::operation_left_out(qp_type),
            extensions: Extensions { flush: true, atomic_write: true },
            max_sge: MAX_SGE,
            max_inline: 64,
        };
        let (queue, kernel, bell, shared) = send_queue(SLOTS, &config)?;
        let null = core::ptr::null_mut();
        let ah = RawAh { base: IbvAh { context: null, pd: null, handle: 0 }, driver: ah(3, 1) };
        Ok(Self { qp_type, queue: Locked::new(queue), kernel, bell, shared, ah, rings: 0 })
    }
}

impl<L: Locking> SendBench for Sends<L> {
    type Queue = SendQueue<FakeBell>;
    type Lock = L;
    const DRIVER: &'static str = "rxe";

    fn qp_type(&self) -> QpType {
        self.qp_type
    }
    fn queue(&self) -> &Locked<Self::Queue, L> {
        &self.queue
    }
    fn facts(&self) -> Facts {
        Facts::without_device((&raw const self.ah).cast(), MAX_SGE, SLOTS - 1)
    }
    fn enter(&mut self, state: QpState) -> Result<bool> {
        self.shared.set_state(state);
        Ok(true)
    }
    fn posted(&mut self, _: WcStatus) -> Result<Vec<u64>> {
        let datagram = self.qp_type == QpType::Ud;
        let ids: Vec<_> =
            core::iter::from_fn(|| self.kernel.consume()).map(|b| decode_send(&b, datagram).wr_id).collect();
        // A call rings one doorbell, or none if it posted nothing.
        let rings = self.bell.rings() - self.rings;
        self.rings = self.bell.rings();
        ensure!(rings == u32::from(!ids.is_empty()), "{rings} doorbells for {} WRs", ids.len());
        Ok(ids)
    }
    fn leave(&mut self) -> Result<()> {
        ensure!(self.kernel.consume().is_none());
        Ok(())
    }
}

struct Recvs<L> {
    srq: bool,
    qp_type: QpType,
    queue: Locked<RecvQueue<FakeBell>, Exclusive>,
    kernel: KernelSide,
    bell: FakeBell,
    shared: Arc<QpShared>,
    flushes: u32,
    _lock: PhantomData<L>,
}

impl<L> Recvs<L> {
    fn new(qp_type: QpType, srq: bool) -> Result<Self> {
        let (queue, kernel, bell, shared) = if srq {
            let (ring, kernel) = ring(7, SLOTS, MAX_SGE as usize * 16);
            let bell = FakeBell::default();
            let queue = RecvQueue::new_shared(ring, MAX_SGE, bell.clone())?;
            (queue, kernel, bell, Arc::new(QpShared::new(QpState::RESET)))
        } else {
            recv_queue(SLOTS, MAX_SGE)?
        };
        let queue = Locked::new(queue);
        Ok(Self { srq, qp_type, queue, kernel, bell, shared, flushes: 0, _lock: PhantomData })
    }
}

impl<L> RecvBench for Recvs<L> {
    type Queue = RecvQueue<FakeBell>;
    type Lock = Exclusive;
    const DRIVER: &'static str = "rxe";

    fn qp_type(&self) -> QpType {
        self.qp_type
    }
    fn is_srq(&self) -> bool {
        self.srq
    }
    fn queue(&self) -> &Locked<Self::Queue, Exclusive> {
        &self.queue
    }
    fn facts(&self) -> RecvFacts {
        RecvFacts { local: (0x1000, 1), max_sge: MAX_SGE as usize, capacity: SLOTS as usize - 1 }
    }
    fn enter(&mut self, state: QpState) -> Result<bool> {
        self.shared.set_state(state);
        Ok(true)
    }
    fn posted(&mut self) -> Result<Vec<u64>> {
        let ids: Vec<_> =
            core::iter::from_fn(|| self.kernel.consume()).map(|b| decode_recv(&b).wr_id).collect();
        // Posts in ERR must cause a flush, except on an SRQ.
        let flushes = self.bell.flushes() - self.flushes;
        self.flushes = self.bell.flushes();
        let want = !self.srq && !ids.is_empty() && self.shared.state() == QpState::ERR;
        ensure!(flushes == u32::from(want), "{flushes} flushes for {} receives", ids.len());
        Ok(ids)
    }
}

fn hold_sends<L: Locking>() -> Result<RowCounts> {
    let mut all = RowCounts::default();
    for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud] {
        all += sends::hold(&mut Sends::<L>::new(qp_type)?).with_context(|| format!("{qp_type}"))?;
    }
    Ok(all)
}

#[test]
fn sends_of_exclusive_queues_match_the_table() -> Result<()> {
    println!("{:?}", hold_sends::<Exclusive>()?);
    Ok(())
}

#[test]
fn sends_of_shared_queues_match_the_table() -> Result<()> {
    println!("{:?}", hold_sends::<Shared>()?);
    Ok(())
}

#[test]
fn receives_match_the_table() -> Result<()> {
    for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud] {
        println!("{:?}", recvs::hold(&mut Recvs::<Exclusive>::new(qp_type, false)?)?);
    }
    Ok(())
}

#[test]
fn shared_receives_match_the_table() -> Result<()> {
    for qp_type in [QpType::Rc, QpType::Ud] {
        println!("{:?}", recvs::hold(&mut Recvs::<Exclusive>::new(qp_type, true)?)?);
    }
    Ok(())
}

#[test]
fn malformed_tables_are_refused() {
    let read = |rows: &str| Table::parse(&format!("<!-- rows -->\n{rows}\n<!-- end of rows -->\n"));
    let row = "| valid | `post_send` | RC | RTS..ERR | BadState | EINVAL | it | | | |";
    assert_eq!(read(row).unwrap().rows.len(), 1);
    let other = |qp| format!("{row}\n{}", row.replace("RC", qp));
    assert!(read(&other("UC")).is_ok());
    assert!(read(&other("RC/mlx5")).is_err(), "two answers for mlx5");
    assert!(read(&other("RC/mlx5-without-atomics")).is_ok());
    let legend = "| why | reason |\n|---|---|\n| `state` | it is so |\n\n| rule | |\n|---|\n| `a-rule` | all | a | b | - |\n";
    let read_with = |cells: &str| {
        Table::parse(&format!(
            "<!-- rows -->\n{}\n<!-- end of rows -->\n{legend}",
            row.replace("| | | |", cells)
        ))
    };
    let table = read_with("| | posts it `a-rule` | state |").unwrap();
    assert_eq!(
        (table.rows[0].why.as_deref(), table.rows[0].rule.as_deref()),
        (Some("state"), Some("a-rule"))
    );
    for cells in [
        "| | | |",
        "| | | state |",
        "| | posts it | |",
        "| | posts it | other |",
        "| | posts it `another` | state |",
    ] {
        assert!(read_with(cells).is_err(), "{cells}");
    }
    assert!(read(&format!("{row}\n{row}")).is_err(), "two answers for one question");
    for (from, to) in [
        ("RC", "XX"),
        ("RC", "RC/XX"),
        ("RTS..ERR", "ERR..RTS"),
        ("RTS..ERR", "RTS.."),
        ("BadState", "Bad"),
        ("EINVAL", "ENOMEM"),
        ("| it", "| -"),
        ("`post_send`", "`post`"),
        ("`post_send`", "`batch`"),
        ("| | | |", "| | |"),
        ("valid", ""),
    ] {
        assert!(read(&row.replace(from, to)).is_err(), "{from} -> {to}");
    }
    assert!(Table::parse("no table").is_err());
    assert!(Table::parse(&format!("<!-- rows -->\n{row}")).is_err(), "no end");
}
