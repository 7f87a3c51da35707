// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands that no driver differs in, as far as that goes.

use crate::attr::{core_in, flags, handle, known, number, number32};
use crate::channels::CompChannels;
use crate::handles::Reported;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use uverbs_core::Errno;
use uverbs_core::kernel::RawCommand;
use uverbs_uapi::cmd::{
    IB_USER_VERBS_CMD_FLAG_EXTENDED, ib_uverbs_create_comp_channel, ib_uverbs_destroy_cq_resp,
    ib_uverbs_ex_modify_qp, ib_uverbs_ex_query_device, ib_uverbs_query_port_resp,
};
use uverbs_uapi::ids::{
    UVERBS_ATTR_CORE_IN, UVERBS_ATTR_CORE_OUT, UVERBS_ATTR_CREATE_CQ_COMP_CHANNEL,
    UVERBS_ATTR_CREATE_CQ_COMP_VECTOR, UVERBS_ATTR_CREATE_CQ_CQE, UVERBS_ATTR_CREATE_CQ_EVENT_FD,
    UVERBS_ATTR_CREATE_CQ_FLAGS, UVERBS_ATTR_CREATE_CQ_HANDLE, UVERBS_ATTR_CREATE_CQ_RESP_CQE,
    UVERBS_ATTR_CREATE_CQ_USER_HANDLE, UVERBS_ATTR_CREATE_QP_CAP, UVERBS_ATTR_CREATE_QP_EVENT_FD,
    UVERBS_ATTR_CREATE_QP_FLAGS, UVERBS_ATTR_CREATE_QP_HANDLE, UVERBS_ATTR_CREATE_QP_PD_HANDLE,
    UVERBS_ATTR_CREATE_QP_RECV_CQ_HANDLE, UVERBS_ATTR_CREATE_QP_RESP_CAP, UVERBS_ATTR_CREATE_QP_RESP_QP_NUM,
    UVERBS_ATTR_CREATE_QP_SEND_CQ_HANDLE, UVERBS_ATTR_CREATE_QP_SRQ_HANDLE, UVERBS_ATTR_CREATE_QP_TYPE,
    UVERBS_ATTR_CREATE_QP_USER_HANDLE, UVERBS_ATTR_DESTROY_CQ_RESP, UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT,
    UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS, UVERBS_ATTR_QUERY_GID_ENTRY_FLAGS,
    UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX, UVERBS_ATTR_QUERY_GID_ENTRY_PORT,
    UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY, UVERBS_ATTR_QUERY_GID_TABLE_ENTRY_SIZE,
    UVERBS_ATTR_QUERY_GID_TABLE_FLAGS, UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES,
    UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES, UVERBS_ATTR_QUERY_MR_HANDLE,
    UVERBS_ATTR_QUERY_MR_RESP_IOVA, UVERBS_ATTR_QUERY_MR_RESP_LENGTH, UVERBS_ATTR_QUERY_MR_RESP_LKEY,
    UVERBS_ATTR_QUERY_MR_RESP_RKEY, UVERBS_ATTR_QUERY_PORT_PORT_NUM, UVERBS_ATTR_QUERY_PORT_RESP,
    UVERBS_ATTR_REG_DMABUF_MR_ACCESS_FLAGS, UVERBS_ATTR_REG_DMABUF_MR_FD, UVERBS_ATTR_REG_DMABUF_MR_HANDLE,
    UVERBS_ATTR_REG_DMABUF_MR_IOVA, UVERBS_ATTR_REG_DMABUF_MR_LENGTH, UVERBS_ATTR_REG_DMABUF_MR_OFFSET,
    UVERBS_ATTR_REG_DMABUF_MR_PD_HANDLE, UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY,
    UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY, UVERBS_ATTR_UHW_IN, UVERBS_ATTR_UHW_OUT, UVERBS_ATTR_WRITE_CMD,
};
use uverbs_uapi::verbs::{
    IB_MTU_4096, IB_PORT_ACTIVE, IB_PORT_DOWN, IB_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS,
    ib_uverbs_gid_entry, ib_uverbs_qp_cap, ib_uverbs_query_port_resp_ex,
};
use zerocopy::{FromBytes, IntoBytes};

