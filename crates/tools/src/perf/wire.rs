// SPDX-License-Identifier: MIT OR Apache-2.0
//! The exchange between the two programs of a test, as perftest does it, so that either of them may be perftest.
//!
//! Each message goes both ways: the client sends its own first, the server answers with its own. The messages: the
//! version; two numbers (the length of the cycle in which messages move through the buffer, and of a cache line); the
//! MTU's code as a digit; the keys of each QP, twice, as text; reports of bandwidth as big-endian numbers. The keys of
//! the first QP are also sent where the programs must wait for each other. perftest reads a message by a single
//! read(2), so each is sent by a single write. Over rdma_cm a message is a send, keys are a struct, and the last message is
//! not sent.

use anyhow::{Context, Result, bail, ensure};
use core::fmt;
use core::str::FromStr;
use std::io::{ErrorKind, Read, Write};
use uverbs::attr::{Gid, Mtu};

/// The version that is sent: that of the perftest in Debian 12. Later ones have the same exchange.
const VERSION: &str = "6.06";
/// Bytes of the version.
const VERSION_LEN: usize = 16;
/// The oldest version that perftest 6.06 accepts.
const OLDEST: f32 = 5.7;
/// Bytes of keys without a GID, and with one; both end with NUL.
const KEYS_LEN: usize = 59;
const KEYS_GID_LEN: usize = 108;
/// Bytes of keys as a struct.
const STRUCT_LEN: usize = 56;
/// The last message, which is not answered.
const DONE: &[u8; 5] = b"done\0";

/// The address of a QP, and the memory and the shared receive queue behind it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Keys {
    pub(super) lid: u16,
    /// Outstanding reads and atomics that the sender of this message can answer and send.
    pub(super) out_reads: u8,
    pub(super) qp_num: u32,
    pub(super) psn: u32,
    pub(super) rkey: u32,
    pub(super) addr: u64,
    pub(super) gid: Gid,
    pub(super) srq_num: u32,
}

impl fmt::Display for Keys {
    /// With the GID; [`Keys::encode`] leaves it out on request.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_head(f)?;
        self.gid.0.iter().try_for_each(|byte| write!(f, "{byte:02x}:"))?;
        write!(f, "{:08x}:", self.srq_num)
    }
}

impl Keys {
    fn fmt_head(&self, f: &mut impl fmt::Write) -> fmt::Result {
        let Self { lid, out_reads, qp_num, psn, rkey, addr, .. } = self;
        write!(f, "{lid:04x}:{out_reads:04x}:{qp_num:06x}:{psn:06x}:{rkey:08x}:{addr:016x}:")
    }

    fn encode(&self, has_gid: bool) -> Vec<u8> {
        let mut text = String::new();
        let (written, len) = if has_gid {
            (fmt::Write::write_fmt(&mut text, format_args!("{self}")), KEYS_GID_LEN)
        } else {
            let head = self.fmt_head(&mut text);
            (
                head.and_then(|()| fmt::Write::write_fmt(&mut text, format_args!("{:08x}", self.srq_num))),
                KEYS_LEN,
            )
        };
        debug_assert!(written.is_ok(), "a String takes any text");
        let mut bytes = text.into_bytes();
        bytes.resize(len, 0);
        bytes
    }

    /// The struct that is sent over rdma_cm, with numbers in big-endian order, `vaddr` at 24 and the GID at 32.
    fn encode_struct(&self) -> Vec<u8> {
        let Self { lid, out_reads, qp_num, psn, rkey, addr, gid, srq_num } = *self;
        let mut bytes = Vec::with_capacity(STRUCT_LEN);
        for word in [lid.into(), out_reads.into(), qp_num, psn, rkey, 0] {
            bytes.extend(word.to_be_bytes());
        }
        bytes.extend(addr.to_be_bytes());
        bytes.extend(gid.0);
        bytes.extend(srq_num.to_be_bytes());
        // The index of the sender's GID, which the receiver does not use.
        bytes.extend([0; 4]);
        bytes
    }

    /// `None` if a number does not fit.
    fn decode_struct(bytes: &[u8]) -> Option<Self> {
        let word = |at| Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?));
        Some(Self {
            lid: word(0)?.try_into().ok()?,
            out_reads: word(4)?.try_into().ok()?,
            qp_num: word(8)?,
            psn: word(12)?,
            rkey: word(16)?,
            addr: u64::from_be_bytes(*bytes.get(24..)?.first_chunk()?),
            gid: Gid(*bytes.get(32..)?.first_chunk()?),
            srq_num: word(48)?,
        })
    }
}

