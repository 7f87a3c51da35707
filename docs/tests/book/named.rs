// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which sources name a driver: the table of the guide, and what is in the code.

use super::{files, first_cells};
use std::collections::BTreeSet;
use std::fs;
use uverbs_book::repo_root;

/// The most sources, outside of the driver's own crates, that may name it.
const MOST: usize = 12;

/// A source without comments and without modules of tests. Text literals stay.
fn code(source: &str) -> String {
    without_tests(&without_comments(source))
}

fn without_comments(source: &str) -> String {
    let (mut code, mut rest) = (String::new(), source);
    while let Some(next) = rest.chars().next() {
        let len = match rest {
            _ if rest.starts_with("//") => {
                rest = rest.split_once('\n').map_or("", |(_, after)| after);
                code.push('\n');
                continue;
            }
            _ if rest.starts_with("/*") => {
                rest = rest.split_once("*/").map_or("", |(_, after)| after);
                continue;
            }
            _ if next == '"' || rest.starts_with("'\"'") || rest.starts_with("'\\''") => literal(rest),
            _ => next.len_utf8(),
        };
        code.push_str(&rest[..len]);
        rest = &rest[len..];
    }
    code
}

/// The bytes of the literal at the beginning of a text.
fn literal(text: &str) -> usize {
    let quote = text.as_bytes()[0];
    let mut bytes = text.bytes().enumerate().skip(1);
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'\\' => drop(bytes.next()),
            _ if byte == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Without the items after `#[cfg(test)]` and the like, whose blocks end at a brace of their indentation, as rustfmt writes it.
fn without_tests(code: &str) -> String {
    let (mut kept, mut lines) = (String::new(), code.lines());
    while let Some(line) = lines.next() {
        let indentation = &line[..line.len() - line.trim_start().len()];
        if !line.trim_start().starts_with("#[cfg(test)]") && !line.trim_start().starts_with("#[cfg(all(test")
        {
            kept.push_str(line);
            kept.push('\n');
            continue;
        }
        let is_end = |line: &str| {
            let own = line.strip_prefix(indentation).filter(|own| !own.starts_with(' '));
            own.is_some_and(|own| own.starts_with('}') || own.ends_with(';') || own.ends_with("{}"))
        };
        while lines.next().is_some_and(|line| !is_end(line)) {}
    }
    kept
}

/// Whether a word of the code is the name or begins with it: `efa`, `Efa`, `EFA_IO_SEND`, `SoftwareEfa`, and not `default`.
fn names(code: &str, name: &str) -> bool {
    let capital = format!("{}{}", name[..1].to_uppercase(), &name[1..]);
    let forms = [name.to_owned(), name.to_uppercase(), capital];
    forms.iter().enumerate().any(|(n, form)| {
        code.match_indices(form.as_str()).any(|(at, _)| {
            let (before, after) = (code[..at].chars().next_back(), code[at + form.len()..].chars().next());
            // `efadv` is a name that begins with it; `EFAULT` is another word.
            let is_other = match n {
                0 => after == Some('u'),
                1 => after.is_some_and(|c| c.is_ascii_uppercase()),
                _ => after.is_some_and(|c| c.is_ascii_lowercase()),
            };
            let begins = n == 2 || !before.is_some_and(|c| c.is_ascii_alphabetic());
            begins && !is_other
        })
    })
}

#[test]
fn the_sources_that_name_a_driver_are_those_of_the_guide() {
    let own = ["drivers/efa/", "crates/efa-device/", "crates/efa-pci/"];
    let mut found = BTreeSet::new();
    for path in files(&["crates", "uapi", "drivers"], ".rs") {
        let below = path.strip_prefix(repo_root()).unwrap().to_str().unwrap();
        let is_test = below.contains("/tests/") || below.ends_with("/tests.rs");
        let is_own = own.iter().any(|folder| below.starts_with(folder));
        if !is_test && !is_own && names(&code(&fs::read_to_string(&path).unwrap()), "efa") {
            found.insert(below.to_owned());
        }
    }
    let cells = first_cells("docs/src/guides/adding-a-driver.md");
    // The table has the sources; rows of the checklist with other texts are about each driver.
    let page = fs::read_to_string(repo_root().join("docs/src/guides/adding-a-driver.md")).unwrap();
    let table = page.split("## Which sources name a driver").nth(1).unwrap().split("\n## ").next().unwrap();
    let listed: BTreeSet<_> =
        cells.into_iter().filter(|cell| table.contains(&format!("| `{cell}` |"))).collect();
    assert_eq!(found, listed, "the sources that name EFA, and the table of adding-a-driver.md");
    assert!(found.len() <= MOST, "{} sources name EFA", found.len());
    assert!(table.contains(&format!(", {} sources name EFA", found.len())), "the number in the guide");
}

#[test]
fn names_are_found_in_code_only() {
    let named = |source: &str| names(&code(source), "efa");
    for source in [
        "use uverbs_efa::Efa;",
        "let name = \"efa0\"; // the default",
        "const EFA: u32 = 1;",
        "fn software_efa() {}",
        "struct SoftwareEfa;",
        "mod efadv;",
        "let quote = '\"'; let efa = 1;",
        "let url = \"http://x\"; efa()",
        "#[cfg(test)]\nmod tests {\n    fn x() {}\n}\nlet efa = 1;",
        "#[cfg(test)]\nmod tests;\nlet efa = 1;",
    ] {
        assert!(named(source), "{source}");
    }
    for source in [
        "let x = T::default();",
        "Errno::EFAULT",
        "prefault()",
        "// efa\n/// Efa\nlet x = 1;",
        "/* efa */ let x = 1;",
        "#[cfg(test)]\nmod tests {\n    use uverbs_efa::Efa;\n}\n",
        "    #[cfg(all(test, feature = \"hca\"))]\n    fn efa() {\n        efa();\n    }\n",
    ] {
        assert!(!named(source), "{source}");
    }
}
