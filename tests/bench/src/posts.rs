// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rows: the table of posts, by the typed face, by lists, and by the `wr_*` calls. The QP of a row is created when the row is
//! first run.
#![expect(unsafe_code)]
// UNSAFETY: posts that name memory; no device reads or writes it.

use crate::builder::{self, Shape};
use crate::face::{Face, Operation as Typed, Peer};
use crate::list::{self, sends};
use crate::matrix::{Call, Data, Operation, Post, Transport};
use crate::places::Places;
use crate::send::{batches, singles};
use crate::world::{Pair, Wants, World};
use crate::{BATCH, CHUNK, Rows};
use core::hint::black_box;
use std::cell::{OnceCell, RefCell};
use uverbs::attr::SendOpsFlags;
use uverbs::mlx5::Mlx5;
use uverbs::qp::transport::{HasPeer, Reliable, Sends, SendsImm};
use uverbs::raw::SendQueue;
use uverbs::raw::{PostTo, Wr};
use uverbs::{Dci, RawPacket, Rc, Uc, Ud, XrcSend};

/// Defines requests of all transports of a kind: the expression ends the request `wr` with the places `p` and the number `i`.
macro_rules! operations {
    ($($name:ident$(<$n:ident>)?: $bound:ident = |$wr:ident, $p:ident, $i:ident| $end:expr;)*) => {$(
        pub struct $name$(<const $n: usize>)?;
        impl<T: Peer + $bound $(, const $n: usize)?> Typed<T> for $name$(<$n>)? {
            #[inline(always)]
            fn put<S: PostTo<Mlx5>>($wr: Wr<'_, S, T, Mlx5>, $p: &Places, $i: u32) -> S::Out {
                let $wr = $wr.signaled();
                // SAFETY: the places' region lives as long as the queues, and no device uses it.
                #[allow(unused_unsafe, clippy::allow_attributes, reason = "inline requests are safe")]
                unsafe { $end }
            }
        }
    )*};
}

operations! {
    Send: Sends = |wr, p, i| wr.send(&[p.sge(i)]);
    SendImm: SendsImm = |wr, p, i| wr.send_imm(&[p.sge(i)], p.imm(i));
    SendInv: HasPeer = |wr, p, i| wr.send_inv(&[p.sge(i)], crate::places::RKEY);
    Write: HasPeer = |wr, p, i| wr.write(&[p.sge(i)], p.remote(i));
    WriteImm: HasPeer = |wr, p, i| wr.write_imm(&[p.sge(i)], p.remote(i), p.imm(i));
    Read: Reliable = |wr, p, i| wr.read(&[p.sge(i)], p.remote(i));
    CmpSwp: Reliable = |wr, p, i| wr.compare_swap(&[p.sge(i)], p.remote(i), i.into(), u64::from(i) + 1);
    FetchAdd: Reliable = |wr, p, i| wr.fetch_add(&[p.sge(i)], p.remote(i), 7);
    LocalInv: HasPeer = |wr, p, _i| wr.local_inv(p.window_key);
    BindMw: HasPeer = |wr, p, _i| wr.bind_mw(p.bind);
    Tso: Sends = |wr, p, i| wr.send_tso(p.tso(), &[p.sge(i)]);
    Entries<N>: HasPeer = |wr, p, i| wr.write(p.sges_of::<N>(i), p.remote(i));
    // The length is known at run time only.
    Inline<N>: HasPeer = |wr, p, i| wr.write_inline(&p.bytes[..black_box(N)], p.remote(i));
    InlineList: HasPeer = |wr, p, i| wr.write_inline_list(p.bufs(), p.remote(i));
}

/// The QP of a row.
type Lazy<T, L> = &'static OnceCell<RefCell<Pair<T, L>>>;

fn lazy<T: Peer, L: Face>() -> Lazy<T, L> {
    Box::leak(Box::default())
}

/// The QP of a row, created at the first call. The usual rows have the world's QPs, which were created first, so that their
/// registers are those of a program with few QPs.
fn pair<T: Peer, L: Face>(
    lazy: Lazy<T, L>,
    w: &'static World<L>,
    post: &Post,
) -> &'static RefCell<Pair<T, L>> {
    if post.data == Data::Usual
        && let Some(pair) = T::usual(w, post.call)
    {
        return pair;
    }
    lazy.get_or_init(|| {
        let of_data = SendOpsFlags::RDMA_WRITE;
        let (entries, inline, ops) = match post.data {
            Data::Usual if post.call == Call::Builder => (1, 32, builder::ops_of(post.transport)),
            Data::Usual => (1, 32, SendOpsFlags::empty()),
            Data::Entries(n) => (n, 32, of_data),
            Data::Inline(n) => (1, n, of_data),
            Data::InlineList(n) => (1, 64 * n, of_data),
        };
        let wants = Wants { entries, inline, ops, ..Wants::default() };
        RefCell::new(Pair::new(&w.pd, &w.send_cq.borrow(), &w.recv_cq.borrow(), None, wants))
    })
}

