// SPDX-License-Identifier: MIT OR Apache-2.0
//! The devices that the environment asks for, in programs that are run without hardware, such as those with the C library.
//!
//! The variables of a model begin with its [`VARIABLES`](crate::Software::VARIABLES), for example `UVERBS_HCA`:
//!
//! | variable | value |
//! |---|---|
//! | `UVERBS_HCA` | the number of devices |
//! | `UVERBS_HCA_FABRIC` | the socket of a fabric of several processes, at which they meet |
//! | `UVERBS_HCA_UDP` | addresses of the host, separated by commas, which the first devices have; of models with IP addresses |
//!
//! Others are options of the model ([`Software::configure`](crate::Software::configure)). `UVERBS_HCA_FAULTS` is a script of faults for the
//! devices of all models.

use crate::MODELS;
use crate::device::Device;
use crate::fabric::{Fabric, errno};
use crate::model::Model;
use core::net::IpAddr;
use std::ffi::OsString;
use std::path::Path;
use uverbs_core::Errno;
use uverbs_fabric::script::{Rule, of_environment_for};

/// The maximum number of devices of a model.
const MAX: usize = 64;

/// The devices that the environment asks for.
#[derive(Debug, Default)]
pub struct Made {
    /// The devices, those of a model together.
    pub devices: Vec<Device>,
    /// The fabrics that reach devices outside of this process. A program that ends must [flush](Fabric::flush) them.
    pub shared: Vec<Fabric>,
}

/// The value of an environment variable.
type Variables<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// Makes the devices that the environment asks for. Each call makes new ones.
///
/// # Errors
/// The value of a variable is invalid (`EINVAL`), which is logged for the script of faults; or a socket or an address can't be used.
pub fn of_environment() -> Result<Made, Errno> {
    let variables: Variables<'_> = &|name| std::env::var_os(name);
    // A program whose faults are not those that were asked for would pass its test in vain.
    if let Err(error) = of_environment_for(|rule| refuses(variables, rule)) {
        log::error!("{error}");
        return Err(Errno::EINVAL);
    }
    make(variables)
}

