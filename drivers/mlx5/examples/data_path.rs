// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a post and a poll cost: the cases of `cargo xtask bench`.
//!
//! The queues are real, their memory and the doorbell registers are plain memory, the fences are real; the device's side
//! is played between the measured stretches. `ns` prints nanoseconds per operation, and those of a floor: the same
//! stores and fences and nothing else. `run CASE N` runs N stretches of one case, for a tool that counts instructions
//! inside `measured` alone.
#![expect(unsafe_code)]
// UNSAFETY: the raw calls, and posts that name memory; no device reads it.

use core::hint::black_box;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;
use uverbs_core::attr::{QpType, WcExFlags};
use uverbs_core::provider::op::{Send, Write};
use uverbs_core::provider::raw::{self, QpEx};
use uverbs_core::provider::{
    Completion, CompletionQueue as _, Connected, InlineArray, RecvBatch, RecvQueue as _, SendBatch,
    SendQueue as _, To, WireRemote, WireSge, Wr,
};
use uverbs_core::sync::barrier::{to_device, write_combining_flush, write_combining_start};
use uverbs_core::sync::{Exclusive, Locked, Locking, Shared};
use uverbs_core::wc::WorkCompletion;
use uverbs_core::wr::{IbvAh, RawAh, RecvWr, SendFlags, SendWr, WrOpcode, WrRdma, WrUd};
use uverbs_mlx5::testing::DbRecPages;
use uverbs_mlx5::testing::UserIndices;
use uverbs_mlx5::testing::{self, BLUE_FLAME, heap_page, send_config, send_parts};
use uverbs_mlx5::testing::{ArmRegister, SharedHalf};
use uverbs_mlx5::testing::{CompletionQueue, CqConfig, CqRing, CqShared, CqeVersion};
use uverbs_mlx5::testing::{QpShared, RqShared, SqShared};
use uverbs_mlx5::testing::{QueueBuf, SqRing, StrideRing};
use uverbs_mlx5::{Ah, RecvConfig, Remote, SendQueue, Sge};
use uverbs_mlx5_hw::cqe::Cqe64;
use uverbs_mlx5_hw::wqe::Av;
use uverbs_mlx5_hw::{Be16, Be32};
use zerocopy::IntoBytes as _;

/// WRs of a stretch: half of what a queue takes.
const STRETCH: u32 = 256;
const BATCH: u32 = 32;
/// Basic blocks of a send queue.
const BLOCKS: u32 = 2048;
const SIGNALED: SendFlags = SendFlags::SIGNALED;

/// The stretch whose instructions are counted.
#[inline(never)]
fn measured(times: u32, f: &mut impl FnMut(u32)) {
    for i in 0..times {
        f(i);
    }
}

/// Runs a stretch of `ops` operations, `each` of them to the call; how long it took.
fn stretch(ops: u32, each: u32, mut f: impl FnMut(u32)) -> Duration {
    let start = Instant::now();
    measured(ops / each, &mut f);
    start.elapsed()
}

/// A case: runs one stretch, and prepares the next.
struct Case {
    name: String,
    floor: Option<&'static str>,
    run: Box<dyn FnMut() -> Duration>,
}

#[derive(Default)]
struct Cases(Vec<Case>);

impl Cases {
    fn add(
        &mut self,
        name: impl Into<String>,
        floor: Option<&'static str>,
        run: impl FnMut() -> Duration + 'static,
    ) {
        self.0.push(Case { name: name.into(), floor, run: Box::new(run) });
    }
}

/// A send queue, behind the lock that is measured.
struct Sends<L: Locking> {
    queue: Locked<SendQueue, L>,
    qp: Arc<QpShared>,
}

impl<L: Locking> Sends<L> {
    fn new(qp_type: QpType) -> Self {
        let mut config = send_config(qp_type);
        (config.max_send_wr, config.max_send_sge, config.max_inline_data) = (512, 2, 64);
        let shared = L::SHARED.then(|| Arc::new(SharedHalf::new(0)));
        let (queue, qp, _, _) = send_parts(&config, BLOCKS, BLUE_FLAME, &heap_page(), shared);
        Self { queue: Locked::new(queue), qp }
    }

