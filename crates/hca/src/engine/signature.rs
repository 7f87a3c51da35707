// SPDX-License-Identifier: MIT OR Apache-2.0
//! Signatures of indirect keys: data blocks that are followed by a T10-DIF or a CRC in memory, on the wire, or in both, and
//! their generation, removal, copy and check (mlx5dv_wr_set_mkey_sig_block(3); `struct mlx5_bsf` of libmlx5).
//!
//! An address of the key is a position in the data on the wire, and so is the length of an access. A signature is computed
//! from the memory of its block when the block is complete, so that no state is kept between the packets of a message.
//! Not in a public document, and assumed here: CRC-32 and CRC-32C end with an inversion and are stored with the least
//! significant byte first, as SPDK's use of ConnectX shows, and CRC64_XP10 as well, with the polynomial of NVMe's CRC.

use super::mkey::{Denied, OwnTarget};
use crate::bytes::{be16, be32};
use crate::memory::{Fault, Memory};
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use uverbs_fabric::map::Map;

/// The kinds of errors, `MLX5_SIGERR_CQE_SYNDROME_*` of libmlx5.
const BAD_REFTAG: u16 = 1 << 11;
const BAD_APPTAG: u16 = 1 << 12;
const BAD_GUARD: u16 = 1 << 13;
/// The bytes of guard, application tag and reference tag in a mask, `enum mlx5dv_sig_mask`.
const GUARD: u8 = 0xc0;
const APPTAG: u8 = 0x30;
const REFTAG: u8 = 0x0f;

/// A domain, `MLX5_SIGERR_CQE_DOMAIN_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Wire = 0,
    Memory = 1,
}

/// The first error of a key that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SigError {
    pub(crate) key: u32,
    pub(crate) syndrome: u16,
    /// 0 for the wire, 1 for memory.
    pub(crate) domain: u8,
    /// The value in the data, and that of the data.
    pub(crate) expected: u64,
    pub(crate) actual: u64,
    /// Position in the data of the domain.
    pub(crate) offset: u64,
}

/// The errors of a device that its queues did not report yet.
#[derive(Debug, Default)]
pub(crate) struct SigErrors {
    any: AtomicBool,
    list: Mutex<Vec<SigError>>,
}

impl SigErrors {
    fn push(&self, error: SigError) {
        self.list.lock().unwrap_or_else(PoisonError::into_inner).push(error);
        self.any.store(true, Ordering::Relaxed);
    }

    /// Takes all errors.
    pub(crate) fn take(&self) -> Vec<SigError> {
        if !self.any.swap(false, Ordering::Relaxed) {
            return Vec::new();
        }
        core::mem::take(&mut *self.list.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether there are errors.
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }
}

/// The signature of a key.
#[derive(Clone, Debug)]
pub(super) struct Signature {
    enabled: bool,
    format: Option<Arc<Format>>,
    report: Arc<Report>,
}

/// Where the errors of a key go to.
#[derive(Debug)]
struct Report {
    /// Whether the next error is reported. Only the first one is, until the key is updated.
    armed: AtomicBool,
    errors: Arc<SigErrors>,
    /// The signature on the wire of which not all bytes have arrived: its block, its bytes, and a bit for each of them.
    partial: Mutex<Option<(u64, [u8; 8], u8)>>,
}

impl Signature {
    pub(super) fn new(errors: &Arc<SigErrors>) -> Self {
        let report =
            Report { armed: AtomicBool::new(false), errors: Arc::clone(errors), partial: Mutex::default() };
        Self { enabled: false, format: None, report: Arc::new(report) }
    }

    /// The next error is reported again.
    pub(super) fn arm(&self) {
        self.report.armed.store(true, Ordering::Relaxed);
    }

    pub(super) fn enable(&mut self, on: bool) {
        self.enabled = on;
    }

    /// Stores the format in a `struct mlx5_bsf`; both values that it names must be of the domain.
    pub(super) fn store(&mut self, bsf: &[u8; 64], psvs: &Psvs, pd: u32) -> Result<(), Denied> {
        self.format = Some(Arc::new(Format::parse(bsf, |index| psvs.has(index, pd))?));
        *self.report.partial.lock().unwrap_or_else(PoisonError::into_inner) = None;
        Ok(())
    }

