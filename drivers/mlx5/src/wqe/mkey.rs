// SPDX-License-Identifier: MIT OR Apache-2.0
//! Work requests that configure indirect keys (mlx5dv_wr_mkey_configure(3), mlx5dv_wr_set_mkey_sig_block(3)): a UMR WQE with the
//! fields of the key that change, the list of its parts and its signature, and one WQE for each value that a signature
//! begins with. PRM 8.9.4.7 and 8.9.4.8; the formats of signatures are those of libmlx5's `wqe.h`.

use crate::shared::mkey::{MkeyShared, Signature};
use uverbs_core::attr::AccessFlags;
use uverbs_core::provider::PostError;
pub use uverbs_core::provider::mkey::{MkeyLayout, MkeyPart};
use uverbs_core::provider::wire::MAX_SGE_LENGTH;
use uverbs_mlx5_hw::wqe::*;
use uverbs_mlx5_hw::{Be16, Be32, Be64};
use zerocopy::transmute;

/// What a work request changes of an indirect key.
#[derive(Clone, Copy, Debug, Default)]
pub struct MkeyConfig<'a> {
    /// New rights: local write, and remote access.
    pub access: Option<AccessFlags>,
    /// New memory.
    pub layout: Option<MkeyLayout<'a>>,
    /// New signature. Without one, that of the key stays.
    pub signature: Option<SignatureBlock>,
    /// The key has no signature any more, except a new one.
    pub reset_signature: bool,
    /// New low 8 bits of the key; without them, those of the creation.
    pub tag: Option<u8>,
}

/// The signatures of blocks of data, in memory and on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SignatureBlock {
    /// The blocks in memory; `None` if they have no signature.
    pub memory: Option<SignatureDomain>,
    /// The blocks on the wire.
    pub wire: Option<SignatureDomain>,
    /// The bytes of an arriving signature to check, as in mlx5dv_wr_set_mkey_sig_block(3).
    pub check_mask: u8,
    /// The bytes that are copied from one domain to the other, instead of those that are equal in both.
    pub copy_mask: Option<u8>,
}

/// Blocks with a signature each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignatureDomain {
    /// The signature.
    pub kind: SignatureKind,
    /// Bytes of data in a block.
    pub block: BlockSize,
}

/// A signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignatureKind {
    /// Guard, application tag and reference tag.
    T10Dif(T10Dif),
    /// A CRC.
    Crc(CrcKind, Seed),
}

/// A CRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrcKind {
    /// 32 bits, of Fibre Channel and Ethernet.
    Crc32,
    /// 32 bits, of iSCSI.
    Crc32c,
    /// 64 bits, of XP10.
    Crc64Xp10,
}

/// What the computation of a block begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seed {
    /// All bits are 0.
    Zeros,
    /// All bits are 1.
    Ones,
}

/// A T10-DIF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct T10Dif {
    /// The kind of guard.
    pub guard: Guard,
    /// What the guard begins with.
    pub seed: Seed,
    /// Application tag.
    pub app_tag: u16,
    /// Reference tag of the first block.
    pub ref_tag: u32,
    /// The reference tag increases with each block.
    pub increments: bool,
    /// The blocks that are not checked.
    pub escape: T10Escape,
}

/// The guard of a T10-DIF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// CRC of 16 bits.
    Crc,
    /// Checksum of the internet protocol.
    Checksum,
}

/// Blocks with a T10-DIF that are not checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum T10Escape {
    /// All are checked.
    Never,
    /// Those with application tag 0xffff.
    AppTag,
    /// Those with application tag 0xffff and reference tag 0xffff_ffff.
    AppAndRefTag,
}

/// Bytes of data in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockSize {
    /// 512
    B512,
    /// 520
    B520,
    /// 4,048
    B4048,
    /// 4,096
    B4096,
    /// 4,160
    B4160,
}

/// Bytes of the masks: those of the tags of a T10-DIF, of a CRC of 32 and of 64 bits (`enum mlx5dv_sig_mask`).
const GUARD: u8 = 0xc0;
const APP_TAG: u8 = 0x30;
const REF_TAG: u8 = 0x0f;
const CRC_32: u8 = 0xf0;
const CRC_64: u8 = 0xff;

impl BlockSize {
    /// `bs_selector`
    const fn selector(self) -> u8 {
        match self {
            Self::B512 => 1,
            Self::B520 => 2,
            Self::B4048 => 6,
            Self::B4096 => 3,
            Self::B4160 => 4,
        }
    }
}

