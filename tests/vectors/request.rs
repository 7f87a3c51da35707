// SPDX-License-Identifier: MIT OR Apache-2.0
//! Work requests of the vectors as values that any face can post, and their construction from recorded calls.

use crate::model::{self, Op, Opcode};
use uverbs_core::provider::op::{MwBind, TsoArgs};
use uverbs_core::provider::{Op as What, RemoteAddr, Wr};
use uverbs_core::wr::{RawAh, SendFlags, Sge, WrOpcode};
use uverbs_mlx5::Ah;
use uverbs_mlx5_hw::wqe::Av;
use uverbs_testkit::{self as testkit, OwnedData, OwnedDest, OwnedRequest};
use zerocopy::FromBytes as _;

/// The data of a WR.
pub(crate) type Data = OwnedData;
/// The destination of a WR.
pub(crate) type Dest = OwnedDest<RawAh<Ah>>;

/// A WR.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    pub wr: OwnedRequest<'a, RawAh<Ah>>,
    /// The stream of a DC initiator.
    pub stream: Option<u16>,
}

pub(crate) fn flags(names: &[String]) -> SendFlags {
    names.iter().fold(SendFlags::empty(), |flags, name| {
        flags
            | match name.as_str() {
                "FENCE" => SendFlags::FENCE,
                "SIGNALED" => SendFlags::SIGNALED,
                "SOLICITED" => SendFlags::SOLICITED,
                "INLINE" => SendFlags::INLINE,
                "IP_CSUM" => SendFlags::IP_CSUM,
                other => panic!("send flag {other}"),
            }
    })
}

pub(crate) fn opcode(opcode: &Opcode) -> WrOpcode {
    let name = match opcode {
        Opcode::Number(number) => return WrOpcode(*number),
        Opcode::Name(name) => name.as_str(),
    };
    match name {
        "RDMA_WRITE" => WrOpcode::RDMA_WRITE,
        "RDMA_WRITE_WITH_IMM" => WrOpcode::RDMA_WRITE_WITH_IMM,
        "SEND" => WrOpcode::SEND,
        "SEND_WITH_IMM" => WrOpcode::SEND_WITH_IMM,
        "RDMA_READ" => WrOpcode::RDMA_READ,
        "ATOMIC_CMP_AND_SWP" => WrOpcode::ATOMIC_CMP_AND_SWP,
        "ATOMIC_FETCH_AND_ADD" => WrOpcode::ATOMIC_FETCH_AND_ADD,
        "LOCAL_INV" => WrOpcode::LOCAL_INV,
        "BIND_MW" => WrOpcode::BIND_MW,
        "SEND_WITH_INV" => WrOpcode::SEND_WITH_INV,
        "TSO" => WrOpcode::TSO,
        "DRIVER1" => WrOpcode::DRIVER1,
        "FLUSH" => WrOpcode::FLUSH,
        "ATOMIC_WRITE" => WrOpcode::ATOMIC_WRITE,
        number => WrOpcode(number.parse().unwrap_or_else(|_| panic!("opcode {number}"))),
    }
}

pub(crate) fn sge(sge: &model::Sge) -> Sge {
    Sge { addr: sge.addr.0, length: sge.length, lkey: sge.lkey.u32() }
}

pub(crate) fn sges(list: &[model::Sge]) -> Vec<Sge> {
    list.iter().map(sge).collect()
}

pub(crate) fn bind(mw: &model::Mw, rkey: model::Num, info: &model::BindInfo) -> MwBind {
    MwBind {
        mw_rkey: mw.rkey.u32(),
        mw_type: mw.mw_type,
        rkey: rkey.u32(),
        mr_lkey: info.mr_lkey.u32(),
        addr: info.addr.0,
        length: info.length.0,
        access: info.access,
    }
}

pub(crate) fn av(ah: &model::Ah) -> Vec<u8> {
    // Bytes that differ between runs (the UDP port without a flow label) may have any value: they are `xx` in the WQE,
    // too.
    ah.av.0.iter().map(|b| b.unwrap_or(0)).collect()
}

