// SPDX-License-Identifier: MIT OR Apache-2.0
//! Address handles: where a datagram goes.

use crate::pd::PdInner;
use core::ptr;
use std::sync::Arc;
use uverbs_core::attr::{AhAttr, Gid};
use uverbs_core::control::AhHandle;
use uverbs_core::error::{Error, Result};
use uverbs_core::provider::Driver;
use uverbs_core::wr::{IbvAh, RawAh};

/// An address handle.
///
/// It may be destroyed while datagrams that name it are posted: their WQEs hold a copy of the address, or the kernel
/// keeps its own until they are done.
#[derive(Debug)]
pub struct AddressHandle<D: Driver> {
    handle: Option<AhHandle>,
    /// Boxed: C's lists point to it.
    raw: Box<RawAh<D::Ah>>,
    _pd: Arc<PdInner<D>>,
}

// SAFETY: the raw pointers inside `RawAh` are NULL and never followed; the driver's part is `Send + Sync`.
#[expect(unsafe_code, reason = "NULL pointers of a C struct")]
unsafe impl<D: Driver> Send for AddressHandle<D> {}
// SAFETY: as above; nothing is changed through `&`.
#[expect(unsafe_code, reason = "NULL pointers of a C struct")]
unsafe impl<D: Driver> Sync for AddressHandle<D> {}

impl<D: Driver> AddressHandle<D> {
    pub(crate) fn create(pd: &Arc<PdInner<D>>, attr: &AhAttr) -> Result<Self> {
        let (handle, driver) = pd.context().driver().create_ah(pd.handle()?, attr)?;
        let base = IbvAh { context: ptr::null_mut(), pd: ptr::null_mut(), handle: handle.handle() };
        Ok(Self { handle: Some(handle), raw: Box::new(RawAh { base, driver }), _pd: pd.clone() })
    }

    /// The data that the driver's encoder needs.
    #[inline(always)]
    pub(crate) fn driver_data(&self) -> &D::Ah {
        &self.raw.driver
    }

    /// The pointer for `wr.ud.ah` and `wr_set_ud_addr`; valid as long as this handle lives.
    #[must_use]
    pub fn as_raw(&self) -> *const IbvAh {
        ptr::from_ref::<RawAh<D::Ah>>(&self.raw).cast()
    }

    /// Destroys it and reports a failure, which `Drop` would only log.
    pub fn close(mut self) -> Result<()> {
        self.destroy()
    }

    fn destroy(&mut self) -> Result<(), Error> {
        let Some(handle) = self.handle.take() else { return Ok(()) };
        handle.destroy().map_err(|(handle, error)| {
            core::mem::forget(handle);
            error
        })
    }
}

impl<D: Driver> Drop for AddressHandle<D> {
    fn drop(&mut self) {
        if let Err(error) = self.destroy() {
            log::error!("ah: {error}");
        }
    }
}

/// The sender of a datagram, from its completion: what `ibv_init_ah_from_wc` makes.
///
/// `grh` is the first 40 bytes of the receive buffer; on RoCE there is always a GRH, or (version 2 over IPv4) an IPv4
/// header in its last 20 bytes.
pub(crate) fn reply_gid(grh: &[u8; 40]) -> (Gid, Gid, ReplyRoute) {
    // A GRH starts with the IP version 6; an IPv4 header is in bytes 20..40 and starts with 4 (InfiniBand Architecture
    // Annex A17.4.5.2).
    if grh[0] >> 4 != 6 && grh[20] >> 4 == 4 {
        let v4 = |at: usize| {
            let mut raw = [0u8; 16];
            raw[10] = 0xff;
            raw[11] = 0xff;
            raw[12..].copy_from_slice(&grh[at..at + 4]);
            Gid(raw)
        };
        let route = ReplyRoute { flow_label: 0, traffic_class: grh[21], hop_limit: 64 };
        return (v4(32), v4(36), route);
    }
    let gid = |at: usize| {
        let mut raw = [0u8; 16];
        raw.copy_from_slice(&grh[at..at + 16]);
        Gid(raw)
    };
    let word = u32::from_be_bytes([grh[0], grh[1], grh[2], grh[3]]);
    let route = ReplyRoute { flow_label: word & 0xf_ffff, traffic_class: (word >> 20) as u8, hop_limit: 255 };
    (gid(8), gid(24), route)
}

/// The rest of the way back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReplyRoute {
    pub(crate) flow_label: u32,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grh_of_both_ip_versions() {
        let mut v4 = [0u8; 40];
        v4[20] = 0x45;
        v4[32..36].copy_from_slice(&[10, 0, 0, 1]);
        v4[36..40].copy_from_slice(&[10, 0, 0, 2]);
        let (sgid, dgid, _) = reply_gid(&v4);
        assert_eq!(sgid.to_string(), "0000:0000:0000:0000:0000:ffff:0a00:0001");
        assert_eq!(dgid.to_string(), "0000:0000:0000:0000:0000:ffff:0a00:0002");

        let mut v6 = [0u8; 40];
        v6[..4].copy_from_slice(&0x6ab1_2345u32.to_be_bytes());
        v6[8] = 0xfe;
        v6[9] = 0x80;
        v6[23] = 7;
        let (sgid, _, route) = reply_gid(&v6);
        assert_eq!(sgid.to_string(), "fe80:0000:0000:0000:0000:0000:0000:0007");
        assert_eq!(route, ReplyRoute { flow_label: 0x1_2345, traffic_class: 0xab, hop_limit: 255 });
    }
}
