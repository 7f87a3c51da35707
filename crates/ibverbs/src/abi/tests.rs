// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares the structs with the headers: with tables of rdma-core 44 and 65, and with the output of a C program for
//! the installed header.

use super::{Layout, attr, context, device, flow, kern, mlx5dv, object, qp, wq};
use crate::efadv;
use core::fmt::Write as _;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use uverbs_testkit::machine;

/// The output of a C program on x86-64: lines of `struct field offset`, and of `struct sizeof size`.
const TABLE_44: &str = include_str!("../../data/layout-44.txt");
const TABLE_65: &str = include_str!("../../data/layout-65.txt");

type Table<'a> = BTreeMap<(&'a str, &'a str), usize>;

fn layouts() -> impl Iterator<Item = &'static Layout> {
    [
        attr::LAYOUTS,
        context::LAYOUTS,
        device::LAYOUTS,
        efadv::LAYOUTS,
        flow::LAYOUTS,
        kern::LAYOUTS,
        mlx5dv::LAYOUTS,
        object::LAYOUTS,
        qp::LAYOUTS,
        wq::LAYOUTS,
    ]
    .into_iter()
    .flatten()
}

/// A field's name in C.
fn c_name(field: &'static str) -> &'static str {
    field.strip_prefix("r#").unwrap_or(field)
}

fn ours() -> Table<'static> {
    let mut table = Table::new();
    for layout in layouts() {
        table.insert((layout.name, "sizeof"), layout.size);
        table.extend(layout.fields.iter().map(|(field, offset)| ((layout.name, c_name(field)), *offset)));
    }
    table
}

fn parse(text: &str) -> Table<'_> {
    let fields = |line: &str| line.split(' ').count() == 3;
    assert!(text.lines().all(fields), "a line of three words each");
    text.lines()
        .map(|line| {
            let mut words = line.split(' ');
            let mut word = || words.next().unwrap_or_default();
            ((word(), word()), word().parse().unwrap())
        })
        .collect()
}

/// Compares with the table of an older header. It may lack fields at the end of a struct (at the start of
/// `verbs_context`), and nothing else.
fn compare_with_older(theirs: &Table<'_>) {
    let ours = ours();
    for ((name, field), offset) in theirs {
        let size = ours[&(*name, "sizeof")];
        let their_size = theirs[&(*name, "sizeof")];
        match (*name, *field) {
            (_, "sizeof") => assert!(*offset <= size, "{name} shrank from {offset} to {size}"),
            // Newer versions have fields in these bytes.
            ("efadv_qp_init_attr", "reserved") => {}
            ("verbs_context", _) => {
                assert_eq!(size - ours[&(*name, *field)], their_size - offset, "{name}.{field} from the end");
            }
            _ => assert_eq!(ours[&(*name, *field)], *offset, "{name}.{field}"),
        }
    }
    // The offsets of fields that the older header lacks are behind the end of its struct, or before its start.
    for (name, field) in ours.keys().filter(|key| !theirs.contains_key(*key)) {
        let Some(their_size) = theirs.get(&(*name, "sizeof")) else { continue };
        let (size, offset) = (ours[&(*name, "sizeof")], ours[&(*name, *field)]);
        match *name {
            "verbs_context" => {
                assert!(size - offset > *their_size, "{name}.{field} is new, and not at the start")
            }
            // In the padding at the end of the older struct; the mask says whether it is valid.
            "mlx5dv_flow_matcher_attr" => assert_eq!((*field, offset, *their_size), ("ib_port", 36, 40)),
            // In bytes that were reserved: a program that does not know them has zeros there.
            "efadv_qp_init_attr" if *field != "wr_flags" => assert!((12..16).contains(&offset), "{field}"),
            "efadv_device_attr" => assert_eq!((*field, offset), ("inline_buf_size_ex", 22)),
            _ => assert!(offset >= *their_size, "{name}.{field} is new, and not at the end"),
        }
    }
}

