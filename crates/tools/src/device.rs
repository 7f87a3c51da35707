// SPDX-License-Identifier: MIT OR Apache-2.0
//! Choosing a device by name, and opening it.

use crate::{limits, pcap};
use anyhow::{Context as _, Result, bail};
use std::path::Path;
use std::sync::OnceLock;
use uverbs::attr::{DriverQp, LinkLayer};
use uverbs::device::{DeviceInfo, NodeType, UverbsNode, devices};
use uverbs::efa::Efa;
use uverbs::efa_device;
use uverbs::mlx5::Mlx5;
use uverbs::{Context, Driver, DriverVisitor, open_with};
use uverbs_fabric::{Fabric, Model};
use uverbs_hca::Hca;

/// The code to run with an opened device, compiled for each driver.
pub(crate) trait Visitor {
    /// The result.
    type Out;
    /// Called with the two ends of a link, and with the device's attributes in sysfs. A device of the machine is both
    /// ends of a loopback. For the software HCA, the second end is another software HCA.
    fn visit<D: Driver>(self, ends: [Context<D>; 2], info: Option<DeviceInfo>) -> Self::Out;
}

/// Opens the device of that name; without a name, the first device that can be used.
pub(crate) fn open<V: Visitor>(name: Option<&str>, visitor: V) -> Result<V::Out> {
    struct Visit<V>(V, DeviceInfo);
    impl<V: Visitor> DriverVisitor for Visit<V> {
        type Out = V::Out;
        fn visit<D: Driver>(self, context: Context<D>) -> V::Out {
            self.0.visit([context.clone(), context], Some(self.1))
        }
    }
    if let Some(kind) = Software::of(name) {
        return kind.open(visitor);
    }
    let info = choose(name)?;
    Ok(open_with(&info.clone(), Visit(visitor, info))?)
}

/// The device of that name; without a name, the first device that can be used.
pub(crate) fn choose(name: Option<&str>) -> Result<DeviceInfo> {
    pick(devices()?, name)
}

/// Advice for a machine without devices.
pub(crate) const HINT: &str = "-d hca0 selects a software NIC in this process, -d efa0 a software EFA";

/// Name of the software HCA, which exists only in this process.
pub(crate) const SOFTWARE: &str = "hca0";

/// Name of the software EFA, which exists only in this process.
pub(crate) const SOFTWARE_EFA: &str = "efa0";

/// The kind of a software device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Software {
    /// A ConnectX.
    Hca,
    /// An EFA.
    Efa,
}

impl Software {
    /// The kind of the software device that the name selects. A device of the machine with this name takes precedence.
    pub(crate) fn of(name: Option<&str>) -> Option<Self> {
        let kind = match name? {
            SOFTWARE => Self::Hca,
            SOFTWARE_EFA => Self::Efa,
            _ => return None,
        };
        (!devices().is_ok_and(|all| all.iter().any(|d| Some(d.name.as_str()) == name))).then_some(kind)
    }

    /// Calls the visitor with two new devices of this process, which are connected to each other.
    pub(crate) fn here<V: Visitor>(self, visitor: V) -> Result<V::Out> {
        match self {
            Self::Hca => visit(software()?, visitor),
            Self::Efa => visit(software_efa()?, visitor),
        }
    }

    /// As [`here`](Self::here); but with one device as both ends if the environment selects a fabric of several processes.
    fn open<V: Visitor>(self, visitor: V) -> Result<V::Out> {
        match self {
            Self::Hca => match hca_of_fabric(Some(SOFTWARE))? {
                Some(hca) => one::<Mlx5, _>(Context::from_kernel(hca.open()), visitor),
                None => self.here(visitor),
            },
            Self::Efa => match std::env::var_os(FABRIC) {
                Some(socket) => {
                    let fabric: efa_device::Fabric = join(Some(Path::new(&socket)))?;
                    one::<Efa, _>(Context::from_kernel(fabric.device(SOFTWARE_EFA).build().open()), visitor)
                }
                None => self.here(visitor),
            },
        }
    }
}

