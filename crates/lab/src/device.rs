// SPDX-License-Identifier: MIT OR Apache-2.0
//! The two RDMA devices of a guest, on one link or fabric: rxe or siw of the guest's own kernel, or software ConnectX NICs or EFAs
//! that a process of the host offers to QEMU as PCI devices.
//!
//! Everything that depends on the kind of devices is here: the QEMU that they need, the process beside it, and their
//! names. [`crate::guest`] has the guest's environment, `guest/init.sh` the setup.

use crate::module::{self, Module};
use crate::{HOME_SUITE, console};
use anyhow::{Context, Result, bail};
use core::time::Duration;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Instant;

/// The suite whose QEMU has vfio-user-pci (10.1 or later).
const VFIO_USER_SUITE: &str = "forky";

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

/// The kind of devices of a guest.
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
    /// The name in options and in `LAB_DEVICE`.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Rxe => "rxe",
            Self::Siw => "siw",
            Self::Mlx5 { .. } => "mlx5",
            Self::Efa { .. } => "efa",
        }
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
        match self {
            Self::Rxe => ["rxe0", "rxe1"],
            Self::Siw => ["siw0", "siw1"],
            Self::Mlx5 { .. } => ["mlx5_0", "mlx5_1"],
            Self::Efa { .. } => ["efa_0", "efa_1"],
        }
    }

    /// The module of the driver, if the kernel does not contain it.
    pub(crate) const fn module(&self) -> Option<&'static Module> {
        match self {
            Self::Rxe | Self::Mlx5 { .. } => None,
            Self::Siw => Some(&module::SIW),
            Self::Efa { .. } => Some(&module::EFA),
        }
    }

    /// Whether a process beside QEMU implements the devices.
    pub(crate) const fn is_beside(&self) -> bool {
        matches!(self, Self::Mlx5 { .. } | Self::Efa { .. })
    }

    /// How the kernel registers memory with mlx5 devices.
    pub const fn mkeys(&self) -> Mkeys {
        match self {
            Self::Rxe | Self::Siw | Self::Efa { .. } => Mkeys::Command,
            Self::Mlx5 { mkeys, .. } => *mkeys,
        }
    }

    /// The suite whose QEMU is used by default.
    pub(crate) const fn qemu_suite(&self) -> &'static str {
        match self {
            Self::Rxe | Self::Siw => HOME_SUITE,
            Self::Mlx5 { .. } | Self::Efa { .. } => VFIO_USER_SUITE,
        }
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
    pub(crate) fn start(&self, dir: &Path, wire: Option<&Wire>) -> Result<Option<Hca>> {
        let (program, own) = match self {
            Self::Rxe | Self::Siw => return Ok(None),
            Self::Mlx5 { program, link, mkeys } => {
                (program, format!("--link {} --mkeys {}", link.name(), mkeys.name()))
            }
            Self::Efa { program, generation } => (program, format!("--generation {generation}")),
        };
        let mut args = wire.map(Wire::fabric).unwrap_or_default();
        args.extend(own.split(' ').map(str::to_owned));
        Hca::start(program, &args, dir).map(Some)
    }
}

/// The connection of a boot's VM with another one: their devices are on one fabric, and a network connects the guests.
#[derive(Clone, Debug)]
pub(crate) struct Wire {
    /// The directory of the sockets, relative to that of the boot.
    pub(crate) dir: String,
    /// The number of the VM, 1 or 2. The second connects to the first.
    pub(crate) side: u8,
}

impl Wire {
    /// Arguments of the devices.
    fn fabric(&self) -> Vec<String> {
        let option = if self.side == 1 { "--fabric" } else { "--join" };
        vec![option.into(), format!("{}/fabric", self.dir)]
    }

    /// QEMU's network device and its back end.
    pub(crate) fn network(&self) -> [String; 2] {
        // The second one retries until the first one listens, also if the first one boots again.
        let role = if self.side == 1 { "server=on" } else { "server=off,reconnect-ms=200" };
        [
            format!("stream,id=wire,{role},addr.type=unix,addr.path={}/net", self.dir),
            format!("virtio-net-pci,netdev=wire,romfile=,mac=52:55:56:00:00:{:02x}", self.side),
        ]
    }
}

/// The longest time until the devices listen, on a busy host.
const START_LIMIT: Duration = Duration::from_secs(60);

/// The longest time until their process has ended, on a busy host.
const END_LIMIT: Duration = Duration::from_secs(30);

/// The running process of the devices; killed when dropped.
pub(crate) struct Hca {
    child: Child,
    log: PathBuf,
}

