// SPDX-License-Identifier: MIT OR Apache-2.0
//! The two RDMA devices of a guest, on one link or fabric: rxe or siw of the guest's own kernel, or software ConnectX NICs or EFAs
//! that a process of the host offers to QEMU as PCI devices.
//!
//! Everything that depends on the kind of devices is here: a kind is a variant of [`Kind`] with its [`Facts`], and one of [`Device`] with its
//! options. [`crate::beside`] has the process beside QEMU, [`crate::guest`] the guest's environment, `guest/init.sh` the setup.

use crate::HOME_SUITE;
use crate::beside::{DeviceProcess, Wire};
use crate::module::Module;
use anyhow::Result;
#[cfg(feature = "cli")]
use anyhow::ensure;
use std::path::{Path, PathBuf};

/// The suite whose QEMU has vfio-user-pci (10.1 or later).
const VFIO_USER_SUITE: &str = "forky";

/// A kind of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
pub enum Kind {
    /// The kernel's software device for RoCE
    Rxe,
    /// The kernel's software device for iWARP
    Siw,
    /// The kernel's mlx5 driver, on software ConnectX NICs
    Mlx5,
    /// The kernel's efa driver, on software EFAs
    Efa,
}

/// What the lab knows of a kind.
struct Facts {
    /// The name in options and in `LAB_DEVICE`.
    name: &'static str,
    /// The names of the two devices.
    devices: [&'static str; 2],
    /// The module of the driver, if the kernel does not contain it.
    module: Option<Module>,
    /// The program that implements the devices beside QEMU, by default.
    program: Option<&'static str>,
    /// The script of the guest that loads the drivers and waits for the devices: its name and its text.
    script: Option<(&'static str, &'static str)>,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Rxe, Self::Siw, Self::Mlx5, Self::Efa];

    const fn facts(self) -> &'static Facts {
        match self {
            Self::Rxe => {
                &Facts { name: "rxe", devices: ["rxe0", "rxe1"], module: None, program: None, script: None }
            }
            Self::Siw => &Facts {
                name: "siw",
                devices: ["siw0", "siw1"],
                module: Some(Module {
                    name: "siw",
                    source: "drivers/infiniband/sw/siw",
                    config: "CONFIG_RDMA_SIW",
                }),
                program: None,
                script: None,
            },
            Self::Mlx5 => &Facts {
                name: "mlx5",
                devices: ["mlx5_0", "mlx5_1"],
                module: None,
                program: Some("uverbs-hca"),
                script: Some(("lab-mlx5-up", include_str!("../guest/lab-mlx5-up.sh"))),
            },
            Self::Efa => &Facts {
                name: "efa",
                devices: ["efa_0", "efa_1"],
                module: Some(Module {
                    name: "efa",
                    source: "drivers/infiniband/hw/efa",
                    config: "CONFIG_INFINIBAND_EFA",
                }),
                program: Some("uverbs-efa"),
                script: Some(("lab-efa-up", include_str!("../guest/lab-efa-up.sh"))),
            },
        }
    }

    /// The name in options and in `LAB_DEVICE`.
    pub const fn name(self) -> &'static str {
        self.facts().name
    }

    /// The program that implements the devices beside QEMU, by default; `None` if the guest's kernel implements them.
    pub const fn program(self) -> Option<&'static str> {
        self.facts().program
    }

    /// The module of the driver, if the kernel does not contain it.
    pub(crate) const fn module(self) -> Option<&'static Module> {
        self.facts().module.as_ref()
    }

    /// The script of the guest that loads the drivers and waits for the devices: its name and its text.
    pub(crate) const fn script(self) -> Option<(&'static str, &'static str)> {
        self.facts().script
    }

    /// The kinds with a program, in words: `mlx5 and efa`.
    pub(crate) fn with_program() -> String {
        let with = Self::ALL.into_iter().filter(|kind| kind.program().is_some());
        with.map(Self::name).collect::<Vec<_>>().join(" and ")
    }
}

/// The link layer and the transport of the devices' ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// InfiniBand.
    Ib,
    /// Ethernet: RoCE version 2. Each device has a network device.
    Roce,
    /// Ethernet: iWARP, which is RDMA over TCP. Each device has a network device.
    Iwarp,
    /// The network of EFA devices, which have no IP addresses.
    Efa,
}

impl Link {
    /// Those of mlx5 devices.
    pub const ALL: [Self; 2] = [Self::Ib, Self::Roce];

    /// The name in options and in `LAB_LINK`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ib => "ib",
            Self::Roce => "roce",
            Self::Iwarp => "iwarp",
            Self::Efa => "efa",
        }
    }

    /// Whether each device has a network device and an IP address.
    pub(crate) const fn has_network(self) -> bool {
        matches!(self, Self::Roce | Self::Iwarp)
    }
}

