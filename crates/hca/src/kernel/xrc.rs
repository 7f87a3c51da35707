// SPDX-License-Identifier: MIT OR Apache-2.0
//! XRC domains, and targets that several contexts have open.

use super::call::Call;
use super::object::Object;
use super::object::QpObject;
use crate::engine::qp::QpKind;
use uverbs_core::Errno;
use uverbs_core::attr::QpType;
use uverbs_core::kernel::RawCommand;
use uverbs_softkernel::Call as _;
use uverbs_softkernel::attr::{core_in, core_out};
use uverbs_uapi::cmd::{
    ib_uverbs_create_qp_resp, ib_uverbs_open_qp, ib_uverbs_open_xrcd, ib_uverbs_open_xrcd_resp,
};
use zerocopy::IntoBytes;

impl Call<'_, '_> {
    pub(super) fn open_xrcd(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        let request: ib_uverbs_open_xrcd = core_in(c)?;
        let (create, exclusive) = (libc::O_CREAT as u32, libc::O_EXCL as u32);
        if request.oflags & !(create | exclusive) != 0 {
            return Err(Errno::EINVAL);
        }
        let inode = match request.fd.cast_signed() {
            -1 => None,
            fd => Some(inode(fd)?),
        };
        let found = inode.and_then(|inode| self.state.xrcd_of(inode));
        let xrcdn = match found {
            Some(_) if request.oflags & exclusive != 0 => return Err(Errno::EINVAL),
            Some(xrcdn) => {
                self.state.hold_xrcd(xrcdn);
                xrcdn
            }
            // The file has no domain, and the flags do not request to create one.
            None if inode.is_some() && request.oflags & create == 0 => return Err(Errno::EAGAIN),
            None => self.state.new_xrcd(inode)?,
        };
        let xrcd_handle = self.add(Object::Xrcd { xrcdn }, &[], 0)?;
        core_out(c, ib_uverbs_open_xrcd_resp { xrcd_handle, driver_data: [] }.as_bytes())
    }

    pub(super) fn open_qp(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        let request: ib_uverbs_open_qp = core_in(c)?;
        // The field is named `pd_handle` in C, but has the handle of the XRC domain.
        let Object::Xrcd { xrcdn } = *self.object(request.pd_handle)? else { return Err(Errno::EINVAL) };
        let found = self.device.qps.get(&request.qpn);
        let is_target = found.is_some_and(|qp| qp.kind == QpKind::XrcRecv && qp.xrcd == xrcdn);
        if !is_target || u32::from(request.qp_type) != QpType::XrcRecv as u32 {
            return Err(Errno::EINVAL);
        }
        *self.state.shared_qps.get_or_default(request.qpn) += 1;
        self.state.hold_xrcd(xrcdn);
        let object = QpObject {
            holds_xrcd: Some(xrcdn),
            ..QpObject::new(request.qpn, QpType::XrcRecv, QpKind::XrcRecv)
        };
        let object = Object::Qp(Box::new(object));
        let qp_handle = self.add(object, &[request.pd_handle], request.user_handle)?;
        core_out(c, ib_uverbs_create_qp_resp { qp_handle, qpn: request.qpn, ..Default::default() }.as_bytes())
    }
}

/// Device and inode of an open file of this process, by its number.
fn inode(fd: i32) -> Result<(u64, u64), Errno> {
    use std::os::unix::fs::MetadataExt;
    let meta = std::fs::metadata(format!("/proc/self/fd/{fd}")).map_err(|_| Errno::EBADF)?;
    Ok((meta.dev(), meta.ino()))
}
