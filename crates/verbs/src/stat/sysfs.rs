// SPDX-License-Identifier: MIT OR Apache-2.0
//! The counters of a device of the machine, from sysfs.

use super::{DeviceSample, PortSample, netlink};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use uverbs_core::device::DeviceInfo;
use uverbs_core::error::Error;

pub(super) fn device(info: &DeviceInfo) -> DeviceSample {
    let index = info.index();
    let no_index = || Err(Error::unsupported("dump", "RDMA netlink does not report the device"));
    DeviceSample {
        name: info.name.clone(),
        counters: counters(&info.sysfs.join("hw_counters")),
        ports: ports(&info.sysfs),
        qps: index.map_or_else(no_index, netlink::qps),
        bound: index.map_or_else(Vec::new, netlink::bound),
    }
}

fn ports(sysfs: &Path) -> Vec<PortSample> {
    let Ok(entries) = fs::read_dir(sysfs.join("ports")) else { return Vec::new() };
    let mut ports: Vec<_> = entries
        .flatten()
        .filter_map(|entry| {
            let number = entry.file_name().to_str()?.parse().ok()?;
            let state = fs::read_to_string(entry.path().join("state")).unwrap_or_default();
            let state = state.split_once(": ").map_or(state.trim(), |(_, name)| name.trim()).to_owned();
            let mut values = counters(&entry.path().join("counters"));
            values.extend(counters(&entry.path().join("hw_counters")));
            Some(PortSample { number, state, counters: values })
        })
        .collect();
    ports.sort_by_key(|port| port.number);
    ports
}

/// The files of a folder that are numbers. (`lifespan` is how often the kernel reads them from the device.)
fn counters(folder: &Path) -> BTreeMap<String, u64> {
    let Ok(entries) = fs::read_dir(folder) else { return BTreeMap::new() };
    entries
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok().filter(|name| name != "lifespan")?;
            // Some counters can't be read on some ports.
            Some((name, fs::read_to_string(entry.path()).ok()?.trim().parse().ok()?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_each_port_are_read() {
        let folder = std::env::temp_dir().join(format!("uverbs-stat-{}", std::process::id()));
        let file = |path: &str, text: &str| {
            let path = folder.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        file("ports/2/state", "1: DOWN\n");
        file("ports/1/state", "4: ACTIVE\n");
        file("ports/1/counters/port_xmit_data", "12\n");
        file("ports/1/counters/VL15_dropped", "N/A (no PMA)\n");
        file("ports/1/hw_counters/sent_pkts", "34\n");
        file("ports/1/hw_counters/lifespan", "10\n");
        let found = ports(&folder);
        fs::remove_dir_all(&folder).unwrap();
        let expected = BTreeMap::from([("port_xmit_data".to_owned(), 12), ("sent_pkts".to_owned(), 34)]);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0], PortSample { number: 1, state: "ACTIVE".into(), counters: expected });
        assert_eq!((found[1].number, found[1].state.as_str()), (2, "DOWN"));
        assert_eq!(ports(Path::new("/nonexistent")), []);
    }
}
