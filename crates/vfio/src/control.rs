// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands to the running fabric. Each is a line; the answer is a line that begins with `ok` or `error`. They come
//! from standard input and from clients of the control socket (a guest, by a virtio-serial port).

use crate::Device;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use uverbs_fabric::Fabric;
use uverbs_fabric::order::{Setting, UnknownOrder};

/// The commands that all models have.
const HELP: &str = "link N up|down; netem off | [loss P%] [corrupt P%] [duplicate P%] [reorder P%] [delay Tms]; order MODE[:SEED]; repairs; packets N; \
                    stat N; queue N QPN send|recv|send-cq|recv-cq; rule RULE; rules [off]; violations; forgive [KIND...]; quit";

/// Bytes of a line at most, and clients of the control socket at a time.
const MAX_LINE: u64 = 4096;
const MAX_CLIENTS: usize = 16;

/// Executes commands.
pub struct Control<D: Device> {
    /// The fabric of the devices.
    pub fabric: Fabric<D::Model>,
    /// The devices, by number.
    pub devices: Arc<Vec<D>>,
    /// Gets the command `quit`.
    pub quit: Sender<anyhow::Result<bool>>,
}

impl<D: Device> Clone for Control<D> {
    fn clone(&self) -> Self {
        Self { fabric: self.fabric.clone(), devices: Arc::clone(&self.devices), quit: self.quit.clone() }
    }
}

impl<D: Device> core::fmt::Debug for Control<D> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Control").field("devices", &self.devices.len()).finish_non_exhaustive()
    }
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

impl<D: Device> Control<D> {
    fn device(&self, number: &str) -> Result<&D, String> {
        let found = number.parse().ok().and_then(|n: usize| self.devices.get(n));
        found.ok_or_else(|| format!("{number}: no such device"))
    }

    fn help() -> String {
        [D::COMMANDS, HELP].iter().filter(|text| !text.is_empty()).copied().collect::<Vec<_>>().join("; ")
    }

    fn execute(&self, words: &[&str]) -> Result<String, String> {
        match words {
            ["help"] => return Ok(Self::help()),
            ["link", n, state @ ("up" | "down")] => {
                self.device(n)?.plugged().set_link_up(*state == "up");
                return Ok(String::new());
            }
            ["netem", what @ ..] => {
                let what = Disturbance::parse(what)?;
                self.fabric.loss(what.loss).duplicate(what.duplicate).reorder(what.reorder).delay(what.delay);
                return Ok(String::new());
            }
            ["order", setting] => {
                let setting: Setting = setting.parse().map_err(|e: UnknownOrder| e.to_string())?;
                let seed = self.fabric.order(setting);
                return Ok(setting.repeated_by(seed).to_string());
            }
            ["repairs"] => {
                return Ok(self.devices.iter().map(|d| d.plugged().repairs()).sum::<u64>().to_string());
            }
            ["packets", n] => {
                let (sent, received) = self.device(n)?.plugged().packets();
                return Ok(format!("{sent} {received}"));
            }
            ["stat", n] => {
                let device = self.device(n)?;
                return Ok(format!("{} {}", device.name(), device.plugged().stat()));
            }
            ["queue", n, qpn, queue] => {
                let device = self.device(n)?;
                let qpn = qpn
                    .strip_prefix("0x")
                    .map_or_else(|| qpn.parse().ok(), |hex| u32::from_str_radix(hex, 16).ok());
                let qpn = qpn.ok_or_else(|| format!("{}: no number of a QP", words[2]))?;
                let queue = queue.parse().map_err(|()| format!("{queue}: send, recv, send-cq or recv-cq"))?;
                let dump = device.plugged().queue(qpn, queue);
                return dump
                    .map(|dump| dump.to_string())
                    .ok_or_else(|| format!("QP {qpn:#x} has no such queue"));
            }
            ["rule", rule @ ..] => {
                return self
                    .fabric
                    .add_rules(&rule.join(" "))
                    .map(|()| String::new())
                    .map_err(|e| e.to_string());
            }
            ["rules"] => {
                let rules = self.fabric.rules().unwrap_or_default().0;
                return Ok(rules.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "));
            }
            ["rules", "off"] => {
                self.fabric.no_script();
                return Ok(String::new());
            }
            ["violations"] => {
                return Ok(self
                    .devices
                    .iter()
                    .map(|d| d.plugged().violations().len())
                    .sum::<usize>()
                    .to_string());
            }
            ["forgive", kinds @ ..] => {
                let all = self.devices.iter().flat_map(|device| {
                    let wanted = |kind: String| kinds.is_empty() || kinds.contains(&kind.as_str());
                    device.plugged().take_violations_if(|v| wanted(uverbs_fabric::variant(&v.mistake)))
                });
                return Ok(all.map(|v| v.to_string()).collect::<Vec<_>>().join("; "));
            }
            ["quit"] => {
                let _ = self.quit.send(Ok(true));
                return Ok(String::new());
            }
            _ => {}
        }
        // The other commands are the model's, and name a device first.
        if let [name, n, args @ ..] = words
            && D::COMMANDS.split("; ").any(|command| command.split(' ').next() == Some(name))
            && let Some(result) = self.device(n)?.command(name, args)
        {
            return result;
        }
        Err(format!("unknown command; the commands are: {}", Self::help()))
    }

    /// Executes lines until there are no more. The client of a line that is too long, or no text, gets an error and no more
    /// answers.
    pub fn run(&self, mut lines: impl BufRead, mut answers: impl Write) {
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
    ///
    /// # Errors
    /// The socket can't be created.
    pub fn listen(self, path: &Path) -> std::io::Result<()> {
        let listener = uverbs_fabric::socket::bind(path)?;
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
}
