// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whole rings.

use crate::entry::Entry;
use crate::{Device, Format, What, decode};
use core::mem::{offset_of, size_of};
use uverbs_uapi::rxe::rxe_queue_buf;

/// The memory of a queue.
#[derive(Clone, Copy, Debug)]
pub struct Ring<'a> {
    /// The format of its entries.
    pub format: Format,
    /// All its bytes.
    pub bytes: &'a [u8],
    /// The bytes from one entry to the next; of mlx5's send queues those of a basic block.
    pub stride: usize,
    /// The slot to begin with. The entries in front of it follow at the end, as the ring does.
    pub first: usize,
}

/// An entry of a ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Its slot.
    pub index: usize,
    /// Whether it continues at the beginning of the ring.
    pub wraps: bool,
    /// What it is; `None` if all its bytes are 0.
    pub entry: Option<Entry>,
}

/// The header of a ring of rxe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxeHeader {
    /// Bytes of an element.
    pub stride: usize,
    /// Slots.
    pub count: usize,
    /// The next slot to fill.
    pub producer: usize,
    /// The next slot to empty.
    pub consumer: usize,
    /// Bytes of the header: the slots are behind it.
    pub len: usize,
}

impl RxeHeader {
    /// The header at the start of a ring that was mapped; `None` if it is not one.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| {
            let word = bytes.get(at..at + 4)?;
            Some(u32::from_le_bytes(word.try_into().ok()?))
        };
        let log2 = word(offset_of!(rxe_queue_buf, log2_elem_size))?;
        let mask = word(offset_of!(rxe_queue_buf, index_mask))?;
        let count = mask.checked_add(1).filter(|count| count.is_power_of_two() && log2 < 20)?;
        Some(Self {
            stride: 1 << log2,
            count: count as usize,
            producer: (word(offset_of!(rxe_queue_buf, producer_index))? & mask) as usize,
            consumer: (word(offset_of!(rxe_queue_buf, consumer_index))? & mask) as usize,
            len: size_of::<rxe_queue_buf>(),
        })
    }
}

impl<'a> Ring<'a> {
    /// A ring of entries with the usual stride.
    #[must_use]
    pub const fn new(format: Format, bytes: &'a [u8]) -> Self {
        Self { format, bytes, stride: format.stride(), first: 0 }
    }

    /// The number of its slots.
    #[must_use]
    pub fn count(&self) -> usize {
        self.bytes.len().checked_div(self.stride).unwrap_or(0)
    }

    /// Its entries. A WQE of several basic blocks is one, which the next one follows. Bytes behind the last whole slot belong to none.
    pub fn slots(&self) -> impl Iterator<Item = Slot> {
        let count = self.count();
        let first = if count == 0 { 0 } else { self.first % count };
        let at = first * self.stride;
        let whole = &self.bytes[..count * self.stride];
        // An entry that wraps is whole in a copy that begins with the first one.
        let turned = [&whole[at..], &whole[..at]].concat();
        let (format, stride) = (self.format, self.stride);
        let mut next = 0;
        core::iter::from_fn(move || {
            let from = next;
            if from >= count {
                return None;
            }
            let rest = &turned[from * stride..];
            let has_blocks = format.device == Device::Mlx5 && format.what == What::Send;
            let bytes = if has_blocks { rest } else { &rest[..stride] };
            let is_empty = rest[..stride].iter().all(|byte| *byte == 0);
            let entry = (!is_empty).then(|| decode(format, bytes));
            let blocks = match &entry {
                Some(entry) if has_blocks => entry.len.div_ceil(stride).max(1),
                _ => 1,
            };
            next += blocks;
            let index = (first + from) % count;
            Some(Slot { index, wraps: index + blocks > count, entry })
        })
    }
}
