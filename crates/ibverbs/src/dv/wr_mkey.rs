// SPDX-License-Identifier: MIT OR Apache-2.0
//! Work requests that configure indirect keys: a builder and its setters (mlx5dv_wr_mkey_configure(3)), or both in one
//! (mlx5dv_wr_post(3)).
//!
//! The arguments are kept until the last setter, whose call writes the work request.
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects and structs.

use super::mkey;
use super::qp_ex::{pending, with_queue};
use crate::abi::mlx5dv::{
    mlx5dv_mkey, mlx5dv_mkey_conf_attr, mlx5dv_mr_interleaved, mlx5dv_qp_ex, mlx5dv_sig_block_attr,
    mlx5dv_sig_block_domain, mlx5dv_sig_crc, mlx5dv_sig_t10dif,
};
use crate::abi::qp::{ibv_qp, ibv_qp_ex};
use core::slice;
use uverbs_core::attr::AccessFlags;
use uverbs_core::provider::{Head, PostError, WrBuilder as _};
use uverbs_core::wr::{SendFlags, Sge};
use uverbs_mlx5::SendQueue;
use uverbs_mlx5::dv::{
    BlockSize, CrcKind, Guard, MkeyConfig, MkeyLayout, MkeyPart, Seed, SignatureBlock, SignatureDomain,
    SignatureKind, T10Dif, T10Escape,
};

/// A work request whose setters are not all called.
#[derive(Debug)]
pub(super) struct Pending {
    head: Head,
    mkey: *mut mlx5dv_mkey,
    /// The setters that are missing.
    missing: u8,
    resets_signature: bool,
    access: Option<AccessFlags>,
    layout: Option<Layout>,
    signature: Option<SignatureBlock>,
}

#[derive(Debug)]
enum Layout {
    List(Vec<Sge>),
    Interleaved(u32, Vec<MkeyPart>),
}

impl Layout {
    fn borrow(&self) -> MkeyLayout<'_> {
        match self {
            Self::List(parts) => MkeyLayout::List(parts),
            Self::Interleaved(repeat, parts) => MkeyLayout::Interleaved { repeat: *repeat, parts },
        }
    }
}

/// `MLX5DV_MKEY_CONF_FLAG_RESET_SIG_ATTR`
const RESET_SIG_ATTR: u32 = 1;

/// The attributes of a work request in a session.
///
/// # Safety
/// The QP exists, and no other thread accesses the fields.
unsafe fn head(qp: *mut ibv_qp) -> Head {
    let qp = qp.cast::<ibv_qp_ex>();
    // SAFETY: the QP exists (contract of this function); every QP of this library begins with an `ibv_qp_ex`.
    let wr_id = unsafe { (*qp).wr_id };
    // SAFETY: as for the field before.
    let flags = unsafe { (*qp).wr_flags };
    Head { wr_id, flags: SendFlags::from_bits_retain(flags) }
}

/// Writes a work request.
///
/// # Safety
/// The key exists, and the program is responsible for the memory that it gives access to.
unsafe fn write(queue: &mut SendQueue, pending: &Pending) {
    let config = MkeyConfig {
        access: pending.access,
        layout: pending.layout.as_ref().map(Layout::borrow),
        signature: pending.signature,
        reset_signature: pending.resets_signature,
        tag: None,
    };
    // SAFETY: the key exists (contract of this function).
    match unsafe { mkey::of(pending.mkey) } {
        // SAFETY: the contract of this function.
        Ok(mkey) => unsafe { queue.wr_mkey_configure(pending.head, mkey, &config) },
        Err(_) => queue.wr_latch(PostError::InvalidArgument),
    }
}

/// Begins a work request. As in libmlx5, the list must be in the WQE.
fn begin(head: Head, mkey: *mut mlx5dv_mkey, missing: u8) -> Result<Pending, PostError> {
    if !head.flags.contains(SendFlags::INLINE) {
        return Err(PostError::Unsupported);
    }
    if mkey.is_null() {
        return Err(PostError::InvalidArgument);
    }
    Ok(Pending { head, mkey, missing, resets_signature: false, access: None, layout: None, signature: None })
}

fn access(flags: u32) -> AccessFlags {
    AccessFlags::from_bits_retain(flags)
}

