// SPDX-License-Identifier: MIT OR Apache-2.0
//! The format of the file of reference vectors: one JSON object per line, each of which is a case. An object of category
//! `meta` is a header, which is skipped.
//!
//! Strings `0x..` are integers. `hex` strings are memory in address order, where `xx` is a byte that the reference did
//! not write. Immediate data are big-endian numbers.

use anyhow::{Context as _, Result, ensure};
use flate2::read::MultiGzDecoder;
use serde::{Deserialize, Deserializer, de};
use std::io::Read as _;
use std::path::Path;

/// An integer, written as `"0x.."` or as a decimal number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Num(pub u64);

impl<'de> Deserialize<'de> for Num {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Visit;
        impl de::Visitor<'_> for Visit {
            type Value = Num;
            fn expecting(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str("a number or a string 0x..")
            }
            fn visit_u64<E: de::Error>(self, v: u64) -> Result<Num, E> {
                Ok(Num(v))
            }
            fn visit_i64<E: de::Error>(self, v: i64) -> Result<Num, E> {
                Ok(Num(v.cast_unsigned()))
            }
            fn visit_bool<E: de::Error>(self, v: bool) -> Result<Num, E> {
                Ok(Num(v.into()))
            }
            fn visit_str<E: de::Error>(self, v: &str) -> Result<Num, E> {
                let digits = v.strip_prefix("0x").ok_or_else(|| E::custom("no 0x"))?;
                u64::from_str_radix(digits, 16).map(Num).map_err(E::custom)
            }
        }
        d.deserialize_any(Visit)
    }
}

impl Num {
    pub(crate) fn u32(self) -> u32 {
        u32::try_from(self.0).expect("a number of 32 bits")
    }
}

/// Bytes in address order; `None` for a byte that the reference did not write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pattern(pub Vec<Option<u8>>);

impl Pattern {
    /// A loop, because megabytes are parsed without optimisation.
    fn parse(text: &str) -> Option<Self> {
        let nibble = |digit: u8| match digit {
            b'0'..=b'9' => Some(digit - b'0'),
            b'a'..=b'f' => Some(digit - b'a' + 10),
            b'A'..=b'F' => Some(digit - b'A' + 10),
            _ => None,
        };
        let text = text.as_bytes();
        let mut bytes = Vec::with_capacity(text.len() / 2);
        let mut at = 0;
        while at < text.len() {
            let (high, low) = (text[at], *text.get(at + 1)?);
            let is_written = high != b'x' || low != b'x';
            bytes.push(if is_written { Some(nibble(high)? << 4 | nibble(low)?) } else { None });
            at += 2;
        }
        Some(Self(bytes))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The first byte that differs.
    pub(crate) fn differs(&self, bytes: &[u8]) -> Option<usize> {
        if self.0.len() != bytes.len() {
            return Some(self.0.len().min(bytes.len()));
        }
        self.0.iter().zip(bytes).position(|(want, got)| want.is_some_and(|want| want != *got))
    }

    /// All bytes, if each was written.
    pub(crate) fn bytes(&self) -> Option<Vec<u8>> {
        self.0.iter().copied().collect()
    }

    pub(crate) fn text(&self) -> String {
        self.0.iter().map(|b| b.map_or_else(|| "xx".to_owned(), |b| format!("{b:02x}"))).collect()
    }
}

impl<'de> Deserialize<'de> for Pattern {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        Self::parse(&text).ok_or_else(|| de::Error::custom("not hexadecimal"))
    }
}

