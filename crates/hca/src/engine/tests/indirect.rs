// SPDX-License-Identifier: MIT OR Apache-2.0
//! Indirect keys: lists and strided blocks, set by updates, used at either end.

use super::rig::{BASE, End, MEMORY, PD, on, pair};
use crate::engine::indirect::MAX_INDIRECTION;
use crate::engine::mkey::{Kind, NULL_MKEY, User, access};
use crate::engine::qp::QpKind;
use crate::fabric::Fabric;
use uverbs_mlx5_hw::cqe as hw;
use uverbs_mlx5_hw::wqe::{
    DataSeg, KlmSeg, MLX5_OPCODE_SEND, MLX5_OPCODE_SEND_INVAL, MLX5_OPCODE_UMR, MLX5_WQE_MKEY_CONTEXT_FREE,
    MLX5_WQE_UMR_CTRL_FLAG_CHECK_QPN, MLX5_WQE_UMR_CTRL_FLAG_INLINE as INLINE,
    MLX5_WQE_UMR_CTRL_FLAG_TRNSLATION_OFFSET as OFFSET, MkeyContextSeg, UmrCtrlSeg,
};
use uverbs_mlx5_hw::{Be16, Be32, Be64};
use zerocopy::{FromZeros, IntoBytes};

pub(super) const LEN: u64 = 1;
const KEY: u64 = 1 << 13;
pub(super) const ACCESS: u64 = 0xf << 18;
pub(super) const FREE: u64 = 1 << 29;
pub(super) const ALL: u8 = 0x7c;
const LOCAL_WRITE: u8 = 1 << 3;
const REMOTE_READ: u8 = 1 << 4;
const BIND_ERR: u8 = hw::MLX5_CQE_SYNDROME_MW_BIND_ERR;
const ACCESS_ERR: u8 = hw::MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR;

/// An update of a key.
#[derive(Clone, Debug, Default)]
pub(super) struct Update {
    pub(super) flags: u8,
    pub(super) mask: u64,
    pub(super) free: bool,
    pub(super) access: u8,
    pub(super) flags_pd: u32,
    pub(super) len: u64,
    /// Units of the list, their place or their number and the signature's units, and what is behind the key's fields.
    pub(super) units: u16,
    pub(super) union: u16,
    pub(super) behind: Vec<u8>,
}

impl Update {
    /// As libmlx5 sets a list of entries.
    pub(super) fn list(entries: &[[u8; 16]], len: u64) -> Self {
        let mut behind = entries.concat();
        behind.resize(behind.len().next_multiple_of(64), 0);
        let units = (behind.len() / 16) as u16;
        Self { flags: INLINE, mask: FREE | LEN | ACCESS, access: ALL, len, units, behind, ..Self::default() }
    }

    pub(super) fn post(&self, end: &mut End, key: u32) -> u8 {
        let ctrl = UmrCtrlSeg {
            flags: self.flags,
            klm_octowords: Be16::new(self.units),
            translation_offset: Be16::new(self.union),
            mkey_mask: Be64::new(self.mask),
            ..FromZeros::new_zeroed()
        };
        let mkey = MkeyContextSeg {
            free: if self.free { MLX5_WQE_MKEY_CONTEXT_FREE } else { 0 },
            access_flags: self.access,
            qpn_mkey: Be32::new(0xffff_ff00),
            flags_pd: Be32::new(self.flags_pd),
            len: Be64::new(self.len),
            ..FromZeros::new_zeroed()
        };
        end.post(MLX5_OPCODE_UMR, key, &[ctrl.as_bytes(), mkey.as_bytes(), &self.behind]);
        end.send_cq.poll().unwrap().syndrome
    }
}

pub(super) fn klm(len: u32, key: u32, at: u64) -> [u8; 16] {
    let klm = KlmSeg { byte_count: Be32::new(len), mkey: Be32::new(key), address: Be64::new(at) };
    zerocopy::transmute!(klm)
}

