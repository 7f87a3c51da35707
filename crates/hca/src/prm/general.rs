// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fields that the headers of some supported kernels lack: general objects, the second mask of `RTS2RTS_QP`, and their
//! capabilities. Facts from the PRM and the newest `mlx5_ifc.h`.

use super::Status;
use super::bits::Field;
use crate::engine::Device;

/// `MLX5_CMD_OP_CREATE_GENERAL_OBJECT` and the other commands for such objects.
pub mod op {
    /// Creates an object.
    pub const CREATE: u16 = 0xa00;
    /// Modifies an object.
    pub const MODIFY: u16 = 0xa01;
    /// Queries an object.
    pub const QUERY: u16 = 0xa02;
    /// Destroys an object.
    pub const DESTROY: u16 = 0xa03;
}

/// `MLX5_OBJ_TYPE_RESERVED_QPN`: numbers that no queue pair gets.
pub const RESERVED_QPN: u32 = 0x2c;
/// `MLX5_OBJ_TYPE_AV_QP_MAPPING`: an address that is mapped to the number of a queue pair.
pub const AV_QP_MAPPING: u32 = 0x3a;

/// In the header of a command: the type of the object.
pub const OBJ_TYPE: Field = Field::new(0x30, 16);
/// In the header of a command and of an answer: the number of the object.
pub const OBJ_ID: Field = Field::new(0x40, 32);
/// In the header of `CREATE`: the number of objects, as a power of two.
pub const LOG_OBJ_RANGE: Field = Field::new(0x63, 5);
/// Where the object is in a command and an answer, and the number of a queue pair in a mapping.
const OBJECT: Field = Field::new(0x80, 0);
const MAPPING_QPN: Field = Field::new(0xe0, 32);
/// Bytes of an object of each type.
const QPN_BYTES: usize = 16;
const MAPPING_BYTES: usize = 64;
/// QP numbers of an object, as a power of two at most.
const MAX_LOG_QPNS: u32 = 10;

/// The types that the device has, as a capability.
pub const TYPES: u64 = 1 << RESERVED_QPN | 1 << AV_QP_MAPPING;

/// A general object.
#[derive(Debug)]
pub struct Object {
    kind: u32,
    id: u32,
    /// The numbers from `id` on that it reserves.
    count: u32,
    body: Vec<u8>,
}

impl Object {
    /// Executes `CREATE` and writes the object's number to the answer.
    ///
    /// # Errors
    /// The status with which the firmware refuses the command.
    pub fn create(device: &mut Device, input: &[u8], output: &mut [u8]) -> Result<Self, Status> {
        let kind = OBJ_TYPE.get32(input);
        let (bytes, log_count) = match kind {
            RESERVED_QPN => (QPN_BYTES, LOG_OBJ_RANGE.get32(input)),
            AV_QP_MAPPING => (MAPPING_BYTES, 0),
            _ => return Err(Status::BAD_PARAM),
        };
        let body = OBJECT.rest(input).get(..bytes).ok_or(Status::BAD_INPUT_LEN)?.to_vec();
        if output.len() < 16 {
            return Err(Status::BAD_OUTPUT_LEN);
        }
        if log_count > MAX_LOG_QPNS || kind == AV_QP_MAPPING && MAPPING_QPN.get32(input) >> 24 != 0 {
            return Err(Status::BAD_PARAM);
        }
        let count = 1 << log_count;
        let id = device.reserve_numbers(count).ok_or(Status::LIMIT)?;
        OBJ_ID.set(output, id);
        Ok(Self { kind, id, count, body })
    }

    /// Its type and number.
    #[must_use]
    pub fn name(&self) -> (u32, u32) {
        (self.kind, self.id)
    }

    /// The type and number in the header of a command.
    #[must_use]
    pub fn name_in(input: &[u8]) -> (u32, u32) {
        (OBJ_TYPE.get32(input), OBJ_ID.get32(input))
    }

    /// Whether the header of a command names it.
    #[must_use]
    pub fn is_named_by(&self, input: &[u8]) -> bool {
        Self::name_in(input) == self.name()
    }

    /// Executes `QUERY`.
    pub fn query(&self, output: &mut [u8]) {
        let to = OBJECT.rest_mut(output);
        let len = to.len().min(self.body.len());
        to[..len].copy_from_slice(&self.body[..len]);
    }

    /// Releases its numbers.
    pub fn destroy(&self, device: &mut Device) {
        device.release_numbers(self.id, self.count);
    }
}

/// The second mask of `RTS2RTS_QP`.
pub const OPT_PARAM_MASK_95_32: Field = Field::new(0x840, 64);

/// The stream of a DC initiator in the extension of a QP's context, whose error the command clears.
pub const DCI_STREAM_CHANNEL_ID: Field = Field::new(0x890, 16);

/// Capabilities of the general group.
pub mod cap {
    use super::Field;

    /// There is a second group of general capabilities.
    pub const HCA_CAP_2: Field = Field::new(0x20, 1);
    /// Commands have the extension of a QP's context.
    pub const QPC_EXTENSION: Field = Field::new(0x122, 1);
    /// `RTS2RTS_QP` changes the UDP source port.
    pub const RTS2RTS_QP_UDP_SPORT: Field = Field::new(0x151, 1);
    /// Errors of signatures have a domain and a type; with `sho`, the device has signatures.
    pub const SIGERR_DOMAIN_AND_SIG_TYPE: Field = Field::new(0x480, 1);
    /// Signatures of blocks of 4,048 bytes.
    pub const SIG_BLOCK_4048: Field = Field::new(0x1f0, 1);
    /// Signatures that are a CRC-32C or a CRC64_XP10.
    pub const SIG_CRC32C: Field = Field::new(0x148, 1);
    /// See [`SIG_CRC32C`].
    pub const SIG_CRC64_XP10: Field = Field::new(0x147, 1);
    /// QPs of each type whose receives are consumed and whose messages arrive in any order (`OOO_ALL`).
    pub const DP_ORDERING_OOO_ALL: [Field; 5] = [
        Field::new(0x330, 1),
        Field::new(0x331, 1),
        Field::new(0x332, 1),
        Field::new(0x333, 1),
        Field::new(0x334, 1),
    ];
    /// In the second group: the order of a QP is set in its context.
    pub const DP_ORDERING_FORCE: Field = Field::new(0x88, 1);
    /// The types of general objects, the first in the last bit.
    pub const GENERAL_OBJ_TYPES: Field = Field::new(0x400, 64);
    /// In the second group: the number of QP numbers of an object, as a power of two.
    pub const LOG_RESERVED_QPN_GRANULARITY: Field = Field::new(0x93, 5);
}
