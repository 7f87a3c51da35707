// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counters of the packets that steering rules match (ibv_create_counters(3)).
//!
//! A set of counters is described first, then bound to rules when these are created, and read while a rule has it. The
//! kernel gets the description with the first rule and drops it with the last one.

use super::flow::FlowHandle;
use super::{Object, Result, handle_common, new_object};
use crate::attr::{CounterAttachAttr, CounterDescription};
use crate::errno::Errno;
use crate::error::Error;
use crate::kernel::{Command, Kernel};
use crate::sync::ProcessMutex;
use std::sync::Arc;
use uverbs_uapi::ids::{
    UVERBS_ATTR_CREATE_COUNTERS_HANDLE, UVERBS_ATTR_DESTROY_COUNTERS_HANDLE, UVERBS_ATTR_READ_COUNTERS_BUFF,
    UVERBS_ATTR_READ_COUNTERS_FLAGS, UVERBS_ATTR_READ_COUNTERS_HANDLE, UVERBS_METHOD_COUNTERS_CREATE,
    UVERBS_METHOD_COUNTERS_DESTROY, UVERBS_METHOD_COUNTERS_READ, UVERBS_OBJECT_COUNTERS,
};
use uverbs_uapi::verbs::IB_UVERBS_READ_COUNTERS_PREFER_CACHED;
use zerocopy::IntoBytes;

/// The description of a set, and its rules.
#[derive(Debug, Default)]
struct Points {
    list: Vec<CounterAttachAttr>,
    flows: u32,
}

/// A set of counters.
#[derive(Debug)]
pub struct CountersHandle {
    object: Object,
    points: Arc<ProcessMutex<Points>>,
}

handle_common!(CountersHandle, "counters");

/// A rule's reference to its set.
#[derive(Debug)]
pub(super) struct Bound(Arc<ProcessMutex<Points>>);

impl Bound {
    /// To be called when the rule is destroyed.
    pub(super) fn release(self) {
        // The parent's set keeps its number of rules.
        let Ok(mut points) = self.0.lock() else { return };
        points.flows = points.flows.saturating_sub(1);
    }
}

/// Creates an empty set.
///
/// # Errors
/// The kernel's error; [`Error::Unsupported`] if its driver has no counters.
pub fn create(kernel: &Arc<dyn Kernel>) -> Result<CountersHandle> {
    const VERB: &str = "create_counters";
    let mut command = Command::<1>::new(UVERBS_OBJECT_COUNTERS, UVERBS_METHOD_COUNTERS_CREATE);
    command
        .handle_new(UVERBS_ATTR_CREATE_COUNTERS_HANDLE)
        .run(&**kernel)
        .map_err(|errno| super::device_error(VERB, &**kernel, errno))?;
    let object = new_object(VERB, kernel, &command, UVERBS_ATTR_CREATE_COUNTERS_HANDLE)?;
    Ok(CountersHandle { object, points: Arc::default() })
}

impl CountersHandle {
    /// Adds a counter, for all rules that will have this set.
    ///
    /// # Errors
    /// `EBUSY` while a rule has the set; [`Error::Unsupported`] if the driver does not count this quantity.
    pub fn attach(&self, attr: CounterAttachAttr) -> Result<()> {
        const VERB: &str = "attach_counters_point_flow";
        if attr.counter_desc > CounterDescription::BYTES {
            return Err(Error::unsupported(VERB, format!("{:?}", attr.counter_desc)));
        }
        let mut points = self.points.lock().map_err(|_| self.error(VERB, Errno::ESTALE))?;
        if points.flows != 0 {
            return Err(self.error(VERB, Errno::EBUSY));
        }
        points.list.push(attr);
        Ok(())
    }

    /// Creates a rule with this set. `create` gets the description for the first rule, with which the kernel needs it,
    /// and otherwise an empty list.
    ///
    /// # Errors
    /// A set without counters, or the error of `create`.
    pub fn bind(
        &self,
        create: impl FnOnce(&[CounterAttachAttr]) -> Result<FlowHandle>,
    ) -> Result<FlowHandle> {
        let mut points = self.points.lock().map_err(|_| self.error("create_flow", Errno::ESTALE))?;
        if points.list.is_empty() {
            return Err(Error::invalid("create_flow", "counters", "no counter was attached"));
        }
        let flow = create(if points.flows == 0 { &points.list } else { &[] })?;
        points.flows += 1;
        drop(points);
        Ok(flow.with_counters(Bound(Arc::clone(&self.points))))
    }

