// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands to the running fabric. Each is a line; the answer is a line that begins with `ok` or `error`. They come
//! from standard input and from clients of the control socket (a guest, by a virtio-serial port).

use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use uverbs_hca::{Fabric, Violation};
use uverbs_hca_pci::PciFunction;

/// The commands.
const HELP: &str = "link N up|down; lid N LID; netem off | [loss P%] [corrupt P%] [duplicate P%] [reorder P%] [delay Tms]; \
                    repairs; packets N; stat N; violations; forgive [KIND...]; quit";

/// Bytes of a line at most, and clients of the control socket at a time.
const MAX_LINE: u64 = 4096;
const MAX_CLIENTS: usize = 16;

/// Executes commands.
#[derive(Clone)]
pub(crate) struct Control {
    pub(crate) fabric: Fabric,
    pub(crate) functions: Arc<Vec<PciFunction>>,
    pub(crate) quit: Sender<anyhow::Result<bool>>,
}

/// `5%` as 0.05.
fn share(text: &str) -> Result<f64, String> {
    let number: Option<f64> = text.strip_suffix('%').and_then(|t| t.parse().ok());
    let p =
        number.filter(|p| (0.0..=100.0).contains(p)).ok_or_else(|| format!("{text}: invalid percentage"))?;
    Ok(p / 100.0)
}

/// A time with its unit.
fn time(text: &str) -> Result<Duration, String> {
    let units = [("us", 1.0), ("ms", 1e3), ("s", 1e6)];
    let micros = units.iter().find_map(|(unit, factor)| {
        let number: f64 = text.strip_suffix(unit)?.parse().ok()?;
        Some(number * factor)
    });
    let micros =
        micros.filter(|us| (0.0..=1e7).contains(us)).ok_or_else(|| format!("{text}: invalid time"))?;
    Ok(Duration::from_nanos((micros * 1e3) as u64))
}

/// The faults of the network, in the syntax of tc-netem(8). A corrupt packet counts as lost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Disturbance {
    loss: f64,
    duplicate: f64,
    reorder: f64,
    delay: Duration,
}

impl Disturbance {
    fn parse(words: &[&str]) -> Result<Self, String> {
        let mut this = Self::default();
        if words == ["off"] {
            return Ok(this);
        }
        let mut words = words.iter().copied().peekable();
        while let Some(word) = words.next() {
            let value = words.next().ok_or_else(|| format!("{word}: a value is missing"))?;
            match word {
                "loss" => this.loss += share(value)?,
                "corrupt" => this.loss += share(value)?,
                "duplicate" => this.duplicate = share(value)?,
                "reorder" => this.reorder = share(value)?,
                "delay" => this.delay = time(value)?,
                _ => return Err(format!("{word}: unknown fault")),
            }
            // A correlation with the previous packet, or a jitter, is ignored.
            words.next_if(|next| next.starts_with(|c: char| c.is_ascii_digit()));
        }
        this.loss = this.loss.min(1.0);
        Ok(this)
    }
}

impl Control {
    fn function(&self, number: &str) -> Result<&PciFunction, String> {
        let found = number.parse().ok().and_then(|n: usize| self.functions.get(n));
        found.ok_or_else(|| format!("{number}: no such device"))
    }

