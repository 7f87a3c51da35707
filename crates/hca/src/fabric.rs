// SPDX-License-Identifier: MIT OR Apache-2.0
//! The user's objects: devices of a fabric, and their contexts.

use crate::Stat;
use crate::config::{Config, InlineMode, Link};
use crate::decode::Reserved;
use crate::engine::net::Address;
use crate::engine::{Device, Port};
use crate::front::{Front, Plugged};
use crate::kernel::State;
use crate::violation::Violation;
use core::fmt;
use core::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use uverbs_core::kernel::CmPort;
use uverbs_fabric::udp::{UdpPort, UdpStat};
use uverbs_softkernel::{Driver as _, device_methods};

/// A network of devices that can reach each other. Clones refer to the same fabric.
pub type Fabric = uverbs_fabric::Fabric<Device>;

/// A device that is to be built.
#[derive(Clone, Debug)]
#[must_use = "the device does not exist before it is built"]
pub struct DeviceBuilder {
    fabric: Fabric,
    config: Config,
}

impl DeviceBuilder {
    pub(crate) fn new(fabric: &Fabric, name: &str) -> Self {
        Self { fabric: fabric.clone(), config: Config::new(name) }
    }

    /// The link layer; the default is Ethernet.
    pub fn link(mut self, link: Link) -> Self {
        self.config.link = link;
        self
    }

    /// Version of completion entries, 0 or 1: whether they name resources by number or by user index.
    pub fn cqe_version(mut self, version: u8) -> Self {
        self.config.cqe_version = version.min(1);
        self
    }

    /// Whether WQEs may be written to the doorbell register.
    pub fn blue_flame(mut self, blue_flame: bool) -> Self {
        self.config.blue_flame = blue_flame;
        self
    }

    /// Whether it executes atomics.
    pub fn atomics(mut self, atomics: bool) -> Self {
        self.config.atomics = atomics;
        self
    }

    /// Whether doorbell pages are objects that programs allocate (kernels from 5.7 on), or are allocated with the
    /// context.
    pub fn dynamic_uars(mut self, dynamic: bool) -> Self {
        self.config.dynamic_uars = dynamic;
        self
    }

    /// Whether programs may send commands to the firmware (DEVX). Without that, the kernel refuses a context with commands.
    pub fn devx(mut self, devx: bool) -> Self {
        self.config.devx = devx;
        self
    }

    /// How many doorbell pages there are for all contexts together.
    pub fn max_uars(mut self, max: u32) -> Self {
        self.config.max_uars = max;
        self
    }

    /// The headers that raw packets must have inline.
    pub fn inline_mode(mut self, mode: InlineMode) -> Self {
        self.config.inline_mode = mode;
        self
    }

    /// Ignores bytes of WQEs that are reserved and that hardware ignores, too. By default they must be zero, which is
    /// the rule of this project's driver. Other programs leave stale bytes there; a device of a VM always ignores them.
    pub fn ignore_reserved(mut self) -> Self {
        self.config.reserved = Reserved::Ignored;
        self
    }

    /// Does not raise the event `LAST_WQE_REACHED` of QPs with a shared receive queue, as some devices do not: rxe in kernel
    /// 6.1.
    pub fn without_last_wqe(mut self) -> Self {
        self.config.last_wqe = false;
        self
    }

    /// Builds the device with the in-process kernel as its front, and plugs it in. Other processes of the fabric know
    /// its addresses then.
    pub fn build(self) -> Hca {
        let name = self.config.name.clone();
        let plugged = self.build_with(|config, _, _| State::new(config.clone()));
        plugged.fabric().sync();
        Hca { plugged, name }
    }

