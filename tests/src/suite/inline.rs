// SPDX-License-Identifier: MIT OR Apache-2.0
//! Inline data: copied during the call, from any memory, of any length up to the limit.

use crate::pair::grh;
use crate::post::Typed;
use crate::{Data, Face, Inline, Lab, Lock, Op, Outcome, Pair, Req, pattern};
use anyhow::{Context as _, Result, ensure};
use uverbs::attr::{AccessFlags, DeviceCapFlags, MwType, QpState};
use uverbs::{Driver, Exclusive, ImmData, Rc, Shared, Uc, Ud, WcOpcode};

/// 0, 1 and the maximum of bytes, and lengths between them, on every face.
fn lengths_in<D: Driver, T: Typed<D>, L: Lock>(lab: &Lab<D>) -> Result<()> {
    let Pair { mut a, mut b } = Pair::<D, T, L>::new(lab)?;
    let max = a.qp.cap().max_inline_data as usize;
    ensure!(max >= 64, "max_inline_data is {max}");
    let grh = grh::<T>();
    for face in Face::ALL {
        for len in [0, 1, 2, 7, 8, 9, max / 2, max - 1, max] {
            let seed = len as u64 + 1000;
            let data = pattern::bytes(seed, len);
            b.clear(0..4096)?;
            b.recv(Face::Single, seed, 0..4096)?;
            a.post(face, &[Req::new(seed, Op::Send).signaled().inline(&data)])?;
            a.ok(1)?;
            let got = b.ok(1)?[0];
            ensure!(got.byte_len as usize == len + grh, "{len} bytes by {face:?}: {got:?}");
            b.check(grh..grh + len, seed).with_context(|| format!("{len} bytes by {face:?}"))?;
            ensure!(b.bytes(grh + len..grh + len + 8)? == [0; 8], "{len} bytes by {face:?}: more than that");
        }
    }
    Ok(())
}

fn inline_lengths_up_to_the_limit_rc<D: Driver>(lab: &Lab<D>) -> Outcome {
    lengths_in::<D, Rc, Exclusive>(lab)?;
    lengths_in::<D, Rc, Shared>(lab)
}

/// Every opcode that takes inline data, from one buffer and from several, by every face. (Sends with invalidation: below.)
fn every_opcode_takes_inline_data<D: Driver>(lab: &Lab<D>) -> Outcome {
    let Pair { mut a, mut b } = Pair::<D, Rc, Exclusive>::new(lab)?;
    let data = pattern::bytes(5, 60);
    let parts = [&data[..1], &data[1..1], &data[1..30], &data[30..]];
    let lists = [Data::Inline(Inline::Bytes(&data)), Data::Inline(Inline::List(&parts))];
    for face in Face::ALL {
        for op in [Op::Send, Op::SendImm(0xabcd), Op::Write(b.remote(0)), Op::WriteImm(b.remote(0), 0xabcd)] {
            for payload in lists {
                b.clear(0..100)?;
                let receives = !matches!(op, Op::Write(_));
                if receives {
                    b.recv(Face::Single, 1, 0..100)?;
                }
                a.post(face, &[Req::new(1, op).signaled().data(payload)])
                    .with_context(|| format!("{op:?} by {face:?}"))?;
                a.ok(1)?;
                if receives {
                    let got = b.ok(1)?[0];
                    ensure!(got.byte_len == 60, "{got:?}");
                    if !matches!(op, Op::Send) {
                        ensure!(got.imm_data() == Some(ImmData::new(0xabcd)), "{got:?}");
                    }
                }
                b.check(0..60, 5).with_context(|| format!("{op:?} by {face:?}"))?;
            }
        }
    }
    Ok(())
}

