// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rows: sends by the typed face, single ones and batches.
#![expect(unsafe_code)]
// UNSAFETY: posts that name memory; no device reads or writes it.

use crate::burst::Burst;
use crate::face::{Device, Face, Operation, Peer, Posts};
use crate::places::Places;
use crate::world::{Pair, Wants, World};
use crate::{BATCH, CHUNK, Rows, ok};
use core::hint::black_box;
use std::cell::{OnceCell, RefCell};
use uverbs::mlx5::Mlx5;
use uverbs::raw::SendQueue;
use uverbs::raw::{PostTo, Wr};
use uverbs::{Exclusive, Rc};

/// Defines requests: the expression ends the request `wr` with the places `p` and the number `i`.
macro_rules! operations {
    ($($(#[$meta:meta])* $name:ident: $transport:ty = |$wr:ident, $p:ident, $i:ident| $end:expr;)*) => {$(
        $(#[$meta])*
        struct $name;
        impl Operation<$transport> for $name {
            #[inline(always)]
            fn put<S: PostTo<Mlx5>>(
                $wr: Wr<'_, S, $transport, Mlx5>,
                $p: &Places,
                $i: u32,
            ) -> S::Out {
                let $wr = $wr.signaled();
                // SAFETY: the places' region lives as long as the queues, and no device uses it.
                #[allow(unused_unsafe, clippy::allow_attributes, reason = "inline requests are safe")]
                unsafe { $end }
            }
        }
    )*};
}

operations! {
    Write: Rc = |wr, p, i| wr.write(&[p.sge(i)], p.remote(i));
    Inline: Rc = |wr, p, i| wr.write_array(&p.data, p.remote(i));
    /// Its length is known at run time only.
    InlineRunTime: Rc = |wr, p, i| wr.write_inline(&p.data[..black_box(32)], p.remote(i));
    SendInline: Rc = |wr, p, _i| wr.send_array(&p.data);
    Send3: Rc = |wr, p, i| wr.send(p.sges3(i));
}

/// Adds the rows.
pub fn rows<L: Face>(rows: &mut Rows, w: &'static World<L>) {
    add::<L, _, Inline>(rows, w, "post_send inline", &w.rc);
    add::<L, _, InlineRunTime>(rows, w, "post_send inline, run-time length", &w.rc);
    add::<L, _, Send3>(rows, w, "post_send send3", &w.rc3);
    add::<L, _, SendInline>(rows, w, "wr send inline", &w.rc);
}

/// Adds a single post and a batch of the same request.
fn add<L: Face, T: Peer, O: Operation<T> + 'static>(
    rows: &mut Rows,
    w: &'static World<L>,
    name: &str,
    pair: &'static RefCell<Pair<T, L>>,
) {
    rows.add("typed", name, 1, CHUNK, move || single::<L, T, O>(w, pair));
    rows.add("typed", name, BATCH, CHUNK, move || {
        pair.borrow_mut().chunk(&w.send_cq, |queue| batches::<Mlx5, L, T, O>(queue, black_box(&w.p)));
    });
}

fn single<L: Face, T: Peer, O: Operation<T>>(w: &World<L>, pair: &RefCell<Pair<T, L>>) {
    pair.borrow_mut().chunk(&w.send_cq, |queue| singles::<Mlx5, L, T, O>(queue, black_box(&w.p)));
}

/// Posts a chunk, one request after the other.
#[inline(never)]
pub fn singles<D: Device, L: Face, T: Posts<D>, O: Operation<T, D>>(
    queue: &mut SendQueue<T, L, D>,
    p: &D::Places,
) {
    for i in 0..CHUNK {
        L::post::<D, T, O>(queue, p, i).unwrap_or_else(ok);
    }
}

/// Posts a chunk in batches.
#[inline(never)]
pub fn batches<D: Device, L: Face, T: Posts<D>, O: Operation<T, D>>(
    queue: &mut SendQueue<T, L, D>,
    p: &D::Places,
) {
    for first in (0..CHUNK).step_by(BATCH as usize) {
        L::post_batch::<D, T, O>(queue, p, first).unwrap_or_else(ok);
    }
}

/// Adds the rows of exclusive queues only: with bursts to write-combining memory, and the fifth QP of a PD without a
/// thread domain.
pub fn more_rows(rows: &mut Rows, w: &'static World<Exclusive>) {
    let burst = move |posts: fn(&mut SendQueue<Rc, Exclusive, Mlx5>, &Places, &Burst)| {
        let target = &*Box::leak(Box::new(Burst::default()));
        move || w.rc.borrow_mut().chunk(&w.send_cq, |queue| posts(queue, black_box(&w.p), target))
    };
    rows.add("typed", "post_send write burst", 1, CHUNK, burst(burst_singles));
    rows.add("typed", "post_send write burst", BATCH, CHUNK, burst(burst_batches));
    // Created when the row is first run.
    let fifth: &'static OnceCell<RefCell<Pair<Rc, Exclusive>>> = Box::leak(Box::default());
    rows.add("typed", "post_send write 5th", 1, CHUNK, move || {
        let fifth = fifth.get_or_init(|| {
            let plain = w.context.alloc_pd().expect("a PD");
            let new = || Pair::new(&plain, &w.send_cq.borrow(), &w.recv_cq.borrow(), None, Wants::default());
            // The others are kept, because a destroyed QP returns its register.
            core::mem::forget([new(), new(), new(), new()]);
            RefCell::new(new())
        });
        single::<Exclusive, Rc, Write>(w, fifth);
    });
}

#[inline(never)]
fn burst_singles(queue: &mut SendQueue<Rc, Exclusive, Mlx5>, p: &Places, target: &Burst) {
    for i in 0..CHUNK {
        Exclusive::post::<Mlx5, Rc, Write>(queue, p, i).unwrap_or_else(ok);
        target.write::<8>(i as usize);
    }
}

#[inline(never)]
fn burst_batches(queue: &mut SendQueue<Rc, Exclusive, Mlx5>, p: &Places, target: &Burst) {
    for first in (0..CHUNK).step_by(BATCH as usize) {
        Exclusive::post_batch::<Mlx5, Rc, Write>(queue, p, first).unwrap_or_else(ok);
        target.write::<1>((first / BATCH) as usize);
    }
}
