// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queries (efadv_query_device(3), efadv_query_ah(3), efadv_query_mr(3), efadv_get_max_sq_depth(3), efadv_get_max_rq_depth(3),
//! efadv_query_qp_wqs(3), efadv_query_cq(3)).
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to structs.

use super::{
    efadv_ah_attr, efadv_cq_attr, efadv_device_attr, efadv_mr_attr, efadv_rq_depth_attr, efadv_sq_depth_attr,
    efadv_wq_attr, end_of, of, of_object, read, write,
};
use crate::abi::context::ibv_context;
use crate::abi::object::ibv_cq;
use crate::abi::qp::ibv_qp;
use crate::arg::Arg;
use crate::context::Private;
use crate::driver_library::in_order_cap;
use crate::errno::{Errno, Outcome, ensure, negative, number};
use crate::object::{ah, cq, qp};
use crate::verbs::driver;
use core::ffi::c_int;
use core::ptr;
use uverbs_core::attr::DeviceAttr;
use uverbs_core::wr::{IbvAh, IbvMr};
use uverbs_efa::{DoorbellPlace, Efa, QueuePlace};
use uverbs_uapi::efa::{
    EFA_QUERY_DEVICE_CAPS_CQ_WITH_SGID, EFA_QUERY_DEVICE_CAPS_DATA_POLLING_128,
    EFA_QUERY_DEVICE_CAPS_RDMA_READ, EFA_QUERY_DEVICE_CAPS_RDMA_WRITE, EFA_QUERY_DEVICE_CAPS_RNR_RETRY,
    EFA_QUERY_DEVICE_CAPS_UNSOLICITED_WRITE_RECV, EFA_QUERY_MR_VALIDITY_RDMA_READ_IC_ID,
    EFA_QUERY_MR_VALIDITY_RDMA_RECV_IC_ID, EFA_QUERY_MR_VALIDITY_RECV_IC_ID,
};

/// `EFADV_DEVICE_ATTR_CAPS_*`, and the kernel's capability. CQs in memory of the program and completion counters are missing: this
/// library has neither.
const CAPS: [(u32, u32); 5] = [
    (1 << 0, EFA_QUERY_DEVICE_CAPS_RDMA_READ),
    (1 << 1, EFA_QUERY_DEVICE_CAPS_RNR_RETRY),
    (1 << 2, EFA_QUERY_DEVICE_CAPS_CQ_WITH_SGID),
    (1 << 3, EFA_QUERY_DEVICE_CAPS_RDMA_WRITE),
    (1 << 4, EFA_QUERY_DEVICE_CAPS_UNSOLICITED_WRITE_RECV),
];

/// # Safety
/// As in efadv_query_device(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_efadv_query_device(
    context: Arg<'_, ibv_context>,
    attr: *mut efadv_device_attr,
    inlen: u32,
) -> c_int {
    number(|| {
        let limits = of(context)?.driver.limits();
        let device_caps =
            CAPS.iter().filter(|(_, cap)| limits.has(*cap)).fold(0, |all, (ours, _)| all | ours);
        let found = efadv_device_attr {
            comp_mask: 0,
            max_sq_wr: limits.max_sq_wr,
            max_rq_wr: limits.max_rq_wr,
            max_sq_sge: limits.max_sq_sge,
            max_rq_sge: limits.max_rq_sge,
            inline_buf_size: limits.inline_buf_size,
            inline_buf_size_ex: limits.inline_buf_size_ex,
            device_caps,
            max_rdma_size: limits.max_rdma_size,
        };
        // SAFETY: `attr` is NULL or has `inlen` bytes (contract of the man page).
        unsafe { write(&found, attr, inlen, end_of!(efadv_device_attr, inline_buf_size_ex)) }
    })
}

