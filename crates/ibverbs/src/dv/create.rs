// SPDX-License-Identifier: MIT OR Apache-2.0
//! CQs and QPs with mlx5's own options, DC initiators and targets (mlx5dv_create_cq(3), mlx5dv_create_qp(3)).
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects and structs.

use crate::abi::Zeroed as _;
use crate::abi::attr::ibv_cq_init_attr_ex;
use crate::abi::context::ibv_context;
use crate::abi::mlx5dv::{mlx5dv_cq_init_attr, mlx5dv_qp_init_attr};
use crate::abi::object::ibv_cq_ex;
use crate::abi::qp::{ibv_qp, ibv_qp_ex, ibv_qp_init_attr_ex};
use crate::arg::Arg;
use crate::errno::{Errno, Outcome, ensure, pointer};
use crate::export::qp as export;
use crate::object::qp::{self, Parents, mask};
use crate::object::{cq, srq};
use crate::verbs::Open;
use uverbs_core::attr::{CqInitAttr, QpInitAttr, QpType};
use uverbs_core::control::CompChannelHandle;
use uverbs_core::provider::{DctCreate, QpCreate, RssQpCreate};
use uverbs_mlx5::Mlx5;
use uverbs_mlx5::dv::{CqOptions, CqeCompression, DciStreams, MkeyOps, QpFlags, QpOptions};

/// `enum mlx5dv_cq_init_attr_mask`. This library does not request padded entries.
mod cq_mask {
    pub(super) const COMPRESSED_CQE: u64 = 1 << 0;
    pub(super) const CQE_SIZE: u64 = 1 << 2;
}

/// # Safety
/// As in mlx5dv_create_cq(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_create_cq(
    context: Arg<'_, ibv_context>,
    attr: Option<&ibv_cq_init_attr_ex>,
    mlx5_attr: Option<&mlx5dv_cq_init_attr>,
) -> *mut ibv_cq_ex {
    pointer(|| {
        let open = super::of(context)?;
        let attr = attr.ok_or(Errno::EINVAL)?;
        // SAFETY: the objects in `attr` are NULL or exist (contract of the man page).
        let request = unsafe { cq::extended_request(context, attr) }?;
        let mlx5_attr = mlx5_attr.ok_or(Errno::EINVAL)?;
        let has = |bit| mlx5_attr.comp_mask & bit != 0;
        if has(!(cq_mask::COMPRESSED_CQE | cq_mask::CQE_SIZE)) {
            return Err(Errno::EOPNOTSUPP);
        }
        let compression = match has(cq_mask::COMPRESSED_CQE) {
            true => Some(compression(open, mlx5_attr.cqe_comp_res_format)?),
            false => None,
        };
        let allocator = request.allocator.clone();
        let options = CqOptions {
            cqe_size: has(cq_mask::CQE_SIZE).then_some(mlx5_attr.cqe_size.into()),
            allocator: allocator.as_ref(),
            compression,
        };
        let make = |attr: &CqInitAttr, channel: Option<&CompChannelHandle>, number: u64| {
            open.driver.create_cq_with(attr, options, channel, number)
        };
        Ok(cq::create_with(open, context, &request, make)?.cast())
    })
}

/// The compression with one of the formats that the device has. As in libmlx5, others are invalid.
fn compression(open: &Open<Mlx5>, format: u8) -> Outcome<CqeCompression> {
    let caps = open.driver.device_info()?.private.cqe_comp_caps;
    ensure(caps.max_num != 0 && caps.supported_format & u32::from(format) != 0)?;
    CqeCompression::of_bit(format).ok_or(Errno::EINVAL)
}

/// `enum mlx5dv_qp_init_attr_mask`
mod qp_mask {
    pub(super) const CREATE_FLAGS: u64 = 1 << 0;
    pub(super) const DC: u64 = 1 << 1;
    pub(super) const SEND_OPS_FLAGS: u64 = 1 << 2;
    pub(super) const DCI_STREAMS: u64 = 1 << 3;
    pub(super) const ALL: u64 = CREATE_FLAGS | DC | SEND_OPS_FLAGS | DCI_STREAMS;
}

/// `enum mlx5dv_qp_create_flags`
mod create_flag {
    pub(super) const TUNNEL_OFFLOADS: u32 = 1 << 0;
    pub(super) const TIR_ALLOW_SELF_LOOPBACK_UC: u32 = 1 << 1;
    pub(super) const TIR_ALLOW_SELF_LOOPBACK_MC: u32 = 1 << 2;
    pub(super) const DISABLE_SCATTER_TO_CQE: u32 = 1 << 3;
    pub(super) const ALLOW_SCATTER_TO_CQE: u32 = 1 << 4;
    pub(super) const PACKET_BASED_CREDIT_MODE: u32 = 1 << 5;
    pub(super) const SIG_PIPELINING: u32 = 1 << 6;
    pub(super) const OOO_DP: u32 = 1 << 7;
}

