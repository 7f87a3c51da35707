// SPDX-License-Identifier: MIT OR Apache-2.0
//! Work queues, and the tables that spread packets over them (ibv_create_wq(3), ibv_create_rwq_ind_table(3)).
#![expect(unsafe_code)]
// UNSAFETY: declares a verb that destroys an object, on whose queue the posting of its driver relies; undoing a
// creation calls that verb.

use super::{CqHandle, Object, PdHandle, Result, handle_common, invoke_only, new_object};
use crate::attr::{WqAttr, WqInitAttr};
use crate::error::Error;
use crate::kernel::{Command, Kernel, Uhw};
use crate::provider::same_context;
use std::sync::Arc;
use uverbs_uapi::cmd::{
    IB_USER_VERBS_CMD_FLAG_EXTENDED, IB_USER_VERBS_EX_CMD_CREATE_RWQ_IND_TBL, IB_USER_VERBS_EX_CMD_MODIFY_WQ,
    IB_USER_VERBS_MAX_LOG_IND_TBL_SIZE, ib_uverbs_ex_create_rwq_ind_table,
    ib_uverbs_ex_create_rwq_ind_table_resp, ib_uverbs_ex_modify_wq,
};
use uverbs_uapi::ids::{
    UVERBS_ATTR_CORE_IN, UVERBS_ATTR_CORE_OUT, UVERBS_ATTR_CREATE_WQ_CQ_HANDLE, UVERBS_ATTR_CREATE_WQ_FLAGS,
    UVERBS_ATTR_CREATE_WQ_HANDLE, UVERBS_ATTR_CREATE_WQ_MAX_SGE, UVERBS_ATTR_CREATE_WQ_MAX_WR,
    UVERBS_ATTR_CREATE_WQ_PD_HANDLE, UVERBS_ATTR_CREATE_WQ_RESP_MAX_SGE, UVERBS_ATTR_CREATE_WQ_RESP_MAX_WR,
    UVERBS_ATTR_CREATE_WQ_RESP_WQ_NUM, UVERBS_ATTR_CREATE_WQ_TYPE, UVERBS_ATTR_CREATE_WQ_USER_HANDLE,
    UVERBS_ATTR_DESTROY_RWQ_IND_TBL_HANDLE, UVERBS_ATTR_DESTROY_WQ_HANDLE, UVERBS_ATTR_DESTROY_WQ_RESP,
    UVERBS_ATTR_WRITE_CMD, UVERBS_METHOD_INVOKE_WRITE, UVERBS_METHOD_RWQ_IND_TBL_DESTROY,
    UVERBS_METHOD_WQ_CREATE, UVERBS_METHOD_WQ_DESTROY, UVERBS_OBJECT_DEVICE, UVERBS_OBJECT_RWQ_IND_TBL,
    UVERBS_OBJECT_WQ,
};
use uverbs_uapi::verbs::IB_UVERBS_WQT_RQ;
use uverbs_uapi::verbs::{IB_WQ_CUR_STATE, IB_WQ_FLAGS, IB_WQ_STATE};
use zerocopy::IntoBytes;

/// A work queue: receives without a QP.
#[derive(Debug)]
pub struct WqHandle {
    object: Object,
    wq_num: u32,
}

handle_common!(WqHandle, "wq");

/// Creates a work queue and returns it with its sizes. Its events carry `user_handle`.
///
/// # Errors
/// The kernel's error; [`Error::Unsupported`] if the device has none.
pub fn create(
    pd: &PdHandle,
    cq: &CqHandle,
    attr: &WqInitAttr,
    user_handle: u64,
    uhw: Uhw<'_>,
) -> Result<(WqHandle, WqInitAttr)> {
    const VERB: &str = "create_wq";
    let mut got = *attr;
    let mut wq_num = 0_u32;
    let mut command = Command::<13>::new(UVERBS_OBJECT_WQ, UVERBS_METHOD_WQ_CREATE);
    command
        .handle_new(UVERBS_ATTR_CREATE_WQ_HANDLE)
        .handle_in(UVERBS_ATTR_CREATE_WQ_PD_HANDLE, pd.handle())
        .handle_in(UVERBS_ATTR_CREATE_WQ_CQ_HANDLE, cq.handle())
        .u64(UVERBS_ATTR_CREATE_WQ_USER_HANDLE, user_handle)
        .constant(UVERBS_ATTR_CREATE_WQ_TYPE, IB_UVERBS_WQT_RQ)
        .u32(UVERBS_ATTR_CREATE_WQ_MAX_WR, attr.max_wr)
        .u32(UVERBS_ATTR_CREATE_WQ_MAX_SGE, attr.max_sge)
        .flags(UVERBS_ATTR_CREATE_WQ_FLAGS, attr.create_flags.bits())
        .output(UVERBS_ATTR_CREATE_WQ_RESP_MAX_WR, &mut got.max_wr)
        .output(UVERBS_ATTR_CREATE_WQ_RESP_MAX_SGE, &mut got.max_sge)
        .output(UVERBS_ATTR_CREATE_WQ_RESP_WQ_NUM, &mut wq_num)
        .uhw(uhw)
        .run(&**pd.kernel())
        .map_err(|errno| pd.error(VERB, errno))?;
    let object = new_object(VERB, pd.kernel(), &command, UVERBS_ATTR_CREATE_WQ_HANDLE)?;
    let wq = WqHandle { object, wq_num };
    if wq_num > 0xff_ffff || got.max_wr < attr.max_wr || got.max_sge < attr.max_sge {
        // SAFETY: the object has no other user yet.
        let _ = unsafe { wq.destroy() };
        return Err(Error::protocol(VERB, format!("WQ {wq_num:#x} with {got:?}, requested {attr:?}")));
    }
    Ok((wq, got))
}

