// SPDX-License-Identifier: MIT OR Apache-2.0
//! The commands, as `drivers/infiniband/core/ucma.c` and `cma.c` of the kernel run them.

use super::ident::{Ident, Member, State, first_psn, gid, is_here, place_of, source};
use super::message::{
    Body, CONSUMER_DEFINED, Param, REJ, REP, REQ, SIDR_REJECT, SIDR_REP, SIDR_REQ, own_gid,
};
use super::{Call, Cm};
use core::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use nix::libc::{AF_INET, AF_INET6, EADDRNOTAVAIL, EAFNOSUPPORT};
use std::collections::VecDeque;
use uverbs_core::Errno;
use uverbs_uapi::event::IB_EVENT_COMM_EST;
use uverbs_uapi::rdma_cm::{
    __kernel_sockaddr_storage as Storage, RDMA_CM_EVENT_ADDR_ERROR, RDMA_CM_EVENT_ADDR_RESOLVED,
    RDMA_CM_EVENT_ROUTE_RESOLVED, RDMA_MC_JOIN_FLAG_RESERVED, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT,
    RDMA_OPTION_ID_AFONLY, RDMA_OPTION_ID_REUSEADDR, RDMA_OPTION_ID_TOS, RDMA_PS_IB, RDMA_PS_IPOIB,
    RDMA_PS_TCP, RDMA_PS_UDP, RDMA_UDP_QKEY, RDMA_USER_CM_CMD_ACCEPT, RDMA_USER_CM_CMD_BIND,
    RDMA_USER_CM_CMD_CONNECT, RDMA_USER_CM_CMD_CREATE_ID, RDMA_USER_CM_CMD_DESTROY_ID,
    RDMA_USER_CM_CMD_DISCONNECT, RDMA_USER_CM_CMD_GET_EVENT, RDMA_USER_CM_CMD_INIT_QP_ATTR,
    RDMA_USER_CM_CMD_JOIN_MCAST, RDMA_USER_CM_CMD_LEAVE_MCAST, RDMA_USER_CM_CMD_LISTEN,
    RDMA_USER_CM_CMD_MIGRATE_ID, RDMA_USER_CM_CMD_NOTIFY, RDMA_USER_CM_CMD_QUERY,
    RDMA_USER_CM_CMD_QUERY_ROUTE, RDMA_USER_CM_CMD_REJECT, RDMA_USER_CM_CMD_RESOLVE_ADDR,
    RDMA_USER_CM_CMD_RESOLVE_ROUTE, RDMA_USER_CM_CMD_SET_OPTION, rdma_ucm_accept, rdma_ucm_bind,
    rdma_ucm_connect, rdma_ucm_create_id, rdma_ucm_create_id_resp, rdma_ucm_destroy_id,
    rdma_ucm_destroy_id_resp, rdma_ucm_disconnect, rdma_ucm_event_resp, rdma_ucm_init_qp_attr,
    rdma_ucm_join_mcast, rdma_ucm_listen, rdma_ucm_migrate_id, rdma_ucm_migrate_resp, rdma_ucm_notify,
    rdma_ucm_query, rdma_ucm_reject, rdma_ucm_resolve_addr, rdma_ucm_resolve_route, rdma_ucm_set_option,
};
use uverbs_uapi::rxe::{sockaddr_in, sockaddr_in6};
use uverbs_uapi::verbs::{
    IB_UVERBS_QPT_RC, IB_UVERBS_QPT_UC, IB_UVERBS_QPT_UD, IB_UVERBS_QPT_XRC_INI, IB_UVERBS_QPT_XRC_TGT,
};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The most requests that wait (`max_backlog` of ucma.c).
const MAX_BACKLOG: u32 = 1024;

/// The struct at the beginning of a command.
fn parse<T: FromBytes>(input: &[u8]) -> Result<T, Errno> {
    T::read_from_prefix(input).map(|(value, _)| value).map_err(|_| Errno::EINVAL)
}

/// Writes an answer, for which there must be room.
pub(super) fn answer(output: &mut [u8], value: &(impl IntoBytes + Immutable)) -> Result<(), Errno> {
    let bytes = value.as_bytes();
    output.get_mut(..bytes.len()).ok_or(Errno::ENOSPC)?.copy_from_slice(bytes);
    Ok(())
}

