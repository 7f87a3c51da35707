// SPDX-License-Identifier: MIT OR Apache-2.0
//! The control trace: the same calls make the same commands, in object, method and the bytes of every attribute;
//! [`REASONS`] has the exceptions.
#![expect(unsafe_code)]
// UNSAFETY: registered memory is that of the recording, which no device accesses.

use super::kernel::FixedKernel;
use crate::trace::{Call, Ioctl, Trace};
use crate::walk::compare;
use anyhow::{Context as _, Result, bail};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use uverbs_core::attr::{
    AccessFlags, AhAttr, CqInitAttr, Gid, GlobalRoute, QpAttr, QpAttrMask, QpInitAttr, QpState, QpType,
    SendOpsFlags, WcExFlags,
};
use uverbs_core::control::{
    AhHandle, CompChannelHandle, ContextInfo, MrHandle, MrRange, PdHandle, comp_channel, mr,
};
use uverbs_core::kernel::{Kernel, Uhw};
use uverbs_core::provider::{CqParts, Driver as _, Object as _, QpCreate, QpObject as _, QpParts};
use uverbs_efa::control::{CqOptions, Efa, QpOptions};
use uverbs_testkit::kernel::Scripted;
use uverbs_uapi::cmd::ib_uverbs_reg_mr;
use uverbs_uapi::ids::UVERBS_ATTR_CORE_IN;
use zerocopy::FromBytes;

/// Prefixes of a call and of a difference, and the reason.
const REASONS: &[(&str, &str, &str)] = &[
    (
        "open_device",
        "invoke_write 0x1 is not made",
        "a probe of the write interface; nothing here depends on it",
    ),
    ("", "create_cq: attribute 7 is not passed", EVENT_FD),
    ("", "create_qp: attribute 12 is not passed", EVENT_FD),
    (
        "",
        "modify_qp: as the extended command",
        "the extended command takes every attribute, and every supported kernel has it",
    ),
];

/// Asynchronous events go to the context's own event file, which the kernel takes if none is named.
const EVENT_FD: &str =
    "without it the kernel takes the context's event file, which is the one that libefa names";

struct Walk {
    kernel: Arc<Scripted<FixedKernel>>,
    efa: Option<(Efa, ContextInfo)>,
    pd: Option<PdHandle>,
    ah: Option<AhHandle>,
    mrs: Vec<MrHandle>,
    channel: Option<CompChannelHandle>,
    cqs: Vec<CqParts<Efa>>,
    qps: u32,
    qp: Option<QpParts<Efa>>,
}

/// Repeats the calls of the trace. Returns the number of commands, and the differences without a reason.
pub(super) fn run(path: &Path) -> Result<(usize, Vec<String>)> {
    let trace = Trace::read(path)?;
    let mut walk = Walk {
        kernel: FixedKernel::new("write"),
        efa: None,
        pd: None,
        ah: None,
        mrs: Vec::new(),
        channel: None,
        cqs: Vec::new(),
        qps: 0,
        qp: None,
    };
    let (mut count, mut wrong, mut used) = (0, Vec::new(), BTreeSet::new());
    for call in &trace.calls {
        let before = walk.kernel.state().ioctls.len();
        walk.call(call).with_context(|| call.note.clone())?;
        let ours: Vec<Ioctl> = walk.kernel.state().ioctls.split_off(before);
        count += call.ioctls.len();
        for difference in compare(&call.ioctls, &ours) {
            let is = |(of, text, _): &(&str, &str, &str)| {
                call.note.starts_with(of) && difference.starts_with(text)
            };
            match REASONS.iter().position(is) {
                Some(reason) => drop(used.insert(reason)),
                None => wrong.push(format!("{}: {difference}", call.note)),
            }
        }
    }
    for (n, (call, text, _)) in REASONS.iter().enumerate() {
        if !used.contains(&n) {
            wrong.push(format!("a reason without a difference: {call} {text}"));
        }
    }
    Ok((count, wrong))
}

impl Walk {
    fn efa(&self) -> Result<&Efa> {
        Ok(&self.efa.as_ref().context("a device")?.0)
    }

