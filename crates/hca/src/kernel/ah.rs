// SPDX-License-Identifier: MIT OR Apache-2.0
//! Address handles and multicast groups.

use super::call::Call;
use super::object::Object;
use crate::engine::Port;
use crate::engine::datagram::mapped;
use crate::engine::qp::QpKind;
use uverbs_core::Errno;
use uverbs_core::attr::Gid;
use uverbs_core::kernel::RawCommand;
use uverbs_softkernel::Call as _;
use uverbs_softkernel::attr::{core_in, core_out, uhw_out};
use uverbs_uapi::cmd::{
    ib_uverbs_attach_mcast, ib_uverbs_create_ah, ib_uverbs_create_ah_resp, ib_uverbs_detach_mcast,
};
use uverbs_uapi::mlx5::mlx5_ib_create_ah_resp;
use zerocopy::IntoBytes;

/// The first bytes of the MAC address for a device outside of the fabric: no port has such an address.
const OUTSIDE: [u8; 2] = [0x02, 0x00];

/// The MAC address of a GID: that of a multicast group or of a known port, the one in a link-local address, or that for a device outside of
/// the fabric, if the port reaches it from the source GID.
pub(super) fn resolve(cx: &Port<'_>, sgid_index: u8, gid: &[u8; 16]) -> Result<[u8; 6], Errno> {
    if let Some(port) = cx.net.by_gid(gid).and_then(|i| cx.net.ports.get(i)) {
        return Ok(port.mac);
    }
    let [.., a, b, c, d] = *gid;
    if Gid(*gid).is_multicast() {
        let is_ipv4 = Gid(*gid).ipv4().is_some();
        return Ok(if is_ipv4 { [0x01, 0x00, 0x5e, b & 0x7f, c, d] } else { [0x33, 0x33, a, b, c, d] });
    }
    if gid[..8] == [0xfe, 0x80, 0, 0, 0, 0, 0, 0] {
        return Ok([gid[8] ^ 2, gid[9], gid[10], b, c, d]);
    }
    let port = cx.address().filter(|port| port.outside.is_some());
    let source = port.and_then(|port| port.gids.get(usize::from(sgid_index)));
    let is_reached = source.is_some_and(|(source, v2)| *v2 && mapped(source) == mapped(gid));
    if is_reached { Ok([OUTSIDE[0], OUTSIDE[1], a, b, c, d]) } else { Err(Errno::EHOSTUNREACH) }
}

impl Call<'_, '_> {
    pub(super) fn create_ah(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        let request: ib_uverbs_create_ah = core_in(c)?;
        self.pdn(request.pd_handle)?;
        let (attr, grh) = (&request.attr, &request.attr.grh);
        let port = self.port.net.ports.get(self.port.me).ok_or(Errno::EIO)?;
        let global = attr.is_global != 0;
        if attr.port_num != 1
            || port.ethernet && !global
            || global && usize::from(grh.sgid_index) >= port.gids.len()
        {
            return Err(Errno::EINVAL);
        }
        let mut resp = mlx5_ib_create_ah_resp {
            response_length: size_of::<mlx5_ib_create_ah_resp>() as u32,
            ..Default::default()
        };
        if port.ethernet {
            resp.dmac = resolve(self.port, grh.sgid_index, &grh.dgid)?;
        }
        let ah_handle = self.add(Object::Ah, &[request.pd_handle], request.user_handle)?;
        uhw_out(c, resp.as_bytes());
        core_out(c, ib_uverbs_create_ah_resp { ah_handle, ..Default::default() }.as_bytes())
    }

    fn group_qp(&mut self, handle: u32) -> Result<u32, Errno> {
        match self.object(handle)? {
            Object::Qp(qp) if qp.kind == QpKind::Ud => Ok(qp.qpn),
            Object::Qp(_) => Err(Errno::EINVAL),
            _ => Err(Errno::ENOENT),
        }
    }

    pub(super) fn attach_mcast(&mut self, c: &RawCommand<'_, '_>) -> Result<(), Errno> {
        let request: ib_uverbs_attach_mcast = core_in(c)?;
        let qpn = self.group_qp(request.qp_handle)?;
        // Attaching a QP again has no effect.
        if !self.port.net.is_in_group(&request.gid, self.port.me, qpn) {
            if !self.port.net.has_room(&request.gid, self.port.me) {
                return Err(Errno::ENOMEM);
            }
            self.port.net.join(request.gid, self.port.me, qpn);
        }
        Ok(())
    }

    pub(super) fn detach_mcast(&mut self, c: &RawCommand<'_, '_>) -> Result<(), Errno> {
        let request: ib_uverbs_detach_mcast = core_in(c)?;
        let qpn = self.group_qp(request.qp_handle)?;
        if self.port.net.leave(request.gid, self.port.me, qpn) { Ok(()) } else { Err(Errno::EINVAL) }
    }
}
