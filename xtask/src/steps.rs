// SPDX-License-Identifier: MIT OR Apache-2.0
//! Steps of a command that run beside each other, each as a call of this program of its own: `--only NAME`.
//!
//! A build often waits for one crate, a test for a time limit, and an emulated guest uses one CPU. Two steps at a time use what
//! one leaves. The output of a step appears when it ends, in one piece.

use crate::repo_root;
use anyhow::{Context, Result, ensure};
use core::fmt::{self, Display, Formatter};
use nix::sys::resource::{UsageWho, getrusage};
use std::collections::VecDeque;
use std::env;
use std::ffi::OsString;

use std::fs::{self, File};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

/// The call of this program whose steps run.
pub(crate) struct Steps {
    program: PathBuf,
    /// The name of the command, and its arguments.
    command: String,
    args: Vec<OsString>,
}

/// The time since a step began, as text: of the clock, and of the CPUs in this process's children, which do the work.
pub(crate) struct Watch {
    start: Instant,
    before: f32,
}

impl Watch {
    /// A step begins.
    pub(crate) fn start() -> Self {
        Self { start: Instant::now(), before: Self::cpu() }
    }

    /// CPU time of all children that have ended and been waited for, in seconds.
    fn cpu() -> f32 {
        getrusage(UsageWho::RUSAGE_CHILDREN).map_or(0.0, |usage| {
            [usage.user_time(), usage.system_time()]
                .map(|time| time.tv_sec() as f32 + time.tv_usec() as f32 / 1e6)
                .iter()
                .sum()
        })
    }
}

impl Display for Watch {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (clock, cpu) = (self.start.elapsed().as_secs_f32(), Self::cpu() - self.before);
        write!(f, "{clock:.1} s ({cpu:.0} s of CPU)")
    }
}

/// The steps that each lane has not begun.
type Queues<'a> = Mutex<Vec<VecDeque<&'a str>>>;

impl Steps {
    /// The call that started this process. It is to be taken before a step can build this program again.
    pub(crate) fn of_this_call() -> Result<Self> {
        let program = env::current_exe().context("where this program is")?;
        let mut args = env::args_os().skip(1);
        let command = args.next().context("no command")?.to_string_lossy().into_owned();
        Ok(Self { program, command, args: args.collect() })
    }

    /// Runs the steps of the lanes, in each lane one after the other. A lane that has ended takes the last steps of another one.
    /// After a failure no step begins; the status is that of the first step that failed.
    pub(crate) fn run(&self, lanes: &[&[&str]]) -> Result<ExitCode> {
        let queues: Queues<'_> =
            Mutex::new(lanes.iter().map(|lane| lane.iter().copied().collect()).collect());
        let failed = Mutex::new(None);
        let work = |lane| -> Result<()> {
            while let Some(name) = next(&queues, lane) {
                let code = self.one(name)?;
                if code != 0 {
                    failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(code);
                    stop(&queues);
                }
            }
            Ok(())
        };
        let work = |lane| work(lane).inspect_err(|_| stop(&queues));
        let work = &work;
        thread::scope(|scope| {
            let threads: Vec<_> = (0..lanes.len()).map(|lane| scope.spawn(move || work(lane))).collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("a lane does not panic"))
        })?;
        let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(failed.map_or(ExitCode::SUCCESS, ExitCode::from))
    }

    /// Runs a step and prints its output. Returns its exit status.
    fn one(&self, name: &str) -> Result<u8> {
        let command = &self.command;
        let folder = repo_root().join("target/steps");
        fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let path = folder.join(format!("{command}-{}.log", name.replace(' ', "-")));
        let log = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
        eprintln!("{command}: {name} begins");
        let start = Instant::now();
        let mut cmd = Command::new(&self.program);
        cmd.args([command, "--only", name]).args(&self.args).stdin(Stdio::null());
        cmd.stdout(log.try_clone().context("cannot share a file")?).stderr(log);
        let status = cmd.status().context("cannot start this program")?;
        let output = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let mut stderr = std::io::stderr().lock();
        stderr.write_all(&output).context("cannot print the output of a step")?;
        if status.success() {
            return Ok(0);
        }
        let seconds = start.elapsed().as_secs_f32();
        writeln!(stderr, "{command}: {name} FAILED in {seconds:.1} s ({status})").context("cannot print")?;
        Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(125))
    }
}

/// The next step of a lane: its own first one, or the last one of the lane that has most.
fn next<'a>(queues: &Queues<'a>, lane: usize) -> Option<&'a str> {
    let mut queues = queues.lock().unwrap_or_else(PoisonError::into_inner);
    let own = queues[lane].pop_front();
    own.or_else(|| queues.iter_mut().max_by_key(|queue| queue.len())?.pop_back())
}

/// No step begins any more.
fn stop(queues: &Queues<'_>) {
    queues.lock().unwrap_or_else(PoisonError::into_inner).iter_mut().for_each(VecDeque::clear);
}

/// Fails if one of the names is not that of a step.
pub(crate) fn known(names: &[String], all: &[&str]) -> Result<()> {
    for name in names {
        ensure!(all.contains(&name.as_str()), "no step {name:?}; the steps are: {}", all.join(", "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    /// A script in place of this program, which writes the names of its steps; that of `bad` fails.
    const SCRIPT: &str =
        "#!/bin/sh\necho \"$3 $4\" >>\"$(dirname \"$0\")/ran\"\ntest \"$3\" != bad || exit 7\n";

    #[test]
    fn a_watch_counts_the_cpu_time_of_children() {
        let watch = Watch::start();
        let burn = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
        assert!(Command::new("sh").args(["-c", burn]).status().unwrap().success());
        assert!(Watch::cpu() > watch.before);
        assert!(watch.to_string().ends_with(" s of CPU)"), "{watch}");
    }

    #[test]
    fn no_step_begins_after_a_failure_whose_status_is_returned() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("program");
        fs::write(&program, SCRIPT).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let steps = Steps { program, command: "unit-test".into(), args: vec!["--flag".into()] };
        let run = |lanes: &[&[&str]]| format!("{:?}", steps.run(lanes).unwrap());
        let ran = || fs::read_to_string(folder.path().join("ran")).unwrap();
        assert_eq!(run(&[&["a"], &["b"]]), format!("{:?}", ExitCode::SUCCESS));
        let mut lines: Vec<_> = ran().lines().map(str::to_owned).collect();
        lines.sort();
        assert_eq!(lines, ["a --flag", "b --flag"]);
        assert_eq!(run(&[&["c", "bad", "never"]]), format!("{:?}", ExitCode::from(7)));
        assert!(ran().ends_with("c --flag\nbad --flag\n"), "{}", ran());
    }

    #[test]
    fn a_lane_that_has_ended_takes_the_last_step_of_another_one() {
        let queues: Queues<'_> = Mutex::new(vec![VecDeque::from(["a", "b", "c"]), VecDeque::from(["x"])]);
        let took: Vec<_> = [1, 1, 0, 1, 0].map(|lane| next(&queues, lane)).into();
        assert_eq!(took, [Some("x"), Some("c"), Some("a"), Some("b"), None]);
    }

    #[test]
    fn unknown_steps_are_named() {
        assert!(known(&["a".into()], &["a", "b"]).is_ok());
        let error = known(&["c".into()], &["a", "b"]).unwrap_err().to_string();
        assert!(error.contains("a, b"), "{error}");
    }
}
