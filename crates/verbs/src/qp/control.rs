// SPDX-License-Identifier: MIT OR Apache-2.0
//! The states of a queue pair: modify, query, connect, multicast (ibv_modify_qp(3), ibv_query_qp(3), ibv_attach_mcast(3)).

use crate::brief::brief;
use crate::connect::{ConnectAttr, Endpoint};
use crate::event::EventReader;
use crate::open::AnyDriver;
use crate::qp::inner::QpInner;
use std::sync::{Arc, Weak};
use uverbs_core::Errno;
#[cfg(feature = "tracing")]
use uverbs_core::attr::AhAttr;
use uverbs_core::attr::{
    DriverQp, Ece, Gid, QpAttr, QpAttrMask, QpCap, QpInitAttr, QpRateLimitAttr, QpState, QpType,
};
use uverbs_core::error::{Error, Result};
use uverbs_core::provider::{Driver, Object as _, QpObject as _};

/// The states of a QP, and queries. Clones refer to the same QP.
pub struct QpControl<D: Driver = AnyDriver> {
    inner: Arc<QpInner<D>>,
}

brief!([D: Driver] QpControl<D>, |this| "{:?}", this.inner);

impl<D: Driver> Clone for QpControl<D> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

/// Tells whether a QP has ended, without keeping it; see [`QpControl::life`].
#[derive(Clone, Debug)]
pub struct QpLife(Weak<()>);

impl QpLife {
    /// Whether the kernel has destroyed the QP, and its completions were removed from its CQs. A QP that the kernel refuses to destroy
    /// does not end.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.0.strong_count() == 0
    }
}

impl<D: Driver> QpControl<D> {
    pub(crate) fn new(inner: Arc<QpInner<D>>) -> Self {
        Self { inner }
    }

    /// The kernel object.
    pub(crate) fn object(&self) -> Result<&D::Qp> {
        self.inner.object()
    }

    pub(crate) fn context(&self) -> &Arc<crate::context::ContextInner<D>> {
        self.inner.context()
    }

    /// The life of the QP, which the halves and the controls keep.
    #[must_use]
    pub fn life(&self) -> QpLife {
        QpLife(Arc::downgrade(self.inner.life()))
    }

    /// Whether the QP receives from a shared queue.
    pub(crate) fn has_srq(&self) -> bool {
        self.inner.has_srq() || self.qp_type() == QpType::XrcRecv
    }

    /// Whether the QP, which is in ERR, takes no more receives of its shared queue: the event `QP_LAST_WQE_REACHED` was read since
    /// the last RESET, by any reader of the context's events, or the device had flushed the QP when `modify_qp` to ERR returned
    /// (by a driver that knows it; its device does not raise the event).
    #[must_use]
    pub fn has_last_wqe(&self) -> bool {
        self.inner.events().is_some_and(|events| events.has_last_wqe())
            || self.inner.object().is_ok_and(|qp| qp.is_flushed())
    }

    /// Waits a short time for an event of the context.
    pub(crate) fn event_step(&self) -> Result<()> {
        EventReader::step(self.inner.context())
    }

    pub(crate) fn holds(&self) -> &crate::Holds<D> {
        self.inner.holds()
    }

    /// Destroys a QP that has only its control: the receiving side of XRC. On failure, which `Drop` would only log,
    /// returns the error.
    ///
    /// # Errors
    /// `EBUSY` while a half or another control of the QP exists; otherwise the kernel's error.
    pub fn close(self) -> Result<()> {
        match Arc::into_inner(self.inner) {
            Some(mut inner) => inner.destroy(),
            None => Err(Error::Os {
                verb: "destroy_qp",
                object: "qp: its halves or controls are still in use".into(),
                errno: Errno::EBUSY,
            }),
        }
    }

    /// The QP's number, 24 bits.
    #[must_use]
    pub fn qp_num(&self) -> u32 {
        self.inner.qp_num()
    }

    /// The name of its device.
    #[must_use]
    pub fn device(&self) -> &str {
        self.inner.context().name()
    }

    /// Its transport.
    #[must_use]
    pub fn qp_type(&self) -> QpType {
        self.inner.qp_type()
    }

    /// GUID of its device, host order.
    ///
    /// # Errors
    /// As [`Context::query_device`](crate::Context::query_device).
    pub fn node_guid(&self) -> Result<u64> {
        self.inner.context().node_guid()
    }

    /// The actual sizes, which are at least the requested ones.
    #[must_use]
    pub fn cap(&self) -> &QpCap {
        self.inner.cap()
    }

