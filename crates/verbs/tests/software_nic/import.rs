// SPDX-License-Identifier: MIT OR Apache-2.0
//! Contexts, domains, regions and device memory that are imported by their numbers.
//!
//! Exporter and importer share a device file. Here they are two contexts of one process.

use crate::{CAP, End, LIMIT, poll};
use std::time::Instant;
use uverbs::attr::AccessFlags;
use uverbs::mlx5::Mlx5;
use uverbs::{ConnectAttr, Context, Errno, Rc};
use uverbs_hca::{Fabric, Hca};

const WRITE: AccessFlags = AccessFlags::LOCAL_WRITE.union(AccessFlags::REMOTE_WRITE);
/// A number that no object has.
const NOBODY: u32 = 0x700_0000;

/// A context, and an import of it.
fn exported() -> (Context<Mlx5>, Context<Mlx5>) {
    let kernel = Hca::new().open();
    let exporter = Context::from_kernel(kernel.clone()).unwrap();
    (exporter, Context::import_kernel(kernel).unwrap())
}

/// Calls an `unsafe` import with a number of this test.
macro_rules! import {
    ($call:expr) => {{
        // SAFETY: the object is one of this test, which posts no work requests with it after its end.
        let result = unsafe { $call };
        result
    }};
}

#[test]
fn a_message_is_sent_from_imported_objects() {
    let fabric = Fabric::new(1);
    let kernel = fabric.device("hca0").build().open();
    let exporter = Context::<Mlx5>::from_kernel(kernel.clone()).unwrap();
    let owned = exporter.alloc_pd().unwrap();
    let mut memory = vec![0; 4096];
    memory[100..108].copy_from_slice(b"imported");
    let mr = owned.reg_mr(memory, WRITE).unwrap();

    let importer = Context::<Mlx5>::import_kernel(kernel).unwrap();
    let pd = import!(importer.import_pd(owned.handle().unwrap())).unwrap();
    let region = import!(pd.import_mr(mr.handle())).unwrap();
    assert_eq!((region.lkey(), region.rkey(), region.addr()), (mr.lkey(), mr.rkey(), mr.addr()));
    assert!(region.len() == 4096 && !region.is_empty());
    assert_eq!(region.remote_region(5..10).unwrap(), mr.remote_region(5..10).unwrap());
    assert!(region.sge(4090..4097).is_err() && region.remote(4096).is_err());

    let mut peer = End::new(fabric.device("hca1").build());
    let cq = importer.create_cq(16, None).unwrap();
    let mut qp = pd.raw_qp::<Rc>().cq(&cq).cap(CAP).create().unwrap();
    let attr = ConnectAttr::default();
    qp.init(&attr).unwrap();
    let (here, there) = (qp.control.endpoint(7, &attr).unwrap(), peer.qp.control.endpoint(7, &attr).unwrap());
    qp.connect(&here, &there, &attr).unwrap();
    peer.qp.connect(&there, &here, &attr).unwrap();
    let target = peer.pd.reg_mr(vec![0; 64], WRITE).unwrap();
    // SAFETY: the region lives until the receive has completed.
    unsafe { peer.qp.rq().unwrap().post(1, &[target.sge(8..64).unwrap()]) }.unwrap();
    // SAFETY: the region lives until the send has completed.
    unsafe { qp.sq().post(3).signaled().send(&[region.sge(100..108).unwrap()]) }.unwrap();
    poll(&cq).status.ok().unwrap();
    assert_eq!(peer.completion().wr_id, 1);
    let mut bytes = [0; 8];
    target.read_at(8, &mut bytes).unwrap();
    assert_eq!(&bytes, b"imported");
}

#[test]
fn dropping_an_import_leaves_the_object_to_its_owner() {
    let (exporter, importer) = exported();
    let owned = exporter.alloc_pd().unwrap();
    let mr = owned.reg_mr(vec![7; 64], WRITE).unwrap();
    let dm = exporter.alloc_dm(4096, 0).unwrap();
    for _ in 0..2 {
        // Each import is a further name of the same object.
        let pds = [(); 2].map(|()| import!(importer.import_pd(owned.handle().unwrap())).unwrap());
        let regions = [0, 1].map(|i: usize| import!(pds[i].import_mr(mr.handle())).unwrap());
        let memories = [(); 2].map(|()| import!(importer.import_dm(dm.handle().unwrap())).unwrap());
        assert_eq!(regions[0].lkey(), regions[1].lkey());
        memories[0].copy_to(0, b"word").unwrap();
        let mut word = [0; 4];
        memories[1].copy_from(0, &mut word).unwrap();
        assert_eq!(&word, b"word");
        assert_eq!(memories[1].len(), 4096);
    }
    drop(importer);
    assert_eq!(mr.close().unwrap(), vec![7; 64]);
    dm.close().unwrap();
    owned.close().unwrap();
}

