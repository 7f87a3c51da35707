// SPDX-License-Identifier: MIT OR Apache-2.0
//! Makes the C libraries with the file and symbol names that programs linked with libibverbs, libmlx5 and libefa need: for
//! `cargo xtask dist`, and for the tests of package `uverbs-ibverbs`.
//!
//! rustc's own version script for a cdylib leaves no room for symbol versions. So the crate is built as a static
//! library, and `cc` links that with a version script and a file of assembly, both generated from one table:
//! `crates/ibverbs/data/symbols.txt`. Each line has a symbol as readelf(1) shows it (`@@` marks the version that new
//! programs are linked with) and the function that implements it. A symbol with `@`, or with a function of another
//! name, becomes a jump in the assembly. The other symbols are exported by Rust.
//!
//! libmlx5 and libefa have only jumps to functions of libibverbs in a private node, because these functions need the objects of
//! libibverbs. Their tables are `crates/ibverbs/data/symbols-mlx5.txt` and `crates/ibverbs/data/symbols-efa.txt`.

use anyhow::{Context, Result, bail};
use core::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The package that is built.
pub const PACKAGE: &str = "uverbs-ibverbs";
/// The static library that cargo makes of it.
pub const ARCHIVE: &str = "libuverbs_ibverbs.a";
/// The features that the drivers have in `cargo test` and in the programs for the VM. With these the library's build uses what those have
/// built.
pub const FEATURES: &str = "uverbs-efa/test-utils,uverbs-mlx5/test-utils,uverbs-rxe/test-utils";

/// The words of a call of cargo that builds [`ARCHIVE`], without a profile; `hca` includes the software HCA and the software EFA, `shared`
/// the [`FEATURES`].
#[must_use]
pub fn build(hca: bool, shared: bool) -> Vec<&'static str> {
    let mut words = vec!["rustc", "--package", PACKAGE, "--lib", "--crate-type", "staticlib"];
    if hca {
        words.extend(["--features", "hca"]);
    }
    if shared {
        words.extend(["--features", FEATURES]);
    }
    words
}

/// A shared library.
struct Library {
    name: &'static str,
    soname: &'static str,
    /// Its symbols.
    table: &'static str,
    description: &'static str,
}

const IBVERBS: Library = Library {
    name: "libibverbs",
    soname: "libibverbs.so.1",
    table: "crates/ibverbs/data/symbols.txt",
    description: "RDMA verbs, by the uverbs drivers",
};
const MLX5: Library = Library {
    name: "libmlx5",
    soname: "libmlx5.so.1",
    table: "crates/ibverbs/data/symbols-mlx5.txt",
    description: "Direct verbs of mlx5 devices, by the uverbs drivers",
};

const EFA: Library = Library {
    name: "libefa",
    soname: "libefa.so.1",
    table: "crates/ibverbs/data/symbols-efa.txt",
    description: "Direct verbs of EFA devices, by the uverbs drivers",
};

/// The files that programs load, in the output directory.
pub const SONAMES: [&str; 3] = [IBVERBS.soname, MLX5.soname, EFA.soname];

/// The node that hides all other symbols. It must not have symbols that get their version in the assembly, because the
/// linker hides such symbols if they are in this node.
const HIDING: &str = "IBVERBS_1.18";

/// The top folder of the repository.
fn repo_root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("xtask/dist is in the repository")
}

/// Runs a command whose streams are those of this process.
fn run(cmd: &mut Command) -> Result<()> {
    let status = cmd.status().with_context(|| format!("cannot start {cmd:?}"))?;
    if !status.success() {
        bail!("{cmd:?} failed: {status}");
    }
    Ok(())
}

/// Makes the libraries, the archives, and the files for linking programs with them, of an archive of the package. Creates the folder.
///
/// # Errors
/// The compiler can't be started or fails, or a file can't be written.
pub fn make(archive: &Path, out: &Path, strip: bool) -> Result<()> {
    fs::create_dir_all(out.join("pkgconfig")).with_context(|| format!("cannot create {}", out.display()))?;
    let work = tempdir(out)?;
    let mut input = vec!["-Wl,--whole-archive".into(), archive.to_owned(), "-Wl,--no-whole-archive".into()];
    input.extend(["-lgcc_s", "-lpthread", "-lm", "-ldl", "-lc"].map(PathBuf::from));
    make_shared(&IBVERBS, &input, &work, out, strip)?;
    fs::copy(archive, out.join("libibverbs.a"))?;
    for library in [MLX5, EFA] {
        make_shared(&library, &[out.join(IBVERBS.soname)], &work, out, strip)?;
        make_static(&library, &work, out)?;
    }
    fs::remove_dir_all(&work)?;
    Ok(())
}

