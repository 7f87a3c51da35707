// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the shared library: its symbols, and C programs that are linked with it.
//!
//! Package `uverbs-dist` makes it, as for `cargo xtask dist --hca`. The programs of `c/` are compiled with the installed header and run on the
//! software HCA. Needs a C compiler, readelf(1) and libibverbs-dev; without the header a test prints a message and
//! passes, except in CI.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock};
use uverbs_testkit::machine;

/// The table of symbols. Each line has a symbol, as readelf prints it, and the function that implements it.
const SYMBOLS: &str = include_str!("../data/symbols.txt");
/// The symbols of Debian 12's library, as printed by readelf.
const SYMBOLS_44: &str = include_str!("../data/symbols-44.txt");

/// The table of libmlx5's symbols, in the same form.
const MLX5_SYMBOLS: &str = include_str!("../data/symbols-mlx5.txt");
const MLX5_SYMBOLS_44: &str = include_str!("../data/symbols-mlx5-44.txt");

/// The table of libefa's symbols, in the same form.
const EFA_SYMBOLS: &str = include_str!("../data/symbols-efa.txt");
const EFA_SYMBOLS_44: &str = include_str!("../data/symbols-efa-44.txt");

/// The folder with the libraries, built once.
fn library() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let (target, out) = (scratch.parent().expect("the target folder"), scratch.join("libibverbs"));
        // The features of the whole workspace, so that this builds nothing that `cargo test` has built.
        let mut build = Command::new(env!("CARGO"));
        build.args(uverbs_dist::build(true, true)).args(["--quiet", "--profile", "dev", "--target-dir"]);
        let built = build.arg(target).current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        uverbs_dist::make(&target.join("debug").join(uverbs_dist::ARCHIVE), &out, false).unwrap();
        out
    })
}

/// The library that a program is linked with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Linked {
    /// This one.
    Here,
    /// The system's.
    System,
}

use Linked::{Here, System};

/// Whether the headers are installed. The compiler is asked once.
fn header_is_there() -> bool {
    static IS_THERE: OnceLock<bool> = OnceLock::new();
    *IS_THERE
        .get_or_init(|| machine::has("infiniband/mlx5dv.h", "libibverbs-dev", "C programs with the library"))
}

/// How programs are compiled. Before C23, a function declared without a prototype can be called with any arguments.
const STYLE: &[&str] = &["-std=gnu17", "-Wall", "-Wextra", "-Wno-unused-function", "-Werror"];

/// A copy of `common.h` beside its precompiled form: what it includes is longer than most programs.
fn common() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("precompiled");
        std::fs::create_dir_all(&folder).unwrap();
        let header = folder.join("common.h");
        std::fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/common.h"), &header).unwrap();
        let mut cc = machine::cc();
        succeeds(cc.args(STYLE).args(["-x", "c-header", "-o"]).arg(folder.join("common.h.gch")).arg(&header));
        header
    })
}

