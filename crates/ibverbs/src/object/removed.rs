// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of a device that is removed while a program has objects of it.
#![expect(unsafe_code)]
// UNSAFETY: calls the functions of the library.

use super::channel::{ibv_create_comp_channel, ibv_destroy_comp_channel, ibv_get_cq_event};
use super::cq::{ibv_create_cq, ibv_destroy_cq};
use super::mr::{ibv_dereg_mr, ibv_reg_mr};
use super::pd::{ibv_alloc_pd, ibv_dealloc_pd};
use super::srq::{ibv_create_srq, ibv_destroy_srq};
use crate::abi::attr::{ibv_srq_attr, ibv_srq_init_attr};
use crate::abi::qp::{ibv_qp_cap, ibv_qp_init_attr};
use crate::arg::Arg;
use crate::context;
use crate::data::poll::{poll_cq, req_notify_cq};
use crate::errno::Errno;
use crate::export::device::ibv_close_device;
use crate::export::qp::{ibv_create_qp, ibv_destroy_qp};
use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use uverbs_core::kernel::{DoorbellPage, Kernel, Mapping, Protection, RawCommand, WriteCommand};
use uverbs_mlx5::Mlx5;
use uverbs_software::hca::Hca;

/// A device whose commands fail after its removal, as those of `ib_uverbs` do.
#[derive(Debug)]
pub(crate) struct Removable {
    device: Arc<dyn Kernel>,
    is_removed: AtomicBool,
}

impl Removable {
    pub(crate) fn new(device: Arc<dyn Kernel>) -> Self {
        Self { device, is_removed: AtomicBool::new(false) }
    }

    pub(crate) fn remove(&self) {
        self.is_removed.store(true, Ordering::Relaxed);
    }

    fn there(&self) -> Result<&dyn Kernel, Errno> {
        if self.is_removed.load(Ordering::Relaxed) { Err(Errno::EIO) } else { Ok(&*self.device) }
    }
}

impl Kernel for Removable {
    fn ioctl(&self, command: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        self.there()?.ioctl(command)
    }

    fn write(&self, command: &mut WriteCommand<'_>) -> Result<(), Errno> {
        self.there()?.write(command)
    }

    fn mmap(&self, offset: u64, len: usize, protection: Protection) -> Result<Mapping, Errno> {
        self.there()?.mmap(offset, len, protection)
    }

    fn doorbells(&self, offset: u64, len: usize) -> Result<DoorbellPage, Errno> {
        self.there()?.doorbells(offset, len)
    }

    fn attribute(&self, path: &str) -> Result<Vec<u8>, Errno> {
        self.there()?.attribute(path)
    }

    fn driver_id(&self) -> u32 {
        self.device.driver_id()
    }

    fn name(&self) -> &str {
        self.device.name()
    }

    fn is_creator_process(&self) -> bool {
        self.device.is_creator_process()
    }
}

const ALLOWS: &str = "RDMAV_ALLOW_DISASSOCIATE_DESTROY";

