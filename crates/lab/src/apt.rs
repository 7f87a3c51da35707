// SPDX-License-Identifier: MIT OR Apache-2.0
//! Packages of any Debian suite, without changes to the packages or the apt state of the host.
//!
//! Each suite has its own sources list, package lists and archive directory in the lab, and an empty dpkg status: apt
//! resolves all dependencies of a package, as if no package were installed. The archive is the one for which the host's
//! apt is configured; the environment variable `LAB_MIRROR` overrides it.

use crate::{Lab, run};
use anyhow::{Context, Result, bail};
use core::time::Duration;
use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// The number of attempts of a download, because archives are sometimes in the middle of an update.
const TRIES: u64 = 3;

/// Suites whose lists this process has already fetched.
static UPDATED: Mutex<Option<HashSet<String>>> = Mutex::new(None);

/// One suite of the archive, e.g. `bookworm`.
#[derive(Debug)]
pub struct Suite {
    name: String,
    dir: PathBuf,
    /// Architectures whose packages are known, that of the host first.
    architectures: String,
}

/// The architecture of the host.
const OWN: &str = "amd64";

impl Suite {
    /// Prepares the apt state of a suite and fetches its package lists, once per process. The caller holds the lab's
    /// [lock](Lab::lock).
    ///
    /// # Errors
    /// The archive of the host is unknown or cannot be reached.
    pub fn open(lab: &Lab, name: &str) -> Result<Self> {
        Self::fetch(lab, name, format!("apt/{name}"), OWN.into())
    }

    /// A suite with the packages of a second architecture, whose names are `PACKAGE:ARCHITECTURE`.
    ///
    /// # Errors
    /// As those of [`open`](Self::open).
    pub fn open_with(lab: &Lab, name: &str, foreign: &str) -> Result<Self> {
        Self::fetch(lab, name, format!("apt/{name}-{foreign}"), format!("{OWN},{foreign}"))
    }

    fn fetch(lab: &Lab, name: &str, dir: String, architectures: String) -> Result<Self> {
        let suite = Self { name: name.into(), dir: lab.path(&dir), architectures };
        for sub in ["lists/partial", "cache/archives/partial", "empty/partial"] {
            let dir = suite.dir.join(sub);
            fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        }
        fs::write(suite.dir.join("status"), "").context("cannot write an empty dpkg status")?;
        fs::write(suite.dir.join("sources.list"), archive()?.line(name))
            .context("cannot write the sources list")?;
        let mut updated = UPDATED.lock().unwrap_or_else(|e| e.into_inner());
        if updated.get_or_insert_default().insert(dir) {
            lab.detail(format!("fetching the package lists of {name}"));
            retry(|| run::output(suite.apt("apt-get").arg("update").arg("-qq")).map(drop))
                .with_context(|| format!("cannot fetch the package lists of {name}"))?;
        }
        Ok(suite)
    }

    /// An apt program that uses only this suite.
    fn apt(&self, program: &str) -> Command {
        let mut cmd = Command::new(program);
        let at = |sub: &str| self.dir.join(sub).display().to_string();
        let options = [
            ("Dir::Etc::SourceList", at("sources.list")),
            ("Dir::Etc::SourceParts", at("empty")),
            ("Dir::Etc::Preferences", at("empty/none")),
            ("Dir::Etc::PreferencesParts", at("empty")),
            ("Dir::State", self.dir.display().to_string()),
            ("Dir::State::Lists", at("lists")),
            ("Dir::State::status", at("status")),
            ("Dir::Cache", at("cache")),
            ("Dir::Cache::pkgcache", "pkgcache.bin".into()),
            ("Dir::Cache::srcpkgcache", "srcpkgcache.bin".into()),
            ("APT::Architecture", OWN.into()),
            ("APT::Architectures", self.architectures.clone()),
            ("APT::Default-Release", String::new()),
            ("APT::Install-Recommends", "false".into()),
            ("APT::Keep-Downloaded-Packages", "true".into()),
            ("APT::Sandbox::User", String::new()),
            // The Release files of archive snapshots have expired.
            ("Acquire::Check-Valid-Until", "false".into()),
            ("Acquire::Languages", "none".into()),
            ("Acquire::IndexTargets::deb::DEP-11::DefaultEnabled", "false".into()),
            ("Acquire::Retries", "3".into()),
            ("Debug::NoLocking", "true".into()),
        ];
        for (key, value) in options {
            cmd.arg(format!("-o{key}={value}"));
        }
        // The parsed output must not depend on the user's locale.
        cmd.env("LC_ALL", "C").env("DEBIAN_FRONTEND", "noninteractive");
        cmd
    }