/// Compiles a program of `c/`.
fn compile(name: &str, linked: Linked) -> PathBuf {
    compile_file(&Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/c/{name}.c")), linked)
}

fn compile_file(source: &Path, linked: Linked) -> PathBuf {
    compile_with(source, linked, &[])
}

/// [`compile_file`] with more libraries. Each program is compiled once, whatever number of tests run it.
fn compile_with(source: &Path, linked: Linked, libraries: &[&str]) -> PathBuf {
    static PROGRAMS: Mutex<BTreeMap<PathBuf, Arc<OnceLock<()>>>> = Mutex::new(BTreeMap::new());
    let name = source.file_stem().and_then(|name| name.to_str()).unwrap();
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{linked:?}"));
    let compiled = PROGRAMS.lock().unwrap().entry(program.clone()).or_default().clone();
    compiled.get_or_init(|| make(source, &program, linked, libraries));
    program
}

/// Compiles a program. Only its link waits for the library.
fn make(source: &Path, program: &Path, linked: Linked, libraries: &[&str]) {
    let object = program.with_extension("o");
    let mut cc = machine::cc();
    cc.args(STYLE);
    // A program that begins otherwise may define what its headers depend on.
    let text = std::fs::read_to_string(source).unwrap();
    let first = text.lines().find(|line| line.starts_with('#'));
    if first == Some("#include \"common.h\"") {
        cc.arg("-include").arg(common());
    }
    succeeds(cc.args(["-c", "-o"]).arg(&object).arg(source));
    let mut cc = machine::cc();
    cc.arg("-o").arg(program).arg(&object);
    if linked == Here {
        cc.arg("-L").arg(library());
    }
    succeeds(cc.args(libraries).args(["-lefa", "-lmlx5", "-libverbs", "-lpthread"]));
}

/// Runs a compiler.
fn succeeds(cc: &mut Command) {
    let compiled = cc.output().expect("needs a C compiler");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
}

/// Runs a program with two software HCAs. Returns its output.
fn run(program: &Path, linked: Linked) -> String {
    run_with(program, linked, &[])
}

/// [`run`] with environment variables.
fn run_with(program: &Path, linked: Linked, variables: &[(&str, &str)]) -> String {
    let mut cmd = Command::new("timeout");
    cmd.arg("60").arg(program).env("UVERBS_HCA", "2").envs(variables.iter().copied());
    if linked == Here {
        cmd.env("LD_LIBRARY_PATH", library());
    }
    let out = cmd.output().unwrap();
    assert!(
        out.status.success(),
        "{}: {}{}",
        program.display(),
        out.status,
        String::from_utf8_lossy(&out.stderr)
    );
    String::from_utf8(out.stdout).unwrap()
}

fn passes(name: &str) {
    passes_with(name, &[]);
}

/// [`passes`] with environment variables.
fn passes_with(name: &str, variables: &[(&str, &str)]) {
    if header_is_there() {
        run_with(&compile(name, Here), Here, variables);
    }
}

/// The symbols of a library, compared with its table.
fn symbols_of(library: &Path, table: &str) -> BTreeSet<String> {
    let mut readelf = Command::new("readelf");
    readelf.args(["--dyn-syms", "--wide"]).arg(library);
    let out = readelf.output().expect("needs binutils");
    let text = String::from_utf8(out.stdout).unwrap();
    // Number, value, size, type, binding, visibility, section, name.
    let ours: BTreeSet<String> = text
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|words| words.len() == 8 && !["UND", "ABS", "Ndx"].contains(&words[6]))
        .map(|words| words[7].to_owned())
        .collect();
    let wanted: BTreeSet<String> =
        table.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect();
    let missing: Vec<_> = wanted.difference(&ours).collect();
    let extra: Vec<_> = ours.difference(&wanted).collect();
    assert!(missing.is_empty() && extra.is_empty(), "missing {missing:?}, not in the table {extra:?}");
    ours
}

#[test]
fn the_symbols_are_those_of_rdma_core_44_and_65() {
    let ours = symbols_of(&library().join("libibverbs.so.1"), SYMBOLS);
    assert!(ours.len() > 500, "only {} symbols", ours.len());
    // The symbols that programs and libraries of Debian 12 need. Their private symbols are not the default version
    // (`@`), because that is the newest library's.
    let old: BTreeSet<String> =
        SYMBOLS_44.lines().map(|s| s.replace("@@IBVERBS_PRIVATE", "@IBVERBS_PRIVATE")).collect();
    let gone: Vec<_> = old.iter().filter(|symbol| !ours.contains(*symbol)).collect();
    assert!(gone.is_empty(), "of rdma-core 44, missing: {gone:?}");
}

#[test]
fn the_symbols_of_libmlx5_are_those_of_rdma_core_44_and_65() {
    let ours = symbols_of(&library().join("libmlx5.so.1"), MLX5_SYMBOLS);
    assert_eq!(ours.len(), 143);
    let gone: Vec<_> = MLX5_SYMBOLS_44.lines().filter(|symbol| !ours.contains(*symbol)).collect();
    assert!(gone.is_empty(), "of rdma-core 44, missing: {gone:?}");
}

