// SPDX-License-Identifier: MIT OR Apache-2.0
//! Event files: completion channels and asynchronous events. They are sockets that preserve record boundaries.
//!
//! A program reads and polls its end like the kernel's event files. When the device is dropped, the program reads end
//! of file.

use nix::errno::Errno as Nix;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socketpair};
use nix::sys::stat::fstat;
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use uverbs_core::Errno;

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
    backlog: VecDeque<Vec<u8>>,
}

impl EventFile {
    /// A new file. Returns the kernel's end and the program's end.
    ///
    /// # Errors
    /// The process has too many open files.
    pub fn new() -> Result<(Self, OwnedFd), Errno> {
        let (tx, rx) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
        let inode = inode(rx.as_fd())?;
        Ok((Self { tx, inode, backlog: VecDeque::new() }, rx))
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
            self.backlog.push_back(record.to_vec());
        }
        self.flush();
        has_room
    }

    /// Writes the records for which the socket has room.
    pub fn flush(&mut self) {
        while let Some(record) = self.backlog.front() {
            match send(self.tx.as_raw_fd(), record, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL) {
                Ok(_) => {}
                Err(Nix::EAGAIN | Nix::ENOBUFS) => return,
                // The program has closed its end.
                Err(_) => return self.backlog.clear(),
            }
            self.backlog.pop_front();
        }
    }

    /// Whether there are records for which the socket had no room.
    #[must_use]
    pub fn has_backlog(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// Removes the records for which `mine` is true from the file, as the kernel does when their object is destroyed.
    /// `rx` is a copy of the program's end. Returns how many there were.
    pub fn purge(&mut self, rx: BorrowedFd<'_>, mine: impl Fn(&[u8]) -> bool) -> u32 {
        let mut records = VecDeque::new();
        let mut buffer = [0; RECORD];
        while let Ok(n @ 1..) = recv(rx.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT) {
            records.push_back(buffer[..n].to_vec());
        }
        records.append(&mut self.backlog);
        let before = records.len();
        records.retain(|record| !mine(record));
        let purged = before - records.len();
        self.backlog = records;
        self.flush();
        u32::try_from(purged).unwrap_or(u32::MAX)
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
        for i in 0..10_u8 {
            file.push(&[i; 8]);
        }
        assert_eq!(file.purge(rx.as_fd(), |record| record[0] % 2 == 0), 5);
        assert_eq!([read(&rx).unwrap()[0], read(&rx).unwrap()[0]], [1, 3]);
        assert!(!file.is_closed() && inode(rx.as_fd()) == Ok(file.inode()));
        drop(rx);
        assert!(file.is_closed());
        file.push(&[1; 8]);
        assert!(!file.has_backlog());
    }

    #[test]
    fn the_end_of_the_device_is_an_end_of_file() {
        let (file, rx) = EventFile::new().unwrap();
        drop(file);
        assert_eq!(read(&rx), Some(vec![]));
    }
}
