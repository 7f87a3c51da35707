// SPDX-License-Identifier: MIT OR Apache-2.0
//! The check that the API has no change that its version does not allow: cargo-semver-checks compares what rustdoc knows of the
//! crates (its JSON output) with that of another revision.
//!
//! The tool can run rustdoc itself, but builds the dependencies of each crate and of each revision for it, eight times in all. Here
//! one call of cargo documents all crates of a revision, with what the other checks have built.

use crate::{cargo, ci, repo_root, run, tools};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

/// The file with the revision whose API programs may rely on.
const BASELINE: &str = "xtask/api-baseline";

/// The crates that most programs name in their manifests.
pub(crate) const CRATES: [&str; 4] = ["uverbs", "uverbs-core", "uverbs-cm", "uverbs-aio"];

/// What it reports although nothing has changed: it compares the methods of exclusive queues with those of shared ones, which have the same
/// names. The manifest of the crate has this, too, but the tool does not read it if it is given documents.
const FALSE: [(&str, &str); 1] = [("uverbs", "method_receiver_ref_became_mut")];
/// The beginning of the line with a lint that has failed.
const FAILURE: &str = "--- failure ";

/// What cargo-semver-checks gives rustdoc (its `EXTRA_RUSTDOCFLAGS`).
const FLAGS: &str = "-Z unstable-options --document-private-items --document-hidden-items --output-format=json --cap-lints=allow";

/// Starts rustdoc with its unstable options, without which it has no JSON. Only rustdoc gets them: build scripts would build other
/// artifacts with them.
const SCRIPT: &str = "#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec \"RUSTDOC\" \"$@\"\n";

