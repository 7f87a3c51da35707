// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs tests for aarch64 under QEMU's emulation of a user process, on any machine.
//!
//! System calls are those of the machine's kernel, so its page size and its devices are, too. The emulation orders memory accesses as the
//! machine does: it tests the code for aarch64, not the barriers, which `barriers` compares.

use crate::rust::{AARCH64, Emulator};
use crate::{cargo, run};
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

/// The packages whose tests run: core, drivers, the typed API, the models, and what they consist of.
pub(super) const PACKAGES: [&str; 15] = [
    "uverbs-uapi",
    "uverbs-core",
    "uverbs-efa-hw",
    "uverbs-efa",
    "uverbs-mlx5-hw",
    "uverbs-mlx5",
    "uverbs-soft",
    "uverbs-rxe",
    "uverbs-siw",
    "uverbs-fabric",
    "uverbs-softkernel",
    "uverbs-efa-device",
    "uverbs-hca",
    "uverbs-software",
    "uverbs",
];

/// Tests that do not run under the emulation, with the reasons.
const LEFT_OUT: [(&str, &str); 8] = [
    ("many::domains_regions_and_windows_cost_the_same_among_many", COSTS),
    ("many::handles_of_addresses_and_rules_cost_the_same_among_many", COSTS),
    ("many::completion_queues_cost_the_same_among_many", COSTS),
    ("many::receive_queues_cost_the_same_among_many", COSTS),
    ("many::connected_queue_pairs_cost_the_same_among_many", COSTS),
    ("many::queue_pairs_in_error_cost_the_same_among_many", COSTS),
    ("many::queue_pairs_of_a_group_cost_the_same_among_many", COSTS),
    ("sync::copy::tests::copies_have_at_least_half_of_the_speed_of_memcpy", COSTS),
];

/// Those among the unit tests of the [models](Models).
const LEFT_OUT_OF_MODELS: [(&str, &str); 3] = [
    (
        "engine::tests::reliable::an_srq_counts_its_receives_in_16_bits",
        "sends 132,000 messages, which takes half a minute",
    ),
    ("on_demand::tests::a_range_has_an_end", VM_CALLS),
    ("on_demand::tests::mapped_memory_is_accessed_and_other_addresses_are_faults", VM_CALLS),
];

const COSTS: &str = "compares times, which are those of the emulator";

const VM_CALLS: &str = "the emulator does not have process_vm_readv(2) and process_vm_writev(2)";

/// Rounds of property tests that do not set their own number.
const CASES: &str = "64";

/// The folder of the C library for aarch64.
const LIBRARIES: &str = "/usr/aarch64-linux-gnu";

/// Run the tests of core, drivers, `uverbs` and the models for aarch64 under QEMU's emulation
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Run only the tests of this package; may be repeated
    #[arg(long, short, value_name = "NAME")]
    package: Vec<String>,
    /// Bytes of a page that the tests see [default: those of this machine]
    ///
    /// This needs QEMU 7.2. Under it tests fail that need `MADV_WIPEONFORK` or compare /proc/self/maps.
    #[arg(long, value_name = "BYTES")]
    page_size: Option<u32>,
    /// Only the tests whose names contain this
    filter: Option<String>,
}

/// Whether the unit tests of the models run: the command has them, the [step](test()) does not. They are optimised as their packages, so building
/// and running them takes half of the time of all other tests. Those use the models as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Models {
    With,
    Without,
}

impl Models {
    /// The tests that do not run under the emulation, of those that are selected.
    fn left_out(self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let of_models = (self == Self::With).then_some(LEFT_OUT_OF_MODELS);
        LEFT_OUT.into_iter().chain(of_models.into_iter().flatten())
    }
}

/// Runs the command.
pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    let mut packages: Vec<_> = args.package.iter().map(String::as_str).collect();
    if packages.is_empty() {
        packages.extend(PACKAGES);
    }
    run_all(&packages, Models::With, args)?;
    Ok(ExitCode::SUCCESS)
}

/// The model whose unit tests `--tests` selects. It does not select those of `uverbs-hca` and `uverbs-fabric` (`test = false` in their manifests).
const UNITS: &str = "uverbs-efa-device";

