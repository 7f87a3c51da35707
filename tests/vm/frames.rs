// SPDX-License-Identifier: MIT OR Apache-2.0
//! The network devices of RoCE ports, which carry ordinary frames on the same link as RDMA. Only for mlx5, where they
//! belong to the software NIC.

use anyhow::{Context as _, Result, ensure};
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::process::Command;
use std::thread;
use uverbs_tests::child::run;
use uverbs_tests::env::End;
use uverbs_tests::wait::{LIMIT, until};
use uverbs_tests::{LabEnv, Outcome, Test, pattern, roles};

/// A network namespace with the network device of B, until this is dropped. Without it, both ends of the link belong to
/// one host, which does not send packets for its own addresses to the link.
struct OtherHost<'a>(&'a LabEnv);

impl<'a> OtherHost<'a> {
    const NAME: &'static str = "frames";

    fn new(env: &'a LabEnv) -> Result<Self> {
        ip(&["netns", "add", Self::NAME])?;
        let this = Self(env);
        let (netdev, address) = (this.netdev(), format!("{}/24", env.ip[End::B as usize]));
        ip(&["link", "set", netdev, "netns", Self::NAME])?;
        ip(&["-n", Self::NAME, "addr", "add", &address, "dev", netdev])?;
        ip(&["-n", Self::NAME, "link", "set", netdev, "up"])?;
        // The lab sets static neighbours; here they are resolved by ARP.
        ip(&["neigh", "del", &env.ip[End::B as usize], "dev", &env.netdev[End::A as usize]])?;
        Ok(this)
    }

    fn netdev(&self) -> &'a str {
        &self.0.netdev[End::B as usize]
    }

    /// The environment of programs, with B's network namespace.
    fn env(&self) -> LabEnv {
        let mut env = self.0.clone();
        env.ns[End::B as usize] = vec!["nsenter".to_owned(), format!("--net=/run/netns/{}", Self::NAME)];
        env
    }

    /// The device returns to the initial namespace when its namespace is deleted; the lab then sets its address.
    fn undo(&self) -> Result<()> {
        ip(&["netns", "del", Self::NAME])?;
        let home = Path::new("/sys/class/net").join(self.netdev());
        until("the network device is back", LIMIT, || Ok(home.exists()))?;
        run(&mut Command::new("/usr/bin/lab-mlx5-up"), LIMIT)?;
        Ok(())
    }
}

impl Drop for OtherHost<'_> {
    fn drop(&mut self) {
        if let Err(e) = self.undo() {
            eprintln!("    the network device of B did not return: {e:#}");
        }
    }
}

fn ip(words: &[&str]) -> Result<String> {
    run(Command::new("/usr/bin/ip").args(words), LIMIT)
}

/// Sends some megabytes to the other end and back over TCP, with and without offloads of the NIC (large segments,
/// checksums), and compares them.
fn tcp(env: &LabEnv) -> Outcome {
    const PORT: u16 = 5201;
    if !env.mlx5 || env.infiniband {
        // There are no network devices of the NICs.
        return Ok(());
    }
    let host = OtherHost::new(env)?;
    for turn in 0..3 {
        let echo = roles::echo(&host.env(), End::B, PORT)?;
        let mut stream = TcpStream::connect((env.ip[End::B as usize].as_str(), PORT)).context("connect")?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_write_timeout(Some(LIMIT))?;
        let data = pattern::bytes(turn, 3 << 20);
        let mut answer = Vec::new();
        let mut writer = stream.try_clone()?;
        thread::scope(|scope| -> Result<()> {
            let sender = scope.spawn(|| -> Result<()> {
                writer.write_all(&data).context("send")?;
                writer.shutdown(Shutdown::Write).context("shutdown")
            });
            stream.read_to_end(&mut answer).context("receive")?;
            sender.join().map_err(|_| anyhow::anyhow!("the sender panicked"))?
        })?;
        ensure!(answer.len() == data.len(), "{} bytes of {} came back", answer.len(), data.len());
        ensure!(answer == data, "the returned bytes differ");
        drop(stream);
        echo.end()?;
    }
    Ok(())
}

/// The tests of this file.
pub(crate) fn tests() -> Vec<Test> {
    vec![Test::without_devices("frames::tcp", tcp)]
}