/// Compares the API with that of a revision, by default that of the file. A clone without that revision leaves the check out.
pub(crate) fn compatibility(baseline: Option<&str>) -> Result<()> {
    let file = fs::read_to_string(repo_root().join(BASELINE)).context(BASELINE)?;
    let baseline = baseline.unwrap_or_else(|| revision(&file));
    let mut git = Command::new("git");
    git.args(["rev-parse", "--verify", "--quiet", &format!("{baseline}^{{commit}}")])
        .current_dir(repo_root());
    let Ok(commit) = run::output(&mut git) else {
        eprintln!("ci: NOT CHECKED, because this clone has no revision {baseline}: {}", ci::COMPATIBILITY);
        return Ok(());
    };
    let (old, new) = (of_revision(commit.trim())?, folder().join("current"));
    document(repo_root(), &new)?;
    // The calls run beside each other, because each has one thread most of the time.
    let started = CRATES.map(|name| {
        eprintln!("ci: {name} and its API at {}", commit.trim());
        let file = file_of(name);
        let mut cmd = tools::SEMVER_CHECKS.command()?;
        cmd.arg("--baseline-rustdoc").arg(old.join(&file)).arg("--current-rustdoc").arg(new.join(&file));
        cmd.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        cmd.spawn().context("cannot start cargo-semver-checks")
    });
    let mut broken = Vec::new();
    for (name, started) in CRATES.into_iter().zip(started) {
        let out = started?.wait_with_output().context("cannot read what cargo-semver-checks says")?;
        let text = [out.stdout, out.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        if !out.status.success() && is_broken(name, &text) {
            eprintln!("{text}");
            broken.push(name);
        }
    }
    ensure!(
        broken.is_empty(),
        "{}: a change that breaks programs raises the version, and sets the revision of {BASELINE}",
        broken.join(", ")
    );
    Ok(())
}

/// Whether the tool, which has failed, has found more than what is false.
fn is_broken(name: &str, text: &str) -> bool {
    let failed: Vec<&str> =
        text.lines().filter_map(|line| line.trim_start().strip_prefix(FAILURE)?.split(':').next()).collect();
    failed.is_empty() || failed.iter().any(|lint| !FALSE.contains(&(name, lint)))
}

/// Where the documents are.
fn folder() -> PathBuf {
    repo_root().join("target/api")
}

/// The documents of a commit, which are kept.
fn of_revision(commit: &str) -> Result<PathBuf> {
    let version = run::output(Command::new("rustdoc").arg("--version").current_dir(repo_root()))?;
    let release = version.split(' ').nth(1).unwrap_or("unknown");
    let done = folder().join(format!("{commit}-{release}"));
    if done.exists() {
        return Ok(done);
    }
    let sources = folder().join("sources");
    if sources.exists() {
        fs::remove_dir_all(&sources).context("cannot remove the sources of a revision")?;
    }
    fs::create_dir_all(&sources).with_context(|| format!("cannot create {}", sources.display()))?;
    let archive = folder().join("sources.tar");
    let mut git = Command::new("git");
    git.args(["archive", "--format=tar", "--output"]).arg(&archive).arg(commit).current_dir(repo_root());
    run::output(&mut git)?;
    run::output(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(&sources))?;
    fs::remove_file(&archive).context("cannot remove the archive of a revision")?;
    let parts = folder().join("part");
    document(&sources, &parts)?;
    fs::rename(&parts, &done).context("cannot move the documents of a revision")?;
    fs::remove_dir_all(&sources).context("cannot remove the sources of a revision")?;
    Ok(done)
}

/// Has rustdoc document the crates of a source tree, with all their features.
fn document(sources: &Path, out: &Path) -> Result<()> {
    fs::create_dir_all(out).with_context(|| format!("cannot create {}", out.display()))?;
    let script = folder().join("rustdoc");
    let rustdoc = std::env::var("RUSTDOC").unwrap_or_else(|_| "rustdoc".into());
    fs::write(&script, SCRIPT.replace("RUSTDOC", &rustdoc))
        .context("cannot write the script that starts rustdoc")?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).context("cannot make it executable")?;
    let mut cmd = cargo::cargo(&["doc", "--quiet", "--locked", "--no-deps", "--lib", "--all-features"]);
    cmd.args(CRATES.iter().flat_map(|name| ["--package", name])).arg("--manifest-path");
    // The folder of the other checks has the dependencies.
    cmd.arg(sources.join("Cargo.toml")).arg("--target-dir").arg(repo_root().join("target"));
    // The documents of all revisions have the same place, where cargo would take those of another one for these.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock")?.as_nanos();
    cmd.env("RUSTDOCFLAGS", format!("{FLAGS} --cfg=uverbs_api_{now}"));
    let files =
        CRATES.map(|name| (repo_root().join("target/doc").join(file_of(name)), out.join(file_of(name))));
    for (written, _) in files.iter().filter(|(written, _)| written.exists()) {
        fs::remove_file(written).context("cannot remove an old document")?;
    }
    run::inherit(cmd.current_dir(sources).env("RUSTDOC", &script))?;
    for (written, kept) in &files {
        fs::rename(written, kept).with_context(|| format!("rustdoc wrote no {}", written.display()))?;
    }
    Ok(())
}

/// The file with a crate's document.
fn file_of(name: &str) -> String {
    format!("{}.json", name.replace('-', "_"))
}

/// The revision in the text of the file: its line without `#`.
fn revision(text: &str) -> &str {
    text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#')).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_known_to_be_false_is_left_out() {
        let line = |lint| format!("\n--- failure {lint}: a text ---\n");
        assert!(!is_broken("uverbs", &line("method_receiver_ref_became_mut")));
        assert!(is_broken("uverbs-cm", &line("method_receiver_ref_became_mut")));
        let two = line("method_receiver_ref_became_mut") + &line("trait_missing");
        assert!(is_broken("uverbs", &two) && is_broken("uverbs", "error: no such file"));
    }

    #[test]
    fn the_revision_is_the_line_that_is_no_comment() {
        assert_eq!(revision("# of the API\n\n 0a1b \n"), "0a1b");
        assert_eq!(revision("# none"), "");
    }
}
