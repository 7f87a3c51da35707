// SPDX-License-Identifier: MIT OR Apache-2.0
//! `uverbs-hca order`: runs a program under many orders of the accesses of its software devices to memory.

use core::time::Duration;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, IsTerminal as _, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::Instant;
use uverbs_hca::explore::Mode;

/// The variable that selects the order, and the one that names the file with the steps.
const ORDER: &str = "UVERBS_HCA_ORDER";
const STEPS: &str = "UVERBS_HCA_ORDER_LOG";
/// How many times a run that failed is repeated.
const REPEATS: u32 = 5;
/// The lines of the program's output that are printed.
const OUTPUT: usize = 20;

/// Runs a program under many orders of accesses to memory, until a run fails
///
/// The program has software devices in its process: `hca0` of the Rust library, or those of the C library with UVERBS_HCA=N. Each run
/// has another seed, which selects one of the orders that the mode permits. A run fails if the program ends by a signal or with
/// a status that is not 0, or does not end within the limit. Then the seed, the steps of the devices in words, and the command that
/// repeats the run are printed.
///
/// Exit status: 0 if all runs passed, 1 if one failed, 2 if the program can't be examined.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Order {
    /// What the devices promise: pcie, relaxed, or model (only what the InfiniBand specification and the man pages promise)
    #[arg(long, default_value = "model")]
    mode: Mode,
    /// The number of runs
    #[arg(long, default_value_t = 1000, value_name = "N")]
    seeds: u64,
    /// The seed of the first run
    #[arg(long, default_value_t = 0, value_name = "SEED")]
    first: u64,
    /// How long a run may take
    #[arg(long, default_value_t = 60, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
    /// The number of steps that are printed, the last ones
    #[arg(long, default_value_t = 40, value_name = "N")]
    steps: usize,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "PROGRAM")]
    program: Vec<String>,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Passed,
    Failed(ExitStatus),
    /// It was ended at the time limit.
    Late,
}

impl Order {
    pub(crate) fn main(&self) -> ExitCode {
        match self.examine() {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::from(1),
            Err(error) => {
                eprintln!("error: {error}");
                ExitCode::from(2)
            }
        }
    }

    /// `false` if a run failed.
    fn examine(&self) -> io::Result<bool> {
        let folder = Folder::new()?;
        let begin = Instant::now();
        match self.run(&folder, "ordered")? {
            End::Passed => {}
            end => {
                print_tail(&folder.output(), OUTPUT)?;
                let reason = self.reason(end);
                return Err(io::Error::other(format!(
                    "with {ORDER}=ordered, the order without a mode, the program {reason}"
                )));
            }
        }
        if folder.steps()?.is_empty() {
            return Err(io::Error::other(
                "the program created no software device: use hca0, or UVERBS_HCA=2 with the C library built with --hca",
            ));
        }
        let mut progress = Progress::new(self.seeds);
        for run in 0..self.seeds {
            let seed = self.first.wrapping_add(run);
            progress.show(run, seed);
            let end = self.run(&folder, &format!("{}:{seed}", self.mode))?;
            if end != End::Passed {
                progress.clear();
                self.report(folder, run, seed, end)?;
                return Ok(false);
            }
        }
        progress.clear();
        let (seeds, mode, took) = (self.seeds, self.mode, begin.elapsed().as_secs_f64());
        println!("{seeds} runs with the order {mode} passed, in {took:.1} s");
        Ok(true)
    }

    /// A run of the program.
    fn run(&self, folder: &Folder, order: &str) -> io::Result<End> {
        folder.empty()?;
        let [program, args @ ..] = &self.program[..] else { return Err(io::Error::other("no program")) };
        let output = File::create(folder.output())?;
        let mut child = Command::new(program)
            .args(args)
            .env(ORDER, order)
            .env(STEPS, folder.path.join("steps"))
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .map_err(|e| io::Error::new(e.kind(), format!("{program}: {e}")))?;
        match wait(&mut child, Duration::from_secs(self.limit))? {
            Some(status) if status.success() => Ok(End::Passed),
            Some(status) => Ok(End::Failed(status)),
            None => Ok(End::Late),
        }
    }