/// The text is not keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ParseKeysError;

impl fmt::Display for ParseKeysError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected hexadecimal numbers with colons between them")
    }
}

impl core::error::Error for ParseKeysError {}

impl FromStr for Keys {
    type Err = ParseKeysError;

    fn from_str(text: &str) -> Result<Self, ParseKeysError> {
        let mut fields = text.trim_end_matches(':').split(':');
        let mut next = || -> Result<u64, ParseKeysError> {
            let field = fields.next().ok_or(ParseKeysError)?;
            let is_hex = !field.is_empty() && field.bytes().all(|b| b.is_ascii_hexdigit());
            if !is_hex {
                return Err(ParseKeysError);
            }
            u64::from_str_radix(field, 16).map_err(|_| ParseKeysError)
        };
        fn fit<T: TryFrom<u64>>(value: u64) -> Result<T, ParseKeysError> {
            T::try_from(value).map_err(|_| ParseKeysError)
        }
        let mut keys = Self {
            lid: fit(next()?)?,
            out_reads: fit(next()?)?,
            qp_num: fit(next()?)?,
            psn: fit(next()?)?,
            rkey: fit(next()?)?,
            addr: next()?,
            ..Self::default()
        };
        if text.bytes().filter(|b| *b == b':').count() > 7 {
            for byte in &mut keys.gid.0 {
                *byte = fit(next()?)?;
            }
        }
        keys.srq_num = fit(next()?)?;
        if fields.next().is_some() { Err(ParseKeysError) } else { Ok(keys) }
    }
}

/// A result of a bandwidth test, in the unit of the program that sends it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Report {
    pub(super) bytes: u64,
    pub(super) iters: u64,
    pub(super) peak: f64,
    pub(super) average: f64,
    /// Millions of messages per second.
    pub(super) rate: f64,
}

/// The form of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Text, over TCP.
    Text {
        /// Whether keys contain a GID: always on RoCE.
        has_gid: bool,
    },
    /// A struct, over rdma_cm.
    Struct,
}

/// The connection to the other program.
#[derive(Debug)]
pub(super) struct Wire<S> {
    stream: S,
    is_client: bool,
    form: Form,
}

impl<S: Read + Write> Wire<S> {
    pub(super) fn new(stream: S, is_client: bool, form: Form) -> Self {
        Self { stream, is_client, form }
    }

    /// The stream to the other program, for changes of its settings: no message is in part sent or received.
    pub(super) fn stream(&mut self) -> &mut S {
        &mut self.stream
    }

    /// Sends `mine` and receives as many bytes; the server in the opposite order.
    fn trade(&mut self, mine: &[u8], what: &str) -> Result<Vec<u8>> {
        let mut theirs = vec![0; mine.len()];
        if self.is_client {
            self.stream.write_all(mine).with_context(|| format!("cannot send {what}"))?;
        }
        self.stream.read_exact(&mut theirs).with_context(|| match what {
            // The first message of the exchange is the version.
            "the version" => {
                "the other end sent no version; is it the same test of perftest or of uverbs?".into()
            }
            _ => format!("the other end did not send {what}"),
        })?;
        if !self.is_client {
            self.stream.write_all(mine).with_context(|| format!("cannot send {what}"))?;
        }
        Ok(theirs)
    }

    /// Exchanges the versions.
    pub(super) fn versions(&mut self) -> Result<()> {
        let mut mine = VERSION.as_bytes().to_vec();
        mine.resize(VERSION_LEN, 0);
        let theirs = self.trade(&mine, "the version")?;
        let text = until_nul(&theirs)?;
        // Only the first two numbers of a longer version count.
        let number: f32 = text
            .splitn(3, '.')
            .take(2)
            .collect::<Vec<_>>()
            .join(".")
            .parse()
            .with_context(|| format!("{text:?} is not a version"))?;
        ensure!(number >= OLDEST, "version {text} of the other end is too old: {OLDEST} is the oldest");
        Ok(())
    }

    /// Exchanges the lengths of the cycle and of a cache line; both ends use the larger ones.
    pub(super) fn system(&mut self, cycle: u32, cache_line: u32) -> Result<(u32, u32)> {
        let mut one = |mine: u32, what| -> Result<u32> {
            let theirs = self.trade(&mine.to_be_bytes(), what)?;
            let theirs = u32::from_be_bytes(theirs.try_into().unwrap_or_default());
            ensure!(theirs <= 1 << 24, "{what} of {theirs} bytes is too long");
            Ok(mine.max(theirs))
        };
        Ok((one(cycle, "the buffer's cycle")?, one(cache_line, "the cache line")?))
    }

