// SPDX-License-Identifier: MIT OR Apache-2.0
//! The address of a datagram's sender, from the completion (ibv_init_ah_from_wc(3)).

use super::{Result, query};
use crate::attr::{AhAttr, Gid, GidType, GlobalRoute};
use crate::error::Error;
use crate::kernel::Kernel;
use crate::wc::{WcFlags, WorkCompletion};
use std::sync::Arc;

/// The address of the sender of the datagram that `wc` completes. `grh` is the first 40 bytes of the receive buffer; they are
/// used only if `wc_flags` has `GRH`.
///
/// # Errors
/// The receiver's GID is not in the GID table of the port, or the kernel refuses to report the table.
pub fn ah_attr(
    kernel: &Arc<dyn Kernel>,
    wc: &WorkCompletion,
    grh: &[u8; 40],
    port_num: u8,
) -> Result<AhAttr> {
    let mut attr =
        AhAttr { dlid: wc.slid, sl: wc.sl, src_path_bits: wc.dlid_path_bits, port_num, ..AhAttr::default() };
    if wc.wc_flags.contains(WcFlags::GRH) {
        let (sender, receiver, route) = reply_gid(grh);
        let table = query::gid_table(kernel)?;
        // A RoCE GID is in the table twice, for both versions. The answer should use the version of the request,
        // but a GRH (version 1, or 2 over IPv6) does not show it. libibverbs uses the first match.
        let mine = table.iter().filter(|e| e.port_num == u32::from(port_num) && e.gid == receiver);
        let wants_v2 = receiver.ipv4().is_some();
        let entry = mine
            .clone()
            .find(|e| !wants_v2 || e.gid_type == GidType::ROCE_V2)
            .or_else(|| mine.clone().next())
            .ok_or_else(|| {
                Error::invalid("init_ah_from_wc", "grh", format!("{receiver} is not in the port's GID table"))
            })?;
        let sgid_index = u8::try_from(entry.gid_index).map_err(|_| {
            Error::invalid("init_ah_from_wc", "grh", "the GID's index does not fit in 8 bits")
        })?;
        attr.grh = Some(GlobalRoute {
            dgid: sender,
            sgid_index,
            flow_label: route.flow_label,
            hop_limit: route.hop_limit,
            traffic_class: route.traffic_class,
        });
    }
    Ok(attr)
}

/// Sender and receiver of a datagram.
///
/// `grh` is the first 40 bytes of the receive buffer; on RoCE there is always a GRH, or (version 2 over IPv4) an IPv4
/// header in its last 20 bytes.
fn reply_gid(grh: &[u8; 40]) -> (Gid, Gid, ReplyRoute) {
    // A GRH starts with the IP version 6; an IPv4 header stands in bytes 20..40 and starts with 4
    // (InfiniBand Architecture Annex A17.4.5.2).
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

/// The remaining fields of the route back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ReplyRoute {
    flow_label: u32,
    traffic_class: u8,
    hop_limit: u8,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reply_address_comes_from_a_grh_of_both_ip_versions() {
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