impl WqHandle {
    /// Its number, 24 bits.
    #[must_use]
    pub fn wq_num(&self) -> u32 {
        self.wq_num
    }

    /// Changes the state or flags of the work queue.
    ///
    /// # Safety
    /// As [`destroy`](Self::destroy).
    ///
    /// # Errors
    /// The kernel's error.
    pub unsafe fn modify(&self, attr: &WqAttr, uhw: Uhw<'_>) -> Result<()> {
        let mut request = ib_uverbs_ex_modify_wq { wq_handle: self.handle(), ..Default::default() };
        if let Some(state) = attr.wq_state {
            request.attr_mask |= IB_WQ_STATE;
            request.wq_state = state.0;
        }
        if let Some(state) = attr.curr_wq_state {
            request.attr_mask |= IB_WQ_CUR_STATE;
            request.curr_wq_state = state.0;
        }
        if let Some((flags, mask)) = attr.flags {
            request.attr_mask |= IB_WQ_FLAGS;
            (request.flags, request.flags_mask) = (flags.bits(), mask.bits());
        }
        let command = IB_USER_VERBS_EX_CMD_MODIFY_WQ | IB_USER_VERBS_CMD_FLAG_EXTENDED;
        invoke_only(&**self.kernel(), command, &request, uhw).map_err(|errno| self.error("modify_wq", errno))
    }

    /// Destroys the work queue and returns how many of its events were read.
    ///
    /// # Safety
    /// For an object with queues only its driver's [object](crate::provider::object) may call this, which stops posts and polls first, and
    /// keeps the memory that the device uses until this succeeds. For an object without queues there is no requirement.
    ///
    /// # Errors
    /// `EBUSY` while a table refers to it; the handle is returned.
    pub unsafe fn destroy(self) -> Result<u32, (Self, Error)> {
        match self.object.destroy_with::<u32>(
            UVERBS_OBJECT_WQ,
            UVERBS_METHOD_WQ_DESTROY,
            UVERBS_ATTR_DESTROY_WQ_HANDLE,
            UVERBS_ATTR_DESTROY_WQ_RESP,
        ) {
            Ok(events) => Ok(events),
            Err(errno) => {
                let error = self.error("destroy_wq", errno);
                Err((self, error))
            }
        }
    }
}

/// A table that spreads packets over work queues by a hash.
#[derive(Debug)]
pub struct RwqIndTableHandle {
    object: Object,
    ind_tbl_num: u32,
}

handle_common!(RwqIndTableHandle, "rwq_ind_table");

