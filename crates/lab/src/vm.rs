// SPDX-License-Identifier: MIT OR Apache-2.0
//! One boot of a VM: starts it, passes its output on while it runs, and returns its outcome.

use crate::beside::{self, DeviceProcess, Wire};
use crate::cpio::Cpio;
use crate::device::{Device, Kind};
use crate::guest::{self, Share, Task};
use crate::kernel::{Kernel, Series};
use crate::port::{self, Event, Monitor, Port};
use crate::qemu::{Boot, Qemu, Running};
use crate::userland::Userland;
use crate::{HOME_SUITE, Lab, console};
use anyhow::{Context, Result, anyhow, bail, ensure};
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
#[non_exhaustive]
pub struct Spec {
    /// The kernel.
    pub series: Series,
    /// The RDMA devices.
    pub device: Device,
    /// The task.
    pub task: Task,
    /// The Debian suite of the guest's C programs and libc; [`HOME_SUITE`] by default.
    pub peers: String,
    /// The Debian suite of QEMU; by default, the one that the devices need.
    pub qemu: Option<String>,
    /// Whether the guest has busybox as its only user space, without a libc and without C programs.
    pub bare: bool,
    /// CPUs; 2 by default.
    pub smp: u32,
    /// Memory in MiB; 1024 by default.
    pub mem: u32,
    /// The time limit of boot and task together; 120 s by default. A shell has none.
    pub timeout: Duration,
    /// Files to copy to the guest. Programs must be static, or use no libraries other than libc, libgcc_s, libibverbs
    /// and librdmacm.
    pub shares: Vec<Share>,
    /// Variables for the task, after those of [`guest`].
    pub env: Vec<(String, String)>,
    /// Kernel arguments, after those of the lab.
    pub append: String,
    /// Whether the console's log is kept after a success, too.
    pub keep_log: bool,
    /// A file that gets a copy of the task's standard output; of the last boot, if there are several; of the first guest of
    /// a pair.
    pub copy: Option<PathBuf>,
}

impl Spec {
    /// A guest with the defaults.
    pub fn new(series: Series, device: Device, task: Task) -> Self {
        Self {
            series,
            device,
            peers: HOME_SUITE.into(),
            qemu: None,
            bare: false,
            smp: 2,
            mem: 1024,
            timeout: Duration::from_secs(120),
            shares: Vec::new(),
            env: Vec::new(),
            append: String::new(),
            task,
            keep_log: false,
            copy: None,
        }
    }
}

/// The result of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The command ended with this status.
    Exit(u8),
    /// The time limit was reached.
    Timeout,
    /// The lab or the guest's kernel failed; the reason was printed to stderr.
    Broken,
}

impl Outcome {
    /// The exit status for a process that runs a guest: that of the command, or as timeout(1) has them, 124 for the
    /// time limit and 125 for a failure of the lab.
    pub fn code(self) -> u8 {
        match self {
            Self::Exit(code) => code,
            Self::Timeout => 124,
            Self::Broken => 125,
        }
    }

    /// This outcome if it is a failure, otherwise `other`.
    #[cfg(feature = "cli")]
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        if self == Self::Exit(0) { other } else { self }
    }
}

/// The files that a boot needs.
pub(crate) struct Parts {
    qemu: Qemu,
    kernel: Kernel,
    userland: PathBuf,
    /// The module of the devices, if the kernel does not contain it: its name in the guest, and the file.
    module: Option<(String, PathBuf)>,
}

impl Parts {
    /// Fetches and builds the files that are not there yet.
    pub(crate) fn prepare(lab: &Lab, spec: &Spec) -> Result<Self> {
        let _lock = lab.lock()?;
        let qemu = Qemu::prepare(lab, spec.qemu.as_deref().unwrap_or(spec.device.qemu_suite()))?;
        let kernel = spec.series.prepare(lab, &Userland::host_tools(lab)?)?;
        let module = match spec.device.module() {
            Some(module) => {
                let dir = module.prepare(lab, spec.series, &kernel.version)?;
                Some((format!("lab/{}", module.file()), dir.join(module.file())))
            }
            None => None,
        };
        let userland = Userland::prepare(lab, &spec.peers)?;
        Ok(Self { qemu, kernel, userland: if spec.bare { userland.bare } else { userland.image }, module })
    }

    fn initramfs(&self, spec: &Spec, wire: Option<&Wire>) -> Result<Vec<u8>> {
        let read = |path: &Path| fs::read(path).with_context(|| format!("cannot read {}", path.display()));
        let mut image = read(&self.userland)?;
        image.extend(read(&self.kernel.modules)?);
        if let Some((name, module)) = &self.module {
            let mut cpio = Cpio::new();
            cpio.file(name, 0o644, &read(module)?);
            image.extend(cpio.finish());
        }
        image.extend(guest::part(spec, wire)?);
        Ok(image)
    }
}

