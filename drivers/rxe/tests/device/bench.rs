// SPDX-License-Identifier: MIT OR Apache-2.0
//! A device, the objects that every test needs, and connected QPs.

use core::sync::atomic::{AtomicU8, Ordering};
use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;
use uverbs_core::attr::*;
use uverbs_core::control::*;
use uverbs_core::device::devices;
use uverbs_core::kernel::{Kernel, Uhw, UverbsFd};
use uverbs_core::provider::wire::RemoteAddr;
use uverbs_core::provider::{CompletionQueue as _, CqParts, Driver, QpCreate, QpParts, SrqParts};
use uverbs_core::wc::{WcStatus, WorkCompletion};
use uverbs_core::wr::Sge;
use uverbs_rxe::Rxe;

const LEN: usize = 64 << 10;

/// The time limit of anything that must happen; the host of an emulated machine may be busy for many seconds.
pub(super) const LIMIT: Duration = Duration::from_secs(60);

/// A device, a domain, a region and a completion queue.
pub(super) struct Bench {
    pub(super) driver: Rxe,
    pub(super) info: ContextInfo,
    pub(super) pd: PdHandle,
    pub(super) mr: MrHandle,
    pub(super) memory: &'static [AtomicU8],
    pub(super) cq: CqParts<Rxe>,
    pub(super) gid: Gid,
    pub(super) gid_index: u8,
    pub(super) qp_access: AccessFlags,
}

fn variable(name: &str, default: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| default.to_owned())
}

impl Bench {
    pub(super) fn new() -> Self {
        Self::with_cqe(100)
    }

    pub(super) fn with_cqe(cqe: u32) -> Self {
        let name = variable("LAB_DEV_A", "rxe0");
        let device = devices().unwrap().into_iter().find(|d| d.name == name).expect("a device of that name");
        let fd = UverbsFd::open(&device, &[Rxe::DRIVER_ID]).unwrap();
        let (driver, info) = Rxe::open(Arc::new(fd) as Arc<dyn Kernel>).unwrap();
        let gid_index: u8 = variable("LAB_GID_INDEX", "1").parse().unwrap();
        let gid = query::gid_entry(driver.kernel(), 1_u32, gid_index.into()).unwrap().gid;
        let pd = pd::alloc(driver.kernel(), Uhw::none()).unwrap();
        let memory: &'static [AtomicU8] = Vec::leak((0..LEN).map(|_| AtomicU8::new(0)).collect());
        let addr = memory.as_ptr().expose_provenance() as u64;
        let range = MrRange { addr, length: LEN as u64, iova: addr };
        let access = AccessFlags::LOCAL_WRITE
            | AccessFlags::REMOTE_WRITE
            | AccessFlags::REMOTE_READ
            | AccessFlags::REMOTE_ATOMIC
            | AccessFlags::MW_BIND;
        // SAFETY: the memory is leaked, and consists of atomics.
        let mr = unsafe { mr::reg(info.core_support, &pd, range, access, Uhw::none()) }.unwrap();
        let attr = CqInitAttr { cqe, ..Default::default() };
        let cq = own!(driver.create_cq(&attr, None, 0)).unwrap();
        assert!(cq.cqe >= cqe);
        let qp_access = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC;
        Self { driver, info, pd, mr, memory, cq, gid, gid_index, qp_access }
    }

    pub(super) fn sge(&self, offset: usize, length: u32) -> Sge {
        Sge { addr: self.memory[offset..].as_ptr().expose_provenance() as u64, length, lkey: self.mr.lkey() }
    }

    pub(super) fn remote(&self, offset: usize) -> RemoteAddr {
        RemoteAddr { addr: self.sge(offset, 0).addr, rkey: self.mr.rkey() }
    }

    pub(super) fn put(&self, offset: usize, bytes: &[u8]) {
        for (to, byte) in self.memory[offset..].iter().zip(bytes) {
            to.store(*byte, Ordering::Relaxed);
        }
    }

    pub(super) fn get(&self, offset: usize, len: usize) -> Vec<u8> {
        self.memory[offset..offset + len].iter().map(|b| b.load(Ordering::Acquire)).collect()
    }

    pub(super) fn qp(&self, qp_type: QpType, srq: Option<&SrqParts<Rxe>>) -> QpParts<Rxe> {
        let mut attr = QpInitAttr::new(qp_type);
        attr.cap =
            QpCap { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 4, max_recv_sge: 4, max_inline_data: 64 };
        attr.send_ops_flags = SendOpsFlags::SEND | SendOpsFlags::SEND_WITH_IMM;
        self.create(&attr, srq).unwrap()
    }