/// Adds the rows of the table.
pub fn rows<L: Face>(rows: &mut Rows, w: &'static World<L>) {
    for post in Post::all() {
        match post.transport {
            Transport::Rc => raw::<L, Rc>(rows, w, post),
            Transport::Uc => raw::<L, Uc>(rows, w, post),
            Transport::Ud => raw::<L, Ud>(rows, w, post),
            Transport::Xrc => raw::<L, XrcSend>(rows, w, post),
            Transport::Raw => raw::<L, RawPacket>(rows, w, post),
            // Its calls in Rust have no setter for the target.
            Transport::Dc => assert!(!post.is_raw(), "no calls for {post:?}"),
            Transport::Srd | Transport::EfaUd => unreachable!("{post:?} is a post of EFA"),
        }
        if post.is_typed() {
            match post.transport {
                Transport::Rc => typed_rc(rows, w, post),
                Transport::Uc => typed_connected::<L, Uc>(rows, w, post),
                Transport::Ud => typed_message::<L, Ud>(rows, w, post),
                Transport::Xrc => typed_reliable::<L, XrcSend>(rows, w, post),
                Transport::Dc => typed_reliable::<L, Dci>(rows, w, post),
                Transport::Raw => match post.operation {
                    Operation::Tso => typed::<L, RawPacket, Tso>(rows, w, post),
                    _ => typed::<L, RawPacket, Send>(rows, w, post),
                },
                Transport::Srd | Transport::EfaUd => {}
            }
        }
    }
}

fn typed_rc<L: Face>(rows: &mut Rows, w: &'static World<L>, post: Post) {
    match post.data {
        Data::Usual => typed_reliable::<L, Rc>(rows, w, post),
        Data::Entries(4) => typed::<L, Rc, Entries<4>>(rows, w, post),
        Data::Entries(16) => typed::<L, Rc, Entries<16>>(rows, w, post),
        Data::Entries(30) => typed::<L, Rc, Entries<30>>(rows, w, post),
        Data::Inline(64) => typed::<L, Rc, Inline<64>>(rows, w, post),
        Data::Inline(128) => typed::<L, Rc, Inline<128>>(rows, w, post),
        Data::Inline(256) => typed::<L, Rc, Inline<256>>(rows, w, post),
        Data::Inline(448) => typed::<L, Rc, Inline<448>>(rows, w, post),
        Data::Inline(960) => typed::<L, Rc, Inline<960>>(rows, w, post),
        Data::InlineList(4) => typed::<L, Rc, InlineList>(rows, w, post),
        // The report says that the row is not measured.
        _ => {}
    }
}

fn typed_message<L: Face, T: Peer + SendsImm>(rows: &mut Rows, w: &'static World<L>, post: Post) {
    match post.operation {
        Operation::Send => typed::<L, T, Send>(rows, w, post),
        Operation::SendImm => typed::<L, T, SendImm>(rows, w, post),
        _ => {}
    }
}

fn typed_connected<L: Face, T: Peer + SendsImm + HasPeer>(rows: &mut Rows, w: &'static World<L>, post: Post) {
    match post.operation {
        Operation::SendInv => typed::<L, T, SendInv>(rows, w, post),
        Operation::Write => typed::<L, T, Write>(rows, w, post),
        Operation::WriteImm => typed::<L, T, WriteImm>(rows, w, post),
        Operation::LocalInv => typed::<L, T, LocalInv>(rows, w, post),
        Operation::BindMw => typed::<L, T, BindMw>(rows, w, post),
        _ => typed_message::<L, T>(rows, w, post),
    }
}

fn typed_reliable<L: Face, T: Peer + SendsImm + Reliable>(rows: &mut Rows, w: &'static World<L>, post: Post) {
    match post.operation {
        Operation::Read => typed::<L, T, Read>(rows, w, post),
        Operation::CmpSwp => typed::<L, T, CmpSwp>(rows, w, post),
        Operation::FetchAdd => typed::<L, T, FetchAdd>(rows, w, post),
        _ => typed_connected::<L, T>(rows, w, post),
    }
}

/// Posts the requests of a chunk.
type Posts<T, L> = fn(&mut SendQueue<T, L, Mlx5>, &Places);

/// Adds a single post and a batch of the same request.
fn typed<L: Face, T: Peer, O: Typed<T> + 'static>(rows: &mut Rows, w: &'static World<L>, post: Post) {
    let lazy = lazy::<T, L>();
    let posts: [(u32, Posts<T, L>); 2] = [(1, singles::<Mlx5, L, T, O>), (BATCH, batches::<Mlx5, L, T, O>)];
    for (batch, posts) in posts {
        rows.add("typed", &post.name(), batch, CHUNK, move || {
            let pair = &mut *pair(lazy, w, &post).borrow_mut();
            pair.chunk(&w.send_cq, |queue| posts(queue, black_box(&w.p)));
        });
    }
}

/// Adds the rows by C's calls.
fn raw<L: Face, T: Peer>(rows: &mut Rows, w: &'static World<L>, post: Post) {
    let lazy = lazy::<T, L>();
    for batch in [1, BATCH] {
        let name = post.name();
        match post.call {
            Call::List => {
                let wrs = OnceCell::new();
                rows.add("raw", &name, batch, CHUNK, move || {
                    let wrs = *wrs.get_or_init(|| sends(&w.p, post, batch));
                    let pair = &mut *pair(lazy, w, &post).borrow_mut();
                    pair.chunk(&w.send_cq, |queue| list::posts(queue, wrs, black_box(batch as usize)));
                });
            }
            Call::Builder => {
                let Some(session) = builder::session(&post) else { continue };
                let shape = OnceCell::new();
                rows.add("raw", &name, batch, CHUNK, move || {
                    let shape = shape.get_or_init(|| Shape::new(&w.p, post.data));
                    let pair = &mut *pair(lazy, w, &post).borrow_mut();
                    builder::run(w, pair, batch, session, shape);
                });
            }
        }
    }
}
