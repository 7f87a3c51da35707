// SPDX-License-Identifier: MIT OR Apache-2.0
//! The test of each opcode: the posts, and the expected results.

use super::ends::{ARRIVAL, Ends, Loop, TARGET};
use super::post::{Face, Kind};
use anyhow::{Result, bail, ensure};
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::time::Instant;
use uverbs::attr::{AccessFlags, DriverQp, MwType, QpType, SendOpsFlags};
use uverbs::provider::op::FlushArgs;
use uverbs::provider::{Data, Inline, Op, RemoteAddr};
use uverbs::{Driver, MemoryWindow, WcOpcode};

/// The time limit of data whose completion does not mean that it has arrived.
const ARRIVAL_LIMIT: Duration = Duration::from_secs(10);

/// An opcode of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opcode {
    Send,
    SendImm,
    SendInv,
    Write,
    WriteImm,
    Read,
    CmpSwp,
    FetchAdd,
    BindMw1,
    BindMw2,
    LocalInv,
    Flush,
    AtomicWrite,
    Tso,
}

impl Opcode {
    pub(super) const ALL: [Self; 14] = [
        Self::Send,
        Self::SendImm,
        Self::SendInv,
        Self::Write,
        Self::WriteImm,
        Self::Read,
        Self::CmpSwp,
        Self::FetchAdd,
        Self::BindMw1,
        Self::BindMw2,
        Self::LocalInv,
        Self::Flush,
        Self::AtomicWrite,
        Self::Tso,
    ];

    /// As `enum ibv_wr_opcode` names it.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Send => "SEND",
            Self::SendImm => "SEND_WITH_IMM",
            Self::SendInv => "SEND_WITH_INV",
            Self::Write => "RDMA_WRITE",
            Self::WriteImm => "RDMA_WRITE_WITH_IMM",
            Self::Read => "RDMA_READ",
            Self::CmpSwp => "ATOMIC_CMP_AND_SWP",
            Self::FetchAdd => "ATOMIC_FETCH_AND_ADD",
            Self::BindMw1 => "BIND_MW (type 1)",
            Self::BindMw2 => "BIND_MW (type 2)",
            Self::LocalInv => "LOCAL_INV",
            Self::Flush => "FLUSH",
            Self::AtomicWrite => "ATOMIC_WRITE",
            Self::Tso => "TSO",
        }
    }

    /// The send operations that a QP needs for it.
    pub(super) const fn ops(self) -> SendOpsFlags {
        use SendOpsFlags as F;
        match self {
            Self::Send => F::SEND,
            Self::SendImm => F::SEND_WITH_IMM,
            Self::SendInv => F::SEND_WITH_INV.union(F::BIND_MW),
            Self::Write => F::RDMA_WRITE,
            Self::WriteImm => F::RDMA_WRITE_WITH_IMM,
            Self::Read => F::RDMA_READ,
            Self::CmpSwp => F::ATOMIC_CMP_AND_SWP,
            Self::FetchAdd => F::ATOMIC_FETCH_AND_ADD,
            Self::BindMw1 | Self::BindMw2 => F::BIND_MW.union(F::RDMA_WRITE),
            Self::LocalInv => F::LOCAL_INV.union(F::BIND_MW),
            Self::Flush => F::FLUSH,
            Self::AtomicWrite => F::ATOMIC_WRITE,
            Self::Tso => F::TSO,
        }
    }

    /// Whether ibv_post_send(3), or mlx5dv_wr_post(3) for DC, has it on this transport. SRD has what [`is_on_srd`] says.
    ///
    /// [`is_on_srd`]: Self::is_on_srd
    pub(super) const fn is_on(self, qp_type: QpType) -> bool {
        match self {
            Self::Send => true,
            Self::SendImm => !matches!(qp_type, QpType::RawPacket),
            Self::Write | Self::WriteImm => !matches!(qp_type, QpType::Ud | QpType::RawPacket),
            // A window of the receiving end must be bound by a QP that can send, which the receiving ends of XRC and DC
            // can't.
            Self::SendInv | Self::BindMw1 | Self::BindMw2 | Self::LocalInv => {
                matches!(qp_type, QpType::Rc | QpType::Uc)
            }
            Self::Read | Self::CmpSwp | Self::FetchAdd => {
                matches!(qp_type, QpType::Rc | QpType::XrcSend | QpType::Driver)
            }
            Self::Flush | Self::AtomicWrite => matches!(qp_type, QpType::Rc),
            Self::Tso => matches!(qp_type, QpType::RawPacket),
        }
    }
}

