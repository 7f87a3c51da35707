// SPDX-License-Identifier: MIT OR Apache-2.0
//! Settings of QPs by commands for the firmware (mlx5dv_modify_qp_udp_sport(3), mlx5dv_query_qp_lag_port(3),
//! mlx5dv_modify_qp_lag_port(3), mlx5dv_dci_stream_id_reset(3), mlx5dv_reserved_qpn_alloc(3), mlx5dv_map_ah_to_qp(3),
//! ibv_query_qp_data_in_order(3)). They need a context with commands for the firmware.
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects.

use super::Of;
use crate::abi::context::ibv_context;
use crate::abi::qp::ibv_qp;
use crate::errno::{Errno, Outcome, ensure, number};
use crate::object::{ah, qp};
use core::ffi::c_int;
use uverbs_core::attr::{QpState, QpType};
use uverbs_core::wr::IbvAh;
use uverbs_mlx5::Mlx5;

/// The values of a QP that the functions here use.
pub(crate) struct Known<'a> {
    open: Of<'a>,
    handle: u32,
    qp_num: u32,
    is_rts: bool,
    qp_type: u32,
    is_dct: bool,
}

impl Known<'_> {
    fn is(&self, types: &[QpType]) -> bool {
        !self.is_dct && types.iter().any(|known| *known as u32 == self.qp_type)
    }

    /// Whether data is written in order; `false` if that is not known.
    pub(crate) fn writes_in_order(&self) -> bool {
        (self.is_dct || self.is_rts)
            && self.open.driver.query_qp_data_in_order(self.handle, self.qp_num, self.is_dct).unwrap_or(false)
    }
}

/// # Safety
/// `qp` is NULL or a live object, whose context is not closed while the reference is used.
pub(crate) unsafe fn known<'a>(qp: *mut ibv_qp) -> Outcome<Known<'a>> {
    // SAFETY: `qp` is NULL or a live object, which begins with the pointer to its context (contract of this function).
    let open = unsafe { super::of_object(qp) }?;
    // SAFETY: `qp` is live, because its context was found above. Only DC targets have a verb of their own.
    let is_dct = unsafe { qp::private::<Mlx5>(qp) }.extension.modify.is_some();
    // SAFETY: `qp` is live; no reference to C's part is created, which programs write.
    let handle = unsafe { (*qp).handle };
    // SAFETY: as before.
    let qp_num = unsafe { (*qp).qp_num };
    // SAFETY: as before.
    let state = unsafe { (*qp).state };
    // SAFETY: as before.
    let qp_type = unsafe { (*qp).qp_type };
    Ok(Known { open, handle, qp_num, is_rts: state == QpState::RTS.0, qp_type, is_dct })
}

/// # Safety
/// As in mlx5dv_modify_qp_udp_sport(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_modify_qp_udp_sport(qp: *mut ibv_qp, udp_sport: u16) -> c_int {
    number(|| {
        // SAFETY: `qp` is NULL or live, and its context is not closed during this call (contract of the man page).
        let qp = unsafe { known(qp) }?;
        if !qp.is(&[QpType::Rc, QpType::Uc]) || !qp.is_rts {
            return Err(Errno::EOPNOTSUPP);
        }
        Ok(qp.open.driver.modify_qp_udp_sport(qp.handle, qp.qp_num, udp_sport)?)
    })
}

/// # Safety
/// As in mlx5dv_query_qp_lag_port(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_query_qp_lag_port(
    qp: *mut ibv_qp,
    port_num: *mut u8,
    active_port_num: *mut u8,
) -> c_int {
    number(|| {
        // SAFETY: `qp` is NULL or live, and its context is not closed during this call (contract of the man page).
        let qp = unsafe { known(qp) }?;
        ensure(!port_num.is_null() && !active_port_num.is_null())?;
        // The port of a raw packet QP is that of its transport interface, whose number this library does not keep.
        if !qp.is(&[QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcSend, QpType::Driver]) {
            return Err(Errno::EOPNOTSUPP);
        }
        let (configured, active) = qp.open.driver.query_qp_lag_port(qp.handle, qp.qp_num)?;
        // SAFETY: `port_num` is valid for writes (contract of the man page).
        unsafe { port_num.write(configured) };
        // SAFETY: `active_port_num` is valid for writes (contract of the man page).
        unsafe { active_port_num.write(active) };
        Ok(())
    })
}

/// # Safety
/// As in mlx5dv_modify_qp_lag_port(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_modify_qp_lag_port(qp: *mut ibv_qp, port_num: u8) -> c_int {
    number(|| {
        // SAFETY: `qp` is NULL or live, and its context is not closed during this call (contract of the man page).
        let qp = unsafe { known(qp) }?;
        if !qp.is(&[QpType::Rc, QpType::Uc, QpType::Ud, QpType::Driver]) || !qp.is_rts {
            return Err(Errno::EOPNOTSUPP);
        }
        Ok(qp.open.driver.modify_qp_lag_port(qp.handle, qp.qp_num, port_num)?)
    })
}

/// # Safety
/// As in mlx5dv_dci_stream_id_reset(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_dci_stream_id_reset(qp: *mut ibv_qp, stream_id: u16) -> c_int {
    number(|| {
        // SAFETY: `qp` is NULL or live, and its context is not closed during this call (contract of the man page).
        let qp = unsafe { known(qp) }?;
        let caps = qp.open.driver.device_info()?.private.dci_streams_caps;
        if caps.max_log_num_errored == 0 || !qp.is_rts {
            return Err(Errno::EOPNOTSUPP);
        }
        ensure(qp.is(&[QpType::Driver]))?;
        Ok(qp.open.driver.reset_dci_stream(qp.handle, qp.qp_num, stream_id)?)
    })
}

/// # Safety
/// As in mlx5dv_reserved_qpn_alloc(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_reserved_qpn_alloc(
    context: *mut ibv_context,
    qpn: *mut u32,
) -> c_int {
    number(|| {
        // SAFETY: `context` is not closed during this call (contract of the man page).
        let open = unsafe { super::of(context) }?;
        ensure(!qpn.is_null())?;
        let reserved = open.driver.reserve_qpn()?;
        // SAFETY: `qpn` is valid for writes (contract of the man page).
        unsafe { qpn.write(reserved) };
        Ok(())
    })
}

/// # Safety
/// As in mlx5dv_reserved_qpn_alloc(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_reserved_qpn_dealloc(
    context: *mut ibv_context,
    qpn: u32,
) -> c_int {
    number(|| {
        // SAFETY: `context` is not closed during this call (contract of the man page).
        Ok(unsafe { super::of(context) }?.driver.release_qpn(qpn)?)
    })
}

/// # Safety
/// As in mlx5dv_map_ah_to_qp(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_map_ah_to_qp(ah: *mut IbvAh, qp_num: u32) -> c_int {
    number(|| {
        // SAFETY: `ah` is NULL or a live object, which begins with the pointer to its context; the context is not
        // closed during this call (contract of the man page).
        let open = unsafe { super::of_object(ah) }?;
        // SAFETY: `ah` is a live address handle of this driver, because its context was found above.
        unsafe { ah::map_once(ah, |ah, is_global| open.driver.map_ah_to_qp(ah, is_global, qp_num)) }
    })
}
