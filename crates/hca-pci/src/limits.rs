// SPDX-License-Identifier: MIT OR Apache-2.0
//! How many objects of each kind a driver may create. The capabilities report the powers of two, and commands for further
//! objects fail with `MLX5_CMD_STAT_LIM_ERR`, for which Linux returns `ENOMEM` (`cmd_status_to_err()`).
//!
//! A guest is not trusted, and every object takes memory of this process.

use crate::fw::Status;

pub(crate) const LOG_MAX_QP: u32 = 17;
pub(crate) const LOG_MAX_CQ: u32 = 17;
pub(crate) const LOG_MAX_SRQ: u32 = 16;
pub(crate) const LOG_MAX_RQ: u32 = 16;
pub(crate) const LOG_MAX_SQ: u32 = 16;
pub(crate) const LOG_MAX_MKEY: u32 = 20;
pub(crate) const LOG_MAX_PD: u32 = 16;
pub(crate) const LOG_MAX_XRCD: u32 = 16;
pub(crate) const LOG_MAX_UMEM: u32 = 16;
pub(crate) const LOG_MAX_UCTX: u32 = 8;
pub(crate) const LOG_MAX_EQ: u32 = 6;
pub(crate) const LOG_MAX_TRANSPORT_DOMAIN: u32 = 8;
pub(crate) const LOG_MAX_TIR: u32 = 16;
pub(crate) const LOG_MAX_TIS: u32 = 16;
pub(crate) const LOG_MAX_RQT: u32 = 16;
pub(crate) const LOG_MAX_RQT_SIZE: u32 = 11;
pub(crate) const LOG_MAX_FLOW_TABLES: u32 = 12;
pub(crate) const LOG_MAX_FLOW: u32 = 16;
pub(crate) const LOG_MAX_GROUPS: u32 = 14;
pub(crate) const MAX_FLOW_COUNTERS: u32 = 0xffff;
/// Sets of counters of queue pairs.
pub(crate) const LOG_MAX_Q_COUNTERS: u32 = 8;
/// General objects.
pub(crate) const LOG_MAX_GENERAL: u32 = 12;
/// Queues of all tables of queues, and destinations and counters of all entries of flow tables: they are lists of
/// different lengths.
pub(crate) const LOG_MAX_LISTED: u32 = 20;

/// Checks that there is room for one more.
pub(crate) fn room(count: usize, log_max: u32) -> Result<(), Status> {
    if count < 1 << log_max { Ok(()) } else { Err(Status::LIMIT) }
}
