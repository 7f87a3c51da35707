// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands that no driver differs in, as far as that goes.

use crate::attr::{core_in, flags, handle, known, number, number32};
use crate::channels::CompChannels;
use crate::handles::Reported;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use uverbs_core::Errno;
use uverbs_core::kernel::RawCommand;
use uverbs_uapi::cmd::{ib_uverbs_create_comp_channel, ib_uverbs_destroy_cq_resp};
use uverbs_uapi::ids::{
    UVERBS_ATTR_CORE_IN, UVERBS_ATTR_CORE_OUT, UVERBS_ATTR_CREATE_CQ_COMP_CHANNEL,
    UVERBS_ATTR_DESTROY_CQ_RESP, UVERBS_ATTR_QUERY_GID_ENTRY_FLAGS, UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX,
    UVERBS_ATTR_QUERY_GID_ENTRY_PORT, UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY,
    UVERBS_ATTR_QUERY_GID_TABLE_ENTRY_SIZE, UVERBS_ATTR_QUERY_GID_TABLE_FLAGS,
    UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES, UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES,
    UVERBS_ATTR_QUERY_MR_HANDLE, UVERBS_ATTR_QUERY_MR_RESP_IOVA, UVERBS_ATTR_QUERY_MR_RESP_LENGTH,
    UVERBS_ATTR_QUERY_MR_RESP_LKEY, UVERBS_ATTR_QUERY_MR_RESP_RKEY, UVERBS_ATTR_REG_DMABUF_MR_ACCESS_FLAGS,
    UVERBS_ATTR_REG_DMABUF_MR_FD, UVERBS_ATTR_REG_DMABUF_MR_HANDLE, UVERBS_ATTR_REG_DMABUF_MR_IOVA,
    UVERBS_ATTR_REG_DMABUF_MR_LENGTH, UVERBS_ATTR_REG_DMABUF_MR_OFFSET, UVERBS_ATTR_REG_DMABUF_MR_PD_HANDLE,
    UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY, UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY, UVERBS_ATTR_UHW_IN,
    UVERBS_ATTR_UHW_OUT, UVERBS_ATTR_WRITE_CMD,
};
use uverbs_uapi::verbs::ib_uverbs_gid_entry;
use zerocopy::IntoBytes;

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
    c.answer(UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES, entries.as_bytes());
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
