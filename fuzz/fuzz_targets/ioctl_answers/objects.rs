// SPDX-License-Identifier: MIT OR Apache-2.0
//! Creates, queries, closes and drops objects.

use crate::action::{Action, Kind, NewQp, Query};
use crate::{AnyCq, AnyQp, World, each_cq, each_qp, kept, pick, take};
use uverbs::attr::{CqFlags, CqInitAttr, QpCap, QpCreateFlags, SendOpsFlags, WcExFlags};
use uverbs::{MemoryRegion, ProtectionDomain, RawPacket, Rc, Uc, Ud};

impl World {
    pub(crate) fn query(&self, query: &Query) {
        let Some(context) = &self.context else { return };
        match query {
            Query::Device => {
                let attr = kept(context.query_device());
                assert!(attr.is_none_or(|a| !format!("{a:?}").is_empty()));
            }
            Query::Port(port) => {
                let attr = kept(context.query_port(*port));
                assert!(attr.is_none_or(|a| !format!("{a:?}").is_empty()));
            }
            Query::Gid(port, index) => drop(kept(context.query_gid(*port, *index))),
            Query::GidTable => {
                let table = kept(context.query_gid_table());
                assert!(table.is_none_or(|t| t.len() < 2048));
            }
            Query::Pkey(port, index) => drop(kept(context.query_pkey(*port, *index))),
        }
        assert!(
            context.name() == "test0" && context.num_comp_vectors() < u32::MAX || !self.kernel.was_correct()
        );
    }

    pub(crate) fn create_cq(&mut self, action: &Action) {
        let Action::Cq { cqe, huge, wc_flags, flags, channel, shared } = action else { return };
        let Some(context) = &self.context else { return };
        let attr = CqInitAttr::new(if *huge { u32::MAX - u32::from(*cqe) } else { (*cqe).into() })
            .wc_flags(WcExFlags::from_bits_retain((*wc_flags).into()))
            .flags(CqFlags::from_bits_retain((*flags).into()));
        let channel = channel.and_then(|c| pick(&mut self.channels, c)).map(|c| &*c);
        let cq = if *shared {
            kept(context.create_cq_ex(&attr, channel)).map(AnyCq::Shared)
        } else {
            kept(context.create_cq_ex(&attr, channel)).map(AnyCq::Exclusive)
        };
        let plain = (1..200).contains(&attr.cqe) && *wc_flags == 0 && *flags == 0;
        assert!(cq.is_some() || !plain || !self.kernel.was_correct());
        self.cqs.extend(cq);
    }

    pub(crate) fn create_qp(&mut self, new: NewQp) {
        let Some(pd) = pick(&mut self.pds, new.pd).map(|pd| &*pd) else { return };
        let cap = QpCap::new(new.max_wr.into(), (new.max_wr / 2).into())
            .sge((new.max_sge % 8).into(), (new.max_sge / 32).into())
            .inline(new.max_inline.into());
        let ops = new.ops.map_or(SendOpsFlags::empty(), |bits| SendOpsFlags::from_bits_retain(bits.into()));
        let flags = if new.odd_flags < 8 {
            QpCreateFlags::from_bits_retain(1 << new.odd_flags)
        } else {
            QpCreateFlags::empty()
        };
        let tso = u16::from(new.odd_flags == 9);
        let srq = new.srq.and_then(|s| pick(&mut self.srqs, s)).map(|s| &*s);
        let index = |which: u8| usize::from(which) % self.cqs.len().max(1);
        let cq = self.cqs.get(index(new.cq));
        let recv_cq = self.cqs.get(index(new.recv_cq));
        macro_rules! create {
            ($transport:ty, $($shared:ident)?) => {{
                let mut builder = pd.raw_qp::<$transport>()$(.$shared())?;
                builder = builder.cap(cap).send_ops(ops).create_flags(flags).max_tso_header(tso);
                if let Some(cq) = cq {
                    builder = each_cq!(cq, |cq| builder.send_cq(cq));
                }
                if let Some(cq) = recv_cq {
                    builder = each_cq!(cq, |cq| builder.recv_cq(cq));
                }
                if let Some(srq) = srq {
                    builder = builder.srq(srq);
                }
                builder.sq_sig_all(new.odd_flags % 2 == 0).create()
            }};
        }
        let qp = match new.transport % 4 {
            0 => kept(create!(Rc,)).map(AnyQp::Rc),
            1 => kept(create!(Uc, shared)).map(AnyQp::Uc),
            2 => kept(create!(Ud,)).map(AnyQp::Ud),
            _ => {
                assert!(kept(create!(RawPacket,)).is_none(), "rxe has no raw packet QPs");
                None
            }
        };
        if let Some(qp) = &qp {
            let got = each_qp!(qp, |qp| *qp.cap());
            assert!(got.max_send_wr >= cap.max_send_wr && got.max_inline_data >= cap.max_inline_data);
        }
        let plain = ops.is_empty() && flags.is_empty() && tso == 0 && new.transport % 4 < 3;
        let small = new.max_wr < 16 && new.max_inline < 64;
        assert!(qp.is_some() || cq.is_none() || !plain || !small || !self.kernel.was_correct());
        self.qps.extend(qp);
    }

