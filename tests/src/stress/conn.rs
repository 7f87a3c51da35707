// SPDX-License-Identifier: MIT OR Apache-2.0
//! Connections whose QPs are created and destroyed: the two ends are reset or created together, so that both have the
//! same eras. On iWARP the connection manager connects them.

use super::memory::Memory;
use super::model::{Era, Id, LANES};
use crate::{Lab, LabEnv, Lock};
use anyhow::{Context as _, Result, anyhow};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;
use uverbs::attr::{QpCap, QpState, SendOpsFlags};
use uverbs::{
    CompletionChannel, ConnectAttr, Driver, Exclusive, ProtectionDomain, Rc, Shared,
    raw::{Cq, Qp},
};
use uverbs::{
    qp::QpControl,
    raw::{RecvQueue, SendQueue},
};
use uverbs_core::sync::Locked;

/// CQs of an end.
pub(super) const CQS: usize = 2;
/// The number of completions per poll.
pub(super) const POLL: usize = 16;

/// One end of all connections.
#[derive(Debug)]
pub(super) struct End<D: Driver> {
    pub(super) cqs: Vec<Cq<Shared, D>>,
    pub(super) channel: CompletionChannel<D>,
    pub(super) memory: Memory<D>,
    pub(super) pd: ProtectionDomain<D>,
    /// The minimum size of a CQ.
    pub(super) cqe: u32,
    /// The maximum of outstanding posts of a lane.
    pub(super) outstanding: usize,
}

impl<D: Driver> End<D> {
    pub(super) fn new(lab: &Lab<D>, context: &uverbs::Context<D>, conns: usize) -> Result<Self> {
        let pd = context.alloc_pd()?;
        let channel = context.create_comp_channel()?;
        channel.set_nonblocking(true)?;
        // All posts may complete to one CQ. A poll makes room in the queues before it makes room in the CQ. While a
        // poll is open, mlx5's CQ does not free the entries of completions that a reset removed, so there must be room
        // for several lives.
        let cap = made(&pd, context)?;
        let cqe = (cap.max_send_wr + cap.max_recv_wr) * conns as u32 * 8 + POLL as u32;
        let cqs = (0..CQS).map(|_| context.create_cq(cqe, Some(&channel))).collect::<Result<_, _>>()?;
        let memory = Memory::new(&pd, conns, lab.full_access())?;
        // A slot of the queues of rxe and siw becomes free when the kernel has processed the WR, not when its completion is
        // polled, so only the program's own count prevents an overrun of the CQ.
        let each = cap.max_send_wr.min(cap.max_recv_wr) as usize / LANES;
        let outstanding = if D::NAME == "mlx5" { usize::MAX } else { each };
        Ok(Self { cqs, channel, memory, pd, cqe, outstanding })
    }
}

/// Small queues, which wrap often and are often full.
const CAP: QpCap = QpCap::new(12, 12).sge(2, 2).inline(40);

/// The sizes that a QP really has.
fn made<D: Driver>(pd: &ProtectionDomain<D>, context: &uverbs::Context<D>) -> Result<QpCap> {
    let cq: Cq<Shared, D> = context.create_cq(8, None)?;
    Ok(*pd.raw_qp::<Rc>().cq(&cq).cap(CAP).create()?.cap())
}

/// A half of a QP. The lock makes an exclusive half usable by several threads.
#[derive(Debug)]
pub(super) enum Half<E, S> {
    Exclusive(Locked<E, Shared>),
    Shared(S),
}

/// A QP that posters use.
#[derive(Debug)]
pub(super) struct Queues<D: Driver> {
    pub(super) send: Half<SendQueue<Rc, Exclusive, D>, SendQueue<Rc, Shared, D>>,
    pub(super) recv: Half<RecvQueue<Exclusive, D>, RecvQueue<Shared, D>>,
    pub(super) control: QpControl<D>,
    users: AtomicUsize,
}

impl<D: Driver> Queues<D> {
    fn new(ops: SendOpsFlags, end: &End<D>, exclusive: bool, cqs: [usize; 2]) -> Result<Self> {
        let users = AtomicUsize::new(0);
        let none = || anyhow!("no receive queue");
        if exclusive {
            let Qp { send, recv, control } = create::<D, Exclusive>(ops, end, cqs)?;
            let send = Half::Exclusive(Locked::new(send));
            let recv = Half::Exclusive(Locked::new(recv.ok_or_else(none)?));
            Ok(Self { send, recv, control, users })
        } else {
            let Qp { send, recv, control } = create::<D, Shared>(ops, end, cqs)?;
            let recv = Half::Shared(recv.ok_or_else(none)?);
            Ok(Self { send: Half::Shared(send), recv, control, users })
        }
    }