/// The operation of a builder; `None` for any other call.
pub(crate) fn builder(op: &Op) -> Option<What<'_>> {
    let at = |rkey: &model::Num, addr: &model::Num| RemoteAddr { addr: addr.0, rkey: rkey.u32() };
    Some(match op {
        Op::Send => What::Send,
        Op::SendImm { imm_data } => What::SendImm(imm_data.u32()),
        Op::SendInv { invalidate_rkey } => What::SendInv(invalidate_rkey.u32()),
        Op::RdmaWrite { rkey, remote_addr } => What::Write(at(rkey, remote_addr)),
        Op::RdmaWriteImm { rkey, remote_addr, imm_data } => {
            What::WriteImm(at(rkey, remote_addr), imm_data.u32())
        }
        Op::RdmaRead { rkey, remote_addr } => What::Read(at(rkey, remote_addr)),
        Op::AtomicCmpSwp { rkey, remote_addr, compare, swap } => {
            What::CmpSwp(at(rkey, remote_addr), compare.0, swap.0)
        }
        Op::AtomicFetchAdd { rkey, remote_addr, add } => What::FetchAdd(at(rkey, remote_addr), add.0),
        Op::LocalInv { invalidate_rkey } => What::LocalInv(invalidate_rkey.u32()),
        Op::BindMw { mw, bind_rkey, bind_info } => What::BindMw(bind(mw, *bind_rkey, bind_info)),
        Op::SendTso { mss, hdr } => What::Tso(TsoArgs { header: &hdr.0, mss: *mss }),
        _ => return None,
    })
}

impl<'a> Request<'a> {
    /// A WR of a list. `None` for an opcode that no other face can express.
    pub(crate) fn of_list(wr: &'a model::SendWr) -> Option<Self> {
        let num = |n: Option<model::Num>| n.map_or(0, |n| n.0);
        let at = RemoteAddr { addr: num(wr.remote_addr), rkey: num(wr.rkey) as u32 };
        let imm = num(wr.imm_data) as u32;
        let key = num(wr.invalidate_rkey) as u32;
        let (compare_add, swap) = (num(wr.compare_add), num(wr.swap));
        let opcode = opcode(&wr.opcode);
        let what = match opcode {
            WrOpcode::SEND => What::Send,
            WrOpcode::SEND_WITH_IMM => What::SendImm(imm),
            WrOpcode::SEND_WITH_INV => What::SendInv(key),
            WrOpcode::RDMA_WRITE => What::Write(at),
            WrOpcode::RDMA_WRITE_WITH_IMM => What::WriteImm(at, imm),
            WrOpcode::RDMA_READ => What::Read(at),
            WrOpcode::ATOMIC_CMP_AND_SWP => What::CmpSwp(at, compare_add, swap),
            WrOpcode::ATOMIC_FETCH_AND_ADD => What::FetchAdd(at, compare_add),
            WrOpcode::LOCAL_INV => What::LocalInv(key),
            WrOpcode::BIND_MW => What::BindMw(bind(wr.mw.as_ref()?, wr.bind_rkey?, wr.bind_info.as_ref()?)),
            WrOpcode::TSO => {
                let tso = wr.tso.as_ref()?;
                What::Tso(TsoArgs { header: &tso.hdr.0, mss: tso.mss })
            }
            _ => return None,
        };
        let mut flags = flags(&wr.send_flags);
        let list = sges(&wr.sg_list);
        let data = match what {
            what if !what.has_data() => Data::None,
            _ if flags.contains(SendFlags::INLINE) && !list.is_empty() => {
                Data::Inline(list.iter().map(|s| crate::memory::read(s.addr, s.length as usize)).collect())
            }
            _ => Data::Sges(list),
        };
        flags.remove(SendFlags::INLINE);
        let to = match (&wr.ud, wr.xrc_remote_srqn) {
            (Some(ud), _) => Dest::Ud {
                ah: handle(&av(&ud.ah)),
                remote_qpn: ud.remote_qpn.u32(),
                remote_qkey: ud.remote_qkey.u32(),
            },
            (None, Some(srqn)) => Dest::Xrc(srqn.u32()),
            (None, None) => Dest::Peer,
        };
        Some(Self::new(wr.wr_id.0, flags, what, to, data))
    }

