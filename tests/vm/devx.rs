// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands for the firmware (DEVX): they create a completion queue, a queue pair and a key without verbs, in memory of
//! this process, through the kernel's mlx5 driver. Only for mlx5.
// UNSAFETY: the queues are used by their addresses.
#![expect(unsafe_code)]

use anyhow::{Context as _, Result, ensure};
use core::ffi::c_void;
use core::sync::atomic::{AtomicU64, Ordering};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use uverbs::attr::{AhAttr, LinkLayer};
use uverbs_core::control::query;
use uverbs_core::device::DriverMatch;
use uverbs_core::kernel::Kernel;
use uverbs_core::provider::Driver as _;
use uverbs_mlx5::devx::{ANY_PAGE_SIZE, DevxObject};
use uverbs_mlx5::{Devx, Mlx5, Options};
use uverbs_tests::env::End;
use uverbs_tests::lab::{PORT, find};
use uverbs_tests::wait::{LIMIT, until};
use uverbs_tests::{LabEnv, Outcome, Test};
use uverbs_uapi::mlx5::devx::MLX5_IB_UAPI_DEVX_CR_EV_CH_FLAGS_OMIT_DATA;

/// Opcodes of the PRM.
mod op {
    pub(super) const QUERY_HCA_CAP: u16 = 0x100;
    pub(super) const CREATE_MKEY: u16 = 0x200;
    pub(super) const CREATE_CQ: u16 = 0x400;
    pub(super) const CREATE_QP: u16 = 0x500;
    pub(super) const RST2INIT_QP: u16 = 0x502;
    pub(super) const RTR2RTS_QP: u16 = 0x504;
    pub(super) const QUERY_QP: u16 = 0x50b;
}

/// Bytes of a command that creates something, without a list of pages.
const CREATE: usize = 0x110;
/// Offsets in the memory.
const RQ: usize = 0x1000;
const SQ: usize = 0x1040;
const CQ_RECORD: usize = 0x2000;
const QP_RECORD: usize = 0x2040;
const DATA: usize = 0x3000;
const PAGES: usize = 4;
/// `MLX5_EVENT_TYPE_COMP`
const COMPLETION: u16 = 0;

/// The memory, accessed by the device at any time.
#[repr(C, align(4096))]
struct Memory([AtomicU64; PAGES * 512]);

impl Memory {
    fn word(&self, at: usize) -> &AtomicU64 {
        &self.0[at / 8]
    }

    fn put(&self, at: usize, bytes: &[u8]) {
        for (i, word) in bytes.as_chunks::<8>().0.iter().enumerate() {
            self.word(at + 8 * i).store(u64::from_ne_bytes(*word), Ordering::Relaxed);
        }
    }

    /// Half of a word, for a record of 4 bytes.
    fn put32(&self, at: usize, value: u32) {
        let half = u64::from(value.to_be());
        let shift = if cfg!(target_endian = "little") == at.is_multiple_of(8) { 0 } else { 32 };
        let keep = self.word(at & !7).load(Ordering::Relaxed) & !(0xffff_ffff << shift);
        self.word(at & !7).store(keep | half << shift, Ordering::Release);
    }
}

/// Puts a value into a field of a command: bits from the start.
fn set(bytes: &mut [u8], at: usize, len: usize, value: impl Into<u64>) {
    let value = value.into();
    for i in 0..len {
        if value >> (len - 1 - i) & 1 != 0 {
            bytes[(at + i) / 8] |= 0x80 >> ((at + i) % 8);
        }
    }
}

fn get(bytes: &[u8], at: usize, len: usize) -> u32 {
    (at..at + len).fold(0, |value, bit| value << 1 | u32::from(bytes[bit / 8] >> (7 - bit % 8) & 1))
}

fn command(opcode: u16) -> [u8; CREATE] {
    let mut bytes = [0; CREATE];
    set(&mut bytes, 0, 16, opcode);
    bytes
}

/// Creates an object, and returns its number.
fn create(mlx5: &Mlx5, command: &[u8]) -> Result<(DevxObject, u32)> {
    let mut answer = [0; 16];
    // SAFETY: the command names the memory of the test only, which lives longer than its objects or is leaked with them.
    let made = unsafe { mlx5.devx_create(command, &mut answer) };
    let object = made.with_context(|| format!("command {:#x}: {answer:02x?}", get(command, 0, 16)))?;
    Ok((object, get(&answer, 0x48, 24)))
}

/// Opens the device at an end for commands.
fn open(env: &LabEnv) -> Result<Mlx5> {
    const DRIVERS: &[DriverMatch] = &[DriverMatch { driver_id: Mlx5::DRIVER_ID, pci: |_| true }];
    let kernel: Arc<dyn Kernel> = Arc::new(find(env.dev(End::A))?.open(DRIVERS).context("open")?);
    let mut options = Options::default();
    options.devx = Devx::Required;
    Ok(Mlx5::open_with(kernel, &options).context("open with commands")?.0)
}

