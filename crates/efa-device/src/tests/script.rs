// SPDX-License-Identifier: MIT OR Apache-2.0
//! Faults by script: completions with errors, late and lost ones, on the virtual clock.

use super::rig::{End, Shape, pair};
use crate::Fabric;
use core::time::Duration;
use uverbs_core::attr::{QpState, QpType};
use uverbs_efa_hw::io::{
    EFA_IO_COMP_STATUS_LOCAL_ERROR_BAD_LENGTH as LOCAL_LENGTH,
    EFA_IO_COMP_STATUS_LOCAL_ERROR_INVALID_LKEY as INVALID_LKEY,
    EFA_IO_COMP_STATUS_LOCAL_ERROR_QP_INTERNAL_ERROR as INTERNAL,
    EFA_IO_COMP_STATUS_LOCAL_ERROR_UNRESP_REMOTE as UNRESPONSIVE, EFA_IO_COMP_STATUS_OK as OK,
    EFA_IO_COMP_STATUS_REMOTE_ERROR_ABORT as ABORT,
    EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_ADDRESS as BAD_ADDRESS,
    EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_LENGTH as REMOTE_LENGTH, EFA_IO_COMP_STATUS_REMOTE_ERROR_RNR as RNR,
};

/// Two ends on a fabric with a script.
fn ends(text: &str, shape: Shape) -> (Fabric, End, End, u16) {
    let (fabric, a, b) = pair(3);
    let (x, y) = (End::written(&a, shape), End::written(&b, shape));
    let to_y = x.ah_to(&y);
    y.ah_to(&x);
    fabric.script(text).unwrap();
    (fabric, x, y, to_y)
}

/// Sends this many messages, one after the other, and returns the statuses at both ends.
fn send(x: &mut End, y: &mut End, ah: u16, count: u16) -> (Vec<Option<u8>>, Vec<Option<u8>>) {
    let mut statuses = (Vec::new(), Vec::new());
    for i in 0..count {
        y.recv(i, 0, 100);
        x.send(i, 0, 8, y, ah);
        let sent = x.poll().inspect(|done| assert!(!done.recv && done.req_id == i));
        let got = y.poll().inspect(|done| assert!(done.recv && done.req_id == i));
        statuses.0.push(sent.map(|done| done.status));
        statuses.1.push(got.map(|done| done.status));
    }
    statuses
}

#[test]
fn a_send_completes_with_the_error_of_a_script() {
    let rows = [
        ("RETRY_EXC_ERR", UNRESPONSIVE),
        ("RESP_TIMEOUT_ERR", UNRESPONSIVE),
        ("RNR_RETRY_EXC_ERR", RNR),
        ("REM_ABORT_ERR", ABORT),
        ("REM_ACCESS_ERR", BAD_ADDRESS),
        ("LOC_QP_OP_ERR", INTERNAL),
        ("MW_BIND_ERR", INTERNAL),
        ("GENERAL_ERR", 0xff),
    ];
    for (name, code) in rows {
        let text = format!("completion device=efa_0 queue=send opcode=send wr=2 : status {name}");
        let (_fabric, mut x, mut y, ah) = ends(&text, Shape::default());
        // The message has arrived, and the QP goes on.
        let wanted = (vec![Some(OK), Some(code), Some(OK)], vec![Some(OK); 3]);
        assert_eq!(send(&mut x, &mut y, ah, 3), wanted, "{name}");
    }
}

#[test]
fn the_sender_is_told_of_the_error_of_a_receive() {
    for (name, code, told) in
        [("LOC_PROT_ERR", INVALID_LKEY, ABORT), ("LOC_LEN_ERR", LOCAL_LENGTH, REMOTE_LENGTH)]
    {
        let text = format!("completion queue=recv nth=2 : status {name}");
        let (_fabric, mut x, mut y, ah) = ends(&text, Shape::default());
        let wanted = (vec![Some(OK), Some(told), Some(OK)], vec![Some(OK), Some(code), Some(OK)]);
        assert_eq!(send(&mut x, &mut y, ah, 3), wanted, "{name}");
    }
}

