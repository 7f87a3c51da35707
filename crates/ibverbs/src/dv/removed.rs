// SPDX-License-Identifier: MIT OR Apache-2.0
//! A test of a device that is removed while a program has objects of libmlx5, counters and device memory.
#![expect(unsafe_code)]
// UNSAFETY: calls the functions of the library.

use super::devx::{
    uverbs_mlx5dv_devx_obj_create, uverbs_mlx5dv_devx_obj_destroy, uverbs_mlx5dv_devx_obj_query,
    uverbs_mlx5dv_devx_umem_dereg, uverbs_mlx5dv_devx_umem_reg,
};
use super::devx_events::{uverbs_mlx5dv_devx_create_event_channel, uverbs_mlx5dv_devx_destroy_event_channel};
use super::dr::action::{uverbs_mlx5dv_dr_action_create_drop, uverbs_mlx5dv_dr_action_destroy};
use super::dr::rule::{
    uverbs_mlx5dv_dr_matcher_create, uverbs_mlx5dv_dr_matcher_destroy, uverbs_mlx5dv_dr_rule_create,
    uverbs_mlx5dv_dr_rule_destroy,
};
use super::dr::{
    uverbs_mlx5dv_dr_domain_create, uverbs_mlx5dv_dr_domain_destroy, uverbs_mlx5dv_dr_table_create,
    uverbs_mlx5dv_dr_table_destroy,
};
use super::steering::{uverbs_mlx5dv_create_flow_matcher, uverbs_mlx5dv_destroy_flow_matcher};
use super::uar::{uverbs_mlx5dv_devx_alloc_uar, uverbs_mlx5dv_devx_free_uar};
use crate::abi::attr::ibv_alloc_dm_attr;
use crate::abi::flow::ibv_counters_init_attr;
use crate::abi::mlx5dv::{mlx5dv_flow_match_parameters, mlx5dv_flow_matcher_attr};
use crate::arg::Arg;
use crate::context;
use crate::export::device::ibv_close_device;
use crate::object::counters::{create_counters, destroy_counters};
use crate::object::dm::{alloc_dm, free_dm};
use crate::object::removed::Removable;
use core::ptr;
use std::sync::Arc;
use uverbs_core::kernel::Kernel;
use uverbs_mlx5::{Devx, Mlx5, Options};
use uverbs_software::hca::{Fabric, Link};

/// A mask of 64 bytes.
#[repr(C)]
struct Mask {
    header: mlx5dv_flow_match_parameters,
    bytes: [u64; 8],
}

