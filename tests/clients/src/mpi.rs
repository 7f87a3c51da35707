// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command line of OpenMPI's `mpirun` between two guests.
//!
//! mpirun(1) starts its daemon in the other guest by a script that calls this crate's program in place of ssh(1), and
//! stays connected to it by TCP. The ranks communicate by UCX only. Each guest's ranks have their own library.

use anyhow::{Context, Result};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

/// The script that mpirun calls with a host and the words of a shell command.
const AGENT: &str = "/tmp/mpi-agent";
/// The names of the guests, which are in their /etc/hosts.
const HOSTS: [&str; 2] = ["lab1", "lab2"];

/// A benchmark between the guests.
#[derive(Clone, Debug)]
pub struct Job<'a> {
    /// UCX's transports.
    pub transports: &'a str,
    /// The program with its arguments.
    pub words: &'a [&'a str],
    /// Ranks in each guest.
    pub ranks: usize,
    /// The device of each guest.
    pub devices: [&'a str; 2],
    /// The folder of the library of each guest's ranks, if it is not the installed one.
    pub libraries: [Option<&'a str>; 2],
}

/// Writes the script of the agent, which the daemon in the second guest looks for, too.
///
/// # Errors
/// It can't be written.
pub fn install_agent() -> Result<()> {
    let script = "#!/bin/sh\nhost=$1\nshift\nexec uverbs-clients at \"$host\" -- sh -c \"$*\"\n";
    fs::write(AGENT, script).context("cannot write the agent of mpirun")?;
    fs::set_permissions(AGENT, Permissions::from_mode(0o755)).context("cannot write the agent of mpirun")
}

impl Job<'_> {
    /// The command, which is run in the first guest.
    pub fn command(&self) -> Command {
        let mut cmd = Command::new("mpirun");
        cmd.args(self.arguments());
        cmd
    }

    fn arguments(&self) -> Vec<String> {
        let mut all: Vec<String> =
            ["--allow-run-as-root", "--leave-session-attached"].map(Into::into).to_vec();
        let settings = [
            ("plm_rsh_agent", AGENT),
            ("plm_rsh_no_tree_spawn", "1"),
            ("pml", "ucx"),
            ("osc", "^ucx,rdma"),
            ("btl", "self"),
            // Two ranks and two device threads share two processors.
            ("mpi_yield_when_idle", "1"),
            ("hwloc_base_binding_policy", "none"),
        ];
        all.extend(settings.iter().flat_map(|(name, value)| ["--mca", name, value].map(str::to_owned)));
        for (end, host) in HOSTS.iter().enumerate() {
            all.extend((end > 0).then(|| ":".to_owned()));
            let ranks = self.ranks.to_string();
            all.extend(["-np", &ranks, "--host", &format!("{host}:{ranks}")].map(str::to_owned));
            all.push("env".to_owned());
            all.extend(self.libraries[end].map(|library| format!("LD_LIBRARY_PATH={library}")));
            all.push(format!("UCX_NET_DEVICES={}:1", self.devices[end]));
            all.push(format!("UCX_TLS={}", self.transports));
            all.extend(self.words.iter().map(|word| (*word).to_owned()));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_guest_has_its_library_and_device() {
        let words = ["mpi_bench", "pingpong"];
        let (devices, libraries) = (["a", "b"], [None, Some("/lib")]);
        let job = Job { transports: "rc_x,self", words: &words, ranks: 2, devices, libraries };
        let line = job.arguments().join(" ");
        assert!(line.ends_with(
            "-np 2 --host lab1:2 env UCX_NET_DEVICES=a:1 UCX_TLS=rc_x,self mpi_bench pingpong \
             : -np 2 --host lab2:2 env LD_LIBRARY_PATH=/lib UCX_NET_DEVICES=b:1 UCX_TLS=rc_x,self mpi_bench pingpong"
        ));
    }
}