impl Hca {
    /// Sockets of the devices, relative to the directory of the boot: the path of a Unix socket must be short.
    pub(crate) const SOCKETS: [&'static str; 2] = ["hca0.sock", "hca1.sock"];

    /// The socket at which the fabric takes commands; the guest's port `hca` is connected to it.
    pub(crate) const CONTROL: &'static str = "hca.ctl";

    /// The log of the process, in the directory of the boot.
    pub(crate) const LOG: &'static str = "hca.log";

    /// Starts the devices and waits until they listen.
    fn start(program: &Path, args: &[String], dir: &Path) -> Result<Self> {
        let sockets = Self::SOCKETS.into_iter().chain([Self::CONTROL]).map(|name| dir.join(name));
        for socket in sockets.clone() {
            // A socket of an earlier attempt must be removed, because a process does not listen at an existing path.
            let _ = fs::remove_file(socket);
        }
        let path = dir.join(Self::LOG);
        let log = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
        let both = log.try_clone().context("cannot share the devices' log")?;
        // The program starts in another directory.
        let program = if program.components().count() > 1 {
            program.canonicalize().with_context(|| format!("no program {}", program.display()))?
        } else {
            program.to_owned()
        };
        // The kernel kills the devices if this process is killed.
        let mut cmd = Command::new("setpriv");
        cmd.args(["--pdeathsig", "KILL", "--"]).arg(program).current_dir(dir);
        cmd.args(args).args(["--control", Self::CONTROL]);
        for socket in Self::SOCKETS {
            cmd.args(["--socket", socket]);
        }
        let child = cmd
            .stdin(Stdio::piped())
            .stdout(both)
            .stderr(log)
            .spawn()
            .context("cannot start the devices (by `setpriv` of util-linux)")?;
        let mut this = Self { child, log: path };
        let start = Instant::now();
        while !sockets.clone().all(|socket| socket.exists()) {
            if let Some(status) = this.child.try_wait().context("cannot get the status of the devices")? {
                bail!("the devices ended: {status}\n{}", this.tail(30));
            }
            if start.elapsed() > START_LIMIT {
                bail!("the devices do not listen after {START_LIMIT:?}\n{}", this.tail(30));
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(this)
    }

    /// The last lines of the log.
    fn tail(&self, lines: usize) -> String {
        console::tail(&String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()), lines)
    }

    /// Ends the devices after QEMU, so that they write the summary at the end of their log. Returns their status if
    /// they had exited by themselves.
    pub(crate) fn end(mut self) -> Result<Option<String>> {
        if let Some(status) = self.child.try_wait().context("cannot get the status of the devices")? {
            return Ok(Some(status.to_string()));
        }
        if let Some(mut stdin) = self.child.stdin.take() {
            // The write fails if the process is exiting; its status is read below.
            let _ = stdin.write_all(b"quit\n");
        }
        let start = Instant::now();
        while start.elapsed() < END_LIMIT {
            match self.child.try_wait().context("cannot get the status of the devices")? {
                Some(status) if status.success() => return Ok(None),
                Some(status) => return Ok(Some(status.to_string())),
                None => thread::sleep(Duration::from_millis(5)),
            }
        }
        self.kill();
        Ok(Some(format!("not within {END_LIMIT:?} after the command `quit`")))
    }

    fn kill(&mut self) {
        // Both calls fail only if it has already exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Hca {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Lines of the devices' log that are errors: unknown commands of the guest, violations of a driver, panics.
pub(crate) fn complaints(log: &str) -> Vec<&str> {
    log.lines()
        .filter(|line| {
            line.starts_with("unknown:") || line.starts_with("violation:") || line.contains("panicked at")
        })
        .take(20)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_that_end_at_once_are_reported_with_their_output() {
        let dir = std::env::temp_dir().join(format!("uverbs-lab-device-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        // `false` ignores its arguments.
        let start = Hca::start(Path::new("/bin/false"), &[], &dir);
        let why = start.err().expect("no devices").to_string();
        fs::remove_dir_all(&dir).unwrap();
        assert!(why.starts_with("the devices ended: exit status: 1"), "{why}");
    }

    #[test]
    fn complaints_are_lines_with_a_prefix() {
        let log = "INFO  hca0: command 0x100\nunknown: command 0x9 X, 2 times\nviolation: qp 3: y\nother";
        assert_eq!(complaints(log), ["unknown: command 0x9 X, 2 times", "violation: qp 3: y"]);
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
