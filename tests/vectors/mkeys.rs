// SPDX-License-Identifier: MIT OR Apache-2.0
//! Indirect keys: the commands that create them, and the WQEs of work requests that change them (`wr_mr_list`,
//! `wr_mr_interleaved`, `wr_mkey_configure` with layouts and signatures), as libmlx5 of rdma-core 65 wrote them for a fake
//! device. rdma-core 44 differs in four cases: the length of a key with a part of 2^31 - 1 bytes and more.
//!
//! A case has a QP, keys, and sessions. Its rings were filled before each session, twice with different bytes: `xx` is a byte that
//! libmlx5 did not write. What only the C library's calls can express (wrong counts of setters, a WR whose list is not
//! inline, values that are no enumerator) is left out: `crates/ibverbs` checks those arguments.

use crate::compare::compare_bytes;
use crate::faces::Send;
use crate::model::{Num, Pattern, text};
use crate::rig::{QpSpec, Rig, watch};
use crate::trace::Trace;
use anyhow::{Context as _, Result, ensure};
use core::panic::AssertUnwindSafe;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::panic::catch_unwind;
use std::path::Path;
use std::sync::Arc;
use uverbs_core::attr::{AccessFlags, QpCap, QpState, QpType, SendOpsFlags};
use uverbs_core::provider::raw::QpEx;
use uverbs_core::provider::{Data, Head, Op as Verb, PostError, RemoteAddr, SendQueue as _, WrBuilder as _};
use uverbs_core::wr::{SendFlags, Sge};
use uverbs_mlx5::SendQueue;
use uverbs_mlx5::dv::{
    BlockSize, CrcKind, Guard, Mkey, MkeyConfig, MkeyLayout, MkeyOps, MkeyOptions, MkeyPart, QpOptions, Seed,
    SignatureBlock, SignatureDomain, SignatureKind, T10Dif, T10Escape,
};
use uverbs_testkit::Session;

/// The configuration of the context, for `kernel`.
pub(crate) const CTX: &str = "eth_devx";

#[derive(Debug, Deserialize)]
struct Case {
    id: u64,
    name: String,
    qp: QpSizes,
    mkeys: Vec<Key>,
    steps: Vec<Step>,
}

#[derive(Debug, Deserialize)]
struct QpSizes {
    inline: u32,
    wr: u32,
    sig_all: u32,
    max_wr: u32,
    max_inline: u32,
    sq_wqe_cnt: u32,
}

#[derive(Debug, Deserialize)]
struct Key {
    max_entries: u16,
    flags: u32,
    errno: i32,
    commands: Vec<Pattern>,
    lkey: Option<Num>,
    entries: Option<u32>,
}

#[derive(Debug, Deserialize)]
struct Step {
    ops: Vec<Op>,
    ret: i32,
    start: u32,
    end: u32,
    wqes: Vec<Wqe>,
}

#[derive(Debug, Deserialize)]
struct Wqe {
    idx: u32,
    hex: Pattern,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
enum Op {
    Set { wr_id: u64, wr_flags: u32 },
    MrList { mkey: usize, access: u32, sges: Vec<(Num, u32, u32)> },
    MrInterleaved { mkey: usize, access: u32, repeat: u32, parts: Vec<(Num, u32, u32, u32)> },
    Configure { mkey: usize, setters: usize, flags: u32 },
    Access { access: u32 },
    LayoutList { sges: Vec<(Num, u32, u32)> },
    LayoutInterleaved { repeat: u32, parts: Vec<(Num, u32, u32, u32)> },
    Signature { memory: Option<Domain>, wire: Option<Domain>, flags: u32, check_mask: u8, copy_mask: u8 },
    Write { mkey: usize, rkey: u32, length: u32 },
}

#[derive(Debug, Deserialize)]
struct Domain {
    block: u16,
    #[serde(flatten)]
    kind: Kind,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    T10dif {
        bg_type: u32,
        bg: u16,
        app_tag: u16,
        ref_tag: u32,
        flags: u16,
    },
    Crc {
        #[serde(rename = "type")]
        crc: u32,
        seed: Num,
    },
}

/// `enum mlx5dv_mkey_init_attr_flags`
const BLOCK_SIGNATURE: u32 = 1 << 1;
const UPDATE_TAG: u32 = 1 << 3;
const REMOTE_INVALIDATE: u32 = 1 << 4;
/// The longest part of a list (PRM: 31 bits).
const MAX_PART: u32 = 1 << 31;

/// A layout with memory of its own.
#[derive(Clone, Debug)]
enum Layout {
    List(Vec<Sge>),
    Interleaved(u32, Vec<MkeyPart>),
}

impl Layout {
    fn list(sges: &[(Num, u32, u32)]) -> Self {
        Self::List(sges.iter().map(|&(addr, length, lkey)| Sge { addr: addr.0, length, lkey }).collect())
    }

