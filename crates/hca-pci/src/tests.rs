// SPDX-License-Identifier: MIT OR Apache-2.0
//! Drives the function as a guest does, without a VM: commands through the queue, doorbells, events.

mod limits;

use crate::init_seg::{DOORBELL, LOG_STRIDE};
use crate::layout::{
    cqc, create_cq_in, create_cq_out, create_eq_in, create_eq_out, create_mkey_in, create_mkey_out,
    create_qp_in, create_qp_out, create_umem_in, create_umem_out, eqc, mkc, qpc, query_hca_cap_in,
    rst2init_qp_in as modify_in, umem,
};
use crate::{PciFunction, Registration, cmdq, fw, init_seg, uar};
use core::time::Duration;
use nix::sys::eventfd::{EfdFlags, EventFd};
use proptest::prelude::*;
use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;
use uverbs_hca::bytes::{be32, put};
use uverbs_hca::memory::Memory;
use uverbs_hca::{Fabric, Link};
use uverbs_vfio::Guest;

/// Bytes of the guest's memory.
const MEMORY: u64 = 8 << 20;
/// The addresses of the command queue and its mailboxes.
const QUEUE: u64 = 0x1000;
const IN_BOX: u64 = 0x10_0000;
const OUT_BOX: u64 = 0x20_0000;
const MAILBOX: u64 = 1024;

/// A guest's driver.
struct Driver {
    function: PciFunction,
    guest: Arc<Guest>,
}

impl Driver {
    fn new() -> Self {
        Self::on(Link::InfiniBand)
    }

    fn on(link: Link) -> Self {
        Self::of(&Fabric::deterministic(1), link)
    }

    fn of(fabric: &Fabric, link: Link) -> Self {
        let function = PciFunction::new(fabric.device("hca0").link(link), Registration::default());
        let guest = function.enter(|_, f, _| Arc::clone(&f.vm.memory)).unwrap();
        guest.map(0, MEMORY, &uverbs_vfio::sealed(MEMORY).unwrap(), 0).unwrap();
        function.enter(|_, f, _| {
            f.command_queue.set_high(0);
            f.command_queue.set_low(QUEUE as u32);
        });
        Self { function, guest }
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        self.guest.write(at, bytes).unwrap();
    }

    fn read<const N: usize>(&self, at: u64) -> [u8; N] {
        let mut bytes = [0; N];
        self.guest.read(at, &mut bytes).unwrap();
        bytes
    }

    fn chain(&self, at: u64, data: &[u8], token: u8) {
        for (number, part) in data.chunks(512).enumerate() {
            let mut block = [0; 576];
            put(&mut block, 0, part);
            let place = at + number as u64 * MAILBOX;
            put(&mut block, 560, &(place + MAILBOX).to_be_bytes());
            put(&mut block, 568, &(number as u32).to_be_bytes());
            block[573] = token;
            self.write(place, &block);
        }
    }

    /// A queue entry for this input, with its signature, ready for the doorbell.
    fn entry(&self, input: &[u8], out_len: usize, token: u8) -> [u8; 64] {
        let mut entry = [0; 64];
        entry[0] = 7;
        put(&mut entry, 4, &(input.len() as u32).to_be_bytes());
        put(&mut entry, 8, &IN_BOX.to_be_bytes());
        put(&mut entry, 16, &input[..input.len().min(16)]);
        put(&mut entry, 48, &OUT_BOX.to_be_bytes());
        put(&mut entry, 56, &(out_len as u32).to_be_bytes());
        entry[60] = token;
        entry[63] = 1;
        self.chain(IN_BOX, input.get(16..).unwrap_or_default(), token);
        self.chain(OUT_BOX, &vec![0; out_len.saturating_sub(16)], token);
        sign(&mut entry);
        entry
    }

    /// Rings the doorbell for one slot. Returns the delivery status, or `None` if the device did not change the entry.
    fn ring(&self, entry: [u8; 64], slot: u32) -> Option<u8> {
        let at = QUEUE + (u64::from(slot) << LOG_STRIDE);
        self.write(at, &entry);
        self.function.enter(|device, f, port| cmdq::doorbell(device, f, port, 1 << slot));
        let after: [u8; 64] = self.read(at);
        (after != entry).then_some(after[63] >> 1)
    }

