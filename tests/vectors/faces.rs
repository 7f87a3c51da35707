// SPDX-License-Identifier: MIT OR Apache-2.0
//! Posts on each face: C's list, the `wr_*` vtable, typed batches; and polls through C's calls.
#![expect(unsafe_code)]
// UNSAFETY: posting has a contract about the memory that WRs name. No device accesses any of it here: inline data and
// headers of raw packets, which are read by the call, are `memory::DATA`, completions scatter to `memory::SCATTER`,
// both of which stay mapped, and the rest are numbers. One thread uses every queue.

use crate::model::{self, Op};
use crate::request::{self, Request, builder, handle};
use uverbs_core::provider::raw::{self, QpEx};
use uverbs_core::provider::{
    self, Data, Dest, Inline, PollError, RecvBatch as _, RecvQueue as Receives, SendBatch as _,
    SendQueue as _, To, Wr,
};
use uverbs_core::sync::{Exclusive, Locked};
use uverbs_core::wc::WorkCompletion;
use uverbs_core::wr::{ImmData, RawAh, SendFlags, Sge, WrAtomic, WrRdma, WrUnion};
use uverbs_mlx5::{Ah, CompletionQueue, RecvQueue, SendQueue, SharedRecvQueue};
use uverbs_testkit::{self as testkit, List, Refused, Session, as_recv_list, refused, wire};

/// The result of a call.
pub(crate) type Posted = Result<(), Refused>;

pub(crate) type Send = Locked<SendQueue, Exclusive>;
pub(crate) type Recv = Locked<RecvQueue, Exclusive>;
pub(crate) type SrqRecv = Locked<SharedRecvQueue, Exclusive>;
pub(crate) type Cq = Locked<CompletionQueue, Exclusive>;

fn post(send: &Send, list: &List<'_>) -> Posted {
    // SAFETY: the list owns or borrows what its nodes point to; memory as described above; one thread.
    unsafe { raw::post_send(send, list.first()) }.map_err(|bad| refused(list.nodes(), &bad))
}

/// `ibv_post_send` of a recorded list, node by node.
pub(crate) fn post_list(send: &Send, wrs: &[model::SendWr]) -> Posted {
    let sges: Vec<_> = wrs.iter().map(|wr| request::sges(&wr.sg_list)).collect();
    let handles: Vec<_> =
        wrs.iter().map(|wr| wr.ud.as_ref().map(|ud| handle(&request::av(&ud.ah)))).collect();
    let lent = wrs.iter().zip(&sges).zip(&handles).map(|((wr, sges), ah)| {
        let what = match Request::of_list(wr).map(|r| r.wr.op) {
            Some(what @ (provider::Op::BindMw(_) | provider::Op::Tso(_))) => what,
            _ => provider::Op::Send,
        };
        let to = match ah.as_ref().zip(wr.ud.as_ref()) {
            Some((ah, ud)) => {
                Dest::Ud(To { ah, remote_qpn: ud.remote_qpn.u32(), remote_qkey: ud.remote_qkey.u32() })
            }
            None => Dest::Peer,
        };
        Wr::new(wr.wr_id.0, what).sges(sges).to(to)
    });
    let mut list = List::new(&lent.collect::<Vec<_>>());
    for (i, wr) in wrs.iter().enumerate() {
        list.change(i, |node| {
            node.opcode = request::opcode(&wr.opcode);
            node.send_flags = request::flags(&wr.send_flags).bits();
            if let Some(imm) = wr.imm_data {
                node.imm_data_or_invalidate_rkey = ImmData::new(imm.u32()).to_be();
            }
            if let Some(rkey) = wr.invalidate_rkey {
                node.imm_data_or_invalidate_rkey = rkey.u32();
            }
            if let Some(srqn) = wr.xrc_remote_srqn {
                node.xrc_remote_srqn = srqn.u32();
            }
            let (remote_addr, rkey) = (wr.remote_addr.map_or(0, |n| n.0), wr.rkey.map_or(0, |n| n.u32()));
            match (&wr.ud, wr.compare_add, wr.swap) {
                // A remote address is recorded, too, if an opcode that UD does not have is posted on it. The WR is
                // refused before either is read.
                (Some(_), ..) => {}
                (None, Some(compare_add), Some(swap)) => {
                    let (compare_add, swap) = (compare_add.0, swap.0);
                    node.wr = WrUnion { atomic: WrAtomic { remote_addr, compare_add, swap, rkey } };
                }
                _ => node.wr = WrUnion { rdma: WrRdma { remote_addr, rkey } },
            }
        });
    }
    post(send, &list)
}

