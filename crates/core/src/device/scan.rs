// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scans the two device classes in sysfs.

use super::{DeviceInfo, Unusable, UverbsNode, parse};
use crate::errno::Errno;
use crate::error::{Error, Result};
use core::cmp::Ordering;
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::sys::stat::{SFlag, major, minor, stat};
use nix::unistd::{AccessFlags, faccessat};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Longer than any attribute; sysfs returns at most a page.
const MAX_FILE: u64 = 4096;

/// The directories of sysfs and of the device files. Tests use their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roots {
    /// `/sys`
    pub sysfs: PathBuf,
    /// `/dev/infiniband`
    pub dev: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self { sysfs: "/sys".into(), dev: "/dev/infiniband".into() }
    }
}

impl Roots {
    /// The RDMA devices found there; see [`devices`](super::devices).
    ///
    /// # Errors
    /// Only if sysfs exists and can't be read.
    pub fn devices(&self) -> Result<Vec<DeviceInfo>> {
        let mut nodes = self.nodes()?;
        let class = self.sysfs.join("class/infiniband");
        let mut devices = Vec::new();
        for entry in entries(&class)? {
            let Some(name) = parse::name(entry.as_bytes()) else { continue };
            let uverbs = nodes.remove(name).unwrap_or(Err(Unusable::NoUverbs));
            devices.push(device(name.to_owned(), class.join(name), uverbs));
        }
        // Device files whose device is hidden, or unknown.
        devices.extend(nodes.into_iter().map(|(name, uverbs)| {
            let sysfs = class.join(&name);
            device(name, sysfs, uverbs)
        }));
        devices.sort_by(|a, b| natural(&a.name, &b.name));
        Ok(devices)
    }

    /// The device files, by the name of their device.
    fn nodes(&self) -> Result<HashMap<String, Result<UverbsNode, Unusable>>> {
        let class = self.sysfs.join("class/infiniband_verbs");
        let mut nodes = HashMap::new();
        let mut names = entries(&class)?;
        // If a device has two files, which should not happen, the same one is always used.
        names.sort_by(|a, b| natural(b, a));
        for entry in names {
            // The class has a file `abi_version`, which is not a device.
            let Some(name) = parse::name(entry.as_bytes()).filter(|name| name.starts_with("uverbs")) else {
                continue;
            };
            let dir = class.join(name);
            let ibdev = read(&dir.join("ibdev")).unwrap_or_default();
            match parse::name(&ibdev) {
                Some(ibdev) => nodes.insert(ibdev.to_owned(), self.node(name, &dir)),
                None => nodes.insert(name.to_owned(), Err(Unusable::Malformed(format!("{name}/ibdev")))),
            };
        }
        Ok(nodes)
    }

    fn node(&self, name: &str, dir: &Path) -> Result<UverbsNode, Unusable> {
        let dev = read(&dir.join("dev")).ok().and_then(|bytes| parse::dev_number(&bytes));
        let dev = dev.ok_or_else(|| Unusable::Malformed(format!("{name}/dev")))?;
        let abi_version = read(&dir.join("abi_version")).ok().and_then(|bytes| parse::number(&bytes));
        let abi_version = abi_version.ok_or_else(|| Unusable::Malformed(format!("{name}/abi_version")))?;
        let path = self.dev.join(name);
        let status = match stat(&path) {
            Ok(status) => status,
            Err(nix::errno::Errno::ENOENT) => return Err(Unusable::NoNode(path)),
            Err(errno) => return Err(Unusable::Inaccessible(path, errno.into())),
        };
        let is_device = SFlag::from_bits_truncate(status.st_mode) & SFlag::S_IFMT == SFlag::S_IFCHR;
        let (major, minor) = (major(status.st_rdev), minor(status.st_rdev));
        if !is_device || (major, minor) != (dev.0.into(), dev.1.into()) {
            return Err(Unusable::WrongNode(path));
        }
        // Whether open(2) would be allowed to the effective user; opening would wake up a driver.
        match faccessat(AT_FDCWD, &path, AccessFlags::R_OK | AccessFlags::W_OK, AtFlags::AT_EACCESS) {
            Ok(()) => Ok(UverbsNode { name: name.to_owned(), path, dev, abi_version }),
            Err(errno) => Err(Unusable::Inaccessible(path, errno.into())),
        }
    }
}

