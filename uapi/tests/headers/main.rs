// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares every struct, field and constant of the crate with the C headers.
//!
//! The crate's macros emit a list of all declarations. The test generates a C program with one line for each item,
//! compiles it with the headers, runs it, and compares its output. A line that does not compile is an item that these
//! headers lack. The test also finds declarations of the headers that the crate lacks.
//!
//! There are two sets of headers: the newest that Debian has (downloaded, see `support`), and the installed ones. The
//! newest headers must contain every item; items that the installed ones have must be equal. Headers that are not installed are
//! left out, and the test says which.

mod support;
mod values;

use core::fmt::Write as _;
use core::mem::offset_of;
use std::collections::{BTreeMap, BTreeSet};

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use uverbs_testkit::machine;
use uverbs_uapi::layout::{Const, Field, Struct};
use uverbs_uapi::{MODULES, cmd, ioctl, mlx5, rxe, siw};

/// Up to this kernel version, the crate must have every declaration of the headers; for later kernels, missing ones are
/// only reported.
const COMPLETE_UP_TO: (u64, u64) = (7, 2);

/// Constants that the newest headers no longer have.
const REMOVED: [&str; 4] = [
    "UVERBS_UDATA_DRIVER_DATA_NS",
    "UVERBS_UDATA_DRIVER_DATA_FLAG",
    // Kernels of 2026 renamed them.
    "EFA_ALLOC_UCONTEXT_CMD_COMP_TX_BATCH",
    "EFA_ALLOC_UCONTEXT_CMD_COMP_MIN_SQ_WR",
];

/// Constants that no header exports.
const UNCHECKED: [&str; 2] = ["IB_WC_WITH_INVALIDATE", "IB_WC_IP_CSUM_OK"];

/// Fields and structs whose size was different in older headers.
const GREW_OUT_OF: [&str; 3] = [
    // Kernels of 2024 appended flags, and later ones sl.
    "efa_ibv_create_qp",
    // Kernels of 2024 appended reg_c0.
    "mlx5_ib_query_device_resp",
    // Six bytes before active_speed_ex took four of them.
    "ib_uverbs_query_port_resp_ex.reserved",
];

/// Union members that are methods here and not fields: the location that the method reads.
const ARMS: &[Struct] = &[
    arms::<ioctl::ib_uverbs_attr>(
        "struct ib_uverbs_attr",
        &[
            arm("attr_data.enum_data.elem_id", offset_of!(ioctl::ib_uverbs_attr, attr_data), 1),
            arm("attr_data.enum_data.reserved", offset_of!(ioctl::ib_uverbs_attr, attr_data) + 1, 1),
            arm("data_s64", offset_of!(ioctl::ib_uverbs_attr, data), 8),
        ],
    ),
    arms::<cmd::ib_uverbs_wc>(
        "struct ib_uverbs_wc",
        &[arm("ex.invalidate_rkey", offset_of!(cmd::ib_uverbs_wc, imm_data), 4)],
    ),
    arms::<cmd::ib_uverbs_send_wr>(
        "struct ib_uverbs_send_wr",
        &[arm("ex.invalidate_rkey", offset_of!(cmd::ib_uverbs_send_wr, imm_data), 4)],
    ),
    arms::<rxe::rxe_send_wr>(
        "struct rxe_send_wr",
        &[arm("ex.invalidate_rkey", offset_of!(rxe::rxe_send_wr, imm_data), 4)],
    ),
    arms::<mlx5::mlx5_ib_create_qp>(
        "struct mlx5_ib_create_qp",
        &[arm("access_key", offset_of!(mlx5::mlx5_ib_create_qp, sq_buf_addr), 8)],
    ),
    arms::<rxe::rxe_gid>("union rxe_gid", &[arm("raw", 0, 16), arm("global.interface_id", 8, 8)]),
    arms::<rxe::rxe_dma_info>(
        "struct rxe_dma_info",
        &[
            arm("inline_data", offset_of!(rxe::rxe_dma_info, sge), 0),
            arm("atomic_wr", offset_of!(rxe::rxe_dma_info, sge), 0),
        ],
    ),
    arms::<siw::siw_sqe>(
        "struct siw_sqe",
        &[
            arm("base_mr", offset_of!(siw::siw_sqe, raddr), 8),
            arm("access", offset_of!(siw::siw_sqe, sge), 8),
        ],
    ),
    arms::<siw::siw_cqe>(
        "struct siw_cqe",
        &[
            arm("inval_stag", offset_of!(siw::siw_cqe, imm_data), 4),
            arm("base_qp", offset_of!(siw::siw_cqe, qp_id), 8),
        ],
    ),
];