    /// Executes a command; its answer.
    fn command(&self, input: &[u8], out_len: usize) -> Vec<u8> {
        assert_eq!(self.ring(self.entry(input, out_len, 0x5a), 3), Some(0));
        let at = QUEUE + (3 << LOG_STRIDE);
        let mut out = self.read::<16>(at + 32)[..out_len.min(16)].to_vec();
        for number in 0..out_len.saturating_sub(16).div_ceil(512) {
            let block: [u8; 576] = self.read(OUT_BOX + number as u64 * MAILBOX);
            assert_eq!(block.iter().fold(0, |x, b| x ^ b), 0xff, "the answer is signed");
            out.extend_from_slice(&block[..512]);
        }
        out.truncate(out_len);
        out
    }

    /// Executes a command that must succeed.
    fn good(&self, input: &[u8], out_len: usize) -> Vec<u8> {
        let out = self.command(input, out_len);
        assert_eq!(out[0], 0, "status of command {:#x}", be32(input, 0) >> 16);
        out
    }

    fn simple(&self, opcode: u16) -> u32 {
        let mut input = [0; 16];
        put(&mut input, 0, &opcode.to_be_bytes());
        be32(&self.good(&input, 16), 8) & 0xff_ffff
    }

    fn register(&self, offset: u64, data: &[u8]) {
        self.function.enter(|device, f, port| uar::write(device, f, port, offset, data));
    }
}

fn sign(entry: &mut [u8; 64]) {
    entry[61] = 0;
    entry[61] = !entry.iter().fold(0, |x, b| x ^ b);
}

fn input(opcode: u16, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    put(&mut bytes, 0, &opcode.to_be_bytes());
    bytes
}

#[test]
fn capabilities_are_returned_in_mailboxes() {
    let driver = Driver::new();
    let mut query = input(0x100, 16);
    query_hca_cap_in::OP_MOD.set(&mut query, 1_u32);
    let answer = driver.good(&query, 16 + 4096);
    let mut max = input(0x100, 16);
    query_hca_cap_in::OP_MOD.set(&mut max, 0_u32);
    assert_eq!(driver.good(&max, 16 + 4096)[16..], answer[16..], "nothing is changed yet");
    assert!(answer[16..].iter().any(|b| *b != 0));
}

#[test]
fn unknown_commands_are_counted_and_short_ones_refused() {
    let driver = Driver::new();
    assert_eq!(driver.command(&input(0xfff, 16), 16)[0], fw::Status::BAD_OP.0);
    assert_eq!(driver.command(&input(0xfff, 16), 16)[0], fw::Status::BAD_OP.0);
    assert_eq!(driver.function.unknown_commands(), [(0xfff, 2)]);
    // A command of a capability that the device does not report is refused, but known.
    assert_eq!(driver.command(&input(0x842, 16), 16)[0], fw::Status::BAD_OP.0);
    assert_eq!(driver.function.unknown_commands(), [(0xfff, 2)]);
    assert_eq!(driver.command(&input(0x500, 16), 16)[0], fw::Status::BAD_INPUT_LEN.0);
    assert_eq!(driver.command(&input(0x100, 16), 8)[0], fw::Status::BAD_OUTPUT_LEN.0);
    assert_eq!(PciFunction::command_name(0x500), Some("CREATE_QP"));
}

#[test]
fn invalid_command_entries_are_not_delivered() {
    let driver = Driver::new();
    let entry = driver.entry(&input(0x104, 16), 16, 1);
    let mut wrong = entry;
    wrong[61] ^= 1;
    assert_eq!(driver.ring(wrong, 0), Some(0x1), "signature");
    let with = |change: fn(&mut [u8; 64])| {
        let mut entry = driver.entry(&input(0x104, 600), 600, 1);
        change(&mut entry);
        sign(&mut entry);
        driver.ring(entry, 1)
    };
    assert_eq!(with(|_| ()), Some(0), "the entry is valid before the changes below");
    assert_eq!(with(|e| e[63] = 0), None, "the device does not own it");
    assert_eq!(with(|e| e[0] = 6), Some(0x10), "type");
    assert_eq!(with(|e| put(e, 4, &u32::MAX.to_be_bytes())), Some(0x7), "input length");
    assert_eq!(with(|e| put(e, 56, &4_u32.to_be_bytes())), Some(0x8), "output length");
    assert_eq!(with(|e| put(e, 8, &0_u64.to_be_bytes())), Some(0x5), "no input mailbox");
    assert_eq!(with(|e| put(e, 8, &u64::MAX.to_be_bytes())), Some(0x5), "an address that wraps");
    assert_eq!(with(|e| put(e, 48, &(MEMORY + 64).to_be_bytes())), Some(0x4), "a mailbox outside of memory");
    assert_eq!(with(|e| e[60] = 2), Some(0x2), "token");
    assert_eq!(with(|e| put(e, 8, &(IN_BOX + MAILBOX).to_be_bytes())), Some(0x3), "the second block first");
    // A queue outside of memory.
    driver.function.enter(|_, f, _| f.command_queue.set_high(7));
    driver.function.enter(|device, f, port| cmdq::doorbell(device, f, port, u32::MAX));
}