fn device(name: String, sysfs: PathBuf, uverbs: Result<UverbsNode, Unusable>) -> DeviceInfo {
    let attribute = |file: &str| read(&sysfs.join(file)).ok();
    let text = |file: &str| attribute(file).and_then(|bytes| parse::text(&bytes));
    DeviceInfo {
        name,
        node_type: attribute("node_type").and_then(|bytes| parse::node_type(&bytes)),
        node_guid: attribute("node_guid").and_then(|bytes| parse::guid(&bytes)),
        sys_image_guid: attribute("sys_image_guid").and_then(|bytes| parse::guid(&bytes)),
        fw_ver: text("fw_ver"),
        hca_type: text("hca_type"),
        hw_rev: text("hw_rev"),
        board_id: text("board_id"),
        node_desc: text("node_desc"),
        modalias: attribute("device/modalias").and_then(|bytes| parse::modalias(&bytes)),
        pci_address: pci_address(&sysfs),
        // -1 is "no node" (`numa_node_show()`).
        numa_node: attribute("device/numa_node").and_then(|bytes| parse::number(&bytes)),
        netdev: netdev(&sysfs),
        uverbs,
        sysfs,
    }
}

/// The name of the directory that `device` links to, if it has the form of a PCI address (`pci_setup_device()`:
/// `%04x:%02x:%02x.%d`).
fn pci_address(sysfs: &Path) -> Option<String> {
    let target = fs::canonicalize(sysfs.join("device")).ok()?;
    let name = target.file_name()?.to_str()?;
    let is_hex = |part: &str, min: usize| part.len() >= min && part.bytes().all(|b| b.is_ascii_hexdigit());
    let (bus, function) = name.rsplit_once('.')?;
    let parts: Vec<_> = bus.split(':').collect();
    let [domain, bus, slot] = parts[..] else { return None };
    (is_hex(domain, 4) && is_hex(bus, 2) && is_hex(slot, 2) && is_hex(function, 1)).then(|| name.to_owned())
}

/// The interface of the first port's GID table (`gid_attrs/ndevs`), or that which a software device was created on (`parent` of rxe,
/// `device/net` of others). The entries of the table are read in order; some are empty.
fn netdev(sysfs: &Path) -> Option<String> {
    const GIDS: u32 = 16;
    let name = |path: PathBuf| read(&path).ok().and_then(|bytes| parse::name(&bytes).map(str::to_owned));
    let of_gid = |index| name(sysfs.join(format!("ports/1/gid_attrs/ndevs/{index}")));
    let below = || {
        let mut names = entries(&sysfs.join("device/net")).ok()?;
        names.sort_by(|a, b| natural(a, b));
        names.into_iter().next()
    };
    (0..GIDS).find_map(of_gid).or_else(|| name(sysfs.join("parent"))).or_else(below)
}

/// Names in a directory; a directory that does not exist has none. A name that is not UTF-8 is not a device.
fn entries(dir: &Path) -> Result<Vec<String>> {
    let refused = |e: &io::Error| Error::os("get_device_list", dir.display().to_string(), errno(e));
    let listing = match fs::read_dir(dir) {
        Ok(listing) => listing,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(refused(&e)),
    };
    let mut names = Vec::new();
    for entry in listing {
        names.extend(entry.map_err(|e| refused(&e))?.file_name().into_string());
    }
    Ok(names)
}

/// The first bytes of a file.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, Errno> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|e| errno(&e))?;
    file.take(MAX_FILE).read_to_end(&mut bytes).map_err(|e| errno(&e))?;
    Ok(bytes)
}

fn errno(e: &io::Error) -> Errno {
    Errno::from_raw(e.raw_os_error().unwrap_or(libc::EIO))
}

