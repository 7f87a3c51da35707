// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests that own their data and address handles, for generators and recordings.

use uverbs_core::provider::{Data, DcTarget, Dest, Inline, Op, To, Wr};
use uverbs_core::wr::{SendFlags, Sge};

/// Data of an [`OwnedRequest`].
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "named as in `Data`")]
pub enum OwnedData {
    None,
    Sges(Vec<Sge>),
    /// Buffers, one after the other.
    Inline(Vec<Vec<u8>>),
}

/// The destination of an [`OwnedRequest`].
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "named as in `Dest`")]
pub enum OwnedDest<H> {
    Peer,
    Ud { ah: H, remote_qpn: u32, remote_qkey: u32 },
    Xrc(u32),
    Dc { ah: H, remote_dctn: u32, remote_dc_key: u64 },
}

/// A work request with everything that a [`Wr`] borrows, except headers.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "named as in `Wr`")]
pub struct OwnedRequest<'a, H> {
    pub wr_id: u64,
    pub flags: SendFlags,
    pub op: Op<'a>,
    pub data: OwnedData,
    pub to: OwnedDest<H>,
}

impl<H> OwnedRequest<'_, H> {
    /// Calls `f` with the values.
    pub fn with_wrs<'r, R>(all: impl IntoIterator<Item = &'r Self>, f: impl FnOnce(&[Wr<'_, H>]) -> R) -> R
    where
        Self: 'r,
    {
        let all: Vec<_> = all.into_iter().collect();
        let bufs = all.iter().map(|r| match &r.data {
            OwnedData::Inline(bufs) => bufs.iter().map(Vec::as_slice).collect(),
            _ => Vec::new(),
        });
        let bufs: Vec<Vec<&[u8]>> = bufs.collect();
        let lent = all.iter().zip(&bufs).map(|(r, bufs)| {
            let data = match &r.data {
                OwnedData::None => Data::NONE,
                OwnedData::Sges(sges) => Data::Sges(sges),
                OwnedData::Inline(_) => Data::Inline(Inline::List(bufs)),
            };
            let to = match &r.to {
                OwnedDest::Peer => Dest::Peer,
                OwnedDest::Ud { ah, remote_qpn, remote_qkey } => {
                    Dest::Ud(To { ah, remote_qpn: *remote_qpn, remote_qkey: *remote_qkey })
                }
                OwnedDest::Xrc(srqn) => Dest::Xrc(*srqn),
                OwnedDest::Dc { ah, remote_dctn, remote_dc_key } => {
                    Dest::Dc(DcTarget { ah, remote_dctn: *remote_dctn, remote_dc_key: *remote_dc_key })
                }
            };
            Wr { wr_id: r.wr_id, flags: r.flags, to, op: r.op, data }
        });
        f(&lent.collect::<Vec<_>>())
    }
}