/// # Safety
/// As in efadv_query_ah(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_efadv_query_ah(
    ah: Arg<'_, IbvAh>,
    attr: *mut efadv_ah_attr,
    inlen: u32,
) -> c_int {
    number(|| {
        let (open, ah) = of_object(ah)?;
        let found = efadv_ah_attr { comp_mask: 0, ahn: ah::driver(open, &ah)?.0, reserved: [0; 6] };
        // SAFETY: `attr` is NULL or has `inlen` bytes (contract of the man page).
        unsafe { write(&found, attr, inlen, end_of!(efadv_ah_attr, ahn)) }
    })
}

/// # Safety
/// As in efadv_query_mr(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_efadv_query_mr(
    mr: Arg<'_, IbvMr>,
    attr: *mut efadv_mr_attr,
    inlen: u32,
) -> c_int {
    number(|| {
        let (open, mr) = of_object(mr)?;
        ensure(!attr.is_null() && inlen as usize >= end_of!(efadv_mr_attr, rdma_recv_ic_id))?;
        // A null region has no object of the kernel.
        let handle = mr.own().as_ref().ok_or(Errno::EINVAL)?.lock().map_err(|_| Errno::ESTALE)?;
        let found = open.driver.query_mr(&handle)?;
        drop(handle);
        let valid = |id: Option<u16>, bit: u16| if id.is_some() { bit } else { 0 };
        let found = efadv_mr_attr {
            comp_mask: 0,
            // The bits have the kernel's values.
            ic_id_validity: valid(found.recv, EFA_QUERY_MR_VALIDITY_RECV_IC_ID)
                | valid(found.rdma_read, EFA_QUERY_MR_VALIDITY_RDMA_READ_IC_ID)
                | valid(found.rdma_recv, EFA_QUERY_MR_VALIDITY_RDMA_RECV_IC_ID),
            recv_ic_id: found.recv.unwrap_or(0),
            rdma_read_ic_id: found.rdma_read.unwrap_or(0),
            rdma_recv_ic_id: found.rdma_recv.unwrap_or(0),
        };
        // SAFETY: `attr` is NULL or has `inlen` bytes (contract of the man page).
        unsafe { write(&found, attr, inlen, end_of!(efadv_mr_attr, rdma_recv_ic_id)) }
    })
}

/// `EFADV_SQ_DEPTH_ATTR_INLINE_WRITE`
const INLINE_WRITE: u32 = 1 << 0;

/// # Safety
/// As in efadv_get_max_sq_depth(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_efadv_get_max_sq_depth(
    context: Arg<'_, ibv_context>,
    attr: *const efadv_sq_depth_attr,
    inlen: u32,
) -> c_int {
    let depth = || {
        let driver = &of(context)?.driver;
        // SAFETY: `attr` is NULL or has `inlen` bytes (contract of the man page).
        let attr = unsafe { read(attr, inlen, end_of!(efadv_sq_depth_attr, max_inline_data)) }?;
        let limits = driver.limits();
        ensure(attr.comp_mask == 0 && attr.flags & !INLINE_WRITE == 0)?;
        ensure(attr.max_send_sge <= limits.max_sq_sge.into())?;
        ensure(attr.max_rdma_sge <= limits.max_rdma_sge.into())?;
        ensure(attr.max_inline_data <= limits.inline_buf_size_ex.into())?;
        Ok(driver.max_sq_depth(attr.max_inline_data, attr.flags & INLINE_WRITE != 0) as isize)
    };
    negative(depth) as c_int
}

/// # Safety
/// As in efadv_get_max_rq_depth(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_efadv_get_max_rq_depth(
    context: Arg<'_, ibv_context>,
    attr: *const efadv_rq_depth_attr,
    inlen: u32,
) -> c_int {
    let depth = || {
        let driver = &of(context)?.driver;
        // SAFETY: `attr` is NULL or has `inlen` bytes (contract of the man page).
        let attr = unsafe { read(attr, inlen, end_of!(efadv_rq_depth_attr, max_recv_sge)) }?;
        ensure(attr.comp_mask == 0 && attr.max_recv_sge <= driver.limits().max_rq_sge.into())?;
        Ok(driver.max_rq_depth(attr.max_recv_sge) as isize)
    };
    negative(depth) as c_int
}

