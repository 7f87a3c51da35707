// SPDX-License-Identifier: MIT OR Apache-2.0
//! The admin queue: takes commands in order, and writes their completions.

use super::Function;
use super::events::EventRing;
use crate::device::{Device, Port};
use uverbs_efa_hw::admin::{AcqCommonDesc, AqCommonDesc, EFA_ADMIN_MALFORMED_REQUEST};
use zerocopy::{FromBytes, IntoBytes};

/// Bytes of an entry of either queue.
pub(super) const ENTRY: usize = 64;

/// A command or an answer.
pub(super) type Entry = [u8; ENTRY];

/// The state of the admin queue.
#[derive(Debug, Default)]
pub(super) struct AdminQueue {
    pub(super) base: u64,
    pub(super) depth: u16,
    /// Commands that were taken, modulo 65536.
    pub(super) next: u16,
    /// The doorbell that a stopped device got.
    pub(super) waiting: Option<u16>,
    pub(super) completions: EventRing,
}

impl Function {
    /// Stops the device, or lets it continue: meanwhile it takes no commands, and gives no signs of life. Its queues work.
    pub fn set_stopped(&mut self, device: &mut Device, port: &mut Port<'_>, stopped: bool) {
        self.is_stopped = stopped;
        if let Some(posted) = self.admin.waiting.take_if(|_| !stopped) {
            self.take_commands(device, port, posted);
        }
    }

    /// The doorbell: the number of commands so far.
    pub(super) fn take_commands(&mut self, device: &mut Device, port: &mut Port<'_>, posted: u16) {
        if self.is_stopped {
            self.admin.waiting = Some(posted);
            return;
        }
        if self.admin.depth == 0
            || self.is_resetting
            || posted.wrapping_sub(self.admin.next) > self.admin.depth
        {
            self.has_failed |= self.admin.depth != 0 && !self.is_resetting;
            return;
        }
        let mut done = false;
        while self.admin.next != posted && self.admin.depth != 0 {
            let (round, index) = (self.admin.next / self.admin.depth, self.admin.next % self.admin.depth);
            let mut command: Entry = [0; ENTRY];
            let at = self.admin.base.checked_add(u64::from(index) * ENTRY as u64);
            let is_read = at.is_some_and(|at| self.bus.read(at, &mut command).is_ok());
            let Ok((common, _)) = AqCommonDesc::read_from_prefix(&command[..]) else { return };
            // The phase of the first round is 1. A depth that is no power of two ends its rounds with the counter.
            if !is_read || self.admin.depth.is_power_of_two() && common.phase() != round.is_multiple_of(2) {
                self.has_failed = true;
                return;
            }
            self.admin.next = self.admin.next.wrapping_add(1);
            let mut answer = match self.execute(device, port, &command) {
                Ok(answer) => answer,
                Err(status) => {
                    let mut answer = [0; ENTRY];
                    answer[2] = status;
                    answer
                }
            };
            let head = AcqCommonDesc {
                command: common.id(),
                status: answer[2],
                flags: self.admin.completions.phase().into(),
                extended_status: 0,
                sq_head_indx: self.admin.next,
            };
            answer[..8].copy_from_slice(head.as_bytes());
            if !self.admin.completions.push(&*self.bus, &answer) {
                self.has_failed = true;
                return;
            }
            done = true;
        }
        if done && self.interrupts() {
            self.bus.interrupt((self.registers.acq_caps >> 24) as u8);
        }
    }
}

/// The struct of a command.
pub(super) fn command<T: FromBytes>(entry: &Entry) -> Result<T, u8> {
    T::read_from_prefix(&entry[..]).map(|(command, _)| command).map_err(|_| EFA_ADMIN_MALFORMED_REQUEST)
}

/// An answer; its start is written by the queue.
pub(super) fn answer(resp: &(impl IntoBytes + zerocopy::Immutable)) -> Entry {
    let mut entry = [0; ENTRY];
    let bytes = resp.as_bytes();
    entry[..bytes.len()].copy_from_slice(bytes);
    entry
}
