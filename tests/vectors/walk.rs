// SPDX-License-Identifier: MIT OR Apache-2.0
//! The control trace: the same calls of the control path must make the same ioctls, in object, method and the bytes of
//! every attribute; [`REASONS`] lists the exceptions. A reason without a difference is a failure, too.
//!
//! Not compared: addresses (of answers, queues, doorbell records: both zero or both not), numbers of files, and the
//! handles that identify objects in events. Handles of objects are equal because both kernels count them alike.
#![expect(unsafe_code)]
// UNSAFETY: registers memory at addresses that are not mapped in this process; there is no device that uses them.

use crate::kernel::FixedKernel;
use crate::rig::{qp_cap, state_of};
use crate::trace::{Attr, Call, Ioctl, Trace};
use anyhow::{Context as _, Result, bail, ensure};
use std::collections::BTreeSet;
use std::sync::Arc;
use uverbs_core::attr::{
    AccessFlags, AhAttr, CqFlags, CqInitAttr, Gid, GlobalRoute, MigState, Mtu, MwType, QpAttr, QpAttrMask,
    QpInitAttr, QpType, SrqAttr, SrqAttrMask, SrqInitAttr, SrqType, WcExFlags,
};
use uverbs_core::control::{
    AhHandle, CompChannelHandle, ContextInfo, CoreSupport, MrHandle, MrRange, MwHandle, PdHandle, QpHandle,
    XrcdHandle, comp_channel, mcast, mr, mw, query, xrcd,
};
use uverbs_core::kernel::{Kernel, Uhw};
use uverbs_core::provider::{
    CompletionQueue as _, DcDriver as _, DctCreate, Driver, Object as _, QpCreate, QpObject as _, SrqCreate,
};
use uverbs_mlx5::{Mlx5, Options};
use uverbs_testkit::kernel::Scripted;
use uverbs_uapi::cmd::{
    IB_USER_VERBS_CMD_FLAG_EXTENDED, IB_USER_VERBS_CMD_MODIFY_QP, ib_uverbs_modify_qp, ib_uverbs_qp_dest,
    ib_uverbs_reg_mr, ib_uverbs_rereg_mr,
};
use uverbs_uapi::ids::{
    UVERBS_ATTR_CORE_IN, UVERBS_ATTR_CREATE_QP_CAP, UVERBS_ATTR_CREATE_QP_FLAGS, UVERBS_ATTR_UHW_IN,
};
use uverbs_uapi::mlx5::mlx5_ib_create_qp;
use zerocopy::FromBytes;

/// The reasons why an ioctl differs or is missing: prefixes of a call's name and of a difference, and the reason.
#[rustfmt::skip]
const REASONS: &[(&str, &str, &str)] = &[
    ("", "create_cq: attribute 7 is not passed", EVENT_FD),
    ("", "create_qp: attribute 12 is not passed", EVENT_FD),
    ("", "create_srq: attribute 10 is not passed", EVENT_FD),
    ("", "modify_qp: as the extended command", "the extended command takes every attribute, and every supported kernel has it"),
    ("ibv_open_device", "invoke_write 0x1 is not made", "a probe of the write interface by a short query_device; nothing here depends on it"),
    ("", "object 4096, method 4096 is not made", "DEVX: queries of firmware capabilities for offloads that this driver does not have"),
    ("ibv_query_device:", "invoke_write 0x1 is not made", "query_device_ex returns the same attributes and more"),
    ("ibv_query_device:", "invoke_write 0x80000001 is made", "query_device_ex returns the same attributes and more"),
    ("ibv_open_device", "object 0, method 3: attribute 4096, bytes from 8", "DEVX is not requested (MLX5_IB_ALLOC_UCTX_DEVX)"),
    ("", "object 0, method 6: attribute 2 has 8 bytes", FLAGS),
    ("", "object 0, method 6: attribute 2, bytes from 0", FLAGS),
    ("", "create_cq: attribute 5 has 8 bytes", FLAGS),
    ("", "create_cq: attribute 5, bytes from 0", FLAGS),
    ("", "create_qp: attribute 10 has 8 bytes", FLAGS),
    ("", "create_qp: attribute 10, bytes from 0", FLAGS),
    ("ibv_attach_mcast", "refused", UNICAST),
    ("ibv_detach_mcast", "refused", UNICAST),
    ("ibv_modify_qp_rate_limit", "modify_qp: attribute 4096 is not passed", "without burst limits, the kernel accepts a shorter request"),
    ("ibv_create_qp_ex type 9", "create_qp: attribute 4096, bytes from 16", NO_RECEIVES),
    ("ibv_create_qp_ex type 9", "create_qp: attribute 4096, bytes from 24", NO_RECEIVES),
    ("ibv_create_qp_ex type 10", "create_qp: attribute 4096, an address at 0", "an XRC target has no queues, so it names no memory"),
    ("ibv_create_qp_ex type 10", "create_qp: attribute 4096, bytes from 32", "an XRC target rings no register, so any page is valid; the page of the CQs exists"),
    ("mlx5dv_create_qp DCI", "create_qp: attribute 4096, bytes from 24", "data in the completions of a DC initiator: disabled, as in the vectors of create_qp"),
];

