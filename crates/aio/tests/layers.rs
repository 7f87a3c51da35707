// SPDX-License-Identifier: MIT OR Apache-2.0
//! The modules of the crate have an order: none uses, directly or by others, a module that uses it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The files of a directory and of those below it.
fn files(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files(&path, found) } else { found.push(path) }
    }
}

/// The code of a file, without comments and without its tests, which are at the end or in a file of their own.
fn code(text: &str) -> String {
    let is_test =
        |line: &str| line.starts_with("#[cfg(") && line.contains("test") && !line.contains("feature");
    let mut lines = text.lines().peekable();
    let mut code = String::new();
    while let Some(line) = lines.next() {
        if is_test(line) && lines.peek().is_some_and(|next| next.contains("mod ") && next.ends_with('{')) {
            break;
        }
        if !line.trim_start().starts_with("//") {
            code.push_str(line);
            code.push('\n');
        }
    }
    code
}

/// The modules that each module uses.
fn uses() -> BTreeMap<String, BTreeSet<String>> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    files(&source, &mut found);
    let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for path in found {
        let inside = path.strip_prefix(&source).unwrap();
        let module = inside.iter().next().unwrap().to_str().unwrap().trim_end_matches(".rs").to_owned();
        // Tests of a module, which may use the whole crate.
        if module == "lib" || inside.ends_with("removal.rs") {
            continue;
        }
        let text = code(&std::fs::read_to_string(&path).unwrap());
        let used = text.split("crate::").skip(1).map(|rest| {
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            rest[..end].to_owned()
        });
        all.entry(module.clone()).or_default().extend(used.filter(|name| *name != module));
    }
    let names: BTreeSet<_> = all.keys().cloned().collect();
    for used in all.values_mut() {
        used.retain(|name| names.contains(name));
    }
    all
}

#[test]
fn no_module_uses_one_that_uses_it() {
    let mut left = uses();
    assert!(left.len() > 30 && left["poller"].contains("qp"), "{left:?}");
    // Takes away those that use none of the others, until nothing is left.
    while !left.is_empty() {
        let (done, rest): (BTreeMap<_, _>, BTreeMap<_, _>) =
            left.iter().partition(|(_, used)| !used.iter().any(|name| left.contains_key(name)));
        assert!(!done.is_empty(), "a circle, or modules that use it: {rest:?}");
        left = rest.into_iter().map(|(name, used)| (name.clone(), used.clone())).collect();
    }
}
