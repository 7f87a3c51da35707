// SPDX-License-Identifier: MIT OR Apache-2.0
//! Datagrams as futures: receives with the source. The sends are those of [`addressed`](crate::addressed).
//!
//! Those of multicast groups arrive in the same way, after [`attach_mcast`](uverbs::qp::QpControl::attach_mcast).

use crate::destination::Destination;
use crate::error::Result;
use crate::next::Receiver as _;
use crate::pair::Qp;
use crate::receives::Message;
use crate::recv::Recv;
use core::fmt;
use core::future::Future;
use core::ops::Deref;
use core::pin::Pin;
use core::task::{Context, Poll};
use uverbs::attr::AhAttr;
use uverbs::wr::ImmData;
use uverbs::{
    AnyDriver, Buf, ConnectAttr, Driver, Endpoint, Private, ProtectionDomain, Srd, Ud, WorkCompletion,
};

/// The bytes before a datagram in its buffer: the global routing header, or what is in its place (ibv_create_ah_from_wc(3)).
const GRH_LEN: usize = 40;

/// A datagram that was received. It is the slice of its bytes, without the header before them; its buffer goes back to the pool when it
/// is dropped.
pub struct Datagram<D: Driver = AnyDriver> {
    message: Message<D>,
}

impl<D: Driver> fmt::Debug for Datagram<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Datagram").field("len", &self.len()).field("src_qp", &self.src_qp()).finish()
    }
}

impl<D: Driver> Deref for Datagram<D> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // A device that reports fewer bytes than the header has sent none.
        self.message.get(GRH_LEN..).unwrap_or_default()
    }
}

impl<D: Driver> Datagram<D> {
    /// The number of the QP that has sent it.
    #[must_use]
    pub fn src_qp(&self) -> u32 {
        self.message.completion().src_qp
    }

    /// The immediate data, if the sender gave some.
    #[must_use]
    pub fn imm(&self) -> Option<ImmData> {
        self.message.imm()
    }

    /// The fields of the completion. `byte_len` counts the 40 bytes of the header, too.
    #[must_use]
    pub fn completion(&self) -> &WorkCompletion {
        self.message.completion()
    }

    /// The address of the sender, as it is seen by this port (`ibv_init_ah_from_wc`). A program that answers many datagrams of a peer
    /// keeps a [`Destination`] by this and [`src_qp`](Self::src_qp): creating an address handle is a call of the kernel.
    ///
    /// # Errors
    /// As [`ProtectionDomain::ah_attr_from_wc`].
    pub fn source(&self, pd: &ProtectionDomain<D>, port_num: u8) -> Result<AhAttr> {
        let grh = self.message.first_chunk().copied().unwrap_or([0; GRH_LEN]);
        Ok(pd.ah_attr_from_wc(self.completion(), &grh, port_num)?)
    }

    /// The destination of an answer: the QP that has sent it, which has the queue key `qkey`.
    ///
    /// # Errors
    /// As [`source`](Self::source), and the kernel's refusal of the address handle.
    pub fn answer_to(&self, pd: &ProtectionDomain<D>, port_num: u8, qkey: u32) -> Result<Destination<D>> {
        let ah = pd.create_ah(&self.source(pd, port_num)?)?;
        Ok(Destination::new(ah, self.src_qp(), qkey))
    }

    /// The buffer, for example to send it on. Its first 40 bytes are the header.
    #[must_use]
    pub fn into_buf(self) -> Buf<Private, D> {
        self.message.into_buf()
    }
}

/// The next datagram; see [`Qp::recv_from`].
#[must_use = "futures do nothing unless they are polled"]
#[derive(Debug)]
pub struct RecvFrom<D: Driver = AnyDriver> {
    recv: Recv<D>,
}

impl<D: Driver> Future for RecvFrom<D> {
    type Output = Result<Datagram<D>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.recv).poll(cx).map_ok(|message| Datagram { message })
    }
}

/// Moves a QP from RESET to RTS, which needs no peer, and posts its receives.
fn start<T, D: Driver>(qp: &Qp<T, D>, attr: &ConnectAttr) -> Result<Endpoint> {
    qp.init(attr)?;
    let here = qp.endpoint(0, attr)?;
    qp.control().connect(&here, &here, attr)?;
    Ok(here)
}

impl<D: Driver> Qp<Srd, D> {
    /// Moves it from RESET to RTS, and posts the receives. It needs no peer; its queue key is that of `attr`, and so is the number of
    /// retries if a peer has no receive. Returns what a peer needs to send to it.
    ///
    /// # Errors
    /// As [`Qp::init`].
    pub fn start(&self, attr: &ConnectAttr) -> Result<Endpoint> {
        start(self, attr)
    }

    /// The next message. Messages are in the order of their arrival, which is not that in which they were sent, and so are the tasks that
    /// wait for them. The [completion](Message::completion) has the sender's QP (`src_qp`).
    ///
    /// # Errors
    /// After all messages that have arrived: the error of the QP, or [`Error::Closed`](crate::Error::Closed).
    pub fn recv_from(&self) -> Recv<D> {
        Recv::new(self.inner.clone())
    }

    /// A message that has arrived already.
    #[must_use]
    pub fn try_recv_from(&self) -> Option<Message<D>> {
        self.inner.try_take()
    }
}

impl<D: Driver> Qp<Ud, D> {
    /// Moves it from RESET to RTS, and posts the receives. A QP of datagrams needs no peer; its queue key is that of `attr`. Returns what a
    /// peer needs to send to it.
    ///
    /// # Errors
    /// As [`Qp::init`].
    pub fn start(&self, attr: &ConnectAttr) -> Result<Endpoint> {
        start(self, attr)
    }

    /// The next datagram. Datagrams are in the order of their arrival, and so are the tasks that wait for them. One that arrives while no
    /// receive is posted is lost.
    ///
    /// # Errors
    /// After all datagrams that have arrived: the error of the QP, or [`Error::Closed`](crate::Error::Closed).
    pub fn recv_from(&self) -> RecvFrom<D> {
        RecvFrom { recv: Recv::new(self.inner.clone()) }
    }

    /// A datagram that has arrived already.
    #[must_use]
    pub fn try_recv_from(&self) -> Option<Datagram<D>> {
        self.inner.try_take().map(|message| Datagram { message })
    }
}
