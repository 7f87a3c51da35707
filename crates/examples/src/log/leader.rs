// SPDX-License-Identifier: MIT OR Apache-2.0
//! A leader, or a candidate: it writes entries to the logs of its followers.

use super::entry::{self, Entry, LOG, MESSAGE, Message, SLOT, SLOTS};
use super::{LIMIT, connect_attr};
use core::fmt;
use std::io::{Read, Write};
use std::time::Instant;
use uverbs::{Buf, Completed, Context, Cq, Done, Pool, ProtectionDomain, Qp, Rc, RemoteRegion, WcStatus};

/// Work requests in flight to a follower that is slower than the others.
const DEPTH: u32 = 128;

/// Why there is no election or no append.
#[derive(Debug)]
#[non_exhaustive]
pub enum LogError {
    /// Another candidate has a higher term.
    Deposed,
    /// Fewer followers than a majority answer.
    NoMajority {
        /// Those that do.
        alive: usize,
        /// All.
        all: usize,
    },
    /// The log has no slot left, or the entry is longer than a slot.
    Full,
    /// The device fails.
    Device(uverbs::Error),
    /// A stream fails.
    Io(std::io::Error),
}

impl fmt::Display for LogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deposed => f.write_str("another leader has a higher term"),
            Self::NoMajority { alive, all } => {
                write!(f, "{alive} of {all} followers answer, which is no majority")
            }
            Self::Full => f.write_str("the entry has no room in the log"),
            Self::Device(error) => error.fmt(f),
            Self::Io(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for LogError {}

impl<E: Into<uverbs::Error>> From<E> for LogError {
    fn from(error: E) -> Self {
        Self::Device(error.into())
    }
}

/// A follower, as a leader sees it.
#[derive(Debug)]
struct Remote {
    qp: Qp<Rc>,
    term: RemoteRegion,
    /// The key of its log, if it is open.
    log: Option<RemoteRegion>,
}

/// A leader, or a candidate.
#[derive(Debug)]
pub struct Leader {
    id: u8,
    term: u64,
    /// The number of the last entry, and that of the last durable one.
    last: u64,
    durable: u64,
    /// Numbers the steps, so that a completion that is late is not taken for one of the next step.
    round: u64,
    followers: Vec<Remote>,
    cq: Cq,
    messages: Pool,
    slots: Pool,
    logs: Pool,
    pd: ProtectionDomain,
}

impl Leader {
    /// A candidate. No other one has this number.
    ///
    /// # Errors
    /// The device refuses an object.
    pub fn new(context: &Context, id: u8) -> Result<Self, LogError> {
        let pd = context.alloc_pd()?;
        Ok(Self {
            id,
            term: 0,
            last: 0,
            durable: 0,
            round: 0,
            followers: Vec::new(),
            cq: context.cq(2048)?,
            messages: pd.pool(64, MESSAGE as u32)?,
            slots: pd.pool(2 * DEPTH, SLOT as u32)?,
            logs: pd.pool(16, LOG as u32)?,
            pd,
        })
    }

    /// Connects to a follower, by a stream. [`Follower::join`](super::Follower::join) is the other end.
    ///
    /// # Errors
    /// The stream fails, or the device refuses the QP.
    pub fn join(&mut self, mut stream: impl Read + Write) -> Result<(), LogError> {
        let qp = self.pd.qp::<Rc>().cq(&self.cq).depth(DEPTH, 8).inline(MESSAGE as u32);
        let qp = qp.connect_with(&mut stream, &connect_attr())?;
        let term = RemoteRegion::receive(stream).map_err(LogError::Io)?;
        self.followers.push(Remote { qp, term, log: None });
        Ok(())
    }

    /// The number of the last entry of the log.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.last
    }

    /// The term, after an election.
    #[must_use]
    pub fn term(&self) -> u64 {
        self.term >> 8
    }

    fn majority(&self) -> usize {
        self.followers.len() / 2 + 1
    }

    fn no_majority<T>(&self, alive: usize) -> Result<T, LogError> {
        Err(LogError::NoMajority { alive, all: self.followers.len() })
    }

    /// Posts one work request to each of these followers, and waits until `enough` have succeeded or none is left. Returns the
    /// completions of those that have succeeded.
    fn step(
        &mut self,
        to: &[usize],
        enough: usize,
        mut post: impl FnMut(&mut Remote, u64, usize) -> bool,
    ) -> Result<Vec<(usize, Completed)>, LogError> {
        self.round += 1;
        let wr_id = |follower: usize| self.round << 8 | follower as u64;
        let mut open: Vec<usize> = Vec::new();
        for &follower in to {
            if post(&mut self.followers[follower], wr_id(follower), follower) {
                open.push(follower);
            } else {
                self.followers[follower].log = None;
            }
        }
        let (mut done, mut deposed, end) = (Vec::new(), false, Instant::now() + LIMIT);
        while done.len() < enough && !open.is_empty() {
            let Some(completed) = self.cq.wait_timeout(end.saturating_duration_since(Instant::now()))? else {
                break;
            };
            let number = completed.wc.qp_num;
            let Some(follower) = self.followers.iter().position(|f| f.qp.qp_num() == number) else {
                continue;
            };
            let is_of_step = completed.wc.wr_id == wr_id(follower);
            if completed.wc.status != WcStatus::SUCCESS {
                // Whatever it was, the QP has failed: the follower is gone, or its window is closed.
                deposed |= completed.wc.status == WcStatus::REM_ACCESS_ERR;
                self.followers[follower].log = None;
                open.retain(|f| *f != follower);
            } else if is_of_step {
                open.retain(|f| *f != follower);
                done.push((follower, completed));
            }
        }
        if deposed && done.len() < enough { Err(LogError::Deposed) } else { Ok(done) }
    }

    /// Becomes the leader: locks the leader before out of a majority, and makes their logs equal.
    ///
    /// # Errors
    /// [`LogError::Deposed`] if another candidate was faster; [`LogError::NoMajority`].
    pub fn elect(&mut self) -> Result<(), LogError> {
        let all: Vec<usize> = (0..self.followers.len()).collect();
        let (majority, messages) = (self.majority(), self.messages.clone());
        let word = |messages: &Pool| {
            let mut word = messages.get().ok()?;
            word.set_len(8).ok()?;
            Some(word)
        };
        let value = |completed: Completed| -> Option<u64> {
            let bytes: [u8; 8] = completed.buf()?.get(..8)?.try_into().ok()?;
            Some(u64::from_ne_bytes(bytes))
        };
        // The terms.
        let read = self.step(&all, all.len(), |f, id, _| {
            word(&messages).is_some_and(|word| f.qp.sq().post(id).signaled().read(word, &f.term).is_ok())
        })?;
        let mut terms = vec![None; all.len()];
        for (follower, completed) in read {
            terms[follower] = value(completed);
        }
        let alive: Vec<usize> = all.into_iter().filter(|f| terms[*f].is_some()).collect();
        if alive.len() < majority {
            return self.no_majority(alive.len());
        }
        let highest = terms.iter().flatten().max().copied().unwrap_or(0);
        let term = ((highest >> 8) + 1) << 8 | u64::from(self.id);
        // A higher one, in place of what was read.
        let swapped = self.step(&alive, alive.len(), |f, id, follower| {
            let (Some(old), Some(word)) = (terms[follower], word(&messages)) else { return false };
            f.qp.sq().post(id).signaled().compare_swap(word, &f.term, old, term).is_ok()
        })?;
        let won: Vec<usize> =
            swapped.into_iter().filter_map(|(f, done)| (value(done) == terms[f]).then_some(f)).collect();
        if won.len() < majority {
            return Err(LogError::Deposed);
        }
        self.term = term;
        let opened = self.ask(&won, term)?;
        if opened.len() < majority {
            return if opened.len() + (won.len() - opened.len()) < majority {
                self.no_majority(opened.len())
            } else {
                Err(LogError::Deposed)
            };
        }
        self.agree(&opened)
    }

    /// Asks followers to open their logs. Returns those that have.
    fn ask(&mut self, followers: &[usize], term: u64) -> Result<Vec<usize>, LogError> {
        let mut waiting: Vec<usize> = Vec::new();
        for &follower in followers {
            let remote = &mut self.followers[follower];
            remote.log = None;
            if remote.qp.recv(self.messages.get()?).is_ok()
                && remote.qp.send_inline(&Message::Open(term).encode()).is_ok()
            {
                waiting.push(follower);
            }
        }
        let (mut opened, end) = (Vec::new(), Instant::now() + LIMIT);
        while !waiting.is_empty() {
            let Some(completed) = self.cq.wait_timeout(end.saturating_duration_since(Instant::now()))? else {
                break;
            };
            let number = completed.wc.qp_num;
            let Some(follower) = self.followers.iter().position(|f| f.qp.qp_num() == number) else {
                continue;
            };
            match completed.ok() {
                Ok(Done::Received(message)) => match Message::decode(&message) {
                    Some(Message::Opened(of, region)) if of == term => {
                        self.followers[follower].log = Some(region);
                        opened.push(follower);
                        waiting.retain(|f| *f != follower);
                    }
                    Some(Message::Refused(of)) if of == term => waiting.retain(|f| *f != follower),
                    // The answer to an older question.
                    _ => _ = self.followers[follower].qp.recv(message),
                },
                Ok(_) => {}
                Err(_) => waiting.retain(|f| *f != follower),
            }
        }
        Ok(opened)
    }

    /// Writes the log with the newest entry to all of these followers.
    fn agree(&mut self, followers: &[usize]) -> Result<(), LogError> {
        let (majority, logs) = (self.majority(), self.logs.clone());
        let read = self.step(followers, followers.len(), |f, id, _| {
            let (Ok(buf), Some(log)) = (logs.get(), &f.log) else { return false };
            f.qp.sq().post(id).signaled().read(buf, log).is_ok()
        })?;
        if read.len() < majority {
            return self.no_majority(read.len());
        }
        let newest =
            |log: &Buf| entry::entries(log).last().map_or((0, 0), |entry| (entry.term, entry.number));
        let best = read.into_iter().filter_map(|(_, completed)| completed.buf()).max_by_key(newest);
        let Some(mut log) = best else { return self.no_majority(0) };
        let (_, last) = newest(&log);
        // Entries behind a gap are of no majority.
        log[..8].copy_from_slice(&last.to_le_bytes());
        log[(last as usize + 1) * SLOT..].fill(0);
        let log = log.share();
        let written = self.step(followers, followers.len(), |f, id, _| {
            let Some(to) = f.log else { return false };
            f.qp.sq().post(id).signaled().write(log.clone(), &to).is_ok()
        })?;
        if written.len() < majority {
            return self.no_majority(written.len());
        }
        (self.last, self.durable) = (last, last);
        Ok(())
    }

    fn open(&self) -> Vec<usize> {
        (0..self.followers.len()).filter(|f| self.followers[*f].log.is_some()).collect()
    }

    /// Appends an entry, and waits until a majority has it. Returns its number.
    ///
    /// # Errors
    /// [`LogError::Deposed`] if another leader has locked this one out; [`LogError::NoMajority`]; [`LogError::Full`]. The entry may
    /// be in some logs then, and may become durable by the next leader.
    pub fn append(&mut self, data: &[u8]) -> Result<u64, LogError> {
        let (number, durable) = (self.last + 1, self.durable);
        let entry = Entry { term: self.term, number, data: data.to_vec() };
        let Some(bytes) = entry.encode().filter(|_| number < SLOTS as u64) else {
            return Err(LogError::Full);
        };
        let mut buf = self.slots.get()?;
        buf.fill(&bytes)?;
        let (entry, at) = (buf.share(), number * SLOT as u64);
        let (open, majority) = (self.open(), self.majority());
        if open.len() < majority {
            return self.no_majority(open.len());
        }
        self.last = number;
        let done = self.step(&open, majority, |f, id, _| {
            let Some(log) = f.log else { return false };
            let Ok((word, slot)) =
                log.slice(0..8).and_then(|word| Ok((word, log.slice(at..at + SLOT as u64)?)))
            else {
                return false;
            };
            // The entry before is durable: its number is written with this one.
            let mut batch = f.qp.sq().batch();
            batch.wr(0).write_inline(&durable.to_le_bytes(), &word);
            batch.wr(id).signaled().write(entry.clone(), &slot);
            batch.complete().is_ok()
        })?;
        if done.len() < majority {
            return self.no_majority(done.len());
        }
        self.durable = number;
        Ok(number)
    }

    /// Tells the followers that the last entry is durable, which otherwise the next entry does.
    ///
    /// # Errors
    /// As [`append`](Self::append).
    pub fn publish(&mut self) -> Result<(), LogError> {
        let (durable, open) = (self.durable, self.open());
        let done = self.step(&open, open.len(), |f, id, _| {
            let Some(Ok(word)) = f.log.map(|log| log.slice(0..8)) else { return false };
            f.qp.sq().post(id).signaled().write_inline(&durable.to_le_bytes(), &word).is_ok()
        })?;
        if done.len() < self.majority() { self.no_majority(done.len()) } else { Ok(()) }
    }
}
