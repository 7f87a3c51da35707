// SPDX-License-Identifier: MIT OR Apache-2.0
//! QPs of a device and their counters, from RDMA netlink (`RDMA_NLDEV_CMD_RES_QP_GET`, `RDMA_NLDEV_CMD_STAT_GET` in
//! `<rdma/rdma_netlink.h>`). Only root sees the QPs of other users' processes.

use super::{BoundCounters, QpSample};
use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, setsockopt, socket,
};
use nix::sys::time::{TimeVal, TimeValLike};
use std::os::fd::AsRawFd;
use uverbs_core::errno::Errno;
use uverbs_core::error::{Error, Result};

/// `RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, ..)` of `RDMA_NLDEV_CMD_RES_QP_GET` and `RDMA_NLDEV_CMD_STAT_GET`.
const QP_GET: u16 = 5 << 10 | 10;
const STAT_GET: u16 = 5 << 10 | 17;
/// `NLM_F_REQUEST | NLM_F_DUMP`
const DUMP: u16 = 0x301;
/// `NLMSG_ERROR`, `NLMSG_DONE`
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// `NLA_TYPE_MASK`: the other bits are flags.
const TYPE_MASK: u16 = 0x3fff;
/// Bytes of the head of a message, and of an attribute.
const MESSAGE: usize = 16;
const ATTRIBUTE: usize = 4;

/// `RDMA_NLDEV_ATTR_*`
mod attr {
    pub(super) const DEV_INDEX: u16 = 1;
    pub(super) const PORT_INDEX: u16 = 3;
    pub(super) const RES_QP: u16 = 19;
    pub(super) const RES_QP_ENTRY: u16 = 20;
    pub(super) const RES_LQPN: u16 = 21;
    pub(super) const RES_RQPN: u16 = 22;
    pub(super) const RES_RQ_PSN: u16 = 23;
    pub(super) const RES_SQ_PSN: u16 = 24;
    pub(super) const RES_TYPE: u16 = 26;
    pub(super) const RES_STATE: u16 = 27;
    pub(super) const RES_PID: u16 = 28;
    pub(super) const RES_KERN_NAME: u16 = 29;
    pub(super) const STAT_RES: u16 = 75;
    pub(super) const STAT_COUNTER: u16 = 77;
    pub(super) const STAT_COUNTER_ENTRY: u16 = 78;
    pub(super) const STAT_COUNTER_ID: u16 = 79;
    pub(super) const STAT_HWCOUNTERS: u16 = 80;
    pub(super) const STAT_HWCOUNTER_ENTRY: u16 = 81;
    pub(super) const STAT_HWCOUNTER_ENTRY_NAME: u16 = 82;
    pub(super) const STAT_HWCOUNTER_ENTRY_VALUE: u16 = 83;
}

/// The error of a system call.
fn failed(verb: &'static str) -> impl Fn(nix::errno::Errno) -> Error {
    move |errno| Error::os(verb, "RDMA netlink", Errno::from_raw(errno as i32))
}

/// The QPs of the device with this index.
pub(super) fn qps(device: u32) -> Result<Vec<QpSample>> {
    Ok(dump(QP_GET, &request(QP_GET, &[(attr::DEV_INDEX, device)]))?
        .iter()
        .flat_map(|m| read_qps(m))
        .collect())
}

/// The counters that are bound to QPs. A device that has none, and a kernel without the command, give an empty list.
pub(super) fn bound(device: u32) -> Vec<BoundCounters> {
    let attrs = [(attr::DEV_INDEX, device), (attr::STAT_RES, attr::RES_QP.into())];
    let messages = dump(STAT_GET, &request(STAT_GET, &attrs)).unwrap_or_default();
    messages.iter().flat_map(|message| read_bound(message)).collect()
}

fn request(kind: u16, attrs: &[(u16, u32)]) -> Vec<u8> {
    let length = MESSAGE + attrs.len() * (ATTRIBUTE + 4);
    let mut bytes = Vec::from((length as u32).to_ne_bytes());
    bytes.extend([kind.to_ne_bytes(), DUMP.to_ne_bytes()].concat());
    bytes.resize(MESSAGE, 0);
    for (kind, value) in attrs {
        bytes.extend([(ATTRIBUTE as u16 + 4).to_ne_bytes(), kind.to_ne_bytes()].concat());
        bytes.extend(value.to_ne_bytes());
    }
    bytes
}

