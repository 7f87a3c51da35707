// SPDX-License-Identifier: MIT OR Apache-2.0
//! Work requests as values: operation, data and destination; the interface that posts them; and why one was refused.

use core::ptr;
use uverbs_core::provider::op::{FlushArgs, MwBind, TsoArgs};
use uverbs_core::provider::{PostError, QueueError, WireRemote};
use uverbs_core::wr::{IbvAh, RawAh, SendFlags, Sge, WrOpcode};

/// Memory of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Address.
    pub addr: u64,
    /// Key.
    pub rkey: u32,
}

impl Remote {
    /// In the driver's form.
    #[must_use]
    pub fn wire<R: WireRemote>(self) -> R {
        R::new(self.addr, self.rkey)
    }
}

/// The operation of a work request.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "named after the opcodes")]
pub enum Op<'a> {
    Send,
    SendImm(u32),
    SendInv(u32),
    Write(Remote),
    WriteImm(Remote, u32),
    Read(Remote),
    CmpSwp(Remote, u64, u64),
    FetchAdd(Remote, u64),
    LocalInv(u32),
    BindMw(MwBind),
    Flush(Remote, FlushArgs),
    AtomicWrite(Remote, [u8; 8]),
    Tso(TsoArgs<'a>),
}

/// The opcode of an operation.
#[must_use]
pub const fn opcode(op: Op<'_>) -> WrOpcode {
    match op {
        Op::Send => WrOpcode::SEND,
        Op::SendImm(_) => WrOpcode::SEND_WITH_IMM,
        Op::SendInv(_) => WrOpcode::SEND_WITH_INV,
        Op::Write(_) => WrOpcode::RDMA_WRITE,
        Op::WriteImm(..) => WrOpcode::RDMA_WRITE_WITH_IMM,
        Op::Read(_) => WrOpcode::RDMA_READ,
        Op::CmpSwp(..) => WrOpcode::ATOMIC_CMP_AND_SWP,
        Op::FetchAdd(..) => WrOpcode::ATOMIC_FETCH_AND_ADD,
        Op::LocalInv(_) => WrOpcode::LOCAL_INV,
        Op::BindMw(_) => WrOpcode::BIND_MW,
        Op::Flush(..) => WrOpcode::FLUSH,
        Op::AtomicWrite(..) => WrOpcode::ATOMIC_WRITE,
        Op::Tso(_) => WrOpcode::TSO,
    }
}

/// Whether the operation takes data, so that a builder needs a data setter.
#[must_use]
pub const fn has_data(op: Op<'_>) -> bool {
    !matches!(op, Op::LocalInv(_) | Op::BindMw(_) | Op::Flush(..) | Op::AtomicWrite(..))
}

/// The data of a work request.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// A message of 0 bytes, or an operation without data.
    None,
    /// Registered memory.
    Sges(&'a [Sge]),
    /// Bytes to copy.
    Inline(&'a [u8]),
    /// Buffers to copy, one after the other.
    InlineList(&'a [&'a [u8]]),
}

/// An address handle: of the `uverbs` crate, or a driver's with C's prefix.
pub trait Handle {
    /// The pointer that C's structs have.
    fn raw(&self) -> *const IbvAh;
}

impl<A> Handle for RawAh<A> {
    fn raw(&self) -> *const IbvAh {
        ptr::from_ref(self).cast()
    }
}

/// A driver's address handle that no kernel has created.
#[must_use]
pub fn handle<A>(driver: A) -> RawAh<A> {
    RawAh { base: IbvAh { context: ptr::null_mut(), pd: ptr::null_mut(), handle: 0 }, driver }
}

/// The destination of a datagram.
#[derive(Debug)]
pub struct To<'a, H> {
    /// Address.
    pub ah: &'a H,
    /// QP.
    pub qpn: u32,
    /// Queue key.
    pub qkey: u32,
}

