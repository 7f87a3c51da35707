// SPDX-License-Identifier: MIT OR Apache-2.0
//! The commands that create, change and destroy objects.

use super::admin::{ENTRY, Entry, answer, command};
use super::bus::Pages;
use super::events::{EventQueue, EventRing};
use super::{CQ_BELL, Caps, Function, MAX_PAGES, PAGE, RQ_BELL, SQ_BELL};
use crate::device::{Access, CqParams, Device, Keys, Modify, Port, QpKind, QpParams, Refusal, State};
use std::sync::Arc;
use uverbs_efa_hw::admin::{
    AqCommonDesc, CtrlBuffInfo, EFA_ADMIN_AQ_COMMON_DESC_CTRL_DATA_INDIRECT_MASK,
    EFA_ADMIN_AQ_COMMON_DESC_CTRL_DATA_MASK, EFA_ADMIN_BAD_OPCODE, EFA_ADMIN_ILLEGAL_PARAMETER,
    EFA_ADMIN_UNSUPPORTED_OPCODE, Eqe, PBL_ADDRS_PER_CHUNK, PBL_CHUNK_BYTES,
};
use uverbs_efa_hw::cmd::{
    AllocPdResp, AllocUarResp, CreateAhCmd, CreateAhResp, CreateCqCmd, CreateCqResp, CreateEqCmd,
    CreateEqResp, CreateQpCmd, CreateQpResp, DeallocPdCmd, DeallocUarCmd, DeregMrCmd, DestroyAhCmd,
    DestroyCqCmd, DestroyEqCmd, DestroyQpCmd, EFA_ADMIN_ALLOC_MR, EFA_ADMIN_ALLOC_PD, EFA_ADMIN_ALLOC_UAR,
    EFA_ADMIN_CREATE_AH, EFA_ADMIN_CREATE_CQ, EFA_ADMIN_CREATE_CQ_CMD_CQ_ENTRY_SIZE_WORDS_MASK,
    EFA_ADMIN_CREATE_CQ_CMD_INTERRUPT_MODE_ENABLED_MASK, EFA_ADMIN_CREATE_CQ_CMD_SET_SRC_ADDR_MASK,
    EFA_ADMIN_CREATE_CQ_CMD_VIRT_MASK, EFA_ADMIN_CREATE_CQ_RESP_DB_VALID_MASK, EFA_ADMIN_CREATE_EQ,
    EFA_ADMIN_CREATE_EQ_CMD_ENTRY_SIZE_WORDS_MASK, EFA_ADMIN_CREATE_QP, EFA_ADMIN_CREATE_QP_CMD_RQ_VIRT_MASK,
    EFA_ADMIN_CREATE_QP_CMD_SQ_VIRT_MASK, EFA_ADMIN_CREATE_QP_CMD_UNSOLICITED_WRITE_RECV_MASK,
    EFA_ADMIN_DEALLOC_PD, EFA_ADMIN_DEALLOC_UAR, EFA_ADMIN_DEREG_MR, EFA_ADMIN_DESTROY_AH,
    EFA_ADMIN_DESTROY_CQ, EFA_ADMIN_DESTROY_EQ, EFA_ADMIN_DESTROY_QP, EFA_ADMIN_GET_FEATURE,
    EFA_ADMIN_GET_STATS, EFA_ADMIN_MODIFY_QP, EFA_ADMIN_MODIFY_QP_CMD_CUR_QP_STATE_MASK,
    EFA_ADMIN_MODIFY_QP_CMD_QKEY_MASK, EFA_ADMIN_MODIFY_QP_CMD_QP_STATE_MASK,
    EFA_ADMIN_MODIFY_QP_CMD_RNR_RETRY_MASK, EFA_ADMIN_MODIFY_QP_CMD_SQ_PSN_MASK, EFA_ADMIN_QP_TYPE_SRD,
    EFA_ADMIN_QP_TYPE_UD, EFA_ADMIN_QUERY_QP, EFA_ADMIN_REG_MR, EFA_ADMIN_REG_MR_CMD_LOCAL_WRITE_ENABLE_MASK,
    EFA_ADMIN_REG_MR_CMD_MEM_ADDR_PHY_MODE_EN_MASK, EFA_ADMIN_REG_MR_CMD_PHYS_PAGE_SIZE_SHIFT_MASK,
    EFA_ADMIN_REG_MR_CMD_REMOTE_READ_ENABLE_MASK, EFA_ADMIN_REG_MR_CMD_REMOTE_WRITE_ENABLE_MASK,
    EFA_ADMIN_SET_FEATURE, ModifyQpCmd, QueryQpCmd, QueryQpResp, RegMrCmd, RegMrResp,
};
use uverbs_fabric::memory::Area;
use zerocopy::{FromBytes, IntoBytes};

