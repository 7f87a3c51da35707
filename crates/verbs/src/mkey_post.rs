// SPDX-License-Identifier: MIT OR Apache-2.0
//! Posts that give an indirect key its memory, and that end its access.
#![expect(unsafe_code)]
// UNSAFETY: passes memory to the device that the slab of the queue owns.

use crate::mkey_region::{MkeyRegion, PeerPiece, Piece};
use crate::post_to::sealed::PostTo as _;
use crate::post_to::{AtOnce, Fixed, PostTo};
use crate::qp::transport::HasMkeys;
use crate::rejected::Rejected;
use crate::rejected::sealed::Lend as _;
use crate::send::Wr;
use uverbs_core::attr::AccessFlags;
use uverbs_core::provider::{Data, Driver, MkeyMemory, Op, PostError};

type Posted<B, D> = Result<(), Rejected<MkeyRegion<B, D>>>;

impl<D: Driver, T: HasMkeys> Wr<'_, AtOnce<'_, D>, T, D> {
    /// `mlx5dv_wr_mkey_configure`: gives the key of the region its memory, for work requests of this process. The completion, whose opcode
    /// is [`DRIVER1`](crate::WcOpcode::DRIVER1), gives the region back, open.
    ///
    /// # Errors
    /// [`PostError::InvalidArgument`] for a region that is open, or of another domain; [`PostError::IllegalOpcode`] if the QP was created
    /// without [`mkeys`](crate::QpBuilder::mkeys), [`PostError::InlineTooLong`] if it has no room for the list; [`PostError::QueueFull`],
    /// or another error of the queue. The region is returned with the error.
    pub fn mkey_configure<B: Piece<D>>(self, region: MkeyRegion<B, D>) -> Posted<B, D> {
        self.put_mkey(region, B::LOCAL)
    }

    /// As [`mkey_configure`](Self::mkey_configure), and peers may access the region with the rights `access`.
    ///
    /// # Errors
    /// As of [`mkey_configure`](Self::mkey_configure); [`PostError::InvalidArgument`] for rights that are not in [`PeerPiece::PEER`].
    pub fn mkey_expose<B: PeerPiece<D>>(self, region: MkeyRegion<B, D>, access: AccessFlags) -> Posted<B, D> {
        if !B::PEER.contains(access.difference(AccessFlags::LOCAL_WRITE)) {
            return self.sink.refuse(PostError::InvalidArgument, region);
        }
        self.put_mkey(region, access & B::PEER | B::LOCAL)
    }

    fn put_mkey<B: Piece<D>>(self, mut region: MkeyRegion<B, D>, access: AccessFlags) -> Posted<B, D> {
        let Self { sink, head, .. } = self;
        let begun = if region.domain() == sink.queue_domain() { region.begin(access) } else { None };
        let Some((object, key, layout)) = begun else {
            return sink.refuse(PostError::InvalidArgument, region);
        };
        let write = |queue: &mut D::SendQueue, head| {
            let memory = MkeyMemory { tag: key as u8, access, layout: layout.borrow() };
            // SAFETY: the key is one of the domain of the queue, and its memory that of the region's buffers, whose pools keep it
            // registered. The region owns them until the key is invalidated or destroyed. This process has references to their bytes
            // only if they are private, and then peers get no rights; a post that names the key owns the region. Buffers with other
            // owners get no right to write.
            unsafe { object.configure(queue, head, &memory) };
            drop((object, layout));
        };
        // SAFETY: the region, which owns what the work request names, is in the slab until that is known to be complete.
        unsafe { sink.put_written(head, region, write) }
    }
}

impl<S: PostTo<D>, D: Driver, T: HasMkeys> Wr<'_, S, T, D> {
    /// `IBV_WR_LOCAL_INV`: ends the access by the key of an open region. The completion gives the region back, closed:
    /// [`into_parts`](MkeyRegion::into_parts) has the buffers, and another configuration opens it with a new key.
    /// [`PostError::InvalidArgument`] for a region that is not open, or of another domain. After an error the region is as it was.
    pub fn mkey_invalidate<B: Piece<D>>(self, mut region: MkeyRegion<B, D>) -> S::Out<MkeyRegion<B, D>> {
        let Self { sink, head, to, .. } = self;
        let domain = region.domain();
        let key = if domain == sink.domain() { region.begin_end() } else { None };
        let Some(key) = key else {
            return sink.refuse(PostError::InvalidArgument, region);
        };
        // SAFETY: an invalidation has no entries.
        unsafe {
            let load: Fixed<D, _> = Fixed { domain, data: Data::NONE, held: region.lend() };
            sink.put::<MkeyRegion<B, D>, _>(head, load, &to, || Op::LocalInv(key))
        }
    }
}
