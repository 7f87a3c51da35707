// SPDX-License-Identifier: MIT OR Apache-2.0
//! Event files: completion channels and asynchronous events. They are sockets that preserve record boundaries.
//!
//! A program reads and polls its end like the kernel's event files. When the device is dropped, the program reads end
//! of file.

use nix::errno::Errno as Nix;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socketpair};
use nix::sys::stat::fstat;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use uverbs_core::Errno;
use uverbs_fabric::map::{Map, Set};

/// The longest record: that of an asynchronous event.
const RECORD: usize = 16;
/// Records that are stored if the socket is full; further records are dropped.
const BACKLOG: usize = 1 << 16;

/// The kernel's end of an event file.
#[derive(Debug)]
pub struct EventFile {
    tx: OwnedFd,
    /// The inode, which identifies the file if a command names it.
    inode: u64,
    /// The records for which the socket had no room, by their places in the order.
    backlog: Map<u64, Vec<u8>>,
    /// Their places by [`element`], so that those of an object are found without a look at the others.
    places: Set<(u64, u64)>,
    /// The place of the next record.
    next: u64,
}

/// The place of the first record of a file. Records that were in the socket can be placed before others.
const FIRST: u64 = 1 << 63;

/// The object that a record names in its first word.
fn element(record: &[u8]) -> u64 {
    record.first_chunk().map_or(0, |word| u64::from_ne_bytes(*word))
}

impl EventFile {
    /// A new file. Returns the kernel's end and the program's end.
    ///
    /// # Errors
    /// The process has too many open files.
    pub fn new() -> Result<(Self, OwnedFd), Errno> {
        let (tx, rx) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
        let inode = inode(rx.as_fd())?;
        Ok((Self { tx, inode, backlog: Map::new(), places: Set::new(), next: FIRST }, rx))
    }

    /// The number that identifies it, as [`inode`] returns it for the program's end.
    #[must_use]
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// Whether the program has closed its end and all copies of it.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
        let mut fds = [PollFd::new(self.tx.as_fd(), PollFlags::POLLOUT)];
        poll(&mut fds, PollTimeout::ZERO).is_ok()
            && fds[0].revents().is_some_and(|r| r.contains(PollFlags::POLLHUP))
    }

    /// Appends a record. `false`: too many are unread, and it is dropped.
    pub fn push(&mut self, record: &[u8]) -> bool {
        let has_room = self.backlog.len() < BACKLOG;
        if has_room {
            self.store(self.next, record.to_vec());
            self.next += 1;
        }
        self.flush();
        has_room
    }

    fn store(&mut self, place: u64, record: Vec<u8>) {
        self.places.insert((element(&record), place));
        self.backlog.insert(place, record);
    }

    fn take(&mut self, place: u64) {
        if let Some(record) = self.backlog.remove(&place) {
            self.places.remove(&(element(&record), place));
        }
    }

    /// Writes the records for which the socket has room.
    pub fn flush(&mut self) {
        while let Some((place, record)) = self.backlog.first_key_value() {
            match send(self.tx.as_raw_fd(), record, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL) {
                Ok(_) => {}
                Err(Nix::EAGAIN | Nix::ENOBUFS) => return,
                // The program has closed its end.
                Err(_) => {
                    self.backlog.clear();
                    return self.places.clear();
                }
            }
            self.take(place);
        }
    }

    /// Whether there are records for which the socket had no room.
    #[must_use]
    pub fn has_backlog(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// Removes the records whose first word is this object, and for which `mine` is true, from the file, as the kernel does when the object is
    /// destroyed. `rx` is a copy of the program's end. Returns how many there were.
    ///
    /// The records in the socket, of which there are a few hundred at most, are read and written again.
    pub fn purge(&mut self, rx: BorrowedFd<'_>, object: u64, mine: impl Fn(&[u8]) -> bool) -> u32 {
        let is_mine = |record: &[u8]| element(record) == object && mine(record);
        let (mut purged, mut others, mut buffer) = (0, Vec::new(), [0; RECORD]);
        while let Ok(n @ 1..) = recv(rx.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT) {
            let record = &buffer[..n];
            if is_mine(record) {
                purged += 1;
            } else {
                others.push(record.to_vec());
            }
        }
        let places: Vec<u64> =
            self.places.range((object, 0)..=(object, u64::MAX)).map(|(_, place)| place).collect();
        for place in places {
            if self.backlog.get(&place).is_some_and(|record| is_mine(record)) {
                self.take(place);
                purged += 1;
            }
        }
        let first = self.backlog.first_key_value().map_or(self.next, |(place, _)| place);
        for (record, place) in others.into_iter().rev().zip((0..first).rev()) {
            self.store(place, record);
        }
        self.flush();
        purged
    }
}