#[test]
fn the_symbols_of_libefa_are_those_of_rdma_core_44_and_65() {
    let ours = symbols_of(&library().join("libefa.so.1"), EFA_SYMBOLS);
    assert_eq!(ours.len(), 13);
    let gone: Vec<_> = EFA_SYMBOLS_44.lines().filter(|symbol| !ours.contains(*symbol)).collect();
    assert!(gone.is_empty(), "of rdma-core 44, missing: {gone:?}");
}

/// A program that calls each function of libmlx5 that is not implemented.
fn missing_mlx5() -> String {
    let mut source = String::from("#include \"common.h\"\n#define EACH(call) errno = 0; CHECK(call)\n");
    let mut body = String::new();
    for line in MLX5_SYMBOLS.lines() {
        let (symbol, target) = line.split_once(' ').unwrap();
        let Some(kind) = target.strip_prefix("uverbs_missing_") else { continue };
        let name = symbol.split('@').next().unwrap();
        let (result, check) = match kind {
            "pointer" => ("void *", "CALL == NULL && errno == EOPNOTSUPP"),
            "number" => ("int ", "CALL == EOPNOTSUPP && errno == EOPNOTSUPP"),
            "negative" => ("int ", "CALL == -EOPNOTSUPP && errno == EOPNOTSUPP"),
            "descriptor" => ("ssize_t ", "CALL == -1 && errno == EOPNOTSUPP"),
            "nothing" => ("int ", "CALL == 0 && errno == 0"),
            other => panic!("{other}: no such way to fail"),
        };
        source.push_str(&format!("{result}x_{name}(void) __asm__(\"{name}\");\n"));
        body.push_str(&format!("\tEACH({});\n", check.replace("CALL", &format!("x_{name}()"))));
    }
    format!("{source}int main(void)\n{{\n{body}\treturn 0;\n}}\n")
}

#[test]
fn missing_functions_of_libmlx5_fail_as_their_man_pages_specify() {
    if !header_is_there() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let common = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/common.h");
    std::fs::copy(common, dir.path().join("common.h")).unwrap();
    let source = dir.path().join("missing-mlx5.c");
    std::fs::write(&source, missing_mlx5()).unwrap();
    run(&compile_file(&source, Here), Here);
}

#[test]
fn messages_are_posted_and_polled_by_hand() {
    passes_with("direct", &[("UVERBS_HCA_DEVX", "0")]);
}

#[test]
fn work_requests_can_be_encoded_by_the_program() {
    passes("raw");
}

#[test]
fn indirect_keys_are_configured_by_work_requests() {
    passes("mkey");
}

#[test]
fn packets_are_steered_by_matchers() {
    passes("matcher");
}

#[test]
fn packets_are_steered_by_root_tables() {
    passes("dr");
}

#[test]
fn objects_of_commands_are_exported_and_imported() {
    passes("share");
}

#[test]
fn newer_objects_survive_conflicting_calls() {
    passes("conflicts");
}

#[test]
fn dynamic_connections_reach_targets_on_both_devices() {
    passes("dc");
}

#[test]
fn queries_and_errors_follow_the_man_pages() {
    passes("device");
}

/// Functions that can't fail, or whose failures another test checks.
const WITHOUT_CONVENTION: &[&str] = &[
    "ibv_copy_ah_attr_from_kern",
    "ibv_copy_path_rec_from_kern",
    "ibv_copy_path_rec_to_kern",
    "ibv_copy_qp_attr_from_kern",
    "ibv_dofork_range",
    "ibv_dontfork_range",
    "ibv_event_type_str",
    "ibv_free_device_list",
    "ibv_get_device_list",
    "ibv_get_sysfs_path",
    "ibv_is_fork_initialized",
    "ibv_node_type_str",
    "ibv_port_state_str",
    "ibv_rate_to_mbps",
    "ibv_rate_to_mult",
    "ibv_register_driver",
    "ibv_wc_status_str",
    "mlx5dv_dr_action_create_default_miss",
    "mlx5dv_dr_action_create_drop",
    "mlx5dv_dr_action_create_tag",
    "mbps_to_ibv_rate",
    "mult_to_ibv_rate",
];

