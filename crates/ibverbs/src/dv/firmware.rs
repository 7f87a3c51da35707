// SPDX-License-Identifier: MIT OR Apache-2.0
//! Settings of QPs by commands for the firmware (mlx5dv_modify_qp_udp_sport(3), mlx5dv_query_qp_lag_port(3),
//! mlx5dv_modify_qp_lag_port(3), mlx5dv_dci_stream_id_reset(3), mlx5dv_reserved_qpn_alloc(3), mlx5dv_map_ah_to_qp(3),
//! ibv_query_qp_data_in_order(3)). They need a context with commands for the firmware.
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects.

use super::Of;
use crate::abi::context::ibv_context;
use crate::abi::qp::ibv_qp;
use crate::arg::Arg;
use crate::driver_library::in_order_cap;
use crate::errno::{Errno, Outcome, ensure, number};
use crate::object::{ah, qp};
use core::ffi::c_int;
use core::mem::MaybeUninit;
use uverbs_core::attr::{QpState, QpType};
use uverbs_core::wr::IbvAh;

/// The values of a QP that the functions here use.
struct Known<'a> {
    open: Of<'a, ibv_qp>,
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
}

/// The data that a QP writes in order; none if that is not known. `EOPNOTSUPP` if the device is not an mlx5 device.
pub(super) fn in_order(qp: Arg<'_, ibv_qp>) -> Outcome<c_int> {
    let Known { open, handle, qp_num, is_rts, is_dct, .. } = known(qp)?;
    let is_known =
        (is_dct || is_rts) && open.driver.query_qp_data_in_order(handle, qp_num, is_dct).unwrap_or(false);
    Ok(if is_known { in_order_cap::WHOLE_MSG | in_order_cap::ALIGNED_128_BYTES } else { 0 })
}

fn known<'a>(qp: Arg<'a, ibv_qp>) -> Outcome<Known<'a>> {
    let open = super::of_object(qp)?;
    let is_dct = qp::of(open.open, &open.object)?.is_dct();
    // SAFETY: the QP exists as long as `open`; no reference to C's part is created, which programs write.
    let public = unsafe { qp.pointer().read() };
    let is_rts = public.state == QpState::RTS.0;
    Ok(Known { open, handle: public.handle, qp_num: public.qp_num, is_rts, qp_type: public.qp_type, is_dct })
}

/// # Safety
/// As in mlx5dv_modify_qp_udp_sport(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_modify_qp_udp_sport(
    qp: Arg<'_, ibv_qp>,
    udp_sport: u16,
) -> c_int {
    number(|| {
        let qp = known(qp)?;
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
    qp: Arg<'_, ibv_qp>,
    port_num: Option<&mut MaybeUninit<u8>>,
    active_port_num: Option<&mut MaybeUninit<u8>>,
) -> c_int {
    number(|| {
        let qp = known(qp)?;
        let (Some(port_num), Some(active_port_num)) = (port_num, active_port_num) else {
            return Err(Errno::EINVAL);
        };
        // The port of a raw packet QP is that of its transport interface, whose number this library does not keep.
        if !qp.is(&[QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcSend, QpType::Driver]) {
            return Err(Errno::EOPNOTSUPP);
        }
        let (configured, active) = qp.open.driver.query_qp_lag_port(qp.handle, qp.qp_num)?;
        port_num.write(configured);
        active_port_num.write(active);
        Ok(())
    })
}

/// # Safety
/// As in mlx5dv_modify_qp_lag_port(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_modify_qp_lag_port(qp: Arg<'_, ibv_qp>, port_num: u8) -> c_int {
    number(|| {
        let qp = known(qp)?;
        if !qp.is(&[QpType::Rc, QpType::Uc, QpType::Ud, QpType::Driver]) || !qp.is_rts {
            return Err(Errno::EOPNOTSUPP);
        }
        Ok(qp.open.driver.modify_qp_lag_port(qp.handle, qp.qp_num, port_num)?)
    })
}

/// # Safety
/// As in mlx5dv_dci_stream_id_reset(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_dci_stream_id_reset(
    qp: Arg<'_, ibv_qp>,
    stream_id: u16,
) -> c_int {
    number(|| {
        let qp = known(qp)?;
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
    context: Arg<'_, ibv_context>,
    qpn: Option<&mut MaybeUninit<u32>>,
) -> c_int {
    number(|| {
        let open = super::of(context)?;
        let qpn = qpn.ok_or(Errno::EINVAL)?;
        let reserved = open.driver.reserve_qpn()?;
        qpn.write(reserved);
        Ok(())
    })
}

/// # Safety
/// As in mlx5dv_reserved_qpn_alloc(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_reserved_qpn_dealloc(
    context: Arg<'_, ibv_context>,
    qpn: u32,
) -> c_int {
    number(|| Ok(super::of(context)?.driver.release_qpn(qpn)?))
}

/// # Safety
/// As in mlx5dv_map_ah_to_qp(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_map_ah_to_qp(ah: Arg<'_, IbvAh>, qp_num: u32) -> c_int {
    number(|| {
        let ah = super::of_object(ah)?;
        ah::map_once(ah.open, &ah.object, |av, is_global| ah.driver.map_ah_to_qp(av, is_global, qp_num))
    })
}
