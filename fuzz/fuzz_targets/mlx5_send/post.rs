// SPDX-License-Identifier: MIT OR Apache-2.0
//! Posts requests on each of the three faces.
// UNSAFETY: posting is an `unsafe fn`. Memory that is read during the post stays (the arena, the request's own
// buffers); there is no device that accesses other memory. Lists live as long as the call.

use crate::request::{Data, Request, Shape};
use uverbs_core::attr::QpType;
use uverbs_core::provider::{InlineList, PostError, SendBatch as _, SendQueue as _, WrBuilder as _};
use uverbs_core::wr::{RawAh, Sge};
use uverbs_mlx5::{Ah, SendQueue};
use uverbs_mlx5_hw::wqe::Av;
use uverbs_testkit::{self as testkit, Dest, List, Refused, To, begin, has_data, push};

/// The destination of datagrams and DC requests.
pub(crate) fn vector() -> Av {
    Av { stat_rate_sl: 3, rmac: [2, 0, 0, 0, 0, 1], hop_limit: 64, rgid: [7; 16], ..Av::default() }
}

/// The access key of a request's DC target.
pub(crate) fn dc_key(r: &Request) -> u64 {
    u64::from(r.key) << 7
}

/// The data of a request.
#[derive(Clone)]
enum Parts<'a> {
    Sges(Vec<Sge>),
    Inline(Vec<&'a [u8]>),
}

/// Calls `f` with the requests in the form of testkit.
fn lend<R>(shape: Shape, all: &[Request], f: impl FnOnce(&[testkit::Request<'_, RawAh<Ah>>]) -> R) -> R {
    let ah = &testkit::handle(Ah::new(&vector()));
    let parts = all.iter().map(|r| match &r.data {
        Data::Sges(_) => Parts::Sges(r.sges(shape)),
        Data::Inline(bufs) => Parts::Inline(bufs.iter().map(|b| &b[..]).collect()),
    });
    let parts: Vec<_> = parts.collect();
    let lent = all.iter().zip(&parts).map(|(r, parts)| {
        let dest = match shape.qp_type() {
            QpType::Ud => Dest::Ud(To { ah, qpn: r.number, qkey: r.key }),
            QpType::XrcSend => Dest::Xrc(r.number),
            QpType::Driver => Dest::Dc { ah, dctn: r.number, key: dc_key(r) },
            _ => Dest::Peer,
        };
        let data = match parts {
            Parts::Sges(sges) => testkit::Data::Sges(sges),
            Parts::Inline(_) if !has_data(r.what) => testkit::Data::None,
            Parts::Inline(bufs) => testkit::Data::InlineList(bufs),
        };
        testkit::Request::new(r.wr_id, r.what).flags(r.flags(shape)).data(data).dest(dest)
    });
    f(&lent.collect::<Vec<_>>())
}

/// Posts a typed batch, or drops it.
pub(crate) fn batch(
    queue: &mut SendQueue,
    shape: Shape,
    all: &[Request],
    lost: bool,
) -> Result<(), PostError> {
    let mut batch = queue.batch();
    let pushed = lend(shape, all, |all| {
        all.iter().try_for_each(|r| {
            let data = if has_data(r.op) { r.data } else { testkit::Data::None };
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
    lend(shape, all, |all| {
        for r in all {
            // SAFETY: the ring is in plain memory: nothing is bound.
            unsafe { begin(queue, r.wr_id, r.flags, r.op) };
            if !has_data(r.op) {
                continue;
            }
            let set_address = |queue: &mut SendQueue| match r.dest {
                Dest::Ud(to) => queue.wr_set_ud_addr(&to.ah.driver, to.qpn, to.qkey),
                Dest::Xrc(srqn) => queue.wr_set_xrc_srqn(srqn),
                Dest::Dc { ah, dctn, key } => queue.wr_set_dc_addr(&ah.driver, dctn, key),
                Dest::Peer => {}
            };
            // The setters may be called in either order.
            let late = r.wr_id & 1 == 0;
            if !late {
                set_address(queue);
            }
            match r.data {
                // SAFETY: memory that is read now is in the arena; there is no device that accesses the other memory.
                testkit::Data::Sges(sges) => unsafe { queue.wr_set_sges(sges) },
                testkit::Data::InlineList(bufs) => queue.wr_set_inline(InlineList(bufs)),
                data => unreachable!("{data:?} of a request with data"),
            }
            if late {
                set_address(queue);
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
    lend(shape, all, |all| {
        // A list has no DC address.
        let is_dc = shape.qp_type() == QpType::Driver;
        let all: Vec<_> = all.iter().map(|r| if is_dc { r.dest(Dest::Peer) } else { *r }).collect();
        let list = List::new(&all);
        // SAFETY: a list of live nodes, whose entries are the arena's where they are read.
        let result = unsafe { queue.post_send(list.first()) };
        result.map_err(|bad| {
            let Refused { error, bad } = testkit::refused(list.nodes(), &bad);
            (error.unwrap_or(PostError::Corrupt), bad)
        })
    })
}
