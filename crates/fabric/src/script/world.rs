// SPDX-License-Identifier: MIT OR Apache-2.0
//! The changes of devices that a script makes, and its clock.

use super::engine::Pending;
use super::rule::Change;
use crate::model::{Hosts as _, Model};
use crate::world::World;

impl<M: Model> World<M> {
    /// Makes the changes of devices that rules have noted.
    pub(crate) fn apply_script(&mut self) {
        if self.net.is_scripted() {
            self.apply_changes();
        }
    }

    #[cold]
    fn apply_changes(&mut self) {
        self.net.change_ports();
        for (index, event) in core::mem::take(&mut self.net.port_events) {
            if let Some((device, _)) = self.device(index) {
                device.port_event(event);
            }
        }
        while let Some(pending) = self.net.script.as_mut().and_then(|engine| engine.pending.pop_front()) {
            self.change(&pending);
        }
    }

    fn change(&mut self, pending: &Pending) {
        let Pending { device: index, change, qp } = *pending;
        if change == Change::Exit {
            exit();
        }
        let Some((station, mut port)) = self.station(index) else { return };
        let (device, front) = (&mut station.device, &mut station.front);
        let is_done = match change {
            Change::Remove => front.end(device, &mut port, true),
            Change::Kill => front.end(device, &mut port, false),
            Change::Event(event) => front.raise(device, event, qp),
            _ => true,
        };
        if !is_done {
            log::warn!("script: device {index} has no {change}");
            return;
        }
        match change {
            Change::Remove => self.hosts.unplug(&self.net, self.now, index),
            Change::Kill => self.hosts.kill(&self.net, self.now, index),
            _ => {}
        }
    }

    /// When the next rule of the clock is due.
    pub(crate) fn next_of_script(&self) -> Option<u64> {
        self.net.script.as_ref()?.next_clock()
    }

    /// Runs the rules of the clock that are due by `until`. A virtual clock is advanced to the time of each.
    pub(crate) fn run_script(&mut self, until: u64, moves: bool) {
        if !self.net.is_scripted() {
            return;
        }
        while let Some(at) = self.next_of_script().filter(|at| *at <= until) {
            if moves {
                self.now = self.now.max(at);
            }
            if let Some(engine) = self.net.script.as_mut() {
                engine.run_clock(at);
            }
            self.apply_changes();
        }
    }
}

/// Ends this process at once, as if it were killed: no handler runs, and peers are not told.
fn exit() {
    use nix::sys::signal::{Signal, kill};
    if kill(nix::unistd::Pid::this(), Signal::SIGKILL).is_err() {
        std::process::abort();
    }
}