    /// Everything that is posted is done.
    fn retire(&self) {
        let (at, _) = self.published();
        // Every WQE of a case has as many blocks.
        let sq = self.qp.sq.as_ref().expect("a send queue");
        let view = sq.ring.view();
        for back in 1..=4_u32 {
            let block = at.wrapping_sub(back);
            if view.head(block) == self.published().1 {
                sq.retire(block as u16);
                return;
            }
        }
        panic!("the last WQE was not found");
    }

    fn published(&self) -> (u32, u32) {
        // SAFETY: one thread, and no reference is kept.
        let published = unsafe { self.queue.enter() }.expect("not entered").published();
        // SAFETY: entered above.
        unsafe { self.queue.leave() };
        published
    }
}

fn wr(i: u32) -> Wr {
    Wr { wr_id: i.into(), flags: SIGNALED }
}

/// Where the data is, and where it goes, as a program has it: in memory, for the typed face in the wire's form.
struct Places {
    sges: [Sge; BATCH as usize],
    remotes: [Remote; BATCH as usize],
    addr: u64,
    raddr: u64,
    lkey: u32,
    rkey: u32,
    data: [u8; 32],
    ah: Ah,
}

fn places() -> Places {
    let av = Av { rgid: [7; 16], ..Default::default() };
    let (addr, raddr, lkey, rkey) = (0x7f00_1234_0000_u64, 0x7e00_4321_0000_u64, 0x18_1a00, 0x18_1b00);
    black_box(Places {
        sges: core::array::from_fn(|i| Sge::new(addr + i as u64 * 64, 64, lkey).expect("short")),
        remotes: core::array::from_fn(|i| Remote::new(raddr + i as u64 * 64, rkey)),
        addr,
        raddr,
        lkey,
        rkey,
        data: [5; 32],
        ah: Ah::new(&av),
    })
}

impl Places {
    #[inline(always)]
    fn sge(&self, i: u32) -> Sge {
        self.sges[(i % BATCH) as usize]
    }
    #[inline(always)]
    fn remote(&self, i: u32) -> Remote {
        self.remotes[(i % BATCH) as usize]
    }
    #[inline(always)]
    fn to(&self) -> To<'_, Ah> {
        To { ah: &self.ah, remote_qpn: 7, remote_qkey: 0x1111 }
    }
}

/// The queue of a session that this case has to itself.
macro_rules! locked {
    ($queue:expr, |$q:ident| $body:expr) => {{
        // SAFETY: one thread, left right below.
        let $q = unsafe { $queue.enter() }.expect("not entered");
        $body;
        // SAFETY: entered above.
        unsafe { $queue.leave() };
    }};
}

