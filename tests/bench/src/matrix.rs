// SPDX-License-Identifier: MIT OR Apache-2.0
//! The table of posts: which operations each transport has, and by which calls and with which data they are measured.
//!
//! The programs of this folder and `cargo xtask bench` contain this file, so a measurement is a row of the report. A test
//! of xtask compares the operations with those of the driver.

/// How a post is made by C's calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// `ibv_post_send`.
    List,
    /// The `ibv_wr_*` calls.
    Builder,
}

/// A kind of QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Send side of an extended reliable connection.
    Xrc,
    /// Raw packets.
    Raw,
    /// Initiator of dynamic connections.
    Dc,
    /// Scalable reliable datagram of EFA.
    Srd,
    /// Unreliable datagram of EFA.
    EfaUd,
}

/// An operation of a post.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// `IBV_WR_SEND`
    Send,
    /// `IBV_WR_SEND_WITH_IMM`
    SendImm,
    /// `IBV_WR_SEND_WITH_INV`
    SendInv,
    /// `IBV_WR_RDMA_WRITE`
    Write,
    /// `IBV_WR_RDMA_WRITE_WITH_IMM`
    WriteImm,
    /// `IBV_WR_RDMA_READ`
    Read,
    /// `IBV_WR_ATOMIC_CMP_AND_SWP`
    CmpSwp,
    /// `IBV_WR_ATOMIC_FETCH_AND_ADD`
    FetchAdd,
    /// `IBV_WR_LOCAL_INV`
    LocalInv,
    /// `IBV_WR_BIND_MW`
    BindMw,
    /// `IBV_WR_TSO`
    Tso,
}

/// The data of a post.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Data {
    /// One entry, or none where the operation has no data.
    Usual,
    /// So many entries of 64 bytes.
    Entries(u32),
    /// So many bytes inline.
    Inline(u32),
    /// So many buffers of 64 bytes inline.
    InlineList(u32),
}

/// A measured post.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Post {
    /// The call of C.
    pub call: Call,
    /// The kind of QP.
    pub transport: Transport,
    /// The operation.
    pub operation: Operation,
    /// The data.
    pub data: Data,
}

impl Transport {
    /// All kinds of mlx5.
    pub const ALL: [Self; 6] = [Self::Rc, Self::Uc, Self::Ud, Self::Xrc, Self::Raw, Self::Dc];

    /// Its name in measurements.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rc => "rc",
            Self::Uc => "uc",
            Self::Ud => "ud",
            Self::Xrc => "xrc",
            Self::Raw => "raw",
            Self::Dc => "dc",
            Self::Srd => "srd",
            Self::EfaUd => "efa_ud",
        }
    }

    /// Its operations.
    pub const fn operations(self) -> &'static [Operation] {
        use Operation as O;
        match self {
            Self::Rc | Self::Xrc | Self::Dc => &[
                O::Send,
                O::SendImm,
                O::SendInv,
                O::Write,
                O::WriteImm,
                O::Read,
                O::CmpSwp,
                O::FetchAdd,
                O::LocalInv,
                O::BindMw,
            ],
            Self::Uc => &[O::Send, O::SendImm, O::SendInv, O::Write, O::WriteImm, O::LocalInv, O::BindMw],
            Self::Ud | Self::EfaUd => &[O::Send, O::SendImm],
            Self::Srd => &[O::Send, O::SendImm, O::Write, O::WriteImm, O::Read],
            Self::Raw => &[O::Send, O::Tso],
        }
    }

    /// The calls by which it is posted to: a list can't name the target of a dynamic connection.
    pub const fn calls(self) -> &'static [Call] {
        match self {
            Self::Dc => &[Call::Builder],
            _ => &[Call::List, Call::Builder],
        }
    }
}

