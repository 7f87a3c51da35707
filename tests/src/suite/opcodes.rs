// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every opcode on every face and with both lockings; the effect is checked at the other end.

use crate::pair::{builder_ops, grh};
use crate::{Dialect, Face, Lab, Lock, Op, Outcome, Pair, RemoteAddr, Req, Typed};
use anyhow::{Result, ensure};
use core::sync::atomic::Ordering;
use uverbs::attr::{AccessFlags, DeviceCapFlags, MwType, QpType, SendOpsFlags};
use uverbs::provider::op::FlushArgs;
use uverbs::{Driver, Exclusive, MemoryWindow, Rc, Shared, Uc, Ud, WcFlags, WcOpcode};

/// The objects of a test of one opcode.
struct Bench<D: Driver, T: Typed<D>, L: Lock> {
    pair: Pair<D, T, L>,
    /// Windows of B that were bound through the pair.
    windows: Vec<MemoryWindow<D>>,
    face: Face,
    seed: u64,
}

/// A length that is not a multiple of a word, over several packets except on UD.
const LONG: usize = 5003;
const SHORT: usize = 771;

impl<D: Driver, T: Typed<D>, L: Lock> Bench<D, T, L> {
    /// A send of either kind, gathered from two entries, scattered to two.
    fn send(&mut self, op: Op, len: usize) -> Result<uverbs::WorkCompletion> {
        self.seed += 1;
        let (seed, face, grh) = (self.seed, self.face, grh::<T>());
        let Pair { a, b } = &mut self.pair;
        a.fill(0..len, seed)?;
        b.clear(0..16 << 10)?;
        let half = len / 2;
        // Two entries that are not in order in memory; the message must be in the order of the entries.
        let (first, second) = (b.sge(8192..8192 + grh + half), b.sge(64..64 + len - half));
        crate::post_recv(b.qp.rq_mut()?, face, &[(seed, &[first, second])])?;
        let sges = [a.sge(0..half), a.sge(half..len)];
        a.post(face, &[Req::new(seed, op).signaled().sges(&sges)])?;
        let sent = a.ok(1)?[0];
        ensure!((sent.wr_id, sent.opcode, sent.qp_num) == (seed, WcOpcode::SEND, a.qp.qp_num()), "{sent:?}");
        let got = b.ok(1)?[0];
        ensure!((got.wr_id, got.opcode) == (seed, WcOpcode::RECV), "{got:?}");
        ensure!(got.byte_len as usize == len + grh && got.qp_num == b.qp.qp_num(), "{got:?}");
        if grh != 0 {
            // On connected QPs the flag has no meaning, and some devices set it.
            ensure!(got.wc_flags.contains(WcFlags::GRH) && got.src_qp == a.qp.qp_num(), "{got:?}");
        }
        let mut data = b.bytes(8192 + grh..8192 + grh + half)?;
        data.extend(b.bytes(64..64 + len - half)?);
        ensure!(data == a.bytes(0..len)?, "{op:?}: the data differ");
        Ok(got)
    }

    fn send_imm(&mut self) -> Result<()> {
        let got = self.send(Op::SendImm(0x1234_5678), SHORT)?;
        ensure!(got.imm_data().map(|i| i.get()) == Some(0x1234_5678), "{got:?}");
        Ok(())
    }

    /// The peer binds a window, and a send invalidates it.
    fn send_inv(&mut self) -> Result<()> {
        let rkey = self.bind_at_b(MwType::Type2)?;
        let got = self.send(Op::SendInv(rkey), SHORT)?;
        ensure!(got.invalidated_rkey() == Some(rkey), "{got:?}, expected {rkey:#x}");
        Ok(())
    }