fn typed_sends<L: Locking>(cases: &mut Cases, suffix: &str) {
    let floor = |name| if L::SHARED { None } else { Some(name) };

    let (s, p) = (Sends::<L>::new(QpType::Rc), places());
    cases.add(format!("typed write x1{suffix}"), floor("floor x1"), move || {
        let t = stretch(STRETCH, 1, |i| {
            locked!(s.queue, |q| {
                // SAFETY: no device reads the memory.
                let result = unsafe { q.post(wr(i), Connected, Write::new(p.remote(0)), &[p.sge(0)]) };
                result.unwrap_or_else(|_| std::process::abort());
            });
        });
        s.retire();
        t
    });

    let (s, p) = (Sends::<L>::new(QpType::Rc), places());
    cases.add(format!("typed write x1 by a batch{suffix}"), floor("floor x1"), move || {
        let t = stretch(STRETCH, 1, |i| {
            locked!(s.queue, |q| {
                let mut batch = q.batch();
                // SAFETY: no device reads the memory.
                unsafe { batch.push(wr(i), Connected, Write::new(p.remote(0)), &[p.sge(0)]) };
                batch.complete().unwrap_or_else(|_| std::process::abort());
            });
        });
        s.retire();
        t
    });

    let (s, p) = (Sends::<L>::new(QpType::Rc), places());
    cases.add(format!("typed write x32{suffix}"), floor("floor x32"), move || {
        let t = stretch(STRETCH, BATCH, |_| {
            locked!(s.queue, |q| {
                let mut batch = q.batch();
                for i in 0..BATCH {
                    // SAFETY: no device reads the memory.
                    unsafe { batch.push(wr(i), Connected, Write::new(p.remote(i)), &[p.sge(i)]) };
                }
                batch.complete().unwrap_or_else(|_| std::process::abort());
            });
        });
        s.retire();
        t
    });

    let (s, p) = (Sends::<L>::new(QpType::Rc), places());
    cases.add(format!("typed inline32 x1{suffix}"), None, move || {
        let t = stretch(STRETCH, 1, |i| {
            locked!(s.queue, |q| {
                // SAFETY: inline.
                let result =
                    unsafe { q.post(wr(i), Connected, Write::new(p.remote(0)), InlineArray(&p.data)) };
                result.unwrap_or_else(|_| std::process::abort());
            });
        });
        s.retire();
        t
    });

    let (s, p) = (Sends::<L>::new(QpType::Rc), places());
    cases.add(format!("typed inline32 x32{suffix}"), None, move || {
        let t = stretch(STRETCH, BATCH, |_| {
            locked!(s.queue, |q| {
                let mut batch = q.batch();
                for i in 0..BATCH {
                    // SAFETY: inline.
                    unsafe { batch.push(wr(i), Connected, Write::new(p.remote(i)), InlineArray(&p.data)) };
                }
                batch.complete().unwrap_or_else(|_| std::process::abort());
            });
        });
        s.retire();
        t
    });

    let (s, p) = (Sends::<L>::new(QpType::Ud), places());
    cases.add(format!("typed UD send x1{suffix}"), None, move || {
        let t = stretch(STRETCH, 1, |i| {
            locked!(s.queue, |q| {
                // SAFETY: no device reads the memory.
                let result = unsafe { q.post(wr(i), p.to(), Send::new(), &[p.sge(0)]) };
                result.unwrap_or_else(|_| std::process::abort());
            });
        });
        s.retire();
        t
    });

    let (s, p) = (Sends::<L>::new(QpType::Ud), places());
    cases.add(format!("typed UD send x32{suffix}"), None, move || {
        let t = stretch(STRETCH, BATCH, |_| {
            locked!(s.queue, |q| {
                let mut batch = q.batch();
                for i in 0..BATCH {
                    // SAFETY: no device reads the memory.
                    unsafe { batch.push(wr(i), p.to(), Send::new(), &[p.sge(i)]) };
                }
                batch.complete().unwrap_or_else(|_| std::process::abort());
            });
        });
        s.retire();
        t
    });
}

/// What a list is made of; the nodes point into it.
struct List {
    wrs: Vec<SendWr>,
    _sges: Vec<uverbs_core::wr::Sge>,
    _ah: Box<RawAh<Ah>>,
    _data: Box<[u8; 32]>,
}

#[derive(Clone, Copy)]
enum What {
    Write,
    Inline,
    Ud,
}

impl List {
    fn new(len: u32, what: What) -> Self {
        let p = places();
        let data = Box::new(p.data);
        let base = IbvAh { context: core::ptr::null_mut(), pd: core::ptr::null_mut(), handle: 0 };
        let ah = Box::new(RawAh { base, driver: p.ah });
        let sges: Vec<_> = (0..len)
            .map(|i| match what {
                What::Inline => uverbs_core::wr::Sge {
                    addr: data.as_ptr().expose_provenance() as u64,
                    length: 32,
                    lkey: 0,
                },
                _ => uverbs_core::wr::Sge { addr: p.addr + u64::from(i) * 64, length: 64, lkey: p.lkey },
            })
            .collect();
        let mut wrs: Vec<_> = (0..len as usize)
            .map(|i| {
                let mut wr = SendWr::new(i as u64, WrOpcode::RDMA_WRITE);
                (wr.sg_list, wr.num_sge) = (&raw const sges[i], 1);
                wr.send_flags = SIGNALED.bits();
                match what {
                    What::Ud => {
                        wr.opcode = WrOpcode::SEND;
                        let ah = core::ptr::from_ref(&*ah).cast();
                        wr.wr.ud = WrUd { ah, remote_qpn: 7, remote_qkey: 0x1111 };
                    }
                    _ => wr.wr.rdma = WrRdma { remote_addr: p.raddr + i as u64 * 64, rkey: p.rkey },
                }
                if matches!(what, What::Inline) {
                    wr.send_flags |= SendFlags::INLINE.bits();
                }
                wr
            })
            .collect();
        for i in 1..wrs.len() {
            wrs[i - 1].next = &raw const wrs[i];
        }
        Self { wrs, _sges: sges, _ah: ah, _data: data }
    }
}

