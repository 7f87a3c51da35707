// SPDX-License-Identifier: MIT OR Apache-2.0
//! The handle of a fabric.

use crate::alive::Alive;
use crate::capture::{self, Capture};
use crate::front::{Front, Station};
use crate::model::{Model, Packet as _};
use crate::net::{Address, Faults, PortLocation};
use crate::plugged::Plugged;
use crate::port::Port;
use crate::tap::Tap;
use crate::trace::{self, Trace, TraceFile};
use crate::trunk::Trunks;
use crate::udp::{self, UdpPort};
use crate::world::World;
use crate::world_lock::WorldLock;
use core::fmt;
use core::time::Duration;
use std::path::Path;
use std::sync::Arc;

/// A network of devices that can reach each other. Clones refer to the same fabric.
pub struct Fabric<M: Model> {
    alive: Arc<Alive<M>>,
}

impl<M: Model> Clone for Fabric<M> {
    fn clone(&self) -> Self {
        Self { alive: Arc::clone(&self.alive) }
    }
}

impl<M: Model> fmt::Debug for Fabric<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fabric").field("alive", &self.alive).finish()
    }
}

impl<M: Model> Fabric<M> {
    /// A fabric in real time. The seed determines which packets are affected by its faults.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let shared = Arc::new(WorldLock::new(seed, false));
        let clock = Arc::clone(&shared);
        // If there is no thread, timers run at the next doorbell or command.
        let thread =
            std::thread::Builder::new().name("uverbs-fabric".into()).spawn(move || clock.run_timers());
        if let Err(error) = &thread {
            log::warn!("no thread for the fabric's timers: {error}");
        }
        Self { alive: Alive::new(shared, thread.ok()) }.of_environment().scripted()
    }

    /// A fabric with a virtual clock and no thread: the same calls give the same run.
    #[must_use]
    pub fn deterministic(seed: u64) -> Self {
        Self { alive: Alive::new(Arc::new(WorldLock::new(seed, true)), None) }.of_environment().scripted()
    }

    /// Begins the capture and the trace, and sets the order that the environment asks for.
    fn of_environment(self) -> Self {
        if let Some((path, qpns)) = trace::of_environment() {
            match TraceFile::append(&path, self.is_deterministic(), Duration::ZERO) {
                Ok(file) => self.trace(&qpns, Some(Box::new(file))),
                Err(error) => log::warn!("no trace to {}: {error}", path.display()),
            }
        }
        if let Some(path) = capture::of_environment() {
            match Capture::limited(&path, self.is_deterministic()) {
                Ok(file) => self.tap(Some(Box::new(file))),
                Err(error) => log::warn!("no capture to {}: {error}", path.display()),
            }
        }
        self.order_of_environment();
        self
    }

    /// Lets other processes [join](Fabric::join) this fabric through a Unix socket, whose file is created. This process
    /// forwards packets between them, so all of them reach each other; it needs no devices itself.
    ///
    /// # Errors
    /// The socket can't be created; another process listens there (`AddrInUse`); this fabric joined another one; it is
    /// deterministic, which a fabric of several processes can't be.
    pub fn listen(&self, path: &Path) -> std::io::Result<()> {
        self.real()?;
        if self.alive.shared.read(|world| world.peers.base != 0) {
            return Err(std::io::Error::new(
                std::io::ErrorKind::InvalidInput,
                "a process that joined a fabric can't be joined",
            ));
        }
        self.alive.trunks.listen(&self.alive.shared, path)
    }

    /// Joins the fabric of a process that [listens](Fabric::listen): its devices, and those of all processes that
    /// joined it, can communicate with the devices of this process. The listening process assigns the addresses, so the
    /// call must be made before any device is built. If the connection is lost, the links between the processes are
    /// down until it can be established again.
    ///
    /// # Errors
    /// No process listens, or it is not a fabric; there are devices, or other processes joined; the fabric is
    /// deterministic.
    pub fn join(&self, path: &Path) -> std::io::Result<()> {
        self.real()?;
        let is_used = self.alive.shared.read(|world| !world.devices.is_empty() || world.peers.base != 0);
        if is_used || self.alive.trunks.is_listening() {
            return Err(std::io::Error::new(
                std::io::ErrorKind::InvalidInput,
                "a fabric can be joined only once, and before devices are built",
            ));
        }
        self.alive.trunks.join(&self.alive.shared, path)
    }

    /// Joins the fabric of the process that listens on the socket; if there is none, listens there.
    ///
    /// # Errors
    /// Those of [`join`](Fabric::join) and [`listen`](Fabric::listen).
    pub fn meet(&self, path: &Path) -> std::io::Result<()> {
        use std::io::ErrorKind;
        loop {
            match self.join(path) {
                Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {}
                joined => return joined,
            }
            match self.listen(path) {
                // Another process has begun to listen after the attempt to join.
                Err(e) if e.kind() == ErrorKind::AddrInUse => {}
                listens => return listens,
            }
        }
    }

    /// Waits until packets for other processes are sent; at most a second or two. Dropping the last user of a fabric
    /// does this; a program that ends without dropping it must call this first.
    pub fn flush(&self) {
        Trunks::flush(&self.alive.shared);
        // Who unlocks the world sends what waits for UDP sockets.
        self.enter(|_| ());
    }

    /// Gives the port of a device a UDP socket.
    pub(crate) fn attach_udp(&self, device: usize, port: UdpPort) -> std::io::Result<()> {
        self.real()?;
        self.alive.keep(udp::attach(&self.alive.shared, device, port)?);
        Ok(())
    }

    fn real(&self) -> std::io::Result<()> {
        match self.is_deterministic() {
            true => Err(std::io::ErrorKind::Unsupported.into()),
            false => Ok(()),
        }
    }

    /// The bytes that wait for other processes.
    #[must_use]
    pub fn waiting_for_peers(&self) -> usize {
        let outboxes = self.alive.shared.read(|world| world.peers.outboxes());
        outboxes.iter().map(|outbox| outbox.waiting()).sum()
    }

    /// A new device of this name.
    pub fn device(&self, name: &str) -> M::Builder {
        M::builder(self, name)
    }

    /// Plugs a device in. `address` gets the number of its port in the fabric, which is unique among the ports of all processes,
    /// and returns the addresses of the port and a function that makes the device and its front.
    pub fn plug<F: Front<M>, G: FnOnce(&mut Port<'_, M::Packet>) -> (M, F)>(
        &self,
        address: impl FnOnce(u16) -> (Address, G),
    ) -> Plugged<M, F> {
        let in_real_time = !self.is_deterministic();
        let index = self.enter(|world| {
            let index = world.devices.len();
            // Devices of other processes have slots between those of this process, and separate numbers.
            let here = world.net.ports.iter().filter(|p| p.location == PortLocation::Here).count();
            let (address, make) = address(world.peers.base.wrapping_add(here as u16));
            world.net.ports.push(address);
            world.net.changes += 1;
            world.net.name_devices();
            let (device, front) = make(&mut Port { now: world.now, me: index, net: &mut world.net });
            world.brief |= in_real_time && front.is_in_vm();
            world.net.asides.are_off = world.brief;
            world.devices.push(Some(Station { device, front: Box::new(front), is_listed: false }));
            world.here.push(index);
            world.list(index);
            index
        });
        Plugged::new(self.clone(), index)
    }

    pub(crate) fn alive(&self) -> &Arc<Alive<M>> {
        &self.alive
    }

    /// Waits until the other processes know the devices of this one, at most for some seconds.
    pub fn sync(&self) {
        Trunks::sync(&self.alive.shared);
    }

    /// Calls `f` with the state of the fabric, and then processes due packets and timers.
    pub fn enter<R>(&self, f: impl FnOnce(&mut World<M>) -> R) -> R {
        self.alive.shared.enter(f)
    }

    /// As [`enter`](Self::enter), if `f` takes no memory away, moves and destroys no queue, and does not change the network: while threads
    /// copy long messages, it does not wait for them.
    pub fn enter_beside<R>(&self, f: impl FnOnce(&mut World<M>) -> R) -> R {
        self.enter_if(false, f)
    }

    /// As [`enter`](Self::enter) if `f` must wait for the copies of long messages, or [`enter_beside`](Self::enter_beside).
    pub fn enter_if<R>(&self, waits: bool, f: impl FnOnce(&mut World<M>) -> R) -> R {
        self.alive.shared.enter_if(waits, f)
    }

    /// Calls `f` with the state of the fabric. No packets or timers are processed.
    pub fn read<R>(&self, f: impl FnOnce(&World<M>) -> R) -> R {
        self.alive.shared.read(f)
    }

    pub(crate) fn shared(&self) -> &Arc<WorldLock<M>> {
        &self.alive.shared
    }

    /// Whether the clock is virtual.
    #[must_use]
    pub fn is_deterministic(&self) -> bool {
        self.alive.shared.deterministic
    }

    /// Whether this is the process that created the fabric, and not a child of it, in which its lock may stay locked for ever.
    #[must_use]
    pub fn is_here(&self) -> bool {
        self.alive.is_here()
    }

    /// Loses packets with this probability.
    #[expect(clippy::must_use_candidate, reason = "returns itself, so that calls can be chained")]
    pub fn loss(&self, p: f64) -> &Self {
        self.faults(|f| f.loss = p)
    }

    /// Delivers packets twice with this probability.
    #[expect(clippy::must_use_candidate, reason = "returns itself, so that calls can be chained")]
    pub fn duplicate(&self, p: f64) -> &Self {
        self.faults(|f| f.duplicate = p)
    }

    /// Delivers packets after later ones with this probability.
    #[expect(clippy::must_use_candidate, reason = "returns itself, so that calls can be chained")]
    pub fn reorder(&self, p: f64) -> &Self {
        self.faults(|f| f.reorder = p)
    }

    /// Delays every packet.
    #[expect(clippy::must_use_candidate, reason = "returns itself, so that calls can be chained")]
    pub fn delay(&self, delay: Duration) -> &Self {
        self.faults(|f| f.delay = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX))
    }

    fn faults(&self, change: impl FnOnce(&mut Faults)) -> &Self {
        self.alive.shared.enter(|world| change(&mut world.net.faults));
        self
    }

    /// Writes the packets of this process from now on to a capture file (pcapng), which Wireshark reads, as they are on the wire: with the
    /// headers of RoCE version 2 or InfiniBand. The file is complete after each packet. It has each packet that a device of this process
    /// sends, and each that comes from another process; comments name what the headers do not, such as the sender's QP, and packets that
    /// faults lose. A file that exists is replaced. Another call ends the capture before; [`tap`](Self::tap) with `None` ends it.
    ///
    /// # Errors
    /// The file can't be created or written. The packets of the model have no public format (`Unsupported`).
    pub fn capture(&self, path: &Path) -> std::io::Result<()> {
        if !M::Packet::IS_PUBLIC {
            return Err(std::io::Error::new(
                std::io::ErrorKind::Unsupported,
                "the packets of these devices have no public format",
            ));
        }
        let file = Capture::create(path, self.is_deterministic(), self.now())?;
        self.tap(Some(Box::new(file)));
        Ok(())
    }

    /// Shows the packets to a tap from now on, or to none.
    pub fn tap(&self, tap: Option<Box<dyn Tap<M::Packet>>>) {
        self.enter(|world| world.net.set_tap(tap));
    }

    /// Shows what happens on the fabric from now on, in words: each request, packet, placement of data, completion, event and timer of
    /// these QPs, and the packets to them; of all QPs if there are none. Another call ends the trace before, `None` ends it.
    ///
    /// Both ends of a connection may have the same QP number, on two devices: then the steps of both are shown.
    pub fn trace(&self, qpns: &[u32], sink: Option<Box<dyn Trace>>) {
        self.enter(|world| world.net.set_trace(qpns, sink));
    }

    /// As [`trace`](Self::trace), to a file, to which lines are appended, at most 8 MiB. [`trace::read`] reads it, and so does
    /// `uverbs trace`.
    ///
    /// # Errors
    /// The file can't be created or opened.
    pub fn trace_to(&self, path: &Path, qpns: &[u32]) -> std::io::Result<()> {
        let file = TraceFile::append(path, self.is_deterministic(), self.now())?;
        self.trace(qpns, Some(Box::new(file)));
        Ok(())
    }

    /// Advances the clock until there is nothing left to wait for: all packets are delivered and all timers have run. A
    /// request that waits for a receiver without limit is checked, and continues to wait. In real time only due packets
    /// and timers are processed.
    pub fn run(&self) {
        self.alive.shared.run();
    }

    /// Advances a virtual clock by this time, and processes what becomes due. In real time only due packets and timers
    /// are processed.
    pub fn run_for(&self, time: Duration) {
        self.alive.shared.run_for(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// The clock, in nanoseconds since the fabric was created.
    #[must_use]
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.alive.shared.read(|world| world.now))
    }
}
