// SPDX-License-Identifier: MIT OR Apache-2.0
//! What only mlx5 has, through the typed face and on the software HCA: device memory, steering rules, receive hashing,
//! dynamic connections.
#![expect(unsafe_code)]
// UNSAFETY: posts WRs whose memory each test keeps until their completions are polled.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::time::Instant;
use uverbs::attr::{
    AccessFlags, AhAttr, CqInitAttr, FlowAttr, FlowEth, FlowHeader, FlowIpv4, FlowMatch, FlowSpec, Mtu,
    QpCap, RxHashConf, RxHashFields, SrqAttr, SrqInitAttr, WcExFlags, WqInitAttr, WqState,
};
use uverbs::mlx5::Mlx5;
use uverbs::provider::Completion as _;
use uverbs::wc::WorkCompletion;
use uverbs::{
    CompletionQueue, ConnectAttr, Context, MemoryRegion, PageBuf, ProtectionDomain, Qp, RawPacket, Rc,
    RwqIndTable, Shared, SharedReceiveQueue, WcStatus, WorkQueue,
};
use uverbs_hca::{Fabric, Hca, Link};

type Cq = CompletionQueue<Mlx5>;

struct End {
    context: Context<Mlx5>,
    pd: ProtectionDomain<Mlx5>,
    cq: Cq,
    mr: MemoryRegion<Mlx5, PageBuf>,
}

const ALL: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_ATOMIC);

impl End {
    fn new(hca: &Hca) -> Self {
        let context = Context::<Mlx5>::from_kernel(hca.open()).unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq_ex(&CqInitAttr { cqe: 64, ..CqInitAttr::default() }, None).unwrap();
        let mr = pd.reg_mr(PageBuf::new(8192).unwrap(), ALL).map_err(|(_, e)| e).unwrap();
        Self { context, pd, cq, mr }
    }

    /// The next completion, which is there already or comes as the fabric goes on.
    fn poll(&mut self, hca: &Hca) -> WorkCompletion {
        for _ in 0..1000 {
            let mut wc = [WorkCompletion::default()];
            if let [wc] = self.cq.poll(&mut wc).unwrap() {
                return *wc;
            }
            hca.run();
        }
        panic!("no completion");
    }

    fn poll_ok(&mut self, hca: &Hca) -> WorkCompletion {
        let wc = self.poll(hca);
        assert_eq!(wc.status, WcStatus::SUCCESS, "{wc:?}");
        wc
    }

    fn nothing(&mut self, hca: &Hca) {
        hca.run();
        assert!(self.cq.poll(&mut [WorkCompletion::default()]).unwrap().is_empty());
    }
}

const CAP: QpCap =
    QpCap { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 2, max_recv_sge: 1, max_inline_data: 64 };

fn hca() -> Hca {
    Fabric::deterministic(1).device("hca0").build()
}

fn clean(hca: &Hca) {
    assert!(hca.violations().is_empty(), "{:?}", hca.violations());
}

fn rc_pair(a: &End, b: &End, attr: &ConnectAttr) -> (Qp<Mlx5, Rc>, Qp<Mlx5, Rc>) {
    let qp = |end: &End| {
        let qp = end.pd.qp::<Rc>().cq(&end.cq).cap(CAP).create().unwrap();
        qp.init(attr).unwrap();
        let endpoint = qp.control.endpoint(17, attr).unwrap();
        (qp, endpoint)
    };
    let ((qa, ea), (qb, eb)) = (qp(a), qp(b));
    qa.connect(&ea, &eb, attr).unwrap();
    qb.connect(&eb, &ea, attr).unwrap();
    (qa, qb)
}