    fn interleaved(repeat: u32, parts: &[(Num, u32, u32, u32)]) -> Self {
        let part = |&(addr, bytes_count, bytes_skip, lkey): &(Num, u32, u32, u32)| MkeyPart {
            addr: addr.0,
            bytes_count,
            bytes_skip,
            lkey,
        };
        Self::Interleaved(repeat, parts.iter().map(part).collect())
    }

    fn borrow(&self) -> MkeyLayout<'_> {
        match self {
            Self::List(parts) => MkeyLayout::List(parts),
            Self::Interleaved(repeat, parts) => MkeyLayout::Interleaved { repeat: *repeat, parts },
        }
    }
}

/// A work request of a session.
enum Wr {
    Change {
        mkey: usize,
        access: Option<AccessFlags>,
        layout: Option<Layout>,
        signature: Option<SignatureBlock>,
        resets: bool,
    },
    Write {
        mkey: usize,
        rkey: u32,
        length: u32,
    },
}

/// The work requests of a session, each with its attributes; `None` if only C's calls express one of them.
fn requests(ops: &[Op]) -> Option<Vec<(Head, Wr)>> {
    let mut all: Vec<(Head, Wr)> = Vec::new();
    let mut head = Head { wr_id: 0, flags: SendFlags::empty() };
    let mut missing = 0;
    for op in ops {
        let is_setter = matches!(
            op,
            Op::Access { .. } | Op::LayoutList { .. } | Op::LayoutInterleaved { .. } | Op::Signature { .. }
        );
        if is_setter != (missing > 0) {
            return None;
        }
        missing = if is_setter { missing - 1 } else { missing };
        let change = |mkey| Wr::Change { mkey, access: None, layout: None, signature: None, resets: false };
        match op {
            Op::Set { wr_id, wr_flags } => {
                head = Head { wr_id: *wr_id, flags: SendFlags::from_bits_retain(*wr_flags) }
            }
            Op::Write { mkey, rkey, length } => {
                all.push((head, Wr::Write { mkey: *mkey, rkey: *rkey, length: *length }))
            }
            _ if !is_setter && !head.flags.contains(SendFlags::INLINE) => return None,
            Op::Configure { flags, .. } if *flags > 1 => return None,
            Op::MrList { mkey, .. } | Op::MrInterleaved { mkey, .. } | Op::Configure { mkey, .. } => {
                all.push((head, change(*mkey)))
            }
            _ => {}
        }
        let Some((_, Wr::Change { access, layout, signature, resets, .. })) = all.last_mut() else {
            continue;
        };
        let fits = |fits: bool| fits.then_some(());
        match op {
            Op::Configure { setters, flags, .. } => (missing, *resets) = (*setters, *flags == 1),
            Op::Access { access: bits } => {
                fits(access.replace(AccessFlags::from_bits_retain(*bits)).is_none())?;
            }
            Op::LayoutList { sges } => fits(layout.replace(Layout::list(sges)).is_none())?,
            Op::LayoutInterleaved { repeat, parts } => {
                fits(layout.replace(Layout::interleaved(*repeat, parts)).is_none())?;
            }
            Op::MrList { access: bits, sges, .. } => {
                (*access, *layout) = (Some(AccessFlags::from_bits_retain(*bits)), Some(Layout::list(sges)));
            }
            Op::MrInterleaved { access: bits, repeat, parts, .. } => {
                *access = Some(AccessFlags::from_bits_retain(*bits));
                *layout = Some(Layout::interleaved(*repeat, parts));
            }
            Op::Signature { memory, wire, flags, check_mask, copy_mask } => {
                fits(*flags <= 1)?;
                let read = |domain: &Option<Domain>| match domain {
                    None => Some(None),
                    Some(domain) => domain.read().map(Some),
                };
                let block = SignatureBlock {
                    memory: read(memory)?,
                    wire: read(wire)?,
                    check_mask: *check_mask,
                    copy_mask: (*flags == 1).then_some(*copy_mask),
                };
                fits(signature.replace(block).is_none())?;
            }
            _ => {}
        }
    }
    (missing == 0).then_some(all)
}