/// A block of strided parts: length, skipped bytes, key, address.
fn block(count: u32, parts: &[(u16, u16, u32, u64)]) -> Vec<[u8; 16]> {
    let mut head = [0; 16];
    let len: u32 = parts.iter().map(|part| u32::from(part.0)).sum();
    head[..4].copy_from_slice(&len.to_be_bytes());
    head[4..8].copy_from_slice(&0x400_u32.to_be_bytes());
    head[8..12].copy_from_slice(&count.to_be_bytes());
    head[14..].copy_from_slice(&(parts.len() as u16).to_be_bytes());
    let entry = |(len, skip, key, addr): &(u16, u16, u32, u64)| {
        let mut entry = [0; 16];
        entry[..2].copy_from_slice(&(len + skip).to_be_bytes());
        entry[2..4].copy_from_slice(&len.to_be_bytes());
        entry[4..8].copy_from_slice(&key.to_be_bytes());
        entry[8..].copy_from_slice(&addr.to_be_bytes());
        entry
    };
    core::iter::once(head).chain(parts.iter().map(entry)).collect()
}

pub(super) fn indirect(end: &End, by_peer: bool, room: usize) -> u32 {
    on(&end.hca, |device, _| {
        let kind = device.mkeys.indirect(by_peer, room, false);
        device.mkeys.add(0, PD, 0, kind).unwrap()
    })
}

fn rc() -> (End, End) {
    pair(&Fabric::deterministic(1), QpKind::Rc, 0)
}

/// Three parts of the memory of an end, and the places of their bytes.
fn three(end: &End) -> (Vec<[u8; 16]>, Vec<usize>) {
    let parts = [(300, 4000), (1, 100), (500, 1000)];
    let list = parts.map(|(len, at)| klm(len, end.key, BASE + at));
    let places = parts.into_iter().flat_map(|(len, at)| at as usize..at as usize + len as usize);
    (list.to_vec(), places.collect())
}

#[test]
fn a_peer_reads_and_writes_the_parts_of_a_list_in_order() {
    for (at, len) in [(0, 801), (0, 300), (299, 3), (250, 551), (300, 1), (301, 500), (800, 1)] {
        let (mut a, mut b) = rc();
        let key = indirect(&b, false, 4);
        let (list, places) = three(&b);
        assert_eq!(Update::list(&list, 801).post(&mut b, key), 0);
        let data = a.fill(0, len, 3);
        a.write(0, len as u32, at, key);
        assert_eq!(a.send_cq.poll().unwrap().syndrome, 0, "{at} {len}");
        let there: Vec<u8> = places[at as usize..][..len].iter().map(|at| b.memory.get(*at, 1)[0]).collect();
        assert_eq!(there, data);
        a.read(5000, len as u32, at, key);
        assert_eq!(a.send_cq.poll().unwrap().syndrome, 0);
        assert_eq!(a.memory.get(5000, len), data);
        // Nothing else was written.
        let written = b.memory.get(0, MEMORY).iter().filter(|byte| **byte != 0).count();
        assert_eq!(written, data.iter().filter(|byte| **byte != 0).count());
    }
}

#[test]
fn local_keys_gather_and_scatter() {
    let (mut a, mut b) = rc();
    let keys = [&mut a, &mut b].map(|end| {
        let key = indirect(end, false, 4);
        let (list, _) = three(end);
        assert_eq!(Update::list(&list, 801).post(end, key), 0);
        key
    });
    let (_, places) = three(&a);
    let data = a.fill(0, 8000, 9);
    // Addresses of the key begin at 0.
    b.recv_to(DataSeg::new(700, keys[1], 10));
    a.post(MLX5_OPCODE_SEND, 0, &[DataSeg::new(700, keys[0], 10).as_bytes()]);
    assert_eq!(a.send_cq.poll().unwrap().syndrome, 0);
    assert_eq!(b.recv_cq.poll().unwrap().bytes, 700);
    for at in &places[10..710] {
        assert_eq!(b.memory.get(*at, 1)[0], data[*at], "{at}");
    }
    assert_eq!([places[9], places[710]].map(|at| b.memory.get(at, 1)[0]), [0; 2]);
}

