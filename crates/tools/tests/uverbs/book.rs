// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the commands of the documentation that use a software NIC, and so work on any machine.

use std::path::Path;
use std::process::Command;

const UVERBS: &str = env!("CARGO_BIN_EXE_uverbs");

#[test]
fn commands_on_a_software_nic_work() {
    // Commands name the program without a path, and write files to `target`.
    let bin = Path::new(UVERBS).parent().unwrap();
    let path = std::env::join_paths(
        core::iter::once(bin.to_owned())
            .chain(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())),
    )
    .unwrap();
    let work = std::env::temp_dir().join(format!("uverbs-book-{}", std::process::id()));
    std::fs::create_dir_all(work.join("target")).unwrap();
    let mut count = 0;
    for command in uverbs_book::commands(&["uverbs"]) {
        if !command.words.iter().any(|word| word == "hca0" || word == "efa0") {
            continue;
        }
        let output = Command::new(UVERBS)
            .args(&command.words[1..])
            .env("PATH", &path)
            .current_dir(&work)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {:?}: {text}", command.at, command.words);
        assert!(!output.stdout.is_empty(), "{}: no output", command.at);
        count += 1;
    }
    std::fs::remove_dir_all(&work).unwrap();
    assert!(count >= 4, "only {count} commands");
}