/// Runs those that are a step of `cargo xtask test`.
pub(crate) fn test() -> Result<()> {
    let packages: Vec<_> = PACKAGES.into_iter().filter(|name| *name != UNITS).collect();
    run_all(&packages, Models::Without, &Args { package: Vec::new(), page_size: None, filter: None })?;
    eprintln!(
        "aarch64: left out: units of uverbs-hca, uverbs-fabric and {UNITS}: `cargo xtask aarch64` has them"
    );
    Ok(())
}

/// A test program.
struct Program {
    package: String,
    name: String,
    path: PathBuf,
    /// The folder in which its tests run.
    folder: PathBuf,
}

fn run_all(packages: &[&str], models: Models, args: &Args) -> Result<()> {
    let emulator = emulator(args.page_size)?;
    let start = Instant::now();
    let programs = build(packages, models)?;
    eprintln!(
        "aarch64: {} test programs were built in {:.1} s",
        programs.len(),
        start.elapsed().as_secs_f32()
    );
    let start = Instant::now();
    let mut total = Counts::default();
    let mut failed = Vec::new();
    for program in &programs {
        let start = Instant::now();
        let (counts, passed) = run_one(program, &emulator, models, args.filter.as_deref())?;
        let what = format!("{} ({})", program.package, program.name);
        eprintln!("aarch64: {what}: {} tests in {:.1} s", counts.passed, start.elapsed().as_secs_f32());
        if !passed {
            failed.push(what);
        }
        total.passed += counts.passed;
        total.left_out += counts.left_out;
    }
    eprintln!("aarch64: {} tests passed in {:.1} s", total.passed, start.elapsed().as_secs_f32());
    for (name, why) in models.left_out() {
        eprintln!("aarch64: left out: {name}: {why}");
    }
    ensure!(failed.is_empty(), "tests failed for aarch64: {}", failed.join(", "));
    // A test that was renamed or removed leaves the list.
    if args.package.is_empty() && args.filter.is_none() {
        let (found, listed) = (total.left_out, models.left_out().count());
        ensure!(found == listed, "{found} of the {listed} tests to be left out exist");
    }
    Ok(())
}

fn build(packages: &[&str], models: Models) -> Result<Vec<Program>> {
    let mut cmd = super::call("test")?;
    cmd.args(["--no-run", "--tests", "--message-format=json-render-diagnostics"]);
    if models == Models::With {
        // Also the unit tests of packages whose manifests have `test = false`.
        cmd.args(["--lib", "--bins"]);
    }
    cmd.args(packages.iter().flat_map(|package| ["--package", *package]));
    cmd.env(cargo_variable("LINKER"), "aarch64-linux-gnu-gcc");
    let out = cmd
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot start `{}`", run::shown(&cmd)))?;
    if !out.status.success() {
        bail!("`{}` failed: {}", run::shown(&cmd), out.status);
    }
    let text = String::from_utf8(out.stdout).context("cargo printed something that is not UTF-8")?;
    let names = names()?;
    let programs: Vec<_> = text
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter_map(|message| program(&message, &names))
        .collect();
    ensure!(!programs.is_empty(), "cargo built no test programs");
    Ok(programs)
}

/// The variable by which cargo takes a setting of the target.
fn cargo_variable(what: &str) -> String {
    format!("CARGO_TARGET_{}_{what}", AARCH64.to_uppercase().replace('-', "_"))
}

/// The names of the packages by their identities.
fn names() -> Result<BTreeMap<String, String>> {
    let mut cmd = cargo::cargo(&["metadata", "--no-deps", "--format-version", "1"]);
    let metadata: Value = serde_json::from_str(&run::output(&mut cmd)?).context("cargo metadata")?;
    let packages = metadata["packages"].as_array().context("cargo metadata has no packages")?;
    let name = |package: &Value| Some((package["id"].as_str()?.into(), package["name"].as_str()?.into()));
    Ok(packages.iter().filter_map(name).collect())
}

/// The test program that a message of cargo names.
fn program(message: &Value, names: &BTreeMap<String, String>) -> Option<Program> {
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let kind = message["target"]["kind"].as_array()?.first()?.as_str()?;
    let name = message["target"]["name"].as_str()?;
    Some(Program {
        package: names.get(message["package_id"].as_str()?)?.clone(),
        name: if kind == "lib" { "units".into() } else { name.into() },
        path: message["executable"].as_str()?.into(),
        folder: Path::new(message["manifest_path"].as_str()?).parent()?.into(),
    })
}

