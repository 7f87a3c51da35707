// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the tests in the order in which they are listed, each within a time limit: in the VM one after the other, on software HCAs
//! beside each other, in processes of their own.
//!
//! Every test opens both devices, and must leave no file open. A test that does not end ends the suite with its name,
//! because a thread that waits in the kernel can't be abandoned.

use crate::bed::{TestBed, VmBed, without_violations};
use crate::child::open_files;
use crate::env::{End, LabEnv};
use crate::lab::{Lab, find};
use anyhow::{Context as _, ensure};
use core::fmt;
use core::time::Duration;
use libtest_mimic::{Arguments, Conclusion, Failed, Trial};
use std::process::{self, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;
use uverbs::{Context, Driver, DriverVisitor, open_with};

/// How a test ends.
pub type Outcome = anyhow::Result<()>;

/// A test, for any driver.
pub trait LabTest: Clone + Send + 'static {
    /// Runs it.
    fn run<D: Driver>(self, lab: &Lab<D>) -> Outcome;
}

/// A test with its name.
///
/// There are hundreds of tests, so all that is not different in each is compiled once: the code of a test is behind `dyn` from here on.
pub struct Test {
    name: String,
    limit: Duration,
    run: Box<dyn Fn() -> Outcome + Send>,
}

impl Test {
    /// A test that gets the lab of a bed.
    pub fn new<P: TestBed>(name: &str, test: impl LabTest) -> Self {
        Self {
            name: [P::PREFIX, name].concat(),
            limit: test_limit(),
            run: Box::new(move || P::run(test.clone())),
        }
    }

    /// A test that runs programs only.
    pub fn without_devices(name: &str, test: impl Fn(&LabEnv) -> Outcome + Send + 'static) -> Self {
        Self::long(name, TEST_LIMIT, move || test(&LabEnv::get().context(NEEDS_VM)?))
    }

    /// A test that creates its own devices, and may take longer than others.
    pub fn long(name: &str, limit: Duration, test: impl Fn() -> Outcome + Send + 'static) -> Self {
        Self { name: name.to_owned(), limit, run: Box::new(test) }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    fn trial(self) -> Trial {
        Trial::test(self.name.clone(), move || limited(&self.name, self.limit, &self.run))
    }
}

impl fmt::Debug for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Test").field("name", &self.name).finish_non_exhaustive()
    }
}

const NEEDS_VM: &str = "needs the VM: cargo xtask vm test";

/// The time limit of a test. It is longer than several waits, so that a wait which times out is reported first.
const TEST_LIMIT: Duration = Duration::from_secs(240);

/// The limit if the stress test was requested to run longer.
fn test_limit() -> Duration {
    TEST_LIMIT + crate::stress::length()
}

/// A test that takes longer is printed.
const SLOW: Duration = Duration::from_secs(3);

/// The running test, its start time, and its time limit.
static RUNNING: Mutex<Option<(String, Instant, Duration)>> = Mutex::new(None);

fn running() -> std::sync::MutexGuard<'static, Option<(String, Instant, Duration)>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The notes of tests.
static NOTES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Notes something about the running test.
pub fn note(text: impl fmt::Display) {
    let name = running().as_ref().map_or_else(String::new, |(name, ..)| name.clone());
    NOTES.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{name}: {text}"));
}

