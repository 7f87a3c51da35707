// SPDX-License-Identifier: MIT OR Apache-2.0
//! The environment variables of the lab: the two devices, and the addresses of their ends of the link.

use anyhow::{Context as _, Result};
use std::env;
use std::process::Command;

/// One end of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The first.
    A,
    /// The second.
    B,
}

impl End {
    /// Its name in the lab's helpers.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::A => "A",
            Self::B => "B",
        }
    }
}

/// The lab's environment.
#[derive(Clone, Debug)]
pub struct LabEnv {
    /// The kernel's series, such as `6.1`.
    pub kernel: String,
    /// Whether the devices are mlx5.
    pub mlx5: bool,
    /// Whether the devices are siw: RDMA over TCP (iWARP).
    pub siw: bool,
    /// Whether the devices are EFAs.
    pub efa: bool,
    /// Whether their ports are InfiniBand, and not Ethernet.
    pub infiniband: bool,
    /// RDMA devices.
    pub dev: [String; 2],
    /// Their addresses; empty on InfiniBand and EFA.
    pub ip: [String; 2],
    /// Their network devices; empty on InfiniBand and EFA.
    pub netdev: [String; 2],
    /// Command prefixes that enter the ends' network namespaces; empty where both share one.
    pub ns: [Vec<String>; 2],
    /// The address by which the other end reaches a TCP server with that prefix.
    pub tcp_host: [String; 2],
    /// Index of the GID of the address; on InfiniBand of the port's own GID.
    pub gid_index: u8,
}

impl LabEnv {
    /// `None` outside the lab.
    #[must_use]
    pub fn get() -> Option<Self> {
        env::var_os("LAB_DEV_A")?;
        Self::read().inspect_err(|e| eprintln!("the lab's environment is incomplete: {e:#}")).ok()
    }

    fn read() -> Result<Self> {
        let var = |name: &str| env::var(name).with_context(|| name.to_owned());
        let both = |name: &str| -> Result<[String; 2]> {
            Ok([var(&format!("{name}_A"))?, var(&format!("{name}_B"))?])
        };
        let ns = both("LAB_NS")?.map(|words| words.split_whitespace().map(str::to_owned).collect());
        Ok(Self {
            kernel: var("LAB_KERNEL")?,
            mlx5: var("LAB_DEVICE")? == "mlx5",
            siw: var("LAB_DEVICE")? == "siw",
            efa: var("LAB_DEVICE")? == "efa",
            infiniband: var("LAB_LINK")? == "ib",
            dev: both("LAB_DEV")?,
            ip: both("LAB_IP")?,
            netdev: both("LAB_NETDEV")?,
            ns,
            tcp_host: both("LAB_TCP_HOST")?,
            gid_index: var("LAB_GID_INDEX")?.parse().context("LAB_GID_INDEX")?,
        })
    }

    /// Whether a process beside the VM implements the devices; it records violations of drivers.
    #[must_use]
    pub fn is_beside(&self) -> bool {
        self.mlx5 || self.efa
    }

    /// The RDMA device at an end.
    #[must_use]
    pub fn dev(&self, end: End) -> &str {
        &self.dev[end as usize]
    }

    /// A program at an end of the link, in its network namespace.
    #[must_use]
    pub fn command(&self, end: End, program: &str) -> Command {
        match self.ns[end as usize].split_first() {
            None => Command::new(program),
            Some((first, rest)) => {
                let mut command = Command::new(first);
                command.args(rest).arg(program);
                command
            }
        }
    }
}
