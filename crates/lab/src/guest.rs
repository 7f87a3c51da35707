// SPDX-License-Identifier: MIT OR Apache-2.0
//! The programs inside the VM: the init script, its helpers, and the small part of the initramfs that is generated for
//! each boot.
//!
//! The environment of a command:
//!
//! | variable | value |
//! |---|---|
//! | `LAB_KERNEL` | the series, e.g. `6.1` |
//! | `LAB_DEVICE`, `LAB_LINK` | `rxe`, `siw`, `mlx5` or `efa`; `roce`, `iwarp`, `ib` or `efa` |
//! | `LAB_MKEYS` | how the kernel registers memory with mlx5: with firmware commands (`command`), or with its own UMR queue (`umr`) |
//! | `LAB_DEV_A`, `LAB_DEV_B` | the RDMA devices at the ends of the link |
//! | `LAB_IP_A`, `LAB_IP_B` | their IP addresses; empty on InfiniBand and EFA |
//! | `LAB_GID_INDEX` | the index, on both devices, of the GID derived from that address; on InfiniBand, iWARP and EFA that of the port's own GID |
//! | `LAB_NETDEV_A`, `LAB_NETDEV_B` | their network devices; empty on InfiniBand and EFA |
//! | `LAB_NS_A`, `LAB_NS_B` | a command prefix that enters the end's network namespace; empty if both ends share a namespace |
//! | `LAB_TCP_HOST_A`, `LAB_TCP_HOST_B` | the address of a TCP server that was started with that prefix; the connection does not use the RDMA link |
//! | `LAB_TCP_HOST` | the value of `LAB_TCP_HOST_A` |
//! | `LAB_SIDE` | the number of this guest of a pair, 1 or 2 |
//! | `LAB_ADDRESS`, `LAB_PEER` | in a pair, the addresses of this guest and of the other one on the network between them; the names `lab1` and `lab2` are in `/etc/hosts` |
//! | `LAB_BARE` | `1` in the bare guest, otherwise not set |
//!
//! The full guest has these helpers in `/usr/bin`: `lab-link up|down A|B`, `lab-netem A|B off|ARGS...`, `lab-counters`,
//! and with mlx5 and EFA `lab-hca`, and `lab-mlx5-up` or `lab-efa-up`.

use crate::beside::Wire;
use crate::cpio::Cpio;
use crate::device::{Device, Kind, Link};
use crate::kernel::Series;
use crate::vm::Spec;
use anyhow::{Context, Result};
use std::path::PathBuf;

const INIT: &str = include_str!("../guest/init.sh");
const HELPERS: [(&str, &str); 4] = [
    ("lab-link", include_str!("../guest/lab-link.sh")),
    ("lab-netem", include_str!("../guest/lab-netem.sh")),
    ("lab-hca", include_str!("../guest/lab-hca.sh")),
    ("lab-counters", include_str!("../guest/lab-counters.sh")),
];

/// A file or directory of the host that is copied to the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// The path on the host.
    pub host: PathBuf,
    /// The absolute path in the guest.
    pub guest: String,
}

impl core::str::FromStr for Share {
    type Err = anyhow::Error;

    /// `HOST[:GUEST]`; without `GUEST` it goes to `/usr/bin` under its own name.
    fn from_str(text: &str) -> Result<Self> {
        let (host, guest) = match text.rsplit_once(':') {
            Some((host, guest)) if guest.starts_with('/') => (host, guest.to_owned()),
            Some(_) => anyhow::bail!("the guest's path in `{text}` must be absolute"),
            None => {
                let name = PathBuf::from(text);
                let name = name.file_name().with_context(|| format!("`{text}` has no file name"))?;
                (text, format!("/usr/bin/{}", name.to_string_lossy()))
            }
        };
        Ok(Self { host: host.into(), guest })
    }
}

/// The task of a guest.
#[derive(Clone, Debug)]
pub enum Task {
    /// Run this program with its arguments.
    Command(Vec<String>),
    /// Give the user a shell on the terminal of this process.
    Shell,
}

impl Task {
    /// A program with its arguments.
    pub fn command<W: Into<String>>(words: impl IntoIterator<Item = W>) -> Self {
        Self::Command(words.into_iter().map(Into::into).collect())
    }
}

/// The environment of the guest, as variables.
fn environment(
    series: Series,
    device: &Device,
    bare: bool,
    wire: Option<&Wire>,
) -> Vec<(&'static str, String)> {
    // On newer kernels, each rxe device has its own network namespace.
    let (ns, tcp) = match (series.namespaces && *device == Device::Rxe, bare) {
        (false, _) => (["", ""], ["127.0.0.1", "127.0.0.1"]),
        // By path, because a busybox shell would use its built-in ip, which does not support namespaces.
        (true, false) => {
            (["/usr/bin/ip netns exec h1", "/usr/bin/ip netns exec h2"], ["10.0.1.1", "10.0.1.2"])
        }
        (true, true) => {
            (["nsenter --net=/run/netns/h1", "nsenter --net=/run/netns/h2"], ["10.0.1.1", "10.0.1.2"])
        }
    };
    let names = device.names();
    let (ips, netdevs) = match (device.link().has_network(), wire) {
        (false, _) => (["", ""], ["", ""]),
        // Both guests of a pair are on one link.
        (true, Some(Wire { side: 2, .. })) if device.link() == Link::Roce => {
            (["10.0.0.3", "10.0.0.4"], ["v0", "v1"])
        }
        (true, _) => (["10.0.0.1", "10.0.0.2"], ["v0", "v1"]),
    };
    let mut vars = vec![
        ("LAB_KERNEL", series.name),
        ("LAB_DEVICE", device.name()),
        ("LAB_LINK", device.link().name()),
        ("LAB_MKEYS", device.mkeys().name()),
        ("LAB_DEV_A", names[0]),
        ("LAB_DEV_B", names[1]),
        ("LAB_IP_A", ips[0]),
        ("LAB_IP_B", ips[1]),
        ("LAB_GID_INDEX", device.gid_index()),
        ("LAB_NETDEV_A", netdevs[0]),
        ("LAB_NETDEV_B", netdevs[1]),
        ("LAB_NS_A", ns[0]),
        ("LAB_NS_B", ns[1]),
        ("LAB_TCP_HOST_A", tcp[0]),
        ("LAB_TCP_HOST_B", tcp[1]),
        ("LAB_TCP_HOST", tcp[0]),
    ];
    if bare {
        vars.push(("LAB_BARE", "1"));
    }
    let mut vars: Vec<_> = vars.into_iter().map(|(name, value)| (name, value.to_owned())).collect();
    if let Some(Wire { side, .. }) = wire {
        vars.push(("LAB_SIDE", side.to_string()));
        vars.push(("LAB_ADDRESS", format!("10.0.2.{side}")));
        vars.push(("LAB_PEER", format!("10.0.2.{}", 3 - side)));
    }
    vars
}