impl Domain {
    fn read(&self) -> Option<SignatureDomain> {
        let sizes = [BlockSize::B512, BlockSize::B520, BlockSize::B4048, BlockSize::B4096, BlockSize::B4160];
        let block = *sizes.get(usize::from(self.block))?;
        let seed = |value: u64, ones: u64| match value {
            0 => Some(Seed::Zeros),
            value if value == ones => Some(Seed::Ones),
            _ => None,
        };
        let kind = match self.kind {
            Kind::T10dif { bg_type, bg, app_tag, ref_tag, flags } if flags < 8 => {
                SignatureKind::T10Dif(T10Dif {
                    guard: *[Guard::Crc, Guard::Checksum].get(bg_type as usize)?,
                    seed: seed(bg.into(), 0xffff)?,
                    app_tag,
                    ref_tag,
                    increments: flags & 1 != 0,
                    escape: match flags {
                        4.. => T10Escape::AppAndRefTag,
                        2.. => T10Escape::AppTag,
                        _ => T10Escape::Never,
                    },
                })
            }
            Kind::T10dif { .. } => return None,
            Kind::Crc { crc, seed: value } => {
                let kinds = [
                    (CrcKind::Crc32, u32::MAX.into()),
                    (CrcKind::Crc32c, u32::MAX.into()),
                    (CrcKind::Crc64Xp10, u64::MAX),
                ];
                let (kind, ones) = *kinds.get(crc as usize)?;
                SignatureKind::Crc(kind, seed(value.0, ones)?)
            }
        };
        Some(SignatureDomain { kind, block })
    }
}

/// What differs from libmlx5 by the input of a work request or the flags of a key, and why.
const RULES: &[(&str, &str)] = &[
    ("flags", "the tag of a key is its own: the flag UPDATE_TAG is refused"),
    (
        "empty-part",
        "a part without bytes is left out: in the list it would mean 2^31 bytes (PRM, as of a data segment)",
    ),
    ("long-part", "a part has at most 2^31 bytes; libmlx5 writes the low 32 bits of more"),
    ("long-stride", "a part and its gap have at most 65,535 bytes; libmlx5 writes the low 16 bits of more"),
    (
        "full",
        "an interleaved layout needs an entry for itself; libmlx5 writes one entry more than the key has",
    ),
    ("copy-mask", "bytes are copied between two domains; libmlx5 ignores the mask if there is one"),
];

/// The rule of a work request.
fn rule(wr: &Wr, key: &Key) -> Option<&'static str> {
    let Wr::Change { layout, signature, .. } = wr else { return None };
    let masked = |block: &SignatureBlock| block.copy_mask.is_some() && block.wire.is_none();
    match layout {
        Some(Layout::List(parts)) if parts.iter().any(|part| part.length > MAX_PART) => Some("long-part"),
        Some(Layout::List(parts)) if parts.iter().any(|part| part.length == 0) => Some("empty-part"),
        Some(Layout::Interleaved(_, parts))
            if parts.iter().any(|part| part.bytes_count.saturating_add(part.bytes_skip) > 0xffff) =>
        {
            Some("long-stride")
        }
        Some(Layout::Interleaved(_, parts)) if Some(parts.len() as u32) == key.entries => Some("full"),
        _ if signature.as_ref().is_some_and(masked) => Some("copy-mask"),
        _ => None,
    }
}

