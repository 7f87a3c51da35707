// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask dist`: builds the C libraries, which package `uverbs-dist` makes of the static library of `uverbs-ibverbs`.

use crate::{cargo, repo_root, run};
use anyhow::Result;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use uverbs_dist::ARCHIVE;
pub(crate) use uverbs_dist::SONAMES;

/// Build the C libraries libibverbs.so.1, libmlx5.so.1 and libefa.so.1, an archive of each, and the files for linking programs
/// with them
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Output directory; it is created if it does not exist
    #[arg(long, default_value = "target/dist")]
    pub(crate) out: PathBuf,
    /// Include the software HCA and the software EFA; programs see their devices if UVERBS_HCA=2, or UVERBS_EFA=2, is set in
    /// their environment
    #[arg(long)]
    pub(crate) hca: bool,
    /// Cargo profile
    #[arg(long, default_value = "release")]
    pub(crate) profile: String,
    /// Keep the symbols of functions that are not exported
    #[arg(long)]
    pub(crate) symbols: bool,
}

/// Builds the library as users get it, with its symbols, for tools that show them.
pub(crate) fn release(out: &Path) -> Result<()> {
    let args = Args { out: out.to_owned(), hca: false, profile: "release".to_owned(), symbols: true };
    main(&args).map(|_| ())
}

/// Runs the command.
pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    let out = repo_root().join(&args.out);
    let strip = args.profile == "release" && !args.symbols;
    uverbs_dist::make(&archive(args)?, &out, strip)?;
    for soname in SONAMES {
        eprintln!("dist: {}", out.join(soname).display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Builds the crate as a static library. Returns its path.
fn archive(args: &Args) -> Result<PathBuf> {
    // The drivers and the software HCA are not built twice.
    let shared = ["dev", "vm"].contains(&args.profile.as_str());
    let mut cmd = cargo::cargo(&uverbs_dist::build(args.hca, shared));
    if args.profile == "vm" {
        cargo::for_lab(&mut cmd);
        run::inherit(&mut cmd)?;
        return Ok(cargo::lab_output().join(ARCHIVE));
    }
    cmd.args(["--profile", &args.profile]);
    run::inherit(&mut cmd)?;
    let profile = if args.profile == "dev" { "debug" } else { &args.profile };
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| repo_root().join("target"), PathBuf::from);
    Ok(target.join(profile).join(ARCHIVE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use uverbs_dist::{FEATURES, PACKAGE};

    /// The packages of a build, each with its features.
    fn packages(options: &[&str]) -> BTreeSet<String> {
        let mut tree =
            cargo::cargo(&["tree", "--quiet", "--locked", "--prefix", "none", "--format", "{p} {f}"]);
        let out = tree.args(options).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let text = String::from_utf8(out.stdout).unwrap();
        text.lines().map(|line| line.trim_end_matches(" (*)").trim_end().to_owned()).collect()
    }

    /// Another feature of one small package, and all that depends on it is built a second time in the tests of the library: this has
    /// cost 50 s of CPU time.
    #[test]
    fn what_the_library_needs_has_the_features_that_it_has_in_the_tests() {
        let features = format!("hca,{FEATURES}");
        let library = packages(&["--package", PACKAGE, "--features", &features, "--edges", "normal,build"]);
        let tests = packages(&["--workspace", "--edges", "normal,build,dev"]);
        let others: Vec<_> =
            library.difference(&tests).filter(|package| !package.starts_with(PACKAGE)).collect();
        assert!(library.len() > 20 && others.is_empty(), "{others:?}");
    }
}
