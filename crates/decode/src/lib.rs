// SPDX-License-Identifier: MIT OR Apache-2.0
//! Work queue elements and completion queue entries in words.
//!
//! [`decode`] makes an [`Entry`] of any bytes: its fields with value and meaning, and what it does in a few words. It never fails: bytes
//! that are missing or wrong are named in [`Entry::problems`], and bits that no field has are shown as reserved. `{}` prints one line,
//! `{:#}` a table. [`ring::Ring`] is a whole queue, [`text::parse`] reads the bytes from a dump.
//!
//! It reads the formats by their offsets (`<infiniband/mlx5dv.h>` and the PRM, `<rdma/rdma_user_rxe.h>`, `<rdma/siw-abi.h>`,
//! `efa_io_defs.h`) and uses no code of a driver.
//!
//! ```
//! use uverbs_decode::{Device, Format, What, decode};
//!
//! let bytes = uverbs_decode::text::parse("00 00 05 0a 00 01 01 01  00 00 00 08 00 00 00 00")?;
//! let entry = decode(Format::new(Device::Mlx5, What::Send), &bytes);
//! assert_eq!(entry.to_string(), "SEND of 0 bytes, WQE 5 of QP 0x000101, signaled");
//! # Ok::<(), uverbs_decode::text::NotHex>(())
//! ```

pub mod efa;
mod entry;
pub mod mlx5;
mod names;
mod reader;
pub mod ring;
pub mod rxe;
pub mod siw;
#[cfg(test)]
mod tests;
pub mod text;

pub use entry::{Entry, Field, Place};
pub use mlx5::QueueKind;

use core::fmt;

/// A device whose formats are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// `NVIDIA` `ConnectX`, and the software one.
    Mlx5,
    /// Soft-RoCE of Linux.
    Rxe,
    /// Soft-iWARP of Linux.
    Siw,
    /// Amazon's EFA, and the software one.
    Efa,
}

impl Device {
    /// All.
    pub const ALL: [Self; 4] = [Self::Mlx5, Self::Rxe, Self::Siw, Self::Efa];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mlx5 => "mlx5",
            Self::Rxe => "rxe",
            Self::Siw => "siw",
            Self::Efa => "efa",
        }
    }

    /// The device with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|device| device.name() == name)
    }

    /// What has the formats, in words.
    #[must_use]
    pub const fn about(self) -> &'static str {
        match self {
            Self::Mlx5 => "ConnectX, and the software one",
            Self::Rxe => "Soft-RoCE of Linux",
            Self::Siw => "Soft-iWARP of Linux",
            Self::Efa => "Amazon's EFA, and the software one",
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An entry of which queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Of a send queue.
    Send,
    /// Of a receive queue.
    Recv,
    /// Of a shared receive queue. Only mlx5's differ from [`Recv`](Self::Recv).
    Srq,
    /// Of a completion queue.
    Cqe,
}

impl What {
    /// All.
    pub const ALL: [Self; 4] = [Self::Send, Self::Recv, Self::Srq, Self::Cqe];
}

/// The format of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// The device.
    pub device: Device,
    /// The queue.
    pub what: What,
    /// The type of the QP. Send queues of mlx5 and rxe have other fields for other types.
    pub kind: QueueKind,
}

impl Format {
    /// The format of a reliable connection's entries.
    #[must_use]
    pub const fn new(device: Device, what: What) -> Self {
        Self { device, what, kind: QueueKind::Rc }
    }

    /// The bytes from one entry to the next, unless the queue was created with others.
    #[must_use]
    pub const fn stride(self) -> usize {
        match (self.device, self.what) {
            (Device::Mlx5 | Device::Efa, What::Send) | (Device::Mlx5 | Device::Rxe, What::Cqe) => 64,
            (Device::Mlx5 | Device::Efa, What::Recv) | (Device::Efa, What::Srq | What::Cqe) => 16,
            (Device::Mlx5, What::Srq) | (Device::Siw, What::Cqe) => 32,
            (Device::Rxe, What::Send) => rxe::SEND,
            (Device::Rxe, What::Recv | What::Srq) => rxe::RECV,
            (Device::Siw, What::Send) => siw::SEND,
            (Device::Siw, What::Recv | What::Srq) => siw::RECV,
        }
    }
}

/// Decodes the entry at the start of `bytes`.
#[must_use]
pub fn decode(format: Format, bytes: &[u8]) -> Entry {
    let Format { device, what, kind } = format;
    match (device, what) {
        (Device::Mlx5, What::Send) => mlx5::send(kind, bytes),
        (Device::Mlx5, What::Recv) => mlx5::recv(bytes),
        (Device::Mlx5, What::Srq) => mlx5::srq(bytes),
        (Device::Mlx5, What::Cqe) => mlx5::cqe(bytes),
        (Device::Rxe, What::Send) => rxe::send(kind, bytes),
        (Device::Rxe, What::Recv | What::Srq) => rxe::recv(bytes),
        (Device::Rxe, What::Cqe) => rxe::cqe(bytes),
        (Device::Siw, What::Send) => siw::send(bytes),
        (Device::Siw, What::Recv | What::Srq) => siw::recv(bytes),
        (Device::Siw, What::Cqe) => siw::cqe(bytes),
        (Device::Efa, What::Send) => efa::send(bytes),
        (Device::Efa, What::Recv | What::Srq) => efa::recv(bytes),
        (Device::Efa, What::Cqe) => efa::cqe(bytes),
    }
}