/// The address of a command.
fn address(storage: &Storage, size: u16) -> Result<SocketAddr, Errno> {
    let bytes = storage.as_bytes();
    match i32::from(parse::<u16>(bytes)?) {
        AF_INET if usize::from(size) == size_of::<sockaddr_in>() => {
            let raw: sockaddr_in = parse(bytes)?;
            Ok(SocketAddr::new(Ipv4Addr::from_bits(raw.sin_addr.get()).into(), raw.sin_port.get()))
        }
        AF_INET6 if usize::from(size) == size_of::<sockaddr_in6>() => {
            let raw: sockaddr_in6 = parse(bytes)?;
            let ip = Ipv6Addr::from(raw.sin6_addr);
            Ok(SocketAddrV6::new(ip, raw.sin6_port.get(), 0, raw.sin6_scope_id).into())
        }
        _ => Err(Errno::EINVAL),
    }
}

/// The name of a command in a script: that of the function of librdmacm which sends it, as far as there is one.
pub(super) fn verb(cmd: u32) -> &'static str {
    match cmd {
        RDMA_USER_CM_CMD_CREATE_ID => "rdma_create_id",
        RDMA_USER_CM_CMD_DESTROY_ID => "rdma_destroy_id",
        RDMA_USER_CM_CMD_BIND => "rdma_bind_addr",
        RDMA_USER_CM_CMD_RESOLVE_ADDR => "rdma_resolve_addr",
        RDMA_USER_CM_CMD_RESOLVE_ROUTE => "rdma_resolve_route",
        RDMA_USER_CM_CMD_LISTEN => "rdma_listen",
        RDMA_USER_CM_CMD_CONNECT => "rdma_connect",
        RDMA_USER_CM_CMD_ACCEPT => "rdma_accept",
        RDMA_USER_CM_CMD_REJECT => "rdma_reject",
        RDMA_USER_CM_CMD_DISCONNECT => "rdma_disconnect",
        RDMA_USER_CM_CMD_NOTIFY => "rdma_notify",
        RDMA_USER_CM_CMD_GET_EVENT => "rdma_get_cm_event",
        RDMA_USER_CM_CMD_SET_OPTION => "rdma_set_option",
        RDMA_USER_CM_CMD_INIT_QP_ATTR => "rdma_init_qp_attr",
        RDMA_USER_CM_CMD_QUERY | RDMA_USER_CM_CMD_QUERY_ROUTE => "rdma_query",
        RDMA_USER_CM_CMD_MIGRATE_ID => "rdma_migrate_id",
        RDMA_USER_CM_CMD_JOIN_MCAST => "rdma_join_multicast",
        RDMA_USER_CM_CMD_LEAVE_MCAST => "rdma_leave_multicast",
        _ => "rdma_command",
    }
}

