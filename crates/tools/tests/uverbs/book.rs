// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the commands of the documentation that use a software NIC, and so work on any machine.

use std::process::Command;

#[test]
fn commands_on_a_software_nic_work() {
    let mut count = 0;
    for command in uverbs_book::commands(&["uverbs"]) {
        if !command.words.iter().any(|word| word == "hca0" || word == "efa0") {
            continue;
        }
        let output = Command::new(env!("CARGO_BIN_EXE_uverbs")).args(&command.words[1..]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {:?}: {text}", command.at, command.words);
        assert!(!output.stdout.is_empty(), "{}: no output", command.at);
        count += 1;
    }
    assert!(count >= 4, "only {count} commands");
}