    /// The format, if it is in use.
    pub(super) fn in_use(&self) -> Option<(Arc<Format>, Reporter)> {
        let format = self.format.as_ref().filter(|_| self.enabled)?;
        Some((Arc::clone(format), Reporter(Arc::clone(&self.report))))
    }
}

/// The report of a key.
#[derive(Debug)]
pub(super) struct Reporter(Arc<Report>);

/// The values that signatures begin with, by number, with their protection domain (`CREATE_PSV`).
#[derive(Debug, Default)]
pub struct Psvs {
    map: Map<u32, (u32, u64)>,
    next: u32,
}

/// The values of a device.
const MAX_PSVS: usize = 1 << 18;

impl Psvs {
    /// Adds a value; `None` if there are too many.
    pub fn add(&mut self, pd: u32) -> Option<u32> {
        if self.map.len() >= MAX_PSVS {
            return None;
        }
        loop {
            self.next = (self.next + 1) & 0xff_ffff;
            if self.next != 0 && !self.map.contains_key(&self.next) {
                self.map.insert(self.next, (pd, 0));
                return Some(self.next);
            }
        }
    }

    /// Removes a value; `false` if there is none with this number.
    pub fn remove(&mut self, index: u32) -> bool {
        self.map.remove(&index).is_some()
    }

    /// Whether a value of a domain has this number.
    pub(super) fn has(&self, index: u32, pd: u32) -> bool {
        self.map.get(&index).is_some_and(|psv| psv.0 == pd)
    }

    /// Sets a value of a domain.
    pub(crate) fn set(&mut self, pd: u32, index: u32, value: u64) -> Result<(), Denied> {
        let psv = self.map.get_mut(&index).filter(|psv| psv.0 == pd).ok_or(Denied)?;
        psv.1 = value;
        Ok(())
    }
}

/// The blocks of both domains.
#[derive(Debug)]
pub(super) struct Format {
    memory: Option<Blocks>,
    wire: Option<Blocks>,
    /// The bytes of the signature to check, and those to copy.
    check: u8,
    copy: u8,
}

/// Blocks with a signature each.
#[derive(Clone, Copy, Debug)]
struct Blocks {
    /// Bytes of data.
    data: u64,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Crc32 { seed: u32 },
    Crc32c { seed: u32 },
    Crc64 { seed: u64 },
    Dif(Dif),
}

#[derive(Clone, Copy, Debug)]
struct Dif {
    is_crc: bool,
    seed: u16,
    app: u16,
    reference: u32,
    /// Whether the reference tag increases with each block.
    counts: bool,
    escape: Escape,
    /// The bits of the application tag to check.
    app_mask: u16,
}

/// The blocks that are not checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Escape {
    None,
    App,
    AppAndRef,
}

/// `MLX5_BFS_*`, `MLX5_BSF_*` of libmlx5.
mod field {
    pub(super) const SAME: u8 = 1 << 4;
    pub(super) const CRC32: u8 = 0x20;
    pub(super) const CRC32C: u8 = 0x40;
    pub(super) const CRC64_XP10: u8 = 0x50;
    pub(super) const CRC_SEED_IS_0: u8 = 1;
    pub(super) const INLINE_VALID: u16 = 1 << 15;
    pub(super) const SEED: u8 = 1 << 3;
    pub(super) const INC_REFTAG: u8 = 1 << 6;
    pub(super) const APP_ESCAPE: u8 = 1;
    pub(super) const APP_REF_ESCAPE: u8 = 2;
    pub(super) const DIF_CRC: u8 = 1;
    pub(super) const DIF_IPCS: u8 = 2;
}

/// The bytes of a block by its selector.
fn block_size(selector: u8) -> Option<u64> {
    Some(match selector {
        1 => 512,
        2 => 520,
        3 => 4096,
        4 => 4160,
        6 => 4048,
        _ => return None,
    })
}