/// `UVERBS_ATTR_FLAGS_IN` takes both.
const FLAGS: &str = "the kernel accepts flags of 4 and of 8 bytes, and its headers specify 8";
/// The reference's walk attaches to 192.168.1.20.
const UNICAST: &str = "the GID is no multicast group, so the kernel would refuse it";
/// XRC initiators.
const NO_RECEIVES: &str =
    "the reference passes sizes of a receive queue, which an XRC initiator does not have";

/// Asynchronous events go to the context's own event file, which the kernel takes if none is named.
const EVENT_FD: &str =
    "without it the kernel takes the context's event file, which is the one that the reference names";

/// The objects that the walk has created.
struct Walk {
    kernel: Arc<Scripted<FixedKernel>>,
    driver: Option<Mlx5>,
    info: Option<ContextInfo>,
    pd: Option<PdHandle>,
    mrs: Vec<MrHandle>,
    mw: Option<MwHandle>,
    channel: Option<CompChannelHandle>,
    cqs: Vec<uverbs_core::provider::CqParts<Mlx5>>,
    srqs: Vec<uverbs_core::provider::SrqParts<Mlx5>>,
    xrcd: Option<XrcdHandle>,
    ah: Option<AhHandle>,
    qp: Option<Qp>,
}

enum Qp {
    Plain(Box<uverbs_core::provider::QpParts<Mlx5>>),
    Target(uverbs_mlx5::Qp),
}

impl Qp {
    fn handle(&self) -> &QpHandle {
        match self {
            Self::Plain(qp) => qp.qp.handle(),
            Self::Target(dct) => dct.handle(),
        }
    }
}

/// The differences of the walk, and how many of its ioctls are the same.
pub(crate) struct Report {
    pub ioctls: usize,
    pub reasoned: usize,
    pub wrong: Vec<String>,
}

pub(crate) fn run(trace: &Arc<Trace>) -> Result<Report> {
    let mut walk = Walk {
        kernel: FixedKernel::keeping("eth", trace),
        driver: None,
        info: None,
        pd: None,
        mrs: Vec::new(),
        mw: None,
        channel: None,
        cqs: Vec::new(),
        srqs: Vec::new(),
        xrcd: None,
        ah: None,
        qp: None,
    };
    let mut report = Report { ioctls: 0, reasoned: 0, wrong: Vec::new() };
    let mut used = BTreeSet::new();
    for call in &trace.calls {
        let refused = walk.call(call).err().map(|error| format!("refused: {error:#}"));
        let ours = walk.kernel.take_ioctls();
        report.ioctls += call.ioctls.len();
        let name = format!("{}:", call.note);
        let differences = match refused {
            Some(refused) => vec![refused],
            None => compare(&call.ioctls, &ours),
        };
        for difference in differences {
            let reason =
                REASONS.iter().position(|(of, text, _)| name.starts_with(of) && difference.starts_with(text));
            match reason {
                Some(reason) => {
                    used.insert(reason);
                    report.reasoned += 1;
                }
                None => report.wrong.push(format!("{name} {difference}")),
            }
        }
    }
    for (i, (call, text, _)) in REASONS.iter().enumerate() {
        if !used.contains(&i) {
            report.wrong.push(format!("a reason without a difference: {call} {text}"));
        }
    }
    Ok(report)
}