/// An event queue whose vector 0 is an event file.
fn event_queue(driver: &Driver, uar: u32) -> (EventFd, u32) {
    let event = EventFd::from_value_and_flags(0, EfdFlags::EFD_NONBLOCK).unwrap();
    let file = File::from(event.as_fd().try_clone_to_owned().unwrap());
    driver.function.enter(|_, f, _| f.vm.vectors.set(crate::function::VECTORS, 0, 1, vec![file]));
    let mut eq = input(0x301, 272 + 8);
    let context = create_eq_in::EQ_CONTEXT_ENTRY.bytes_mut(&mut eq);
    eqc::LOG_EQ_SIZE.set(context, 6_u32);
    eqc::UAR_PAGE.set(context, uar);
    put(&mut eq, 272, &0x30_0000_u64.to_be_bytes());
    let eqn = create_eq_out::EQ_NUMBER.get32(&driver.good(&eq, 16));
    (event, eqn)
}

/// A CQ of 16 entries at an address, its record behind it.
fn completion_queue(driver: &Driver, uar: u32, eqn: u32, at: u64) -> u32 {
    let mut cq = input(0x400, 272 + 8);
    let context = create_cq_in::CQ_CONTEXT.bytes_mut(&mut cq);
    cqc::LOG_CQ_SIZE.set(context, 4_u32);
    cqc::UAR_PAGE.set(context, uar);
    cqc::C_EQN_OR_APU_ELEMENT.set(context, eqn);
    cqc::DBR_ADDR.set(context, at + 0x1000);
    put(&mut cq, 272, &at.to_be_bytes());
    create_cq_out::CQN.get32(&driver.good(&cq, 16))
}

/// A reliable queue pair of 4 receives of 16 bytes and 4 blocks at an address, its record behind it.
fn queue_pair(driver: &Driver, uar: u32, pd: u32, cqn: u32, at: u64) -> u32 {
    queue_pair_of(RC, driver, uar, pd, cqn, at)
}

/// Service types (`MLX5_QP_ST_*`).
const RC: u32 = 0;
const UC: u32 = 1;

fn queue_pair_of(kind: u32, driver: &Driver, uar: u32, pd: u32, cqn: u32, at: u64) -> u32 {
    let mut qp = input(0x500, 272 + 8);
    let context = create_qp_in::QPC.bytes_mut(&mut qp);
    for (field, value) in [
        (qpc::ST, kind),
        (qpc::PD, pd),
        (qpc::LOG_RQ_SIZE, 2),
        (qpc::LOG_SQ_SIZE, 2),
        (qpc::UAR_PAGE, uar),
        (qpc::USER_INDEX, 0x77),
        (qpc::CQN_SND, cqn),
        (qpc::CQN_RCV, cqn),
    ] {
        field.set(context, value);
    }
    qpc::DBR_ADDR.set(context, at + 0x1000);
    put(&mut qp, 272, &at.to_be_bytes());
    create_qp_out::QPN.get32(&driver.good(&qp, 16))
}

fn connect(driver: &Driver, qpn: u32, peer: u32) {
    for opcode in [0x502, 0x503, 0x504] {
        let mut modify = input(opcode, 272);
        modify_in::QPN.set(&mut modify, qpn);
        let context = modify_in::QPC.bytes_mut(&mut modify);
        qpc::MTU.set(context, 3_u32);
        qpc::REMOTE_QPN.set(context, peer);
        qpc::RWE.set(context, 1_u32);
        let path = qpc::PRIMARY_ADDRESS_PATH.bytes_mut(context);
        crate::layout::ads::RLID.set(path, 1_u32);
        driver.good(&modify, 16);
    }
}

