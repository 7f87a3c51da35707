// SPDX-License-Identifier: MIT OR Apache-2.0
//! Multicast groups (rdma_join_multicast_ex(3), rdma_leave_multicast(3)).

use crate::address;
use crate::channel::EventChannel;
use crate::error::{Error, Result};
use crate::id::{Id, Place, Token};
use crate::qp::ah_attr;
use core::net::SocketAddr;
use std::sync::Arc;
use uverbs::attr::{AhAttr, Gid};
use uverbs_uapi::rdma_cm::{
    RDMA_MC_JOIN_FLAG_FULLMEMBER, RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER, RDMA_USER_CM_CMD_JOIN_MCAST,
    RDMA_USER_CM_CMD_LEAVE_MCAST, rdma_ucm_create_id_resp, rdma_ucm_destroy_id, rdma_ucm_destroy_id_resp,
    rdma_ucm_event_resp, rdma_ucm_join_mcast,
};
use zerocopy::IntoBytes;

/// A membership of an identifier in a group. Dropping it leaves the group.
///
/// It does not attach a QP: a member that receives calls [`attach_mcast`](uverbs::qp::QpControl::attach_mcast) when the
/// event of the join was received.
#[derive(Debug)]
pub struct Membership {
    channel: EventChannel,
    number: u32,
    token: Token,
    has_left: bool,
    place: Arc<Place>,
}

/// The attributes of a joined group, in its event.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Multicast {
    /// The address attributes of the group, for an address handle.
    pub ah_attr: AhAttr,
    /// The destination QP number of messages to the group.
    pub qp_num: u32,
    /// Its queue key.
    pub qkey: u32,
}

impl Multicast {
    pub(crate) fn decode(raw: &rdma_ucm_event_resp) -> Self {
        let ud = raw.param.ud();
        Self { ah_attr: ah_attr(&ud.ah_attr), qp_num: ud.qp_num, qkey: ud.qkey }
    }

    /// The GID of the group, for `attach_mcast`.
    #[must_use]
    pub fn gid(&self) -> Gid {
        self.ah_attr.grh.map_or(Gid::ZERO, |grh| grh.dgid)
    }

    /// The LID of the group, for `attach_mcast`.
    #[must_use]
    pub fn lid(&self) -> u16 {
        self.ah_attr.dlid
    }
}

impl Id {
    /// `rdma_join_multicast_ex`: joins the group of an address, as a member that receives or that sends only. An event
    /// that has the membership's token reports the result. The identifier must be bound to a device.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn join_multicast(&self, group: SocketAddr, send_only: bool) -> Result<Membership> {
        const VERB: &str = "join_multicast";
        let (addr, addr_size) = address::encode(group);
        let flag = match send_only {
            false => RDMA_MC_JOIN_FLAG_FULLMEMBER,
            true => RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER,
        };
        let token = Token::new(true);
        let command = rdma_ucm_join_mcast {
            response: 0,
            uid: token.0,
            id: self.number(),
            addr_size,
            join_flags: flag,
            addr,
        };
        let mut answer = rdma_ucm_create_id_resp::default();
        self.channel()
            .port()
            .command(RDMA_USER_CM_CMD_JOIN_MCAST, command.as_bytes(), answer.as_mut_bytes())
            .map_err(|errno| Error::command(VERB, format!("{group}, {}", self.object()), errno))?;
        let (channel, place) = (self.channel().clone(), self.place().clone());
        Ok(Membership { channel, number: answer.id, token, has_left: false, place })
    }
}

impl Membership {
    /// The value by which events name it.
    #[must_use]
    pub fn token(&self) -> Token {
        self.token
    }

    /// `rdma_leave_multicast`: leaves the group and reports a failure, which `Drop` would only log.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn leave(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        if self.has_left || !self.channel.port().is_creator_process() {
            return Ok(());
        }
        self.has_left = true;
        let place = self.place.lock();
        let Some(channel) = &*place else { return Ok(()) };
        let command = rdma_ucm_destroy_id { id: self.number, ..Default::default() };
        let mut answer = rdma_ucm_destroy_id_resp::default();
        let left =
            channel.port().command(RDMA_USER_CM_CMD_LEAVE_MCAST, command.as_bytes(), answer.as_mut_bytes());
        match left {
            // The identifier was destroyed before, and its memberships with it.
            Err(uverbs_core::Errno::ENOENT) => Ok(()),
            left => left.map_err(|errno| {
                Error::command("leave_multicast", format!("membership {}", self.number), errno)
            }),
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            uverbs::report!(warn, {}, "{error}");
        }
    }
}
