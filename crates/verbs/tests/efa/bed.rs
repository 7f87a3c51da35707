// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ends of SRD on devices of one fabric.

use uverbs::attr::{AccessFlags, QpCap};
use uverbs::{
    AddressHandle, Buf, Completed, ConnectAttr, Context, Cq, Driver, Endpoint, Exclusive, Exposed, Pool,
    Private, ProtectionDomain, Qp, Srd,
};
use uverbs_efa_device::{EfaDevice, Fabric};

/// Buffers of an end's pool, and their bytes.
pub(crate) const BUFS: usize = 32;
pub(crate) const SIZE: u32 = 4096;

pub(crate) const CAP: QpCap = QpCap::new(16, 16).sge(2, 2).inline(32);
pub(crate) const QKEY: u32 = 0x1234;

/// The rights of the peer.
pub(crate) const RIGHTS: AccessFlags = AccessFlags::REMOTE_READ.union(AccessFlags::REMOTE_WRITE);

pub(crate) fn attr() -> ConnectAttr {
    ConnectAttr::new().qkey(QKEY)
}

/// A device, a domain, pools, a CQ and a QP that sends and receives.
pub(crate) struct End<D: Driver> {
    pub(crate) qp: Qp<Srd, Exclusive, D>,
    pub(crate) cq: Cq<Exclusive, D>,
    pub(crate) pool: Pool<Private, D>,
    pub(crate) exposed: Pool<Exposed, D>,
    pub(crate) pd: ProtectionDomain<D>,
    pub(crate) context: Context<D>,
    pub(crate) here: Endpoint,
    pub(crate) device: EfaDevice,
}

impl<D: Driver> End<D> {
    pub(crate) fn new(device: &EfaDevice) -> Self {
        let context = Context::<D>::from_kernel(device.open()).unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.cq_with(64, None).unwrap();
        let pool = pd.pool(BUFS as u32, SIZE).unwrap();
        let exposed = pd.pool_with(4, SIZE).exposed(RIGHTS).build().unwrap();
        let qp = pd.qp::<Srd>().cq(&cq).cap(CAP).create().unwrap();
        let here = start(&qp);
        Self { qp, cq, pool, exposed, pd, context, here, device: device.clone() }
    }

    /// The address of a peer.
    pub(crate) fn ah(&self, peer: &Endpoint) -> AddressHandle<D> {
        self.pd.create_ah(&attr().on(&self.context).unwrap().ah_attr(peer)).unwrap()
    }

    pub(crate) fn filled(&self, data: &[u8]) -> Buf<Private, D> {
        let mut buf = self.pool.get().expect("a free buffer");
        buf.fill(data).unwrap();
        buf
    }

    /// Posts receives of whole buffers, with the ids from 100 on.
    pub(crate) fn receives(&mut self, n: u64) {
        for i in 0..n {
            self.qp.rq().unwrap().post(100 + i, self.pool.get().expect("a free buffer")).unwrap();
        }
    }

    /// The next completion; runs the fabric until there is one.
    #[track_caller]
    pub(crate) fn next(&mut self) -> Completed<D> {
        for _ in 0..1000 {
            if let Some(completed) = self.cq.poll_one().unwrap() {
                return completed;
            }
            self.device.run();
        }
        panic!("no completion");
    }

    #[track_caller]
    pub(crate) fn ok(&mut self) -> Completed<D> {
        let done = self.next();
        assert!(done.wc.status.is_success(), "{:?}", done.error());
        done
    }
}

/// Moves a QP from RESET to RTS.
pub(crate) fn start<D: Driver>(qp: &Qp<Srd, Exclusive, D>) -> Endpoint {
    qp.init(&attr()).unwrap();
    let here = qp.control().endpoint(0, &attr()).unwrap();
    qp.connect(&here, &here, &attr()).unwrap();
    here
}

/// Two ends with address handles of each other.
pub(crate) fn pair<D: Driver>(seed: u64) -> (End<D>, End<D>, AddressHandle<D>, AddressHandle<D>) {
    let fabric = Fabric::deterministic(seed);
    let [a, b] = ["efa_0", "efa_1"].map(|name| End::new(&fabric.device(name).build()));
    let (to_b, to_a) = (a.ah(&b.here), b.ah(&a.here));
    (a, b, to_b, to_a)
}

/// Runs a test with the driver, and with the one that is selected at run time.
macro_rules! on_both {
    ($($test:ident)*) => {$(
        mod $test {
            #[test]
            fn efa() {
                super::$test::<uverbs::efa::Efa>();
            }

            #[test]
            fn any_driver() {
                super::$test::<uverbs::AnyDriver>();
            }
        }
    )*};
}
pub(crate) use on_both;
