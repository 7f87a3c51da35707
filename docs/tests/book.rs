// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares the documentation with the repository: pages, files, commands, and names in tables.

use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use uverbs_book::{all_commands, pages, repo_root};

#[path = "book/named.rs"]
mod named;

fn read(path: &str) -> String {
    fs::read_to_string(repo_root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// The files below these folders of the repository that have this suffix.
fn files(folders: &[&str], end: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open: Vec<_> = folders.iter().map(|folder| repo_root().join(folder)).collect();
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.ends_with("target") {
                open.push(path);
            } else if path.to_string_lossy().ends_with(end) {
                found.push(path);
            }
        }
    }
    found
}

#[test]
fn each_page_is_in_the_summary() {
    let summary = read("docs/src/SUMMARY.md");
    let in_summary: BTreeSet<_> =
        summary.split("](").skip(1).map(|rest| rest.split(')').next().unwrap().to_owned()).collect();
    let there: BTreeSet<_> = pages()
        .iter()
        .filter_map(|page| page.path.strip_prefix("docs/src/"))
        .filter(|path| *path != "SUMMARY.md")
        .map(str::to_owned)
        .collect();
    assert_eq!(in_summary, there);
}

#[test]
fn blocks_of_code_are_tested() {
    let doc_tests = read("docs/lib.rs");
    for page in pages() {
        for block in page.parts().blocks {
            let at = format!("{}:{}", page.path, block.line);
            let language = block.language.as_str();
            if language.starts_with("rust") {
                let from_docs = page.path.strip_prefix("docs/");
                let path = from_docs.map_or_else(|| format!("../{}", page.path), str::to_owned);
                let tested = doc_tests.contains(&format!("\"{path}\""));
                assert!(tested, "{at}: add the page to `programs` in docs/lib.rs");
                assert!(!language.contains("ignore"), "{at}: a program that is not compiled");
            } else {
                assert!(matches!(language, "console" | "toml" | "text"), "{at}: no language: {language:?}");
            }
        }
    }
}

/// Whether a text in code font is a path of a file or folder of the repository.
fn is_path(span: &str) -> bool {
    const TOP: [&str; 8] = ["crates/", "drivers/", "docs/", "tests/", "xtask/", "fuzz/", "uapi/", ".ci/"];
    TOP.iter().any(|top| span.starts_with(top)) && !span.contains([' ', '<', '*', '$', '{'])
}

#[test]
fn named_files_exist() {
    let mut count = 0;
    for page in pages() {
        for (line, span) in page.code_spans().into_iter().filter(|(_, span)| is_path(span)) {
            assert!(repo_root().join(&span).exists(), "{}:{line}: there is no {span}", page.path);
            count += 1;
        }
        // Lists of files: a path, which may be followed by more files of the same crate.
        for block in page.parts().blocks.iter().filter(|block| block.language == "text") {
            for text in &block.lines {
                let mut folders: Vec<PathBuf> = Vec::new();
                for word in text.split_whitespace().map(|word| word.trim_end_matches([',', ';'])) {
                    let path = repo_root().join(word);
                    let exists = if is_path(word) {
                        folders = path.ancestors().skip(1).take(2).map(Path::to_owned).collect();
                        path.exists()
                    } else if word.ends_with(".rs") && !folders.is_empty() {
                        folders.iter().any(|folder| folder.join(word).exists())
                    } else {
                        continue;
                    };
                    assert!(exists, "{}:{}: there is no {word}", page.path, block.line);
                    count += 1;
                }
            }
        }
    }
    assert!(count > 100, "only {count} paths: does the test find them?");
}

