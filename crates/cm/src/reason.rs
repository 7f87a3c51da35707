// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reasons of rejections.

use core::fmt;
use uverbs_core::Errno;

/// The reason why a peer rejected a connection. It is a number, because the peer may send any value.
///
/// The reasons of connections are those of the REJ message (InfiniBand specification, 12.6.7.2). Datagrams have a
/// status of the SIDR REP message (12.11.2); it is this number plus [`SIDR`](Self::SIDR).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RejectReason(pub u32);

macro_rules! reasons {
    ($($name:ident = $value:expr, $text:literal;)*) => {
        impl RejectReason {
            $(#[doc = concat!("The reason is: ", $text, ".")] pub const $name: Self = Self($value);)*

            fn text(self) -> Option<&'static str> {
                match self { $(Self::$name => Some($text),)* _ => None }
            }
        }
    };
}

reasons! {
    UNKNOWN = 0, "not known";
    NO_QP = 1, "no QP is available";
    NO_RESOURCES = 3, "no resources are available";
    TIMEOUT = 4, "the peer timed out";
    UNSUPPORTED = 5, "the request is not supported";
    INVALID_COMM_ID = 6, "the peer has no such connection";
    INVALID_SERVICE_ID = 8, "no program listens on this port";
    INVALID_TRANSPORT_TYPE = 9, "the peer has another type of QP";
    STALE_CONN = 10, "the peer still has an older connection of this QP";
    INVALID_GID = 12, "the GID is not that of the peer";
    INVALID_MTU = 26, "the MTU is not supported";
    INSUFFICIENT_RESP_RESOURCES = 27, "too many reads and atomics are to be served";
    CONSUMER_DEFINED = 28, "the program refused";
    INVALID_RNR_RETRY = 29, "the number of RNR retries is invalid";
    DUPLICATE_LOCAL_COMM_ID = 30, "the peer has a connection with this number";
    VENDOR_OPTION_NOT_SUPPORTED = 35, "the options of the connection are not supported";
    SIDR_UNSUPPORTED = 0x101, "no program listens on this datagram port";
    SIDR_REJECT = 0x102, "the program refused datagrams";
    SIDR_NO_QP = 0x103, "no datagram QP is available";
}

impl RejectReason {
    /// The offset that is added to the status of a SIDR REP.
    pub const SIDR: u32 = 0x100;

    /// The reason of an event. iWARP has no numbers for it: its status is an errno of TCP, or that of a rejection by MPA.
    pub(crate) fn of_status(status: i32) -> Self {
        match u32::try_from(status) {
            Ok(reason) => Self(reason),
            Err(_) if status == -Errno::ECONNREFUSED.raw() => Self::INVALID_SERVICE_ID,
            Err(_) if status == -Errno::ECONNRESET.raw() => Self::CONSUMER_DEFINED,
            Err(_) => Self::UNKNOWN,
        }
    }
}

impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.text() {
            Some(text) => f.write_str(text),
            None => write!(f, "reason {}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_of_iwarp_is_an_errno() {
        let of = RejectReason::of_status;
        assert_eq!([of(28), of(-104)], [RejectReason::CONSUMER_DEFINED; 2]);
        assert_eq!([of(-111), of(-5)], [RejectReason::INVALID_SERVICE_ID, RejectReason::UNKNOWN]);
    }

    #[test]
    fn an_unknown_reason_is_shown_by_its_number() {
        assert_eq!(RejectReason(8).to_string(), "no program listens on this port");
        assert_eq!(RejectReason(77).to_string(), "reason 77");
    }
}
