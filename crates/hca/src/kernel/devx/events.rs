// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files with the events of objects that commands created, and with the answers of asynchronous queries.
//!
//! A subscription belongs to its file and ends with it, with its object, or with the context. Events that a file has
//! already are not taken back. The kernel merges the events of a subscription in a file without event data; here each is
//! a record.
// UNSAFETY: a subscription names an eventfd(2) by its number.
#![expect(unsafe_code)]

use crate::bytes::put;
use crate::engine::{Notice, event};
use std::os::fd::{BorrowedFd, OwnedFd};
use uverbs_core::Errno;
use uverbs_fabric::map::{Map, Set};
use uverbs_softkernel::Kind;
use uverbs_softkernel::events::{EventFile, inode};

/// `enum mlx5_event`
mod kind {
    pub(super) const COMPLETION: u16 = 0x00;
    pub(super) const COMM_EST: u16 = 0x02;
    pub(super) const SQ_DRAINED: u16 = 0x03;
    pub(super) const CQ_ERROR: u16 = 0x04;
    pub(super) const WQ_CATAS_ERROR: u16 = 0x05;
    pub(super) const PORT_CHANGE: u16 = 0x09;
    pub(super) const WQ_INVAL_REQ_ERROR: u16 = 0x10;
    pub(super) const WQ_ACCESS_ERROR: u16 = 0x11;
    pub(super) const SRQ_LAST_WQE: u16 = 0x13;
}

/// Bytes of an event queue entry, and the places of its type and of the object's number.
const EQE: usize = 64;
const EQE_TYPE: usize = 1;
const EQE_CQ_ERROR_NUMBER: usize = 32;
const EQE_NUMBER: usize = 56;

/// The object of an event, or the device.
type Target = Option<(Kind, u32)>;

#[derive(Debug)]
struct Channel {
    context: u32,
    file: EventFile,
    omits_data: bool,
}

#[derive(Debug)]
struct Subscription {
    channel: usize,
    event: u16,
    cookie: u64,
    /// Counts the events instead of the file.
    signal: Option<OwnedFd>,
}

/// The files of all contexts, and their subscriptions.
#[derive(Debug, Default)]
pub(in crate::kernel) struct Channels {
    next: usize,
    events: Map<usize, Channel>,
    commands: Map<usize, Channel>,
    /// The files by context and inode.
    by_inode: Map<(u32, u64), usize>,
    /// The files whose socket was full.
    late: Set<usize>,
    subscriptions: Map<Target, Vec<Subscription>>,
    /// The objects to whose events each file is subscribed.
    of_files: Set<(usize, Target)>,
    /// How many subscriptions were added since those of closed files were searched, and how many there were then.
    added: usize,
    left: usize,
}

/// The event of a notice: its object, its type, and the place of the object's number.
fn event_of(notice: &Notice) -> Option<(Target, u16, usize)> {
    Some(match *notice {
        Notice::Completion { cqn } => (Some((Kind::Cq, cqn)), kind::COMPLETION, EQE_NUMBER),
        Notice::CqError { cqn } => (Some((Kind::Cq, cqn)), kind::CQ_ERROR, EQE_CQ_ERROR_NUMBER),
        Notice::Qp { qpn, event } => {
            let kind = match event {
                event::COMM_EST => kind::COMM_EST,
                event::SQ_DRAINED => kind::SQ_DRAINED,
                event::QP_FATAL => kind::WQ_CATAS_ERROR,
                event::QP_REQ_ERR => kind::WQ_INVAL_REQ_ERROR,
                event::QP_ACCESS_ERR => kind::WQ_ACCESS_ERROR,
                event::QP_LAST_WQE_REACHED => kind::SRQ_LAST_WQE,
                _ => return None,
            };
            (Some((Kind::Qp, qpn)), kind, EQE_NUMBER)
        }
        Notice::Port { .. } => (None, kind::PORT_CHANGE, EQE_NUMBER),
        Notice::Srq { .. } | Notice::Wq { .. } => return None,
    })
}

/// Whether there is such an event of this kind of object, or of the device.
fn is_event_of(target: Target, event: u16) -> bool {
    match target {
        None => event == kind::PORT_CHANGE,
        Some((Kind::Cq, _)) => matches!(event, kind::COMPLETION | kind::CQ_ERROR),
        Some((Kind::Qp, _)) => matches!(
            event,
            kind::COMM_EST
                | kind::SQ_DRAINED
                | kind::WQ_CATAS_ERROR
                | kind::WQ_INVAL_REQ_ERROR
                | kind::WQ_ACCESS_ERROR
                | kind::SRQ_LAST_WQE
        ),
        Some(_) => false,
    }
}

/// The least number of additions after which closed files are searched.
const LOOK: usize = 64;

impl Channels {
    /// A new file. Returns its number, the kernel's end and the program's end.
    fn add(&mut self, context: u32, omits_data: bool) -> Result<(usize, Channel, OwnedFd), Errno> {
        self.look();
        let (file, rx) = EventFile::new()?;
        self.next += 1;
        self.by_inode.insert((context, file.inode()), self.next);
        Ok((self.next, Channel { context, file, omits_data }, rx))
    }

    pub(super) fn add_command_channel(&mut self, context: u32) -> Result<OwnedFd, Errno> {
        let (number, channel, rx) = self.add(context, false)?;
        self.commands.insert(number, channel);
        Ok(rx)
    }

    pub(super) fn add_event_channel(&mut self, context: u32, omits_data: bool) -> Result<OwnedFd, Errno> {
        let (number, channel, rx) = self.add(context, omits_data)?;
        self.events.insert(number, channel);
        Ok(rx)
    }

