// SPDX-License-Identifier: MIT OR Apache-2.0
//! Running the programs: instructions by callgrind, nanoseconds by processes that take turns.

use super::programs;
use crate::run;
use anyhow::{Context, Result, bail, ensure};
use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Names and values per operation.
pub(crate) type Values = HashMap<String, f64>;

/// The lines of a program: a name, a tab, a number.
fn lines(text: &str) -> Result<Values> {
    text.lines()
        .map(|line| {
            let (name, value) =
                line.split_once('\t').with_context(|| format!("a name and a number, not {line:?}"))?;
            Ok((name.to_owned(), value.parse()?))
        })
        .collect()
}

/// Instructions per operation of the measurements with these names. `program` gives the call under a tool.
pub(crate) fn count(names: &[String], program: impl FnOnce(&[String]) -> Command) -> Result<Values> {
    let dir = programs::folder()?.join("callgrind");
    if dir.exists() {
        fs::remove_dir_all(&dir)?;
    }
    fs::create_dir_all(&dir)?;
    let out = format!("--callgrind-out-file={}", dir.join("out").display());
    let tool = ["valgrind", "-q", "--tool=callgrind", "--collect-atstart=no", &out].map(str::to_owned);
    let ops =
        lines(&run::output(program(&tool).arg("count").args(names)).context("see `cargo xtask setup`")?)?;
    let mut counts = Values::new();
    for entry in fs::read_dir(&dir)? {
        if let Some((name, total)) = dump(&entry?.path())? {
            let ops = ops.get(&name).with_context(|| format!("no line for the dump {name:?}"))?;
            counts.insert(name, total / ops);
        }
    }
    complete(names, &counts)?;
    Ok(counts)
}

/// The name and the instructions of a dump that a client asked for.
fn dump(path: &Path) -> Result<Option<(String, f64)>> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let field = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
    let (Some(name), Some(total)) = (field("desc: Trigger: Client Request:"), field("summary:")) else {
        return Ok(None);
    };
    Ok(Some((name.to_owned(), total.parse().with_context(|| format!("not a sum: {total:?}"))?)))
}

/// Nanoseconds per operation, as one process of the program finds them.
pub(crate) fn time(names: &[String], mut program: Command) -> Result<Values> {
    let values = lines(&run::output(program.arg("ns").args(names))?)?;
    complete(names, &values)?;
    Ok(values)
}

/// Whether every name has its value.
fn complete(names: &[String], values: &Values) -> Result<()> {
    let missing: Vec<_> =
        names.iter().filter(|name| !values.contains_key(*name)).map(String::as_str).collect();
    ensure!(missing.is_empty(), "the program did not measure {}", missing.join(", "));
    if values.is_empty() {
        bail!("nothing was measured");
    }
    Ok(())
}