fn visit<D: Driver, V: Visitor>(ends: [Context<D>; 2], visitor: V) -> Result<V::Out> {
    let info = software_info(&ends[0])?;
    Ok(visitor.visit(ends, Some(info)))
}

/// Calls the visitor with one software device as both ends.
fn one<D: Driver, V: Visitor>(context: uverbs::Result<Context<D>>, visitor: V) -> Result<V::Out> {
    let context = context?;
    visit([context.clone(), context], visitor)
}

/// Whether the name selects the software HCA.
pub(crate) fn is_software(name: Option<&str>) -> bool {
    Software::of(name) == Some(Software::Hca)
}

/// The socket of a fabric that several processes share.
const FABRIC: &str = "UVERBS_HCA_FABRIC";

/// The address of the host that the software HCA has, to exchange packets with devices outside of this process.
const UDP: &str = "UVERBS_HCA_UDP";

/// What flushes the fabric that this process has joined.
static JOINED: OnceLock<Box<dyn Fn() + Send + Sync>> = OnceLock::new();

/// Whether the name selects software devices on a fabric of this process, so that both ends are in it.
pub(crate) fn is_here(name: Option<&str>) -> bool {
    let is_udp = is_software(name) && std::env::var_os(UDP).is_some();
    Software::of(name).is_some() && std::env::var_os(FABRIC).is_none() && !is_udp
}

/// A fabric that reaches devices outside of this process: those of others that have met at the socket.
fn join<M: Model>(socket: Option<&Path>) -> Result<Fabric<M>> {
    let fabric = pcap::fabric(std::process::id().into())?;
    if let Some(socket) = socket {
        fabric.meet(socket).with_context(|| format!("cannot join the fabric at {}", socket.display()))?;
    }
    let joined = fabric.clone();
    // The process may end without dropping the fabric: see `flush`.
    let _ = JOINED.set(Box::new(move || joined.flush()));
    Ok(fabric)
}

/// Creates two software EFAs that are connected to each other, as [`software`] does.
pub(crate) fn software_efa() -> Result<[Context<Efa>; 2]> {
    let fabric: efa_device::Fabric = pcap::fabric(0)?;
    let open = || Context::from_kernel(fabric.device(SOFTWARE_EFA).build().open());
    Ok([open()?, open()?])
}

/// A software HCA on the fabric of several processes, or with an address of the host, or both.
fn on_fabric(socket: Option<&Path>, address: Option<&str>) -> Result<Hca> {
    let fabric: uverbs_hca::Fabric = join(socket)?;
    let device = fabric.device(SOFTWARE);
    match address {
        Some(address) => {
            let ip = address.parse().with_context(|| format!("{UDP}={address} is not an IP address"))?;
            device.build_udp(ip).with_context(|| format!("cannot use UDP port 4791 of {ip}"))
        }
        None => Ok(device.build()),
    }
}

/// The software HCA that reaches devices outside of this process, if the name and the environment select it.
pub(crate) fn hca_of_fabric(name: Option<&str>) -> Result<Option<Hca>> {
    let (socket, address) = (std::env::var_os(FABRIC), std::env::var_os(UDP));
    if !is_software(name) || socket.is_none() && address.is_none() {
        return Ok(None);
    }
    let address = address.map(|address| address.to_string_lossy().into_owned());
    on_fabric(socket.as_deref().map(Path::new), address.as_deref()).map(Some)
}

/// Sends packets that are still queued, as a NIC would when the program ends.
pub(crate) fn flush() {
    if let Some(flush) = JOINED.get() {
        flush();
    }
}

/// Creates two software HCAs that are connected to each other. Both have the name that selects them.
pub(crate) fn software() -> Result<[Context<Mlx5>; 2]> {
    let fabric: uverbs_hca::Fabric = pcap::fabric(0)?;
    let open = || Context::from_kernel(fabric.device(SOFTWARE).build().open());
    Ok([open()?, open()?])
}