/// If a page has "`Name` in `file`", the file has this name.
#[test]
fn named_items_are_in_their_files() {
    let mut count = 0;
    for page in pages() {
        let prose: Vec<_> = page.parts().prose.into_iter().map(|(_, text)| text).collect();
        let prose = prose.join(" ");
        let parts: Vec<_> = prose.split('`').collect();
        for [item, between, file] in parts.windows(3).map(|w| [w[0], w[1], w[2]]) {
            if between != " in " || !is_path(file) || !file.ends_with(".rs") {
                continue;
            }
            let name = item.rsplit("::").next().unwrap().trim_end_matches("()");
            let source = read(file);
            let has = |kind: &str| {
                source.contains(&format!("{kind} {name}")) || source.contains(&format!("{name}:"))
            };
            let kinds = ["fn", "struct", "trait", "type", "enum", "mod", "const", "macro_rules!"];
            assert!(kinds.into_iter().any(has), "{}: {file} has no {item}", page.path);
            count += 1;
        }
    }
    assert!(count > 25, "only {count} items: does the test find them?");
}

/// The names after `codegen: ` in the comments of a source, with their lines.
fn reasons_of_codegen(source: &str) -> Vec<(usize, String)> {
    let of = |line: &str| {
        let comment = line.split_once("//")?.1;
        let name = comment.split_once("codegen: ")?.1;
        Some(name.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned())
    };
    (1..).zip(source.lines()).filter_map(|(number, line)| Some((number, of(line)?))).collect()
}

/// A comment `codegen: NAME` refers to a heading of the page, and each heading has a place.
#[test]
fn reasons_of_codegen_are_headings_of_their_page() {
    assert_eq!(
        reasons_of_codegen("x(); // Rare. codegen: call\n\"codegen: no\"\n    // codegen:"),
        [(1, "call".to_owned())]
    );
    const PAGE: &str = "docs/src/internals/codegen.md";
    let page = read(PAGE);
    let headings = page.lines().filter_map(|line| line.strip_prefix("## "));
    // The names; a heading of several words is that of another section.
    let headings: BTreeSet<_> = headings.filter(|heading| !heading.contains(' ')).collect();
    let mut named = BTreeSet::new();
    for file in files(&["crates", "drivers"], ".rs") {
        let source = fs::read_to_string(&file).unwrap();
        for (line, name) in reasons_of_codegen(&source) {
            let at = file.display();
            assert!(headings.contains(name.as_str()), "{at}:{line}: {PAGE} has no heading {name:?}");
            named.insert(name);
        }
    }
    let without: Vec<_> = headings.iter().filter(|heading| !named.contains(**heading)).collect();
    assert!(without.is_empty(), "{PAGE}: no comment refers to {without:?}");
}

/// Links of the documents that are not pages of the book, whose links `cargo xtask book` checks.
#[test]
fn links_of_other_documents_are_valid() {
    for path in [
        "README.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "CHANGELOG.md",
        "docs/CODE_OF_CONDUCT.md",
        "docs/README.md",
    ] {
        let folder = Path::new(path).parent().unwrap();
        for link in read(path).split("](").skip(1) {
            let link = link.split([')', '#']).next().unwrap();
            let leads = link.contains("://") || repo_root().join(folder).join(link).exists();
            assert!(leads, "{path}: {link}");
        }
    }
}

/// Other programs in blocks for a shell. The commands of this project's programs are parsed by their crates.
const PROGRAMS: &[&str] = &[
    "a-program-of-yours",
    "apt-get",
    "cargo",
    "cc",
    "cd",
    "dpkg-deb",
    "export",
    "fi_pingpong",
    "gdb",
    "git",
    "grep",
    "ib_send_bw",
    "ib_write_bw",
    "ibv_devinfo",
    "ibv_rc_pingpong",
    "ip",
    "jq",
    "ln",
    "loopback",
    "make",
    "modprobe",
    "python3",
    "qemu-system-x86_64",
    "rdma",
    "rustup",
    "sysctl",
    "uverbs",
    "uverbs-efa",
    "uverbs-hca",
    "uverbs-lab",
    "valgrind",
    "zcat",
];

