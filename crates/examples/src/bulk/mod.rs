// SPDX-License-Identifier: MIT OR Apache-2.0
//! Transfers of many blocks, as programs that move KV caches between machines make them.
//!
//! A batch is thousands of blocks. Each NIC has a part of the blocks and several QPs, and a thread of its own. The sender
//! WRITEs each block to the receiver's memory without a completion; only the last WRITE of each doorbell has one. After the
//! last block each QP sends one WRITE with immediate data, the number of the batch. It arrives after the data, so when
//! those of all QPs have arrived, the batch is complete. Where a device has no immediate data, a SEND is sent instead.
//!
//! Two limits hold the sender back: the depth of its queues, and the number of batches that the receiver has not taken yet
//! (the *window*), for each of which the receiver has an area of memory.
//!
//! The module uses the typed face, whose posts are `unsafe`, because the memory belongs to the transfer as a whole: it is
//! registered once, and each block is posted again and again. ([`kv`](crate::kv) shows owned buffers.)
//!
//! | module | contents |
//! |---|---|
//! | [`memory`] | the areas: ordinary memory, or a dma-buf; their pattern |
//! | [`ends`] | the QPs of a NIC, and the exchange of their addresses |
//! | [`sender`], [`receiver`] | the two roles |

pub mod ends;
pub mod memory;
pub mod receiver;
pub mod sender;

use serde::Serialize;

/// The size of a transfer, which both ends must have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// Blocks of a batch, on each NIC.
    pub blocks: u32,
    /// Bytes of a block.
    pub block_size: u32,
    /// QPs of each NIC.
    pub qps: u32,
    /// Batches.
    pub batches: u32,
    /// Batches that may be on their way.
    pub window: u32,
    /// WRITEs that a QP may have outstanding.
    pub depth: u32,
    /// Compare only the first bytes of each block, except in the last batch.
    pub stamps_only: bool,
}

impl Default for Plan {
    fn default() -> Self {
        Self { blocks: 2048, block_size: 4096, qps: 4, batches: 8, window: 2, depth: 256, stamps_only: false }
    }
}

impl Plan {
    /// Bytes of the memory of one NIC.
    ///
    /// # Errors
    /// A number that is 0, or a size that a device can't have.
    pub fn bytes(&self) -> anyhow::Result<usize> {
        let Self { blocks, block_size, qps, batches, window, depth, .. } = *self;
        anyhow::ensure!(blocks.min(qps).min(batches).min(window) > 0, "a transfer has at least one block");
        anyhow::ensure!(depth >= 4, "a queue has room for at least 4 work requests");
        anyhow::ensure!(block_size >= memory::STAMP as u32, "a block has at least {} bytes", memory::STAMP);
        anyhow::ensure!(qps.max(window) <= 1024, "more than 1024 QPs or batches on their way");
        anyhow::ensure!(depth <= 1 << 16, "a queue with more than 65536 work requests");
        let area = u64::from(blocks) * u64::from(block_size);
        let bytes = area.saturating_mul(window.into());
        anyhow::ensure!(bytes <= 1 << 36, "{bytes} bytes for each NIC are too many");
        Ok(usize::try_from(bytes)?)
    }

    /// Where a block of a batch is.
    #[must_use]
    pub fn offset(&self, batch: u32, block: u32) -> usize {
        let area = batch % self.window;
        (area as usize * self.blocks as usize + block as usize) * self.block_size as usize
    }
}

/// What a transfer took.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// The NICs of the sender.
    pub devices: Vec<String>,
    /// Its size.
    pub plan: Plan,
    /// Whether the ends of batches were immediate data.
    pub immediate: bool,
    /// Whether the receiver's memory was a dma-buf.
    pub dmabuf: bool,
    /// Seconds from the first WRITE to the last acknowledgement of the receiver.
    pub seconds: f64,
    /// WRITEs per second.
    pub writes: f64,
    /// Bytes per second, in millions.
    pub megabytes: f64,
    /// The median time of a batch of one NIC, from its first WRITE to the receiver's acknowledgement, in microseconds.
    pub p50: f64,
    /// 99 % of the batches are not slower.
    pub p99: f64,
    /// How often the sender waited for room in a queue.
    pub full: u64,
    /// How often it waited for the receiver.
    pub held: u64,
}

impl Figures {
    /// A table.
    #[must_use]
    pub fn table(&self) -> String {
        let Plan { blocks, block_size, qps, batches, window, depth, .. } = self.plan;
        let end = if self.immediate { "WRITE_WITH_IMM" } else { "SEND" };
        let memory = if self.dmabuf { "a dma-buf" } else { "memory" };
        let devices = self.devices.join(", ");
        let Self { seconds, writes, megabytes, p50, p99, full, held, .. } = self;
        format!(
            "{batches} batches of {blocks} blocks of {block_size} bytes on each of {devices} to {memory}, {qps} QPs of depth {depth}, \
             window {window}, end by {end}\n\
             {seconds:.3} s   {writes:.0} writes/s   {megabytes:.1} MB/s   batch p50 {p50:.0} us, p99 {p99:.0} us   \
             waited {full} times for a queue, {held} times for the receiver\n"
        )
    }
}