    fn reason(&self, end: End) -> String {
        match end {
            End::Passed => "passes".into(),
            End::Late => format!("does not end within {} s", self.limit),
            End::Failed(status) => match (status.code(), status.signal()) {
                (Some(code), _) => format!("ends with status {code}"),
                (None, Some(signal)) => format!("is ended by signal {signal}"),
                (None, None) => format!("ends: {status}"),
            },
        }
    }

    /// Reports a run that failed, and keeps its files.
    fn report(&self, folder: Folder, run: u64, seed: u64, end: End) -> io::Result<()> {
        let order = format!("{}:{seed}", self.mode);
        println!(
            "With the order {order}, run {} of {}, the program {}.",
            run + 1,
            self.seeds,
            self.reason(end)
        );
        println!("\nThe end of its output:");
        print_tail(&folder.output(), OUTPUT)?;
        for path in folder.steps()? {
            println!("\nThe last steps of its devices (all are in {}):", path.display());
            print_tail(&path, self.steps)?;
        }
        let words: Vec<String> = self.program.iter().map(|word| quoted(word)).collect();
        println!("\nTo repeat it:\n  {ORDER}={order} {}", words.join(" "));
        if end != End::Late {
            let again = Folder::new()?;
            let mut failed = 0;
            for _ in 0..REPEATS {
                failed += u32::from(self.run(&again, &order)? != End::Passed);
            }
            println!("Of {REPEATS} repetitions {failed} failed. The threads of a program have no seed.");
        }
        folder.keep();
        Ok(())
    }
}

/// A word of a command line for a shell.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.into()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Waits for the end of a process. At the limit it is ended with all that it started: `None`.
fn wait(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        let waited = begin.elapsed();
        if waited > limit {
            let mut all = vec![child.id()];
            descendants(child.id(), &mut all);
            for id in all {
                // It may have ended meanwhile.
                let _ = kill(Pid::from_raw(id.cast_signed()), Signal::SIGKILL);
            }
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep((waited / 16).clamp(Duration::from_millis(1), Duration::from_millis(20)));
    }
}

/// The processes that a process started, and those that they started: proc_pid_task_children(5).
fn descendants(id: u32, all: &mut Vec<u32>) {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{id}/task")) else { return };
    for thread in threads.flatten() {
        let Ok(list) = std::fs::read_to_string(thread.path().join("children")) else { continue };
        for child in list.split_whitespace().filter_map(|id| id.parse().ok()) {
            if !all.contains(&child) {
                all.push(child);
                descendants(child, all);
            }
        }
    }
}

/// The folder with the output of a run, and the steps of its devices. It is removed unless it is kept.
#[derive(Debug)]
struct Folder {
    path: PathBuf,
    kept: bool,
}

impl Folder {
    fn new() -> io::Result<Self> {
        for number in 0.. {
            let path = std::env::temp_dir().join(format!("uverbs-order-{}-{number}", std::process::id()));
            match std::fs::create_dir(&path) {
                Ok(()) => return Ok(Self { path, kept: false }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => {
                    return Err(io::Error::new(error.kind(), format!("{}: {error}", path.display())));
                }
            }
        }
        Err(io::Error::other("no folder"))
    }

    fn output(&self) -> PathBuf {
        self.path.join("output")
    }

    /// The files with the steps of the devices of each process and fabric.
    fn steps(&self) -> io::Result<Vec<PathBuf>> {
        let files = std::fs::read_dir(&self.path)?.collect::<io::Result<Vec<_>>>()?;
        let steps = files.iter().filter(|file| file.file_name().to_string_lossy().starts_with("steps."));
        let mut paths: Vec<PathBuf> = steps.map(std::fs::DirEntry::path).collect();
        paths.sort();
        Ok(paths)
    }

    fn empty(&self) -> io::Result<()> {
        for path in self.steps()? {
            std::fs::remove_file(path)?;
        }
        Ok(())
    }

    fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !self.kept
            && let Err(error) = std::fs::remove_dir_all(&self.path)
        {
            eprintln!("{}: {error}", self.path.display());
        }
    }
}