#[test]
fn an_access_outside_or_without_the_rights_is_refused() {
    // What is wrong, and whether a read or a write of 100 bytes at an address is refused.
    for (rights, at, writes) in [
        (ALL, 702, true),
        (ALL, 801, false),
        (ALL, u64::MAX - 50, false),
        (ALL & !REMOTE_READ, 0, false),
        (REMOTE_READ | LOCAL_WRITE, 0, true),
    ] {
        let (mut a, mut b) = rc();
        let key = indirect(&b, false, 4);
        let (list, _) = three(&b);
        assert_eq!(Update { access: rights, ..Update::list(&list, 801) }.post(&mut b, key), 0);
        if writes {
            a.write(0, 100, at, key)
        } else {
            a.read(0, 100, at, key)
        };
        assert_eq!(a.send_cq.poll().unwrap().syndrome, ACCESS_ERR, "{rights:#x} {at:#x} {writes}");
        assert!(b.memory.get(0, MEMORY).iter().all(|byte| *byte == 0));
    }
}

#[test]
fn each_key_below_is_checked_at_each_access() {
    // Destroyed; of another domain; without the right to write; too short; free; none; the null region, which gives access.
    for check in 0..7 {
        let (mut a, mut b) = rc();
        let key = indirect(&b, false, 4);
        let other = on(&b.hca, |device, _| {
            let region = device.mkeys.get(b.key).unwrap().kind.clone();
            let rights = if check == 2 { access::REMOTE_READ } else { super::rig::ALL };
            let kind = if check == 4 { Kind::Free } else { region };
            device.mkeys.add(0, if check == 1 { PD + 1 } else { PD }, rights, kind).unwrap()
        });
        let at = if check == 3 { BASE + MEMORY as u64 - 50 } else { BASE };
        let below = match check {
            5 => 0,
            6 => NULL_MKEY,
            _ => other,
        };
        let list = [klm(100, b.key, BASE + 500), klm(100, below, at)];
        // The update does not look at the keys below.
        assert_eq!(Update::list(&list, 200).post(&mut b, key), 0);
        if check == 0 {
            on(&b.hca, |device, _| device.mkeys.remove(other));
        }
        a.fill(0, 200, 1);
        a.write(0, 200, 0, key);
        let want = if check == 6 { 0 } else { ACCESS_ERR };
        assert_eq!(a.send_cq.poll().unwrap().syndrome, want, "{check}");
        // A refused message writes nothing, also to its first part.
        assert_eq!(b.memory.get(500, 1)[0] != 0, check == 6);
    }
}

#[test]
fn keys_may_be_above_each_other_up_to_a_limit_and_loops_end() {
    let (mut a, mut b) = rc();
    let mut below = b.key;
    let mut at = BASE;
    for depth in 1..=MAX_INDIRECTION + 1 {
        let key = indirect(&b, false, 4);
        let list = [klm(8, below, at), klm(8, below, at + 100)];
        assert_eq!(Update::list(&list, 16).post(&mut b, key), 0);
        let user = User { pd: PD, qpn: 0 };
        let found =
            on(&b.hca, |device, _| device.mkeys.resolve(user, key, 0, 8, access::REMOTE_WRITE).is_ok());
        assert_eq!(found, depth <= MAX_INDIRECTION, "{depth}");
        (below, at) = (key, 0);
        if depth == 2 {
            a.fill(0, 8, 1);
            a.write(0, 8, 0, key);
            assert_eq!(a.send_cq.poll().unwrap().syndrome, 0);
            assert_eq!(b.memory.get(0, 8), a.memory.get(0, 8));
            // The second part begins behind the end of the key below.
            at = 8;
            let list = [klm(8, key, at)];
            let above = indirect(&b, false, 4);
            assert_eq!(Update::list(&list, 8).post(&mut b, above), 0);
            a.write(0, 8, 0, above);
            assert_eq!(a.send_cq.poll().unwrap().syndrome, ACCESS_ERR);
            (a, b) = rc();
            (below, at) = (b.key, BASE);
            for _ in 0..2 {
                let key = indirect(&b, false, 4);
                assert_eq!(Update::list(&[klm(8, below, at)], 8).post(&mut b, key), 0);
                (below, at) = (key, 0);
            }
        }
    }
    let loops = [0, 1].map(|_| indirect(&b, false, 4));
    for (key, other) in [(loops[0], loops[1]), (loops[1], loops[0])] {
        assert_eq!(Update::list(&[klm(64, other, 0)], 64).post(&mut b, key), 0);
    }
    a.write(0, 8, 0, loops[0]);
    assert_eq!(a.send_cq.poll().unwrap().syndrome, ACCESS_ERR);
}

