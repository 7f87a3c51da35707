// SPDX-License-Identifier: MIT OR Apache-2.0
//! Management datagrams of the driver to its own port (`MAD_IFC`): subnet management attributes.

use super::{Call, Status};
use crate::layout::{mad_ifc_in, mad_ifc_out};
use uverbs_hca::bytes::{be16, put};

/// `IB_MGMT_METHOD_*`
const GET: u8 = 1;
const GET_RESPONSE: u8 = 0x81;
/// `IB_SMP_ATTR_*`
const NODE_DESC: u16 = 0x10;
const NODE_INFO: u16 = 0x11;
const GUID_INFO: u16 = 0x14;
const PORT_INFO: u16 = 0x15;
const PKEY_TABLE: u16 = 0x16;
/// Offsets in a datagram: status, attribute, its modifier, its data (`struct ib_smp`).
const STATUS: usize = 4;
const ATTRIBUTE: usize = 16;
const DATA: usize = 64;
/// `IB_MGMT_MAD_STATUS_UNSUPPORTED_METHOD_ATTRIB`
const UNSUPPORTED: u16 = 0x000c;
/// The direction of a directed route's answer.
const DIRECTION: u16 = 0x8000;
const DIRECTED: u8 = 0x81;

pub(super) fn mad_ifc(call: &mut Call<'_, '_>, input: &[u8], output: &mut [u8]) -> Result<(), Status> {
    let request = mad_ifc_in::MAD.bytes(input);
    let port = call.port.address().ok_or(Status::BAD_RESOURCE)?;
    let answer = mad_ifc_out::RESPONSE_MAD_PACKET.bytes_mut(output);
    let len = answer.len().min(request.len());
    answer[..len].copy_from_slice(&request[..len]);
    put(answer, 3, &[GET_RESPONSE]);
    let direction = if request.get(1) == Some(&DIRECTED) { DIRECTION } else { 0 };
    let status = if request.get(3) == Some(&GET) { 0 } else { UNSUPPORTED };
    let guid = call.function.guid.to_be_bytes();
    let status = match be16(request, ATTRIBUTE) {
        _ if status != 0 => status,
        NODE_DESC => {
            put(answer, DATA, call.function.description.get(..64).unwrap_or_default());
            0
        }
        NODE_INFO => {
            // Versions, a channel adapter, one port; the GUIDs; the partition table; device, revision, vendor.
            put(answer, DATA, &[1, 1, 1, 1]);
            for at in [4, 12, 20] {
                put(answer, DATA + at, &guid);
            }
            put(answer, DATA + 28, &128_u16.to_be_bytes());
            put(answer, DATA + 30, &0x101b_u16.to_be_bytes());
            put(answer, DATA + 36, &(1_u32 << 24 | 0x2c9).to_be_bytes());
            0
        }
        GUID_INFO => {
            put(answer, DATA, &guid);
            0
        }
        PORT_INFO => {
            let (state, physical) = if port.up { (4, 5) } else { (1, 2) };
            put(answer, DATA + 8, &[0xfe, 0x80, 0, 0, 0, 0, 0, 0]);
            put(answer, DATA + 16, &port.lid.to_be_bytes());
            put(answer, DATA + 18, &1_u16.to_be_bytes());
            // Supported widths 1x and 4x, active width 4x; the states; MTU 4096, 8 virtual lanes.
            put(answer, DATA + 28, &[1, 2, 3, 2, 4 << 4 | state, physical << 4 | 2]);
            put(answer, DATA + 36, &[5 << 4]);
            0
        }
        PKEY_TABLE => {
            put(answer, DATA, &0xffff_u16.to_be_bytes());
            0
        }
        _ => UNSUPPORTED,
    };
    put(answer, STATUS, &(status | direction).to_be_bytes());
    Ok(())
}
