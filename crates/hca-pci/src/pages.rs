// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lists of the guest's pages, as the ranges of memory that the device accesses: queues and registered memory.

use crate::fw::Status;
use std::sync::Arc;
use uverbs_hca::bytes::be64;
use uverbs_hca::front::Translate;
use uverbs_hca::memory::{Area, Fault, Memory};
use uverbs_vfio::Guest;

/// Bus addresses of pages. The lists of a guest have a limit together ([`Guest::take_entries`]).
#[derive(Debug)]
struct List {
    guest: Arc<Guest>,
    pages: Box<[u64]>,
}

impl Drop for List {
    fn drop(&mut self) {
        self.guest.give_entries(self.pages.len());
    }
}

/// Pages of the guest as one range of memory. Clones and parts share the list.
#[derive(Clone, Debug)]
pub(crate) struct Pages {
    list: Arc<List>,
    /// Bytes of a page, as a power of two.
    shift: u32,
    /// Bytes of the first page in front of the range.
    skip: u64,
    len: u64,
}

/// The largest page that a list may have.
const MAX_SHIFT: u32 = 40;

impl Pages {
    /// `len` bytes, `skip` bytes behind the start of a list of pages of 2^`shift` bytes. `BAD_PARAM` if the list is too
    /// short, or an address is not aligned to a page; `LIMIT` if the guest has too many lists.
    pub(crate) fn new(
        guest: &Arc<Guest>,
        pages: Vec<u64>,
        shift: u32,
        skip: u64,
        len: u64,
    ) -> Result<Self, Status> {
        if shift > MAX_SHIFT || pages.iter().any(|p| p & ((1 << shift) - 1) != 0) {
            return Err(Status::BAD_PARAM);
        }
        let end = skip.checked_add(len).ok_or(Status::BAD_PARAM)?;
        if (pages.len() as u64).checked_mul(1 << shift).is_none_or(|bytes| bytes < end) {
            return Err(Status::BAD_PARAM);
        }
        if !guest.take_entries(pages.len()) {
            return Err(Status::LIMIT);
        }
        let list = Arc::new(List { guest: Arc::clone(guest), pages: pages.into() });
        Ok(Self { list, shift, skip, len })
    }

    /// Whether something else uses the same memory.
    pub(crate) fn is_shared(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) > 1 || Arc::strong_count(&self.list) > 1
    }

    /// The list of a command, `count` entries of 8 bytes whose low 12 bits are flags.
    pub(crate) fn list(bytes: &[u8], count: u64) -> Option<Vec<u64>> {
        let bytes = bytes.get(..usize::try_from(count.checked_mul(8)?).ok()?)?;
        Some(bytes.chunks_exact(8).map(|b| be64(b, 0) & !0xfff).collect())
    }

    /// A part of the range.
    pub(crate) fn area(self: &Arc<Self>, base: u64, len: u64) -> Option<Area> {
        Area::new(Arc::clone(self) as Arc<dyn Memory>, base, len)
    }

    /// A part of the range as a range of its own.
    pub(crate) fn part(&self, base: u64, len: u64) -> Option<Self> {
        let skip = self.skip.checked_add(base)?;
        (base.checked_add(len)? <= self.len).then(|| Self { skip, len, ..self.clone() })
    }

    /// The bus address of a byte, and how many bytes follow in its page.
    fn bus(&self, offset: u64, len: u64) -> Result<(u64, u64), Fault> {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(Fault);
        }
        let at = self.skip + offset;
        let page = self.list.pages.get(usize::try_from(at >> self.shift).map_err(|_| Fault)?).ok_or(Fault)?;
        let inside = at & ((1 << self.shift) - 1);
        Ok((page + inside, (1 << self.shift) - inside))
    }

    fn each(
        &self,
        offset: u64,
        len: usize,
        mut f: impl FnMut(u64, core::ops::Range<usize>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let mut done = 0;
        while done < len {
            let (bus, room) = self.bus(offset + done as u64, (len - done) as u64)?;
            let n = usize::try_from(room).unwrap_or(usize::MAX).min(len - done);
            f(bus, done..done + n)?;
            done += n;
        }
        Ok(())
    }
}