/// How the guest's kernel registers memory with the mlx5 devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
pub enum Mkeys {
    /// By page lists in commands
    Command,
    /// By the kernel's UMR queue (updates of memory keys)
    Umr,
}

impl Mkeys {
    /// The name in options and in `LAB_MKEYS`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Command => "command",
            Self::Umr => "umr",
        }
    }
}

/// The devices of a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Device {
    /// The kernel's software device for RoCE, over a veth link.
    Rxe,
    /// The kernel's software device for iWARP (Soft-iWARP), on the network devices of a veth link.
    ///
    /// Debian's kernels do not contain the driver. The lab builds it from Debian's source of the kernel.
    Siw,
    /// The kernel's own mlx5 driver, on devices that `program` implements.
    ///
    /// The program runs beside QEMU. It listens on the Unix sockets of two vfio-user devices (`--socket PATH`, twice) and
    /// on one for commands of the guest's `lab-hca` (`--control PATH`), and ends at the line `quit` on its stdin. Lines of
    /// its output that begin with `unknown:` or `violation:` are errors. `uverbs-hca` is such a program.
    Mlx5 {
        /// The program: a path, or a name to be found in `PATH`.
        program: PathBuf,
        /// The link layer of their ports.
        link: Link,
        /// How the kernel registers memory with them.
        mkeys: Mkeys,
    },
    /// The kernel's own efa driver, on devices that `program` implements in the way of [`Mlx5`](Self::Mlx5). `uverbs-efa` is such a
    /// program.
    ///
    /// Debian's kernels do not contain the driver. The lab builds it from Debian's source of the kernel.
    Efa {
        /// The program: a path, or a name to be found in `PATH`.
        program: PathBuf,
        /// The generation of the devices, which determines their PCI device; kernel 6.1 knows the first three.
        generation: u8,
    },
}

impl Device {
    /// The kind.
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Rxe => Kind::Rxe,
            Self::Siw => Kind::Siw,
            Self::Mlx5 { .. } => Kind::Mlx5,
            Self::Efa { .. } => Kind::Efa,
        }
    }

    /// The name in options and in `LAB_DEVICE`.
    pub const fn name(&self) -> &'static str {
        self.kind().name()
    }

    /// The link layer of the devices' ports.
    pub const fn link(&self) -> Link {
        match self {
            Self::Rxe => Link::Roce,
            Self::Siw => Link::Iwarp,
            Self::Mlx5 { link, .. } => *link,
            Self::Efa { .. } => Link::Efa,
        }
    }

    /// The names of the two devices.
    pub(crate) const fn names(&self) -> [&'static str; 2] {
        self.kind().facts().devices
    }

    /// The index of the GID of the devices' IP address; of the port's own GID if they have no address that has one.
    pub(crate) const fn gid_index(&self) -> &'static str {
        match self {
            Self::Rxe => "1",
            // The GID table of mlx5 has entries of both RoCE versions for each address; those of the port's link-local address
            // are first.
            Self::Mlx5 { link: Link::Roce, .. } => "3",
            Self::Siw | Self::Mlx5 { .. } | Self::Efa { .. } => "0",
        }
    }

    /// The module of the driver, if the kernel does not contain it.
    pub(crate) const fn module(&self) -> Option<&'static Module> {
        self.kind().module()
    }

    /// Whether a process beside QEMU implements the devices.
    pub(crate) const fn is_beside(&self) -> bool {
        self.kind().program().is_some()
    }

    /// How the kernel registers memory with mlx5 devices.
    pub const fn mkeys(&self) -> Mkeys {
        match self {
            Self::Mlx5 { mkeys, .. } => *mkeys,
            _ => Mkeys::Command,
        }
    }

    /// The suite whose QEMU is used by default.
    pub(crate) const fn qemu_suite(&self) -> &'static str {
        if self.is_beside() { VFIO_USER_SUITE } else { HOME_SUITE }
    }

    /// The name for messages: `rxe`, `siw`, `mlx5 roce`, `mlx5 ib umr`.
    pub fn label(&self) -> String {
        match self {
            Self::Rxe | Self::Siw => self.name().into(),
            Self::Efa { generation, .. } => format!("efa generation {generation}"),
            Self::Mlx5 { link, mkeys: Mkeys::Command, .. } => format!("mlx5 {}", link.name()),
            Self::Mlx5 { link, mkeys: Mkeys::Umr, .. } => format!("mlx5 {} umr", link.name()),
        }
    }

    /// Starts the process beside QEMU, if there is one, in the directory of a boot.
    pub(crate) fn start(&self, dir: &Path, wire: Option<&Wire>) -> Result<Option<DeviceProcess>> {
        let (program, own) = match self {
            Self::Rxe | Self::Siw => return Ok(None),
            Self::Mlx5 { program, link, mkeys } => {
                (program, format!("--link {} --mkeys {}", link.name(), mkeys.name()))
            }
            Self::Efa { program, generation } => (program, format!("--generation {generation}")),
        };
        let mut args = wire.map(Wire::fabric).unwrap_or_default();
        args.extend(own.split(' ').map(str::to_owned));
        DeviceProcess::start(program, &args, dir).map(Some)
    }
}

