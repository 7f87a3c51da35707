// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask ci`: the static checks.

use crate::steps::{self, Steps, Watch};
use crate::{aarch64, api, book, cargo, repo_root, run, tools};
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::{Command, ExitCode};

/// Run the static checks: format, licence headers, inlining, spelling, dependencies, packages, lints, documentation, the book, compatibility of the API, a build for aarch64
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Leave out the checks that need the compiler for aarch64, which the first run downloads from Debian's archive
    #[arg(long)]
    without_aarch64: bool,
    /// Also check that no dependency has a published vulnerability, which needs the network
    #[arg(long)]
    advisories: bool,
    /// Revision with which the API is compared [default: that of xtask/api-baseline]
    #[arg(long, value_name = "REVISION")]
    baseline: Option<String>,
    /// Run only this check, e.g. lints; may be given several times
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
}

/// A check and its name.
type Step = (&'static str, fn() -> Result<()>);

/// Checks that build in the folder `target`, one after the other. The first two check one package at a time and leave a CPU idle, which
/// the build for aarch64 uses.
const BUILDS: [Step; 7] = [
    ("lints of each set of drivers", driver_sets),
    ("lints of each feature that observes", observing),
    ("lints", || {
        cargo::call(&["clippy", "--workspace", "--all-targets", ALL[0], ALL[1], "--", "-D", "warnings"])
    }),
    // `--all-targets` leaves it out, because only the guest runs it.
    ("lints of the VM suite", || {
        cargo::call(&["clippy", "--workspace", "--test", "vm", ALL[0], ALL[1], "--", "-D", "warnings"])
    }),
    ("lints of the benchmark", || lints_of(BENCH)),
    // cargo-fuzz builds them late in the tests; some of them contain modules of other packages.
    ("lints of the fuzz targets", || lints_of(FUZZ)),
    ("documentation", documentation),
];

/// Checks that build nothing, or in folders of their own, beside the others.
const BESIDE: [Step; 8] = [
    ("format", format),
    ("licence headers", licence_headers),
    ("inlining", inlining),
    ("spelling", spelling),
    ("dependencies", dependencies),
    ("dependencies of a user", user_dependencies),
    ("packages", packages),
    ("book", book::build),
];

/// The check of the [API](api::compatibility), which follows those that build.
pub(crate) const COMPATIBILITY: &str = "compatibility of the API";

/// The manifests of the benchmark and of the fuzz targets, which are separate workspaces.
const BENCH: &str = "tests/bench/Cargo.toml";
const FUZZ: &str = "fuzz/Cargo.toml";

/// Checks with a compiler for aarch64.
const AARCH64_STEPS: [Step; 2] = [("barriers", aarch64::barriers), ("build for aarch64", aarch64::check)];

/// Features that no build enables by default, so that the checks cover all code.
const ALL: [&str; 2] = ["--features", "uverbs-ibverbs/hca"];

/// The manifests of the workspaces, each of which has a lock file.
const WORKSPACES: [&str; 5] = ["Cargo.toml", BENCH, FUZZ, crate::test::GRPC, crate::async_bench::MANIFEST];

/// Runs the command.
pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    let foreign: &[Step] = if args.without_aarch64 { &[] } else { &AARCH64_STEPS };
    let names = |steps: &[Step]| steps.iter().map(|(name, _)| *name).collect::<Vec<_>>();
    let [builds, beside] =
        [[&names(&BUILDS)[..], &[COMPATIBILITY]].concat(), names(&[&BESIDE, foreign].concat())];
    steps::known(&args.only, &[&builds[..], &beside].concat())?;
    for name in &args.only {
        match BUILDS.iter().chain(&BESIDE).chain(foreign).find(|(step, _)| step == name) {
            Some((name, check)) => step(name, check)?,
            None => step(COMPATIBILITY, || api::compatibility(args.baseline.as_deref()))?,
        }
    }
    if !args.only.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    let code = Steps::of_this_call()?.run(&[&builds, &beside])?;
    if code != ExitCode::SUCCESS {
        return Ok(code);
    }
    if args.advisories {
        advisories()?;
    }
    if args.without_aarch64 {
        eprintln!("ci: NOT CHECKED, as asked by --without-aarch64: barriers, build for aarch64");
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs a check and prints the time that it took.
fn step(name: &str, check: impl FnOnce() -> Result<()>) -> Result<()> {
    let watch = Watch::start();
    check().with_context(|| format!("ci: {name} failed"))?;
    eprintln!("ci: {name} passed in {watch}");
    Ok(())
}

/// The features of `uverbs` that are on by default: one for each driver.
fn drivers() -> Result<Vec<String>> {
    let mut metadata = cargo::cargo(&["metadata", "--no-deps", "--format-version", "1"]);
    let metadata: Value = serde_json::from_str(&run::output(&mut metadata)?)?;
    let packages = metadata["packages"].as_array().context("no packages")?;
    let uverbs = packages.iter().find(|package| package["name"] == "uverbs").context("no package uverbs")?;
    let names = uverbs["features"]["default"].as_array().context("no default features")?;
    Ok(names.iter().filter_map(|name| name.as_str()).map(str::to_owned).collect())
}

/// Sets of drivers with which a program may build: none, each one, each two. The other checks have the set of all.
fn sets_of(drivers: &[String]) -> Vec<String> {
    let mut sets = vec![String::new()];
    for (i, one) in drivers.iter().enumerate() {
        sets.push(one.clone());
        sets.extend(drivers[i + 1..].iter().map(|other| format!("{one},{other}")));
    }
    sets
}

/// The crate `uverbs` builds with other sets of drivers. A program without its default features uses it so.
fn driver_sets() -> Result<()> {
    for set in sets_of(&drivers()?) {
        let package = ["clippy", "--package", "uverbs", "--no-default-features", "--features", &set];
        let mut lints = vec!["--", "-D", "warnings"];
        if set.is_empty() {
            // No driver uses the arguments of a verb of `AnyDriver`.
            lints.extend(["-A", "unused"]);
        }
        cargo::call(&[&package[..], &lints].concat()).with_context(|| format!("with the drivers `{set}`"))?;
    }
    Ok(())
}

/// The features that observe build alone, too: the other checks have all of them, because the book has, and a build without them is
/// among the [sets of drivers](driver_sets).
fn observing() -> Result<()> {
    let lints = |package: &str, features: &[&str]| {
        let args = ["clippy", "--package", package].into_iter().chain(features.iter().copied());
        cargo::call(&args.chain(["--", "-D", "warnings"]).collect::<Vec<_>>())
            .with_context(|| format!("{package} with {features:?}"))
    };
    for feature in ["counters", "metrics", "tracing"] {
        lints("uverbs", &["--features", feature])?;
    }
    for features in [&[][..], &["--features", "tracing"]] {
        lints("uverbs-cm", features)?;
        lints("uverbs-aio", features)?;
    }
    lints("uverbs-aio", &["--features", "counters"])
}

/// A workspace of its own has no warnings of clippy. With the profile of the repository's workspace, it has most dependencies in common
/// with that.
fn lints_of(manifest: &str) -> Result<()> {
    let mut cmd = cargo::cargo(&["clippy", "--manifest-path", manifest, "--target-dir", "target"]);
    for (key, value) in [("DEBUG", "false"), ("LTO", "off"), ("INCREMENTAL", "false")] {
        cmd.env(format!("CARGO_PROFILE_DEV_{key}"), value);
    }
    // Nothing is linked. With this variable libFuzzer is not compiled; the build script of its crate needs only a file that exists.
    cmd.env("CUSTOM_LIBFUZZER_PATH", repo_root().join(manifest));
    run::inherit(cmd.args(["--", "-D", "warnings"]))
}

/// Every Rust file has the format of rustfmt.
pub(crate) fn format() -> Result<()> {
    cargo::call(&["fmt", "--all", "--check"])?;
    for manifest in [BENCH, FUZZ, crate::test::GRPC, crate::async_bench::MANIFEST] {
        cargo::call(&["fmt", "--manifest-path", manifest, "--check"])?;
    }
    Ok(())
}

fn documentation() -> Result<()> {
    let mut cmd = cargo::cargo(&["doc", "--workspace", "--no-deps", ALL[0], ALL[1]]);
    run::inherit(cmd.env("RUSTDOCFLAGS", "-D warnings"))
}

/// The tracked files that match a pattern of git.
fn tracked(pattern: &str) -> Result<Vec<String>> {
    let mut git = Command::new("git");
    git.args(["ls-files", "-z", "--", pattern]).current_dir(repo_root());
    let files: Vec<String> = run::output(&mut git)?
        .split_terminator('\0')
        .filter(|f| repo_root().join(f).exists())
        .map(Into::into)
        .collect();
    ensure!(!files.is_empty(), "git lists no file {pattern}");
    Ok(files)
}

/// Every Rust file of ours begins with its licence. cargo-deny checks the licences of dependencies only.
fn licence_headers() -> Result<()> {
    let without: Vec<_> = tracked("*.rs")?
        .into_iter()
        .filter(|file| {
            let text = fs::read_to_string(repo_root().join(file)).unwrap_or_default();
            !text.starts_with("// SPDX-License-Identifier: MIT OR Apache-2.0\n")
        })
        .collect();
    if !without.is_empty() {
        bail!("no SPDX line in {}", without.join(", "));
    }
    Ok(())
}

/// Functions of the libraries are always inlined in optimised builds only. Inlined without optimisation, the functions of posts and
/// polls, which are generic, fill each program that has them with copies: the test program of the mlx5 driver had 44 MB of code
/// instead of 7, and took four times as long to build.
fn inlining() -> Result<()> {
    let mut wrong = Vec::new();
    for file in ["crates/*.rs", "drivers/*.rs"].into_iter().map(tracked).collect::<Result<Vec<_>>>()?.concat()
    {
        let text = fs::read_to_string(repo_root().join(&file)).unwrap_or_default();
        let inlined = text.lines().enumerate().filter(|(_, line)| line.contains("inline(always)"));
        let always = inlined.filter(|(_, line)| !line.contains("not(debug_assertions)"));
        wrong.extend(always.map(|(i, _)| format!("{file}:{}", i + 1)));
    }
    ensure!(
        wrong.is_empty(),
        "write cfg_attr(not(debug_assertions), inline(always)) at {}",
        wrong.join(", ")
    );
    Ok(())
}

/// No tracked file has a word of codespell's list of misspellings. `.codespellrc` has the exceptions.
fn spelling() -> Result<()> {
    let mut cmd = Command::new("codespell");
    run::inherit(cmd.args(tracked("*")?).current_dir(repo_root())).context(
        "a word that is correct is added to .codespellrc; codespell is installed by `cargo xtask setup`",
    )
}

/// The dependencies' licences, sources and names are allowed by `deny.toml`. It reads no database: what a
/// build fetches is enough.
fn dependencies() -> Result<()> {
    for manifest in WORKSPACES {
        let mut cmd = tools::DENY.command()?;
        cmd.args(["--log-level=error", "--locked", "--config", "deny.toml", "--manifest-path", manifest]);
        run::inherit(cmd.args(["check", "bans", "licenses", "sources"]))?;
    }
    Ok(())
}

/// The crate `uverbs` brings as many packages into a user's program as the README says, so that the number does not grow
/// unnoticed. No crate that programs name brings two versions of a package.
fn user_dependencies() -> Result<()> {
    const BEFORE: &str = "The crate `uverbs` brings ";
    for name in api::CRATES {
        let packages = packages_of(name)?;
        let mut versions: BTreeMap<&str, usize> = BTreeMap::new();
        packages.iter().filter_map(|package| package.split(' ').next()).for_each(|name| {
            *versions.entry(name).or_default() += 1;
        });
        let twice: Vec<_> = versions.iter().filter(|(_, count)| **count > 1).map(|(name, _)| *name).collect();
        ensure!(twice.is_empty(), "a user of the crate {name} gets two versions of {twice:?}: {packages:?}");
    }
    let packages = packages_of("uverbs")?;
    let found = packages.len();
    let readme = fs::read_to_string(repo_root().join("README.md")).context("README.md")?;
    let number = readme.split_once(BEFORE).and_then(|(_, rest)| rest.split(' ').next());
    let said: usize =
        number.and_then(|n| n.parse().ok()).with_context(|| format!("README.md: no `{BEFORE}NUMBER`"))?;
    ensure!(
        found == said,
        "a user of the crate uverbs gets {found} other packages; README.md says {said}: {packages:?}"
    );
    Ok(())
}

/// The packages, with their versions, that a crate brings into a program.
fn packages_of(name: &str) -> Result<BTreeSet<String>> {
    let mut tree = cargo::cargo(&["tree", "--locked", "--package", name, "--edges", "normal,build"]);
    let tree = run::output(tree.args(["--prefix", "none", "--format", "{p}"]))?;
    let packages = tree.lines().map(|line| line.split(' ').take(2).collect::<Vec<_>>().join(" "));
    Ok(packages.filter(|package| !package.is_empty() && package.split(' ').next() != Some(name)).collect())
}

/// Each crate that is published can be packaged. The packages are not built.
fn packages() -> Result<()> {
    let metadata = run::output(&mut cargo::cargo(&["metadata", "--no-deps", "--format-version", "1"]))?;
    let metadata: Value = serde_json::from_str(&metadata).context("cargo metadata")?;
    let all = metadata["packages"].as_array().context("cargo metadata has no packages")?;
    let names = all.iter().filter(|p| p["publish"].is_null()).filter_map(|p| p["name"].as_str());
    let mut cmd = cargo::cargo(&["package", "--no-verify", "--allow-dirty", "--locked", "--quiet"]);
    cmd.args(names.flat_map(|name| ["--package", name]));
    // It warns of the missing address of the repository.
    run::output(&mut cmd).map(drop)
}

/// No dependency has a published vulnerability. The database is a git repository: without a network this is left out.
fn advisories() -> Result<()> {
    let mut fetch = tools::DENY.command()?;
    if let Err(e) = run::output(fetch.args(["fetch", "db"])) {
        eprintln!("ci: NOT CHECKED, because the database cannot be fetched: advisories\n{e:#}");
        return Ok(());
    }
    step("advisories", || {
        for manifest in WORKSPACES {
            let mut cmd = tools::DENY.command()?;
            cmd.args(["--locked", "--config", "deny.toml", "--manifest-path", manifest]);
            run::inherit(cmd.args(["check", "advisories"]))?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_drivers_are_none_each_one_and_each_two() {
        let all = drivers().unwrap();
        assert!(all.len() >= 3 && all.contains(&"siw".to_owned()), "{all:?}");
        let drivers = ["a", "b", "c", "d"].map(str::to_owned);
        let expected = ["", "a", "a,b", "a,c", "a,d", "b", "b,c", "b,d", "c", "c,d", "d"];
        assert_eq!(sets_of(&drivers), expected);
    }

    /// The value of the line `key = "value"` in a file.
    fn value(file: &str, key: &str) -> String {
        let text = fs::read_to_string(repo_root().join(file)).unwrap();
        let line = text.lines().find_map(|l| l.strip_prefix(key)?.trim_start().strip_prefix('='));
        line.unwrap_or_else(|| panic!("{file} has no {key}")).trim().trim_matches('"').to_owned()
    }

    #[test]
    fn the_pinned_compiler_is_the_minimum_supported_version() {
        let pinned = value("rust-toolchain.toml", "channel");
        for manifest in WORKSPACES {
            assert_eq!(pinned, value(manifest, "rust-version") + ".0", "{manifest}");
        }
    }
}
