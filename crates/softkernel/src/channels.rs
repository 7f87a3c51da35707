// SPDX-License-Identifier: MIT OR Apache-2.0
//! The completion channels of all contexts: the kernel's ends of their files.

use crate::events::{EventFile, inode};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};
use uverbs_core::Errno;
use uverbs_fabric::map::{Map, Set};

/// The least number of files at which those without a reader are searched.
const LOOK: usize = 64;

#[derive(Debug)]
struct Channel {
    file: EventFile,
    context: u32,
    /// A copy of the program's end, which the CQs share: a channel exists as long as one of its CQs.
    end: Weak<OwnedFd>,
}

/// The files by number. No call looks at all of them.
#[derive(Debug, Default)]
pub struct CompChannels {
    channels: Map<usize, Channel>,
    by_inode: Map<u64, usize>,
    of_contexts: Set<(u32, usize)>,
    /// The files whose socket was full.
    late: Set<usize>,
    next: usize,
    /// How many files there were after the last search for files without a reader.
    left: usize,
}

impl CompChannels {
    /// A new file of a context. Returns the program's end.
    ///
    /// # Errors
    /// The process has too many open files.
    pub fn add(&mut self, context: u32) -> Result<OwnedFd, Errno> {
        // The search is paid for by as many additions.
        if self.channels.len() >= LOOK.max(self.left * 2) {
            self.prune(self.channels.keys().collect());
            self.left = self.channels.len();
        }
        let (file, rx) = EventFile::new()?;
        self.next += 1;
        self.by_inode.insert(file.inode(), self.next);
        self.of_contexts.insert((context, self.next));
        self.channels.insert(self.next, Channel { file, context, end: Weak::new() });
        Ok(rx)
    }

    /// Removes those of the files that have no reader.
    fn prune(&mut self, all: Vec<usize>) {
        for number in all {
            if self.channels.get(&number).is_some_and(|channel| channel.file.is_closed()) {
                self.remove(number);
            }
        }
    }

    fn remove(&mut self, number: usize) {
        if let Some(channel) = self.channels.remove(&number) {
            self.by_inode.remove(&channel.file.inode());
            self.of_contexts.remove(&(channel.context, number));
            self.late.remove(&number);
        }
    }

    /// The file that the program names by its end, and a copy of that.
    ///
    /// # Errors
    /// It is not a completion channel (`EBADF`); the process has too many open files.
    pub fn of_fd(&mut self, fd: BorrowedFd<'_>) -> Result<(usize, Arc<OwnedFd>), Errno> {
        let number = *self.by_inode.get(&inode(fd)?).ok_or(Errno::EBADF)?;
        let channel = self.channels.get_mut(&number).ok_or(Errno::EBADF)?;
        if let Some(end) = channel.end.upgrade() {
            return Ok((number, end));
        }
        let end = Arc::new(fd.try_clone_to_owned().map_err(|_| Errno::EMFILE)?);
        channel.end = Arc::downgrade(&end);
        Ok((number, end))
    }

    /// Appends a record to a file; `false` if there is no such file, or it drops the record.
    pub fn push(&mut self, number: usize, record: &[u8]) -> bool {
        let Some(channel) = self.channels.get_mut(&number) else { return false };
        let is_stored = channel.file.push(record);
        if channel.file.has_backlog() {
            self.late.insert(number);
        }
        is_stored
    }

    /// Removes the records of a CQ, which its user handle names, from a file, and returns how many there were.
    pub fn purge(&mut self, number: usize, end: &OwnedFd, user_handle: u64) -> u32 {
        let Some(channel) = self.channels.get_mut(&number) else { return 0 };
        let purged = channel.file.purge(end.as_fd(), user_handle, |_| true);
        if channel.file.has_backlog() {
            self.late.insert(number);
        }
        purged
    }

    /// Writes the records for which the files had no room.
    pub fn flush(&mut self) {
        let channels = &mut self.channels;
        self.late.retain(|number| {
            let Some(channel) = channels.get_mut(&number) else { return false };
            channel.file.flush();
            channel.file.has_backlog()
        });
    }

    /// Whether a file had no room.
    #[must_use]
    pub fn has_backlog(&self) -> bool {
        !self.late.is_empty()
    }

    /// A context is closed: its files without a reader are removed.
    pub fn close(&mut self, context: u32) {
        let of = self.of_contexts.range((context, 0)..=(context, usize::MAX));
        self.prune(of.map(|(_, number)| number).collect());
    }

    /// Closes all files.
    pub fn clear(&mut self) {
        *self = Self { next: self.next, ..Self::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_without_a_reader_are_removed_and_the_others_are_found() {
        let mut channels = CompChannels::default();
        let kept: Vec<OwnedFd> = (0..3).map(|_| channels.add(1).unwrap()).collect();
        for _ in 0..3 * LOOK {
            drop(channels.add(2).unwrap());
        }
        assert!(channels.channels.len() <= LOOK + 1, "{}", channels.channels.len());
        channels.close(2);
        assert_eq!(channels.channels.len(), 3);
        let (number, end) = channels.of_fd(kept[1].as_fd()).unwrap();
        assert!(Arc::ptr_eq(&end, &channels.of_fd(kept[1].as_fd()).unwrap().1), "the CQs share it");
        assert!(channels.push(number, &[7; 8]) && !channels.push(99_999, &[7; 8]));
        assert_eq!(channels.purge(number, &end, u64::from_ne_bytes([7; 8])), 1);
        let other = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(channels.of_fd(other.as_fd()).unwrap_err(), Errno::EBADF);
    }
}
