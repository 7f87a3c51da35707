// SPDX-License-Identifier: MIT OR Apache-2.0
//! A fabric of several processes: each has its devices, and a Unix socket carries the packets between them.
//!
//! One process listens, any number of others join it. Each process has a slot for every port of the others, with its
//! addresses but without a device, and packets to that port go to the socket. The listening process assigns the numbers of
//! devices, so that addresses differ, and forwards packets between two processes that joined. It can be a process without
//! devices. A process either listens or joins, so there is one way from each port to each other one.
//!
//! If a connection breaks, the ports behind it are removed, packets to them are lost, and the process that joined
//! connects again. A peer that does not read loses packets at first, and is disconnected after some time. Its messages
//! are checked ([`wire`]); a peer that sends invalid ones is disconnected.

use crate::model::{Hosts, Model, Packet};
use crate::net::{Address, MAX_FLIGHT_OF_LINK, PortLocation};
use crate::peers::{MAX_ADDRESSES, MAX_PEERS, Outbox};
use crate::socket;
use crate::wire::{self, Malformed};
use crate::world::World;
use crate::world_lock::WorldLock;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

type Message<M> = wire::Message<<M as Model>::Packet>;

/// Packets that may wait here, and their bytes from a peer; while there are more, none is read from it.
const WAITING: usize = 1 << 16;
const WAITING_BYTES: usize = MAX_FLIGHT_OF_LINK / 2;
/// Connections at a time, of peers and of processes that have not introduced themselves yet.
const MAX_CONNECTIONS: usize = MAX_PEERS + 16;
/// A peer whose messages have taken longer than this is not read for as long, so that it does not occupy the fabric.
const LONG: Duration = Duration::from_millis(2);
const PAUSE: Duration = Duration::from_millis(200);
/// Messages that are processed per locking of the world.
const BATCH: usize = 64;
/// The time limit for the introduction of a peer, and for a write to it.
const HANDSHAKE: Duration = Duration::from_secs(5);
const STUCK: Duration = Duration::from_secs(10);
/// The time limit for answers of peers.
const ANSWER: Duration = Duration::from_secs(5);
/// The time limit for a peer to read the last messages when this process ends.
const LAST: Duration = Duration::from_secs(2);
/// Interval of the checks for an answer.
const LOOK: Duration = Duration::from_micros(200);
/// Interval of the attempts to reconnect.
const AGAIN: Duration = Duration::from_millis(200);

impl<M: Model> World<M> {
    /// Processes a message of a peer.
    fn hear(&mut self, link: u32, message: Message<M>) -> Result<(), Malformed> {
        match message {
            Message::<M>::Ports(ports) => {
                let location = PortLocation::Away { link };
                let numbers: BTreeSet<u16> = ports.iter().map(|p| p.number).collect();
                let addresses: usize = ports.iter().map(|p| p.gids.len()).sum();
                let has_joined = self.peers.base_of(link) != Some(0);
                if !numbers.iter().all(|number| self.peers.may_have(link, *number))
                    || has_joined && addresses > MAX_ADDRESSES
                {
                    return Err(Malformed);
                }
                let mut slots = BTreeMap::new();
                for i in 0..self.net.ports.len() {
                    let Address { location: of, number, .. } = self.net.ports[i];
                    if of != location {
                        continue;
                    }
                    if numbers.contains(&number) {
                        slots.insert(number, i);
                    } else {
                        self.hosts.lost(&mut self.net, self.now, i);
                        self.net.take_away(i);
                    }
                }
                let gone = |(i, port): (usize, &Address)| (port.location == PortLocation::Gone).then_some(i);
                let mut free: Vec<usize> =
                    self.net.ports.iter().enumerate().filter_map(gone).take(numbers.len()).collect();
                for port in ports {
                    let slot = *slots.entry(port.number).or_insert_with(|| self.slot(&mut free));
                    self.net.ports[slot] = port.address(location);
                }
                self.net.changes += 1;
            }
            Message::<M>::Members(members) => {
                let mut all = Vec::new();
                for (group, number, qpn) in members {
                    all.extend(self.net.away(link, number).map(|i| (group, i, qpn)));
                }
                self.net.replace_members(link, all);
            }
            Message::<M>::Packet { to, mut packet } => {
                // A packet from or to a port that does not exist is late, and is dropped.
                let Some(from) = u16::try_from(packet.source()).ok().and_then(|n| self.net.away(link, n))
                else {
                    return Ok(());
                };
                packet.set_source(from);
                self.net.inject(self.now, to, packet);
            }
            Message::<M>::Sync(number) => {
                // The other peers get the changes before the request for an answer.
                self.peers.send_changes(&self.net);
                self.peers.relay(link, number)?;
            }
            Message::<M>::Synced(number) => self.peers.answered(link, number),
            Message::<M>::Host { to, bytes } => self.hosts.arrived(&mut self.net, self.now, link, to, bytes),
            Message::<M>::Hello { .. } | Message::<M>::Welcome { .. } | Message::<M>::Refused => {
                return Err(Malformed);
            }
        }
        Ok(())
    }

