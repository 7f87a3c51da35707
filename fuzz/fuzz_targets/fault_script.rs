// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scripts of faults from any text.
//!
//! Checked: no text makes the parser panic; the text of a script that is read is read to the same script; an error names a line and a column
//! of the text.
#![no_main]

use libfuzzer_sys::fuzz_target;
use uverbs_fabric::script::{MAX_RULES, Script, ScriptError};

fuzz_target!(|text: &str| {
    match text.parse::<Script>() {
        Ok(script) => {
            assert!(script.0.len() <= MAX_RULES);
            assert_eq!(script.to_string().parse::<Script>(), Ok(script));
        }
        Err(ScriptError { line: 0, .. }) => {}
        Err(ScriptError { line, column, .. }) => {
            let found = text.lines().nth(line - 1).expect("a line of the text");
            assert!((1..=found.len() + 2).contains(&column), "column {column} of {found:?}");
        }
    }
});