#[test]
fn device_memory_is_written_by_a_peer_and_read_by_this_process() {
    let hca = hca();
    let (mut a, b) = (End::new(&hca), End::new(&hca));
    let attr = ConnectAttr { sgid_index: Some(3), access: ALL, ..ConnectAttr::default() };
    let (mut qa, _qb) = rc_pair(&a, &b, &attr);
    let dm = b.context.alloc_dm(256, 6).unwrap();
    let region = b.pd.reg_dm_mr(&dm, 64..256, ALL).unwrap();
    a.mr.write_at(0, b"into the device.").unwrap();
    let sge = a.mr.sge(0..16).unwrap();
    // SAFETY: the region lives until the completion is polled.
    unsafe { qa.sq().unwrap().post(1).signaled().write(&[sge], region.remote(8)) }.unwrap();
    a.poll_ok(&hca);
    let mut out = [0; 16];
    dm.copy_from(64 + 8, &mut out).unwrap();
    assert_eq!(&out, b"into the device.");

    dm.copy_to(64, &[7; 8]).unwrap();
    let sge = a.mr.sge(100..108).unwrap();
    // SAFETY: the region lives until the completion is polled.
    unsafe { qa.sq().unwrap().post(2).signaled().read(&[sge], region.remote(0)) }.unwrap();
    a.poll_ok(&hca);
    let mut back = [0; 8];
    a.mr.read_at(100, &mut back).unwrap();
    assert_eq!(back, [7; 8]);

    assert!(dm.copy_to(252, &[0; 8]).is_err() && dm.copy_from(0, &mut [0; 3]).is_err());
    assert!(b.pd.reg_dm_mr(&dm, 0..257, ALL).is_err());
    let (dm, error) = dm.close().unwrap_err();
    assert_eq!(error.errno(), uverbs::Errno::EBUSY);
    region.close().unwrap();
    dm.close().unwrap();
    clean(&hca);
}

/// Sends, writes, reads and adds through one device.
fn traffic(hca: &Hca, sgid_index: Option<u8>, atomics: bool, has_registers: bool) {
    let (mut a, mut b) = (End::new(hca), End::new(hca));
    let attr = ConnectAttr { sgid_index, access: ALL, ..ConnectAttr::default() };
    // More QPs than there are registers of their own; the last few are a thread domain's.
    let mut pairs: Vec<_> = (0..12).map(|_| rc_pair(&a, &b, &attr)).collect();
    match a.context.alloc_td() {
        Ok(td) => {
            let parent = a.pd.parent_domain(&td);
            let plain = core::mem::replace(&mut a.pd, parent);
            pairs.extend((0..3).map(|_| rc_pair(&a, &b, &attr)));
            a.pd = plain;
        }
        Err(error) => assert!(!has_registers, "{error}"),
    }
    for (n, (qa, qb)) in pairs.iter_mut().enumerate() {
        let n = n as u64;
        let at = n as usize * 64;
        let sge = b.mr.sge(at..at + 64).unwrap();
        // SAFETY: the regions live until the completions are polled.
        unsafe { qb.rq().unwrap().post(n, &[sge]) }.unwrap();
        let sq = qa.sq().unwrap();
        sq.post(n).signaled().send_inline(&n.to_ne_bytes()).unwrap();
        assert_eq!((a.poll_ok(hca).wr_id, b.poll_ok(hca).wr_id), (n, n));
        let mut got = [0; 8];
        b.mr.read_at(at, &mut got).unwrap();
        assert_eq!(u64::from_ne_bytes(got), n);
        let back = a.mr.sge(at..at + 8).unwrap();
        let (sq, from) = (qa.sq().unwrap(), b.mr.remote(at));
        if atomics {
            // SAFETY: as above.
            unsafe { sq.post(100 + n).signaled().fetch_add(&[back], from, 5) }.unwrap();
        } else {
            // SAFETY: as above.
            unsafe { sq.post(100 + n).signaled().read(&[back], from) }.unwrap();
        }
        assert_eq!(a.poll_ok(hca).wr_id, 100 + n);
        a.mr.read_at(at, &mut got).unwrap();
        assert_eq!(u64::from_ne_bytes(got), n);
    }
    drop(pairs);
    a.nothing(hca);
    b.nothing(hca);
    drop((a, b));
    assert!(hca.objects().values().all(|n| *n == 0), "{:?}", hca.objects());
    clean(hca);
}

