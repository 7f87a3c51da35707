// SPDX-License-Identifier: MIT OR Apache-2.0
//! The attributes of the control verbs: requests to a device, and its answers.
//!
//! Field names are those of `<infiniband/verbs.h>` without the `ibv_` of the types, so the man pages apply. A value
//! that the kernel or the device may return is an integer newtype with named constants (an unknown one is data, not
//! UB); a value that only this library sends may be a Rust enum. Numbers are in host byte order unless a field's
//! documentation says otherwise. These types are independent of the kernel's structs; `control` converts them.

#[macro_use]
pub(crate) mod values;

mod ah;
mod cq;
mod device;
mod event;
mod flow;
mod gid;
mod mr;
mod port;
mod qp;
mod qp_attr;
mod srq;
pub mod transition;
mod wq;

pub use ah::{AhAttr, GlobalRoute};
pub use cq::{CqFlags, CqInitAttr, CqModeration, WcExFlags};
pub use device::{
    AtomicCap, CqModerationCaps, DeviceAttr, DeviceCapFlags, OdpCaps, OdpGeneralCaps, OdpTransportCaps,
    PacketPacingCaps, PciAtomicCaps, RawPacketCaps, RssCaps, TmCaps, TsoCaps,
};
pub use event::{AsyncEvent, EventScope, EventType};
pub use flow::{
    CounterAttachAttr, CounterDescription, FlowAttr, FlowAttrType, FlowEth, FlowFlags, FlowGre, FlowHeader,
    FlowIpv4, FlowIpv6, FlowMatch, FlowPorts, FlowSpec,
};
pub use gid::{Gid, GidEntry, GidType, ParseGidError};
pub use mr::{AccessFlags, AdviseFlags, MrAdvice, MwType, ReregFlags};
pub use port::{LinkLayer, Mtu, PhysState, PortAttr, PortCapFlags, PortCapFlags2, PortFlags, PortState};
pub use qp::{DriverQp, QpCap, QpCreateFlags, QpInitAttr, QpState, QpType, SendOpsFlags};
pub use qp_attr::{Ece, MigState, QpAttr, QpAttrMask, QpRateLimitAttr};
pub use srq::{SrqAttr, SrqAttrMask, SrqInitAttr, SrqType};
pub use wq::{RxHashConf, RxHashFields, WqAttr, WqFlags, WqInitAttr, WqState};