/// Order of names with numbers in them: `mlx5_2` before `mlx5_10`. It is a total order: only identical names are equal.
fn natural(a: &str, b: &str) -> Ordering {
    let (mut left, mut right) = (a.as_bytes(), b.as_bytes());
    while let (Some(&l), Some(&r)) = (left.first(), right.first()) {
        let order = if l.is_ascii_digit() && r.is_ascii_digit() {
            let (x, y) = (take_number(&mut left), take_number(&mut right));
            // Of numbers without leading zeros, the longer one is the larger one.
            x.len().cmp(&y.len()).then_with(|| x.cmp(y))
        } else {
            (left, right) = (&left[1..], &right[1..]);
            l.cmp(&r)
        };
        if order.is_ne() {
            return order;
        }
    }
    left.len().cmp(&right.len()).then_with(|| a.cmp(b))
}

/// Splits the leading digits off and returns them without leading zeros.
fn take_number<'a>(rest: &mut &'a [u8]) -> &'a [u8] {
    let end = rest.iter().position(|b| !b.is_ascii_digit()).unwrap_or(rest.len());
    let (number, tail) = rest.split_at(end);
    *rest = tail;
    let zeros = number.iter().position(|b| *b != b'0').unwrap_or(number.len());
    &number[zeros..]
}

#[cfg(test)]
mod tests {
    use super::super::{DriverMatch, Modalias, NodeType, PciId, TransportType};
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::fs::symlink;
    use tempfile::TempDir;

    /// A machine in a directory.
    struct Machine {
        _dir: TempDir,
        roots: Roots,
    }

    impl Machine {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let roots = Roots { sysfs: dir.path().join("sys"), dev: dir.path().join("dev") };
            fs::create_dir_all(&roots.dev).unwrap();
            Self { _dir: dir, roots }
        }

        fn write(&self, file: &str, content: impl AsRef<[u8]>) -> &Self {
            let path = self.roots.sysfs.join("class").join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
            self
        }

        /// A device with a device file, which is `/dev/null`: 1:3 everywhere.
        fn device(&self, name: &str, uverbs: &str) -> &Self {
            self.write(&format!("infiniband/{name}/node_type"), "1: CA\n")
                .write(&format!("infiniband/{name}/node_guid"), "5054:00ff:fe12:3456\n")
                .write(&format!("infiniband_verbs/{uverbs}/ibdev"), format!("{name}\n"))
                .write(&format!("infiniband_verbs/{uverbs}/dev"), "1:3\n")
                .write(&format!("infiniband_verbs/{uverbs}/abi_version"), "2\n");
            symlink("/dev/null", self.roots.dev.join(uverbs)).unwrap();
            self
        }

        fn devices(&self) -> Vec<DeviceInfo> {
            self.roots.devices().unwrap()
        }