/// The number of a command of the legacy write interface that is called through the ioctl.
///
/// # Errors
/// There is no context yet, or it has unknown attributes.
pub fn write_command(c: &RawCommand<'_, '_>, is_open: bool) -> Result<u32, Errno> {
    known(
        c,
        &[
            UVERBS_ATTR_CORE_IN,
            UVERBS_ATTR_CORE_OUT,
            UVERBS_ATTR_WRITE_CMD,
            UVERBS_ATTR_UHW_IN,
            UVERBS_ATTR_UHW_OUT,
        ],
    )?;
    let command = number32(c, UVERBS_ATTR_WRITE_CMD)?;
    if !is_open {
        // uverbs checks the sizes first, so a library can test whether this method exists.
        return Err(if c.has(UVERBS_ATTR_CORE_IN) { Errno::EINVAL } else { Errno::ENOSPC });
    }
    Ok(command)
}

/// `IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL`
///
/// # Errors
/// There is no room for the answer, or the process has too many open files.
pub fn create_comp_channel(
    c: &mut RawCommand<'_, '_>,
    channels: &mut CompChannels,
    context: u32,
) -> Result<(), Errno> {
    let _: ib_uverbs_create_comp_channel = core_in(c)?;
    if !c.mark_valid(UVERBS_ATTR_CORE_OUT) {
        return Err(Errno::ENOSPC);
    }
    let fd = channels.add(context)?;
    if c.new_fd(UVERBS_ATTR_CORE_OUT, fd) { Ok(()) } else { Err(Errno::EINVAL) }
}

/// Answers `UVERBS_METHOD_GET_CONTEXT` with what the core of uverbs says.
pub fn answer_context(c: &mut RawCommand<'_, '_>, vectors: u32) {
    c.answer(UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS, &vectors.to_ne_bytes());
    let support = IB_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS;
    c.answer(UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT, &support.to_ne_bytes());
}

/// The request of `IB_USER_VERBS_CMD_MODIFY_QP`, or of its extended form.
///
/// # Errors
/// Those of [`core_in`].
pub fn modify_qp(c: &RawCommand<'_, '_>, command: u32) -> Result<ib_uverbs_ex_modify_qp, Errno> {
    if command & IB_USER_VERBS_CMD_FLAG_EXTENDED != 0 {
        core_in(c)
    } else {
        core_in(c).map(|base| ib_uverbs_ex_modify_qp { base, ..Default::default() })
    }
}

/// Checks the request of the extended form of `IB_USER_VERBS_CMD_QUERY_DEVICE`.
///
/// # Errors
/// It has unknown bits, and those of [`core_in`].
pub fn query_device_ex(c: &RawCommand<'_, '_>) -> Result<(), Errno> {
    let request: ib_uverbs_ex_query_device = core_in(c)?;
    if request == ib_uverbs_ex_query_device::default() { Ok(()) } else { Err(Errno::EINVAL) }
}

/// Answers `UVERBS_METHOD_QUERY_PORT` with the attributes of a port with 4 lanes of 25 Gbit/s. The other ones are the model's.
///
/// # Errors
/// Another port than 1, or an attribute is unknown.
pub fn query_port(
    c: &mut RawCommand<'_, '_>,
    up: bool,
    model: ib_uverbs_query_port_resp,
) -> Result<(), Errno> {
    known(c, &[UVERBS_ATTR_QUERY_PORT_PORT_NUM, UVERBS_ATTR_QUERY_PORT_RESP])?;
    if number(c, UVERBS_ATTR_QUERY_PORT_PORT_NUM) != Some(1) {
        return Err(Errno::EINVAL);
    }
    let (width_4x, speed_edr) = (2, 32);
    let resp = ib_uverbs_query_port_resp_ex {
        legacy_resp: ib_uverbs_query_port_resp {
            state: if up { IB_PORT_ACTIVE } else { IB_PORT_DOWN },
            max_mtu: IB_MTU_4096,
            active_mtu: if model.active_mtu == 0 { IB_MTU_4096 } else { model.active_mtu },
            active_width: width_4x,
            active_speed: speed_edr,
            // LinkUp, or Polling.
            phys_state: if up { 5 } else { 2 },
            ..model
        },
        active_speed_ex: speed_edr.into(),
        ..Default::default()
    };
    c.answer(UVERBS_ATTR_QUERY_PORT_RESP, resp.as_bytes());
    Ok(())
}