    pub(super) fn create(
        &self,
        attr: &QpInitAttr,
        srq: Option<&SrqParts<Rxe>>,
    ) -> uverbs_core::Result<QpParts<Rxe>> {
        let cq = (&self.cq.handle, &self.cq.shared);
        own!(self.driver.create_qp(&QpCreate {
            pd: Some(&self.pd),
            send_cq: Some(cq),
            recv_cq: Some(cq),
            srq: srq.map(|srq| (&srq.handle, &srq.shared)),
            xrcd: None,
            attr,
            td: None,
            exclusive: true,
            data_in_completions: false,
            user_handle: 0,
        }))
    }

    pub(super) fn modify(&self, qp: &QpParts<Rxe>, attr: &QpAttr, mask: QpAttrMask) {
        own!(self.driver.modify_qp(&qp.handle, &qp.shared, attr, mask)).unwrap();
    }

    pub(super) fn state(&self, qp: &QpParts<Rxe>, qp_state: QpState) {
        self.modify(qp, &QpAttr { qp_state, ..Default::default() }, QpAttrMask::STATE);
        assert_eq!(qp.shared.state(), qp_state);
    }

    pub(super) fn init(&self, qp: &QpParts<Rxe>) {
        let attr = QpAttr {
            qp_state: QpState::INIT,
            port_num: 1,
            qkey: 0x1111,
            qp_access_flags: self.qp_access,
            ..Default::default()
        };
        let last =
            if qp.handle.qp_type() == QpType::Ud { QpAttrMask::QKEY } else { QpAttrMask::ACCESS_FLAGS };
        self.modify(qp, &attr, QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | last);
    }

    pub(super) fn rtr(&self, qp: &QpParts<Rxe>, peer: u32) {
        let attr = QpAttr {
            qp_state: QpState::RTR,
            path_mtu: Mtu::MTU_1024,
            dest_qp_num: peer,
            max_dest_rd_atomic: 4,
            min_rnr_timer: 1,
            ah_attr: AhAttr::global(1, self.gid_index, self.gid),
            ..Default::default()
        };
        use QpAttrMask as M;
        let connected = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
        self.modify(
            qp,
            &attr,
            M::STATE
                | match qp.handle.qp_type() {
                    QpType::Rc => connected | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER,
                    QpType::Uc => connected,
                    _ => M::empty(),
                },
        );
    }

    pub(super) fn rts(&self, qp: &QpParts<Rxe>) {
        let attr = QpAttr {
            qp_state: QpState::RTS,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            max_rd_atomic: 4,
            ..Default::default()
        };
        use QpAttrMask as M;
        let mask = match qp.handle.qp_type() {
            QpType::Rc => M::SQ_PSN | M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC,
            _ => M::SQ_PSN,
        };
        self.modify(qp, &attr, M::STATE | mask);
    }

    pub(super) fn connect(&self, a: &QpParts<Rxe>, b: &QpParts<Rxe>) {
        self.init(a);
        self.init(b);
        self.rtr(a, b.handle.qp_num());
        self.rtr(b, a.handle.qp_num());
        self.rts(a);
        self.rts(b);
    }

    pub(super) fn pair(&self, qp_type: QpType) -> (QpParts<Rxe>, QpParts<Rxe>) {
        let (a, b) = (self.qp(qp_type, None), self.qp(qp_type, None));
        self.connect(&a, &b);
        (a, b)
    }

    /// Waits for `n` completions.
    pub(super) fn wait(&mut self, n: usize) -> Vec<WorkCompletion> {
        let (mut got, end) = (Vec::new(), Instant::now() + LIMIT);
        while got.len() < n {
            assert!(Instant::now() < end, "{} of {n} completions: {got:?}", got.len());
            let mut wc = [WorkCompletion::default(); 8];
            let max = wc.len().min(n - got.len());
            let polled = self.cq.queue.poll_cq(&mut wc[..max]).unwrap();
            got.extend_from_slice(&wc[..polled]);
            if polled == 0 {
                std::thread::yield_now();
            }
        }
        got
    }

    /// Checks that no completion arrives.
    pub(super) fn quiet(&mut self) {
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(self.cq.queue.poll_cq(&mut [WorkCompletion::default(); 4]), Ok(0));
    }

    /// Waits for `n` completions, all of which must succeed; they are sorted by `wr_id`.
    pub(super) fn wait_ok(&mut self, n: usize) -> Vec<WorkCompletion> {
        let mut got = self.wait(n);
        got.sort_by_key(|wc| wc.wr_id);
        assert!(got.iter().all(|wc| wc.status == WcStatus::SUCCESS), "{got:?}");
        got
    }

    pub(super) fn close(self, qps: impl IntoIterator<Item = QpParts<Rxe>>) {
        for qp in qps {
            own!(self.driver.destroy_qp(qp.handle, &qp.shared)).unwrap();
        }
        self.mr.destroy().unwrap();
        self.cq.handle.destroy().unwrap();
        self.pd.destroy().unwrap();
        drop(self.info);
    }
}
