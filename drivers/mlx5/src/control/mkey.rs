// SPDX-License-Identifier: MIT OR Apache-2.0
//! Indirect keys (mlx5dv_create_mkey(3), mlx5dv_mkey_check(3)): created by commands for the firmware, configured by work requests
//! ([`SendQueue::wr_mkey_configure`](crate::SendQueue::wr_mkey_configure)).
#![expect(unsafe_code)]
// UNSAFETY: commands may name memory. Those of this module name none. Passes the contract of a work request on to the queue.

use super::Mlx5;
use super::devx::DevxObject;
use super::firmware::{Mailbox, op, refused};
use crate::SendQueue;
use crate::shared::mkey::{MkeyConfig, MkeyShared, MkeyTable, RawError, SignatureKind};
use std::sync::Arc;
use uverbs_core::Errno;
use uverbs_core::control::{PdHandle, QpHandle};
use uverbs_core::error::{Error, Result};
use uverbs_core::provider::{Head, MkeyMemory, MkeyObject};

/// Bytes of the command that creates a key, and of the commands for the value of a signature.
const CREATE_MKEY: usize = 0x110;
const PSV: usize = 16;
const PSV_ANSWER: usize = 32;
/// The position of a key's context in its command, in bits.
const MKC: usize = 0x80;
/// Units of 16 bytes of a signature.
const BSF_UNITS: u32 = 4;
/// Positions of capabilities: `sho`, `sigerr_domain_and_sig_type`.
const SHO: usize = 0x217;
const SIGERR: usize = 0x480;
/// Others, about signatures: `sig_block_4048`, `sig_crc32c`, `sig_crc64_xp10`.
const BLOCK_4048: usize = 0x1f0;
const CRC32C: usize = 0x148;
const CRC64_XP10: usize = 0x147;

const CREATE: &str = "create_mkey";

/// The properties of a new indirect key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MkeyOptions {
    /// The parts of the list that it must have room for.
    pub max_entries: u16,
    /// It may have a signature.
    pub signature: bool,
    /// A peer may invalidate it.
    pub remote_invalidate: bool,
}

/// The signatures that a device has (`struct mlx5dv_sig_caps`), of both kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SignatureCaps {
    /// Blocks of 4,048 bytes; those of 512, 520, 4,096 and 4,160 bytes are always supported.
    pub block_4048: bool,
    /// CRC-32C; CRC-32 is always supported.
    pub crc32c: bool,
    /// CRC64_XP10
    pub crc64_xp10: bool,
}

/// An indirect key. Dropping it does not destroy the key: the program destroys it explicitly or closes the context.
#[derive(Debug)]
pub struct Mkey(Box<Parts>);

#[derive(Debug)]
struct Parts {
    object: DevxObject,
    values: [Option<DevxObject>; 2],
    shared: Arc<MkeyShared>,
    table: Arc<MkeyTable>,
}

/// An error of a signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignatureError {
    /// The part that differs.
    pub part: SignaturePart,
    /// Its value in the data.
    pub expected: u64,
    /// The value that the data has.
    pub actual: u64,
    /// Where in the transferred data.
    pub offset: u64,
}

/// A part of a signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignaturePart {
    /// The guard of a T10-DIF, or a CRC.
    Guard,
    /// The reference tag of a T10-DIF.
    RefTag,
    /// The application tag of a T10-DIF.
    AppTag,
}

impl Mlx5 {
    /// The signatures of the device; `None` if it has none.
    ///
    /// # Errors
    /// [`Error::Unsupported`] without [`Options::devx`](crate::Options); the kernel's or the firmware's error.
    pub fn signature_caps(&self) -> Result<Option<SignatureCaps>> {
        let caps = self.general_capabilities("query_device")?;
        Ok((caps(SHO) && caps(SIGERR)).then(|| SignatureCaps {
            block_4048: caps(BLOCK_4048),
            crc32c: caps(CRC32C),
            crc64_xp10: caps(CRC64_XP10),
        }))
    }