/// The initramfs part of one boot: init, helpers, environment, the user's files and the task.
pub(crate) fn part(spec: &Spec, wire: Option<&Wire>) -> Result<Vec<u8>> {
    let Spec { bare, task, shares, .. } = spec;
    let mut cpio = Cpio::new();
    cpio.file("init", 0o755, INIT.as_bytes());
    if !*bare {
        for (name, text) in HELPERS {
            cpio.file(&format!("usr/bin/{name}"), 0o755, text.as_bytes());
        }
    }
    for (name, text) in Kind::ALL.into_iter().filter_map(Kind::script) {
        cpio.file(&format!("usr/bin/{name}"), 0o755, text.as_bytes());
    }
    let mut env = String::new();
    for (name, value) in environment(spec.series, &spec.device, *bare, wire) {
        env.push_str(&format!("export {name}={}\n", quoted(&value)));
    }
    for (name, value) in &spec.env {
        env.push_str(&format!("export {name}={}\n", quoted(value)));
    }
    match task {
        Task::Shell => env.push_str("LAB_SHELL=1\n"),
        Task::Command(words) => {
            let words: Vec<_> = words.iter().map(|word| quoted(word)).collect();
            cpio.file("lab/command", 0o644, format!("cd /root\nexec {}\n", words.join(" ")).as_bytes());
        }
    }
    cpio.file("lab/env", 0o644, env.as_bytes());
    for share in shares {
        cpio.copy(&share.guest, &share.host).with_context(|| format!("--file {}", share.host.display()))?;
    }
    Ok(cpio.finish())
}

/// A word as the shell takes it literally.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Mkeys;

    #[test]
    fn words_survive_the_shell() {
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }

    #[test]
    fn shares_have_a_place() {
        let share: Share = "target/x/uverbs".parse().unwrap();
        assert_eq!(share.guest, "/usr/bin/uverbs");
        let share: Share = "a:/root/b".parse().unwrap();
        assert_eq!((share.host.to_str(), share.guest.as_str()), (Some("a"), "/root/b"));
        assert!("a:b".parse::<Share>().is_err());
    }

    #[test]
    fn the_contract_holds_on_every_kernel_and_device() {
        let mlx5 = |link| Device::Mlx5 { program: PathBuf::new(), link, mkeys: Mkeys::Umr };
        for series in Series::ALL {
            let efa = Device::Efa { program: PathBuf::new(), generation: 3 };
            for device in [Device::Rxe, Device::Siw, mlx5(Link::Ib), mlx5(Link::Roce), efa] {
                let env = environment(series, &device, false, None);
                let get = |name: &str| env.iter().find(|(n, _)| *n == name).map(|(_, v)| v.clone());
                assert_eq!(get("LAB_KERNEL").as_deref(), Some(series.name));
                assert_eq!(get("LAB_DEVICE").as_deref(), Some(device.name()));
                assert_eq!(get("LAB_MKEYS").as_deref(), Some(device.mkeys().name()));
                let apart = series.namespaces && device == Device::Rxe;
                assert_eq!(get("LAB_NS_A").unwrap().is_empty(), !apart);
                assert_eq!(
                    get("LAB_IP_A").unwrap().is_empty(),
                    matches!(device.link(), Link::Ib | Link::Efa)
                );
                assert_eq!(get("LAB_TCP_HOST"), get("LAB_TCP_HOST_A"));
                assert_eq!(get("LAB_SIDE"), None);
            }
        }
    }

    #[test]
    fn guests_of_a_pair_have_different_addresses() {
        let device = Device::Mlx5 { program: PathBuf::new(), link: Link::Roce, mkeys: Mkeys::Command };
        let [one, two] = [1, 2].map(|side| {
            environment(Series::ALL[0], &device, false, Some(&Wire { dir: String::new(), side }))
        });
        let get = |env: &[(&str, String)], name| env.iter().find(|(n, _)| *n == name).map(|(_, v)| v.clone());
        assert_eq!(get(&one, "LAB_ADDRESS"), get(&two, "LAB_PEER"));
        assert_eq!(get(&one, "LAB_PEER"), get(&two, "LAB_ADDRESS"));
        for name in ["LAB_SIDE", "LAB_ADDRESS", "LAB_IP_A", "LAB_IP_B"] {
            assert_ne!(get(&one, name), get(&two, name), "{name}");
        }
    }
}
