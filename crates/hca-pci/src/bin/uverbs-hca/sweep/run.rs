// SPDX-License-Identifier: MIT OR Apache-2.0
//! A run of the program with a script, in a process group of its own.

use super::plan::{Recorded, What};
use anyhow::{Context as _, Result, bail};
use core::fmt;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Instant;
use uverbs_fabric::script::Script;
use uverbs_hca::{Fabric, Hca};
use uverbs_software::{MODELS, Model};

/// Between two looks at the processes.
const LOOK: Duration = Duration::from_millis(3);
/// How long the server has for its device, before the program starts without waiting for it, and how long it has to listen then.
const BEGIN: Duration = Duration::from_secs(3);
const LISTEN: Duration = Duration::from_millis(300);
/// The part of the time limit in which a process must end whose peer has ended with an error.
const PEER: u32 = 4;
/// The end of the output that a report shows.
const SHOWN: u64 = 2000;
/// The first port of runs. The ports that the system chooses itself begin above them.
const PORTS: usize = 20_000;
/// The exit statuses that a shell gives for signals.
const SHELL: i32 = 128;

/// What became of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Ok,
    /// It ended with this status.
    Error(i32),
    /// It ended by this signal.
    Crash(i32),
    /// It did not end.
    Hang,
    /// One of the server and its client ended with an error, and the other one did not end: it waits for its peer.
    Waits,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ok => f.write_str("succeeds"),
            Self::Error(status) => write!(f, "ends with status {status}"),
            Self::Crash(signal) => match Signal::try_from(*signal) {
                Ok(signal) => write!(f, "ends by {signal}"),
                Err(_) => write!(f, "ends by signal {signal}"),
            },
            Self::Hang => f.write_str("does not end"),
            Self::Waits => f.write_str("ends with an error, and its peer does not end"),
        }
    }
}

/// What is wrong with a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Finding {
    Crash,
    Hang,
    Waits,
    Leak,
    Violation,
}

impl Finding {
    pub(super) const ALL: [Self; 5] = [Self::Crash, Self::Hang, Self::Waits, Self::Leak, Self::Violation];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Crash => "crash",
            Self::Hang => "hang",
            Self::Waits => "peer waits",
            Self::Leak => "leak",
            Self::Violation => "violation",
        }
    }
}

/// A run.
#[derive(Clone, Debug)]
pub(super) struct Ran {
    pub(super) outcome: Outcome,
    /// The reports of its processes, by number.
    reports: BTreeMap<u64, String>,
    /// The end of its output.
    pub(super) output: String,
}

impl Ran {
    #[cfg(test)]
    pub(super) fn of(outcome: Outcome, reports: &[(u64, &str)]) -> Self {
        let reports = reports.iter().map(|(n, text)| (*n, (*text).to_owned())).collect();
        Self { outcome, reports, output: String::new() }
    }

    /// Whether a process has written a report.
    pub(super) fn has_reports(&self) -> bool {
        self.reports.values().any(|report| !report.is_empty())
    }

    fn lines(&self, kind: &'static str) -> impl Iterator<Item = (u64, &str)> {
        self.reports.iter().flat_map(move |(process, report)| {
            let lines = report.lines().filter_map(move |line| line.strip_prefix(kind)?.strip_prefix(' '));
            lines.map(move |line| (*process, line))
        })
    }

    /// What was called and completed.
    pub(super) fn recorded(&self) -> Vec<Recorded> {
        let line = |process: u64, line: &str| {
            let (what, count) = line.rsplit_once(' ')?;
            let words: Vec<&str> = what.split(' ').collect();
            Some(Recorded { process, what: What::of(&words)?, count: count.parse().ok()? })
        };
        let all =
            self.reports.iter().flat_map(|(process, report)| report.lines().map(|line| (*process, line)));
        all.filter_map(|(process, text)| line(process, text)).collect()
    }

