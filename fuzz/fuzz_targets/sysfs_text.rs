// SPDX-License-Identifier: MIT OR Apache-2.0
//! The texts and trees of sysfs.
//!
//! Checked: no attribute and no tree causes a panic; an accepted name can be a part of a path; a text is short and
//! printable; an accepted number has the value of its digits; every device with a valid name is in the list, once,
//! usable or with the reason, and the order of the list is always the same.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use uverbs_core::device::{DriverMatch, Modalias, PciId, Roots, parse};

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    /// One in 256: making a tree takes a thousand times as long as parsing.
    tree: u8,
    devices: Vec<Device<'a>>,
    nodes: Vec<Node<'a>>,
    text: &'a [u8],
}

#[derive(Arbitrary, Debug)]
struct Device<'a> {
    name: &'a [u8],
    is_file: bool,
    attributes: Vec<(u8, &'a [u8])>,
}

#[derive(Arbitrary, Debug)]
struct Node<'a> {
    number: &'a [u8],
    ibdev: Option<&'a [u8]>,
    dev: Option<&'a [u8]>,
    abi_version: Option<&'a [u8]>,
    file: u8,
}

fuzz_target!(|input: Input<'_>| {
    pure(input.text);
    if input.tree == 0xa5 {
        tree(&input);
    }
});

fn digits(bytes: &[u8], radix: u32) -> Option<u128> {
    let text = core::str::from_utf8(bytes).ok()?;
    bytes.iter().all(u8::is_ascii_alphanumeric).then(|| u128::from_str_radix(text, radix).ok())?
}

fn pure(bytes: &[u8]) {
    let line = bytes.split(|b| *b == 0).next().unwrap_or_default().trim_ascii();
    if let Some(number) = parse::number(bytes) {
        assert_eq!(digits(line, 10), Some(number.into()));
    }
    if let Some(name) = parse::name(bytes) {
        assert!(!name.is_empty() && name.len() < parse::MAX_NAME && name.as_bytes() == line);
        assert_eq!(Path::new("/x").join(name).parent(), Some(Path::new("/x")), "{name}");
        assert_eq!(Path::new(name).components().count(), 1);
    }
    if let Some(text) = parse::text(bytes) {
        assert!(
            !text.is_empty()
                && text.chars().count() <= parse::MAX_TEXT
                && !text.chars().any(char::is_control)
        );
    }
    if let Some((major, minor)) = parse::dev_number(bytes) {
        let colon = line.iter().position(|b| *b == b':').expect("a colon");
        let both = (digits(&line[..colon], 10), digits(&line[colon + 1..], 10));
        assert_eq!(both, (Some(major.into()), Some(minor.into())));
    }
    if let Some(guid) = parse::guid(bytes) {
        assert_eq!(line.len(), 19);
        let hex: Vec<u8> = line.iter().copied().filter(|b| *b != b':').collect();
        assert_eq!(digits(&hex, 16), Some(guid.into()));
    }
    if let Some(pkey) = parse::pkey(bytes) {
        assert_eq!(digits(line.strip_prefix(b"0x").expect("the prefix"), 16), Some(pkey.into()));
    }
    if let Some(node_type) = parse::node_type(bytes) {
        let _ = (node_type.transport(), node_type.to_string());
        assert!(line.iter().any(u8::is_ascii_digit));
    }
    if let Some(Modalias::Pci(PciId { vendor, device })) = parse::modalias(bytes) {
        assert!(line.starts_with(b"pci:v0000") && line[13] == b'd');
        let ids = (digits(&line[5..13], 16), digits(&line[14..22], 16));
        assert_eq!(ids, (Some(vendor.into()), Some(device.into())));
    }
}

/// Writes a file, unless the name is invalid.
fn write(dir: &Path, name: &str, content: &[u8]) {
    let _ = fs::write(dir.join(name), content);
}

fn tree(input: &Input<'_>) {
    const ATTRIBUTES: [&str; 8] =
        ["node_type", "node_guid", "sys_image_guid", "fw_ver", "hca_type", "hw_rev", "board_id", "node_desc"];
    // A directory in memory, if there is one.
    let root = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a folder");
    let roots = Roots { sysfs: root.path().join("sys"), dev: root.path().join("dev") };
    let (class, nodes) = (roots.sysfs.join("class/infiniband"), roots.sysfs.join("class/infiniband_verbs"));
    for dir in [&class, &nodes, &roots.dev] {
        fs::create_dir_all(dir).expect("a folder");
    }
    let mut names = BTreeSet::new();
    for device in input.devices.iter().take(4) {
        let Some(name) = parse::name(device.name) else { continue };
        let dir = class.join(name);
        if device.is_file {
            write(&class, name, b"");
        } else if fs::create_dir_all(dir.join("device")).is_ok() {
            for (which, content) in &device.attributes {
                match ATTRIBUTES.get(usize::from(which % 10)) {
                    Some(attribute) => write(&dir, attribute, content),
                    None => write(&dir, "device/modalias", content),
                }
            }
        }
        if dir.exists() {
            names.insert(name.to_owned());
        }
    }
    for node in input.nodes.iter().take(4) {
        let name = format!("uverbs{}", String::from_utf8_lossy(node.number));
        let Some(name) = parse::name(name.as_bytes()) else { continue };
        let dir = nodes.join(name);
        if fs::create_dir_all(&dir).is_err() {
            continue;
        }
        for (file, content) in [("ibdev", node.ibdev), ("dev", node.dev), ("abi_version", node.abi_version)] {
            if let Some(content) = content {
                write(&dir, file, content);
            }
        }
        let file = roots.dev.join(name);
        let _ = match node.file % 4 {
            0 => std::os::unix::fs::symlink("/dev/null", file),
            1 => fs::write(file, b""),
            2 => std::os::unix::fs::symlink("nowhere", file),
            _ => Ok(()),
        };
    }

    let devices = roots.devices().expect("sysfs can be read");
    assert_eq!(devices, roots.devices().expect("sysfs can be read"));
    let listed: Vec<&str> = devices.iter().map(|d| d.name.as_str()).collect();
    for name in &names {
        assert_eq!(listed.iter().filter(|n| *n == name).count(), 1, "{name} in {listed:?}");
    }
    assert!(listed.len() <= names.len() + input.nodes.len());
    for device in &devices {
        let drivers = [DriverMatch { driver_id: 14, pci: |_| false }];
        assert_eq!(device.candidates(&drivers), [14]);
        assert!(!format!("{device:?}").is_empty());
        if let Err(reason) = &device.uverbs {
            assert!(!reason.to_string().is_empty() && device.open(&drivers).is_err());
        }
        assert!(device.sysfs_text("nothing").is_none());
    }
}