/// A directory for one boot's files, which is removed at the end unless it is needed for a diagnosis.
struct RunDir {
    path: PathBuf,
    keep: bool,
}

impl RunDir {
    fn new(lab: &Lab, name: &str) -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("{name}-{}-{}", process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let runs = lab.path("run");
        forget_old(&runs);
        let path = runs.join(name);
        fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self { path, keep: false })
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        // The initramfs is large and can be built again. Of the other files, only the log is needed.
        let _ = if self.keep {
            fs::remove_file(self.path.join("initrd"))
        } else {
            fs::remove_dir_all(&self.path)
        };
    }
}

/// Removes the files that runs more than a day ago left; a failure is ignored.
fn forget_old(runs: &Path) {
    for entry in fs::read_dir(runs).into_iter().flatten().flatten() {
        let age = entry.metadata().ok().and_then(|meta| meta.modified().ok()?.elapsed().ok());
        if age.is_some_and(|age| age > Duration::from_secs(24 * 3600)) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// The time limit of a boot on a busy host.
const BOOT_LIMIT: Duration = Duration::from_secs(180);

/// The time limit for the thread of the control port to read the last lines after the end of QEMU, on a busy host.
const LAST_LINES: Duration = Duration::from_secs(10);

/// The number of attempts to boot. The kernel's boot has races that fail on slow emulated CPUs and hardly ever on
/// hardware. The task has not started at that point, so a second boot has no side effects.
const BOOT_TRIES: u32 = 3;

/// Boots two guests on one fabric.
pub(crate) fn pair(lab: &Lab, spec: &Spec) -> Result<[Outcome; 2]> {
    let device = &spec.device;
    ensure!(device.is_beside(), "only {} devices of two guests can be on one fabric", Kind::with_program());
    // The second device process waits a limited time for the first: both guests start at once.
    Parts::prepare(lab, spec)?;
    let sockets = RunDir::new(lab, "pair")?;
    let name = sockets.path.file_name().context("odd path")?.to_string_lossy();
    let second = Spec { copy: None, ..spec.clone() };
    let run = |side| {
        let spec = if side == 1 { spec } else { &second };
        run(lab, spec, Some(&Wire { dir: format!("../{name}"), side }))
    };
    let run = &run;
    let [first, second] = std::thread::scope(|scope| {
        let both = [1, 2].map(|side| scope.spawn(move || run(side)));
        both.map(|thread| thread.join().unwrap_or_else(|_| Err(anyhow!("a guest's thread panicked"))))
    });
    Ok([first?, second?])
}

/// Boots a guest and passes the output of its command on. With `wire`, it is one of two guests.
pub(crate) fn run(lab: &Lab, spec: &Spec, wire: Option<&Wire>) -> Result<Outcome> {
    let parts = Parts::prepare(lab, spec)?;
    let start = Instant::now();
    let mut dir = RunDir::new(lab, spec.series.name)?;
    fs::write(dir.path.join("initrd"), parts.initramfs(spec, wire)?).context("cannot write the initramfs")?;
    lab.detail(format!("initramfs made in {:.2} s", start.elapsed().as_secs_f32()));

    let mut tried = 1;
    let ending = loop {
        match boot(lab, spec, wire, &parts, &dir.path)? {
            ending @ (Ending::Stuck | Ending::Failed(_) | Ending::Gone { up: false })
                if tried < BOOT_TRIES =>
            {
                let why = if let Ending::Failed(why) = ending { why } else { "no message".into() };
                let log = dir.path.join(format!("boot-{tried}.log"));
                // The logs are missing if QEMU or the devices ended before they wrote anything.
                let _ = fs::rename(dir.path.join("console.log"), &log);
                let _ = fs::rename(
                    dir.path.join(DeviceProcess::LOG),
                    dir.path.join(format!("boot-{tried}.{}", DeviceProcess::LOG)),
                );
                let log = log.display();
                lab.say(format!("note: the guest did not come up ({why}), trying again (see {log})"));
                dir.keep = true;
                tried += 1;
            }
            ending => break ending,
        }
    };

    let console = dir.path.join("console.log");
    let log = String::from_utf8_lossy(&fs::read(&console).unwrap_or_default()).into_owned();
    if lab.verbose {
        eprintln!("--- console ---\n{}\n---", log.trim_end());
    }
    if let Some(warning) = console::warning(&log) {
        lab.say(format!("note: the guest's kernel warned: {warning}"));
        dir.keep = true;
    }
    let hca = devices_log(spec, &dir.path);
    let complaints = hca.as_deref().map(beside::complaints).unwrap_or_default();
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
    // The software devices may have caused the failure of the command.
    let failed = message.is_some() || (hca.is_some() && outcome != Outcome::Exit(0));
    if failed && !lab.verbose {
        eprintln!("--- end of the guest's console ---\n{}\n---", console::tail(&log, 70));
    }
    if let Some(hca) = hca
        && (failed || lab.verbose)
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
    let bytes =
        spec.device.is_beside().then(|| fs::read(dir.join(DeviceProcess::LOG)).unwrap_or_default())?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Why a boot ended.
enum Ending {
    Exit(u8),
    Timeout,
    /// The links were not up in time.
    Stuck,
    /// The guest's init reported an error before the links were up.
    Failed(String),
    /// The process of the devices ended too early.
    Devices(String),
    /// QEMU ended: the guest's kernel rebooted, before or after the links were up.
    Gone {
        up: bool,
    },
}

/// Writes to the standard output and to a file.
struct Tee {
    to: std::io::Stdout,
    file: Option<fs::File>,
}

impl Write for Tee {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.to.write(bytes)?;
        if let Some(file) = &mut self.file {
            file.write_all(&bytes[..written])?;
        }
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.to.flush()
    }
}

/// One boot, from start to end. The initramfs is in `dir`, the console's log will be.
fn boot(lab: &Lab, spec: &Spec, wire: Option<&Wire>, parts: &Parts, dir: &Path) -> Result<Ending> {
    let start = Instant::now();
    let (events, received) = channel();
    let ctl = Port::listen("ctl", move |stream| port::control(stream, &events))?;
    let file = spec.copy.as_deref().map(fs::File::create).transpose().context("cannot copy the output")?;
    let out = Port::listen("out", |stream| port::copy(stream, Tee { to: std::io::stdout(), file }))?;
    let err = Port::listen("err", |stream| port::copy(stream, std::io::stderr()))?;
    let monitor = Monitor::listen()?;
    let console = dir.join("console.log");
    let hca = spec.device.start(dir, wire)?;
    let boot = Boot {
        smp: spec.smp,
        mem: spec.mem,
        kernel: &parts.kernel.image,
        initrd: &dir.join("initrd"),
        console: &console,
        dir,
        vfio_user: if hca.is_some() { &DeviceProcess::SOCKETS } else { &[] },
        wires: if hca.is_some() { &[("hca", DeviceProcess::CONTROL)] } else { &[] },
        ports: [&ctl, &out, &err].map(|port| (port.name, port.socket.clone())).to_vec(),
        monitor: monitor.socket(),
        network: wire.map(Wire::network),
        append: &spec.append,
        terminal: matches!(spec.task, Task::Shell),
    };
    let mut qemu = parts.qemu.start(&boot)?;
    let deadline = (!boot.terminal).then(|| start + spec.timeout);
    let mut ending = watch(lab, &mut qemu, &received, deadline, start)?;
    if matches!(ending, Ending::Stuck | Ending::Timeout) {
        let state = monitor.where_cpus_are();
        let mut log =
            fs::File::options().append(true).open(&console).context("cannot open the console's log")?;
        writeln!(log, "{state}").context("cannot write to the console's log")?;
    }
    qemu.kill();
    if let Some(how) = hca.map(DeviceProcess::end).transpose()?.flatten() {
        ending = Ending::Devices(how);
    }
    for port in [out, err, ctl] {
        port.finish();
    }
    monitor.finish();
    Ok(ending)
}

/// Handles messages of the guest until its task ends, QEMU exits, or the time limit is reached.
fn watch(
    lab: &Lab,
    qemu: &mut Running,
    events: &Receiver<Event>,
    deadline: Option<Instant>,
    start: Instant,
) -> Result<Ending> {
    let mut up = false;
    let mut ended = false;
    loop {
        let line = match events.recv_timeout(if ended { LAST_LINES } else { Duration::from_millis(100) }) {
            Ok(Event::Line(line)) => line,
            Err(RecvTimeoutError::Timeout) if !ended => {
                // The last lines may not have been read yet, so the loop continues after the end of QEMU.
                ended = qemu.ended()?;
                if !ended && deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                    return Ok(Ending::Timeout);
                }
                if !ended && !up && start.elapsed() >= BOOT_LIMIT {
                    return Ok(Ending::Stuck);
                }
                continue;
            }
            // No more lines: QEMU has ended, or has closed the port, which it does at its end.
            Ok(Event::Closed) | Err(_) => return Ok(Ending::Gone { up }),
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