#[test]
fn every_function_fails_as_its_man_page_specifies() {
    let table = include_str!("c/conventions.c");
    let public =
        SYMBOLS.lines().filter(|line| !line.contains("PRIVATE")).filter_map(|line| line.split('@').next());
    let untold = uncovered(public.clone(), table);
    assert!(untold.is_empty(), "not in conventions.c: {untold:?}");
    assert_eq!(uncovered(public.chain(["ibv_new_verb"]), table), BTreeSet::from(["ibv_new_verb"]));
    let gone: Vec<_> = WITHOUT_CONVENTION.iter().filter(|name| !has_symbol(name)).collect();
    assert!(gone.is_empty(), "no such symbols: {gone:?}");
    // Functions that the header's inline functions call through the context.
    let slots = include_str!("../src/data/mod.rs");
    let slots = slots.lines().filter_map(|line| line.trim().strip_prefix("table.")?.split(' ').next());
    let untold: Vec<_> = slots.filter(|slot| !table.contains(&format!("SLOT({slot},"))).collect();
    assert!(untold.is_empty(), "no slot in conventions.c: {untold:?}");
    passes("conventions");
}

/// Builds the library that simulates a kernel's device for the benchmarks, and its sysfs. Its limits are those of the software
/// HCA.
fn fake_device() -> (PathBuf, PathBuf) {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fake-device");
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/bench/c");
    for (file, text) in [
        ("class/infiniband_verbs/abi_version", "6"),
        ("class/infiniband_verbs/uverbs0/abi_version", "1"),
        ("class/infiniband_verbs/uverbs0/dev", "231:192"),
        ("class/infiniband_verbs/uverbs0/ibdev", "mlx5_0"),
        ("class/infiniband/mlx5_0/node_type", "1: CA"),
        ("class/infiniband/mlx5_0/device/modalias", "pci:v000015B3d0000101Dsv000015B3sd00000016bc02sc00i00"),
    ] {
        let path = dir.join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, format!("{text}\n")).unwrap();
    }
    let shim = dir.join("shim.so");
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-fPIC", "-shared", "-o"]).arg(&shim);
    let built = cc.args([sources.join("shim.c"), sources.join("kernel.c")]).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    (shim, dir)
}

/// Why a size is answered in another way than by libmlx5 on the fake device; `None` for no reason.
fn reason(theirs: &str, ours: &str) -> Option<&'static str> {
    let (asked, answer) = theirs.split_once(": ")?;
    let numbers = |text: &str| text.split(' ').filter_map(|word| word.parse().ok()).collect::<Vec<i64>>();
    let (sizes, is_refused) = (numbers(asked), ours.ends_with("Invalid argument"));
    let same = |other: &str| ours == format!("{asked}: {other}");
    let sends = |text: &str| numbers(text).into_iter().take(3).collect::<Vec<_>>();
    // 2^32 - 4 bytes for a queue without entries and inline data.
    if answer.contains("4294967292") && same(&answer.replace("4294967292", "0")) {
        return Some("a negative inline limit is 0");
    }
    if asked.contains(" XRC ") {
        let ours = ours.split_once(": ")?.1;
        let is_equal = sends(&answer.replace("4294967292", "0")) == sends(ours);
        let is_refused = answer == "Invalid argument" && sizes[sizes.len() - 2..] != [0, 0];
        return (is_equal || is_refused).then_some("XRC_SEND has no receives, whatever a program asks for");
    }
    match (asked.split(' ').next()?, &sizes[..]) {
        ("srq", [0, sge]) if *sge < 32 => {
            same(&format!("1 {}", numbers(answer)[1])).then_some("an SRQ has a receive at least")
        }
        ("srq", [_, 32]) => is_refused.then_some("the firmware refuses strides above 512 bytes"),
        ("srq", [32768, _]) => is_refused.then_some("the kernel's limit (mlx5_ib_create_srq())"),
        ("cq", [_, -1 | 8..]) => is_refused.then_some("the kernel's limit of vectors (create_cq())"),
        ("cq", [entries, _]) if *entries > 4_194_303 => {
            is_refused.then_some("the kernel's limit (mlx5_ib_create_cq())")
        }
        _ => None,
    }
}

