// SPDX-License-Identifier: MIT OR Apache-2.0
//! The objects that only an Ethernet port has.

use crate::limits;
use crate::tables::Tables;
use std::collections::BTreeMap;
use std::sync::Arc;
use uverbs_hca::front::Numbers;

/// The Ethernet objects of a function.
#[derive(Debug)]
pub(crate) struct Ethernet {
    /// RoCE is enabled.
    pub(crate) roce: bool,
    /// The MTU that the driver has set, in bytes.
    pub(crate) mtu: u16,
    /// The tables that steer frames.
    pub(crate) tables: Arc<Tables>,
    pub(crate) tises: Numbers,
    /// `struct mlx5_ifc_rqc_bits`, `struct mlx5_ifc_sqc_bits`
    pub(crate) rqs: BTreeMap<u32, Vec<u8>>,
    pub(crate) sqs: BTreeMap<u32, Vec<u8>>,
}

impl Default for Ethernet {
    fn default() -> Self {
        Self {
            roce: false,
            mtu: 1500,
            tables: Arc::default(),
            tises: Numbers::new(1..1 << limits::LOG_MAX_TIS),
            rqs: BTreeMap::new(),
            sqs: BTreeMap::new(),
        }
    }
}
