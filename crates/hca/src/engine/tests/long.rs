// SPDX-License-Identifier: MIT OR Apache-2.0
//! A long message leaves the lock to other threads, and what goes in the middle of it is not accessed.

use super::rig::{ALL, BASE, End, PD, Ram, on, pair};
use crate::Fabric;
use crate::engine::mkey;
use crate::engine::qp::{QpKind, State};
use crate::memory::{Fault, Memory};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use core::time::Duration;
use std::sync::{Arc, Mutex};
use uverbs_fabric::process::Mapped;
use uverbs_mlx5_hw::wqe::MLX5_OPCODE_RDMA_WRITE;
use zerocopy::IntoBytes;

/// Memory in whose writes a test does something.
struct Acting {
    ram: Arc<Ram>,
    act: Box<dyn Fn(usize) + Send + Sync>,
    writes: AtomicUsize,
}

impl core::fmt::Debug for Acting {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("Acting").field(&self.writes).finish()
    }
}

impl Memory for Acting {
    fn len(&self) -> u64 {
        self.ram.len()
    }

    fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), Fault> {
        self.ram.read(offset, to)
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), Fault> {
        self.ram.write(offset, from)
    }

    fn mapped(&self, offset: u64, len: usize) -> Option<Mapped<'_>> {
        self.ram.mapped(offset, len)
    }

    fn write_mapped(&self, offset: u64, from: Mapped<'_>) -> Result<(), Fault> {
        (self.act)(self.writes.fetch_add(1, Ordering::Relaxed));
        self.ram.write_mapped(offset, from)
    }

    fn update(&self, offset: u64, f: &dyn Fn(u64) -> u64) -> Result<u64, Fault> {
        self.ram.update(offset, f)
    }

    fn load_be32(&self, offset: u64) -> Result<u32, Fault> {
        self.ram.load_be32(offset)
    }

    fn publish(&self, offset: u64, bytes: [u8; 8]) -> Result<(), Fault> {
        self.ram.publish(offset, bytes)
    }
}

const LONG: usize = 16 << 20;

/// A pair whose second end has a long region, and the key of the other one's.
fn long(act: impl Fn(usize) + Send + Sync + 'static) -> (Fabric, End, End, [u32; 2], Arc<Acting>) {
    let fabric = Fabric::new(0);
    let (a, b) = pair(&fabric, QpKind::Rc, 0);
    [&a, &b].into_iter().for_each(|end| end.attr(|attr| attr.mtu = 4096));
    let add = |end: &End, memory: Arc<dyn Memory>| {
        on(&end.hca, |device, _| {
            device.mkeys.add(0, PD, ALL, mkey::Kind::Region { memory, iova: BASE }).unwrap()
        })
    };
    let (from, to) = (Ram::new(LONG), Ram::new(LONG));
    from.set(0, &vec![7; LONG]);
    let acting = Arc::new(Acting { ram: to, act: Box::new(act), writes: AtomicUsize::new(0) });
    let keys = [add(&a, from), add(&b, Arc::clone(&acting) as Arc<dyn Memory>)];
    (fabric, a, b, keys, acting)
}

/// Writes all of the long region, as one message.
fn write_long(a: &mut End, [lkey, rkey]: [u32; 2]) -> u8 {
    a.key = lkey;
    a.write(0, LONG as u32, BASE, rkey);
    a.hca.fabric().run();
    let mut wc = None;
    while wc.is_none() {
        wc = a.send_cq.poll();
        std::thread::yield_now();
    }
    wc.unwrap().syndrome
}

