// SPDX-License-Identifier: MIT OR Apache-2.0
//! Port and device registers (`MLX5_REG_*`).

use super::{Call, Status};
use crate::layout::{access_register_in, access_register_out, paos_reg, pmtu_reg, ptys_reg, pvlc_reg};

const PMTU: u16 = 0x5003;
const PTYS: u16 = 0x5004;
const PAOS: u16 = 0x5006;
const PFCC: u16 = 0x5007;
const PPCNT: u16 = 0x5008;
const PVLC: u16 = 0x500f;
const NODE_DESC: u16 = 0x6001;
const HOST_ENDIANNESS: u16 = 0x7004;

/// `MLX5_PTYS_WIDTH_4X`, the bit of EDR, 50 Gbit/s Ethernet by two lanes of 25 (`MLX5E_50GBASE_KR2`).
const WIDTH_4X: u32 = 4;
const EDR: u32 = 1 << 5;
const ETHERNET_100G: u32 = 1 << 22;
/// MTUs in bytes: of an InfiniBand port, and the maximum of an Ethernet port.
const IB_MTU: u32 = 4096;
const ETHERNET_MTU: u32 = 9978;

pub(super) fn access(call: &mut Call<'_, '_>, input: &[u8], output: &mut [u8]) -> Result<(), Status> {
    let register = access_register_in::REGISTER_ID.get(input) as u16;
    let is_write = access_register_in::OP_MOD.get(input) == 0;
    let given = access_register_in::REGISTER_DATA.rest(input).to_vec();
    let data = access_register_out::REGISTER_DATA.rest_mut(output);
    // The answer repeats the request, except for known fields.
    let len = data.len().min(given.len());
    data[..len].copy_from_slice(&given[..len]);
    let ethernet = call.function.ethernet;
    match register {
        PTYS if !is_write => {
            let fields: &[_] = if ethernet {
                &[
                    (ptys_reg::ETH_PROTO_CAPABILITY, ETHERNET_100G),
                    (ptys_reg::ETH_PROTO_ADMIN, ETHERNET_100G),
                    (ptys_reg::ETH_PROTO_OPER, ETHERNET_100G),
                ]
            } else {
                &[
                    (ptys_reg::IB_LINK_WIDTH_CAPABILITY, WIDTH_4X),
                    (ptys_reg::IB_LINK_WIDTH_ADMIN, WIDTH_4X),
                    (ptys_reg::IB_LINK_WIDTH_OPER, WIDTH_4X),
                    (ptys_reg::IB_PROTO_CAPABILITY, EDR),
                    (ptys_reg::IB_PROTO_ADMIN, EDR),
                    (ptys_reg::IB_PROTO_OPER, EDR),
                ]
            };
            for (field, value) in fields {
                field.set(data, *value);
            }
        }
        PMTU => {
            let max = if ethernet { ETHERNET_MTU } else { IB_MTU };
            pmtu_reg::MAX_MTU.set(data, max);
            if !is_write {
                pmtu_reg::ADMIN_MTU.set(data, max);
                pmtu_reg::OPER_MTU.set(data, max);
            }
        }
        PVLC => {
            pvlc_reg::VL_HW_CAP.set(data, 4_u32);
            pvlc_reg::VL_ADMIN.set(data, 4_u32);
            pvlc_reg::VL_OPERATIONAL.set(data, 4_u32);
        }
        PAOS => {
            let up = call.port.address().is_some_and(|p| p.up);
            // 1 is up, 2 is down.
            paos_reg::ADMIN_STATUS.set(data, 1_u32);
            paos_reg::OPER_STATUS.set(data, if up { 1_u32 } else { 2 });
            if is_write && ethernet {
                super::vport::report_link(call)?;
            }
        }
        NODE_DESC if is_write => call.function.description = given,
        NODE_DESC => uverbs_hca::bytes::put(data, 0, &call.function.description),
        // Counters, which stay 0, and pauses, which are not supported.
        PPCNT if !is_write => {}
        PFCC => {}
        // Settings that change nothing here.
        PTYS | HOST_ENDIANNESS if is_write => {}
        _ => {
            *call.function.unknown_registers.entry(register).or_default() += 1;
            let verb = if is_write { "written" } else { "read" };
            log::warn!("{}: register {register:#x} is {verb}, which is not implemented", call.function.name);
            return Err(Status::BAD_PARAM);
        }
    }
    Ok(())
}
