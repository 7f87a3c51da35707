// SPDX-License-Identifier: MIT OR Apache-2.0
//! Choosing a device by name, and opening it.

use crate::{limits, pcap};
use anyhow::{Context as _, Result, bail};
use std::path::Path;
use std::sync::OnceLock;
use uverbs::attr::{DriverQp, LinkLayer};
use uverbs::device::{DeviceInfo, NodeType, UverbsNode, devices};
use uverbs::software::{self, Fabric, MODELS, Model};
use uverbs::{Context, Driver, DriverVisitor, open_with};

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
    if let Some(software) = Software::of(name) {
        return software.open(visitor);
    }
    let info = choose(name)?;
    Ok(open_with(&info.clone(), Visit(visitor, info))?)
}

/// The device of that name; without a name, the first device that can be used.
pub(crate) fn choose(name: Option<&str>) -> Result<DeviceInfo> {
    pick(devices()?, name)
}

/// Advice for a machine without devices.
pub(crate) fn hint() -> String {
    let of = |(n, model): (usize, &Model)| match n {
        0 => format!("-d {} selects {} in this process", model.name(0), model.what()),
        _ => format!("-d {} {}", model.name(0), model.what()),
    };
    MODELS.iter().enumerate().map(of).collect::<Vec<_>>().join(", ")
}

/// The software devices that a name selects, which exist only in this process. All of them have that name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Software(Model);

impl Software {
    /// The software devices that the name selects: the first of a model. A device of the machine with this name takes precedence.
    pub(crate) fn of(name: Option<&str>) -> Option<Self> {
        let name = name?;
        let model = MODELS.iter().copied().find(|model| model.name(0) == name)?;
        (!devices().is_ok_and(|all| all.iter().any(|device| device.name == name))).then_some(Self(model))
    }

    /// Those that the name selects, or else those of the first model.
    pub(crate) fn of_or_first(name: Option<&str>) -> Result<Self> {
        let first = || MODELS.first().copied().map(Self);
        Self::of(name).or_else(first).context("this build has no software devices")
    }

    /// Calls the visitor with two new devices of this process, which are connected to each other.
    pub(crate) fn here<V: Visitor>(self, visitor: V) -> Result<V::Out> {
        ends(&self.two()?, visitor)
    }

    /// Two new devices of this process, which are connected to each other.
    pub(crate) fn two(self) -> Result<[software::Device; 2]> {
        let fabric = pcap::fabric(self.0, 0)?;
        Ok([(); 2].map(|()| fabric.device(&self.0.name(0))))
    }

    /// As [`here`](Self::here); but with one device as both ends if the environment selects devices outside of this process.
    fn open<V: Visitor>(self, visitor: V) -> Result<V::Out> {
        match self.outside()? {
            Some(device) => ends(&[device.clone(), device], visitor),
            None => self.here(visitor),
        }
    }

    /// The variables that select devices outside of this process: the socket of a fabric that several processes share; the address of the
    /// host that the device has.
    fn variables(self) -> (String, Option<String>) {
        (self.0.variable("FABRIC"), self.0.has_ip().then(|| self.0.variable("UDP")))
    }

    /// Whether both ends are in this process.
    fn is_here(self) -> bool {
        let (fabric, udp) = self.variables();
        let is_set = |variable: &String| std::env::var_os(variable).is_some();
        !is_set(&fabric) && !udp.as_ref().is_some_and(is_set)
    }

    /// The device that reaches devices outside of this process, if the environment selects it.
    fn outside(self) -> Result<Option<software::Device>> {
        if self.is_here() {
            return Ok(None);
        }
        let (fabric, udp) = self.variables();
        let address = udp.and_then(|udp| Some((std::env::var(&udp).ok()?, udp)));
        let fabric = join(self.0, std::env::var_os(fabric).as_deref().map(Path::new))?;
        let name = self.0.name(0);
        let Some((address, udp)) = address else { return Ok(Some(fabric.device(&name))) };
        let ip = address.parse().with_context(|| format!("{udp}={address} is not an IP address"))?;
        fabric.device_at(&name, ip).map(Some).with_context(|| format!("cannot use UDP port 4791 of {ip}"))
    }
}

