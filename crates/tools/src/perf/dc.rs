// SPDX-License-Identifier: MIT OR Apache-2.0
//! Dynamic connections in the tests (`-c DC`): as in perftest, the ends that send have initiators, and the ends that receive
//! have targets, whose numbers are known when they are connected. All targets have the same key.
#![expect(unsafe_code)]
// UNSAFETY: posts the work requests of an `End`, which has the memory.

use super::carrier::{Carrier, Peer, Work, put_reliable};
use anyhow::Result;
use uverbs::provider::DcDriver;
use uverbs::{
    ConnectAttr, DcTarget, Dci, Endpoint, PostError, ProtectionDomain,
    raw::{Cq, Srq},
};
use uverbs::{Exclusive, attr::AhAttr};
use uverbs::{qp::QpControl, raw::Batch};

/// The key of perftest's targets.
const KEY: u64 = 0xffee_ddcc;

impl<D: DcDriver> Carrier<D> for Dci {
    const RECEIVES: bool = false;
    const HAS_ADDRESSES: bool = true;

    unsafe fn push(
        batch: &mut Batch<'_, Self, D>,
        work: &Work<'_, D>,
        peer: &Peer<D>,
    ) -> Result<(), PostError> {
        let ah = peer.ah.as_ref().ok_or(PostError::BadState)?;
        // SAFETY: the contract of this function.
        unsafe { put_reliable(batch.wr_dc(work.id, ah, peer.keys.qp_num, KEY).flags(work.flags), work) }
    }

    fn init(_: &QpControl<D>, _: &ConnectAttr) -> uverbs::Result<()> {
        // `connect` begins in RESET.
        Ok(())
    }

    fn connect(control: &QpControl<D>, _: &Endpoint, _: &Endpoint, attr: &ConnectAttr) -> uverbs::Result<()> {
        control.connect_dci(attr)
    }

    fn create_target(
        pd: &ProtectionDomain<D>,
        cq: &Cq<Exclusive, D>,
        srq: &Srq<Exclusive, D>,
    ) -> Result<DcTarget<D>> {
        Ok(pd.create_dct(cq, srq, KEY)?)
    }

    fn connect_target(target: &DcTarget<D>, attr: &ConnectAttr, path: &AhAttr) -> Result<u32> {
        Ok(target.connect(attr, path)?)
    }
}