/// The handle of a QP is its number and this bit, so that a driver that confuses them is detected.
const HANDLE: u32 = 1 << 16;
/// The addresses in a page of a list.
const ADDRS_PER_PAGE: usize = PAGE as usize / 8;

fn qpn(handle: u32) -> Result<u16, u8> {
    handle.checked_sub(HANDLE).and_then(|n| u16::try_from(n).ok()).ok_or(EFA_ADMIN_ILLEGAL_PARAMETER)
}

/// An answer without data.
const DONE: Result<Entry, u8> = Ok([0; ENTRY]);

/// The answer to a command that has no data.
fn done(result: Result<(), Refusal>) -> Result<Entry, u8> {
    result.map(|()| [0; ENTRY]).map_err(Refusal::status)
}

impl Function {
    /// Executes a command. Returns its answer, or the status of its failure.
    pub(super) fn execute(
        &mut self,
        device: &mut Device,
        port: &mut Port<'_>,
        entry: &Entry,
    ) -> Result<Entry, u8> {
        let common: AqCommonDesc = command(entry)?;
        // A command takes effect after the accesses to memory that the device has begun.
        port.drain(device);
        match common.opcode {
            EFA_ADMIN_CREATE_QP => self.create_qp(device, &command(entry)?),
            EFA_ADMIN_MODIFY_QP => Self::modify_qp(device, port, &command(entry)?),
            EFA_ADMIN_QUERY_QP => Self::query_qp(device, &command(entry)?),
            EFA_ADMIN_DESTROY_QP => {
                let qpn = qpn(command::<DestroyQpCmd>(entry)?.qp_handle)?;
                device.destroy_qp(port, qpn).map_err(Refusal::status)?;
                if let Some(slot) = self.slot_of_qps.remove(&qpn) {
                    self.slots.free(slot);
                }
                DONE
            }
            EFA_ADMIN_CREATE_AH => {
                let CreateAhCmd { pd, dest_addr, .. } = command(entry)?;
                let ah = device.create_ah(pd, dest_addr).map_err(Refusal::status)?;
                Ok(answer(&CreateAhResp { ah, ..CreateAhResp::default() }))
            }
            EFA_ADMIN_DESTROY_AH => {
                let DestroyAhCmd { ah, pd, .. } = command(entry)?;
                done(device.destroy_ah(port, pd, ah))
            }
            EFA_ADMIN_REG_MR => self.reg_mr(device, &command(entry)?),
            EFA_ADMIN_DEREG_MR => {
                let DeregMrCmd { l_key, .. } = command(entry)?;
                device.dereg_mr(l_key).map_err(Refusal::status)?;
                self.used_pages -= self.pages.remove(&l_key).unwrap_or(0);
                DONE
            }
            EFA_ADMIN_CREATE_CQ => self.create_cq(device, &command(entry)?),
            EFA_ADMIN_DESTROY_CQ => {
                let DestroyCqCmd { cq_idx, .. } = command(entry)?;
                device.destroy_cq(cq_idx).map_err(Refusal::status)?;
                self.eq_of_cqs.remove(&cq_idx);
                DONE
            }
            EFA_ADMIN_ALLOC_PD => {
                let pd = device.alloc_pd().map_err(Refusal::status)?;
                Ok(answer(&AllocPdResp { pd, ..AllocPdResp::default() }))
            }
            EFA_ADMIN_DEALLOC_PD => done(device.dealloc_pd(command::<DeallocPdCmd>(entry)?.pd)),
            EFA_ADMIN_ALLOC_UAR => {
                let uar = device.alloc_uar().map_err(Refusal::status)?;
                Ok(answer(&AllocUarResp { uar, ..AllocUarResp::default() }))
            }
            EFA_ADMIN_DEALLOC_UAR => done(device.dealloc_uar(command::<DeallocUarCmd>(entry)?.uar)),
            EFA_ADMIN_CREATE_EQ => self.create_eq(&command(entry)?),
            EFA_ADMIN_DESTROY_EQ => {
                let DestroyEqCmd { eqn, .. } = command(entry)?;
                if self.eq_of_cqs.values().any(|of| *of == eqn) {
                    return Err(Refusal::Busy.status());
                }
                self.eqs.remove(&eqn).ok_or(EFA_ADMIN_ILLEGAL_PARAMETER)?;
                self.eq_numbers.free(eqn.into());
                DONE
            }
            EFA_ADMIN_GET_FEATURE => self.get_feature(device, &command(entry)?),
            EFA_ADMIN_SET_FEATURE => self.set_feature(&command(entry)?),
            EFA_ADMIN_GET_STATS => Self::get_stats(device, &command(entry)?),
            // Only clients in the kernel use it, which no released kernel has.
            EFA_ADMIN_ALLOC_MR => Err(EFA_ADMIN_UNSUPPORTED_OPCODE),
            _ => Err(EFA_ADMIN_BAD_OPCODE),
        }
    }

