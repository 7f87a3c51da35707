// SPDX-License-Identifier: MIT OR Apache-2.0
//! Differences between the devices of different drivers that no attribute reports.

use uverbs::{Driver, WcStatus};

/// The properties of a driver's devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dialect {
    /// Whether `wr_bind_mw` binds windows of type 1, too. ibv_wr_post(3) specifies type 2 only; mlx5 always encodes
    /// type 2.
    pub builder_binds_type1: bool,
    /// Status of a datagram that does not fit in a packet. On mlx5 its QP fails; rxe sends nothing and reports success.
    pub datagram_too_long: WcStatus,
    /// Whether a slot of a queue becomes free when its completion is polled (mlx5), instead of when the kernel has
    /// processed the WR (rxe).
    pub freed_by_polling: bool,
    /// Whether a window can be bound to a region without `MW_BIND`. A key of mlx5 has no bit for this right
    /// (`mlx5_ifc_mkc_bits`), so the device does not check it.
    pub binds_without_mw_bind: bool,
    /// Whether a datagram, or a message on UC, that is longer than the receive is dropped, and the receive stays for the next
    /// one (class D of the InfiniBand specification's responder faults). rxe does so on some kernels.
    pub drops_long_datagrams: bool,
    /// Status of the receive of a write with immediate data that is refused; `None` if it is not specified. rxe reports that
    /// of the sender (`do_class_ac_error()`).
    pub refused_immediate: Option<WcStatus>,
    /// Status of the receive of a message that fails to invalidate its key, which is not answered; `None` if that is not
    /// specified. rxe reports REM_INV_REQ_ERR; its sender may be acknowledged, or wait without an end.
    pub failed_invalidation: Option<WcStatus>,
    /// Whether a message may invalidate only windows that are bound by its QP. rxe does not check the QP, and its kernel
    /// dereferences NULL if the window is not bound (`rxe_check_invalidate_mw()`, `rxe_do_invalidate_mw()`).
    pub invalidates_own_windows_only: bool,
}

const RXE: Dialect = Dialect {
    builder_binds_type1: true,
    datagram_too_long: WcStatus::SUCCESS,
    freed_by_polling: false,
    binds_without_mw_bind: false,
    drops_long_datagrams: false,
    refused_immediate: None,
    failed_invalidation: None,
    invalidates_own_windows_only: false,
};

const MLX5: Dialect = Dialect {
    builder_binds_type1: false,
    datagram_too_long: WcStatus::LOC_LEN_ERR,
    freed_by_polling: true,
    binds_without_mw_bind: true,
    drops_long_datagrams: true,
    refused_immediate: Some(WcStatus::LOC_ACCESS_ERR),
    failed_invalidation: Some(WcStatus::MW_BIND_ERR),
    invalidates_own_windows_only: true,
};

impl Dialect {
    /// The dialect of a driver.
    #[must_use]
    pub fn of<D: Driver>() -> Self {
        if D::NAME == "mlx5" { MLX5 } else { RXE }
    }
}
