// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory regions and their descriptions for peers.

use crate::{Pair, context};
use uverbs::attr::AccessFlags;
use uverbs::provider::WireRemote as _;
use uverbs::{Errno, RegError, RemoteRegion};

const WRITE: AccessFlags = AccessFlags::LOCAL_WRITE.union(AccessFlags::REMOTE_WRITE);

#[test]
fn addresses_outside_a_region_are_refused() {
    let pd = context().alloc_pd().unwrap();
    let mr = pd.reg_mr(vec![0; 100], WRITE).unwrap();
    let last = mr.remote(99).unwrap();
    assert_eq!((last.addr(), last.rkey()), (mr.addr() + 99, mr.rkey()));
    for offset in [100, 1000, usize::MAX] {
        let error = mr.remote(offset).unwrap_err();
        assert_eq!(error.errno(), Errno::EINVAL);
        assert!(error.to_string().contains("outside the region's 100 bytes"), "{error}");
    }
    let all = mr.remote_region(0..100).unwrap();
    assert_eq!(all, RemoteRegion::new(mr.addr(), 100, mr.rkey()).unwrap());
    assert_eq!(mr.remote_region(40..60).unwrap(), all.slice(40..60).unwrap());
    assert!(mr.remote_region(40..101).is_err());
}

#[test]
fn addresses_outside_a_region_of_device_memory_are_refused() {
    let context = context();
    let pd = context.alloc_pd().unwrap();
    let memory = context.alloc_dm(256, 6).unwrap();
    let mr = pd.reg_dm_mr(&memory, 64..192, WRITE).unwrap();
    assert_eq!(mr.remote(127).unwrap().addr(), 127);
    assert!(mr.remote(128).is_err());
    assert_eq!(mr.remote_region(0..128).unwrap().len(), 128);
    assert!(mr.remote_region(0..129).is_err());
}

#[test]
fn a_refused_registration_has_the_buffer_and_converts_to_an_error() {
    let pd = context().alloc_pd().unwrap();
    let register = |bytes: Vec<u8>| -> uverbs::Result<()> {
        pd.reg_mr(bytes, AccessFlags::REMOTE_WRITE)?;
        Ok(())
    };
    assert!(register(vec![1]).unwrap_err().to_string().starts_with("reg_mr: invalid access"));
    let boxed = || -> Result<(), Box<dyn core::error::Error + Send + Sync>> {
        pd.reg_private(vec![1_u8], WRITE)?;
        Ok(())
    };
    assert!(boxed().unwrap_err().is::<RegError<Vec<u8>>>());
    assert_eq!(pd.reg_mr(vec![7; 3], AccessFlags::REMOTE_WRITE).unwrap_err().buf, Some(vec![7; 3]));
}

#[test]
fn a_page_buffer_is_a_slice_before_its_registration() {
    let pd = context().alloc_pd().unwrap();
    let mut buf = uverbs::PageBuf::new(5000).unwrap();
    assert!(buf.len() >= 5000 && buf.iter().all(|byte| *byte == 0));
    buf[4990..5000].copy_from_slice(b"0123456789");
    let mr = pd.reg_private(buf, AccessFlags::LOCAL_WRITE).unwrap();
    assert_eq!(mr.slice(4990..4994).unwrap(), b"0123");
    assert_eq!(mr.close().unwrap()[4995..5000], *b"56789");
}

#[test]
fn a_ring_lends_a_slot_while_the_device_writes_another() {
    let mut pair = Pair::new();
    let mut ring = pair.server.pd.reg_private(vec![0; 128], AccessFlags::LOCAL_WRITE).unwrap();
    for slot in 0..2 {
        let sge = ring.sge(slot * 64..(slot + 1) * 64).unwrap();
        // SAFETY: the ring lives until both receives have completed, and only completed slots are borrowed.
        unsafe { pair.server.qp.rq().unwrap().post(slot as u64, &[sge]) }.unwrap();
    }
    pair.send(b"first");
    assert_eq!(pair.server.poll().wr_id, 0);
    let first = ring.slice(0..64).unwrap();
    pair.send(b"second");
    assert_eq!(pair.server.poll().wr_id, 1);
    assert!(first.starts_with(b"first\0"));
    assert!(ring.slice(64..128).unwrap().starts_with(b"second\0"));
    ring.slice_mut(64..70).unwrap().fill(b'.');
    assert!(ring.as_slice()[64..].starts_with(b"......\0"));
    assert!(ring.slice(64..129).is_err() && ring.slice_mut(0..129).is_err());
}