    /// The objects that a process has left.
    pub(super) fn left(&self) -> BTreeMap<(u64, String), u64> {
        let object = |(process, line): (u64, &str)| {
            let (name, count) = line.rsplit_once(' ')?;
            Some(((process, name.to_owned()), count.parse().ok()?))
        };
        self.lines("object").filter_map(object).collect()
    }

    pub(super) fn violations(&self) -> Vec<String> {
        self.lines("violation").map(|(_, line)| line.to_owned()).collect()
    }

    /// What is wrong, compared with the run without faults. A program that ends with an error may leave its objects to the kernel.
    pub(super) fn finding(&self, first: &Self) -> Option<Finding> {
        let before = first.left();
        let has_left = |((process, name), count): (&(u64, String), &u64)| {
            before.get(&(*process, name.clone())).is_none_or(|b| b < count)
        };
        match self.outcome {
            Outcome::Crash(_) => Some(Finding::Crash),
            Outcome::Hang => Some(Finding::Hang),
            Outcome::Waits => Some(Finding::Waits),
            _ if self.violations().len() > first.violations().len() => Some(Finding::Violation),
            Outcome::Ok if self.left().iter().any(has_left) => Some(Finding::Leak),
            _ => None,
        }
    }
}

/// The program.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) words: Vec<String>,
    pub(super) server: Option<String>,
    pub(super) is_shared: bool,
    pub(super) library: Option<PathBuf>,
    pub(super) limit: Duration,
    /// Folders of the runs are made there.
    pub(super) folder: PathBuf,
    pub(super) next: AtomicUsize,
}

/// A child in a process group of its own, which ends with the value.
struct Group(Child);

impl Group {
    fn status(&mut self) -> Result<Option<ExitStatus>> {
        self.0.try_wait().context("waitpid")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Ok(pid) = i32::try_from(self.0.id()) {
            // Also processes that outlive the first one.
            let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
        }
        let _ = self.0.wait();
    }
}

impl Program {
    /// Runs it with a script.
    pub(super) fn run(&self, script: &Script) -> Result<Ran> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let folder = self.folder.join(number.to_string());
        let reports = folder.join("reports");
        std::fs::create_dir_all(&reports).with_context(|| folder.display().to_string())?;
        let file = folder.join("script");
        std::fs::write(&file, script.to_string()).with_context(|| file.display().to_string())?;
        let socket = folder.join("fabric");
        // The processes of the run join it.
        let fabric = self.is_shared.then(|| Fabric::new(0));
        if let Some(fabric) = &fabric {
            fabric.listen(&socket).with_context(|| socket.display().to_string())?;
        }
        let port = (PORTS + number % 10_000).to_string();
        let output = folder.join("output");
        let start = |mut command: Command| -> Result<Group> {
            let log = File::options().create(true).append(true).open(&output)?;
            command.env("UVERBS_HCA_FAULTS", &file).env("UVERBS_HCA_FAULTS_REPORT", &reports);
            if std::env::var_os("UVERBS_HCA").is_none() {
                command.env("UVERBS_HCA", "2");
            }
            if self.is_shared {
                for model in MODELS {
                    // The program here listens for its own model.
                    let of_model =
                        if *model == Model::of::<Hca>() { &socket } else { &folder.join(model.prefix()) };
                    command.env(model.variable("FABRIC"), of_model);
                }
            }
            if let Some(library) = &self.library {
                command.env("LD_LIBRARY_PATH", library);
            }
            command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).process_group(0);
            Ok(Group(command.spawn().with_context(|| format!("cannot run {}", self.words[0]))?))
        };
        let begin = Instant::now();
        let mut groups = Vec::new();
        if let Some(server) = &self.server {
            let mut command = Command::new("sh");
            command.arg("-c").arg(format!("exec {}", server.replace("{port}", &port)));
            groups.push(start(command)?);
            self.wait_for_server(&mut groups[0], &reports)?;
        }
        let mut words = self.words.iter().map(|word| word.replace("{port}", &port));
        let Some(name) = words.next() else { bail!("no program") };
        let mut command = Command::new(name);
        command.args(words);
        groups.push(start(command)?);
        let outcome = self.wait(&mut groups, begin)?;
        drop(groups);
        let ran = Ran { outcome, reports: read_reports(&reports)?, output: end_of(&output) };
        let _ = std::fs::remove_dir_all(&folder);
        Ok(ran)
    }

    /// Waits until the server has made its device, and gives it some time to listen.
    fn wait_for_server(&self, server: &mut Group, reports: &Path) -> Result<()> {
        let begin = Instant::now();
        while !reports.join("1").exists() && begin.elapsed() < BEGIN.min(self.limit) {
            if server.status()?.is_some() {
                return Ok(());
            }
            std::thread::sleep(LOOK);
        }
        std::thread::sleep(LISTEN.min(self.limit));
        Ok(())
    }

    /// Waits for all processes. The worst of their outcomes counts.
    fn wait(&self, groups: &mut [Group], begin: Instant) -> Result<Outcome> {
        let mut ends: Vec<Option<Outcome>> = vec![None; groups.len()];
        let mut limit = self.limit;
        while ends.iter().any(Option::is_none) && begin.elapsed() < limit {
            for (group, end) in groups.iter_mut().zip(&mut ends) {
                if end.is_none()
                    && let Some(status) = group.status()?
                {
                    *end = Some(outcome(status));
                    if *end != Some(Outcome::Ok) {
                        // Its peer has a part of the time to notice.
                        limit = limit.min(begin.elapsed() + (self.limit / PEER).max(Duration::from_secs(1)));
                    }
                }
            }
            std::thread::sleep(LOOK);
        }
        Ok(worst(&ends))
    }
}

