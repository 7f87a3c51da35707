// SPDX-License-Identifier: MIT OR Apache-2.0
//! Faults by script: the names of the verbs that a command executes, and events that a script raises.

use crate::attr::number32;
use crate::call::Key;
use crate::object::{Kind, Object};
use crate::tables::Tables;
use uverbs_core::kernel::RawCommand;
use uverbs_fabric::script::Event;
use uverbs_uapi::cmd as abi;
use uverbs_uapi::event as ib;
use uverbs_uapi::ids as id;

/// The name of the verb that a command executes, as in the man pages without `ibv_`. Commands of one driver only have the name `name`
/// gives them, or the common name `driver_command`. A probe of the write interface, before there is a context, has none.
pub fn verb(
    c: &RawCommand<'_, '_>,
    key: Key,
    is_open: bool,
    name: impl FnOnce(Key) -> Option<&'static str>,
) -> Option<&'static str> {
    if key == (id::UVERBS_OBJECT_DEVICE, id::UVERBS_METHOD_INVOKE_WRITE) {
        let command = if is_open { number32(c, id::UVERBS_ATTR_WRITE_CMD).ok()? } else { return None };
        return Some(of_write(command));
    }
    Some(of_method(key).or_else(|| name(key)).unwrap_or("driver_command"))
}

/// Whether a command takes no memory away, moves and destroys no queue, and does not change the network: it only creates or reads.
pub(crate) fn ends_nothing(c: &RawCommand<'_, '_>) -> bool {
    verb(c, (c.object(), c.method()), true, |_| None).is_some_and(creates_or_reads)
}

fn creates_or_reads(verb: &str) -> bool {
    const KINDS: [&str; 5] = ["query_", "create_", "alloc_", "reg_", "read_"];
    verb == "open_device" || KINDS.iter().any(|kind| verb.starts_with(kind))
}

fn of_method(key: Key) -> Option<&'static str> {
    Some(match key {
        (id::UVERBS_OBJECT_DEVICE, id::UVERBS_METHOD_GET_CONTEXT) => "open_device",
        (id::UVERBS_OBJECT_DEVICE, id::UVERBS_METHOD_QUERY_CONTEXT) => "query_context",
        (id::UVERBS_OBJECT_DEVICE, id::UVERBS_METHOD_QUERY_PORT) => "query_port",
        (id::UVERBS_OBJECT_DEVICE, id::UVERBS_METHOD_QUERY_GID_TABLE) => "query_gid_table",
        (id::UVERBS_OBJECT_DEVICE, id::UVERBS_METHOD_QUERY_GID_ENTRY) => "query_gid_ex",
        (id::UVERBS_OBJECT_DEVICE, id::UVERBS_METHOD_INFO_HANDLES) => "info_handles",
        (id::UVERBS_OBJECT_ASYNC_EVENT, id::UVERBS_METHOD_ASYNC_EVENT_ALLOC) => "alloc_async_event",
        (id::UVERBS_OBJECT_PD, id::UVERBS_METHOD_PD_DESTROY) => "dealloc_pd",
        (id::UVERBS_OBJECT_CQ, id::UVERBS_METHOD_CQ_CREATE) => "create_cq",
        (id::UVERBS_OBJECT_CQ, id::UVERBS_METHOD_CQ_DESTROY) => "destroy_cq",
        (id::UVERBS_OBJECT_QP, id::UVERBS_METHOD_QP_CREATE) => "create_qp",
        (id::UVERBS_OBJECT_QP, id::UVERBS_METHOD_QP_DESTROY) => "destroy_qp",
        (id::UVERBS_OBJECT_SRQ, id::UVERBS_METHOD_SRQ_CREATE) => "create_srq",
        (id::UVERBS_OBJECT_SRQ, id::UVERBS_METHOD_SRQ_DESTROY) => "destroy_srq",
        (id::UVERBS_OBJECT_WQ, id::UVERBS_METHOD_WQ_CREATE) => "create_wq",
        (id::UVERBS_OBJECT_WQ, id::UVERBS_METHOD_WQ_DESTROY) => "destroy_wq",
        (id::UVERBS_OBJECT_RWQ_IND_TBL, id::UVERBS_METHOD_RWQ_IND_TBL_DESTROY) => "destroy_rwq_ind_table",
        (id::UVERBS_OBJECT_MR, id::UVERBS_METHOD_MR_DESTROY) => "dereg_mr",
        (id::UVERBS_OBJECT_MR, id::UVERBS_METHOD_REG_MR) => "reg_mr",
        (id::UVERBS_OBJECT_MR, id::UVERBS_METHOD_REG_DMABUF_MR) => "reg_dmabuf_mr",
        (id::UVERBS_OBJECT_MR, id::UVERBS_METHOD_DM_MR_REG) => "reg_dm_mr",
        (id::UVERBS_OBJECT_MR, id::UVERBS_METHOD_ADVISE_MR) => "advise_mr",
        (id::UVERBS_OBJECT_MR, id::UVERBS_METHOD_QUERY_MR) => "query_mr",
        (id::UVERBS_OBJECT_MW, id::UVERBS_METHOD_MW_DESTROY) => "dealloc_mw",
        (id::UVERBS_OBJECT_DM, id::UVERBS_METHOD_DM_ALLOC) => "alloc_dm",
        (id::UVERBS_OBJECT_DM, id::UVERBS_METHOD_DM_FREE) => "free_dm",
        (id::UVERBS_OBJECT_XRCD, id::UVERBS_METHOD_XRCD_DESTROY) => "close_xrcd",
        (id::UVERBS_OBJECT_AH, id::UVERBS_METHOD_AH_DESTROY) => "destroy_ah",
        (id::UVERBS_OBJECT_FLOW, id::UVERBS_METHOD_FLOW_DESTROY) => "destroy_flow",
        (id::UVERBS_OBJECT_COUNTERS, id::UVERBS_METHOD_COUNTERS_CREATE) => "create_counters",
        (id::UVERBS_OBJECT_COUNTERS, id::UVERBS_METHOD_COUNTERS_DESTROY) => "destroy_counters",
        (id::UVERBS_OBJECT_COUNTERS, id::UVERBS_METHOD_COUNTERS_READ) => "read_counters",
        _ => return None,
    })
}

