// SPDX-License-Identifier: MIT OR Apache-2.0
//! The values of software devices: of this process, and of a program that has them for VMs, such as `uverbs-hca`.

use super::{Counters, DeviceSample, PortSample, QpSample, Sample};
use crate::connect::WithDeadline;
use core::time::Duration;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use uverbs_core::errno::Errno;
use uverbs_core::error::{Error, Result};
use uverbs_software::{Device, MODELS, QpStat, Stat, opened};

/// The time limit of an answer.
const LIMIT: Duration = Duration::from_secs(2);
/// Bytes of an answer at most, and devices.
const MAX_ANSWER: u64 = 16 << 20;
const MAX_DEVICES: usize = 256;

impl Sample {
    /// Adds a software device of this process.
    pub fn add_software(&mut self, device: impl Into<Device>) {
        let device = device.into();
        self.devices.push(sample(device.name(), &device.stat()));
    }

    /// Adds the software devices that this process has opened by name (`uverbs::open("hca0")`).
    pub fn add_opened(&mut self) {
        opened().iter().for_each(|device| self.add_software(device));
    }

    /// Adds the devices of a program `uverbs-hca`, or of one that has software EFAs, with its control socket at this path.
    ///
    /// # Errors
    /// Nobody listens at the socket, or the answer does not come in time; [`Error::Protocol`] if it is not that of such a program.
    pub fn add_control(&mut self, path: &Path) -> Result<()> {
        self.add_control_within(path, LIMIT)
    }

    /// As [`add_control`](Self::add_control), with this time limit of each answer.
    fn add_control_within(&mut self, path: &Path, limit: Duration) -> Result<()> {
        let failed = |verb| {
            move |error: std::io::Error| {
                let errno = match error.raw_os_error() {
                    Some(errno) => Errno::from_raw(errno),
                    None if error.kind() == ErrorKind::TimedOut => Errno::ETIMEDOUT,
                    None => Errno::EIO,
                };
                Error::os(verb, format!("control socket {}", path.display()), errno)
            }
        };
        let stream = UnixStream::connect(path).map_err(failed("connect"))?;
        for number in 0..MAX_DEVICES {
            // The limit is that of the whole answer, not of a read.
            let mut limited = WithDeadline::new(&stream, limit);
            limited.write_all(format!("stat {number}\n").as_bytes()).map_err(failed("write"))?;
            let mut answer = String::new();
            BufReader::new(limited.take(MAX_ANSWER)).read_line(&mut answer).map_err(failed("read"))?;
            // The answer for a number without a device is an error, and ends the list.
            if number > 0 && answer.starts_with("error ") {
                return Ok(());
            }
            let stat = answer.strip_prefix("ok ").and_then(|text| text.split_once(' '));
            let Some(sample) = stat.and_then(|(name, stat)| parse(name, stat)) else {
                let what =
                    format!("control socket {}: {:?} is no answer to stat", path.display(), answer.trim());
                return Err(Error::protocol("read", what.chars().take(200).collect::<String>()));
            };
            self.devices.push(sample);
        }
        Ok(())
    }
}

/// The values in the answer of a program. It may have devices of any model, whose types of QPs differ.
fn parse(name: &str, stat: &str) -> Option<DeviceSample> {
    MODELS.iter().find_map(|model| Some(sample(name, &model.parse(stat)?)))
}

fn sample(name: &str, stat: &Stat) -> DeviceSample {
    // The names are those of rxe's `hw_counters`.
    let counters = [("sent_pkts", stat.sent), ("rcvd_pkts", stat.received), ("repairs", stat.repairs)];
    let counters: Counters = counters.map(|(name, value)| (name.to_owned(), value)).into();
    let state = if stat.up { "ACTIVE" } else { "DOWN" };
    DeviceSample {
        name: name.to_owned(),
        counters: Counters::new(),
        ports: vec![PortSample { number: 1, state: state.to_owned(), counters }],
        qps: Ok(stat.qps.iter().map(qp).collect()),
        bound: Vec::new(),
    }
}

fn qp(stat: &QpStat) -> QpSample {
    QpSample {
        number: stat.qpn,
        port: Some(1),
        remote: stat.remote,
        kind: Some(stat.kind),
        // The device's states are in the order of `enum ib_qp_state`.
        state: Some(stat.state as u8),
        sq_psn: Some(stat.sq_psn),
        rq_psn: Some(stat.rq_psn),
        pid: None,
        kernel_name: None,
    }
}

#[cfg(all(test, feature = "hca"))]
mod tests {
    use super::*;
    use crate::{ConnectAttr, Context, Rc};
    use std::os::unix::net::UnixListener;
    use std::thread::JoinHandle;
    use uverbs_hca::Fabric;
    use uverbs_mlx5::Mlx5;

    /// The time limit of answers that do not come.
    const SHORT: Duration = Duration::from_millis(250);