impl Format {
    /// Parses a `struct mlx5_bsf`. `exists` tells whether there is a value of this number.
    fn parse(bsf: &[u8; 64], exists: impl Fn(u32) -> bool) -> Result<Self, Denied> {
        let same = bsf[0] & field::SAME != 0;
        let blocks = |selector: u8, word: usize, inline: usize| {
            if selector == 0 {
                return Ok(None);
            }
            let data = block_size(selector).ok_or(Denied)?;
            let (bfs, psv) = (bsf[word], be32(bsf, word) & 0xff_ffff);
            if !exists(psv) {
                return Err(Denied);
            }
            let ones = bfs & field::CRC_SEED_IS_0 == 0;
            let seed = if ones { u32::MAX } else { 0 };
            let kind = match bfs & 0xf0 {
                0 => Kind::Dif(Dif::parse(bsf.get(inline..inline + 16).ok_or(Denied)?)?),
                field::CRC32 => Kind::Crc32 { seed },
                field::CRC32C => Kind::Crc32c { seed },
                field::CRC64_XP10 => Kind::Crc64 { seed: if ones { u64::MAX } else { 0 } },
                _ => return Err(Denied),
            };
            Ok(Some(Blocks { data, kind }))
        };
        let memory = blocks(bsf[3], 12, 48)?;
        // With the same blocks in both domains, the field of the size has the mask of the bytes to copy.
        let wire = blocks(if same { bsf[3] } else { bsf[2] }, 8, 32)?;
        Ok(Self { memory, wire, check: bsf[1], copy: if same { bsf[2] } else { 0 } })
    }

    /// Whether signatures in memory are partly those on the wire.
    fn copies(&self) -> bool {
        self.copy != 0
    }

    /// The bytes on the wire of so many bytes in memory.
    pub(super) fn on_wire(&self, len: u64) -> u64 {
        let data = self.memory.map_or(len, |blocks| blocks.data_in(len));
        self.wire.map_or(data, |blocks| blocks.with(data))
    }
}

impl Dif {
    /// Parses a `struct mlx5_bsf_inl`.
    fn parse(inline: &[u8]) -> Result<Self, Denied> {
        let flags = inline[13];
        if be16(inline, 0) & field::INLINE_VALID == 0 {
            return Err(Denied);
        }
        Ok(Self {
            is_crc: match inline[8] {
                field::DIF_CRC => true,
                field::DIF_IPCS => false,
                _ => return Err(Denied),
            },
            seed: if inline[9] & field::SEED == 0 { 0 } else { 0xffff },
            app: be16(inline, 2),
            reference: be32(inline, 4),
            counts: flags & field::INC_REFTAG != 0,
            escape: match () {
                () if flags & field::APP_REF_ESCAPE != 0 => Escape::AppAndRef,
                () if flags & field::APP_ESCAPE != 0 => Escape::App,
                () => Escape::None,
            },
            app_mask: be16(inline, 14),
        })
    }
}

impl Blocks {
    /// Bytes of a signature.
    const fn size(self) -> u64 {
        match self.kind {
            Kind::Crc32 { .. } | Kind::Crc32c { .. } => 4,
            Kind::Crc64 { .. } | Kind::Dif(_) => 8,
        }
    }

    /// Bytes of a block with its signature.
    const fn unit(self) -> u64 {
        self.data + self.size()
    }

    /// The bytes of data in so many bytes.
    fn data_in(self, len: u64) -> u64 {
        len / self.unit() * self.data + (len % self.unit()).min(self.data)
    }

    /// The bytes that so many bytes of data are with signatures; a block at the end that is not whole has none.
    const fn with(self, data: u64) -> u64 {
        data / self.data * self.unit() + data % self.data
    }

    /// The signature of a block of data: a number in the upper bytes, as in `struct mlx5_sigerr_cqe`.
    fn value(self, block: u64, data: &[u8]) -> u64 {
        match self.kind {
            Kind::Crc32 { seed } => reflected(&CRC32, seed.into(), data) << 32 ^ 0xffff_ffff << 32,
            Kind::Crc32c { seed } => reflected(&CRC32C, seed.into(), data) << 32 ^ 0xffff_ffff << 32,
            Kind::Crc64 { seed } => !reflected(&CRC64, seed, data),
            Kind::Dif(dif) => {
                let guard = if dif.is_crc { t10_crc(dif.seed, data) } else { checksum(dif.seed, data) };
                let counted = if dif.counts { block as u32 } else { 0 };
                u64::from(guard) << 48
                    | u64::from(dif.app) << 32
                    | u64::from(dif.reference.wrapping_add(counted))
            }
        }
    }