const fn arms<T>(c: &'static str, fields: &'static [Field]) -> Struct {
    Struct { name: c, c, size: size_of::<T>(), align: align_of::<T>(), fields }
}

const fn arm(c: &'static str, offset: usize, size: usize) -> Field {
    Field { name: c, c, offset, size }
}

/// The kernel's own headers (linux-libc-dev), which the crate covers completely.
const KERNEL: &[&str] = &[
    "linux/in.h",
    "linux/in6.h",
    "linux/socket.h",
    "linux/version.h",
    "rdma/efa-abi.h",
    "rdma/ib_user_ioctl_cmds.h",
    "rdma/ib_user_ioctl_verbs.h",
    "rdma/ib_user_sa.h",
    "rdma/ib_user_verbs.h",
    "rdma/mlx5-abi.h",
    "rdma/mlx5_user_ioctl_cmds.h",
    "rdma/mlx5_user_ioctl_verbs.h",
    "rdma/rdma_user_cm.h",
    "rdma/rdma_user_ioctl_cmds.h",
    "rdma/rdma_user_rxe.h",
    "rdma/siw-abi.h",
];

/// rdma-core's headers have their own copies of some of those above, so they need separate programs. With each: its package, and
/// the prefixes of its constants.
const RDMA_CORE: [(&str, &str, &[&str]); 2] = [
    ("infiniband/verbs.h", "libibverbs-dev", &["IBV_"]),
    ("rdma/rdma_cma.h", "librdmacm-dev", &["RDMA_CM_EVENT_", "RDMA_UDP_QKEY"]),
];

/// Prints past the capture of the test harness, so that omitted checks are visible.
macro_rules! report {
    ($($arg:tt)*) => {
        writeln!(std::io::stderr(), "headers: {}", format_args!($($arg)*)).expect("stderr is writable")
    };
}

/// One set of headers.
struct Set {
    name: &'static str,
    /// Root of an unpacked package; `None` are the installed headers.
    root: Option<PathBuf>,
}

impl Set {
    fn newest() -> Result<Self, String> {
        Ok(Self { name: "newest", root: Some(support::newest_headers()?) })
    }

    const fn installed() -> Self {
        Self { name: "installed", root: None }
    }

    /// A compiler that finds these headers first.
    fn cc(&self) -> Command {
        let mut cc = machine::cc();
        if let Some(root) = &self.root {
            let include = root.join("usr/include");
            let multiarch = support::run(machine::cc().arg("-print-multiarch")).unwrap_or_default();
            cc.arg("-I").arg(&include).arg("-I").arg(include.join(multiarch.trim()));
        }
        cc
    }

    /// Those of `headers` that this set has. The others, which `package` has, are reported.
    fn present<'h>(&self, headers: &[&'h str], package: &str) -> Vec<&'h str> {
        let (present, absent): (Vec<_>, Vec<_>) =
            headers.iter().partition(|header| machine::finds(&mut self.cc(), header));
        if !absent.is_empty() {
            let what = format!("the {} headers {}", self.name, absent.join(" "));
            machine::skip(&what, package);
        }
        present
    }

    /// A directory of this set for a program's files.
    fn dir(&self, program: &str) -> PathBuf {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("probe-{}-{program}", self.name));
        fs::create_dir_all(&dir).expect("target directory is writable");
        dir
    }
}

/// One line of the C program, with the expected answer.
struct Probe {
    /// `struct`, `struct.field` or constant.
    name: String,
    /// C statement that prints the answer.
    code: String,
    expect: String,
}

