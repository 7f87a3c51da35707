// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares the structs and constants of the crate with `<infiniband/mlx5dv.h>`.
//!
//! The test generates a C program from the list that the crate's macros emit. The program asserts every size, offset
//! and value at compile time, so a difference is a compile error that names the item. Without the header the test says so and
//! passes, except in CI.

use core::fmt::Write as _;
use std::fs;
use std::path::Path;

use uverbs_mlx5_hw::MODULES;
use uverbs_testkit::machine;

/// Names that `mlx5dv.h` does not have. Review every change of this list by hand.
const LACKING: &[&str] = &[
    "CQE_VLAN_STRIPPED",
    "CqDoorbell",
    "CQ_SET_CI",
    "CQ_ARM_DB",
    "DBREC_BYTES",
    "UAR_BYTES",
    "BF_OFFSET",
    "BFREGS_PER_UAR",
    "ALL_BFREGS_PER_UAR",
    "MiniCqe",
    "MiniCsum",
    "MiniSend",
    "COMPRESSED",
    "ARRAY",
    "XrcSeg",
    "SetPsvSeg",
    "BsfInline",
    "BsfSeg",
    "DS_BYTES",
    "DS_MASK",
    "ETH_L2_INLINE_HEADER_SIZE",
    "ETH_L2_MIN_HEADER_SIZE",
    "MLX5_WQE_MKEY_CONTEXT_FLAGS_BSF_ENABLE",
    "MLX5_WQE_MKEY_CONTEXT_SIG_ERR_CNT",
    "UMR_REPEAT_BLOCK",
];

#[test]
fn every_declaration_equals_mlx5dv() {
    let mut text = String::from("#include <stddef.h>\n#include <infiniband/mlx5dv.h>\n");
    let mut lacking = Vec::new();
    let mut compared = 0;
    let mut assert = |condition: String, name: &str| {
        compared += 1;
        writeln!(text, "_Static_assert({condition}, \"{name}\");").expect("writing to a string");
    };
    for module in MODULES {
        for s in module.structs {
            if s.c.is_empty() {
                lacking.push(s.name);
                continue;
            }
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
            } else {
                assert(format!("(unsigned long long)(unsigned)({}) == {}ull", c.c, c.value), c.name);
            }
        }
    }
    assert_eq!(lacking, LACKING);
    assert!(compared > 250, "only {compared} facts");

    if !machine::has("infiniband/mlx5dv.h", "libibverbs-dev", "hardware format of mlx5") {
        return;
    }
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let source = dir.join("mlx5dv.c");
    fs::write(&source, text).expect("target directory is writable");
    let output = machine::cc()
        .args(["-std=gnu11", "-w", "-fsyntax-only", "-fmax-errors=0"])
        .arg(&source)
        .output()
        .expect("a C compiler (cc, or $CC)");
    assert!(
        output.status.success(),
        "differs from <infiniband/mlx5dv.h> (libibverbs-dev):\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