#[test]
fn every_kind_of_device_carries_traffic() {
    let fabric = Fabric::deterministic(4);
    traffic(&fabric.device("plain").build(), Some(3), true, true);
    traffic(&fabric.device("ib").link(Link::InfiniBand).build(), None, true, true);
    traffic(&fabric.device("v0").cqe_version(0).build(), Some(3), true, true);
    traffic(&fabric.device("no_bf").blue_flame(false).build(), Some(3), true, true);
    traffic(&fabric.device("old").dynamic_uars(false).build(), Some(3), true, false);
    traffic(&fabric.device("few").max_uars(5).build(), Some(3), true, false);
    traffic(&fabric.device("no_atomics").atomics(false).build(), Some(3), false, true);
}

#[test]
fn the_null_region_swallows_a_part_of_a_message() {
    let hca = hca();
    let (mut a, mut b) = (End::new(&hca), End::new(&hca));
    let attr = ConnectAttr { sgid_index: Some(3), access: ALL, ..ConnectAttr::default() };
    let (mut qa, _qb) = rc_pair(&a, &b, &attr);
    b.mr.write_at(0, b"headerpayload").unwrap();
    let sges = [a.pd.null_sge(6).unwrap(), a.mr.sge(0..7).unwrap()];
    // SAFETY: the regions live until the completion is polled.
    unsafe { qa.sq().unwrap().post(1).signaled().read(&sges, b.mr.remote(0)) }.unwrap();
    a.poll_ok(&hca);
    let mut got = [0; 7];
    a.mr.read_at(0, &mut got).unwrap();
    assert_eq!(&got, b"payload");
    b.nothing(&hca);
    clean(&hca);
}

#[test]
fn completions_tell_wall_clock_time() {
    let hca = hca();
    let a = End::new(&hca);
    let wc_flags = WcExFlags::COMPLETION_TIMESTAMP | WcExFlags::COMPLETION_TIMESTAMP_WALLCLOCK;
    let attr = CqInitAttr { cqe: 16, wc_flags, ..CqInitAttr::default() };
    let mut cq: Cq = a.context.create_cq_ex(&attr, None).unwrap();
    let connect = ConnectAttr { sgid_index: Some(3), ..ConnectAttr::default() };
    let mut qp = a.pd.qp::<Rc>().cq(&cq).cap(CAP).create().unwrap();
    qp.init(&connect).unwrap();
    let here = qp.control.endpoint(1, &connect).unwrap();
    qp.connect(&here, &here, &connect).unwrap();
    let mut times = Vec::new();
    for wr_id in 0..3 {
        let to = a.mr.remote(0);
        qp.sq().unwrap().post(wr_id).signaled().write_inline(&[1; 8], to).unwrap();
        hca.run();
        let time = cq.poll_session(|poll| {
            let wc = poll.current().unwrap();
            assert_eq!((wc.wr_id(), wc.status()), (wr_id, WcStatus::SUCCESS));
            (wc.completion_ts().unwrap(), wc.completion_wallclock_ns().unwrap())
        });
        times.push(time.unwrap());
    }
    assert!(times.is_sorted(), "{times:?}");
    assert!(times[0].1 != 0, "{times:?}");
    clean(&hca);
}

/// An Ethernet frame with an IPv4 header.
fn frame(dst: [u8; 6], src_ip: [u8; 4], dst_ip: [u8; 4]) -> Vec<u8> {
    let mut frame = [&dst[..], &[2, 0, 0, 0, 0, 9], &[8, 0], &[0x45, 0, 0, 26]].concat();
    frame.extend([0, 0, 0, 0, 64, 253, 0, 0]);
    frame.extend(src_ip);
    frame.extend(dst_ip);
    // No one checks it on the way, but let it be right.
    let sum = frame[14..34].chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum::<u32>();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame.extend([0xab; 26]);
    frame
}