#[test]
fn a_long_message_leaves_the_lock_to_others() {
    let (begun, entered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let before = Arc::new(AtomicUsize::new(0));
    let (fabric, mut a, _b, keys, acting) = {
        let (begun, entered, before) = (Arc::clone(&begun), Arc::clone(&entered), Arc::clone(&before));
        long(move |_| {
            begun.store(true, Ordering::SeqCst);
            if !entered.load(Ordering::SeqCst) {
                before.fetch_add(1, Ordering::SeqCst);
                // The other thread comes, and waits for the lock.
                std::thread::sleep(Duration::from_millis(20));
            }
        })
    };
    let other = {
        let (fabric, begun, entered) = (fabric.clone(), Arc::clone(&begun), Arc::clone(&entered));
        std::thread::spawn(move || {
            while !begun.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            fabric.enter(|_| entered.store(true, Ordering::SeqCst));
        })
    };
    assert_eq!(write_long(&mut a, keys), 0);
    other.join().unwrap();
    let (all, before) = (acting.writes.load(Ordering::Relaxed), before.load(Ordering::Relaxed));
    assert_eq!(acting.ram.get(0, LONG), vec![7; LONG]);
    assert!(before < all, "{before} of {all} parts were written before the other thread had the lock");
}

#[test]
fn the_last_request_before_the_lock_is_left_is_acknowledged() {
    const BYTES: u32 = 64 << 10;
    const COUNT: u32 = 16;
    let written = Arc::new(AtomicUsize::new(0));
    let (fabric, mut a, b, keys, _acting) = {
        let written = Arc::clone(&written);
        long(move |_| {
            if written.fetch_add(1, Ordering::SeqCst) == 0 {
                // The other thread comes, and waits for the lock.
                std::thread::sleep(Duration::from_millis(20));
            }
        })
    };
    [&a, &b].into_iter().for_each(|end| end.attr(|attr| attr.timeout = 0));
    let other = std::thread::spawn(move || {
        while written.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        fabric.enter(|_| ());
    });
    // Together as many bytes as are copied before the lock is left.
    a.key = keys[0];
    let (entry, to) = (a.sge(0, BYTES), super::rig::remote(BASE, keys[1]));
    let segments = [to.as_bytes(), entry.as_bytes()];
    let last = (0..COUNT).map(|_| a.write_wqe(MLX5_OPCODE_RDMA_WRITE, true, 0, &segments)).last();
    a.ring(last.unwrap());
    other.join().unwrap();
    for i in 0..COUNT {
        let wc = a.send_cq.poll().unwrap_or_else(|| panic!("request {i} is not complete"));
        assert_eq!(wc.syndrome, 0);
    }
}

#[test]
fn what_goes_in_the_middle_of_a_long_message_is_not_accessed() {
    // The region of the receiver, that of the sender, the receiver's queue, the sender's, and the receiver's link.
    for case in 0..5 {
        let begun = Arc::new(AtomicBool::new(false));
        let gone = Arc::new(AtomicBool::new(false));
        let late = Arc::new(Mutex::new(0));
        let (_fabric, mut a, b, keys, acting) = {
            let (begun, gone, late) = (Arc::clone(&begun), Arc::clone(&gone), Arc::clone(&late));
            long(move |_| {
                begun.store(true, Ordering::SeqCst);
                if !gone.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(20));
                }
                *late.lock().unwrap() += usize::from(gone.load(Ordering::SeqCst));
            })
        };
        a.attr(|attr| (attr.timeout, attr.retry_cnt) = (1, 1));
        a.qp(|_, _, qp| qp.req.retries = 1);
        let (hcas, qpns) = ([a.hca.clone(), b.hca.clone()], [a.qpn, b.qpn]);
        let other = {
            let (begun, gone) = (Arc::clone(&begun), Arc::clone(&gone));
            std::thread::spawn(move || {
                while !begun.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                let change = |device: &mut crate::engine::Device, cx: &mut crate::engine::Port<'_>| match case
                {
                    0 | 1 => drop(device.mkeys.remove(keys[1 - case])),
                    2 => device.remove_qp(qpns[1]),
                    3 => {
                        device.move_qp(cx, qpns[0], State::Reset);
                    }
                    _ => cx.address_mut().unwrap().up = false,
                };
                on(&hcas[usize::from(matches!(case, 0 | 2 | 4))], change);
                gone.store(true, Ordering::SeqCst);
            })
        };
        if case == 3 {
            // A queue in RESET completes nothing.
            a.key = keys[0];
            a.write(0, LONG as u32, BASE, keys[1]);
        } else {
            assert_ne!(write_long(&mut a, keys), 0, "case {case}");
        }
        other.join().unwrap();
        let all = acting.writes.load(Ordering::Relaxed);
        assert!(all < LONG / (128 << 10), "case {case}: all parts were written");
        assert_eq!(*late.lock().unwrap(), 0, "case {case}: written after the change");
    }
}
