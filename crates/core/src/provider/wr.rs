// SPDX-License-Identifier: MIT OR Apache-2.0
//! A send work request as a value.
//!
//! Every interface makes a [`Wr`], and a driver's encoder takes one. Its scatter/gather entries and its remote address have
//! the driver's form ([`wire`](super::wire)), or the plain one by default. A driver's functions of the fast path are inlined
//! into their callers, so that the parts which are constant there, such as the operation, cost nothing.

use super::inline::Inline;
use super::op::Op;
use super::wire::RemoteAddr;
use crate::wr::{SendFlags, Sge};

/// The id and the flags of a WR: the sticky `wr_id` and `wr_flags` of ibv_wr_post(3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// The id that the completion reports.
    pub wr_id: u64,
    /// [`SendFlags::INLINE`] has no effect here: the kind of the data determines whether they are inline.
    pub flags: SendFlags,
}

/// A destination by an address handle, for datagrams. `A` is the handle, or the driver's data of it
/// ([`RawAh::driver`](crate::wr::RawAh)).
#[derive(Debug)]
pub struct To<'a, A> {
    /// The address handle.
    pub ah: &'a A,
    /// Destination QP number, 24 bits; 0xffffff for multicast.
    pub remote_qpn: u32,
    /// The destination's queue key; with the top bit set, the sending QP's own is used.
    pub remote_qkey: u32,
}

/// A dynamically connected target, for a driver that has DC.
#[derive(Debug)]
pub struct DcTarget<'a, A> {
    /// The address handle.
    pub ah: &'a A,
    /// The target's DCT number, 24 bits.
    pub remote_dctn: u32,
    /// The target's DC access key.
    pub remote_dc_key: u64,
}

/// The destination of a WR.
#[derive(Debug)]
pub enum Dest<'a, A> {
    /// The peer of the connection (RC, UC), or the address in the frame (raw packets).
    Peer,
    /// The address in the frame (raw packets).
    Frame,
    /// A QP, by an address handle.
    Ud(To<'a, A>),
    /// The number of a shared receive queue of the connected peer (XRC).
    Xrc(u32),
    /// A dynamically connected target.
    Dc(DcTarget<'a, A>),
}

impl<'a, A> Dest<'a, A> {
    /// The destination with another form of the address handle. `None` if `f` has none for it.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn try_map<'b, B>(self, f: impl FnOnce(&'a A) -> Option<&'b B>) -> Option<Dest<'b, B>> {
        Some(match self {
            Self::Peer => Dest::Peer,
            Self::Frame => Dest::Frame,
            Self::Ud(To { ah, remote_qpn, remote_qkey }) => {
                Dest::Ud(To { ah: f(ah)?, remote_qpn, remote_qkey })
            }
            Self::Xrc(remote_srqn) => Dest::Xrc(remote_srqn),
            Self::Dc(DcTarget { ah, remote_dctn, remote_dc_key }) => {
                Dest::Dc(DcTarget { ah: f(ah)?, remote_dctn, remote_dc_key })
            }
        })
    }
}

/// The data of a WR.
#[derive(Debug)]
pub enum Data<'a, S = Sge> {
    /// Registered memory. Without entries: a message of 0 bytes, or an operation without data.
    Sges(&'a [S]),
    /// Bytes to copy.
    Inline(Inline<'a>),
}

impl<'a, S> Data<'a, S> {
    /// No data.
    pub const NONE: Self = Self::Sges(&[]);

    /// The entries, if the data are not inline.
    #[must_use]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub const fn sges(&self) -> &'a [S] {
        match self {
            Self::Sges(sges) => sges,
            Self::Inline(_) => &[],
        }
    }
}

/// A send work request.
#[derive(Debug)]
pub struct Wr<'a, A, S = Sge, R = RemoteAddr> {
    /// The id that the completion reports.
    pub wr_id: u64,
    /// [`SendFlags::INLINE`] has no effect here: the kind of the data determines whether they are inline.
    pub flags: SendFlags,
    /// The destination.
    pub to: Dest<'a, A>,
    /// The operation.
    pub op: Op<'a, R>,
    /// The data.
    pub data: Data<'a, S>,
}

macro_rules! copy {
    ($($name:ident<$lt:lifetime, $($copied:ident)* | $($other:ident)*>;)*) => {$(
        impl<$($copied: Copy,)* $($other),*> Clone for $name<'_, $($other,)* $($copied),*> {
            #[cfg_attr(not(debug_assertions), inline(always))]
            fn clone(&self) -> Self {
                *self
            }
        }
        impl<$($copied: Copy,)* $($other),*> Copy for $name<'_, $($other,)* $($copied),*> {}
    )*};
}
copy! {
    To<'a, | A>;
    DcTarget<'a, | A>;
    Dest<'a, | A>;
    Data<'a, | S>;
    Wr<'a, R | A S>;
}

impl<'a, A, S, R> Wr<'a, A, S, R> {
    /// A request to the peer, without flags and data.
    #[must_use]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub const fn new(wr_id: u64, op: Op<'a, R>) -> Self {
        Self { wr_id, flags: SendFlags::empty(), to: Dest::Peer, op, data: Data::NONE }
    }

    /// The id and the flags.
    #[must_use]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub const fn head(&self) -> Head {
        Head { wr_id: self.wr_id, flags: self.flags }
    }

    /// Requests a completion.
    #[must_use]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn signaled(self) -> Self {
        self.flags(SendFlags::SIGNALED)
    }

    /// Adds flags.
    #[must_use]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn flags(mut self, flags: SendFlags) -> Self {
        self.flags |= flags;
        self
    }

    /// With registered memory.
    #[must_use]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn sges(self, sges: &'a [S]) -> Self {
        self.data(Data::Sges(sges))
    }

    /// With bytes to copy.
    #[must_use]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn inline(self, bytes: &'a [u8]) -> Self {
        self.data(Data::Inline(Inline::Bytes(bytes)))
    }

    /// With any data.
    #[must_use]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn data(mut self, data: Data<'a, S>) -> Self {
        self.data = data;
        self
    }

    /// To any destination.
    #[must_use]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn to(mut self, to: Dest<'a, A>) -> Self {
        self.to = to;
        self
    }
}