/// `enum mlx5dv_qp_create_send_ops_flags`, of which copies by the device are missing: those about indirect keys, and
/// `MLX5DV_QP_EX_WITH_RAW_WQE`.
const WITH_MKEYS: u64 = MkeyOps::all().bits() as u64;
const WITH_RAW_WQE: u64 = 1 << 3;

/// `enum mlx5dv_dc_type`
const DCT: u32 = 1;
const DCI: u32 = 2;

/// # Safety
/// As in mlx5dv_create_qp(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_create_qp(
    context: Arg<'_, ibv_context>,
    attr: Option<&mut ibv_qp_init_attr_ex>,
    mlx5_attr: Option<&mlx5dv_qp_init_attr>,
) -> *mut ibv_qp {
    pointer(|| {
        let open = super::of(context)?;
        let attr = attr.ok_or(Errno::EINVAL)?;
        let mut copy = *attr;
        // SAFETY: the objects in `copy` are NULL or exist (contract of the man page).
        let parents = unsafe { export::parents(context, &mut copy) }?;
        let special = mlx5_attr.map(special).transpose()?.unwrap_or_default();
        let made = match special.kind {
            // SAFETY: the key of the hash is NULL or valid (contract of the man page).
            Kind::Queue => unsafe { queue(open, context, &mut copy, &parents, special) },
            Kind::Initiator => initiator(open, context, &mut copy, parents, special),
            Kind::Target(key) => target(open, context, &copy, &parents, special, key),
        }?;
        attr.cap = copy.cap;
        Ok(made)
    })
}

/// The attributes that only this function has.
#[derive(Clone, Copy, Default)]
struct Special {
    kind: Kind,
    without_data_in_completions: bool,
    flags: QpFlags,
    raw_wqes: bool,
    mkeys: MkeyOps,
    signature_pipelining: bool,
    dci_streams: Option<DciStreams>,
    out_of_order: bool,
}

#[derive(Clone, Copy, Default)]
enum Kind {
    /// A queue pair of a type that ibv_create_qp(3) has, too.
    #[default]
    Queue,
    Initiator,
    /// With its access key.
    Target(u64),
}

fn special(attr: &mlx5dv_qp_init_attr) -> Outcome<Special> {
    use create_flag as flag;
    const FLAGS: [(u32, QpFlags); 5] = [
        (flag::TUNNEL_OFFLOADS, QpFlags::TUNNEL_OFFLOADS),
        (flag::TIR_ALLOW_SELF_LOOPBACK_UC, QpFlags::SELF_LOOPBACK_UNICAST),
        (flag::TIR_ALLOW_SELF_LOOPBACK_MC, QpFlags::SELF_LOOPBACK_MULTICAST),
        (flag::ALLOW_SCATTER_TO_CQE, QpFlags::REQUESTER_DATA_IN_COMPLETIONS),
        (flag::PACKET_BASED_CREDIT_MODE, QpFlags::PACKET_BASED_CREDITS),
    ];
    let has = |bit| attr.comp_mask & bit != 0;
    let flags = if has(qp_mask::CREATE_FLAGS) { attr.create_flags } else { 0 };
    let ops = if has(qp_mask::SEND_OPS_FLAGS) { attr.send_ops_flags } else { 0 };
    let others = flag::DISABLE_SCATTER_TO_CQE | flag::SIG_PIPELINING | flag::OOO_DP;
    let known = FLAGS.iter().fold(others, |all, (bit, _)| all | bit);
    if has(!qp_mask::ALL) || flags & !known != 0 || ops & !(WITH_RAW_WQE | WITH_MKEYS) != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    const BOTH: u32 = flag::DISABLE_SCATTER_TO_CQE | flag::ALLOW_SCATTER_TO_CQE;
    ensure(flags & BOTH != BOTH)?;
    let kind = match attr.dc_init_attr.dc_type {
        _ if !has(qp_mask::DC) => Kind::Queue,
        DCI => Kind::Initiator,
        DCT => Kind::Target(attr.dc_init_attr.dct_access_key),
        _ => return Err(Errno::EINVAL),
    };
    // The union has the streams in the first two bytes of the key. Without an initiator libmlx5 ignores them.
    let [log_num_concurrent, log_num_errored, ..] = attr.dc_init_attr.dct_access_key.to_ne_bytes();
    let has_streams = has(qp_mask::DCI_STREAMS) && matches!(kind, Kind::Initiator);
    Ok(Special {
        kind,
        dci_streams: has_streams.then_some(DciStreams { log_num_concurrent, log_num_errored }),
        without_data_in_completions: flags & flag::DISABLE_SCATTER_TO_CQE != 0,
        flags: FLAGS.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, ours)| *ours).collect(),
        raw_wqes: ops & WITH_RAW_WQE != 0,
        mkeys: MkeyOps::from_bits_truncate(ops as u8),
        signature_pipelining: flags & flag::SIG_PIPELINING != 0,
        out_of_order: flags & flag::OOO_DP != 0,
    })
}