    fn find(&self, context: u32, fd: BorrowedFd<'_>) -> Result<usize, Errno> {
        self.by_inode.get(&(context, inode(fd)?)).copied().ok_or(Errno::EBADF)
    }

    pub(super) fn command_channel(&self, context: u32, fd: BorrowedFd<'_>) -> Result<usize, Errno> {
        self.find(context, fd)
            .and_then(|n| if self.commands.contains_key(&n) { Ok(n) } else { Err(Errno::EBADF) })
    }

    /// Writes the answer of an asynchronous query.
    pub(super) fn answer(&mut self, number: usize, wr_id: u64, output: &[u8]) {
        if let Some(channel) = self.commands.get_mut(&number) {
            channel.file.push(&[&wr_id.to_ne_bytes(), output].concat());
            if channel.file.has_backlog() {
                self.late.insert(number);
            }
        }
    }

    /// Counts an addition, and searches for closed files after as many additions as there are entries to look at.
    fn look(&mut self) {
        self.added += 1;
        if self.added >= LOOK.max(self.left) {
            let all = self.events.iter().chain(self.commands.iter());
            let closed = all.filter(|(_, channel)| channel.file.is_closed()).map(|(number, _)| number);
            self.remove(closed.collect());
            self.added = 0;
            self.left = self.of_files.len() + self.by_inode.len();
        }
    }

    /// Removes files with their subscriptions.
    fn remove(&mut self, files: Vec<usize>) {
        for number in files {
            let removed = self.events.remove(&number).or_else(|| self.commands.remove(&number));
            let Some(channel) = removed else { continue };
            self.by_inode.remove(&(channel.context, channel.file.inode()));
            self.late.remove(&number);
            let of = self.of_files.range((number, None)..(number + 1, None));
            for target in of.map(|(_, target)| target).collect::<Vec<_>>() {
                self.of_files.remove(&(number, target));
                if let Some(of) = self.subscriptions.get_mut(&target) {
                    of.retain(|subscription| subscription.channel != number);
                    if of.is_empty() {
                        self.subscriptions.remove(&target);
                    }
                }
            }
        }
    }

    /// Adds a subscription for each type. `signal` is the number of an eventfd(2).
    pub(super) fn subscribe(
        &mut self,
        (context, fd): (u32, BorrowedFd<'_>),
        target: Target,
        events: &[u16],
        cookie: u64,
        signal: Option<u32>,
    ) -> Result<(), Errno> {
        self.look();
        let channel = self.find(context, fd)?;
        if !self.events.contains_key(&channel) {
            return Err(Errno::EBADF);
        }
        // One file counts the events of one type.
        if signal.is_some() && events.len() != 1 || !events.iter().all(|event| is_event_of(target, *event)) {
            return Err(Errno::EINVAL);
        }
        let signal = signal.map(duplicate).transpose()?;
        let mut signals = signal.into_iter();
        for event in events {
            let signal = signals.next();
            let new = Subscription { channel, event: *event, cookie, signal };
            self.subscriptions.get_or_default(target).push(new);
            self.of_files.insert((channel, target));
        }
        Ok(())
    }

    /// Delivers the event of a notice to its subscribers.
    pub(in crate::kernel) fn notice(&mut self, notice: &Notice) {
        if self.subscriptions.is_empty() {
            return;
        }
        let Some((target, event, number_at)) = event_of(notice) else { return };
        let of = self.subscriptions.get(&target).map_or(&[][..], Vec::as_slice);
        for subscription in of.iter().filter(|subscription| subscription.event == event) {
            let Some(channel) = self.events.get_mut(&subscription.channel) else { continue };
            if let Some(signal) = &subscription.signal {
                // The subscription ended when the program closed the file.
                if !channel.file.is_closed() {
                    let _ = nix::unistd::write(signal, &1_u64.to_ne_bytes());
                }
                continue;
            }
            let mut record = subscription.cookie.to_ne_bytes().to_vec();
            if !channel.omits_data {
                let mut eqe = [0; EQE];
                eqe[EQE_TYPE] = event as u8;
                put(&mut eqe, number_at, &target.map_or(0, |(_, number)| number).to_be_bytes());
                record.extend(eqe);
            }
            channel.file.push(&record);
            if channel.file.has_backlog() {
                self.late.insert(subscription.channel);
            }
        }
    }

    /// Writes records for which the files had no room.
    pub(in crate::kernel) fn flush(&mut self) {
        let Self { late, events, commands, .. } = self;
        late.retain(|number| {
            let channel = events.get_mut(&number).or_else(|| commands.get_mut(&number));
            channel.is_some_and(|channel| {
                channel.file.flush();
                channel.file.has_backlog()
            })
        });
    }

    pub(in crate::kernel) fn has_backlog(&self) -> bool {
        !self.late.is_empty()
    }

    /// Ends the subscriptions to a destroyed object.
    pub(in crate::kernel) fn forget(&mut self, target: (Kind, u32)) {
        for subscription in self.subscriptions.remove(&Some(target)).into_iter().flatten() {
            self.of_files.remove(&(subscription.channel, Some(target)));
        }
    }

    /// Closes the files of a context.
    pub(in crate::kernel) fn close(&mut self, context: u32) {
        let of = self.by_inode.range((context, 0)..=(context, u64::MAX));
        self.remove(of.map(|(_, number)| *number).collect());
    }
}

/// A duplicate of a descriptor of this process, by its number.
fn duplicate(fd: u32) -> Result<OwnedFd, Errno> {
    let fd = i32::try_from(fd).map_err(|_| Errno::EBADF)?;
    // SAFETY: the number is not negative, and the descriptor is not closed while the command is executed: the driver's
    // function borrows it (`EventChannel::subscribe_fd`).
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    fd.try_clone_to_owned().map_err(|_| Errno::EBADF)
}