/// Sends a request and returns the attributes of each message of the answer.
fn dump(kind: u16, request: &[u8]) -> Result<Vec<Vec<u8>>> {
    let socket =
        socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkRDMA)
            .map_err(failed("socket"))?;
    // The kernel answers at once; the limit guards against one that does not.
    setsockopt(&socket, ReceiveTimeout, &TimeVal::seconds(2)).map_err(failed("setsockopt"))?;
    send(socket.as_raw_fd(), request, MsgFlags::empty()).map_err(failed("send"))?;
    let mut datagram = vec![0; 1 << 16];
    let mut messages = Vec::new();
    loop {
        let length = recv(socket.as_raw_fd(), &mut datagram, MsgFlags::empty()).map_err(failed("recv"))?;
        if length == 0 || split(&datagram[..length], kind, &mut messages)? {
            return Ok(messages);
        }
    }
}

/// A number of native byte order at the beginning of a value.
fn number<const N: usize>(bytes: &[u8]) -> Option<[u8; N]> {
    bytes.first_chunk().copied()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    number(bytes.get(at..)?).map(u16::from_ne_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    number(bytes.get(at..)?).map(u32::from_ne_bytes)
}

/// Adds the attributes of a datagram's messages. Returns whether the answer is complete.
fn split(mut bytes: &[u8], wanted: u16, messages: &mut Vec<Vec<u8>>) -> Result<bool> {
    while let (Some(length), Some(kind)) = (u32_at(bytes, 0), u16_at(bytes, 4)) {
        let length = length as usize;
        let Some(body) = bytes.get(MESSAGE..length) else {
            return Err(Error::protocol("recv", "a message of RDMA netlink is cut short"));
        };
        match kind {
            DONE => return Ok(true),
            ERROR => {
                let errno = u32_at(body, 0).unwrap_or(0).cast_signed();
                return Err(Error::os("dump", "RDMA netlink", Errno::from_raw(errno.saturating_neg())));
            }
            kind if kind == wanted => messages.push(body.to_vec()),
            _ => {}
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

/// The attributes in these bytes, up to one that is cut short.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    core::iter::from_fn(move || {
        let (length, kind) = (usize::from(u16_at(bytes, 0)?), u16_at(bytes, 2)?);
        let value = bytes.get(ATTRIBUTE..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind & TYPE_MASK, value))
    })
}