/// The extended commands (`IB_USER_VERBS_CMD_FLAG_EXTENDED`).
const EX: u32 = abi::IB_USER_VERBS_CMD_FLAG_EXTENDED;

fn of_write(command: u32) -> &'static str {
    match command & EX {
        0 => of_plain(command),
        _ => match command & !EX {
            abi::IB_USER_VERBS_EX_CMD_CREATE_FLOW => "create_flow",
            abi::IB_USER_VERBS_EX_CMD_DESTROY_FLOW => "destroy_flow",
            abi::IB_USER_VERBS_EX_CMD_CREATE_WQ => "create_wq",
            abi::IB_USER_VERBS_EX_CMD_MODIFY_WQ => "modify_wq",
            abi::IB_USER_VERBS_EX_CMD_DESTROY_WQ => "destroy_wq",
            abi::IB_USER_VERBS_EX_CMD_CREATE_RWQ_IND_TBL => "create_rwq_ind_table",
            abi::IB_USER_VERBS_EX_CMD_DESTROY_RWQ_IND_TBL => "destroy_rwq_ind_table",
            abi::IB_USER_VERBS_EX_CMD_MODIFY_CQ => "modify_cq",
            // The others have the numbers of the plain commands.
            command => of_plain(command),
        },
    }
}

fn of_plain(command: u32) -> &'static str {
    match command {
        abi::IB_USER_VERBS_CMD_QUERY_DEVICE => "query_device",
        abi::IB_USER_VERBS_CMD_QUERY_PORT => "query_port",
        abi::IB_USER_VERBS_CMD_ALLOC_PD => "alloc_pd",
        abi::IB_USER_VERBS_CMD_CREATE_AH => "create_ah",
        abi::IB_USER_VERBS_CMD_REG_MR => "reg_mr",
        abi::IB_USER_VERBS_CMD_REREG_MR => "rereg_mr",
        abi::IB_USER_VERBS_CMD_ALLOC_MW => "alloc_mw",
        abi::IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL => "create_comp_channel",
        abi::IB_USER_VERBS_CMD_CREATE_CQ => "create_cq",
        abi::IB_USER_VERBS_CMD_RESIZE_CQ => "resize_cq",
        abi::IB_USER_VERBS_CMD_CREATE_QP => "create_qp",
        abi::IB_USER_VERBS_CMD_QUERY_QP => "query_qp",
        abi::IB_USER_VERBS_CMD_MODIFY_QP => "modify_qp",
        abi::IB_USER_VERBS_CMD_ATTACH_MCAST => "attach_mcast",
        abi::IB_USER_VERBS_CMD_DETACH_MCAST => "detach_mcast",
        abi::IB_USER_VERBS_CMD_CREATE_SRQ | abi::IB_USER_VERBS_CMD_CREATE_XSRQ => "create_srq",
        abi::IB_USER_VERBS_CMD_MODIFY_SRQ => "modify_srq",
        abi::IB_USER_VERBS_CMD_QUERY_SRQ => "query_srq",
        abi::IB_USER_VERBS_CMD_OPEN_XRCD => "open_xrcd",
        abi::IB_USER_VERBS_CMD_OPEN_QP => "open_qp",
        _ => "driver_command",
    }
}