#[test]
fn strided_blocks_are_as_a_list_of_their_parts() {
    // Parts that are apart, next to each other, and that overlap; a block between parts.
    let shapes: [&[(u16, u16, u64)]; 4] = [
        &[(8, 2, 0), (8, 2, 640)],
        &[(7, 0, 0), (1, 30, 2000), (100, 3, 3000)],
        &[(5, 60_000, 0)],
        &[(16, 0, 0)],
    ];
    for (i, shape) in shapes.into_iter().enumerate() {
        let (mut a, mut b) = rc();
        let key = indirect(&b, false, 16);
        let count = if i == 2 { 1 } else { 7 };
        let parts: Vec<_> =
            shape.iter().map(|(len, skip, at)| (*len, *skip, b.key, BASE + 100 + at)).collect();
        let mut list = vec![klm(9, b.key, BASE + 9000)];
        list.extend(block(count, &parts));
        list.push(klm(5, b.key, BASE + 9100));
        let mut places: Vec<usize> = (9000..9009).collect();
        for nth in 0..u64::from(count) {
            for (len, skip, at) in shape {
                let stride = u64::from(len + skip);
                places.extend((0..u64::from(*len)).map(|byte| (100 + at + nth * stride + byte) as usize));
            }
        }
        places.extend(9100..9105);
        let all = places.len();
        assert_eq!(Update::list(&list, all as u64).post(&mut b, key), 0);
        for (at, len) in [(0, all), (3, all - 3), (9, 1), (all - 6, 6), (7, all - 10), (8, 3), (all - 1, 1)] {
            b.memory.set(0, &vec![0; MEMORY]);
            let data = a.fill(0, len, 3);
            a.write(0, len as u32, at as u64, key);
            assert_eq!(a.send_cq.poll().unwrap().syndrome, 0, "shape {i}, {at} {len}");
            let there: Vec<u8> = places[at..at + len].iter().map(|at| b.memory.get(*at, 1)[0]).collect();
            assert_eq!(there, data, "shape {i}, {at} {len}");
            a.read(20_000, len as u32, at as u64, key);
            assert_eq!(a.send_cq.poll().unwrap().syndrome, 0);
            assert_eq!(a.memory.get(20_000, len), data);
        }
    }
}

