// SPDX-License-Identifier: MIT OR Apache-2.0
//! The attributes of the device and its port.

use super::call::Call;
use crate::caps::Caps;
use uverbs_core::Errno;
use uverbs_core::kernel::RawCommand;
use uverbs_efa_hw::feature::EFA_ADMIN_FEATURE_DEVICE_ATTR_DESC_DATA_POLLING_128_MASK;
use uverbs_efa_hw::regs::PCI_VENDOR_ID_AMAZON;
use uverbs_softkernel::attr::{core_in, core_out, uhw_out};
use uverbs_softkernel::commands;
use uverbs_uapi::be::Be64;
use uverbs_uapi::cmd::{
    ib_uverbs_ex_query_device_resp, ib_uverbs_query_device, ib_uverbs_query_device_resp,
    ib_uverbs_query_port_resp,
};
use uverbs_uapi::efa::{
    EFA_QUERY_DEVICE_CAPS_CQ_NOTIFICATIONS, EFA_QUERY_DEVICE_CAPS_CQ_WITH_SGID,
    EFA_QUERY_DEVICE_CAPS_DATA_POLLING_128, EFA_QUERY_DEVICE_CAPS_RDMA_READ,
    EFA_QUERY_DEVICE_CAPS_RDMA_WRITE, EFA_QUERY_DEVICE_CAPS_RNR_RETRY,
    EFA_QUERY_DEVICE_CAPS_UNSOLICITED_WRITE_RECV, efa_ibv_ex_query_device_resp,
};
use uverbs_uapi::verbs::{IB_LINK_LAYER_UNSPECIFIED, ib_uverbs_gid_entry};
use zerocopy::IntoBytes;

impl Call<'_, '_> {
    /// `efa_query_device()`
    fn base(&self) -> ib_uverbs_query_device_resp {
        let guid = Be64::new(self.state.config.guid);
        ib_uverbs_query_device_resp {
            node_guid: guid,
            sys_image_guid: guid,
            max_mr_size: u64::from(Caps::MAX_PAGES) * 4096,
            page_size_cap: 0xffff_ffff_ffff_f000,
            vendor_id: PCI_VENDOR_ID_AMAZON.into(),
            vendor_part_id: self.device.caps.pci_device.into(),
            hw_ver: self.device.caps.pci_device.into(),
            max_qp: Caps::MAX_QP.into(),
            max_qp_wr: Caps::MAX_SQ.min(Caps::MAX_RQ),
            max_sge: Caps::SEND_BUFFERS.min(Caps::RECV_BUFFERS).into(),
            max_sge_rd: 1,
            max_cq: Caps::MAX_CQ.into(),
            max_cqe: Caps::MAX_CQE,
            max_mr: Caps::MAX_MR,
            max_pd: Caps::MAX_PD.into(),
            max_ah: Caps::MAX_AH.into(),
            max_pkeys: 1,
            phys_port_cnt: 1,
            ..Default::default()
        }
    }

    pub(super) fn query_device(&self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        let _: ib_uverbs_query_device = core_in(c)?;
        core_out(c, self.base().as_bytes())
    }

    pub(super) fn query_device_ex(&self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        commands::query_device_ex(c)?;
        let resp = ib_uverbs_ex_query_device_resp {
            base: self.base(),
            response_length: size_of::<ib_uverbs_ex_query_device_resp>() as u32,
            ..Default::default()
        };
        core_out(c, resp.as_bytes())?;
        let caps = self.device.caps;
        let cap = |has: bool, cap: u32| if has { cap } else { 0 };
        let polls = caps.has(EFA_ADMIN_FEATURE_DEVICE_ATTR_DESC_DATA_POLLING_128_MASK);
        let private = efa_ibv_ex_query_device_resp {
            max_sq_wr: Caps::MAX_SQ,
            max_rq_wr: Caps::MAX_RQ,
            max_sq_sge: Caps::SEND_BUFFERS,
            max_rq_sge: Caps::RECV_BUFFERS,
            max_rdma_size: caps.max_rdma,
            device_caps: EFA_QUERY_DEVICE_CAPS_CQ_WITH_SGID
                | EFA_QUERY_DEVICE_CAPS_CQ_NOTIFICATIONS
                | cap(caps.reads(), EFA_QUERY_DEVICE_CAPS_RDMA_READ)
                | cap(caps.writes(), EFA_QUERY_DEVICE_CAPS_RDMA_WRITE)
                | cap(caps.retries(), EFA_QUERY_DEVICE_CAPS_RNR_RETRY)
                | cap(polls, EFA_QUERY_DEVICE_CAPS_DATA_POLLING_128)
                | cap(caps.unsolicited(), EFA_QUERY_DEVICE_CAPS_UNSOLICITED_WRITE_RECV),
            ..Default::default()
        };
        uhw_out(c, private.as_bytes());
        Ok(())
    }

    /// `efa_query_port()`
    pub(super) fn query_port(&self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        let port = self.port.address().ok_or(Errno::EIO)?;
        let attr = ib_uverbs_query_port_resp {
            max_msg_sz: self.device.caps.mtu,
            gid_tbl_len: 1,
            pkey_tbl_len: 1,
            lmc: 1,
            max_vl_num: 1,
            link_layer: IB_LINK_LAYER_UNSPECIFIED,
            ..Default::default()
        };
        commands::query_port(c, port.up, attr)
    }

    fn gid_entry(&self) -> ib_uverbs_gid_entry {
        let gid = self.device.gid;
        ib_uverbs_gid_entry { gid: zerocopy::transmute!(gid), port_num: 1, ..Default::default() }
    }

    pub(super) fn query_gid_table(&self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        commands::query_gid_table(c, &[self.gid_entry()])
    }

    pub(super) fn query_gid_entry(&self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        commands::query_gid_entry(c, 1, |_| Some(self.gid_entry()))
    }

    /// The files of sysfs below the device's directory.
    pub(super) fn sysfs(&self, path: &str) -> Result<Vec<u8>, Errno> {
        let text = match path {
            // `RDMA_NODE_UNSPECIFIED`
            "node_type" => "7: <unknown>".into(),
            "node_desc" => self.state.config.name.clone(),
            "node_guid" | "sys_image_guid" => commands::guid_text(self.state.config.guid),
            "ports/1/pkeys/0" => "0xffff".into(),
            _ => return Err(Errno::ENOENT),
        };
        Ok(format!("{text}\n").into_bytes())
    }
}