    fn close(self) -> Result<()> {
        let Self { send, recv, control, .. } = self;
        drop((send, recv));
        // When the halves are dropped, this is the whole QP.
        Ok(control.close()?)
    }
}

fn create<D: Driver, L: Lock>(ops: SendOpsFlags, end: &End<D>, cqs: [usize; 2]) -> Result<Qp<Rc, L, D>> {
    let [send, recv] = cqs.map(|cq| &end.cqs[cq]);
    Ok(L::builder::<D, Rc>(&end.pd).send_cq(send).recv_cq(recv).cap(CAP).send_ops(ops).create()?)
}

/// A connection, whose QPs are destroyed and created again.
#[derive(Debug)]
pub(super) struct Conn<D: Driver> {
    pub(super) index: usize,
    queues: [Locked<Option<Arc<Queues<D>>>, Shared>; 2],
    /// The identifiers of the connection manager, on iWARP.
    ids: Locked<Option<[uverbs_cm::Id; 2]>, Shared>,
    /// The last of them is the current one.
    eras: Locked<VecDeque<Arc<Era>>, Shared>,
    /// Posts during which an era ended.
    straddled: Locked<Vec<(Arc<Era>, Id)>, Shared>,
    /// Whether a control thread has reserved it.
    controlled: AtomicBool,
}

/// The number of past eras that are kept.
const REMEMBERED: usize = 200;

/// A QP in use, which is not destroyed meanwhile.
#[derive(Debug)]
pub(super) struct Used<D: Driver>(Arc<Queues<D>>);

impl<D: Driver> core::ops::Deref for Used<D> {
    type Target = Queues<D>;
    fn deref(&self) -> &Queues<D> {
        &self.0
    }
}

impl<D: Driver> Drop for Used<D> {
    fn drop(&mut self) {
        // Pairs with the load in `take`: the accesses of the user happen before the reset or destruction of the QP.
        self.0.users.fetch_sub(1, Ordering::Release);
    }
}

impl<D: Driver> Conn<D> {
    pub(super) fn new(index: usize) -> Self {
        let first = Arc::new(Era::new(index, 0, [0; 2], false));
        first.close();
        Self {
            index,
            queues: Default::default(),
            ids: Locked::new(None),
            eras: Locked::new(VecDeque::from([first])),
            straddled: Locked::new(Vec::new()),
            controlled: AtomicBool::new(false),
        }
    }

    /// The current era.
    pub(super) fn era(&self) -> Result<Arc<Era>> {
        self.eras.lock()?.back().cloned().context("no era")
    }

    /// A past era, or the current one.
    pub(super) fn era_of(&self, number: u32) -> Result<Arc<Era>> {
        let eras = self.eras.lock()?;
        let first = eras.front().context("no era")?.number;
        let index = number.checked_sub(first).map(|i| i as usize);
        index.and_then(|i| eras.get(i)).cloned().with_context(|| format!("no such era: {number}"))
    }

    /// The QP at an end, if there is one.
    pub(super) fn queues(&self, side: usize) -> Result<Option<Used<D>>> {
        let slot = self.queues[side].lock()?;
        Ok(slot.as_ref().map(|queues| {
            queues.users.fetch_add(1, Ordering::Relaxed);
            Used(Arc::clone(queues))
        }))
    }

    /// Stores a post whose result is not known.
    pub(super) fn straddles(&self, era: &Arc<Era>, id: Id) -> Result<()> {
        self.straddled.lock()?.push((Arc::clone(era), id));
        Ok(())
    }

    /// Returns the memory of straddled posts that can no longer complete.
    pub(super) fn take_back_straddled(&self, ends: &[End<D>; 2], ended: u32) -> Result<()> {
        let mut back = Vec::new();
        self.straddled.lock()?.retain(|(era, id)| match era.take_back_straddled(*id, ended) {
            None => true,
            Some(buffer) => {
                back.extend(buffer.map(|b| (id.side, b)));
                false
            }
        });
        back.into_iter().try_for_each(|(side, buffer)| ends[side].memory.give_back(buffer))
    }