impl Probe {
    /// Size and alignment, then offset and size of each field.
    fn of_struct(s: &Struct) -> Vec<Self> {
        let c = s.c;
        let mut probes = vec![Self {
            name: s.name.into(),
            code: format!(r#"printf("size %zu align %zu", sizeof({c}), _Alignof({c}));"#),
            expect: format!("size {} align {}", s.size, s.align),
        }];
        for field in s.fields {
            let (path, offset, size) = (field.c, field.offset, field.size);
            let (code, expect) = if field.name.starts_with("_pad") {
                // The C compiler clears the padding of an all-ones object: these bytes, and only such, are 0.
                let code = format!(
                    "CLEAR_PADDING({c}, {offset}, {size}); printf(\"padding %d\", padding({offset}, {size}));"
                );
                (code, "padding 1".into())
            } else if path == "." {
                (format!(r#"printf("at 0 size %zu", sizeof({c}));"#), format!("at {offset} size {size}"))
            } else if size == 0 {
                let code = format!(r#"printf("at %zu", offsetof({c}, {path}));"#);
                (code, format!("at {offset}"))
            } else {
                let code = format!(
                    r#"printf("at %zu size %zu", offsetof({c}, {path}), sizeof((({c} *)0)->{path}));"#
                );
                (code, format!("at {offset} size {size}"))
            };
            probes.push(Self { name: format!("{}.{}", s.name, field.name), code, expect });
        }
        probes
    }

    fn of_const(c: &Const) -> Self {
        Self {
            name: c.name.into(),
            code: format!(r#"printf("%llu", (unsigned long long)({}));"#, c.c),
            expect: c.value.to_string(),
        }
    }
}

/// The code before the probes. The buffer shows which bytes of an object are padding (needs GCC 11 or later).
const PROLOGUE: &str = r#"
#include <stddef.h>
#include <stdio.h>
#include <string.h>
static unsigned char bytes[4096];
static int padding(size_t offset, size_t size) {
    for (size_t i = offset; i < offset + size; i++) if (bytes[i]) return 0;
    return 1;
}
#define CLEAR_PADDING(type, offset, size) do { \
    static type object; \
    memset(&object, 0xff, sizeof(object)); \
    __builtin_clear_padding(&object); \
    memcpy(bytes, &object, sizeof(object)); \
} while (0)
int main(void) {
"#;

/// Compiles and runs the probes; returns the answer to each, or `None` if the headers lack the item.
fn ask(set: &Set, program: &str, headers: &[&str], probes: &[Probe]) -> Vec<Option<String>> {
    let dir = set.dir(program);
    let source = dir.join("probe.c");
    let mut present: BTreeSet<usize> = (0..probes.len()).collect();
    // The second round leaves out the lines that failed in the first.
    for _ in 0..2 {
        let mut text = String::new();
        for header in headers {
            writeln!(text, "#include <{header}>").expect("writing to a string");
        }
        text.push_str(PROLOGUE);
        let first_line = text.lines().count() + 1;
        let asked: Vec<usize> = present.iter().copied().collect();
        for &index in &asked {
            writeln!(text, r#"printf("{index} "); {} putchar('\n');"#, probes[index].code)
                .expect("writing to a string");
        }
        text.push_str("return 0; }\n");
        fs::write(&source, text).expect("target directory is writable");

        let output = set
            .cc()
            .args(["-std=gnu11", "-w", "-fmax-errors=0", "-o"])
            .arg(dir.join("probe"))
            .arg(&source)
            .env("LC_ALL", "C")
            .output()
            .expect("a C compiler (cc, or $CC)");
        if output.status.success() {
            let answers = support::run(&mut Command::new(dir.join("probe"))).expect("the probe runs");
            let mut result = vec![None; probes.len()];
            for line in answers.lines() {
                let (index, answer) = line.split_once(' ').expect("index and answer");
                result[index.parse::<usize>().expect("an index")] = Some(answer.to_owned());
            }
            return result;
        }
        let stderr = String::from_utf8_lossy(&output.stderr);
        let failed = failed_lines(&stderr, &source);
        assert!(!failed.is_empty(), "{}: cannot compile:\n{stderr}", set.name);
        for line in failed {
            let index = line.checked_sub(first_line).and_then(|i| asked.get(i));
            present
                .remove(index.unwrap_or_else(|| panic!("{}: error outside the probes:\n{stderr}", set.name)));
        }
    }
    panic!("{}: a line that compiled alone fails with others gone", set.name);
}

/// Line numbers of the errors in `source`.
fn failed_lines(stderr: &str, source: &Path) -> BTreeSet<usize> {
    let prefix = format!("{}:", source.display());
    stderr
        .lines()
        .filter(|line| line.contains(" error: "))
        .filter_map(|line| line.strip_prefix(&prefix)?.split(':').next()?.parse().ok())
        .collect()
}

/// The result of comparing one set.
#[derive(Default)]
struct Outcome {
    structs: usize,
    fields: usize,
    consts: usize,
    lacking: Vec<String>,
    grown: Vec<String>,
    wrong: Vec<String>,
}

fn compare(set: &Set) -> Outcome {
    let structs: Vec<Probe> =
        MODULES.iter().flat_map(|m| m.structs).chain(ARMS).flat_map(Probe::of_struct).collect();
    let consts = || MODULES.iter().flat_map(|m| m.consts).filter(|c| !c.c.is_empty());
    let is_of = |c: &Const, prefixes: &[&str]| prefixes.iter().any(|prefix| c.c.starts_with(prefix));
    let is_ours = |c: &Const| !RDMA_CORE.iter().any(|(.., prefixes)| is_of(c, prefixes));

    let mut kernel = structs;
    kernel.extend(consts().filter(|c| is_ours(c)).map(Probe::of_const));
    let mut programs = vec![("kernel", set.present(KERNEL, "linux-libc-dev"), kernel)];
    for (header, package, prefixes) in &RDMA_CORE {
        let probes = consts().filter(|c| is_of(c, prefixes)).map(Probe::of_const).collect();
        programs.push((*package, set.present(&[header], package), probes));
    }

    let mut outcome = Outcome::default();
    for (program, headers, probes) in programs.into_iter().filter(|(_, headers, _)| !headers.is_empty()) {
        for (probe, answer) in probes.iter().zip(ask(set, program, &headers, &probes)) {
            let Some(answer) = answer else {
                outcome.lacking.push(probe.name.clone());
                continue;
            };
            match () {
                () if probe.expect.starts_with("size") => outcome.structs += 1,
                () if probe.name.contains('.') => outcome.fields += 1,
                () => outcome.consts += 1,
            }
            if answer == probe.expect {
                continue;
            }
            let difference = format!("{}: {} in Rust, {answer} in C", probe.name, probe.expect);
            if set.root.is_none() && GREW_OUT_OF.contains(&probe.name.as_str()) {
                outcome.grown.push(difference);
            } else {
                outcome.wrong.push(difference);
            }
        }
    }
    // A missing struct also stands for its fields.
    let lacking: BTreeSet<String> = outcome.lacking.iter().cloned().collect();
    outcome.lacking.retain(|name| !name.split_once('.').is_some_and(|(of, _)| lacking.contains(of)));

    report!(
        "{}: kernel {}: {} structs, {} fields, {} constants compared",
        set.name,
        kernel_version(set).map_or("?".into(), |(major, minor)| format!("{major}.{minor}")),
        outcome.structs,
        outcome.fields,
        outcome.consts
    );
    if !outcome.lacking.is_empty() {
        report!("{}: not in these headers: {}", set.name, outcome.lacking.join(" "));
    }
    for difference in &outcome.grown {
        report!("{}: known difference: {difference}", set.name);
    }
    outcome
}

fn kernel_version(set: &Set) -> Option<(u64, u64)> {
    let probe = Probe {
        name: "version".into(),
        code: r#"printf("%d %d", LINUX_VERSION_CODE >> 16, LINUX_VERSION_CODE >> 8 & 255);"#.into(),
        expect: String::new(),
    };
    let answer = ask(set, "version", &["linux/version.h"], &[probe]).pop()??;
    let (major, minor) = answer.split_once(' ')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Names of the structs and constants that the headers of this ABI declare.
fn declared(set: &Set) -> BTreeSet<String> {
    let source = set.dir("declared").join("all.c");
    let text: String =
        set.present(KERNEL, "linux-libc-dev").iter().map(|header| format!("#include <{header}>\n")).collect();
    fs::write(&source, text).expect("target directory is writable");
    let text = support::run(set.cc().args(["-E", "-P"]).arg(&source)).expect("the headers preprocess");
    let macros = support::run(set.cc().args(["-E", "-dM"]).arg(&source)).expect("the headers preprocess");

    let mut names = BTreeSet::new();
    let words: Vec<&str> = text.split_whitespace().collect();
    for window in words.windows(3) {
        if let ["struct" | "union", name, "{"] = window
            && ["ib_uverbs_", "ib_user_", "ib_path_", "rdma_ucm_", "rxe_", "mminfo", "siw_", "efa_"]
                .iter()
                .any(|prefix| name.starts_with(prefix))
        {
            names.insert((*name).to_owned());
        }
    }
    let ours = |name: &str| {
        ["IB_", "RDMA_", "RXE_", "SIW_", "EFA_", "UVERBS_"].iter().any(|prefix| name.starts_with(prefix))
    };
    for body in text.split("enum ").skip(1) {
        let body =
            body.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map_or("", |(body, _)| body);
        for enumerator in body.split(',') {
            let name = enumerator.split('=').next().unwrap_or_default().trim();
            if ours(name) {
                names.insert(name.to_owned());
            }
        }
    }
    for line in macros.lines() {
        // Include guards have no value, function-like macros a parenthesis in their name; strings are not part of the ABI.
        let mut parts = line.splitn(3, ' ').skip(1);
        if let (Some(name), Some(value)) = (parts.next(), parts.next())
            && ours(name)
            && !name.contains('(')
            && !value.is_empty()
            && !value.starts_with('"')
        {
            names.insert(name.to_owned());
        }
    }
    names
}

/// Names that the headers have and the crate lacks.
fn missing_here(set: &Set) -> Vec<String> {
    let ours: BTreeSet<&str> = MODULES
        .iter()
        .flat_map(|m| m.structs.iter().map(|s| s.name).chain(m.consts.iter().map(|c| c.name)))
        .collect();
    let theirs = declared(set);
    assert!(theirs.len() > 400, "only {} names found in the headers", theirs.len());
    theirs.into_iter().filter(|name| !ours.contains(name.as_str())).collect()
}

#[test]
fn every_declaration_equals_the_newest_headers() {
    let set = match Set::newest() {
        Ok(set) => set,
        Err(reason) => {
            report!("NOT CHECKED against the newest headers, they cannot be had: {reason}");
            return;
        }
    };
    let outcome = compare(&set);
    assert!(outcome.wrong.is_empty(), "differs from C:\n{}", outcome.wrong.join("\n"));
    let unproven: Vec<&String> =
        outcome.lacking.iter().filter(|name| !REMOVED.contains(&name.as_str())).collect();
    assert!(unproven.is_empty(), "not in the newest headers, and not known to be removed: {unproven:?}");

    let missing = missing_here(&set);
    let version = kernel_version(&set).expect("linux/version.h");
    if version > COMPLETE_UP_TO {
        report!("{}: kernel {version:?} also has: {}", set.name, missing.join(" "));
    } else {
        assert!(missing.is_empty(), "the headers also have: {missing:?}");
    }
}

#[test]
fn every_declaration_equals_the_installed_headers() {
    let set = Set::installed();
    let outcome = compare(&set);
    assert!(outcome.wrong.is_empty(), "differs from C:\n{}", outcome.wrong.join("\n"));
    // Without all of the kernel's headers, there is nothing to compare the list of declarations with.
    if KERNEL.iter().any(|header| !machine::finds(&mut set.cc(), header)) {
        return;
    }
    let missing = missing_here(&set);
    if kernel_version(&set).expect("linux/version.h") <= COMPLETE_UP_TO {
        assert!(missing.is_empty(), "the headers also have: {missing:?}");
    }
}

/// Nothing is declared outside the macros, in a module that is not listed, or without a C name, except for known items.
#[test]
fn every_declaration_is_listed() {
    let mut declared: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut dirs = vec![src.clone()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).expect("src is readable") {
            let path = entry.expect("src is readable").path();
            if path.is_dir() {
                dirs.push(path);
                continue;
            }
            let name = path.strip_prefix(&src).expect("below src").to_string_lossy().into_owned();
            if ["be.rs", "layout.rs", "lib.rs"].contains(&name.as_str()) {
                continue;
            }
            let text = fs::read_to_string(&path).expect("src is readable");
            let count =
                |start: &str| text.lines().filter(|line| line.trim_start().starts_with(start)).count();
            declared.insert(
                name,
                (count("pub struct ") + count("pub union "), count("pub const ") - count("pub const fn ")),
            );
        }
    }
    let listed: BTreeMap<String, (usize, usize)> =
        MODULES.iter().map(|m| (m.path.to_owned(), (m.structs.len(), m.consts.len()))).collect();
    assert_eq!(declared, listed, "(structs, constants) by file: declared, listed");

    let unchecked: Vec<&str> =
        MODULES.iter().flat_map(|m| m.consts).filter(|c| c.c.is_empty()).map(|c| c.name).collect();
    assert_eq!(unchecked, UNCHECKED);
}