/// A memory of a user: three pages, 64 bytes behind the start of the first.
fn user_memory(driver: &Driver) -> u32 {
    let mut create = input(0xa08, 48 + 24);
    create_umem_in::UMEM.rest_mut(&mut create)[20..24].copy_from_slice(&64_u32.to_be_bytes());
    umem::NUM_OF_MTT.set(create_umem_in::UMEM.rest_mut(&mut create), 3_u32);
    for (i, page) in [0x36_0000_u64, 0x31_0000, 0x35_0000].into_iter().enumerate() {
        put(&mut create, 48 + 8 * i, &(page | 3).to_be_bytes());
    }
    create_umem_out::UMEM_ID.get32(&driver.good(&create, 16))
}

#[test]
fn queues_and_keys_can_be_in_memory_of_a_user() {
    let driver = Driver::new();
    let (uar, pd, uid) = (driver.simple(0x802), driver.simple(0x800), driver.simple(0xa04));
    let (_event, eqn) = event_queue(&driver, uar);
    let umem = user_memory(&driver);
    // A CQ at the start of the memory; its record at byte 0x1fc0, which is the first of the third page.
    let mut cq = input(0x400, 272);
    put(&mut cq, 88, &umem.to_be_bytes());
    create_cq_in::CQ_UMEM_VALID.set(&mut cq, 1_u32);
    let context = create_cq_in::CQ_CONTEXT.bytes_mut(&mut cq);
    put(context, 4, &umem.to_be_bytes());
    for (field, value) in [
        (cqc::LOG_CQ_SIZE, 4),
        (cqc::UAR_PAGE, uar),
        (cqc::C_EQN_OR_APU_ELEMENT, eqn),
        (cqc::DBR_UMEM_VALID, 1),
    ] {
        field.set(context, value);
    }
    cqc::DBR_ADDR.set(context, 0x1fc0_u64);
    let cqn = create_cq_out::CQN.get32(&driver.good(&cq, 16));
    // A QP whose receives are the last 64 bytes of the first page and whose sends begin with the second; a key of 64 bytes.
    let mut qp = input(0x500, 272);
    put(&mut qp, 256, &0xf80_u64.to_be_bytes());
    put(&mut qp, 264, &umem.to_be_bytes());
    create_qp_in::WQ_UMEM_VALID.set(&mut qp, 1_u32);
    let context = create_qp_in::QPC.bytes_mut(&mut qp);
    put(context, 0x720 / 8, &umem.to_be_bytes());
    for (field, value) in [
        (qpc::ST, RC),
        (qpc::PD, pd),
        (qpc::LOG_RQ_SIZE, 2),
        (qpc::LOG_SQ_SIZE, 2),
        (qpc::UAR_PAGE, uar),
        (qpc::CQN_SND, cqn),
        (qpc::CQN_RCV, cqn),
        (qpc::DBR_UMEM_VALID, 1),
    ] {
        field.set(context, value);
    }
    qpc::DBR_ADDR.set(context, 0x1fc8_u64);
    let qpn = create_qp_out::QPN.get32(&driver.good(&qp, 16));
    connect(&driver, qpn, qpn);
    let mut mkey = input(0x200, 272);
    put(&mut mkey, 100, &umem.to_be_bytes());
    put(&mut mkey, 104, &0x2000_u64.to_be_bytes());
    create_mkey_in::MKEY_UMEM_VALID.set(&mut mkey, 1_u32);
    let context = create_mkey_in::MEMORY_KEY_MKEY_ENTRY.bytes_mut(&mut mkey);
    for (field, value) in [
        (mkc::ACCESS_MODE_1_0, 1_u64),
        (mkc::LW, 1),
        (mkc::PD, pd.into()),
        (mkc::LEN, 64),
        (mkc::LOG_PAGE_SIZE, 12),
    ] {
        field.set(context, value);
    }
    let key = create_mkey_out::MKEY_INDEX.get32(&driver.good(&mkey, 16)) << 8;
    // A message to itself: from the start of the key's memory to its second half.
    driver.write(0x35_0040, b"in umem");
    let entry = |at: u64| {
        let mut entry = [0; 16];
        put(&mut entry, 0, &7_u32.to_be_bytes());
        put(&mut entry, 4, &key.to_be_bytes());
        put(&mut entry, 8, &at.to_be_bytes());
        entry
    };
    driver.write(0x36_0fc0, &entry(32));
    driver.write(0x35_0008, &1_u32.to_be_bytes());
    let mut wqe = [0; 32];
    put(&mut wqe, 0, &10_u32.to_be_bytes());
    put(&mut wqe, 4, &(qpn << 8 | 2).to_be_bytes());
    wqe[11] = 8;
    put(&mut wqe, 16, &entry(0));
    driver.write(0x31_0000, &wqe);
    driver.write(0x35_000c, &1_u32.to_be_bytes());
    driver.register((u64::from(uar) << 12) + 0x800, &wqe[..8]);
    assert_eq!(driver.read::<7>(0x35_0060), *b"in umem");
    let kinds = [driver.read::<64>(0x36_0040)[63] >> 4, driver.read::<64>(0x36_0080)[63] >> 4];
    assert!(kinds.contains(&2) && kinds.contains(&0), "a receive and a send: {kinds:?}");
    // It can't be destroyed before its users, and neither memory nor a context can be destroyed twice.
    let by_number = |opcode, number: u32| {
        let mut command = input(opcode, 16);
        put(&mut command, 8, &number.to_be_bytes());
        driver.command(&command, 16)[0]
    };
    assert_eq!(by_number(0xa0a, umem), fw::Status::BUSY.0);
    assert_eq!((by_number(0x501, qpn), by_number(0x401, cqn)), (0, 0));
    assert_eq!(by_number(0xa0a, umem), fw::Status::BUSY.0, "the key");
    assert_eq!((by_number(0x202, key >> 8), by_number(0xa0a, umem)), (0, 0));
    assert_eq!(by_number(0xa0a, umem), fw::Status::BAD_RESOURCE.0);
    assert_ne!(uid & 0xffff, 0);
    assert_eq!(
        (by_number(0xa06, uid & 0xffff), by_number(0xa06, uid & 0xffff)),
        (0, fw::Status::BAD_RESOURCE.0)
    );
}