    /// Reserves the connection for a control call. `None` if another thread has reserved it.
    pub(super) fn control(&self) -> Option<Controlled<'_>> {
        let taken = self.controlled.swap(true, Ordering::Acquire);
        (!taken).then(|| Controlled(&self.controlled))
    }

    /// The QP at an end, after its last use.
    fn take(&self, side: usize) -> Result<Option<Queues<D>>> {
        let Some(mut queues) = self.queues[side].lock()?.take() else { return Ok(None) };
        while queues.users.load(Ordering::Acquire) != 0 {
            thread::yield_now();
        }
        // A user decrements the count before it drops its reference.
        loop {
            match Arc::try_unwrap(queues) {
                Ok(queues) => return Ok(Some(queues)),
                Err(again) => queues = again,
            }
            thread::yield_now();
        }
    }

    /// Ends the current era. QPs of the ends in `destroy` are destroyed, the others are reset.
    pub(super) fn end(&self, world: Ends<'_, D>, destroy: [bool; 2]) -> Result<()> {
        let era = self.era()?;
        era.close();
        for (side, destroyed) in destroy.into_iter().enumerate() {
            if destroyed {
                if let Some(queues) = self.take(side)? {
                    queues.close().with_context(|| format!("destroy end {side}"))?;
                }
            } else if let Some(queues) = self.queues(side)? {
                queues.control.modify_state(QpState::RESET).with_context(|| format!("reset end {side}"))?;
            }
            era.end(side, world.clock, &world.ends[side].memory)?;
        }
        *self.ids.lock()? = None;
        self.take_back_straddled(world.ends, era.number)
    }

    /// Begins the next era.
    pub(super) fn begin(
        &self,
        world: Ends<'_, D>,
        exclusive: [bool; 2],
        cqs: [[usize; 2]; 2],
        attr: &ConnectAttr,
    ) -> Result<()> {
        for side in 0..2 {
            if self.queues(side)?.is_none() {
                let queues = Queues::new(world.ops, &world.ends[side], exclusive[side], cqs[side])
                    .with_context(|| format!("create end {side}"))?;
                *self.queues[side].lock()? = Some(Arc::new(queues));
            }
        }
        let [Some(a), Some(b)] = [self.queues(0)?, self.queues(1)?] else { return Ok(()) };
        let number = self.era()?.number + 1;
        let env = LabEnv::get().filter(|env| env.siw);
        let numbers = [a.control.qp_num(), b.control.qp_num()];
        let era = Arc::new(Era::new(self.index, number, numbers, env.is_some()));
        {
            let mut eras = self.eras.lock()?;
            eras.push_back(Arc::clone(&era));
            if eras.len() > REMEMBERED {
                eras.pop_front();
            }
        }
        if let Some(env) = env {
            *self.ids.lock()? = Some(crate::iwarp::connect(&env, &a.control, &b.control)?);
            (0..4).for_each(|queue| era.open(queue));
            return Ok(());
        }
        // Packets of the previous era must not be accepted in this one.
        let psn = number.wrapping_mul(0x1_0301) & 0xff_ffff;
        let [here, there] =
            [a.control.endpoint(psn, attr)?, b.control.endpoint(psn.wrapping_add(0x40_0000), attr)?];
        for (side, queues) in [&a, &b].into_iter().enumerate() {
            queues.control.init(attr).with_context(|| format!("init end {side}"))?;
            era.open(side * 2 + 1);
        }
        for (side, (queues, here, there)) in
            [(&a, &here, &there), (&b, &there, &here)].into_iter().enumerate()
        {
            queues.control.ready_to_receive(there, attr).with_context(|| format!("RTR of end {side}"))?;
            queues.control.ready_to_send(here, attr).with_context(|| format!("RTS of end {side}"))?;
        }
        era.open(0);
        era.open(2);
        Ok(())
    }
}

/// The parts of the world that control calls need.
#[derive(Debug)]
pub(super) struct Ends<'w, D: Driver> {
    /// The operations of the builders.
    pub(super) ops: SendOpsFlags,
    pub(super) ends: &'w [End<D>; 2],
    pub(super) clock: &'w super::model::Clock,
}

impl<D: Driver> Clone for Ends<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<D: Driver> Copy for Ends<'_, D> {}

/// A connection that this thread controls.
#[derive(Debug)]
pub(super) struct Controlled<'c>(&'c AtomicBool);

impl Drop for Controlled<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}
