// SPDX-License-Identifier: MIT OR Apache-2.0
//! The areas of the receiver, each of which is open to one lane at a time.
//!
//! An area is opened and closed by a memory window, so only its lane can write to it, and only while it is granted. A device without
//! windows (iWARP) opens it by the key of the pool, for ever: there the end of the lane's QP ends its access.

use super::Plan;
use super::lanes::{Lane, Port};
use super::proto::pattern;
use crate::nic::Nic;
use crate::udmabuf;
use anyhow::{Context as _, Result};
use core::fmt;
use std::fs::File;
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use uverbs::attr::{AccessFlags, MwType};
use uverbs::{Buf, Exposed, RemoteRegion, Unmapped, Window};

/// How the areas are opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// By memory windows, if all NICs have them; otherwise by keys.
    #[default]
    Windows,
    /// By the key of the pool.
    Keys,
    /// They are in a dma-buf, with its key.
    DmaBuf,
}

/// The memory of an area.
#[derive(Debug)]
enum Memory {
    /// No peer can write to it, unless its device has no windows.
    Closed(Buf<Exposed>),
    /// With a window of one NIC, which is open or not.
    Window(Window),
    /// Part of a dma-buf, which this process reads as a file. Its keys are those of one NIC.
    DmaBuf(Buf<Unmapped>, Arc<File>),
}

/// An area.
#[derive(Debug)]
pub struct Area {
    number: u32,
    memory: Memory,
}

/// Why a work request of an area has failed, and the area, if the device does not have it still.
#[derive(Debug)]
pub struct Failure {
    /// The reason.
    pub error: anyhow::Error,
    /// The area.
    pub area: Option<Area>,
}

impl Failure {
    /// That of a lane that the other side has lost.
    #[must_use]
    pub fn of_peer(self) -> Self {
        Self { error: self.error.context("the other side has lost it"), ..self }
    }
}

/// Data that differ from the pattern.
#[derive(Clone, Copy, Debug)]
pub struct WrongData {
    batch: u32,
    block: u32,
    at: Option<usize>,
}

impl fmt::Display for WrongData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { batch, block, at } = self;
        write!(f, "batch {batch}, block {block}: wrong data from byte {at:?} on")
    }
}

impl core::error::Error for WrongData {}

impl Area {
    /// The areas of each of the NICs: of one pool that is registered at all of them, or of a dma-buf.
    ///
    /// # Errors
    /// There is too little memory, or a NIC can't register it.
    pub fn all(ports: &[Port], plan: &Plan, kind: Kind) -> Result<Vec<Vec<Self>>> {
        let (each, size) = (plan.areas(), plan.bytes()?);
        let mut number = 0;
        let mut area = |memory| {
            number += 1;
            Ok(Self { number: number - 1, memory })
        };
        if kind == Kind::DmaBuf {
            let areas = ports.iter().map(|port| {
                let file = Arc::new(udmabuf::memfd(u64::from(each) * u64::from(size))?);
                let exported = match port.nic {
                    Nic::Software(_) => None,
                    Nic::Machine(_) => Some(udmabuf::export(&file)?),
                };
                let fd = exported.as_ref().map_or(file.as_fd(), |fd| fd.as_fd());
                let access = AccessFlags::REMOTE_WRITE | AccessFlags::LOCAL_WRITE;
                let pool = port.pd.dmabuf_pool(fd, 0, 0, (each, size), access)?;
                (0..each).map(|_| area(Memory::DmaBuf(pool.get()?, file.clone()))).collect()
            });
            return areas.collect();
        }
        let (first, others) = ports.split_first().context("no NIC")?;
        let mut pool = first.pd.pool_with(each * ports.len() as u32, size);
        for port in others {
            pool = pool.also_in(&port.pd);
        }
        let access = AccessFlags::REMOTE_WRITE;
        let access = if first.has_windows { access | AccessFlags::MW_BIND } else { access };
        let pool = pool.exposed(access).build()?;
        ports.iter().map(|_| (0..each).map(|_| area(Memory::Closed(pool.get()?))).collect()).collect()
    }