impl Opcode {
    /// Whether SRD has it (efadv_create_qp_ex(3)).
    pub(super) const fn is_on_srd(self) -> bool {
        matches!(self, Self::Send | Self::SendImm | Self::Write | Self::WriteImm | Self::Read)
    }
}

/// Whether the transport is SRD.
pub(super) fn is_srd<D: Driver, T: Kind<D>>() -> bool {
    T::DRIVER_QP == Some(DriverQp::Srd)
}

/// The result of a case.
#[derive(Clone, Debug)]
pub(super) enum Verdict {
    /// The expected result.
    Ok,
    /// The device or the face does not support it.
    Missing(String),
    /// An unexpected result, or an error.
    Failed(String),
}

/// Runs a case on new QPs.
pub(super) fn run<D: Driver, T: Kind<D>>(l: &Loop<'_, D>, opcode: Opcode, face: Face) -> Verdict {
    match (face, opcode) {
        // Only mlx5dv, not libibverbs, has DC addresses.
        (Face::List | Face::Builder, _) if T::DRIVER_QP == Some(DriverQp::Dc) => {
            return Verdict::Missing("DC is available on the typed faces only".into());
        }
        (Face::List, Opcode::Flush | Opcode::AtomicWrite) => {
            return Verdict::Missing("not in C's lists".into());
        }
        (Face::List, Opcode::Write | Opcode::WriteImm | Opcode::Read) if is_srd::<D, T>() => {
            let reason = "an entry of C's lists has an address or a remote address, not both";
            return Verdict::Missing(reason.into());
        }
        _ => {}
    }
    let tried = Ends::<D, T>::new(l, face, opcode.ops()).and_then(|ends| {
        // A builder has only the operations that its QP was created with.
        Case { ends, face, next: 1 }.run(opcode)
    });
    Verdict::of(tried)
}

impl Verdict {
    /// The outcome of a case.
    pub(super) fn of(tried: Result<()>) -> Self {
        match tried {
            Ok(()) => Self::Ok,
            Err(e) => match e.downcast_ref::<uverbs::Error>() {
                Some(reason) if reason.is_unsupported() => Self::Missing(format!("{reason}")),
                _ => Self::Failed(format!("{e:#}")),
            },
        }
    }
}

/// Bytes that depend on the turn.
pub(super) fn pattern(turn: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_mul(31).wrapping_add(turn * 131 + i / 251) & 0xff) as u8).collect()
}

struct Case<D: Driver, T: Kind<D>> {
    ends: Ends<D, T>,
    face: Face,
    next: u64,
}

