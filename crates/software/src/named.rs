// SPDX-License-Identifier: MIT OR Apache-2.0
//! The devices of a process that are opened by name: those of a model share a fabric, which is made on first use.

use crate::device::Device;
use crate::fabric::Fabric;
use crate::{MODELS, Model};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// The most devices of a model that a program can name.
const MAX: usize = 16;

/// The devices that were opened, by their models' places in the list and their numbers, and the fabrics by the models' places.
struct Process {
    fabrics: BTreeMap<usize, Fabric>,
    devices: BTreeMap<(usize, usize), Device>,
}

static PROCESS: Mutex<Process> = Mutex::new(Process { fabrics: BTreeMap::new(), devices: BTreeMap::new() });

/// The device of this process with this name, such as `hca0`; `None` if it is not the name of one. Calls with the same name return the
/// same device.
#[must_use]
pub fn named(name: &str) -> Option<Device> {
    let find = |(place, model): (usize, &Model)| Some((place, *model, model.number(name)?));
    let (place, model, number) = MODELS.iter().enumerate().find_map(find).filter(|found| found.2 < MAX)?;
    let mut process = PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
    let Process { fabrics, devices } = &mut *process;
    let fabric = fabrics.entry(place).or_insert_with(|| model.fabric(std::process::id().into()));
    Some(devices.entry((place, number)).or_insert_with(|| fabric.device(name)).clone())
}

/// The devices that were opened by name.
#[must_use]
pub fn opened() -> Vec<Device> {
    PROCESS.lock().unwrap_or_else(PoisonError::into_inner).devices.values().cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_device_of_the_process() {
        for model in MODELS {
            let name = model.name(MAX - 1);
            let device = named(&name).unwrap();
            assert_eq!((device.name(), device.model()), (name.as_str(), *model));
            let again = named(&name).unwrap();
            assert!(core::ptr::eq(device.name(), again.name()), "the same device");
            assert!(opened().iter().any(|opened| opened.name() == name));
            assert!(named(&model.name(MAX)).is_none());
        }
        assert!(named("mlx5_0").is_none());
    }
}
