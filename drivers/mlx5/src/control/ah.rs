// SPDX-License-Identifier: MIT OR Apache-2.0
//! Creating address handles.

use super::Mlx5;
use crate::Ah;
use crate::control::av;
use core::hash::{BuildHasher as _, Hasher as _};
use std::hash::RandomState;
use uverbs_core::Errno;
use uverbs_core::attr::AhAttr;
use uverbs_core::control::{AhHandle, PdHandle, ah, query};
use uverbs_core::error::{Error, Result};
use uverbs_core::kernel::Uhw;
use uverbs_core::provider::{Driver as _, same_context};
use uverbs_uapi::mlx5::mlx5_ib_create_ah_resp;
use zerocopy::IntoBytes;

pub(super) fn create(mlx5: &Mlx5, pd: &PdHandle, attr: &AhAttr) -> Result<(AhHandle, Ah)> {
    const VERB: &str = "create_ah";
    same_context(VERB, &mlx5.kernel, &[("pd", Some(pd.kernel()))])?;
    let port = mlx5.facts.port(VERB, attr.port_num)?;
    if attr.grh.is_none() && (port.is_ethernet || port.grh_required) {
        return Err(Error::invalid(VERB, "grh", format!("port {} needs a global route", attr.port_num)));
    }
    if !port.is_ethernet {
        let handle = ah::create(pd, attr, Uhw::none())?;
        return Ok((handle, Ah::new(&av::infiniband(attr))));
    }
    let sgid_index = attr.grh.map_or(0, |grh| grh.sgid_index);
    let sgid =
        query::gid_entry(&mlx5.kernel, attr.port_num, sgid_index.into()).map_err(|e| match e.errno() {
            // The device was removed: the index is not the cause.
            Errno::EIO => e,
            _ => Error::invalid(VERB, "sgid_index", format!("{sgid_index}: {e}")),
        })?;
    let (handle, dmac) = resolved(mlx5, pd, attr)?;
    // A new `RandomState` has random keys, which is random enough for a UDP source port.
    let random = || RandomState::new().build_hasher().finish() as u16;
    Ok((handle, Ah::new(&av::roce(attr, sgid.gid_type, dmac, random))))
}

/// Creates an address handle of a RoCE port. Returns the Ethernet address of its peer, too, which the kernel resolves.
fn resolved(mlx5: &Mlx5, pd: &PdHandle, attr: &AhAttr) -> Result<(AhHandle, [u8; 6])> {
    if !mlx5.facts.kernel_resolves_ah {
        return Err(Error::unsupported("create_ah", "the kernel driver does not resolve RoCE addresses"));
    }
    let mut resp = mlx5_ib_create_ah_resp::default();
    let handle = ah::create(pd, attr, Uhw::answer(resp.as_mut_bytes()))?;
    Ok((handle, resp.dmac))
}

impl Mlx5 {
    /// The Ethernet address of the peer with a GID, on a RoCE port (`ibv_resolve_eth_l2_from_gid`). The kernel returns
    /// it with an address handle, which exists only during this call.
    ///
    /// # Errors
    /// The kernel's error, `EHOSTUNREACH` if it finds no route or no neighbour; [`Error::Unsupported`] on an InfiniBand
    /// port.
    pub fn resolve_mac(&self, attr: &AhAttr) -> Result<[u8; 6]> {
        const VERB: &str = "resolve_eth_l2_from_gid";
        if !self.facts.port(VERB, attr.port_num)?.is_ethernet {
            return Err(Error::unsupported(VERB, "an InfiniBand port"));
        }
        let pd = self.alloc_pd()?;
        let (handle, mac) = resolved(self, &pd, attr)?;
        handle.destroy().map_err(|(_, error)| error)?;
        pd.destroy().map_err(|(_, error)| error)?;
        Ok(mac)
    }
}
