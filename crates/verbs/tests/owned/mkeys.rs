// SPDX-License-Identifier: MIT OR Apache-2.0
//! Regions that indirect keys make of several buffers: as memory of work requests, and of a peer.

use crate::bed::{BUFS, CAP, End, connect};
use core::sync::atomic::Ordering;
use std::sync::Arc;
use uverbs::attr::AccessFlags;
use uverbs::mlx5::{Devx, Mlx5, Options};
use uverbs::{
    AnyDriver, Buf, Completed, Context, Exposed, MkeyRegion, Piece, Pool, PostError, Private, Rc,
    RemoteRegion, Segment, SharedBuf, Strided, WcOpcode, WcStatus,
};
use uverbs_core::kernel::Kernel;
use uverbs_hca::{Fabric, Hca};

pub(crate) const RIGHTS: AccessFlags =
    AccessFlags::REMOTE_READ.union(AccessFlags::REMOTE_WRITE).union(AccessFlags::REMOTE_ATOMIC);

/// The entries of the lists.
pub(crate) const ENTRIES: u32 = 8;

pub(crate) fn open(kernel: Arc<dyn Kernel>) -> Context<Mlx5> {
    let mut options = Options::from_env().unwrap();
    options.devx = Devx::Required;
    Context::from_kernel_with(kernel, |kernel| Mlx5::open_with(kernel, &options)).unwrap()
}

/// An end whose QP changes keys.
pub(crate) fn end(hca: Hca, kernel: Arc<dyn Kernel>) -> End {
    let mut end = End::of(hca, open(kernel), 64);
    end.qp = end.pd.qp::<Rc>().mkeys(ENTRIES).cq(&end.cq).cap(CAP).create().unwrap();
    end
}

pub(crate) fn pair() -> (End, End) {
    pair_on(&Fabric::deterministic(7))
}

pub(crate) fn pair_on(fabric: &Fabric) -> (End, End) {
    let [a, b] = ["hca0", "hca1"].map(|name| {
        let hca = fabric.device(name).build();
        let kernel = hca.open();
        end(hca, kernel)
    });
    connect(&a.qp, &b.qp).unwrap();
    (a, b)
}

/// The region of a completion of this work request.
pub(crate) fn back<B: Piece<Mlx5>>(done: Completed<Mlx5>, opcode: WcOpcode) -> MkeyRegion<B, Mlx5> {
    assert_eq!((done.wc.opcode, done.wc.status), (opcode, WcStatus::SUCCESS));
    done.take().expect("a region")
}

pub(crate) fn configure<B: Piece<Mlx5>>(end: &mut End, region: MkeyRegion<B, Mlx5>) -> MkeyRegion<B, Mlx5> {
    end.qp.sq().post(1).signaled().mkey_configure(region).unwrap();
    back(end.next(), WcOpcode::DRIVER1)
}

pub(crate) fn invalidate<B: Piece<Mlx5>>(end: &mut End, region: MkeyRegion<B, Mlx5>) -> MkeyRegion<B, Mlx5> {
    end.qp.sq().post(1).signaled().mkey_invalidate(region).unwrap();
    back(end.next(), WcOpcode::LOCAL_INV)
}

pub(crate) type Opened = MkeyRegion<Buf<Exposed, Mlx5>, Mlx5>;

pub(crate) fn expose(end: &mut End, region: Opened) -> Opened {
    end.qp.sq().post(1).signaled().mkey_expose(region, RIGHTS).unwrap();
    back(end.next(), WcOpcode::DRIVER1)
}

pub(crate) fn exposed(end: &End, n: u32, size: u32) -> (Pool<Exposed, Mlx5>, Vec<Buf<Exposed, Mlx5>>) {
    let pool = end.pd.pool_with(n, size).exposed(RIGHTS).build().unwrap();
    let bufs = (0..n).map(|_| pool.get().unwrap()).collect();
    (pool, bufs)
}

/// An open region of `n` exposed buffers of 16 bytes.
pub(crate) fn opened(end: &mut End, n: u32) -> (Pool<Exposed, Mlx5>, Opened) {
    let (pool, bufs) = exposed(end, n, 16);
    let region = MkeyRegion::new(end.pd.create_mkey(ENTRIES as u16).unwrap(), bufs).unwrap();
    (pool, expose(end, region))
}

