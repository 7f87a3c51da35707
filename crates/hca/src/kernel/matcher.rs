// SPDX-License-Identifier: MIT OR Apache-2.0
//! Matchers, and rules in the format of the PRM, as `drivers/infiniband/hw/mlx5/fs.c` has them. Only rules about received
//! frames whose destination is a raw packet QP, or that drop frames, are supported.

use super::call::Call;
use super::object::Object;
use crate::engine::flow::{Rule, Spec, Target};
use crate::engine::qp::QpKind;
use crate::prm::criteria::MATCH;
use uverbs_core::Errno;
use uverbs_core::kernel::RawCommand;
use uverbs_softkernel::Call as _;
use uverbs_softkernel::attr::{flags, handle, known, number, optional_handle};
use uverbs_uapi::mlx5::cmds as abi;

/// The bytes of a mask for each bit of the criteria.
const PART: usize = 64;
/// Lowest priority of a matcher (`MLX5_IB_FLOW_LAST_PRIO`).
const LAST_PRIORITY: u16 = 15;
/// `MLX5_IB_UAPI_FLOW_TABLE_TYPE_NIC_RX`
const RECEIVED: u64 = 0;
/// The tags that a completion has room for.
const MAX_TAG: u64 = 0xff_ffff;

/// A matcher: the bits that its rules compare.
#[derive(Debug)]
pub(crate) struct Matcher {
    /// As many bytes as the program's mask has.
    mask: Vec<u8>,
    priority: u16,
}

impl Call<'_, '_> {
    /// Objects of this module need a privilege that in the process every program has, and an Ethernet port.
    pub(super) fn create_matcher(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        known(
            c,
            &[
                abi::MLX5_IB_ATTR_FLOW_MATCHER_CREATE_HANDLE,
                abi::MLX5_IB_ATTR_FLOW_MATCHER_MATCH_MASK,
                abi::MLX5_IB_ATTR_FLOW_MATCHER_FLOW_TYPE,
                abi::MLX5_IB_ATTR_FLOW_MATCHER_MATCH_CRITERIA,
                abi::MLX5_IB_ATTR_FLOW_MATCHER_FLOW_FLAGS,
                abi::MLX5_IB_ATTR_FLOW_MATCHER_FT_TYPE,
            ],
        )?;
        let mut mask = c.input(abi::MLX5_IB_ATTR_FLOW_MATCHER_MATCH_MASK).ok_or(Errno::EINVAL)?.to_vec();
        let priority = c.input(abi::MLX5_IB_ATTR_FLOW_MATCHER_FLOW_TYPE).and_then(|p| p.try_into().ok());
        let priority = u16::from_ne_bytes(priority.ok_or(Errno::EINVAL)?);
        let criteria = match c.input(abi::MLX5_IB_ATTR_FLOW_MATCHER_MATCH_CRITERIA) {
            Some(&[criteria]) => criteria,
            _ => return Err(Errno::EINVAL),
        };
        if mask.is_empty() || mask.len() > MATCH || priority > LAST_PRIORITY {
            return Err(Errno::EINVAL);
        }
        let table = number(c, abi::MLX5_IB_ATTR_FLOW_MATCHER_FT_TYPE).unwrap_or(RECEIVED);
        let is_other = table != RECEIVED || flags(c, abi::MLX5_IB_ATTR_FLOW_MATCHER_FLOW_FLAGS)? != 0;
        if !self.device.ethernet || is_other {
            return Err(Errno::EOPNOTSUPP);
        }
        for (i, part) in mask.chunks_mut(PART).enumerate() {
            if criteria >> i & 1 == 0 {
                part.fill(0);
            }
        }
        let object = Object::Matcher(Matcher { mask, priority });
        self.give(c, abi::MLX5_IB_ATTR_FLOW_MATCHER_CREATE_HANDLE, object, &[], 0)
    }

    pub(super) fn destroy_matcher(&mut self, c: &RawCommand<'_, '_>) -> Result<(), Errno> {
        known(c, &[abi::MLX5_IB_ATTR_FLOW_MATCHER_DESTROY_HANDLE])?;
        let is = |o: &Object| matches!(o, Object::Matcher(_));
        self.destroy(c, abi::MLX5_IB_ATTR_FLOW_MATCHER_DESTROY_HANDLE, is)?;
        Ok(())
    }

    /// Adds a rule to a matcher (`UVERBS_HANDLER(MLX5_IB_METHOD_CREATE_FLOW)`).
    pub(super) fn create_rule(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        known(
            c,
            &[
                abi::MLX5_IB_ATTR_CREATE_FLOW_HANDLE,
                abi::MLX5_IB_ATTR_CREATE_FLOW_MATCH_VALUE,
                abi::MLX5_IB_ATTR_CREATE_FLOW_DEST_QP,
                abi::MLX5_IB_ATTR_CREATE_FLOW_MATCHER,
                abi::MLX5_IB_ATTR_CREATE_FLOW_TAG,
                abi::MLX5_IB_ATTR_CREATE_FLOW_FLAGS,
            ],
        )?;
        let number_of_matcher = handle(c, abi::MLX5_IB_ATTR_CREATE_FLOW_MATCHER)?;
        let mut value = c.input(abi::MLX5_IB_ATTR_CREATE_FLOW_MATCH_VALUE).ok_or(Errno::EINVAL)?.to_vec();
        let tag = number(c, abi::MLX5_IB_ATTR_CREATE_FLOW_TAG).unwrap_or(0);
        let wanted = flags(c, abi::MLX5_IB_ATTR_CREATE_FLOW_FLAGS)?;
        let qp = optional_handle(c, abi::MLX5_IB_ATTR_CREATE_FLOW_DEST_QP)?;
        let target = match qp {
            // A rule with a flag has no other destination.
            Some(_) if wanted != 0 => return Err(Errno::EINVAL),
            Some(qp) => match self.object(qp)? {
                Object::Qp(qp) if qp.is_rss => Target::Rss(qp.qpn),
                Object::Qp(qp) if qp.kind == QpKind::Raw => Target::Qp(qp.qpn),
                Object::Qp(_) => return Err(Errno::EINVAL),
                _ => return Err(Errno::ENOENT),
            },
            None if wanted == abi::MLX5_IB_ATTR_CREATE_FLOW_FLAGS_DROP => Target::Drop,
            None if wanted == abi::MLX5_IB_ATTR_CREATE_FLOW_FLAGS_DEFAULT_MISS => {
                return Err(Errno::EOPNOTSUPP);
            }
            None => return Err(Errno::EINVAL),
        };
        let Object::Matcher(matcher) = self.object(number_of_matcher)? else { return Err(Errno::ENOENT) };
        if value.is_empty() || value.len() > MATCH || tag > MAX_TAG {
            return Err(Errno::EINVAL);
        }
        // As in the kernel, the lengths may differ: bytes that the value lacks are 0, and the mask has no bits of others.
        value.resize(matcher.mask.len(), 0);
        let rule = Rule {
            priority: matcher.priority,
            multicast: false,
            sniffer: false,
            specs: vec![Spec::Match { mask: matcher.mask.clone(), value }],
            tag: tag as u32,
            target,
            counters: None,
        };
        let rule = self.device.steering.add(rule);
        let object = Object::Flow { rule };
        self.give(c, abi::MLX5_IB_ATTR_CREATE_FLOW_HANDLE, object, &[number_of_matcher], 0)
    }
}