const MAC: [u8; 6] = [2, 9, 9, 9, 9, 9];

fn to_mac(specs: Vec<FlowSpec>) -> FlowAttr {
    let eth = FlowMatch {
        val: FlowEth { dst_mac: MAC, ..FlowEth::default() },
        mask: FlowEth { dst_mac: [0xff; 6], ..FlowEth::default() },
    };
    let specs = [vec![FlowSpec::Header(FlowHeader::Eth(eth))], specs].concat();
    FlowAttr { port: 1, specs, ..FlowAttr::default() }
}

fn raw_qp(end: &End) -> Qp<Mlx5, RawPacket> {
    let qp = end.pd.qp::<RawPacket>().cq(&end.cq).cap(CAP).create().unwrap();
    let attr = ConnectAttr::default();
    qp.init(&attr).unwrap();
    qp.control.ready_to_receive(&uverbs::Endpoint::default(), &attr).unwrap();
    qp.control.ready_to_send(&uverbs::Endpoint::default(), &attr).unwrap();
    qp
}

fn send_frame(a: &mut End, qp: &mut Qp<Mlx5, RawPacket>, bytes: &[u8], hca: &Hca) {
    a.mr.write_at(0, bytes).unwrap();
    let sge = a.mr.sge(0..bytes.len()).unwrap();
    // SAFETY: the region lives until the completion is polled.
    unsafe { qp.sq().unwrap().post_frame(9).signaled().send(&[sge]) }.unwrap();
    assert_eq!(a.poll_ok(hca).wr_id, 9);
}

#[test]
fn a_rule_decides_which_frames_arrive() {
    let fabric = Fabric::deterministic(2);
    let (one, two) = (fabric.device("hca0").build(), fabric.device("hca1").build());
    let (mut a, mut b) = (End::new(&one), End::new(&two));
    let (mut qa, mut qb) = (raw_qp(&a), raw_qp(&b));
    let bytes = frame(MAC, [10, 0, 0, 1], [10, 0, 0, 2]);
    let sge = b.mr.sge(0..2048).unwrap();
    // SAFETY: the region lives as long as the QP.
    unsafe { qb.rq().unwrap().post(1, &[sge]) }.unwrap();
    send_frame(&mut a, &mut qa, &bytes, &one);
    b.nothing(&two);

    let flow = qb.control.create_flow(&to_mac(vec![])).unwrap();
    send_frame(&mut a, &mut qa, &bytes, &one);
    let wc = b.poll_ok(&two);
    assert_eq!((wc.wr_id, wc.byte_len as usize), (1, bytes.len()));
    let mut got = vec![0; bytes.len()];
    b.mr.read_at(0, &mut got).unwrap();
    assert_eq!(got, bytes);

    flow.close().unwrap();
    // SAFETY: as above.
    unsafe { qb.rq().unwrap().post(2, &[sge]) }.unwrap();
    send_frame(&mut a, &mut qa, &bytes, &one);
    b.nothing(&two);
    let ipv4 = |dst_ip| FlowMatch {
        val: FlowIpv4 { dst_ip, ..FlowIpv4::default() },
        mask: FlowIpv4 { dst_ip: [0xff; 4], ..FlowIpv4::default() },
    };
    let other = to_mac(vec![FlowSpec::Header(FlowHeader::Ipv4(ipv4([10, 0, 0, 3])))]);
    let _other = qb.control.create_flow(&other).unwrap();
    send_frame(&mut a, &mut qa, &bytes, &one);
    b.nothing(&two);
    let mine = to_mac(vec![FlowSpec::Header(FlowHeader::Ipv4(ipv4([10, 0, 0, 2])))]);
    let _mine = qb.control.create_flow(&mine).unwrap();
    send_frame(&mut a, &mut qa, &bytes, &one);
    assert_eq!(b.poll_ok(&two).wr_id, 2);
    clean(&one);
    clean(&two);
}

