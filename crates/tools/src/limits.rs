// SPDX-License-Identifier: MIT OR Apache-2.0
//! Values of options that a device or a port limits. The errors of the library name fields of verbs; a user sees the option that
//! has the value.

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use uverbs::attr::PortAttr;
use uverbs::{Context, Driver, Error};

/// A field of a verb, and the option that has its value.
pub(crate) type Name = (&'static str, &'static str);

/// Replaces the field of an invalid argument by its option.
pub(crate) fn by_option(error: Error, names: &[Name]) -> anyhow::Error {
    if let Error::Invalid { field, reason, .. } = &error
        && let Some((_, option)) = names.iter().find(|(name, _)| name == field)
    {
        return anyhow!("{option}: {reason}");
    }
    error.into()
}

/// The attributes of the port that `--ib-port` selects.
pub(crate) fn port<D: Driver>(context: &Context<D>, port_num: u8) -> Result<PortAttr> {
    let device = context.query_device()?;
    let ports = device.phys_port_cnt_ex.max(device.phys_port_cnt.into());
    let (name, noun) = (context.name(), if ports == 1 { "port" } else { "ports" });
    ensure!(u32::from(port_num) <= ports, "--ib-port {port_num}: {name} has {ports} {noun}");
    Ok(context.query_port(port_num)?)
}

/// Checks the index of a GID that was given by `option`.
pub(crate) fn gid<D: Driver>(context: &Context<D>, port_num: u8, option: &str, index: u8) -> Result<()> {
    let len = port(context, port_num)?.gid_tbl_len;
    let place = format!("port {port_num} of {}", context.name());
    ensure!(u32::from(index) < len, "{option} {index}: the GID table of {place} has {len} entries");
    match context.query_gid(port_num, index.into()) {
        Ok(gid) if !gid.is_zero() => Ok(()),
        Ok(_) => bail!("{option} {index}: this GID of {place} is empty"),
        Err(error) => Err(error).with_context(|| format!("{option} {index}: no such GID of {place}")),
    }
}

/// Checks a number against a limit.
pub(crate) fn at_most(option: &str, value: u32, limit: u32, of: &str) -> Result<()> {
    ensure!(value <= limit, "{option} {value}: the limit of {of} is {limit}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device;

    #[test]
    fn an_option_replaces_its_field_only() {
        let error =
            |field| by_option(Error::invalid("create_qp", field, "9 is above 8"), &[("cqe", "--depth")]);
        assert_eq!(error("cqe").to_string(), "--depth: 9 is above 8");
        assert_eq!(error("max_wr").to_string(), "create_qp: invalid max_wr: 9 is above 8");
    }

    #[test]
    fn ports_and_gids_are_named_by_their_options() {
        let [context, _] = device::tests::hcas();
        assert_eq!(port(&context, 2).unwrap_err().to_string(), "--ib-port 2: hca0 has 1 port");
        gid(&context, 1, "-x", 0).unwrap();
        let error = format!("{:#}", gid(&context, 1, "-x", 200).unwrap_err());
        assert!(error.starts_with("-x 200: no such GID of port 1 of hca0: "), "{error}");
        let error = at_most("--size", 9, 8, "port 1").unwrap_err();
        assert_eq!(error.to_string(), "--size 9: the limit of port 1 is 8");
    }
}
