// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares the structs and constants of the crate with the headers of the kernel's driver and of rdma-core's provider.
//!
//! The test generates a C program from the list that the crate's macros emit. The program asserts every size, offset and value at compile
//! time, so a difference is a compile error that names the item. No package installs these headers: the environment variable
//! `UVERBS_EFA_HEADERS` is a directory with copies of them, and without it the test says so and only checks the list. The VM lab has those
//! of the kernel, in the source of the module that it builds; the last header, which only rdma-core has, may be missing.

use core::fmt::Write as _;
use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::io::Write as _;
use std::path::Path;

use uverbs_efa_hw::MODULES;
use uverbs_testkit::machine;

/// From `kernel/linux/efa/src` of github.com/amzn/amzn-drivers, and the last two from `providers/efa` of rdma-core.
const HEADERS: [&str; 6] = [
    "efa_common_defs.h",
    "efa_admin_defs.h",
    "efa_admin_cmds_defs.h",
    "efa_regs_defs.h",
    "efa_io_defs.h",
    "efa_io_regs_defs.h",
];

/// The header that only rdma-core has, and the start of its names.
const OF_PROVIDER: (&str, &str) = ("efa_io_regs_defs.h", "EFA_IO_REGS_");

/// What these headers need of the kernel's.
const KERNEL: &str = "#include <stddef.h>\n#include <stdint.h>\n\
    typedef uint8_t u8; typedef uint16_t u16; typedef uint32_t u32; typedef uint64_t u64;\n\
    #define BIT(n) (1ull << (n))\n#define GENMASK(h, l) ((2ull << (h)) - (1ull << (l)))\n";

/// Names that no header has. Review every change of this list by hand.
const LACKING: &[&str] = &[
    "PBL_CHUNK_BYTES",
    "PBL_ADDRS_PER_CHUNK",
    "UNKNOWN_AH",
    "PCI_VENDOR_ID_AMAZON",
    "PCI_DEV_ID_EFA0_VF",
    "PCI_DEV_ID_EFA1_VF",
    "PCI_DEV_ID_EFA2_VF",
    "PCI_DEV_ID_EFA3_VF",
    "PCI_DEV_ID_EFA4_VF",
    "EFA_REG_BAR",
    "EFA_MEM_BAR",
];

/// What the headers of Linux 7.2 do not have yet, or have otherwise: version 2 of the commands, in which each answer has a checksum. The
/// headers of amzn-drivers have them all. Review every change of this list by hand.
const NOT_IN_LINUX: [&str; 20] = [
    "AcqCommonDesc.extended_status",
    "AcqCommonDesc.sq_head_indx",
    "EFA_ADMIN_API_VERSION_MINOR",
    "EFA_IO_COMP_STATUS_REMOTE_ERROR_FEATURE_MISMATCH",
    "EFA_IO_PROCESSING_HINT_BURST_PPS_SENSITIVE",
    "EFA_IO_TX_DESC_INLINE_MAX_SIZE_128",
    "EFA_IO_TX_META_DESC_PROCESSING_HINTS_MASK",
    "RdmaReq128",
    "RdmaReq128.inline_data",
    "RdmaReq128.remote_mem",
    "TxCdesc",
    "TxCdesc.req_id_ex",
    "TxCdesc.reserved",
    "TxMetaDesc.ctrl3",
    "TxMetaDesc.req_id_ex",
    "TxMetaDesc.reserved",
    "TxMetaDesc.reserved2",
    "TxWqe128",
    "TxWqe128.data",
    "TxWqe128.meta",
];

#[test]
fn every_declaration_equals_the_headers() {
    let headers = env::var_os("UVERBS_EFA_HEADERS");
    let has_provider = headers.as_ref().is_none_or(|dir| Path::new(dir).join(OF_PROVIDER.0).exists());
    let mut text = String::from(KERNEL);
    if let Some(dir) = &headers {
        for header in HEADERS.into_iter().filter(|name| has_provider || *name != OF_PROVIDER.0) {
            let path = Path::new(dir).join(header);
            let content = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            let own = content.lines().filter(|line| !line.starts_with("#include"));
            text.extend(own.flat_map(|line| [line, "\n"]));
        }
    }
    let mut lacking = Vec::new();
    let (mut compared, mut skipped) = (0, BTreeSet::new());
    let mut assert = |condition: String, name: &str| {
        if !has_provider && NOT_IN_LINUX.contains(&name) {
            skipped.insert(name.to_owned());
            return;
        }
        compared += 1;
        writeln!(text, "_Static_assert({condition}, \"{name}\");").expect("writing to a string");
    };
    for module in MODULES {
        for s in module.structs {
            assert(format!("sizeof({}) == {}", s.c, s.size), s.name);
            for f in s.fields {
                let name = format!("{}.{}", s.name, f.name);
                assert(format!("offsetof({}, {}) == {}", s.c, f.c, f.offset), &name);
                assert(format!("sizeof((({} *)0)->{}) == {}", s.c, f.c, f.size), &name);
            }
        }
        for c in module.consts {
            if c.c.is_empty() {
                lacking.push(c.name);
            } else if has_provider || !c.c.starts_with(OF_PROVIDER.1) {
                assert(format!("(unsigned long long)({}) == {}ull", c.c, c.value), c.name);
            }
        }
    }
    assert_eq!(lacking, LACKING);
    assert!(has_provider || skipped.len() == NOT_IN_LINUX.len(), "only these of the list exist: {skipped:?}");
    assert!(compared > 700, "only {compared} facts");

    if headers.is_none() {
        writeln!(std::io::stderr(), "headers: NOT COMPARED, UVERBS_EFA_HEADERS is not set")
            .expect("stderr is writable");
        return;
    }
    let source = Path::new(env!("CARGO_TARGET_TMPDIR")).join("efa.c");
    fs::write(&source, text).expect("target directory is writable");
    let output = machine::cc()
        .args(["-std=gnu11", "-w", "-fsyntax-only", "-fmax-errors=0"])
        .arg(&source)
        .output()
        .expect("a C compiler (cc, or $CC)");
    assert!(
        output.status.success(),
        "differs from the headers:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