#[test]
fn a_hash_spreads_frames_over_work_queues() {
    const QUEUES: usize = 4;
    let fabric = Fabric::deterministic(3);
    let (one, two) = (fabric.device("hca0").build(), fabric.device("hca1").build());
    let (mut a, mut b) = (End::new(&one), End::new(&two));
    let mut qa = raw_qp(&a);
    let attr = WqInitAttr { max_wr: 32, max_sge: 1, ..WqInitAttr::default() };
    let mut wqs: Vec<WorkQueue<Mlx5>> = (0..QUEUES).map(|_| b.pd.create_wq(&b.cq, &attr).unwrap()).collect();
    for (i, wq) in wqs.iter_mut().enumerate() {
        wq.modify_state(WqState::RDY).unwrap();
        for n in 0..32 {
            let sge = b.mr.sge(i * 1024..(i + 1) * 1024).unwrap();
            // SAFETY: the region lives as long as the queue.
            unsafe { wq.post((i * 100 + n) as u64, &[sge]) }.unwrap();
        }
    }
    let table = RwqIndTable::create(&wqs.iter().collect::<Vec<_>>()).unwrap();
    let key: Vec<u8> = (0..40_u32).map(|i| (i * 37 + 11) as u8).collect();
    let hash = RxHashConf { key: &key, fields: RxHashFields::SRC_IPV4 | RxHashFields::DST_IPV4 };
    let qp = b.pd.create_rss_qp(&table, hash).unwrap();
    let _flow = qp.create_flow(&to_mac(vec![])).unwrap();

    let mut queue_of = |src: u8| {
        send_frame(&mut a, &mut qa, &frame(MAC, [10, 0, 0, src], [10, 0, 0, 2]), &one);
        b.poll_ok(&two).wr_id / 100
    };
    let first: Vec<_> = (1..17).map(&mut queue_of).collect();
    assert_eq!(first, (1..17).map(&mut queue_of).collect::<Vec<_>>(), "the same packets, the same queues");
    let mut hit = first.clone();
    hit.sort_unstable();
    hit.dedup();
    assert_eq!(hit.len(), QUEUES, "{first:?}");
    clean(&one);
    clean(&two);
}

#[test]
fn an_initiator_reaches_two_targets() {
    const KEY: u64 = 0x1122_3344_5566_7788;
    let hca = hca();
    let (mut a, mut b) = (End::new(&hca), End::new(&hca));
    let attr =
        ConnectAttr { sgid_index: Some(3), access: ALL, path_mtu: Mtu::MTU_1024, ..ConnectAttr::default() };
    let gid = a.context.query_gid(1, 3).unwrap();
    let path = AhAttr::global(1, 3, gid);
    let srq_attr =
        SrqInitAttr { attr: SrqAttr { max_wr: 8, max_sge: 1, srq_limit: 0 }, ..SrqInitAttr::default() };
    let mut srq: SharedReceiveQueue<Mlx5> = b.pd.create_srq(&srq_attr).unwrap();
    let targets = [0, 1].map(|i| b.pd.create_dct(&b.cq, &srq, KEY + i).unwrap());
    assert_eq!(targets[0].dctn(), None);
    let numbers = targets.each_ref().map(|dct| dct.connect(&attr, &path).unwrap());
    assert_ne!(numbers[0], numbers[1]);
    for n in 0..2 {
        let sge = b.mr.sge(n * 64..(n + 1) * 64).unwrap();
        // SAFETY: the region lives as long as the queue.
        unsafe { srq.post(n as u64, &[sge]) }.unwrap();
    }

    let cap = QpCap { max_recv_wr: 0, max_recv_sge: 0, ..CAP };
    let mut dci = a.pd.dci().cq(&a.cq).cap(cap).create().unwrap();
    dci.control.connect_dci(&attr).unwrap();
    let ah = a.pd.create_ah(&path).unwrap();
    for (i, dctn) in numbers.iter().enumerate() {
        let wr = dci.sq().unwrap().post_dc(i as u64, &ah, *dctn, KEY + i as u64);
        wr.signaled().send_inline(format!("target {i}").as_bytes()).unwrap();
        assert_eq!(a.poll_ok(&hca).wr_id, i as u64);
        let wc = b.poll_ok(&hca);
        assert_eq!((wc.wr_id, wc.byte_len), (i as u64, 8));
        let mut got = [0; 8];
        b.mr.read_at(i * 64, &mut got).unwrap();
        assert_eq!(got, *format!("target {i}").as_bytes());
    }
    a.mr.write_at(0, b"by rdma!").unwrap();
    let sge = a.mr.sge(0..8).unwrap();
    let to = b.mr.remote(4096);
    // SAFETY: the region lives until the completion is polled.
    unsafe { dci.sq().unwrap().post_dc(5, &ah, numbers[1], KEY + 1).signaled().write(&[sge], to) }.unwrap();
    a.poll_ok(&hca);
    let mut got = [0; 8];
    b.mr.read_at(4096, &mut got).unwrap();
    assert_eq!(&got, b"by rdma!");
    // A key that the target was not created with.
    // SAFETY: the region lives until the completion is polled.
    unsafe { dci.sq().unwrap().post_dc(6, &ah, numbers[1], KEY).signaled().write(&[sge], to) }.unwrap();
    assert_ne!(a.poll(&hca).status, WcStatus::SUCCESS);
    clean(&hca);
}

