// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queue pairs: creation, opening of shared XRC targets, destruction (ibv_create_qp_ex(3), ibv_open_qp(3)).
#![expect(unsafe_code)]
// UNSAFETY: declares a verb that destroys an object, on whose queues the posting of its driver relies; undoing a
// creation calls that verb.

use super::{
    CqHandle, Object, PdHandle, Result, RwqIndTableHandle, SrqHandle, XrcdHandle, explain, handle_common,
    invoke, new_object,
};
use crate::attr::{QpCap, QpCreateFlags, QpInitAttr, QpType};
use crate::errno::Errno;
use crate::error::Error;
use crate::kernel::{Command, Kernel, Uhw};
use std::sync::Arc;
use uverbs_uapi::cmd::{
    IB_USER_VERBS_CMD_OPEN_QP, ib_uverbs_create_qp_resp, ib_uverbs_destroy_qp_resp, ib_uverbs_open_qp,
};
use uverbs_uapi::ids::{
    UVERBS_ATTR_CREATE_QP_CAP, UVERBS_ATTR_CREATE_QP_FLAGS, UVERBS_ATTR_CREATE_QP_HANDLE,
    UVERBS_ATTR_CREATE_QP_IND_TABLE_HANDLE, UVERBS_ATTR_CREATE_QP_PD_HANDLE,
    UVERBS_ATTR_CREATE_QP_RECV_CQ_HANDLE, UVERBS_ATTR_CREATE_QP_RESP_CAP, UVERBS_ATTR_CREATE_QP_RESP_QP_NUM,
    UVERBS_ATTR_CREATE_QP_SEND_CQ_HANDLE, UVERBS_ATTR_CREATE_QP_SOURCE_QPN, UVERBS_ATTR_CREATE_QP_SRQ_HANDLE,
    UVERBS_ATTR_CREATE_QP_TYPE, UVERBS_ATTR_CREATE_QP_USER_HANDLE, UVERBS_ATTR_CREATE_QP_XRCD_HANDLE,
    UVERBS_ATTR_DESTROY_QP_HANDLE, UVERBS_ATTR_DESTROY_QP_RESP, UVERBS_METHOD_QP_CREATE,
    UVERBS_METHOD_QP_DESTROY, UVERBS_OBJECT_QP,
};
use uverbs_uapi::verbs::{IB_UVERBS_QP_CREATE_SQ_SIG_ALL, ib_uverbs_qp_cap};

/// A queue pair.
#[derive(Debug)]
pub struct QpHandle {
    object: Object,
    qp_num: u32,
    qp_type: QpType,
}

handle_common!(QpHandle, "qp");

/// The objects that a QP is created from. The QP type determines which of them it needs; the others must be `None`.
#[derive(Clone, Copy, Debug, Default)]
pub struct QpParents<'a> {
    /// Its protection domain; every type but [`QpType::XrcRecv`].
    pub pd: Option<&'a PdHandle>,
    /// Completes its sends; every type but [`QpType::XrcRecv`].
    pub send_cq: Option<&'a CqHandle>,
    /// Completes its receives; every type but the XRC ones.
    pub recv_cq: Option<&'a CqHandle>,
    /// The SRQ that receives are taken from; optional for every type that has a `recv_cq`.
    pub srq: Option<&'a SrqHandle>,
    /// Its XRC domain; [`QpType::XrcRecv`].
    pub xrcd: Option<&'a XrcdHandle>,
}