impl<H> Clone for To<'_, H> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<H> Copy for To<'_, H> {}

/// The destination of a work request.
#[derive(Debug)]
pub enum Dest<'a, H> {
    /// The peer of the connection.
    Peer,
    /// A datagram QP.
    Ud(To<'a, H>),
    /// A shared receive queue of the peer, on XRC.
    Xrc(u32),
    /// A DC target.
    Dc {
        /// Address.
        ah: &'a H,
        /// Number of the target.
        dctn: u32,
        /// Its access key.
        key: u64,
    },
}

impl<H> Clone for Dest<'_, H> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<H> Copy for Dest<'_, H> {}

/// A work request.
#[derive(Debug)]
pub struct Request<'a, H> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Flags.
    pub flags: SendFlags,
    /// The operation.
    pub op: Op<'a>,
    /// Its data.
    pub data: Data<'a>,
    /// Its destination.
    pub dest: Dest<'a, H>,
}

impl<H> Clone for Request<'_, H> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<H> Copy for Request<'_, H> {}

impl<'a, H> Request<'a, H> {
    /// A request to the peer, without flags and data.
    #[must_use]
    pub fn new(wr_id: u64, op: Op<'a>) -> Self {
        Self { wr_id, flags: SendFlags::empty(), op, data: Data::None, dest: Dest::Peer }
    }

    /// Requests a completion.
    #[must_use]
    pub fn signaled(self) -> Self {
        self.flags(SendFlags::SIGNALED)
    }

    /// Adds flags.
    #[must_use]
    pub fn flags(self, flags: SendFlags) -> Self {
        Self { flags: self.flags | flags, ..self }
    }

    /// With registered memory.
    #[must_use]
    pub fn sges(self, sges: &'a [Sge]) -> Self {
        self.data(Data::Sges(sges))
    }

    /// With bytes to copy.
    #[must_use]
    pub fn inline(self, data: &'a [u8]) -> Self {
        self.data(Data::Inline(data))
    }

    /// With any data.
    #[must_use]
    pub fn data(self, data: Data<'a>) -> Self {
        Self { data, ..self }
    }

    /// To a shared receive queue.
    #[must_use]
    pub fn srqn(self, srqn: u32) -> Self {
        self.dest(Dest::Xrc(srqn))
    }

    /// To a datagram QP, if there is an address.
    #[must_use]
    pub fn to(self, to: Option<To<'a, H>>) -> Self {
        let dest = to.map_or(self.dest, Dest::Ud);
        self.dest(dest)
    }

    /// To any destination.
    #[must_use]
    pub fn dest(self, dest: Dest<'a, H>) -> Self {
        Self { dest, ..self }
    }
}

/// An interface for posts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Face {
    /// `ibv_post_send`.
    List,
    /// `ibv_wr_start` .. `ibv_wr_complete`.
    Builder,
    /// A typed batch.
    Batch,
    /// Typed, each posted immediately.
    Single,
}

impl Face {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::List, Self::Builder, Self::Batch, Self::Single];
}

/// Why a post was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Refused {
    /// The reason.
    pub error: Option<PostError>,
    /// The index of the request in `bad_wr`, or of the single post that failed. `None` for a NULL `bad_wr` and for
    /// batches.
    pub bad: Option<usize>,
}

impl core::fmt::Display for Refused {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.error {
            Some(error) => write!(f, "{error} (request {:?})", self.bad),
            None => f.write_str("no error"),
        }
    }
}

impl core::error::Error for Refused {}

impl Refused {
    /// An error, and the index of the request.
    #[must_use]
    pub fn new(error: PostError, bad: Option<usize>) -> Self {
        Self { error: Some(error), bad }
    }
}

impl From<QueueError> for Refused {
    fn from(error: QueueError) -> Self {
        error.reason.into()
    }
}

impl From<PostError> for Refused {
    fn from(error: PostError) -> Self {
        Self::new(error, None)
    }
}