/// The sizes of queues, and which are refused, are those of rdma-core's libmlx5 on a device with the same limits.
#[test]
fn limits_of_creation_are_those_of_libmlx5() {
    if !header_is_there() {
        return;
    }
    if !Path::new("/etc/libibverbs.d/mlx5.driver").exists() {
        assert!(std::env::var_os("CI").is_none(), "CI must have ibverbs-providers");
        println!("SKIPPED: needs ibverbs-providers (cargo xtask setup installs it)");
        return;
    }
    let (shim, sysfs) = fake_device();
    let (shim, sysfs) = (shim.to_str().unwrap(), sysfs.to_str().unwrap());
    // Beside each other: the kernel clears gigabytes for the queues of libmlx5, which it keeps on the fake device.
    let (theirs, ours) = std::thread::scope(|scope| {
        let variables = [("LD_PRELOAD", shim), ("SYSFS_PATH", sysfs)];
        let theirs = scope.spawn(move || run_with(&compile("limits", System), System, &variables));
        let ours = run(&compile("limits", Here), Here);
        (theirs.join().unwrap(), ours)
    });
    let (theirs, ours): (Vec<_>, Vec<_>) = (theirs.lines().collect(), ours.lines().collect());
    assert!(theirs.len() > 5000 && theirs.len() == ours.len(), "{} and {} lines", theirs.len(), ours.len());
    let differ = theirs.iter().zip(&ours).filter(|(theirs, ours)| theirs != ours);
    let (explained, unexplained): (Vec<_>, Vec<_>) =
        differ.partition(|(theirs, ours)| reason(theirs, ours).is_some());
    assert!(unexplained.is_empty(), "libmlx5 and this library: {unexplained:#?}");
    assert!(explained.len() > 100, "only {} differences with a reason", explained.len());
}

#[test]
fn receives_are_consumed_out_of_order_if_the_program_permits_it() {
    passes("ordering");
    passes_with("ordering", &[("UVERBS_HCA_DEVX", "0")]);
}

/// The struct of a program that a call changes is reached by a pointer or reference that may be written. To write through a shared
/// reference is undefined, although it usually works, so no test of a program finds it.
#[test]
fn no_shared_reference_is_written_through() {
    fn check(folder: &Path, statements: &mut usize) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                check(&path, statements);
                continue;
            }
            for statement in std::fs::read_to_string(&path).unwrap().split(';') {
                *statements += 1;
                let shared = statement.contains("&raw const") || statement.contains("from_ref(");
                let written = statement.contains(".write(") || statement.contains(".copy_from(");
                assert!(
                    !(shared && statement.contains("cast_mut()") && written),
                    "{}: {statement}",
                    path.display()
                );
            }
        }
    }
    let mut statements = 0;
    check(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut statements);
    assert!(statements > 2000, "{statements}");
}

#[test]
fn public_parts_that_a_program_changed_are_answered_as_by_the_kernel() {
    passes("handles");
}

/// The guide "Posting from a GPU or another process" describes it.
#[test]
fn another_process_posts_to_a_queue_pair() {
    passes("poster");
}

#[test]
fn lists_of_entries_have_any_address() {
    passes("unaligned");
}

#[test]
fn posts_that_cannot_succeed_end_as_on_a_device_or_are_refused() {
    passes("posts");
}

#[test]
fn attributes_that_do_not_fit_are_truncated_or_refused() {
    passes("attributes");
}

#[test]
fn every_function_of_the_data_path_sets_errno() {
    let table = include_str!("c/errno.c");
    let slots = include_str!("../src/data/mod.rs");
    let slots = slots.lines().filter_map(|line| line.trim().strip_prefix("ops.")?.split(' ').next());
    let untold: Vec<_> = slots.filter(|slot| !table.contains(&format!("ops.{slot}("))).collect();
    assert!(untold.is_empty(), "not in errno.c: {untold:?}");
    passes("errno");
}

