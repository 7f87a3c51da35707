// SPDX-License-Identifier: MIT OR Apache-2.0
//! The values of the server: small ones in ordinary memory, large ones in buffers that clients can read.

use super::proto::{MAX_SMALL, Status};
use std::collections::HashMap;
use std::sync::Arc;
use uverbs::attr::AccessFlags;
use uverbs::{Buf, Exposed, Pool};
use uverbs::{Driver, ProtectionDomain, RemoteRegion};

/// A large value. It does not change after it was stored, so a client may read it as long as this exists.
#[derive(Debug)]
pub struct Large<D: Driver> {
    buf: Buf<Exposed, D>,
    len: u32,
}

impl<D: Driver> Large<D> {
    /// Its memory, for a client.
    ///
    /// # Errors
    /// Never: the length is at most that of the buffer.
    pub fn region(&self) -> uverbs::Result<RemoteRegion> {
        self.buf.remote_region().slice(0..self.len.into())
    }
}

/// A value.
#[derive(Debug)]
pub enum Value<D: Driver> {
    /// It is sent in the answer.
    Small(Box<[u8]>),
    /// The client reads it.
    Large(Arc<Large<D>>),
}

/// Keys and values.
#[derive(Debug)]
pub struct Store<D: Driver> {
    map: HashMap<Box<[u8]>, Value<D>>,
    values: Pool<Exposed, D>,
    max_keys: usize,
    count: usize,
}

impl<D: Driver> Store<D> {
    /// A store of at most `max_keys` keys, of which `count` may have a large value with up to `max_value` bytes.
    ///
    /// # Errors
    /// The memory can't be allocated or registered.
    pub fn new(
        pd: &ProtectionDomain<D>,
        max_keys: usize,
        count: u32,
        max_value: u32,
    ) -> uverbs::Result<Self> {
        let values = pd.pool_with(count, max_value).exposed(AccessFlags::REMOTE_READ).build()?;
        Ok(Self { map: HashMap::new(), values, max_keys, count: count as usize })
    }

    /// Bytes of the largest value.
    #[must_use]
    pub fn max_value(&self) -> usize {
        self.values.buf_size()
    }

    /// The value of a key.
    #[must_use]
    pub fn get(&self, key: &[u8]) -> Option<&Value<D>> {
        self.map.get(key)
    }

    /// Stores a value.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Status {
        if value.len() > self.max_value() {
            return Status::TooLarge;
        }
        if self.map.len() >= self.max_keys && !self.map.contains_key(key) {
            return Status::Full;
        }
        let value = if value.len() <= MAX_SMALL {
            Value::Small(value.into())
        } else {
            let Some(buf) = self.values.try_get() else { return Status::Full };
            match (buf.write_at(0, value), u32::try_from(value.len())) {
                (Ok(()), Ok(len)) => Value::Large(Arc::new(Large { buf, len })),
                _ => return Status::TooLarge,
            }
        };
        self.map.insert(key.into(), value);
        Status::Ok
    }

    /// Removes a key.
    pub fn delete(&mut self, key: &[u8]) -> Status {
        if self.map.remove(key).is_some() { Status::Ok } else { Status::NotFound }
    }

    /// Removes all keys, and returns the number of buffers that are not in the pool then: those that leases hold.
    #[must_use]
    pub fn clear(&mut self) -> usize {
        self.map.clear();
        self.count - self.values.available()
    }
}