/// Bytes in address order, each of which was written.
#[derive(Clone, Debug)]
pub(crate) struct Bytes(pub Vec<u8>);

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let bytes = Pattern::deserialize(d)?.bytes();
        bytes.map(Self).ok_or_else(|| de::Error::custom("a byte that was not written"))
    }
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Cap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Qp {
    pub ctx: String,
    #[serde(rename = "type")]
    pub qp_type: String,
    pub state: String,
    pub sq_sig_all: Num,
    pub ex: bool,
    pub thread_domain: bool,
    pub req_cap: Cap,
    pub cap: Cap,
    pub uidx: u32,
    pub qpn: u32,
    pub sq_wqe_cnt: u32,
    pub rq_wqe_cnt: u32,
    pub sq_start_index: u32,
    #[serde(default)]
    pub max_tso_header: u32,
    pub send_ops_flags: Option<Num>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Srq {
    #[serde(rename = "type", default)]
    pub srq_type: Option<String>,
    #[serde(default)]
    pub ctx: Option<String>,
    #[serde(flatten)]
    pub rest: serde_json::Map<String, serde_json::Value>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Cq {
    pub cqe_cnt: u32,
    pub cqe_size: u32,
    pub wc_flags: Num,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Sge {
    pub addr: Num,
    pub length: u32,
    pub lkey: Num,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Ah {
    pub av: Pattern,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Ud {
    pub remote_qpn: Num,
    pub remote_qkey: Num,
    pub ah: Ah,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Tso {
    pub mss: u16,
    pub hdr: Bytes,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Mw {
    #[serde(rename = "type")]
    pub mw_type: u32,
    pub rkey: Num,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct BindInfo {
    pub mr_lkey: Num,
    pub addr: Num,
    pub length: Num,
    pub access: u32,
}

/// `ibv_wr_opcode` by name, or by number where it has none.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Opcode {
    Name(String),
    Number(u32),
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct SendWr {
    pub wr_id: Num,
    pub opcode: Opcode,
    pub send_flags: Vec<String>,
    pub sg_list: Vec<Sge>,
    pub imm_data: Option<Num>,
    pub invalidate_rkey: Option<Num>,
    pub remote_addr: Option<Num>,
    pub rkey: Option<Num>,
    pub compare_add: Option<Num>,
    pub swap: Option<Num>,
    pub ud: Option<Ud>,
    pub xrc_remote_srqn: Option<Num>,
    pub tso: Option<Tso>,
    pub mw: Option<Mw>,
    pub bind_rkey: Option<Num>,
    pub bind_info: Option<BindInfo>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct RecvWr {
    pub wr_id: Num,
    pub sg_list: Vec<Sge>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Wqe {
    pub idx: u32,
    pub ds: Option<u32>,
    pub hex: Option<Pattern>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Posted {
    pub start: u32,
    pub end: u32,
    pub wqes: Vec<Wqe>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct SrqPosted {
    pub wqes: Vec<Wqe>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Bell {
    pub offset: u32,
    pub len: usize,
    pub hex: Pattern,
}

/// The effects of a step on the send queue.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Sent {
    pub ret: i32,
    pub bad_wr: i32,
    pub sq: Posted,
    pub sq_dbrec: Option<u32>,
    pub bf: Option<Bell>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub(crate) enum Op {
    Start,
    Set { wr_id: Num, wr_flags: Vec<String> },
    Send,
    SendImm { imm_data: Num },
    SendInv { invalidate_rkey: Num },
    RdmaWrite { rkey: Num, remote_addr: Num },
    RdmaWriteImm { rkey: Num, remote_addr: Num, imm_data: Num },
    RdmaRead { rkey: Num, remote_addr: Num },
    AtomicCmpSwp { rkey: Num, remote_addr: Num, compare: Num, swap: Num },
    AtomicFetchAdd { rkey: Num, remote_addr: Num, add: Num },
    LocalInv { invalidate_rkey: Num },
    BindMw { mw: Mw, bind_rkey: Num, bind_info: BindInfo },
    SendTso { mss: u16, hdr: Bytes },
    SetSge { sge: Sge },
    SetSgeList { sg_list: Vec<Sge> },
    SetInlineData { length: usize, data: Bytes },
    SetInlineDataList { bufs: Vec<Bytes> },
    SetUdAddr { remote_qpn: Num, remote_qkey: Num, ah: Ah },
    SetXrcSrqn { remote_srqn: Num },
    SetDcAddr { remote_dctn: Num, dc_key: Num, ah: Ah },
    SetDcAddrStream { remote_dctn: Num, dc_key: Num, stream_id: u16, ah: Ah },
    Complete,
    Abort,
}

/// A polled completion; fields that the reference did not write are absent.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Wc {
    pub status: u32,
    pub wr_id: Num,
    pub opcode: Option<u32>,
    pub qp_num: u32,
    pub wc_flags: Option<u32>,
    pub byte_len: Option<u32>,
    pub imm_data: Option<Num>,
    pub invalidated_rkey: Option<Num>,
    pub src_qp: Option<u32>,
    pub pkey_index: Option<u16>,
    pub slid: Option<u32>,
    pub sl: Option<u8>,
    pub dlid_path_bits: Option<u8>,
    pub vendor_err: Option<u32>,
    pub completion_ts: Option<Num>,
    pub completion_wallclock_ns: Option<Num>,
    pub cvlan: Option<u16>,
    pub flow_tag: Option<u32>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct HwCqe {
    pub pos: u32,
    pub hex: Pattern,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "api", rename_all = "snake_case")]
pub(crate) enum Step {
    PostSend {
        wrs: Vec<SendWr>,
        #[serde(flatten)]
        out: Sent,
    },
    WrApi {
        ops: Vec<Op>,
        #[serde(flatten)]
        out: Sent,
    },
    BindMw {
        mw: Mw,
        wr_id: Num,
        send_flags: Vec<String>,
        bind_info: BindInfo,
        rkey_after: Num,
        #[serde(flatten)]
        out: Sent,
    },
    PostRecv {
        wrs: Vec<RecvWr>,
        ret: i32,
        bad_wr: i32,
        rq: Posted,
        rq_dbrec: Option<u32>,
    },
    PostSrqRecv {
        wrs: Vec<RecvWr>,
        ret: i32,
        bad_wr: i32,
        srq: SrqPosted,
        srq_dbrec: Option<u32>,
    },
    Modify {
        state: String,
        sq_dbrec_after: Option<u32>,
        rq_dbrec_after: Option<u32>,
        cq_ci_dbrec: Option<u32>,
    },
    HwCqes {
        cqes: Vec<HwCqe>,
    },
    HwRaw {
        pos: u32,
        op_own: u8,
        hex: Option<Pattern>,
    },
    PollCq {
        num_entries: usize,
        ret: i32,
        wcs: Vec<Wc>,
        cq_ci_dbrec: u32,
    },
    StartPoll {
        max: usize,
        start_ret: i32,
        wcs: Vec<Wc>,
        next_ret: Option<i32>,
        cq_ci_dbrec: u32,
    },
    CheckMem {
        addr: Num,
        hex: Pattern,
    },
    CheckSrq {
        next_wqe_index: Vec<u32>,
    },
    SrqInfo {
        stride: u32,
        wqe_total: u32,
    },
    #[serde(rename = "create_qp2")]
    CreateQp2 {
        qp: Qp,
    },
    #[serde(rename = "on_qp2")]
    OnQp2 {
        step: Vec<Step>,
    },
    ReqNotifyCq {
        solicited_only: Num,
        cqn: u32,
        cq_arm_dbrec: Num,
        uar_0x20: Pattern,
    },
    GetCqEvent,
    PollOnly,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Case {
    pub id: u64,
    pub category: String,
    pub name: String,
    pub qp: Option<Qp>,
    pub srq: Option<Srq>,
    pub cq: Option<Cq>,
    #[serde(default)]
    pub steps: Vec<Step>,
    #[serde(rename = "in")]
    pub input: Option<serde_json::Value>,
    pub out: Option<serde_json::Value>,
}

/// The text of a file, which may be compressed by gzip, also in several members.
pub(crate) fn text(path: &Path) -> Result<String> {
    let name = || format!("{}", path.display());
    let mut bytes = std::fs::read(path).with_context(name)?;
    if bytes.starts_with(&[0x1f, 0x8b]) {
        let mut plain = Vec::new();
        MultiGzDecoder::new(&*bytes).read_to_end(&mut plain).with_context(name)?;
        bytes = plain;
    }
    String::from_utf8(bytes).with_context(name)
}

/// All cases of a file.
pub(crate) fn read(path: &Path) -> Result<Vec<Case>> {
    /// Any line, because a header has other fields than a case.
    #[derive(Deserialize)]
    struct Line {
        category: String,
    }
    let mut cases = Vec::new();
    for (n, line) in text(path)?.lines().enumerate() {
        let place = || format!("{}:{}", path.display(), n + 1);
        if serde_json::from_str::<Line>(line).with_context(place)?.category != "meta" {
            cases.push(serde_json::from_str::<Case>(line).with_context(place)?);
        }
    }
    ensure!(!cases.is_empty(), "{}: no cases", path.display());
    Ok(cases)
}
