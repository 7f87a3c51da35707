// SPDX-License-Identifier: MIT OR Apache-2.0
//! Child processes with a time limit, and data about processes from /proc.
#![expect(unsafe_code)]
// UNSAFETY: fork(2) and its relatives, and setpriority(2).

use crate::wait::{Deadline, LIMIT, until};
use anyhow::{Context as _, Result, bail, ensure};
use core::panic::AssertUnwindSafe;
use core::time::Duration;
use std::fs;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::panic::catch_unwind;
use std::process::{Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};

/// A running child; killed when it is dropped.
#[derive(Debug)]
pub struct Child {
    name: String,
    inner: std::process::Child,
    output: Vec<JoinHandle<String>>,
}

/// The exit status of a child, and its output on both streams.
#[derive(Debug)]
pub struct Ended {
    /// Its status.
    pub status: ExitStatus,
    /// The whole output.
    pub output: String,
}

/// Starts a program whose output is collected. Its standard input is empty unless the command sets it.
pub fn spawn(command: &mut Command) -> Result<Child> {
    let name = shown(command);
    let mut inner = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {name}"))?;
    let mut output = Vec::new();
    if let Some(stream) = inner.stdout.take() {
        output.push(collect(stream));
    }
    if let Some(stream) = inner.stderr.take() {
        output.push(collect(stream));
    }
    Ok(Child { name, inner, output })
}

/// Runs a program to its end; a failure is an error with its output.
pub fn run(command: &mut Command, limit: Duration) -> Result<String> {
    command.stdin(Stdio::null());
    spawn(command)?.success(limit)
}

fn shown(command: &Command) -> String {
    let words: Vec<_> = core::iter::once(command.get_program()).chain(command.get_args()).collect();
    words.iter().map(|w| w.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

fn collect(mut stream: impl Read + Send + 'static) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut text = Vec::new();
        let _ = stream.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    })
}

impl Child {
    /// A process that was started elsewhere, and whose output another program reads.
    #[must_use]
    pub fn from_inner(name: &str, inner: std::process::Child) -> Self {
        Self { name: name.to_owned(), inner, output: vec![] }
    }

    /// Its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.inner.id()
    }

    /// Its standard input, if it was piped.
    pub fn stdin(&mut self) -> Option<std::process::ChildStdin> {
        self.inner.stdin.take()
    }

    /// Lowers the priority of a program that polls, because the kernel's threads need the CPU to transfer packets.
    pub fn lowest_priority(&self) -> Result<()> {
        // SAFETY: takes numbers only.
        let result = unsafe { libc::setpriority(libc::PRIO_PROCESS, self.id(), 19) };
        ensure!(result == 0, "setpriority: {}", std::io::Error::last_os_error());
        Ok(())
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> Result<bool> {
        Ok(self.inner.try_wait()?.is_none())
    }

    /// Kills it with SIGKILL.
    pub fn kill(mut self) -> Result<()> {
        self.inner.kill()?;
        self.inner.wait()?;
        Ok(())
    }

    /// Waits for its end.
    pub fn end(mut self, limit: Duration) -> Result<Ended> {
        let mut deadline = Deadline::after(limit);
        let status = loop {
            if let Some(status) = self.inner.try_wait()? {
                break status;
            }
            if deadline.passed() {
                let _ = self.inner.kill();
                let _ = self.inner.wait();
                let said = self.said();
                bail!("{} did not end within {limit:?}:\n{said}", self.name);
            }
            deadline.pause();
        };
        Ok(Ended { status, output: self.said() })
    }

    /// Waits for its end, which must be a success.
    pub fn success(self, limit: Duration) -> Result<String> {
        let name = self.name.clone();
        let ended = self.end(limit)?;
        ensure!(ended.status.success(), "{name}: {}:\n{}", ended.status, ended.output);
        Ok(ended.output)
    }

    fn said(&mut self) -> String {
        self.output.drain(..).filter_map(|t| t.join().ok()).collect()
    }

    /// Waits until it listens on a TCP port, in its network namespace.
    pub fn wait_listening(&mut self, port: u16) -> Result<()> {
        let id = self.id();
        until(&format!("{} listens on {port}", self.name), LIMIT, || {
            if let Some(status) = self.inner.try_wait()? {
                let said = self.said();
                bail!("{} ended early: {status}:\n{said}", self.name);
            }
            Ok(["tcp", "tcp6"].iter().any(|file| {
                fs::read_to_string(format!("/proc/{id}/net/{file}")).is_ok_and(|t| listens(&t, port))
            }))
        })
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if matches!(self.inner.try_wait(), Ok(None)) {
            let _ = self.inner.kill();
            let _ = self.inner.wait();
        }
        // The reader threads end when the pipes are closed. A grandchild may keep them open longer than this waits.
        let mut deadline = Deadline::after(Duration::from_secs(2));
        while !self.output.iter().all(JoinHandle::is_finished) && !deadline.passed() {
            deadline.pause();
        }
    }
}