    fn execute(&self, words: &[&str]) -> Result<String, String> {
        match words {
            ["help"] => Ok(HELP.into()),
            ["link", n, state @ ("up" | "down")] => {
                self.function(n)?.device().set_link_up(*state == "up");
                Ok(String::new())
            }
            ["lid", n, lid] => {
                let function = self.function(n)?;
                let set = lid.parse().is_ok_and(|lid| function.device().set_lid(lid));
                if set { Ok(String::new()) } else { Err(format!("{lid}: not a valid LID")) }
            }
            ["netem", what @ ..] => {
                let what = Disturbance::parse(what)?;
                self.fabric.loss(what.loss).duplicate(what.duplicate).reorder(what.reorder).delay(what.delay);
                Ok(String::new())
            }
            ["repairs"] => Ok(self.functions.iter().map(|f| f.device().repairs()).sum::<u64>().to_string()),
            ["packets", n] => {
                let (sent, received) = self.function(n)?.device().packets();
                Ok(format!("{sent} {received}"))
            }
            ["stat", n] => {
                let function = self.function(n)?;
                Ok(format!("{} {}", function.name(), function.device().stat()))
            }
            ["violations"] => {
                Ok(self.functions.iter().map(|f| f.device().violations().len()).sum::<usize>().to_string())
            }
            ["forgive", kinds @ ..] => {
                let wanted = |v: &Violation| kinds.is_empty() || kinds.contains(&v.mistake.kind().as_str());
                let all: Vec<_> =
                    self.functions.iter().flat_map(|f| f.device().take_violations_if(wanted)).collect();
                Ok(all.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
            }
            ["quit"] => {
                let _ = self.quit.send(Ok(true));
                Ok(String::new())
            }
            _ => Err(format!("unknown command; the commands are: {HELP}")),
        }
    }

    /// Executes lines until there are no more. The client of a line that is too long, or no text, gets an error and no more
    /// answers.
    pub(crate) fn run(&self, mut lines: impl BufRead, mut answers: impl Write) {
        loop {
            let mut line = String::new();
            match lines.by_ref().take(MAX_LINE).read_line(&mut line) {
                Ok(0) => return,
                Ok(_) if line.ends_with('\n') || (line.len() as u64) < MAX_LINE => {}
                Ok(_) => {
                    let _ = writeln!(answers, "error a line has more than {MAX_LINE} bytes");
                    return;
                }
                Err(error) => {
                    if error.kind() == ErrorKind::InvalidData {
                        let _ = writeln!(answers, "error a line is not text");
                    }
                    return;
                }
            }
            let words: Vec<&str> = line.split_whitespace().collect();
            if words.is_empty() {
                continue;
            }
            let answer = match self.execute(&words) {
                Ok(answer) if answer.is_empty() => "ok".to_owned(),
                Ok(answer) => format!("ok {answer}"),
                Err(error) => format!("error {error}"),
            };
            if writeln!(answers, "{answer}").and_then(|()| answers.flush()).is_err() {
                return;
            }
        }
    }

    /// Takes commands at a socket, in a thread for each connection.
    pub(crate) fn listen(self, path: &Path) -> std::io::Result<()> {
        let listener = uverbs_hca::socket::bind(path)?;
        let clients = Arc::new(AtomicUsize::new(0));
        std::thread::Builder::new().name("control".into()).spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else {
                    // There may be too many open files for a while.
                    std::thread::sleep(Duration::from_millis(200));
                    continue;
                };
                let client = Client::new(&clients);
                if client.number > MAX_CLIENTS {
                    let _ = writeln!(stream, "error {MAX_CLIENTS} other clients are connected");
                    continue;
                }
                let this = self.clone();
                let serve = move || {
                    let _client = client;
                    if let Ok(answers) = stream.try_clone() {
                        this.run(BufReader::new(stream), answers);
                    }
                };
                if let Err(error) = std::thread::Builder::new().name("control".into()).spawn(serve) {
                    log::warn!("no thread for a control connection: {error}");
                }
            }
        })?;
        Ok(())
    }
}

/// A client of the control socket, which is counted until it is dropped.
struct Client {
    all: Arc<AtomicUsize>,
    /// How many there are with it.
    number: usize,
}

impl Client {
    fn new(all: &Arc<AtomicUsize>) -> Self {
        Self { all: Arc::clone(all), number: all.fetch_add(1, Ordering::Relaxed) + 1 }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.all.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    fn control() -> Control {
        Control {
            fabric: Fabric::deterministic(1),
            functions: Arc::default(),
            quit: std::sync::mpsc::channel().0,
        }
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
        let control = Control { fabric, functions: Arc::new(vec![function]), ..control() };
        let mut answers = Vec::new();
        control.run(&b"link 0 down\nstat 0\nstat 1\n"[..], &mut answers);
        let answers = String::from_utf8(answers).unwrap();
        let lines: Vec<_> = answers.lines().collect();
        let stat = uverbs_hca::Stat::parse(lines[1].strip_prefix("ok hca5 ").unwrap()).unwrap();
        assert!(!stat.up && stat.sent == 0, "{stat:?}");
        assert_eq!(lines[2], "error 1: no such device");
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
    use uverbs_hca::Link;
    use uverbs_hca_pci::Registration;

    #[test]
    fn netem_commands_are_parsed() {
        let parse = |text: &str| Disturbance::parse(&text.split_whitespace().collect::<Vec<_>>());
        let what = parse("loss 5% delay 2ms reorder 25% 50% duplicate 1% corrupt 1%").unwrap();
        assert_eq!((what.duplicate, what.reorder), (0.01, 0.25));
        assert!((what.loss - 0.06).abs() < 1e-9);
        assert_eq!(what.delay, Duration::from_millis(2));
        assert_eq!(parse("off"), Ok(Disturbance::default()));
        for wrong in ["loss", "loss 5", "loss 101%", "gap 3", "delay -1ms", "delay 1h"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn each_command_line_gets_an_answer_line() {
        let fabric = Fabric::deterministic(1);
        let device = fabric.device("hca0").link(Link::InfiniBand);
        let functions = Arc::new(vec![PciFunction::new(device, Registration::Command)]);
        let (quit, end) = std::sync::mpsc::channel();
        let control = Control { fabric, functions, quit };
        let mut answers = Vec::new();
        let lines = "lid 0 7\nlid 0 65535\nlink 0 down\n\nlink 1 up\npackets 0\nrepairs\nforgive CqOverrun\nnonsense\nhelp\nquit\n";
        control.run(lines.as_bytes(), &mut answers);
        let answers = String::from_utf8(answers).unwrap();
        let answers: Vec<&str> = answers.lines().collect();
        assert_eq!(answers[..2], ["ok", "error 65535: not a valid LID"]);
        assert_eq!(answers[2..7], ["ok", "error 1: no such device", "ok 0 0", "ok 0", "ok"]);
        assert!(answers[7].starts_with("error unknown"));
        assert!(answers[8].starts_with("ok link N"));
        assert_eq!(answers[9..], ["ok"]);
        assert!(end.try_recv().is_ok_and(|end| end.is_ok_and(|quit| quit)));
    }
}
