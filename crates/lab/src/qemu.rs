// SPDX-License-Identifier: MIT OR Apache-2.0
//! The emulator: fetched, unpacked and started from the lab's directory, and killed when this process ends.
//!
//! KVM is not used, even if the host has it: an emulated CPU behaves the same on every host.

use crate::apt::{self, Suite};
use crate::root::Root;
use crate::{Lab, clock};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// An unpacked QEMU.
pub(crate) struct Qemu {
    root: Root,
}

/// A running machine; killed when dropped.
pub(crate) struct Running {
    child: Child,
}

/// The parts of a boot.
pub(crate) struct Boot<'a> {
    /// CPUs.
    pub(crate) smp: u32,
    /// Memory in MiB.
    pub(crate) mem: u32,
    /// The kernel image.
    pub(crate) kernel: &'a Path,
    /// The initramfs.
    pub(crate) initrd: &'a Path,
    /// The log of the kernel's console.
    pub(crate) console: &'a Path,
    /// The directory that sockets are relative to.
    pub(crate) dir: &'a Path,
    /// PCI devices that other processes implement, by their Unix sockets.
    pub(crate) vfio_user: &'a [&'a str],
    /// Names of further virtio-serial ports, each with the Unix socket that it is connected to.
    pub(crate) wires: &'a [(&'a str, &'a str)],
    /// Names of the virtio-serial ports, each with the abstract Unix socket on which this process listens.
    pub(crate) ports: Vec<(&'static str, String)>,
    /// The abstract Unix socket on which this process listens for the monitor.
    pub(crate) monitor: String,
    /// A network device and its back end.
    pub(crate) network: Option<[String; 2]>,
    /// Further kernel arguments.
    pub(crate) append: &'a str,
    /// Whether the second serial port is the terminal of this process.
    pub(crate) terminal: bool,
}

/// Kernel arguments. An oops ends the machine. Features that cost an emulated CPU time without a benefit are disabled.
///
/// `maxcpus=1`: the kernel boots on one CPU, and init starts the others last. The kernel patches its own code during the
/// boot; an emulated second CPU that executed this code died of a breakpoint.
///
/// `tsc=reliable`: QEMU's TSC is one clock for all CPUs, but the kernel's check of it may fail. On 7.2 the clocksource
/// watchdog and the switch to the TSC (stop_machine) can wait for each other forever if the CPUs do not run at the same
/// time; 6.1 falls back to the HPET, and each read of it leaves the emulated CPU. [`clock`] measures the frequency.
const CMDLINE: &str = "console=ttyS0 quiet loglevel=5 oops=panic panic=-1 rdinit=/init mitigations=off nokaslr \
                       maxcpus=1 tsc=reliable no_timer_check nowatchdog audit=0 apparmor=0 random.trust_cpu=on";

impl Qemu {
    /// Returns QEMU of a suite, and downloads and unpacks it first if it is not cached. The caller holds the lab's
    /// lock.
    pub(crate) fn prepare(lab: &Lab, suite: &str) -> Result<Self> {
        let packages = ["qemu-system-x86"];
        let recipe = format!("{suite} {}\n", packages.join(" "));
        let dir = lab.cached(&format!("qemu-{suite}"), &recipe, |dir| {
            apt::unpack(&Suite::open(lab, suite)?.closure(&packages)?, dir)
        })?;
        Ok(Self { root: Root::at(dir) })
    }

    /// Starts a boot.
    pub(crate) fn start(&self, boot: &Boot<'_>) -> Result<Running> {
        let qemu = self.root.command("qemu-system-x86_64")?;
        // The kernel kills QEMU if this process is killed.
        let mut cmd = Command::new("setpriv");
        cmd.args(["--pdeathsig", "KILL", "--"]).arg(qemu.get_program()).args(qemu.get_args());
        for data in ["usr/share/qemu", "usr/share/seabios", "usr/lib/ipxe/qemu"] {
            cmd.arg("-L").arg(self.root.path(data));
        }
        let modules: PathBuf = self.root.path("usr/lib/x86_64-linux-gnu/qemu");
        cmd.env("QEMU_MODULE_DIR", modules);
        cmd.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
        cmd.current_dir(boot.dir).args(["-accel", "tcg,thread=multi", "-cpu", "max"]);
        if boot.vfio_user.is_empty() {
            cmd.args(["-machine", "q35"]);
        } else {
            // A process that implements a device maps the guest's memory, so it must be a shared file.
            cmd.args(["-object", &format!("memory-backend-memfd,id=ram,size={}M,share=on", boot.mem)]);
            cmd.args(["-machine", "q35,memory-backend=ram"]);
        }
        for (i, socket) in boot.vfio_user.iter().enumerate() {
            // A root port for each device, as for a card in a slot, so that it can be unplugged.
            cmd.args(["-device", &format!("pcie-root-port,id=slot{i},chassis={i},slot={i}")]);
            let device = serde_json::json!({
                "driver": "vfio-user-pci", "bus": format!("slot{i}"), "socket": {"type": "unix", "path": socket},
            });
            cmd.args(["-device", &device.to_string()]);
        }
        cmd.args(["-smp", &boot.smp.to_string(), "-m", &format!("{}M", boot.mem)]);
        cmd.arg("-kernel").arg(boot.kernel).arg("-initrd").arg(boot.initrd).arg("-append");
        cmd.arg(format!("{CMDLINE} {} {}", clock::argument(), boot.append));
        cmd.arg("-serial").arg(format!("file:{}", comma_escaped(boot.console)));
        cmd.args(["-device", "virtio-serial-pci"]);
        for (name, socket) in &boot.ports {
            cmd.args(["-chardev", &format!("socket,id={name},path={socket},abstract=on")]);
            cmd.args(["-device", &format!("virtserialport,chardev={name},name={name}")]);
        }
        for (name, socket) in boot.wires {
            cmd.args(["-chardev", &format!("socket,id={name},path={socket}")]);
            cmd.args(["-device", &format!("virtserialport,chardev={name},name={name}")]);
        }
        if let Some([netdev, device]) = &boot.network {
            cmd.args(["-netdev", netdev, "-device", device]);
        }
        cmd.args(["-chardev", &format!("socket,id=monitor,path={},abstract=on", boot.monitor)]);
        cmd.args(["-mon", "chardev=monitor,mode=readline"]);
        if boot.terminal {
            cmd.args(["-chardev", "stdio,id=terminal,signal=off", "-serial", "chardev:terminal"]);
        } else {
            cmd.stdin(Stdio::null()).stdout(Stdio::null());
        }
        let child = cmd.spawn().context("cannot start QEMU (by `setpriv` of util-linux)")?;
        Ok(Running { child })
    }
}

/// A path inside a QEMU option, where a comma is written twice.
fn comma_escaped(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

impl Running {
    /// Whether the machine has ended.
    pub(crate) fn ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait().context("cannot get the status of QEMU")?.is_some())
    }

    /// Kills the machine.
    pub(crate) fn kill(&mut self) {
        // Both calls fail only if it has already exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}