impl Walk {
    fn port(&self) -> Arc<dyn Kernel> {
        Arc::clone(&self.kernel) as Arc<dyn Kernel>
    }

    fn driver(&self) -> Result<&Mlx5> {
        self.driver.as_ref().context("a device")
    }

    fn pd(&self) -> Result<&PdHandle> {
        self.pd.as_ref().context("a PD")
    }

    fn call(&mut self, call: &Call) -> Result<()> {
        let words: Vec<&str> = call.note.split(' ').collect();
        let number = |i: usize| words.get(i).and_then(|w| w.parse::<u32>().ok()).context("a number");
        match words[0] {
            "ibv_open_device" => {
                let (driver, info) = Mlx5::open_with(self.port(), &Options::default())?;
                (self.driver, self.info) = (Some(driver), Some(info));
            }
            "ibv_query_device_ex" | "ibv_query_device" => {
                self.driver()?.query_device()?;
            }
            "ibv_query_port" => {
                query::port(&self.port(), number(1)?)?;
            }
            "ibv_query_gid" | "ibv_query_gid_ex" => {
                query::gid_entry(&self.port(), number(1)?, number(2)?)?;
            }
            "ibv_alloc_pd" => self.pd = Some(self.driver()?.alloc_pd()?),
            "ibv_reg_mr" | "ibv_reg_mr_iova" => {
                let request: ib_uverbs_reg_mr = core_in(&call.ioctls[0])?;
                let access = AccessFlags::from_bits_retain(request.access_flags);
                let range = MrRange { addr: request.start, length: request.length, iova: request.hca_va };
                let core = self.info.as_ref().context("a device")?.core_support;
                self.mrs.push(reg_mr(core, self.pd()?, range, access)?);
            }
            "ibv_rereg_mr" => {
                let core = self.info.as_ref().context("a device")?.core_support;
                let request: ib_uverbs_rereg_mr = core_in(&call.ioctls[0])?;
                let access = AccessFlags::from_bits_retain(request.access_flags);
                rereg_mr(core, &mut self.mrs[0], access)?;
            }
            "ibv_alloc_mw" => self.mw = Some(mw::alloc(self.pd()?, MwType::Type2, Uhw::none())?),
            "ibv_create_comp_channel" => self.channel = Some(comp_channel::create(&self.port())?),
            "ibv_create_cq" => {
                let attr = CqInitAttr::new(number(1)?).comp_vector(3);
                let channel = self.channel.as_ref();
                self.cqs.push(self.driver()?.create_cq(&attr, channel, 1)?);
            }
            "ibv_create_cq_ex" => {
                let attr = CqInitAttr::new(number(1)?)
                    .wc_flags(WcExFlags::STANDARD | WcExFlags::COMPLETION_TIMESTAMP)
                    .flags(CqFlags::IGNORE_OVERRUN);
                self.cqs.push(self.driver()?.create_cq(&attr, None, 2)?);
            }
            "ibv_create_srq" => {
                let attr = SrqAttr::new(100).max_sge(2).srq_limit(5);
                self.create_srq(attr, false)?;
            }
            "ibv_create_srq_ex" => {
                self.create_srq(SrqAttr::new(10), true)?;
            }
            "ibv_modify_srq" => {
                let attr = SrqAttr::new(0).srq_limit(number(2)?).max_sge(0);
                self.srqs[0].srq.handle().modify(&attr, SrqAttrMask::LIMIT, Uhw::none())?;
            }
            "ibv_query_srq" => drop(self.srqs[0].srq.handle().query()?),
            "ibv_open_xrcd" => {
                self.xrcd = Some(xrcd::open(&self.port(), None, true, false)?);
            }
            "ibv_create_ah" => {
                let request: uverbs_uapi::cmd::ib_uverbs_create_ah =
                    core_in(call.ioctls.last().context("create_ah")?)?;
                let a = request.attr;
                let attr = AhAttr::new(a.port_num)
                    .grh(Some(
                        GlobalRoute::new(Gid(a.grh.dgid))
                            .flow_label(a.grh.flow_label)
                            .sgid_index(a.grh.sgid_index)
                            .hop_limit(a.grh.hop_limit)
                            .traffic_class(a.grh.traffic_class),
                    ))
                    .dlid(a.dlid)
                    .sl(a.sl)
                    .src_path_bits(a.src_path_bits)
                    .static_rate(a.static_rate);
                self.ah = Some(self.driver()?.create_ah(self.pd()?, &attr)?.0);
            }
            "ibv_create_qp_ex" => {
                let qp_type = QpType::from_raw(number(2)?).context("a QP type")?;
                self.create_qp(call, qp_type, number(4)? == 1)?;
            }
            "mlx5dv_create_qp" if words[1] == "DCI" => self.create_qp(call, QpType::Driver, false)?,
            "mlx5dv_create_qp" => self.create_dct(call)?,
            "ibv_modify_qp" => self.modify_qp(call)?,
            "ibv_modify_qp_rate_limit" => {
                let ioctl = &call.ioctls[0];
                let request: uverbs_uapi::cmd::ib_uverbs_ex_modify_qp = core_in(ioctl)?;
                let attr = QpAttr::new().rate_limit(request.rate_limit);
                self.modify(&attr, QpAttrMask::RATE_LIMIT)?;
            }
            "ibv_query_qp" => {
                let qp = self.qp.as_ref().context("a QP")?;
                let request: uverbs_uapi::cmd::ib_uverbs_query_qp = core_in(&call.ioctls[0])?;
                // The answer is zeros, which is not a valid QP, so only the request is checked.
                let _ = qp.handle().query(QpAttrMask::from_bits_retain(request.attr_mask));
            }
            "ibv_attach_mcast" | "ibv_detach_mcast" => {
                let request: uverbs_uapi::cmd::ib_uverbs_attach_mcast = core_in(&call.ioctls[0])?;
                let qp = self.qp.as_ref().context("a QP")?;
                let act = if words[0] == "ibv_attach_mcast" { mcast::attach } else { mcast::detach };
                act(qp.handle(), Gid(request.gid), request.mlid)?;
            }
            "ibv_destroy_qp" => {
                match self.qp.take().context("a QP")? {
                    Qp::Plain(qp) => gone(qp.qp.destroy())?,
                    Qp::Target(dct) => gone(dct.destroy())?,
                }
                // The QP's user index becomes free when its CQ has removed the QP.
                ensure!(self.cqs[0].queue.poll_each(1, |_| ()) == Ok(0), "a completion");
            }
            "ibv_destroy_ah" => gone(self.ah.take().context("an AH")?.destroy())?,
            "ibv_destroy_srq" => {
                let srq = self.srqs.pop().context("an SRQ")?;
                gone(srq.srq.destroy())?;
            }
            "ibv_close_xrcd" => gone(self.xrcd.take().context("an XRCD")?.destroy())?,
            "ibv_destroy_cq" => gone(self.cqs.pop().context("a CQ")?.cq.destroy())?,
            "ibv_destroy_comp_channel" => drop(self.channel.take()),
            "ibv_dealloc_mw" => gone(self.mw.take().context("a window")?.destroy())?,
            "ibv_dereg_mr" => {
                while let Some(mr) = self.mrs.pop() {
                    gone(mr.destroy())?;
                }
            }
            "ibv_dealloc_pd" => gone(self.pd.take().context("a PD")?.destroy())?,
            "ibv_close_device" => drop(self.driver.take()),
            // Notes in the trace, and a resize that made no ioctl.
            "ece" | "dct" | "ibv_resize_cq" => ensure!(call.ioctls.is_empty(), "an ioctl"),
            other => bail!("{other} is not a step of the walk"),
        }
        Ok(())
    }