impl<D: Driver, T: Kind<D>> Case<D, T> {
    fn turn(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn run(&mut self, opcode: Opcode) -> Result<()> {
        // Several packets, except on UD, and lengths that are not multiples of a word.
        let long = if T::QP_TYPE == QpType::Ud { 771 } else { 5003 };
        match opcode {
            Opcode::Send => self.sends(&|_| Op::Send, &[0, 1, long]),
            Opcode::SendImm => self.sends(&|_| Op::SendImm(0x1234_5678), &[0, 1, long]),
            Opcode::SendInv => self.send_inv(),
            Opcode::Write => self.writes(None, &[1, long]),
            Opcode::WriteImm => self.writes(Some(0xfeed_f00d), &[1, long]),
            Opcode::Read => self.read(&[1, long]),
            Opcode::CmpSwp => self.compare_swap(),
            Opcode::FetchAdd => self.fetch_add(),
            Opcode::BindMw1 => self.bind(MwType::Type1),
            Opcode::BindMw2 => self.bind(MwType::Type2),
            Opcode::LocalInv => self.local_inv(),
            Opcode::Flush => self.flush(),
            Opcode::AtomicWrite => self.atomic_write(),
            Opcode::Tso => bail!("raw packets have cases of their own"),
        }
    }

    /// Sends of these lengths from two entries, and inline.
    fn sends(&mut self, op: &dyn Fn(u64) -> Op<'static>, lens: &[usize]) -> Result<()> {
        for len in lens {
            self.send(op, *len, false)?;
        }
        let inline = self.ends.a.max_inline.min(32);
        self.send(op, inline, true)
    }

    fn send(&mut self, op: &dyn Fn(u64) -> Op<'static>, len: usize, inline: bool) -> Result<()> {
        let (turn, face) = (self.turn(), self.face);
        let grh = if T::QP_TYPE == QpType::Ud { 40 } else { 0 };
        let data = pattern(turn, len);
        let Ends { a, b } = &mut self.ends;
        a.mr.write_at(0, &data)?;
        b.mr.write_at(ARRIVAL, &vec![0; len + grh + 1])?;
        let cut = (len + grh) / 3;
        let recv = [b.sge(ARRIVAL, cut), b.sge(ARRIVAL + cut, len + grh - cut)];
        b.recv(turn, &recv)?;
        let sges = [a.sge(0, len / 2), a.sge(len / 2, len - len / 2)];
        let posted = if inline { Data::Inline(Inline::Bytes(&data)) } else { Data::Sges(&sges) };
        let op = op(turn);
        let sent = self.ends.run(face, turn, op, posted)?;
        ensure!(sent.opcode == WcOpcode::SEND, "the completion has {:?}", sent.opcode);
        let b = &self.ends.b;
        let got = b.wait(turn)?;
        ensure!(got.opcode == WcOpcode::RECV, "the completion of the receive has {:?}", got.opcode);
        ensure!(
            got.byte_len as usize == len + grh,
            "{} bytes arrived, {} were sent",
            got.byte_len,
            len + grh
        );
        match op {
            Op::SendImm(imm) => {
                let got = got.imm_data().map(|i| i.get());
                ensure!(got == Some(imm), "the immediate is {got:x?}");
            }
            Op::SendInv(rkey) => {
                ensure!(
                    got.invalidated_rkey() == Some(rkey),
                    "{:x?} was invalidated",
                    got.invalidated_rkey()
                );
            }
            _ => {}
        }
        ensure!(b.bytes(ARRIVAL + grh, len)? == data, "the data differ");
        ensure!(b.bytes(ARRIVAL + grh + len, 1)? == [0], "written beyond the end");
        Ok(())
    }

    fn writes(&mut self, imm: Option<u32>, lens: &[usize]) -> Result<()> {
        for len in lens {
            self.write(imm, *len, false)?;
        }
        if is_srd::<D, T>() {
            // SRD has no inline writes.
            return Ok(());
        }
        let inline = self.ends.a.max_inline.min(32);
        self.write(imm, inline, true)
    }

    fn write(&mut self, imm: Option<u32>, len: usize, inline: bool) -> Result<()> {
        let (turn, face) = (self.turn(), self.face);
        let data = pattern(turn, len);
        let Ends { a, b } = &mut self.ends;
        a.mr.write_at(0, &data)?;
        b.mr.write_at(TARGET, &vec![0; len + 1])?;
        let at = b.remote(TARGET);
        if imm.is_some() {
            // Devices with SRD do not complete a receive without memory.
            let memory = [b.sge(ARRIVAL, 1)];
            b.recv(turn, if is_srd::<D, T>() { &memory } else { &[] })?;
        }
        let op = imm.map_or(Op::Write(at), |imm| Op::WriteImm(at, imm));
        // Writes of SRD have one entry.
        let cut = if is_srd::<D, T>() { 0 } else { len / 2 };
        let sges = [a.sge(0, cut), a.sge(cut, len - cut)];
        let sges = if is_srd::<D, T>() { &sges[1..] } else { &sges[..] };
        let posted = if inline { Data::Inline(Inline::Bytes(&data)) } else { Data::Sges(sges) };
        let sent = self.ends.run(face, turn, op, posted)?;
        ensure!(sent.opcode == WcOpcode::RDMA_WRITE, "the completion has {:?}", sent.opcode);
        let b = &self.ends.b;
        if let Some(imm) = imm {
            let got = b.wait(turn)?;
            ensure!(
                got.opcode == WcOpcode::RECV_RDMA_WITH_IMM,
                "the completion of the receive has {:?}",
                got.opcode
            );
            ensure!(got.byte_len as usize == len, "{} bytes arrived, {len} were sent", got.byte_len);
            ensure!(got.imm_data().map(|i| i.get()) == Some(imm), "the immediate differs");
        }
        self.arrives(&data)?;
        ensure!(self.ends.b.bytes(TARGET + len, 1)? == [0], "written beyond the end");
        Ok(())
    }

    /// Waits until a write has arrived. On an unreliable transport it can be complete before.
    fn arrives(&self, data: &[u8]) -> Result<()> {
        let start = Instant::now();
        while self.ends.b.bytes(TARGET, data.len())? != data {
            let patient = T::QP_TYPE == QpType::Uc && start.elapsed() < ARRIVAL_LIMIT;
            ensure!(patient, "the data differ");
            std::thread::yield_now();
        }
        Ok(())
    }

    fn read(&mut self, lens: &[usize]) -> Result<()> {
        for len in lens.iter().copied() {
            let (turn, face) = (self.turn(), self.face);
            let data = pattern(turn, len);
            let Ends { a, b } = &mut self.ends;
            b.mr.write_at(TARGET, &data)?;
            a.mr.write_at(0, &vec![0; len + 1])?;
            let from = b.remote(TARGET);
            // Reads of SRD have one entry, and their completions the opcode of sends.
            let (cut, expected) =
                if is_srd::<D, T>() { (0, WcOpcode::SEND) } else { (len / 2, WcOpcode::RDMA_READ) };
            let sges = [a.sge(0, cut), a.sge(cut, len - cut)];
            let sges = if is_srd::<D, T>() { &sges[1..] } else { &sges[..] };
            let done = self.ends.run(face, turn, Op::Read(from), Data::Sges(sges))?;
            ensure!(done.opcode == expected, "the completion has {:?}", done.opcode);
            ensure!(self.ends.a.bytes(0, len)? == data, "the data differ");
            ensure!(self.ends.a.bytes(len, 1)? == [0], "written beyond the end");
        }
        Ok(())
    }

    /// One atomic: the returned value, and the memory after it.
    fn atomic(
        &mut self,
        op: &dyn Fn(RemoteAddr) -> Op<'static>,
        opcode: WcOpcode,
        before: u64,
        after: u64,
    ) -> Result<()> {
        let (turn, face) = (self.turn(), self.face);
        let Ends { a, b } = &mut self.ends;
        b.mr.atomic_u64(TARGET)?.store(before, Ordering::Release);
        a.mr.atomic_u64(0)?.store(0x5555, Ordering::Release);
        let sges = [a.sge(0, 8)];
        let at = b.remote(TARGET);
        let done = self.ends.run(face, turn, op(at), Data::Sges(&sges))?;
        ensure!(done.opcode == opcode, "the completion has {:?}", done.opcode);
        let answer = self.ends.a.mr.atomic_u64(0)?.load(Ordering::Acquire);
        ensure!(answer == before, "returned {answer:#x}, expected {before:#x}");
        let left = self.ends.b.mr.atomic_u64(TARGET)?.load(Ordering::Acquire);
        ensure!(left == after, "the memory is {left:#x}, expected {after:#x}");
        Ok(())
    }

    fn compare_swap(&mut self) -> Result<()> {
        const X: u64 = 0x0123_4567_89ab_cdef;
        self.atomic(&|r| Op::CmpSwp(r, X, !X), WcOpcode::COMP_SWAP, X, !X)?;
        self.atomic(&|r| Op::CmpSwp(r, X, 5), WcOpcode::COMP_SWAP, !X, !X)
    }

    fn fetch_add(&mut self) -> Result<()> {
        const X: u64 = 0x0123_4567_89ab_cdef;
        self.atomic(&|r| Op::FetchAdd(r, 3), WcOpcode::FETCH_ADD, X, X + 3)?;
        self.atomic(&|r| Op::FetchAdd(r, u64::MAX), WcOpcode::FETCH_ADD, X, X - 1)
    }

    /// A window of A, bound by A.
    fn bound(&mut self, mw_type: MwType) -> Result<MemoryWindow<D>> {
        let (turn, face) = (self.turn(), self.face);
        let a = &self.ends.a;
        let mut mw = a.pd.alloc_mw(mw_type)?;
        let bind = mw.bind(&a.mr, a.mr.addr() + TARGET as u64, 4096, AccessFlags::REMOTE_WRITE);
        let done = self.ends.run(face, turn, Op::BindMw(bind), Data::Sges(&[]))?;
        ensure!(done.opcode == WcOpcode::BIND_MW, "the completion has {:?}", done.opcode);
        mw.bound(&bind);
        Ok(mw)
    }

    /// B writes through a window of A.
    fn bind(&mut self, mw_type: MwType) -> Result<()> {
        let mw = self.bound(mw_type)?;
        let turn = self.turn();
        let data = pattern(turn, 100);
        let Ends { a, b } = &mut self.ends;
        a.mr.write_at(TARGET, &[0; 200])?;
        b.mr.write_at(0, &data)?;
        let to = RemoteAddr { rkey: mw.rkey(), ..a.remote(TARGET + 8) };
        let sges = [b.sge(0, 100)];
        self.ends.run_back(Face::Batch, turn, Op::Write(to), Data::Sges(&sges))?;
        let start = Instant::now();
        while self.ends.a.bytes(TARGET + 8, 100)? != data {
            ensure!(start.elapsed() < ARRIVAL_LIMIT, "the data written through the window differ");
            std::thread::yield_now();
        }
        mw.close()?;
        Ok(())
    }

    fn local_inv(&mut self) -> Result<()> {
        let mw = self.bound(MwType::Type2)?;
        let (turn, face) = (self.turn(), self.face);
        let done = self.ends.run(face, turn, Op::LocalInv(mw.rkey()), Data::Sges(&[]))?;
        ensure!(done.opcode == WcOpcode::LOCAL_INV, "the completion has {:?}", done.opcode);
        mw.close()?;
        Ok(())
    }

    /// B binds a window, and a send of A invalidates it.
    fn send_inv(&mut self) -> Result<()> {
        let b = &self.ends.b;
        let mut mw = b.pd.alloc_mw(MwType::Type2)?;
        let bind = mw.bind(&b.mr, b.mr.addr() + TARGET as u64, 4096, AccessFlags::REMOTE_WRITE);
        let turn = self.turn();
        self.ends.run_back(Face::Batch, turn, Op::BindMw(bind), Data::Sges(&[]))?;
        mw.bound(&bind);
        let rkey = mw.rkey();
        self.send(&|_| Op::SendInv(rkey), 771, false)?;
        mw.close()?;
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        let (turn, face) = (self.turn(), self.face);
        let at = self.ends.b.remote(TARGET);
        // Global visibility of a range.
        let args = FlushArgs { length: 4096, placement: 1, level: 0 };
        let done = self.ends.run(face, turn, Op::Flush(at, args), Data::Sges(&[]))?;
        ensure!(done.opcode == WcOpcode::FLUSH, "the completion has {:?}", done.opcode);
        Ok(())
    }

    fn atomic_write(&mut self) -> Result<()> {
        let (turn, face) = (self.turn(), self.face);
        let at = self.ends.b.remote(TARGET);
        let done = self.ends.run(face, turn, Op::AtomicWrite(at, *b"8 bytes!"), Data::Sges(&[]))?;
        ensure!(done.opcode == WcOpcode::ATOMIC_WRITE, "the completion has {:?}", done.opcode);
        ensure!(self.ends.b.bytes(TARGET, 8)? == b"8 bytes!", "the data differ");
        Ok(())
    }
}
