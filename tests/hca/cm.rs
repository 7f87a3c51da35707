// SPDX-License-Identifier: MIT OR Apache-2.0
//! The connection manager of software NICs, by the steps that run on the kernel's in the VM.

use anyhow::{Context as _, Result};
use core::net::IpAddr;
use core::time::Duration;
use uverbs_cm::{EventChannel, Id, PortSpace};
use uverbs_hca::{Fabric, Hca};
use uverbs_tests::Test;
use uverbs_tests::bed::DropGuard;
use uverbs_tests::cm::{ALL, Hosts};
use uverbs_tests::env::End;

/// Two NICs, in real time: in virtual time each call waits until its messages have arrived.
#[derive(Debug)]
struct Software {
    fabric: Fabric,
    hcas: [Hca; 2],
}

impl Software {
    fn new() -> Self {
        let fabric = Fabric::new(7);
        let hcas = ["hca0", "hca1"].map(|name| fabric.device(name).build());
        Self { fabric, hcas }
    }
}

impl Hosts for Software {
    fn channel(&self, end: End) -> Result<EventChannel> {
        Ok(EventChannel::from_port(self.hcas[end as usize].connection_manager()?))
    }

    fn id(&self, _: End, channel: &EventChannel, port_space: PortSpace) -> Result<Id> {
        Ok(channel.create_id(port_space)?)
    }

    fn ip(&self, end: End) -> Result<IpAddr> {
        self.hcas[end as usize].addresses().into_iter().find(IpAddr::is_ipv4).context("no address")
    }

    fn delay(&self, time: Duration) -> Result<Option<DropGuard>> {
        struct Slow(Fabric);
        impl Drop for Slow {
            fn drop(&mut self) {
                self.0.delay(Duration::ZERO);
            }
        }
        self.fabric.delay(time);
        Ok(Some(Box::new(Slow(self.fabric.clone()))))
    }
}

/// The tests of this file.
pub(crate) fn tests() -> Vec<Test> {
    const LIMIT: Duration = Duration::from_secs(120);
    let steps = ALL.into_iter().zip(7500..);
    steps
        .map(|((name, steps), port)| {
            Test::long(&format!("cm::steps::{name}"), LIMIT, move || steps(&Software::new(), port))
        })
        .collect()
}