    /// Exchanges the MTUs; both ends use the smaller one.
    pub(super) fn mtu(&mut self, mine: Mtu) -> Result<Mtu> {
        let code = |mtu: Mtu| mtu.bytes().map_or(0, |bytes| bytes.trailing_zeros() as u8 - 7);
        let theirs = self.trade(&[b'0' + code(mine), 0], "the MTU")?;
        let theirs = until_nul(&theirs)?;
        let theirs: u32 = theirs.parse().with_context(|| format!("{theirs:?} is not the code of an MTU"))?;
        let theirs = 128_u32.checked_shl(theirs).and_then(Mtu::from_bytes);
        Ok(theirs.filter(|mtu| code(*mtu) < code(mine)).unwrap_or(mine))
    }

    /// Exchanges the keys of a QP.
    pub(super) fn keys(&mut self, mine: &Keys) -> Result<Keys> {
        let mine = match self.form {
            Form::Text { has_gid } => mine.encode(has_gid),
            Form::Struct => mine.encode_struct(),
        };
        let theirs = self.trade(&mine, "its keys")?;
        if self.form == Form::Struct {
            return Keys::decode_struct(&theirs).context("the other end sent invalid keys");
        }
        let text = until_nul(&theirs)?;
        text.parse().with_context(|| format!("{text:?} are not keys"))
    }

    /// Exchanges the keys of each QP.
    pub(super) fn all_keys(&mut self, mine: &[Keys]) -> Result<Vec<Keys>> {
        mine.iter().map(|keys| self.keys(keys)).collect()
    }

    /// Waits until the other end has come to the same point of the test.
    pub(super) fn sync(&mut self, mine: &[Keys]) -> Result<()> {
        self.keys(&mine.first().copied().unwrap_or_default()).map(drop)
    }

    /// Exchanges the results of a bandwidth test.
    pub(super) fn report(&mut self, mine: &Report) -> Result<Report> {
        let mut one = |mine: u64| -> Result<u64> {
            let theirs = self.trade(&mine.to_be_bytes(), "its result")?;
            Ok(u64::from_be_bytes(theirs.try_into().unwrap_or_default()))
        };
        let (bytes, iters) = (one(mine.bytes)?, one(mine.iters)?);
        let mut float = |mine: f64| one(mine.to_bits()).map(f64::from_bits);
        Ok(Report {
            bytes,
            iters,
            peak: float(mine.peak)?,
            average: float(mine.average)?,
            rate: float(mine.rate)?,
        })
    }

    /// Ends the exchange. perftest 6.06 sends a last message without reading that of the other end, so the connection
    /// is closed only when it has arrived, or when the other end has closed its own.
    pub(super) fn close(mut self, mine: &[Keys]) -> Result<()> {
        self.sync(mine).context("the end of the test")?;
        if self.form == Form::Struct {
            return Ok(());
        }
        match self.stream.write_all(DONE) {
            Ok(()) => {}
            // perftest 25 closes without this message.
            Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
                return Ok(());
            }
            Err(error) => return Err(error).context("cannot send the last message"),
        }
        let mut theirs = [0; DONE.len()];
        match self.stream.read_exact(&mut theirs) {
            Ok(()) if theirs == *DONE => Ok(()),
            Ok(()) => bail!("the last message is {:?}", String::from_utf8_lossy(&theirs)),
            Err(error) if matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) => {
                Ok(())
            }
            Err(error) => Err(error).context("the last message did not arrive"),
        }
    }
}