    /// Creates an indirect key without memory.
    ///
    /// # Errors
    /// [`Error::Unsupported`] without [`Options::devx`](crate::Options), or with a signature on a device that has none; the
    /// kernel's or the firmware's error.
    pub fn create_mkey(&self, pd: &PdHandle, options: MkeyOptions) -> Result<Mkey> {
        if options.signature && self.signature_caps()?.is_none() {
            return Err(Error::unsupported(CREATE, "the device has no signatures"));
        }
        self.unless_devx(CREATE)?;
        let pdn = self.pd_number(pd)?;
        let entries = u32::from(options.max_entries).next_multiple_of(4);
        let bit = |set: bool| u32::from(set);
        let command = Mailbox::<CREATE_MKEY>::command(op::CREATE_MKEY)
            .set(MKC + 0x01, 1, 1) // free
            .set(MKC + 0x10, 1, 1) // changed by work requests
            .set(MKC + 0x15, 1, 1) // local read
            .set(MKC + 0x16, 2, 2) // a list of parts of other keys
            .set(MKC + 0x20, 24, 0xff_ffff)
            .set(MKC + 0x61, 1, bit(options.signature))
            .set(MKC + 0x67, 1, bit(options.remote_invalidate))
            .set(MKC + 0x68, 24, pdn)
            .set(MKC + 0x100, 32, if options.signature { BSF_UNITS } else { 0 })
            .set(MKC + 0x1a0, 32, entries);
        let mut values = [None, None];
        let mut numbers = [0; 2];
        let made = match options.signature {
            true => self.create_values(pdn, &mut values, &mut numbers),
            false => Ok(()),
        };
        let made = made.and_then(|()| {
            let mut answer = Mailbox::<PSV>::empty();
            // SAFETY: the command names no memory.
            let object = unsafe { self.devx_create(&command.0, &mut answer.0) };
            let object = object.map_err(|error| refused(error, CREATE, answer.0[0]))?;
            Ok((object, answer.get(0x48, 24) << 8))
        });
        let (object, key) = match made {
            Ok(made) => made,
            Err(error) => {
                values.into_iter().flatten().for_each(|value| drop(value.destroy()));
                return Err(error);
            }
        };
        let shared = Arc::new(MkeyShared::new(key, entries, options.signature.then_some(numbers)));
        if options.signature {
            self.mkeys.add(&shared);
        }
        Ok(Mkey(Box::new(Parts { object, values, shared, table: Arc::clone(&self.mkeys) })))
    }

    /// Creates the values that signatures in memory and on the wire begin with.
    fn create_values(
        &self,
        pdn: u32,
        values: &mut [Option<DevxObject>; 2],
        numbers: &mut [u32; 2],
    ) -> Result<()> {
        for (value, number) in values.iter_mut().zip(numbers) {
            let command = Mailbox::<PSV>::command(op::CREATE_PSV).set(0x40, 4, 1).set(0x48, 24, pdn);
            let mut answer = Mailbox::<PSV_ANSWER>::empty();
            // SAFETY: the command names no memory.
            let object = unsafe { self.devx_create(&command.0, &mut answer.0) };
            *value = Some(object.map_err(|error| refused(error, CREATE, answer.0[0]))?);
            *number = answer.get(0x88, 24);
        }
        Ok(())
    }
}

impl Mkey {
    /// The key for local access. Both keys are equal.
    #[must_use]
    pub fn lkey(&self) -> u32 {
        self.0.shared.key
    }

    /// The key for peers.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        self.0.shared.key
    }

    /// The parts of the list that it has room for.
    #[must_use]
    pub fn max_entries(&self) -> u32 {
        self.0.shared.entries
    }

    pub(crate) fn shared(&self) -> &MkeyShared {
        &self.0.shared
    }

    /// The error of its signature that the device has reported since the last call, of the first block that is wrong. The
    /// completion queue of the transfer must have been polled.
    ///
    /// # Errors
    /// The key has no signature; the device has reported an error of an unknown kind.
    pub fn check(&self) -> Result<Option<SignatureError>> {
        const VERB: &str = "mkey_check";
        let none = || Error::invalid(VERB, "mkey", "created without a signature");
        let (signature, _) = self.0.shared.signature.as_ref().ok_or_else(none)?;
        let forked = |_| Error::os(VERB, "a key of the parent process", Errno::ESTALE);
        let mut signature = signature.lock().map_err(forked)?;
        let Some(error) = signature.error else { return Ok(None) };
        let domain = match error.domain {
            0 => signature.block.wire,
            1 => signature.block.memory,
            _ => None,
        };
        let unknown = || Error::invalid(VERB, "mkey", format!("an error of an unknown kind: {error:x?}"));
        let kind = domain.filter(|_| error.sig_type == 0).ok_or_else(unknown)?.kind;
        let found = decode(&error, kind).ok_or_else(unknown)?;
        signature.error = None;
        Ok(Some(found))
    }

    /// Destroys the key.
    ///
    /// # Errors
    /// The kernel's error, with the key.
    pub fn destroy(self) -> Result<(), (Self, Error)> {
        let Parts { object, values, shared, table } = *self.0;
        if let Err((object, error)) = object.destroy() {
            return Err((Self(Box::new(Parts { object, values, shared, table })), error));
        }
        table.remove(&shared);
        // Nothing uses the values any more. If the firmware refuses, they stay until the context ends.
        values.into_iter().flatten().for_each(|value| drop(value.destroy()));
        Ok(())
    }
}

