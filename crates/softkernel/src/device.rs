// SPDX-License-Identifier: MIT OR Apache-2.0
//! The methods that each software device has for its user.

/// Implements the methods of a software device for its user, and [`Handle`](crate::Handle): a struct with the fields `plugged`, a
/// [`PluggedOf`](crate::PluggedOf) the driver, and `name`.
#[macro_export]
macro_rules! device_methods {
    ($device:ident, $model:ty, $driver:ty, $fabric:ty, $violation:ty, $stat:ty) => {
        impl $device {
            /// Opens a new context and returns its kernel port. It corresponds to an open device file: when it is dropped,
            /// all objects of the context are destroyed.
            #[must_use]
            pub fn open(&self) -> ::std::sync::Arc<dyn ::uverbs_core::kernel::Kernel> {
                ::std::sync::Arc::new($crate::Opened::<$driver>::open(&self.plugged, &self.name))
            }

            /// Whether the fabric has a script of faults ([`Fabric::script`](uverbs_fabric::Fabric::script)).
            #[must_use]
            pub fn is_scripted(&self) -> bool {
                self.plugged.is_here() && self.plugged.fabric().read(|world| world.net.is_scripted())
            }

            /// Notes a work request of this device for its script, before it is posted: no command carries it. Returns the error
            /// that it has instead. `verb` is `post_send`, `post_recv`, `post_srq_recv` or `wr_complete`, `queue` the number of
            /// the queue.
            #[must_use]
            pub fn script_post(&self, verb: &str, queue: u32) -> Option<::uverbs_core::Errno> {
                if !self.plugged.is_here() {
                    return None;
                }
                self.plugged.fabric().script_post(self.plugged.index(), verb, queue)
            }

            /// Its name.
            #[must_use]
            pub fn name(&self) -> &str {
                &self.name
            }

            /// The fabric of the device.
            #[must_use]
            pub fn fabric(&self) -> $fabric {
                self.plugged.fabric().clone()
            }

            /// As [`Fabric::run`](uverbs_fabric::Fabric::run).
            pub fn run(&self) {
                self.plugged.fabric().run();
            }

            /// The memory of a queue of a QP at this time, to read its entries (`uverbs decode`); `None` if there is none.
            #[must_use]
            pub fn queue(
                &self,
                qpn: u32,
                queue: ::uverbs_fabric::ring::Queue,
            ) -> Option<::uverbs_fabric::ring::RingDump> {
                self.plugged.queue(qpn, queue)
            }

            /// The violations of drivers so far.
            #[must_use]
            pub fn violations(&self) -> Vec<$violation> {
                self.plugged.violations()
            }

            /// Removes and returns the violations of drivers.
            #[must_use]
            pub fn take_violations(&self) -> Vec<$violation> {
                self.take_violations_if(|_| true)
            }

            /// As [`take_violations`](Self::take_violations), for the violations for which `wanted` is true: a test removes
            /// those that it caused intentionally.
            #[must_use]
            pub fn take_violations_if(&self, wanted: impl FnMut(&$violation) -> bool) -> Vec<$violation> {
                self.plugged.take_violations_if(wanted)
            }

            /// The number of objects of each kind in its contexts: `pd`, `mr`, `qp` and so on, by the names of
            /// `rdma resource`. Tests use it to detect objects that were not destroyed.
            #[must_use]
            pub fn objects(&self) -> ::std::collections::BTreeMap<&'static str, usize> {
                let counts = |driver: &$driver| $crate::Driver::tables(driver).counts();
                self.plugged.read_front(counts).unwrap_or_default()
            }

            /// The number of packets that the device repeated, because packets were lost, duplicated or out of order.
            #[must_use]
            pub fn repairs(&self) -> u64 {
                self.plugged.repairs()
            }

            /// The port and the QPs of the device, for an operator.
            #[must_use]
            pub fn stat(&self) -> $stat {
                self.plugged.stat()
            }

            /// Takes the port's link down or up. Every context gets an event. While the link is down, packets are lost.
            pub fn set_link_up(&self, up: bool) {
                self.plugged.set_link_up(up);
            }

            /// Removes the device while its contexts are open, as a hot unplug does: each context gets the event
            /// `DEVICE_FATAL`, the objects are destroyed, verbs fail with `EIO`, destroying an object succeeds, and peers get
            /// no more answers. Identifiers of the connection manager that are bound to the device get the event
            /// `DEVICE_REMOVAL`. For tests of a service that must survive the loss of a NIC.
            ///
            /// The device can't be used again; a new one can be [built](uverbs_fabric::Fabric::device) with the same name.
            pub fn unplug(&self) {
                $crate::unplug::<$driver>(&self.plugged);
            }

            /// Ends all contexts of the device, as the kernel does when their processes die: all objects are destroyed
            /// without an event, and peers get no more answers from these QPs. The device still exists and can be opened
            /// again. For tests of a service whose peer is killed. Verbs of contexts in this process then fail, and
            /// destroying an object succeeds, as after [`unplug`](Self::unplug); a stream of asynchronous events ends with
            /// the error `EIO`, without an event.
            ///
            /// The event channels of the connection manager end, too: their descriptors are readable, calls fail with `EIO`,
            /// and their identifiers are destroyed. Peers are not told, as if the host had lost its power: a connection
            /// remains until a send fails or the peer disconnects, and a step that waits for an answer times out.
            pub fn kill(&self) {
                $crate::kill::<$driver>(&self.plugged);
            }
        }

        impl $crate::Handle for $device {
            type Model = $model;
            const DRIVER_ID: u32 = <$driver as $crate::Driver>::ID;

            fn name(&self) -> &str {
                &self.name
            }

            fn fabric(&self) -> &$fabric {
                self.plugged.fabric()
            }

            fn open(&self) -> ::std::sync::Arc<dyn ::uverbs_core::kernel::Kernel> {
                $device::open(self)
            }

            fn is_scripted(&self) -> bool {
                $device::is_scripted(self)
            }

            fn script_post(&self, verb: &str, queue: u32) -> Option<::uverbs_core::Errno> {
                $device::script_post(self, verb, queue)
            }

            fn stat(&self) -> $stat {
                self.plugged.stat()
            }

            fn connection_manager(
                &self,
            ) -> ::uverbs_core::Result<::std::sync::Arc<dyn ::uverbs_core::kernel::CmPort>> {
                <$driver as $crate::Driver>::connection_manager(&self.plugged)
            }
        }
    };
}