    /// Memory of the machine as a ring.
    fn ring(&self, addr: u64, bytes: u64) -> Option<Area> {
        // Entries do not cross pages.
        let memory = Pages::contiguous(&self.bus, addr, bytes).filter(|_| addr.is_multiple_of(PAGE))?;
        Area::new(Arc::new(memory), 0, bytes)
    }

    fn create_qp(&mut self, device: &mut Device, cmd: &CreateQpCmd) -> Result<Entry, u8> {
        let kind = match cmd.qp_type {
            EFA_ADMIN_QP_TYPE_UD => QpKind::Ud,
            EFA_ADMIN_QP_TYPE_SRD => QpKind::Srd,
            _ => return Err(EFA_ADMIN_ILLEGAL_PARAMETER),
        };
        let known = EFA_ADMIN_CREATE_QP_CMD_UNSOLICITED_WRITE_RECV_MASK;
        let is_virtual =
            cmd.flags & (EFA_ADMIN_CREATE_QP_CMD_SQ_VIRT_MASK | EFA_ADMIN_CREATE_QP_CMD_RQ_VIRT_MASK);
        let (sizes, caps) = (&cmd.qp_alloc_size, device.caps);
        let cqs = (u16::try_from(cmd.send_cq_idx), u16::try_from(cmd.recv_cq_idx));
        let (Ok(send_cq), Ok(recv_cq)) = cqs else { return Err(EFA_ADMIN_ILLEGAL_PARAMETER) };
        if is_virtual != 0 || cmd.flags & !known != 0 || sizes.send_queue_ring_size > caps.max_llq {
            return Err(EFA_ADMIN_ILLEGAL_PARAMETER);
        }
        let slot = self.slots.alloc().ok_or(Refusal::NoResources.status())?;
        let offset = u64::from(slot) * u64::from(caps.max_llq);
        let (sq_bytes, rq_bytes) = (sizes.send_queue_ring_size.into(), sizes.recv_queue_ring_size.into());
        let params = QpParams {
            kind,
            pd: cmd.pd,
            send_cq,
            recv_cq,
            sq_ring: if sq_bytes == 0 { None } else { Area::new(Arc::clone(&self.llq), offset, sq_bytes) },
            sq_depth: sizes.send_queue_depth,
            rq_ring: if rq_bytes == 0 { None } else { self.ring(cmd.rq_base_addr, rq_bytes) },
            rq_depth: sizes.recv_queue_depth,
            uar: cmd.uar,
            unsolicited: cmd.flags & known != 0,
        };
        let qpn = match device.create_qp(params) {
            Ok(qpn) => qpn,
            Err(refusal) => {
                self.slots.free(slot);
                return Err(refusal.status());
            }
        };
        self.slot_of_qps.insert(qpn, slot);
        let page = u32::from(qpn % Caps::MAX_QP) * PAGE as u32;
        let (send_sub_cq_idx, recv_sub_cq_idx) =
            device.qp(qpn).map(|qp| (qp.send_sub, qp.recv_sub)).unwrap_or_default();
        Ok(answer(&CreateQpResp {
            qp_handle: u32::from(qpn) + HANDLE,
            qp_num: qpn,
            send_sub_cq_idx,
            recv_sub_cq_idx,
            sq_db_offset: page + SQ_BELL as u32,
            rq_db_offset: page + RQ_BELL as u32,
            llq_descriptors_offset: offset as u32,
            ..CreateQpResp::default()
        }))
    }

