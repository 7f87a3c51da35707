// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command line options of a boot, for programs that run guests.

use crate::{Device, HOME_SUITE, Lab, Link, Mkeys, Outcome, Series, Share, Spec, Task};
use anyhow::{Result, ensure};
use core::time::Duration;
use std::path::PathBuf;
use std::time::Instant;

use crate::device::Selection;
pub use crate::device::{Kind as DeviceArg, Programs};

/// The options of a boot.
#[derive(clap::Args, Clone, Debug)]
pub struct BootArgs {
    /// Kernel: 6.1, 6.12, 7.2, or all (one after the other)
    #[arg(long, default_value = "6.1")]
    pub kernel: String,
    /// The RDMA devices: the kernel's software devices, or the kernel's mlx5 or efa driver on software NICs
    #[arg(long, value_enum, default_value_t = DeviceArg::Rxe)]
    pub device: DeviceArg,
    /// Link layer of the ports of mlx5 devices [default: ib for a command, all for the suite]
    #[arg(long, value_enum)]
    pub link: Option<LinkArg>,
    /// How the guest's kernel registers memory with mlx5 devices
    #[arg(long, value_enum, default_value_t = Mkeys::Command)]
    pub mkeys: Mkeys,
    /// Generation of EFA devices, 1 to 5: what they can do. Kernel 6.1 knows the first three [default: 3; 2 for `clients` of Debian 12]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=5))]
    pub generation: Option<u8>,
    /// Stop the guest after this number of seconds, including the boot [default: 120 for a command, 900 for the suite]
    #[arg(long, value_name = "SECS")]
    pub timeout: Option<u64>,
    /// CPUs of the guest
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub smp: u32,
    /// Memory of the guest in MiB [default: 1024 for a command, 2048 for the suite, which registers 1 GiB]
    #[arg(long, value_name = "MIB")]
    pub mem: Option<u32>,
    /// Copy a file or directory to the guest, to GUEST or to /usr/bin. A program must be static, or use no libraries
    /// other than libc, libgcc_s, libibverbs and librdmacm
    #[arg(long = "file", value_name = "HOST[:GUEST]")]
    pub files: Vec<Share>,
    /// Set a variable for the command
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = variable)]
    pub env: Vec<(String, String)>,
    /// Further kernel arguments, e.g. loglevel=8
    #[arg(long, value_name = "ARGS", default_value = "", allow_hyphen_values = true)]
    pub append: String,
    /// The Debian suite whose C tools and libc the guest has [default: bookworm; for `clients` that of the kernel]
    #[arg(long, value_name = "SUITE")]
    pub peers: Option<String>,
    /// The Debian suite whose QEMU is used [default: bookworm; forky for mlx5 and efa]
    #[arg(long, value_name = "SUITE")]
    pub qemu: Option<String>,
    /// Boot a guest with busybox, the kernel's modules and the files of --file only: no libc, no C tools
    #[arg(long)]
    pub bare: bool,
    /// Keep the log of the console also after a success
    #[arg(long)]
    pub keep_log: bool,
    /// Print timings and the guest's console
    #[arg(long, short)]
    pub verbose: bool,
}

/// The ports of `--link`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LinkArg {
    /// InfiniBand
    Ib,
    /// Ethernet
    Roce,
    /// InfiniBand and Ethernet, one after the other
    All,
}

impl LinkArg {
    const fn links(self) -> &'static [Link] {
        match self {
            Self::Ib => &[Link::Ib],
            Self::Roce => &[Link::Roce],
            Self::All => &Link::ALL,
        }
    }
}

/// Parses `NAME=VALUE`.
fn variable(text: &str) -> Result<(String, String)> {
    let (name, value) = text.split_once('=').unwrap_or((text, ""));
    let valid = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        && name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    ensure!(valid, "`{name}` is not a valid variable name");
    Ok((name.to_owned(), value.to_owned()))
}

impl BootArgs {
    /// The selected kernels.
    ///
    /// # Errors
    /// The lab has no such kernel.
    pub fn kernels(&self) -> Result<Vec<Series>> {
        if self.kernel == "all" { Ok(Series::ALL.to_vec()) } else { Ok(vec![Series::named(&self.kernel)?]) }
    }

    /// The Debian suite of the guest's C tools.
    pub fn peers(&self) -> &str {
        self.peers.as_deref().unwrap_or(HOME_SUITE)
    }

    /// The selected devices. `default` is used without `--link`; `program` returns the program of kinds that have one,
    /// see [`Device::Mlx5`].
    ///
    /// # Errors
    /// Options contradict each other, or `program` fails.
    pub fn devices(
        &self,
        default: LinkArg,
        program: impl FnOnce(DeviceArg) -> Result<PathBuf>,
    ) -> Result<Vec<Device>> {
        let links = self.link.map(LinkArg::links);
        let selection = Selection { links, mkeys: self.mkeys, generation: self.generation };
        self.device.devices(&selection, default.links(), program)
    }

