// SPDX-License-Identifier: MIT OR Apache-2.0
//! What tests need of the machine: a C compiler, C headers, the rights of an ordinary user.
//!
//! A test whose need is not met says so on stderr, past the capture of the test harness, and passes. In CI (`CI` is set) it
//! fails, because CI has everything.
#![expect(clippy::missing_panics_doc, reason = "a test that can't do its work must fail")]

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::{Uid, setuid};
use std::env;
use std::io::Write as _;
use std::process::{Command, Stdio};

/// The C compiler: `$CC`, or `cc`.
#[must_use]
pub fn cc() -> Command {
    Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()))
}

/// Whether a compiler ([`cc`], perhaps with options) finds a header, and the headers that it includes.
#[must_use]
pub fn finds(cc: &mut Command, header: &str) -> bool {
    cc.args(["-E", "-x", "c", "-o", "/dev/null", "-"]);
    let Ok(mut child) = cc.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn() else {
        return false;
    };
    // If the compiler exits without reading, its status says why.
    let _ = child.stdin.take().map(|mut input| writeln!(input, "#include <{header}>"));
    child.wait().is_ok_and(|status| status.success())
}

/// Says that `what` is not checked, because `package` is not installed. Fails in CI.
#[track_caller]
pub fn skip(what: &str, package: &str) {
    assert!(env::var_os("CI").is_none(), "CI must have {package}: {what}");
    let _ = writeln!(std::io::stderr(), "SKIPPED: {what}: needs {package} (`cargo xtask setup` installs it)");
}

/// Whether the C compiler finds `header`, which is in `package`; if not, says that `what` is skipped.
#[must_use]
#[track_caller]
pub fn has(header: &str, package: &str, what: &str) -> bool {
    let found = finds(&mut cc(), header);
    if !found {
        skip(what, package);
    }
    found
}

/// The test program, to be started again. If this machine can't execute it, `TESTKIT_RUNNER` has the command before its path, in words:
/// an emulator and its options.
#[must_use]
pub fn this_program() -> Command {
    let this = env::current_exe().expect("the path of the test program");
    let runner = env::var("TESTKIT_RUNNER").unwrap_or_default();
    let mut words = runner.split_whitespace();
    match words.next() {
        Some(program) => {
            let mut command = Command::new(program);
            command.args(words).arg(this);
            command
        }
        None => Command::new(this),
    }
}

/// The variable that tells a test that it runs in a process of its own.
const IN_OWN_PROCESS: &str = "TESTKIT_OWN_PROCESS";

/// Runs the test with this name (`module::function`, as the test harness prints it) in a process of its own, for a test that compares what
/// the process has: its memory, its mappings, its descriptors. In that process the function returns true; in the first one it returns false
/// after the other has passed.
#[must_use]
pub fn in_own_process(test: &str) -> bool {
    if env::var_os(IN_OWN_PROCESS).is_some() {
        return true;
    }
    let run = this_program().args(["--exact", test]).env(IN_OWN_PROCESS, "1").output();
    let run = run.expect("the test program starts");
    let text = String::from_utf8_lossy(&run.stdout);
    assert!(
        run.status.success() && text.contains("1 passed"),
        "{text}{}",
        String::from_utf8_lossy(&run.stderr)
    );
    false
}

/// As [`in_own_process`], in a process of an ordinary user whose limit of locked memory is `memlock` bytes.
#[must_use]
pub fn in_user_process(test: &str, memlock: u64) -> bool {
    if !in_own_process(test) {
        return false;
    }
    let (_, hard) = getrlimit(Resource::RLIMIT_MEMLOCK).expect("a limit of locked memory");
    setrlimit(Resource::RLIMIT_MEMLOCK, memlock, hard).expect("a lower limit is allowed");
    if Uid::effective().is_root() {
        // `nobody`: without capabilities.
        setuid(Uid::from_raw(65534)).expect("root may become any user");
    }
    true
}