/// The path of a queue pair to itself.
fn set_path(mlx5: &Mlx5, env: &LabEnv, path: &mut [u8]) -> Result<()> {
    let port = query::port(mlx5.kernel(), PORT)?;
    set(path, 0x128, 8, PORT);
    set(path, 0x40, 5, 14_u32);
    if port.link_layer != LinkLayer::ETHERNET {
        set(path, 0x30, 16, port.lid);
        return Ok(());
    }
    let index = env.gid_index;
    let gid = query::gid_entry(mlx5.kernel(), PORT, index.into())?.gid;
    let pd = mlx5.alloc_pd()?;
    let (handle, ah) = mlx5.create_ah(&pd, &AhAttr::global(PORT, index, gid))?;
    set(path, 0x48, 8, index);
    set(path, 0x58, 8, 64_u32);
    set(path, 0x110, 16, 0xc000_u32);
    path[16..32].copy_from_slice(&gid.0);
    path[38..44].copy_from_slice(&ah.av().rmac);
    handle.destroy().map_err(|(_, e)| e)?;
    pd.destroy().map_err(|(_, e)| e)?;
    Ok(())
}

/// Messages of a queue pair to itself, with an event for the first completion.
fn messages(env: &LabEnv) -> Outcome {
    if !env.mlx5 {
        return Ok(());
    }
    let mlx5 = open(env)?;
    let mut caps = vec![0; 16 + 4096];
    let mut query_caps = command(op::QUERY_HCA_CAP);
    set(&mut query_caps, 0x30, 16, 1_u32);
    // SAFETY: the command only queries.
    unsafe { mlx5.devx_general_command(&query_caps[..16], &mut caps) }.context("capabilities")?;
    ensure!(get(&caps[16..], 0x463, 5) != 0, "no contexts of users");
    // SAFETY: the kernel refuses a command that creates something here.
    let refused = unsafe { mlx5.devx_general_command(&command(op::CREATE_CQ), &mut [0; 16]) };
    ensure!(refused.is_err(), "a general command created something");

    let memory = Box::leak(Box::new(Memory([const { AtomicU64::new(0) }; PAGES * 512])));
    for entry in 0..16 {
        // Not written yet.
        memory.put(64 * entry + 56, &[0, 0, 0, 0, 0, 0, 0, 0xf1]);
    }
    let start = memory.word(0).as_ptr().cast::<c_void>();
    // SAFETY: the memory is leaked and accessed by atomics only.
    let umem = unsafe { mlx5.devx_reg_umem(start, PAGES * 4096, 1, ANY_PAGE_SIZE) }.context("umem")?;
    let uar = mlx5.alloc_uar(false).context("uar")?;
    let eqn = mlx5.devx_query_eqn(0).context("eqn")?;
    let pd = mlx5.alloc_pd()?;
    let pdn = mlx5.pd_number(&pd)?;

    let mut new_cq = command(op::CREATE_CQ);
    set(&mut new_cq, 0x2c0, 32, umem.id());
    set(&mut new_cq, 0x2e0, 1, 1_u32);
    let context = &mut new_cq[0x10..];
    set(context, 0x6, 1, 1_u32);
    set(context, 0x20, 32, umem.id());
    set(context, 0x63, 5, 4_u32);
    set(context, 0x68, 24, uar.page_id());
    set(context, 0xb8, 8, eqn);
    set(context, 0x1c0, 64, CQ_RECORD as u64);
    let (cq, cqn) = create(&mlx5, &new_cq)?;

    let mut new_qp = command(op::CREATE_QP);
    set(&mut new_qp, 0x800, 64, RQ as u64);
    set(&mut new_qp, 0x840, 32, umem.id());
    set(&mut new_qp, 0x860, 1, 1_u32);
    let context = &mut new_qp[0x18..];
    // Migrated; 4 receives of 16 bytes, 4 blocks.
    for (at, len, value) in
        [(0x13, 2, 3), (0x28, 24, pdn), (0x49, 4, 2), (0x51, 4, 2), (0x68, 24, uar.page_id())]
    {
        set(context, at, len, value);
    }
    for (at, len, value) in [(0x3e8, 24, cqn), (0x4e8, 24, cqn), (0x683, 1, 1), (0x720, 32, umem.id())] {
        set(context, at, len, value);
    }
    set(context, 0x500, 64, QP_RECORD as u64);
    let (qp, qpn) = create(&mlx5, &new_qp)?;

    let mut new_key = command(op::CREATE_MKEY);
    set(&mut new_key, 0x61, 1, 1_u32);
    set(&mut new_key, 0x320, 32, umem.id());
    set(&mut new_key, 0x340, 64, DATA as u64);
    let context = &mut new_key[0x10..];
    // A key of pages, for local reads and writes, for any queue pair.
    for (at, len, value) in
        [(0x16, 2, 1), (0x14, 2, 3), (0x20, 24, 0xff_ffff), (0x38, 8, 0x42), (0x68, 24, pdn), (0x1db, 5, 12)]
    {
        set(context, at, len, value);
    }
    let data = memory.word(DATA).as_ptr().addr() as u64;
    set(context, 0x80, 64, data);
    set(context, 0xc0, 64, 4096_u64);
    let (key, index) = create(&mlx5, &new_key)?;
    let mkey = index << 8 | 0x42;
    // A CQ can't be tested in this way: the kernel removes it from its event queue before the firmware refuses.
    let Err((umem, _)) = umem.dereg() else { anyhow::bail!("memory was deregistered that queues use") };

    for opcode in op::RST2INIT_QP..=op::RTR2RTS_QP {
        let mut modify = command(opcode);
        set(&mut modify, 0x48, 24, qpn);
        let context = &mut modify[0x18..];
        for (at, len, value) in
            [(0x40, 3, 3), (0x43, 5, 30), (0xa8, 24, qpn), (0x38d, 3, 7), (0x390, 3, 7), (0x4a3, 5, 12)]
        {
            set(context, at, len, value);
        }
        set_path(&mlx5, env, &mut context[0x18..])?;
        // SAFETY: no engine of this process uses the queue pair.
        unsafe { qp.modify(&modify, &mut [0; 16]) }.with_context(|| format!("command {opcode:#x}"))?;
    }
    let mut query_qp = command(op::QUERY_QP);
    set(&mut query_qp, 0x48, 24, qpn);
    let mut answer = [0; CREATE];
    qp.query(&query_qp[..16], &mut answer).context("query")?;
    ensure!(get(&answer[0x18..], 0, 4) == 3, "the queue pair is not in RTS: {answer:02x?}");
    let answers = mlx5.devx_command_channel()?;
    qp.query_async(&query_qp[..16], CREATE as u16, 77, &answers).context("query in the background")?;
    let mut record = [0; 8 + CREATE];
    ensure!(nix::unistd::read(answers.as_fd(), &mut record)? == record.len(), "an answer of another length");
    ensure!(record[..8] == 77_u64.to_ne_bytes() && get(&record[8 + 0x18..], 0, 4) == 3, "{record:02x?}");

    let events = mlx5.devx_event_channel(MLX5_IB_UAPI_DEVX_CR_EV_CH_FLAGS_OMIT_DATA)?;
    events.subscribe(Some(&cq), &[COMPLETION], 0x1234).context("subscribe")?;
    // SAFETY: the register of the UAR's page by which CQs are armed, which is mapped as long as `uar` lives.
    let arm = unsafe { AtomicU64::from_ptr(uar.base_addr().cast::<u64>().wrapping_add(4)) };
    // SAFETY: the first send doorbell of the page, likewise.
    let bell = unsafe { AtomicU64::from_ptr(uar.reg_addr().cast::<u64>()) };
    arm.store(u64::from_ne_bytes((u64::from(cqn)).to_be_bytes()), Ordering::SeqCst);

    for i in 0..20_u32 {
        let text = [i as u8 + 1; 32];
        memory.put(DATA, &text);
        let entry = |at: u64| -> [u8; 16] {
            let mut entry = [0; 16];
            set(&mut entry, 0, 32, 32_u32);
            set(&mut entry, 32, 32, mkey);
            set(&mut entry, 64, 64, data + at);
            entry
        };
        memory.put(RQ + 16 * (i as usize % 4), &entry(64));
        memory.put32(QP_RECORD, i + 1);
        let mut wqe = [0; 32];
        set(&mut wqe, 0, 32, i << 8 | 10);
        set(&mut wqe, 32, 32, qpn << 8 | 2);
        wqe[11] = 8;
        wqe[16..].copy_from_slice(&entry(0));
        memory.put(SQ + 64 * (i as usize % 4), &wqe);
        memory.put32(QP_RECORD + 4, i + 1);
        bell.store(memory.word(SQ + 64 * (i as usize % 4)).load(Ordering::Relaxed), Ordering::SeqCst);
        for n in [2 * i, 2 * i + 1] {
            let last = memory.word(64 * (n as usize % 16) + 56);
            let owner = (n / 16 % 2) as u8;
            let kind = || last.load(Ordering::Acquire).to_ne_bytes()[7];
            until("a completion", LIMIT, || Ok(kind() >> 4 != 15 && kind() & 1 == owner))?;
            ensure!([0, 2].contains(&(kind() >> 4)), "completion {n} is of kind {:#x}", kind() >> 4);
        }
        memory.put32(CQ_RECORD, 2 * i + 2);
        let got = memory.word(DATA + 64).load(Ordering::Relaxed).to_ne_bytes();
        ensure!(got == text[..8], "message {i}: {got:?}");
    }
    let mut cookie = [0; 8];
    ensure!(nix::unistd::read(events.as_fd(), &mut cookie)? == 8, "an event of another length");
    ensure!(u64::from_ne_bytes(cookie) == 0x1234, "another event: {cookie:?}");
    drop(events);
    for object in [qp, key, cq] {
        object.destroy().map_err(|(_, e)| e)?;
    }
    umem.dereg().map_err(|(_, e)| e)?;
    drop(uar);
    pd.destroy().map_err(|(_, e)| e)?;
    Ok(())
}

/// The tests of this file.
pub(crate) fn tests() -> Vec<Test> {
    vec![Test::without_devices("devx::messages", messages)]
}