/// A GUID, as sysfs has it.
#[must_use]
pub fn guid_text(guid: u64) -> String {
    let [a, b, c, d] = [48, 32, 16, 0].map(|shift| guid >> shift & 0xffff);
    format!("{a:04x}:{b:04x}:{c:04x}:{d:04x}")
}

/// What `UVERBS_METHOD_CQ_CREATE` requests.
#[derive(Debug)]
pub struct CreateCq {
    /// Entries at least.
    pub cqe: u32,
    /// The program's number of it.
    pub user_handle: u64,
    /// `IB_UVERBS_CQ_FLAGS_*`
    pub flags: u32,
}

impl CreateCq {
    /// Reads it. `own` are the driver's attributes.
    ///
    /// # Errors
    /// An attribute is unknown or missing, or there is no such completion vector.
    pub fn of(c: &RawCommand<'_, '_>, own: &[u16], vectors: u32) -> Result<Self, Errno> {
        let ids = [
            UVERBS_ATTR_CREATE_CQ_HANDLE,
            UVERBS_ATTR_CREATE_CQ_CQE,
            UVERBS_ATTR_CREATE_CQ_USER_HANDLE,
            UVERBS_ATTR_CREATE_CQ_COMP_CHANNEL,
            UVERBS_ATTR_CREATE_CQ_COMP_VECTOR,
            UVERBS_ATTR_CREATE_CQ_FLAGS,
            UVERBS_ATTR_CREATE_CQ_RESP_CQE,
            UVERBS_ATTR_CREATE_CQ_EVENT_FD,
            UVERBS_ATTR_UHW_IN,
            UVERBS_ATTR_UHW_OUT,
        ];
        known(c, &[&ids, own].concat())?;
        let cqe = number32(c, UVERBS_ATTR_CREATE_CQ_CQE)?;
        let user_handle = number(c, UVERBS_ATTR_CREATE_CQ_USER_HANDLE).ok_or(Errno::EINVAL)?;
        if number32(c, UVERBS_ATTR_CREATE_CQ_COMP_VECTOR)? >= vectors {
            return Err(Errno::EINVAL);
        }
        Ok(Self { cqe, user_handle, flags: flags(c, UVERBS_ATTR_CREATE_CQ_FLAGS)? })
    }
}

/// What `UVERBS_METHOD_QP_CREATE` requests.
#[derive(Debug)]
pub struct CreateQp {
    /// The program's number of it.
    pub user_handle: u64,
    /// The capacities.
    pub cap: ib_uverbs_qp_cap,
    /// `IB_UVERBS_QP_CREATE_*`
    pub flags: u32,
    /// `IB_QPT_*`
    pub qp_type: u32,
}

impl CreateQp {
    /// Reads it. `own` are the driver's attributes.
    ///
    /// # Errors
    /// An attribute is unknown or missing.
    pub fn of(c: &RawCommand<'_, '_>, own: &[u16]) -> Result<Self, Errno> {
        let ids = [
            UVERBS_ATTR_CREATE_QP_HANDLE,
            UVERBS_ATTR_CREATE_QP_PD_HANDLE,
            UVERBS_ATTR_CREATE_QP_SRQ_HANDLE,
            UVERBS_ATTR_CREATE_QP_SEND_CQ_HANDLE,
            UVERBS_ATTR_CREATE_QP_RECV_CQ_HANDLE,
            UVERBS_ATTR_CREATE_QP_USER_HANDLE,
            UVERBS_ATTR_CREATE_QP_CAP,
            UVERBS_ATTR_CREATE_QP_TYPE,
            UVERBS_ATTR_CREATE_QP_FLAGS,
            UVERBS_ATTR_CREATE_QP_EVENT_FD,
            UVERBS_ATTR_CREATE_QP_RESP_CAP,
            UVERBS_ATTR_CREATE_QP_RESP_QP_NUM,
            UVERBS_ATTR_UHW_IN,
            UVERBS_ATTR_UHW_OUT,
        ];
        known(c, &[&ids, own].concat())?;
        let cap = c.input(UVERBS_ATTR_CREATE_QP_CAP).ok_or(Errno::EINVAL)?;
        Ok(Self {
            user_handle: number(c, UVERBS_ATTR_CREATE_QP_USER_HANDLE).ok_or(Errno::EINVAL)?,
            cap: ib_uverbs_qp_cap::read_from_bytes(cap).map_err(|_| Errno::EINVAL)?,
            flags: flags(c, UVERBS_ATTR_CREATE_QP_FLAGS)?,
            qp_type: number32(c, UVERBS_ATTR_CREATE_QP_TYPE)?,
        })
    }