#[test]
fn reads_and_writes_are_selected_by_opcode() {
    let text = "completion opcode=read : status REM_ACCESS_ERR\ncompletion opcode=write queue=recv : drop";
    let (_fabric, mut x, mut y, ah) = ends(text, Shape::default());
    x.read(1, 0, 64, &y, ah);
    assert_eq!(x.status(), BAD_ADDRESS);
    x.write(2, 0, 64, &y, ah, None);
    assert_eq!(x.status(), OK);
    // A write with immediate data consumes a receive, whose completion is lost.
    y.recv(7, 0, 64);
    x.write(3, 0, 64, &y, ah, Some(5));
    assert_eq!((x.status(), y.poll()), (OK, None));
    y.recv(8, 0, 64);
    x.send(4, 0, 8, &y, ah);
    assert_eq!((x.status(), y.poll().map(|done| done.req_id)), (OK, Some(8)));
}

#[test]
fn a_completion_is_lost_or_finds_no_room() {
    for action in ["drop", "full"] {
        let text = format!("completion queue=send wr=2 : {action}\ncompletion queue=recv wr=3 : {action}");
        let (_fabric, mut x, mut y, ah) = ends(&text, Shape::default());
        let wanted = (vec![Some(OK), None, Some(OK)], vec![Some(OK), Some(OK), None]);
        assert_eq!(send(&mut x, &mut y, ah, 3), wanted, "{action}");
    }
}

#[test]
fn a_completion_is_late_and_others_pass_it() {
    let text = "completion device=efa_0 queue=send wr=1 : delay 2ms\ncompletion queue=recv wr=2 : delay 5ms";
    let (fabric, mut x, mut y, ah) = ends(text, Shape::default());
    let start = fabric.now();
    for i in 0..2 {
        y.recv(i, 0, 100);
        x.send(i, 0, 8, &y, ah);
    }
    let time = |fabric: &Fabric| fabric.now().saturating_sub(start);
    assert_eq!((x.poll().map(|done| done.req_id), y.poll().map(|done| done.req_id)), (Some(1), Some(0)));
    assert!(time(&fabric) < Duration::from_millis(2), "{:?}", time(&fabric));
    assert_eq!((x.poll(), y.poll()), (None, None));
    fabric.run_for(Duration::from_millis(2));
    assert_eq!((x.poll().map(|done| done.req_id), y.poll()), (Some(0), None));
    fabric.run_for(Duration::from_millis(3));
    assert_eq!(y.poll().map(|done| (done.req_id, done.status)), Some((1, OK)));
}

#[test]
fn a_late_completion_outlives_the_error_state_and_not_a_reset() {
    for (state, wanted) in [(QpState::ERR, Some(OK)), (QpState::RESET, None)] {
        let text = "completion queue=send : delay 1ms";
        let (fabric, mut x, mut y, ah) = ends(text, Shape::default());
        y.recv(0, 0, 100);
        x.send(0, 0, 8, &y, ah);
        assert_eq!((x.poll(), y.poll().map(|done| done.status)), (None, Some(OK)));
        x.to(state);
        fabric.run_for(Duration::from_millis(1));
        assert_eq!(x.poll().map(|done| done.status), wanted, "{state:?}");
    }
}

#[test]
fn datagrams_have_the_same_rules() {
    let text = "completion queue=send wr=1 : status LOC_QP_OP_ERR\ncompletion queue=recv wr=1 : delay 1ms";
    let (fabric, mut x, mut y, ah) = ends(text, Shape { qp_type: QpType::Ud, ..Shape::default() });
    assert_eq!(send(&mut x, &mut y, ah, 1), (vec![Some(INTERNAL)], vec![None]));
    fabric.run_for(Duration::from_millis(1));
    assert_eq!(y.poll().map(|done| done.status), Some(OK));
}

#[test]
fn rules_without_effect_are_refused_with_their_line() {
    let (fabric, _x, _y, _) = ends("", Shape::default());
    for (text, column) in [
        ("completion : drop\npacket : nak invalid", 10),
        ("completion : drop\npacket opcode=send : rnr 3", 22),
        ("completion : drop\npacket wr=2 : drop", 15),
    ] {
        for error in [fabric.script(text), fabric.add_rules(text)] {
            let error = error.unwrap_err();
            assert_eq!((error.line, error.column), (2, column), "{error}");
            assert!(error.message.contains("software EFA"), "{error}");
        }
    }
    fabric.script("completion wr=1 : delay 2ms\npacket psn=3 : drop").unwrap();
}
