// SPDX-License-Identifier: MIT OR Apache-2.0
//! Posts requests on each of the three faces.
// UNSAFETY: posting is an `unsafe fn`. Memory that is read during the post stays (the arena, the request's own
// buffers); there is no device that accesses other memory. Lists live as long as the call.

use crate::request::{Data, Request, Shape};
use uverbs_core::attr::QpType;
use uverbs_core::provider::{
    self, DcTarget, Dest, PostError, SendBatch as _, SendQueue as _, Wr, WrBuilder as _,
};
use uverbs_core::wr::RawAh;
use uverbs_mlx5::{Ah, SendQueue};
use uverbs_mlx5_hw::wqe::Av;
use uverbs_testkit::{
    self as testkit, Face, OwnedData, OwnedDest, OwnedRequest, Refused, build, handle, push,
};

/// The destination of datagrams and DC requests.
pub(crate) fn vector() -> Av {
    Av { stat_rate_sl: 3, rmac: [2, 0, 0, 0, 0, 1], hop_limit: 64, rgid: [7; 16], ..Av::default() }
}

/// The access key of a request's DC target.
pub(crate) fn dc_key(r: &Request) -> u64 {
    u64::from(r.key) << 7
}

/// Calls `f` with the requests in the form of testkit.
fn with_wrs<R>(shape: Shape, all: &[Request], f: impl FnOnce(&[Wr<'_, RawAh<Ah>>]) -> R) -> R {
    let owned = all.iter().map(|r| {
        let ah = handle(Ah::new(&vector()));
        let to = match shape.qp_type() {
            QpType::Ud => OwnedDest::Ud { ah, remote_qpn: r.number, remote_qkey: r.key },
            QpType::XrcSend => OwnedDest::Xrc(r.number),
            QpType::Driver => OwnedDest::Dc { ah, remote_dctn: r.number, remote_dc_key: dc_key(r) },
            _ => OwnedDest::Peer,
        };
        let data = match &r.data {
            Data::Sges(_) => OwnedData::Sges(r.sges(shape)),
            Data::Inline(_) if !r.what.has_data() => OwnedData::None,
            Data::Inline(bufs) => OwnedData::Inline(bufs.clone()),
        };
        OwnedRequest { wr_id: r.wr_id, flags: r.flags(shape), op: r.what, data, to }
    });
    OwnedRequest::with_wrs(&owned.collect::<Vec<_>>(), f)
}

/// Posts a typed batch, or drops it.
pub(crate) fn batch(
    queue: &mut SendQueue,
    shape: Shape,
    all: &[Request],
    lost: bool,
) -> Result<(), PostError> {
    let mut batch = queue.batch();
    let pushed = with_wrs(shape, all, |all| {
        all.iter().try_for_each(|r| {
            let data = if r.op.has_data() { r.data } else { provider::Data::NONE };
            // SAFETY: memory that is read now is in the arena; there is no device that accesses the other memory.
            unsafe { push(&mut batch, &r.data(data)) }
        })
    });
    if lost {
        drop(batch);
        return Ok(());
    }
    // A typed entry that is too long can't be created; then the batch is dropped.
    pushed?;
    batch.complete()
}

/// Posts with the builders, or aborts the session.
pub(crate) fn session(
    queue: &mut SendQueue,
    shape: Shape,
    all: &[Request],
    lost: bool,
) -> Result<(), PostError> {
    queue.wr_start();
    with_wrs(shape, all, |all| {
        for r in all {
            // SAFETY: memory that is read now is in the arena; there is no device that accesses the other memory, and
            // nothing is bound.
            unsafe { build(queue, r) };
            if let Dest::Dc(DcTarget { ah, remote_dctn, remote_dc_key }) = r.to
                && r.op.has_data()
            {
                queue.wr_set_dc_addr(&ah.driver, remote_dctn, remote_dc_key);
            }
        }
    });
    if lost {
        queue.wr_abort();
        return Ok(());
    }
    queue.wr_complete()
}

/// Posts a C list. An error has the index of the WR in `bad_wr`.
pub(crate) fn list(
    queue: &mut SendQueue,
    shape: Shape,
    all: &[Request],
) -> Result<(), (PostError, Option<usize>)> {
    with_wrs(shape, all, |all| {
        // A list has no DC address.
        let is_dc = shape.qp_type() == QpType::Driver;
        let all: Vec<_> = all.iter().map(|r| if is_dc { r.to(Dest::Peer) } else { *r }).collect();
        // SAFETY: the list's entries are the arena's where they are read.
        let posted = unsafe { testkit::post(queue, Face::List, &all) };
        posted.map_err(|Refused { error, bad }| (error.unwrap_or(PostError::Corrupt), bad))
    })
}
