// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rows: the table of posts of EFA, by the typed face, by lists, and by the `wr_*` calls. The QP of a row is created when the row is first
//! run.
#![expect(unsafe_code)]
// UNSAFETY: posts that name memory; no device reads or writes it. C's lists are raw pointers.

use super::places::{Places, REMOTE_QKEY, REMOTE_QPN};
use super::world::{Pair, Wants, World};
use crate::builder::{ops_of, sessions};
use crate::face::{Face, Operation as Typed, Posts};
use crate::list;
use crate::matrix::{Call, Data, Operation, Post, Transport};
use crate::places::{RKEY, remote_addr};
use crate::send::{batches, singles};
use crate::{BATCH, CHUNK, Rows, ok};
use core::hint::black_box;
use std::cell::{OnceCell, RefCell};
use uverbs::attr::SendOpsFlags;
use uverbs::provider::raw::QpEx;
use uverbs::qp::transport::{Datagram, Reads, Sends, SendsImm, Writes};
use uverbs::raw::{PostTo, SendQueue, Wr};
use uverbs::wr::{SendFlags, SendWr, Sge, WrOpcode, WrUd};
use uverbs::{Srd, Ud};
use uverbs_efa::Efa;

/// Defines requests: the expression ends the request `wr` with the places `p` and the number `i`.
macro_rules! operations {
    ($($name:ident$(<$n:ident>)?: $bound:ident = |$wr:ident, $p:ident, $i:ident| $end:expr;)*) => {$(
        struct $name$(<const $n: usize>)?;
        impl<T: Posts<Efa> + Datagram + $bound $(, const $n: usize)?> Typed<T, Efa> for $name$(<$n>)? {
            #[inline(always)]
            fn put<S: PostTo<Efa>>($wr: Wr<'_, S, T, Efa>, $p: &Places, $i: u32) -> S::Out {
                let $wr = $wr.signaled();
                // SAFETY: the places' region lives as long as the queues, and no device uses it.
                #[allow(unused_unsafe, clippy::allow_attributes, reason = "inline requests are safe")]
                unsafe { $end }
            }
        }
    )*};
}

operations! {
    Send: Sends = |wr, p, i| wr.send(&[p.pair(i)[0]]);
    SendImm: SendsImm = |wr, p, i| wr.send_imm(&[p.pair(i)[0]], p.imm(i));
    Write: Writes = |wr, p, i| wr.write(&[p.pair(i)[0]], p.remote(i));
    WriteImm: Writes = |wr, p, i| wr.write_imm(&[p.pair(i)[0]], p.remote(i), p.imm(i));
    Read: Reads = |wr, p, i| wr.read(&[p.pair(i)[0]], p.remote(i));
    Entries: Sends = |wr, p, i| wr.send(p.pair(i));
    // The length is known at run time only.
    Inline<N>: Sends = |wr, p, _i| wr.send_inline(&p.bytes[..black_box(N)]);
}

/// The QP of a row.
type Lazy<T, L> = &'static OnceCell<RefCell<Pair<T, L>>>;

/// The QP of a row, created at the first call.
fn pair<T: Posts<Efa>, L: Face>(lazy: Lazy<T, L>, w: &World<L>, post: &Post) -> &'static RefCell<Pair<T, L>> {
    lazy.get_or_init(|| {
        let is_builder = post.call == Call::Builder;
        let ops = if is_builder { ops_of(post.transport) } else { SendOpsFlags::empty() };
        let mut wants = Wants { ops, ..Wants::default() };
        match post.data {
            Data::Usual | Data::InlineList(_) => {}
            Data::Entries(n) => wants.entries = n,
            Data::Inline(n) => wants.inline = n.max(32),
        }
        RefCell::new(Pair::new(&w.pd, &w.cq.borrow(), wants))
    })
}

/// Adds the rows of the table.
pub fn rows<L: Face>(rows: &mut Rows, w: &'static World<L>) {
    for post in Post::efa() {
        match post.transport {
            Transport::Srd => both::<L, Srd>(rows, w, post, typed_srd),
            Transport::EfaUd => both::<L, Ud>(rows, w, post, typed_message),
            _ => unreachable!("{post:?} is no post of EFA"),
        }
    }
}

