// SPDX-License-Identifier: MIT OR Apache-2.0
//! A kernel with wrong answers: each one leads to an error or to a usable object, never to a panic.

use super::kernel::FakeKernel;
use super::*;
use core::sync::atomic::{AtomicBool, AtomicU64};
use proptest::prelude::*;
use uverbs_core::Errno;
use uverbs_core::kernel::{DoorbellPage, Mapping, Protection, RawCommand};
use uverbs_testkit::kernel::Script;

/// Answers as [`FakeKernel`] does, with random changes.
struct WrongKernel {
    inner: Scripted<FakeKernel>,
    random: AtomicU64,
    /// On average one answer in this many is wrong.
    rate: u64,
    quiet: AtomicBool,
}

impl WrongKernel {
    /// splitmix64
    fn random(&self) -> u64 {
        let x = self.random.fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed).wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }

    fn strikes(&self) -> bool {
        self.random().is_multiple_of(self.rate) && !self.quiet.load(Relaxed)
    }

    /// A wrong number, with values near limits preferred.
    fn wrong(&self, was: u32) -> u32 {
        match self.random() % 8 {
            0 => 0,
            1 => u32::MAX,
            2 => 1 << (self.random() % 32),
            3 => was.wrapping_add(1),
            4 => was.wrapping_sub(1),
            5 => was ^ 1 << (self.random() % 32),
            6 => (self.random() % 300) as u32,
            _ => self.random() as u32,
        }
    }
}

impl Script for WrongKernel {
    fn inner(&self) -> Option<&dyn Kernel> {
        Some(&self.inner)
    }

    fn ioctl(&self, c: &mut RawCommand<'_, '_>) -> core::result::Result<(), Errno> {
        self.inner.ioctl(c)?;
        if self.strikes() {
            return Err(Errno::from_raw((self.random() % 200) as i32));
        }
        let ids: Vec<u16> = c.attrs().map(|a| a.id).collect();
        for id in ids {
            if self.strikes() {
                let handle = self.wrong(1).into();
                c.new_handle(id, handle);
            }
            let Some(output) = c.output(id) else { continue };
            for word in output.chunks_exact_mut(4) {
                if self.strikes() {
                    let was = u32::from_ne_bytes(word.try_into().unwrap());
                    word.copy_from_slice(&self.wrong(was).to_ne_bytes());
                }
            }
        }
        Ok(())
    }

    fn mmap(&self, offset: u64, len: usize, protection: Protection) -> core::result::Result<Mapping, Errno> {
        if len > 1 << 20 {
            return Err(Errno::ENOMEM);
        }
        self.inner.mmap(offset, if self.strikes() { 8 } else { len }, protection)
    }

    fn doorbells(
        &self,
        port: &dyn Kernel,
        offset: u64,
        len: usize,
    ) -> core::result::Result<DoorbellPage, Errno> {
        if self.strikes() || len > 1 << 20 {
            return Err(Errno::EAGAIN);
        }
        // A mapped page, so that offsets are checked against its length.
        DoorbellPage::map(port, offset, len)
    }
}