/// The options of a command that select devices of a kind.
#[cfg(feature = "cli")]
pub(crate) struct Selection {
    /// The links, if they were given.
    pub(crate) links: Option<&'static [Link]>,
    pub(crate) mkeys: Mkeys,
    /// The generation, if it was given.
    pub(crate) generation: Option<u8>,
}

/// The generation of EFA devices by default.
#[cfg(feature = "cli")]
const GENERATION: u8 = 3;

#[cfg(feature = "cli")]
impl Kind {
    /// The devices that options select. `links` are those without an option; `program` returns the program of kinds that have one.
    ///
    /// # Errors
    /// The kind does not have an option, or `program` fails.
    pub(crate) fn devices(
        self,
        selection: &Selection,
        links: &'static [Link],
        program: impl FnOnce(Self) -> Result<PathBuf>,
    ) -> Result<Vec<Device>> {
        let Selection { links: given, mkeys, generation } = *selection;
        ensure!(generation.is_none() || self == Self::Efa, "only EFA devices have a --generation");
        let only = match self {
            Self::Mlx5 => {
                let program = program(self)?;
                let device = |link: &Link| Device::Mlx5 { program: program.clone(), link: *link, mkeys };
                return Ok(given.unwrap_or(links).iter().map(device).collect());
            }
            Self::Rxe => Device::Rxe,
            Self::Siw => Device::Siw,
            Self::Efa => {
                Device::Efa { program: program(self)?, generation: generation.unwrap_or(GENERATION) }
            }
        };
        ensure!(given.is_none_or(|given| given == [only.link()]), "these devices do not support this --link");
        ensure!(mkeys == Mkeys::Command, "only mlx5 devices support --mkeys umr");
        Ok(vec![only])
    }
}

/// The programs that implement devices, as options of a command.
#[cfg(feature = "cli")]
#[derive(clap::Args, Clone, Debug)]
pub struct Programs {
    /// The program that implements mlx5 devices
    #[arg(long, global = true, value_name = "PROGRAM", default_value = "uverbs-hca")]
    hca: PathBuf,
    /// The program that implements EFA devices
    #[arg(long, global = true, value_name = "PROGRAM", default_value = "uverbs-efa")]
    efa: PathBuf,
}

#[cfg(feature = "cli")]
impl Programs {
    /// That of a kind; `None` if it has none.
    pub fn of(&self, kind: Kind) -> Option<&Path> {
        match kind {
            Kind::Rxe | Kind::Siw => None,
            Kind::Mlx5 => Some(&self.hca),
            Kind::Efa => Some(&self.efa),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_facts_of_kinds_agree() {
        for kind in Kind::ALL {
            let module = kind.module().map_or(kind.name(), |module| module.name);
            assert_eq!(module, kind.name());
            assert_eq!(kind.script().is_some(), kind.program().is_some());
            if let Some((name, text)) = kind.script() {
                assert_eq!(name, format!("lab-{}-up", kind.name()));
                let init = include_str!("../guest/init.sh");
                assert!(text.contains(&format!("# {name}: ")) && init.contains(&format!("/usr/bin/{name}")));
            }
            assert!(kind.facts().devices.iter().all(|device| device.starts_with(kind.name())));
        }
        assert_eq!(Kind::with_program(), "mlx5 and efa");
    }

    #[cfg(feature = "cli")]
    #[test]
    fn programs_are_those_of_the_kinds() {
        #[derive(clap::Parser)]
        struct Cli {
            #[command(flatten)]
            programs: Programs,
        }
        let Cli { programs } = clap::Parser::parse_from(["lab"]);
        for kind in Kind::ALL {
            assert_eq!(programs.of(kind), kind.program().map(Path::new));
        }
    }

    #[test]
    fn devices_have_different_labels() {
        let mlx5 = |link| Device::Mlx5 { program: PathBuf::new(), link, mkeys: Mkeys::Command };
        let umr = Device::Mlx5 { program: PathBuf::new(), link: Link::Roce, mkeys: Mkeys::Umr };
        assert_eq!(umr.label(), "mlx5 roce umr");
        assert_eq!([Device::Rxe.name(), mlx5(Link::Ib).name()], ["rxe", "mlx5"]);
        assert_eq!(Link::ALL.map(|l| mlx5(l).label()), ["mlx5 ib", "mlx5 roce"]);
        assert_ne!(Device::Rxe.qemu_suite(), mlx5(Link::Ib).qemu_suite());
    }
}