    fn encode(self, value: u64) -> [u8; 8] {
        match self.kind {
            Kind::Crc32 { .. } | Kind::Crc32c { .. } => (value >> 32).to_le_bytes(),
            Kind::Crc64 { .. } => value.to_le_bytes(),
            Kind::Dif(_) => value.to_be_bytes(),
        }
    }

    fn decode(self, bytes: [u8; 8]) -> u64 {
        match self.kind {
            Kind::Crc32 { .. } | Kind::Crc32c { .. } => u64::from_le_bytes(bytes) << 32,
            Kind::Crc64 { .. } => u64::from_le_bytes(bytes),
            Kind::Dif(_) => u64::from_be_bytes(bytes),
        }
    }

    /// The error of a block with the value `found`, whose data has the value `actual`: the first one in the order of the
    /// T10-DIF specification, guard, application tag, reference tag.
    fn compare(self, found: u64, actual: u64, check: u8) -> Option<u16> {
        let mut differs = found ^ actual;
        let Kind::Dif(dif) = self.kind else {
            return (differs & bytes_of(check) != 0).then_some(BAD_GUARD);
        };
        let escaped = match dif.escape {
            Escape::None => false,
            Escape::App => found >> 32 & 0xffff == 0xffff,
            Escape::AppAndRef => found & 0xffff_ffff_ffff == 0xffff_ffff_ffff,
        };
        if escaped {
            return None;
        }
        differs &= u64::from(dif.app_mask) << 32 | !(0xffff << 32);
        let kinds = [(GUARD, BAD_GUARD), (APPTAG, BAD_APPTAG), (REFTAG, BAD_REFTAG)];
        let bad = |(bytes, _): &(u8, u16)| differs & bytes_of(check & bytes) != 0;
        kinds.into_iter().find(bad).map(|(_, kind)| kind)
    }
}

/// The bytes of a number by a mask with a bit for each, the most significant one first.
fn bytes_of(mask: u8) -> u64 {
    (0..8).filter(|byte| mask >> byte & 1 != 0).fold(0, |bits, byte| bits | 0xff << (byte * 8))
}

/// The memory of a key with a signature, by positions on the wire.
#[derive(Debug)]
pub(super) struct Signed {
    format: Arc<Format>,
    report: Reporter,
    key: u32,
    memory: OwnTarget,
    /// Bytes in memory.
    len: u64,
}

impl Signed {
    pub(super) fn new(format: Arc<Format>, report: Reporter, key: u32, memory: OwnTarget, len: u64) -> Self {
        Self { format, report, key, memory, len }
    }

    fn load(&self, at: u64, to: &mut [u8]) -> Result<(), Fault> {
        match &self.memory {
            Some((memory, base)) => memory.read(base.checked_add(at).ok_or(Fault)?, to),
            None => {
                to.fill(0);
                Ok(())
            }
        }
    }

    fn store(&self, at: u64, from: &[u8]) -> Result<(), Fault> {
        match &self.memory {
            Some((memory, base)) => memory.write(base.checked_add(at).ok_or(Fault)?, from),
            None => Ok(()),
        }
    }