impl SignatureDomain {
    /// The value that its first block begins with.
    fn transient(&self) -> u64 {
        match self.kind {
            SignatureKind::Crc(_, Seed::Zeros) => 0,
            SignatureKind::Crc(CrcKind::Crc64Xp10, Seed::Ones) => u64::MAX,
            SignatureKind::Crc(_, Seed::Ones) => 0xffff_ffff << 32,
            SignatureKind::T10Dif(dif) => {
                let guard: u64 = if dif.seed == Seed::Ones { 0xffff << 48 } else { 0 };
                guard | u64::from(dif.app_tag) << 32 | u64::from(dif.ref_tag)
            }
        }
    }

    /// `MLX5_BFS_*`: the kind of a CRC, which is repeated (2), with a seed of 0 (1).
    fn format(&self) -> u32 {
        let SignatureKind::Crc(kind, seed) = self.kind else { return 0 };
        let base = match kind {
            CrcKind::Crc32 => 0x20,
            CrcKind::Crc32c => 0x40,
            CrcKind::Crc64Xp10 => 0x50,
        };
        (base | 2 | u32::from(seed == Seed::Zeros)) << 24
    }

    fn inline(&self) -> BsfInline {
        let SignatureKind::T10Dif(dif) = self.kind else { return BsfInline::default() };
        let escape = match dif.escape {
            T10Escape::Never => 0,
            T10Escape::AppTag => 1,
            T10Escape::AppAndRefTag => 2,
        };
        BsfInline {
            vld_refresh: Be16::new(0xc000),
            dif_apptag: Be16::new(dif.app_tag),
            dif_reftag: Be32::new(dif.ref_tag),
            sig_type: if dif.guard == Guard::Crc { 1 } else { 2 },
            rp_inv_seed: 1 << 7 | if dif.seed == Seed::Ones { 1 << 3 } else { 0 },
            dif_inc_ref_guard_check: if dif.increments { 1 << 6 } else { 0 } | escape,
            dif_app_bitmask_check: Be16::new(0xffff),
            ..Default::default()
        }
    }

    /// The bytes that are copied from or to `other`, if both have the same structure.
    fn same(&self, other: &Self) -> Option<u8> {
        if self.block != other.block {
            return None;
        }
        match (self.kind, other.kind) {
            (SignatureKind::Crc(kind, _), SignatureKind::Crc(other, _)) if kind == other => {
                Some(if kind == CrcKind::Crc64Xp10 { CRC_64 } else { CRC_32 })
            }
            (SignatureKind::T10Dif(a), SignatureKind::T10Dif(b)) => {
                let guard = if (a.guard, a.seed) == (b.guard, b.seed) { GUARD } else { 0 };
                let app = if a.app_tag == b.app_tag { APP_TAG } else { 0 };
                let reference = if a.ref_tag == b.ref_tag { REF_TAG } else { 0 };
                Some(guard | app | reference)
            }
            _ => None,
        }
    }
}

impl SignatureBlock {
    fn encode(&self, psvs: [u32; 2]) -> Result<BsfSeg, PostError> {
        // A format with inline parts.
        let mut bsf = BsfSeg {
            bsf_size_sbs: 2 << 6,
            check_byte_mask: self.check_mask,
            raw_data_size: Be32::new(u32::MAX),
            ..Default::default()
        };
        let numbers = psvs.map(|psv| psv & 0xff_ffff);
        if let Some(memory) = &self.memory {
            bsf.m_bfs_psv = Be32::new(memory.format() | numbers[0]);
            (bsf.mem_bs_selector, bsf.m_inl) = (memory.block.selector(), memory.inline());
        }
        let Some(wire) = &self.wire else {
            return if self.copy_mask.is_some() { Err(PostError::InvalidArgument) } else { Ok(bsf) };
        };
        (bsf.w_bfs_psv, bsf.w_inl) = (Be32::new(wire.format() | numbers[1]), wire.inline());
        match (self.memory.and_then(|memory| memory.same(wire)), self.copy_mask) {
            (Some(equal), copied) => {
                bsf.bsf_size_sbs |= 1 << 4;
                bsf.wire = copied.unwrap_or(equal);
            }
            (None, Some(_)) => return Err(PostError::InvalidArgument),
            (None, None) => bsf.wire = wire.block.selector(),
        }
        Ok(bsf)
    }