    /// A slot for a new port of a peer: one of those that are free, or a new one.
    fn slot(&mut self, free: &mut Vec<usize>) -> usize {
        let Some(slot) = free.pop() else { return self.push_away() };
        // The queues of the port that had the slot may have had the numbers of the new port's. This is done now and not when
        // that port was removed, because packets that were in flight arrived later.
        for i in 0..self.here.len() {
            if let Some((device, mut port)) = self.device(self.here[i]) {
                device.forget(&mut port, slot);
            }
        }
        slot
    }

    /// Removes a lost connection.
    fn unlink(&mut self, link: u32) {
        self.peers.remove(link);
        for i in 0..self.net.ports.len() {
            if self.net.ports[i].location == (PortLocation::Away { link }) {
                self.hosts.lost(&mut self.net, self.now, i);
                self.net.take_away(i);
            }
        }
    }
}

/// A socket that is shut down when this is dropped, even if it is used elsewhere.
#[derive(Debug)]
struct Kept {
    trunks: Arc<Trunks>,
    id: u64,
}

impl Drop for Kept {
    fn drop(&mut self) {
        let socket = self.trunks.state().sockets.remove(&self.id);
        if let Some(socket) = socket {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

/// A connection after the introduction.
#[derive(Debug)]
struct Joined {
    stream: UnixStream,
    link: u32,
    outbox: Arc<Outbox>,
    _kept: Kept,
}

/// The threads and sockets of a fabric of several processes; they end with it.
#[derive(Debug, Default)]
pub(crate) struct Trunks {
    stop: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    sockets: BTreeMap<u64, UnixStream>,
    next: u64,
    /// Each with its path, which another program may have removed.
    listeners: Vec<(PathBuf, UnixListener)>,
    threads: Vec<JoinHandle<()>>,
}

impl Trunks {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether other processes can join.
    pub(crate) fn is_listening(&self) -> bool {
        !self.state().listeners.is_empty()
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Stores a socket, which is shut down with the fabric.
    fn keep(self: &Arc<Self>, socket: &UnixStream) -> io::Result<Kept> {
        let socket = socket.try_clone()?;
        let mut state = self.state();
        // The flag is checked under the lock, which the end of the fabric takes after it has set the flag.
        if self.is_stopped() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        state.next += 1;
        let id = state.next;
        state.sockets.insert(id, socket);
        Ok(Kept { trunks: Arc::clone(self), id })
    }

    fn spawn(self: &Arc<Self>, name: &str, f: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let thread = std::thread::Builder::new().name(name.into()).spawn(f)?;
        let mut state = self.state();
        state.threads.retain(|t| !t.is_finished());
        state.threads.push(thread);
        Ok(())
    }

    /// Ends all threads and closes all sockets.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        let State { sockets, listeners, threads, .. } = core::mem::take(&mut *self.state());
        for socket in sockets.into_values() {
            let _ = socket.shutdown(Shutdown::Both);
        }
        for (path, listener) in listeners {
            // Wakes the thread in accept(2), which then sees the flag. A connection would not, if the path is gone.
            let _ = nix::sys::socket::shutdown(listener.as_raw_fd(), nix::sys::socket::Shutdown::Both);
            let _ = socket::remove(&path);
        }
        for thread in threads {
            let _ = thread.join();
        }
    }

    /// Waits until all peers have processed the messages to them. They then have the ports of this process, and have
    /// sent theirs.
    pub(crate) fn sync<M: Model>(shared: &WorldLock<M>) {
        if shared.read(|world| world.peers.is_empty()) {
            return;
        }
        // Changes are sent when the lock of the world is released, so the request for an answer is sent after them.
        shared.enter(|_| ());
        shared.enter(|world| world.peers.ask());
        wait(shared, ANSWER, |world| world.peers.has_answers());
    }

    /// Waits until the packets for peers are written.
    pub(crate) fn flush<M: Model>(shared: &WorldLock<M>) {
        if shared.read(|world| world.peers.is_empty()) {
            return;
        }
        wait(shared, LAST, |world| world.net.in_flight() == 0);
        let until = Instant::now() + LAST;
        // Without the lock, which the threads of the peers need.
        let outboxes = shared.read(|world| world.peers.outboxes());
        outboxes.iter().for_each(|outbox| outbox.flush(until));
    }

    /// Lets other processes join.
    pub(crate) fn listen<M: Model>(
        self: &Arc<Self>,
        shared: &Arc<WorldLock<M>>,
        path: &Path,
    ) -> io::Result<()> {
        let listener = socket::bind(path)?;
        self.state().listeners.push((path.into(), listener.try_clone()?));
        let (this, shared) = (Arc::clone(self), Arc::clone(shared));
        self.spawn("fabric", move || {
            for stream in listener.incoming() {
                if this.is_stopped() {
                    return;
                }
                let Ok(stream) = stream else {
                    std::thread::sleep(AGAIN);
                    continue;
                };
                if this.state().sockets.len() >= MAX_CONNECTIONS {
                    log::warn!("a process was refused: {MAX_CONNECTIONS} others are connected");
                    continue;
                }
                let (that, shared) = (Arc::clone(&this), Arc::clone(&shared));
                let serve = move || match that.welcome(&shared, stream) {
                    Ok(Some(joined)) => that.run(&shared, joined),
                    Ok(None) => {
                        log::warn!("a process was refused: its number is in use, or {MAX_PEERS} have joined");
                    }
                    // Another process has only checked whether this one listens.
                    Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
                    Err(error) => log::warn!("a process did not join: {error}"),
                };
                if let Err(error) = this.spawn("joined", serve) {
                    log::warn!("no thread for a process that joins: {error}");
                }
            }
        })
    }

    /// Joins a process that listens, and joins it again whenever the connection is lost.
    pub(crate) fn join<M: Model>(self: &Arc<Self>, world: &Arc<WorldLock<M>>, path: &Path) -> io::Result<()> {
        let joined = self.connect(world, path, None)?;
        let (this, shared, path) = (Arc::clone(self), Arc::clone(world), path.to_path_buf());
        self.spawn("joined", move || {
            this.run(&shared, joined);
            while !this.is_stopped() {
                std::thread::sleep(AGAIN);
                let base = shared.read(|world| world.peers.base);
                if let Ok(joined) = this.connect(&shared, &path, Some(base)) {
                    log::info!("joined {} again", path.display());
                    this.run(&shared, joined);
                }
            }
        })?;
        Self::sync(world);
        Ok(())
    }

    /// Connects, as the process that joins.
    fn connect<M: Model>(
        self: &Arc<Self>,
        shared: &WorldLock<M>,
        path: &Path,
        base: Option<u16>,
    ) -> io::Result<Joined> {
        let stream = UnixStream::connect(path)?;
        let kept = self.keep(&stream)?;
        stream.set_read_timeout(Some(HANDSHAKE))?;
        stream.set_write_timeout(Some(STUCK))?;
        (&stream).write_all(&Message::<M>::Hello { base }.bytes())?;
        match receive::<M::Packet>(&mut &stream)? {
            Message::<M>::Welcome { base: given } if base.is_none_or(|own| own == given) => {
                let (link, outbox) = shared.enter(|world| {
                    world.peers.base = given;
                    world.peers.add(0)
                });
                Ok(Joined { stream, link, outbox, _kept: kept })
            }
            Message::<M>::Refused => {
                let text = "refused: the number of this process's devices is in use, or too many have joined";
                Err(io::Error::other(text))
            }
            _ => Err(invalid(Malformed)),
        }
    }

    /// Accepts a connection, as the process that listens; `None` if the peer was refused.
    fn welcome<M: Model>(
        self: &Arc<Self>,
        shared: &WorldLock<M>,
        stream: UnixStream,
    ) -> io::Result<Option<Joined>> {
        let kept = self.keep(&stream)?;
        stream.set_read_timeout(Some(HANDSHAKE))?;
        stream.set_write_timeout(Some(STUCK))?;
        let Message::<M>::Hello { base } = receive::<M::Packet>(&mut &stream)? else {
            return Err(invalid(Malformed));
        };
        // This must be the first message, so it is queued before any other.
        let link = shared.enter(|world| {
            let base = world.peers.number(base)?;
            let (link, outbox) = world.peers.add(base);
            outbox.push(&Message::<M>::Welcome { base });
            Some((link, outbox))
        });
        if link.is_none() {
            (&stream).write_all(&Message::<M>::Refused.bytes())?;
        }
        Ok(link.map(|(link, outbox)| Joined { stream, link, outbox, _kept: kept }))
    }

    /// Carries messages until the connection is lost.
    fn run<M: Model>(self: &Arc<Self>, shared: &WorldLock<M>, joined: Joined) {
        let Joined { stream, link, outbox, _kept } = joined;
        let result = self.carry(shared, stream, link, &outbox);
        outbox.close();
        shared.enter(|world| world.unlink(link));
        let lost = outbox.lost();
        match result {
            _ if self.is_stopped() => {}
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => {
                log::warn!(
                    "the connection to another process of the fabric is lost: {error}; {lost} packets lost"
                );
            }
            _ => log::info!("another process of the fabric has closed its connection; {lost} packets lost"),
        }
    }

    fn carry<M: Model>(
        self: &Arc<Self>,
        shared: &WorldLock<M>,
        stream: UnixStream,
        link: u32,
        outbox: &Arc<Outbox>,
    ) -> io::Result<()> {
        stream.set_read_timeout(None)?;
        let (mut out, from) = (stream.try_clone()?, Arc::clone(outbox));
        self.spawn("to peer", move || {
            while let Some(message) = from.pop() {
                if let Err(error) = out.write_all(&message) {
                    log::debug!("writing to another process of the fabric: {error}");
                    from.close();
                }
            }
            // Wakes the reader.
            let _ = out.shutdown(Shutdown::Both);
        })?;
        let mut input = BufReader::with_capacity(1 << 16, stream);
        loop {
            let mut messages = vec![receive::<M::Packet>(&mut input)?];
            // Messages that have arrived already are processed, too.
            while messages.len() < BATCH && is_whole(input.buffer()) {
                messages.push(receive(&mut input)?);
            }
            let waits = |world: &World<M>| {
                world.net.in_flight() > WAITING || world.net.flight_of(link) > WAITING_BYTES
            };
            let start = Instant::now();
            let mut must_wait = shared.enter_briefly(|world| {
                messages.into_iter().try_for_each(|m| world.hear(link, m)).map_err(invalid)?;
                io::Result::Ok(waits(world))
            })?;
            let took = start.elapsed();
            if took > LONG {
                std::thread::sleep(took.min(PAUSE));
            }
            while must_wait && !self.is_stopped() {
                std::thread::sleep(Duration::from_millis(1));
                must_wait = shared.enter_briefly(|world| waits(world));
            }
        }
    }
}

/// Waits until `so` returns `true`, at most for `limit`.
fn wait<M: Model>(shared: &WorldLock<M>, limit: Duration, so: impl Fn(&World<M>) -> bool) {
    let until = Instant::now() + limit;
    while !shared.enter(|world| so(world)) && Instant::now() < until {
        std::thread::sleep(LOOK);
    }
}

fn invalid(error: Malformed) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// The length in front of a message.
fn length(bytes: &[u8]) -> Option<usize> {
    bytes.first_chunk().map(|len| u32::from_be_bytes(*len) as usize)
}

/// Whether a buffer begins with all of a message.
fn is_whole(buffer: &[u8]) -> bool {
    length(buffer).is_some_and(|len| buffer.len() - 4 >= len)
}

/// Reads a message.
fn receive<P: Packet>(from: &mut impl Read) -> io::Result<wire::Message<P>> {
    let mut len = [0; 4];
    from.read_exact(&mut len)?;
    let len = length(&len).filter(|len| *len <= wire::MAX).ok_or_else(|| invalid(Malformed))?;
    let mut bytes = vec![0; len];
    from.read_exact(&mut bytes)?;
    wire::Message::parse(&bytes).map_err(invalid)
}