    /// Calls `f` with the parts of `len` bytes of data at `at` that are together in memory: their place, and their range.
    fn places(
        &self,
        at: u64,
        len: u64,
        mut f: impl FnMut(u64, core::ops::Range<usize>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let Some(blocks) = self.format.memory else { return f(at, 0..len as usize) };
        let mut done = 0;
        while done < len {
            let data = at + done;
            let n = (blocks.data - data % blocks.data).min(len - done);
            f(blocks.with(data), done as usize..(done + n) as usize)?;
            done += n;
        }
        Ok(())
    }

    fn load_data(&self, at: u64, to: &mut [u8]) -> Result<(), Fault> {
        self.places(at, to.len() as u64, |place, range| self.load(place, to.get_mut(range).ok_or(Fault)?))
    }

    fn store_data(&self, at: u64, from: &[u8]) -> Result<(), Fault> {
        self.places(at, from.len() as u64, |place, range| self.store(place, from.get(range).ok_or(Fault)?))
    }

    /// The signature that the data of a block has.
    fn computed(&self, blocks: Blocks, block: u64) -> Result<u64, Fault> {
        let mut data = vec![0; blocks.data as usize];
        self.load_data(block * blocks.data, &mut data)?;
        Ok(blocks.value(block, &data))
    }

    /// The signature of a block in memory; `None` if the memory ends before.
    fn in_memory(&self, blocks: Blocks, block: u64) -> Result<Option<u64>, Fault> {
        let at = block * blocks.unit() + blocks.data;
        if at + blocks.size() > self.len {
            return Ok(None);
        }
        let mut bytes = [0; 8];
        self.load(at, &mut bytes[..blocks.size() as usize])?;
        Ok(Some(blocks.decode(bytes)))
    }

    /// Checks the signature of a block.
    fn check(&self, side: Side, blocks: Blocks, block: u64, found: u64) -> Result<(), Fault> {
        let actual = self.computed(blocks, block)?;
        let Some(syndrome) = blocks.compare(found, actual, self.format.check) else { return Ok(()) };
        let Report { armed, errors, .. } = &*self.report.0;
        if armed.swap(false, Ordering::Relaxed) {
            errors.push(SigError {
                key: self.key,
                syndrome,
                domain: side as u8,
                expected: found,
                actual,
                offset: block * blocks.unit() + blocks.data,
            });
        }
        Ok(())
    }

    /// The blocks in memory whose last byte of data is in this range.
    fn ending(&self, blocks: Blocks, at: u64, len: u64) -> core::ops::Range<u64> {
        at / blocks.data..(at + len) / blocks.data
    }

    /// Checks the signatures in memory of data that was read.
    fn check_memory(&self, at: u64, len: u64) -> Result<(), Fault> {
        let Some(blocks) = self.format.memory else { return Ok(()) };
        for block in self.ending(blocks, at, len) {
            if let Some(found) = self.in_memory(blocks, block)? {
                self.check(Side::Memory, blocks, block, found)?;
            }
        }
        Ok(())
    }

    /// Writes the signature in memory of a block, with bytes of that on the wire.
    fn generate(&self, blocks: Blocks, block: u64, wire: u64) -> Result<(), Fault> {
        let at = block * blocks.unit() + blocks.data;
        if at + blocks.size() > self.len {
            return Ok(());
        }
        let copied = bytes_of(self.format.copy);
        let value = self.computed(blocks, block)? & !copied | wire & copied;
        self.store(at, &blocks.encode(value)[..blocks.size() as usize])
    }

    /// Writes the signatures in memory of data that was written, unless those on the wire, which follow, are needed.
    fn generate_all(&self, at: u64, len: u64) -> Result<(), Fault> {
        let Some(blocks) = self.format.memory.filter(|_| !self.format.copies()) else { return Ok(()) };
        self.ending(blocks, at, len).try_for_each(|block| self.generate(blocks, block, 0))
    }

    /// Calls `f` with the parts of `len` bytes on the wire, of data or of signatures.
    fn parts(
        &self,
        offset: u64,
        len: usize,
        mut f: impl FnMut(Part, core::ops::Range<usize>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let Some(blocks) = self.format.wire else { return f(Part::Data(offset), 0..len) };
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let (block, within) = (at / blocks.unit(), at % blocks.unit());
            let (part, n) = match within.checked_sub(blocks.data) {
                None => (Part::Data(block * blocks.data + within), blocks.data - within),
                Some(byte) => (Part::Signature(blocks, block, byte), blocks.unit() - within),
            };
            let n = usize::try_from(n).map_err(|_| Fault)?.min(len - done);
            f(part, done..done + n)?;
            done += n;
        }
        Ok(())
    }

    /// Stores bytes of a signature on the wire; returns it if it is complete.
    fn arrive(&self, blocks: Blocks, block: u64, byte: u64, from: &[u8]) -> Option<u64> {
        let whole = u8::MAX >> (8 - blocks.size());
        let mut partial = self.report.0.partial.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, mut bytes, mut seen) =
            partial.filter(|partial| partial.0 == block).unwrap_or((block, [0; 8], 0));
        for (i, from) in (byte as usize..).zip(from) {
            bytes[i & 7] = *from;
            seen |= 1 << (i & 7);
        }
        *partial = (seen != whole).then_some((block, bytes, seen));
        (seen == whole).then(|| blocks.decode(bytes))
    }
}