    fn is_none(&self) -> bool {
        self.memory.is_none() && self.wire.is_none()
    }
}

/// The longest WQE has 63 units.
const MAX_UNITS: usize = 64;
/// Units before the list.
const HEAD_UNITS: usize = 8;

/// The WQEs of a work request.
#[derive(Debug)]
pub(crate) struct Encoded {
    /// Those of the UMR; the first one is the control segment, which is not written.
    pub(crate) units: [[u64; 2]; MAX_UNITS],
    pub(crate) ds: u32,
    /// The key with its new low 8 bits, which the control segment names, as in `set_reg_wr()` of the kernel.
    pub(crate) key: u32,
    /// The values to set behind it.
    pub(crate) psvs: [Option<SetPsvSeg>; 2],
    /// The signature of the key when this is posted.
    pub(crate) next: Option<Signature>,
}

impl Encoded {
    /// Encodes what `config` changes of a key; list and signature have room for `room` units. `now` is the key's signature.
    pub(crate) fn new(
        mkey: &MkeyShared,
        now: Option<&Signature>,
        config: &MkeyConfig<'_>,
        room: usize,
    ) -> Result<Self, PostError> {
        let units = [[0; 2]; MAX_UNITS];
        let new_key = config.tag.map_or(mkey.key, |tag| mkey.key & !0xff | u32::from(tag));
        let mut this =
            Self { units, ds: HEAD_UNITS as u32, key: new_key, psvs: [None; 2], next: now.copied() };
        let room = room.min(MAX_UNITS - 1 - HEAD_UNITS);
        let mut umr = UmrCtrlSeg { flags: MLX5_WQE_UMR_CTRL_FLAG_INLINE, ..Default::default() };
        // As in libmlx5, the key belongs to no QP.
        let qpn_mkey = Be32::new(0xffff_ff00 | new_key & 0xff);
        let mut key = MkeyContextSeg { qpn_mkey, ..Default::default() };
        let mut mask = MLX5_WQE_UMR_CTRL_MKEY_MASK_FREE | MLX5_WQE_UMR_CTRL_MKEY_MASK_MKEY;
        if let Some(access) = config.access {
            key.access_flags = rights(access)?;
            mask |= MLX5_WQE_UMR_CTRL_MKEY_MASK_ACCESS_LOCAL_WRITE
                | MLX5_WQE_UMR_CTRL_MKEY_MASK_ACCESS_REMOTE_READ
                | MLX5_WQE_UMR_CTRL_MKEY_MASK_ACCESS_REMOTE_WRITE
                | MLX5_WQE_UMR_CTRL_MKEY_MASK_ACCESS_ATOMIC;
        }
        if let Some(layout) = &config.layout {
            let most = room.min(mkey.entries as usize);
            let (entries, len) = this.put_layout(layout, most)?;
            let padded = entries.next_multiple_of(4);
            if padded > room {
                return Err(PostError::InlineTooLong);
            }
            this.ds += padded as u32;
            umr.klm_octowords = Be16::new(padded as u16);
            key.len = Be64::new(len);
            mask |= MLX5_WQE_UMR_CTRL_MKEY_MASK_LEN;
            this.next.iter_mut().for_each(|next| next.length = len);
        }
        if config.signature.is_some() && mkey.signature.is_none() {
            return Err(PostError::InvalidArgument);
        }
        if let (Some(mut next), Some((_, psvs))) = (this.next, &mkey.signature) {
            let mut flags = 0;
            if config.reset_signature {
                (next.block, next.enabled) = (SignatureBlock::default(), false);
            }
            let mut sets_values = false;
            if next.counts {
                mask |= MLX5_WQE_UMR_CTRL_MKEY_MASK_SIG_ERR;
                if next.errors & 1 != 0 {
                    flags |= MLX5_WQE_MKEY_CONTEXT_SIG_ERR_CNT;
                }
                // After an error the values are those of the block with the error.
                (next.counts, sets_values) = (false, next.enabled);
            }
            if let Some(block) = config.signature {
                if block.is_none() || next.length > u32::MAX.into() {
                    return Err(PostError::InvalidArgument);
                }
                let end = this.ds as usize;
                if end + 4 > HEAD_UNITS + room {
                    return Err(PostError::InlineTooLong);
                }
                let bsf: [[u64; 2]; 4] = transmute!(block.encode(*psvs)?);
                this.units[end..end + 4].copy_from_slice(&bsf);
                this.ds += 4;
                umr.translation_offset = Be16::new(4);
                (next.block, next.enabled, sets_values) = (block, true, true);
                mask |= MLX5_WQE_UMR_CTRL_MKEY_MASK_BSF_ENABLE;
                flags |= MLX5_WQE_MKEY_CONTEXT_FLAGS_BSF_ENABLE;
            } else if !next.enabled {
                // The bit in the key's fields is 0.
                mask |= MLX5_WQE_UMR_CTRL_MKEY_MASK_BSF_ENABLE;
            }
            key.flags_pd = Be32::new(flags);
            if sets_values {
                let value = |domain: Option<SignatureDomain>, psv: u32| {
                    domain.map(|domain| SetPsvSeg {
                        psv_index: Be32::new(psv),
                        transient_signature: Be64::new(domain.transient()),
                        ..Default::default()
                    })
                };
                this.psvs = [value(next.block.memory, psvs[0]), value(next.block.wire, psvs[1])];
            }
            this.next = Some(next);
        }
        umr.mkey_mask = Be64::new(mask);
        let umr: [[u64; 2]; 3] = transmute!(umr);
        let key: [[u64; 2]; 4] = transmute!(key);
        this.units[1..4].copy_from_slice(&umr);
        this.units[4..HEAD_UNITS].copy_from_slice(&key);
        Ok(this)
    }