/// A send that invalidates the peer's window, with data from one buffer and from several.
fn inline_send_invalidates_a_window<D: Driver>(lab: &Lab<D>) -> Outcome {
    if !lab.has(DeviceCapFlags::MEM_WINDOW_TYPE_2A) && !lab.has(DeviceCapFlags::MEM_WINDOW_TYPE_2B) {
        lab.note("no window to invalidate");
        return Ok(());
    }
    let Pair { mut a, mut b } = Pair::<D, Rc, Exclusive>::new(lab)?;
    let data = pattern::bytes(6, 60);
    let parts = [&data[..1], &data[1..1], &data[1..30], &data[30..]];
    for face in Face::ALL {
        for payload in [Data::Inline(Inline::Bytes(&data)), Data::Inline(Inline::List(&parts))] {
            let mut mw = b.pd.alloc_mw(MwType::Type2)?;
            let bind = mw.bind(&b.mr, b.mr.addr() + 4096, 4096, AccessFlags::REMOTE_WRITE);
            b.post(Face::Single, &[Req::new(1, Op::BindMw(bind)).signaled()])?;
            b.ok(1)?;
            mw.bound(&bind);
            b.clear(0..100)?;
            b.recv(Face::Single, 1, 0..100)?;
            a.post(face, &[Req::new(1, Op::SendInv(mw.rkey())).signaled().data(payload)])
                .with_context(|| format!("by {face:?}"))?;
            a.ok(1)?;
            let got = b.ok(1)?[0];
            ensure!(got.byte_len == 60 && got.invalidated_rkey() == Some(mw.rkey()), "{got:?}");
            b.check(0..60, 6).with_context(|| format!("by {face:?}"))?;
        }
    }
    Ok(())
}

/// Inline data of constant length.
fn inline_data_of_constant_length_arrives<D: Driver>(lab: &Lab<D>) -> Outcome {
    let Pair { mut a, mut b } = Pair::<D, Rc, Exclusive>::new(lab)?;
    b.recv(Face::Single, 1, 0..64)?;
    b.recv(Face::Single, 2, 64..128)?;
    let to = uverbs::provider::WireRemote::new(b.remote(128).addr, b.remote(128).rkey);
    let sq = a.qp.sq();
    let mut batch = sq.batch();
    batch.wr(1).send_array(b"eight by");
    batch.wr(2).send_imm_array(b"twelve bytes", ImmData::new(7));
    batch.wr(3).signaled().write_array(b"written", to);
    batch.complete()?;
    a.ok(1)?;
    ensure!(b.ok(2)?.iter().map(|wc| wc.byte_len).eq([8, 12]));
    ensure!(b.bytes(0..8)? == b"eight by" && b.bytes(64..76)? == b"twelve bytes");
    ensure!(b.bytes(128..135)? == b"written");
    Ok(())
}

/// The bytes are those at the time of the call, although they are in memory that was not registered and are changed
/// immediately after it; also if the device executes the request later, because its send queue is drained.
fn inline_data_is_copied_by_the_call<D: Driver>(lab: &Lab<D>) -> Outcome {
    let Pair { mut a, mut b } = Pair::<D, Rc, Exclusive>::new(lab)?;
    let has_sqd = lab.has_sqd()?;
    for drained in [false, true].into_iter().filter(|drained| !drained || has_sqd) {
        for (i, face) in Face::ALL.into_iter().enumerate() {
            let seed = 40 + i as u64;
            b.recv(Face::Single, seed, i * 64..(i + 1) * 64)?;
            if drained && i == 0 {
                a.drain()?;
            }
            let mut data = [0_u8; 64];
            data.copy_from_slice(&pattern::bytes(seed, 64));
            a.post(face, &[Req::new(seed, Op::Send).signaled().inline(&data)])?;
            data.fill(0xee);
            core::hint::black_box(&data);
        }
        if drained {
            a.idle().context("in SQD")?;
            a.set_state(QpState::RTS)?;
        }
        let sent = a.ok(4)?;
        ensure!(sent.iter().all(|wc| wc.opcode == WcOpcode::SEND));
        b.ok(4)?;
        for i in 0..4 {
            b.check(i * 64..(i + 1) * 64, 40 + i as u64).with_context(|| format!("drained: {drained}"))?;
        }
        b.clear(0..256)?;
    }
    Ok(())
}

crate::tests!(
    inline_lengths_up_to_the_limit_rc,
    inline_lengths_up_to_the_limit_uc = lengths_in::<D, Uc, Exclusive>,
    inline_lengths_up_to_the_limit_ud = lengths_in::<D, Ud, Exclusive>,
    every_opcode_takes_inline_data,
    inline_send_invalidates_a_window,
    inline_data_of_constant_length_arrives,
    inline_data_is_copied_by_the_call,
);