/// # Safety
/// The key of the hash in `attr` is NULL or valid for reads.
unsafe fn queue(
    open: &Open<Mlx5>,
    context: Arg<'_, ibv_context>,
    attr: &mut ibv_qp_init_attr_ex,
    parents: &Parents<'_>,
    special: Special,
) -> Outcome<*mut ibv_qp> {
    if attr.comp_mask & (mask::IND_TABLE | mask::RX_HASH) != 0 {
        if special.out_of_order {
            return Err(Errno::EOPNOTSUPP);
        }
        let make = |create: &RssQpCreate<'_>| open.driver.create_rss_qp_with(create, special.flags);
        // SAFETY: the contract of this function.
        return unsafe { qp::create_rss_with(open, context, attr, parents, make) };
    }
    let init = qp::init_attr(attr)?;
    // Such a queue pair is a DC initiator or target.
    ensure(init.qp_type != QpType::Driver)?;
    create_by(open, context, attr, parents, &init, special)
}

fn create_by(
    open: &Open<Mlx5>,
    context: Arg<'_, ibv_context>,
    attr: &mut ibv_qp_init_attr_ex,
    parents: &Parents<'_>,
    init: &QpInitAttr,
    special: Special,
) -> Outcome<*mut ibv_qp> {
    let allocator = parents.pd.as_ref().and_then(|pd| pd.own().allocator());
    let Special { raw_wqes, mkeys, signature_pipelining, flags, out_of_order, dci_streams, .. } = special;
    let allocator = allocator.as_ref();
    let options =
        QpOptions { allocator, raw_wqes, mkeys, signature_pipelining, flags, dci_streams, out_of_order };
    let make = |create: &QpCreate<'_, Mlx5>| {
        let data_in_completions = create.data_in_completions && !special.without_data_in_completions;
        // SAFETY: data in completions are copied to addresses of this process, as in C (the contract of ibv_post_send(3)).
        unsafe { open.driver.create_qp_with(&QpCreate { data_in_completions, ..*create }, &options) }
    };
    qp::create_with(open, context, attr, parents, init, make)
}

fn initiator(
    open: &Open<Mlx5>,
    context: Arg<'_, ibv_context>,
    attr: &mut ibv_qp_init_attr_ex,
    mut parents: Parents<'_>,
    special: Special,
) -> Outcome<*mut ibv_qp> {
    ensure(attr.qp_type == QpType::Driver as u32 && parents.pd.is_some() && parents.send_cq.is_some())?;
    // An initiator has no receives.
    (attr.cap.max_recv_wr, attr.cap.max_recv_sge, parents.srq) = (0, 0, None);
    if parents.recv_cq.is_none() {
        // SAFETY: the queue exists, and its context is not closed during this call (`parents`).
        parents.recv_cq = unsafe { Arg::new(attr.send_cq) }.enter_in(context.pointer())?;
    }
    let init = qp::init_attr(attr)?;
    create_by(open, context, attr, &parents, &init, special)
}

fn target(
    open: &Open<Mlx5>,
    context: Arg<'_, ibv_context>,
    attr: &ibv_qp_init_attr_ex,
    parents: &Parents<'_>,
    special: Special,
    dc_key: u64,
) -> Outcome<*mut ibv_qp> {
    let pd = parents.pd()?;
    ensure(attr.qp_type == QpType::Driver as u32)?;
    // As in libmlx5, a target has no other options. Its short data are never in completions.
    ensure(attr.comp_mask == mask::PD && special.flags.is_empty() && !special.raw_wqes)?;
    ensure(special.mkeys.is_empty() && !special.signature_pipelining)?;
    let here = context.open()?;
    let cq = cq::of(open, parents.recv_cq.as_ref().ok_or(Errno::EINVAL)?)?;
    let srq = srq::of(open, parents.srq.as_ref().ok_or(Errno::EINVAL)?)?;
    let number = here.new_number()?;
    let create = DctCreate::<Mlx5> {
        pd: pd.handle(),
        cq,
        srq,
        dc_key,
        data_in_completions: false,
        user_handle: number,
    };
    // SAFETY: data in completions are not requested.
    let object = unsafe { open.driver.create_dct_with(&create, special.out_of_order) }.inspect_err(|_| {
        here.forget(number);
    })?;
    let mut public = ibv_qp_ex::zeroed();
    let base = &mut public.qp_base;
    base.qp_context = attr.qp_context;
    (base.pd, base.send_cq, base.recv_cq, base.srq) = (attr.pd, attr.send_cq, attr.recv_cq, attr.srq);
    base.qp_type = attr.qp_type;
    qp::finish(open, context.pointer(), here, public, qp::private_without_queues(object, number))
}
