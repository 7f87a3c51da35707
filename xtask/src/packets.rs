// SPDX-License-Identifier: MIT OR Apache-2.0
//! The packets of the software NIC: Wireshark dissects each packet of the suite, and finds no fault.

use crate::test::LONG;
use crate::{cargo, repo_root, run};
use anyhow::{Context as _, Result, bail, ensure};
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The directory of the captures.
const DIRECTORY: &str = "target/packets";
/// The file with all captures: files of pcapng that follow each other are one.
const ALL: &str = "all.pcapng";
/// Dissectors that take any payload for theirs.
const GUESSES: [&str; 2] = ["rpcordma", "infiniband.eoib"];
/// The protocols in which a fault is one of the packet. Others guess what the payload is, which has no protocol.
const PROTOCOLS: [&str; 7] = ["Ethernet", "IPv4", "IPv6", "UDP", "InfiniBand", "RRoCE", "RoCE"];
/// A test that counts the open files, of which a capture closes one when it is full.
const COUNTS_FILES: &str = "big::";

/// Captures the packets of the suite and dissects them; compares a packet of each opcode with what Wireshark reads.
pub(crate) fn check() -> Result<()> {
    let mut fields = cargo::cargo(&["test", "--workspace", "--test", "wireshark"]);
    run::inherit(fields.env("CI", "1"))?;
    let directory = repo_root().join(DIRECTORY);
    if directory.exists() {
        fs::remove_dir_all(&directory)?;
    }
    fs::create_dir_all(&directory)?;
    let mut suite = Command::new(program()?);
    suite
        .current_dir(repo_root().join("tests"))
        .arg("--quiet")
        .args(LONG.iter().chain([&COUNTS_FILES]).flat_map(|name| ["--skip", *name]));
    run::inherit(suite.env("UVERBS_HCA_CAPTURE", &directory))?;
    let all = directory.join(ALL);
    let mut to = File::create(&all)?;
    for entry in fs::read_dir(&directory)? {
        let path = entry?.path();
        if path != all {
            io::copy(&mut File::open(&path)?, &mut to)?;
            fs::remove_file(&path)?;
        }
    }
    let mut tshark = Command::new("tshark");
    tshark.args(GUESSES.iter().flat_map(|name| ["--disable-protocol", name]));
    tshark.arg("-r").arg(&all).args(["-Y", "infiniband", "-T", "fields", "-E", "separator=/t"]);
    tshark.args(["-e", "frame.number", "-e", "_ws.malformed", "-e", "frame.comment"]);
    let mut child =
        tshark.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().context("cannot start tshark")?;
    let out = child.stdout.take().context("no output")?;
    let mut count = 0_u64;
    for line in BufReader::new(out).lines() {
        let line = line?;
        let mut fields = line.split('\t');
        let (number, malformed) = (fields.next().unwrap_or_default(), fields.next().unwrap_or_default());
        if is_fault(malformed) {
            bail!("packet {number} of {}: {malformed}; {}", all.display(), fields.next().unwrap_or_default());
        }
        count += 1;
    }
    ensure!(child.wait()?.success(), "tshark failed");
    ensure!(count > 10_000, "only {count} packets were captured");
    eprintln!("packets: {count} were dissected");
    fs::remove_file(&all)?;
    Ok(())
}

/// The program of the suite, with the features that `cargo test` has; other packages have programs of the same name.
fn program() -> Result<PathBuf> {
    let mut cmd = cargo::cargo(&[
        "test",
        "--workspace",
        "--test",
        "hca",
        "--no-run",
        "--message-format=json-render-diagnostics",
    ]);
    let out = cmd.stderr(Stdio::inherit()).output().context("cannot start cargo")?;
    ensure!(out.status.success(), "the suite was not built");
    let manifest = repo_root().join("tests/Cargo.toml");
    let text = String::from_utf8(out.stdout)?;
    let found = text.lines().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let is_it =
            message["manifest_path"].as_str() == manifest.to_str() && message["target"]["name"] == "hca";
        message["executable"].as_str().filter(|_| is_it).map(PathBuf::from)
    });
    found.context("cargo names no program of the suite")
}

/// Whether one of the protocols that Wireshark names as malformed is one of the packet, and not guessed: the payload of InfiniBand can be
/// tried as an Ethernet type, after which any protocol follows.
fn is_fault(malformed: &str) -> bool {
    let names = || malformed.split("[Malformed Packet: ").skip(1).filter_map(|rest| rest.split(']').next());
    let is_guess = names().any(|name| name == "Ethertype");
    !is_guess && names().any(|name| PROTOCOLS.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guesses_of_the_payload_are_no_faults() {
        assert!(is_fault("[Malformed Packet: RRoCE],_ws.malformed"));
        assert!(is_fault("[Malformed Packet: InfiniBand]"));
        assert!(!is_fault(
            "[Malformed Packet: IPv4],_ws.malformed,[Malformed Packet: Ethertype],_ws.malformed"
        ));
        assert!(!is_fault("[Malformed Packet: LAPB],_ws.malformed") && !is_fault(""));
    }
}