#[test]
fn a_send_uses_pages_doorbells_and_events() {
    let driver = Driver::new();
    let (uar, pd) = (driver.simple(0x802), driver.simple(0x800));
    let (event, eqn) = event_queue(&driver, uar);
    let cqn = completion_queue(&driver, uar, eqn, 0x31_0000);
    // 64 bytes are registered at 0x8100. They are in the page at 0x32_0000.
    let mut mkey = input(0x200, 272 + 16);
    let context = create_mkey_in::MEMORY_KEY_MKEY_ENTRY.bytes_mut(&mut mkey);
    for (field, value) in [
        (mkc::ACCESS_MODE_1_0, 1_u64),
        (mkc::LW, 1),
        (mkc::PD, pd.into()),
        (mkc::START_ADDR, 0x8100),
        (mkc::LEN, 64),
        (mkc::LOG_PAGE_SIZE, 12),
        (mkc::MKEY_7_0, 0x42),
    ] {
        field.set(context, value);
    }
    create_mkey_in::TRANSLATIONS_OCTWORD_ACTUAL_SIZE.set(&mut mkey, 1_u32);
    put(&mut mkey, 272, &0x32_0003_u64.to_be_bytes());
    let key = create_mkey_out::MKEY_INDEX.get32(&driver.good(&mkey, 16)) << 8 | 0x42;
    driver.write(0x32_0100, b"through pages");

    let a = queue_pair(&driver, uar, pd, cqn, 0x33_0000);
    let b = queue_pair(&driver, uar, pd, cqn, 0x34_0000);
    connect(&driver, a, b);
    connect(&driver, b, a);
    // B posts a receive into the second half.
    let mut receive = [0; 16];
    put(&mut receive, 0, &32_u32.to_be_bytes());
    put(&mut receive, 4, &key.to_be_bytes());
    put(&mut receive, 8, &0x8120_u64.to_be_bytes());
    driver.write(0x34_0000, &receive);
    driver.write(0x34_1000, &1_u32.to_be_bytes());
    // The CQ is armed, the EQ too.
    let page = u64::from(uar) << 12;
    driver.register(page + 0x40, &(eqn << 24).to_be_bytes());
    let arm = u64::from(cqn);
    driver.register(page + 0x20, &arm.to_be_bytes());
    assert!(event.read().is_err(), "nothing has happened yet");
    // A sends: opcode 10, signaled, one segment. The send queue is behind the four receives.
    let mut wqe = [0; 32];
    put(&mut wqe, 0, &10_u32.to_be_bytes());
    put(&mut wqe, 4, &(a << 8 | 2).to_be_bytes());
    wqe[11] = 8;
    put(&mut wqe, 16, &13_u32.to_be_bytes());
    put(&mut wqe, 20, &key.to_be_bytes());
    put(&mut wqe, 24, &0x8100_u64.to_be_bytes());
    driver.write(0x33_0040, &wqe);
    driver.write(0x33_1004, &1_u32.to_be_bytes());
    driver.register(page + 0x800, &wqe[..8]);
    assert_eq!(driver.read::<13>(0x32_0120), *b"through pages");
    // Two completions, one event, one interrupt.
    assert_eq!(event.read(), Ok(1));
    let first: [u8; 64] = driver.read(0x31_0000);
    let second: [u8; 64] = driver.read(0x31_0040);
    let kinds = [first[63] >> 4, second[63] >> 4];
    assert!(kinds.contains(&2) && kinds.contains(&0), "a receive and a send: {kinds:?}");
    assert_eq!(be32(&first, 32), 0x77);
    let entry: [u8; 64] = driver.read(0x30_0000);
    assert_eq!((entry[1], entry[63] & 1, be32(&entry, 0x38)), (0, 0, cqn));
    assert_eq!(driver.read::<64>(0x30_0040), [0; 64]);
    assert!(driver.function.device().violations().is_empty());

    // Objects in use can't be destroyed; a reset destroys all objects.
    let mut destroy = input(0x401, 16);
    put(&mut destroy, 8, &cqn.to_be_bytes());
    assert_eq!(driver.command(&destroy, 16)[0], fw::Status::BUSY.0);
    driver.simple(0x103);
    assert_eq!(driver.command(&destroy, 16)[0], fw::Status::BAD_RESOURCE.0);
}

