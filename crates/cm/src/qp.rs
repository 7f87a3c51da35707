// SPDX-License-Identifier: MIT OR Apache-2.0
//! The states of an identifier's QP, by the attributes that the kernel's connection manager has for it.

use crate::error::{Error, Result};
use crate::id::Id;
use crate::param::ConnParam;
use uverbs::Qp;
use uverbs::attr::{
    AccessFlags, AhAttr, Gid, GlobalRoute, MigState, Mtu, QpAttr, QpAttrMask, QpCap, QpState, QpType,
};
use uverbs::qp::QpControl;
use uverbs::qp::Transport;
use uverbs::qp::transport::Sends;
use uverbs::{Driver, raw};
use uverbs_core::sync::Locking;
use uverbs_uapi::cmd::{ib_uverbs_ah_attr, ib_uverbs_qp_attr};
use uverbs_uapi::rdma_cm::{RDMA_USER_CM_CMD_INIT_QP_ATTR, rdma_ucm_init_qp_attr};
use zerocopy::IntoBytes;

/// A QP that can be connected: a [`Qp`], or a [`raw::Qp`].
pub trait Connectable {
    /// Its driver.
    type Driver: Driver;

    /// Its states.
    fn control(&self) -> &QpControl<Self::Driver>;

    /// Destroys it.
    ///
    /// # Errors
    /// The kernel's error.
    fn close(self) -> uverbs::Result<()>;
}

impl<D: Driver, T: Transport, L: Locking> Connectable for raw::Qp<T, L, D> {
    type Driver = D;

    fn control(&self) -> &QpControl<D> {
        &self.control
    }

    fn close(self) -> uverbs::Result<()> {
        Self::close(self)
    }
}

impl<D: Driver, T: Sends, L: Locking> Connectable for Qp<T, L, D> {
    type Driver = D;

    fn control(&self) -> &QpControl<D> {
        Self::control(self)
    }

    fn close(self) -> uverbs::Result<()> {
        Self::close(self)
    }
}

/// A QP without queues: the receiving side of XRC.
impl<D: Driver> Connectable for QpControl<D> {
    type Driver = D;

    fn control(&self) -> &Self {
        self
    }

    fn close(self) -> uverbs::Result<()> {
        Self::close(self)
    }
}

impl Id {
    /// `rdma_init_qp_attr`: the attributes that move its QP to a state: INIT, RTR or RTS. On iWARP those of RTS are none:
    /// the kernel moves the QP when it connects or accepts.
    ///
    /// # Errors
    /// The kernel's error: `EINVAL` if the connection has not reached that state; [`Error::Disconnected`] for the identifier of a
    /// request whose peer has given up.
    pub fn init_qp_attr(&self, state: QpState) -> Result<(QpAttr, QpAttrMask)> {
        let command = rdma_ucm_init_qp_attr { response: 0, id: self.number(), qp_state: state.0 };
        let mut answer = ib_uverbs_qp_attr::default();
        const VERB: &str = "init_qp_attr";
        self.channel()
            .port()
            .command(RDMA_USER_CM_CMD_INIT_QP_ATTR, command.as_bytes(), answer.as_mut_bytes())
            .map_err(|errno| match self.has_ended(state, errno) {
                true => Error::Disconnected { verb: VERB, object: self.object() },
                false => self.error(VERB, errno),
            })?;
        let (mut attr, mask) = qp_attr(&answer);
        if state == QpState::RTS && QpAttrMask::PORT.contains(mask) {
            return Ok((attr, QpAttrMask::empty()));
        }
        // A kernel does not fill in the state of datagram QPs in every case.
        attr.qp_state = state;
        Ok((attr, mask | QpAttrMask::STATE))
    }

    /// Moves a QP from RESET to INIT; receives can be posted then. A datagram QP is moved to RTS. The peer gets the access
    /// rights of `param`.
    ///
    /// # Errors
    /// As [`Id::init_qp_attr`], and those of `modify_qp`; a QP of another device than that of the identifier is invalid, as are values
    /// of `param` that are out of range.
    pub fn init_qp<D: Driver>(&self, qp: &QpControl<D>, param: &ConnParam) -> Result<()> {
        param.check("init_qp")?;
        self.check_type(qp.qp_type())?;
        self.check_device(qp)?;
        #[cfg(feature = "tracing")]
        crate::names::set(self.token(), qp.device(), qp.qp_num(), self.bound().ok().and_then(|b| b.remote));
        self.move_qp(qp, QpState::INIT, param)?;
        if self.is_datagram() {
            qp.modify_state(QpState::RTR)?;
            let rts = QpAttr::new().qp_state(QpState::RTS);
            qp.modify(&rts, QpAttrMask::STATE | QpAttrMask::SQ_PSN)?;
        }
        Ok(())
    }

    /// Fails if only one of the QP and the identifier is for datagrams: the kernel would refuse the QP's attributes.
    fn check_type(&self, qp_type: QpType) -> Result<()> {
        let is_datagram = self.is_datagram();
        if (qp_type == QpType::Ud) == is_datagram {
            return Ok(());
        }
        let wanted = if is_datagram { "datagrams" } else { "connections" };
        Err(Error::invalid("init_qp", "qp", format!("{qp_type}, but {} is for {wanted}", self.object())))
    }