/// `ibv_post_send` of WRs that were recorded by another face.
pub(crate) fn post_requests(send: &Send, requests: &[Request<'_>]) -> Posted {
    Request::with_wrs(requests, |requests| post(send, &List::new(requests)))
}

/// A single window bind, as posted by `ibv_bind_mw`.
pub(crate) fn post_bind(send: &Send, wr_id: u64, flags: SendFlags, bind: &provider::op::MwBind) -> Posted {
    let bind = Wr::<RawAh<Ah>>::new(wr_id, provider::Op::BindMw(*bind)).flags(flags);
    post(send, &List::new(&[bind]))
}

/// A recorded session, call by call.
pub(crate) fn session(send: &Send, ops: &[Op]) -> Posted {
    // SAFETY: one thread uses the queue; memory as described above.
    let mut session = unsafe { Session::new(QpEx::new(send)) };
    let mut result = Ok(());
    for op in ops {
        match op {
            Op::Set { wr_id, wr_flags } => session.sticky(wr_id.0, request::flags(wr_flags)),
            Op::Start => session.start(),
            Op::Complete => result = session.complete(),
            Op::Abort => session.abort(),
            Op::SetSge { sge } => session.data(Data::Sges(&[request::sge(sge)])),
            Op::SetSgeList { sg_list } => session.sge_list(&request::sges(sg_list)),
            Op::SetInlineData { length, data } => {
                assert_eq!(data.0.len(), *length);
                session.data(Data::Inline(Inline::Bytes(&data.0)));
            }
            Op::SetInlineDataList { bufs } => {
                let bufs: Vec<_> = bufs.iter().map(|b| &b.0[..]).collect();
                session.data(Data::Inline(Inline::List(&bufs)));
            }
            Op::SetUdAddr { remote_qpn, remote_qkey, ah } => {
                let ah = &handle(&request::av(ah));
                let to = To { ah, remote_qpn: remote_qpn.u32(), remote_qkey: remote_qkey.u32() };
                session.dest(&Dest::Ud(to));
            }
            Op::SetXrcSrqn { remote_srqn } => session.dest::<RawAh<Ah>>(&Dest::Xrc(remote_srqn.u32())),
            Op::SetDcAddr { remote_dctn, dc_key, ah } => {
                dc(send, &handle(&request::av(ah)).driver, remote_dctn.u32(), dc_key.0, None);
            }
            Op::SetDcAddrStream { remote_dctn, dc_key, stream_id, ah } => {
                dc(send, &handle(&request::av(ah)).driver, remote_dctn.u32(), dc_key.0, Some(*stream_id));
            }
            op => session.op(builder(op).expect("a builder")),
        }
    }
    Ok(result?)
}

/// The setters of DC addresses, inside a session.
fn dc(send: &Send, ah: &Ah, dctn: u32, key: u64, stream: Option<u16>) {
    // SAFETY: inside a session of this thread.
    let queue = unsafe { send.entered() };
    match stream {
        None => queue.wr_set_dc_addr(ah, dctn, key),
        Some(stream) => queue.wr_set_dc_addr_stream(ah, dctn, key, stream),
    }
}

/// A session of WRs that were recorded by another face.
pub(crate) fn session_of(send: &Send, requests: &[Request<'_>]) -> Posted {
    // SAFETY: one thread uses the queue; memory as described above.
    let mut session = unsafe { Session::new(QpEx::new(send)) };
    session.start();
    Request::with_wrs(requests, |lent| {
        for (r, lent) in requests.iter().zip(lent) {
            session.sticky(lent.wr_id, lent.flags);
            session.op(lent.op);
            if lent.op.has_data() {
                session.data(lent.data);
            }
            match lent.to {
                Dest::Dc(to) => dc(send, &to.ah.driver, to.remote_dctn, to.remote_dc_key, r.stream),
                to => session.dest(&to),
            }
        }
    });
    Ok(session.complete()?)
}

/// A typed batch.
pub(crate) fn batch(send: &mut Send, requests: &[Request<'_>]) -> Posted {
    let mut batch = send.get_mut().batch();
    Request::with_wrs(requests, |requests| {
        // SAFETY: memory as described above.
        requests.iter().try_for_each(|r| unsafe { testkit::push(&mut batch, r) })
    })?;
    Ok(batch.complete()?)
}

/// A list of receives.
pub(crate) fn recv_list<Q: Receives>(queue: &Locked<Q, Exclusive>, wrs: &[model::RecvWr]) -> Posted {
    let sges: Vec<_> = wrs.iter().map(|wr| request::sges(&wr.sg_list)).collect();
    let recvs: Vec<(u64, &[Sge])> = wrs.iter().zip(&sges).map(|(wr, sges)| (wr.wr_id.0, &sges[..])).collect();
    // SAFETY: NULL or a list of live nodes and entries; memory as described above; one thread.
    as_recv_list(&recvs, |list| unsafe { raw::post_recv(queue, list) })
}

/// A typed batch of receives.
pub(crate) fn recv_batch<Q: Receives>(queue: &mut Locked<Q, Exclusive>, wrs: &[model::RecvWr]) -> Posted {
    let mut batch = queue.get_mut().batch();
    for wr in wrs {
        let sges = wire(&request::sges(&wr.sg_list))?;
        // SAFETY: memory as described above.
        unsafe { batch.push(wr.wr_id.0, &sges) };
    }
    Ok(batch.complete()?)
}

/// `ibv_poll_cq`.
pub(crate) fn poll_cq(cq: &Cq, wc: &mut [WorkCompletion]) -> Result<usize, PollError> {
    // SAFETY: one thread.
    unsafe { raw::poll_cq(cq, wc) }
}