    /// The WRs of a session that typed calls can express: each builder is followed by each of its setters once, between
    /// `start` and `complete`. `None` for other sessions.
    pub(crate) fn of_session(ops: &'a [Op]) -> Option<Vec<Self>> {
        let [Op::Start, ops @ .., Op::Complete] = ops else { return None };
        let (mut wr_id, mut flags) = (0, SendFlags::empty());
        let mut all: Vec<Self> = Vec::new();
        for op in ops {
            if let Some(what) = builder(op) {
                all.push(Self::new(wr_id, flags, what, Dest::Peer, Data::None));
                continue;
            }
            let last = all.last_mut();
            let data = match op {
                Op::Set { wr_id: id, wr_flags } => {
                    wr_id = id.0;
                    flags = self::flags(wr_flags).difference(SendFlags::INLINE);
                    continue;
                }
                Op::SetSge { sge: s } => Data::Sges(vec![sge(s)]),
                Op::SetSgeList { sg_list } => Data::Sges(sges(sg_list)),
                Op::SetInlineData { data, .. } => Data::Inline(vec![data.0.clone()]),
                Op::SetInlineDataList { bufs } => Data::Inline(bufs.iter().map(|b| b.0.clone()).collect()),
                other => {
                    let mut stream = None;
                    let to = match other {
                        Op::SetUdAddr { remote_qpn, remote_qkey, ah } => Dest::Ud {
                            ah: handle(&av(ah)),
                            remote_qpn: remote_qpn.u32(),
                            remote_qkey: remote_qkey.u32(),
                        },
                        Op::SetXrcSrqn { remote_srqn } => Dest::Xrc(remote_srqn.u32()),
                        Op::SetDcAddr { remote_dctn, dc_key, ah } => Dest::Dc {
                            ah: handle(&av(ah)),
                            remote_dctn: remote_dctn.u32(),
                            remote_dc_key: dc_key.0,
                        },
                        Op::SetDcAddrStream { remote_dctn, dc_key, stream_id, ah } => {
                            stream = Some(*stream_id);
                            Dest::Dc {
                                ah: handle(&av(ah)),
                                remote_dctn: remote_dctn.u32(),
                                remote_dc_key: dc_key.0,
                            }
                        }
                        _ => return None,
                    };
                    let last = last.filter(|r| matches!(r.wr.to, Dest::Peer))?;
                    (last.wr.to, last.stream) = (to, stream);
                    continue;
                }
            };
            let last = last.filter(|r| matches!(r.wr.data, Data::None))?;
            last.wr.data = data;
        }
        let complete = |r: &Self| r.wr.op.has_data() != matches!(r.wr.data, Data::None);
        all.iter().all(complete).then_some(all)
    }

    pub(crate) fn new(wr_id: u64, flags: SendFlags, op: What<'a>, to: Dest, data: Data) -> Self {
        Self { wr: OwnedRequest { wr_id, flags, op, data, to }, stream: None }
    }

    /// Calls `f` with the values.
    pub(crate) fn with_wrs<R>(all: &[Self], f: impl FnOnce(&[Wr<'_, RawAh<Ah>>]) -> R) -> R {
        OwnedRequest::with_wrs(all.iter().map(|request| &request.wr), f)
    }
}

/// The driver's address handle of an address vector.
pub(crate) fn handle(av: &[u8]) -> RawAh<Ah> {
    testkit::handle(Ah::new(&Av::read_from_bytes(av).expect("48 bytes")))
}
