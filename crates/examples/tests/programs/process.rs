// SPDX-License-Identifier: MIT OR Apache-2.0
//! Processes of a test, which end with it, and waits that have a limit.

use core::time::Duration;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Instant;

/// No test waits longer, even on a machine that is busy.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// Calls `f` in a thread, and fails if it does not end.
pub(crate) fn within<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, ended) = channel();
    let thread = std::thread::spawn(move || _ = sender.send(f()));
    match ended.recv_timeout(LIMIT) {
        Ok(value) => value,
        Err(RecvTimeoutError::Timeout) => panic!("no end after {LIMIT:?}"),
        Err(RecvTimeoutError::Disconnected) => std::panic::resume_unwind(thread.join().unwrap_err()),
    }
}

/// A process that is killed when the test ends.
pub(crate) struct Process(pub(crate) Child);

impl Drop for Process {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

impl Process {
    pub(crate) fn start(command: &mut Command) -> Self {
        Self(command.spawn().unwrap())
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status;
            }
            assert!(begin.elapsed() < LIMIT, "no end after {LIMIT:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The first line that it prints, and what follows it.
    pub(crate) fn first_line(&mut self) -> (String, BufReader<ChildStdout>) {
        let mut said = BufReader::new(self.0.stdout.take().unwrap());
        within(move || {
            let mut line = String::new();
            said.read_line(&mut line).unwrap();
            (line.trim().to_owned(), said)
        })
    }
}

/// Runs a program to its end.
pub(crate) fn output(command: &mut Command) -> Output {
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = Process::start(command);
    let (stdout, stderr) = (process.0.stdout.take().unwrap(), process.0.stderr.take().unwrap());
    let [stdout, stderr] = within(|| {
        let stderr = std::thread::spawn(|| std::io::read_to_string(stderr).unwrap());
        [std::io::read_to_string(stdout).unwrap(), stderr.join().unwrap()].map(String::into_bytes)
    });
    Output { status: process.wait(), stdout, stderr }
}