#[test]
#[cfg_attr(not(target_arch = "x86_64"), ignore = "pthread's types have other sizes")]
fn every_struct_has_the_layout_of_rdma_core_65() {
    let (ours, theirs) = (ours(), parse(TABLE_65));
    let wrong: Vec<_> = ours.iter().filter(|(key, value)| theirs.get(*key) != Some(value)).collect();
    assert!(wrong.is_empty(), "differ from rdma-core 65: {wrong:?}");
    assert_eq!(ours.len(), theirs.len());
    assert!(ours.len() > 400, "only {} fields", ours.len());
}

#[test]
#[cfg_attr(not(target_arch = "x86_64"), ignore = "pthread's types have other sizes")]
fn rdma_core_44_lacks_only_fields_at_the_ends() {
    let theirs = parse(TABLE_44);
    assert!(theirs.len() > 380, "only {} fields", theirs.len());
    compare_with_older(&theirs);
}

/// Compares with the installed header, for the structs and fields that it has.
#[test]
fn the_layouts_are_those_of_the_installed_header() {
    if !machine::has("infiniband/mlx5dv.h", "libibverbs-dev", "layouts of the C ABI") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("layout");
    let source = without_errors(c_program(ours().into_keys()), &dir.path().join("layout.c"), &program);
    let printed = Command::new(&program).output().unwrap().stdout;
    let theirs = parse(core::str::from_utf8(&printed).unwrap());
    let lacking: Vec<_> = parse(TABLE_44).into_keys().filter(|key| !theirs.contains_key(key)).collect();
    assert!(lacking.is_empty(), "the header lacks what rdma-core 44 has: {lacking:?} in\n{source}");
    compare_with_older(&theirs);
}

/// Compiles a program without the lines that have errors, and returns it: each is about something that the header lacks.
fn without_errors(mut text: String, source: &Path, program: &Path) -> String {
    // The second round leaves out the lines that failed in the first.
    for _ in 0..2 {
        std::fs::write(source, &text).unwrap();
        let mut cc = machine::cc();
        cc.args(["-fmax-errors=0", "-o"]).arg(program).arg(source).env("LC_ALL", "C");
        let said = cc.output().expect("needs a C compiler");
        if said.status.success() {
            return text;
        }
        let (said, prefix) = (String::from_utf8_lossy(&said.stderr), format!("{}:", source.display()));
        let errors = said.lines().filter(|line| line.contains(" error: "));
        let at =
            errors.filter_map(|line| line.strip_prefix(&prefix)?.split(':').next()?.parse::<usize>().ok());
        let at: BTreeSet<_> = at.collect();
        assert!(!at.is_empty(), "{said}");
        let lines = text.lines().enumerate().filter(|(i, _)| !at.contains(&(i + 1)));
        text = lines.map(|(_, line)| format!("{line}\n")).collect();
    }
    panic!("lines that compiled fail without the others:\n{text}");
}

/// Prints the program that generates the tables `data/layout-*.txt`. It is compiled with the headers of a version.
#[test]
#[ignore = "a generator: cargo test -p uverbs-ibverbs --lib print_the_program -- --ignored --nocapture"]
fn print_the_program() {
    println!("{}", c_program(ours().into_keys()));
}

fn c_program<'a>(facts: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let mut source = String::new();
    for header in [
        "infiniband/verbs.h",
        "infiniband/efadv.h",
        "infiniband/mlx5dv.h",
        "infiniband/sa.h",
        "rdma/ib_user_sa.h",
        "rdma/ib_user_verbs.h",
        "stdio.h",
    ] {
        writeln!(source, "#include <{header}>").unwrap();
    }
    source.push_str("int main(void) {\n");
    for (name, field) in facts {
        let value = match field {
            "sizeof" => format!("sizeof(struct {name})"),
            _ => format!("offsetof(struct {name}, {field})"),
        };
        writeln!(source, "  printf(\"{name} {field} %zu\\n\", {value});").unwrap();
    }
    source + "  return 0;\n}\n"
}