/// Creates a QP and returns it with its sizes, which are at least those requested. Its events have `user_handle`.
///
/// # Errors
/// An invalid attribute or parent, or the kernel's error (`EPERM` for raw packets without `CAP_NET_RAW`).
pub fn create(
    parents: QpParents<'_>,
    attr: &QpInitAttr,
    user_handle: u64,
    uhw: Uhw<'_>,
) -> Result<(QpHandle, QpCap)> {
    const VERB: &str = "create_qp";
    let kernel = check_parents(VERB, &parents, attr.qp_type)?;
    check_flags(VERB, attr)?;
    let cap = ib_uverbs_qp_cap {
        max_send_wr: attr.cap.max_send_wr,
        max_recv_wr: attr.cap.max_recv_wr,
        max_send_sge: attr.cap.max_send_sge,
        max_recv_sge: attr.cap.max_recv_sge,
        max_inline_data: attr.cap.max_inline_data,
    };
    // A source QP number is an attribute of its own; the "all signaled" bit is uverbs' own addition to the flags.
    let mut flags = attr.create_flags.difference(QpCreateFlags::SOURCE_QPN).bits();
    if attr.sq_sig_all {
        flags |= IB_UVERBS_QP_CREATE_SQ_SIG_ALL;
    }
    let mut got = ib_uverbs_qp_cap::default();
    let mut qp_num = 0_u32;
    let mut command = Command::<16>::new(UVERBS_OBJECT_QP, UVERBS_METHOD_QP_CREATE);
    command
        .handle_new(UVERBS_ATTR_CREATE_QP_HANDLE)
        .u64(UVERBS_ATTR_CREATE_QP_USER_HANDLE, user_handle)
        .input(UVERBS_ATTR_CREATE_QP_CAP, &cap)
        .constant(UVERBS_ATTR_CREATE_QP_TYPE, attr.qp_type as u32)
        .output(UVERBS_ATTR_CREATE_QP_RESP_CAP, &mut got)
        .output(UVERBS_ATTR_CREATE_QP_RESP_QP_NUM, &mut qp_num);
    for (id, handle) in [
        (UVERBS_ATTR_CREATE_QP_PD_HANDLE, parents.pd.map(PdHandle::handle)),
        (UVERBS_ATTR_CREATE_QP_XRCD_HANDLE, parents.xrcd.map(XrcdHandle::handle)),
        (UVERBS_ATTR_CREATE_QP_SEND_CQ_HANDLE, parents.send_cq.map(CqHandle::handle)),
        (UVERBS_ATTR_CREATE_QP_RECV_CQ_HANDLE, parents.recv_cq.map(CqHandle::handle)),
        (UVERBS_ATTR_CREATE_QP_SRQ_HANDLE, parents.srq.map(SrqHandle::handle)),
    ] {
        if let Some(handle) = handle {
            command.handle_in(id, handle);
        }
    }
    if flags != 0 {
        command.flags(UVERBS_ATTR_CREATE_QP_FLAGS, flags);
    }
    if attr.create_flags.contains(QpCreateFlags::SOURCE_QPN) {
        command.u32(UVERBS_ATTR_CREATE_QP_SOURCE_QPN, attr.source_qpn);
    }
    command.uhw(uhw).run(&**kernel).map_err(|errno| create_error(VERB, kernel, attr, errno))?;
    let object = new_object(VERB, kernel, &command, UVERBS_ATTR_CREATE_QP_HANDLE)?;
    let qp = QpHandle { object, qp_num, qp_type: attr.qp_type };
    let got = cap_from_kernel(&got);
    if let Some(what) = invalid_part(qp_num, &attr.cap, &got, attr.qp_type, parents.srq.is_some()) {
        // SAFETY: the object has no other user yet.
        let _ = unsafe { qp.destroy() };
        return Err(Error::protocol(VERB, what));
    }
    Ok((qp, got))
}

/// Creates a raw packet QP without queues, whose packets go to the work queues of a table. The driver's private input
/// specifies the hash.
///
/// # Errors
/// The kernel's error (`EPERM` without `CAP_NET_RAW`).
pub fn create_rss(
    pd: &PdHandle,
    table: &RwqIndTableHandle,
    user_handle: u64,
    uhw: Uhw<'_>,
) -> Result<QpHandle> {
    const VERB: &str = "create_qp";
    let (cap, mut got) = (ib_uverbs_qp_cap::default(), ib_uverbs_qp_cap::default());
    let mut qp_num = 0_u32;
    let mut command = Command::<10>::new(UVERBS_OBJECT_QP, UVERBS_METHOD_QP_CREATE);
    command
        .handle_new(UVERBS_ATTR_CREATE_QP_HANDLE)
        .u64(UVERBS_ATTR_CREATE_QP_USER_HANDLE, user_handle)
        .input(UVERBS_ATTR_CREATE_QP_CAP, &cap)
        .constant(UVERBS_ATTR_CREATE_QP_TYPE, QpType::RawPacket as u32)
        .output(UVERBS_ATTR_CREATE_QP_RESP_CAP, &mut got)
        .output(UVERBS_ATTR_CREATE_QP_RESP_QP_NUM, &mut qp_num)
        .handle_in(UVERBS_ATTR_CREATE_QP_PD_HANDLE, pd.handle())
        .handle_in(UVERBS_ATTR_CREATE_QP_IND_TABLE_HANDLE, table.handle())
        .uhw(uhw)
        .run(&**pd.kernel())
        .map_err(|errno| pd.error(VERB, errno))?;
    let object = new_object(VERB, pd.kernel(), &command, UVERBS_ATTR_CREATE_QP_HANDLE)?;
    Ok(QpHandle { object, qp_num, qp_type: QpType::RawPacket })
}