    fn create_srq(&mut self, attr: SrqAttr, is_xrc: bool) -> Result<()> {
        let cq = &self.cqs[0];
        let xrc = match &self.xrcd {
            Some(xrcd) if is_xrc => Some((xrcd, &cq.cq)),
            _ => None,
        };
        let srq_type = if is_xrc { SrqType::Xrc } else { SrqType::Basic };
        let attr = SrqInitAttr::new(attr).srq_type(srq_type);
        let create = SrqCreate { pd: self.pd()?, attr: &attr, xrc, td: None, user_handle: 3 };
        let srq = self.driver()?.create_srq(&create)?;
        self.srqs.push(srq);
        Ok(())
    }

    fn create_qp(&mut self, call: &Call, qp_type: QpType, with_srq: bool) -> Result<()> {
        let ioctl = call.ioctls.last().context("create_qp")?;
        let got: [u32; 5] = read(ioctl, UVERBS_ATTR_CREATE_QP_CAP)?;
        let mut attr = QpInitAttr::new(qp_type);
        attr.cap = qp_cap(got);
        // The reference passes the value that it computed from the requested 64 bytes.
        attr.cap.max_inline_data = attr.cap.max_inline_data.min(64);
        attr.sq_sig_all = ioctl.attr(UVERBS_ATTR_CREATE_QP_FLAGS).is_some();
        let cq = &self.cqs[0].cq;
        let (send, recv) = (qp_type.has_send_queue(), qp_type.has_recv_queue());
        let srq = self.srqs.first().filter(|_| with_srq);
        let create = QpCreate {
            pd: if send { Some(self.pd()?) } else { None },
            send_cq: send.then_some(cq),
            recv_cq: recv.then_some(cq),
            srq: srq.map(|srq| &srq.srq),
            xrcd: self.xrcd.as_ref().filter(|_| !send),
            attr: &attr,
            td: None,
            exclusive: false,
            data_in_completions: true,
            user_handle: 4,
        };
        self.qp = Some(Qp::Plain(Box::new(played!(self.driver()?.create_qp(&create))?)));
        Ok(())
    }