/// A VM is stopped while its device does not answer, and disconnects after some seconds. So the device must answer
/// other calls while it transfers a long message, or many messages.
#[test]
fn long_messages_do_not_block_the_device() {
    const LEN: u64 = 64 << 20;
    const PAGE: u64 = 0x40_0000;
    for (kind, mtu) in [(RC, 4096), (UC, 4096)] {
        let fabric = Fabric::new(1);
        let driver = Driver::of(&fabric, Link::InfiniBand);
        let (uar, pd) = (driver.simple(0x802), driver.simple(0x800));
        let (_event, eqn) = event_queue(&driver, uar);
        let cqn = completion_queue(&driver, uar, eqn, 0x31_0000);
        driver.write(0x31_0000 + 63, &[0xff]);
        // All pages of 1 MiB are the same one.
        let count = (LEN >> 20) as usize;
        let mut mkey = input(0x200, 272 + 8 * count);
        let context = create_mkey_in::MEMORY_KEY_MKEY_ENTRY.bytes_mut(&mut mkey);
        for (field, value) in [
            (mkc::ACCESS_MODE_1_0, 1_u64),
            (mkc::LW, 1),
            (mkc::RW, 1),
            (mkc::PD, pd.into()),
            (mkc::LEN, LEN),
            (mkc::LOG_PAGE_SIZE, 20),
        ] {
            field.set(context, value);
        }
        create_mkey_in::TRANSLATIONS_OCTWORD_ACTUAL_SIZE.set(&mut mkey, count as u32 / 2);
        for i in 0..count {
            put(&mut mkey, 272 + 8 * i, &PAGE.to_be_bytes());
        }
        let key = create_mkey_out::MKEY_INDEX.get32(&driver.good(&mkey, 16)) << 8;
        let a = queue_pair_of(kind, &driver, uar, pd, cqn, 0x33_0000);
        let b = queue_pair_of(kind, &driver, uar, pd, cqn, 0x34_0000);
        connect(&driver, a, b);
        connect(&driver, b, a);
        // An RDMA write of all of it: opcode 8, signaled, remote address, one segment.
        let mut wqe = [0; 48];
        put(&mut wqe, 0, &8_u32.to_be_bytes());
        put(&mut wqe, 4, &(a << 8 | 3).to_be_bytes());
        wqe[11] = 8;
        put(&mut wqe, 24, &key.to_be_bytes());
        put(&mut wqe, 32, &(LEN as u32).to_be_bytes());
        put(&mut wqe, 36, &key.to_be_bytes());
        driver.write(0x33_0040, &wqe);
        driver.write(0x33_1004, &1_u32.to_be_bytes());
        driver.register((u64::from(uar) << 12) + 0x800, &wqe[..8]);
        let owner = || driver.read::<1>(0x31_003f)[0];
        let start = Instant::now();
        let (mut calls, mut longest, mut most) = (0, Duration::ZERO, 0);
        while owner() == 0xff {
            let call = Instant::now();
            let waiting = driver.function.enter(|_, _, port| port.in_flight()).unwrap();
            (calls, longest, most) = (calls + 1, longest.max(call.elapsed()), waiting.max(most));
            assert!(start.elapsed() < Duration::from_secs(60), "not done");
        }
        assert_eq!(owner() >> 4, 0, "the write is done: {:?}", driver.read::<64>(0x31_0000));
        assert!(driver.function.device().violations().is_empty());
        assert!(calls > 10, "{kind}: {calls} calls meanwhile");
        // On a busy machine, every step takes longer.
        let limit = Duration::from_secs(1).max(start.elapsed() / 4);
        assert!(longest < limit, "{kind}: a call took {longest:?}");
        // Packets in flight are in this process's memory, so their number is limited.
        assert!(most < LEN as usize / mtu / 8, "{kind}: {most} packets");
    }
}