/// Whether one of the libraries has a function.
fn has_symbol(name: &str) -> bool {
    [SYMBOLS, MLX5_SYMBOLS, EFA_SYMBOLS].iter().any(|table| table.contains(&format!("{name}@")))
}

/// The functions that a table of calls lacks.
fn uncovered<'a>(functions: impl Iterator<Item = &'a str>, table: &str) -> BTreeSet<&'a str> {
    let is_called = |name: &&str| {
        [format!("{name}("), format!("({name})(")].iter().any(|call| table.contains(call.as_str()))
    };
    functions.filter(|name| !WITHOUT_CONVENTION.contains(name) && !is_called(name)).collect()
}

#[test]
fn the_environment_selects_the_destination_of_messages() {
    if !header_is_there() {
        return;
    }
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("messages.txt");
    let _ = std::fs::remove_file(&file);
    let program = compile("device", Here);
    let path = file.to_str().unwrap();
    run_with(&program, Here, &[("VERBS_LOG_LEVEL", "1"), ("VERBS_LOG_FILE", path)]);
    assert_eq!(std::fs::read_to_string(&file).unwrap_or_default(), "");
    run_with(&program, Here, &[("VERBS_LOG_LEVEL", "4"), ("VERBS_LOG_FILE", path)]);
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains("libibverbs: debug: query_pkey(index 1000 "), "{text}");
}