    /// Builds the device on the network of this host, with the in-process kernel as its front: it has one address of the host, and
    /// exchanges packets of RoCE version 2 with all devices that can be reached from there, such as NICs and Linux' rxe, by a UDP
    /// socket. Connections are those whose ends exchange their numbers themselves: the connection manager reaches devices of the fabric
    /// only, and so do multicast groups. The device is RoCE, whatever [`link`](Self::link) was called with; index 1 of its GIDs is the
    /// address as RoCE version 2.
    ///
    /// # Errors
    /// The host does not have the address; UDP port 4791 of the address is in use, by another program or by rxe in the same network
    /// namespace; the MTU of the interface is too small; the fabric is deterministic.
    pub fn build_udp(mut self, ip: IpAddr) -> std::io::Result<Hca> {
        if self.fabric.is_deterministic() {
            return Err(std::io::ErrorKind::Unsupported.into());
        }
        let udp = UdpPort::bind(ip)?;
        self.config.link = Link::Ethernet;
        self.config.gid = Some(udp.gid());
        let hca = self.build();
        hca.plugged.attach_udp(udp)?;
        Ok(hca)
    }

    /// Builds the device with a front that `make` creates, and plugs it in.
    pub fn build_with<F: Front<Device>>(
        mut self,
        make: impl FnOnce(&Config, &mut Device, &mut Port<'_>) -> F,
    ) -> Plugged<F> {
        let ethernet = self.config.link == Link::Ethernet;
        let fabric = self.fabric.clone();
        let in_real_time = !fabric.is_deterministic();
        fabric.plug(|number| {
            let (mut address, guid) = address(number, ethernet);
            address.name = self.config.name.as_str().into();
            self.config.guid = guid;
            if let Some(gid) = self.config.gid {
                address.gids = vec![(gid, false), (gid, true)];
            }
            let make = move |port: &mut Port<'_>| {
                let mut device = Device::new(ethernet, self.config.cqe_version);
                device.reserved = self.config.reserved;
                device.raises_last_wqe = self.config.last_wqe;
                let front = make(&self.config, &mut device, port);
                if front.is_in_vm() {
                    device.late_doorbells = true;
                    device.reserved = Reserved::Ignored;
                    // The clock of a deterministic fabric does not advance in a doorbell, so all packets are sent at once.
                    device.paced = in_real_time;
                }
                (device, front)
            };
            (address, make)
        })
    }
}

/// Addresses by the device's number: MAC and GUID of a local range, IPv4 10.77.x.y.
fn address(number: u16, ethernet: bool) -> (Address, u64) {
    let n = number.wrapping_add(1);
    let [high, low] = n.to_be_bytes();
    let mac = [0x02, 0x55, 0x56, 0x00, high, low];
    let eui64 = [0x00, 0x55, 0x56, 0xff, 0xfe, 0x00, high, low];
    let mut link_local = [0; 16];
    link_local[..2].copy_from_slice(&[0xfe, 0x80]);
    link_local[8..].copy_from_slice(&eui64);
    let gids = if ethernet {
        let mut mapped = [0; 16];
        mapped[10..12].copy_from_slice(&[0xff; 2]);
        mapped[12..].copy_from_slice(&[10, 77, high, low]);
        // As mlx5_ib fills the table: each address as RoCE version 1 and 2.
        vec![(link_local, false), (link_local, true), (mapped, false), (mapped, true)]
    } else {
        vec![(link_local, false)]
    };
    let lid = if ethernet { 0 } else { n };
    (Address { lid, mac, gids, ..Address::new(number, ethernet) }, u64::from_be_bytes(eui64))
}

/// A software HCA with the in-process kernel. Clones refer to the same device.
#[derive(Clone)]
pub struct Hca {
    plugged: Plugged<State>,
    name: String,
}

impl fmt::Debug for Hca {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hca").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Default for Hca {
    fn default() -> Self {
        Self::new()
    }
}

device_methods!(Hca, Device, State, Fabric, Violation, Stat);

impl Hca {
    /// Entries of the completion queue with this number that were written and not consumed. `None` if there is no such queue.
    #[must_use]
    pub fn unread(&self, cqn: u32) -> Option<u32> {
        self.plugged.read_device(|device| device.cqs.get(&cqn).and_then(crate::front::Cq::waiting))
    }

