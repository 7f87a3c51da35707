// SPDX-License-Identifier: MIT OR Apache-2.0
//! Processes with a time limit, and their last output.
//!
//! A thread waits for each process, so that the end of any of them is an event of one channel. Each process leads a process
//! group, which is killed at the limit: a program may have children.

use anyhow::{Context, Result};
use core::time::Duration;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Instant;

/// Lines of a failed process that are shown.
const LAST_LINES: usize = 8;
/// The time for which the others may continue after one has failed.
const HURRY: Duration = Duration::from_millis(if cfg!(test) { 500 } else { 3_000 });
/// Interval of the checks for a listening socket, for which there is no event.
const CHECK: Duration = Duration::from_millis(5);
/// State of a listening socket in /proc/net/tcp.
const LISTEN: &str = "0A";

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// With this exit status.
    Exit(i32),
    /// By this signal.
    Signal(i32),
    /// It ran at the time limit.
    Timeout,
}

impl End {
    /// Whether a signal ended it, or a process for which it stands: such a status is that of shells and of `uverbs-clients at`.
    pub fn is_crash(&self) -> bool {
        matches!(self, Self::Signal(_) | Self::Exit(129..=192))
    }
}

impl From<ExitStatus> for End {
    fn from(status: ExitStatus) -> Self {
        match status.code() {
            Some(code) => Self::Exit(code),
            None => Self::Signal(status.signal().unwrap_or_default()),
        }
    }
}

impl core::fmt::Display for End {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Exit(code) => write!(f, "exit status {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
            Self::Timeout => f.write_str("time limit reached"),
        }
    }
}

/// Processes that run until a common time limit. Those that still run are killed when it is dropped.
#[derive(Debug)]
pub struct Group {
    folder: tempfile::TempDir,
    until: Instant,
    running: BTreeMap<usize, u32>,
    ended: BTreeMap<usize, End>,
    sender: Sender<(usize, ExitStatus)>,
    events: Receiver<(usize, ExitStatus)>,
    next: usize,
}