/// What a test program says at its end.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    passed: usize,
    left_out: usize,
}

impl Counts {
    /// Of the line `test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 2 filtered out; finished in 0.10s`.
    fn of(output: &str) -> Option<Self> {
        let line = output.lines().rev().find_map(|line| line.strip_prefix("test result: "))?;
        let count = |what: &str| {
            let words = line.split(['.', ';']).map(str::trim);
            words.filter_map(|part| part.strip_suffix(what)).find_map(|n| n.trim().parse().ok())
        };
        Some(Self { passed: count("passed")?, left_out: count("filtered out")? })
    }
}

/// The command line before a program's path.
fn emulator(page_size: Option<u32>) -> Result<Vec<String>> {
    let which = if page_size.is_some() { Emulator::AnyPages } else { Emulator::Current };
    let program = super::emulator(which)?.into_os_string().into_string();
    let program = program.ok().context("a path that is not UTF-8")?;
    let mut words = vec![program, "-L".to_owned(), LIBRARIES.to_owned()];
    if let Some(bytes) = page_size {
        words.extend(["-p".to_owned(), bytes.to_string()]);
    }
    Ok(words)
}

/// Runs a program. Its output is shown if it fails.
fn run_one(
    program: &Program,
    emulator: &[String],
    models: Models,
    filter: Option<&str>,
) -> Result<(Counts, bool)> {
    let mut cmd = Command::new(&emulator[0]);
    cmd.args(&emulator[1..]).arg(&program.path).current_dir(&program.folder);
    cmd.args(models.left_out().flat_map(|(name, _)| ["--skip", name]));
    match filter {
        Some(filter) => cmd.arg(filter),
        // The names of the tests that are left out are whole.
        None => cmd.arg("--exact"),
    };
    // The machine can't execute the program, which some tests start again.
    // The emulator of 7.2 ends a process that reads its own frames up to the first.
    cmd.env("RUST_BACKTRACE", "0")
        .env("PROPTEST_CASES", CASES)
        .env("TESTKIT_RUNNER", emulator.join(" "))
        .env("CARGO_MANIFEST_DIR", &program.folder);
    let out =
        cmd.stdin(Stdio::null()).output().with_context(|| format!("cannot start `{}`", run::shown(&cmd)))?;
    let (text, errors) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    for line in errors.lines().filter(|line| line.starts_with("SKIPPED")) {
        eprintln!("aarch64: {line}");
    }
    let counts = Counts::of(&text);
    if out.status.success() {
        let counts = counts.with_context(|| format!("{} has no result", program.path.display()))?;
        return Ok((counts, true));
    }
    eprintln!("{text}{errors}aarch64: `{}`: {}", run::shown(&cmd), out.status);
    Ok((counts.unwrap_or_default(), false))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counts_are_those_of_the_last_line() {
        let text = "running 3 tests\ntest a ... ok\n\n\
                    test result: ok. 20 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.10s\n\n";
        assert_eq!(Counts::of(text), Some(Counts { passed: 20, left_out: 2 }));
        assert_eq!(Counts::of("test a ... ok\n"), None);
    }

    #[test]
    fn settings_of_the_target_are_variables() {
        assert_eq!(cargo_variable("LINKER"), "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER");
    }

    #[test]
    fn a_test_program_is_found_in_the_messages_of_cargo() {
        let names = [("id".to_owned(), "uverbs-core".to_owned())].into();
        let message = |test: bool, executable: &str| {
            serde_json::from_str(&format!(
                r#"{{"reason":"compiler-artifact","package_id":"id","manifest_path":"/r/core/Cargo.toml","target":{{
                "kind":["lib"],"name":"uverbs_core"}},"profile":{{"test":{test}}},"executable":{executable}}}"#
            ))
            .unwrap()
        };
        let found = program(&message(true, "\"/t/core-1\""), &names).unwrap();
        assert_eq!((&*found.package, &*found.name), ("uverbs-core", "units"));
        assert_eq!((found.path, found.folder), ("/t/core-1".into(), "/r/core".into()));
        assert!(program(&message(false, "\"/t/core-1\""), &names).is_none(), "not a test");
        assert!(program(&message(true, "null"), &names).is_none(), "no program");
    }
}