    /// The numbers of its completion queues.
    #[must_use]
    pub fn completion_queues(&self) -> Vec<u32> {
        self.plugged.read_device(|device| device.cqs.iter().map(|(cqn, _)| cqn).collect())
    }

    /// The number of the device in the fabric.
    #[must_use]
    pub fn index(&self) -> usize {
        self.plugged.index()
    }

    /// One RoCE device, `hca0`, as the only one on its fabric, in real time. It can send to itself.
    #[must_use]
    pub fn new() -> Self {
        Fabric::new(0).device("hca0").build()
    }

    /// Opens an event channel of the connection manager of the device's host, as an open `/dev/infiniband/rdma_cm`. Its
    /// addresses are the RoCE GIDs of the port ([`Hca::addresses`]); it reaches the hosts of the fabric's other devices.
    ///
    /// # Errors
    /// The process has too many open files.
    pub fn connection_manager(&self) -> uverbs_core::Result<Arc<dyn CmPort>> {
        State::connection_manager(&self.plugged)
    }

    /// The IP addresses of the device's host: an IPv4 address, a link-local IPv6 address, and those that
    /// [`Hca::add_gid`] adds. None with InfiniBand ports.
    #[must_use]
    pub fn addresses(&self) -> Vec<IpAddr> {
        let gids = self.plugged.fabric().read(|world| {
            let port = world.net.ports.get(self.plugged.index()).filter(|p| p.ethernet);
            port.map(|p| p.gids.clone()).unwrap_or_default()
        });
        let ip = |gid: [u8; 16]| Ipv6Addr::from(gid).to_canonical();
        let mut all: Vec<_> = gids.into_iter().filter(|(_, is_v2)| *is_v2).map(|(gid, _)| ip(gid)).collect();
        all.sort_by_key(IpAddr::is_ipv6);
        all
    }

    /// Changes the LID of an InfiniBand port, as a subnet manager does: every context gets an event, and packets to the
    /// old LID are lost. `false` if the LID is out of range or that of another port, or the port is not InfiniBand.
    #[must_use]
    pub fn set_lid(&self, lid: u16) -> bool {
        self.plugged.set_lid(lid)
    }

    /// What the device exchanged with devices outside of its fabric, if it was built with [`build_udp`](DeviceBuilder::build_udp).
    #[must_use]
    pub fn udp_stat(&self) -> Option<UdpStat> {
        self.plugged.udp_stat()
    }

    /// Adds a GID to the port's table and returns its index; on Ethernet as RoCE version 2.
    pub fn add_gid(&self, gid: [u8; 16]) -> usize {
        self.plugged.add_gid(gid)
    }

    /// The device itself, for tests that write its queues by hand.
    #[cfg(test)]
    pub(crate) fn with_device<R>(&self, f: impl FnOnce(&mut Device, &mut Port<'_>) -> R) -> R {
        self.plugged.enter_device(f).expect("the device is in its world")
    }

    /// As [`with_device`](Self::with_device), as a doorbell is.
    #[cfg(test)]
    pub(crate) fn beside<R>(&self, f: impl FnOnce(&mut Device, &mut Port<'_>) -> R) -> R {
        self.plugged.enter_device_beside(f).expect("the device is in its world")
    }

    /// The in-process kernel itself.
    #[cfg(test)]
    pub(crate) fn with_kernel<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        self.plugged.enter(|_, kernel, _| f(kernel)).expect("its front is the in-process kernel")
    }

    /// Records the notices of the device to its front from now on.
    #[cfg(test)]
    pub(crate) fn record_notices(&self) {
        self.plugged.enter(|_, kernel, _| kernel.seen = Some(Vec::new()));
    }

    /// The notices that were recorded.
    #[cfg(test)]
    pub(crate) fn recorded_notices(&self) -> Vec<crate::front::Notice> {
        self.plugged.enter(|_, kernel, _| kernel.seen.take()).flatten().unwrap_or_default()
    }
}
