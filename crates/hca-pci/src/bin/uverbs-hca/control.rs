// SPDX-License-Identifier: MIT OR Apache-2.0
//! The commands to a fabric of software HCAs, and what any client of the socket may send.

use core::time::Duration;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use uverbs_hca::{Fabric, Link};
use uverbs_hca_pci::{PciFunction, Registration};
use uverbs_vfio::Control;

/// Clients of the control socket at a time.
const MAX_CLIENTS: usize = 16;

fn control() -> Control<PciFunction> {
    Control { fabric: Fabric::deterministic(1), devices: Arc::default(), quit: std::sync::mpsc::channel().0 }
}

/// A line that never ends.
struct Endless(u64);

impl Read for Endless {
    fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
        to.fill(b'x');
        self.0 += to.len() as u64;
        assert!(self.0 < 1 << 20, "reads on");
        Ok(to.len())
    }
}

#[test]
fn a_line_without_an_end_and_bytes_that_are_no_text_are_refused() {
    let mut answers = Vec::new();
    control().run(BufReader::new(Endless(0)), &mut answers);
    assert_eq!(answers, b"error a line has more than 4096 bytes\n");
    answers.clear();
    control().run(&b"packets\xff\nhelp\n"[..], &mut answers);
    assert_eq!(answers, b"error a line is not text\n");
    answers.clear();
    // The longest line, and one without a newline at the end of the input.
    let line = format!("{:4095}\nrepairs", "repairs");
    control().run(line.as_bytes(), &mut answers);
    assert_eq!(answers, b"ok 0\nok 0\n");
}

#[test]
fn stat_has_the_name_and_the_port_of_a_device() {
    let fabric = Fabric::deterministic(1);
    let function = PciFunction::new(fabric.device("hca5"), Registration::Command);
    let control = Control { fabric, devices: Arc::new(vec![function]), ..control() };
    let mut answers = Vec::new();
    control.run(&b"link 0 down\nstat 0\nstat 1\nqueue 0 0x101 send\nqueue 0 1 x\n"[..], &mut answers);
    let answers = String::from_utf8(answers).unwrap();
    let lines: Vec<_> = answers.lines().collect();
    let stat = uverbs_hca::Stat::parse(lines[1].strip_prefix("ok hca5 ").unwrap()).unwrap();
    assert!(!stat.up && stat.sent == 0, "{stat:?}");
    assert_eq!(lines[2], "error 1: no such device");
    assert_eq!(lines[3..], ["error QP 0x101 has no such queue", "error x: send, recv, send-cq or recv-cq"]);
}

#[test]
fn rules_are_added_listed_and_ended() {
    let fabric = Fabric::deterministic(1);
    let function = PciFunction::new(fabric.device("hca0"), Registration::Command);
    let control = Control { fabric: fabric.clone(), devices: Arc::new(vec![function.clone()]), ..control() };
    let mut answers = Vec::new();
    let lines = "rules\nrule packet device=hca0  wr=7 : drop\nrule packet wr : drop\nrule clock device=hca0 : port down\nrules\n\
                 stat 0\nrules off\nrules\n";
    control.run(lines.as_bytes(), &mut answers);
    let answers = String::from_utf8(answers).unwrap();
    let lines: Vec<_> = answers.lines().collect();
    assert_eq!(lines[..2], ["ok", "ok"]);
    assert_eq!(lines[2], "error line 1, column 8: wr: a selector is NAME=VALUE");
    assert_eq!(lines[4], "ok packet device=hca0 wr=7 : drop; clock device=hca0 : port down");
    let stat = uverbs_hca::Stat::parse(lines[5].strip_prefix("ok hca0 ").unwrap()).unwrap();
    assert!(!stat.up);
    assert_eq!(lines[6..], ["ok", "ok"]);
    assert_eq!(fabric.rules(), None);
}

#[test]
fn clients_have_a_limit_and_files_of_the_user_stay() {
    let folder = std::env::temp_dir().join(format!("uverbs-hca-control-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let (file, socket) = (folder.join("file"), folder.join("socket"));
    std::fs::write(&file, "of the user").unwrap();
    assert_eq!(control().listen(&file).unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(std::fs::read(&file).unwrap(), b"of the user");
    control().listen(&socket).unwrap();
    let ask = |client: &UnixStream| {
        let mut answer = String::new();
        let _ = (&*client).write_all(b"repairs\n");
        BufReader::new(client).read_line(&mut answer).unwrap();
        answer
    };
    let clients: Vec<UnixStream> = (0..MAX_CLIENTS)
        .map(|_| {
            let client = UnixStream::connect(&socket).unwrap();
            assert_eq!(ask(&client), "ok 0\n");
            client
        })
        .collect();
    assert_eq!(ask(&UnixStream::connect(&socket).unwrap()), "error 16 other clients are connected\n");
    assert_eq!(ask(&clients[0]), "ok 0\n");
    drop(clients);
    // Others come when they have gone.
    let come = || ask(&UnixStream::connect(&socket).unwrap()) == "ok 0\n";
    assert!((0..1000).any(|_| come() || (std::thread::sleep(Duration::from_millis(5)), false).1));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn each_command_line_gets_an_answer_line() {
    let fabric = Fabric::deterministic(1);
    let device = fabric.device("hca0").link(Link::InfiniBand);
    let devices = Arc::new(vec![PciFunction::new(device, Registration::Command)]);
    let (quit, end) = std::sync::mpsc::channel();
    let control = Control { fabric, devices, quit };
    let mut answers = Vec::new();
    let lines = "lid 0 7\nlid 0 65535\nlink 0 down\n\nlink 1 up\npackets 0\nrepairs\nforgive CqOverrun\nnonsense\nhelp\nquit\n";
    control.run(lines.as_bytes(), &mut answers);
    let answers = String::from_utf8(answers).unwrap();
    let answers: Vec<&str> = answers.lines().collect();
    assert_eq!(answers[..2], ["ok", "error 65535: not a valid LID"]);
    assert_eq!(answers[2..7], ["ok", "error 1: no such device", "ok 0 0", "ok 0", "ok"]);
    assert!(answers[7].starts_with("error unknown"));
    assert!(answers[8].starts_with("ok lid N LID"));
    assert_eq!(answers[9..], ["ok"]);
    assert!(end.try_recv().is_ok_and(|end| end.is_ok_and(|quit| quit)));
}
