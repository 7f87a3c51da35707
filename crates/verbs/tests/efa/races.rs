// SPDX-License-Identifier: MIT OR Apache-2.0
//! Accesses of the program that no completion orders with those of the device are found, in the modes of order.

use crate::bed::{QKEY, on_both};
use crate::raw::{End, pair};
use uverbs::Driver;
use uverbs::wr::ImmData;
use uverbs_hca::explore::Mode;

on_both! { a_race_is_reported_with_both_sides }

const WEAK: [Mode; 3] = [Mode::Pcie, Mode::Relaxed, Mode::Model];

/// What a program does with memory that a request uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    /// Writes the bytes that a WRITE or SEND takes from here.
    Source,
    /// Reads the bytes that a WRITE or SEND brings to the peer.
    Target,
    /// Reads the bytes that a READ brings here.
    Result,
}

/// A race: whether the program writes, whether the device writes, the bytes of the program, and all in words.
type Found = (bool, bool, usize, String);

/// Posts a request, and accesses its memory after its completion; if `early`, also before each step of the devices.
fn races<D: Driver>(mode: Mode, access: Access, is_send: bool, early: bool) -> Vec<Found> {
    let (mut a, mut b, to_b, _to_a) = pair::<D>();
    let fabric = a.device.fabric().clone();
    fabric.order_by_hand(mode);
    assert!(fabric.check_races(), "another library watches");
    let qpn = b.here.qp_num;
    b.recv(1, 0..256);
    let sge = [a.mr.sge(0..256).unwrap()];
    let to = b.mr.remote(0).unwrap();
    let sq = a.qp.sq();
    let wr = sq.post_to(1, &to_b, qpn, QKEY).signaled();
    match (access, is_send) {
        // SAFETY: the regions live until the completion, and are accessed by copies.
        (Access::Result, _) => unsafe { wr.read(&sge, to) },
        // SAFETY: as above.
        (_, true) => unsafe { wr.send(&sge) },
        // SAFETY: as above.
        (_, false) => unsafe { wr.write_imm(&sge, to, ImmData::new(1)) },
    }
    .unwrap();
    let look = |a: &End<D>, b: &End<D>| match access {
        Access::Source => a.mr.write_at(100, &[2; 8]).unwrap(),
        Access::Target => drop(b.bytes::<8>(100)),
        Access::Result => drop(a.bytes::<8>(100)),
    };
    while let Some(first) = fabric.steps().first() {
        if early {
            look(&a, &b);
        }
        assert!(fabric.take_step(first.step));
    }
    a.poll();
    if access != Access::Result {
        b.poll();
    }
    look(&a, &b);
    let races = fabric.take_races().into_iter();
    races.map(|race| (race.program_writes, race.device_writes, race.program.1, race.to_string())).collect()
}

fn a_race_is_reported_with_both_sides<D: Driver>() {
    for mode in WEAK {
        for (access, is_send) in [
            (Access::Source, false),
            (Access::Source, true),
            (Access::Target, false),
            (Access::Target, true),
            (Access::Result, false),
        ] {
            let case = format!("{mode}, {access:?}, SEND: {is_send}");
            let found = races::<D>(mode, access, is_send, true);
            assert!(!found.is_empty(), "{case}");
            let op = match (access, is_send) {
                (Access::Result, _) => "READ",
                (_, true) => "SEND",
                (_, false) => "WRITE",
            };
            for (program_writes, device_writes, bytes, words) in found {
                let is_source = access == Access::Source;
                assert_eq!(
                    (program_writes, device_writes, bytes),
                    (is_source, !is_source, 8),
                    "{case}: {words}"
                );
                assert!(words.contains(op), "{case}: {words}");
            }
            assert_eq!(races::<D>(mode, access, is_send, false), [], "{case}");
        }
    }
}