        fn only(&self) -> DeviceInfo {
            let mut devices = self.devices();
            assert_eq!(devices.len(), 1, "{devices:?}");
            devices.remove(0)
        }
    }

    #[test]
    fn a_machine_without_rdma_has_no_devices() {
        assert_eq!(Machine::new().devices(), []);
        let nowhere = Roots { sysfs: "/nonexistent".into(), dev: "/nonexistent".into() };
        assert_eq!(nowhere.devices().unwrap(), []);
    }

    #[test]
    fn a_device_is_found_with_its_sysfs_attributes() {
        let machine = Machine::new();
        machine
            .device("mlx5_0", "uverbs3")
            .write("infiniband_verbs/abi_version", "6\n")
            .write("infiniband/mlx5_0/fw_ver", "20.31.1014\n")
            .write("infiniband/mlx5_0/hca_type", "MT4123\n")
            .write("infiniband/mlx5_0/board_id", "MT_0000000223\n")
            .write(
                "infiniband/mlx5_0/device/modalias",
                "pci:v000015B3d0000101Bsv000015B3sd00000008bc02sc07i00\n",
            )
            .write("infiniband/mlx5_0/hw_counters/x", "12\n");
        let device = machine.only();
        assert_eq!((device.name.as_str(), device.node_type), ("mlx5_0", Some(NodeType::CA)));
        assert_eq!(device.node_type.unwrap().transport(), TransportType::IB);
        assert_eq!(device.node_guid, Some(0x5054_00ff_fe12_3456));
        assert_eq!(
            (device.fw_ver.as_deref(), device.hca_type.as_deref()),
            (Some("20.31.1014"), Some("MT4123"))
        );
        assert_eq!(device.modalias, Some(Modalias::Pci(PciId { vendor: 0x15b3, device: 0x101b })));
        assert_eq!(device.sys_image_guid, None);
        let node = device.uverbs.clone().unwrap();
        assert_eq!((node.name.as_str(), node.dev, node.abi_version), ("uverbs3", (1, 3), 2));
        assert_eq!(device.sysfs_text("hw_counters/x").as_deref(), Some("12"));
        assert_eq!(device.sysfs_text("hw_counters/y"), None);
    }

    #[test]
    fn a_device_has_its_place_in_the_machine() {
        let machine = Machine::new();
        machine.device("mlx5_0", "uverbs0").device("rxe0", "uverbs1").device("siw0", "uverbs2");
        let pci = machine.roots.sysfs.join("devices/pci0000:3a/0000:3a:00.0/0000:3b:00.1");
        fs::create_dir_all(pci.join("net/ens3f1")).unwrap();
        fs::write(pci.join("numa_node"), "1\n").unwrap();
        symlink(&pci, machine.roots.sysfs.join("class/infiniband/mlx5_0/device")).unwrap();
        machine
            .write("infiniband/mlx5_0/ports/1/gid_attrs/ndevs/3", "ens3f1np1\n")
            .write("infiniband/rxe0/parent", "eth0\n")
            .write("infiniband/siw0/device/numa_node", "-1\n");
        let found: Vec<_> =
            machine.devices().into_iter().map(|d| (d.pci_address, d.numa_node, d.netdev)).collect();
        assert_eq!(
            found,
            [
                (Some("0000:3b:00.1".into()), Some(1), Some("ens3f1np1".into())),
                (None, None, Some("eth0".into())),
                (None, None, None),
            ]
        );
        // Without a GID: the interface of the same PCI function.
        fs::remove_file(machine.roots.sysfs.join("class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/3"))
            .unwrap();
        assert_eq!(machine.devices()[0].netdev.as_deref(), Some("ens3f1"));
    }

    #[test]
    fn an_unusable_device_is_listed_with_the_reason() {
        let machine = Machine::new();
        machine
            .write("infiniband/alone/node_type", "1: CA\n")
            .device("no_node", "uverbs0")
            .device("wrong_node", "uverbs1")
            .device("no_dev", "uverbs2")
            .device("no_abi", "uverbs4")
            .device("good", "uverbs9")
            .write("infiniband_verbs/uverbs1/dev", "1:5\n")
            .write("infiniband_verbs/uverbs2/dev", "\n")
            .write("infiniband_verbs/uverbs4/abi_version", "-1\n")
            .write("infiniband_verbs/uverbs5/ibdev", "../../etc\n");
        fs::remove_file(machine.roots.dev.join("uverbs0")).unwrap();
        let reasons: Vec<_> =
            machine.devices().into_iter().map(|d| (d.name, d.uverbs.err().map(|e| e.to_string()))).collect();
        let dev = machine.roots.dev.display();
        assert_eq!(
            reasons,
            [
                ("alone".into(), Some("no uverbs device (is ib_uverbs loaded?)".into())),
                ("good".into(), None),
                ("no_abi".into(), Some("invalid contents in sysfs: uverbs4/abi_version".into())),
                ("no_dev".into(), Some("invalid contents in sysfs: uverbs2/dev".into())),
                ("no_node".into(), Some(format!("no device file {dev}/uverbs0"))),
                ("uverbs5".into(), Some("invalid contents in sysfs: uverbs5/ibdev".into())),
                ("wrong_node".into(), Some(format!("{dev}/uverbs1 is not the device file of this device"))),
            ]
        );
    }

    #[test]
    fn a_regular_file_is_not_used_as_a_device_file() {
        let machine = Machine::new();
        machine.device("rxe0", "uverbs0");
        let path = machine.roots.dev.join("uverbs0");
        fs::remove_file(&path).unwrap();
        fs::write(&path, "").unwrap();
        assert_eq!(machine.only().uverbs, Err(Unusable::WrongNode(path)));
    }

    #[test]
    fn a_failed_open_reports_the_reason() {
        let machine = Machine::new();
        machine.device("rxe0", "uverbs0").write("infiniband/alone/node_type", "1: CA\n");
        let drivers = [DriverMatch { driver_id: 14, pci: |_| false }];
        let devices = machine.devices();
        assert!(devices[0].open(&drivers).unwrap_err().is_unsupported());
        // /dev/null has no ioctl.
        let error = devices[1].open(&drivers).unwrap_err();
        assert_eq!((error.verb(), error.errno().raw()), ("open_device", libc::ENOTTY), "{error}");
        assert!(devices[1].open(&[]).unwrap_err().is_unsupported());
    }

    #[test]
    fn pci_ids_select_the_driver_and_without_them_all_are_tried() {
        let drivers = [
            DriverMatch { driver_id: 1, pci: |id| id.vendor == 0x15b3 },
            DriverMatch { driver_id: 14, pci: |_| false },
        ];
        let machine = Machine::new();
        machine.device("a", "uverbs0");
        assert_eq!(machine.only().candidates(&drivers), [1, 14]);
        machine.write("infiniband/a/device/modalias", "pci:v000015B3d00001019sv0sd0bc02sc00i00\n");
        assert_eq!(machine.only().candidates(&drivers), [1]);
        machine.write("infiniband/a/device/modalias", "pci:v00001d0Fd0000EFA0sv0sd0bc02sc00i00\n");
        assert_eq!(machine.only().candidates(&drivers), [1, 14]);
    }

    #[test]
    fn the_list_is_sorted_by_name_and_number() {
        let machine = Machine::new();
        machine.device("mlx5_10", "uverbs0").device("mlx5_2", "uverbs1").device("bnxt_re0", "uverbs2");
        let names: Vec<_> = machine.devices().into_iter().map(|d| d.name).collect();
        assert_eq!(names, ["bnxt_re0", "mlx5_2", "mlx5_10"]);
    }

    #[test]
    fn a_file_that_never_ends_is_not_read_to_its_end() {
        let machine = Machine::new();
        machine.device("rxe0", "uverbs0");
        symlink("/dev/zero", machine.roots.sysfs.join("class/infiniband/rxe0/fw_ver")).unwrap();
        assert_eq!(machine.only().fw_ver, None);
    }

    proptest! {
        #[test]
        fn the_natural_order_is_total(a in "[a-c0-3_]{0,8}", b in "[a-c0-3_]{0,8}", c in "[a-c0-3_]{0,8}") {
            prop_assert_eq!(natural(&a, &b), natural(&b, &a).reverse());
            prop_assert_eq!(natural(&a, &b).is_eq(), a == b);
            if natural(&a, &b).is_le() && natural(&b, &c).is_le() {
                prop_assert!(natural(&a, &c).is_le());
            }
        }

    }

    proptest! {
        // Each case builds a machine.
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn invalid_attributes_never_fail_the_list(
            ibdev in prop::collection::vec(any::<u8>(), 0..80),
            dev in prop::collection::vec(any::<u8>(), 0..40),
            any_text in prop::collection::vec(any::<u8>(), 0..400),
        ) {
            let machine = Machine::new();
            machine
                .device("rxe0", "uverbs0")
                .write("infiniband_verbs/uverbs0/ibdev", ibdev)
                .write("infiniband_verbs/uverbs0/dev", dev)
                .write("infiniband/rxe0/node_type", &any_text)
                .write("infiniband/rxe0/node_guid", &any_text)
                .write("infiniband/rxe0/device/modalias", &any_text)
                .write("infiniband/rxe0/fw_ver", &any_text);
            let devices = machine.devices();
            prop_assert!((1..=2).contains(&devices.len()));
        }
    }
}