    /// A program that answers `stat N` with the Nth line, as `uverbs-hca` does.
    fn program(path: &Path, answers: Vec<String>) -> JoinHandle<()> {
        let listener = UnixListener::bind(path).unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let lines = BufReader::new(stream.try_clone().unwrap()).lines();
            for line in lines.map_while(core::result::Result::ok) {
                let number: Option<usize> = line.strip_prefix("stat ").and_then(|n| n.parse().ok());
                let answer = number.and_then(|n| answers.get(n).cloned());
                let answer = answer.unwrap_or_else(|| "error no such device".into());
                if writeln!(stream, "{answer}").is_err() {
                    return;
                }
            }
        })
    }

    fn read(answers: &[String]) -> (Result<()>, Sample) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        let program = program(&path, answers.to_vec());
        let mut sample = Sample::empty();
        let result = sample.add_control(&path);
        program.join().unwrap();
        (result, sample)
    }

    #[test]
    fn devices_here_and_in_another_process_have_the_same_values() {
        let hcas = ["hca0", "hca1"].map(|name| Fabric::deterministic(1).device(name).build());
        let ctx = Context::<Mlx5>::from_kernel(hcas[0].open()).unwrap();
        let (pd, cq) = (ctx.alloc_pd().unwrap(), ctx.cq(64).unwrap());
        let mut qp = pd.qp::<Rc>().cq(&cq).depth(4, 4).create().unwrap();
        let attr = ConnectAttr::new();
        qp.init(&attr).unwrap();
        let here = qp.control().endpoint(7, &attr).unwrap();
        qp.connect(&here, &here, &attr).unwrap();
        qp.recv(pd.pool(1, 64).unwrap().get().unwrap()).unwrap();
        let mut before = Sample::empty();
        hcas.iter().for_each(|hca| before.add_software(hca));
        qp.send_inline(b"x").unwrap();
        hcas[0].run();
        let mut now = Sample::empty();
        hcas.iter().for_each(|hca| now.add_software(hca));

        let device = &now.devices[0];
        assert_eq!((device.name.as_str(), device.ports[0].state.as_str()), ("hca0", "ACTIVE"));
        assert_eq!(device.ports[0].counters.get("sent_pkts"), Some(&2));
        let own = device.qps.as_ref().unwrap().iter().find(|other| other.number == qp.qp_num()).unwrap();
        assert_eq!(
            (own.type_name(), own.state_name(), own.remote),
            ("RC".into(), "RTS".into(), Some(qp.qp_num()))
        );
        assert_eq!((own.sq_psn, own.rq_psn), (Some(8), Some(8)));
        let rates = now.rates_since(&before);
        let qp_rates = rates.devices[0].qps.iter().find(|rates| rates.number == qp.qp_num()).unwrap();
        assert!(qp_rates.packets_out > Some(0.0) && qp_rates.packets_in > Some(0.0));
        assert_eq!(rates.devices[1].ports[0].counters.get("sent_pkts"), Some(&0.0));

        hcas[1].set_link_up(false);
        let answers: Vec<_> = hcas.iter().map(|hca| format!("ok {} {}", hca.name(), hca.stat())).collect();
        let (result, there) = read(&answers);
        result.unwrap();
        assert_eq!(there.devices.len(), 2);
        assert_eq!(there.devices[0].ports, now.devices[0].ports);
        assert_eq!(there.devices[0].qps.as_ref().unwrap(), now.devices[0].qps.as_ref().unwrap());
        assert_eq!(
            (there.devices[1].name.as_str(), there.devices[1].ports[0].state.as_str()),
            ("hca1", "DOWN")
        );
    }

    /// A program may have devices of another model.
    #[cfg(feature = "efa-device")]
    #[test]
    fn software_efas_have_samples() {
        let fabric = uverbs_efa_device::Fabric::deterministic(1);
        let efa = fabric.device("efa0").build();
        let ctx = crate::open(efa.open()).unwrap();
        let (pd, cq) = (ctx.alloc_pd().unwrap(), ctx.cq(64).unwrap());
        let qp = pd.qp::<crate::Srd>().cq(&cq).depth(4, 4).create().unwrap();
        let mut here = Sample::empty();
        here.add_software(&efa);
        let own = &here.devices[0].qps.as_ref().unwrap()[0];
        assert_eq!((own.number, own.type_name(), own.remote), (qp.qp_num(), "DRIVER".into(), None));
        let (result, there) = read(&[format!("ok efa0 {}", efa.stat())]);
        result.unwrap();
        assert_eq!(there.devices[0].ports, here.devices[0].ports);
        assert_eq!(there.devices[0].qps.as_ref().unwrap(), here.devices[0].qps.as_ref().unwrap());
        let ctx = crate::open("efa9").unwrap();
        let mut sample = Sample::empty();
        sample.add_opened();
        assert!(sample.devices.iter().any(|device| device.name == ctx.name()));
    }

    #[test]
    fn devices_that_were_opened_by_name() {
        let ctx = crate::open("hca7").unwrap();
        let mut sample = Sample::empty();
        sample.add_opened();
        assert!(sample.devices.iter().any(|device| device.name == ctx.name()));
    }

    #[test]
    fn other_programs_are_errors() {
        for answer in ["", "ok", "ok hca0", "ok hca0 up 1 2", "error no such device", "220 mail.example.org"]
        {
            let (result, sample) = read(&[answer.to_owned()]);
            assert!(matches!(result, Err(Error::Protocol { .. })), "{answer}: {result:?}");
            assert!(sample.devices.is_empty());
        }
        let nobody = Sample::empty().add_control(Path::new("/nonexistent/control")).unwrap_err();
        assert_eq!(nobody.errno(), Errno::ENOENT);
        // One that does not answer.
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        let _listener = UnixListener::bind(&path).unwrap();
        assert_eq!(Sample::empty().add_control_within(&path, SHORT).unwrap_err().errno(), Errno::ETIMEDOUT);
    }

    #[test]
    fn an_answer_without_an_end_has_a_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        let listener = UnixListener::bind(&path).unwrap();
        let program = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            // At most as long as a test may take.
            for _ in 0..600 {
                if stream.write_all(b"x").is_err() {
                    return;
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        let begin = std::time::Instant::now();
        assert_eq!(Sample::empty().add_control_within(&path, SHORT).unwrap_err().errno(), Errno::ETIMEDOUT);
        assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
        program.join().unwrap();
    }
}