    /// Answers with the capacities and the number.
    pub fn answer(c: &mut RawCommand<'_, '_>, cap: &ib_uverbs_qp_cap, qpn: u32) {
        c.answer(UVERBS_ATTR_CREATE_QP_RESP_CAP, cap.as_bytes());
        c.answer(UVERBS_ATTR_CREATE_QP_RESP_QP_NUM, &qpn.to_ne_bytes());
    }
}

/// The completion channel that the creation of a CQ names.
///
/// # Errors
/// The file is no completion channel.
pub fn channel_of_cq(
    c: &RawCommand<'_, '_>,
    channels: &mut CompChannels,
) -> Result<Option<(usize, Arc<OwnedFd>)>, Errno> {
    if !c.has(UVERBS_ATTR_CREATE_CQ_COMP_CHANNEL) {
        return Ok(None);
    }
    let fd = c.fd(UVERBS_ATTR_CREATE_CQ_COMP_CHANNEL).ok_or(Errno::EINVAL)?;
    channels.of_fd(fd).map(Some)
}

/// Answers the destruction of a CQ with the events that were read.
pub fn answer_destroy_cq(c: &mut RawCommand<'_, '_>, reported: Reported) {
    let resp = ib_uverbs_destroy_cq_resp {
        comp_events_reported: reported.completions,
        async_events_reported: reported.asyncs,
    };
    c.answer(UVERBS_ATTR_DESTROY_CQ_RESP, resp.as_bytes());
}

/// Answers `UVERBS_METHOD_QUERY_GID_TABLE`.
///
/// # Errors
/// There is too little room, or a flag is unknown.
pub fn query_gid_table(c: &mut RawCommand<'_, '_>, entries: &[ib_uverbs_gid_entry]) -> Result<(), Errno> {
    known(
        c,
        &[
            UVERBS_ATTR_QUERY_GID_TABLE_ENTRY_SIZE,
            UVERBS_ATTR_QUERY_GID_TABLE_FLAGS,
            UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES,
            UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES,
        ],
    )?;
    let size = size_of::<ib_uverbs_gid_entry>();
    let asked = number(c, UVERBS_ATTR_QUERY_GID_TABLE_ENTRY_SIZE);
    if flags(c, UVERBS_ATTR_QUERY_GID_TABLE_FLAGS)? != 0 || asked != Some(size as u64) {
        return Err(Errno::EINVAL);
    }
    let room = c.output(UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES).map_or(0, |b| b.len() / size);
    if entries.len() > room {
        return Err(Errno::EINVAL);
    }
    // `copy_to`: what is behind the entries stays as it is.
    if let Some(output) = c.output(UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES) {
        let bytes = entries.as_bytes();
        output[..bytes.len()].copy_from_slice(bytes);
        c.mark_valid(UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES);
    }
    let count = entries.len() as u64;
    c.answer(UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES, &count.to_ne_bytes());
    Ok(())
}

/// Answers `UVERBS_METHOD_QUERY_GID_ENTRY` for a table of so many entries, some of which are empty.
///
/// # Errors
/// The port or the index is out of range (`EINVAL`), or the entry is empty (`ENODATA`).
pub fn query_gid_entry(
    c: &mut RawCommand<'_, '_>,
    entries: u32,
    entry: impl FnOnce(usize) -> Option<ib_uverbs_gid_entry>,
) -> Result<(), Errno> {
    known(
        c,
        &[
            UVERBS_ATTR_QUERY_GID_ENTRY_PORT,
            UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX,
            UVERBS_ATTR_QUERY_GID_ENTRY_FLAGS,
            UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY,
        ],
    )?;
    let index = number(c, UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX);
    let index = index.filter(|i| *i < u64::from(entries)).ok_or(Errno::EINVAL)?;
    if flags(c, UVERBS_ATTR_QUERY_GID_ENTRY_FLAGS)? != 0
        || number(c, UVERBS_ATTR_QUERY_GID_ENTRY_PORT) != Some(1)
    {
        return Err(Errno::EINVAL);
    }
    let entry = entry(index as usize).ok_or(Errno::ENODATA)?;
    c.answer(UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY, entry.as_bytes());
    Ok(())
}