/// The error for the kernel's errno: it names the size that is too large, or all sizes if none is, because the limit of
/// inline data can't be queried.
fn create_error(verb: &'static str, kernel: &Arc<dyn Kernel>, attr: &QpInitAttr, errno: Errno) -> Error {
    let cap = attr.cap;
    let explained = explain::over_limit(verb, kernel, errno, |device| {
        [
            ("max_send_wr", cap.max_send_wr, device.max_qp_wr),
            ("max_recv_wr", cap.max_recv_wr, device.max_qp_wr),
            ("max_send_sge", cap.max_send_sge, device.max_sge),
            ("max_recv_sge", cap.max_recv_sge, device.max_sge),
        ]
    });
    explained.unwrap_or_else(|| {
        let (qp_type, device) = (attr.qp_type, kernel.name());
        let object = match errno {
            Errno::EINVAL => format!("{qp_type} qp on device {device}, {cap:?}"),
            _ => format!("{qp_type} qp on device {device}"),
        };
        Error::os(verb, object, errno)
    })
}

fn cap_from_kernel(cap: &ib_uverbs_qp_cap) -> QpCap {
    QpCap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
    }
}

/// The invalid part of the answer. Only queues that the QP has are compared: drivers return arbitrary sizes for the
/// others.
fn invalid_part(qp_num: u32, asked: &QpCap, got: &QpCap, qp_type: QpType, has_srq: bool) -> Option<String> {
    if qp_num > 0xff_ffff {
        return Some(format!("QP number {qp_num:#x} has more than 24 bits"));
    }
    let short_send = qp_type.has_send_queue()
        && (got.max_send_wr < asked.max_send_wr
            || got.max_send_sge < asked.max_send_sge
            || got.max_inline_data < asked.max_inline_data);
    let short_recv = qp_type.has_recv_queue()
        && !has_srq
        && asked.max_recv_wr != 0
        && (got.max_recv_wr < asked.max_recv_wr || got.max_recv_sge < asked.max_recv_sge);
    (short_send || short_recv).then(|| format!("sizes {got:?}, requested {asked:?}"))
}

/// Checks that the type's parents are present (`UVERBS_METHOD_QP_CREATE` in uverbs_std_types_qp.c), and checks the
/// port.
fn check_parents<'a>(
    verb: &'static str,
    parents: &QpParents<'a>,
    qp_type: QpType,
) -> Result<&'a Arc<dyn Kernel>> {
    let (send, recv) = (qp_type.has_send_queue(), qp_type.has_recv_queue());
    for (field, given, wanted) in [
        ("pd", parents.pd.is_some(), send),
        ("send_cq", parents.send_cq.is_some(), send),
        ("recv_cq", parents.recv_cq.is_some(), recv),
        ("xrcd", parents.xrcd.is_some(), !send),
    ] {
        if given != wanted {
            let what = if wanted { "needed by" } else { "not taken by" };
            return Err(Error::invalid(verb, field, format!("{what} a QP of type {qp_type}")));
        }
    }
    if parents.srq.is_some() && !recv {
        return Err(Error::invalid(verb, "srq", format!("not taken by a QP of type {qp_type}")));
    }
    let kernel = parents.pd.map(PdHandle::kernel).or(parents.xrcd.map(XrcdHandle::kernel));
    kernel.ok_or_else(|| Error::invalid(verb, "pd", "neither pd nor xrcd is given"))
}

