// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rows: receives, by the typed face and by C's lists, and polls: by callback, as C does it, and in a session.

use super::places::Places;
use super::posts::{entries, sends};
use super::world::{Pair, World};
use crate::face::Face;
use crate::matrix::{Call, Data, Operation, Post, Transport};
use crate::measure::measured;
use crate::recv::{batches, lists, singles};
use crate::{BATCH, CHUNK, Rows, list, poll};
use core::hint::black_box;
use std::cell::RefCell;
use uverbs::raw::RecvQueue;
use uverbs::wr::{RecvWr, SendWr};
use uverbs::{Srd, WorkCompletion};
use uverbs_efa::Efa;

/// A chunk of receives, linked into lists of `batch`. It lives as long as the process.
fn recvs(p: &Places, entries_of_each: u32, batch: u32) -> &'static [RecvWr] {
    let entries = entries(p, 64);
    let receive = |i: u32| {
        let mut wr = RecvWr::new(i.into());
        (wr.sg_list, wr.num_sge) = (entries[i as usize].as_ptr(), entries_of_each as i32);
        wr
    };
    let wrs = (0..CHUNK).map(receive).collect::<Vec<_>>().leak();
    for i in (0..CHUNK).filter(|i| i % batch != batch - 1) {
        wrs[i as usize].next = &raw const wrs[i as usize + 1];
    }
    wrs
}

/// Adds the rows.
pub fn rows<L: Face>(rows: &mut Rows, w: &'static World<L>) {
    receives::<L, 1>(rows, w, "efa post_recv", &w.srd);
    receives::<L, 2>(rows, w, "efa post_recv sge2", &w.srd2);
    let posts = Posts::new(w);
    for (name, fill) in [("sends", Posts::sends as Fill<L>), ("receives", Posts::receives)] {
        let fill = move || fill(&posts, w);
        for batch in [1, BATCH] {
            polls(rows, w, name, batch, fill);
        }
    }
    empty_polls(rows, w);
}

fn receives<L: Face, const N: usize>(
    rows: &mut Rows,
    w: &'static World<L>,
    name: &str,
    pair: &'static RefCell<Pair<Srd, L>>,
) {
    let chunk = move |post: &dyn Fn(&mut RecvQueue<L, Efa>)| {
        let Pair { qp, queues } = &mut *pair.borrow_mut();
        let queue = qp.recv.as_mut().expect("a receive queue");
        measured(|| post(queue));
        let mut cq = w.cq.borrow_mut();
        queues.complete_receives(&mut cq.ring, N as u32);
        cq.drain();
    };
    rows.add("typed", name, 1, CHUNK, move || chunk(&|queue| singles::<Efa, L, N>(queue, black_box(&w.p))));
    rows.add("typed", name, BATCH, CHUNK, move || {
        chunk(&|queue| batches::<Efa, L, N>(queue, black_box(&w.p)));
    });
    for batch in [1, BATCH] {
        let wrs = recvs(&w.p, N as u32, batch);
        rows.add("raw", name, batch, CHUNK, move || {
            chunk(&|queue| lists(queue, wrs, black_box(batch as usize)));
        });
    }
}

/// The posts before each chunk of completions.
#[derive(Clone, Copy, Debug)]
struct Posts {
    sends: &'static [SendWr],
    recvs: &'static [RecvWr],
}

/// Posts a chunk and completes it.
type Fill<L> = fn(&Posts, &World<L>);

impl Posts {
    fn new<L: Face>(w: &World<L>) -> Self {
        let post = Post {
            call: Call::List,
            transport: Transport::Srd,
            operation: Operation::Send,
            data: Data::Usual,
        };
        Self { sends: sends(&w.p, post, BATCH), recvs: recvs(&w.p, 1, BATCH) }
    }

    fn sends<L: Face>(&self, w: &World<L>) {
        let Pair { qp, queues } = &mut *w.srd.borrow_mut();
        list::posts(&qp.send, self.sends, BATCH as usize);
        queues.complete_sends(&mut w.cq.borrow_mut().ring);
    }

    fn receives<L: Face>(&self, w: &World<L>) {
        let Pair { qp, queues } = &mut *w.srd.borrow_mut();
        lists(qp.recv.as_ref().expect("a receive queue"), self.recvs, BATCH as usize);
        queues.complete_receives(&mut w.cq.borrow_mut().ring, 1);
    }
}

/// Adds the polls of a kind of completions, which `fill` makes.
fn polls<L: Face>(
    rows: &mut Rows,
    w: &'static World<L>,
    name: &str,
    batch: u32,
    fill: impl Fn() + Copy + 'static,
) {
    const ALL: usize = CHUNK as usize;
    rows.add("typed", &format!("efa poll {name}"), batch, CHUNK, move || {
        fill();
        let mut cq = w.cq.borrow_mut();
        let poll = || poll::polls_each::<Efa, L>(&mut cq.queue, black_box(batch as usize), ALL);
        assert_eq!(black_box(measured(poll)).0, ALL);
    });
    rows.add("raw", &format!("efa poll {name}"), batch, CHUNK, move || {
        fill();
        let mut wcs = [WorkCompletion::default(); BATCH as usize];
        let wcs = &mut wcs[..batch as usize];
        let cq = w.cq.borrow();
        assert_eq!(measured(|| poll::polls_raw::<Efa, L>(&cq.queue, black_box(wcs), ALL)), ALL);
    });
    rows.add("raw", &format!("efa start_poll {name}"), batch, CHUNK, move || {
        fill();
        session::<L, false>(w, batch);
    });
    if name == "receives" {
        rows.add("raw", "efa start_poll receives more", batch, CHUNK, move || {
            fill();
            session::<L, true>(w, batch);
        });
    }
}

/// Measures extended polls that read `wr_id` and `status`, and four fields more or not.
fn session<L: Face, const MORE: bool>(w: &World<L>, batch: u32) {
    let queue = &mut w.cq.borrow_mut().queue;
    black_box(measured(|| poll::sessions::<Efa, L, MORE>(queue, black_box(batch))));
}

fn empty_polls<L: Face>(rows: &mut Rows, w: &'static World<L>) {
    rows.add("typed", "efa poll empty", 1, CHUNK, || {
        measured(|| poll::polls_each_empty::<Efa, L>(&mut w.cq.borrow_mut().queue));
    });
    rows.add("raw", "efa poll empty", 1, CHUNK, || {
        measured(|| poll::polls_raw_empty::<Efa, L>(&w.cq.borrow().queue, &mut [WorkCompletion::default()]));
    });
    rows.add("raw", "efa start_poll empty", 1, CHUNK, || {
        measured(|| poll::sessions_empty::<Efa, L>(&mut w.cq.borrow_mut().queue));
    });
}