/// The status of a write of the peer.
pub(crate) fn write(peer: &mut End, to: &RemoteRegion, data: &[u8]) -> WcStatus {
    peer.qp.sq().post(2).signaled().write_inline(data, to).unwrap();
    peer.next().wc.status
}

fn copy(buf: &Buf<Exposed, Mlx5>) -> [u8; 16] {
    let mut copy = [0; 16];
    buf.read_at(0, &mut copy).unwrap();
    copy
}

fn clean(ends: [&End; 2]) {
    ends.iter().for_each(|end| assert_eq!(end.hca.violations(), []));
}

#[test]
fn a_peer_uses_several_buffers_as_one_region() {
    let (mut a, mut b) = pair();
    let (pool, region) = opened(&mut b, 3);
    let whole = region.remote_region().unwrap();
    assert_eq!((whole.addr(), whole.len(), region.len()), (0, 48, 48));
    assert_eq!(write(&mut a, &whole.slice(14..34).unwrap(), b"across three buffers"), WcStatus::SUCCESS);
    let [first, second, third] = [0, 1, 2].map(|i| copy(&region.bufs()[i]));
    assert_eq!((&first[14..], &second, &third[..2]), (&b"ac"[..], b"ross three buffe", &b"rs"[..]));
    let mut into = a.pool.get().unwrap();
    into.set_len(20).unwrap();
    a.qp.sq().post(3).signaled().read(into, &whole.slice(14..34).unwrap()).unwrap();
    assert_eq!(&*a.next().buf().unwrap(), b"across three buffers");
    // An atomic of the peer and a word of this process.
    let word = region.bufs()[1].atomic_u64(8).unwrap();
    word.store(5, Ordering::Release);
    a.qp.sq().post(4).signaled().fetch_add(a.pool.get().unwrap(), &whole.slice(24..32).unwrap(), 2).unwrap();
    assert_eq!(*a.next().buf().unwrap(), 5_u64.to_ne_bytes());
    assert_eq!(word.load(Ordering::Acquire), 7);

    // The end of the access, without a system call, and a new key.
    let region = invalidate(&mut b, region);
    assert!(!region.is_open() && region.remote_region().is_none());
    let region = expose(&mut b, region);
    let new = region.remote_region().unwrap();
    assert_ne!(new.rkey(), whole.rkey());
    assert_eq!(write(&mut a, &new, b"reopened"), WcStatus::SUCCESS);
    assert_eq!(write(&mut a, &whole, b"the old key"), WcStatus::REM_ACCESS_ERR);
    assert_eq!(&copy(&region.bufs()[0])[..8], b"reopened");
    let bufs = region.close().unwrap();
    assert_eq!((bufs.len(), pool.available(), b.hca.objects().get("devx_obj")), (3, 0, None));
    clean([&a, &b]);
}

#[test]
fn a_region_is_the_source_and_the_target_of_work_requests() {
    let (mut a, mut b) = pair();
    let bufs: Vec<_> = [&b"one "[..], b"two ", b"three"].map(|text| a.filled(text)).into();
    let key = a.pd.create_mkey(ENTRIES as u16).unwrap();
    assert_eq!(key.max_entries(), ENTRIES);
    let region = configure(&mut a, MkeyRegion::new(key, bufs).unwrap());
    b.receives(2);
    a.qp.send(region).unwrap();
    let mut region: MkeyRegion<Buf<Private, Mlx5>, Mlx5> = back(a.next(), WcOpcode::SEND);
    assert_eq!(&*b.next().buf().unwrap(), b"one two three");
    // A part of it; its bytes are changed meanwhile, while the key names them.
    region.buf_mut(1).unwrap().copy_from_slice(b"TWO ");
    region.set_used(2..6).unwrap();
    a.qp.sq().post(5).signaled().send(region).unwrap();
    let mut region: MkeyRegion<Buf<Private, Mlx5>, Mlx5> = back(a.next(), WcOpcode::SEND);
    assert_eq!((&*b.next().buf().unwrap(), region.used()), (&b"e TW"[..], 2..6));

    // A read into it, and a message.
    let (_pool, table) = exposed(&b, 1, 16);
    table[0].write_at(0, b"ABCDEFGHIJKLMNOP").unwrap();
    region.set_used(3..10).unwrap();
    a.qp.sq().post(6).signaled().read(region, &table[0].remote_region()).unwrap();
    let mut region: MkeyRegion<Buf<Private, Mlx5>, Mlx5> = back(a.next(), WcOpcode::RDMA_READ);
    let bytes = |region: &MkeyRegion<Buf<Private, Mlx5>, Mlx5>| {
        region.bufs().iter().flat_map(|buf| buf.to_vec()).collect::<Vec<_>>()
    };
    assert_eq!(bytes(&region), b"oneABCDEFGree");
    region.set_used(0..13).unwrap();
    a.qp.rq().unwrap().post(7, region).unwrap();
    b.qp.sq().post(8).send_inline(b"a message").unwrap();
    let mut region: MkeyRegion<Buf<Private, Mlx5>, Mlx5> = back(a.next(), WcOpcode::RECV);
    assert_eq!((&bytes(&region)[..], region.used()), (&b"a messageGree"[..], 0..9));

    // Ranges outside of it.
    for range in [0..14, 14..14, 0..u64::MAX] {
        assert!(region.set_used(range.clone()).is_err(), "{range:?}");
    }
    drop(region);
    assert_eq!(a.available(), BUFS);
    clean([&a, &b]);
}