    /// Downloads packages and their dependencies. Returns the `.deb` files.
    ///
    /// # Errors
    /// A package does not exist or cannot be fetched.
    pub fn closure(&self, packages: &[&str]) -> Result<Vec<PathBuf>> {
        // apt does not print packages that are already downloaded, so the list is made with an empty archive directory.
        let list = run::output(
            self.apt("apt-get")
                .arg(format!("-oDir::Cache::archives={}", self.dir.join("empty").display()))
                .args(["install", "--print-uris", "-qq", "-y"])
                .args(packages),
        )
        .with_context(|| format!("cannot resolve packages of {}", self.name))?;
        retry(|| {
            run::output(self.apt("apt-get").args(["install", "--download-only", "-qq", "-y"]).args(packages))
                .map(drop)
        })
        .with_context(|| format!("cannot download packages of {}", self.name))?;
        let archives = self.dir.join("cache/archives");
        let debs: Vec<_> = list
            .lines()
            .filter(|line| line.starts_with('\''))
            .filter_map(|line| line.split_whitespace().nth(1))
            .map(|file| archives.join(file))
            .collect();
        match debs.iter().find(|deb| !deb.exists()) {
            Some(missing) => bail!("apt reported success but did not leave {}", missing.display()),
            None if debs.is_empty() => bail!("apt resolved {packages:?} of {} to nothing", self.name),
            None => Ok(debs),
        }
    }

    /// Downloads packages without their dependencies. Returns the `.deb` files.
    ///
    /// # Errors
    /// A package does not exist or cannot be fetched.
    pub fn exact(&self, packages: &[String]) -> Result<Vec<PathBuf>> {
        let archives = self.dir.join("cache/archives");
        let list = run::output(self.apt("apt-get").args(["download", "--print-uris", "-qq"]).args(packages))
            .with_context(|| format!("cannot find packages of {}", self.name))?;
        retry(|| {
            run::output(self.apt("apt-get").args(["download", "-qq"]).args(packages).current_dir(&archives))
                .map(drop)
        })
        .with_context(|| format!("cannot download packages of {}", self.name))?;
        Ok(list
            .lines()
            .filter_map(|line| line.split_whitespace().nth(1))
            .map(|file| archives.join(file))
            .collect())
    }

    /// The names of the packages on which a package depends, with alternatives and virtual packages.
    ///
    /// # Errors
    /// The package does not exist.
    pub fn depends(&self, package: &str) -> Result<Vec<String>> {
        let text = run::output(self.apt("apt-cache").args(["depends", "--important", package]))
            .with_context(|| format!("{} has no package {package}", self.name))?;
        Ok(text
            .lines()
            .filter_map(|line| line.trim_start_matches([' ', '|']).split_once("Depends: "))
            .map(|(_, name)| name.trim().to_owned())
            .collect())
    }
}

/// Calls `action` until it succeeds, with a pause in between, at most [`TRIES`] times.
fn retry(action: impl Fn() -> Result<()>) -> Result<()> {
    let mut tried = 0;
    loop {
        tried += 1;
        match action() {
            Err(_) if tried < TRIES => std::thread::sleep(Duration::from_secs(2 * tried)),
            result => return result,
        }
    }
}

/// Unpacks packages into one directory.
///
/// # Errors
/// A file is not a package, or the directory cannot be written.
pub fn unpack(debs: &[PathBuf], dir: &Path) -> Result<()> {
    for deb in debs {
        run::output(Command::new("dpkg-deb").arg("-x").arg(deb).arg(dir))?;
    }
    Ok(())
}

/// An archive in the host's apt sources.
#[derive(Debug, PartialEq, Eq)]
struct Archive {
    uri: String,
    /// The `[...]` options that verify its signature, as in a one-line entry.
    options: String,
}

impl Archive {
    /// The one-line sources entry of a suite.
    fn line(&self, suite: &str) -> String {
        format!("deb {}{} {suite} main\n", self.options, self.uri)
    }
}

/// Finds Debian's archive in the host's apt sources.
fn archive() -> Result<Archive> {
    if let Ok(uri) = std::env::var("LAB_MIRROR") {
        return Ok(Archive { uri, options: String::new() });
    }
    let codename = fs::read_to_string("/etc/os-release")
        .ok()
        .and_then(|text| {
            text.lines()
                .find_map(|l| l.strip_prefix("VERSION_CODENAME="))
                .map(|v| v.trim_matches('"').to_owned())
        })
        .unwrap_or_default();
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    if let Ok(dir) = fs::read_dir("/etc/apt/sources.list.d") {
        files.extend(dir.filter_map(|entry| Some(entry.ok()?.path())));
    }
    files.sort();
    for file in files {
        let Ok(text) = fs::read_to_string(&file) else { continue };
        let entries = match file.extension().and_then(|e| e.to_str()) {
            Some("list") => one_line(&text),
            Some("sources") => deb822(&text),
            _ => continue,
        };
        for (archive, suites) in entries {
            if suites.iter().any(|s| *s == codename || RELEASES.contains(&s.as_str())) {
                return Ok(archive);
            }
        }
    }
    bail!(
        "no Debian archive in /etc/apt/sources.list{{,.d}}: name one in the environment variable LAB_MIRROR"
    )
}

