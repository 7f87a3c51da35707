// SPDX-License-Identifier: MIT OR Apache-2.0
//! The plan, the outcomes and the shortening of a sweep, with programs of the shell.

use super::plan::{Kind, Trial, random, spread, trials};
use super::run::{Finding, Outcome, Program, Ran};
use super::shrink::shortest;
use super::table::report;
use core::sync::atomic::AtomicUsize;
use core::time::Duration;
use std::time::Instant;
use uverbs_fabric::script::Script;

/// A run of a script of the shell with a time limit.
fn shell(text: &str, server: Option<&str>, limit: Duration) -> Ran {
    let folder = tempfile::tempdir().unwrap();
    let program = Program {
        words: ["sh", "-c", text].map(str::to_owned).to_vec(),
        server: server.map(str::to_owned),
        is_shared: server.is_some(),
        library: None,
        limit,
        folder: folder.path().into(),
        next: AtomicUsize::new(0),
    };
    program.run(&"packet : drop".parse().unwrap()).unwrap()
}

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(300);

#[test]
fn each_end_of_a_program_is_told_from_the_others() {
    assert_eq!(shell("exit 0", None, LONG).outcome, Outcome::Ok);
    assert_eq!(shell("exit 3", None, LONG).outcome, Outcome::Error(3));
    assert_eq!(shell("kill -SEGV $$", None, LONG).outcome, Outcome::Crash(11));
    assert_eq!(shell("kill -PIPE $$", None, LONG).outcome, Outcome::Error(141));
    // A crash that a shell reports.
    assert_eq!(shell("exit 134", None, LONG).outcome, Outcome::Crash(6));
    let start = Instant::now();
    // A child of the program must not outlive the run, or it would keep the output open.
    let ran = shell("sleep 600 & echo before; sleep 600", None, SHORT);
    assert_eq!((ran.outcome, ran.output.as_str()), (Outcome::Hang, "before\n"));
    assert!(start.elapsed() < LONG);
}

#[test]
fn the_worse_end_of_a_server_and_its_client_counts() {
    // With its report, the server is not waited for.
    let reports = r#"sh -c 'echo > "$UVERBS_HCA_FAULTS_REPORT/1"; exec sleep 600'"#;
    let cases = [
        ("exit 1", "sh -c 'kill -ABRT $$'", LONG, Outcome::Crash(6)),
        ("exit 1", reports, LONG / 15, Outcome::Waits),
        ("exit 0", "sleep 600", SHORT, Outcome::Hang),
        ("exit 0", "true", LONG, Outcome::Ok),
    ];
    // Beside each other: most of the time they wait.
    std::thread::scope(|scope| {
        for (client, server, limit, outcome) in cases {
            scope.spawn(move || assert_eq!(shell(client, Some(server), limit).outcome, outcome, "{server}"));
        }
    });
}

#[test]
fn the_script_and_the_ports_reach_the_program() {
    let ran = shell(
        r#"cat "$UVERBS_HCA_FAULTS"; echo "{port}"; echo "call create_cq 2" > "$UVERBS_HCA_FAULTS_REPORT/1""#,
        None,
        LONG,
    );
    assert_eq!(ran.output, "packet : drop\n20000\n");
    assert!(ran.has_reports());
}

/// A run without faults.
fn first() -> Ran {
    let server =
        "call create_qp 2\ncall post_send 3\ncompletion send 0\ncompletion recv 30\npacket 60\nobject pd 1\n";
    Ran::of(Outcome::Ok, &[(1, server), (2, "call mmap 1\n")])
}

#[test]
fn each_call_and_completion_fails_once() {
    let all = trials(&first(), 20);
    let lines: Vec<String> = all.iter().map(|trial| trial.script.to_string()).collect();
    assert_eq!(lines[0], "call process=1 verb=create_qp nth=1 : errno ENOMEM\n");
    assert_eq!(lines[4], "call process=1 verb=post_send nth=3 : errno ENOMEM\n");
    assert_eq!(lines[5], "completion process=1 queue=recv nth=1 : status LOC_PROT_ERR\n");
    assert_eq!(lines.last().unwrap(), "call process=2 verb=mmap nth=1 : errno ENOMEM\n");
    assert_eq!(all.len(), 2 + 3 + 20 + 1);
    assert!(lines.iter().all(|line| line.parse::<Script>().is_ok()));
    assert!(all.iter().any(|trial| trial.kind == Kind::Post));
    assert_eq!(spread(5, 3), [1, 3, 5]);
    assert_eq!((spread(2, 3), spread(9, 1), spread(0, 1)), (vec![1, 2], vec![1], vec![]));
}

