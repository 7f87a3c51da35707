// SPDX-License-Identifier: MIT OR Apache-2.0
//! `uverbs-hca sweep` on a program with a mistake: random scripts find it, and are shortened to the rule that it needs.
//!
//! The program is this one with the argument `talk`: two ends exchange messages, and an end aborts when a receive fails.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, ExitCode, Output};
use uverbs::wc::WcStatus;
use uverbs::{Done, Rc};

/// Messages of each end.
const MESSAGES: usize = 5;

/// One end.
fn end(device: &str, mut stream: UnixStream) -> uverbs::Result<()> {
    let ctx = uverbs::open(device)?;
    let pd = ctx.alloc_pd()?;
    let mut cq = ctx.cq(64)?;
    let mut qp = pd.qp::<Rc>().cq(&cq).depth(16, 16).connect(&mut stream)?;
    let pool = pd.pool(64, 4096)?;
    for _ in 0..MESSAGES {
        qp.recv(pool.get()?)?;
    }
    let (mut sent, mut received) = (0, 0);
    for posted in 1..=MESSAGES {
        qp.send(pool.get()?.filled(b"hello"))?;
        while sent < posted || received < posted {
            match cq.wait()?.ok() {
                Ok(Done::Sent(_)) => sent += 1,
                Ok(Done::Received(_)) => received += 1,
                Ok(_) => {}
                // The mistake.
                Err(error) if error.status() == WcStatus::LOC_PROT_ERR => std::process::abort(),
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

fn talk() -> ExitCode {
    let Ok((a, b)) = UnixStream::pair() else { return ExitCode::FAILURE };
    let first = std::thread::spawn(|| end("hca0", a));
    let second = end("hca1", b);
    match (first.join(), second) {
        (Ok(Ok(())), Ok(())) => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

/// The program. A compiler that a shell starts, as that of another target, does not get a variable whose name has a hyphen.
const PROGRAM: Option<&str> = option_env!("CARGO_BIN_EXE_uverbs-hca");

fn sweep(args: &[&str]) -> (Output, String) {
    let program = std::env::current_exe().unwrap();
    let out = Command::new(PROGRAM.expect("cargo names the program"))
        // A run mostly waits for its own timeouts.
        .args(["sweep", "--limit", "60", "--jobs", "8"])
        .args(args)
        .arg("--")
        .arg(program)
        .arg("talk")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    (out, text)
}

/// The rules of a report, without comments.
fn rules(text: &str) -> Vec<&str> {
    let is_rule =
        |line: &&str| ["completion ", "call ", "packet "].iter().any(|point| line.starts_with(point));
    text.lines().filter(is_rule).collect()
}

fn a_random_script_is_shortened_to_the_rule_that_fails() {
    // No verbs: only the random scripts.
    let (out, text) = sweep(&["--only", "no such verb", "--random", "20", "--seed", "1"]);
    assert_eq!(out.status.code(), Some(1), "{text}{}", String::from_utf8_lossy(&out.stderr));
    assert!(text.contains("The random scripts are those of --random 20 --seed 1."), "{text}");
    assert!(text.contains("| random scripts | 20 |") && text.contains("crash: random script"), "{text}");
    // The report has a part for each kind of failure: a script that keeps an object is one, too.
    for part in text.split("\n\n").filter(|part| part.starts_with("crash: ")) {
        let found = rules(part);
        assert!(found.len() == 1 && found[0].starts_with("completion process=1 queue=recv nth="), "{text}");
    }
}

fn a_script_of_the_command_line_is_shortened() {
    let script = Path::new(env!("CARGO_TARGET_TMPDIR")).join("shortened.script");
    let text = "packet nth=3 : delay 1us\ncall verb=create_cq nth=9 : errno ENOMEM\n\
        completion device=hca1 queue=recv nth=4 : status LOC_PROT_ERR\npacket nth=2 : duplicate 1\n";
    std::fs::write(&script, text).unwrap();
    let (out, text) = sweep(&["--script", script.to_str().unwrap()]);
    assert_eq!(out.status.code(), Some(1), "{text}");
    assert_eq!(rules(&text), ["completion device=hca1 queue=recv nth=4 : status LOC_PROT_ERR"], "{text}");
}

fn a_drawn_seed_is_in_the_report() {
    let (out, text) = sweep(&["--only", "no such verb", "--random", "1"]);
    let line = "The random scripts are those of --random 1 --seed ";
    let seed = text.lines().find_map(|text| text.strip_prefix(line));
    assert!(seed.is_some_and(|seed| seed.trim_end_matches('.').parse::<u64>().is_ok()), "{out:?}");
    let (out, _) = sweep(&["--seed", "5"]);
    assert_eq!(out.status.code(), Some(2), "a seed is of random scripts");
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words == ["talk"] {
        return talk();
    }
    let tests: [(&str, fn()); 3] = [
        (
            "a_random_script_is_shortened_to_the_rule_that_fails",
            a_random_script_is_shortened_to_the_rule_that_fails,
        ),
        ("a_script_of_the_command_line_is_shortened", a_script_of_the_command_line_is_shortened),
        ("a_drawn_seed_is_in_the_report", a_drawn_seed_is_in_the_report),
    ];
    let (options, filter): (Vec<_>, Vec<_>) = words.into_iter().partition(|word| word.starts_with('-'));
    let lists = options.iter().any(|option| option == "--list");
    // Beside each other: most of the time the runs wait.
    std::thread::scope(|scope| {
        for (name, test) in tests {
            if lists {
                println!("{name}: test");
            } else if filter.is_empty() || filter.iter().any(|word| name.contains(word.as_str())) {
                scope.spawn(move || {
                    test();
                    println!("test {name} ... ok");
                });
            }
        }
    });
    ExitCode::SUCCESS
}
