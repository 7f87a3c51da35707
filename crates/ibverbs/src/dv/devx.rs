// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands for the firmware and the objects that they create (mlx5dv_devx_obj_create(3), mlx5dv_devx_umem_reg(3)).
//!
//! Events and queries in the background are in [`devx_events`](super::devx_events).
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects and mailboxes.

use super::Of;
use crate::abi::context::ibv_context;
use crate::abi::mlx5dv::{mlx5dv_devx_umem, mlx5dv_devx_umem_in};
use crate::abi::object::{ibv_cq, ibv_srq};
use crate::abi::qp::ibv_qp;
use crate::abi::wq::{ibv_rwq_ind_table, ibv_wq};
use crate::arg::Arg;
use crate::errno::{Errno, Outcome, number, pointer};
use crate::live::Object;
use core::ffi::{c_int, c_void};
use core::mem::ManuallyDrop;
use core::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use uverbs_mlx5::devx::{self, DevxObject, Umem};

/// `struct mlx5dv_devx_obj`, which is opaque for programs.
pub(crate) struct DevxObj(pub(super) ManuallyDrop<DevxObject>);

/// The object behind a pointer.
pub(super) fn object(obj: Option<&DevxObj>) -> Outcome<&DevxObject> {
    Ok(&obj.ok_or(Errno::EINVAL)?.0)
}

pub(super) fn new_object(object: DevxObject) -> *mut DevxObj {
    Box::into_raw(Box::new(DevxObj(ManuallyDrop::new(object))))
}

/// A command and the place for its answer.
type Mailboxes<'a> = (&'a [u8], &'a mut [u8]);

/// # Safety
/// `input` is NULL or valid for reads of `inlen` bytes, `output` is NULL or valid for writes of `outlen` bytes, and no
/// other thread accesses them during the call.
unsafe fn mailboxes<'a>(
    input: *const c_void,
    inlen: usize,
    output: *mut c_void,
    outlen: usize,
) -> Outcome<Mailboxes<'a>> {
    // SAFETY: the contract of this function.
    let input = unsafe { devx::mailbox(input, inlen) }?;
    // SAFETY: the contract of this function.
    let output = unsafe { devx::mailbox_mut(output, outlen) }?;
    Ok((input, output))
}

/// Declares functions that take an object, a command and the place for its answer, as described in a man page.
macro_rules! commands {
    ($($page:literal $name:ident($object:ident: $ty:ty) -> $ret:ty = $outcome:ident(|$input:ident, $output:ident| $body:expr);)*) => {
        $(
            /// # Safety
            #[doc = concat!("As in ", $page, "(3).")]
            #[unsafe(no_mangle)]
            pub(crate) unsafe extern "C" fn $name(
                $object: $ty,
                input: *const c_void,
                inlen: usize,
                output: *mut c_void,
                outlen: usize,
            ) -> $ret {
                $outcome(|| {
                    // SAFETY: the mailboxes are valid (contract of the man page).
                    let ($input, $output) = unsafe { mailboxes(input, inlen, output, outlen) }?;
                    $body
                })
            }
        )*
    };
}

commands! {
    "mlx5dv_devx_general_cmd" uverbs_mlx5dv_devx_general_cmd(context: Arg<'_, ibv_context>) -> c_int = number(|input, output| {
        let open = super::of(context)?;
        // SAFETY: the program is responsible for the memory that its command names (contract of the man page).
        Ok(unsafe { open.driver.devx_general_command(input, output) }?)
    });
    "mlx5dv_devx_obj_create" uverbs_mlx5dv_devx_obj_create(context: Arg<'_, ibv_context>) -> *mut DevxObj = pointer(|input, output| {
        let open = super::of(context)?;
        // SAFETY: the program is responsible for the memory that its command names (contract of the man page).
        let object = unsafe { open.driver.devx_create(input, output) }?;
        Ok(new_object(object))
    });
    "mlx5dv_devx_obj_query" uverbs_mlx5dv_devx_obj_query(obj: Option<&DevxObj>) -> c_int = number(|input, output| {
        let object = object(obj)?;
        Ok(object.query(input, output)?)
    });
    "mlx5dv_devx_obj_modify" uverbs_mlx5dv_devx_obj_modify(obj: Option<&DevxObj>) -> c_int = number(|input, output| {
        let object = object(obj)?;
        // SAFETY: the program is responsible for the memory that its command names (contract of the man page).
        Ok(unsafe { object.modify(input, output) }?)
    });
}

/// # Safety
/// As in mlx5dv_devx_obj_destroy(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_devx_obj_destroy(obj: *mut DevxObj) -> c_int {
    number(|| {
        // SAFETY: NULL or made by `new_object`; if this succeeds, the program does not use it any more (contract of the man page).
        unsafe { super::destroy(obj, |obj| &obj.0, DevxObject::destroy) }
    })
}

/// The driver of an object of verbs, and the object's handle in the kernel.
fn of_verbs<T: Object>(object: Arg<'_, T>) -> Outcome<(Of<'_, T>, u32)> {
    let of = super::of_object(object)?;
    let handle = of.object.handle().ok_or(Errno::EINVAL)?;
    Ok((of, handle))
}