/// Without the variable, no object can be destroyed, as with rdma-core, but the device can be closed. With the
/// variable, all objects can be destroyed.
#[test]
fn objects_of_a_removed_device() {
    let hca = Hca::new();
    let port = Arc::new(Removable::new(hca.open()));
    let context = context::open::<Mlx5>(Arc::clone(&port) as Arc<dyn Kernel>, ptr::null_mut()).unwrap();
    // SAFETY: the context is open.
    let pd = unsafe { ibv_alloc_pd(Arg::test(context)) };
    let mut memory = [0_u8; 64];
    // SAFETY: the domain exists, and the memory outlives the region.
    let mr = unsafe { ibv_reg_mr(Arg::test(pd), memory.as_mut_ptr().cast(), memory.len(), 1) };
    // SAFETY: the context is open.
    let channel = unsafe { ibv_create_comp_channel(Arg::test(context)) };
    // SAFETY: the context is open, and the channel exists.
    let cq = unsafe { ibv_create_cq(Arg::test(context), 10, ptr::null_mut(), Arg::test(channel), 0) };
    let mut srq_attr = ibv_srq_init_attr {
        srq_context: ptr::null_mut(),
        attr: ibv_srq_attr { max_wr: 4, max_sge: 1, srq_limit: 0 },
    };
    // SAFETY: the domain exists, and the attributes are valid.
    let srq = unsafe { ibv_create_srq(Arg::test(pd), Some(&mut srq_attr)) };
    let cap =
        ibv_qp_cap { max_send_wr: 4, max_recv_wr: 0, max_send_sge: 1, max_recv_sge: 0, max_inline_data: 0 };
    let mut qp_attr = ibv_qp_init_attr {
        qp_context: ptr::null_mut(),
        send_cq: cq,
        recv_cq: cq,
        srq,
        cap,
        qp_type: 2,
        sq_sig_all: 0,
    };
    // SAFETY: all objects in the attributes exist.
    let qp = unsafe { ibv_create_qp(Arg::test(pd), Some(&mut qp_attr)) };
    assert!(!mr.is_null() && !channel.is_null() && !cq.is_null() && !srq.is_null() && !qp.is_null());

    port.remove();
    // SAFETY: the context is open.
    assert!(unsafe { ibv_alloc_pd(Arg::test(context)) }.is_null());
    assert_eq!(nix::errno::Errno::last_raw(), libc::EIO);
    let destroyed = if std::env::var_os(ALLOWS).is_some() { 0 } else { libc::EIO };
    // A destruction that fails is repeated, because it must not change the object.
    for attempt in 0..if destroyed == 0 { 1 } else { 2 } {
        let mut wc = MaybeUninit::uninit();
        // SAFETY: the queue exists, and there is room for a completion.
        assert_eq!(unsafe { poll_cq::<Mlx5>(cq, 1, wc.as_mut_ptr()) }, 0, "attempt {attempt}");
        // SAFETY: the queue exists.
        assert_eq!(unsafe { req_notify_cq::<Mlx5>(cq, 0) }, 0);
        // SAFETY: the object and its parents exist. If it is destroyed, it is not used later.
        assert_eq!(unsafe { ibv_destroy_qp(Arg::test(qp)) }, destroyed);
        // SAFETY: the object and its parents exist. If it is destroyed, it is not used later.
        assert_eq!(unsafe { ibv_destroy_srq(Arg::test(srq)) }, destroyed);
        // SAFETY: the object and its parents exist. If it is destroyed, it is not used later.
        assert_eq!(unsafe { ibv_destroy_cq(Arg::test(cq)) }, destroyed);
        // SAFETY: the object and its parents exist. If it is destroyed, it is not used later.
        assert_eq!(unsafe { ibv_dereg_mr(Arg::test(mr)) }, destroyed);
        // SAFETY: the object and its parents exist. If it is destroyed, it is not used later.
        assert_eq!(unsafe { ibv_dealloc_pd(Arg::test(pd)) }, destroyed);
    }
    if destroyed == 0 {
        // SAFETY: no queue uses it any more.
        assert_eq!(unsafe { ibv_destroy_comp_channel(Arg::test(channel)) }, 0);
    }
    // SAFETY: the context is open.
    assert_eq!(unsafe { ibv_close_device(context) }, 0);
    // SAFETY: NULL is refused.
    assert_eq!(unsafe { ibv_get_cq_event(Arg::test(ptr::null_mut()), None, None) }, -1);
}

/// Runs the test with the variable in another process, because the variable is read once.
#[test]
fn objects_of_a_removed_device_are_destroyed_if_the_program_asks_for_it() {
    let test = "object::removed::objects_of_a_removed_device";
    let out =
        uverbs_testkit::machine::this_program().args(["--exact", test]).env(ALLOWS, "1").output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(
        out.status.success() && text.contains("1 passed"),
        "{text}{}",
        String::from_utf8_lossy(&out.stderr)
    );
}
