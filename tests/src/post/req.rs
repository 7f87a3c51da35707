// SPDX-License-Identifier: MIT OR Apache-2.0
//! Work requests as values: what to do, with what, where to; and why one was refused.

use uverbs::provider::WireRemote;
use uverbs::provider::op::{FlushArgs, MwBind};
use uverbs::wr::{Sge, WrOpcode};
use uverbs::{AddressHandle, Driver, PostError, SendFlags};

/// A way to post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Face {
    /// `ibv_post_send`.
    List,
    /// `ibv_wr_start` .. `ibv_wr_complete`.
    Builder,
    /// A typed batch.
    Batch,
    /// Typed, each at once.
    Single,
}

impl Face {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::List, Self::Builder, Self::Batch, Self::Single];
}

/// A place at the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Address.
    pub addr: u64,
    /// Key.
    pub rkey: u32,
}

impl Remote {
    pub(super) fn wire<D: Driver>(self) -> D::Remote {
        D::Remote::new(self.addr, self.rkey)
    }
}

/// The operation of a work request.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "named after the opcodes")]
pub enum Op {
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
}

/// The data of a work request.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// Nothing: a message of 0 bytes, or an operation without data.
    None,
    /// Registered memory.
    Sges(&'a [Sge]),
    /// Bytes to copy.
    Inline(&'a [u8]),
    /// Buffers to copy one after the other.
    InlineList(&'a [&'a [u8]]),
}

/// The destination of a datagram.
#[derive(Debug)]
pub struct To<'a, D: Driver> {
    /// Address.
    pub ah: &'a AddressHandle<D>,
    /// QP.
    pub qpn: u32,
    /// Queue key.
    pub qkey: u32,
}

impl<D: Driver> Clone for To<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<D: Driver> Copy for To<'_, D> {}

/// A work request.
#[derive(Debug)]
pub struct Req<'a, D: Driver> {
    /// Comes back.
    pub wr_id: u64,
    /// Flags.
    pub flags: SendFlags,
    /// The operation.
    pub op: Op,
    /// With what.
    pub data: Data<'a>,
    /// The destination of a datagram.
    pub to: Option<To<'a, D>>,
    /// The peer's shared receive queue, on XRC.
    pub srqn: Option<u32>,
}

impl<D: Driver> Clone for Req<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<D: Driver> Copy for Req<'_, D> {}

impl<'a, D: Driver> Req<'a, D> {
    /// Without flags and data.
    #[must_use]
    pub fn new(wr_id: u64, op: Op) -> Self {
        Self { wr_id, flags: SendFlags::empty(), op, data: Data::None, to: None, srqn: None }
    }

    /// Makes a completion.
    #[must_use]
    pub fn signaled(self) -> Self {
        self.flags(SendFlags::SIGNALED)
    }

    /// Adds flags.
    #[must_use]
    pub fn flags(mut self, flags: SendFlags) -> Self {
        self.flags |= flags;
        self
    }

    /// With registered memory.
    #[must_use]
    pub fn sges(mut self, sges: &'a [Sge]) -> Self {
        self.data = Data::Sges(sges);
        self
    }

    /// With bytes to copy.
    #[must_use]
    pub fn inline(mut self, data: &'a [u8]) -> Self {
        self.data = Data::Inline(data);
        self
    }

    /// With any data.
    #[must_use]
    pub fn data(mut self, data: Data<'a>) -> Self {
        self.data = data;
        self
    }

    /// To a shared receive queue.
    #[must_use]
    pub fn srqn(mut self, srqn: u32) -> Self {
        self.srqn = Some(srqn);
        self
    }

    /// To an address.
    #[must_use]
    pub fn to(mut self, to: Option<To<'a, D>>) -> Self {
        self.to = to;
        self
    }
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
    /// For comparisons.
    #[must_use]
    pub fn new(error: PostError, bad: Option<usize>) -> Self {
        Self { error: Some(error), bad }
    }
}

impl From<PostError> for Refused {
    fn from(error: PostError) -> Self {
        Self::new(error, None)
    }
}

/// The opcode of an operation.
#[must_use]
pub const fn opcode(op: Op) -> WrOpcode {
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
    }
}

/// Whether it has data, so that a builder needs a data setter.
#[must_use]
pub const fn has_data(op: Op) -> bool {
    !matches!(op, Op::LocalInv(_) | Op::BindMw(_) | Op::Flush(..) | Op::AtomicWrite(..))
}