/// Links a library from the jumps of its table and `input`, and creates the files for linking programs with it.
fn make_shared(library: &Library, input: &[PathBuf], work: &Path, out: &Path, strip: bool) -> Result<()> {
    let Library { name, soname, table, .. } = library;
    let text = fs::read_to_string(repo_root().join(table)).with_context(|| format!("cannot read {table}"))?;
    let symbols = parse(&text).with_context(|| format!("in {table}"))?;
    let (script, jumps) = (work.join(format!("{name}.map")), work.join(format!("{name}.S")));
    fs::write(&script, version_script(&symbols))?;
    fs::write(&jumps, assembly(&symbols)?)?;
    link(soname, input, &script, &jumps, &out.join(soname), strip)?;
    symlink(soname, &out.join(format!("{name}.so")))?;
    fs::write(out.join(format!("pkgconfig/{name}.pc")), pkgconfig(library))?;
    Ok(())
}

/// Creates the archive of a library that has only jumps. Its target is the archive of libibverbs.
fn make_static(library: &Library, work: &Path, out: &Path) -> Result<()> {
    let Library { name, table, .. } = library;
    let text = fs::read_to_string(repo_root().join(table)).with_context(|| format!("cannot read {table}"))?;
    let (source, object) = (work.join(format!("{name}-static.S")), work.join(format!("{name}.o")));
    fs::write(&source, static_assembly(&parse(&text)?)?)?;
    run(Command::new("cc").arg("-c").arg(&source).arg("-o").arg(&object))?;
    run(Command::new("ar").arg("rcs").arg(out.join(format!("{name}.a"))).arg(&object))
}

/// A folder of this process, so that two processes do not use the same one.
fn tempdir(out: &Path) -> Result<PathBuf> {
    let dir = out.join(format!("work-{}", std::process::id()));
    fs::create_dir_all(&dir)?;
    Ok(dir)
}

/// A symbol of the library.
#[derive(Debug, PartialEq)]
struct Symbol<'a> {
    name: &'a str,
    version: &'a str,
    /// Whether it is the version with which new programs are linked.
    is_default: bool,
    /// The name that Rust exports.
    target: &'a str,
}

impl Symbol<'_> {
    /// Whether the version script alone gives the Rust symbol its version.
    fn is_plain(&self) -> bool {
        self.is_default && self.name == self.target
    }
}

fn parse(table: &str) -> Result<Vec<Symbol<'_>>> {
    table.lines().map(|line| symbol(line).with_context(|| format!("no symbol and target: {line}"))).collect()
}

fn symbol(line: &str) -> Option<Symbol<'_>> {
    let (symbol, target) = line.split_once(' ')?;
    let (name, version) = symbol.split_once('@')?;
    let default = version.strip_prefix('@');
    Some(Symbol { name, version: default.unwrap_or(version), is_default: default.is_some(), target })
}

