// SPDX-License-Identifier: MIT OR Apache-2.0
//! The selection of the GID of a port for a connection.
//!
//! A port has a table of GIDs. The index in it (`sgid_index`) determines the addresses of packets and, on RoCE, their
//! format: each IP address of the network interface is in the table twice, as RoCE version 1 and 2. The two ends need
//! GIDs of the same type, and both must be derived from IPv4 addresses, or neither.

use crate::context::{Context, ContextInner};
use uverbs_core::attr::{DriverQp, Gid, GidEntry, GidType, LinkLayer};
use uverbs_core::control::query;
use uverbs_core::error::{Error, Result};
use uverbs_core::provider::Driver;

impl<D: Driver> Context<D> {
    /// The entry of the port's GID table that connections should use.
    ///
    /// On Ethernet (RoCE) entries of RoCE version 2 are preferred; among these, entries of an IPv4 address, then those
    /// of a routable IPv6 address; then the first one. Otherwise it is the first entry.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the table has no entry for the port; otherwise the kernel's error.
    pub fn best_gid(&self, port_num: u8) -> Result<GidEntry> {
        best(self.inner(), port_num)
    }
}

fn best<D: Driver>(context: &ContextInner<D>, port_num: u8) -> Result<GidEntry> {
    let table = query::gid_table(context.kernel())?;
    select(&table, port_num).ok_or_else(|| {
        let reason = format!(
            "port {port_num} has no GID; on RoCE the port's network interface must be up and have an IP address"
        );
        Error::invalid("best_gid", "port_num", reason)
    })
}

/// Whether the device has QPs of SRD.
fn has_srd<D: Driver>(context: &ContextInner<D>) -> bool {
    context.driver().driver_qp() == Some(DriverQp::Srd)
}

/// The index for a connection whose program selects none: that of the best GID on Ethernet and devices with SRD, none on InfiniBand.
pub(crate) fn default_index<D: Driver>(context: &ContextInner<D>, port_num: u8) -> Result<Option<u8>> {
    let layer = query::port(context.kernel(), port_num)?.link_layer;
    // A device with SRD has none of the layers, and no LIDs either (`efa_query_port()` of the kernel). Another port without a layer is
    // used as one of InfiniBand.
    if layer != LinkLayer::ETHERNET && (layer != LinkLayer::UNSPECIFIED || !has_srd(context)) {
        return Ok(None);
    }
    let entry = best(context, port_num)?;
    let index = u8::try_from(entry.gid_index)
        .map_err(|_| Error::invalid("best_gid", "gid_index", format!("{} is above 255", entry.gid_index)))?;
    Ok(Some(index))
}

fn select(table: &[GidEntry], port_num: u8) -> Option<GidEntry> {
    let is_link_local = |gid: Gid| gid.0[0] == 0xfe && gid.0[1] & 0xc0 == 0x80;
    let rank = |e: &&GidEntry| {
        (e.gid_type != GidType::ROCE_V2, e.gid.ipv4().is_none(), is_link_local(e.gid), e.gid_index)
    };
    table.iter().filter(|e| e.port_num == u32::from(port_num) && !e.gid.is_zero()).min_by_key(rank).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(gid_index: u32, port_num: u32, gid: &str, gid_type: GidType) -> GidEntry {
        GidEntry::new(gid.parse().unwrap()).gid_index(gid_index).port_num(port_num).gid_type(gid_type)
    }

    #[test]
    fn version_2_and_ipv4_and_routable_addresses_are_preferred() {
        let (v1, v2) = (GidType::ROCE_V1, GidType::ROCE_V2);
        let mut table = vec![
            entry(9, 2, "10.0.0.9", v2),
            entry(4, 1, "10.0.0.1", v1),
            entry(0, 1, "fe80::1", v1),
            entry(1, 1, "fe80::1", v2),
            entry(3, 1, "2001:db8::1", v2),
            entry(6, 1, "10.0.0.2", v2),
            entry(5, 1, "10.0.0.1", v2),
        ];
        for expected in [5, 6, 3, 1, 4, 0] {
            assert_eq!(select(&table, 1).unwrap().gid_index, expected);
            table.retain(|e| e.gid_index != expected);
        }
        assert_eq!(select(&table, 1), None);
        assert_eq!(select(&[entry(0, 1, "::", v2)], 1), None, "an empty entry");
    }
}