/// Calls the visitor with contexts of two software devices of the same model, or with one context of one device.
fn ends<V: Visitor>([one, other]: &[software::Device; 2], visitor: V) -> Result<V::Out> {
    struct Visit<'a, V>(V, &'a software::Device);
    impl<V: Visitor> DriverVisitor for Visit<'_, V> {
        type Out = Result<V::Out>;
        fn visit<D: Driver>(self, context: Context<D>) -> Result<V::Out> {
            let other = Context::from_kernel(self.1.open())?;
            visit([context, other], self.0)
        }
    }
    open_with(one.open(), Visit(visitor, other))?
}

fn visit<D: Driver, V: Visitor>(ends: [Context<D>; 2], visitor: V) -> Result<V::Out> {
    let info = software_info(&ends[0])?;
    Ok(visitor.visit(ends, Some(info)))
}

/// The fabric that this process has joined.
static JOINED: OnceLock<Fabric> = OnceLock::new();

/// Whether the name selects software devices on a fabric of this process, so that both ends are in it.
pub(crate) fn is_here(name: Option<&str>) -> bool {
    Software::of(name).is_some_and(Software::is_here)
}

/// The software device that reaches devices outside of this process, if the name and the environment select it.
pub(crate) fn outside(name: Option<&str>) -> Result<Option<software::Device>> {
    Software::of(name).map_or(Ok(None), Software::outside)
}

/// A fabric that reaches devices outside of this process: those of others that have met at the socket.
fn join(model: Model, socket: Option<&Path>) -> Result<Fabric> {
    let fabric = pcap::fabric(model, std::process::id().into())?;
    if let Some(socket) = socket {
        fabric.meet(socket).with_context(|| format!("cannot join the fabric at {}", socket.display()))?;
    }
    // The process may end without dropping the fabric: see `flush`.
    let _ = JOINED.set(fabric.clone());
    Ok(fabric)
}

/// Sends packets that are still queued, as a NIC would when the program ends.
pub(crate) fn flush() {
    if let Some(fabric) = JOINED.get() {
        fabric.flush();
    }
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
                bail!("no RDMA device {name}; the machine has no RDMA devices ({})", hint())
            }
            None => bail!("no RDMA device {name}; there are: {}", names.join(", ")),
        };
    }
    let reasons: Vec<_> =
        devices.iter().filter_map(|d| Some(format!("{}: {}", d.name, d.uverbs.as_ref().err()?))).collect();
    match devices.into_iter().find(|d| d.uverbs.is_ok()) {
        Some(device) => Ok(device),
        None if reasons.is_empty() => bail!("no RDMA devices found ({})", hint()),
        None => bail!("no RDMA device can be used: {}", reasons.join("; ")),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use uverbs::device::Unusable;
    use uverbs::efa::Efa;
    use uverbs::mlx5::Mlx5;

    /// Contexts of two software devices that are connected to each other.
    fn contexts<D: Driver>(name: &str) -> [Context<D>; 2] {
        let two = Software::of_or_first(Some(name)).unwrap().two().unwrap();
        two.map(|device| Context::from_kernel(device.open()).unwrap())
    }

    /// Those of software HCAs.
    pub(crate) fn hcas() -> [Context<Mlx5>; 2] {
        contexts("hca0")
    }

    /// Those of software EFAs.
    pub(crate) fn efas() -> [Context<Efa>; 2] {
        contexts("efa0")
    }

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
    fn the_hint_names_a_device_of_each_model() {
        let expected = "-d hca0 selects a software NIC in this process, -d efa0 a software EFA";
        assert_eq!(hint(), expected);
        assert!(["hca0", "efa0"].iter().all(|name| Software::of(Some(name)).is_some_and(Software::is_here)));
        assert_eq!(Software::of(Some("hca1")), None, "only the first of a model");
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