/// The versions in the order of the table, with their plain symbols. Each inherits from the previous one, as in
/// rdma-core's library; the private ones inherit from none.
fn version_script(symbols: &[Symbol<'_>]) -> String {
    let mut versions: Vec<&str> = symbols.iter().map(|symbol| symbol.version).collect();
    versions.dedup();
    let mut script = String::new();
    let mut before = "";
    for version in versions {
        let _ = writeln!(script, "{version} {{");
        let plain: Vec<_> = symbols.iter().filter(|s| s.version == version && s.is_plain()).collect();
        if !plain.is_empty() {
            script.push_str("\tglobal:\n");
        }
        for symbol in plain {
            let _ = writeln!(script, "\t\t{};", symbol.name);
        }
        if version == HIDING {
            script.push_str("\tlocal:\n\t\t*;\n");
        }
        let is_private = version.contains("PRIVATE");
        let _ = writeln!(
            script,
            "}}{};",
            if is_private || before.is_empty() { String::new() } else { format!(" {before}") }
        );
        if !is_private {
            before = version;
        }
    }
    script
}

/// The instruction that jumps to a function of any library, and what follows the function's name.
fn jump() -> Result<(&'static str, &'static str)> {
    match std::env::consts::ARCH {
        "x86_64" => Ok(("jmp", "@PLT")),
        "aarch64" => Ok(("b", "")),
        arch => bail!("no jumps for {arch} yet"),
    }
}

const NO_STACK: &str = "\t.section .note.GNU-stack,\"\",%progbits\n";

/// A function for every symbol that new programs are linked with, without versions.
fn static_assembly(symbols: &[Symbol<'_>]) -> Result<String> {
    let (jump, by) = jump()?;
    let mut text = String::from(NO_STACK);
    for Symbol { name, target, .. } in symbols.iter().filter(|symbol| symbol.is_default) {
        let _ = writeln!(text, "\t.section .text.{name},\"ax\",%progbits\n\t.balign 16\n\t.globl {name}");
        let _ = writeln!(text, "\t.type {name}, %function\n{name}:\n\t{jump} {target}{by}");
        let _ = writeln!(text, "\t.size {name}, . - {name}");
    }
    Ok(text)
}

/// A jump for every symbol that is not exported by Rust directly.
fn assembly(symbols: &[Symbol<'_>]) -> Result<String> {
    let (jump, by) = jump()?;
    let mut text = String::from(NO_STACK);
    for (i, symbol) in symbols.iter().enumerate().filter(|(_, symbol)| !symbol.is_plain()) {
        let Symbol { name, version, is_default, target } = symbol;
        let at = if *is_default { "@@" } else { "@" };
        // The label that gets the version must be global, and unique among all objects.
        let label = format!("uverbs_version_{i}");
        if target.ends_with("_flag") {
            let _ = writeln!(text, "\t.section .data.{label},\"aw\",%progbits");
            let _ = writeln!(
                text,
                "\t.globl {label}\n\t.type {label}, %object\n\t.size {label}, 1\n{label}:\n\t.byte 0"
            );
        } else {
            let _ = writeln!(text, "\t.section .text.{label},\"ax\",%progbits\n\t.balign 16");
            let _ = writeln!(text, "\t.globl {label}\n\t.type {label}, %function\n{label}:");
            let _ = writeln!(text, "\t{jump} {target}{by}\n\t.size {label}, . - {label}");
        }
        let _ = writeln!(text, "\t.symver {label}, {name}{at}{version}, remove");
    }
    Ok(text)
}

fn link(soname: &str, input: &[PathBuf], script: &Path, jumps: &Path, out: &Path, strip: bool) -> Result<()> {
    let mut cmd = Command::new("cc");
    cmd.args(["-shared", "-o"]).arg(out).arg(jumps);
    cmd.arg(format!("-Wl,-soname,{soname}"));
    cmd.arg(format!("-Wl,--version-script={}", script.display()));
    // Contexts and fork handlers point into the library, so dlclose(3) must not unload it.
    cmd.args(["-Wl,--gc-sections", "-Wl,-z,nodelete", "-Wl,-z,relro", "-Wl,-z,now", "-Wl,-z,defs"]);
    if strip {
        cmd.arg("-Wl,--strip-all");
    }
    run(cmd.args(input))
}

fn symlink(target: &str, link: &Path) -> Result<()> {
    if fs::symlink_metadata(link).is_ok() {
        fs::remove_file(link)?;
    }
    std::os::unix::fs::symlink(target, link).with_context(|| format!("cannot create {}", link.display()))
}

/// The pkg-config file. Its paths are relative to its own folder, so the output can be moved.
fn pkgconfig(library: &Library) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let Library { name, description, .. } = library;
    let link = name.trim_start_matches("lib");
    let (requires, private) = match *name {
        "libibverbs" => ("", "Libs.private: -lgcc_s -lpthread -lm -ldl\n"),
        _ => ("Requires: libibverbs\n", ""),
    };
    format!(
        "prefix=${{pcfiledir}}/..\nlibdir=${{prefix}}\n\nName: {name}\n\
         Description: {description}\nVersion: {version}\n{requires}\
         Libs: -L${{libdir}} -l{link}\n{private}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "ibv_a@IBVERBS_1.0 ibv_a\nibv_b@@IBVERBS_1.0 ibv_b\nibv_a@@IBVERBS_1.18 ibv_a\n\
                         ibv_cmd@@IBVERBS_PRIVATE_65 uverbs_missing_number\n";

    #[test]
    fn plain_symbols_are_in_the_script_and_the_others_in_the_assembly() {
        let symbols = parse(TABLE).unwrap();
        assert_eq!(
            version_script(&symbols),
            "IBVERBS_1.0 {\n\tglobal:\n\t\tibv_b;\n};\nIBVERBS_1.18 {\n\tglobal:\n\t\tibv_a;\n\tlocal:\n\t\t*;\n} \
             IBVERBS_1.0;\nIBVERBS_PRIVATE_65 {\n};\n"
        );
        let text = assembly(&symbols).unwrap();
        assert!(text.contains("\t.symver uverbs_version_0, ibv_a@IBVERBS_1.0, remove\n"), "{text}");
        assert!(text.contains("\t.symver uverbs_version_3, ibv_cmd@@IBVERBS_PRIVATE_65, remove\n"), "{text}");
        assert_eq!(text.matches(".symver").count(), 2);
    }

    #[test]
    fn a_line_without_a_version_is_refused() {
        assert!(parse("ibv_a ibv_a\n").is_err());
        assert!(parse("ibv_a@@IBVERBS_1.0\n").is_err());
    }
}
