// SPDX-License-Identifier: MIT OR Apache-2.0
//! The order of the fabrics of programs that exist, from the environment.

use super::Setting;
use crate::fabric::Fabric;
use crate::model::Model;
use core::sync::atomic::{AtomicU32, Ordering};

/// The mode and the seed: `model:7`.
const ORDER: &str = "UVERBS_HCA_ORDER";
/// The file that gets each step.
const STEPS: &str = "UVERBS_HCA_ORDER_LOG";

impl<M: Model> Fabric<M> {
    /// Sets the order that the environment asks for. The seed is printed if the fabric draws it, so that the run can be repeated.
    pub(crate) fn order_of_environment(&self) {
        let Some(text) = std::env::var_os(ORDER) else { return };
        let setting = match text.to_str().unwrap_or_default().parse::<Setting>() {
            Ok(setting) => setting,
            Err(error) => {
                log::warn!("{ORDER}: {error}");
                return;
            }
        };
        let seed = self.order(setting);
        let repeated = setting.repeated_by(seed);
        if setting.seed.is_none() && repeated.seed.is_some() {
            eprintln!("{ORDER}={repeated} repeats the order of this run");
        }
        let Some(path) = std::env::var_os(STEPS) else { return };
        // The processes and fabrics of a run have a file each.
        static FABRICS: AtomicU32 = AtomicU32::new(0);
        let number = FABRICS.fetch_add(1, Ordering::Relaxed);
        let mut name = path;
        name.push(format!(".{}.{number}", std::process::id()));
        match std::fs::File::create(&name) {
            Ok(file) => self.enter(|world| {
                if let Some(order) = &mut world.net.order {
                    order.write_to(file);
                }
            }),
            Err(error) => log::warn!("{STEPS}: {}: {error}", name.display()),
        }
    }
}