    /// Binds a window at B with B's own QP. Returns its key.
    fn bind_at_b(&mut self, mw_type: MwType) -> Result<u32> {
        let b = &mut self.pair.b;
        let mut mw = b.pd.alloc_mw(mw_type)?;
        let bind = mw.bind(&b.mr, b.mr.addr(), 4096, AccessFlags::REMOTE_WRITE);
        b.post(Face::Batch, &[Req::new(1, Op::BindMw(bind)).signaled()])?;
        b.ok(1)?;
        mw.bound(&bind);
        let rkey = mw.rkey();
        self.windows.push(mw);
        Ok(rkey)
    }

    fn write(&mut self, imm: Option<u32>) -> Result<()> {
        self.seed += 1;
        let (seed, face) = (self.seed, self.face);
        let Pair { a, b } = &mut self.pair;
        a.fill(0..LONG, seed)?;
        b.clear(0..16 << 10)?;
        let to = b.remote(8192);
        let op = match imm {
            Some(imm) => {
                b.recv_empty(1)?;
                Op::WriteImm(to, imm)
            }
            None => Op::Write(to),
        };
        let sges = [a.sge(0..3), a.sge(3..4000), a.sge(4000..LONG)];
        a.post(face, &[Req::new(seed, op).signaled().sges(&sges)])?;
        let sent = a.ok(1)?[0];
        ensure!(sent.opcode == WcOpcode::RDMA_WRITE, "{sent:?}");
        match imm {
            Some(imm) => {
                let got = b.ok(1)?[0];
                ensure!(got.opcode == WcOpcode::RECV_RDMA_WITH_IMM, "{got:?}");
                ensure!(got.imm_data().map(|i| i.get()) == Some(imm), "{got:?}");
                ensure!(got.byte_len as usize == LONG, "{got:?}");
            }
            // An unreliable write is complete before it arrives.
            None => crate::wait::until("the write arrives", crate::LIMIT, || {
                Ok(b.check(8192..8192 + LONG, seed).is_ok())
            })?,
        }
        b.check(8192..8192 + LONG, seed)?;
        ensure!(b.bytes(8192 + LONG..8192 + LONG + 8)? == [0; 8], "written beyond the end");
        Ok(())
    }

    fn read(&mut self) -> Result<()> {
        self.seed += 1;
        let (seed, face) = (self.seed, self.face);
        let Pair { a, b } = &mut self.pair;
        b.fill(100..100 + LONG, seed)?;
        a.clear(0..16 << 10)?;
        let sges = [a.sge(4096..8192), a.sge(0..LONG - 4096)];
        a.post(face, &[Req::new(seed, Op::Read(b.remote(100))).signaled().sges(&sges)])?;
        let done = a.ok(1)?[0];
        ensure!(done.opcode == WcOpcode::RDMA_READ, "{done:?}");
        let mut data = a.bytes(4096..8192)?;
        data.extend(a.bytes(0..LONG - 4096)?);
        ensure!(data == b.bytes(100..100 + LONG)?, "the data differ");
        b.idle()
    }

    fn atomics(&mut self) -> Result<()> {
        let face = self.face;
        let Pair { a, b } = &mut self.pair;
        let word = b.word(256)?;
        let at = b.remote(256);
        let sges = [a.sge(512..520)];
        let mut turn = |op: Op, opcode: WcOpcode, before: u64, after: u64| -> Result<()> {
            a.post(face, &[Req::new(9, op).signaled().sges(&sges)])?;
            let done = a.ok(1)?[0];
            ensure!(done.opcode == opcode, "{done:?}");
            let old = a.word(512)?.load(Ordering::Acquire);
            let new = word.load(Ordering::Acquire);
            ensure!((old, new) == (before, after), "{op:?}: old value {old:#x}, new value {new:#x}");
            Ok(())
        };
        const X: u64 = 0x1122_3344_5566_7788;
        word.store(X, Ordering::Release);
        turn(Op::CmpSwp(at, X, !X), WcOpcode::COMP_SWAP, X, !X)?;
        turn(Op::CmpSwp(at, X, 5), WcOpcode::COMP_SWAP, !X, !X)?;
        turn(Op::FetchAdd(at, 3), WcOpcode::FETCH_ADD, !X, !X + 3)?;
        turn(Op::FetchAdd(at, u64::MAX), WcOpcode::FETCH_ADD, !X + 3, !X + 2)
    }