type AddTyped<T, L> = fn(&mut Rows, &'static World<L>, Post, Lazy<T, L>);

/// Adds the rows by C's calls, and those by the typed face.
fn both<L: Face, T: Posts<Efa>>(
    rows: &mut Rows,
    w: &'static World<L>,
    post: Post,
    add_typed: AddTyped<T, L>,
) {
    let lazy: Lazy<T, L> = Box::leak(Box::default());
    raw(rows, w, post, lazy);
    if post.is_typed() {
        add_typed(rows, w, post, lazy);
    }
}

fn typed_message<L: Face, T: Posts<Efa> + Datagram + SendsImm>(
    rows: &mut Rows,
    w: &'static World<L>,
    post: Post,
    lazy: Lazy<T, L>,
) {
    match (post.operation, post.data) {
        (Operation::Send, Data::Usual) => typed::<L, T, Send>(rows, w, post, lazy),
        (Operation::SendImm, Data::Usual) => typed::<L, T, SendImm>(rows, w, post, lazy),
        (Operation::Send, Data::Entries(2)) => typed::<L, T, Entries>(rows, w, post, lazy),
        (Operation::Send, Data::Inline(8)) => typed::<L, T, Inline<8>>(rows, w, post, lazy),
        (Operation::Send, Data::Inline(16)) => typed::<L, T, Inline<16>>(rows, w, post, lazy),
        (Operation::Send, Data::Inline(32)) => typed::<L, T, Inline<32>>(rows, w, post, lazy),
        (Operation::Send, Data::Inline(64)) => typed::<L, T, Inline<64>>(rows, w, post, lazy),
        // The report says that the row is not measured.
        _ => {}
    }
}

fn typed_srd<L: Face>(rows: &mut Rows, w: &'static World<L>, post: Post, lazy: Lazy<Srd, L>) {
    match post.operation {
        Operation::Write => typed::<L, Srd, Write>(rows, w, post, lazy),
        Operation::WriteImm => typed::<L, Srd, WriteImm>(rows, w, post, lazy),
        Operation::Read => typed::<L, Srd, Read>(rows, w, post, lazy),
        _ => typed_message(rows, w, post, lazy),
    }
}

/// Posts the requests of a chunk.
type PostChunk<T, L> = fn(&mut SendQueue<T, L, Efa>, &Places);

/// Adds a single post and a batch of the same request.
fn typed<L: Face, T: Posts<Efa>, O: Typed<T, Efa> + 'static>(
    rows: &mut Rows,
    w: &'static World<L>,
    post: Post,
    lazy: Lazy<T, L>,
) {
    let posts: [(u32, PostChunk<T, L>); 2] = [(1, singles::<Efa, L, T, O>), (BATCH, batches::<Efa, L, T, O>)];
    for (batch, posts) in posts {
        rows.add("typed", &post.name(), batch, CHUNK, move || {
            let pair = &mut *pair(lazy, w, &post).borrow_mut();
            pair.chunk_by(&w.cq, |queue| queue, |queue| posts(queue, black_box(&w.p)));
        });
    }
}

/// Adds the rows by C's calls.
fn raw<L: Face, T: Posts<Efa>>(rows: &mut Rows, w: &'static World<L>, post: Post, lazy: Lazy<T, L>) {
    for batch in [1, BATCH] {
        let name = post.name();
        match post.call {
            Call::List => {
                let wrs = OnceCell::new();
                rows.add("raw", &name, batch, CHUNK, move || {
                    let wrs = *wrs.get_or_init(|| sends(&w.p, post, batch));
                    let pair = &mut *pair(lazy, w, &post).borrow_mut();
                    pair.chunk_by(
                        &w.cq,
                        |queue| queue,
                        |queue| list::posts(queue, wrs, black_box(batch as usize)),
                    );
                });
            }
            Call::Builder => {
                let session = session(&post);
                let shape = OnceCell::new();
                rows.add("raw", &name, batch, CHUNK, move || {
                    let shape = shape.get_or_init(|| Shape::new(&w.p, post.data));
                    let pair = &mut *pair(lazy, w, &post).borrow_mut();
                    pair.chunk_by(
                        &w.cq,
                        |queue| queue.qp_ex().expect("a QP with send operations"),
                        // A C program does not know the functions behind the pointers.
                        |qp| session(black_box(qp), black_box(&w.p), black_box(batch), black_box(shape)),
                    );
                });
            }
        }
    }
}

