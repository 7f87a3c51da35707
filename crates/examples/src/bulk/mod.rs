// SPDX-License-Identifier: MIT OR Apache-2.0
//! Transfers of many blocks over several NICs, as programs that move KV caches between machines make them. They continue after the loss
//! of a NIC.
//!
//! A batch is some hundred blocks. Each NIC has several QPs, the *lanes*. The receiver opens an area of its memory to a lane, and sends the
//! lane a [`Grant`](proto::Grant) with the key. The sender fills one buffer with the next batch, shares it, WRITEs all its blocks with one
//! completion for each doorbell, and SENDs that the batch is finished. The receiver closes the area by a work request, compares the data,
//! and grants the area again; the grant says that the batch was taken.
//!
//! Two limits hold the sender back: the depth of its queues, and the number of areas that each lane has (the *window*).
//!
//! # The loss of a NIC
//! The work requests of its lanes fail, at the side that has lost it at once, and at the other side when that is told over TCP, or when
//! repetitions get no answer. Batches that were on a failed lane, or whose grant has not come back, are sent again on another one: from the
//! same shared buffers, because their pool is registered at all NICs. The receiver ends the windows of the lane before it opens its areas
//! to another lane. So a WRITE of the failed lane that is late can't change them: the device refuses its key.
//!
//! Nothing here is `unsafe`: the buffers and windows are owned by the operations, which are futures.
//!
//! | module | contents |
//! |---|---|
//! | [`proto`] | the messages, and the pattern of the data |
//! | [`lanes`] | NICs, QPs, and their connection |
//! | [`lane_qp`] | a QP: connected, or of reliable datagrams (SRD), where nothing has an order |
//! | [`control`] | the TCP stream of the two sides |
//! | [`area`] | the areas of the receiver: windows, whole buffers, a dma-buf |
//! | [`sender`], [`receiver`] | the two roles |

pub mod area;
pub mod control;
pub mod lane_qp;
pub mod lanes;
pub mod proto;
pub mod receiver;
pub mod sender;

use serde::Serialize;

/// The size of a transfer, which both ends must have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// Blocks of a batch.
    pub blocks: u32,
    /// Bytes of a block.
    pub block_size: u32,
    /// QPs of each NIC.
    pub qps: u32,
    /// Batches.
    pub batches: u32,
    /// Batches that may be on their way on each QP.
    pub window: u32,
    /// WRITEs that a QP may have outstanding.
    pub depth: u32,
    /// Compare only the first bytes of each block, except in the last batch.
    pub stamps_only: bool,
}

impl Default for Plan {
    fn default() -> Self {
        Self { blocks: 256, block_size: 4096, qps: 2, batches: 64, window: 2, depth: 256, stamps_only: false }
    }
}

impl Plan {
    /// Bytes of a batch, and of the area for it.
    ///
    /// # Errors
    /// A number that is 0, or a size that a device can't have.
    pub fn bytes(&self) -> anyhow::Result<u32> {
        let Self { blocks, block_size, qps, batches, window, depth, .. } = *self;
        anyhow::ensure!(blocks.min(qps).min(batches).min(window) > 0, "a transfer has at least one block");
        anyhow::ensure!(depth >= 4, "a queue has room for at least 4 work requests");
        anyhow::ensure!(block_size >= proto::STAMP as u32, "a block has at least {} bytes", proto::STAMP);
        anyhow::ensure!(qps.max(window) <= 64, "more than 64 QPs of a NIC, or batches on their way on a QP");
        anyhow::ensure!(depth <= 1 << 14, "a queue with more than 16384 work requests");
        let area = u64::from(blocks) * u64::from(block_size);
        anyhow::ensure!(area <= 1 << 30, "{area} bytes of a batch are more than 2^30");
        let bytes = area.saturating_mul(u64::from(qps) * u64::from(window));
        anyhow::ensure!(bytes <= 1 << 36, "{bytes} bytes for each NIC are too many");
        Ok(u32::try_from(area)?)
    }

    /// Areas of each NIC.
    #[must_use]
    pub fn areas(&self) -> u32 {
        self.qps * self.window
    }

    /// The bytes of each block of a batch that have a pattern.
    #[must_use]
    pub fn checked(&self, batch: u32) -> usize {
        let all = !self.stamps_only || batch + 1 == self.batches;
        if all { self.block_size as usize } else { proto::STAMP }
    }
}

/// What runs the tasks of a side.
fn runtime(threads: usize) -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(threads.max(1)).enable_all().build()
}

/// What a transfer took.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// The NICs of the sender.
    pub devices: Vec<String>,
    /// Its size.
    pub plan: Plan,
    /// Seconds from the first WRITE to the last acknowledgement of the receiver.
    pub seconds: f64,
    /// WRITEs per second.
    pub writes: f64,
    /// Bytes per second, in millions.
    pub megabytes: f64,
    /// The median time of a batch, from its first WRITE to the receiver's acknowledgement, in microseconds.
    pub p50: f64,
    /// 99 % of the batches are not slower.
    pub p99: f64,
    /// The lanes that have failed.
    pub failed: Vec<String>,
    /// Batches that were sent again.
    pub again: u32,
}

impl Figures {
    /// A table.
    #[must_use]
    pub fn table(&self) -> String {
        let Plan { blocks, block_size, qps, batches, window, depth, .. } = self.plan;
        let devices = self.devices.join(", ");
        let Self { seconds, writes, megabytes, p50, p99, failed, again, .. } = self;
        let mut table = format!(
            "{batches} batches of {blocks} blocks of {block_size} bytes over {devices}, {qps} QPs of depth {depth} each, window {window}\n"
        );
        for lane in failed {
            table += &format!("lost {lane}\n");
        }
        table
            + &format!(
                "{seconds:.3} s   {writes:.0} writes/s   {megabytes:.1} MB/s   batch p50 {p50:.0} us, p99 {p99:.0} us   \
                 {again} batches sent again\n"
            )
    }
}