/// As with rdma-core: no object can be destroyed, a failed destruction can be repeated, what has no object in the kernel is
/// freed, and the device is closed.
#[test]
fn objects_of_libmlx5_on_a_removed_device() {
    let hca = Fabric::new(1).device("hca0").link(Link::Ethernet).build();
    let port = Arc::new(Removable::new(hca.open()));
    let mut options = Options::default();
    options.devx = Devx::Required;
    let kernel = Arc::clone(&port) as Arc<dyn Kernel>;
    let open = |kernel| Mlx5::open_with(kernel, &options);
    let context = context::open_with(kernel, ptr::null_mut(), open).unwrap();
    let mut memory = vec![0_u64; 1024];
    // SAFETY: the context is open, and the memory outlives the registration.
    let umem =
        unsafe { uverbs_mlx5dv_devx_umem_reg(Arg::test(context), memory.as_mut_ptr().cast(), 4096, 1) };
    // SAFETY: the context is open.
    let uar = unsafe { uverbs_mlx5dv_devx_alloc_uar(Arg::test(context), 1) };
    // SAFETY: the context is open.
    let channel = unsafe { uverbs_mlx5dv_devx_create_event_channel(Arg::test(context), 0) };
    // ALLOC_PD
    let (mut command, mut answer) = ([0_u8; 16], [0_u8; 16]);
    command[0] = 8;
    let (to, from) = (command.as_ptr().cast(), answer.as_mut_ptr().cast());
    // SAFETY: the context is open, and the mailboxes are valid.
    let object = unsafe { uverbs_mlx5dv_devx_obj_create(Arg::test(context), to, 16, from, 16) };
    let header = mlx5dv_flow_match_parameters { match_sz: 64, match_buf: [] };
    let mut mask = Mask { header, bytes: [0; 8] };
    let mut attr = mlx5dv_flow_matcher_attr {
        r#type: 0,
        flags: 0,
        priority: 0,
        match_criteria_enable: 1,
        match_mask: (&raw mut mask).cast(),
        comp_mask: 0,
        ft_type: 0,
        ib_port: 0,
    };
    // SAFETY: the context is open, and the attributes are valid.
    let matcher = unsafe { uverbs_mlx5dv_create_flow_matcher(Arg::test(context), &raw mut attr) };
    let no_attr = ibv_counters_init_attr { comp_mask: 0 };
    // SAFETY: the context is open, and the attributes are valid.
    let counters = unsafe { create_counters(Arg::test(context), Some(&no_attr)) };
    let length = ibv_alloc_dm_attr { length: 64, log_align_req: 0, comp_mask: 0 };
    // SAFETY: the context is open, and the attributes are valid.
    let dm = unsafe { alloc_dm(Arg::test(context), Some(&length)) };
    assert!(!umem.is_null() && !uar.is_null() && !channel.is_null() && !object.is_null());
    assert!(!matcher.is_null() && !counters.is_null() && !dm.is_null());
    // SAFETY: the context is open.
    let domain = unsafe { uverbs_mlx5dv_dr_domain_create(Arg::test(context), 0) };
    // SAFETY: the domain exists.
    let table = unsafe { uverbs_mlx5dv_dr_table_create(domain, 0) };
    let bits = (&raw mut mask).cast();
    // SAFETY: the table exists, and the mask is valid.
    let rules_of = unsafe { uverbs_mlx5dv_dr_matcher_create(table, 0, 1, bits) };
    let mut discard = uverbs_mlx5dv_dr_action_create_drop();
    // SAFETY: the matcher and the action exist, and the value is valid.
    let rule = unsafe { uverbs_mlx5dv_dr_rule_create(rules_of, bits, 1, &raw mut discard) };
    assert!(!domain.is_null() && !table.is_null() && !rules_of.is_null() && !rule.is_null());

    port.remove();
    // SAFETY: the context is open.
    assert!(unsafe { uverbs_mlx5dv_dr_domain_create(Arg::test(context), 0) }.is_null());
    // SAFETY: the matcher and the action exist, and the value is valid.
    assert!(unsafe { uverbs_mlx5dv_dr_rule_create(rules_of, bits, 1, &raw mut discard) }.is_null());
    // SAFETY: the object exists.
    let queried = unsafe { object.as_ref() };
    // SAFETY: the mailboxes are valid.
    assert_eq!(unsafe { uverbs_mlx5dv_devx_obj_query(queried, to, 16, from, 16) }, libc::EIO);
    // SAFETY: the context is open.
    assert!(unsafe { uverbs_mlx5dv_devx_create_event_channel(Arg::test(context), 0) }.is_null());
    for _ in 0..2 {
        // SAFETY: the object exists; it is not destroyed.
        assert_eq!(unsafe { uverbs_mlx5dv_devx_obj_destroy(object) }, libc::EIO);
        // SAFETY: the object exists; it is not destroyed.
        assert_eq!(unsafe { uverbs_mlx5dv_devx_umem_dereg(umem) }, libc::EIO);
        // SAFETY: the object exists; it is not destroyed.
        assert_eq!(unsafe { uverbs_mlx5dv_destroy_flow_matcher(matcher) }, libc::EIO);
        // SAFETY: the object exists; it is not destroyed.
        assert_eq!(unsafe { uverbs_mlx5dv_dr_rule_destroy(rule) }, libc::EIO);
        // SAFETY: the object exists; it is not destroyed.
        assert_eq!(unsafe { uverbs_mlx5dv_dr_matcher_destroy(rules_of) }, libc::EBUSY);
        // SAFETY: the object exists; it is not destroyed.
        assert_eq!(unsafe { uverbs_mlx5dv_dr_action_destroy(discard) }, libc::EBUSY);
        // SAFETY: the object exists; it is not destroyed.
        assert_eq!(unsafe { uverbs_mlx5dv_dr_table_destroy(table) }, libc::EBUSY);
        // SAFETY: the object exists; it is not destroyed.
        assert_eq!(unsafe { uverbs_mlx5dv_dr_domain_destroy(domain) }, libc::EBUSY);
        // SAFETY: the object exists; it is not destroyed.
        assert_eq!(unsafe { destroy_counters(Arg::test(counters)) }, libc::EIO);
        // SAFETY: the object exists; it is not destroyed.
        assert_eq!(unsafe { free_dm(Arg::test(dm)) }, libc::EIO);
    }
    // SAFETY: made as a `Box` of this type, and not used any more.
    let channel = unsafe { Box::from_raw(channel.cast()) };
    // SAFETY: the channel exists.
    unsafe { uverbs_mlx5dv_devx_destroy_event_channel(Some(channel)) };
    // SAFETY: made as a `Box` of this type, and not used any more.
    let uar = unsafe { Box::from_raw(uar.cast()) };
    // SAFETY: the page exists.
    unsafe { uverbs_mlx5dv_devx_free_uar(Some(uar)) };
    // SAFETY: the context is open.
    assert_eq!(unsafe { ibv_close_device(context) }, 0);
}
