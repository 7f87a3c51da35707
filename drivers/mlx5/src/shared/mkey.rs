// SPDX-License-Identifier: MIT OR Apache-2.0
//! The part of an indirect key that work requests, pollers and the control path share: its list's room, and its signature.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use uverbs_core::sync::ProcessMutex;

pub use crate::wqe::mkey::{
    BlockSize, CrcKind, Guard, MkeyConfig, MkeyLayout, MkeyPart, Seed, SignatureBlock, SignatureDomain,
    SignatureKind, T10Dif, T10Escape,
};

/// An indirect key.
#[derive(Debug)]
pub struct MkeyShared {
    pub(crate) key: u32,
    /// Entries of its list.
    pub(crate) entries: u32,
    /// Its signature, and the numbers of the values in memory and on the wire.
    pub(crate) signature: Option<(ProcessMutex<Signature>, [u32; 2])>,
}

/// What the next work request for a key depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Signature {
    /// The signature, and whether it is in use.
    pub(crate) block: SignatureBlock,
    pub(crate) enabled: bool,
    /// Bytes of the layout.
    pub(crate) length: u64,
    /// The errors that the device has reported, and whether it must be told so with the next work request: it reports no
    /// other error before.
    pub(crate) errors: u32,
    pub(crate) counts: bool,
    /// The last error, until the program has asked for it.
    pub(crate) error: Option<RawError>,
}

/// An error as the device reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RawError {
    pub(crate) syndrome: u16,
    pub(crate) sig_type: u8,
    pub(crate) domain: u8,
    pub(crate) expected: u64,
    pub(crate) actual: u64,
    pub(crate) offset: u64,
}

impl MkeyShared {
    /// A key whose list may have so many entries; with a signature, the numbers of its values.
    pub(crate) fn new(key: u32, entries: u32, psvs: Option<[u32; 2]>) -> Self {
        let fresh = Signature {
            block: SignatureBlock::default(),
            enabled: false,
            length: 0,
            // As in libmlx5, the first work request resets the device's count.
            errors: 1,
            counts: true,
            error: None,
        };
        Self { key, entries, signature: psvs.map(|psvs| (ProcessMutex::new(fresh), psvs)) }
    }
}

/// The keys with signatures of a context, by their numbers.
#[derive(Debug, Default)]
pub struct MkeyTable(ProcessMutex<BTreeMap<u32, Weak<MkeyShared>>>);

impl MkeyTable {
    /// Adds a key. In a child of fork(2) that can't lock the table, nothing.
    pub(crate) fn add(&self, mkey: &Arc<MkeyShared>) {
        if let Ok(mut keys) = self.0.lock() {
            keys.insert(mkey.key >> 8, Arc::downgrade(mkey));
        }
    }

    /// Removes a key, unless another one has its number now.
    pub(crate) fn remove(&self, mkey: &Arc<MkeyShared>) {
        let number = mkey.key >> 8;
        if let Ok(mut keys) = self.0.lock()
            && keys.get(&number).is_some_and(|known| core::ptr::eq(known.as_ptr(), Arc::as_ptr(mkey)))
        {
            keys.remove(&number);
        }
    }

    /// Stores an error that the device reports about a key. An error of a key that was destroyed is dropped.
    pub(crate) fn report(&self, key: u32, error: RawError) {
        let Ok(keys) = self.0.lock() else { return };
        let Some(mkey) = keys.get(&(key >> 8)).and_then(Weak::upgrade) else { return };
        drop(keys);
        if let Some((signature, _)) = &mkey.signature
            && let Ok(mut signature) = signature.lock()
        {
            signature.errors = signature.errors.wrapping_add(1);
            (signature.counts, signature.error) = (true, Some(error));
        }
    }
}