#[test]
fn each_verb_has_its_usual_error() {
    let report = "call dealloc_pd 1\ncall dereg_mr 1\ncall reg_mr 1\ncall alloc_pd 1\ncall modify_qp 1\ncall mlx5_free_uar 1\n";
    let all = trials(&Ran::of(Outcome::Ok, &[(1, report)]), 20);
    let errnos: Vec<String> =
        all.iter().map(|t| t.script.to_string().trim_end().rsplit(' ').next().unwrap().to_owned()).collect();
    assert_eq!(errnos, ["EBUSY", "EBUSY", "ENOMEM", "ENOMEM", "EINVAL", "EBUSY"]);
}

#[test]
fn a_seed_gives_the_same_scripts() {
    let texts = |seed| -> Vec<String> {
        random(&first(), 30, seed).iter().map(|trial| trial.script.to_string()).collect()
    };
    assert_eq!(texts(1), texts(1));
    assert_ne!(texts(1), texts(2));
    for text in texts(3) {
        let script: Script = text.parse().unwrap();
        assert!(script.0.len() >= 2 && script.to_string() == text);
    }
}

#[test]
fn only_what_the_first_run_did_not_leave_is_a_leak() {
    let of = |outcome, report| Ran::of(outcome, &[(1, report)]).finding(&first());
    assert_eq!(of(Outcome::Ok, "object pd 1\n"), None);
    assert_eq!(of(Outcome::Ok, "object pd 2\n"), Some(Finding::Leak));
    assert_eq!(of(Outcome::Ok, "object qp 1\n"), Some(Finding::Leak));
    // The kernel destroys what a program leaves that ends with an error.
    assert_eq!(of(Outcome::Error(1), "object qp 1\n"), None);
    assert_eq!(of(Outcome::Error(1), "violation CqOverrun of Cq(3)\n"), Some(Finding::Violation));
    assert_eq!(of(Outcome::Hang, ""), Some(Finding::Hang));
}

#[test]
fn the_shortest_list_has_only_what_it_needs() {
    let list: Vec<u32> = (0..40).collect();
    let mut runs = 0;
    let both = shortest(&list, |rest| {
        runs += 1;
        rest.contains(&7) && rest.contains(&31)
    });
    assert_eq!(both, [7, 31]);
    assert!(runs < 60, "{runs}");
    assert_eq!(shortest(&list, |rest| rest.contains(&39)), [39]);
    assert_eq!(shortest(&list, |_| false), list);
    assert_eq!(shortest(&[1], |_| true), [1]);
}

#[test]
fn the_report_counts_and_shows_scripts() {
    let script: Script = "call verb=create_qp nth=1 : errno ENOMEM".parse().unwrap();
    let trial = |kind, name: &str| Trial { kind, name: name.into(), script: script.clone() };
    let results = [
        (trial(Kind::Call, "create_qp"), (script.clone(), Ran::of(Outcome::Crash(11), &[]))),
        (trial(Kind::Call, "create_cq"), (script.clone(), Ran::of(Outcome::Error(1), &[]))),
        (trial(Kind::Post, "post_send"), (script.clone(), Ran::of(Outcome::Ok, &[(1, "object mr 3\n")]))),
    ];
    let (text, findings) = report(&first(), &results);
    assert_eq!(findings, 2);
    assert!(text.contains("| verbs | 2 | 0 | 1 | 1 | 0 | 0 | 0 | 0 |"), "{text}");
    assert!(text.contains("| posts | 1 | 0 | 0 | 0 | 0 | 0 | 1 | 0 |"), "{text}");
    assert!(text.contains(
        "crash: create_qp, 1 runs\ncall verb=create_qp nth=1 : errno ENOMEM\n  # the program ends by SIGSEGV"
    ));
    assert!(text.contains("process 1 left: 3 mr"));
}
