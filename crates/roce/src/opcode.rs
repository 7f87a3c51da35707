// SPDX-License-Identifier: MIT OR Apache-2.0
//! The opcodes of the base transport header (IBA volume 1, table 38; XRC: annex 14), and the headers that follow each.

/// The transport service of an opcode: its upper three bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Extended reliable connection.
    Xrc,
}

impl Service {
    /// The upper bits of its opcodes.
    #[must_use]
    pub const fn bits(self) -> u8 {
        match self {
            Self::Rc => 0x00,
            Self::Uc => 0x20,
            Self::Ud => 0x60,
            Self::Xrc => 0xa0,
        }
    }
}

/// The operation of an opcode: its lower five bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Operation {
    /// SEND First.
    SendFirst = 0x00,
    /// SEND Middle.
    SendMiddle = 0x01,
    /// SEND Last.
    SendLast = 0x02,
    /// SEND Last with immediate.
    SendLastImm = 0x03,
    /// SEND Only.
    SendOnly = 0x04,
    /// SEND Only with immediate.
    SendOnlyImm = 0x05,
    /// RDMA WRITE First.
    WriteFirst = 0x06,
    /// RDMA WRITE Middle.
    WriteMiddle = 0x07,
    /// RDMA WRITE Last.
    WriteLast = 0x08,
    /// RDMA WRITE Last with immediate.
    WriteLastImm = 0x09,
    /// RDMA WRITE Only.
    WriteOnly = 0x0a,
    /// RDMA WRITE Only with immediate.
    WriteOnlyImm = 0x0b,
    /// RDMA READ Request.
    ReadRequest = 0x0c,
    /// RDMA READ response First.
    ReadFirst = 0x0d,
    /// RDMA READ response Middle.
    ReadMiddle = 0x0e,
    /// RDMA READ response Last.
    ReadLast = 0x0f,
    /// RDMA READ response Only.
    ReadOnly = 0x10,
    /// Acknowledge, also a negative one.
    Ack = 0x11,
    /// ATOMIC Acknowledge.
    AtomicAck = 0x12,
    /// CmpSwap.
    CmpSwap = 0x13,
    /// FetchAdd.
    FetchAdd = 0x14,
    /// SEND Last with Invalidate.
    SendLastInv = 0x16,
    /// SEND Only with Invalidate.
    SendOnlyInv = 0x17,
}

impl Operation {
    /// All of them.
    pub const ALL: [Self; 23] = [
        Self::SendFirst,
        Self::SendMiddle,
        Self::SendLast,
        Self::SendLastImm,
        Self::SendOnly,
        Self::SendOnlyImm,
        Self::WriteFirst,
        Self::WriteMiddle,
        Self::WriteLast,
        Self::WriteLastImm,
        Self::WriteOnly,
        Self::WriteOnlyImm,
        Self::ReadRequest,
        Self::ReadFirst,
        Self::ReadMiddle,
        Self::ReadLast,
        Self::ReadOnly,
        Self::Ack,
        Self::AtomicAck,
        Self::CmpSwap,
        Self::FetchAdd,
        Self::SendLastInv,
        Self::SendOnlyInv,
    ];

    /// Whether it answers a request.
    #[must_use]
    pub const fn is_response(self) -> bool {
        matches!(
            self,
            Self::ReadFirst
                | Self::ReadMiddle
                | Self::ReadLast
                | Self::ReadOnly
                | Self::Ack
                | Self::AtomicAck
        )
    }

    /// Whether a service has it.
    #[must_use]
    pub const fn is_of(self, service: Service) -> bool {
        match service {
            Service::Rc | Service::Xrc => true,
            Service::Uc => (self as u8) <= Self::WriteOnlyImm as u8,
            Service::Ud => matches!(self, Self::SendOnly | Self::SendOnlyImm),
        }
    }
}

/// An opcode that a service has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Opcode {
    service: Service,
    operation: Operation,
}

impl Opcode {
    /// SEND Only on a reliable connection.
    pub const RC_SEND_ONLY: Self = Self { service: Service::Rc, operation: Operation::SendOnly };

    /// The opcode, if the service has the operation.
    #[must_use]
    pub const fn new(service: Service, operation: Operation) -> Option<Self> {
        if operation.is_of(service) { Some(Self { service, operation }) } else { None }
    }

    /// The opcode of a header.
    #[must_use]
    pub fn from_bits(bits: u8) -> Option<Self> {
        let service = [Service::Rc, Service::Uc, Service::Ud, Service::Xrc]
            .into_iter()
            .find(|service| service.bits() == bits & 0xe0)?;
        let operation = Operation::ALL.into_iter().find(|operation| *operation as u8 == bits & 0x1f)?;
        Self::new(service, operation)
    }

    /// The number in the header.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.service.bits() | self.operation as u8
    }

    /// The service.
    #[must_use]
    pub const fn service(self) -> Service {
        self.service
    }

    /// The operation.
    #[must_use]
    pub const fn operation(self) -> Operation {
        self.operation
    }

    /// The headers that follow the base transport header.
    #[must_use]
    pub const fn extended(self) -> Extended {
        use Operation as O;
        let op = self.operation;
        Extended {
            deth: matches!(self.service, Service::Ud),
            xrceth: matches!(self.service, Service::Xrc) && !op.is_response(),
            reth: matches!(op, O::WriteFirst | O::WriteOnly | O::WriteOnlyImm | O::ReadRequest),
            atomic: matches!(op, O::CmpSwap | O::FetchAdd),
            aeth: matches!(op, O::ReadFirst | O::ReadLast | O::ReadOnly | O::Ack | O::AtomicAck),
            atomic_ack: matches!(op, O::AtomicAck),
            imm: matches!(op, O::SendLastImm | O::SendOnlyImm | O::WriteLastImm | O::WriteOnlyImm),
            ieth: matches!(op, O::SendLastInv | O::SendOnlyInv),
        }
    }

    /// Whether its packets have a payload, which may be empty.
    #[must_use]
    pub const fn has_payload(self) -> bool {
        use Operation as O;
        !matches!(self.operation, O::ReadRequest | O::Ack | O::AtomicAck | O::CmpSwap | O::FetchAdd)
    }
}

/// Which headers follow the base transport header, in the order in which they do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extended {
    /// Datagram extended transport header.
    pub deth: bool,
    /// XRC extended transport header.
    pub xrceth: bool,
    /// RDMA extended transport header.
    pub reth: bool,
    /// Atomic extended transport header.
    pub atomic: bool,
    /// Acknowledge extended transport header.
    pub aeth: bool,
    /// Atomic acknowledge extended transport header.
    pub atomic_ack: bool,
    /// Immediate data.
    pub imm: bool,
    /// Invalidate extended transport header.
    pub ieth: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_is_one_opcode_or_none() {
        let known: Vec<u8> = (0..=u8::MAX).filter(|bits| Opcode::from_bits(*bits).is_some()).collect();
        for &bits in &known {
            assert_eq!(Opcode::from_bits(bits).unwrap().bits(), bits);
        }
        // 23 of RC and of XRC, 12 of UC, 2 of UD.
        assert_eq!(known.len(), 23 + 23 + 12 + 2);
        assert_eq!(Opcode::from_bits(0x64).unwrap(), Opcode::new(Service::Ud, Operation::SendOnly).unwrap());
        for bits in [0x15, 0x18, 0x2c, 0x40, 0x60, 0x81, 0xc0] {
            assert_eq!(Opcode::from_bits(bits), None, "{bits:#x}");
        }
    }
}