    /// One boot of a kernel.
    pub fn spec(&self, series: Series, device: Device, task: Task) -> Spec {
        let mut spec = Spec::new(series, device, task);
        self.peers().clone_into(&mut spec.peers);
        spec.qemu.clone_from(&self.qemu);
        spec.bare = self.bare;
        spec.smp = self.smp;
        spec.mem = self.mem.unwrap_or(spec.mem);
        spec.timeout = self.timeout.map_or(spec.timeout, Duration::from_secs);
        spec.shares.clone_from(&self.files);
        spec.env.clone_from(&self.env);
        spec.append.clone_from(&self.append);
        spec.keep_log = self.keep_log;
        spec
    }

    /// Boots each selected kernel with each kind of devices, also after a failure. Returns the first outcome that is not a
    /// success.
    ///
    /// # Errors
    /// A guest cannot be started.
    pub fn run(&self, lab: &Lab, devices: &[Device], task: &Task) -> Result<Outcome> {
        let kernels = self.kernels()?;
        let several = kernels.len() * devices.len() > 1;
        let mut first = Outcome::Exit(0);
        for series in &kernels {
            for device in devices {
                let name = format!("kernel {}, {}", series.name, device.label());
                if several {
                    lab.say(&name);
                }
                let start = Instant::now();
                let outcome = lab.run(&self.spec(*series, device.clone(), task.clone()))?;
                if several {
                    let seconds = start.elapsed().as_secs_f32();
                    lab.say(format!("{name}: status {} after {seconds:.0} s", outcome.code()));
                }
                first = first.or(outcome);
            }
        }
        Ok(first)
    }

    /// Boots two guests on one fabric with each selected kernel, also after a failure. Returns the first outcome that is
    /// not a success.
    ///
    /// # Errors
    /// A guest cannot be started, or the devices are rxe or siw.
    pub fn pair(&self, lab: &Lab, devices: &[Device], task: &Task) -> Result<Outcome> {
        let mut first = Outcome::Exit(0);
        for series in self.kernels()? {
            for device in devices {
                let outcomes = lab.pair(&self.spec(series, device.clone(), task.clone()))?;
                for (side, outcome) in outcomes.into_iter().enumerate() {
                    let name = format!("kernel {}, {}, VM {}", series.name, device.label(), side + 1);
                    lab.say(format!("{name}: status {}", outcome.code()));
                    first = first.or(outcome);
                }
            }
        }
        Ok(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        boot: BootArgs,
    }

    fn parse(words: &[&str]) -> BootArgs {
        Cli::try_parse_from([&["lab"], words].concat()).map_err(|e| e.to_string()).unwrap().boot
    }

    #[test]
    fn defaults_are_those_of_a_spec() {
        let spec = parse(&[]).spec(Series::ALL[0], Device::Rxe, Task::Shell);
        let default = Spec::new(Series::ALL[0], Device::Rxe, Task::Shell);
        assert_eq!(format!("{spec:?}"), format!("{default:?}"));
    }

    #[test]
    fn variables_have_names() {
        assert_eq!(parse(&["--env", "A_1=b=c"]).env, [("A_1".to_owned(), "b=c".to_owned())]);
        assert!(variable("1=2").is_err());
        assert!(variable("a-b=2").is_err());
    }

    #[test]
    fn rxe_has_no_options_of_mlx5() {
        let program = |_| Ok(PathBuf::from("p"));
        assert_eq!(parse(&[]).devices(LinkArg::All, program).unwrap(), [Device::Rxe]);
        assert!(parse(&["--link", "ib"]).devices(LinkArg::All, program).is_err());
        assert_eq!(parse(&["--device", "siw"]).devices(LinkArg::All, program).unwrap(), [Device::Siw]);
        assert!(parse(&["--device", "siw", "--link", "roce"]).devices(LinkArg::All, program).is_err());
        assert!(parse(&["--mkeys", "umr"]).devices(LinkArg::All, program).is_err());
        let mlx5 = parse(&["--device", "mlx5", "--mkeys", "umr"]).devices(LinkArg::All, program).unwrap();
        assert_eq!(mlx5.iter().map(Device::label).collect::<Vec<_>>(), ["mlx5 ib umr", "mlx5 roce umr"]);
        let efa = parse(&["--device", "efa", "--generation", "2"]).devices(LinkArg::All, program).unwrap();
        assert_eq!(efa, [Device::Efa { program: "p".into(), generation: 2 }]);
        assert!(parse(&["--generation", "2"]).devices(LinkArg::All, program).is_err());
        assert!(parse(&["--device", "efa", "--mkeys", "umr"]).devices(LinkArg::All, program).is_err());
    }
}