    fn create_dct(&mut self, call: &Call) -> Result<()> {
        let ioctl = call.ioctls.last().context("create_qp")?;
        let request: mlx5_ib_create_qp = read(ioctl, UVERBS_ATTR_UHW_IN)?;
        let create = DctCreate {
            pd: self.pd()?,
            cq: &self.cqs[0].cq,
            srq: &self.srqs[0].srq,
            // The key is in that field; see `struct mlx5_ib_create_qp`.
            dc_key: request.sq_buf_addr,
            data_in_completions: true,
            user_handle: 5,
        };
        self.qp = Some(Qp::Target(played!(self.driver()?.create_dct(&create))?));
        Ok(())
    }

    fn modify(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<()> {
        match self.qp.as_ref().context("a QP")? {
            Qp::Plain(qp) => qp.qp.modify(attr, mask)?,
            Qp::Target(dct) => {
                // The fixed kernel returns no target number; only the command is compared.
                let _ = dct.modify(attr, mask);
            }
        }
        Ok(())
    }

    fn modify_qp(&self, call: &Call) -> Result<()> {
        let r: ib_uverbs_modify_qp = core_in(&call.ioctls[0])?;
        let attr = QpAttr::new()
            .qp_state(state_of(r.qp_state))
            .cur_qp_state(state_of(r.cur_qp_state))
            .path_mtu(Mtu(r.path_mtu))
            .path_mig_state(MigState(r.path_mig_state.into()))
            .qkey(r.qkey)
            .rq_psn(r.rq_psn)
            .sq_psn(r.sq_psn)
            .dest_qp_num(r.dest_qp_num)
            .qp_access_flags(AccessFlags::from_bits_retain(r.qp_access_flags))
            .ah_attr(path(&r.dest))
            .alt_ah_attr(path(&r.alt_dest))
            .pkey_index(r.pkey_index)
            .alt_pkey_index(r.alt_pkey_index)
            .en_sqd_async_notify(r.en_sqd_async_notify != 0)
            .max_rd_atomic(r.max_rd_atomic)
            .max_dest_rd_atomic(r.max_dest_rd_atomic)
            .min_rnr_timer(r.min_rnr_timer)
            .port_num(r.port_num)
            .timeout(r.timeout)
            .retry_cnt(r.retry_cnt)
            .rnr_retry(r.rnr_retry)
            .alt_port_num(r.alt_port_num)
            .alt_timeout(r.alt_timeout);
        self.modify(&attr, QpAttrMask::from_bits_retain(r.attr_mask))
    }
}

fn reg_mr(core: CoreSupport, pd: &PdHandle, range: MrRange, access: AccessFlags) -> Result<MrHandle> {
    // SAFETY: the port only records calls, so the memory is not accessed.
    Ok(unsafe { mr::reg(core, pd, range, access, Uhw::none()) }?)
}

fn rereg_mr(core: CoreSupport, region: &mut MrHandle, access: AccessFlags) -> Result<()> {
    let change = mr::Rereg { access: Some(access), ..Default::default() };
    // SAFETY: the port only records calls, so the memory is not accessed.
    Ok(unsafe { region.rereg(core, &change, Uhw::none()) }?)
}

fn gone<T, H, E: core::error::Error + Send + Sync + 'static>(result: Result<T, (H, E)>) -> Result<()> {
    result.map(drop).map_err(|(_, error)| error.into())
}