/// Gives the programs of a device an asynchronous event. `false` if it names a QP and there is none.
pub fn raise<O: Object>(tables: &mut Tables<O>, event: Event, qp: Option<u32>) -> bool {
    let code = match event {
        Event::QpFatal => ib::IB_EVENT_QP_FATAL,
        Event::QpReqErr => ib::IB_EVENT_QP_REQ_ERR,
        Event::QpAccessErr => ib::IB_EVENT_QP_ACCESS_ERR,
        Event::CommEst => ib::IB_EVENT_COMM_EST,
        Event::SqDrained => ib::IB_EVENT_SQ_DRAINED,
        Event::PathMig => ib::IB_EVENT_PATH_MIG,
        Event::PathMigErr => ib::IB_EVENT_PATH_MIG_ERR,
        Event::QpLastWqeReached => ib::IB_EVENT_QP_LAST_WQE_REACHED,
        Event::DeviceFatal => ib::IB_EVENT_DEVICE_FATAL,
        Event::PortActive => ib::IB_EVENT_PORT_ACTIVE,
        Event::PortErr => ib::IB_EVENT_PORT_ERR,
        Event::LidChange => ib::IB_EVENT_LID_CHANGE,
        Event::PkeyChange => ib::IB_EVENT_PKEY_CHANGE,
        Event::SmChange => ib::IB_EVENT_SM_CHANGE,
        Event::ClientReregister => ib::IB_EVENT_CLIENT_REREGISTER,
        Event::GidChange => ib::IB_EVENT_GID_CHANGE,
        // The enum may get more of them.
        _ => return false,
    };
    match (event.is_of_qp(), qp) {
        (true, Some(qp)) => tables.raise(Kind::Qp, qp, code),
        (true, None) => return false,
        (false, _) => tables.raise_on_port(code),
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_verbs_that_create_or_read_end_no_access() {
        let of = |object, method| of_method((object, method)).unwrap();
        assert!(creates_or_reads(of(id::UVERBS_OBJECT_MR, id::UVERBS_METHOD_REG_MR)));
        assert!(creates_or_reads(of(id::UVERBS_OBJECT_QP, id::UVERBS_METHOD_QP_CREATE)));
        assert!(!creates_or_reads(of(id::UVERBS_OBJECT_QP, id::UVERBS_METHOD_QP_DESTROY)));
        assert!(!creates_or_reads(of(id::UVERBS_OBJECT_MR, id::UVERBS_METHOD_MR_DESTROY)));
        assert!(!creates_or_reads(of(id::UVERBS_OBJECT_MW, id::UVERBS_METHOD_MW_DESTROY)));
        assert!(creates_or_reads(of_plain(abi::IB_USER_VERBS_CMD_QUERY_QP)));
        for command in [
            abi::IB_USER_VERBS_CMD_MODIFY_QP,
            abi::IB_USER_VERBS_CMD_REREG_MR,
            abi::IB_USER_VERBS_CMD_RESIZE_CQ,
            // One that only a driver knows.
            u32::MAX,
        ] {
            assert!(!creates_or_reads(of_plain(command)), "{command}");
        }
    }
}