impl MkeyObject<SendQueue> for Mkey {
    fn key(&self) -> u32 {
        self.0.shared.key
    }

    fn max_entries(&self) -> u32 {
        self.0.shared.entries
    }

    unsafe fn configure(&self, queue: &mut SendQueue, head: Head, memory: &MkeyMemory<'_>) {
        let MkeyMemory { tag, access, layout } = *memory;
        let config = MkeyConfig {
            tag: Some(tag),
            access: Some(access),
            layout: Some(layout),
            ..MkeyConfig::default()
        };
        // SAFETY: the contract of this function.
        unsafe { queue.wr_mkey_configure(head, self, &config) };
    }

    fn destroy(self: Box<Self>) -> Result<(), (Box<dyn MkeyObject<SendQueue>>, Error)> {
        Self::destroy(*self)
            .map_err(|(this, error)| -> (Box<dyn MkeyObject<SendQueue>>, _) { (Box::new(this), error) })
    }
}

/// Makes a QP in INIT stop its sends at an error of a signature, with an event (`mlx5_modify_qp_drain_sigerr()` of libmlx5).
pub(super) fn drain_on_error(handle: &QpHandle, qpn: u32) -> Result<()> {
    const VERB: &str = "modify_qp";
    /// Bytes of the command, and positions: the mask of fields, the field in the QP's context.
    const INIT2INIT: usize = 0x110;
    const OPT_PARAM_MASK: usize = 0x80;
    const DRAIN_SIGERR: usize = 0xc0 + 0x25;
    let command = Mailbox::<INIT2INIT>::command(op::INIT2INIT_QP)
        .set(0x48, 24, qpn)
        .set(OPT_PARAM_MASK, 32, 1 << 11)
        .set(DRAIN_SIGERR, 1, 1);
    let mut answer = Mailbox::<PSV>::empty();
    // SAFETY: the command changes neither the state nor the queues of the QP.
    let done = unsafe { super::devx::modify(handle.kernel(), handle.handle(), &command.0, &mut answer.0) };
    done.map_err(|error| refused(error, VERB, answer.0[0]))
}

/// The part that an error is about, and its values (`MLX5_SIGERR_CQE_SYNDROME_*` of libmlx5).
fn decode(error: &RawError, kind: SignatureKind) -> Option<SignatureError> {
    const REF_TAG: u16 = 1 << 11;
    const APP_TAG: u16 = 1 << 12;
    const GUARD: u16 = 1 << 13;
    use crate::shared::mkey::CrcKind;
    let (part, shift, mask) = match error.syndrome {
        syndrome if syndrome & REF_TAG != 0 => (SignaturePart::RefTag, 0, 0xffff_ffff),
        syndrome if syndrome & APP_TAG != 0 => (SignaturePart::AppTag, 32, 0xffff),
        syndrome if syndrome & GUARD != 0 => match kind {
            SignatureKind::T10Dif(_) => (SignaturePart::Guard, 48, 0xffff),
            SignatureKind::Crc(CrcKind::Crc64Xp10, _) => (SignaturePart::Guard, 0, u64::MAX),
            SignatureKind::Crc(..) => (SignaturePart::Guard, 32, 0xffff_ffff),
        },
        _ => return None,
    };
    let [expected, actual] = [error.expected, error.actual].map(|value| value >> shift & mask);
    Some(SignatureError { part, expected, actual, offset: error.offset })
}
