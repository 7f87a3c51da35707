// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command queue: entries, mailboxes, tokens, signatures (`struct mlx5_cmd_layout`, `struct mlx5_cmd_prot_block`
//! of `<linux/mlx5/device.h>`).

use crate::fw;
use crate::init_seg::{LOG_SLOTS, LOG_STRIDE};
use crate::state::Function;
use uverbs_hca::bytes::{array, be32, be64, put};
use uverbs_hca::front::{Device, Port};
use uverbs_hca::memory::{Fault, Memory};

/// Significant bytes of an entry.
const ENTRY: usize = 64;
/// `MLX5_PCI_CMD_XPORT`
const TYPE: u8 = 7;
/// Bytes of input and output in the entry itself.
const INLINE: usize = 16;
/// Offsets of these and the other fields.
const IN: usize = 16;
const OUT: usize = 32;
const TOKEN: usize = 60;
const SIGNATURE: usize = 61;
const STATUS: usize = 63;

/// Bytes of data in a mailbox, and bytes of a mailbox. Behind the data are the address of the next mailbox, the block
/// number, the token and the signatures.
const DATA: usize = 512;
const BLOCK: usize = 576;
const NEXT: usize = 560;
const NUMBER: usize = 568;
const BLOCK_TOKEN: usize = 573;
const CONTROL_SIGNATURE: usize = 574;
const BLOCK_SIGNATURE: usize = 575;

/// The longest command: a memory key with half a million pages. And the longest answer: tens of thousands of counters.
const MAX: usize = 8 << 20;
const MAX_ANSWER: usize = 1 << 20;

/// The reason why a command is not executed (`MLX5_CMD_DELIVERY_STAT_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Delivery(u8);

impl Delivery {
    const SIGNATURE: Self = Self(0x1);
    const TOKEN: Self = Self(0x2);
    const BLOCK_NUMBER: Self = Self(0x3);
    const OUT_POINTER: Self = Self(0x4);
    const IN_POINTER: Self = Self(0x5);
    const IN_LENGTH: Self = Self(0x7);
    const OUT_LENGTH: Self = Self(0x8);
    const DESCRIPTOR: Self = Self(0x10);
}

fn xor(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum, b| sum ^ b)
}

/// The addresses of a chain of mailboxes for `len` bytes beyond the inline ones, checked for token and order.
fn chain(
    memory: &dyn Memory,
    mut at: u64,
    len: usize,
    token: u8,
    pointer: Delivery,
) -> Result<Vec<u64>, Delivery> {
    let count = len.saturating_sub(INLINE).div_ceil(DATA);
    let mut blocks = Vec::with_capacity(count);
    for number in 0..count {
        let mut control = [0; BLOCK - NEXT];
        // Mailboxes are aligned to their data.
        if at == 0 || !at.is_multiple_of(64) {
            return Err(pointer);
        }
        let place = at.checked_add(NEXT as u64).ok_or(pointer)?;
        memory.read(place, &mut control).map_err(|Fault| pointer)?;
        if control[BLOCK_TOKEN - NEXT] != token {
            return Err(Delivery::TOKEN);
        }
        if be32(&control, NUMBER - NEXT) as usize != number {
            return Err(Delivery::BLOCK_NUMBER);
        }
        blocks.push(at);
        at = be64(&control, 0);
    }
    Ok(blocks)
}

/// The range of the message that is in a block.
fn part(number: usize, len: usize) -> core::ops::Range<usize> {
    let start = INLINE + number * DATA;
    start.min(len)..(start + DATA).min(len)
}

/// A command, as read from its entry and mailboxes.
struct Command {
    input: Vec<u8>,
    out_len: usize,
    out_blocks: Vec<u64>,
    token: u8,
}