    /// Fails if the QP is one of another device, as `rdma_create_qp` does: the connection would be established, but no message would
    /// reach the peer. Devices without a GUID are not compared.
    fn check_device<D: Driver>(&self, qp: &QpControl<D>) -> Result<()> {
        let own = qp.node_guid()?;
        match self.bound()?.node_guid {
            Some(guid) if guid != own && guid != 0 && own != 0 => {
                let reason =
                    format!("of the device with the node_guid {own:#x}; the connection is on {guid:#x}");
                Err(Error::invalid("init_qp", "qp", reason))
            }
            _ => Ok(()),
        }
    }

    /// Moves a connected QP from INIT to RTS: before `accept`, or after the event of the peer's acceptance. It gets the
    /// [timers](ConnParam#timers) of `param`, and the depths that [`accept`](Id::accept) sends.
    ///
    /// # Errors
    /// As [`Id::init_qp`].
    pub fn connect_qp<D: Driver>(&self, qp: &QpControl<D>, param: &ConnParam) -> Result<()> {
        param.check("connect_qp")?;
        if self.is_datagram() {
            return Ok(());
        }
        self.move_qp(qp, QpState::RTR, param)?;
        self.move_qp(qp, QpState::RTS, param)
    }

    /// Whether the connection is one of iWARP, whose QPs have no partition key.
    pub(crate) fn is_iwarp(&self) -> Result<bool> {
        let (_, mask) = self.init_qp_attr(QpState::INIT)?;
        Ok(!mask.contains(QpAttrMask::PKEY_INDEX))
    }

    /// The kernel's attributes, with the values of this side. `modify_qp` ignores those that the kernel's mask does not have:
    /// the timers of iWARP, and of a side of XRC that has one of them.
    fn move_qp<D: Driver>(&self, qp: &QpControl<D>, state: QpState, param: &ConnParam) -> Result<()> {
        let (mut attr, mask) = self.init_qp_attr(state)?;
        if mask.is_empty() {
            return Ok(());
        }
        attr.qp_access_flags = param.access;
        if let Some((served, outstanding)) = self.agreed_depths(param) {
            attr.max_dest_rd_atomic = served;
            attr.max_rd_atomic = outstanding;
        }
        if param.qkey != 0 {
            attr.qkey = param.qkey;
        }
        // The kernel's is 0 (655 ms), which a program can't change (`ucma_set_option_id()` has no option for it).
        attr.min_rnr_timer = param.min_rnr_timer;
        if let Some(timeout) = param.timeout(self.has_ack_timeout()) {
            attr.timeout = timeout;
        }
        Ok(qp.modify(&attr, mask)?)
    }
}

/// An address as the kernel gives it.
pub(crate) fn ah_attr(raw: &ib_uverbs_ah_attr) -> AhAttr {
    let grh = GlobalRoute::new(Gid(raw.grh.dgid))
        .flow_label(raw.grh.flow_label)
        .sgid_index(raw.grh.sgid_index)
        .hop_limit(raw.grh.hop_limit)
        .traffic_class(raw.grh.traffic_class);
    AhAttr::new(raw.port_num)
        .grh((raw.is_global != 0).then_some(grh))
        .dlid(raw.dlid)
        .sl(raw.sl)
        .src_path_bits(raw.src_path_bits)
        .static_rate(raw.static_rate)
}

/// Attributes of a QP as the kernel gives them. Values are not checked here: `modify_qp` does.
fn qp_attr(raw: &ib_uverbs_qp_attr) -> (QpAttr, QpAttrMask) {
    let attr = QpAttr::new()
        .qp_state(QpState(raw.qp_state))
        .cur_qp_state(QpState(raw.cur_qp_state))
        .path_mtu(u8::try_from(raw.path_mtu).map(Mtu).unwrap_or_default())
        .path_mig_state(MigState(raw.path_mig_state))
        .qkey(raw.qkey)
        .rq_psn(raw.rq_psn)
        .sq_psn(raw.sq_psn)
        .dest_qp_num(raw.dest_qp_num)
        .qp_access_flags(AccessFlags::from_bits_retain(raw.qp_access_flags))
        .cap(
            QpCap::new(raw.max_send_wr, raw.max_recv_wr)
                .sge(raw.max_send_sge, raw.max_recv_sge)
                .inline(raw.max_inline_data),
        )
        .ah_attr(ah_attr(&raw.ah_attr))
        .alt_ah_attr(ah_attr(&raw.alt_ah_attr))
        .pkey_index(raw.pkey_index)
        .alt_pkey_index(raw.alt_pkey_index)
        .en_sqd_async_notify(raw.en_sqd_async_notify != 0)
        .sq_draining(raw.sq_draining != 0)
        .max_rd_atomic(raw.max_rd_atomic)
        .max_dest_rd_atomic(raw.max_dest_rd_atomic)
        .min_rnr_timer(raw.min_rnr_timer)
        .port_num(raw.port_num)
        .timeout(raw.timeout)
        .retry_cnt(raw.retry_cnt)
        .rnr_retry(raw.rnr_retry)
        .alt_port_num(raw.alt_port_num)
        .alt_timeout(raw.alt_timeout);
    (attr, QpAttrMask::from_bits_retain(raw.qp_attr_mask))
}