/// The entries of a chunk's requests; they live as long as the process.
pub fn entries(p: &Places, length: u32) -> &'static [[Sge; 2]] {
    let sge = |k: usize| Sge { addr: p.addr + 64 * k as u64, length, lkey: p.lkey };
    vec![[sge(0), sge(1)]; CHUNK as usize].leak()
}

/// A chunk of sends, linked into lists of `batch`. It lives as long as the process.
pub fn sends(p: &Places, post: Post, batch: u32) -> &'static [SendWr] {
    let (num_sge, length, inline) = match post.data {
        // The data are copied from memory of the program.
        Data::Inline(n) => (1, n, SendFlags::INLINE),
        Data::Entries(n) => (n, 64, SendFlags::empty()),
        _ => (1, 64, SendFlags::empty()),
    };
    let entries = entries(p, length);
    let request = |i: u32| {
        let mut wr = SendWr::new(i.into(), WrOpcode(post.operation.opcode()));
        (wr.sg_list, wr.num_sge) = (entries[i as usize].as_ptr(), num_sge as i32);
        wr.send_flags = (SendFlags::SIGNALED | inline).bits();
        wr.imm_data_or_invalidate_rkey = p.imm(i).to_be();
        wr.wr.ud = WrUd { ah: p.ah.as_raw(), remote_qpn: REMOTE_QPN, remote_qkey: REMOTE_QKEY };
        wr
    };
    let wrs = (0..CHUNK).map(request).collect::<Vec<_>>().leak();
    for i in (0..CHUNK).filter(|i| i % batch != batch - 1) {
        wrs[i as usize].next = &raw const wrs[i as usize + 1];
    }
    wrs
}

/// The data of requests that are more than one entry.
#[derive(Debug)]
struct Shape {
    entries: &'static [[Sge; 2]],
    /// The number of entries, or of bytes inline.
    count: usize,
}

impl Shape {
    fn new(p: &Places, data: Data) -> Self {
        let count = match data {
            Data::Usual => 1,
            Data::Entries(n) | Data::Inline(n) | Data::InlineList(n) => n as usize,
        };
        Self { entries: entries(p, 64), count }
    }
}

/// A function that posts a chunk, in sessions of `batch`.
type Session = fn(&mut QpEx<'_>, &Places, u32, &Shape);

sessions! {
    Places, Shape;
    send = |qp, p, i, _s| qp.wr_send(), entry(qp, p), to(qp, p);
    send_imm = |qp, p, i, _s| qp.wr_send_imm(p.imm(i)), entry(qp, p), to(qp, p);
    write = |qp, p, i, _s| qp.wr_rdma_write(RKEY, remote_addr(i)), entry(qp, p), to(qp, p);
    write_imm = |qp, p, i, _s| qp.wr_rdma_write_imm(RKEY, remote_addr(i), p.imm(i)), entry(qp, p), to(qp, p);
    read = |qp, p, i, _s| qp.wr_rdma_read(RKEY, remote_addr(i)), entry(qp, p), to(qp, p);
    send_list = |qp, p, i, s| qp.wr_send(), qp.wr_set_sge_list(s.count, s.entries[i as usize].as_ptr()), to(qp, p);
    send_inline = |qp, p, i, s| qp.wr_send(), qp.wr_set_inline_data(p.bytes.as_ptr(), s.count), to(qp, p);
}

/// # Safety
/// Inside a session.
#[inline(always)]
unsafe fn entry(qp: &mut QpEx<'_>, p: &Places) {
    // SAFETY: inside a session (the contract of this function); no device uses the memory.
    unsafe { qp.wr_set_sge(p.lkey, p.addr, 64) }
}

/// # Safety
/// Inside a session.
#[inline(always)]
unsafe fn to(qp: &mut QpEx<'_>, p: &Places) {
    // SAFETY: inside a session (the contract of this function); the address handle lives as long as the process.
    unsafe { qp.wr_set_ud_addr(p.ah.as_raw(), REMOTE_QPN, REMOTE_QKEY) }
}

/// The function of a row of the table of posts.
fn session(post: &Post) -> Session {
    use Operation as O;
    match (post.operation, post.data) {
        (O::Write, _) => write,
        (O::WriteImm, _) => write_imm,
        (O::Read, _) => read,
        (O::SendImm, _) => send_imm,
        (_, Data::Entries(_)) => send_list,
        (_, Data::Inline(_)) => send_inline,
        _ => send,
    }
}