    /// Writes a list of at most `most` entries; returns their number and the bytes of all parts.
    fn put_layout(&mut self, layout: &MkeyLayout<'_>, most: usize) -> Result<(usize, u64), PostError> {
        match *layout {
            MkeyLayout::List(parts) => {
                // A part without bytes would mean 2^31 bytes.
                let parts = || parts.iter().filter(|part| part.length != 0);
                let count = parts().count();
                if count > most {
                    return Err(PostError::InlineTooLong);
                }
                let mut len = 0;
                for (unit, part) in self.units[HEAD_UNITS..].iter_mut().zip(parts()) {
                    if part.length > MAX_SGE_LENGTH {
                        return Err(PostError::InvalidLength);
                    }
                    *unit = transmute!(KlmSeg {
                        byte_count: Be32::new(part.length),
                        mkey: Be32::new(part.lkey),
                        address: Be64::new(part.addr),
                    });
                    len += u64::from(part.length);
                }
                Ok((count, len))
            }
            MkeyLayout::Interleaved { repeat, parts } => {
                if parts.len() >= most {
                    return Err(PostError::InlineTooLong);
                }
                let mut len = 0_u32;
                for (unit, part) in self.units[HEAD_UNITS + 1..].iter_mut().zip(parts) {
                    let stride = part.bytes_count.checked_add(part.bytes_skip);
                    let stride = stride.and_then(|stride| u16::try_from(stride).ok());
                    let Some(stride) = stride else { return Err(PostError::InvalidLength) };
                    *unit = transmute!(UmrRepeatEntSeg {
                        stride: Be16::new(stride),
                        byte_count: Be16::new(part.bytes_count as u16),
                        memkey: Be32::new(part.lkey),
                        va: Be64::new(part.addr),
                    });
                    len += part.bytes_count;
                }
                self.units[HEAD_UNITS] = transmute!(UmrRepeatBlockSeg {
                    byte_count: Be32::new(len),
                    op: Be32::new(UMR_REPEAT_BLOCK),
                    repeat_count: Be32::new(repeat),
                    reserved: Be16::new(0),
                    num_ent: Be16::new(parts.len() as u16),
                });
                Ok((parts.len() + 1, u64::from(len) * u64::from(repeat)))
            }
        }
    }
}