    pub(crate) fn close(&mut self, kind: Kind, which: u8) {
        match kind {
            Kind::Pd => {
                if let Some(Err((pd, error))) = take(&mut self.pds, which).map(ProtectionDomain::close) {
                    assert!(!error.to_string().is_empty());
                    self.pds.push(pd);
                }
            }
            Kind::Cq => {
                let back = match take(&mut self.cqs, which) {
                    Some(AnyCq::Shared(cq)) => cq.close().err().map(|(cq, _)| AnyCq::Shared(cq)),
                    Some(AnyCq::Exclusive(cq)) => cq.close().err().map(|(cq, _)| AnyCq::Exclusive(cq)),
                    None => None,
                };
                self.cqs.extend(back);
            }
            Kind::Mr => {
                if let Some(Err((mr, error))) = take(&mut self.mrs, which).map(MemoryRegion::close) {
                    assert!(!error.to_string().is_empty());
                    self.mrs.push(mr);
                }
            }
            Kind::Mw => drop(take(&mut self.mws, which).and_then(|mw| kept(mw.close()))),
            Kind::Ah => drop(take(&mut self.ahs, which).and_then(|ah| kept(ah.close()))),
            Kind::Qp => {
                if let Some(qp) = take(&mut self.qps, which) {
                    let _ = kept(each_qp!(qp, |qp| qp.close()));
                }
            }
            Kind::Channel | Kind::Srq | Kind::Xrcd | Kind::Context => self.drop_one(kind, which),
        }
    }

    pub(crate) fn drop_one(&mut self, kind: Kind, which: u8) {
        match kind {
            Kind::Pd => drop(take(&mut self.pds, which)),
            Kind::Channel => drop(take(&mut self.channels, which)),
            Kind::Cq => drop(take(&mut self.cqs, which)),
            Kind::Mr => drop(take(&mut self.mrs, which)),
            Kind::Mw => drop(take(&mut self.mws, which)),
            Kind::Ah => drop(take(&mut self.ahs, which)),
            Kind::Srq => drop(take(&mut self.srqs, which)),
            Kind::Qp => drop(take(&mut self.qps, which)),
            Kind::Xrcd => drop(take(&mut self.xrcds, which)),
            Kind::Context => self.context = None,
        }
    }

    /// Formats an object with `Debug`.
    pub(crate) fn format(&mut self, kind: Kind, which: u8) {
        let text = match kind {
            Kind::Cq => pick(&mut self.cqs, which).map(|cq| format!("{cq:?}")),
            Kind::Qp => pick(&mut self.qps, which).map(|qp| format!("{qp:?}")),
            Kind::Srq => pick(&mut self.srqs, which).map(|srq| format!("{srq:?}")),
            _ => self.context.as_ref().map(|context| format!("{context:?}")),
        };
        assert!(text.is_none_or(|text| !text.is_empty()));
    }
}