    fn modify_qp(device: &mut Device, port: &mut Port<'_>, cmd: &ModifyQpCmd) -> Result<Entry, u8> {
        let has = |bit| cmd.modify_mask & bit != 0;
        let state = |bit, number| match has(bit) {
            true => State::of(number).map(Some).ok_or(EFA_ADMIN_ILLEGAL_PARAMETER),
            false => Ok(None),
        };
        let change = Modify {
            from: state(EFA_ADMIN_MODIFY_QP_CMD_CUR_QP_STATE_MASK, cmd.cur_qp_state)?,
            to: state(EFA_ADMIN_MODIFY_QP_CMD_QP_STATE_MASK, cmd.qp_state)?,
            qkey: has(EFA_ADMIN_MODIFY_QP_CMD_QKEY_MASK).then_some(cmd.qkey),
            sq_psn: has(EFA_ADMIN_MODIFY_QP_CMD_SQ_PSN_MASK).then_some(cmd.sq_psn),
            rnr_retry: has(EFA_ADMIN_MODIFY_QP_CMD_RNR_RETRY_MASK).then_some(cmd.rnr_retry),
        };
        done(device.modify_qp(port, qpn(cmd.qp_handle)?, change))
    }

    fn query_qp(device: &Device, cmd: &QueryQpCmd) -> Result<Entry, u8> {
        let qp = device.qp(qpn(cmd.qp_handle)?).ok_or(EFA_ADMIN_ILLEGAL_PARAMETER)?;
        Ok(answer(&QueryQpResp {
            qp_state: qp.state.number(),
            qkey: qp.qkey,
            sq_psn: qp.sq_psn,
            sq_draining: u8::from(qp.state == State::Sqd && qp.is_draining()),
            rnr_retry: qp.rnr_retry,
            ..QueryQpResp::default()
        }))
    }

    fn create_cq(&mut self, device: &mut Device, cmd: &CreateCqCmd) -> Result<Entry, u8> {
        let events = cmd.cq_caps_1 & EFA_ADMIN_CREATE_CQ_CMD_INTERRUPT_MODE_ENABLED_MASK != 0;
        let entry = (cmd.cq_caps_2 & EFA_ADMIN_CREATE_CQ_CMD_CQ_ENTRY_SIZE_WORDS_MASK) * 4;
        let depth = u32::from(cmd.sub_cq_depth);
        let bytes = u64::from(depth) * u64::from(entry) * u64::from(cmd.num_sub_cqs);
        let is_virtual = cmd.cq_caps_1 & EFA_ADMIN_CREATE_CQ_CMD_VIRT_MASK != 0;
        if is_virtual || events && !self.eqs.contains_key(&cmd.eqn) {
            return Err(EFA_ADMIN_ILLEGAL_PARAMETER);
        }
        let params = CqParams {
            ring: self.ring(cmd.cq_ba.get(), bytes).ok_or(EFA_ADMIN_ILLEGAL_PARAMETER)?,
            depth,
            entry,
            sub_cqs: cmd.num_sub_cqs,
            events,
            source_gid: cmd.cq_caps_2 & EFA_ADMIN_CREATE_CQ_CMD_SET_SRC_ADDR_MASK != 0,
            uar: cmd.uar,
        };
        let cq_idx = device.create_cq(params).map_err(Refusal::status)?;
        if events {
            self.eq_of_cqs.insert(cq_idx, cmd.eqn);
        }
        Ok(answer(&CreateCqResp {
            cq_idx,
            sub_cq_actual_depth: cmd.sub_cq_depth,
            db_offset: ((u64::from(Caps::MAX_QP) + u64::from(cq_idx)) * PAGE + CQ_BELL) as u32,
            flags: if events { EFA_ADMIN_CREATE_CQ_RESP_DB_VALID_MASK } else { 0 },
            ..CreateCqResp::default()
        }))
    }

    fn create_eq(&mut self, cmd: &CreateEqCmd) -> Result<Entry, u8> {
        let words = usize::from(cmd.caps & EFA_ADMIN_CREATE_EQ_CMD_ENTRY_SIZE_WORDS_MASK);
        if words * 4 != size_of::<Eqe>() || !cmd.depth.is_power_of_two() || cmd.depth > Caps::MAX_EQ_DEPTH {
            return Err(EFA_ADMIN_ILLEGAL_PARAMETER);
        }
        let eqn = self.eq_numbers.alloc().ok_or(Refusal::NoResources.status())? as u16;
        let ring = EventRing { base: cmd.ba.get(), depth: cmd.depth.into(), ..EventRing::default() };
        self.eqs.insert(eqn, EventQueue { ring, vector: cmd.msix_vec, armed: false, pending: false });
        Ok(answer(&CreateEqResp { eqn, ..CreateEqResp::default() }))
    }