/// Bytes of the fields of a key in its WQE, which no list changes but for their length.
const FIELDS: core::ops::Range<usize> = 64..128;

/// What a case was good for.
#[derive(Debug, Default)]
struct Played {
    /// The rules that applied.
    rules: Vec<&'static str>,
    sessions: usize,
    wqes: usize,
}

fn create_key(rig: &Rig, want: &Key, played: &mut Played) -> Result<Option<Mkey>> {
    let options = MkeyOptions {
        max_entries: want.max_entries,
        signature: want.flags & BLOCK_SIGNATURE != 0,
        remote_invalidate: want.flags & REMOTE_INVALIDATE != 0,
    };
    if want.flags & UPDATE_TAG != 0 {
        played.rules.push("flags");
        return Ok(None);
    }
    // Without a flag, C's call fails before it asks for the key.
    if want.flags == 0 {
        ensure!(want.errno == 95, "errno {}", want.errno);
        return Ok(None);
    }
    ensure!(want.errno == 0, "errno {}", want.errno);
    let before = rig.kernel.made().commands.len();
    let mkey = rig.driver.create_mkey(&rig.pd, options)?;
    let commands = rig.kernel.made().commands.split_off(before);
    ensure!(commands.len() == want.commands.len(), "{} commands", commands.len());
    for (n, (want, got)) in want.commands.iter().zip(&commands).enumerate() {
        compare_bytes(&format!("command {n}"), want, got)?;
    }
    ensure!(Some(mkey.lkey()) == want.lkey.map(Num::u32), "key {:#x}", mkey.lkey());
    ensure!(Some(mkey.max_entries()) == want.entries, "{} entries", mkey.max_entries());
    Ok(Some(mkey))
}

/// Posts the work requests of a session.
fn post(send: &Send, requests: &[(Head, Wr)], keys: &[Option<Mkey>]) -> Result<(), PostError> {
    // SAFETY: one thread uses the queue, no device accesses the memory that keys name, and no other address is one.
    let mut session = played!(Session::new(QpEx::new(send)));
    session.start();
    for (head, wr) in requests {
        session.sticky(head.wr_id, head.flags);
        match wr {
            Wr::Write { mkey, rkey, length } => {
                let lkey = keys[*mkey].as_ref().map_or(0, Mkey::lkey);
                session.op(Verb::Write(RemoteAddr { addr: 0x1000, rkey: *rkey }));
                session.data(Data::Sges(&[Sge { addr: 0, length: *length, lkey }]));
            }
            Wr::Change { mkey, access, layout, signature, resets } => {
                let config = MkeyConfig {
                    access: *access,
                    layout: layout.as_ref().map(Layout::borrow),
                    signature: *signature,
                    reset_signature: *resets,
                    tag: None,
                };
                let queue = played!(send.entered());
                match &keys[*mkey] {
                    Some(mkey) => played!(queue.wr_mkey_configure(*head, mkey, &config)),
                    None => queue.wr_latch(PostError::InvalidArgument),
                }
            }
        }
    }
    session.complete()
}