/// Declares the functions that query and modify an object of verbs.
macro_rules! commands_of_verbs {
    ($($query:ident $modify:ident $ty:ty;)*) => {
        commands! {
            $(
                "mlx5dv_devx_qp_modify" $query(object: Arg<'_, $ty>) -> c_int = number(|input, output| {
                    let (open, handle) = of_verbs(object)?;
                    Ok(open.driver.devx_query(handle, input, output)?)
                });
                "mlx5dv_devx_qp_modify" $modify(object: Arg<'_, $ty>) -> c_int = number(|input, output| {
                    let (open, handle) = of_verbs(object)?;
                    // SAFETY: the program is responsible for the changes by its command (contract of the man page).
                    Ok(unsafe { open.driver.devx_modify(handle, input, output) }?)
                });
            )*
        }
    };
}

commands_of_verbs! {
    uverbs_mlx5dv_devx_cq_query uverbs_mlx5dv_devx_cq_modify ibv_cq;
    uverbs_mlx5dv_devx_qp_query uverbs_mlx5dv_devx_qp_modify ibv_qp;
    uverbs_mlx5dv_devx_srq_query uverbs_mlx5dv_devx_srq_modify ibv_srq;
    uverbs_mlx5dv_devx_wq_query uverbs_mlx5dv_devx_wq_modify ibv_wq;
    uverbs_mlx5dv_devx_ind_tbl_query uverbs_mlx5dv_devx_ind_tbl_modify ibv_rwq_ind_table;
}

/// Memory: C's part and ours.
#[repr(C)]
pub(crate) struct DevxUmem {
    public: mlx5dv_devx_umem,
    pub(super) umem: ManuallyDrop<Umem>,
}

/// # Safety
/// As in mlx5dv_devx_umem_reg(3).
unsafe fn reg_umem(
    context: Arg<'_, ibv_context>,
    addr: *mut c_void,
    size: usize,
    access: u32,
    page_sizes: u64,
) -> Outcome<*mut mlx5dv_devx_umem> {
    let open = super::of(context)?;
    // SAFETY: the memory stays valid until it is deregistered (contract of the man page).
    Ok(new_umem(unsafe { open.driver.devx_reg_umem(addr, size, access, page_sizes) }?))
}

/// `MLX5DV_UMEM_MASK_DMABUF`
const UMEM_MASK_DMABUF: u64 = 1;

/// # Safety
/// As in mlx5dv_devx_umem_reg_ex(3), for memory of a DMA-BUF, in which the address is an offset.
unsafe fn reg_dmabuf_umem(
    context: Arg<'_, ibv_context>,
    input: &mlx5dv_devx_umem_in,
) -> Outcome<*mut mlx5dv_devx_umem> {
    let open = super::of(context)?;
    if input.dmabuf_fd < 0 {
        return Err(Errno::EBADF);
    }
    // SAFETY: the descriptor is not negative, and the program does not close it during this call (contract of the man
    // page).
    let dmabuf = unsafe { BorrowedFd::borrow_raw(input.dmabuf_fd) };
    let (offset, size) = (input.addr.addr() as u64, input.size);
    // SAFETY: the device may access the memory (contract of the man page).
    let umem =
        unsafe { open.driver.devx_reg_dmabuf_umem(dmabuf, offset, size, input.access, input.pgsz_bitmap) };
    Ok(new_umem(umem?))
}

pub(super) fn new_umem(umem: Umem) -> *mut mlx5dv_devx_umem {
    let public = mlx5dv_devx_umem { umem_id: umem.id() };
    Box::into_raw(Box::new(DevxUmem { public, umem: ManuallyDrop::new(umem) })).cast()
}

/// # Safety
/// As in mlx5dv_devx_umem_reg(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_devx_umem_reg(
    context: Arg<'_, ibv_context>,
    addr: *mut c_void,
    size: usize,
    access: u32,
) -> *mut mlx5dv_devx_umem {
    // SAFETY: the contract of this function is that of `reg_umem`.
    pointer(|| unsafe { reg_umem(context, addr, size, access, devx::ANY_PAGE_SIZE) })
}

/// # Safety
/// As in mlx5dv_devx_umem_reg_ex(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_devx_umem_reg_ex(
    context: Arg<'_, ibv_context>,
    input: Option<&mlx5dv_devx_umem_in>,
) -> *mut mlx5dv_devx_umem {
    pointer(|| {
        let input = input.ok_or(Errno::EINVAL)?;
        match input.comp_mask {
            // SAFETY: the contract of this function is that of `reg_umem`.
            0 => unsafe { reg_umem(context, input.addr, input.size, input.access, input.pgsz_bitmap) },
            // SAFETY: `context` is not closed, and the descriptor not closed, during this call (contract of the man
            // page).
            UMEM_MASK_DMABUF => unsafe { reg_dmabuf_umem(context, input) },
            _ => Err(Errno::EOPNOTSUPP),
        }
    })
}

/// # Safety
/// As in mlx5dv_devx_umem_dereg(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_devx_umem_dereg(umem: *mut mlx5dv_devx_umem) -> c_int {
    number(|| {
        // SAFETY: NULL or made by `new_umem`; if this succeeds, the program does not use it any more (contract of the man page).
        unsafe { super::destroy(umem.cast::<DevxUmem>(), |umem| &umem.umem, Umem::dereg) }
    })
}

/// # Safety
/// As in mlx5dv_devx_query_eqn(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn uverbs_mlx5dv_devx_query_eqn(
    context: Arg<'_, ibv_context>,
    vector: u32,
    eqn: Option<&mut MaybeUninit<u32>>,
) -> c_int {
    number(|| {
        let open = super::of(context)?;
        let eqn = eqn.ok_or(Errno::EINVAL)?;
        let found = open.driver.devx_query_eqn(vector)?;
        eqn.write(found);
        Ok(())
    })
}