#[test]
fn commands_are_of_known_programs() {
    for command in all_commands().into_iter().filter(|command| command.is_block) {
        let program = command.words[0].as_str();
        assert!(PROGRAMS.contains(&program), "{}: {program}", command.at);
    }
}

/// The value of an option, as `--package NAME` or `-p NAME`.
fn option<'w>(words: &'w [String], names: &[&str]) -> Option<&'w str> {
    let at = words.iter().position(|word| names.contains(&word.as_str()))?;
    words.get(at + 1).map(String::as_str)
}

/// The packages, targets and features in calls of `cargo build`, `run`, `test` and `install` exist.
#[test]
fn cargo_commands_name_existing_packages_and_targets() {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut metadata = Command::new(cargo);
    metadata.args(["metadata", "--no-deps", "--offline", "--format-version", "1"]).current_dir(repo_root());
    let metadata: Value = serde_json::from_slice(&metadata.output().unwrap().stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let package = |name: &str| packages.iter().find(|p| p["name"] == name);
    for command in all_commands() {
        let [program, verb, rest @ ..] = command.words.as_slice() else { continue };
        if program != "cargo" || !["build", "run", "test", "install"].contains(&verb.as_str()) {
            continue;
        }
        let of_cargo = rest.split(|word| word == "--").next().unwrap_or_default();
        let at = &command.at;
        let named = option(of_cargo, &["-p", "--package"]);
        if let Some(path) = option(of_cargo, &["--path"]) {
            assert!(repo_root().join(path).join("Cargo.toml").exists(), "{at}: {path}");
        }
        let Some(name) = named else { continue };
        let found = package(name).unwrap_or_else(|| panic!("{at}: no package {name}"));
        for kind in ["test", "bin"] {
            if let Some(target) = option(of_cargo, &[&format!("--{kind}")]) {
                let targets = found["targets"].as_array().unwrap();
                let there = targets.iter().any(|t| t["name"] == target && t["kind"][0] == kind);
                assert!(there, "{at}: {name} has no {kind} {target}");
            }
        }
        if let Some(features) = option(of_cargo, &["--features"]) {
            for feature in features.split(',') {
                assert!(!found["features"][feature].is_null(), "{at}: {name} has no feature {feature}");
            }
        }
    }
}

/// The program of README, apart from what it prints.
#[test]
fn the_first_example_is_the_program_of_readme() {
    let readme = read("README.md");
    let block =
        readme.split("```rust\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a program");
    let example = read("crates/hello/examples/hello.rs");
    let start = example.find("use ").expect("imports");
    let lines = example[start..].lines().filter(|line| !line.trim_start().starts_with("println!"));
    // The lines of the page are longer than those of the source.
    let words = |lines: &mut dyn Iterator<Item = &str>| {
        lines.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(words(&mut lines.into_iter()), words(&mut block.lines()));
}

/// On another system than Linux the first crate of the tree has one error, which names the condition for dependencies.
#[test]
fn other_systems_get_one_error() {
    let source = read("uapi/src/lib.rs");
    let (before, after) = source.split_once("compile_error!(").expect("an error for other systems");
    let condition =
        before.trim_end().rsplit_once("#[cfg(not(").and_then(|(_, rest)| rest.strip_suffix("))]"));
    let condition = condition.expect("the error has a condition");
    let message = after.split_once(");").expect("a message").0.replace("\\\"", "\"");
    assert!(message.contains(&format!("[target.'cfg({condition})'.dependencies]")), "{message}");
    for (target, is_supported) in [
        ("x86_64-unknown-linux-gnu", true),
        ("aarch64-unknown-linux-musl", true),
        ("x86_64-apple-darwin", false),
        ("aarch64-apple-darwin", false),
        ("x86_64-pc-windows-msvc", false),
    ] {
        let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
        let output = rustc.args(["--print", "cfg", "--target", target]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let cfgs = String::from_utf8(output.stdout).unwrap();
        let holds = cfgs.lines().any(|cfg| cfg == condition.replace(" = ", "="));
        assert_eq!(holds, is_supported, "{target}");
    }
    // Each crate of the project that a program can name depends on that crate, if it needs the system.
    for manifest in files(&["crates", "drivers"], "Cargo.toml") {
        let text = fs::read_to_string(&manifest).unwrap();
        let dependencies = text.split("dependencies]").nth(1).unwrap_or_default();
        let needs_system = ["libc", "nix", "memmap2"].iter().any(|name| dependencies.contains(name));
        assert!(
            text.contains("publish = false") || dependencies.contains("uverbs") || !needs_system,
            "{}: compiles on other systems",
            manifest.display()
        );
    }
}

/// The first command of README shows something in the first second, and its first result after a short build.
#[test]
fn the_demonstration_is_built_from_little() {
    let dependencies = |path: &str| {
        let manifest = read(path);
        let table = manifest.split("dependencies]\n").nth(1).unwrap_or_default();
        let lines = table.lines().take_while(|line| !line.is_empty());
        lines.filter_map(|line| line.split(['.', ' ']).next().map(str::to_owned)).collect::<Vec<_>>()
    };
    assert_eq!(dependencies("xtask/front/Cargo.toml"), [""; 0]);
    assert_eq!(dependencies("crates/hello/Cargo.toml"), ["uverbs"]);
    assert!(read(".cargo/config.toml").contains("--package xtask-front "), "what `cargo xtask` runs");
}

/// `doctest = false` saves the time of looking for doc tests; it must not leave one out.
#[test]
fn packages_without_doc_tests_have_none() {
    let mut count = 0;
    for manifest in files(&["uapi", "crates", "drivers", "tests"], "Cargo.toml") {
        if !fs::read_to_string(&manifest).unwrap().lines().any(|line| line == "doctest = false") {
            continue;
        }
        count += 1;
        let package = manifest.parent().unwrap();
        let folder = Some(package.join("src")).filter(|src| src.is_dir()).unwrap_or(package.to_owned());
        for path in files(&[folder.to_str().unwrap()], ".rs") {
            let text = fs::read_to_string(&path).unwrap();
            let mut fences = text
                .lines()
                .map(str::trim_start)
                .filter_map(|line| line.strip_prefix("//! ```").or_else(|| line.strip_prefix("/// ```")));
            while let Some(language) = fences.next() {
                assert_eq!(language, "text", "{}: a doc test that does not run", path.display());
                fences.next();
            }
        }
    }
    assert!(count >= 8, "only {count} packages");
}

/// The code spans in the first cells of a page's tables.
fn first_cells(path: &str) -> Vec<String> {
    let text = read(path);
    let cells = text.lines().filter_map(|line| line.strip_prefix("| "));
    cells
        .flat_map(|row| {
            let cell = row.split(" | ").next().unwrap_or_default();
            cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>()
        })
        .collect()
}

/// The text literals of a source that name environment variables of the project and of the C libraries.
fn variables(source: &str) -> BTreeSet<String> {
    const PREFIXES: [&str; 9] =
        ["MLX5_", "MLX_", "UVERBS_", "HCA_", "SYSFS_", "LAB_MIRROR", "VERBS_LOG_", "IBV_SHOW_", "RDMAV_"];
    let is_name = |text: &&str| {
        PREFIXES.iter().any(|p| text.starts_with(p))
            && text.bytes().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == b'_')
    };
    source.split('"').filter(is_name).map(str::to_owned).collect()
}

#[test]
fn environment_variables_are_those_of_the_code() {
    let (mut read, mut in_code) = (BTreeSet::new(), BTreeSet::new());
    for path in files(&["crates", "drivers", "tests", "xtask"], ".rs") {
        let source = fs::read_to_string(&path).unwrap();
        in_code.extend(variables(&source));
        if source.contains("env::var") {
            read.extend(variables(&source));
        }
    }
    let of_models: Vec<_> = uverbs::software::MODELS.iter().flat_map(|model| model.variables()).collect();
    assert!(of_models.len() > 6, "only {of_models:?}: has this build both models?");
    read.extend(of_models.iter().cloned());
    in_code.extend(of_models);
    let documented: BTreeSet<_> = first_cells("docs/src/reference/environment.md").into_iter().collect();
    let missing: Vec<_> = read.difference(&documented).collect();
    assert!(missing.is_empty(), "environment.md lacks {missing:?}");
    // Variables that have no effect are in sentences, not in tables.
    let is_ours = |name: &&String| !variables(&format!("\"{name}\"")).is_empty();
    let unknown: Vec<_> = documented.iter().filter(is_ours).filter(|name| !in_code.contains(*name)).collect();
    assert!(unknown.is_empty(), "no code reads {unknown:?}");
}

#[test]
fn variables_of_the_guest_are_those_of_the_lab() {
    let lab = read("crates/lab/src/guest.rs");
    let page = first_cells("docs/src/guides/vm-lab.md");
    let names: Vec<_> = page.iter().filter(|name| name.starts_with("LAB_")).collect();
    assert!(names.len() >= 10, "only {names:?}");
    for name in names {
        assert!(lab.contains(name.as_str()), "the lab sets no {name}");
    }
}

/// Each row of the table of C's names has a function of the typed API, whose documentation names C's.
#[test]
fn names_of_verbs_are_those_of_the_code() {
    let sources: String =
        files(&["crates/verbs/src", "crates/core/src", "drivers/mlx5/src", "drivers/efa/src"], ".rs")
            .iter()
            .map(|path| fs::read_to_string(path).unwrap())
            .collect();
    let page = read("docs/src/reference/c-names.md");
    let mut count = 0;
    let is_row =
        |line: &&str| ["ibv_", "mlx5dv_", "efadv_"].iter().any(|c| line.starts_with(&format!("| `{c}")));
    for row in page.lines().filter(is_row) {
        let cells: Vec<_> = row.split(" | ").collect();
        for rust in cells[1].split('`').skip(1).step_by(2) {
            let name = rust.rsplit("::").next().unwrap().trim_end_matches("()");
            let is_there = [
                format!("fn {name}("),
                format!("fn {name}<"),
                format!("struct {name}"),
                format!(" {name}, post"),
            ]
            .iter()
            .any(|text| sources.contains(text.as_str()));
            assert!(is_there, "c-names.md: the code has no {rust}");
            count += 1;
        }
    }
    assert!(count > 50, "only {count} names: does the test find them?");
}

/// The page on EFA lists every function of libefa.
#[test]
fn the_page_on_efa_lists_the_functions_of_its_library() {
    let page = read("docs/src/reference/efa.md");
    let symbols = read("crates/ibverbs/data/symbols-efa.txt");
    let names = symbols.lines().filter_map(|line| line.split('@').next());
    let missing: Vec<_> = names.filter(|name| !page.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty() && symbols.lines().count() > 10, "not in efa.md: {missing:?}");
}

/// The page on the C library lists every public function of its symbol table.
#[test]
fn the_page_on_the_c_library_lists_its_functions() {
    let page = read("docs/src/guides/running-existing-programs.md");
    let listed: BTreeSet<_> = page
        .lines()
        .filter(|line| line.starts_with("| "))
        .flat_map(|line| line.split('`').skip(1).step_by(2))
        .map(|name| name.trim_start_matches("ibv_").to_owned())
        .collect();
    for line in read("crates/ibverbs/data/symbols.txt").lines() {
        let (symbol, version) =
            line.split(' ').next().and_then(|word| word.split_once("@@IBVERBS_1.")).unwrap_or_default();
        if version.parse::<u32>().is_ok_and(|minor| minor >= 15) {
            let name = symbol.trim_start_matches('_').trim_start_matches("ibv_");
            assert!(listed.contains(name), "not listed, of version 1.{version}: {symbol}");
        }
    }
    let missing = read("crates/ibverbs/src/export/missing.rs");
    for line in missing.lines().filter_map(|line| line.trim().strip_prefix("ibv_")) {
        let name: String = line.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
        // Functions that undo another one are described with it, and counters as a group.
        let undoes = name.starts_with("un") || name.starts_with("free_") || name.starts_with("dealloc_");
        if !undoes && !name.contains("comp_cntr") && name != "register_driver" {
            assert!(listed.contains(&name), "not listed: {name}");
        }
    }
}

/// A driver of the list: its type, its name, its crate.
struct ListedDriver {
    ty: &'static str,
    name: &'static str,
    krate: &'static str,
}

impl ListedDriver {
    fn put_into(&self, text: &str) -> String {
        text.replace("<name>", self.name).replace("<Type>", self.ty)
    }
}

macro_rules! listed_drivers {
    (() $([$ty:ident $feature:literal $module:ident $krate:ident])*) => {
        &[$(ListedDriver { ty: stringify!($ty), name: $feature, krate: stringify!($krate) }),*]
    };
}
const DRIVERS: &[ListedDriver] = uverbs_core::drivers!(listed_drivers());

/// The rows of the checklist for drivers: a file or a folder, and a text that it has; empty if not each driver needs one.
fn checklist() -> Vec<(String, String)> {
    let page = read("docs/src/guides/adding-a-driver.md");
    let checklist = page.split("## Checklist").nth(1).expect("the checklist").split("\n## ").next().unwrap();
    let rows = checklist.lines().filter(|line| line.starts_with("| `"));
    let cell = |cell: &str| cell.trim().trim_matches('`').to_owned();
    rows.map(|row| {
        let cells: Vec<_> = row.split('|').collect();
        assert_eq!(cells.len(), 5, "three cells: {row}");
        (cell(cells[1]), cell(cells[2]))
    })
    .collect()
}

/// The text of a file, or of all files of a folder.
fn text_below(path: &str) -> String {
    if repo_root().join(path).is_file() {
        return read(path);
    }
    let files = files(&[path], ".rs").into_iter().map(|file| fs::read_to_string(file).unwrap());
    files.collect()
}

#[test]
fn each_driver_is_in_each_place_of_the_checklist() {
    let rows = checklist();
    assert!(rows.len() > 20, "only {} rows: does the test find them?", rows.len());
    for driver in DRIVERS {
        assert_eq!(driver.krate, format!("uverbs_{}", driver.name));
        for (path, text) in &rows {
            let (path, text) = (driver.put_into(path), driver.put_into(text));
            assert!(repo_root().join(&path).exists(), "{}: there is no {path}", driver.name);
            assert!(text_below(&path).contains(&text), "{path} does not have {text}");
        }
    }
}

/// The driver of the devices that the software NIC implements, and whose own functions C programs use (`mlx5dv.h`): sources about these
/// name it.
const HARDWARE: &str = "uverbs_mlx5";

#[test]
fn other_sources_do_not_name_a_driver() {
    let places: BTreeSet<_> = checklist().into_iter().map(|(path, _)| repo_root().join(path)).collect();
    let software = DRIVERS.iter().filter(|driver| driver.krate != HARDWARE);
    let names: Vec<_> =
        software.flat_map(|driver| [format!("{}::", driver.krate), format!("{}::", driver.ty)]).collect();
    assert!(!names.is_empty());
    // The functions of libefa, as `dv` has those of libmlx5.
    let direct = repo_root().join("crates/ibverbs/src/efadv");
    for path in files(&["crates", "xtask"], ".rs").into_iter().filter(|path| !path.starts_with(&direct)) {
        let source = fs::read_to_string(&path).unwrap();
        let source = source.split("#[cfg(test)]").next().unwrap();
        let name = names.iter().find(|name| source.contains(name.as_str()));
        assert!(
            places.contains(&path) || name.is_none(),
            "{} names {name:?}; the list is in crates/core/src/drivers.rs",
            path.display()
        );
    }
}

/// The functions that a trait declares, or the implementations for a type in a source.
fn functions(source: &str, head: &str) -> BTreeSet<String> {
    let head = format!("\n{head}");
    let blocks = source.split(head.as_str()).skip(1).map(|rest| rest.split("\n}").next().unwrap());
    let lines = blocks.flat_map(str::lines).filter_map(|line| line.strip_prefix("    "));
    let names = lines.filter_map(|line| {
        let line = line.strip_prefix("unsafe ").unwrap_or(line);
        Some(line.strip_prefix("fn ")?.split(['(', '<']).next()?.to_owned())
    });
    names.collect()
}

/// Most functions of these traits have a default, so the compiler accepts a missing one, and the driver's own would not be called.
#[test]
fn any_driver_passes_on_each_function_of_a_driver() {
    let provider = |file: &str| read(&format!("crates/core/src/provider/{file}.rs"));
    let any = |file: &str| read(&format!("crates/verbs/src/any/{file}.rs"));
    // `errno` has no queue, and `visit` is `poll_each`.
    for (file, name, except) in [
        ("driver", "Driver", ""),
        ("driver", "Import", ""),
        ("object", "CqObject", ""),
        ("object", "SrqObject", ""),
        ("object", "WqObject", ""),
        ("object", "QpObject", ""),
        ("send", "SendQueue", "errno"),
        ("send", "WrBuilder", ""),
        ("completion", "CompletionQueue", "visit"),
    ] {
        let declared = functions(&provider(file), &format!("pub trait {name}:"));
        let passed = functions(&any(file), &format!("impl {name} for"));
        assert!(declared.len() > 1, "{name}: {declared:?}");
        let missing: Vec<_> = declared.difference(&passed).filter(|function| *function != except).collect();
        assert!(missing.is_empty(), "crates/verbs/src/any/{file}.rs does not pass on {missing:?}");
    }
}

/// Public structs of which a program can write a literal, so that another field breaks it. Their form is fixed by what they say.
const EXHAUSTIVE: &[(&str, &[&str])] = &[
    (
        "a work request and its parts, which the verbs define",
        &["AtomicArgs", "DcTarget", "FlushArgs", "Head", "MwBind", "RemoteAddr", "To", "TsoArgs", "Wr"],
    ),
    (
        "the parts that a driver and the faces exchange: both must know each field",
        &[
            "BadWr",
            "ContextInfo",
            "CqParts",
            "DctCreate",
            "DmParts",
            "DriverMatch",
            "ListRules",
            "QpCreate",
            "QpEnd",
            "QpInitAttr",
            "QpParents",
            "MkeyMemory",
            "QpParts",
            "RawAttr",
            "RssQpCreate",
            "SrqCreate",
            "SrqParents",
            "SrqParts",
            "WqCreate",
            "WqParts",
        ],
    ),
    (
        "the header of a protocol, an identification of PCI, the two numbers of an answer",
        &[
            "CqEvents",
            "Ece",
            "FlowEth",
            "FlowGre",
            "FlowIpv4",
            "FlowIpv6",
            "FlowMatch",
            "FlowPorts",
            "MrInfo",
            "MrRange",
            "PciId",
            "QueueError",
            "Rereg",
            "Roots",
            "Transition",
            "UverbsNode",
        ],
    ),
    ("the halves of a QP, which are moved to their owners", &["Qp"]),
    ("the text that two ends exchange", &["Endpoint"]),
];

/// Attributes, visibility and fields of the structs of a source, with their names. Structs of C's layout are left out.
fn literal_structs(source: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut is_fixed = false;
    let mut lines = source.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("#[non_exhaustive") || line.starts_with("#[repr(") {
            is_fixed = true;
        }
        let Some(rest) = line.strip_prefix("pub struct ") else {
            is_fixed &= line.starts_with("#[") || line.starts_with("///") || line.starts_with("    ");
            continue;
        };
        let name = rest.split(['<', ' ', '(', ';', '{']).next().unwrap_or_default();
        if line.ends_with('{') && !is_fixed {
            let fields: Vec<_> = lines
                .by_ref()
                .take_while(|line| *line != "}")
                .filter(|line| line.starts_with("    ") && line[4..].starts_with(|c: char| c.is_alphabetic()))
                .collect();
            if !fields.is_empty()
                && fields.iter().all(|field| field.starts_with("    pub ") && !field.contains("pub("))
            {
                found.push(name.to_owned());
            }
        }
        is_fixed = false;
    }
    found
}

#[test]
fn public_structs_that_can_grow_are_non_exhaustive() {
    let sources = files(&["crates/core/src", "crates/verbs/src", "crates/cm/src", "crates/aio/src"], ".rs");
    let found: BTreeSet<_> = sources
        .iter()
        .flat_map(|path| {
            let source = fs::read_to_string(path).unwrap();
            literal_structs(source.split("#[cfg(test)]\nmod").next().unwrap())
        })
        .collect();
    let listed: BTreeSet<_> =
        EXHAUSTIVE.iter().flat_map(|(_, names)| *names).map(|name| (*name).to_owned()).collect();
    let new: Vec<_> = found.difference(&listed).collect();
    assert!(
        new.is_empty(),
        "{new:?}: make them #[non_exhaustive], with `new` and setters (uverbs_core::setters!)"
    );
    let gone: Vec<_> = listed.difference(&found).collect();
    assert!(gone.is_empty(), "{gone:?} are in the list, and are not such structs");
    let text = "/// Text.\n#[derive(Debug)]\npub struct New {\n    /// A field.\n    pub field: u32,\n}\n";
    assert_eq!(literal_structs(text), ["New"]);
    assert!(literal_structs(&text.replace("#[derive", "#[non_exhaustive]\n#[derive")).is_empty());
    assert!(literal_structs(&text.replace("#[derive", "#[repr(C)]\n#[derive")).is_empty());
    assert!(literal_structs(&text.replace("pub field", "field")).is_empty());
}

/// What the page on EFA says of the software EFA's generations is what they have.
#[test]
fn generations_of_the_software_efa_are_those_of_the_code() {
    use uverbs::efa_device::{Caps, Generation};
    use uverbs_efa_hw::feature::EFA_ADMIN_FEATURE_DEVICE_ATTR_DESC_DATA_POLLING_128_MASK as POLL_128;

    let text = read("docs/src/reference/efa.md");
    for generation in Generation::ALL {
        let caps = Caps::of(generation);
        let has = |yes: bool| if yes { "yes" } else { "no" };
        let default = if generation == Generation::default() { ", the default" } else { "" };
        let row = format!(
            "| `{generation:?}`{default} | {:#x} | {} | {} | {} | {} | {} | {} |",
            caps.pci_device,
            has(caps.reads()),
            has(caps.retries()),
            has(caps.writes()),
            has(caps.has(POLL_128)),
            has(caps.unsolicited()),
            caps.inline.max(caps.inline_wide),
        );
        assert!(text.lines().any(|line| line == row), "docs/src/reference/efa.md has no row {row:?}");
    }
    let caps = Caps::of(Generation::default());
    let numbers = [
        format!("sends with {} entries", Caps::SEND_BUFFERS),
        format!("receives with {}", Caps::RECV_BUFFERS),
        format!("{} requests in a send queue", Caps::MAX_SQ),
        format!("an MTU of {} bytes", caps.mtu),
    ];
    for number in numbers {
        assert!(text.contains(&number), "docs/src/reference/efa.md does not say {number:?}");
    }
}
