// SPDX-License-Identifier: MIT OR Apache-2.0
//! The categories `create_*`: the results for the caller, and the requests to the kernel.

use crate::model::{Cap, Case, Num, Pattern};
use crate::rig::{QpSpec, Rig, cap, qp_type};
use crate::trace::Trace;
use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;
use std::sync::Arc;
use uverbs_core::Error;
use uverbs_core::attr::{AhAttr, CqFlags, Gid, GlobalRoute, QpCap};
use uverbs_core::provider::{Driver as _, Object as _};
use zerocopy::IntoBytes as _;

/// The result, if the call was refused.
#[derive(Debug, Deserialize)]
struct Out {
    ok: bool,
    #[serde(default)]
    errno: i32,
}

#[derive(Debug, Deserialize)]
struct QpIn {
    ctx: String,
    #[serde(rename = "type")]
    qp_type: String,
    cap: Cap,
    sq_sig_all: Num,
    max_tso_header: u32,
    srq: bool,
    send_ops_flags: Option<Num>,
}

#[derive(Debug, Deserialize)]
struct QpCmd {
    flags: Num,
    sq_wqe_count: u32,
    rq_wqe_count: u32,
    rq_wqe_shift: u32,
    uidx: u32,
    has_sq_buf_addr: bool,
}

#[derive(Debug, Deserialize)]
struct QpOut {
    cap: Cap,
    cmd: QpCmd,
    sq_offset: Option<u64>,
}

#[derive(Debug, Deserialize)]
struct CqIn {
    ctx: String,
    cqe: i64,
    cqe_size: u32,
}

#[derive(Debug, Deserialize)]
struct CqCmd {
    cqe: u32,
    cqe_size: u32,
    flags: Num,
}

#[derive(Debug, Deserialize)]
struct CqOut {
    cqe: u32,
    cmd: CqCmd,
    first_op_own: u8,
}

#[derive(Debug, Deserialize)]
struct SrqIn {
    ctx: String,
    max_wr: u32,
    max_sge: u32,
}

#[derive(Debug, Deserialize)]
struct SrqOut {
    max_wr: u32,
    max_sge: u32,
    stride: usize,
    srqn: u32,
}

#[derive(Debug, Deserialize)]
struct AhIn {
    ctx: String,
    attr: AhIn2,
}

#[derive(Debug, Deserialize)]
struct AhIn2 {
    is_global: Num,
    dgid: Pattern,
    sgid_index: u8,
    flow_label: u32,
    hop_limit: u8,
    traffic_class: u8,
    dlid: u16,
    sl: u8,
    src_path_bits: u8,
    static_rate: u8,
    port_num: u8,
}

#[derive(Debug, Deserialize)]
struct AhOut {
    av: Pattern,
}

fn get<T: for<'de> Deserialize<'de>>(value: Option<&serde_json::Value>) -> Result<T> {
    Ok(T::deserialize(value.context("a part of the case is missing")?)?)
}

/// Checks whether the call was refused, as the case requires. `None` if it succeeded, as required.
fn refused<T>(out: &Out, result: Result<T, Error>) -> Result<Option<T>> {
    match (out.ok, result) {
        (true, Ok(made)) => Ok(Some(made)),
        (true, Err(error)) => bail!("refused: {error}"),
        (false, Ok(_)) => bail!("created, expected errno {}", out.errno),
        // The reference sometimes returns NULL without an errno; then any errno is accepted.
        (false, Err(_)) if out.errno == 0 => Ok(None),
        (false, Err(error)) => {
            let errno = error.errno().raw();
            ensure!(errno == out.errno, "errno {errno} ({error}), not {}", out.errno);
            Ok(None)
        }
    }
}

fn flat(result: Result<()>) -> Result<(), Error> {
    result.map_err(|error| match error.downcast::<Error>() {
        Ok(error) => error,
        Err(other) => panic!("{other:#}"),
    })
}

pub(crate) fn run(case: &Case, trace: &Arc<Trace>) -> Result<()> {
    let out: Out = get(case.out.as_ref())?;
    match case.category.as_str() {
        "create_qp" => qp(case, &out, trace),
        "create_cq" => cq(case, &out, trace),
        "create_srq" => srq(case, &out, trace),
        "create_ah" => ah(case, &out, trace),
        other => bail!("category {other}"),
    }
}