/// The number that identifies an open file.
///
/// # Errors
/// Those of fstat(2).
pub fn inode(fd: BorrowedFd<'_>) -> Result<u64, Errno> {
    Ok(fstat(fd)?.st_ino)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::time::{ClockId, clock_gettime};

    fn read(fd: &OwnedFd) -> Option<Vec<u8>> {
        let mut buffer = [0; 32];
        let n = recv(fd.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT).ok()?;
        Some(buffer[..n].to_vec())
    }

    #[test]
    fn records_beyond_the_limit_are_dropped() {
        let (mut file, rx) = EventFile::new().unwrap();
        let stored = (0..BACKLOG as u64 + 1000).filter(|i| file.push(&i.to_ne_bytes())).count() as u64;
        assert!((BACKLOG as u64..BACKLOG as u64 + 1000).contains(&stored), "{stored}");
        let mut found = 0;
        while read(&rx).is_some() {
            found += 1;
            file.flush();
        }
        assert_eq!(found, stored);
        assert!(file.push(&[0; 8]));
    }

    #[test]
    fn event_records_stay_separate_and_in_order() {
        let (mut file, rx) = EventFile::new().unwrap();
        for i in 0..2000_u64 {
            file.push(&i.to_ne_bytes());
        }
        assert!(file.has_backlog());
        for i in 0..2000_u64 {
            assert_eq!(read(&rx).unwrap(), i.to_ne_bytes());
            file.flush();
        }
        assert_eq!(read(&rx), None);
    }

    #[test]
    fn purging_removes_only_the_matching_records() {
        let (mut file, rx) = EventFile::new().unwrap();
        for i in 0..2000_u64 {
            file.push(&[(i % 5).to_ne_bytes(), i.to_ne_bytes()].concat());
        }
        assert!(file.has_backlog(), "some are in the socket, some are not");
        let is_left = |i: &u64| i % 5 != 2 || i & 128 != 0;
        let gone = (0..2000).filter(|i| !is_left(i)).count();
        assert_eq!(file.purge(rx.as_fd(), 2, |record| record[8] < 128) as usize, gone);
        assert_eq!(file.purge(rx.as_fd(), 7, |_| true), 0);
        for i in (0..2000_u64).filter(is_left) {
            assert_eq!(read(&rx).unwrap(), [(i % 5).to_ne_bytes(), i.to_ne_bytes()].concat());
            file.flush();
        }
        assert!(read(&rx).is_none() && !file.has_backlog() && file.places.is_empty());
        file.push(&[1; 8]);
        assert!(!file.is_closed() && inode(rx.as_fd()) == Ok(file.inode()));
        drop(rx);
        assert!(file.is_closed());
        file.push(&[1; 8]);
        assert!(!file.has_backlog());
    }

    #[test]
    fn the_events_of_an_object_cost_the_same_among_many() {
        let (mut file, rx) = EventFile::new().unwrap();
        let mut cost_among = |count: u64| {
            for i in 0..count {
                assert!(file.push(&i.to_ne_bytes()));
            }
            let now = || {
                let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap();
                (time.tv_sec() * 1_000_000_000 + time.tv_nsec()).cast_unsigned()
            };
            let begin = now();
            for i in 0..100 {
                assert_eq!(file.purge(rx.as_fd(), count / 2 + i, |_| true), 1);
            }
            let cost = (now() - begin) / 100;
            while read(&rx).is_some() {
                file.flush();
            }
            cost
        };
        let (few, many) = (cost_among(1_000), cost_among(60_000));
        println!("{few} ns each among 1,000, {many} among 60,000");
        assert!(many < few * 4, "{few} ns each among 1,000, {many} among 60,000");
    }

    #[test]
    fn the_end_of_the_device_is_an_end_of_file() {
        let (file, rx) = EventFile::new().unwrap();
        drop(file);
        assert_eq!(read(&rx), Some(vec![]));
    }
}