/// The text before the first NUL.
fn until_nul(bytes: &[u8]) -> Result<&str> {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    core::str::from_utf8(&bytes[..end]).context("the message is not text")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;
    use std::thread;

    fn keys() -> Keys {
        let gid = "::ffff:10.0.0.1".parse().unwrap();
        Keys {
            lid: 3,
            out_reads: 16,
            qp_num: 0x123,
            psn: 0xabcdef,
            rkey: 0x1700,
            addr: 0x7f00_1234_5000,
            gid,
            srq_num: 9,
        }
    }

    const TEXT: Form = Form::Text { has_gid: true };

    /// Runs both ends.
    fn both<T: Send>(form: Form, end: impl Fn(Wire<UnixStream>) -> T + Sync) -> [T; 2] {
        let (server, client) = UnixStream::pair().unwrap();
        thread::scope(|scope| {
            let server = scope.spawn(|| end(Wire::new(server, false, form)));
            [end(Wire::new(client, true, form)), server.join().unwrap()]
        })
    }

    #[test]
    fn keys_are_the_text_of_perftest() {
        let with_gid = keys().encode(true);
        assert_eq!(
            with_gid,
            b"0003:0010:000123:abcdef:00001700:00007f0012345000:00:00:00:00:00:00:00:00:00:00:ff:ff:0a:00:00:01:\
              00000009:\0"
        );
        assert_eq!(with_gid.len(), KEYS_GID_LEN);
        assert_eq!(until_nul(&with_gid).unwrap().parse(), Ok(keys()));
        let without = keys().encode(false);
        assert_eq!(without, b"0003:0010:000123:abcdef:00001700:00007f0012345000:00000009\0");
        assert_eq!(without.len(), KEYS_LEN);
        assert_eq!(until_nul(&without).unwrap().parse(), Ok(Keys { gid: Gid::ZERO, ..keys() }));
    }

    #[test]
    fn keys_are_the_struct_of_perftest() {
        let bytes = keys().encode_struct();
        assert_eq!(bytes.len(), STRUCT_LEN);
        assert_eq!(bytes[..12], [0, 0, 0, 3, 0, 0, 0, 16, 0, 0, 1, 0x23]);
        assert_eq!(bytes[20..32], [0, 0, 0, 0, 0, 0, 0x7f, 0, 0x12, 0x34, 0x50, 0]);
        assert_eq!(bytes[44..], [10, 0, 0, 1, 0, 0, 0, 9, 0, 0, 0, 0]);
        assert_eq!(Keys::decode_struct(&bytes), Some(keys()));
        assert_eq!(Keys::decode_struct(&bytes[..51]), None);
        let lid = [&[1; 4], &bytes[4..]].concat();
        assert_eq!(Keys::decode_struct(&lid), None);
    }

    #[test]
    fn other_text_is_refused() {
        for text in [
            "",
            "1:2",
            "0003:0010:000123:abcdef:00001700:00007f0012345000:xyz",
            "1:2:3:4:5:6:7:8",
            "1:100:3:4:5:6:7",
        ] {
            assert_eq!(text.parse::<Keys>(), Err(ParseKeysError), "{text}");
        }
    }

    #[test]
    fn both_ends_agree() {
        for form in [TEXT, Form::Struct] {
            agree(form);
        }
    }

    fn agree(form: Form) {
        let [a, b] = both(form, |mut wire| {
            wire.versions().unwrap();
            let is_client = wire.is_client;
            let system = wire.system(if is_client { 4096 } else { 65536 }, 64).unwrap();
            let mtu = wire.mtu(if is_client { Mtu::MTU_1024 } else { Mtu::MTU_4096 }).unwrap();
            let theirs = wire.all_keys(&[keys(), Keys { qp_num: 5, ..keys() }]).unwrap();
            let report =
                Report { bytes: 64, iters: u64::from(is_client), peak: 1.5, average: 1.25, rate: 0.1 };
            let report = wire.report(&report).unwrap();
            wire.close(&[keys()]).unwrap();
            (system, mtu, theirs, report)
        });
        assert_eq!((a.0, a.1), ((65536, 64), Mtu::MTU_1024));
        assert_eq!((a.0, a.1, &a.2), (b.0, b.1, &b.2));
        assert_eq!((a.2[0], a.2[1].qp_num), (keys(), 5));
        assert_eq!((a.3.iters, b.3.iters, a.3.average), (0, 1, 1.25));
    }

    #[test]
    fn wrong_peers_are_named() {
        let error = |bytes: &[u8]| {
            let (mut peer, stream) = UnixStream::pair().unwrap();
            peer.write_all(bytes).unwrap();
            peer.shutdown(std::net::Shutdown::Write).unwrap();
            format!("{:#}", Wire::new(stream, true, TEXT).versions().unwrap_err())
        };
        assert!(error(b"").contains("sent no version"), "{}", error(b""));
        assert!(error(b"0000:000012:ffff").contains("not a version"));
        assert!(error(b"5.60\0\0\0\0\0\0\0\0\0\0\0\0").contains("too old"));
        let (mut peer, stream) = UnixStream::pair().unwrap();
        peer.write_all(b"25.01.0\0\0\0\0\0\0\0\0\0").unwrap();
        Wire::new(stream, true, TEXT).versions().unwrap();
    }

    #[test]
    fn the_end_may_come_without_the_last_message() {
        let (mut peer, stream) = UnixStream::pair().unwrap();
        peer.write_all(&keys().encode(true)).unwrap();
        peer.shutdown(std::net::Shutdown::Write).unwrap();
        Wire::new(stream, true, TEXT).close(&[keys()]).unwrap();
    }
}