fn play(case: &Case, trace: &Arc<Trace>) -> Result<Played> {
    let mut played = Played::default();
    let mut rig = Rig::open(CTX, 64, trace)?;
    let spec = QpSpec {
        qp_type: QpType::Rc,
        cap: QpCap::new(case.qp.wr, 1).sge(1, 1).inline(case.qp.inline),
        sq_sig_all: case.qp.sig_all != 0,
        max_tso_header: 0,
        send_ops_flags: Some((SendOpsFlags::RDMA_WRITE | SendOpsFlags::LOCAL_INV).bits()),
        thread_domain: false,
    };
    let options = QpOptions { mkeys: MkeyOps::all(), ..QpOptions::default() };
    rig.create_qp_with(&spec, false, &options).context("create_qp")?;
    let (cap, made) = (rig.qps[0].cap, rig.qps[0].request);
    let (got, want) = ((cap.max_send_wr, cap.max_inline_data, made.sq_wqe_count), &case.qp);
    ensure!(got == (want.max_wr, want.max_inline, want.sq_wqe_cnt), "sizes {got:?}");
    let mut keys = Vec::new();
    for (n, key) in case.mkeys.iter().enumerate() {
        keys.push(create_key(&rig, key, &mut played).with_context(|| format!("key {n}"))?);
    }
    rig.bring_up(0, QpState::RTS)?;
    for (n, step) in case.steps.iter().enumerate() {
        let Some(requests) = requests(&step.ops) else { break };
        let mut rules = requests.iter().filter_map(|(_, wr)| match wr {
            Wr::Change { mkey, .. } | Wr::Write { mkey, .. } => rule(wr, &case.mkeys[*mkey]),
        });
        let rule = rules.next_back();
        let record = rig.qps[0].records().1;
        let send = rig.qps[0].send.as_ref().context("a send queue")?;
        let (result, written) = watch(record, || post(send, &requests, &keys));
        let ret = result.map_or_else(|error| SendQueue::errno(error).raw(), |()| 0);
        let place = || format!("session {n}");
        played.sessions += 1;
        if let Some(rule) = rule {
            played.rules.push(rule);
            let is_same = rule == "empty-part";
            ensure!((ret == 0) == is_same && step.ret == 0, "{rule}: returned {ret}, not {}", step.ret);
            if let (true, Some(want)) = (is_same, step.wqes.first()) {
                let fields = Pattern(want.hex.0[FIELDS].to_vec());
                compare_bytes(rule, &fields, &rig.qps[0].wqe(want.idx, FIELDS.end)[FIELDS])
                    .with_context(place)?;
            }
            break;
        }
        ensure!(ret == step.ret, "{}: returned {ret} ({result:?}), not {}", place(), step.ret);
        let end = (step.start != step.end).then_some(step.end);
        ensure!(written == end, "{}: doorbell record {written:?}, not {end:?}", place());
        for wqe in &step.wqes {
            let got = rig.qps[0].wqe(wqe.idx, wqe.hex.len());
            compare_bytes(&format!("WQE {}", wqe.idx), &wqe.hex, &got).with_context(place)?;
            played.wqes += 1;
        }
    }
    for mkey in keys.into_iter().flatten() {
        mkey.destroy().map_err(|(_, error)| error).context("destroy")?;
    }
    Ok(played)
}

/// Runs the cases whose name has one of the words. Returns how many ran and how many differ.
pub(crate) fn run(
    folder: &Path,
    words: &[String],
    shown: usize,
    trace: &Arc<Trace>,
) -> Result<(usize, usize)> {
    let path = folder.join("mlx5-mkeys.jsonl.gz");
    let (mut ran, mut failed, mut sessions, mut wqes) = (0, 0, 0, 0);
    let mut used = BTreeMap::<&str, usize>::new();
    // The first line is a header.
    for line in text(&path)?.lines().skip(1) {
        let case: Case = serde_json::from_str(line).with_context(|| path.display().to_string())?;
        let name = format!("vectors::mkeys/{}", case.id);
        if !words.is_empty() && !words.iter().any(|word| name.contains(word.as_str())) {
            continue;
        }
        ran += 1;
        match catch_unwind(AssertUnwindSafe(|| play(&case, trace))) {
            Ok(Ok(played)) => {
                (sessions, wqes) = (sessions + played.sessions, wqes + played.wqes);
                played.rules.into_iter().for_each(|rule| *used.entry(rule).or_default() += 1);
            }
            wrong => {
                failed += 1;
                if failed <= shown {
                    let why = wrong.map_or("panic".to_owned(), |played| {
                        played.map_or_else(|error| format!("{error:#}"), |_| String::new())
                    });
                    println!("{name} ({}): {why}", case.name);
                }
            }
        }
    }
    println!("mkeys: {ran} cases, {sessions} sessions, {wqes} WQEs, rules {used:?}");
    for (name, why) in RULES {
        // Only all cases must need all rules.
        if words.is_empty() && !used.contains_key(name) {
            failed += 1;
            println!("mkeys: no case needs the rule {name} ({why})");
        }
    }
    Ok((ran, failed))
}