/// A part of the data on the wire.
enum Part {
    /// Data, from this byte on.
    Data(u64),
    /// The signature of a block, from this byte on.
    Signature(Blocks, u64, u64),
}

impl Memory for Signed {
    fn len(&self) -> u64 {
        self.format.on_wire(self.len)
    }

    fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), Fault> {
        self.parts(offset, to.len(), |part, range| {
            let to = to.get_mut(range).ok_or(Fault)?;
            match part {
                Part::Data(at) => {
                    self.load_data(at, to)?;
                    self.check_memory(at, to.len() as u64)
                }
                Part::Signature(blocks, block, byte) => {
                    let mut value = self.computed(blocks, block)?;
                    let copied = bytes_of(self.format.copy);
                    if copied != 0
                        && let Some(memory) = self.format.memory
                        && let Some(found) = self.in_memory(memory, block)?
                    {
                        value = value & !copied | found & copied;
                    }
                    let bytes = blocks.encode(value);
                    let from = bytes.get(byte as usize..).and_then(|bytes| bytes.get(..to.len()));
                    to.copy_from_slice(from.ok_or(Fault)?);
                    Ok(())
                }
            }
        })
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), Fault> {
        self.parts(offset, from.len(), |part, range| {
            let from = from.get(range).ok_or(Fault)?;
            match part {
                Part::Data(at) => {
                    self.store_data(at, from)?;
                    self.generate_all(at, from.len() as u64)
                }
                Part::Signature(blocks, block, byte) => {
                    let Some(found) = self.arrive(blocks, block, byte, from) else { return Ok(()) };
                    self.check(Side::Wire, blocks, block, found)?;
                    match self.format.memory {
                        Some(memory) if self.format.copies() => self.generate(memory, block, found),
                        _ => Ok(()),
                    }
                }
            }
        })
    }

    /// Signatures are computed when their blocks are complete, in the order of the packets.
    fn is_at_once(&self) -> bool {
        true
    }

    /// An atomic on data with a signature would leave a wrong one.
    fn update(&self, _: u64, _: &dyn Fn(u64) -> u64) -> Result<u64, Fault> {
        Err(Fault)
    }

    fn load_be32(&self, _: u64) -> Result<u32, Fault> {
        Err(Fault)
    }

    fn publish(&self, _: u64, _: [u8; 8]) -> Result<(), Fault> {
        Err(Fault)
    }
}

/// The table of a CRC whose polynomial has its lowest power in the highest bit.
const fn table(polynomial: u64) -> [u64; 256] {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let (mut value, mut bit) = (i as u64, 0);
        while bit < 8 {
            value = value >> 1 ^ if value & 1 == 0 { 0 } else { polynomial };
            bit += 1;
        }
        table[i] = value;
        i += 1;
    }
    table
}

static CRC32: [u64; 256] = table(0xedb8_8320);
static CRC32C: [u64; 256] = table(0x82f6_3b78);
static CRC64: [u64; 256] = table(0x9a6c_9329_ac4b_c9b5);

fn reflected(table: &[u64; 256], seed: u64, data: &[u8]) -> u64 {
    data.iter().fold(seed, |crc, byte| crc >> 8 ^ table[usize::from(crc as u8 ^ byte)])
}

