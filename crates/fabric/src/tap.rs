// SPDX-License-Identifier: MIT OR Apache-2.0
//! A tap: what sees the packets of a fabric, to write them to a capture file. Without one a packet costs one comparison.

use crate::net::Address;
use core::fmt;

/// What becomes of a packet at the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is delivered.
    Sent,
    /// It is delivered twice, by the fault "duplicate".
    Twice,
    /// It is lost, by the fault "loss".
    Lost,
    /// It is lost: the link of the sender or of the receiver is down.
    LinkDown,
    /// It arrives with a wrong ICRC, by a script, so that the receiver drops it.
    Corrupt,
    /// It does not arrive, and the sender gets a NAK, by a script.
    Refused,
    /// It is dropped behind a packet that a script has refused.
    Behind,
}

impl Fate {
    /// The fate in words; nothing for a packet that is delivered.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Sent => "",
            Self::Twice => "delivered twice",
            Self::Lost => "lost",
            Self::LinkDown => "lost: the link is down",
            Self::Corrupt => "corrupt: the receiver drops it for its ICRC",
            Self::Behind => "dropped behind a packet that a script refused",
            Self::Refused => "refused by a script",
        }
    }
}

/// Sees packets. It is called with the fabric locked, so it must not use the fabric.
pub trait Tap<P>: Send {
    /// A packet is sent, at this time of the fabric's clock, ns.
    fn packet(&mut self, now: u64, from: &Address, to: &Address, packet: &P, fate: Fate);
}

/// The place of a tap.
pub(crate) struct Tapped<P>(Option<Box<dyn Tap<P>>>);

impl<P> Default for Tapped<P> {
    fn default() -> Self {
        Self(None)
    }
}

impl<P> fmt::Debug for Tapped<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tapped").field(&self.0.is_some()).finish()
    }
}

impl<P> Tapped<P> {
    pub(crate) fn set(&mut self, tap: Option<Box<dyn Tap<P>>>) {
        self.0 = tap;
    }

    pub(crate) const fn is_set(&self) -> bool {
        self.0.is_some()
    }

    pub(crate) fn as_mut(&mut self) -> Option<&mut Box<dyn Tap<P>>> {
        self.0.as_mut()
    }
}
