// SPDX-License-Identifier: MIT OR Apache-2.0
//! Dependencies of objects: parents exist as long as their children need them, in any order of destruction. Also the
//! attributes of the device and its port.

use crate::env::End;
use crate::lab::{PORT, find};
use crate::pair::{ah_attr, builder_ops, region};
use crate::{Face, Lab, Op, Outcome, Pair, PairEnd, Req, Spec};
use anyhow::{Context as _, Result, ensure};
use uverbs::{Driver, Errno, Exclusive, MemoryRegion, PageBuf, Rc, Shared, Ud};
use uverbs::{
    Exposed,
    attr::{AccessFlags, GidType, MwType, PortState, QpCap, SrqAttr, SrqInitAttr},
};

type RcPair<D> = Pair<D, Rc, Exclusive>;

const CAP: QpCap = QpCap::new(4, 4);

/// Both devices are found by name, have a device file, and have the lab's GID at the lab's index.
fn devices_and_gids_are_found<D: Driver>(lab: &Lab<D>) -> Outcome {
    for end in [End::A, End::B] {
        if let Some(env) = lab.bed.env() {
            let info = find(env.dev(end))?;
            let node = info.uverbs.as_ref().map_err(|e| anyhow::anyhow!("{e}"))?;
            ensure!(node.path.starts_with("/dev/infiniband"), "{info:?}");
        }
        let context = lab.end(end);
        ensure!(context.name() == lab.bed.name(end));
        let entry = context.query_gid_ex(PORT, lab.gid_index.into())?;
        ensure!(entry.gid == lab.bed.gid(end)?, "{entry:?}");
        let gid_type = if lab.is_ethernet() { GidType::ROCE_V2 } else { GidType::IB };
        ensure!(entry.gid_type == gid_type && entry.port_num == u32::from(PORT), "{entry:?}");
        ensure!(context.query_gid(PORT, lab.gid_index.into())? == entry.gid);
        ensure!(context.query_gid_table()?.contains(&entry), "the table lacks {entry:?}");
    }
    Ok(())
}

/// Queries return the port's attributes. Ports and indices out of range give an error with the verb's name.
fn queries_report_port_and_device<D: Driver>(lab: &Lab<D>) -> Outcome {
    let port = lab.a.query_port(PORT)?;
    ensure!(port.state == PortState::ACTIVE && port.link_layer == lab.bed.link_layer(), "{port:?}");
    ensure!(port.active_mtu <= port.max_mtu && port.active_mtu.bytes().is_some(), "{port:?}");
    ensure!(port.gid_tbl_len > u32::from(lab.gid_index) && port.max_msg_sz >= 1 << 20, "{port:?}");
    ensure!(lab.a.query_pkey(PORT, 0)? & 0x7fff == 0x7fff);
    let device = &lab.device;
    ensure!(device.phys_port_cnt == 1 && device.max_qp > 0 && device.max_sge > 3, "{device:?}");
    ensure!(lab.a.num_comp_vectors() > 0);
    for (what, e) in [
        ("port 0", lab.a.query_port(0).err()),
        ("port 2", lab.a.query_port(2).err()),
        ("gid of port 7", lab.a.query_gid_ex(7, 0).err()),
        ("gid 70000", lab.a.query_gid_ex(PORT, 70_000).err()),
        ("pkey 60000", lab.a.query_pkey(PORT, 60_000).err()),
    ] {
        let e = e.with_context(|| format!("{what}: expected an error"))?;
        ensure!(e.verb().starts_with("query_"), "{what}: {e}");
    }
    Ok(())
}

/// Closing an object in use fails and returns it; after its users were destroyed it can be closed.
fn objects_in_use_are_not_closed<D: Driver>(lab: &Lab<D>) -> Outcome {
    let pd = lab.a.alloc_pd()?;
    let cq = lab.a.create_cq(4, None)?;
    let qp = pd.raw_qp::<Rc>().cq(&cq).cap(CAP).create()?;
    let mr = region(&pd, 4096, AccessFlags::LOCAL_WRITE)?;
    let (pd, e) = pd.close().err().context("a domain in use was closed")?;
    ensure!(e.errno() == Errno::EBUSY && e.verb() == "dealloc_pd", "{e}");
    let (cq, e) = cq.close().err().context("a CQ in use was closed")?;
    ensure!(e.errno() == Errno::EBUSY && e.verb() == "destroy_cq", "{e}");
    let control = qp.control.clone();
    let e = qp.close().err().context("a QP with a second control was closed")?;
    ensure!(e.errno() == Errno::EBUSY && e.verb() == "destroy_qp", "{e}");
    drop(control);
    cq.close().map_err(|(_, e)| e)?;
    let _: PageBuf = mr.close().map_err(|(_, e)| e)?;
    pd.close().map_err(|(_, e)| e)?;
    Ok(())
}

/// All parents are dropped before the objects that need them, and the remaining objects still work.
fn dropped_parents_work_until_unused<D: Driver>(lab: &Lab<D>) -> Outcome {
    let mut pair = RcPair::new(lab)?;
    let spec = Spec::new(lab);
    let (ctx, ops) = (lab.b.clone(), builder_ops::<D, Rc>(lab)?);
    let pd = ctx.alloc_pd()?;
    let attr = SrqInitAttr::new(SrqAttr::new(8));
    let mut srq = pd.create_srq::<Exclusive>(&attr)?;
    let channel = ctx.create_comp_channel()?;
    let cq = ctx.create_cq(16, Some(&channel))?;
    let b = PairEnd::on(pd.clone(), cq, &spec, ops, 1, Some(&srq))?;
    crate::post::post_srq_recv(&mut srq, Face::Single, &[(5, &[])])?;
    let mw = pd.alloc_mw(MwType::Type1).ok();
    let ah = pd.create_ah(&ah_attr(lab, pair.a.here.gid, pair.a.here.lid))?;
    pair.b = b;
    drop((ctx, pd, srq, channel));
    pair.a.set_state(uverbs::attr::QpState::RESET)?;
    pair.connect(&spec.attr)?;
    pair.a.post(Face::Single, &[Req::new(1, Op::Send).signaled()])?;
    pair.a.ok(1)?;
    ensure!(pair.b.ok(1)?[0].wr_id == 5);
    let PairEnd { qp, cq, mr, pd, .. } = pair.b;
    drop((pd, mr, cq));
    drop((ah, mw));
    drop(qp);
    Ok(())
}