    /// Its number.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Whether a lane of another NIC can have it.
    #[must_use]
    pub fn is_portable(&self) -> bool {
        !matches!(self.memory, Memory::DmaBuf(..))
    }

    /// Opens it to a lane, and to no other. Returns what the peer needs.
    ///
    /// # Errors
    /// The lane has failed.
    pub async fn open(self, lane: &Lane) -> Result<(Self, RemoteRegion), Failure> {
        let Self { number, memory } = self;
        let keep = |memory| Self { number, memory };
        let window = match memory {
            Memory::Closed(buf) if lane.has_windows => match lane.pd.alloc_mw(MwType::Type2) {
                Ok(window) => Window::new(window, buf),
                Err(error) => {
                    return Err(Failure { error: error.into(), area: Some(keep(Memory::Closed(buf))) });
                }
            },
            Memory::Closed(buf) => match buf.remote_region_in(&lane.pd) {
                Ok(region) => return Ok((keep(Memory::Closed(buf)), region)),
                Err(error) => {
                    return Err(Failure { error: error.into(), area: Some(keep(Memory::Closed(buf))) });
                }
            },
            Memory::Window(window) => window,
            Memory::DmaBuf(buf, file) => {
                let region = buf.remote_region();
                return Ok((keep(Memory::DmaBuf(buf, file)), region));
            }
        };
        let Some(qp) = lane.qp.connected() else {
            let error = anyhow::anyhow!("only a connected QP opens windows");
            return Err(Failure { error, area: Some(keep(Memory::Window(window))) });
        };
        match qp.bind(window, AccessFlags::REMOTE_WRITE).await {
            Ok(window) => match window.remote_region() {
                Some(region) => Ok((keep(Memory::Window(window)), region)),
                None => {
                    let error = anyhow::anyhow!("the window was not opened");
                    Err(Failure { error, area: Some(keep(Memory::Window(window))) })
                }
            },
            Err(failed) => {
                let area = failed.returned.map(|window| keep(Memory::Window(window)));
                Err(Failure { error: failed.error.into(), area })
            }
        }
    }

    /// Ends the access of the lane by a work request.
    ///
    /// # Errors
    /// The lane has failed.
    pub async fn revoke(self, lane: &Lane) -> Result<Self, Failure> {
        let Self { number, memory } = self;
        // Without a connection there are no windows.
        let Some(qp) = lane.qp.connected() else { return Ok(Self { number, memory }) };
        let Memory::Window(window) = memory else { return Ok(Self { number, memory }) };
        match qp.local_inv(window).await {
            Ok(window) => Ok(Self { number, memory: Memory::Window(window) }),
            Err(failed) => {
                let area = failed.returned.map(|window| Self { number, memory: Memory::Window(window) });
                Err(Failure { error: failed.error.into(), area })
            }
        }
    }

    /// Ends the access of a lane that has failed: the kernel ends the window.
    ///
    /// # Errors
    /// The kernel refuses. The area is lost.
    pub fn close(self) -> Result<Self> {
        let Self { number, memory } = self;
        let memory = match memory {
            Memory::Window(window) => Memory::Closed(window.close()?),
            memory => memory,
        };
        Ok(Self { number, memory })
    }

    /// Compares the blocks of a batch with their pattern.
    ///
    /// # Errors
    /// They differ.
    pub fn check(&self, plan: &Plan, batch: u32) -> Result<()> {
        let len = plan.checked(batch);
        let (mut expected, mut got) = (vec![0; len], vec![0; len]);
        for block in 0..plan.blocks {
            let at = block as usize * plan.block_size as usize;
            match &self.memory {
                Memory::Closed(buf) => buf.read_at(at, &mut got)?,
                Memory::Window(window) => window.read_at(at, &mut got)?,
                // The first address of the buffer is its place in the file.
                Memory::DmaBuf(buf, file) => {
                    file.read_exact_at(&mut got, buf.remote_region().addr() + at as u64)?;
                }
            }
            pattern(&mut expected, batch, block);
            if expected != got {
                let at = expected.iter().zip(&got).position(|(a, b)| a != b);
                return Err(WrongData { batch, block, at }.into());
            }
        }
        Ok(())
    }
}