/// The elements of an array of a program.
///
/// # Safety
/// `start` is valid for reads of `count` elements, or `count` is 0.
unsafe fn array<T: Copy>(start: *const T, count: u16) -> Result<Vec<T>, PostError> {
    match count {
        0 => Ok(Vec::new()),
        _ if start.is_null() => Err(PostError::InvalidArgument),
        // SAFETY: the contract of this function; a program's array is aligned.
        _ => Ok(unsafe { slice::from_raw_parts(start, count.into()) }.to_vec()),
    }
}

/// # Safety
/// As for [`array`].
unsafe fn list(sge: *const Sge, count: u16) -> Result<Layout, PostError> {
    // SAFETY: the contract of this function.
    unsafe { array(sge, count) }.map(Layout::List)
}

/// # Safety
/// As for [`array`].
unsafe fn interleaved(
    repeat: u32,
    data: *const mlx5dv_mr_interleaved,
    count: u16,
) -> Result<Layout, PostError> {
    // SAFETY: the contract of this function.
    let parts = unsafe { array(data, count) }?;
    let part = |part: &mlx5dv_mr_interleaved| MkeyPart {
        addr: part.addr,
        bytes_count: part.bytes_count,
        bytes_skip: part.bytes_skip,
        lkey: part.lkey,
    };
    Ok(Layout::Interleaved(repeat, parts.iter().map(part).collect()))
}

/// Writes a work request that is complete.
///
/// # Safety
/// As in mlx5dv_wr_post(3): the QP and the key exist, and this thread has the QP's session.
unsafe fn post(
    mqp: *mut mlx5dv_qp_ex,
    mkey: *mut mlx5dv_mkey,
    access_flags: u32,
    layout: Result<Layout, PostError>,
) {
    let post = |qp, queue: &mut SendQueue| {
        // SAFETY: the QP exists, and this thread has its session (contract of this function).
        let pending = begin(unsafe { head(qp) }, mkey, 0).and_then(|pending| {
            Ok(Pending { access: Some(access(access_flags)), layout: Some(layout?), ..pending })
        });
        match pending {
            // SAFETY: the program is responsible for the memory (contract of this function).
            Ok(pending) => unsafe { write(queue, &pending) },
            Err(error) => queue.wr_latch(error),
        }
    };
    // SAFETY: the contract of this function is that of `with_queue`.
    unsafe { with_queue(mqp, post) };
}

/// # Safety
/// As in mlx5dv_wr_post(3).
pub(super) unsafe extern "C" fn wr_mr_list(
    mqp: *mut mlx5dv_qp_ex,
    mkey: *mut mlx5dv_mkey,
    access_flags: u32,
    num_sges: u16,
    sge: *mut Sge,
) {
    // SAFETY: valid for so many entries (contract of the man page).
    let layout = unsafe { list(sge, num_sges) };
    // SAFETY: the contract of the man page.
    unsafe { post(mqp, mkey, access_flags, layout) };
}

/// # Safety
/// As in mlx5dv_wr_post(3).
pub(super) unsafe extern "C" fn wr_mr_interleaved(
    mqp: *mut mlx5dv_qp_ex,
    mkey: *mut mlx5dv_mkey,
    access_flags: u32,
    repeat_count: u32,
    num_interleaved: u16,
    data: *mut mlx5dv_mr_interleaved,
) {
    // SAFETY: valid for so many entries (contract of the man page).
    let layout = unsafe { interleaved(repeat_count, data, num_interleaved) };
    // SAFETY: the contract of the man page.
    unsafe { post(mqp, mkey, access_flags, layout) };
}

