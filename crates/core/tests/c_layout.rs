// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares the raw face's structs and numbers with `<infiniband/verbs.h>`: a C program prints the values of the
//! header.
//!
//! Needs a C compiler and libibverbs-dev. Without the header the test says so and passes, except in CI.

use core::fmt::Write as _;
use core::mem::offset_of;
use std::collections::BTreeMap;
use std::process::Command;
use uverbs_core::wc::{WcFlags, WcOpcode, WcStatus, WorkCompletion};
use uverbs_core::wr::*;
use uverbs_testkit::machine;

/// A C expression, and the value in Rust.
type Facts = Vec<(String, u64)>;

macro_rules! structs {
    ($($rust:ty = $c:literal { $($field:ident => $cfield:literal),* $(,)? })*) => {{
        let mut facts: Facts = Vec::new();
        $(
            facts.push((format!("sizeof({})", $c), size_of::<$rust>() as u64));
            facts.push((format!("_Alignof({})", $c), align_of::<$rust>() as u64));
            $(
                facts.push((format!("offsetof({}, {})", $c, $cfield), offset_of!($rust, $field) as u64));
            )*
        )*
        facts
    }};
}

fn structs() -> Facts {
    let mut facts = structs! {
        Sge = "struct ibv_sge" { addr => "addr", length => "length", lkey => "lkey" }
        SendWr = "struct ibv_send_wr" {
            wr_id => "wr_id", next => "next", sg_list => "sg_list", num_sge => "num_sge", opcode => "opcode",
            send_flags => "send_flags", imm_data_or_invalidate_rkey => "imm_data", wr => "wr",
            xrc_remote_srqn => "qp_type.xrc.remote_srqn", tail => "bind_mw",
        }
        RecvWr = "struct ibv_recv_wr" {
            wr_id => "wr_id", next => "next", sg_list => "sg_list", num_sge => "num_sge",
        }
        WorkCompletion = "struct ibv_wc" {
            wr_id => "wr_id", status => "status", opcode => "opcode", vendor_err => "vendor_err",
            byte_len => "byte_len", imm_data_or_invalidated_rkey => "imm_data", qp_num => "qp_num",
            src_qp => "src_qp", wc_flags => "wc_flags", pkey_index => "pkey_index", slid => "slid", sl => "sl",
            dlid_path_bits => "dlid_path_bits",
        }
        IbvAh = "struct ibv_ah" { context => "context", pd => "pd", handle => "handle" }
        IbvMr = "struct ibv_mr" {
            context => "context", pd => "pd", addr => "addr", length => "length", handle => "handle",
            lkey => "lkey", rkey => "rkey",
        }
        IbvMw = "struct ibv_mw" {
            context => "context", pd => "pd", rkey => "rkey", handle => "handle", mw_type => "type",
        }
        IbvMwBindInfo = "struct ibv_mw_bind_info" {
            mr => "mr", addr => "addr", length => "length", mw_access_flags => "mw_access_flags",
        }
        IbvDataBuf = "struct ibv_data_buf" { addr => "addr", length => "length" }
    };
    // Members of the unions, relative to the whole.
    let wr = offset_of!(SendWr, wr);
    let tail = offset_of!(SendWr, tail);
    for (c, ours) in [
        ("wr.rdma.remote_addr", wr + offset_of!(WrRdma, remote_addr)),
        ("wr.rdma.rkey", wr + offset_of!(WrRdma, rkey)),
        ("wr.atomic.remote_addr", wr + offset_of!(WrAtomic, remote_addr)),
        ("wr.atomic.compare_add", wr + offset_of!(WrAtomic, compare_add)),
        ("wr.atomic.swap", wr + offset_of!(WrAtomic, swap)),
        ("wr.atomic.rkey", wr + offset_of!(WrAtomic, rkey)),
        ("wr.ud.ah", wr + offset_of!(WrUd, ah)),
        ("wr.ud.remote_qpn", wr + offset_of!(WrUd, remote_qpn)),
        ("wr.ud.remote_qkey", wr + offset_of!(WrUd, remote_qkey)),
        ("bind_mw.mw", tail + offset_of!(WrBindMw, mw)),
        ("bind_mw.rkey", tail + offset_of!(WrBindMw, rkey)),
        ("bind_mw.bind_info", tail + offset_of!(WrBindMw, bind_info)),
        ("tso.hdr", tail + offset_of!(WrTso, hdr)),
        ("tso.hdr_sz", tail + offset_of!(WrTso, hdr_sz)),
        ("tso.mss", tail + offset_of!(WrTso, mss)),
    ] {
        facts.push((format!("offsetof(struct ibv_send_wr, {c})"), ours as u64));
    }
    facts
}