    /// A binds a window, B uses it, and A invalidates it.
    fn windows_and_invalidation(&mut self, mw_type: MwType, invalidate: bool) -> Result<()> {
        self.seed += 1;
        let seed = self.seed;
        let by_builder = mw_type == MwType::Type2 || Dialect::of::<D>().builder_binds_type1;
        let face = if by_builder || self.face != Face::Builder { self.face } else { Face::List };
        let Pair { a, b } = &mut self.pair;
        let mut mw = a.pd.alloc_mw(mw_type)?;
        let old = mw.rkey();
        let bind = mw.bind(&a.mr, a.mr.addr() + 4096, 4096, AccessFlags::REMOTE_WRITE);
        a.post(face, &[Req::new(7, Op::BindMw(bind)).signaled()])?;
        let done = a.ok(1)?[0];
        ensure!(done.opcode == WcOpcode::BIND_MW, "{done:?}");
        mw.bound(&bind);
        ensure!(mw.rkey() != old && mw.rkey() >> 8 == old >> 8, "{:#x} after {old:#x}", mw.rkey());
        b.fill(0..1000, seed)?;
        a.clear(4096..8192)?;
        let sges = [b.sge(0..1000)];
        let to = RemoteAddr { addr: a.mr.addr() + 4200, rkey: mw.rkey() };
        b.post(Face::Batch, &[Req::new(8, Op::Write(to)).signaled().sges(&sges)])?;
        b.ok(1)?;
        crate::wait::until("the write arrives", crate::LIMIT, || Ok(a.check(4200..5200, seed).is_ok()))?;
        if invalidate {
            a.post(face, &[Req::new(9, Op::LocalInv(mw.rkey())).signaled()])?;
            let done = a.ok(1)?[0];
            ensure!(done.opcode == WcOpcode::LOCAL_INV, "{done:?}");
        }
        mw.close()?;
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        let face = self.face;
        let Pair { a, b } = &mut self.pair;
        // Type 1 is global visibility; selectivity 0 is a range.
        let args = FlushArgs { length: 4096, placement: 1, level: 0 };
        a.post(face, &[Req::new(5, Op::Flush(b.remote(0), args)).signaled()])?;
        let done = a.ok(1)?[0];
        ensure!(done.opcode == WcOpcode::FLUSH, "{done:?}");
        Ok(())
    }

    fn atomic_write(&mut self) -> Result<()> {
        let face = self.face;
        let Pair { a, b } = &mut self.pair;
        b.word(64)?.store(0, Ordering::Release);
        a.post(face, &[Req::new(5, Op::AtomicWrite(b.remote(64), *b"8 bytes!")).signaled()])?;
        let done = a.ok(1)?[0];
        ensure!(done.opcode == WcOpcode::ATOMIC_WRITE, "{done:?}");
        ensure!(b.bytes(64..72)? == b"8 bytes!", "{:?}", b.bytes(64..72)?);
        Ok(())
    }
}