#[test]
fn a_strided_part_is_checked_up_to_its_last_byte_in_the_access() {
    let (mut a, mut b) = rc();
    // The third repetition ends exactly at the end of the region, the fourth is outside.
    let key = indirect(&b, false, 4);
    let list = block(4, &[(10, 90, b.key, BASE + MEMORY as u64 - 210)]);
    assert_eq!(Update::list(&list, 40).post(&mut b, key), 0);
    a.write(0, 30, 0, key);
    assert_eq!(a.send_cq.poll().unwrap().syndrome, 0);
    a.write(0, 31, 0, key);
    assert_eq!(a.send_cq.poll().unwrap().syndrome, ACCESS_ERR);
    // Repetitions at the same place, and before each other's end.
    for stride in [0_u16, 3] {
        let (mut a, mut b) = rc();
        let key = indirect(&b, false, 4);
        let mut list = block(3, &[(10, 0, b.key, BASE)]);
        list[1][..2].copy_from_slice(&stride.to_be_bytes());
        assert_eq!(Update::list(&list, 30).post(&mut b, key), 0);
        let data = b.fill(0, 100, 1);
        a.read(0, 27, 2, key);
        assert_eq!(a.send_cq.poll().unwrap().syndrome, 0);
        let want: Vec<u8> = (2..29).map(|i| data[i / 10 * usize::from(stride) + i % 10]).collect();
        assert_eq!(a.memory.get(0, 27), want);
    }
}

#[test]
fn an_update_changes_only_what_it_has() {
    let (mut a, mut b) = rc();
    let key = indirect(&b, false, 8);
    let (list, places) = three(&b);
    assert_eq!(Update::list(&list, 801).post(&mut b, key), 0);
    // Rights only.
    let rights = Update { flags: INLINE, mask: FREE | ACCESS, access: REMOTE_READ, ..Update::default() };
    assert_eq!(rights.post(&mut b, key), 0);
    b.memory.set(places[800], &[77]);
    a.read(0, 1, 800, key);
    assert_eq!((a.send_cq.poll().unwrap().syndrome, a.memory.get(0, 1)[0]), (0, 77));
    // One entry of the list, by its place; the length follows.
    let one = [klm(700, b.key, BASE + 30_000), [0; 16], [0; 16], [0; 16]].concat();
    let part = Update {
        flags: INLINE | OFFSET,
        mask: FREE | LEN,
        len: 1001,
        units: 4,
        union: 2,
        behind: one,
        ..Update::default()
    };
    assert_eq!(part.post(&mut b, key), 0);
    b.memory.set(30_699, &[78]);
    a.read(0, 1, 1000, key);
    assert_eq!((a.send_cq.poll().unwrap().syndrome, a.memory.get(0, 1)[0]), (0, 78));
    a.read(0, 1, 299, key);
    assert_eq!(a.send_cq.poll().unwrap().syndrome, 0);
    // A list in memory.
    let list = [klm(4, b.key, BASE + 100), klm(4, b.key, BASE + 50)];
    b.memory.set(40_000, &list.concat());
    let far = Update {
        flags: 0,
        mask: FREE | LEN,
        len: 8,
        units: 4,
        behind: DataSeg::new(64, b.key, BASE + 40_000).as_bytes().to_vec(),
        ..Update::default()
    };
    assert_eq!(far.post(&mut b, key), 0);
    b.memory.set(50, b"efgh");
    b.memory.set(100, b"abcd");
    a.read(0, 8, 0, key);
    assert_eq!((a.send_cq.poll().unwrap().syndrome, a.memory.get(0, 8)), (0, b"abcdefgh".to_vec()));
    // It must be readable, and as long as the update says.
    for wrong in [DataSeg::new(63, b.key, BASE), DataSeg::new(64, b.key, BASE + MEMORY as u64 - 63)] {
        let (_a, mut b) = rc();
        let key = indirect(&b, false, 8);
        assert_eq!(Update { behind: wrong.as_bytes().to_vec(), ..far.clone() }.post(&mut b, key), BIND_ERR);
    }
}