/// The handle of the region that `UVERBS_METHOD_QUERY_MR` is about.
///
/// # Errors
/// An attribute is unknown, or there is no handle.
pub fn queried_mr(c: &RawCommand<'_, '_>) -> Result<u32, Errno> {
    known(
        c,
        &[
            UVERBS_ATTR_QUERY_MR_HANDLE,
            UVERBS_ATTR_QUERY_MR_RESP_LKEY,
            UVERBS_ATTR_QUERY_MR_RESP_RKEY,
            UVERBS_ATTR_QUERY_MR_RESP_LENGTH,
            UVERBS_ATTR_QUERY_MR_RESP_IOVA,
        ],
    )?;
    handle(c, UVERBS_ATTR_QUERY_MR_HANDLE)
}

/// Answers `UVERBS_METHOD_QUERY_MR`.
pub fn answer_query_mr(c: &mut RawCommand<'_, '_>, (lkey, rkey): (u32, u32), iova: u64, len: u64) {
    c.answer(UVERBS_ATTR_QUERY_MR_RESP_LKEY, &lkey.to_ne_bytes());
    c.answer(UVERBS_ATTR_QUERY_MR_RESP_RKEY, &rkey.to_ne_bytes());
    c.answer(UVERBS_ATTR_QUERY_MR_RESP_LENGTH, &len.to_ne_bytes());
    c.answer(UVERBS_ATTR_QUERY_MR_RESP_IOVA, &iova.to_ne_bytes());
}

/// What `UVERBS_METHOD_REG_DMABUF_MR` requests.
#[derive(Clone, Copy, Debug)]
pub struct RegDmabuf {
    /// The handle of the domain.
    pub pd_handle: u32,
    /// Rights.
    pub access: u32,
    /// The first byte in the file.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Address in requests.
    pub iova: u64,
    /// The file.
    pub fd: i32,
}

impl RegDmabuf {
    /// Reads it.
    ///
    /// # Errors
    /// An attribute is unknown or missing.
    pub fn of(c: &RawCommand<'_, '_>) -> Result<Self, Errno> {
        known(
            c,
            &[
                UVERBS_ATTR_REG_DMABUF_MR_HANDLE,
                UVERBS_ATTR_REG_DMABUF_MR_PD_HANDLE,
                UVERBS_ATTR_REG_DMABUF_MR_OFFSET,
                UVERBS_ATTR_REG_DMABUF_MR_LENGTH,
                UVERBS_ATTR_REG_DMABUF_MR_IOVA,
                UVERBS_ATTR_REG_DMABUF_MR_FD,
                UVERBS_ATTR_REG_DMABUF_MR_ACCESS_FLAGS,
                UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY,
                UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY,
            ],
        )?;
        let input = |id| number(c, id).ok_or(Errno::EINVAL);
        Ok(Self {
            pd_handle: handle(c, UVERBS_ATTR_REG_DMABUF_MR_PD_HANDLE)?,
            access: flags(c, UVERBS_ATTR_REG_DMABUF_MR_ACCESS_FLAGS)?,
            offset: input(UVERBS_ATTR_REG_DMABUF_MR_OFFSET)?,
            len: input(UVERBS_ATTR_REG_DMABUF_MR_LENGTH)?,
            iova: input(UVERBS_ATTR_REG_DMABUF_MR_IOVA)?,
            fd: number32(c, UVERBS_ATTR_REG_DMABUF_MR_FD)?.cast_signed(),
        })
    }

    /// Answers with the keys.
    pub fn answer(c: &mut RawCommand<'_, '_>, (lkey, rkey): (u32, u32)) {
        c.answer(UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY, &lkey.to_ne_bytes());
        c.answer(UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY, &rkey.to_ne_bytes());
    }
}