/// The rights of a key.
fn rights(access: AccessFlags) -> Result<u8, PostError> {
    let pairs = [
        (AccessFlags::LOCAL_WRITE, MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_LOCAL_WRITE),
        (AccessFlags::REMOTE_READ, MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_REMOTE_READ),
        (AccessFlags::REMOTE_WRITE, MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_REMOTE_WRITE),
        (AccessFlags::REMOTE_ATOMIC, MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_ATOMIC),
    ];
    let known = pairs.iter().fold(AccessFlags::empty(), |all, (flag, _)| all | *flag);
    if !known.contains(access) {
        return Err(PostError::InvalidArgument);
    }
    Ok(pairs.iter().filter(|(flag, _)| access.contains(*flag)).fold(0, |bits, (_, bit)| bits | bit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use uverbs_core::wr::Sge as RawSge;
    use zerocopy::IntoBytes as _;

    fn bytes(encoded: &Encoded, from: usize, to: usize) -> Vec<u8> {
        encoded.units[from..to].iter().flat_map(|unit| unit.as_bytes().to_vec()).collect()
    }

    /// The bytes are those of libmlx5 (`umr_sg_list_create()`, `umr_strided_seg_create()`, `mlx5_umr_fill_sig_bsf()`).
    #[test]
    fn lists_and_blocks_are_encoded_in_the_format_of_the_device() {
        let mkey = MkeyShared::new(0x1234_5600, 8, None);
        let sges = [
            RawSge { addr: 0x1122, length: 0, lkey: 1 },
            RawSge { addr: 0x0102_0304_0506_0708, length: 0x40, lkey: 0xabcd },
        ];
        let config = MkeyConfig {
            access: Some(AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ),
            layout: Some(MkeyLayout::List(&sges)),
            ..MkeyConfig::default()
        };
        let encoded = Encoded::new(&mkey, None, &config, 4).unwrap();
        assert_eq!(encoded.ds, 12);
        // The empty part is left out, and the list is padded.
        assert_eq!(bytes(&encoded, 8, 9), [0, 0, 0, 0x40, 0, 0, 0xab, 0xcd, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(bytes(&encoded, 9, 12), [0; 48]);
        assert_eq!(bytes(&encoded, 1, 2), [0x80, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0x20, 0x3c, 0x20, 1]);
        assert_eq!(bytes(&encoded, 4, 5), [0, 0, 0x18, 0, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes(&encoded, 5, 6)[8..], 0x40_u64.to_be_bytes());
        // Another tag is one of the key in the control segment, too.
        let tagged = Encoded::new(&mkey, None, &MkeyConfig { tag: Some(7), ..config }, 4).unwrap();
        assert_eq!((encoded.key, tagged.key), (0x1234_5600, 0x1234_5607));
        assert_eq!(bytes(&tagged, 4, 5)[4..8], [0xff, 0xff, 0xff, 7]);

        let parts = [MkeyPart { addr: 9, bytes_count: 8, bytes_skip: 2, lkey: 7 }; 2];
        let layout = Some(MkeyLayout::Interleaved { repeat: 3, parts: &parts });
        let encoded = Encoded::new(&mkey, None, &MkeyConfig { layout, ..config }, 4).unwrap();
        assert_eq!(bytes(&encoded, 8, 9), [0, 0, 0, 16, 0, 0, 4, 0, 0, 0, 0, 3, 0, 0, 0, 2]);
        assert_eq!(bytes(&encoded, 10, 11), [0, 10, 0, 8, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 9]);
        assert_eq!(bytes(&encoded, 5, 6)[8..], 48_u64.to_be_bytes());
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let mkey = MkeyShared::new(0x100, 4, None);
        let sge = RawSge { addr: 0, length: 8, lkey: 1 };
        let list = |sges: &[RawSge], room| {
            let layout = Some(MkeyLayout::List(sges));
            Encoded::new(&mkey, None, &MkeyConfig { layout, ..MkeyConfig::default() }, room).map(|e| e.ds)
        };
        assert_eq!(list(&[sge; 4], 4), Ok(12));
        assert_eq!(list(&[sge; 5], 8), Err(PostError::InlineTooLong), "the key has room for four");
        assert_eq!(list(&[sge; 3], 3), Err(PostError::InlineTooLong), "padding takes room, too");
        let long = RawSge { length: MAX_SGE_LENGTH + 1, ..sge };
        assert_eq!(list(&[long], 4), Err(PostError::InvalidLength));
        let parts = [MkeyPart { bytes_count: 1, ..MkeyPart::default() }; 4];
        for (parts, error) in [
            (&parts[..], PostError::InlineTooLong),
            (&[MkeyPart { bytes_count: u32::MAX, bytes_skip: 2, ..parts[0] }][..], PostError::InvalidLength),
            (&[MkeyPart { bytes_count: 65_535, bytes_skip: 1, ..parts[0] }][..], PostError::InvalidLength),
        ] {
            let layout = Some(MkeyLayout::Interleaved { repeat: 1, parts });
            let config = MkeyConfig { layout, ..MkeyConfig::default() };
            assert_eq!(Encoded::new(&mkey, None, &config, 8).map(|e| e.ds), Err(error));
        }
        let signature = Some(SignatureBlock::default());
        let config = MkeyConfig { signature, ..MkeyConfig::default() };
        assert_eq!(Encoded::new(&mkey, None, &config, 8).map(|e| e.ds), Err(PostError::InvalidArgument));
    }

    #[test]
    fn signatures_have_their_format_and_their_values() {
        let mkey = MkeyShared::new(0x100, 4, Some([0x11, 0x22]));
        let now = *mkey.signature.as_ref().unwrap().0.lock().unwrap();
        let crc = |seed| SignatureDomain {
            kind: SignatureKind::Crc(CrcKind::Crc32c, seed),
            block: BlockSize::B4048,
        };
        let dif = SignatureDomain {
            kind: SignatureKind::T10Dif(T10Dif {
                guard: Guard::Checksum,
                seed: Seed::Ones,
                app_tag: 0xabcd,
                ref_tag: 0x0102_0304,
                increments: true,
                escape: T10Escape::AppAndRefTag,
            }),
            block: BlockSize::B512,
        };
        let encode = |now, block| {
            let config = MkeyConfig { signature: Some(block), ..MkeyConfig::default() };
            Encoded::new(&mkey, Some(now), &config, 4)
        };
        let block = SignatureBlock {
            memory: Some(crc(Seed::Zeros)),
            wire: Some(dif),
            check_mask: 0xff,
            copy_mask: None,
        };
        let encoded = encode(&now, block).unwrap();
        assert_eq!(
            bytes(&encoded, 8, 9),
            [0x80, 0xff, 1, 6, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0x22, 0x43, 0, 0, 0x11]
        );
        assert_eq!(
            bytes(&encoded, 10, 11),
            [0xc0, 0, 0xab, 0xcd, 1, 2, 3, 4, 2, 0x88, 0, 0, 0, 0x42, 0xff, 0xff]
        );
        assert_eq!(bytes(&encoded, 11, 12), [0; 16]);
        let values =
            encoded.psvs.map(|psv| psv.map(|psv| (psv.psv_index.get(), psv.transient_signature.get())));
        assert_eq!(values, [Some((0x11, 0)), Some((0x22, 0xffff_abcd_0102_0304))]);
        // The first work request tells the device the count of errors, and enables the signature.
        assert_eq!(bytes(&encoded, 1, 2)[6..], [0, 4, 0, 0, 0, 0, 0x20, 0, 0x32, 0]);
        assert_eq!(bytes(&encoded, 4, 5)[12..], [0x44, 0, 0, 0]);
        let next = encoded.next.unwrap();
        assert!(next.enabled && !next.counts);

        // Equal blocks: their CRCs are copied. A mask of the program needs equal blocks.
        let both = SignatureBlock { memory: Some(crc(Seed::Ones)), wire: Some(crc(Seed::Ones)), ..block };
        assert_eq!(bytes(&encode(&next, both).unwrap(), 8, 9)[..4], [0x90, 0xff, 0xf0, 6]);
        let masked = SignatureBlock { copy_mask: Some(0x30), ..both };
        assert_eq!(bytes(&encode(&next, masked).unwrap(), 8, 9)[..4], [0x90, 0xff, 0x30, 6]);
        let wrong = SignatureBlock { copy_mask: Some(0x30), ..block };
        assert_eq!(encode(&next, wrong).map(|e| e.ds), Err(PostError::InvalidArgument));

        // Without a new signature that of the key stays; after an error its values are set again.
        let plain = MkeyConfig::default();
        let encoded = Encoded::new(&mkey, Some(&next), &plain, 4).unwrap();
        assert_eq!((encoded.psvs, bytes(&encoded, 1, 2)[14]), ([None; 2], 0x20));
        let failed = Signature { counts: true, errors: 2, ..next };
        let encoded = Encoded::new(&mkey, Some(&failed), &plain, 4).unwrap();
        assert!(encoded.psvs.iter().all(Option::is_some));
        assert_eq!((bytes(&encoded, 1, 2)[14], bytes(&encoded, 4, 5)[12]), (0x22, 0));
        let reset = MkeyConfig { reset_signature: true, ..plain };
        let encoded = Encoded::new(&mkey, Some(&failed), &reset, 4).unwrap();
        assert_eq!((encoded.psvs, bytes(&encoded, 1, 2)[14]), ([None; 2], 0x32));
    }
}
