// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests that own their data and address handles, for generators and recordings.

use crate::request::{Data, Dest, Op, Request, To};
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
    Ud { ah: H, qpn: u32, qkey: u32 },
    Xrc(u32),
    Dc { ah: H, dctn: u32, key: u64 },
}

/// A work request with everything that a [`Request`] borrows, except headers.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "named as in `Request`")]
pub struct OwnedRequest<'a, H> {
    pub wr_id: u64,
    pub flags: SendFlags,
    pub op: Op<'a>,
    pub data: OwnedData,
    pub dest: OwnedDest<H>,
}

impl<H> OwnedRequest<'_, H> {
    /// Calls `f` with the requests.
    pub fn lend<R>(all: &[Self], f: impl FnOnce(&[Request<'_, H>]) -> R) -> R {
        let bufs = all.iter().map(|r| match &r.data {
            OwnedData::Inline(bufs) => bufs.iter().map(Vec::as_slice).collect(),
            _ => Vec::new(),
        });
        let bufs: Vec<Vec<&[u8]>> = bufs.collect();
        let lent = all.iter().zip(&bufs).map(|(r, bufs)| {
            let data = match &r.data {
                OwnedData::None => Data::None,
                OwnedData::Sges(sges) => Data::Sges(sges),
                OwnedData::Inline(_) => Data::InlineList(bufs),
            };
            let dest = match &r.dest {
                OwnedDest::Peer => Dest::Peer,
                OwnedDest::Ud { ah, qpn, qkey } => Dest::Ud(To { ah, qpn: *qpn, qkey: *qkey }),
                OwnedDest::Xrc(srqn) => Dest::Xrc(*srqn),
                OwnedDest::Dc { ah, dctn, key } => Dest::Dc { ah, dctn: *dctn, key: *key },
            };
            Request { wr_id: r.wr_id, flags: r.flags, op: r.op, data, dest }
        });
        f(&lent.collect::<Vec<_>>())
    }
}
