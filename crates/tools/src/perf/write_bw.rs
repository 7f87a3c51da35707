// SPDX-License-Identifier: MIT OR Apache-2.0
//! The bandwidth of RDMA writes, with as many outstanding writes as the queue has room for.
#![expect(unsafe_code)]
// UNSAFETY: posts entries of regions that live longer than the QP and are not accessed otherwise while it runs.

use anyhow::{Result, bail, ensure};
use core::time::Duration;
use std::time::Instant;
use uverbs::attr::{AccessFlags, CqInitAttr, QpCap};
use uverbs::{CompletionQueue, ConnectAttr, Context, Driver, MemoryRegion, PageBuf, Qp, Rc, WorkCompletion};

/// The parameters of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) iters: u32,
    pub(super) tx_depth: u32,
    pub(super) post_list: u32,
}

/// The results, in perftest's units: MB are 2^20 bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Row {
    pub(super) bytes: u32,
    pub(super) iters: u32,
    pub(super) peak: f64,
    pub(super) average: f64,
    pub(super) rate: f64,
}

/// The longest time without a completion.
const PATIENCE: Duration = Duration::from_secs(10);

/// Both ends. The fields are dropped from the first to the last: QPs before the objects that they use.
#[derive(Debug)]
pub(super) struct Ends<D: Driver> {
    qp: Qp<D, Rc>,
    _peer: Qp<D, Rc>,
    cq: CompletionQueue<D>,
    _peer_cq: CompletionQueue<D>,
    from: MemoryRegion<D, PageBuf>,
    to: MemoryRegion<D, PageBuf>,
}

impl<D: Driver> Ends<D> {
    /// Connects `a` to `b`, which may be the same device.
    pub(super) fn new(
        a: &Context<D>,
        b: &Context<D>,
        (port_num, sgid_index): (u8, Option<u8>),
        plan: &Plan,
        largest: u32,
    ) -> Result<Self> {
        let cap = QpCap {
            max_send_wr: plan.tx_depth,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let side = |context: &Context<D>, access: AccessFlags| -> Result<_> {
            let pd = context.alloc_pd()?;
            let attr = CqInitAttr { cqe: plan.tx_depth, ..CqInitAttr::default() };
            let cq = context.create_cq_ex::<uverbs::Exclusive>(&attr, None)?;
            let qp = pd.qp::<Rc>().cq(&cq).cap(cap).create()?;
            let mr = pd.reg_mr(PageBuf::new(largest as usize)?, access).map_err(|e| e.error)?;
            Ok((qp, cq, mr))
        };
        let (qp, cq, from) = side(a, AccessFlags::LOCAL_WRITE)?;
        let (peer, peer_cq, to) = side(b, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE)?;
        let attr = ConnectAttr {
            port_num,
            sgid_index,
            access: AccessFlags::REMOTE_WRITE,
            path_mtu: a.query_port(port_num)?.active_mtu,
            hop_limit: 1,
            ..ConnectAttr::default()
        };
        let (here, there) = (qp.control.endpoint(1, &attr)?, peer.control.endpoint(2, &attr)?);
        qp.init(&attr)?;
        peer.init(&attr)?;
        qp.connect(&here, &there, &attr)?;
        peer.connect(&there, &here, &attr)?;
        Ok(Self { qp, _peer: peer, cq, _peer_cq: peer_cq, from, to })
    }

    /// Writes `iters` messages of this size. The last message of each list is signaled.
    pub(super) fn run(&mut self, plan: &Plan, bytes: u32) -> Result<Row> {
        let sges = [self.from.sge(0..bytes as usize)?];
        let to = self.to.remote(0)?;
        self.from.write_at(0, &vec![bytes.trailing_zeros() as u8 | 0x40; bytes as usize])?;
        self.to.write_at(0, &vec![0; bytes as usize])?;
        let sq = self.qp.sq()?;
        let (mut posted, mut done) = (0_u32, 0_u32);
        // The times at which each list was posted and completed, to compute the peak.
        let mut lists: Vec<(u32, Instant, Option<Instant>)> = Vec::new();
        let mut next = 0;
        let mut wc = [WorkCompletion::default(); 16];
        let start = Instant::now();
        let mut progress = start;
        while done < plan.iters {
            while posted < plan.iters {
                let n = plan.post_list.min(plan.iters - posted);
                if posted + n > done + plan.tx_depth {
                    break;
                }
                lists.push((posted + n, Instant::now(), None));
                let mut batch = sq.batch();
                for i in 1..=n {
                    let wr = batch.wr(u64::from(posted + i));
                    let wr = if i == n { wr.signaled() } else { wr };
                    // SAFETY: both regions outlive the QP, and are not touched before all is complete.
                    unsafe { wr.write(&sges, to) };
                }
                batch.complete()?;
                posted += n;
            }
            let got = self.cq.poll(&mut wc)?;
            let now = Instant::now();
            if got.is_empty() {
                ensure!(
                    now - progress < PATIENCE,
                    "no completion within {PATIENCE:?}: {done} of {posted} done"
                );
                std::thread::yield_now();
                continue;
            }
            for wc in got {
                if !wc.status.is_success() {
                    bail!("completion with {:?} ({}), vendor_err {:#x}", wc.status, wc.status, wc.vendor_err);
                }
                done = wc.wr_id as u32;
                if let Some((_, _, completed)) = lists.get_mut(next) {
                    *completed = Some(now);
                    next += 1;
                }
            }
            progress = now;
        }
        let seconds = start.elapsed().as_secs_f64().max(1e-9);
        let mut arrived = vec![0; bytes as usize];
        self.to.read_at(0, &mut arrived)?;
        ensure!(
            arrived.iter().all(|b| *b == bytes.trailing_zeros() as u8 | 0x40),
            "the received data is wrong"
        );
        let mb = f64::from(bytes) / f64::from(1 << 20);
        let average = mb * f64::from(plan.iters) / seconds;
        let peak = fastest(&lists).map_or(average, |rate| mb * rate);
        let rate = f64::from(plan.iters) / seconds / 1e6;
        Ok(Row { bytes, iters: plan.iters, peak: peak.max(average), average, rate })
    }
}

/// The longest stretch, in lists, that the peak is computed over.
const STRETCH: usize = 64;

/// The peak, in messages per second: the fastest stretch from the post of one list to the completion of the same list
/// or a later one.
fn fastest(lists: &[(u32, Instant, Option<Instant>)]) -> Option<f64> {
    let mut before = 0;
    let mut best = None;
    for (i, (end, posted, _)) in lists.iter().enumerate() {
        for (last, _, completed) in lists[i..].iter().take(STRETCH) {
            let Some(completed) = completed else { break };
            let seconds = (*completed - *posted).as_secs_f64();
            let rate = f64::from(last - before) / seconds.max(1e-9);
            best = Some(best.map_or(rate, |b: f64| b.max(rate)));
        }
        before = *end;
    }
    best
}