#[test]
fn a_script_fails_calls_posts_and_completions() {
    let script = Path::new(env!("CARGO_TARGET_TMPDIR")).join("faults.script");
    let rules = "call verb=create_qp nth=1 : errno ENOMEM\n\
                 call verb=post_recv wr=3 : errno ENOSPC\n\
                 call verb=post_send wr=2 : errno ENOMEM\n\
                 call verb=wr_complete nth=1 : errno EAGAIN\n\
                 completion device=hca0 queue=send wr=3 : status RNR_RETRY_EXC_ERR\n\
                 call verb=destroy_qp nth=1 : errno EBUSY\n\
                 call device=hca1 verb=dealloc_pd : event DEVICE_FATAL on hca0\n";
    std::fs::write(&script, rules).unwrap();
    passes_with("faults", &[("UVERBS_HCA_FAULTS", script.to_str().unwrap())]);
    if !header_is_there() {
        return;
    }
    // Without devices, a program can't pass its test in vain.
    let program = compile("faults", Here);
    let refused = |rules: &str, efa: bool| {
        std::fs::write(&script, rules).unwrap();
        let mut run = Command::new(&program);
        run.env("UVERBS_HCA", "2").env("UVERBS_HCA_FAULTS", &script).env("LD_LIBRARY_PATH", library());
        if efa {
            run.env("UVERBS_EFA", "1");
        }
        let out = run.env("VERBS_LOG_LEVEL", "3").output().unwrap();
        (!out.status.success(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    let (failed, text) = refused("call verb=create_qp : drop", false);
    assert!(failed && text.contains("line 1, column 23: drop: no action of a call"), "{text}");
    // No device of the process loses a completion; an EFA would.
    let (failed, text) = refused("\ncompletion : drop", false);
    assert!(
        failed && text.contains("line 2, column 14: drop: the completions of a software ConnectX"),
        "{text}"
    );
    let (_, text) = refused("completion : drop\npacket : nak invalid", true);
    assert_eq!(text.matches("the completions of a software ConnectX").count(), 1, "{text}");
    assert_eq!(text.matches("a software EFA sends no NAK").count(), 1, "{text}");
}

#[test]
fn threads_create_poll_wait_and_destroy_at_the_same_time() {
    passes("concurrent");
}

#[test]
fn queues_are_in_memory_of_the_program() {
    passes("allocator");
}

#[test]
fn pages_of_regions_come_and_go() {
    passes("ondemand");
}

#[test]
fn a_queue_has_four_million_entries() {
    passes("large");
}

#[test]
fn threads_make_conflicting_calls() {
    passes("races");
}

#[test]
fn peers_are_resolved_and_optional_settings_are_refused() {
    passes_with("settings", &[("UVERBS_HCA_DEVX", "0")]);
}

#[test]
fn commands_for_the_firmware_create_queues_that_send() {
    passes("devx");
}

#[test]
fn commands_for_the_firmware_are_checked_and_their_objects_end() {
    passes("devx-objects");
}

/// The failure of each function of libmlx5 that is implemented; the others are called by `missing_mlx5`.
#[test]
fn every_function_of_libmlx5_fails_as_its_man_page_specifies() {
    let table = include_str!("c/conventions-mlx5.c");
    let done = MLX5_SYMBOLS.lines().filter(|line| !line.contains(" uverbs_missing_"));
    let done = done.filter_map(|line| line.split('@').next());
    let untold = uncovered(done, table);
    assert!(untold.is_empty(), "not in conventions-mlx5.c: {untold:?}");
    passes("conventions-mlx5");
}

/// The failure of each function of libefa.
#[test]
fn every_function_of_libefa_fails_as_its_man_page_specifies() {
    let table = include_str!("c/conventions-efa.c");
    let untold = uncovered(EFA_SYMBOLS.lines().filter_map(|line| line.split('@').next()), table);
    assert!(untold.is_empty(), "not in conventions-efa.c: {untold:?}");
    passes_with("conventions-efa", &[("UVERBS_EFA", "2")]);
}

#[test]
fn srd_reaches_the_other_device_with_libefa() {
    passes_with("efa", &[("UVERBS_HCA", "0"), ("UVERBS_EFA", "2")]);
}

/// A panic would end the program.
#[test]
fn garbage_is_refused_or_posted() {
    if header_is_there() {
        let program = compile("garbage", Here);
        for seed in ["1", "2", "3"] {
            run_with(&program, Here, &[("GARBAGE_SEED", seed)]);
            run_with(&program, Here, &[("GARBAGE_SEED", seed), ("MLX5_SCATTER_TO_CQE", "0")]);
        }
    }
}

#[test]
fn messages_arrive_by_every_list_verb() {
    passes("loopback");
}

#[test]
fn messages_arrive_by_builders_and_extended_polling() {
    passes("extended");
}

#[test]
fn short_data_arrive_in_completions_unless_the_environment_forbids_it() {
    if header_is_there() {
        let program = compile("scatter", Here);
        run(&program, Here);
        run_with(&program, Here, &[("MLX5_SCATTER_TO_CQE", "0")]);
    }
}

#[test]
fn events_are_waited_for_and_acknowledged() {
    passes("events");
}

#[test]
fn packets_are_steered_and_spread() {
    passes("packets");
}

#[test]
fn objects_are_imported_by_their_numbers() {
    passes("import");
}

#[test]
fn threads_share_queues() {
    passes("threads");
}

#[test]
fn a_child_does_not_disturb_its_parent() {
    passes("fork");
}

#[test]
fn a_child_waits_for_no_lock_of_its_parents_threads() {
    passes("fork-busy");
}

#[test]
fn control_verbs_with_arbitrary_attributes_fail_or_make_objects() {
    passes("garbage-control");
}

#[test]
fn pairs_of_calls_on_the_same_objects() {
    passes("pairs");
}

/// Executables without any shared library: the example, and the program of list verbs. `cargo xtask bench --check`
/// checks the example's size, because it builds the library in release mode.
#[test]
fn static_programs_run() {
    if !header_is_there() {
        return;
    }
    let (here, scratch) = (Path::new(env!("CARGO_MANIFEST_DIR")), Path::new(env!("CARGO_TARGET_TMPDIR")));
    // Both in one executable, with another name for their `main`: to link the archive takes most of the time.
    let sources = [("example", "examples/loopback.c"), ("list_verbs", "tests/c/loopback.c")];
    let mut cc = machine::cc();
    let program = scratch.join("loopback-static");
    cc.args(["-static", "-s", "-Wl,--gc-sections", "-o"]).arg(&program);
    for (name, source) in sources {
        let object = scratch.join(format!("static-{name}.o"));
        let mut cc_of_one = machine::cc();
        cc_of_one.args(STYLE).arg(format!("-Dmain={name}")).args(["-c", "-o"]).arg(&object);
        succeeds(cc_of_one.arg(here.join(source)));
        cc.arg(object);
    }
    let main = scratch.join("static-main.c");
    let text = "int example(int argc, char **argv), list_verbs(void);\nint main(int argc, char **argv)\n{\n\t\
                return argc > 1 ? example(1, argv) : list_verbs();\n}\n";
    std::fs::write(&main, text).unwrap();
    succeeds(cc.arg(&main).arg(library().join("libibverbs.a")).arg("-lm"));
    for (words, output) in [(&["example"][..], "hello from hca0\n"), (&[], "")] {
        let mut cmd = Command::new("timeout");
        let out = cmd.arg("60").arg(&program).args(words).env("UVERBS_HCA", "2").output().unwrap();
        assert!(out.status.success(), "{words:?}: {}, {}", out.status, String::from_utf8_lossy(&out.stderr));
        assert_eq!(String::from_utf8_lossy(&out.stdout), output);
    }
}

#[test]
fn names_and_rates_are_those_of_the_installed_library() {
    if header_is_there() {
        let ours = run(&compile("names", Here), Here);
        assert_eq!(ours, run(&compile("names", System), System));
        assert!(ours.lines().count() > 1000);
    }
}

/// perftest's `ib_write_lat` polls on the last byte of a WRITE. That is enough on PCIe; the specification does not promise it.
#[test]
fn a_program_that_polls_on_the_last_byte_is_found_by_the_order_of_the_specification() {
    if !header_is_there() {
        return;
    }
    let program = compile("lastbyte", Here);
    // The number of records that were not complete.
    let torn = |args: &[&str], order: &str| -> u32 {
        let mut cmd = Command::new("timeout");
        cmd.arg("60").arg(&program).args(args).env("UVERBS_HCA", "2").env("LD_LIBRARY_PATH", library());
        let out = cmd.env("UVERBS_HCA_ORDER", order).output().unwrap();
        let text = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{args:?} with the order {order}: {}, {text}", out.status);
        String::from_utf8_lossy(&out.stdout).trim().parse().unwrap()
    };
    // The region has no relaxed order.
    for order in ["ordered", "pcie:1", "relaxed:1"] {
        assert_eq!(torn(&[], order), 0, "{order}");
    }
    assert!((0..10).any(|seed| torn(&[], &format!("model:{seed}")) > 0), "no record is torn");
    for seed in 0..3 {
        assert_eq!(torn(&["imm"], &format!("model:{seed}")), 0);
    }
}

/// The connection manager of a software device takes the place of the kernel's for librdmacm, by a library that is preloaded.
#[test]
fn librdmacm_connects_on_a_software_device() {
    if !header_is_there() || !machine::has("rdma/rdma_cma.h", "librdmacm-dev", "librdmacm with the library") {
        return;
    }
    let (here, scratch) = (Path::new(env!("CARGO_MANIFEST_DIR")), Path::new(env!("CARGO_TARGET_TMPDIR")));
    let preloaded = scratch.join("rdma_cm.so");
    let mut cc = machine::cc();
    cc.args(["-O1", "-fPIC", "-shared", "-o"]).arg(&preloaded);
    let compiled = cc.arg(here.join("../../tests/clients/c/rdma_cm.c")).arg("-ldl").output().unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    // librdmacm looks for the version of the kernel's interface.
    let sysfs = scratch.join("sysfs-rdma_cm");
    let class = sysfs.join("class/misc/rdma_cm");
    std::fs::create_dir_all(&class).unwrap();
    std::fs::write(class.join("abi_version"), "4\n").unwrap();
    let program = compile_with(&here.join("tests/c/rdmacm.c"), Here, &["-lrdmacm"]);
    let variables = [
        ("UVERBS_HCA", "1"),
        ("LD_PRELOAD", preloaded.to_str().unwrap()),
        ("SYSFS_PATH", sysfs.to_str().unwrap()),
    ];
    run_with(&program, Here, &variables);
}