fn path(dest: &ib_uverbs_qp_dest) -> AhAttr {
    let grh = GlobalRoute::new(Gid(dest.dgid))
        .flow_label(dest.flow_label)
        .sgid_index(dest.sgid_index)
        .hop_limit(dest.hop_limit)
        .traffic_class(dest.traffic_class);
    AhAttr::new(dest.port_num)
        .grh((dest.is_global != 0).then_some(grh))
        .dlid(dest.dlid)
        .sl(dest.sl)
        .src_path_bits(dest.src_path_bits)
        .static_rate(dest.static_rate)
}

fn read<T: FromBytes>(ioctl: &Ioctl, id: u16) -> Result<T> {
    let bytes = ioctl.attr(id).and_then(|a| a.input.as_ref()?.bytes()).context("an attribute")?;
    T::read_from_prefix(&bytes).ok().map(|(value, _)| value).context("a shorter attribute")
}

fn core_in<T: FromBytes>(ioctl: &Ioctl) -> Result<T> {
    read(ioctl, UVERBS_ATTR_CORE_IN)
}

/// The name of an ioctl. Both commands that modify a QP have the same name.
fn name(ioctl: &Ioctl) -> String {
    const MODIFY_EX: u32 = IB_USER_VERBS_CMD_MODIFY_QP | IB_USER_VERBS_CMD_FLAG_EXTENDED;
    match (ioctl.object, ioctl.method, ioctl.write_command()) {
        (_, _, Some(IB_USER_VERBS_CMD_MODIFY_QP | MODIFY_EX)) => "modify_qp".into(),
        (_, _, Some(number)) => format!("invoke_write {number:#x}"),
        (3, 0, _) => "create_cq".into(),
        (4, 0, _) => "create_qp".into(),
        (5, 0, _) => "create_srq".into(),
        (object, method, _) => format!("object {object}, method {method}"),
    }
}

/// The differences between the reference's ioctls of a call and ours, as text.
pub(crate) fn compare(theirs: &[Ioctl], ours: &[Ioctl]) -> Vec<String> {
    let mut differences = Vec::new();
    let mut ours: Vec<_> = ours.iter().collect();
    for their in theirs {
        // If several have the same name, the one with the same objects is compared.
        let same = |our: &&Ioctl| name(our) == name(their);
        let objects = |i: &Ioctl| i.attrs.iter().filter_map(|a| a.data.map(|n| n.0)).collect::<Vec<_>>();
        let best = ours.iter().position(|our| same(our) && objects(our) == objects(their));
        match best.or_else(|| ours.iter().position(same)) {
            Some(at) => compare_one(their, ours.remove(at), &mut differences),
            None => differences.push(format!("{} is not made", name(their))),
        }
    }
    differences.extend(ours.iter().map(|our| format!("{} is made", name(our))));
    differences
}