/// The nested attributes of a kind.
fn nested(bytes: &[u8], wanted: u16) -> impl Iterator<Item = &[u8]> {
    attributes(bytes).filter_map(move |(kind, value)| (kind == wanted).then_some(value))
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

fn read_qps(message: &[u8]) -> Vec<QpSample> {
    let entries = nested(message, attr::RES_QP).flat_map(|table| nested(table, attr::RES_QP_ENTRY));
    entries.map(read_qp).collect()
}

fn read_qp(entry: &[u8]) -> QpSample {
    let mut qp = QpSample::default();
    for (kind, value) in attributes(entry) {
        let (word, byte) = (u32_at(value, 0), value.first().copied());
        match kind {
            attr::RES_LQPN => qp.number = word.unwrap_or_default(),
            attr::PORT_INDEX => qp.port = word,
            attr::RES_RQPN => qp.remote = word,
            attr::RES_SQ_PSN => qp.sq_psn = word,
            attr::RES_RQ_PSN => qp.rq_psn = word,
            attr::RES_TYPE => qp.kind = byte,
            attr::RES_STATE => qp.state = byte,
            attr::RES_PID => qp.pid = word,
            attr::RES_KERN_NAME => qp.kernel_name = Some(text(value)),
            _ => {}
        }
    }
    qp
}

fn read_bound(message: &[u8]) -> Vec<BoundCounters> {
    let entries = nested(message, attr::STAT_COUNTER).flat_map(|t| nested(t, attr::STAT_COUNTER_ENTRY));
    entries
        .map(|entry| BoundCounters {
            id: nested(entry, attr::STAT_COUNTER_ID).find_map(|v| u32_at(v, 0)).unwrap_or_default(),
            port: nested(entry, attr::PORT_INDEX).find_map(|v| u32_at(v, 0)),
            qps: nested(entry, attr::RES_QP)
                .flat_map(|table| nested(table, attr::RES_QP_ENTRY))
                .map(|qp| read_qp(qp).number)
                .collect(),
            counters: nested(entry, attr::STAT_HWCOUNTERS)
                .flat_map(|table| nested(table, attr::STAT_HWCOUNTER_ENTRY))
                .filter_map(|counter| {
                    let name = nested(counter, attr::STAT_HWCOUNTER_ENTRY_NAME).next()?;
                    let value = nested(counter, attr::STAT_HWCOUNTER_ENTRY_VALUE).next()?;
                    Some((text(name), number(value).map(u64::from_ne_bytes)?))
                })
                .collect(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// `NLA_F_NESTED`
    const NESTED: u16 = 1 << 15;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let length = (ATTRIBUTE + value.len()) as u16;
        let mut bytes = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), value].concat();
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn table(kind: u16, values: &[Vec<u8>]) -> Vec<u8> {
        attribute(kind | NESTED, &values.concat())
    }

    fn word(kind: u16, value: u32) -> Vec<u8> {
        attribute(kind, &value.to_ne_bytes())
    }

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let length = (MESSAGE + body.len()) as u32;
        [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &[0; 10], body].concat()
    }

    fn qp(number: u32, remote: u32) -> Vec<u8> {
        table(
            attr::RES_QP_ENTRY,
            &[
                word(attr::RES_LQPN, number),
                word(attr::RES_RQPN, remote),
                attribute(attr::RES_TYPE, &[2]),
                attribute(attr::RES_STATE, &[3]),
                word(attr::RES_PID, 77),
            ],
        )
    }

    #[test]
    fn qps_are_read_from_all_datagrams() {
        let body = [word(attr::DEV_INDEX, 0), table(attr::RES_QP, &[qp(17, 18), qp(18, 17)])].concat();
        let gsi = table(
            attr::RES_QP_ENTRY,
            &[word(attr::RES_LQPN, 1), attribute(attr::RES_KERN_NAME, b"ib_core\0")],
        );
        let first = message(QP_GET, &body);
        let second = [message(QP_GET, &table(attr::RES_QP, &[gsi])), message(DONE, &[0; 4])].concat();
        let mut messages = Vec::new();
        assert!(!split(&first, QP_GET, &mut messages).unwrap());
        assert!(split(&second, QP_GET, &mut messages).unwrap());
        let qps: Vec<_> = messages.iter().flat_map(|m| read_qps(m)).collect();
        assert_eq!(qps.iter().map(|qp| qp.number).collect::<Vec<_>>(), [17, 18, 1]);
        assert_eq!(
            (qps[0].remote, qps[0].kind, qps[0].state, qps[0].pid),
            (Some(18), Some(2), Some(3), Some(77))
        );
        assert_eq!(qps[2].kernel_name.as_deref(), Some("ib_core"));
    }

    #[test]
    fn counters_of_qps_are_read() {
        let counter = table(
            attr::STAT_HWCOUNTER_ENTRY,
            &[
                attribute(attr::STAT_HWCOUNTER_ENTRY_NAME, b"out_of_buffer\0"),
                attribute(attr::STAT_HWCOUNTER_ENTRY_VALUE, &5_u64.to_ne_bytes()),
            ],
        );
        let entry = table(
            attr::STAT_COUNTER_ENTRY,
            &[
                word(attr::PORT_INDEX, 1),
                word(attr::STAT_COUNTER_ID, 4),
                table(attr::RES_QP, &[qp(17, 18)]),
                table(attr::STAT_HWCOUNTERS, &[counter]),
            ],
        );
        let bound = read_bound(&table(attr::STAT_COUNTER, &[entry]));
        let counters = BTreeMap::from([("out_of_buffer".to_owned(), 5)]);
        assert_eq!(bound, [BoundCounters { id: 4, port: Some(1), qps: vec![17], counters }]);
    }

    #[test]
    fn errors_and_junk_are_no_answers() {
        let error = split(&message(ERROR, &(-22_i32).to_ne_bytes()), QP_GET, &mut Vec::new()).unwrap_err();
        assert!(error.to_string().contains("Invalid argument"), "{error}");
        let whole = message(QP_GET, &table(attr::RES_QP, &[qp(17, 18)]));
        for length in 8..whole.len() {
            assert!(split(&whole[..length], QP_GET, &mut Vec::new()).is_err(), "{length}");
        }
        for junk in [vec![0; 64], vec![0xff; 64]] {
            assert!(read_qps(&junk).is_empty() && read_bound(&junk).is_empty());
        }
    }
}
