// SPDX-License-Identifier: MIT OR Apache-2.0
//! DPDK: its driver for mlx5 makes its queues by commands for the firmware and writes them itself.

use crate::row::Family::Plain;
use crate::row::Place::Roce;
use crate::row::{Places, Row, row};

/// What sends frames.
const FRAMES: Places = Places { list: &[Roce], why: "it needs Ethernet ports of mlx5 devices on a PCI bus" };

/// The rows. `sh/testpmd` runs the program on both devices of the guest.
pub(super) const ROWS: &[Row] = &[row(Plain, "testpmd", "", FRAMES)];