fn compare_one(their: &Ioctl, our: &Ioctl, differences: &mut Vec<String>) {
    let what = name(their);
    let extended = our.write_command() != their.write_command();
    if extended {
        differences.push(format!("{what}: as the extended command"));
    }
    if our.driver_id != their.driver_id {
        differences.push(format!("{what}: driver {}", our.driver_id));
    }
    for a in &their.attrs {
        match our.attr(a.id) {
            None => differences.push(format!("{what}: attribute {} is not passed", a.id)),
            // The command has another number, and a longer request that begins with the shorter one.
            Some(b) if extended && (a.id == 2 || a.id == UVERBS_ATTR_CORE_IN) => {
                let cut = |p: &crate::model::Pattern| {
                    crate::model::Pattern(p.0.iter().copied().take(a.len.into()).collect())
                };
                let b = Attr { len: a.len, input: b.input.as_ref().map(cut), ..b.clone() };
                if a.id != 2 {
                    compare_attr(their, a, &b, &what, differences);
                }
            }
            Some(b) => compare_attr(their, a, b, &what, differences),
        }
    }
    for b in our.attrs.iter().filter(|b| their.attr(b.id).is_none()) {
        // The extended command has an answer, of its length.
        if !extended {
            differences.push(format!("{what}: attribute {} is passed", b.id));
        }
    }
}

fn compare_attr(ioctl: &Ioctl, their: &Attr, our: &Attr, what: &str, differences: &mut Vec<String>) {
    let id = their.id;
    if (their.mandatory, their.elem_id) != (our.mandatory, our.elem_id) {
        differences.push(format!("{what}: attribute {id} is mandatory {}", our.mandatory));
    }
    if their.len != our.len {
        differences.push(format!("{what}: attribute {id} has {} bytes, not {}", our.len, their.len));
    }
    // An object handle. Numbers of files are not compared.
    if their.len == 0 {
        let is_file = (ioctl.object, ioctl.method, id) == (3, 0, 3) || ioctl.object == 16;
        if !is_file && their.data.map(|n| n.0) != our.data.map(|n| n.0) {
            differences
                .push(format!("{what}: attribute {id} is object {:?}, not {:?}", our.data, their.data));
        }
        return;
    }
    let (Some(their_bytes), Some(our_bytes)) = (&their.input, &our.input) else {
        // An answer that the reference's kernel did not write was recorded with the previous contents of the buffer.
        return;
    };
    if their.out.is_some() || our.out.is_some() {
        return;
    }
    for (at, (a, b)) in their_bytes.0.chunks(8).zip(our_bytes.0.chunks(8)).enumerate() {
        match word(ioctl, id, at * 8) {
            Word::Value if a != b => {
                differences
                    .push(format!("{what}: attribute {id}, bytes from {}: {b:x?}, not {a:x?}", at * 8));
            }
            Word::Address => {
                let zero = |bytes: &[Option<u8>]| bytes.iter().all(|b| *b == Some(0));
                if zero(a) != zero(b) {
                    differences.push(format!("{what}: attribute {id}, an address at {}", at * 8));
                }
            }
            _ => {}
        }
    }
}

/// The meaning of 8 bytes of an input.
enum Word {
    Value,
    /// An address: of memory, or nil.
    Address,
    /// The address of an answer, or the user handle for events: any value.
    Own,
}

fn word(ioctl: &Ioctl, id: u16, offset: usize) -> Word {
    match (ioctl.object, ioctl.method, id, offset) {
        // `response` of the requests that have one; of create_ah also the user's handle.
        (0, 0, UVERBS_ATTR_CORE_IN, 0 | 8) => match (ioctl.write_command(), offset) {
            (Some(0x1 | 0x3 | 0x5 | 0x9 | 0xb | 0xe | 0x11 | 0x19 | 0x22 | 0x25), 0) => Word::Own,
            (Some(0x5), 8) => Word::Own,
            _ => Word::Value,
        },
        // User handles.
        (3, 0, 2, _) | (4, 0, 7, _) | (5, 0, 4, _) => Word::Own,
        // Queue and doorbell record.
        (3..=5, 0, UVERBS_ATTR_UHW_IN, 0 | 8) => Word::Address,
        // A raw packet QP's send queue.
        (4, 0, UVERBS_ATTR_UHW_IN, 40) if is_raw(ioctl) => Word::Address,
        _ => Word::Value,
    }
}

fn is_raw(ioctl: &Ioctl) -> bool {
    read::<u32>(ioctl, 9).is_ok_and(|qp_type| qp_type == QpType::RawPacket as u32)
}