/// The attributes that a real device has in sysfs.
pub(crate) fn software_info<D: Driver>(context: &Context<D>) -> Result<DeviceInfo> {
    let attr = context.query_device()?;
    let node = UverbsNode { name: "none".into(), path: "none".into(), dev: (0, 0), abi_version: 1 };
    let mut info = DeviceInfo::new(context.name(), Ok(node), "none");
    info.node_type = Some(NodeType::CA);
    info.node_guid = Some(attr.node_guid);
    info.sys_image_guid = Some(attr.sys_image_guid);
    info.node_desc = Some("a software device in this process".into());
    Ok(info)
}

/// The index of the GID that `option` requests, or the default: the port's best one on RoCE, and on devices with SRD, whose ports have
/// neither a LID nor a link layer. InfiniBand needs none.
pub(crate) fn gid_index<D: Driver>(
    context: &Context<D>,
    port_num: u8,
    (option, asked): (&str, Option<u8>),
) -> Result<Option<u8>> {
    if let Some(index) = asked {
        limits::gid(context, port_num, option, index)?;
        return Ok(asked);
    }
    let has_srd = context.driver_qp() == Some(DriverQp::Srd);
    if !has_srd && context.query_port(port_num)?.link_layer != LinkLayer::ETHERNET {
        return Ok(None);
    }
    Ok(u8::try_from(context.best_gid(port_num)?.gid_index).ok())
}

fn pick(devices: Vec<DeviceInfo>, name: Option<&str>) -> Result<DeviceInfo> {
    if let Some(name) = name {
        let names: Vec<_> = devices.iter().map(|d| d.name.clone()).collect();
        return match devices.into_iter().find(|d| d.name == name) {
            Some(device) => Ok(device),
            None if names.is_empty() => {
                bail!("no RDMA device {name}; the machine has no RDMA devices ({HINT})")
            }
            None => bail!("no RDMA device {name}; there are: {}", names.join(", ")),
        };
    }
    let reasons: Vec<_> =
        devices.iter().filter_map(|d| Some(format!("{}: {}", d.name, d.uverbs.as_ref().err()?))).collect();
    match devices.into_iter().find(|d| d.uverbs.is_ok()) {
        Some(device) => Ok(device),
        None if reasons.is_empty() => bail!("no RDMA devices found ({HINT})"),
        None => bail!("no RDMA device can be used: {}", reasons.join("; ")),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use uverbs::device::Unusable;

    /// A device with these attributes in sysfs.
    pub(crate) fn made_up(name: &str, uverbs: Result<(), Unusable>) -> DeviceInfo {
        let node = |()| UverbsNode {
            name: "uverbs0".into(),
            path: "/dev/infiniband/uverbs0".into(),
            dev: (231, 192),
            abi_version: 1,
        };
        let mut info = DeviceInfo::new(name, uverbs.map(node), "/nonexistent");
        info.node_type = Some(NodeType::CA);
        info.node_guid = Some(0x0011_22ff_fe33_4455);
        info.sys_image_guid = info.node_guid;
        info
    }

    #[test]
    fn the_first_usable_or_the_named_device_is_chosen() {
        let list = || vec![made_up("rxe0", Err(Unusable::NoUverbs)), made_up("rxe1", Ok(()))];
        assert_eq!(pick(list(), None).unwrap().name, "rxe1");
        assert_eq!(pick(list(), Some("rxe0")).unwrap().name, "rxe0");
        let error = pick(list(), Some("mlx5_0")).unwrap_err().to_string();
        assert_eq!(error, "no RDMA device mlx5_0; there are: rxe0, rxe1");
    }

    #[test]
    fn reasons_are_given_if_none_can_be_used() {
        let error = pick(vec![made_up("rxe0", Err(Unusable::NoUverbs))], None).unwrap_err().to_string();
        assert!(error.contains("rxe0: no uverbs device"), "{error}");
        for (name, expected) in [(None, "no RDMA devices found ("), (Some("rxe0"), "no RDMA device rxe0; ")] {
            let error = pick(Vec::new(), name).unwrap_err().to_string();
            assert!(error.starts_with(expected) && error.contains("-d hca0"), "{error}");
        }
    }
}