/// Two contexts of one device are independent, and objects of one can't be used with the other.
fn contexts_are_independent<D: Driver>(lab: &Lab<D>) -> Outcome {
    let other = lab.bed.open(End::A)?;
    let mut pair = RcPair::new(lab)?;
    let pd = other.alloc_pd()?;
    let cq = other.create_cq(4, None)?;
    let attr = SrqInitAttr::new(SrqAttr::new(8));
    let srq = pd.create_srq::<Exclusive>(&attr)?;
    let mine = &pair.a.pd;
    for (field, e) in [
        ("create_qp: invalid send_cq", pd.raw_qp::<Rc>().cq(&pair.a.cq).cap(CAP).create().err()),
        (
            "create_qp: invalid recv_cq",
            mine.raw_qp::<Rc>().send_cq(&pair.a.cq).recv_cq(&cq).cap(CAP).create().err(),
        ),
        ("create_qp: invalid srq", mine.raw_qp::<Rc>().cq(&pair.a.cq).srq(&srq).cap(CAP).create().err()),
        ("create_cq: invalid channel", other.create_cq(4, Some(&lab.a.create_comp_channel()?)).err()),
        ("alloc_parent_domain: invalid td", mine.parent_domain(&other.alloc_td()?).err()),
        ("rereg_mr: invalid pd", region(mine, 4096, AccessFlags::LOCAL_WRITE)?.rereg(Some(&pd), None).err()),
    ] {
        let e = e.with_context(|| format!("{field}: taken from another context"))?;
        ensure!(e.to_string().starts_with(field) && e.to_string().contains("another context"), "{e}");
    }
    drop((srq, pd, cq, other));
    pair.message(Face::Batch, 1000, 3)
}

/// Hundreds of objects are created and destroyed.
fn hundreds_of_objects_have_unique_numbers<D: Driver>(lab: &Lab<D>) -> Outcome {
    let pd = lab.a.alloc_pd()?;
    let cq = lab.a.create_cq(16, None)?;
    let (gid, lid) = (lab.b.query_gid(PORT, lab.gid_index.into())?, lab.b.query_port(PORT)?.lid);
    for _ in 0..2 {
        let mut qps = Vec::new();
        let mut regions: Vec<MemoryRegion<PageBuf, Exposed, D>> = Vec::new();
        let mut handles = Vec::new();
        for _ in 0..100 {
            qps.push(pd.raw_qp::<Ud>().cq(&cq).cap(CAP).create()?);
            regions.push(region(&pd, 4096, AccessFlags::LOCAL_WRITE)?);
            handles.push(pd.create_ah(&ah_attr(lab, gid, lid))?);
        }
        let mut numbers: Vec<_> = qps.iter().map(|q| q.qp_num()).collect();
        numbers.sort_unstable();
        numbers.dedup();
        ensure!(numbers.len() == 100, "QP numbers are not unique");
        let mut keys: Vec<_> = regions.iter().map(MemoryRegion::lkey).collect();
        keys.sort_unstable();
        keys.dedup();
        ensure!(keys.len() == 100, "keys are not unique");
    }
    Ok(())
}

/// Queues in a thread domain work.
fn thread_domain_queues_work<D: Driver>(lab: &Lab<D>) -> Outcome {
    let spec = Spec::new(lab);
    let mut pair = RcPair::new(lab)?;
    let td = lab.b.alloc_td()?;
    let pd = lab.b.alloc_pd()?.parent_domain(&td)?;
    drop(td);
    let cq = lab.b.create_cq(spec.cqe, None)?;
    let none = None::<&uverbs::raw::Srq<Shared, D>>;
    pair.b = PairEnd::on(pd, cq, &spec, builder_ops::<D, Rc>(lab)?, 1, none)?;
    pair.a.set_state(uverbs::attr::QpState::RESET)?;
    pair.connect(&spec.attr)?;
    pair.message(Face::Single, 3000, 8)
}

/// Asynchronous events are read as values, and those of destroyed objects are skipped.
fn events_of_destroyed_objects_are_skipped<D: Driver>(lab: &Lab<D>) -> Result<()> {
    if !lab.has_sqd()? {
        return Ok(());
    }
    lab.a.set_async_nonblocking(true)?;
    for _ in 0..10 {
        // Draining raises an event of the QP, which is destroyed before the event is read.
        let pair = RcPair::new(lab)?;
        pair.a.drain()?;
        drop(pair);
    }
    crate::wait::rest(crate::wait::QUIET);
    match lab.a.get_async_event() {
        Err(e) if e.errno() == Errno::EAGAIN => Ok(()),
        other => anyhow::bail!("{other:?}"),
    }
}

crate::tests!(
    devices_and_gids_are_found,
    queries_report_port_and_device,
    objects_in_use_are_not_closed,
    dropped_parents_work_until_unused,
    contexts_are_independent,
    hundreds_of_objects_have_unique_numbers,
    thread_domain_queues_work,
    events_of_destroyed_objects_are_skipped,
);