    /// `ibv_query_ece`: the options of enhanced connection establishment that the QP offers, or has agreed on.
    ///
    /// # Errors
    /// `Unsupported` if the driver or the kernel has no ECE.
    pub fn query_ece(&self) -> Result<Ece> {
        self.inner.object()?.query_ece()
    }

    /// `ibv_set_ece`: sets the options of the peer, which the next [`modify`](Self::modify) passes to the device.
    ///
    /// # Errors
    /// As [`query_ece`](Self::query_ece).
    pub fn set_ece(&self, ece: Ece) -> Result<()> {
        self.inner.object()?.set_ece(ece)
    }

    /// `ibv_modify_qp_rate_limit`: limits the send rate of the QP, if the device can.
    ///
    /// # Errors
    /// `Unsupported` if the device does not pace packets; otherwise the kernel's error.
    pub fn modify_rate_limit(&self, attr: &QpRateLimitAttr) -> Result<()> {
        self.inner.object()?.modify_rate_limit(attr)
    }

    /// `ibv_modify_qp`. If the kernel returns `EINVAL`, the error names the attributes that the transition needs.
    ///
    /// It may be called while other threads post and poll. A RESET empties the queues. A batch or session that was
    /// begun before the RESET fails with `BadState` when it is completed. If it is completed during the RESET, it may
    /// instead be posted and discarded, and no completion reports which of the two happened. WRs that were posted
    /// before a RESET have no completion after it. A program that needs the outcome of its work requests must stop
    /// posting before the RESET.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the transition does not exist, or needs or excludes an attribute, or a value is above the
    /// device's limit; otherwise the kernel's error.
    pub fn modify(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<()> {
        let inner = &self.inner;
        let object = inner.object()?;
        let turns_to = |state| mask.contains(QpAttrMask::STATE) && attr.qp_state == state;
        let is_reset = turns_to(QpState::RESET);
        // One change at a time, so that what is forgotten here is not that of the next life.
        let changes = self.has_srq().then(|| inner.changes().lock()).transpose();
        let changes =
            changes.map_err(|_| Error::os("modify_qp", "qp of the parent process", Errno::ESTALE))?;
        if is_reset {
            inner.flush_receives();
        }
        // Only a QP that receives raises the event; one that the kernel has queued since the RESET is of the life before.
        if turns_to(QpState::RTR) {
            self.begin_life();
        }
        let modified = object.modify(attr, mask);
        if is_reset {
            if modified.is_ok() {
                self.begin_life();
            }
            inner.take_back_receives();
        }
        // What gets the report is code of the program.
        drop(changes);
        self.report(attr, mask, &modified);
        modified
    }

    /// Reports a change of the state.
    fn report(&self, attr: &QpAttr, mask: QpAttrMask, modified: &Result<()>) {
        if !mask.contains(QpAttrMask::STATE) {
            return;
        }
        let (device, qp_num, state) = (self.device(), self.qp_num(), attr.qp_state);
        #[cfg(feature = "tracing")]
        let (peer, connects) =
            (self.peer(attr, mask, modified.is_ok()), self.inner.connects(state, modified.is_ok()));
        match modified {
            Ok(()) => crate::report!(
                debug,
                { device, qp_num, state = ?state, peer = peer.map(tracing::field::display), connects },
                "qp {qp_num:#x} of {device}: {state:?}"
            ),
            Err(error) => crate::report!(
                debug,
                { device, qp_num, state = ?state, peer = peer.map(tracing::field::display), connects },
                "qp {qp_num:#x} of {device}: not {state:?}: {error}"
            ),
        }
    }

    /// The peer after a change of the state, which the queues keep for their errors.
    #[cfg(feature = "tracing")]
    fn peer(&self, attr: &QpAttr, mask: QpAttrMask, is_modified: bool) -> Option<crate::flight::Peer> {
        let named = mask.contains(QpAttrMask::DEST_QPN | QpAttrMask::AV).then(|| {
            let AhAttr { grh, dlid, .. } = attr.ah_attr;
            let gid = grh.map_or(Gid::ZERO, |grh| grh.dgid);
            crate::flight::Peer { qp_num: attr.dest_qp_num, gid, lid: dlid }
        });
        let flights = self.holds().all();
        if is_modified && (named.is_some() || attr.qp_state == QpState::RESET) {
            flights.iter().for_each(|flight| flight.set_peer(named));
        }
        named.or_else(|| flights.first()?.peer())
    }

    /// The event `QP_LAST_WQE_REACHED` of the life before does not count.
    fn begin_life(&self) {
        if self.has_srq()
            && let Some(events) = self.inner.events()
        {
            EventReader::begin_life(self.inner.context(), &events);
        }
    }

    /// `ibv_query_qp`. The size of the send queue is that of [`cap`](Self::cap), because not every kernel reports it (mlx5_ib
    /// returns 0). A driver adds the state if its kernel driver does not report it (siw's before 6.8).
    ///
    /// # Errors
    /// The kernel's error.
    pub fn query(&self, mask: QpAttrMask) -> Result<(QpAttr, QpInitAttr)> {
        let (mut attr, mut init) = self.inner.object()?.query(mask)?;
        let QpCap { max_send_wr, max_send_sge, max_inline_data, .. } = *self.cap();
        for cap in [&mut attr.cap, &mut init.cap] {
            *cap = cap.max_send_wr(max_send_wr).max_send_sge(max_send_sge).inline(max_inline_data);
        }
        Ok((attr, init))
    }

    /// Queries the state.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn state(&self) -> Result<QpState> {
        Ok(self.query(QpAttrMask::STATE)?.0.qp_state)
    }