/// Runs a function in a child made by fork(2), with copies of all that this process has, and waits for its end. The
/// child has only the calling thread, so it must not depend on other threads of this process.
pub fn in_fork(limit: Duration, f: impl FnOnce() -> Result<()>) -> Result<()> {
    // SAFETY: what the child does besides `f` is safe with a lock held by a lost thread: glibc's own locks are
    // usable after fork, and it leaves by `_exit`.
    let pid = match unsafe { libc::fork() } {
        -1 => bail!("fork: {}", std::io::Error::last_os_error()),
        0 => {
            let status = match catch_unwind(AssertUnwindSafe(f)) {
                Ok(Ok(())) => 0,
                Ok(Err(e)) => {
                    eprintln!("    child: {e:#}");
                    1
                }
                Err(_) => 101,
            };
            // SAFETY: ends the child, without running what the parent registered.
            unsafe { libc::_exit(status) }
        }
        pid => pid,
    };
    let mut status = 0;
    let mut deadline = Deadline::after(limit);
    loop {
        // SAFETY: our own child, and a local.
        match unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) } {
            0 if !deadline.passed() => deadline.pause(),
            0 => {
                // SAFETY: our own child, not waited for yet.
                unsafe { libc::kill(pid, libc::SIGKILL) };
                // SAFETY: our own child, not waited for yet; `status` is a local.
                unsafe { libc::waitpid(pid, &raw mut status, 0) };
                bail!("the forked child did not end within {limit:?}");
            }
            -1 => bail!("waitpid: {}", std::io::Error::last_os_error()),
            _ => break,
        }
    }
    ensure!(status == 0, "the forked child failed: {}", ExitStatus::from_raw(status));
    Ok(())
}

/// Whether a table of /proc/net/tcp has a listener (state 0A) on this port.
fn listens(table: &str, port: u16) -> bool {
    let end = format!(":{port:04X}");
    table.lines().skip(1).any(|line| {
        let mut words = line.split_whitespace();
        words.nth(1).is_some_and(|local| local.ends_with(&end)) && words.nth(1) == Some("0A")
    })
}

/// The open files of this process by /proc/self/fd, sorted.
pub fn open_files() -> Result<Vec<String>> {
    let mut files = Vec::new();
    for entry in fs::read_dir("/proc/self/fd")? {
        // The directory's own descriptor is closed when its link is read.
        if let Ok(target) = fs::read_link(entry?.path()) {
            let target = target.to_string_lossy().into_owned();
            if !target.starts_with("/proc/") {
                files.push(target);
            }
        }
    }
    files.sort();
    Ok(files)
}

/// The `rdma` tool's count of a device's kernel objects: `qp 1 cq 1 ...`.
pub fn rdma_resources(device: &str) -> Result<String> {
    let all = run(Command::new("/usr/bin/rdma").arg("resource"), LIMIT)?;
    let line = all.lines().find(|l| l.split_whitespace().any(|w| w.trim_end_matches(':') == device));
    // `0: rxe0: pd 1 cq 1 qp 1 ...`
    let line = line.with_context(|| format!("no device {device} in\n{all}"))?;
    Ok(line.split_once(device).map_or(line, |(_, rest)| rest).trim_start_matches(':').trim().to_owned())
}