fn raw_sends<L: Locking>(cases: &mut Cases, suffix: &str) {
    let kinds = [
        ("write", What::Write, QpType::Rc),
        ("inline32", What::Inline, QpType::Rc),
        ("UD send", What::Ud, QpType::Ud),
    ];
    for (name, what, qp_type) in kinds {
        for each in [1, BATCH] {
            let floor = match what {
                What::Write if !L::SHARED => Some(if each == 1 { "floor x1" } else { "floor x32" }),
                _ => None,
            };
            let (s, list) = (Sends::<L>::new(qp_type), List::new(each, what));
            cases.add(format!("post_send {name} x{each}{suffix}"), floor, move || {
                // Captured whole: the nodes point into the rest.
                let list = &list;
                let t = stretch(STRETCH, each, |_| {
                    // SAFETY: a well-formed list; one thread.
                    let result = unsafe { raw::post_send(&s.queue, black_box(list.wrs.as_ptr())) };
                    result.unwrap_or_else(|_| std::process::abort());
                });
                s.retire();
                t
            });

            let (s, p) = (Sends::<L>::new(qp_type), places());
            let raw_ah = Box::new(RawAh {
                base: IbvAh { context: core::ptr::null_mut(), pd: core::ptr::null_mut(), handle: 0 },
                driver: p.ah,
            });
            cases.add(format!("wr_* {name} x{each}{suffix}"), floor, move || {
                let mut qp = QpEx::new(&s.queue);
                qp.wr_flags = SIGNALED.bits();
                // A C program does not know which functions stand behind the pointers.
                let qp = black_box(&mut qp);
                let ah = core::ptr::from_ref(&*raw_ah).cast();
                let t = match what {
                    What::Write => stretch(STRETCH, each, |_| session(qp, each, What::Write, &p, ah)),
                    What::Inline => stretch(STRETCH, each, |_| session(qp, each, What::Inline, &p, ah)),
                    What::Ud => stretch(STRETCH, each, |_| session(qp, each, What::Ud, &p, ah)),
                };
                s.retire();
                t
            });
        }
    }
}

/// One session of `each` WRs.
#[inline(always)]
fn session(qp: &mut QpEx<'_>, each: u32, what: What, p: &Places, ah: *const IbvAh) {
    /// A call of a session.
    macro_rules! call {
        ($call:expr) => {
            // SAFETY: one thread, inside a session; no device reads the memory.
            unsafe { $call }
        };
    }
    call!(qp.wr_start());
    let mut done = 0;
    while done != u64::from(each) {
        qp.wr_id = done;
        let offset = done * 64;
        match what {
            What::Ud => call!(qp.wr_send()),
            _ => call!(qp.wr_rdma_write(p.rkey, p.raddr + offset)),
        }
        match what {
            What::Inline => call!(qp.wr_set_inline_data(p.data.as_ptr(), p.data.len())),
            _ => call!(qp.wr_set_sge(p.lkey, p.addr + offset, 64)),
        }
        if matches!(what, What::Ud) {
            call!(qp.wr_set_ud_addr(ah, 7, 0x1111));
        }
        done += 1;
    }
    call!(qp.wr_complete()).unwrap_or_else(|_| std::process::abort());
}