    /// Reads the values: each counter adds to the value at its index. `prefer_cached` allows values that the kernel
    /// read before.
    ///
    /// # Errors
    /// The kernel's error (`EINVAL` if no rule has the set, or if there is no room for the largest index).
    pub fn read(&self, values: &mut [u64], prefer_cached: bool) -> Result<()> {
        const VERB: &str = "read_counters";
        let flags = if prefer_cached { IB_UVERBS_READ_COUNTERS_PREFER_CACHED } else { 0 };
        Command::<3>::new(UVERBS_OBJECT_COUNTERS, UVERBS_METHOD_COUNTERS_READ)
            .handle_in(UVERBS_ATTR_READ_COUNTERS_HANDLE, self.handle())
            .output_bytes(UVERBS_ATTR_READ_COUNTERS_BUFF, values.as_mut_bytes())
            .flags(UVERBS_ATTR_READ_COUNTERS_FLAGS, flags)
            .run(&**self.kernel())
            .map_err(|errno| self.error(VERB, errno))
    }

    /// Destroys the set.
    ///
    /// # Errors
    /// `EBUSY` while a rule has the set; the handle is returned.
    pub fn destroy(self) -> Result<(), (Self, Error)> {
        match self.object.destroy(
            UVERBS_OBJECT_COUNTERS,
            UVERBS_METHOD_COUNTERS_DESTROY,
            UVERBS_ATTR_DESTROY_COUNTERS_HANDLE,
        ) {
            Ok(()) => Ok(()),
            Err(errno) => {
                let error = self.error("destroy_counters", errno);
                Err((self, error))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::script::Script;
    use uverbs_uapi::ids::{UVERBS_METHOD_FLOW_DESTROY, UVERBS_OBJECT_FLOW};

    fn counters(script: &Arc<Script>) -> CountersHandle {
        script.expect(UVERBS_OBJECT_COUNTERS, UVERBS_METHOD_COUNTERS_CREATE, |c| {
            assert!(c.new_handle(0, 5));
            Ok(())
        });
        create(&script.kernel()).unwrap()
    }

    #[test]
    fn the_description_is_for_the_first_rule_and_fixed_until_the_last_is_gone() {
        let script = Script::new();
        let set = counters(&script);
        let rule = |n: u32| FlowHandle::new(Object::new("t", &script.kernel(), n).unwrap());
        let packets = CounterAttachAttr { counter_desc: CounterDescription::PACKETS, index: 1 };
        assert!(matches!(set.bind(|_| panic!()), Err(Error::Invalid { field: "counters", .. })));
        let unknown = CounterAttachAttr { counter_desc: CounterDescription(2), index: 0 };
        assert!(set.attach(unknown).unwrap_err().is_unsupported());
        set.attach(packets).unwrap();
        let failed = set.bind(|_| Err(Error::os("t", "rule", Errno::ENOMEM)));
        assert_eq!(failed.unwrap_err().errno(), Errno::ENOMEM);
        let bind = |n: u32, length: usize| {
            set.bind(|list| {
                assert_eq!(list.len(), length);
                Ok(rule(n))
            })
            .unwrap()
        };
        let (first, second) = (bind(1, 1), bind(2, 0));
        assert_eq!(set.attach(packets).unwrap_err().errno(), Errno::EBUSY);
        for flow in [first, second] {
            script.expect(UVERBS_OBJECT_FLOW, UVERBS_METHOD_FLOW_DESTROY, |_| Ok(()));
            flow.destroy().unwrap();
        }
        set.attach(packets).unwrap();
        assert_eq!(set.points.lock().unwrap().list.len(), 2);
        script.done();
    }

    #[test]
    fn values_are_those_of_the_kernel() {
        let script = Script::new();
        let set = counters(&script);
        script.expect(UVERBS_OBJECT_COUNTERS, UVERBS_METHOD_COUNTERS_READ, |c| {
            assert_eq!(c.handle(UVERBS_ATTR_READ_COUNTERS_HANDLE), Some(5));
            assert_eq!(c.input(UVERBS_ATTR_READ_COUNTERS_FLAGS), Some(&1_u64.to_ne_bytes()[..]));
            assert!(c.answer(UVERBS_ATTR_READ_COUNTERS_BUFF, [7_u64, 9].as_bytes()));
            Ok(())
        });
        let mut values = [0; 2];
        set.read(&mut values, true).unwrap();
        assert_eq!(values, [7, 9]);
        script.expect(UVERBS_OBJECT_COUNTERS, UVERBS_METHOD_COUNTERS_DESTROY, |_| Err(Errno::EBUSY));
        assert_eq!(set.destroy().unwrap_err().1.errno(), Errno::EBUSY);
        script.done();
    }
}
