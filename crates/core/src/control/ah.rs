// SPDX-License-Identifier: MIT OR Apache-2.0
//! Address handles (ibv_create_ah(3)).

use super::{Object, PdHandle, Result, explain, handle_common, invoke};
use crate::attr::AhAttr;
use crate::error::Error;
use crate::kernel::Uhw;
use uverbs_uapi::cmd::{
    IB_USER_VERBS_CMD_CREATE_AH, ib_uverbs_ah_attr, ib_uverbs_create_ah, ib_uverbs_create_ah_resp,
    ib_uverbs_global_route,
};
use uverbs_uapi::ids::{UVERBS_ATTR_DESTROY_AH_HANDLE, UVERBS_METHOD_AH_DESTROY, UVERBS_OBJECT_AH};

/// An address handle.
#[derive(Debug)]
pub struct AhHandle {
    object: Object,
}

handle_common!(AhHandle, "ah");

/// Creates an address handle.
///
/// # Errors
/// An invalid field of `attr`, or the kernel's error.
pub fn create(pd: &PdHandle, attr: &AhAttr, uhw: Uhw<'_>) -> Result<AhHandle> {
    const VERB: &str = "create_ah";
    attr.check(VERB, "attr")?;
    let request = ib_uverbs_create_ah { pd_handle: pd.handle(), attr: to_kernel(attr), ..Default::default() };
    let resp: ib_uverbs_create_ah_resp = invoke(&**pd.kernel(), IB_USER_VERBS_CMD_CREATE_AH, &request, uhw)
        .map_err(|errno| {
        let explained = explain::path(VERB, "attr", pd.kernel(), attr, errno);
        explained.unwrap_or_else(|| pd.error(VERB, errno))
    })?;
    Ok(AhHandle { object: Object::new(VERB, pd.kernel(), resp.ah_handle)? })
}

fn to_kernel(attr: &AhAttr) -> ib_uverbs_ah_attr {
    let grh = attr.grh.unwrap_or_default();
    ib_uverbs_ah_attr {
        grh: ib_uverbs_global_route {
            dgid: grh.dgid.0,
            flow_label: grh.flow_label,
            sgid_index: grh.sgid_index,
            hop_limit: grh.hop_limit,
            traffic_class: grh.traffic_class,
            ..Default::default()
        },
        dlid: attr.dlid,
        sl: attr.sl,
        src_path_bits: attr.src_path_bits,
        static_rate: attr.static_rate,
        is_global: attr.grh.is_some().into(),
        port_num: attr.port_num,
        ..Default::default()
    }
}

impl AhHandle {
    /// Destroys the address handle. The effect on outstanding sends that use it depends on the driver.
    ///
    /// # Errors
    /// The kernel's error; the handle is returned.
    pub fn destroy(self) -> Result<(), (Self, Error)> {
        match self.object.destroy(UVERBS_OBJECT_AH, UVERBS_METHOD_AH_DESTROY, UVERBS_ATTR_DESTROY_AH_HANDLE) {
            Ok(()) => Ok(()),
            Err(errno) => {
                let error = self.error("destroy_ah", errno);
                Err((self, error))
            }
        }
    }
}