fn recvs<L: Locking>(cases: &mut Cases, suffix: &str) {
    /// A queue and what completes its receives.
    macro_rules! receive_queue {
        (rq) => {{
            let config =
                RecvConfig { qp_type: QpType::Rc, max_recv_wr: 512, max_recv_sge: 4, max_msg_sz: 1 << 30 };
            let recvs = testing::Receives::new(&config, 512, 64);
            let (rq, mut done) = (recvs.rq().clone(), 0_u32);
            let retire = move |count: u32| {
                for _ in 0..count {
                    rq.retire(done as u16);
                    done = done.wrapping_add(1);
                }
            };
            (Locked::<_, L>::new(recvs.queue), retire)
        }};
        (srq) => {{
            let recvs = testing::SharedReceives::new(512, 64, 3);
            let (srq, mut done) = (recvs.srq, 0_u32);
            let retire = move |count: u32| {
                // In the order of the list, which is that of the indices.
                for _ in 0..count {
                    srq.retire((done % 512) as u16);
                    done += 1;
                }
            };
            (Locked::<_, L>::new(recvs.queue), retire)
        }};
    }
    macro_rules! recv_cases {
        ($kind:ident, $typed:literal, $raw:literal) => {
            for each in [1, BATCH] {
                let ((queue, mut retire), p) = (receive_queue!($kind), places());
                cases.add(format!("typed {} x{each}{suffix}", $typed), None, move || {
                    let t = stretch(STRETCH, each, |i| {
                        locked!(queue, |q| if each == 1 {
                            // SAFETY: no device writes the memory.
                            let result = unsafe { q.post(i.into(), &[p.sge(i)]) };
                            result.unwrap_or_else(|_| std::process::abort());
                        } else {
                            let mut batch = q.batch();
                            for i in 0..BATCH {
                                // SAFETY: no device writes the memory.
                                unsafe { batch.push(i.into(), &[p.sge(i)]) };
                            }
                            batch.complete().unwrap_or_else(|_| std::process::abort());
                        });
                    });
                    retire(STRETCH);
                    t
                });

                let (queue, mut retire) = receive_queue!($kind);
                let sges: Vec<_> = (0..u64::from(each))
                    .map(|i| uverbs_core::wr::Sge { addr: p_addr() + i * 64, length: 64, lkey: 0x18_1a00 })
                    .collect();
                let mut wrs: Vec<_> = (0..each).map(|i| RecvWr::new(i.into())).collect();
                for i in 0..wrs.len() {
                    (wrs[i].sg_list, wrs[i].num_sge) = (&raw const sges[i], 1);
                    if i + 1 < wrs.len() {
                        wrs[i].next = &raw const wrs[i + 1];
                    }
                }
                cases.add(format!("{} x{each}{suffix}", $raw), None, move || {
                    let _ = &sges;
                    let t = stretch(STRETCH, each, |_| {
                        // SAFETY: a well-formed list; one thread.
                        let result = unsafe { raw::post_recv(&queue, black_box(wrs.as_ptr())) };
                        result.unwrap_or_else(|_| std::process::abort());
                    });
                    retire(STRETCH);
                    t
                });
            }
        };
    }
    recv_cases!(rq, "recv", "post_recv");
    recv_cases!(srq, "SRQ recv", "post_srq_recv");
}

fn p_addr() -> u64 {
    black_box(0x7f00_1234_0000)
}

/// A completion queue of one QP, and the device that fills it.
struct Completions<L: Locking> {
    queue: Locked<CompletionQueue, L>,
    _shared: Arc<CqShared>,
    buf: Arc<QueueBuf>,
    qp: Arc<QpShared>,
    cqe: Cqe64,
    producer: u32,
}

const CQES: u32 = 512;

impl<L: Locking> Completions<L> {
    fn new(responder: bool) -> Self {
        let buf = QueueBuf::new(CQES as usize * 64).expect("memory");
        let ring = CqRing::new(Arc::clone(&buf), CQES, 64).expect("a power of two");
        ring.clear();
        let (queue, shared) = CompletionQueue::new(CqConfig {
            cqn: 0x401,
            ring,
            dbrec: DbRecPages::default().alloc().expect("memory"),
            access: testing::cq_access(),
            arm: Arc::new(ArmRegister::new(&heap_page(), 0).expect("in the page")),
            version: CqeVersion::V1,
            dump_fill_mkey: 0x300,
            fields: WcExFlags::STANDARD,
            clock: None,
        });
        let sq = SqRing::new(QueueBuf::new(CQES as usize * 64).expect("memory"), 0, CQES).expect("a ring");
        let rq = StrideRing::new(QueueBuf::new(CQES as usize * 64).expect("memory"), 0, CQES, 64);
        let index = Arc::new(UserIndices::default()).take().expect("an index");
        let uidx = index.get();
        let qp = QpShared::new(
            testing::qp_access(),
            0xa1_b2c3,
            uidx,
            Some(Arc::new(SqShared::new(sq))),
            Some(Arc::new(RqShared::new(rq.expect("a ring")))),
            None,
        );
        let qp = Arc::new(qp.with_index(index));
        shared.attach_qp(&qp);
        let cqe = Cqe64 {
            srqn_uidx: Be32::new(uidx),
            // An RDMA write, or a send that a receive took.
            sop_drop_qpn: Be32::new(0x0800_0000 | 0xa1_b2c3),
            op_own: if responder { 0x20 } else { 0 },
            byte_cnt: Be32::new(64),
            ..Default::default()
        };
        Self { queue: Locked::new(queue), _shared: shared, buf, qp, cqe, producer: 0 }
    }