#[test]
fn parts_of_buffers_are_lists_and_columns() {
    let (mut a, mut b) = pair();
    let key = |end: &End| end.pd.create_mkey(ENTRIES as u16).unwrap();
    // Two parts of one buffer, one of another, and an empty one.
    let bufs: Vec<_> = [&b"0123456789"[..], b"abcdef"].map(|text| a.filled(text)).into();
    let parts = [(0, 8..10), (1, 1..3), (1, 2..2), (0, 0..2)].map(|(buf, range)| Segment::new(buf, range));
    let region = MkeyRegion::list(key(&a), bufs, parts).unwrap();
    let region = configure(&mut a, region);
    b.receives(2);
    a.qp.send(region).unwrap();
    assert_eq!(&*b.next().buf().unwrap(), b"89bc01");
    let region: MkeyRegion<Buf<Private, Mlx5>, Mlx5> = back(a.next(), WcOpcode::SEND);
    // The same buffers again: two columns of rows of five bytes, with the first bytes of the other.
    let (key_again, bufs) = invalidate(&mut a, region).into_parts().expect("closed");
    let parts = [Strided::new(0, 1, 2, 3), Strided::new(1, 0, 1, 0)];
    let region = MkeyRegion::interleaved(key_again, bufs, 2, parts).unwrap();
    assert_eq!(region.len(), 6);
    let region = configure(&mut a, region);
    a.qp.send(region).unwrap();
    assert_eq!(&*b.next().buf().unwrap(), b"12a67b");
    let done = a.next();
    assert_eq!(done.wc.status, WcStatus::SUCCESS);
    drop(done);
    assert_eq!((a.available(), a.hca.objects().get("devx_obj")), (BUFS, None), "dropped with its completion");

    // What is outside of the buffers, or does not fit.
    let list = |parts: &[(usize, core::ops::Range<usize>)]| {
        let parts = parts.iter().map(|(buf, range)| Segment::new(*buf, range.clone()));
        MkeyRegion::list(key(&a), [a.filled(b"0123456789")], parts).unwrap_err().to_string()
    };
    for parts in [&[(0, 5..11)][..], &[(1, 0..1)], &[], &[(0, 3..3)], &vec![(0, 0..1); 9]] {
        assert!(list(parts).starts_with("mkey_region: invalid"), "{parts:?}");
    }
    let columns = |repeat, part: Strided| {
        MkeyRegion::interleaved(key(&a), [a.filled(b"0123456789")], repeat, [part]).map(|region| region.len())
    };
    let part = Strided::new(0, 0, 2, 2);
    assert_eq!(columns(3, part).unwrap(), 6);
    for (repeat, part) in [
        (4, part),
        (u32::MAX, part),
        (0, part),
        (1, Strided::new(0, 9, 2, 2)),
        (1, Strided::new(0, usize::MAX, 2, 2)),
        (1, Strided::new(0, 0, 0, 2)),
        (1, Strided::new(0, 0, u16::MAX, 1)),
        (1, Strided::new(1, 0, 2, 2)),
    ] {
        assert!(columns(repeat, part).is_err(), "{repeat} {part:?}");
    }
    assert_eq!((a.available(), a.hca.objects().get("devx_obj")), (BUFS, None));
    clean([&a, &b]);
}