fn read(memory: &dyn Memory, entry: &[u8; ENTRY]) -> Result<Command, Delivery> {
    if xor(entry) != 0xff {
        return Err(Delivery::SIGNATURE);
    }
    if entry[0] != TYPE {
        return Err(Delivery::DESCRIPTOR);
    }
    let (in_len, out_len) = (be32(entry, 4) as usize, be32(entry, 56) as usize);
    if !(8..=MAX).contains(&in_len) {
        return Err(Delivery::IN_LENGTH);
    }
    if !(8..=MAX_ANSWER).contains(&out_len) {
        return Err(Delivery::OUT_LENGTH);
    }
    let token = entry[TOKEN];
    let mut input = vec![0; in_len];
    let inline = in_len.min(INLINE);
    put(&mut input, 0, &entry[IN..IN + inline]);
    let blocks = chain(memory, be64(entry, 8), in_len, token, Delivery::IN_POINTER)?;
    for (number, block) in blocks.iter().enumerate() {
        let place = input.get_mut(part(number, in_len)).ok_or(Delivery::IN_LENGTH)?;
        memory.read(*block, place).map_err(|Fault| Delivery::IN_POINTER)?;
    }
    let out_blocks = chain(memory, be64(entry, 48), out_len, token, Delivery::OUT_POINTER)?;
    Ok(Command { input, out_len, out_blocks, token })
}

/// Writes the answer to the entry and the mailboxes, with signatures.
fn write(
    memory: &dyn Memory,
    entry: &mut [u8; ENTRY],
    command: &Command,
    output: &[u8],
) -> Result<(), Fault> {
    let inline = output.len().min(INLINE);
    entry[OUT..OUT + inline].copy_from_slice(&output[..inline]);
    for (number, at) in command.out_blocks.iter().enumerate() {
        let mut block = [0; BLOCK];
        let data = output.get(part(number, output.len())).unwrap_or_default();
        put(&mut block, 0, data);
        // The address of the next mailbox is the driver's and is not changed.
        memory.read(at + NEXT as u64, &mut block[NEXT..])?;
        block[BLOCK_TOKEN] = command.token;
        (block[CONTROL_SIGNATURE], block[BLOCK_SIGNATURE]) = (0, 0);
        block[CONTROL_SIGNATURE] = !xor(&block[DATA..]);
        block[BLOCK_SIGNATURE] = !xor(&block);
        memory.write(*at, &block)?;
    }
    Ok(())
}

/// The doorbell: executes the commands of these slots.
pub(crate) fn doorbell(device: &mut Device, function: &mut Function, port: &mut Port<'_>, slots: u32) {
    // An event queue for commands does not yet report the command that creates it.
    let reports = function.reports_commands();
    let mut done = 0;
    for slot in (0..1 << LOG_SLOTS).filter(|slot| slots >> slot & 1 != 0) {
        match execute(device, function, port, slot) {
            Ok(true) => done |= 1 << slot,
            Ok(false) => log::warn!("{}: command slot {slot} is not owned by the device", function.name),
            Err(Fault) => log::warn!("{}: the command queue is not in the guest's memory", function.name),
        }
    }
    if reports && done != 0 {
        function.post_commands(done);
    }
}

/// Executes the command of one slot; `false` if the device does not own the slot.
fn execute(
    device: &mut Device,
    function: &mut Function,
    port: &mut Port<'_>,
    slot: u32,
) -> Result<bool, Fault> {
    let guest = std::sync::Arc::clone(&function.vm.memory);
    let at = function.command_queue.addr + (u64::from(slot) << LOG_STRIDE);
    let mut entry = [0; ENTRY];
    guest.read(at, &mut entry)?;
    if entry[STATUS] & 1 == 0 {
        return Ok(false);
    }
    let delivery = match read(&*guest, &entry) {
        Err(delivery) => delivery,
        Ok(command) => {
            let mut output = vec![0; command.out_len];
            fw::execute(device, function, port, &command.input, &mut output);
            write(&*guest, &mut entry, &command, &output)
                .err()
                .map_or(Delivery(0), |Fault| Delivery::OUT_POINTER)
        }
    };
    if delivery != Delivery(0) {
        log::warn!(
            "{}: the command in slot {slot} is invalid: delivery status {:#x}",
            function.name,
            delivery.0
        );
    }
    // The last word returns the ownership to the driver, so it is written last.
    entry[STATUS] = delivery.0 << 1;
    entry[SIGNATURE] = 0;
    entry[SIGNATURE] = !xor(&entry);
    guest.write(at + OUT as u64, &entry[OUT..ENTRY - 8])?;
    guest.publish(at + ENTRY as u64 - 8, array(&entry, ENTRY - 8).unwrap_or_default())?;
    Ok(true)
}