#[test]
fn the_importer_destroys_and_the_exporter_finds_nothing() {
    let (exporter, importer) = exported();
    let owned = exporter.alloc_pd().unwrap();
    let mr = owned.reg_mr(vec![7; 64], WRITE).unwrap();
    let dm = exporter.alloc_dm(4096, 0).unwrap();
    let pd = import!(importer.import_pd(owned.handle().unwrap())).unwrap();
    let region = import!(pd.import_mr(mr.handle())).unwrap();
    let memory = import!(importer.import_dm(dm.handle().unwrap())).unwrap();

    // The region is still registered in the domain, for all that share it; its import holds the imported domain.
    region.close().unwrap();
    pd.close().unwrap();
    memory.close().unwrap();
    let (mr, error) = mr.close().unwrap_err();
    assert_eq!(error.errno(), Errno::ENOENT);
    let (dm, error) = dm.close().unwrap_err();
    assert_eq!(error.errno(), Errno::ENOENT);
    assert_eq!(owned.reg_mr(vec![7; 64], WRITE).unwrap_err().error.errno(), Errno::ENOENT);
    drop((mr, dm));
}

#[test]
fn the_exporter_destroys_and_the_importer_finds_nothing() {
    let (exporter, importer) = exported();
    let owned = exporter.alloc_pd().unwrap();
    let mr = owned.reg_mr(vec![7; 64], WRITE).unwrap();
    let dm = exporter.alloc_dm(4096, 0).unwrap();
    let pd = import!(importer.import_pd(owned.handle().unwrap())).unwrap();
    let region = import!(pd.import_mr(mr.handle())).unwrap();
    let memory = import!(importer.import_dm(dm.handle().unwrap())).unwrap();

    // A domain in which a region exists is not deallocated, whichever of them calls.
    let second = import!(importer.import_pd(owned.handle().unwrap())).unwrap();
    let (second, error) = second.close().unwrap_err();
    assert_eq!(error.errno(), Errno::EBUSY);
    drop(second);
    let numbers = (mr.handle(), dm.handle().unwrap());
    mr.close().unwrap();
    dm.close().unwrap();
    owned.close().unwrap();
    let (region, error) = region.close().unwrap_err();
    assert_eq!(error.errno(), Errno::ENOENT);
    assert_eq!(memory.close().unwrap_err().1.errno(), Errno::ENOENT);
    assert_eq!(import!(pd.import_mr(numbers.0)).unwrap_err().errno(), Errno::ENOENT);
    assert_eq!(import!(importer.import_dm(numbers.1)).unwrap_err().errno(), Errno::ENOENT);
    let error = pd.reg_mr(vec![1_u8], WRITE).unwrap_err().error;
    assert_eq!(error.errno(), Errno::ENOENT);
    drop((region, pd));
}

#[test]
fn wrong_numbers_are_refused() {
    let (exporter, importer) = exported();
    let owned = exporter.alloc_pd().unwrap();
    let mr = owned.reg_mr(vec![7; 64], WRITE).unwrap();
    let pd = import!(importer.import_pd(owned.handle().unwrap())).unwrap();
    assert_eq!(import!(importer.import_pd(NOBODY)).unwrap_err().errno(), Errno::ENOENT);
    for wrong in [NOBODY, owned.handle().unwrap()] {
        assert_eq!(import!(pd.import_mr(wrong)).unwrap_err().errno(), Errno::ENOENT);
        assert_eq!(import!(importer.import_dm(wrong)).unwrap_err().errno(), Errno::ENOENT);
    }
    // The number of a region is not that of a domain or of memory.
    assert_eq!(import!(importer.import_pd(mr.handle())).unwrap_err().errno(), Errno::ENOENT);
    assert_eq!(import!(importer.import_dm(mr.handle())).unwrap_err().errno(), Errno::ENOENT);
    assert_eq!(import!(pd.import_mr(u32::MAX)).unwrap_err().errno(), Errno::EINVAL);
    // The numbers of another device file are not valid.
    let other = Context::<Mlx5>::from_kernel(Hca::new().open()).unwrap();
    assert_eq!(import!(other.import_pd(owned.handle().unwrap())).unwrap_err().errno(), Errno::ENOENT);
}

/// Imports and their ends in one thread, regions that come and go in another one: a number that is used again is never
/// half of an old object.
#[test]
fn imports_race_with_the_exporters_destruction() {
    let (exporter, importer) = exported();
    let owned = exporter.alloc_pd().unwrap();
    let pd = import!(importer.import_pd(owned.handle().unwrap())).unwrap();
    let number = owned.reg_mr(vec![0; 64], WRITE).unwrap().handle();
    let started = Instant::now();
    std::thread::scope(|scope| {
        let importing = scope.spawn(|| {
            let mut found = 0;
            while found < 50 && started.elapsed() < LIMIT {
                match import!(pd.import_mr(number)) {
                    Ok(region) => {
                        assert!([64, 128].contains(&region.len()), "{region:?}");
                        found += 1;
                    }
                    Err(error) => assert_eq!(error.errno(), Errno::ENOENT),
                }
            }
            found
        });
        let mut size = 64;
        while !importing.is_finished() {
            let mr = owned.reg_mr(vec![0; size], WRITE).unwrap();
            assert_eq!(mr.handle(), number, "the lowest free number is used again");
            mr.close().unwrap();
            size = 192 - size;
        }
        assert_eq!(importing.join().unwrap(), 50);
    });
}