#[test]
fn invalid_lists_are_refused_and_leave_the_key() {
    let short = |entries: &[[u8; 16]]| Update::list(entries, 16);
    let mut sum = block(2, &[(10, 0, 0, 0)]);
    sum[0][3] = 11;
    let mut parts = block(2, &[(10, 0, 0, 0)]);
    parts[0][15] = 9;
    let wide = block(u32::MAX, &[(u16::MAX, 0, 1, 0); 12]);
    let wide = (0..2).flat_map(|_| wide.clone()).collect::<Vec<_>>();
    for (what, update) in [
        ("too many entries", short(&[klm(8, 1, 0); 5])),
        ("the sum of a block", short(&sum)),
        ("the parts of a block", short(&parts)),
        ("a window's fields without a window's list", Update { mask: FREE | KEY | 1 << 6, ..short(&[]) }),
        ("a signature", Update { mask: FREE | 1 << 12, ..short(&[]) }),
        ("a place behind the end", Update { flags: INLINE | OFFSET, union: 1, ..short(&[klm(8, 1, 0)]) }),
    ] {
        let (mut a, mut b) = rc();
        let key = indirect(&b, false, 4);
        assert_eq!(short(&[klm(16, b.key, BASE)]).post(&mut b, key), 0);
        assert_eq!(update.post(&mut b, key), BIND_ERR, "{what}");
        a.write(0, 16, 0, key);
        // The owner of the key is in the state ERR; a part of it would be visible to another queue.
        on(&b.hca, |device, _| {
            let user = User { pd: PD, qpn: 0 };
            assert!(device.mkeys.resolve(user, key, 0, 16, access::REMOTE_WRITE).is_ok(), "{what}");
        });
    }
    // Long blocks are no error as long as their length is a number.
    let (_a, mut b) = rc();
    let key = indirect(&b, false, 64);
    assert_eq!(Update::list(&wide, u64::MAX).post(&mut b, key), 0);
}

#[test]
fn a_key_of_another_domain_or_kind_is_not_updated() {
    let (_a, mut b) = rc();
    let foreign = on(&b.hca, |device, _| {
        let kind = device.mkeys.indirect(false, 4, false);
        device.mkeys.add(0, PD + 1, 0, kind).unwrap()
    });
    assert_eq!(Update::list(&[klm(8, b.key, BASE)], 8).post(&mut b, foreign), BIND_ERR);
    for key in [b.key, NULL_MKEY, 0x123] {
        let (_a, mut b) = rc();
        assert_eq!(Update::list(&[klm(8, b.key, BASE)], 8).post(&mut b, key), BIND_ERR);
    }
}

fn invalidation() -> Update {
    Update {
        flags: INLINE | OFFSET | MLX5_WQE_UMR_CTRL_FLAG_CHECK_QPN,
        mask: FREE | KEY | 1 << 14,
        free: true,
        ..Update::default()
    }
}

#[test]
fn an_invalidated_key_gives_no_access_until_it_is_set_again() {
    for by_peer in [false, true] {
        let (mut a, mut b) = rc();
        let key = indirect(&b, true, 4);
        let list = Update::list(&[klm(8, b.key, BASE)], 8);
        assert_eq!(list.post(&mut b, key), 0);
        if by_peer {
            b.recv(5000, 16);
            let sge = a.sge(0, 16);
            a.post(MLX5_OPCODE_SEND_INVAL, key, &[sge.as_bytes()]);
            assert_eq!(a.send_cq.poll().unwrap().syndrome, 0);
            assert_eq!(b.recv_cq.poll().unwrap().imm, key);
        } else {
            assert_eq!(invalidation().post(&mut b, key), 0);
        }
        let usable = |b: &End| {
            let user = User { pd: PD, qpn: 0 };
            on(&b.hca, |device, _| device.mkeys.resolve(user, key, 0, 8, access::REMOTE_WRITE).is_ok())
        };
        assert!(!usable(&b));
        assert_eq!(list.post(&mut b, key), 0);
        a.write(0, 8, 0, key);
        assert_eq!(a.send_cq.poll().unwrap().syndrome, 0);
        assert_eq!(invalidation().post(&mut b, key), 0);
        assert!(!usable(&b));
        // A free key can't be invalidated.
        assert_eq!(invalidation().post(&mut b, key), BIND_ERR);
    }
    // Without the flag, a peer must not.
    let (mut a, mut b) = rc();
    let key = indirect(&b, false, 4);
    assert_eq!(Update::list(&[klm(8, b.key, BASE)], 8).post(&mut b, key), 0);
    b.recv(5000, 16);
    let sge = a.sge(0, 16);
    a.post(MLX5_OPCODE_SEND_INVAL, key, &[sge.as_bytes()]);
    assert_eq!(b.recv_cq.poll().unwrap().syndrome, BIND_ERR);
}

