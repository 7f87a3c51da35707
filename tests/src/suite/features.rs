// SPDX-License-Identifier: MIT OR Apache-2.0
//! Features that a device may lack: XRC, raw packets, segmentation, creation flags. Creation returns `Unsupported` with
//! the name of the missing feature.

use crate::{Lab, Outcome};
use anyhow::{Result, ensure};
use uverbs::attr::{
    DeviceCapFlags, QpCap, QpCreateFlags, QpType, SendOpsFlags, SrqAttr, SrqInitAttr, SrqType,
};
use uverbs::{Driver, Error, Exclusive, RawPacket, Rc, Ud, XrcSend, raw::Srq};

const CAP: QpCap = QpCap::new(4, 4);

/// Checks the result of creating an object that the device may not support.
fn check<T>(result: Result<T, Error>, has: bool, verb: &str, names: &str) -> Outcome {
    match result {
        Ok(_) => ensure!(has, "{verb} of {names}: succeeded, but the device does not support it"),
        Err(e) => {
            ensure!(!has && e.is_unsupported(), "{verb} of {names}: {e}");
            ensure!(e.verb() == verb, "{e}");
            ensure!(
                e.to_string().to_lowercase().contains(&names.to_lowercase()),
                "{e} does not name {names}"
            );
        }
    }
    Ok(())
}

fn xrc_works_or_is_unsupported<D: Driver>(lab: &Lab<D>) -> Outcome {
    let has = lab.has(DeviceCapFlags::XRC);
    let pd = lab.a.alloc_pd()?;
    let cq = lab.a.create_cq(8, None)?;
    check(lab.a.open_xrcd(None, true, false), has, "open_xrcd", "")?;
    check(pd.raw_qp::<XrcSend>().send_cq(&cq).cap(CAP).create(), has, "create_qp", "XRC_SEND")?;
    if let Ok(xrcd) = lab.a.open_xrcd(None, true, false) {
        check(xrcd.recv_qp().create_recv(), has, "create_qp", "XRC_RECV")?;
        let attr = SrqInitAttr::new(SrqAttr::new(4)).srq_type(SrqType::Xrc);
        check(Srq::<Exclusive, D>::create_xrc(&pd, &attr, &xrcd, &cq), has, "create_srq", "xrc")?;
    }
    Ok(())
}

/// SRQs of other types than basic, without the attributes that they require.
fn srq_types_require_their_attributes<D: Driver>(lab: &Lab<D>) -> Outcome {
    let pd = lab.a.alloc_pd()?;
    for srq_type in [SrqType::Xrc, SrqType::Tm] {
        let attr = SrqInitAttr::new(SrqAttr::new(4)).srq_type(srq_type);
        let e = pd.create_srq::<Exclusive>(&attr).err();
        ensure!(e.as_ref().is_some_and(|e| e.verb() == "create_srq"), "{srq_type:?}: {e:?}");
    }
    Ok(())
}

fn raw_packet_qps_work_or_are_unsupported<D: Driver>(lab: &Lab<D>) -> Outcome {
    let pd = lab.a.alloc_pd()?;
    let cq = lab.a.create_cq(8, None)?;
    // mlx5 does not report their number, but their capabilities.
    let has = lab.device.max_raw_ethy_qp != 0 || !lab.device.raw_packet_caps.is_empty();
    check(pd.raw_qp::<RawPacket>().cq(&cq).cap(CAP).create(), has, "create_qp", "RAW_PACKET")
}

fn segmentation_matches_the_capabilities<D: Driver>(lab: &Lab<D>) -> Outcome {
    let pd = lab.a.alloc_pd()?;
    let cq = lab.a.create_cq(8, None)?;
    // If the device has segmentation, its capabilities list the QP types.
    let caps = &lab.device.tso_caps;
    let has = caps.max_tso != 0 && caps.supported_qpts & 1 << QpType::Ud as u32 != 0;
    let ops = SendOpsFlags::SEND | SendOpsFlags::TSO;
    check(pd.raw_qp::<Ud>().cq(&cq).cap(CAP).send_ops(ops).create(), has, "create_qp", "TSO")?;
    check(pd.raw_qp::<Ud>().cq(&cq).cap(CAP).max_tso_header(64).create(), has, "create_qp", "max_tso_header")
}

/// A QP is not created with operations that its transport does not have.
fn operations_of_other_transports_are_refused<D: Driver>(lab: &Lab<D>) -> Outcome {
    use SendOpsFlags as F;
    let pd = lab.a.alloc_pd()?;
    let cq = lab.a.create_cq(8, None)?;
    for op in [F::RDMA_WRITE, F::RDMA_READ, F::ATOMIC_FETCH_AND_ADD, F::LOCAL_INV, F::BIND_MW] {
        let name = format!("{op:?}");
        let name = name.trim_start_matches("SendOpsFlags(").trim_end_matches(')');
        check(pd.raw_qp::<Ud>().cq(&cq).cap(CAP).send_ops(F::SEND | op).create(), false, "create_qp", name)?;
    }
    for (op, has) in [(F::FLUSH, lab.has_flush()), (F::ATOMIC_WRITE, lab.has(DeviceCapFlags::ATOMIC_WRITE))] {
        let name = format!("{op:?}");
        let name = name.trim_start_matches("SendOpsFlags(").trim_end_matches(')');
        check(pd.raw_qp::<Rc>().cq(&cq).cap(CAP).send_ops(op).create(), has, "create_qp", name)?;
    }
    Ok(())
}

fn creation_flags_work_or_are_unsupported<D: Driver>(lab: &Lab<D>) -> Outcome {
    let pd = lab.a.alloc_pd()?;
    let cq = lab.a.create_cq(8, None)?;
    for flag in
        [QpCreateFlags::SCATTER_FCS, QpCreateFlags::CVLAN_STRIPPING, QpCreateFlags::BLOCK_SELF_MCAST_LB]
    {
        let e = pd.raw_qp::<Rc>().cq(&cq).cap(CAP).create_flags(flag).create().err();
        ensure!(
            e.as_ref().is_some_and(|e| e.verb() == "create_qp" && e.to_string().contains("create_flags")),
            "{flag:?}: {e:?}"
        );
    }
    Ok(())
}

crate::tests!(
    xrc_works_or_is_unsupported,
    srq_types_require_their_attributes,
    raw_packet_qps_work_or_are_unsupported,
    segmentation_matches_the_capabilities,
    operations_of_other_transports_are_refused,
    creation_flags_work_or_are_unsupported
);
