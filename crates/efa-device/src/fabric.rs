// SPDX-License-Identifier: MIT OR Apache-2.0
//! The user's objects: devices of a fabric, and their contexts.

use crate::caps::{Caps, Generation};
use crate::device::{Device, Port, Stats};
use crate::kernel::State;
use crate::violation::Violation;
use crate::{Front, Plugged, Stat};
use uverbs_fabric::net::Address;
use uverbs_softkernel::device_methods;

/// A network of devices that can reach each other. Clones refer to the same fabric.
pub type Fabric = uverbs_fabric::Fabric<Device>;

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
    pub fn build_with<F: Front<Device>>(
        self,
        make: impl FnOnce(Config, &mut Device, &mut Port<'_>) -> F,
    ) -> Plugged<F> {
        let Self { fabric, name, caps } = self;
        let in_real_time = !fabric.is_deterministic();
        fabric.plug(|number| {
            let (gid, guid) = identity(number);
            // It has no LID, and no other port has this one.
            let address = Address {
                gids: vec![(gid, false)],
                name: name.as_str().into(),
                lid: number.wrapping_add(1),
                ..Address::new(number, false)
            };
            let make = move |port: &mut Port<'_>| {
                let mut device = Device::new(caps, gid);
                device.in_real_time = in_real_time;
                let front = make(Config { name, guid }, &mut device, port);
                (device, front)
            };
            (address, make)
        })
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

device_methods!(EfaDevice, Device, State, Fabric, Violation, Stat);

impl EfaDevice {
    /// One device, `efa_0`, as the only one on its fabric, in real time. It can send to itself.
    #[must_use]
    pub fn new() -> Self {
        Fabric::new(0).device("efa_0").build()
    }

    /// Its counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.plugged.enter_device(|device, _| device.stats).unwrap_or_default()
    }

    /// How many messages of other devices it remembers.
    #[cfg(test)]
    pub(crate) fn remembered(&self) -> usize {
        self.plugged.enter_device(|device, _| device.remembered()).unwrap_or_default()
    }
}