/// # Safety
/// As in mlx5dv_wr_mkey_configure(3).
pub(super) unsafe extern "C" fn wr_mkey_configure(
    mqp: *mut mlx5dv_qp_ex,
    mkey: *mut mlx5dv_mkey,
    num_setters: u8,
    attr: *mut mlx5dv_mkey_conf_attr,
) {
    let post = |qp, queue: &mut SendQueue| {
        // SAFETY: NULL or valid for reads (contract of the man page).
        let Some(attr) = (unsafe { attr.as_ref() }) else {
            return queue.wr_latch(PostError::InvalidArgument);
        };
        if attr.conf_flags & !RESET_SIG_ATTR != 0 || attr.comp_mask != 0 {
            return queue.wr_latch(PostError::Unsupported);
        }
        // SAFETY: the QP exists, and this thread has its session (contract of the man page).
        let begun = match begin(unsafe { head(qp) }, mkey, num_setters) {
            Ok(begun) => Pending { resets_signature: attr.conf_flags != 0, ..begun },
            Err(error) => return queue.wr_latch(error),
        };
        if num_setters == 0 {
            // SAFETY: the program is responsible for the memory (contract of the man page).
            return unsafe { write(queue, &begun) };
        }
        if queue.wr_mkey_begin() {
            // SAFETY: `mqp` is from this library (contract of the man page).
            match unsafe { pending(mqp) } {
                Some(mut place) => *place = Some(begun),
                None => queue.wr_latch(PostError::InvalidArgument),
            }
        }
    };
    // SAFETY: the contract of the man page is that of `with_queue`.
    unsafe { with_queue(mqp, post) };
}

/// Sets a part of the pending work request, and writes it if that was the last setter. `set` returns whether the part was not set
/// before.
///
/// # Safety
/// As in mlx5dv_wr_mkey_configure(3).
unsafe fn set(mqp: *mut mlx5dv_qp_ex, set: impl FnOnce(&mut Pending) -> Result<bool, PostError>) {
    let post = |_, queue: &mut SendQueue| {
        if !queue.wr_mkey_is_open() {
            return queue.wr_latch(PostError::OrphanSetter);
        }
        // SAFETY: `mqp` is from this library (contract of this function).
        let Some(mut place) = (unsafe { pending(mqp) }) else {
            return queue.wr_latch(PostError::InvalidArgument);
        };
        let Some(found) = &mut *place else { return queue.wr_latch(PostError::OrphanSetter) };
        match set(found) {
            Ok(true) => {}
            Ok(false) => return queue.wr_latch(PostError::DoubledSetter),
            Err(error) => return queue.wr_latch(error),
        }
        found.missing -= 1;
        if found.missing == 0
            && let Some(complete) = place.take()
        {
            queue.wr_mkey_ready();
            // SAFETY: the program is responsible for the memory (contract of this function).
            unsafe { write(queue, &complete) };
        }
    };
    // SAFETY: the contract of this function is that of `with_queue`.
    unsafe { with_queue(mqp, post) };
}

/// # Safety
/// As in mlx5dv_wr_mkey_configure(3).
pub(super) unsafe extern "C" fn wr_set_mkey_access_flags(mqp: *mut mlx5dv_qp_ex, access_flags: u32) {
    // SAFETY: the contract of the man page.
    unsafe { set(mqp, |pending| Ok(pending.access.replace(access(access_flags)).is_none())) };
}

/// # Safety
/// As in mlx5dv_wr_mkey_configure(3).
pub(super) unsafe extern "C" fn wr_set_mkey_layout_list(
    mqp: *mut mlx5dv_qp_ex,
    num_sges: u16,
    sge: *const Sge,
) {
    // SAFETY: valid for so many entries (contract of the man page).
    let layout = unsafe { list(sge, num_sges) };
    // SAFETY: the contract of the man page.
    unsafe { set(mqp, |pending| Ok(pending.layout.replace(layout?).is_none())) };
}

/// # Safety
/// As in mlx5dv_wr_mkey_configure(3).
pub(super) unsafe extern "C" fn wr_set_mkey_layout_interleaved(
    mqp: *mut mlx5dv_qp_ex,
    repeat_count: u32,
    num_interleaved: u16,
    data: *const mlx5dv_mr_interleaved,
) {
    // SAFETY: valid for so many entries (contract of the man page).
    let layout = unsafe { interleaved(repeat_count, data, num_interleaved) };
    // SAFETY: the contract of the man page.
    unsafe { set(mqp, |pending| Ok(pending.layout.replace(layout?).is_none())) };
}

/// # Safety
/// As in mlx5dv_wr_set_mkey_sig_block(3).
pub(super) unsafe extern "C" fn wr_set_mkey_sig_block(
    mqp: *mut mlx5dv_qp_ex,
    attr: *const mlx5dv_sig_block_attr,
) {
    // SAFETY: NULL or valid, with all that it points to (contract of the man page).
    let block = unsafe { signature(attr) }.ok_or(PostError::InvalidArgument);
    // SAFETY: the contract of the man page.
    unsafe { set(mqp, |pending| Ok(pending.signature.replace(block?).is_none())) };
}

