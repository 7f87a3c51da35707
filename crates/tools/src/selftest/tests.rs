// SPDX-License-Identifier: MIT OR Apache-2.0
use super::cases::Verdict;
use super::*;
use uverbs::attr::QpType;

fn report() -> Report {
    let case = |opcode, face, verdict| Case { qp_type: QpType::Rc.to_string(), opcode, face, verdict };
    let cases = vec![
        case(Opcode::Send, Face::List, Verdict::Ok),
        case(Opcode::Send, Face::Builder, Verdict::Failed("the data differ".into())),
        case(Opcode::Flush, Face::List, Verdict::Missing("not in C's lists".into())),
        case(Opcode::Flush, Face::Builder, Verdict::Missing("not here".into())),
        case(Opcode::Flush, Face::Batch, Verdict::Missing("not here".into())),
    ];
    Report { about: About::made_up(), cases, elapsed: Duration::from_millis(1500) }
}

#[test]
fn the_text_has_a_line_for_each_opcode_and_the_reasons_once() {
    let text = report().text();
    let want = "\
device             rxe0
driver             rxe

QP         opcode                 post_send wr_*      batch     post      locked   \n\
RC         SEND                   ok        FAILED   \n\
RC         FLUSH                  -         -         -        \n\
-: RC FLUSH by wr_* and 1 more: not here
-: RC FLUSH by post_send: not in C's lists
FAILED: RC SEND by wr_*: the data differ
5 cases: 1 ok, 3 missing, 1 failed, in 1.50 s
";
    assert_eq!(text, want);
}

#[test]
fn the_json_has_every_case() {
    let value = report().json();
    assert_eq!(value["about"]["device"], "rxe0");
    assert_eq!(value["failed"], 1);
    assert_eq!(value["cases"][1]["result"], "failed");
    assert_eq!(value["cases"][1]["reason"], "the data differ");
    assert_eq!(value["cases"].as_array().map(Vec::len), Some(5));
}

#[test]
fn opcodes_are_those_of_the_man_page() {
    let on = |t| Opcode::ALL.into_iter().filter(|o| o.is_on(t)).count();
    let all = [QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcSend, QpType::Driver, QpType::RawPacket];
    assert_eq!(all.map(on), [13, 8, 2, 7, 7, 2]);
}

#[test]
fn the_software_efa_passes() {
    let args = Args { ib_dev: None, ib_port: 1, gid_idx: None, timeout: 10, json: false };
    let report = device::Visitor::visit(Visit(&args), device::tests::efas(), None).unwrap();
    assert_eq!(report.failures(), 0, "{}", report.text());
    let ok = |qp: &str| {
        report.cases.iter().filter(|c| c.qp_type == qp && matches!(c.verdict, Verdict::Ok)).count()
    };
    // SRD has five operations, of which lists have two; UD has two. The other types are missing.
    assert_eq!(["SRD", "UD", "RC"].map(ok), [22, 10, 0], "{}", report.text());
}

#[test]
fn the_software_hca_passes() {
    let args = Args { ib_dev: None, ib_port: 1, gid_idx: None, timeout: 10, json: false };
    let report = device::Visitor::visit(Visit(&args), device::tests::hcas(), None).unwrap();
    assert_eq!(report.failures(), 0, "{}", report.text());
    let ok = report.cases.iter().filter(|c| matches!(c.verdict, Verdict::Ok)).count();
    // All but the two opcodes that no mlx5 device has, and DC by C's faces.
    assert_eq!((report.cases.len(), ok), (195, 171), "{}", report.text());
}
