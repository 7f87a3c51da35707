// SPDX-License-Identifier: MIT OR Apache-2.0
//! Creation and destruction of objects. Each of these functions is a command of the admin queue.

use super::cq::{Cq, CqParams};
use super::mr::{Access, Mr};
use super::qp::{Qp, QpParams};
use super::{Ah, Caps, Device, Port, Refusal};
use std::sync::Arc;
use uverbs_fabric::Users;
use uverbs_fabric::memory::Memory;

/// The users of objects.
#[derive(Debug, Default)]
pub(super) struct AllUsers {
    of_pds: Users<u16>,
    of_cqs: Users<u16>,
    of_uars: Users<u16>,
}

/// The keys of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys {
    /// Of this side.
    pub lkey: u32,
    /// For peers.
    pub rkey: u32,
}

impl Device {
    /// A new protection domain.
    ///
    /// # Errors
    /// There are too many.
    pub fn alloc_pd(&mut self) -> Result<u16, Refusal> {
        self.pds.alloc().map(|pd| pd as u16).ok_or(Refusal::NoResources)
    }

    /// Frees a protection domain.
    ///
    /// # Errors
    /// There is none, or objects belong to it.
    pub fn dealloc_pd(&mut self, pd: u16) -> Result<(), Refusal> {
        if self.users.of_pds.has(&pd) {
            return Err(Refusal::Busy);
        }
        if self.pds.free(pd.into()) { Ok(()) } else { Err(Refusal::Illegal) }
    }

    pub(crate) fn check_pd(&self, pd: u16) -> Result<(), Refusal> {
        if self.pds.has(pd.into()) { Ok(()) } else { Err(Refusal::Illegal) }
    }

    /// A page of doorbells.
    ///
    /// # Errors
    /// There are too many.
    pub fn alloc_uar(&mut self) -> Result<u16, Refusal> {
        self.uars.alloc().map(|uar| uar as u16).ok_or(Refusal::NoResources)
    }

    /// Frees a page of doorbells.
    ///
    /// # Errors
    /// There is none, or queues use it.
    pub fn dealloc_uar(&mut self, uar: u16) -> Result<(), Refusal> {
        if self.users.of_uars.has(&uar) {
            return Err(Refusal::Busy);
        }
        if self.uars.free(uar.into()) { Ok(()) } else { Err(Refusal::Illegal) }
    }

    /// Creates an address handle.
    ///
    /// # Errors
    /// There are too many, or there is no such domain.
    pub fn create_ah(&mut self, pd: u16, gid: [u8; 16]) -> Result<u16, Refusal> {
        self.check_pd(pd)?;
        if let Some(number) = self.ahs_of.get(&(pd, gid)).copied() {
            let ah = self.ahs.get_mut(&number).ok_or(Refusal::Illegal)?;
            ah.users = ah.users.checked_add(1).ok_or(Refusal::NoResources)?;
            return Ok(number);
        }
        let number = self.ah_numbers.alloc().ok_or(Refusal::NoResources)? as u16;
        self.ahs.insert(number, Ah { pd, gid, users: 1 });
        self.ahs_of.insert((pd, gid), number);
        self.users.of_pds.add(pd);
        Ok(number)
    }

    /// Destroys an address handle. Requests that use it complete with an error.
    ///
    /// # Errors
    /// There is none in this domain.
    pub fn destroy_ah(&mut self, port: &mut Port<'_>, pd: u16, number: u16) -> Result<(), Refusal> {
        let ah = self.ahs.get_mut(&number).filter(|ah| ah.pd == pd).ok_or(Refusal::Illegal)?;
        ah.users -= 1;
        if ah.users == 0 {
            let gid = ah.gid;
            self.ahs.remove(&number);
            self.ahs_of.remove(&(pd, gid));
            self.ah_numbers.free(number.into());
            self.users.of_pds.remove(&pd);
            self.forget_ah(port, number);
        }
        Ok(())
    }

    /// The peer's GID of an address handle.
    pub(super) fn gid_of(&self, pd: u16, ah: u16) -> Option<[u8; 16]> {
        self.ahs.get(&ah).filter(|ah| ah.pd == pd).map(|ah| ah.gid)
    }

    /// The address handle of a peer in a domain.
    pub(super) fn ah_of(&self, pd: u16, gid: [u8; 16]) -> Option<u16> {
        self.ahs_of.get(&(pd, gid)).copied()
    }