/// `MLX5DV_SIG_BLOCK_ATTR_FLAG_COPY_MASK`
const COPY_MASK: u32 = 1;

/// # Safety
/// `attr` is NULL or valid for reads, and so are the pointers in it.
unsafe fn signature(attr: *const mlx5dv_sig_block_attr) -> Option<SignatureBlock> {
    // SAFETY: the contract of this function.
    let attr = unsafe { attr.as_ref() }?;
    if attr.flags & !COPY_MASK != 0 || attr.comp_mask != 0 {
        return None;
    }
    let read = |pointer: *const mlx5dv_sig_block_domain| {
        // SAFETY: NULL or valid for reads (contract of this function).
        match unsafe { pointer.as_ref() } {
            None => Some(None),
            // SAFETY: the pointer in it is valid (contract of this function).
            Some(found) => unsafe { domain(found) }.map(Some),
        }
    };
    let (memory, wire) = (read(attr.mem), read(attr.wire));
    Some(SignatureBlock {
        memory: memory?,
        wire: wire?,
        check_mask: attr.check_mask,
        copy_mask: (attr.flags & COPY_MASK != 0).then_some(attr.copy_mask),
    })
}

/// # Safety
/// The pointer in `domain` is NULL or valid for reads of the struct that its type says.
unsafe fn domain(domain: &mlx5dv_sig_block_domain) -> Option<SignatureDomain> {
    /// `enum mlx5dv_sig_type`
    const T10DIF: u32 = 0;
    const CRC: u32 = 1;
    if domain.comp_mask != 0 {
        return None;
    }
    let block = match domain.block_size {
        0 => BlockSize::B512,
        1 => BlockSize::B520,
        2 => BlockSize::B4048,
        3 => BlockSize::B4096,
        4 => BlockSize::B4160,
        _ => return None,
    };
    let kind = match domain.sig_type {
        T10DIF => {
            // SAFETY: NULL or valid for reads of this struct (contract of this function).
            let dif = unsafe { domain.sig.cast::<mlx5dv_sig_t10dif>().as_ref() }?;
            SignatureKind::T10Dif(t10_dif(dif)?)
        }
        CRC => {
            // SAFETY: NULL or valid for reads of this struct (contract of this function).
            let crc = unsafe { domain.sig.cast::<mlx5dv_sig_crc>().as_ref() }?;
            let (kind, ones) = match crc.r#type {
                0 => (CrcKind::Crc32, u32::MAX.into()),
                1 => (CrcKind::Crc32c, u32::MAX.into()),
                2 => (CrcKind::Crc64Xp10, u64::MAX),
                _ => return None,
            };
            SignatureKind::Crc(kind, seed(crc.seed, ones)?)
        }
        _ => return None,
    };
    Some(SignatureDomain { kind, block })
}

/// A seed, which is 0 or all ones.
fn seed(value: u64, ones: u64) -> Option<Seed> {
    match value {
        0 => Some(Seed::Zeros),
        value if value == ones => Some(Seed::Ones),
        _ => None,
    }
}

fn t10_dif(dif: &mlx5dv_sig_t10dif) -> Option<T10Dif> {
    /// `enum mlx5dv_sig_t10dif_flags`
    const REF_REMAP: u16 = 1 << 0;
    const APP_ESCAPE: u16 = 1 << 1;
    const APP_REF_ESCAPE: u16 = 1 << 2;
    if dif.flags & !(REF_REMAP | APP_ESCAPE | APP_REF_ESCAPE) != 0 {
        return None;
    }
    Some(T10Dif {
        guard: match dif.bg_type {
            0 => Guard::Crc,
            1 => Guard::Checksum,
            _ => return None,
        },
        seed: seed(dif.bg.into(), 0xffff)?,
        app_tag: dif.app_tag,
        ref_tag: dif.ref_tag,
        increments: dif.flags & REF_REMAP != 0,
        escape: match dif.flags {
            flags if flags & APP_REF_ESCAPE != 0 => T10Escape::AppAndRefTag,
            flags if flags & APP_ESCAPE != 0 => T10Escape::AppTag,
            _ => T10Escape::Never,
        },
    })
}
