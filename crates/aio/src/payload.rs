// SPDX-License-Identifier: MIT OR Apache-2.0
//! What operations take: registered memory, windows, and bytes that are copied.

use uverbs::qp::transport::Sends;
use uverbs::{
    Access, AtOnce, Buf, BufList, BufPart, Completed, Driver, Operation, Rejected, SharedBuf, Window, Wr,
};

pub(crate) mod sealed {
    use super::{AtOnce, Completed, Driver, Operation, Rejected, Sends, Wr};

    pub trait Payload<D: Driver>: Sized {
        /// Posts it. It is returned if that fails, also if it does not have the operation.
        fn post<T: Sends>(
            self,
            wr: Wr<'_, AtOnce<'_, D>, T, D>,
            op: &Operation,
        ) -> Result<(), Rejected<Self>>;

        /// Limits it to the 8 bytes of an atomic operation.
        #[must_use]
        fn into_word(self) -> Self {
            self
        }

        /// What the future returns.
        type Back;
        fn unposted(self) -> Self::Back;
        fn completed(completed: Completed<D>) -> Option<Self::Back>;
    }
}

/// What an operation takes: registered memory ([`Buf`], [`BufPart`], [`BufList`], [`SharedBuf`]) or a [`Window`], which it gives back, or
/// bytes that are copied when it is posted.
///
/// The methods of [`Qp`](crate::Qp) say by [`Source`](uverbs::Source) and [`Memory`](uverbs::Memory) which memory an operation takes: a
/// [`SharedBuf`] is for those that only read it. It is one of the owners of its buffer until the work request is complete, also if the
/// future is dropped, so many operations can have parts of one buffer at the same time:
///
/// ```
/// # use uverbs::mlx5::Mlx5;
/// # use uverbs::{ConnectAttr, Context, attr::AccessFlags};
/// # use uverbs_aio::{Dispatcher, Result};
/// # use uverbs_hca::Hca;
/// # fn main() -> Result<()> {
/// # let context = Context::<Mlx5>::from_kernel(Hca::new().open())?;
/// # let (pd, dispatcher) = (context.alloc_pd()?, Dispatcher::new(&context)?);
/// # let (pool, incoming) = (pd.pool(1, 4096)?, pd.pool(8, 64)?);
/// # let attr = ConnectAttr::new().access(AccessFlags::REMOTE_WRITE);
/// # let qp = dispatcher.qp(&pd).depth(8, 8).pool(&incoming).create()?;
/// # qp.init(&attr)?;
/// # let end = qp.endpoint(1, &attr)?;
/// # qp.connect(&end, &end, &attr)?;
/// # let table = pd.pool_with(2, 2048).exposed(AccessFlags::REMOTE_WRITE).build()?;
/// # let (first, second) = (table.get()?, table.get()?);
/// # let (low, high) = (first.remote_region(), second.remote_region());
/// # dispatcher.block_on(async {
/// let page = pool.get()?.share();
/// let (one, two) = (qp.write(page.slice(0..2048)?, &low), qp.write(page.slice(2048..4096)?, &high));
/// // Detached, both are in flight.
/// one.detach().await?;
/// two.await?;
/// // They are complete: this is the only owner.
/// assert!(page.try_unwrap().is_ok());
/// # Ok(())
/// # })
/// # }
/// ```
pub trait Payload<D: Driver>: sealed::Payload<D> {}

macro_rules! memory {
    ($($memory:ident: $post:ident, |$data:ident| $word:expr;)*) => {$(
        impl<D: Driver, A: Access> Payload<D> for $memory<A, D> {}
        impl<D: Driver, A: Access> sealed::Payload<D> for $memory<A, D> {
            #[inline]
            fn post<T: Sends>(self, wr: Wr<'_, AtOnce<'_, D>, T, D>, op: &Operation) -> Result<(), Rejected<Self>> {
                wr.$post(op, self)
            }

            fn into_word(self) -> Self {
                let $data = self;
                $word
            }

            type Back = Self;

            fn unposted(self) -> Self {
                self
            }

            fn completed(completed: Completed<D>) -> Option<Self> {
                completed.take()
            }
        }
    )*};
}

memory! {
    Buf: op_with, |buf| {
        let mut buf = buf;
        // One that is too short is refused when it is posted.
        let _ = buf.set_len(8);
        buf
    };
    BufPart: op_with, |part| part;
    BufList: op_with, |list| list;
    SharedBuf: op, |shared| shared;
}

impl<D: Driver> Payload<D> for &[u8] {}
impl<D: Driver> sealed::Payload<D> for &[u8] {
    #[inline]
    fn post<T: Sends>(self, wr: Wr<'_, AtOnce<'_, D>, T, D>, op: &Operation) -> Result<(), Rejected<Self>> {
        wr.op_inline(op, self).map_err(|error| Rejected::new(error, Some(self)))
    }

    type Back = ();

    fn unposted(self) {}

    fn completed(_: Completed<D>) -> Option<()> {
        Some(())
    }
}

impl<D: Driver> Payload<D> for Window<D> {}
impl<D: Driver> sealed::Payload<D> for Window<D> {
    fn post<T: Sends>(self, wr: Wr<'_, AtOnce<'_, D>, T, D>, op: &Operation) -> Result<(), Rejected<Self>> {
        wr.op_window(op, self)
    }

    type Back = Self;

    fn unposted(self) -> Self {
        self
    }

    fn completed(completed: Completed<D>) -> Option<Self> {
        completed.take()
    }
}