/// Suites that only Debian's main archive has; its security archive names them `X-security`.
const RELEASES: [&str; 8] =
    ["bookworm", "trixie", "forky", "sid", "stable", "oldstable", "testing", "unstable"];

/// The entries of a one-line-style list with their suites.
fn one_line(text: &str) -> Vec<(Archive, Vec<String>)> {
    let mut entries = Vec::new();
    for line in text.lines() {
        let Some(rest) = line.trim().strip_prefix("deb").filter(|r| r.starts_with([' ', '\t', '['])) else {
            continue;
        };
        let rest = rest.trim_start();
        let (options, rest) = match rest.strip_prefix('[').and_then(|r| r.split_once(']')) {
            Some((inside, rest)) => (signed_by(inside.split_whitespace()), rest),
            None => (String::new(), rest),
        };
        let mut words = rest.split_whitespace();
        if let (Some(uri), Some(suite)) = (words.next(), words.next()) {
            let entry = Archive { uri: uri.into(), options };
            if words.any(|component| component == "main") {
                entries.push((entry, vec![suite.to_owned()]));
            }
        }
    }
    entries
}

/// The entries of a deb822-style list with their suites.
fn deb822(text: &str) -> Vec<(Archive, Vec<String>)> {
    let mut entries = Vec::new();
    for stanza in text.split("\n\n") {
        let field = |name: &str| {
            stanza
                .lines()
                .filter_map(|line| line.split_once(':'))
                .find(|(key, _)| key.eq_ignore_ascii_case(name))
                .map(|(_, value)| value.trim().to_owned())
        };
        let (Some(uris), Some(suites)) = (field("URIs"), field("Suites")) else { continue };
        if field("Enabled").is_some_and(|v| v.eq_ignore_ascii_case("no"))
            || !field("Types").unwrap_or_default().split_whitespace().any(|t| t == "deb")
            || !field("Components").unwrap_or_default().split_whitespace().any(|c| c == "main")
        {
            continue;
        }
        // An inline key block (no path) is not copied; apt then uses its trusted keys.
        let key = field("Signed-By").filter(|v| v.starts_with('/')).map(|v| format!("signed-by={v}"));
        if let Some(uri) = uris.split_whitespace().next() {
            let entry = Archive { uri: uri.into(), options: signed_by(key.iter().map(String::as_str)) };
            entries.push((entry, suites.split_whitespace().map(str::to_owned).collect()));
        }
    }
    entries
}

/// Keeps only the options that verify the archive.
fn signed_by<'a>(options: impl Iterator<Item = &'a str>) -> String {
    let kept: Vec<_> = options.filter(|o| o.starts_with("signed-by=") || o.starts_with("trusted=")).collect();
    if kept.is_empty() { String::new() } else { format!("[{}] ", kept.join(" ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_entries_keep_their_key() {
        let text = "# comment\ndeb-src http://a.invalid/debian bookworm main\n\
                    deb [arch=amd64 signed-by=/k.gpg] http://a.invalid/debian bookworm main contrib\n\
                    deb http://b.invalid/x nodistro other\n";
        let found = one_line(text);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].0.line("forky"), "deb [signed-by=/k.gpg] http://a.invalid/debian forky main\n");
        assert_eq!(found[0].1, ["bookworm"]);
    }

    #[test]
    fn deb822_entries_skip_the_disabled_and_foreign() {
        let text = "Types: deb\n# why\nURIs: http://a.invalid/debian\nSuites: bookworm bookworm-updates\n\
                    Components: main\nSigned-By: /k.gpg\n\nTypes: deb\nEnabled: no\nURIs: http://b.invalid\n\
                    Suites: bookworm\nComponents: main\n\nTypes: deb-src\nURIs: http://c.invalid\nSuites: sid\n\
                    Components: main\n";
        let found = deb822(text);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].0.line("trixie"), "deb [signed-by=/k.gpg] http://a.invalid/debian trixie main\n");
        assert_eq!(found[0].1, ["bookworm", "bookworm-updates"]);
    }
}