    /// Registers memory, whose address in requests is `iova`.
    ///
    /// # Errors
    /// There are too many regions; there is no such domain; the device lacks an access; the address range wraps around.
    pub fn reg_mr(
        &mut self,
        pd: u16,
        memory: Arc<dyn Memory>,
        iova: u64,
        access: Access,
    ) -> Result<Keys, Refusal> {
        self.check_pd(pd)?;
        let is_lacking =
            access.remote_read && !self.caps.reads() || access.remote_write && !self.caps.writes();
        if is_lacking || iova.checked_add(memory.len()).is_none() {
            return Err(Refusal::Illegal);
        }
        let number = self.mr_numbers.alloc().ok_or(Refusal::NoResources)?;
        self.mrs.insert(number, Mr { pd, memory, iova, access });
        self.users.of_pds.add(pd);
        Ok(Mr::keys(number))
    }

    /// Deregisters memory.
    ///
    /// # Errors
    /// There is no region with this key.
    pub fn dereg_mr(&mut self, lkey: u32) -> Result<(), Refusal> {
        let mr = self.mrs.remove(&lkey).ok_or(Refusal::Illegal)?;
        self.mr_numbers.free(lkey);
        self.users.of_pds.remove(&mr.pd);
        Ok(())
    }

    /// Creates a CQ.
    ///
    /// # Errors
    /// There are too many; a size is not allowed; the ring is too short.
    pub fn create_cq(&mut self, params: CqParams) -> Result<u16, Refusal> {
        let uar = params.uar;
        if !self.uars.has(uar.into()) || params.sub_cqs != self.caps.sub_cqs {
            return Err(Refusal::Illegal);
        }
        let cq = Cq::new(params).ok_or(Refusal::Illegal)?;
        let number = self.cq_numbers.alloc().ok_or(Refusal::NoResources)? as u16;
        self.cqs.insert(number, cq);
        self.users.of_uars.add(uar);
        Ok(number)
    }

    /// Destroys a CQ.
    ///
    /// # Errors
    /// There is none, or QPs use it.
    pub fn destroy_cq(&mut self, number: u16) -> Result<(), Refusal> {
        if self.users.of_cqs.has(&number) {
            return Err(Refusal::Busy);
        }
        let cq = self.cqs.remove(&number).ok_or(Refusal::Illegal)?;
        self.cq_numbers.free(number.into());
        self.users.of_uars.remove(&cq.uar());
        Ok(())
    }

    /// Whether a QP uses a CQ.
    #[must_use]
    pub fn uses_cq(&self, number: u16) -> bool {
        self.users.of_cqs.has(&number)
    }

    /// Whether an object belongs to a domain.
    #[must_use]
    pub fn uses_pd(&self, pd: u16) -> bool {
        self.users.of_pds.has(&pd)
    }

    /// Creates a QP.
    ///
    /// # Errors
    /// There are too many; there is no such domain, CQ or page; a size is not allowed; the device lacks a feature.
    pub fn create_qp(&mut self, params: QpParams) -> Result<u16, Refusal> {
        self.check_pd(params.pd)?;
        let cqs = [params.send_cq, params.recv_cq];
        if !self.uars.has(params.uar.into()) || cqs.iter().any(|cq| !self.cqs.contains_key(cq)) {
            return Err(Refusal::Illegal);
        }
        if params.unsolicited && !self.caps.unsolicited() {
            return Err(Refusal::Illegal);
        }
        let index = self.qp_numbers.alloc().ok_or(Refusal::NoResources)? as u16;
        let life = self.lives.get_or_default(index);
        let qpn = life.wrapping_mul(Caps::MAX_QP) | index;
        let Some(qp) = Qp::new(qpn, &self.caps, params) else {
            self.qp_numbers.free(index.into());
            return Err(Refusal::Illegal);
        };
        *life = life.wrapping_add(1);
        self.users.of_pds.add(qp.pd);
        self.users.of_uars.add(qp.uar);
        cqs.iter().for_each(|cq| self.users.of_cqs.add(*cq));
        self.qps.insert(index, Box::new(qp));
        Ok(qpn)
    }

    /// Destroys a QP. Its requests get no completions.
    ///
    /// # Errors
    /// There is none.
    pub fn destroy_qp(&mut self, port: &mut Port<'_>, qpn: u16) -> Result<(), Refusal> {
        self.qp(qpn).ok_or(Refusal::Illegal)?;
        let index = qpn % Caps::MAX_QP;
        let Some(mut qp) = self.qps.remove(&index) else { return Err(Refusal::Illegal) };
        self.abandon(port, &mut qp);
        self.cancelled.extend(qp.timer.queued);
        self.qp_numbers.free(index.into());
        self.users.of_pds.remove(&qp.pd);
        self.users.of_uars.remove(&qp.uar);
        [qp.send_cq, qp.recv_cq].iter().for_each(|cq| self.users.of_cqs.remove(cq));
        Ok(())
    }
}
