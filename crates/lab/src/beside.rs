// SPDX-License-Identifier: MIT OR Apache-2.0
//! The process beside QEMU that implements the devices of a guest, and what it is connected to.

use crate::console;
use anyhow::{Context, Result, bail};
use core::time::Duration;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Instant;

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
    pub(crate) fn fabric(&self) -> Vec<String> {
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
pub(crate) struct DeviceProcess {
    child: Child,
    log: PathBuf,
}

impl DeviceProcess {
    /// Sockets of the devices, relative to the directory of the boot: the path of a Unix socket must be short.
    pub(crate) const SOCKETS: [&'static str; 2] = ["hca0.sock", "hca1.sock"];

    /// The socket at which the fabric takes commands; the guest's port `hca` is connected to it.
    pub(crate) const CONTROL: &'static str = "hca.ctl";

    /// The log of the process, in the directory of the boot.
    pub(crate) const LOG: &'static str = "hca.log";

    /// Starts the devices and waits until they listen.
    pub(crate) fn start(program: &Path, args: &[String], dir: &Path) -> Result<Self> {
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

impl Drop for DeviceProcess {
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
        let start = DeviceProcess::start(Path::new("/bin/false"), &[], &dir);
        let why = start.err().expect("no devices").to_string();
        fs::remove_dir_all(&dir).unwrap();
        assert!(why.starts_with("the devices ended: exit status: 1"), "{why}");
    }

    #[test]
    fn complaints_are_lines_with_a_prefix() {
        let log = "INFO  hca0: command 0x100\nunknown: command 0x9 X, 2 times\nviolation: qp 3: y\nother";
        assert_eq!(complaints(log), ["unknown: command 0x9 X, 2 times", "violation: qp 3: y"]);
    }
}