/// Prints the last lines of a file.
fn print_tail(path: &Path, lines: usize) -> io::Result<()> {
    let mut last = VecDeque::new();
    let mut dropped = 0_u64;
    for line in BufReader::new(File::open(path)?).split(b'\n') {
        last.push_back(line?);
        if last.len() > lines {
            last.pop_front();
            dropped += 1;
        }
    }
    if dropped > 0 {
        println!("  ({dropped} earlier lines)");
    }
    for line in last {
        println!("  {}", String::from_utf8_lossy(&line));
    }
    Ok(())
}

/// The number of the current run, on a terminal in one line.
#[derive(Debug)]
struct Progress {
    runs: u64,
    in_one_line: bool,
    shown: Option<Instant>,
}

impl Progress {
    fn new(runs: u64) -> Self {
        Self { runs, in_one_line: io::stderr().is_terminal(), shown: None }
    }

    fn show(&mut self, run: u64, seed: u64) {
        let every = Duration::from_millis(if self.in_one_line { 100 } else { 10_000 });
        if self.shown.is_some_and(|shown| shown.elapsed() < every) {
            return;
        }
        self.shown = Some(Instant::now());
        let (runs, end) = (self.runs, if self.in_one_line { "\x1b[K\r" } else { "\n" });
        eprint!("run {} of {runs}, seed {seed}{end}", run + 1);
        let _ = io::stderr().flush();
    }

    fn clear(&self) {
        if self.in_one_line {
            eprint!("\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(script: &str) -> Order {
        let program = ["sh", "-c", script].map(str::to_owned).to_vec();
        Order { mode: Mode::Model, seeds: 20, first: 0, limit: 1, steps: 5, program }
    }

    /// As a program with a device: it creates the file with the steps.
    const DEVICE: &str = "echo step > $UVERBS_HCA_ORDER_LOG.1.0;";

    #[test]
    fn a_run_that_fails_is_found() {
        let found = |script: &str| order(&format!("{DEVICE} {script}")).examine();
        assert!(found("true").unwrap());
        assert!(!found("test $UVERBS_HCA_ORDER != model:7").unwrap());
        assert!(!found("test $UVERBS_HCA_ORDER = ordered || kill -SEGV $$").unwrap());
        assert!(!found("test $UVERBS_HCA_ORDER != model:1 || sleep 1000").unwrap());
    }

    #[test]
    fn a_program_that_can_not_be_examined_is_an_error() {
        let error = |order: Order| order.examine().unwrap_err().to_string();
        assert!(error(order("true")).contains("no software device"));
        assert!(error(order("exit 3")).contains("ends with status 3"));
        let program = vec!["/no/such/program".to_owned()];
        assert!(error(Order { program, ..order("") }).contains("/no/such/program"));
    }

    #[test]
    fn what_a_late_program_started_is_ended() {
        let folder = Folder::new().unwrap();
        let file = folder.path.join("id");
        let script = format!("sh -c 'sleep 1000 & echo $! > {}; wait' & wait", file.display());
        assert_eq!(order(&script).run(&folder, "model:1").unwrap(), End::Late);
        let id = std::fs::read_to_string(&file).unwrap();
        // A signal takes effect a little later.
        let start = Instant::now();
        loop {
            let state = std::fs::read_to_string(format!("/proc/{}/stat", id.trim())).unwrap_or_default();
            if state.is_empty() || state.contains(") Z ") {
                break;
            }
            assert!(start.elapsed() < Duration::from_secs(20), "{state}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn words_are_quoted_for_a_shell() {
        assert_eq!(["a-b=c", "a b", "it's", ""].map(quoted), ["a-b=c", "'a b'", r"'it'\''s'", "''"]);
    }
}