fn qp(case: &Case, out: &Out, trace: &Arc<Trace>) -> Result<()> {
    let input: QpIn = get(case.input.as_ref())?;
    let mut rig = Rig::open(&input.ctx, 64, trace)?;
    if input.srq {
        rig.create_srq(7, 1, false)?;
    }
    let spec = QpSpec {
        qp_type: qp_type(&input.qp_type)?,
        cap: cap(&input.cap),
        sq_sig_all: input.sq_sig_all.0 != 0,
        max_tso_header: input.max_tso_header,
        send_ops_flags: input.send_ops_flags.map(|n| n.0),
        thread_domain: false,
    };
    let made = flat(rig.create_qp(&spec, input.srq));
    let Some(()) = refused(out, made)? else { return Ok(()) };
    let want: QpOut = get(case.out.as_ref())?;
    let side = &rig.qps[0];
    let want_cap: QpCap = cap(&want.cap);
    ensure!(side.cap == want_cap, "{:?}, not {want_cap:?}", side.cap);
    let r = &side.request;
    let got = (r.flags, r.sq_wqe_count, r.rq_wqe_count, r.rq_wqe_shift, r.uidx, r.sq_buf_addr != 0);
    let c = &want.cmd;
    let cmd = (c.flags.u32(), c.sq_wqe_count, c.rq_wqe_count, c.rq_wqe_shift, c.uidx, c.has_sq_buf_addr);
    ensure!(got == cmd, "command {got:x?}, not {cmd:x?}");
    if let Some(offset) = want.sq_offset.filter(|_| r.sq_wqe_count != 0) {
        ensure!(side.sq() - r.buf_addr == offset, "send queue at {}", side.sq() - r.buf_addr);
    }
    Ok(())
}

fn cq(case: &Case, out: &Out, trace: &Arc<Trace>) -> Result<()> {
    let input: CqIn = get(case.input.as_ref())?;
    let mut rig = Rig::open(&input.ctx, input.cqe_size, trace)?;
    let made = flat(rig.create_cq(input.cqe as u32, 0, CqFlags::empty()));
    let Some(()) = refused(out, made)? else { return Ok(()) };
    let want: CqOut = get(case.out.as_ref())?;
    let (request, kernel_cqe) = *rig.kernel.made().cqs.last().context("a CQ")?;
    let got = (kernel_cqe, request.cqe_size, u64::from(request.flags));
    let cmd = (want.cmd.cqe, want.cmd.cqe_size, want.cmd.flags.0);
    ensure!(got == cmd, "command {got:?}, not {cmd:?}");
    let cq = rig.cq()?;
    ensure!(cq.cq.handle().cqe() == want.cqe, "{} entries, not {}", cq.cq.handle().cqe(), want.cqe);
    let first = cq.op_own(0);
    ensure!(first == want.first_op_own, "the first entry's last byte is {first:#x}");
    Ok(())
}

fn srq(case: &Case, out: &Out, trace: &Arc<Trace>) -> Result<()> {
    let input: SrqIn = get(case.input.as_ref())?;
    let mut rig = Rig::open(&input.ctx, 64, trace)?;
    let made = flat(rig.create_srq(input.max_wr, input.max_sge, false));
    let Some(()) = refused(out, made)? else { return Ok(()) };
    let want: SrqOut = get(case.out.as_ref())?;
    let srq = rig.srq.as_ref().context("an SRQ")?;
    let got = (srq.attr.max_wr, srq.attr.max_sge, srq.srq.shared().ring.stride());
    let wanted = (want.max_wr, want.max_sge, want.stride);
    ensure!(got == wanted, "{got:?}, not {wanted:?}");
    ensure!(srq.srq.shared().srqn == want.srqn, "number {:#x}", srq.srq.shared().srqn);
    Ok(())
}

fn ah(case: &Case, out: &Out, trace: &Arc<Trace>) -> Result<()> {
    let input: AhIn = get(case.input.as_ref())?;
    let rig = Rig::open(&input.ctx, 64, trace)?;
    let a = &input.attr;
    let dgid: [u8; 16] = a.dgid.bytes().and_then(|b| b.try_into().ok()).context("a GID")?;
    let grh = GlobalRoute::new(Gid(dgid))
        .flow_label(a.flow_label)
        .sgid_index(a.sgid_index)
        .hop_limit(a.hop_limit)
        .traffic_class(a.traffic_class);
    let attr = AhAttr::new(a.port_num)
        .grh((a.is_global.0 != 0).then_some(grh))
        .dlid(a.dlid)
        .sl(a.sl)
        .src_path_bits(a.src_path_bits)
        .static_rate(a.static_rate);
    let Some((_, ah)) = refused(out, rig.driver.create_ah(&rig.pd, &attr))? else { return Ok(()) };
    let want: AhOut = get(case.out.as_ref())?;
    let (got, want) = (ah.av(), want.av);
    match want.differs(got.as_bytes()) {
        None => Ok(()),
        Some(at) => {
            let hex: String = got.as_bytes().iter().map(|b| format!("{b:02x}")).collect();
            bail!("address vector, byte {at}\n      want {}\n      got  {hex}", want.text())
        }
    }
}