    /// Whether each of its work requests names its destination by an address handle and a queue key.
    pub(crate) fn is_datagram(&self) -> bool {
        match self.qp_type() {
            QpType::Ud => true,
            QpType::Driver => self.is_srd(),
            _ => false,
        }
    }

    fn is_srd(&self) -> bool {
        self.qp_type() == QpType::Driver && self.inner.context().driver().driver_qp() == Some(DriverQp::Srd)
    }

    /// Changes only the state: to RESET or ERR, or for another transition without required attributes.
    ///
    /// # Errors
    /// As [`modify`](Self::modify).
    pub fn modify_state(&self, state: QpState) -> Result<()> {
        self.modify(&QpAttr::new().qp_state(state), QpAttrMask::STATE)
    }

    /// Moves the QP from RESET to INIT; receives can be posted then.
    ///
    /// # Errors
    /// As [`modify`](Self::modify).
    pub fn init(&self, attr: &ConnectAttr) -> Result<()> {
        let mut mask = QpAttrMask::STATE | QpAttrMask::PORT;
        if self.qp_type() != QpType::RawPacket {
            mask |= QpAttrMask::PKEY_INDEX;
        }
        match self.qp_type() {
            _ if self.is_datagram() => mask |= QpAttrMask::QKEY,
            QpType::RawPacket => {}
            _ => mask |= QpAttrMask::ACCESS_FLAGS,
        }
        let qp_attr = QpAttr::new()
            .qp_state(QpState::INIT)
            .pkey_index(attr.pkey_index)
            .port_num(attr.port_num)
            .qkey(attr.qkey)
            .qp_access_flags(attr.access);
        self.modify(&qp_attr, mask)
    }

    /// Moves the QP from INIT to RTR, expecting packets from `remote`.
    ///
    /// # Errors
    /// [`Error::Invalid`] on RoCE if the port or the peer has no GID; otherwise as [`modify`](Self::modify).
    pub fn ready_to_receive(&self, remote: &Endpoint, attr: &ConnectAttr) -> Result<()> {
        let attr = self.addressed(remote, attr)?;
        let (qp_attr, mask) = self.rtr(remote, &attr);
        self.modify(&qp_attr, mask)
    }

    /// The parameters with the index of the GID, if the QP has an address vector (connected QPs).
    fn addressed(&self, remote: &Endpoint, attr: &ConnectAttr) -> Result<ConnectAttr> {
        if !self.qp_type().is_connected() {
            return Ok(*attr);
        }
        attr.check_peer(self.inner.context(), remote)?;
        attr.resolve(self.inner.context())
    }

    fn rtr(&self, remote: &Endpoint, attr: &ConnectAttr) -> (QpAttr, QpAttrMask) {
        let mut qp_attr = QpAttr::new().qp_state(QpState::RTR);
        let mut mask = QpAttrMask::STATE;
        if self.qp_type().is_connected() {
            qp_attr.path_mtu = attr.path_mtu.unwrap_or_default();
            qp_attr.dest_qp_num = remote.qp_num;
            qp_attr.rq_psn = remote.psn;
            qp_attr.ah_attr = attr.ah_attr(remote);
            mask |= QpAttrMask::AV | QpAttrMask::PATH_MTU | QpAttrMask::DEST_QPN | QpAttrMask::RQ_PSN;
        }
        if matches!(self.qp_type(), QpType::Rc | QpType::XrcRecv) {
            qp_attr.max_dest_rd_atomic = attr.max_dest_rd_atomic;
            qp_attr.min_rnr_timer = attr.min_rnr_timer;
            mask |= QpAttrMask::MAX_DEST_RD_ATOMIC | QpAttrMask::MIN_RNR_TIMER;
        }
        (qp_attr, mask)
    }