#[test]
fn commands_raise_events_once_an_event_queue_exists() {
    let driver = Driver::new();
    let uar = driver.simple(0x802);
    let mut eq = input(0x301, 272 + 8);
    eqc::LOG_EQ_SIZE.set(create_eq_in::EQ_CONTEXT_ENTRY.bytes_mut(&mut eq), 6_u32);
    eqc::UAR_PAGE.set(create_eq_in::EQ_CONTEXT_ENTRY.bytes_mut(&mut eq), uar);
    put(create_eq_in::EVENT_BITMASK.bytes_mut(&mut eq), 0, &(1_u64 << 0x0a).to_be_bytes());
    put(&mut eq, 272, &0x30_0000_u64.to_be_bytes());
    driver.good(&eq, 16);
    assert_eq!(driver.read::<64>(0x30_0000), [0; 64], "no event for the command that creates the queue");
    driver.simple(0x800);
    let entry: [u8; 64] = driver.read(0x30_0000);
    assert_eq!((entry[1], be32(&entry, 32)), (0x0a, 1 << 3));
}

#[test]
fn the_initialization_segment_shows_the_command_queue() {
    let driver = Driver::new();
    driver.function.enter(|_, f, _| f.command_queue.set_low(0x3000 | 1 << 8));
    let state = driver.function.enter(|_, f, _| f.command_queue.state);
    assert_eq!(state, Some(1));
    assert_eq!(init_seg::read(0, 1)[0x16], 1);
    assert_eq!(DOORBELL, 0x18);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// A guest may write any bytes: the device answers or ignores them, and continues to work.
    #[test]
    fn every_command_is_answered(
        opcodes in proptest::collection::vec(
            prop_oneof![1 => 0_u16..0xb00, 9 => proptest::sample::select(fw::opcodes())],
            1..6,
        ),
        ethernet in any::<bool>(),
        body in proptest::collection::vec(any::<u8>(), 0..1100),
        sparse in any::<bool>(),
        out_len in 8_usize..600,
    ) {
        let driver = Driver::on(if ethernet { Link::Ethernet } else { Link::InfiniBand });
        driver.simple(0x802);
        driver.simple(0x800);
        for opcode in opcodes {
            let mut bytes = input(opcode, 16 + body.len());
            // Inputs that are mostly zeros pass more checks than random bytes.
            let body: Vec<u8> = body.iter().map(|b| if sparse && b % 8 != 0 { 0 } else { *b }).collect();
            put(&mut bytes, 2, &body);
            let out = driver.command(&bytes, out_len);
            prop_assert_eq!(out.len(), out_len);
            driver.register(0x10_0000, &body);
            driver.register(0x10_0020, &body);
            driver.register(0x10_0800, &body);
        }
    }
}