/// The worst of the outcomes; `None` is that of a process that did not end.
fn worst(ends: &[Option<Outcome>]) -> Outcome {
    let crash = ends.iter().flatten().find(|end| matches!(end, Outcome::Crash(_)));
    let error = ends.iter().flatten().find(|end| matches!(end, Outcome::Error(_)));
    match (crash, ends.contains(&None), error) {
        (Some(crash), ..) => *crash,
        (None, true, Some(_)) => Outcome::Waits,
        (None, true, None) => Outcome::Hang,
        (None, false, error) => error.copied().unwrap_or(Outcome::Ok),
    }
}

fn outcome(status: ExitStatus) -> Outcome {
    // Signals by which a program ends that did something wrong, not by which others end it.
    let crashes = [Signal::SIGSEGV, Signal::SIGABRT, Signal::SIGBUS, Signal::SIGFPE, Signal::SIGILL];
    match (status.code(), status.signal()) {
        (Some(0), _) => Outcome::Ok,
        (Some(code), _) if crashes.iter().any(|signal| SHELL + *signal as i32 == code) => {
            Outcome::Crash(code - SHELL)
        }
        (Some(code), _) => Outcome::Error(code),
        // It has written to a connection that its peer has closed.
        (None, Some(signal)) if signal == Signal::SIGPIPE as i32 => Outcome::Error(SHELL + signal),
        (None, signal) => Outcome::Crash(signal.unwrap_or_default()),
    }
}

/// The reports, by the number of the process, which is the name of the file.
fn read_reports(folder: &Path) -> Result<BTreeMap<u64, String>> {
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        let number = path.file_name().and_then(|name| name.to_str()?.parse().ok());
        if let Some(number) = number {
            all.insert(number, std::fs::read_to_string(&path).unwrap_or_default());
        }
    }
    Ok(all)
}

/// The end of a file.
fn end_of(path: &Path) -> String {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let len = file.metadata()?.len();
        file.seek(SeekFrom::Start(len.saturating_sub(SHOWN)))?;
        let mut bytes = Vec::new();
        file.take(SHOWN).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
}
