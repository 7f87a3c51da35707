// SPDX-License-Identifier: MIT OR Apache-2.0
//! A model as a value.

use crate::fabric::Fabric;
use crate::{MODELS, Stat};
use core::fmt;
use uverbs_core::device::NodeType;
use uverbs_fabric::script::Rule;
use uverbs_fabric::{Model as _, Stat as StatOf};
use uverbs_softkernel::software::Software;

/// A model of this build.
#[derive(Clone, Copy)]
pub struct Model {
    pub(crate) prefix: &'static str,
    pub(crate) variables: &'static str,
    what: &'static str,
    pub(crate) node_type: NodeType,
    pub(crate) driver_id: u32,
    pub(crate) has_ip: bool,
    pub(crate) options: &'static [&'static str],
    fabric: fn(u64) -> Fabric,
    parse: fn(&str) -> Option<Stat>,
    refuses: fn(&Rule) -> Option<&'static str>,
}

/// Models are the same if their devices have the same names.
impl PartialEq for Model {
    fn eq(&self, other: &Self) -> bool {
        self.prefix == other.prefix
    }
}

impl Eq for Model {}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Model").field(&self.prefix).finish()
    }
}

fn parse<S: Software>(stat: &str) -> Option<Stat> {
    StatOf::<<S::Model as uverbs_fabric::Model>::QpKind>::parse(stat).map(StatOf::by_ib_type)
}

impl Model {
    /// The model of a type of devices.
    #[must_use]
    pub const fn of<S: Software>() -> Self {
        Self {
            prefix: S::PREFIX,
            variables: S::VARIABLES,
            what: S::WHAT,
            node_type: S::NODE_TYPE,
            driver_id: S::DRIVER_ID,
            has_ip: S::HAS_IP,
            options: S::OPTIONS,
            fabric: |seed| Fabric::of::<S>(uverbs_fabric::Fabric::new(seed)),
            parse: parse::<S>,
            refuses: S::Model::refuses,
        }
    }

    /// The beginning of the names of its devices.
    #[must_use]
    pub fn prefix(self) -> &'static str {
        self.prefix
    }

    /// What a device is, in words: "a software NIC".
    #[must_use]
    pub fn what(self) -> &'static str {
        self.what
    }

    /// The id of the kernel's driver of such devices, `RDMA_DRIVER_*`.
    #[must_use]
    pub fn driver_id(self) -> u32 {
        self.driver_id
    }

    /// Whether its devices have IP addresses: then their hosts have a connection manager, and a device can have an address of this host.
    #[must_use]
    pub fn has_ip(self) -> bool {
        self.has_ip
    }

    /// The environment variable of an option: `UVERBS_HCA_FABRIC` for `FABRIC`.
    #[must_use]
    pub fn variable(self, option: &str) -> String {
        format!("{}_{option}", self.variables)
    }

    /// All environment variables about its devices ([`of_environment`](crate::of_environment)).
    #[must_use]
    pub fn variables(self) -> Vec<String> {
        let options = self.options.iter().copied().chain(["FABRIC"]).chain(self.has_ip.then_some("UDP"));
        options.map(|option| self.variable(option)).chain([self.variables.to_owned()]).collect()
    }

    /// The name of the device with a number.
    #[must_use]
    pub fn name(self, number: usize) -> String {
        format!("{}{number}", self.prefix)
    }

    /// The number in the name of a device; `None` if it is not the name of one.
    #[must_use]
    pub fn number(self, name: &str) -> Option<usize> {
        let number = name.strip_prefix(self.prefix)?.parse().ok()?;
        (name == self.name(number)).then_some(number)
    }

    /// A new fabric in real time.
    #[must_use]
    pub fn fabric(self, seed: u64) -> Fabric {
        (self.fabric)(seed)
    }

    /// Reads what the `stat` of a device says, as a line; `None` for another text, and for QPs that other devices have.
    #[must_use]
    pub fn parse(self, stat: &str) -> Option<Stat> {
        (self.parse)(stat)
    }

    /// Why a rule of a script of faults has no effect on any device of this model; `None` if it has one.
    #[must_use]
    pub fn refuses(self, rule: &Rule) -> Option<&'static str> {
        (self.refuses)(rule)
    }
}

/// The model whose devices have such names; `None` if this build has none.
#[must_use]
pub fn model_of(name: &str) -> Option<Model> {
    MODELS.iter().copied().find(|model| model.number(name).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_and_variables_differ_between_models() {
        let of = |value: fn(&Model) -> &'static str| MODELS.iter().map(value).collect::<BTreeSet<_>>().len();
        assert!(MODELS.len() > 1, "the tests are built with all models");
        assert_eq!(of(|model| model.prefix), MODELS.len());
        assert_eq!(of(|model| model.variables), MODELS.len());
        assert_eq!(of(|model| model.what), MODELS.len());
        assert_eq!(MODELS.iter().map(|model| model.driver_id).collect::<BTreeSet<_>>().len(), MODELS.len());
    }

    #[test]
    fn a_name_is_a_prefix_and_a_number() {
        for model in MODELS {
            for number in [0, 9, 10, 400] {
                assert_eq!(model.number(&model.name(number)), Some(number));
                assert_eq!(model_of(&model.name(number)), Some(*model));
            }
            for rest in ["", "x", "00", "01", "-1", "+1", "1 ", "0x1", "_0", "99999999999999999999999"] {
                assert_eq!(model.number(&format!("{}{rest}", model.prefix)), None, "{rest}");
            }
        }
        assert_eq!(model_of("mlx5_0"), None);
    }
}
