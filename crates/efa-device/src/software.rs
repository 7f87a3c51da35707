// SPDX-License-Identifier: MIT OR Apache-2.0
//! What programs that know no model need of the device.

use crate::{DeviceBuilder, EfaDevice, Generation};
use uverbs_core::Errno;
use uverbs_core::device::NodeType;
use uverbs_softkernel::Software;
use uverbs_softkernel::software::Options;

impl Software for EfaDevice {
    const PREFIX: &'static str = "efa";
    const VARIABLES: &'static str = "UVERBS_EFA";
    const WHAT: &'static str = "a software EFA";
    const NODE_TYPE: NodeType = NodeType::UNSPECIFIED;
    const OPTIONS: &'static [&'static str] = &["GENERATION"];

    /// `GENERATION` is the number of the generation, from 1 on.
    fn configure(builder: DeviceBuilder, options: Options<'_>) -> Result<DeviceBuilder, Errno> {
        let Some(number) = options("GENERATION") else { return Ok(builder) };
        let number = number.to_str().and_then(|number| number.parse().ok());
        let generation = number.and_then(Generation::of_number).ok_or(Errno::EINVAL)?;
        Ok(builder.generation(generation))
    }

    fn build(builder: DeviceBuilder) -> Self {
        builder.build()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Caps, Fabric};
    use std::ffi::OsString;

    #[test]
    fn the_generation_is_an_option() {
        let caps = |value: Option<&str>| {
            let options = |name: &str| value.filter(|_| name == "GENERATION").map(OsString::from);
            EfaDevice::configure(Fabric::deterministic(1).device("efa0"), &options)
                .map(|device| device.caps())
        };
        assert_eq!(caps(None).unwrap(), Caps::of(Generation::default()));
        for (number, generation) in ["1", "2", "3", "4", "5"].into_iter().zip(Generation::ALL) {
            assert_eq!(caps(Some(number)).unwrap(), Caps::of(generation));
        }
        for invalid in ["", "0", "6", "first", "-1"] {
            assert_eq!(caps(Some(invalid)), Err(Errno::EINVAL), "{invalid}");
        }
    }
}