    /// The device completes so many.
    fn complete(&mut self, count: u32) {
        for _ in 0..count {
            let mut cqe = self.cqe;
            cqe.wqe_counter = Be16::new(self.producer as u16);
            cqe.op_own |= u8::from(self.producer & CQES != 0);
            let at = (self.producer % CQES) as usize * 8;
            for (word, bytes) in self.buf.words()[at..at + 8].iter().zip(cqe.as_bytes().chunks_exact(8)) {
                let bytes = bytes.try_into().expect("eight");
                word.store(u64::from_ne_bytes(bytes), Relaxed);
            }
            self.producer += 1;
        }
        let _ = &self.qp;
    }
}

fn polls<L: Locking>(cases: &mut Cases, suffix: &str) {
    for (kind, responder) in [("requester", false), ("responder", true)] {
        for each in [1, BATCH] {
            let mut c = Completions::<L>::new(responder);
            cases.add(format!("typed poll {kind} x{each}{suffix}"), None, move || {
                c.complete(STRETCH);
                stretch(STRETCH, each, |_| {
                    let mut sum = 0;
                    locked!(c.queue, |q| {
                        let n = q.poll_each(each as usize, |wc| {
                            sum += wc.wr_id() + u64::from(wc.status().0);
                        });
                        if n != Ok(each as usize) {
                            std::process::abort();
                        }
                    });
                    black_box(sum);
                })
            });
            let mut c = Completions::<L>::new(responder);
            let mut wcs = vec![WorkCompletion::default(); each as usize];
            cases.add(format!("poll_cq {kind} x{each}{suffix}"), None, move || {
                c.complete(STRETCH);
                stretch(STRETCH, each, |_| {
                    // SAFETY: one thread.
                    let n = unsafe { raw::poll_cq(&c.queue, black_box(&mut wcs[..])) };
                    if n != Ok(each as usize) {
                        std::process::abort();
                    }
                })
            });
            let mut c = Completions::<L>::new(responder);
            cases.add(format!("start_poll {kind} x{each}{suffix}"), None, move || {
                c.complete(STRETCH);
                stretch(STRETCH, each, |_| {
                    let mut sum = 0;
                    locked!(c.queue, |q| {
                        q.start_poll().unwrap_or_else(|_| std::process::abort());
                        for i in 0..each {
                            let Some(wc) = q.current() else { std::process::abort() };
                            sum += wc.wr_id() + u64::from(wc.status().0);
                            if i + 1 < each {
                                q.next_poll().unwrap_or_else(|_| std::process::abort());
                            }
                        }
                        q.end_poll();
                    });
                    black_box(sum);
                })
            });
        }
    }
    let c = Completions::<L>::new(false);
    cases.add(format!("typed poll empty{suffix}"), None, move || {
        stretch(STRETCH, 1, |_| {
            locked!(c.queue, |q| if q.poll_each(1, |_| ()) != Ok(0) {
                std::process::abort();
            });
        })
    });
    let c = Completions::<L>::new(false);
    cases.add(format!("poll_cq empty{suffix}"), None, move || {
        let mut wc = [WorkCompletion::default()];
        stretch(STRETCH, 1, |_| {
            // SAFETY: one thread.
            if unsafe { raw::poll_cq(&c.queue, black_box(&mut wc)) } != Ok(0) {
                std::process::abort();
            }
        })
    });
}

/// The stores and fences of a doorbell, and nothing else: what no driver can do without.
/// What no post can do without: a WQE, its `wr_id`, the doorbell record and the register, in memory of the size that the
/// queues of the cases have.
struct Floor {
    ring: Box<[[AtomicU64; 8]]>,
    wr_ids: Box<[AtomicU64]>,
    record: AtomicU32,
    register: [[AtomicU64; 32]; 2],
}

