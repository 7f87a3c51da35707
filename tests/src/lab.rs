// SPDX-License-Identifier: MIT OR Apache-2.0
//! The two devices of a test, opened.

use crate::bed::Bed;
use crate::env::{End, LabEnv};
use anyhow::{Context as _, Result};
use core::any::Any;
use uverbs::attr::{AccessFlags, DeviceAttr, DeviceCapFlags, LinkLayer, PortAttr, QpCap, QpState};
use uverbs::mlx5::Mlx5;
use uverbs::open::DeviceInfo;
use uverbs::{ConnectAttr, Context, Driver, Errno, Ud};

/// The environment of a test.
#[derive(Debug)]
pub struct Lab<D: Driver> {
    /// The device at end A.
    pub a: Context<D>,
    /// The device at end B.
    pub b: Context<D>,
    /// The source of the devices.
    pub bed: Box<dyn Bed<D>>,
    /// Index of the GID with which they address each other.
    pub gid_index: u8,
    /// The attributes of device A, with the capabilities that B has, too; usually B is of the same kind.
    pub device: DeviceAttr,
    /// The attributes of the port of A.
    pub port: PortAttr,
}

/// The port that all tests use.
pub const PORT: u8 = 1;

/// Finds a device by its name.
pub fn find(name: &str) -> Result<DeviceInfo> {
    let all = uverbs::devices().context("devices()")?;
    let names: Vec<_> = all.iter().map(|d| d.name.clone()).collect();
    all.into_iter().find(|d| d.name == name).with_context(|| format!("no device {name} among {names:?}"))
}

impl<D: Driver> Lab<D> {
    /// Opens B next to A.
    pub fn new(a: Context<D>, bed: Box<dyn Bed<D>>) -> Result<Self> {
        let b = bed.open(End::B).context("open B")?;
        let mut device = a.query_device()?;
        device.device_cap_flags &= b.query_device()?.device_cap_flags;
        let port = a.query_port(PORT)?;
        let gid_index = bed.gid_index();
        Ok(Self { a, b, bed, gid_index, device, port })
    }

    /// The VM's environment, for tests that run only in the VM.
    pub fn env(&self) -> Result<&LabEnv> {
        self.bed.env().context("needs the VM")
    }

    /// The context at an end.
    pub fn end(&self, end: End) -> &Context<D> {
        match end {
            End::A => &self.a,
            End::B => &self.b,
        }
    }

    /// Whether its ports are Ethernet, and not InfiniBand.
    pub fn is_ethernet(&self) -> bool {
        self.port.link_layer == LinkLayer::ETHERNET
    }

    /// Whether the device has these capabilities.
    pub fn has(&self, cap: DeviceCapFlags) -> bool {
        self.device.device_cap_flags.contains(cap)
    }

    /// This lab, if the devices are mlx5 devices, for features that only that driver has.
    pub fn mlx5(&self) -> Option<&Lab<Mlx5>> {
        (self as &dyn Any).downcast_ref()
    }

    /// Whether it has RDMA flush.
    pub fn has_flush(&self) -> bool {
        self.has(DeviceCapFlags::FLUSH_GLOBAL)
    }

    /// All access rights that the device supports.
    pub fn full_access(&self) -> AccessFlags {
        let mut access = AccessFlags::LOCAL_WRITE
            | AccessFlags::REMOTE_WRITE
            | AccessFlags::REMOTE_READ
            | AccessFlags::REMOTE_ATOMIC;
        access.set(
            AccessFlags::MW_BIND,
            self.has(DeviceCapFlags::MEM_WINDOW) || self.has(DeviceCapFlags::MEM_WINDOW_TYPE_2B),
        );
        access.set(AccessFlags::FLUSH_GLOBAL, self.has_flush());
        access
    }

    /// The default attributes of connections: all rights, and long timeouts for a slow machine.
    pub fn connect_attr(&self) -> ConnectAttr {
        ConnectAttr::new()
            .port_num(PORT)
            .sgid_index(Some(self.gid_index))
            .access(self.full_access() - AccessFlags::LOCAL_WRITE - AccessFlags::MW_BIND)
            .hop_limit(64)
            .timeout(16)
            .max_rd_atomic(4)
            .max_dest_rd_atomic(4)
    }

    /// Whether QPs can be drained. The specification has the state SQD, but it depends on the kernel's driver: mlx5_ib
    /// of every kernel so far has no transition to it (`optab` of `__mlx5_ib_modify_qp()` in qp.c), and returns
    /// `EINVAL`.
    pub fn has_sqd(&self) -> Result<bool> {
        let pd = self.a.alloc_pd()?;
        let cq = self.a.create_cq(4, None)?;
        let cap = QpCap::new(1, 1);
        let qp = pd.raw_qp::<Ud>().cq(&cq).cap(cap).create()?;
        let attr = self.connect_attr();
        qp.init(&attr)?;
        let here = qp.control.endpoint(0, &attr)?;
        qp.connect(&here, &here, &attr)?;
        match qp.control.modify_state(QpState::SQD) {
            Ok(()) => Ok(true),
            Err(e) if e.errno() == Errno::EINVAL && qp.control.state()? == QpState::RTS => {
                self.note("QPs can't be drained here");
                Ok(false)
            }
            Err(e) => Err(e).context("RTS to SQD"),
        }
    }

    /// Prints a note about the running test after all tests.
    pub fn note(&self, text: impl core::fmt::Display) {
        crate::runner::note(text);
    }
}
