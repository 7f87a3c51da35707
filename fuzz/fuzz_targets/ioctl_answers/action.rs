// SPDX-License-Identifier: MIT OR Apache-2.0
//! The input of the target: the verbs to call, and the answers of the kernel.

use arbitrary::Arbitrary;
use uverbs::attr::{AccessFlags, AhAttr, Gid, GlobalRoute};
use uverbs_fuzz::steps::Index;

#[derive(Arbitrary, Debug)]
pub(crate) struct Input<'a> {
    /// Whether to begin with one object of each kind, created by a kernel with correct answers.
    pub(crate) furnished: bool,
    pub(crate) actions: Vec<Action>,
    pub(crate) answers: &'a [u8],
}

#[derive(Arbitrary, Debug)]
pub(crate) enum Action {
    Query(Query),
    Pd,
    Td(u8),
    Channel,
    Cq { cqe: u8, huge: bool, wc_flags: u16, flags: u8, channel: Option<u8>, shared: bool },
    Mr { pd: u8, len: u16, access: Access, private: bool },
    DmaBuf { pd: u8, offset: u64, length: u64, access: Access },
    UseMr(u8, UseMr),
    Mw { pd: u8, type_2: bool, mr: u8 },
    Ah { pd: u8, attr: Ah },
    AhFromWc { pd: u8, slid: u16, flags: u8, grh: [u8; 8] },
    Srq { pd: u8, max_wr: u8, max_sge: u8, limit: u8, xrc: bool },
    UseSrq(u8, UseSrq),
    Qp(NewQp),
    UseQp(u8, UseQp),
    UseCq(u8, UseCq),
    Xrcd { create: bool, exclusive: bool },
    UseXrcd(u8, u32, bool),
    AsyncEvent,
    CqEvent(u8),
    Deliver(u8, [u8; 16], u8),
    Scribble(u8, u16, u64),
    SetIndex(u8, bool, Index),
    Close(Kind, u8),
    Drop(Kind, u8),
    Format(Kind, u8),
    Fork,
}

#[derive(Arbitrary, Debug)]
pub(crate) enum Query {
    Device,
    Port(u8),
    Gid(u8, u32),
    GidTable,
    Pkey(u8, u16),
}

/// Access rights: usual ones, or arbitrary bits.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(crate) enum Access {
    Local,
    Remote,
    Any(u32),
}

#[derive(Arbitrary, Debug)]
pub(crate) enum UseMr {
    Rereg(Option<u8>, Option<Access>),
    ReregBuf(u16),
    Advise(u8, u16, u16),
    Copy(u16, u8),
    Sge(u16, u16),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
pub(crate) struct Ah {
    pub(crate) port_num: u8,
    pub(crate) global: Option<(u8, u8)>,
    pub(crate) dlid: u16,
    pub(crate) sl: u8,
}

#[derive(Arbitrary, Debug)]
pub(crate) enum UseSrq {
    Post(u8, u8),
    Modify { max_wr: u8, limit: u8, mask: u8 },
    Query,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
pub(crate) struct NewQp {
    pub(crate) pd: u8,
    pub(crate) cq: u8,
    pub(crate) recv_cq: u8,
    pub(crate) srq: Option<u8>,
    pub(crate) transport: u8,
    pub(crate) max_wr: u8,
    pub(crate) max_sge: u8,
    pub(crate) max_inline: u8,
    pub(crate) ops: Option<u16>,
    pub(crate) odd_flags: u8,
}

#[derive(Arbitrary, Debug)]
pub(crate) enum UseQp {
    State(u8),
    Modify(u8, u32, u8),
    Connect,
    Query,
    Mcast(bool, bool),
    Batch(u8, bool),
    List(u8, u8),
    Builder(u8, bool),
    Recv(u8, u8),
}

#[derive(Arbitrary, Debug)]
pub(crate) enum UseCq {
    Poll(u8),
    Each(u8),
    Session(u8),
    Arm(bool),
    Resize(u8, bool),
    Moderate(u16, u16),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
pub(crate) enum Kind {
    Pd,
    Channel,
    Cq,
    Mr,
    Mw,
    Ah,
    Srq,
    Qp,
    Xrcd,
    Context,
}

impl Access {
    pub(crate) fn flags(self) -> AccessFlags {
        match self {
            Self::Local => AccessFlags::LOCAL_WRITE,
            Self::Remote => AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ,
            Self::Any(bits) => AccessFlags::from_bits_retain(bits),
        }
    }
}

impl Ah {
    pub(crate) fn attr(self) -> AhAttr {
        let route = |(sgid_index, byte)| GlobalRoute::new(Gid([byte; 16])).sgid_index(sgid_index);
        AhAttr::new(self.port_num).grh(self.global.map(route)).dlid(self.dlid).sl(self.sl)
    }
}
