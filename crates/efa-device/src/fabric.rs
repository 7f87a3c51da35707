// SPDX-License-Identifier: MIT OR Apache-2.0
//! The user's objects: devices of a fabric, and their contexts.

use crate::caps::{Caps, Generation};
use crate::device::{Device, Port, Stats};
use crate::kernel::{EfaKernel, State};
use crate::station::{Front, Plugged, Station};
use crate::violation::Violation;
use std::collections::BTreeMap;
use std::sync::Arc;
use uverbs_core::kernel::Kernel;
use uverbs_fabric::net::Address;

/// A network of devices that can reach each other. Clones refer to the same fabric.
pub type Fabric = uverbs_fabric::Fabric<Station>;

/// A device that is to be built.
#[derive(Clone, Debug)]
#[must_use = "the device does not exist before it is built"]
pub struct DeviceBuilder {
    fabric: Fabric,
    name: String,
    caps: Caps,
}

/// What a front is made of.
#[derive(Clone, Debug)]
pub struct Config {
    /// The device's name.
    pub name: String,
    /// The GUID of the node.
    pub guid: u64,
}

/// The GID and the GUID of a device by its number: a link-local address, as that of an instance's interface.
fn identity(number: u16) -> ([u8; 16], u64) {
    let [high, low] = number.wrapping_add(1).to_be_bytes();
    let eui64 = [0x02, 0x65, 0x66, 0xff, 0xfe, 0x61, high, low];
    let mut gid = [0; 16];
    gid[..2].copy_from_slice(&[0xfe, 0x80]);
    gid[8..].copy_from_slice(&eui64);
    (gid, u64::from_be_bytes(eui64))
}

impl DeviceBuilder {
    pub(crate) fn new(fabric: &Fabric, name: &str) -> Self {
        Self { fabric: fabric.clone(), name: name.into(), caps: Caps::of(Generation::default()) }
    }

    /// The generation, which determines what the device can do; the default is the fourth.
    pub fn generation(mut self, generation: Generation) -> Self {
        self.caps = Caps::of(generation);
        self
    }

    /// Limits the send entries that may be written before a doorbell, in units of 64 bytes.
    pub fn max_tx_batch(mut self, units: u16) -> Self {
        self.caps.max_tx_batch = units;
        self
    }

    /// What the device can do.
    #[must_use]
    pub fn caps(&self) -> Caps {
        self.caps
    }

    /// Builds the device with the in-process kernel as its front, and plugs it in. Other processes of the fabric know
    /// it when this returns.
    #[must_use]
    pub fn build(self) -> EfaDevice {
        let name = self.name.clone();
        let plugged = self.build_with(|config, _, _| State::new(config));
        plugged.fabric().sync();
        EfaDevice { plugged, name }
    }

    /// Builds the device with a front that `make` creates, and plugs it in.
    pub fn build_with<F: Front>(
        self,
        make: impl FnOnce(Config, &mut Device, &mut Port<'_>) -> F,
    ) -> Plugged<F> {
        let Self { fabric, name, caps } = self;
        let in_real_time = !fabric.is_deterministic();
        let index = fabric.plug(|number| {
            let (gid, guid) = identity(number);
            // It has no LID, and no other port has this one.
            let address = Address {
                gids: vec![(gid, false)],
                lid: number.wrapping_add(1),
                ..Address::new(number, false)
            };
            let make = move |port: &mut Port<'_>| {
                let mut device = Device::new(caps, gid);
                device.in_real_time = in_real_time;
                let front = make(Config { name, guid }, &mut device, port);
                Station { device, front: Box::new(front) }
            };
            (address, make)
        });
        Plugged::new(fabric, index)
    }
}

/// A software EFA with the in-process kernel. Clones refer to the same device.
#[derive(Clone, Debug)]
pub struct EfaDevice {
    plugged: Plugged<State>,
    name: String,
}

impl Default for EfaDevice {
    fn default() -> Self {
        Self::new()
    }
}

impl EfaDevice {
    /// One device, `efa_0`, as the only one on its fabric, in real time. It can send to itself.
    #[must_use]
    pub fn new() -> Self {
        Fabric::new(0).device("efa_0").build()
    }

    /// Opens a new context and returns its kernel port. It corresponds to an open device file: when it is dropped, all
    /// objects of the context are destroyed.
    #[must_use]
    pub fn open(&self) -> Arc<dyn Kernel> {
        Arc::new(EfaKernel::open(&self.plugged, &self.name))
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The fabric of the device.
    #[must_use]
    pub fn fabric(&self) -> Fabric {
        self.plugged.fabric().clone()
    }

    /// As [`Fabric::run`](uverbs_fabric::Fabric::run).
    pub fn run(&self) {
        self.plugged.fabric().run();
    }

    /// The violations of drivers so far.
    #[must_use]
    pub fn violations(&self) -> Vec<Violation> {
        self.plugged.violations()
    }

    /// Removes and returns the violations for which `wanted` is true: a test removes those that it caused intentionally.
    #[must_use]
    pub fn take_violations_if(&self, wanted: impl FnMut(&Violation) -> bool) -> Vec<Violation> {
        self.plugged.take_violations_if(wanted)
    }

    /// The number of objects of each kind in its contexts: `pd`, `mr`, `qp` and so on, by the names of `rdma resource`.
    /// Tests use it to detect objects that were not destroyed.
    #[must_use]
    pub fn objects(&self) -> BTreeMap<&'static str, usize> {
        self.plugged.read_front(State::counts).unwrap_or_default()
    }

    /// Its counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.plugged.enter_device(|device, _| device.stats).unwrap_or_default()
    }

    /// Takes the port's link down or up. Every context gets an event. While the link is down, packets are lost.
    pub fn set_link_up(&self, up: bool) {
        self.plugged.enter_device(|device, port| device.set_link_up(port, up));
    }

    /// Removes the device while its contexts are open, as a hot unplug does: each context gets the event
    /// `DEVICE_FATAL`, the objects are destroyed, verbs fail with `EIO`, destroying an object succeeds, and peers get
    /// no more answers. The device can't be used again; a new one can be built with the same name.
    pub fn unplug(&self) {
        self.plugged.enter(|device, kernel, port| kernel.end_all(device, port, true));
    }

    /// Ends all contexts of the device, as the kernel does when their processes die: all objects are destroyed without
    /// an event, and peers get no more answers from these QPs. The device can be opened again.
    pub fn kill(&self) {
        self.plugged.enter(|device, kernel, port| kernel.end_all(device, port, false));
    }

    /// How many messages of other devices it remembers.
    #[cfg(test)]
    pub(crate) fn remembered(&self) -> usize {
        self.plugged.enter_device(|device, _| device.remembered()).unwrap_or_default()
    }
}