    fn reg_mr(&mut self, device: &mut Device, cmd: &RegMrCmd) -> Result<Entry, u8> {
        let shift = cmd.flags & EFA_ADMIN_REG_MR_CMD_PHYS_PAGE_SIZE_SHIFT_MASK;
        let is_physical = cmd.flags & EFA_ADMIN_REG_MR_CMD_MEM_ADDR_PHY_MODE_EN_MASK != 0;
        let offset = cmd.iova & ((1_u64 << shift) - 1);
        // The driver does not set the number of pages (`efa_com_register_mr()`).
        let count = offset.checked_add(cmd.mr_length).map(|end| end.div_ceil(1 << shift));
        let count = count.filter(|n| cmd.page_num == 0 || *n == u64::from(cmd.page_num));
        let count = count.filter(|n| *n <= Caps::MAX_PAGES.into()).ok_or(EFA_ADMIN_ILLEGAL_PARAMETER)?;
        if is_physical || shift < 12 {
            return Err(EFA_ADMIN_ILLEGAL_PARAMETER);
        }
        // Before the list is read, which may be long.
        device.check_pd(cmd.pd).map_err(Refusal::status)?;
        if self.used_pages + count > MAX_PAGES {
            return Err(Refusal::NoResources.status());
        }
        let pages = self.page_list(cmd, count as usize).ok_or(EFA_ADMIN_ILLEGAL_PARAMETER)?;
        let memory = Pages::new(&self.bus, pages, shift, offset, cmd.mr_length);
        let memory = Arc::new(memory.ok_or(EFA_ADMIN_ILLEGAL_PARAMETER)?);
        let has = |bit| cmd.permissions & bit != 0;
        let access = Access {
            local_write: has(EFA_ADMIN_REG_MR_CMD_LOCAL_WRITE_ENABLE_MASK),
            remote_read: has(EFA_ADMIN_REG_MR_CMD_REMOTE_READ_ENABLE_MASK),
            remote_write: has(EFA_ADMIN_REG_MR_CMD_REMOTE_WRITE_ENABLE_MASK),
        };
        let keys = device.reg_mr(cmd.pd, memory, cmd.iova, access).map_err(Refusal::status)?;
        let Keys { lkey: l_key, rkey: r_key } = keys;
        self.pages.insert(l_key, count);
        self.used_pages += count;
        Ok(answer(&RegMrResp { l_key, r_key, ..RegMrResp::default() }))
    }

    /// The addresses of a region's pages: in the command, in one list, or in pages of a list that chunks name.
    fn page_list(&self, cmd: &RegMrCmd, count: usize) -> Option<Vec<u64>> {
        let flags = cmd.aq_common_desc.flags;
        if flags & EFA_ADMIN_AQ_COMMON_DESC_CTRL_DATA_MASK == 0 {
            return Some(cmd.pbl.get(..count)?.to_vec());
        }
        let (mut info, _) = CtrlBuffInfo::read_from_prefix(cmd.pbl.as_bytes()).ok()?;
        let words = |addr: u64, n: usize| {
            let mut words = vec![0_u64; n];
            self.bus.read(addr, words.as_mut_bytes()).ok()?;
            Some(words)
        };
        if flags & EFA_ADMIN_AQ_COMMON_DESC_CTRL_DATA_INDIRECT_MASK == 0 {
            return words(info.address.get(), count);
        }
        // Each chunk has addresses of pages of the list, and where the next chunk is.
        let mut pages = Vec::new();
        let mut lists = count.div_ceil(ADDRS_PER_PAGE);
        while lists > 0 {
            let here = lists.min(PBL_ADDRS_PER_CHUNK);
            let mut chunk = [0_u8; PBL_CHUNK_BYTES];
            let used = if lists > here { PBL_CHUNK_BYTES } else { here * 8 };
            self.bus.read(info.address.get(), chunk.get_mut(..used)?).ok()?;
            for list in chunk.chunks_exact(8).take(here) {
                let n = (count - pages.len()).min(ADDRS_PER_PAGE);
                pages.extend(words(u64::from_le_bytes(list.try_into().ok()?), n)?);
            }
            lists -= here;
            (info, _) = CtrlBuffInfo::read_from_prefix(chunk.get(PBL_ADDRS_PER_CHUNK * 8..)?).ok()?;
        }
        Some(pages)
    }
}