impl Group {
    /// No processes yet; all of them end within `limit`.
    ///
    /// # Errors
    /// There is no room for their output.
    pub fn new(limit: Duration) -> Result<Self> {
        let folder = tempfile::tempdir().context("cannot make a folder for the output")?;
        let (sender, events) = channel();
        let (running, ended) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self { folder, until: Instant::now() + limit, running, ended, sender, events, next: 0 })
    }

    fn path(&self, process: usize) -> PathBuf {
        self.folder.path().join(process.to_string())
    }

    /// Starts a process, whose output is stored, and returns its number.
    ///
    /// # Errors
    /// It can't be started.
    pub fn start(&mut self, cmd: &mut Command) -> Result<usize> {
        let number = self.next;
        let out = File::create(self.path(number)).context("cannot make a file for the output")?;
        let err = out.try_clone().context("cannot share the file for the output")?;
        cmd.stdin(Stdio::null()).stdout(out).stderr(err).process_group(0);
        let name = cmd.get_program().to_string_lossy().into_owned();
        let mut child = cmd.spawn().with_context(|| format!("cannot start {name}"))?;
        self.next += 1;
        self.running.insert(number, child.id());
        let sender = self.sender.clone();
        std::thread::spawn(move || {
            if let Ok(status) = child.wait() {
                let _ = sender.send((number, status));
            }
        });
        Ok(number)
    }

    /// Waits until a process ends, for `limit` at most; `false` if none did.
    fn wait_for_one(&mut self, limit: Duration) -> bool {
        match self.events.recv_timeout(limit) {
            Ok((number, status)) => {
                self.running.remove(&number);
                self.ended.insert(number, status.into());
                true
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => false,
        }
    }

    fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// Waits until a process ends. At the time limit it is killed.
    pub fn wait(&mut self, number: usize) -> End {
        while !self.ended.contains_key(&number) {
            if !self.wait_for_one(self.left()) {
                self.note_state(number);
                self.kill(number);
                self.ended.insert(number, End::Timeout);
            }
        }
        self.ended[&number].clone()
    }

    /// Waits until a process ends, for `time` at most, and not after the time limit; `None` if it still runs.
    pub fn wait_for(&mut self, number: usize, time: Duration) -> Option<End> {
        let until = self.until.min(Instant::now() + time);
        while !self.ended.contains_key(&number) {
            if !self.wait_for_one(until.saturating_duration_since(Instant::now())) {
                return None;
            }
        }
        self.ended.get(&number).cloned()
    }

    /// Whether a process runs.
    pub fn runs(&mut self, number: usize) -> bool {
        while self.wait_for_one(Duration::ZERO) {}
        self.running.contains_key(&number)
    }

    /// Shortens the time limit, because one of the processes failed and the others wait for it.
    pub fn hurry(&mut self) {
        self.until = self.until.min(Instant::now() + HURRY);
    }

    /// Adds a line to the output of a process that runs at the time limit: whether it waits or polls. What the program has
    /// printed may still be in its buffer.
    fn note_state(&self, number: usize) {
        let Some(pid) = self.running.get(&number) else { return };
        let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
        let stat = read("stat");
        let (state, time) = (state(&stat).unwrap_or("?"), cpu_time(&stat).unwrap_or_default());
        let line = format!("\nin state {state} ({}) after {time:.2?} of processor time\n", read("wchan"));
        // Without the line there is only the end of the output.
        let file = File::options().append(true).open(self.path(number));
        let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
    }

    fn kill(&mut self, number: usize) {
        if let Some(pid) = self.running.remove(&number) {
            // The call fails if the process has ended meanwhile.
            let _ = killpg(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
        }
    }

    /// Waits until a process listens at a TCP port; `false` if it ended, or does not within the time limit.
    pub fn wait_for_port(&mut self, number: usize, port: u16) -> bool {
        while let Some(pid) = self.running.get(&number) {
            // Those of its network namespace.
            let tables = ["tcp", "tcp6"].map(|table| format!("/proc/{pid}/net/{table}"));
            if tables.iter().any(|table| fs::read_to_string(table).is_ok_and(|text| listens(&text, port))) {
                return true;
            }
            if self.left().is_zero() {
                return false;
            }
            self.wait_for_one(CHECK);
        }
        false
    }

    /// Waits until a process has printed a line with this text; `false` if it ended, or does not within the time limit.
    pub fn wait_for_text(&mut self, number: usize, text: &str) -> bool {
        loop {
            if self.output(number).contains(text) {
                return true;
            }
            if !self.running.contains_key(&number) || self.left().is_zero() {
                return false;
            }
            self.wait_for_one(CHECK);
        }
    }

    /// Waits until a process has used this processor time; `false` if it ended, or does not within the time limit.
    pub fn wait_for_cpu_time(&mut self, number: usize, time: Duration) -> bool {
        while let Some(pid) = self.running.get(&number) {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            if cpu_time(&stat).is_some_and(|used| used >= time) {
                return true;
            }
            if self.left().is_zero() {
                return false;
            }
            self.wait_for_one(CHECK);
        }
        false
    }

    /// The output of a process.
    pub fn output(&self, number: usize) -> String {
        fs::read(self.path(number))
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    /// The last lines of the output of a process.
    pub fn last_lines(&self, number: usize) -> String {
        let output = self.output(number);
        let lines: Vec<_> = output.lines().filter(|line| !line.trim().is_empty()).collect();
        lines[lines.len().saturating_sub(LAST_LINES)..].join("\n")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for number in self.running.keys().copied().collect::<Vec<_>>() {
            self.kill(number);
        }
    }
}

/// The state in a text as /proc/PID/stat, see proc_pid_stat(5).
fn state(stat: &str) -> Option<&str> {
    stat.rsplit_once(')')?.1.split_whitespace().next()
}

/// The processor time in a text as /proc/PID/stat, see proc_pid_stat(5).
fn cpu_time(stat: &str) -> Option<Duration> {
    // The second field is a name, which may have spaces and parentheses. Fields 14 and 15 are ticks of 10 ms.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    Some(Duration::from_millis(10) * u32::try_from(ticks()? + ticks()?).ok()?)
}

/// Whether a table of sockets, as /proc/net/tcp, has one that listens at a port.
fn listens(table: &str, port: u16) -> bool {
    let suffix = format!(":{port:04X}");
    table.lines().any(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        words.get(1).is_some_and(|local| local.ends_with(&suffix)) && words.get(3) == Some(&LISTEN)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut cmd = Command::new("sh");
        cmd.args(["-c", script]);
        cmd
    }

    #[test]
    fn ends_and_output_are_kept() {
        let mut group = Group::new(Duration::from_secs(30)).unwrap();
        let a = group.start(&mut shell("echo one; echo two >&2; exit 3")).unwrap();
        let b = group.start(&mut shell("kill -9 $$")).unwrap();
        assert_eq!(group.wait(b), End::Signal(9));
        assert_eq!(group.wait(a), End::Exit(3));
        assert!(End::Signal(9).is_crash() && End::Exit(128 + 11).is_crash());
        assert!(!End::Exit(3).is_crash() && !End::Exit(255).is_crash() && !End::Timeout.is_crash());
        assert_eq!(group.last_lines(a), "one\ntwo");
        assert!(!group.wait_for_port(a, 1));
    }

    #[test]
    fn a_process_and_its_children_end_at_the_limit() {
        let mut group = Group::new(Duration::from_millis(600)).unwrap();
        let a = group.start(&mut shell("sleep 100 & echo ready; wait")).unwrap();
        assert!(group.wait_for_text(a, "ready"));
        assert_eq!(group.wait(a), End::Timeout);
        assert!(group.output(a).contains("\nin state S ("), "{}", group.output(a));
    }

    #[test]
    fn processor_time_is_that_of_both_modes() {
        let stat = "7 (a b) c) R 1 2 3 4 5 6 7 8 9 10 40 11 0 0 20";
        assert_eq!(cpu_time(stat), Some(Duration::from_millis(510)));
        assert_eq!(state(stat), Some("R"));
        let mut group = Group::new(Duration::from_secs(60)).unwrap();
        let busy = group.start(&mut shell("while :; do :; done")).unwrap();
        assert!(group.wait_for_cpu_time(busy, Duration::from_millis(20)));
        let ended = group.start(&mut shell("exit 0")).unwrap();
        assert!(!group.wait_for_cpu_time(ended, Duration::from_secs(9)));
    }

    #[test]
    fn a_listening_socket_is_found() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(listens(&fs::read_to_string("/proc/net/tcp").unwrap(), port));
    }

    // Lines as in proc_net_tcp(5). Not with a real socket that was closed: a child that another test forks has a copy of
    // it until its execve(2).
    #[test]
    fn other_ports_and_other_states_are_not_found() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue\n   \
             0: 0100007F:1F90 00000000:0000 0A 00000000:00000000\n   \
             1: 0100007F:1F91 0100007F:1F92 01 00000000:00000000\n";
        assert!(listens(table, 0x1f90));
        assert!(!listens(table, 0x1f91));
        assert!(!listens(table, 0x1f92));
        assert!(!listens(table, 0x0f90));
    }
}