impl Floor {
    fn new() -> Self {
        Self {
            ring: (0..BLOCKS).map(|_| [const { AtomicU64::new(0) }; 8]).collect(),
            wr_ids: (0..BLOCKS).map(|_| AtomicU64::new(0)).collect(),
            record: AtomicU32::new(0),
            register: [const { [const { AtomicU64::new(0) }; 32] }; 2],
        }
    }

    /// Writes the three segments of an RDMA write.
    #[inline(always)]
    fn put(&self, at: u32) {
        let at = at as usize % BLOCKS as usize;
        self.ring[at][..6].iter().for_each(|w| w.store(at as u64, Relaxed));
        self.wr_ids[at].store(at as u64, Relaxed);
    }

    /// Rings with the first so many words.
    #[inline(always)]
    fn ring(&self, at: u32, words: usize) {
        to_device();
        self.record.store(at, Relaxed);
        write_combining_start();
        self.register[at as usize % 2][..words].iter().for_each(|w| w.store(at.into(), Relaxed));
        write_combining_flush();
    }
}

fn floors(cases: &mut Cases) {
    let (floor, mut at) = (Floor::new(), 0_u32);
    cases.add("floor x1", None, move || {
        stretch(STRETCH, 1, |_| {
            floor.put(at);
            floor.ring(at, 8);
            at = at.wrapping_add(1);
        })
    });
    let (floor, mut at) = (Floor::new(), 0_u32);
    cases.add("floor x32", None, move || {
        stretch(STRETCH, BATCH, |_| {
            for _ in 0..BATCH {
                floor.put(at);
                at = at.wrapping_add(1);
            }
            floor.ring(at, 1);
        })
    });
}

fn cases() -> Cases {
    let mut cases = Cases::default();
    floors(&mut cases);
    typed_sends::<Exclusive>(&mut cases, "");
    raw_sends::<Exclusive>(&mut cases, "");
    recvs::<Exclusive>(&mut cases, "");
    polls::<Exclusive>(&mut cases, "");
    typed_sends::<Shared>(&mut cases, ", shared");
    raw_sends::<Shared>(&mut cases, ", shared");
    recvs::<Shared>(&mut cases, ", shared");
    polls::<Shared>(&mut cases, ", shared");
    cases
}

/// Nanoseconds per operation: the median of rounds, in each of which a case and its floor take turns.
fn time(cases: &mut Cases, filter: &str) {
    const ROUNDS: usize = 31;
    const STRETCHES: u32 = 60;
    let round = |case: &mut Case| {
        let total: Duration = (0..STRETCHES).map(|_| (case.run)()).sum();
        total.as_secs_f64() * 1e9 / f64::from(STRETCHES * STRETCH)
    };
    let median = |values: &mut Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    for i in 0..cases.0.len() {
        if !cases.0[i].name.contains(filter) {
            continue;
        }
        let floor = cases.0[i].floor.and_then(|name| cases.0.iter().position(|c| c.name == name));
        let (mut ns, mut ratios) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let value = round(&mut cases.0[i]);
            ns.push(value);
            if let Some(floor) = floor {
                ratios.push(value / round(&mut cases.0[floor]));
            }
        }
        let ratio = if ratios.is_empty() { "-".to_owned() } else { format!("{:.3}", median(&mut ratios)) };
        report(format_args!("{}\t{:.3}\t{ratio}", cases.0[i].name, median(&mut ns)));
    }
}

#[expect(clippy::print_stdout, reason = "the output")]
#[allow(unfulfilled_lint_expectations, clippy::allow_attributes, reason = "the lint is not on everywhere")]
fn report(line: core::fmt::Arguments<'_>) {
    println!("{line}");
}

fn main() {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let mut cases = cases();
    match &args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["list"] => cases.0.iter().for_each(|c| report(format_args!("{}\t{STRETCH}", c.name))),
        ["ns"] => time(&mut cases, ""),
        ["ns", filter] => time(&mut cases, filter),
        ["run", name, times] => {
            let times: u32 = times.parse().expect("a number");
            let case = cases.0.iter_mut().find(|c| c.name == *name).expect("a case");
            for _ in 0..times {
                (case.run)();
            }
        }
        _ => panic!("usage: data_path list | ns [FILTER] | run CASE STRETCHES"),
    }
}
