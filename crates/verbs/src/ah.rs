// SPDX-License-Identifier: MIT OR Apache-2.0
//! Address handles: the destinations of datagrams (ibv_create_ah(3), ibv_create_ah_from_wc(3)).

use crate::brief::brief;
use crate::open::AnyDriver;
use crate::pd::{PdInner, ProtectionDomain};
use core::ptr;
use std::sync::Arc;
use uverbs_core::attr::AhAttr;
use uverbs_core::control::{self, AhHandle};
use uverbs_core::error::{Error, Result};
use uverbs_core::provider::Driver;
use uverbs_core::wc::WorkCompletion;
use uverbs_core::wr::{IbvAh, RawAh};

/// An address handle: the destination of datagrams (ibv_create_ah(3)).
///
/// Keep it until the datagrams that name it have completed. On mlx5 their WQEs hold a copy of the address. rxe reads the
/// address from the kernel's object when it sends: after the handle was destroyed, datagrams that were not sent are
/// dropped, or complete with an error.
///
/// ```
/// use uverbs::attr::{AccessFlags, QpCap};
/// use uverbs::{ConnectAttr, Context, PageBuf, Ud, WorkCompletion, mlx5::Mlx5};
/// use uverbs_hca::Hca;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let context = Context::<Mlx5>::from_kernel(Hca::new().open())?;
/// let (pd, cq) = (context.alloc_pd()?, context.create_cq(16, None)?);
/// let cap = QpCap::new(4, 4).inline(64);
/// let mut qp = pd.raw_qp::<Ud>().cq(&cq).cap(cap).create()?;
/// let attr = ConnectAttr::default().on(&context)?;
/// qp.init(&attr)?;
/// let here = qp.control.endpoint(1, &attr)?;
/// // A datagram QP needs no peer: this moves it to RTS.
/// qp.connect(&here, &here, &attr)?;
///
/// // The first 40 bytes of a receive are for the global routing header.
/// let region = pd.reg_private(PageBuf::new(4096)?, AccessFlags::LOCAL_WRITE)?;
/// // SAFETY: the region lives, and is not borrowed, until the receive has completed.
/// unsafe { qp.rq()?.post(2, &[region.sge(0..40 + 64)?])? };
/// // The destination is the handle, the QP number and the queue key; here the QP itself.
/// let ah = pd.create_ah(&attr.ah_attr(&here))?;
/// qp.sq().post_to(1, &ah, here.qp_num, attr.qkey).signaled().send_inline(b"hello")?;
///
/// let mut wc = [WorkCompletion::default(); 2];
/// let mut done = Vec::new();
/// while done.len() < 2 {
///     done.extend_from_slice(cq.poll(&mut wc)?);
/// }
/// let received = done.iter().find(|wc| wc.wr_id == 2).expect("the receive");
/// received.ok()?;
/// assert_eq!(region.slice(40..received.byte_len as usize)?, b"hello");
/// # Ok(())
/// # }
/// ```
pub struct AddressHandle<D: Driver = AnyDriver> {
    handle: Option<AhHandle>,
    /// Boxed: C's lists point to it.
    raw: Box<RawAh<D::Ah>>,
    _pd: Arc<PdInner<D>>,
}

brief!([D: Driver] AddressHandle<D>, |this| "AddressHandle {:?} of {}", this.handle.as_ref().map(AhHandle::handle), this._pd.context().name());

// SAFETY: the raw pointers in `RawAh` are NULL and never dereferenced; the driver's part (`raw.driver`) is `Send +
// Sync`.
#[expect(unsafe_code, reason = "NULL pointers of a C struct")]
unsafe impl<D: Driver> Send for AddressHandle<D> {}
// SAFETY: the raw pointers in `RawAh` are NULL and never dereferenced; the driver's part is `Send + Sync`, and no
// method changes them through `&`.
#[expect(unsafe_code, reason = "NULL pointers of a C struct")]
unsafe impl<D: Driver> Sync for AddressHandle<D> {}

impl<D: Driver> ProtectionDomain<D> {
    /// `ibv_create_ah`: creates a handle for the destination `attr`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a port or a GID index that the device does not have; otherwise the kernel's error.
    pub fn create_ah(&self, attr: &AhAttr) -> Result<AddressHandle<D>> {
        let pd = self.inner();
        let (handle, driver) = pd.context().driver().create_ah(pd.handle()?, attr)?;
        let base = IbvAh { context: ptr::null_mut(), pd: ptr::null_mut(), handle: handle.handle() };
        Ok(AddressHandle { handle: Some(handle), raw: Box::new(RawAh { base, driver }), _pd: pd.clone() })
    }

    /// `ibv_create_ah_from_wc`: creates the handle for an answer to the sender of a datagram. `grh` is the first 40
    /// bytes of its receive buffer.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a completion or a header without the sender's address; otherwise as
    /// [`create_ah`](Self::create_ah).
    pub fn create_ah_from_wc(
        &self,
        wc: &WorkCompletion,
        grh: &[u8; 40],
        port_num: u8,
    ) -> Result<AddressHandle<D>> {
        self.create_ah(&self.ah_attr_from_wc(wc, grh, port_num)?)
    }

    /// `ibv_init_ah_from_wc`: the attributes of a handle for an answer to the sender of a datagram. `grh` is the first 40
    /// bytes of its receive buffer.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a header or a completion from which no address can be derived; otherwise the kernel's
    /// error.
    pub fn ah_attr_from_wc(&self, wc: &WorkCompletion, grh: &[u8; 40], port_num: u8) -> Result<AhAttr> {
        control::reply::ah_attr(self.inner().context().kernel(), wc, grh, port_num)
    }
}

impl<D: Driver> AddressHandle<D> {
    /// The data that the driver's encoder needs.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn driver_data(&self) -> &D::Ah {
        &self.raw.driver
    }

    /// The pointer for `wr.ud.ah` and `wr_set_ud_addr`; valid as long as this handle lives.
    #[must_use]
    pub fn as_raw(&self) -> *const IbvAh {
        ptr::from_ref::<RawAh<D::Ah>>(&self.raw).cast()
    }

    /// Destroys it and reports a failure, which `Drop` would only log.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn close(mut self) -> Result<()> {
        self.destroy()
    }

    fn destroy(&mut self) -> Result<(), Error> {
        let Some(handle) = self.handle.take() else { return Ok(()) };
        handle.destroy().map_err(|(handle, error)| {
            core::mem::forget(handle);
            error
        })
    }
}

impl<D: Driver> Drop for AddressHandle<D> {
    fn drop(&mut self) {
        if let Err(error) = self.destroy() {
            log::error!("ah: {error}");
        }
    }
}
