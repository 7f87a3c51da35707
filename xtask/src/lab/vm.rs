// SPDX-License-Identifier: MIT OR Apache-2.0
//! One boot of the VM: starts it, passes its output on while it runs, and returns its outcome.

use super::console;
use super::device::{self, Device, Hca, Wire};
use super::guest::{self, Share, Task};
use super::kernel::{Kernel, Series};
use super::port::{self, Event, Monitor, Port};
use super::qemu::{Boot, Machine, Qemu, Running};
use super::userland::Userland;
use super::{HOME_SUITE, Lab};
use anyhow::{Context, Result, bail};
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Instant;

/// The guest to boot, and its task.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    /// The kernel.
    pub(crate) series: Series,
    /// The RDMA devices.
    pub(crate) device: Device,
    /// The suite of the C tools.
    pub(crate) peers: String,
    /// The suite of QEMU, if not the one that the devices need.
    pub(crate) qemu: Option<String>,
    /// Whether busybox is to be the only userland.
    pub(crate) bare: bool,
    /// CPUs and memory.
    pub(crate) machine: Machine,
    /// The hard limit for boot and task together.
    pub(crate) timeout: Duration,
    /// Files to bring along.
    pub(crate) shares: Vec<Share>,
    /// Variables for the task, besides the lab's own.
    pub(crate) env: Vec<(String, String)>,
    /// Kernel arguments, besides the lab's own.
    pub(crate) append: String,
    /// The task.
    pub(crate) task: Task,
    /// Whether to keep the console's log after a success, too.
    pub(crate) keep_log: bool,
    /// The connection with another VM.
    pub(crate) wire: Option<Wire>,
}

impl Spec {
    /// A guest with the usual peers and size.
    pub(crate) fn new(series: Series, device: Device, task: Task) -> Self {
        Self {
            series,
            device,
            peers: HOME_SUITE.into(),
            qemu: None,
            bare: false,
            machine: Machine { smp: 2, mem: 1024 },
            timeout: Duration::from_secs(120),
            shares: Vec::new(),
            env: Vec::new(),
            append: String::new(),
            task,
            keep_log: false,
            wire: None,
        }
    }
}

/// How a guest ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The command ended with this status.
    Exit(u8),
    /// The time limit struck.
    Timeout,
    /// The lab or the guest's kernel failed; the reason was printed to stderr.
    Broken,
}

impl Outcome {
    /// The status that our own process ends with: the command's, or as timeout(1) has it 124 and 125.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Exit(code) => code,
            Self::Timeout => 124,
            Self::Broken => 125,
        }
    }
}

/// All that a boot needs, on disk.
pub(crate) struct Parts {
    qemu: Qemu,
    kernel: Kernel,
    userland: PathBuf,
}

impl Parts {
    /// Fetches and builds what is not there yet.
    pub(crate) fn prepare(lab: &Lab, spec: &Spec) -> Result<Self> {
        let _lock = lab.lock()?;
        let qemu = Qemu::prepare(lab, spec.qemu.as_deref().unwrap_or(spec.device.qemu_suite()))?;
        let kernel = spec.series.prepare(lab, &Userland::host_tools(lab)?)?;
        let userland = Userland::prepare(lab, &spec.peers)?;
        Ok(Self { qemu, kernel, userland: if spec.bare { userland.bare } else { userland.image } })
    }

    fn initramfs(&self, spec: &Spec) -> Result<Vec<u8>> {
        let read = |path: &Path| fs::read(path).with_context(|| format!("cannot read {}", path.display()));
        let mut image = read(&self.userland)?;
        image.extend(read(&self.kernel.modules)?);
        image.extend(guest::part(spec)?);
        Ok(image)
    }
}

/// A directory for one boot's files, which is removed at the end unless it is needed for a diagnosis.
struct RunDir {
    path: PathBuf,
    keep: bool,
}

impl RunDir {
    fn new(lab: &Lab, series: Series) -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("{}-{}-{}", series.name, process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let runs = lab.path("run");
        forget_old(&runs);
        let path = runs.join(name);
        fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self { path, keep: false })
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        // The initramfs is large and can be made again; of the rest, only the log is of interest.
        let _ = if self.keep {
            fs::remove_file(self.path.join("initrd"))
        } else {
            fs::remove_dir_all(&self.path)
        };
    }
}

