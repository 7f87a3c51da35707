// SPDX-License-Identifier: MIT OR Apache-2.0
//! The data path: functions that exist once per driver, which programs call through the context, a queue pair or a
//! queue.
//!
//! As in rdma-core, they perform no lookup and check no pointer. A panic in one of them would abort the process,
//! because it can't unwind into C; the engines do not panic.
pub(crate) mod cq_ex;
#[cfg(feature = "hca")]
pub(crate) mod faulty;
pub(crate) mod poll;
pub(crate) mod post;
pub(crate) mod qp_ex;

use crate::abi::Zeroed as _;
use crate::abi::context::verbs_context;
use crate::export::{device, qp};
use crate::object::{counters, cq, dm, flow, mr, mw, pd, srq, wq, xrcd};
use uverbs_core::provider::Driver;

/// A context's functions. Missing functions are NULL; C's inline functions return `EOPNOTSUPP` for them.
pub(crate) fn functions<D: Driver>() -> verbs_context {
    let mut table = verbs_context::zeroed();
    let ops = &mut table.context.ops;
    ops.post_send = Some(post::post_send::<D>);
    ops.post_recv = Some(post::post_recv::<D>);
    ops.post_srq_recv = Some(post::post_srq_recv::<D>);
    ops.poll_cq = Some(poll::poll_cq::<D>);
    ops.req_notify_cq = Some(poll::req_notify_cq::<D>);
    ops.alloc_mw = Some(mw::alloc_mw);
    ops.dealloc_mw = Some(mw::dealloc_mw);
    ops.bind_mw = Some(mw::bind_mw::<D>);
    table.query_port = Some(device::query_port);
    table.query_device_ex = Some(device::query_device_ex);
    table.advise_mr = Some(mr::advise_mr);
    table.alloc_null_mr = Some(mr::alloc_null_mr);
    table.reg_mr_ex = Some(mr::ibv_reg_mr_ex);
    table.alloc_dm = Some(dm::alloc_dm);
    table.free_dm = Some(dm::free_dm);
    table.reg_dm_mr = Some(dm::reg_dm_mr);
    table.alloc_td = Some(pd::alloc_td);
    table.dealloc_td = Some(pd::dealloc_td);
    table.alloc_parent_domain = Some(pd::alloc_parent_domain);
    table.open_xrcd = Some(xrcd::open_xrcd);
    table.close_xrcd = Some(xrcd::close_xrcd);
    table.create_cq_ex = Some(cq::create_cq_ex);
    table.modify_cq = Some(cq::modify_cq);
    table.create_srq_ex = Some(srq::create_srq_ex);
    table.get_srq_num = Some(srq::get_srq_num);
    table.create_qp_ex = Some(qp::create_qp_ex);
    table.open_qp = Some(qp::open_qp);
    table.modify_qp_rate_limit = Some(qp::modify_qp_rate_limit);
    table.query_rt_values = Some(device::query_rt_values);
    table.create_wq = Some(wq::create_wq);
    table.modify_wq = Some(wq::modify_wq);
    table.destroy_wq = Some(wq::destroy_wq);
    table.create_rwq_ind_table = Some(wq::create_rwq_ind_table);
    table.destroy_rwq_ind_table = Some(wq::destroy_rwq_ind_table);
    table.ibv_create_flow = Some(flow::create_flow);
    table.ibv_destroy_flow = Some(flow::destroy_flow);
    table.create_counters = Some(counters::create_counters);
    table.attach_counters_point_flow = Some(counters::attach_counters_point_flow);
    table.read_counters = Some(counters::read_counters);
    table.destroy_counters = Some(counters::destroy_counters);
    table
}