/// Creates a table of work queues. Their number is a power of two; one may be in the table more than once.
///
/// # Errors
/// The number of work queues is not a power of two, or the kernel refuses.
pub fn create_rwq_ind_table(
    kernel: &Arc<dyn Kernel>,
    wqs: &[&WqHandle],
    uhw: Uhw<'_>,
) -> Result<RwqIndTableHandle> {
    const VERB: &str = "create_rwq_ind_table";
    if !wqs.len().is_power_of_two() || wqs.len() > 1 << IB_USER_VERBS_MAX_LOG_IND_TBL_SIZE {
        return Err(Error::invalid(
            VERB,
            "ind_tbl",
            format!("{} is not a power of two up to 8192", wqs.len()),
        ));
    }
    for wq in wqs {
        same_context(VERB, kernel, &[("ind_tbl", Some(wq.kernel()))])?;
    }
    let request = ib_uverbs_ex_create_rwq_ind_table {
        log_ind_tbl_size: wqs.len().trailing_zeros(),
        ..Default::default()
    };
    let mut bytes = request.as_bytes().to_vec();
    bytes.extend(wqs.iter().flat_map(|wq| wq.handle().to_ne_bytes()));
    // The kernel expects a multiple of 8 bytes (`ib_uverbs_ex_create_rwq_ind_table()`).
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    let mut resp = ib_uverbs_ex_create_rwq_ind_table_resp::default();
    let mut command = Command::<5>::new(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE);
    let number = IB_USER_VERBS_EX_CMD_CREATE_RWQ_IND_TBL | IB_USER_VERBS_CMD_FLAG_EXTENDED;
    command
        .constant(UVERBS_ATTR_WRITE_CMD, number)
        .input_bytes(UVERBS_ATTR_CORE_IN, &bytes)
        .output(UVERBS_ATTR_CORE_OUT, &mut resp)
        .uhw(uhw)
        .run(&**kernel)
        .map_err(|errno| super::device_error(VERB, &**kernel, errno))?;
    if !command.is_answered(UVERBS_ATTR_CORE_OUT) {
        return Err(Error::protocol(VERB, "no answer"));
    }
    let object = Object::new(VERB, kernel, resp.ind_tbl_handle)?;
    Ok(RwqIndTableHandle { object, ind_tbl_num: resp.ind_tbl_num })
}

impl RwqIndTableHandle {
    /// The hardware's number of the table.
    #[must_use]
    pub fn ind_tbl_num(&self) -> u32 {
        self.ind_tbl_num
    }

    /// Destroys the table.
    ///
    /// # Errors
    /// `EBUSY` while a QP uses it; the handle is returned.
    pub fn destroy(self) -> Result<(), (Self, Error)> {
        match self.object.destroy(
            UVERBS_OBJECT_RWQ_IND_TBL,
            UVERBS_METHOD_RWQ_IND_TBL_DESTROY,
            UVERBS_ATTR_DESTROY_RWQ_IND_TBL_HANDLE,
        ) {
            Ok(()) => Ok(()),
            Err(errno) => {
                let error = self.error("destroy_rwq_ind_table", errno);
                Err((self, error))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::script::{Script, scripted};

    fn wq(script: &Arc<Script>, handle: u32) -> WqHandle {
        let kernel = script.kernel();
        WqHandle { object: Object::new("t", &kernel, handle).unwrap(), wq_num: 1 }
    }

    #[test]
    fn a_table_is_created_with_its_queues() {
        let script = Script::new();
        let (a, b) = (wq(&script, 7), wq(&script, 9));
        script
            .expect(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE, |c| {
                let input = c.input(UVERBS_ATTR_CORE_IN).unwrap();
                let words: Vec<_> =
                    input.chunks(4).map(|w| u32::from_ne_bytes(w.try_into().unwrap())).collect();
                assert_eq!(words, [0, 1, 7, 9]);
                let resp = ib_uverbs_ex_create_rwq_ind_table_resp {
                    ind_tbl_handle: 3,
                    ind_tbl_num: 0x55,
                    ..Default::default()
                };
                assert!(c.answer(UVERBS_ATTR_CORE_OUT, resp.as_bytes()));
                Ok(())
            })
            .expect(UVERBS_OBJECT_RWQ_IND_TBL, UVERBS_METHOD_RWQ_IND_TBL_DESTROY, |_| Ok(()));
        let table = create_rwq_ind_table(&script.kernel(), &[&a, &b], Uhw::none()).unwrap();
        assert_eq!((table.handle(), table.ind_tbl_num()), (3, 0x55));
        table.destroy().unwrap();
        assert!(create_rwq_ind_table(&script.kernel(), &[&a, &b, &a], Uhw::none()).is_err());
        assert!(create_rwq_ind_table(&script.kernel(), &[], Uhw::none()).is_err());
        script.done();
    }

    #[test]
    fn modify_wq_sends_only_the_given_attributes() {
        let script = Script::new();
        let wq = wq(&script, 7);
        const MODIFY: u32 = IB_USER_VERBS_EX_CMD_MODIFY_WQ | IB_USER_VERBS_CMD_FLAG_EXTENDED;
        script.expect_write(MODIFY, |r: ib_uverbs_ex_modify_wq, _| {
            assert_eq!((r.attr_mask, r.wq_handle, r.wq_state), (IB_WQ_STATE, 7, 1));
            Ok(())
        });
        let attr = WqAttr { wq_state: Some(crate::attr::WqState::RDY), ..WqAttr::default() };
        scripted!(wq.modify(&attr, Uhw::none())).unwrap();
        script.done();
    }
}