/// Creates one object of each kind that the kernel allows, and uses it.
fn use_all(mlx5: &Mlx5) -> Result<()> {
    let _ = mlx5.query_device();
    let pd = mlx5.alloc_pd()?;
    let cq_attr = CqInitAttr::new(30);
    let mut cq = mlx5.create_cq(&cq_attr, None, 0)?;
    let srq_attr = SrqAttr::new(10).max_sge(2);
    let srq_init = SrqInitAttr::new(srq_attr);
    let create = SrqCreate { pd: &pd, attr: &srq_init, xrc: None, td: None, user_handle: 0 };
    let mut srq = mlx5.create_srq(&create).ok();
    if let Some(srq) = &mut srq {
        for _ in 0..20 {
            // SAFETY: the WR names no memory.
            #[expect(unsafe_code)]
            let _ = unsafe { srq.queue.post(1, &[]) };
        }
    }
    let td = mlx5.alloc_td()?;
    let qp_types = [QpType::Rc, QpType::Uc, QpType::Ud, QpType::RawPacket, QpType::XrcSend, QpType::Driver];
    let mut qps = Vec::new();
    for (n, qp_type) in qp_types.into_iter().cycle().take(18).enumerate() {
        let mut attr = Stage::attr(qp_type);
        attr.max_tso_header = if qp_type == QpType::RawPacket { 64 } else { 0 };
        let both = Some(&cq.cq);
        let has_recv = qp_type.has_recv_queue();
        let made = played!(mlx5.create_qp(&QpCreate {
            pd: Some(&pd),
            send_cq: both,
            recv_cq: both.filter(|_| has_recv),
            srq: srq.as_ref().filter(|_| has_recv && n % 3 == 0).map(|s| &s.srq),
            xrcd: None,
            attr: &attr,
            td: (n % 2 == 0).then_some(&td),
            exclusive: n % 3 == 1,
            data_in_completions: true,
            user_handle: 0,
        }));
        qps.extend(made);
    }
    for qp in &mut qps {
        for state in [QpState::INIT, QpState::RTR, QpState::RTS, QpState::ERR, QpState::RESET] {
            let attr = QpAttr::new().qp_state(state).port_num(1);
            let _ = qp.qp.modify(&attr, QpAttrMask::STATE | QpAttrMask::PORT);
            for _ in 0..40 {
                if let Some(recv) = &mut qp.recv {
                    // SAFETY: the WR names no memory.
                    #[expect(unsafe_code)]
                    let _ = unsafe { recv.post(1, &[]) };
                }
                if qp.send.is_some() {
                    let _ = post_send(qp);
                }
            }
        }
    }
    let mut wcs = [uverbs_core::wc::WorkCompletion::default(); 4];
    let _ = cq.queue.poll_cq(&mut wcs);
    let _ = cq.cq.resize(&mut cq.queue, 100);
    let _ = cq.queue.poll_cq(&mut wcs);
    let _ = mlx5.create_ah(&pd, &AhAttr::global(1, 0, Gid::default()));
    if let Ok(dm) = mlx5.alloc_dm(64, 0) {
        let _ = dm.mapping.copy_in(dm.start, &[1; 64]);
        let _ = dm.handle.destroy();
    }
    let wq_attr = WqInitAttr::new(8);
    let create = WqCreate { pd: &pd, cq: &cq.cq, attr: &wq_attr, user_handle: 0 };
    if let Ok(mut wq) = mlx5.create_wq(&create) {
        let attr = WqAttr::new().wq_state(WqState::RDY);
        let _ = wq.wq.modify(&attr);
        // SAFETY: the WR names no memory.
        #[expect(unsafe_code)]
        let _ = unsafe { wq.queue.post(1, &[]) };
        let _ = wq.wq.destroy();
    }
    if let Some(srq) = &srq {
        let (cq, srq) = (&cq.cq, &srq.srq);
        let create = DctCreate { pd: &pd, cq, srq, dc_key: 1, data_in_completions: true, user_handle: 0 };
        if let Ok(dct) = played!(mlx5.create_dct(&create)) {
            let attr = QpAttr::new().qp_state(QpState::RTR);
            let _ = dct.modify(&attr, QpAttrMask::STATE);
            let _ = dct.destroy();
        }
    }
    for qp in qps {
        let _ = qp.qp.destroy();
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn every_answer_leads_to_an_error_or_a_usable_object(seed: u64, rate in prop_oneof![Just(10_u64), Just(40), Just(200), Just(1000)], gentle: bool) {
        let kernel = WrongKernel {
            inner: Scripted(FakeKernel::default()),
            random: AtomicU64::new(seed),
            rate,
            // In half of the runs the context's answers are correct.
            quiet: AtomicBool::new(gentle),
        };
        let kernel = Arc::new(Scripted(kernel));
        if let Ok((mlx5, _)) = Mlx5::open_with(Arc::clone(&kernel) as Arc<dyn Kernel>, &Options::default()) {
            kernel.quiet.store(false, Relaxed);
            let _ = use_all(&mlx5);
        }
    }
}