/// The address of a doorbell, NULL if there is none. That of a software device is no memory, so the program can't use the queue itself.
fn doorbell(place: &QueuePlace) -> Outcome<*mut u32> {
    match place.doorbell {
        DoorbellPlace::Address(address) => Ok(ptr::with_exposed_provenance_mut(address)),
        DoorbellPlace::None => Ok(ptr::null_mut()),
        DoorbellPlace::Call => Err(Errno::EOPNOTSUPP),
    }
}

/// The capabilities are 0: requests have numbers of 16 bits.
fn queue(place: &QueuePlace) -> Outcome<efadv_wq_attr> {
    Ok(efadv_wq_attr {
        comp_mask: 0,
        buffer: ptr::with_exposed_provenance_mut(place.buffer),
        entry_size: place.entry_size,
        num_entries: place.num_entries,
        doorbell: doorbell(place)?,
        max_batch: place.max_batch,
        caps: 0,
        reserved: [0; 2],
    })
}

/// # Safety
/// As in efadv_query_qp_wqs(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_efadv_query_qp_wqs(
    qp: Arg<'_, ibv_qp>,
    sq_attr: *mut efadv_wq_attr,
    rq_attr: *mut efadv_wq_attr,
    inlen: u32,
) -> c_int {
    number(|| {
        let (open, qp) = of_object(qp)?;
        let places = qp::of(open, &qp)?.places();
        let (send, recv) = (queue(&places.send)?, queue(&places.recv)?);
        let min = end_of!(efadv_wq_attr, max_batch);
        ensure(!rq_attr.is_null())?;
        // SAFETY: both are NULL or have `inlen` bytes (contract of the man page).
        unsafe { write(&send, sq_attr, inlen, min) }?;
        // SAFETY: as above.
        unsafe { write(&recv, rq_attr, inlen, min) }
    })
}

/// # Safety
/// As in efadv_query_cq(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_efadv_query_cq(
    cq: Arg<'_, ibv_cq>,
    attr: *mut efadv_cq_attr,
    inlen: u32,
) -> c_int {
    number(|| {
        let (open, cq) = of_object(cq)?;
        let place = cq::of(open, &cq)?.place();
        let found = efadv_cq_attr {
            comp_mask: 0,
            buffer: ptr::with_exposed_provenance_mut(place.buffer),
            entry_size: place.entry_size,
            num_entries: place.num_entries,
            doorbell: doorbell(place)?,
        };
        // SAFETY: `attr` is NULL or has `inlen` bytes (contract of the man page).
        unsafe { write(&found, attr, inlen, end_of!(efadv_cq_attr, num_entries)) }
    })
}

/// The text of the firmware's version, which libefa makes of the first four bytes; `None` if the device is not an EFA device.
pub(super) fn firmware_version(here: &Private, attr: &DeviceAttr) -> Option<String> {
    driver::<Efa>(here).ok()?;
    let [a, b, c, d, ..] = attr.fw_ver.to_ne_bytes();
    Some(format!("{a}.{b}.{c}.{d}"))
}

/// Whether aligned blocks of 128 bytes of an RDMA operation are written in order (`efa_query_qp_data_in_order` in `verbs.c` of libefa).
/// `EOPNOTSUPP` if the device is not an EFA device.
pub(super) fn in_order(qp: Arg<'_, ibv_qp>) -> Outcome<c_int> {
    let has_blocks = of_object(qp)?.0.driver.limits().has(EFA_QUERY_DEVICE_CAPS_DATA_POLLING_128);
    Ok(if has_blocks { in_order_cap::ALIGNED_128_BYTES } else { 0 })
}