macro_rules! numbers {
    ($prefix:literal, $ty:ident: $($name:ident)*) => {
        [$((concat!($prefix, stringify!($name)).to_owned(), u64::from($ty::$name.0))),*]
    };
}

fn constants() -> Facts {
    let mut facts: Facts = Vec::new();
    facts.extend(numbers!("IBV_WR_", WrOpcode: RDMA_WRITE RDMA_WRITE_WITH_IMM SEND SEND_WITH_IMM RDMA_READ
        ATOMIC_CMP_AND_SWP ATOMIC_FETCH_AND_ADD LOCAL_INV BIND_MW SEND_WITH_INV TSO DRIVER1));
    facts.extend(numbers!("IBV_WC_", WcStatus: SUCCESS LOC_LEN_ERR LOC_QP_OP_ERR LOC_EEC_OP_ERR LOC_PROT_ERR
        WR_FLUSH_ERR MW_BIND_ERR BAD_RESP_ERR LOC_ACCESS_ERR REM_INV_REQ_ERR REM_ACCESS_ERR REM_OP_ERR
        RETRY_EXC_ERR RNR_RETRY_EXC_ERR LOC_RDD_VIOL_ERR REM_INV_RD_REQ_ERR REM_ABORT_ERR INV_EECN_ERR
        INV_EEC_STATE_ERR FATAL_ERR RESP_TIMEOUT_ERR GENERAL_ERR TM_ERR TM_RNDV_INCOMPLETE));
    facts.extend(
        numbers!("IBV_WC_", WcOpcode: SEND RDMA_WRITE RDMA_READ COMP_SWAP FETCH_ADD BIND_MW LOCAL_INV
        TSO RECV RECV_RDMA_WITH_IMM TM_ADD TM_DEL TM_SYNC TM_RECV TM_NO_TAG DRIVER1 DRIVER2 DRIVER3),
    );
    for (name, flag) in WcFlags::all().iter_names() {
        facts.push((format!("IBV_WC_{name}"), u64::from(flag.bits())));
    }
    for (name, flag) in SendFlags::all().iter_names() {
        facts.push((format!("IBV_SEND_{name}"), u64::from(flag.bits())));
    }
    facts
}

#[test]
fn structs_and_numbers_are_those_of_verbs_h() {
    let facts: Facts = structs().into_iter().chain(constants()).collect();
    let mut source = String::from(
        "#include <infiniband/verbs.h>\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {\n",
    );
    for (expression, _) in &facts {
        writeln!(source, "  printf(\"%s\\t%llu\\n\", \"{expression}\", (unsigned long long)({expression}));")
            .unwrap();
    }
    source.push_str("  return 0;\n}\n");

    if !machine::has("infiniband/verbs.h", "libibverbs-dev", "structs and numbers of the raw face") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (c, exe) = (dir.path().join("layout.c"), dir.path().join("layout"));
    std::fs::write(&c, source).unwrap();
    let cc = machine::cc().arg("-o").arg(&exe).arg(&c).output().expect("needs a C compiler");
    assert!(cc.status.success(), "{}", String::from_utf8_lossy(&cc.stderr));
    let out = Command::new(&exe).output().unwrap();
    let theirs: BTreeMap<&str, u64> = core::str::from_utf8(&out.stdout)
        .unwrap()
        .lines()
        .map(|line| line.split_once('\t').map(|(e, n)| (e, n.parse().unwrap())).unwrap())
        .collect();
    let wrong: Vec<_> = facts.iter().filter(|(e, ours)| theirs[e.as_str()] != *ours).collect();
    assert!(wrong.is_empty(), "differ from verbs.h: {wrong:?}");
    assert!(facts.len() > 120, "only {} facts", facts.len());
}
