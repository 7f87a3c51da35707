// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads and writes without a copy: the program reads a message, and writes one, where the device does.

use super::frame::HEADER;
use super::{RdmaStream, Side};
use crate::error::Result;
use core::future::poll_fn;
use core::task::{Context, Poll};
use std::io::ErrorKind;
use uverbs::{Buf, Driver, Private};

impl<D: Driver> RdmaStream<D> {
    /// Writes what `fill` puts into the next message, without the copy that `AsyncWrite` makes.
    ///
    /// Waits until a message may be sent, and calls `fill` with room for `max` bytes, or for as many as a message has if these are fewer. The
    /// room has bytes of earlier messages. `fill` returns how many bytes from the front are sent; so does this function. After 0
    /// nothing is sent.
    ///
    /// The future can be dropped at any time: `fill` is called in the poll that sends.
    ///
    /// ```
    /// # use uverbs_aio::{RdmaStream, Result};
    /// # async fn example<D: uverbs::Driver>(stream: &mut RdmaStream<D>) -> Result<()> {
    /// let number = 7_u64;
    /// stream
    ///     .write_with(8, |room| {
    ///         room.copy_from_slice(&number.to_be_bytes());
    ///         room.len()
    ///     })
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of a write; `InvalidInput` if `fill` returns more than the room has, in which case nothing is sent.
    pub async fn write_with(&mut self, max: usize, fill: impl FnOnce(&mut [u8]) -> usize) -> Result<usize> {
        if max == 0 {
            return Ok(0);
        }
        // Most writes do not wait.
        self.work();
        let (mut buf, room) = match self.reserve() {
            Poll::Ready(reserved) => reserved?,
            Poll::Pending => poll_fn(|cx| self.poll_with(Side::Write, cx, Self::reserve)).await?,
        };
        let max = room.min(max);
        buf.set_len(HEADER + max)?;
        let len = fill(buf.get_mut(HEADER..).unwrap_or_default());
        if len > max {
            let error = "more bytes than the message has room for";
            return Err(std::io::Error::new(ErrorKind::InvalidInput, error).into());
        }
        if len == 0 {
            return Ok(0);
        }
        if len < max {
            buf.set_len(HEADER + len)?;
        }
        self.send_data(buf);
        if let Some(error) = &self.error {
            return Err(error.clone());
        }
        Ok(len)
    }

    /// A buffer for a message of data, and the bytes of data that it has room for.
    #[inline]
    fn reserve(&mut self) -> Poll<Result<(Buf<Private, D>, usize)>> {
        self.check_writable()?;
        match self.room() {
            Some(room) => Poll::Ready(Ok(room)),
            None => Poll::Pending,
        }
    }

    /// The data of the first message that are not read yet; none at the end of the peer's data.
    pub(super) fn poll_data(&mut self, cx: &Context<'_>) -> Poll<Result<&[u8]>> {
        let polled = self.poll_with(Side::Read, cx, |stream| match stream.unread.is_empty() {
            false => Poll::Ready(Ok(())),
            true => stream.poll_ended(),
        });
        polled.map_ok(|()| self.data())
    }

    fn data(&self) -> &[u8] {
        self.unread.front().and_then(|message| message.get(HEADER + self.read..)).unwrap_or_default()
    }

    /// The program has read so many bytes of the first message; more than it has are ignored.
    pub(super) fn consume_data(&mut self, read: usize) {
        let there = self.data().len();
        self.advance(read.min(there), there);
        self.return_credits();
    }

    /// So many bytes of the first message were read, of those that were `there`.
    #[inline]
    pub(super) fn advance(&mut self, read: usize, there: usize) {
        self.read += read;
        // A message that waits to be read has data.
        if read == there && there > 0 {
            self.unread.pop_front();
            self.read = 0;
            self.owed += 1;
        }
    }

    /// Sends the data of a buffer, which begin after the room for the header. [`room`](Self::room) gave the buffer.
    #[inline]
    pub(super) fn send_data(&mut self, mut buf: Buf<Private, D>) {
        let credits = self.grant();
        if let Some(header) = buf.first_chunk_mut() {
            *header = super::Header { kind: super::Kind::Data, credits }.encode();
        }
        self.credits -= 1;
        self.post(buf);
    }
}