#[test]
fn an_atomic_needs_its_bytes_in_one_part() {
    let (mut a, mut b) = rc();
    let key = indirect(&b, false, 8);
    let list = [klm(8, b.key, BASE + 800), klm(12, b.key, BASE + 160), klm(8, b.key, BASE + 320)];
    assert_eq!(Update::list(&list, 28).post(&mut b, key), 0);
    b.memory.set(160, &41_u64.to_ne_bytes());
    a.fetch_add(0, 8, key, 1);
    assert_eq!(a.send_cq.poll().unwrap().syndrome, 0);
    assert_eq!(
        (a.memory.get(0, 8), b.memory.get(160, 8)),
        (41_u64.to_ne_bytes().into(), 42_u64.to_ne_bytes().into())
    );
    a.fetch_add(0, 16, key, 1);
    assert_eq!(a.send_cq.poll().unwrap().syndrome, hw::MLX5_CQE_SYNDROME_REMOTE_OP_ERR);
}

#[test]
fn lists_of_all_keys_are_limited_together() {
    let (_a, b) = rc();
    let list = vec![klm(8, b.key, BASE); 1 << 16];
    on(&b.hca, |device, _| {
        let keys: Vec<u32> = (0..33)
            .map(|_| {
                let kind = device.mkeys.indirect(false, 1 << 16, false);
                device.mkeys.add(0, PD, 0, kind).unwrap()
            })
            .collect();
        let user = User { pd: PD, qpn: 0 };
        let update = crate::decode::Umr {
            mkey: 0,
            check_free: false,
            check_qpn: false,
            mask: FREE,
            free: false,
            access: 0,
            variant: 0,
            qpn: 0,
            start: 0,
            len: 0,
            signs: false,
            at: None,
            entries: crate::decode::Entries::Kept,
            bsf: None,
        };
        let set = |device: &mut crate::engine::Device, key: u32, list: &[[u8; 16]]| {
            let update = crate::decode::Umr { mkey: key, ..update.clone() };
            device.mkeys.update(user, &update, Some(list))
        };
        for key in &keys[..32] {
            set(device, *key, &list).unwrap();
        }
        assert_eq!(device.mkeys.listed(), 1 << 24);
        assert!(set(device, keys[32], &list[..1]).is_err());
        // The same list again is no growth; a removed key makes room.
        set(device, keys[0], &list).unwrap();
        device.mkeys.remove(keys[0]);
        set(device, keys[32], &list).unwrap();
        assert_eq!(device.mkeys.listed(), 1 << 24);
    });
    // A key above keys has more parts than an access may have.
    let (_a, mut b) = rc();
    let high = on(&b.hca, |device, _| {
        let mut below = (b.key, BASE, 1_u64);
        for _ in 0..3 {
            let list = vec![klm(below.2 as u32, below.0, below.1); 1 << 7];
            let kind = device.mkeys.listed_key(0, below.2 << 7, &list, None).unwrap();
            below = (device.mkeys.add(0, PD, super::rig::ALL, kind).unwrap(), 0, below.2 << 7);
        }
        below
    });
    let user = User { pd: PD, qpn: 0 };
    let resolve = |b: &mut End, len| {
        on(&b.hca, |device, _| device.mkeys.resolve(user, high.0, 0, len, access::REMOTE_READ).is_ok())
    };
    assert!(resolve(&mut b, 1 << 16));
    assert!(!resolve(&mut b, 1 << 21));
}

/// A sequence of numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }
}