#[test]
fn queue_pairs_come_and_go_on_many_threads() {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 60;
    let hca = Hca::new();
    let context = Context::<Mlx5>::from_kernel(hca.open()).unwrap();
    let pd = context.alloc_pd().unwrap();
    // One queue for all: each poller finds everyone's completions, and everyone's QPs vanish under it.
    let cq: CompletionQueue<Mlx5, Shared> = context.create_cq(4096, None).unwrap();
    let mr = pd.reg_mr(PageBuf::new(4096).unwrap(), ALL).map_err(|(_, e)| e).unwrap();
    let done: Vec<AtomicU64> = (0..THREADS).map(|_| AtomicU64::new(0)).collect();
    let attr = ConnectAttr { sgid_index: Some(3), access: ALL, ..ConnectAttr::default() };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (pd, cq, mr, done, attr) = (&pd, &cq, &mr, &done, &attr);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let mut qp = pd.qp::<Rc>().cq(cq).cap(CAP).create().unwrap();
                    qp.init(attr).unwrap();
                    let here = qp.control.endpoint(round as u32, attr).unwrap();
                    qp.connect(&here, &here, attr).unwrap();
                    let to = mr.remote(thread as usize * 8);
                    let sq = qp.sq().unwrap();
                    sq.post(thread).signaled().write_inline(&round.to_ne_bytes(), to).unwrap();
                    // One more that nobody waits for: it is swept out with its QP, or told before.
                    if round % 3 == 0 {
                        sq.post(u64::MAX).signaled().write_inline(&round.to_ne_bytes(), to).unwrap();
                    }
                    let started = Instant::now();
                    while done[thread as usize].load(Ordering::Relaxed) <= round {
                        let mut wcs = [WorkCompletion::default(); 8];
                        for wc in cq.poll(&mut wcs).unwrap() {
                            assert_eq!(wc.status, WcStatus::SUCCESS);
                            if let Some(done) = done.get(wc.wr_id as usize) {
                                done.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                        assert!(
                            started.elapsed() < Duration::from_secs(60),
                            "thread {thread}, round {round}"
                        );
                    }
                    qp.close().unwrap();
                }
            });
        }
    });
    for thread in 0..THREADS {
        let mut last = [0; 8];
        mr.read_at(thread as usize * 8, &mut last).unwrap();
        assert_eq!(u64::from_ne_bytes(last), ROUNDS - 1);
    }
    drop((cq, mr, pd, context));
    assert!(hca.objects().values().all(|n| *n == 0), "{:?}", hca.objects());
    clean(&hca);
}
