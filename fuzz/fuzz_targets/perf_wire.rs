// SPDX-License-Identifier: MIT OR Apache-2.0
//! The exchange of `uverbs perf` with a peer that sends any bytes, in pieces of any length.
//!
//! Checked: there is no panic; each step returns an error or values in their range, which both ends would use; keys are the
//! same after a round trip; each step sends as many bytes as it receives.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use std::io::{Read, Result, Write};
use uverbs::attr::{Gid, Mtu};
use wire::{Form, Keys, Report, Wire};

// The package is a program, not a library. The module needs nothing else of it.
#[path = "../../crates/tools/src/perf/wire.rs"]
mod wire;

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    is_client: bool,
    form: u8,
    own: Own,
    steps: [Step; 6],
    piece: u8,
    bytes: &'a [u8],
}

#[derive(Arbitrary, Clone, Copy, Debug)]
struct Own {
    lid: u16,
    out_reads: u8,
    qp_num: u32,
    psn: u32,
    rkey: u32,
    addr: u64,
    gid: [u8; 16],
    srq_num: u32,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Step {
    Versions,
    System(u16, u8),
    Mtu(u8),
    Keys(u8),
    Sync,
    Report(u64, f64),
    /// What the peer would send is what this side sends.
    Echo,
}

/// The bytes of a peer, and what was sent to it.
struct Peer<'a> {
    bytes: &'a [u8],
    piece: usize,
    sent: Vec<u8>,
    /// Bytes that were sent to the peer, and received from it.
    counts: [usize; 2],
    /// The peer repeats what it receives.
    echoes: bool,
}

impl Read for Peer<'_> {
    fn read(&mut self, out: &mut [u8]) -> Result<usize> {
        if self.echoes {
            let n = out.len().min(self.piece).min(self.sent.len());
            out[..n].copy_from_slice(&self.sent[..n]);
            self.sent.drain(..n);
            self.counts[1] += n;
            return Ok(n);
        }
        let n = out.len().min(self.piece).min(self.bytes.len());
        let (now, rest) = self.bytes.split_at(n);
        out[..n].copy_from_slice(now);
        self.bytes = rest;
        self.counts[1] += n;
        Ok(n)
    }
}

impl Write for Peer<'_> {
    fn write(&mut self, data: &[u8]) -> Result<usize> {
        self.sent.extend_from_slice(data);
        self.counts[0] += data.len();
        Ok(data.len())
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

fuzz_target!(|input: Input<'_>| {
    let Input { is_client, form, own, steps, piece, bytes } = input;
    let Own { lid, out_reads, qp_num, psn, rkey, addr, gid, srq_num } = own;
    // The widths of the text's fields.
    let (qp_num, psn) = (qp_num >> 8, psn >> 8);
    let keys = Keys { lid, out_reads, qp_num, psn, rkey, addr, gid: Gid(gid), srq_num };
    let form = match form % 3 {
        0 => Form::Text { has_gid: true },
        1 => Form::Text { has_gid: false },
        _ => Form::Struct,
    };
    if let Ok(text) = core::str::from_utf8(bytes)
        && let Ok(keys) = text.parse::<Keys>()
    {
        assert_eq!(keys.to_string().parse(), Ok(keys));
    }
    let echoes = matches!(steps[0], Step::Echo);
    let peer = Peer { bytes, piece: usize::from(piece).max(1), sent: Vec::new(), counts: [0; 2], echoes };
    // A server answers only, so its peer can't begin with an echo.
    let mut wire = Wire::new(peer, is_client || echoes, form);
    for step in steps {
        if take(&mut wire, step, &keys, echoes, form).is_err() {
            assert!(!echoes, "{step:?} failed with the bytes of this side");
            return;
        }
        let [sent, received] = wire.stream().counts;
        assert_eq!(sent, received, "{step:?}");
    }
    let _ = wire.close(&[keys]);
});

/// One step of the exchange. The error is that of the peer.
fn take(wire: &mut Wire<Peer<'_>>, step: Step, keys: &Keys, echoes: bool, form: Form) -> anyhow::Result<()> {
    match step {
        Step::Versions => wire.versions()?,
        Step::System(cycle, line) => {
            let (cycle, line) = (u32::from(cycle), u32::from(line));
            let (used, used_line) = wire.system(cycle, line)?;
            assert!((cycle..=1 << 24).contains(&used) && (line..=1 << 24).contains(&used_line));
            assert!(!echoes || (used, used_line) == (cycle, line));
        }
        Step::Mtu(code) => {
            let mtus = [Mtu::MTU_256, Mtu::MTU_512, Mtu::MTU_1024, Mtu::MTU_2048, Mtu::MTU_4096];
            let mine = mtus[usize::from(code) % mtus.len()];
            let used = wire.mtu(mine)?;
            assert!(used.bytes().is_some_and(|n| n >= 256) && used.bytes() <= mine.bytes());
            assert!(!echoes || used == mine);
        }
        Step::Keys(count) => {
            let mine = vec![*keys; usize::from(count % 4)];
            let theirs = wire.all_keys(&mine)?;
            assert_eq!(theirs.len(), mine.len());
            let gid = if form == (Form::Text { has_gid: false }) { Gid::ZERO } else { keys.gid };
            assert!(!echoes || theirs.iter().all(|theirs| *theirs == Keys { gid, ..*keys }));
        }
        Step::Sync => wire.sync(&[*keys])?,
        Step::Report(bytes, rate) => {
            let mine = Report { bytes, iters: 7, peak: 2.5, average: 1.5, rate };
            let theirs = wire.report(&mine)?;
            // NaN is not equal to itself.
            assert!(!echoes || theirs == mine || rate.is_nan());
        }
        Step::Echo => {}
    }
    Ok(())
}