/// A part of a model: bytes, key (`None` for the region), address, and the blocks with the strides that it is in.
type ModelPart = (u64, Option<usize>, u64);

/// The byte of the region at an address of a key.
fn place_in(keys: &[Vec<ModelPart>], key: usize, mut at: u64, depth: u32) -> Option<u64> {
    if depth == MAX_INDIRECTION {
        return None;
    }
    for (len, below, addr) in &keys[key] {
        if at < *len {
            return match below {
                None => Some(addr + at).filter(|place| *place < MEMORY as u64),
                Some(below) => place_in(keys, *below, addr + at, depth + 1),
            };
        }
        at -= len;
    }
    None
}

#[test]
fn random_lists_of_several_keys_agree_with_a_model() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for round in 0..40 {
        let (_a, mut b) = rc();
        let data: Vec<u8> = (0..MEMORY).map(|i| (i * 7 + i / 251 + round) as u8).collect();
        b.memory.set(0, &data);
        let ids: Vec<u32> = (0..4).map(|_| indirect(&b, false, 64)).collect();
        let mut keys: Vec<Vec<ModelPart>> = vec![Vec::new(); 4];
        for (key, id) in ids.iter().enumerate() {
            let (mut list, mut model) = (Vec::new(), Vec::new());
            for _ in 0..=random.below(3) {
                // Another key, which may be this one or one behind it, or the region, also beyond its end.
                let below = if random.below(3) == 0 { Some(random.below(4) as usize) } else { None };
                let (base, lkey) = below.map_or((BASE, b.key), |below| (0, ids[below]));
                let addr = random.below(if below.is_some() { 40 } else { MEMORY as u64 });
                let len = 1 + random.below(50);
                if random.below(2) == 0 {
                    list.push(klm(len as u32, lkey, base + addr));
                    model.push((len, below, addr));
                } else {
                    let (count, skip, more) = (1 + random.below(4), random.below(20), 1 + random.below(9));
                    let far = random.below(1000);
                    let parts =
                        [(len as u16, skip as u16, lkey, base + addr), (more as u16, 0, b.key, BASE + far)];
                    list.extend(block(count as u32, &parts));
                    for nth in 0..count {
                        model.push((len, below, addr + nth * (len + skip)));
                        model.push((more, None, far + nth * more));
                    }
                }
            }
            let len = model.iter().map(|part| part.0).sum();
            assert_eq!(Update::list(&list, len).post(&mut b, *id), 0);
            keys[key] = model;
        }
        let user = User { pd: PD, qpn: 0 };
        for _ in 0..200 {
            let key = random.below(4) as usize;
            let all: u64 = keys[key].iter().map(|part| part.0).sum();
            let at = random.below(all);
            let len = 1 + random.below(all - at);
            let want: Option<Vec<u64>> = (at..at + len).map(|at| place_in(&keys, key, at, 0)).collect();
            let found = on(&b.hca, |device, _| {
                let (memory, offset) =
                    device.mkeys.resolve(user, ids[key], at, len, access::REMOTE_READ).ok()?.unwrap();
                let mut bytes = vec![0; len as usize];
                memory.read(offset, &mut bytes).unwrap();
                // Any part of it, from its own place on.
                let from = random.below(len);
                let mut part = vec![0; random.below(len - from + 1) as usize];
                memory.read(offset + from, &mut part).unwrap();
                assert_eq!(part, bytes[from as usize..][..part.len()]);
                assert!(memory.read(offset + memory.len().saturating_sub(offset), &mut [0; 1]).is_err());
                Some(bytes)
            });
            // The model checks each byte; the device checks a key below for all bytes between the first and the last one.
            match (found, want) {
                (Some(found), Some(want)) => {
                    let want: Vec<u8> = want.iter().map(|place| data[*place as usize]).collect();
                    assert_eq!(found, want, "round {round}");
                }
                (Some(_), None) => panic!("round {round}: access that no list gives"),
                (None, _) => {}
            }
        }
    }
}
