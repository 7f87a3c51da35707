// SPDX-License-Identifier: MIT OR Apache-2.0
//! The names of a script: opcodes, refusals, statuses, events.

use core::fmt;

macro_rules! names {
    ($(#[$doc:meta])* $name:ident { $($(#[$about:meta])* $variant:ident $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$about])* $variant,)*
        }

        impl $name {
            /// All values.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// Its name in a script.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }

            /// The value with this name.
            #[must_use]
            pub fn of(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|value| value.name() == name)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

names! {
    /// What a packet is, or what a WR does.
    Opcode {
        /// A send, also of a datagram.
        Send "send",
        /// An RDMA write.
        Write "write",
        /// The request of an RDMA read.
        Read "read",
        /// An atomic compare-and-swap.
        CmpSwap "cmp_swap",
        /// An atomic fetch-and-add.
        FetchAdd "fetch_add",
        /// An operation of the requester only, such as the binding of a window. It has no packets.
        Local "local",
        /// A frame of Ethernet.
        Frame "frame",
        /// An acknowledgement.
        Ack "ack",
        /// A negative acknowledgement.
        Nak "nak",
        /// The answer of a receiver that is not ready.
        Rnr "rnr",
        /// Data of an RDMA read.
        ReadResponse "read_response",
        /// The answer to an atomic.
        AtomicResponse "atomic_response",
    }
}

names! {
    /// Why a receiver refuses a request (InfiniBand specification, 9.7.5.2.8).
    Refusal {
        /// A packet is missing: the requester repeats from this one on.
        Sequence "sequence",
        /// Invalid request: `IBV_WC_REM_INV_REQ_ERR`.
        Invalid "invalid",
        /// Access error: `IBV_WC_REM_ACCESS_ERR`.
        Access "access",
        /// Operational error: `IBV_WC_REM_OP_ERR`.
        Operation "operation",
    }
}

names! {
    /// The status of a completion with an error, without the prefix `IBV_WC_` (ibv_poll_cq(3)). A device that has no such error
    /// completes with another one.
    Status {
        /// The message is longer than the receive.
        LocLen "LOC_LEN_ERR",
        /// An error of the QP.
        LocQpOp "LOC_QP_OP_ERR",
        /// The memory of the WR is not valid.
        LocProt "LOC_PROT_ERR",
        /// The QP was in the state ERR.
        WrFlush "WR_FLUSH_ERR",
        /// A window could not be bound.
        MwBind "MW_BIND_ERR",
        /// An answer was not expected.
        BadResp "BAD_RESP_ERR",
        /// A write of the peer, with immediate data, was refused.
        LocAccess "LOC_ACCESS_ERR",
        /// The peer refuses the request as invalid.
        RemInvReq "REM_INV_REQ_ERR",
        /// The peer refuses the access.
        RemAccess "REM_ACCESS_ERR",
        /// The peer could not execute the request.
        RemOp "REM_OP_ERR",
        /// The peer does not answer.
        RetryExc "RETRY_EXC_ERR",
        /// The peer has no receive.
        RnrRetryExc "RNR_RETRY_EXC_ERR",
        /// The peer refuses a read as invalid.
        RemInvRdReq "REM_INV_RD_REQ_ERR",
        /// The peer has ended the request.
        RemAbort "REM_ABORT_ERR",
        /// The peer does not answer in time.
        RespTimeout "RESP_TIMEOUT_ERR",
        /// Another error.
        General "GENERAL_ERR",
    }
}

names! {
    /// An asynchronous event, without the prefix `IBV_EVENT_` (ibv_get_async_event(3)).
    Event {
        /// Of a QP: an error.
        QpFatal "QP_FATAL",
        /// Of a QP: the peer sent an invalid request.
        QpReqErr "QP_REQ_ERR",
        /// Of a QP: the peer's access was refused.
        QpAccessErr "QP_ACCESS_ERR",
        /// Of a QP: a packet arrived before the QP was in RTS.
        CommEst "COMM_EST",
        /// Of a QP: the send queue is drained.
        SqDrained "SQ_DRAINED",
        /// Of a QP: it uses the other path.
        PathMig "PATH_MIG",
        /// Of a QP: it could not use the other path.
        PathMigErr "PATH_MIG_ERR",
        /// Of a QP: no receive of the SRQ will be taken any more.
        QpLastWqeReached "QP_LAST_WQE_REACHED",
        /// Of the device: an error.
        DeviceFatal "DEVICE_FATAL",
        /// Of the port: it is active.
        PortActive "PORT_ACTIVE",
        /// Of the port: it is down.
        PortErr "PORT_ERR",
        /// Of the port: its LID has changed.
        LidChange "LID_CHANGE",
        /// Of the port: the table of P_Keys has changed.
        PkeyChange "PKEY_CHANGE",
        /// Of the port: the subnet manager has changed.
        SmChange "SM_CHANGE",
        /// Of the port: programs must register with the subnet manager again.
        ClientReregister "CLIENT_REREGISTER",
        /// Of the port: the table of GIDs has changed.
        GidChange "GID_CHANGE",
    }
}

impl Event {
    /// Whether it names a QP.
    #[must_use]
    pub const fn is_of_qp(self) -> bool {
        matches!(
            self,
            Self::QpFatal
                | Self::QpReqErr
                | Self::QpAccessErr
                | Self::CommEst
                | Self::SqDrained
                | Self::PathMig
                | Self::PathMigErr
                | Self::QpLastWqeReached
        )
    }
}

names! {
    /// Which queue completes a WR.
    Queue {
        /// The send queue.
        Send "send",
        /// The receive queue, or the SRQ.
        Recv "recv",
    }
}

names! {
    /// What a rule is about.
    Point {
        /// A packet that a device of this process sends.
        Packet "packet",
        /// A WR that completes without an error.
        Completion "completion",
        /// A verb that is called.
        Call "call",
        /// A time.
        Clock "clock",
    }
}

names! {
    /// A selector.
    Key {
        /// The process, by the order in which they make fabrics in a sweep.
        Process "process",
        /// The device, by its name.
        Device "device",
        /// The device that gets a packet.
        To "to",
        /// The number of the QP.
        Qp "qp",
        /// The number of the QP that gets a packet.
        Dest "dest",
        /// What it is.
        Opcode "opcode",
        /// The number of the WR on its queue, from 1.
        Wr "wr",
        /// The number of the packet in its message, from 1.
        Packet "packet",
        /// The sequence number of a packet.
        Psn "psn",
        /// The queue that completes a WR.
        Queue "queue",
        /// The verb.
        Verb "verb",
        /// The how-manyth of the events that all other selectors match, from 1.
        Nth "nth",
        /// The time since the script was set.
        Time "time",
    }
}

impl Key {
    /// Whether a rule at this point may have it.
    #[must_use]
    pub const fn is_of(self, point: Point) -> bool {
        match self {
            Self::Process | Self::Device | Self::Time => true,
            Self::Nth => !matches!(point, Point::Clock),
            Self::To | Self::Dest | Self::Packet | Self::Psn => matches!(point, Point::Packet),
            Self::Opcode => matches!(point, Point::Packet | Point::Completion),
            Self::Qp | Self::Wr => !matches!(point, Point::Clock),
            Self::Queue => matches!(point, Point::Completion),
            Self::Verb => matches!(point, Point::Call),
        }
    }
}