    /// Moves the QP from RTR to RTS, sending from `local.psn` on. An SRD QP gets `rnr_retry`, if the device has retries.
    ///
    /// # Errors
    /// As [`modify`](Self::modify).
    pub fn ready_to_send(&self, local: &Endpoint, attr: &ConnectAttr) -> Result<()> {
        let (qp_attr, mask) = self.rts(local, attr);
        if self.is_srd() {
            // The first devices have no retries. Such a device refuses the attribute, and nothing is changed then.
            match self.modify(&qp_attr.rnr_retry(attr.rnr_retry), mask | QpAttrMask::RNR_RETRY) {
                Err(error) if matches!(error.errno(), Errno::EINVAL | Errno::EOPNOTSUPP) => {}
                done => return done,
            }
        }
        self.modify(&qp_attr, mask)
    }

    fn rts(&self, local: &Endpoint, attr: &ConnectAttr) -> (QpAttr, QpAttrMask) {
        let mut qp_attr = QpAttr::new().qp_state(QpState::RTS);
        let mut mask = QpAttrMask::STATE;
        if self.qp_type() != QpType::RawPacket {
            qp_attr.sq_psn = local.psn;
            mask |= QpAttrMask::SQ_PSN;
        }
        match self.qp_type() {
            QpType::Rc | QpType::XrcSend => {
                qp_attr.timeout = attr.timeout;
                qp_attr.retry_cnt = attr.retry_cnt;
                qp_attr.rnr_retry = attr.rnr_retry;
                qp_attr.max_rd_atomic = attr.max_rd_atomic;
                mask |= QpAttrMask::TIMEOUT
                    | QpAttrMask::RETRY_CNT
                    | QpAttrMask::RNR_RETRY
                    | QpAttrMask::MAX_QP_RD_ATOMIC;
            }
            QpType::XrcRecv => {
                qp_attr.timeout = attr.timeout;
                mask |= QpAttrMask::TIMEOUT;
            }
            _ => {}
        }
        (qp_attr, mask)
    }

    /// Moves the QP from INIT to RTS, connected to `remote` (which a datagram QP ignores). `local` is this side's
    /// endpoint.
    ///
    /// Values that are invalid for RTS are refused before the first transition, so the QP is still in INIT then and can
    /// be connected with other values.
    ///
    /// # Errors
    /// [`Error::Invalid`] for such a value, and on RoCE if the port or the peer has no GID, both before the first
    /// transition; otherwise as [`modify`](Self::modify).
    pub fn connect(&self, local: &Endpoint, remote: &Endpoint, attr: &ConnectAttr) -> Result<()> {
        let (qp_attr, mask) = self.rts(local, attr);
        self.inner.object()?.handle().check_values(&qp_attr, mask)?;
        self.ready_to_receive(remote, attr)?;
        self.ready_to_send(local, attr)
    }

    /// This side's endpoint for the exchange, with the LID and GID of the port that `attr` names.
    ///
    /// # Errors
    /// On RoCE, those of [`best_gid`](crate::Context::best_gid) where `attr` names no GID; [`Error::Invalid`] for a
    /// port or a GID that does not exist; otherwise the kernel's error.
    pub fn endpoint(&self, psn: u32, attr: &ConnectAttr) -> Result<Endpoint> {
        let attr = attr.resolve(self.inner.context())?;
        let kernel = self.inner.context().kernel();
        let port = uverbs_core::control::query::port(kernel, attr.port_num)?;
        let gid = match attr.sgid_index {
            Some(index) => uverbs_core::control::query::gid_entry(kernel, attr.port_num, index.into())?.gid,
            None => Gid::ZERO,
        };
        Ok(Endpoint { lid: port.lid, qp_num: self.qp_num(), psn: psn & 0xff_ffff, gid })
    }

    /// `ibv_attach_mcast`: the QP, which must be a datagram QP, receives the datagrams to the group.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a QP that is not UD, or a GID that is not a multicast group; otherwise the kernel's
    /// error.
    pub fn attach_mcast(&self, gid: Gid, lid: u16) -> Result<()> {
        uverbs_core::control::mcast::attach(self.inner.object()?.handle(), gid, lid)
    }

    /// `ibv_detach_mcast`: the QP receives the datagrams to the group no longer.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a GID that is not a multicast group; otherwise the kernel's error: `EINVAL` if it is not
    /// attached.
    pub fn detach_mcast(&self, gid: Gid, lid: u16) -> Result<()> {
        uverbs_core::control::mcast::detach(self.inner.object()?.handle(), gid, lid)
    }
}
