// SPDX-License-Identifier: MIT OR Apache-2.0
//! The report: which device on which machine, and a line for each opcode with a column for each face.

use super::cases::{Opcode, Verdict};
use super::post::Face;
use anyhow::Result;
use core::fmt::Write as _;
use core::time::Duration;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use uverbs::attr::{DeviceAttr, PortAttr};
use uverbs::device::{DeviceInfo, Modalias};
use uverbs::{Context, Driver};

/// The attributes of a machine that are needed to interpret its report.
#[derive(Clone, Debug)]
pub(super) struct About {
    rows: Vec<(&'static str, String)>,
}

impl About {
    /// Queries the device and the kernel.
    pub(super) fn new<D: Driver>(
        context: &Context<D>,
        info: Option<DeviceInfo>,
        device: &DeviceAttr,
        port: &PortAttr,
        port_num: u8,
        gid_index: Option<u8>,
    ) -> Result<Self> {
        let uname = nix::sys::utsname::uname()?;
        let word = |s: &std::ffi::OsStr| s.to_string_lossy().into_owned();
        let mut rows = vec![
            ("device", context.name().to_owned()),
            ("driver", D::NAME.to_owned()),
            ("kernel", format!("{} {}", word(uname.sysname()), word(uname.release()))),
            ("machine", word(uname.machine())),
            ("uverbs", env!("CARGO_PKG_VERSION").to_owned()),
            ("vendor_id", format!("{:#06x}", device.vendor_id)),
            ("vendor_part_id", device.vendor_part_id.to_string()),
            ("hw_ver", format!("{:#x}", device.hw_ver)),
            ("fw_ver", {
                let n = device.fw_ver;
                format!("{}.{}.{}", n >> 32 & 0xffff, n >> 16 & 0xffff, n & 0xffff)
            }),
        ];
        if let Some(info) = info {
            rows.extend(info.fw_ver.map(|v| ("fw_ver (sysfs)", v)));
            rows.extend(info.board_id.map(|v| ("board_id", v)));
            rows.extend(info.hca_type.map(|v| ("hca_type", v)));
            if let Some(Modalias::Pci(id)) = info.modalias {
                rows.push(("pci_id", format!("{:04x}:{:04x}", id.vendor, id.device)));
            }
        }
        rows.extend([
            ("port", port_num.to_string()),
            ("state", format!("{:?}", port.state)),
            ("link_layer", format!("{:?}", port.link_layer)),
            ("active_mtu", port.active_mtu.bytes().map_or("?".into(), |b| b.to_string())),
            ("atomic_cap", format!("{:?}", device.atomic_cap)),
            ("device_cap_flags", format!("{:#x}", device.device_cap_flags.bits())),
        ]);
        if let Some(index) = gid_index {
            let entry = context.query_gid_ex(port_num, index.into())?;
            rows.push(("gid", format!("{index}: {} {:?}", entry.gid, entry.gid_type)));
        }
        Ok(Self { rows })
    }

    #[cfg(test)]
    pub(super) fn made_up() -> Self {
        Self { rows: vec![("device", "rxe0".into()), ("driver", "rxe".into())] }
    }
}

/// One case.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) qp_type: String,
    pub(super) opcode: Opcode,
    pub(super) face: Face,
    pub(super) verdict: Verdict,
}

/// The report.
#[derive(Clone, Debug)]
pub(super) struct Report {
    pub(super) about: About,
    pub(super) cases: Vec<Case>,
    pub(super) elapsed: Duration,
}

impl Report {
    /// The number of failed cases.
    pub(super) fn failures(&self) -> usize {
        self.count(|v| matches!(v, Verdict::Failed(_)))
    }

    fn count(&self, f: impl Fn(&Verdict) -> bool) -> usize {
        self.cases.iter().filter(|c| f(&c.verdict)).count()
    }

    fn summary(&self) -> String {
        format!(
            "{} cases: {} ok, {} missing, {} failed, in {:.2} s",
            self.cases.len(),
            self.count(|v| matches!(v, Verdict::Ok)),
            self.count(|v| matches!(v, Verdict::Missing(_))),
            self.failures(),
            self.elapsed.as_secs_f64()
        )
    }

    /// The report as text.
    pub(super) fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a string can't fail.
        let _ = self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) -> core::fmt::Result {
        for (name, value) in &self.about.rows {
            writeln!(out, "{name:<18} {value}")?;
        }
        write!(out, "\n{:<10} {:<22}", "QP", "opcode")?;
        for face in Face::ALL {
            write!(out, " {:<9}", face.name())?;
        }
        writeln!(out)?;
        // Each reason is printed once, with all its cases.
        let mut reasons: BTreeMap<(bool, String), Vec<String>> = BTreeMap::new();
        for line in self.cases.chunk_by(|a, b| (&a.qp_type, a.opcode) == (&b.qp_type, b.opcode)) {
            let Some(first) = line.first() else { continue };
            write!(out, "{:<10} {:<22}", first.qp_type, first.opcode.name())?;
            for case in line {
                let (word, reason) = match &case.verdict {
                    Verdict::Ok => ("ok", None),
                    Verdict::Missing(reason) => ("-", Some((false, reason))),
                    Verdict::Failed(reason) => ("FAILED", Some((true, reason))),
                };
                write!(out, " {word:<9}")?;
                if let Some((failed, reason)) = reason {
                    let name = format!("{} {} by {}", case.qp_type, case.opcode.name(), case.face.name());
                    reasons.entry((failed, reason.clone())).or_default().push(name);
                }
            }
            writeln!(out)?;
        }
        for ((failed, reason), cases) in &reasons {
            let more = if cases.len() > 1 { format!(" and {} more", cases.len() - 1) } else { String::new() };
            let first = cases.first().map_or("", String::as_str);
            writeln!(out, "{} {first}{more}: {reason}", if *failed { "FAILED:" } else { "-:" })?;
        }
        writeln!(out, "{}", self.summary())
    }

    /// The report as JSON.
    pub(super) fn json(&self) -> Value {
        let about: serde_json::Map<String, Value> =
            self.about.rows.iter().map(|(name, value)| ((*name).to_owned(), value.clone().into())).collect();
        let case = |c: &Case| {
            let (result, reason) = match &c.verdict {
                Verdict::Ok => ("ok", None),
                Verdict::Missing(reason) => ("missing", Some(reason)),
                Verdict::Failed(reason) => ("failed", Some(reason)),
            };
            json!({
                "qp_type": c.qp_type,
                "opcode": c.opcode.name(),
                "face": c.face.name(),
                "result": result,
                "reason": reason,
            })
        };
        json!({
            "about": about,
            "cases": self.cases.iter().map(case).collect::<Vec<_>>(),
            "failed": self.failures(),
            "seconds": self.elapsed.as_secs_f64(),
        })
    }
}