/// Runs all operations of a transport.
fn all<D: Driver, T: Typed<D>, L: Lock>(lab: &Lab<D>, face: Face) -> Outcome {
    use SendOpsFlags as F;
    // An operation that the builders of a device lack is not available to lists and batches, either (see
    // docs/src/reference/semantics.md).
    let ops = builder_ops::<D, T>(lab)?;
    let has = |op: SendOpsFlags| ops.contains(op);
    // C's lists can't express the arguments of these two.
    let extended = face != Face::List;
    let windows = |cap| lab.has(cap) && has(F::BIND_MW);
    let type2 = windows(DeviceCapFlags::MEM_WINDOW_TYPE_2A) || windows(DeviceCapFlags::MEM_WINDOW_TYPE_2B);

    let mut bench = Bench { pair: Pair::<D, T, L>::new(lab)?, windows: vec![], face, seed: 0x100 };
    let grh = grh::<T>();
    bench.send(Op::Send, if grh == 0 { LONG } else { SHORT })?;
    bench.send_imm()?;
    if has(F::SEND_WITH_INV) && type2 && (T::QP_TYPE != QpType::Uc || lab.bed.invalidates_on_uc()) {
        bench.send_inv()?;
    }
    if has(F::RDMA_WRITE) {
        bench.write(None)?;
        bench.write(Some(0xfeed_f00d))?;
    }
    if has(F::RDMA_READ) {
        bench.read()?;
    }
    if has(F::ATOMIC_FETCH_AND_ADD) {
        bench.atomics()?;
    }
    if windows(DeviceCapFlags::MEM_WINDOW) {
        bench.windows_and_invalidation(MwType::Type1, false)?;
    }
    if type2 {
        bench.windows_and_invalidation(MwType::Type2, has(F::LOCAL_INV))?;
    }
    if extended && has(F::FLUSH) {
        bench.flush()?;
    }
    if extended && has(F::ATOMIC_WRITE) {
        bench.atomic_write()?;
    }
    bench.pair.a.idle()?;
    bench.pair.b.idle()?;
    Ok(())
}

crate::tests!(
    rc_exclusive_list = |lab| all::<D, Rc, Exclusive>(lab, Face::List),
    rc_exclusive_builder = |lab| all::<D, Rc, Exclusive>(lab, Face::Builder),
    rc_exclusive_batch = |lab| all::<D, Rc, Exclusive>(lab, Face::Batch),
    rc_exclusive_single = |lab| all::<D, Rc, Exclusive>(lab, Face::Single),
    rc_shared_list = |lab| all::<D, Rc, Shared>(lab, Face::List),
    rc_shared_builder = |lab| all::<D, Rc, Shared>(lab, Face::Builder),
    rc_shared_batch = |lab| all::<D, Rc, Shared>(lab, Face::Batch),
    rc_shared_single = |lab| all::<D, Rc, Shared>(lab, Face::Single),
    uc_exclusive_list = |lab| all::<D, Uc, Exclusive>(lab, Face::List),
    uc_exclusive_builder = |lab| all::<D, Uc, Exclusive>(lab, Face::Builder),
    uc_exclusive_batch = |lab| all::<D, Uc, Exclusive>(lab, Face::Batch),
    uc_exclusive_single = |lab| all::<D, Uc, Exclusive>(lab, Face::Single),
    uc_shared_list = |lab| all::<D, Uc, Shared>(lab, Face::List),
    uc_shared_builder = |lab| all::<D, Uc, Shared>(lab, Face::Builder),
    uc_shared_batch = |lab| all::<D, Uc, Shared>(lab, Face::Batch),
    uc_shared_single = |lab| all::<D, Uc, Shared>(lab, Face::Single),
    ud_exclusive_list = |lab| all::<D, Ud, Exclusive>(lab, Face::List),
    ud_exclusive_builder = |lab| all::<D, Ud, Exclusive>(lab, Face::Builder),
    ud_exclusive_batch = |lab| all::<D, Ud, Exclusive>(lab, Face::Batch),
    ud_exclusive_single = |lab| all::<D, Ud, Exclusive>(lab, Face::Single),
    ud_shared_list = |lab| all::<D, Ud, Shared>(lab, Face::List),
    ud_shared_builder = |lab| all::<D, Ud, Shared>(lab, Face::Builder),
    ud_shared_batch = |lab| all::<D, Ud, Shared>(lab, Face::Batch),
    ud_shared_single = |lab| all::<D, Ud, Shared>(lab, Face::Single),
);