/// How often a test that failed may be repeated. The VM shares its CPUs with other processes, and its software devices
/// have timers; the result of the suite must not depend on that. Repeated tests are printed by name.
fn retries() -> u32 {
    std::env::var("UVERBS_TEST_RETRIES").ok().and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// Runs a test, and repeats it after a failure if that is allowed.
fn limited(name: &str, limit: Duration, test: &dyn Fn() -> Outcome) -> Result<(), Failed> {
    for _ in 0..retries() {
        let Err(e) = watched(name, limit, test) else { return Ok(()) };
        note(format_args!("{name} failed and is run again: {e:#}"));
    }
    watched(name, limit, test).map_err(|e| Failed::from(format!("{e:#}")))
}

/// Runs a test under the watchdog.
fn watched(name: &str, limit: Duration, test: &dyn Fn() -> Outcome) -> Outcome {
    /// Reports the end of the test to the watchdog, also after a panic.
    struct Ended;
    impl Drop for Ended {
        fn drop(&mut self) {
            let elapsed = running().as_ref().map_or(Duration::ZERO, |(_, start, _)| start.elapsed());
            if elapsed > SLOW {
                note(format_args!("took {:.1} s", elapsed.as_secs_f32()));
            }
            *running() = None;
        }
    }
    *running() = Some((name.to_owned(), Instant::now(), limit));
    let _ended = Ended;
    test()
}

fn watchdog() {
    thread::spawn(|| {
        loop {
            thread::sleep(Duration::from_millis(500));
            if let Some((name, start, limit)) = &*running()
                && start.elapsed() > *limit
            {
                eprintln!("watchdog: {name} did not end within {limit:?}; the suite is aborted");
                process::exit(101);
            }
        }
    });
}

/// The VM: devices of its kernel, with the driver that each needs.
#[derive(Debug)]
pub struct Vm;

impl TestBed for Vm {
    fn run(test: impl LabTest) -> Outcome {
        struct Visit<T>(T, LabEnv);
        impl<T: LabTest> DriverVisitor for Visit<T> {
            type Out = Outcome;
            fn visit<D: Driver>(self, context: Context<D>) -> Outcome {
                let lab = Lab::new(context, Box::new(VmBed(self.1)))?;
                self.0.run(&lab)
            }
        }
        let env = LabEnv::get().context(NEEDS_VM)?;
        without_open_files(&|| {
            let info = find(env.dev(End::A))?;
            without_violations(&env, &|| {
                open_with(&info, Visit(test.clone(), env.clone())).context("open A")?
            })
        })
    }
}

/// Runs a test, and checks that it left no file open.
pub fn without_open_files(test: &dyn Fn() -> Outcome) -> Outcome {
    let before = open_files()?;
    test()?;
    let after = open_files()?;
    ensure!(before == after, "files left open: before {before:?}, after {after:?}");
    Ok(())
}

/// Runs the tests that the command line selects, in the VM; elsewhere all are ignored.
pub fn main(tests: Vec<Test>) -> Conclusion {
    let in_lab = LabEnv::get().is_some();
    if !in_lab && !std::env::args().any(|a| a == "--list") {
        eprintln!("{} tests ignored: {NEEDS_VM}", tests.len());
    }
    run(tests, in_lab)
}

/// Runs the tests that the command line selects, or none of them.
pub fn run(tests: Vec<Test>, enabled: bool) -> Conclusion {
    let (mut args, filters) = arguments(std::env::args());
    // The tests share the link, so they run one after the other.
    args.test_threads = Some(1);
    if enabled {
        watchdog();
    }
    let tests = selected(tests, &args, &filters);
    conclude(&args, tests.map(|t| t.trial().with_ignored_flag(!enabled)).collect())
}

/// Runs the tests that the command line selects, each in a process of its own, and `RUST_TEST_THREADS` at a time. They share no device,
/// and most wait now and then. With `--exact` or `--test-threads=1` they run in this process, one after the other.
pub fn run_apart(tests: Vec<Test>) -> Conclusion {
    let (mut args, filters) = arguments(std::env::args());
    args.test_threads =
        args.test_threads.or(std::env::var("RUST_TEST_THREADS").ok().and_then(|n| n.parse().ok()));
    if args.exact || args.list || args.test_threads == Some(1) {
        return run(tests, true);
    }
    let apart = |test: Test| Trial::test(test.name.clone(), move || in_process(&test.name));
    let trials = selected(tests, &args, &filters).map(apart).collect();
    conclude(&args, trials)
}

/// Runs one test of this program in another process, which has the time limit of the test.
fn in_process(name: &str) -> Result<(), Failed> {
    let mut program = process::Command::new(std::env::current_exe()?);
    // What it says on stderr is seen at once.
    let output = program.args([name, "--exact"]).stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        return Err(format!("{}\n{text}", output.status).into());
    }
    if !text.lines().any(|line| line.starts_with("test result: ok. 1 passed")) {
        return Err(format!("the test did not run:\n{text}").into());
    }
    let mut notes = NOTES.lock().unwrap_or_else(PoisonError::into_inner);
    notes.extend(text.lines().filter_map(|line| line.strip_prefix("note: ")).map(str::to_owned));
    Ok(())
}

/// The tests that the command line selects.
fn selected(tests: Vec<Test>, args: &Arguments, filters: &[String]) -> impl Iterator<Item = Test> {
    let wanted = move |t: &Test| {
        let name = t.name();
        filters.is_empty()
            || filters.iter().any(|f| if args.exact { name == f } else { name.contains(f.as_str()) })
    };
    tests.into_iter().filter(wanted)
}

/// Runs them, and prints the notes.
fn conclude(args: &Arguments, trials: Vec<Trial>) -> Conclusion {
    let conclusion = libtest_mimic::run(args, trials);
    for note in NOTES.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        println!("note: {note}");
    }
    conclusion
}

/// The command line of libtest, except that several filters may be given: a test runs if it matches any.
fn arguments(words: impl Iterator<Item = String>) -> (Arguments, Vec<String>) {
    let (mut options, mut filters) = (Vec::new(), Vec::new());
    let mut is_value = false;
    for (i, word) in words.enumerate() {
        if i > 0 && !is_value && !word.starts_with('-') {
            filters.push(word);
            continue;
        }
        is_value = ["--test-threads", "--skip", "--color", "--format", "--logfile"].contains(&word.as_str());
        options.push(word);
    }
    (Arguments::from_iter(options), filters)
}

/// Lists the generic functions of a module as tests: `tests!(a, b)` makes `fn tests<P: TestBed>() -> Vec<Test>`. A test may
/// have another name than its function: `tests!(a_rc = a::<D, Rc>, a_uc = a::<D, Uc>)`.
#[macro_export]
macro_rules! tests {
    (@run $name:ident) => { $name };
    (@run $name:ident $run:expr) => { $run };
    ($($name:ident $(= $run:expr)?),* $(,)?) => {
        /// The tests of this file, for a bed.
        pub fn tests<P: $crate::TestBed>() -> Vec<$crate::Test> {
            let theme = module_path!().rsplit("::").next().unwrap_or_default();
            vec![$({
                #[derive(Clone, Copy)]
                struct Run;
                impl $crate::LabTest for Run {
                    fn run<D: uverbs::Driver>(self, lab: &$crate::Lab<D>) -> $crate::Outcome {
                        $crate::tests!(@run $name $($run)?)(lab)
                    }
                }
                $crate::Test::new::<P>(&format!("{theme}::{}", stringify!($name)), Run)
            }),*]
        }
    };
}