impl Operation {
    /// Its name in measurements.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::SendImm => "send_imm",
            Self::SendInv => "send_inv",
            Self::Write => "write",
            Self::WriteImm => "write_imm",
            Self::Read => "read",
            Self::CmpSwp => "cmp_swp",
            Self::FetchAdd => "fetch_add",
            Self::LocalInv => "local_inv",
            Self::BindMw => "bind_mw",
            Self::Tso => "tso",
        }
    }

    /// The number of its opcode, `enum ibv_wr_opcode`.
    pub const fn opcode(self) -> u32 {
        match self {
            Self::Write => 0,
            Self::WriteImm => 1,
            Self::Send => 2,
            Self::SendImm => 3,
            Self::Read => 4,
            Self::CmpSwp => 5,
            Self::FetchAdd => 6,
            Self::LocalInv => 7,
            Self::BindMw => 8,
            Self::SendInv => 9,
            Self::Tso => 10,
        }
    }
}

impl Data {
    /// The data besides the usual ones that RDMA writes of RC QPs are measured with, by this call.
    fn more(call: Call) -> Vec<Self> {
        let entries = [4, 16, 30].map(Self::Entries);
        let inline = [64, 128, 256, 448, 960].map(Self::Inline);
        // A list has no buffers.
        let lists = if call == Call::Builder { &[Self::InlineList(4)][..] } else { &[] };
        [&entries, &inline[..], lists].concat()
    }
}

impl Post {
    /// Its name in measurements, without face and batch: `CALL TRANSPORT OPERATION [DATA]`.
    pub fn name(&self) -> String {
        let call = match self.call {
            Call::List => "post_send",
            Call::Builder => "wr",
        };
        let data = match self.data {
            Data::Usual => String::new(),
            Data::Entries(n) => format!(" sge{n}"),
            Data::Inline(n) => format!(" inline{n}"),
            Data::InlineList(n) => format!(" inline_list{n}"),
        };
        format!("{call} {} {}{data}", self.transport.name(), self.operation.name())
    }

    /// Whether it is also measured by the typed face, which has one way for both calls: where it is the first one.
    pub fn is_typed(&self) -> bool {
        let has_list = match self.transport {
            Transport::Dc => false,
            Transport::Srd => matches!(self.operation, Operation::Send | Operation::SendImm),
            _ => !matches!(self.data, Data::InlineList(_)),
        };
        self.call == Call::List || !has_list
    }

    /// Whether it is also measured by C's calls in Rust, which have no setter for the target of a dynamic connection.
    pub fn is_raw(&self) -> bool {
        self.transport != Transport::Dc
    }

    /// All posts of EFA that are measured, each single and in batches. A list names either an address handle or the peer's memory, so it
    /// has sends only.
    pub fn efa() -> Vec<Self> {
        let mut posts = Vec::new();
        for (transport, inline) in [(Transport::Srd, &[8, 16, 32, 64][..]), (Transport::EfaUd, &[32])] {
            for &call in transport.calls() {
                let of_list =
                    |operation: &Operation| matches!(operation, Operation::Send | Operation::SendImm);
                let operations =
                    transport.operations().iter().filter(|op| call == Call::Builder || of_list(op));
                let post = |operation, data| Self { call, transport, operation, data };
                posts.extend(operations.map(|&operation| post(operation, Data::Usual)));
                posts.push(post(Operation::Send, Data::Entries(2)));
                posts.extend(inline.iter().map(|&n| post(Operation::Send, Data::Inline(n))));
            }
        }
        posts
    }

    /// All posts of mlx5 that are measured, each single and in batches.
    pub fn all() -> Vec<Self> {
        let mut posts = Vec::new();
        for transport in Transport::ALL {
            for &call in transport.calls() {
                let post = |operation, data| Self { call, transport, operation, data };
                posts.extend(transport.operations().iter().map(|&operation| post(operation, Data::Usual)));
                if transport == Transport::Rc {
                    posts.extend(Data::more(call).into_iter().map(|data| post(Operation::Write, data)));
                }
            }
        }
        posts
    }
}