impl Cm {
    /// Runs a command.
    pub(super) fn command(
        &mut self,
        call: &mut Call<'_>,
        cmd: u32,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<(), Errno> {
        if self.channels.get(&call.channel).is_some_and(|c| c.has_ended) {
            // Its identifiers and memberships are destroyed.
            return match cmd {
                RDMA_USER_CM_CMD_DESTROY_ID | RDMA_USER_CM_CMD_LEAVE_MCAST => {
                    answer(output, &rdma_ucm_destroy_id_resp::default())
                }
                _ => Err(Errno::EIO),
            };
        }
        if self.gone.contains(&call.host) {
            // Identifiers without a device remain, and all of them can be destroyed.
            match cmd {
                RDMA_USER_CM_CMD_BIND | RDMA_USER_CM_CMD_RESOLVE_ADDR => return Err(Errno::ENODEV),
                RDMA_USER_CM_CMD_CREATE_ID
                | RDMA_USER_CM_CMD_DESTROY_ID
                | RDMA_USER_CM_CMD_GET_EVENT
                | RDMA_USER_CM_CMD_MIGRATE_ID
                | RDMA_USER_CM_CMD_SET_OPTION => {}
                _ => return Err(Errno::EIO),
            }
        }
        match cmd {
            RDMA_USER_CM_CMD_CREATE_ID => self.create_id(call, &parse(input)?, output),
            RDMA_USER_CM_CMD_DESTROY_ID => {
                let number = self.own(call, parse::<rdma_ucm_destroy_id>(input)?.id)?;
                let events_reported = self.destroy(call, number);
                answer(output, &rdma_ucm_destroy_id_resp { events_reported })
            }
            RDMA_USER_CM_CMD_BIND => self.bind(call, &parse(input)?),
            RDMA_USER_CM_CMD_RESOLVE_ADDR => self.resolve_addr(call, &parse(input)?),
            RDMA_USER_CM_CMD_RESOLVE_ROUTE => {
                let number = self.own(call, parse::<rdma_ucm_resolve_route>(input)?.id)?;
                self.step(number, &[State::AddrResolved], State::RouteResolved)?;
                self.later(call.now, 0, number, Body::Event(RDMA_CM_EVENT_ROUTE_RESOLVED, 0));
                Ok(())
            }
            RDMA_USER_CM_CMD_LISTEN => self.listen(call, &parse(input)?),
            RDMA_USER_CM_CMD_CONNECT => self.connect(call, &parse(input)?),
            RDMA_USER_CM_CMD_ACCEPT => self.accept(call, &parse(input)?),
            RDMA_USER_CM_CMD_REJECT => self.reject(call, &parse(input)?),
            RDMA_USER_CM_CMD_DISCONNECT => {
                let number = self.own(call, parse::<rdma_ucm_disconnect>(input)?.id)?;
                self.disconnect(call, number)
            }
            RDMA_USER_CM_CMD_NOTIFY => self.notify(call, &parse(input)?),
            RDMA_USER_CM_CMD_GET_EVENT => self.get_event(call, output),
            RDMA_USER_CM_CMD_SET_OPTION => self.set_option(call, input),
            RDMA_USER_CM_CMD_INIT_QP_ATTR => {
                let command: rdma_ucm_init_qp_attr = parse(input)?;
                let number = self.own(call, command.id)?;
                self.init_qp_attr(call, number, command.qp_state, output)
            }
            RDMA_USER_CM_CMD_QUERY => {
                let command: rdma_ucm_query = parse(input)?;
                let number = self.own(call, command.id)?;
                self.query(call, number, command.option, output)
            }
            RDMA_USER_CM_CMD_QUERY_ROUTE => {
                let number = self.own(call, parse::<rdma_ucm_query>(input)?.id)?;
                self.query_route(call, number, output)
            }
            RDMA_USER_CM_CMD_MIGRATE_ID => self.migrate(call, &parse(input)?, output),
            RDMA_USER_CM_CMD_JOIN_MCAST => self.join(call, &parse(input)?, output),
            RDMA_USER_CM_CMD_LEAVE_MCAST => self.leave(call, &parse(input)?, output),
            _ => Err(Errno::ENOSYS),
        }
    }

    /// An identifier of the channel.
    fn own(&self, call: &Call<'_>, number: u32) -> Result<u32, Errno> {
        match self.idents.get(&number) {
            None => Err(Errno::ENOENT),
            Some(ident) if ident.channel != call.channel => Err(Errno::EINVAL),
            Some(_) => Ok(number),
        }
    }

    fn ident(&mut self, number: u32) -> Result<&mut Ident, Errno> {
        self.idents.get_mut(&number).ok_or(Errno::ENOENT)
    }

    /// Changes the state, which must be one of these.
    fn step(&mut self, number: u32, from: &[State], to: State) -> Result<(), Errno> {
        let ident = self.ident(number)?;
        if !from.contains(&ident.state) {
            return Err(Errno::EINVAL);
        }
        ident.state = to;
        Ok(())
    }

    fn create_id(
        &mut self,
        call: &Call<'_>,
        command: &rdma_ucm_create_id,
        output: &mut [u8],
    ) -> Result<(), Errno> {
        const TYPES: [u8; 5] = [
            IB_UVERBS_QPT_RC,
            IB_UVERBS_QPT_UC,
            IB_UVERBS_QPT_UD,
            IB_UVERBS_QPT_XRC_INI,
            IB_UVERBS_QPT_XRC_TGT,
        ];
        let qp_type = match command.ps {
            RDMA_PS_TCP => IB_UVERBS_QPT_RC,
            RDMA_PS_UDP | RDMA_PS_IPOIB => IB_UVERBS_QPT_UD,
            RDMA_PS_IB if TYPES.contains(&command.qp_type) => command.qp_type,
            _ => return Err(Errno::EINVAL),
        };
        if output.len() < size_of::<rdma_ucm_create_id_resp>() {
            return Err(Errno::ENOSPC);
        }
        let id = self.new_number();
        let ident = Ident {
            channel: call.channel,
            host: call.host,
            uid: command.uid,
            ps: command.ps,
            qp_type,
            psn: first_psn(id),
            ..Ident::default()
        };
        self.add_ident(id, ident);
        answer(output, &rdma_ucm_create_id_resp { id })
    }

    /// Destroys an identifier; a connection ends. Returns how many events of it were read.
    pub(super) fn destroy(&mut self, call: &mut Call<'_>, number: u32) -> u32 {
        for member in self.members_of(number) {
            self.discard(call, member);
            self.remove_member(member);
        }
        match self.idents.get(&number).map(|i| (i.state, i.is_datagram())) {
            Some((State::Requested, true)) => {
                self.send_to_peer(call, number, Body::DatagramsRefused(SIDR_REJECT, vec![]));
            }
            Some((State::Requested | State::Answered | State::Accepted, false)) => {
                self.send_to_peer(call, number, Body::Reject(CONSUMER_DEFINED, vec![]));
            }
            Some((State::Connecting, false)) => self.give_up(call, number),
            Some((State::Connected, false)) => self.send_to_peer(call, number, Body::Disconnect),
            Some((State::Disconnected, false)) => self.send_to_peer(call, number, Body::DisconnectReply),
            _ => {}
        }
        self.discard(call, number);
        self.remove_ident(number).map_or(0, |ident| ident.reported)
    }

    /// Removes the events of an identifier or membership that were not read.
    fn discard(&mut self, call: &mut Call<'_>, owner: u32) {
        if !self.unread.has(&owner) {
            return;
        }
        let ident = self.members.get(&owner).map_or(owner, |member| member.ident);
        let channel = self.idents.get(&ident).map(|ident| ident.channel);
        let Some(channel) = channel.and_then(|number| self.channels.get_mut(&number)) else { return };
        let mut created = Vec::new();
        channel.events.retain(|queued| {
            if queued.owner == owner {
                created.extend(queued.created);
                self.unread.remove(&owner);
            }
            queued.owner != owner
        });
        channel.update();
        for number in created {
            self.destroy(call, number);
        }
    }

    fn bind(&mut self, call: &Call<'_>, command: &rdma_ucm_bind) -> Result<(), Errno> {
        let number = self.own(call, command.id)?;
        if command.reserved != 0 {
            return Err(Errno::EINVAL);
        }
        self.bind_to(call, number, address(&command.addr, command.addr_size)?)
    }

    fn bind_to(&mut self, call: &Call<'_>, number: u32, mut local: SocketAddr) -> Result<(), Errno> {
        let ident = self.ident(number)?;
        if ident.state != State::Idle {
            return Err(Errno::EINVAL);
        }
        let ps = ident.ps;
        let is_any = local.ip().is_unspecified();
        if !is_any && !is_here(call.net, call.host, local.ip()) {
            return Err(Errno::ENODEV);
        }
        if local.port() == 0 {
            local.set_port(self.free_port(call.host, ps)?);
        } else {
            let can_reuse = self.ident(number)?.can_reuse;
            self.check_port(call.host, number, local, can_reuse)?;
        }
        let ident = self.ident(number)?;
        ident.local = Some(local);
        ident.has_port = true;
        ident.has_device = !is_any;
        ident.state = State::Bound;
        let host = ident.host;
        self.of_ports.insert((host, ps, local.port(), number));
        Ok(())
    }

    fn resolve_addr(&mut self, call: &Call<'_>, command: &rdma_ucm_resolve_addr) -> Result<(), Errno> {
        let number = self.own(call, command.id)?;
        let remote = address(&command.dst_addr, command.dst_size)?;
        let local =
            (command.src_size != 0).then(|| address(&command.src_addr, command.src_size)).transpose()?;
        let state = self.ident(number)?.state;
        if !matches!(state, State::Idle | State::Bound) || command.reserved != 0 {
            return Err(Errno::EINVAL);
        }
        if local.is_some_and(|l| l.is_ipv4() != remote.is_ipv4()) {
            return Err(Errno::from_raw(EAFNOSUPPORT));
        }
        let found = source(call.net, call.host, remote.ip()).ok_or(Errno::ENETUNREACH)?;
        // The network of the addresses of devices.
        let is_routed = match remote.ip() {
            core::net::IpAddr::V4(v4) => v4.octets()[..2] == [10, 77],
            core::net::IpAddr::V6(_) => true,
        };
        // A group has its Ethernet address by its IP address, so nothing is asked.
        let is_known = remote.ip().is_multicast() || place_of(call.net, remote.ip()).is_some();
        if !is_routed && !is_known {
            return Err(Errno::ENETUNREACH);
        }
        if state == State::Idle {
            let local = local.unwrap_or_else(|| SocketAddr::new(found, 0));
            let local =
                if local.ip().is_unspecified() { SocketAddr::new(found, local.port()) } else { local };
            if !is_here(call.net, call.host, local.ip()) {
                return Err(Errno::from_raw(EADDRNOTAVAIL));
            }
            self.bind_to(call, number, local)?;
        }
        let ident = self.ident(number)?;
        if ident.local.is_some_and(|l| l.ip().is_unspecified()) {
            ident.local = ident.local.map(|l| SocketAddr::new(found, l.port()));
        }
        ident.remote = Some(remote);
        ident.has_device = true;
        ident.state = State::AddrResolved;
        // An address that no host has does not answer.
        let body = match is_known {
            true => Body::Event(RDMA_CM_EVENT_ADDR_RESOLVED, 0),
            false => Body::Event(RDMA_CM_EVENT_ADDR_ERROR, -Errno::ETIMEDOUT.raw()),
        };
        let after = if is_known { 0 } else { u64::from(command.timeout_ms).saturating_mul(1_000_000) };
        self.later(call.now, after, number, body);
        Ok(())
    }

    fn listen(&mut self, call: &Call<'_>, command: &rdma_ucm_listen) -> Result<(), Errno> {
        let number = self.own(call, command.id)?;
        if self.ident(number)?.state == State::Idle {
            self.bind_to(call, number, (Ipv4Addr::UNSPECIFIED, 0).into())?;
        }
        // A listener does not share its port.
        let ident = self.ident(number)?;
        if let (State::Bound, true, Some(local)) = (ident.state, ident.can_reuse, ident.local) {
            self.check_port(call.host, number, local, false)?;
            self.ident(number)?.can_reuse = false;
        }
        self.step(number, &[State::Bound], State::Listening)?;
        let is_limited = (1..MAX_BACKLOG).contains(&command.backlog);
        self.ident(number)?.backlog = if is_limited { command.backlog } else { MAX_BACKLOG };
        Ok(())
    }

    fn connect(&mut self, call: &mut Call<'_>, command: &rdma_ucm_connect) -> Result<(), Errno> {
        let number = self.own(call, command.id)?;
        let conn = command.conn_param;
        let ident = self.ident(number)?;
        let room = if ident.is_datagram() { SIDR_REQ } else { REQ };
        if conn.valid == 0 || usize::from(conn.private_data_len) > room {
            return Err(Errno::EINVAL);
        }
        self.step(number, &[State::RouteResolved], State::Connecting)?;
        let ident = self.ident(number)?;
        ident.qp_num = conn.qp_num & 0xff_ffff;
        ident.responder_resources = conn.responder_resources;
        ident.initiator_depth = conn.initiator_depth;
        ident.retry_count = conn.retry_count & 7;
        ident.rnr_retry_count = conn.rnr_retry_count & 7;
        let remote = ident.remote.ok_or(Errno::EINVAL)?;
        let param = Param { conn, ece: command.ece, psn: ident.psn };
        // A request names its sender, because there is no identifier at the other end yet.
        self.send(call, number, number, remote, Body::Request(param));
        Ok(())
    }

    fn accept(&mut self, call: &mut Call<'_>, command: &rdma_ucm_accept) -> Result<(), Errno> {
        let number = self.own(call, command.id)?;
        if command.conn_param.valid == 0 {
            self.step(number, &[State::Answered], State::Connected)?;
            self.send_to_peer(call, number, Body::ReadyToUse);
            return Ok(());
        }
        let mut conn = command.conn_param;
        let ident = self.ident(number)?;
        let is_datagram = ident.is_datagram();
        let room = if is_datagram { SIDR_REP } else { REP };
        if usize::from(conn.private_data_len) > room || ident.state != State::Requested {
            return Err(Errno::EINVAL);
        }
        ident.uid = command.uid;
        ident.qp_num = conn.qp_num & 0xff_ffff;
        let own = own_gid(ident);
        if is_datagram {
            if conn.qkey == 0 {
                conn.qkey = RDMA_UDP_QKEY;
            }
            ident.state = State::Connected;
            let param = Param { conn, ece: command.ece, psn: 0 };
            self.send_to_peer(call, number, Body::Datagrams(param, own));
            return Ok(());
        }
        ident.state = State::Accepted;
        ident.responder_resources = conn.responder_resources;
        ident.initiator_depth = conn.initiator_depth;
        ident.rnr_retry_count = conn.rnr_retry_count & 7;
        let param = Param { conn, ece: command.ece, psn: ident.psn };
        self.send_to_peer(call, number, Body::Reply(param));
        Ok(())
    }

    fn reject(&mut self, call: &mut Call<'_>, command: &rdma_ucm_reject) -> Result<(), Errno> {
        let number = self.own(call, command.id)?;
        // IB_CM_REJ_VENDOR_OPTION_NOT_SUPPORTED
        const VENDOR_OPTION: u32 = 35;
        let reason = match u32::from(command.reason) {
            0 => CONSUMER_DEFINED,
            reason @ (CONSUMER_DEFINED | VENDOR_OPTION) => reason,
            _ => return Err(Errno::EINVAL),
        };
        let is_datagram = self.ident(number)?.is_datagram();
        let room = if is_datagram { SIDR_REP } else { REJ };
        let data = command.private_data.0.get(..usize::from(command.private_data_len)).unwrap_or_default();
        if data.len() > room {
            return Err(Errno::EINVAL);
        }
        // `cm_send_rej_locked()` and `cm_send_sidr_rep_locked()`
        let from = match is_datagram {
            true => &[State::Requested][..],
            false => &[State::Connecting, State::Requested, State::Answered, State::Accepted],
        };
        let body = match is_datagram {
            true => Body::DatagramsRefused(SIDR_REJECT, data.to_vec()),
            false => Body::Reject(reason, data.to_vec()),
        };
        let has_no_answer = self.ident(number)?.state == State::Connecting;
        self.step(number, from, State::Closed)?;
        // A REJ before the answer does not name the identifier at the other end, so `cm_acquire_rejected_id()` finds none.
        if !has_no_answer {
            self.send_to_peer(call, number, body);
        }
        Ok(())
    }

    /// `rdma_disconnect()`: sends a DREQ, or answers one. In other states of `cm.c` nothing is sent, which is no error.
    fn disconnect(&mut self, call: &mut Call<'_>, number: u32) -> Result<(), Errno> {
        let ident = self.ident(number)?;
        if !ident.has_cm_id() {
            return Err(Errno::EINVAL);
        }
        match ident.state {
            _ if ident.is_datagram() => {}
            State::Connected => {
                ident.state = State::Disconnecting;
                self.send_to_peer(call, number, Body::Disconnect);
                self.await_answer(call, number);
            }
            State::Disconnected => {
                self.send_to_peer(call, number, Body::DisconnectReply);
                self.wait_in_timewait(call.now, number);
            }
            _ => {}
        }
        Ok(())
    }

    fn notify(&mut self, call: &mut Call<'_>, command: &rdma_ucm_notify) -> Result<(), Errno> {
        let number = self.own(call, command.id)?;
        let state = self.ident(number)?.state;
        if command.event == IB_EVENT_COMM_EST && state == State::Accepted {
            // A message of the peer arrived, so it is connected.
            self.later(call.now, 0, number, Body::ReadyToUse);
        }
        Ok(())
    }

    fn get_event(&mut self, call: &Call<'_>, output: &mut [u8]) -> Result<(), Errno> {
        // Programs of older kernels have less room.
        let least = core::mem::offset_of!(rdma_ucm_event_resp, reserved);
        if output.len() < least {
            return Err(Errno::ENOSPC);
        }
        let channel = self.channels.get_mut(&call.channel).ok_or(Errno::EBADF)?;
        let queued = channel.events.pop_front().ok_or(Errno::EAGAIN)?;
        channel.update();
        self.unread.remove(&queued.owner);
        if let Some(owner) = self.idents.get_mut(&queued.owner) {
            owner.reported += 1;
            if queued.created.is_some() {
                owner.backlog += 1;
            }
        }
        if let Some(member) = self.members.get_mut(&queued.owner) {
            member.reported += 1;
        }
        let bytes = queued.event.as_bytes();
        let len = bytes.len().min(output.len());
        output[..len].copy_from_slice(&bytes[..len]);
        Ok(())
    }

    fn set_option(&mut self, call: &Call<'_>, input: &[u8]) -> Result<(), Errno> {
        let command: rdma_ucm_set_option = parse(input)?;
        let value = input.get(size_of::<rdma_ucm_set_option>()..).unwrap_or_default();
        let number = self.own(call, command.id)?;
        let ident = self.ident(number)?;
        let byte = || <[u8; 1]>::try_from(value).map(|[b]| b).map_err(|_| Errno::EINVAL);
        let truth = || <[u8; 4]>::try_from(value).map(|v| v != [0; 4]).map_err(|_| Errno::EINVAL);
        match (command.level, command.optname) {
            (RDMA_OPTION_ID, RDMA_OPTION_ID_TOS) => ident.tos = byte()?,
            (RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR) => {
                let can_reuse = truth()?;
                // `rdma_set_reuseaddr()`
                if ident.state == State::Listening || (!can_reuse && ident.state != State::Idle) {
                    return Err(Errno::EINVAL);
                }
                ident.can_reuse = can_reuse;
            }
            (RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY) => {
                let only = truth()?;
                // `rdma_set_afonly()`
                if !matches!(ident.state, State::Idle | State::Bound) {
                    return Err(Errno::EINVAL);
                }
                ident.one_family = Some(only);
            }
            (RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT) => {
                let timeout = byte()?;
                // The kernel has it for connected QPs only.
                if ident.is_datagram() || timeout > 31 {
                    return Err(Errno::EINVAL);
                }
                ident.ack_timeout = Some(timeout);
            }
            _ => return Err(Errno::ENOSYS),
        }
        Ok(())
    }

    fn migrate(
        &mut self,
        call: &Call<'_>,
        command: &rdma_ucm_migrate_id,
        output: &mut [u8],
    ) -> Result<(), Errno> {
        let from = self.channel_of_fd(call.host, command.fd).ok_or(Errno::EINVAL)?;
        let ident = self.idents.get(&command.id).ok_or(Errno::ENOENT)?;
        if ident.channel != from {
            return Err(Errno::EINVAL);
        }
        if output.len() < size_of::<rdma_ucm_migrate_resp>() {
            return Err(Errno::ENOSPC);
        }
        let events_reported = ident.reported;
        self.set_channel(command.id, call.channel);
        let mut owners = self.members_of(command.id);
        owners.push(command.id);
        if let Some(channel) = self.channels.get_mut(&from).filter(|_| from != call.channel) {
            let (moved, stay): (Vec<_>, VecDeque<_>) = {
                let (moved, stay): (Vec<_>, Vec<_>) =
                    channel.events.drain(..).partition(|queued| owners.contains(&queued.owner));
                (moved, stay.into())
            };
            channel.events = stay;
            channel.update();
            for queued in moved {
                // The identifier that a request created is of the channel of its listener.
                if let Some(created) = queued.created {
                    self.set_channel(created, call.channel);
                }
                self.unread.remove(&queued.owner);
                self.report(call.channel, queued);
            }
        }
        answer(output, &rdma_ucm_migrate_resp { events_reported })
    }

    fn join(
        &mut self,
        call: &Call<'_>,
        command: &rdma_ucm_join_mcast,
        output: &mut [u8],
    ) -> Result<(), Errno> {
        let number = self.own(call, command.id)?;
        let group = address(&command.addr, command.addr_size)?;
        let ident = self.ident(number)?;
        if command.join_flags >= RDMA_MC_JOIN_FLAG_RESERVED
            || !ident.is_datagram()
            || !ident.has_device
            || !matches!(ident.state, State::Bound | State::AddrResolved)
            || !group.ip().is_multicast()
        {
            return Err(Errno::EINVAL);
        }
        let member = Member { ident: number, uid: command.uid, group: gid(group.ip()), reported: 0 };
        let id = self.new_number();
        answer(output, &rdma_ucm_create_id_resp { id })?;
        self.members.insert(id, member);
        self.of_idents.insert((number, id));
        self.later(call.now, 0, id, Body::Joined);
        Ok(())
    }

    fn leave(
        &mut self,
        call: &mut Call<'_>,
        command: &rdma_ucm_destroy_id,
        output: &mut [u8],
    ) -> Result<(), Errno> {
        let member = *self.members.get(&command.id).ok_or(Errno::ENOENT)?;
        self.own(call, member.ident)?;
        if output.len() < size_of::<rdma_ucm_destroy_id_resp>() {
            return Err(Errno::ENOSPC);
        }
        self.discard(call, command.id);
        self.remove_member(command.id);
        answer(output, &rdma_ucm_destroy_id_resp { events_reported: member.reported })
    }
}