/// Why a rule has no effect on any device that the variables ask for.
fn refuses(variables: Variables<'_>, rule: &Rule) -> Option<&'static str> {
    let is_set = |model: &&Model| {
        variables(model.variables).is_some() || model.has_ip && variables(&model.variable("UDP")).is_some()
    };
    MODELS.iter().filter(is_set).map(|model| model.refuses(rule)).reduce(Option::and).flatten()
}

fn make(variables: Variables<'_>) -> Result<Made, Errno> {
    let mut made = Made::default();
    for model in MODELS {
        add(*model, variables, &mut made)?;
    }
    Ok(made)
}

/// Adds the devices of a model.
fn add(model: Model, variables: Variables<'_>, made: &mut Made) -> Result<(), Errno> {
    let value = |option: &str| variables(&model.variable(option));
    let options = |option: &str| model.options.contains(&option).then(|| value(option)).flatten();
    let addresses = if model.has_ip { addresses(value("UDP"))? } else { Vec::new() };
    let count = number(variables(model.variables))?.or((!addresses.is_empty()).then_some(addresses.len()));
    let Some(count) = count else { return Ok(()) };
    let fabric = model.fabric(std::process::id().into());
    let socket = value("FABRIC");
    if let Some(socket) = &socket {
        fabric.meet(Path::new(socket)).map_err(|error| errno(&error))?;
    }
    if socket.is_some() || !addresses.is_empty() {
        made.shared.push(fabric.clone());
    }
    for i in 0..count.min(MAX) {
        made.devices.push(fabric.configured(&model.name(i), &options, addresses.get(i).copied())?);
    }
    Ok(())
}

/// The number that a variable has, `None` if it is not set.
fn number(value: Option<OsString>) -> Result<Option<usize>, Errno> {
    let Some(value) = value else { return Ok(None) };
    value.to_str().and_then(|value| value.parse().ok()).map(Some).ok_or(Errno::EINVAL)
}

/// The IP addresses that a variable has, separated by commas.
fn addresses(value: Option<OsString>) -> Result<Vec<IpAddr>, Errno> {
    let Some(value) = value.filter(|value| !value.is_empty()) else { return Ok(Vec::new()) };
    let value = value.to_str().ok_or(Errno::EINVAL)?;
    value.split(',').map(|address| address.trim().parse().map_err(|_| Errno::EINVAL)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::RefCell;
    use std::collections::BTreeSet;
    use uverbs_fabric::script::Script;

    /// The devices of an environment with these variables.
    fn of(set: &[(String, &str)]) -> Result<Made, Errno> {
        make(&|name| set.iter().find(|(known, _)| known == name).map(|(_, value)| value.into()))
    }

    fn names(made: &Made) -> Vec<&str> {
        made.devices.iter().map(Device::name).collect()
    }

    #[test]
    fn a_variable_of_each_model_is_the_number_of_its_devices() {
        assert!(of(&[]).unwrap().devices.is_empty());
        for model in MODELS {
            let count = |value| of(&[(model.variables.to_owned(), value)]);
            let made = count("2").unwrap();
            assert_eq!(names(&made), [model.name(0), model.name(1)]);
            assert!(made.shared.is_empty() && made.devices.iter().all(|device| device.model() == *model));
            assert!(count("0").unwrap().devices.is_empty());
            assert_eq!(count("100").unwrap().devices.len(), MAX);
            for invalid in ["", "-1", "many", "2,3"] {
                assert_eq!(count(invalid).unwrap_err(), Errno::EINVAL, "{invalid}");
            }
        }
        let all: Vec<_> = MODELS.iter().map(|model| (model.variables.to_owned(), "1")).collect();
        assert_eq!(names(&of(&all).unwrap()), MODELS.iter().map(|model| model.name(0)).collect::<Vec<_>>());
    }

    #[test]
    fn no_variable_is_read_but_those_of_the_models() {
        let known: BTreeSet<String> = MODELS.iter().flat_map(|model| model.variables()).collect();
        let asked = RefCell::new(BTreeSet::new());
        make(&|name| {
            asked.borrow_mut().insert(name.to_owned());
            MODELS.iter().any(|model| model.variables == name).then(|| "1".into())
        })
        .unwrap();
        assert_eq!(asked.into_inner(), known);
    }

    #[test]
    fn processes_meet_at_a_socket_of_each_model() {
        let folder = std::env::temp_dir().join(format!("uverbs-software-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        for model in MODELS {
            let socket = folder.join(model.prefix);
            let set = |socket: &Path| {
                let socket = socket.to_str().unwrap().to_owned();
                let one = (model.variables.to_owned(), "1".to_owned());
                let set = [one, (model.variable("FABRIC"), socket)];
                make(&|name| set.iter().find(|(known, _)| known == name).map(|(_, value)| value.into()))
            };
            let (one, two) = (set(&socket).unwrap(), set(&socket).unwrap());
            assert_eq!((one.shared.len(), two.shared.len()), (1, 1));
            one.shared.iter().chain(&two.shared).for_each(Fabric::flush);
            assert_eq!(set(&folder.join("no/folder")).unwrap_err(), Errno::ENOENT);
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn only_models_with_addresses_have_those_of_the_host() {
        for model in MODELS {
            let udp = |value| of(&[(model.variable("UDP"), value)]);
            if model.has_ip {
                assert_eq!(udp("127.0.0.x").unwrap_err(), Errno::EINVAL);
                // An address of documentation (RFC 5737), which no host has.
                assert_eq!(udp("192.0.2.1").unwrap_err(), Errno::EADDRNOTAVAIL);
                assert!(udp("").unwrap().devices.is_empty());
            } else {
                assert!(udp("127.0.0.x").unwrap().devices.is_empty());
            }
        }
    }

    #[test]
    fn a_rule_is_refused_if_no_device_of_the_process_has_an_effect_for_it() {
        let rules = [
            "packet opcode=send : drop",
            "packet opcode=send : rnr 1",
            "call verb=create_qp : errno ENOMEM",
            "completion : drop",
        ];
        for text in rules {
            let Ok(Script(rules)) = text.parse::<Script>() else { panic!("{text}") };
            let refused = |models: &[Model]| {
                let is_set = |name: &str| models.iter().any(|model| model.variables == name);
                refuses(&|name| is_set(name).then(|| "1".into()), &rules[0])
            };
            assert_eq!(refused(&[]), None, "{text}");
            for model in MODELS {
                assert_eq!(refused(&[*model]), model.refuses(&rules[0]), "{text}");
            }
            let by_all = MODELS.iter().all(|model| model.refuses(&rules[0]).is_some());
            assert_eq!(refused(MODELS).is_some(), by_all, "{text}");
        }
    }
}