/// `check_creation_flags()` in uverbs_std_types_qp.c.
fn check_flags(verb: &'static str, attr: &QpInitAttr) -> Result<()> {
    let flags = attr.create_flags;
    let unknown = flags.difference(QpCreateFlags::all());
    if !unknown.is_empty() {
        return Err(Error::invalid(verb, "create_flags", format!("unknown bits {:#x}", unknown.bits())));
    }
    let raw_only = QpCreateFlags::SCATTER_FCS | QpCreateFlags::CVLAN_STRIPPING;
    let wrong = match attr.qp_type {
        QpType::RawPacket | QpType::Driver => QpCreateFlags::empty(),
        QpType::Ud => flags & raw_only,
        // A source QP number is not a flag of the ioctl; the driver decides whether the type supports one.
        _ => flags.difference(QpCreateFlags::SOURCE_QPN),
    };
    if !wrong.is_empty() {
        return Err(Error::invalid(
            verb,
            "create_flags",
            format!("{wrong:?} on a QP of type {}", attr.qp_type),
        ));
    }
    if flags.contains(QpCreateFlags::SOURCE_QPN) && attr.source_qpn > 0xff_ffff {
        return Err(Error::invalid(
            verb,
            "source_qpn",
            format!("{:#x} has more than 24 bits", attr.source_qpn),
        ));
    }
    Ok(())
}

/// Opens the XRC target QP that another process of the same XRC domain created, to receive its events and to keep it
/// alive.
///
/// # Errors
/// An invalid number, or the kernel's error (`EINVAL` if the domain has no such QP).
pub fn open(xrcd: &XrcdHandle, qp_num: u32, user_handle: u64, uhw: Uhw<'_>) -> Result<QpHandle> {
    const VERB: &str = "open_qp";
    if qp_num > 0xff_ffff {
        return Err(Error::invalid(VERB, "qp_num", format!("{qp_num:#x} has more than 24 bits")));
    }
    let request = ib_uverbs_open_qp {
        user_handle,
        // In spite of its name in C, the field is the XRC domain (`ib_uverbs_open_qp()`).
        pd_handle: xrcd.handle(),
        qpn: qp_num,
        qp_type: QpType::XrcRecv as u8,
        ..Default::default()
    };
    let resp: ib_uverbs_create_qp_resp = invoke(&**xrcd.kernel(), IB_USER_VERBS_CMD_OPEN_QP, &request, uhw)
        .map_err(|errno| xrcd.error(VERB, errno))?;
    let object = Object::new(VERB, xrcd.kernel(), resp.qp_handle)?;
    let qp = QpHandle { object, qp_num, qp_type: QpType::XrcRecv };
    if resp.qpn != qp_num {
        // SAFETY: the object has no other user yet.
        let _ = unsafe { qp.destroy() };
        return Err(Error::protocol(VERB, format!("opened QP {:#x} instead of {qp_num:#x}", resp.qpn)));
    }
    Ok(qp)
}

impl QpHandle {
    /// Its number, 24 bits, by which peers address it.
    #[must_use]
    pub fn qp_num(&self) -> u32 {
        self.qp_num
    }

    /// Its type.
    #[must_use]
    pub fn qp_type(&self) -> QpType {
        self.qp_type
    }

    /// Destroys the QP and returns how many of its events were read.
    ///
    /// # Safety
    /// For an object with queues only its driver's [object](crate::provider::object) may call this, which stops posts and polls first, and
    /// keeps the memory that the device uses until this succeeds. For an object without queues there is no requirement.
    ///
    /// # Errors
    /// `EBUSY` while the QP is attached to a multicast group or a window is bound through it; the handle is returned,
    /// and
    /// the device may still use the QP's memory.
    pub unsafe fn destroy(self) -> Result<u32, (Self, Error)> {
        match self.object.destroy_with::<ib_uverbs_destroy_qp_resp>(
            UVERBS_OBJECT_QP,
            UVERBS_METHOD_QP_DESTROY,
            UVERBS_ATTR_DESTROY_QP_HANDLE,
            UVERBS_ATTR_DESTROY_QP_RESP,
        ) {
            Ok(resp) => Ok(resp.events_reported),
            Err(errno) => {
                let error = self.error("destroy_qp", errno);
                Err((self, error))
            }
        }
    }
}