    fn call(&mut self, call: &Call) -> Result<()> {
        let words: Vec<&str> = call.note.split(' ').collect();
        let number = |n: usize| words.get(n).and_then(|w| w.parse::<u64>().ok()).context("a number");
        match words[0] {
            "open_device" => self.efa = Some(Efa::open(Arc::clone(&self.kernel) as Arc<dyn Kernel>)?),
            "query_device" => {
                self.efa()?.query_device()?;
            }
            "alloc_pd" => self.pd = Some(self.efa()?.alloc_pd()?),
            "create_ah" => {
                let mut gid = [0; 16];
                (gid[0], gid[1], gid[15]) = (0xfe, 0x80, 9);
                let attr = AhAttr::new(1).grh(Some(GlobalRoute::new(Gid(gid))));
                self.ah = Some(self.efa()?.create_ah(self.pd.as_ref().context("a PD")?, &attr)?.0);
            }
            "reg_mr" => {
                let ioctl = call.ioctls.first().context("reg_mr")?;
                let bytes = ioctl
                    .attr(UVERBS_ATTR_CORE_IN)
                    .and_then(|a| a.input.as_ref()?.bytes())
                    .context("reg_mr")?;
                let (request, _) = ib_uverbs_reg_mr::read_from_prefix(&bytes).ok().context("reg_mr")?;
                let range = MrRange { addr: request.start, length: request.length, iova: request.hca_va };
                let access = AccessFlags::from_bits_retain(number(1)? as u32);
                let core = self.efa.as_ref().context("a device")?.1.core_support;
                let pd = self.pd.as_ref().context("a PD")?;
                // SAFETY: no device accesses the memory.
                self.mrs.push(unsafe { mr::reg(core, pd, range, access, Uhw::none()) }?);
            }
            "query_mr" => drop(self.efa()?.query_mr(&self.mrs[0])?),
            "dereg_mr" => drop(self.mrs.remove(0).destroy().map_err(|(_, e)| e)?),
            "create_comp_channel" => {
                self.channel = Some(comp_channel::create(&(Arc::clone(&self.kernel) as Arc<dyn Kernel>))?);
            }
            "create_cq" => {
                let attr = CqInitAttr::new(100).wc_flags(WcExFlags::STANDARD).comp_vector(number(3)? as u32);
                let channel = self.channel.as_ref().filter(|_| words[1] == "1");
                let options = CqOptions { source_gid: number(2)? == 1 };
                let cq = self.efa()?.new_cq(&attr, options, channel, 1)?;
                self.cqs.push(cq);
            }
            "create_qp" => self.create_qp(&[number(1)?, number(2)?, number(3)?, number(4)?, number(5)?])?,
            "modify_qp" => self.modify_qp(QpState(number(1)? as u32))?,
            "destroy_qp" => {
                let qp = self.qp.take().context("a QP")?;
                drop(qp.qp.destroy().map_err(|(_, e)| e)?);
            }
            "destroy_cq" => drop(self.cqs.remove(0).cq.destroy().map_err(|(_, e)| e)?),
            "destroy_ah" => drop(self.ah.take().context("an AH")?.destroy().map_err(|(_, e)| e)?),
            "dealloc_pd" => drop(self.pd.take().context("a PD")?.destroy().map_err(|(_, e)| e)?),
            "close" => self.efa = None,
            other => bail!("{other} is no step of the walk"),
        }
        Ok(())
    }

    fn create_qp(&mut self, [ud, flags, sl, inline, ops]: &[u64; 5]) -> Result<()> {
        let mut attr = QpInitAttr::new(if *ud != 0 { QpType::Ud } else { QpType::Driver });
        (attr.cap.max_send_wr, attr.cap.max_recv_wr, attr.cap.max_inline_data) = (16, 10, *inline as u32);
        (attr.cap.max_send_sge, attr.cap.max_recv_sge) = (2, 3);
        attr.send_ops_flags = SendOpsFlags::from_bits_retain(*ops);
        let cq = &self.cqs[[0, 0, 1, 2][self.qps as usize % 4]].cq;
        self.qps += 1;
        let create = QpCreate {
            pd: self.pd.as_ref(),
            send_cq: Some(cq),
            recv_cq: Some(cq),
            exclusive: true,
            user_handle: 1,
            ..QpCreate::new(&attr)
        };
        let options =
            QpOptions { unsolicited_write_recv: flags & 1 != 0, inline_write: flags & 2 != 0, sl: *sl as u8 };
        self.qp = Some(self.efa()?.new_qp(&create, options)?);
        Ok(())
    }

    fn modify_qp(&self, state: QpState) -> Result<()> {
        let qp = self.qp.as_ref().context("a QP")?;
        let mut attr = QpAttr::new();
        (attr.qp_state, attr.port_num, attr.qkey) = (state, 1, 0x1234);
        (attr.rnr_retry, attr.sq_psn) = (3, 0x5678);
        let mask = match state {
            QpState::INIT => QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::QKEY,
            QpState::RTS if qp.qp.handle().qp_type() == QpType::Ud => QpAttrMask::SQ_PSN,
            QpState::RTS => QpAttrMask::SQ_PSN | QpAttrMask::RNR_RETRY,
            _ => QpAttrMask::empty(),
        };
        qp.qp.modify(&attr, mask | QpAttrMask::STATE)?;
        Ok(())
    }
}