#[test]
fn shared_buffers_make_a_region_that_is_read() {
    let (mut a, mut b) = pair();
    let (pool, bufs) = exposed(&b, 2, 16);
    let shared: Vec<SharedBuf<Exposed, Mlx5>> = bufs
        .into_iter()
        .map(|buf| {
            buf.write_at(0, b"sixteen bytes, 0").unwrap();
            buf.share()
        })
        .collect();
    let halves: Vec<_> = shared.iter().map(|buf| buf.slice(8..16).unwrap()).collect();
    let region = MkeyRegion::new(b.pd.create_mkey(4).unwrap(), halves).unwrap();
    let rejected = b.qp.sq().post(1).mkey_expose(region, AccessFlags::REMOTE_WRITE).unwrap_err();
    assert_eq!(rejected.error, PostError::InvalidArgument);
    let region = rejected.returned.unwrap();
    b.qp.sq().post(1).signaled().mkey_expose(region, AccessFlags::REMOTE_READ).unwrap();
    let region: MkeyRegion<SharedBuf<Exposed, Mlx5>, Mlx5> = back(b.next(), WcOpcode::DRIVER1);
    let whole = region.remote_region().unwrap();
    let mut into = a.pool.get().unwrap();
    into.set_len(16).unwrap();
    a.qp.sq().post(2).signaled().read(into, &whole).unwrap();
    assert_eq!(&*a.next().buf().unwrap(), b"bytes, 0bytes, 0");
    // The region is one of the owners.
    let one = shared.into_iter().next().unwrap().try_unwrap().unwrap_err();
    assert_eq!(write(&mut a, &whole, b"no"), WcStatus::REM_ACCESS_ERR);
    drop(one);
    assert_eq!(pool.available(), 0);
    drop(region);
    assert_eq!(pool.available(), 2);
    clean([&a, &b]);
}

/// The program selects the driver at run time.
#[test]
fn any_driver_has_the_keys_of_mlx5() {
    let hca = Fabric::deterministic(7).device("hca0").build();
    let mut options = Options::from_env().unwrap();
    options.devx = Devx::IfPermitted;
    let context = Context::<AnyDriver>::from_kernel_with(hca.open(), |kernel| {
        let (driver, info) = Mlx5::open_with(kernel, &options)?;
        Ok((AnyDriver::Mlx5(driver), info))
    });
    let context = context.unwrap();
    let (pd, mut cq) = (context.alloc_pd().unwrap(), context.cq(16).unwrap());
    let mut qp = pd.qp::<Rc>().cq(&cq).depth(8, 8).mkeys(4).create().unwrap();
    let attr = crate::bed::attr();
    qp.init(&attr).unwrap();
    let here = qp.control().endpoint(1, &attr).unwrap();
    qp.connect(&here, &here, &attr).unwrap();
    let pool = pd.pool(4, 64).unwrap();
    let text = |text: &[u8]| {
        let mut buf = pool.get().unwrap();
        buf.fill(text).unwrap();
        buf
    };
    let region = MkeyRegion::new(pd.create_mkey(4).unwrap(), [text(b"any "), text(b"driver")]).unwrap();
    let mut next = || loop {
        match cq.poll_one().unwrap() {
            Some(done) => break done,
            None => hca.run(),
        }
    };
    qp.sq().post(1).signaled().mkey_configure(region).unwrap();
    let region: MkeyRegion<Buf> = next().take().unwrap();
    qp.recv(pool.get().unwrap()).unwrap();
    qp.send(region).unwrap();
    let (one, two) = (next(), next());
    let message = if one.wc.opcode == WcOpcode::RECV { one } else { two };
    assert_eq!(&*message.buf().unwrap(), b"any driver");

    // Without commands for the firmware there are none.
    let context = Context::<AnyDriver>::from_kernel(hca.open()).unwrap();
    let error = context.alloc_pd().unwrap().create_mkey(4).unwrap_err();
    assert!(matches!(error, uverbs::Error::Unsupported { .. }), "{error}");
}