/// The CRC of T10-DIF.
fn t10_crc(seed: u16, data: &[u8]) -> u16 {
    static TABLE: [u16; 256] = {
        let mut table = [0; 256];
        let mut i = 0;
        while i < 256 {
            let (mut value, mut bit) = ((i as u16) << 8, 0);
            while bit < 8 {
                value = value << 1 ^ if value & 0x8000 == 0 { 0 } else { 0x8bb7 };
                bit += 1;
            }
            table[i] = value;
            i += 1;
        }
        table
    };
    data.iter().fold(seed, |crc, byte| crc << 8 ^ TABLE[usize::from((crc >> 8) as u8 ^ byte)])
}

/// The checksum of the internet protocol.
fn checksum(seed: u16, data: &[u8]) -> u16 {
    let words =
        data.chunks(2).map(|word| u64::from(word[0]) << 8 | u64::from(word.get(1).copied().unwrap_or(0)));
    let mut sum = u64::from(seed) + words.sum::<u64>();
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHECK: &[u8] = b"123456789";

    #[test]
    fn signatures_have_the_check_values_of_their_algorithms() {
        // Of the catalogue of parametrised CRC algorithms: CRC-32/ISO-HDLC, CRC-32/ISCSI, CRC-64/NVME, CRC-16/T10-DIF.
        assert_eq!(reflected(&CRC32, 0xffff_ffff, CHECK) ^ 0xffff_ffff, 0xcbf4_3926);
        assert_eq!(reflected(&CRC32C, 0xffff_ffff, CHECK) ^ 0xffff_ffff, 0xe306_9283);
        assert_eq!(!reflected(&CRC64, u64::MAX, CHECK), 0xae8b_1486_0a79_9888);
        assert_eq!(t10_crc(0, CHECK), 0xd0db);
        // RFC 1071, section 3: the sum of these words is 0xddf2.
        assert_eq!(checksum(0, &[0, 1, 0xf2, 3, 0xf4, 0xf5, 0xf6, 0xf7]), !0xddf2);
    }

    #[test]
    fn lengths_with_and_without_signatures() {
        let blocks = |data, kind| Blocks { data, kind };
        let crc = blocks(512, Kind::Crc32 { seed: 0 });
        assert_eq!([0, 511, 512, 516, 517, 1032].map(|len| crc.data_in(len)), [0, 511, 512, 512, 513, 1024]);
        assert_eq!([0, 511, 512, 513, 1024].map(|len| crc.with(len)), [0, 511, 516, 517, 1032]);
        let format = Format {
            memory: Some(crc),
            wire: Some(blocks(4096, Kind::Crc64 { seed: 0 })),
            check: 0,
            copy: 0,
        };
        assert_eq!(format.on_wire(8 * 516), 4096 + 8);
        assert_eq!(format.on_wire(8 * 516 - 4), 4096 + 8);
    }

    #[test]
    fn the_first_kind_of_error_in_the_order_of_the_specification_is_reported() {
        let dif = Dif {
            is_crc: true,
            seed: 0,
            app: 1,
            reference: 5,
            counts: true,
            escape: Escape::AppAndRef,
            app_mask: 0xff0f,
        };
        let blocks = Blocks { data: 512, kind: Kind::Dif(dif) };
        let good = blocks.value(2, &[7; 512]);
        assert_eq!(good & 0xffff_ffff_ffff, 1 << 32 | 7);
        for (wrong, check, found) in [
            (0, 0xff, None),
            (1 << 63 | 1 << 32 | 1, 0xff, Some(BAD_GUARD)),
            (1 << 63 | 1 << 32 | 1, 0x3f, Some(BAD_APPTAG)),
            (1 << 63 | 1 << 32 | 1, 0x0f, Some(BAD_REFTAG)),
            (1 << 36, 0xff, None),
            (1 << 31, 0x08, Some(BAD_REFTAG)),
            (1 << 31, 0x07, None),
        ] {
            assert_eq!(blocks.compare(good ^ wrong, good, check), found, "{wrong:#x} {check:#x}");
        }
        assert_eq!(blocks.compare(0xffff_ffff_ffff, good, 0xff), None);
        assert_eq!(blocks.compare(0xffff << 32, good, 0xff), Some(BAD_GUARD));
        assert_eq!(blocks.decode(blocks.encode(good)), good);
    }
}