/// Removes what runs of former days left behind; not worth an error.
fn forget_old(runs: &Path) {
    for entry in fs::read_dir(runs).into_iter().flatten().flatten() {
        let age = entry.metadata().ok().and_then(|meta| meta.modified().ok()?.elapsed().ok());
        if age.is_some_and(|age| age > Duration::from_secs(24 * 3600)) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// A guest that has not come up after this long never will, however busy this machine is.
const BOOT_LIMIT: Duration = Duration::from_secs(180);

/// How often a boot is tried. Emulation is slow enough to meet races on the way up that hardware hardly does; the
/// task has not begun then, so it does no harm to begin again.
const BOOT_TRIES: u32 = 3;

/// Boots a guest and passes its command's streams on to ours.
pub(crate) fn run(lab: &Lab, spec: &Spec) -> Result<Outcome> {
    let parts = Parts::prepare(lab, spec)?;
    let start = Instant::now();
    let mut dir = RunDir::new(lab, spec.series)?;
    fs::write(dir.path.join("initrd"), parts.initramfs(spec)?).context("cannot write the initramfs")?;
    lab.detail(format!("initramfs made in {:.2} s", start.elapsed().as_secs_f32()));

    let mut tried = 1;
    let ending = loop {
        match boot(lab, spec, &parts, &dir.path)? {
            Ending::Stuck | Ending::Gone { up: false } if tried < BOOT_TRIES => {
                let log = dir.path.join(format!("boot-{tried}.log"));
                fs::rename(dir.path.join("console.log"), &log).context("cannot keep the console's log")?;
                if spec.device != Device::Rxe {
                    let log = dir.path.join(format!("boot-{tried}.{}", Hca::LOG));
                    fs::rename(dir.path.join(Hca::LOG), log).context("cannot keep the devices' log")?;
                }
                lab.say(format!("note: the guest did not come up, trying again (see {})", log.display()));
                dir.keep = true;
                tried += 1;
            }
            ending => break ending,
        }
    };

    let console = dir.path.join("console.log");
    let log = String::from_utf8_lossy(&fs::read(&console).unwrap_or_default()).into_owned();
    if lab.verbose() {
        eprintln!("--- console ---\n{}\n---", log.trim_end());
    }
    if let Some(warning) = console::warning(&log) {
        lab.say(format!("note: the guest's kernel warned: {warning}"));
        dir.keep = true;
    }
    let hca = devices_log(spec, &dir.path);
    let complaints = hca.as_deref().map(device::complaints).unwrap_or_default();
    let (outcome, message) = match ending {
        Ending::Exit(0) if !complaints.is_empty() => {
            (Outcome::Broken, Some(format!("THE DEVICES COMPLAINED:\n{}", complaints.join("\n"))))
        }
        Ending::Exit(code) => (Outcome::Exit(code), None),
        Ending::Timeout => (
            Outcome::Timeout,
            Some(format!("TIMEOUT: the guest was stopped after {} s", spec.timeout.as_secs())),
        ),
        Ending::Stuck => (Outcome::Broken, Some(format!("THE GUEST DID NOT BOOT, {tried} times"))),
        Ending::Failed(why) => (Outcome::Broken, Some(format!("GUEST SETUP FAILED: {why}"))),
        Ending::Gone { .. } => (Outcome::Broken, Some(console::verdict(&log).to_owned())),
        Ending::Devices(how) => (Outcome::Broken, Some(format!("THE DEVICES' PROCESS ENDED: {how}"))),
    };
    if let Some(message) = &message {
        dir.keep = true;
        lab.say(format!("{message} (kernel {}, {})", parts.kernel.version, spec.device.label()));
    }
    // With devices of our own, a command's failure may be theirs.
    let failed = message.is_some() || (hca.is_some() && outcome != Outcome::Exit(0));
    if failed && !lab.verbose() {
        eprintln!("--- end of the guest's console ---\n{}\n---", console::tail(&log, 70));
    }
    if let Some(hca) = hca
        && (failed || lab.verbose())
    {
        dir.keep = true;
        eprintln!("--- end of the devices' log ---\n{}\n---", console::tail(&hca, 70));
    }
    dir.keep |= spec.keep_log;
    if dir.keep {
        lab.say(format!("the console's log is {}", console.display()));
    }
    lab.detail(format!("kernel {}, {:.1} s in all", parts.kernel.version, start.elapsed().as_secs_f32()));
    Ok(outcome)
}

/// The log of the devices' process, if there is one.
fn devices_log(spec: &Spec, dir: &Path) -> Option<String> {
    let bytes = (spec.device != Device::Rxe).then(|| fs::read(dir.join(Hca::LOG)).unwrap_or_default())?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Why a boot ended.
enum Ending {
    Exit(u8),
    Timeout,
    /// The links were not up in time.
    Stuck,
    Failed(String),
    /// The process of the devices ended by itself.
    Devices(String),
    /// QEMU ended by itself, so the guest's kernel rebooted, before or after the links were up.
    Gone {
        up: bool,
    },
}

/// One boot, from start to end. The initramfs is in `dir`, the console's log will be.
fn boot(lab: &Lab, spec: &Spec, parts: &Parts, dir: &Path) -> Result<Ending> {
    let start = Instant::now();
    let (events, received) = channel();
    let ctl = Port::listen("ctl", move |stream| port::control(stream, &events))?;
    let out = Port::listen("out", |stream| port::copy(stream, std::io::stdout()))?;
    let err = Port::listen("err", |stream| port::copy(stream, std::io::stderr()))?;
    let monitor = Monitor::listen()?;
    let console = dir.join("console.log");
    let hca = spec.device.start(dir, spec.wire.as_ref())?;
    let boot = Boot {
        kernel: &parts.kernel.image,
        initrd: &dir.join("initrd"),
        console: &console,
        dir,
        vfio_user: if hca.is_some() { &Hca::SOCKETS } else { &[] },
        wires: if hca.is_some() { &[("hca", Hca::CONTROL)] } else { &[] },
        ports: [&ctl, &out, &err].map(|port| (port.name, port.socket.clone())).to_vec(),
        monitor: monitor.socket(),
        network: spec.wire.as_ref().map(Wire::network),
        append: &spec.append,
        terminal: matches!(spec.task, Task::Shell),
    };
    let mut qemu = parts.qemu.start(spec.machine, &boot)?;
    let deadline = (!boot.terminal).then(|| start + spec.timeout);
    let mut ending = watch(lab, &mut qemu, &received, deadline, start)?;
    if matches!(ending, Ending::Stuck | Ending::Timeout) {
        let state = monitor.where_cpus_are();
        let mut log =
            fs::File::options().append(true).open(&console).context("cannot open the console's log")?;
        writeln!(log, "{state}").context("cannot write to the console's log")?;
    }
    qemu.kill();
    if let Some(how) = hca.map(Hca::end).transpose()?.flatten() {
        ending = Ending::Devices(how);
    }
    for port in [out, err, ctl] {
        port.finish();
    }
    monitor.finish();
    Ok(ending)
}

/// Handles messages of the guest until its task ends, it exits, or the time limit is reached.
fn watch(
    lab: &Lab,
    qemu: &mut Running,
    events: &Receiver<Event>,
    deadline: Option<Instant>,
    start: Instant,
) -> Result<Ending> {
    let mut up = false;
    loop {
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Ok(Ending::Timeout);
        }
        if !up && start.elapsed() >= BOOT_LIMIT {
            return Ok(Ending::Stuck);
        }
        let line = match events.recv_timeout(Duration::from_millis(100)) {
            Ok(Event::Line(line)) => line,
            other => {
                // The port closes with QEMU, which then takes a moment to end.
                if !matches!(other, Err(RecvTimeoutError::Timeout)) {
                    std::thread::sleep(Duration::from_millis(20));
                }
                if qemu.ended()?.is_some() {
                    return Ok(Ending::Gone { up });
                }
                continue;
            }
        };
        let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
        match word {
            "note" => lab.detail(rest),
            "up" => {
                up = true;
                let here = start.elapsed().as_secs_f32();
                lab.detail(format!("links up after {rest} s of guest time, {here:.1} s here"));
            }
            "fail" => return Ok(Ending::Failed(rest.to_owned())),
            "exit" => match rest.parse() {
                Ok(code) => return Ok(Ending::Exit(code)),
                Err(_) => bail!("the guest reported the status `{rest}`"),
            },
            _ => bail!("unexpected line `{line}` of the guest on the control port"),
        }
    }
}