impl Memory for Pages {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), Fault> {
        let len = to.len();
        self.each(offset, len, |bus, part| self.list.guest.read(bus, to.get_mut(part).ok_or(Fault)?))
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), Fault> {
        self.each(offset, from.len(), |bus, part| self.list.guest.write(bus, from.get(part).ok_or(Fault)?))
    }

    // An aligned word does not cross a page.
    fn update(&self, offset: u64, f: &dyn Fn(u64) -> u64) -> Result<u64, Fault> {
        self.list.guest.update(self.bus(offset, 8)?.0, f)
    }

    fn load_be32(&self, offset: u64) -> Result<u32, Fault> {
        self.list.guest.load_be32(self.bus(offset, 4)?.0)
    }

    fn publish(&self, offset: u64, bytes: [u8; 8]) -> Result<(), Fault> {
        self.list.guest.publish(self.bus(offset, 8)?.0, bytes)
    }
}

/// Converts the page lists in updates of memory keys to ranges of memory.
#[derive(Debug)]
pub(crate) struct Lists(pub(crate) Arc<Guest>);

impl Translate for Lists {
    fn pages(&self, list: Vec<u64>, shift: u32, skip: u64, len: u64) -> Option<Arc<dyn Memory>> {
        Some(Arc::new(Pages::new(&self.0, list, shift, skip, len).ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uverbs_vfio::sealed;

    /// A guest with `bytes` of memory from bus address 0 on.
    fn guest(bytes: u64) -> Arc<Guest> {
        let guest = Guest::default();
        guest.map(0, bytes, &sealed(bytes).unwrap(), 0).unwrap();
        Arc::new(guest)
    }

    #[test]
    fn a_list_of_pages_is_one_range() {
        let guest = guest(0x10000);
        let pages = Pages::new(&guest, vec![0x5000, 0x2000, 0x9000], 12, 0xf80, 0x1100).unwrap();
        let data: Vec<u8> = (0..0x1100).map(|i| i as u8).collect();
        pages.write(0, &data).unwrap();
        let mut back = vec![0; 0x1100];
        pages.read(0, &mut back).unwrap();
        assert_eq!(back, data);
        let mut part = [0; 0x80];
        guest.read(0x5f80, &mut part).unwrap();
        assert_eq!(part[..], data[..0x80]);
        guest.read(0x9000, &mut part).unwrap();
        assert_eq!(part[..], data[0x1080..]);
        assert_eq!(pages.write(0x10f8, &[0; 9]), Err(Fault));
        assert_eq!(pages.read(u64::MAX, &mut part), Err(Fault));
        pages.publish(0x78, [7; 8]).unwrap();
        guest.read(0x5ff8, &mut part[..8]).unwrap();
        assert_eq!(part[..8], [7; 8]);
    }

    #[test]
    fn invalid_page_lists_are_refused() {
        let guest = guest(0x1000);
        let refused = |pages, shift, skip, len| Pages::new(&guest, pages, shift, skip, len).unwrap_err();
        assert_eq!(refused(vec![0x1000], 12, 1, 0x1000), Status::BAD_PARAM, "too short");
        assert_eq!(refused(vec![0x10_0000], 21, 0, 1), Status::BAD_PARAM, "not a page of this size");
        assert_eq!(refused(vec![0], 64, 0, 1), Status::BAD_PARAM, "an unsupported page size");
        assert_eq!(refused(vec![0; 2], 12, u64::MAX, 2), Status::BAD_PARAM, "wraps");
        assert!(Pages::list(&[0; 15], 2).is_none(), "fewer bytes than entries");
        assert!(Pages::list(&[0; 16], u64::MAX).is_none());
        // An address without memory is detected at the first access.
        let gone = Pages::new(&guest, vec![0x7000_0000_0000], 12, 0, 0x1000).unwrap();
        assert_eq!(gone.write(0, &[1]), Err(Fault));
        assert_eq!(gone.load_be32(0), Err(Fault));
    }

    /// A list of 8 MiB for each of many keys would take the memory of this process.
    #[test]
    fn the_page_lists_of_a_guest_have_a_limit_and_parts_share_them() {
        let guest = guest(0x1000);
        let long = || Pages::new(&guest, vec![0; 1 << 20], 12, 0, 1 << 32);
        let mut lists: Vec<Pages> = (0..15).map(|_| long().unwrap()).collect();
        let parts: Vec<Pages> = (0..100_000).map(|i| lists[0].part(i << 12, 0x1000).unwrap()).collect();
        lists.push(long().unwrap());
        assert_eq!(long().unwrap_err(), Status::LIMIT);
        assert_eq!(Pages::new(&guest, vec![0], 12, 0, 1).unwrap_err(), Status::LIMIT);
        lists.remove(1);
        lists.push(long().unwrap());
        // A part keeps the list that it is of.
        lists.remove(0);
        assert_eq!(long().unwrap_err(), Status::LIMIT);
        drop(parts);
        long().unwrap();
    }
}
