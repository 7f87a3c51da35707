// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two connected ends on the software HCA.

use std::sync::Arc;
use uverbs::mlx5::Mlx5;
use uverbs::{Buf, Completed, Cq, Pool, Qp, Srq};
use uverbs::{ConnectAttr, Context, ProtectionDomain, Rc, Result};
use uverbs::{
    Exclusive, Private,
    attr::{AccessFlags, QpCap},
};
use uverbs_core::kernel::Kernel;
use uverbs_hca::{Fabric, Hca};

/// Buffers of an end's pool, and their bytes.
pub(crate) const BUFS: u32 = 32;
pub(crate) const SIZE: u32 = 256;

pub(crate) const CAP: QpCap = QpCap::new(16, 16).inline(64);

/// The rights of the peer.
pub(crate) fn attr() -> ConnectAttr {
    let access = AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
    ConnectAttr::new().sgid_index(Some(3)).access(access)
}

/// A device, a domain, a pool, a CQ and a QP.
pub(crate) struct End {
    pub(crate) qp: Qp<Rc, Exclusive, Mlx5>,
    pub(crate) cq: Cq<Exclusive, Mlx5>,
    pub(crate) pool: Pool<Private, Mlx5>,
    pub(crate) pd: ProtectionDomain<Mlx5>,
    pub(crate) context: Context<Mlx5>,
    pub(crate) hca: Hca,
}

impl End {
    pub(crate) fn new(hca: Hca) -> Self {
        let kernel = hca.open();
        Self::on(hca, kernel, 64)
    }

    pub(crate) fn on(hca: Hca, kernel: Arc<dyn Kernel>, cqe: u32) -> Self {
        Self::of(hca, Context::<Mlx5>::from_kernel(kernel).unwrap(), cqe)
    }

    pub(crate) fn of(hca: Hca, context: Context<Mlx5>, cqe: u32) -> Self {
        let pd = context.alloc_pd().unwrap();
        let cq = context.cq_with(cqe, None).unwrap();
        let pool = pd.pool(BUFS, SIZE).unwrap();
        let qp = pd.qp::<Rc>().cq(&cq).cap(CAP).create().unwrap();
        Self { qp, cq, pool, pd, context, hca }
    }

    /// A buffer with these bytes.
    pub(crate) fn filled(&self, data: &[u8]) -> Buf<Private, Mlx5> {
        let mut buf = self.pool.get().expect("a free buffer");
        buf.fill(data).unwrap();
        buf
    }

    /// The next completion; runs the fabric until there is one.
    pub(crate) fn next(&mut self) -> Completed<Mlx5> {
        for _ in 0..1000 {
            if let Some(completed) = self.cq.poll_one().unwrap() {
                return completed;
            }
            self.hca.run();
        }
        panic!("no completion");
    }

    /// Nothing is reported, whatever the fabric does.
    pub(crate) fn nothing(&mut self) {
        self.hca.run();
        assert!(self.cq.poll_one().unwrap().is_none());
    }

    pub(crate) fn available(&self) -> u32 {
        self.pool.available() as u32
    }

    /// Posts receives of whole buffers, with the ids from 100 on.
    pub(crate) fn receives(&mut self, n: u64) {
        for i in 0..n {
            let buf = self.pool.get().expect("a free buffer");
            self.qp.rq().unwrap().post(100 + i, buf).unwrap();
        }
    }
}

/// Connects two QPs to each other.
pub(crate) fn connect(a: &Qp<Rc, Exclusive, Mlx5>, b: &Qp<Rc, Exclusive, Mlx5>) -> Result<()> {
    let attr = attr();
    a.init(&attr)?;
    b.init(&attr)?;
    let (here, there) = (a.control().endpoint(1, &attr)?, b.control().endpoint(2, &attr)?);
    a.connect(&here, &there, &attr)?;
    b.connect(&there, &here, &attr)
}

/// A pair of connected ends.
pub(crate) fn pair() -> (End, End) {
    pair_on(&Fabric::deterministic(7))
}

/// A pair whose fabric runs by itself, for calls that wait.
pub(crate) fn real_time_pair() -> (End, End) {
    pair_on(&Fabric::new(7))
}

/// A pair on this fabric.
pub(crate) fn pair_on(fabric: &Fabric) -> (End, End) {
    let [a, b] = ["hca0", "hca1"].map(|name| End::new(fabric.device(name).build()));
    connect(&a.qp, &b.qp).unwrap();
    (a, b)
}

/// An end that is connected to itself.
pub(crate) fn loopback(end: &End) {
    connect_self(&end.qp);
}

pub(crate) fn connect_self(qp: &Qp<Rc, Exclusive, Mlx5>) {
    let attr = attr();
    qp.init(&attr).unwrap();
    let here = qp.control().endpoint(1, &attr).unwrap();
    qp.connect(&here, &here, &attr).unwrap();
}

/// A shared receive queue of this depth.
pub(crate) fn srq(pd: &ProtectionDomain<Mlx5>, max_wr: u32) -> Srq<Exclusive, Mlx5> {
    let attr = uverbs::attr::SrqAttr::new(max_wr);
    pd.srq(&uverbs::attr::SrqInitAttr::new(attr)).unwrap()
}
