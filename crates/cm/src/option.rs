// SPDX-License-Identifier: MIT OR Apache-2.0
//! Options of an identifier (rdma_set_option(3)).

use crate::error::{Error, Result};
use crate::id::Id;
use uverbs_uapi::rdma_cm::{
    RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, RDMA_OPTION_ID_AFONLY, RDMA_OPTION_ID_REUSEADDR,
    RDMA_OPTION_ID_TOS, RDMA_USER_CM_CMD_SET_OPTION, rdma_ucm_set_option,
};
use zerocopy::IntoBytes;

impl Id {
    fn set_option(&self, optname: u32, value: &[u8]) -> Result<()> {
        let command = rdma_ucm_set_option {
            optval: 0,
            id: self.number(),
            level: RDMA_OPTION_ID,
            optname,
            optlen: u32::try_from(value.len()).unwrap_or(u32::MAX),
        };
        let input = [command.as_bytes(), value].concat();
        self.channel()
            .port()
            .command(RDMA_USER_CM_CMD_SET_OPTION, &input, &mut [])
            .map_err(|errno| self.error("set_option", errno))
    }

    /// Sets the type of service of its packets (`RDMA_OPTION_ID_TOS`), before the route is resolved.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn set_tos(&self, tos: u8) -> Result<()> {
        self.set_option(RDMA_OPTION_ID_TOS, &[tos])
    }

    /// Sets whether its port may be bound while others have it (`RDMA_OPTION_ID_REUSEADDR`), before it is bound.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn set_reuse_addr(&self, reuse: bool) -> Result<()> {
        self.set_option(RDMA_OPTION_ID_REUSEADDR, &i32::from(reuse).to_ne_bytes())
    }

    /// Sets whether a listener on an IPv6 address refuses IPv4 (`RDMA_OPTION_ID_AFONLY`), before it is bound.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn set_ipv6_only(&self, only: bool) -> Result<()> {
        self.set_option(RDMA_OPTION_ID_AFONLY, &i32::from(only).to_ne_bytes())
    }

    /// Sets the QP's `timeout` (4.096 us times 2 to this power, 5 bits; `RDMA_OPTION_ID_ACK_TIMEOUT`), before it connects or
    /// accepts. [`ConnParam::ack_timeout`](crate::ConnParam::ack_timeout) needs no call and has precedence.
    ///
    /// On RoCE, a value that is set before the route is resolved is also sent as the lifetime of packets, from which the kernel of
    /// the peer computes the timeout of *its* QP (`rdma_set_ack_timeout()`, `cma_resolve_iboe_route()`).
    ///
    /// # Errors
    /// A value that does not fit in 5 bits; the kernel's error.
    pub fn set_ack_timeout(&self, timeout: u8) -> Result<()> {
        if timeout > 31 {
            let reason = format!("{timeout} does not fit in 5 bits");
            return Err(Error::invalid("set_option", "ack_timeout", reason));
        }
        self.set_option(RDMA_OPTION_ID_ACK_TIMEOUT, &[timeout])?;
        self.set_has_ack_timeout();
        Ok(())
    }
}
