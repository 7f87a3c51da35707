// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parsers for the contents of sysfs: pure functions over untrusted bytes.
//!
//! None of them panics, allocates more than a small multiple of its input, or accepts a number that does not fit. For
//! input of any other form than the expected one the result is `None`.

use super::{Modalias, NodeType, PciId};

/// Longest text that is copied from sysfs, in bytes; the rest is dropped.
pub const MAX_TEXT: usize = 256;

/// Longest device name (`IB_DEVICE_NAME_MAX` of rdma/ib_user_verbs.h, with the NUL).
pub const MAX_NAME: usize = 64;

fn trimmed(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    bytes[..end].trim_ascii()
}

fn trimmed_str(bytes: &[u8]) -> Option<&str> {
    core::str::from_utf8(trimmed(bytes)).ok().filter(|text| !text.is_empty())
}

/// A line of text, truncated at [`MAX_TEXT`]. Invalid UTF-8 and characters that are not printable are replaced.
#[must_use]
pub fn text(bytes: &[u8]) -> Option<String> {
    let bytes = trimmed(bytes);
    let cut = &bytes[..bytes.len().min(MAX_TEXT)];
    let text: String = String::from_utf8_lossy(cut)
        .chars()
        .map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c })
        .collect();
    (!text.is_empty()).then_some(text)
}

/// A device name that can be part of a path: neither empty, nor too long, nor with a slash, nor starting with a dot.
#[must_use]
pub fn name(bytes: &[u8]) -> Option<&str> {
    let name = trimmed_str(bytes)?;
    let good = name.len() < MAX_NAME
        && !name.starts_with('.')
        && name.bytes().all(|b| b.is_ascii_graphic() && b != b'/');
    good.then_some(name)
}

/// A decimal number.
#[must_use]
pub fn number(bytes: &[u8]) -> Option<u32> {
    digits(trimmed_str(bytes)?, 10)
}

/// Digits only: `from_str_radix` would accept a sign, too.
fn digits(text: &str, radix: u32) -> Option<u32> {
    if text.is_empty() || !text.chars().all(|c| c.is_digit(radix)) {
        return None;
    }
    u32::from_str_radix(text, radix).ok()
}

/// `major:minor` of a device node.
#[must_use]
pub fn dev_number(bytes: &[u8]) -> Option<(u32, u32)> {
    let (major, minor) = trimmed_str(bytes)?.split_once(':')?;
    Some((digits(major, 10)?, digits(minor, 10)?))
}

/// A node type such as `1: CA`; only the number is used.
#[must_use]
pub fn node_type(bytes: &[u8]) -> Option<NodeType> {
    let text = trimmed_str(bytes)?;
    let number = text.split_once(':').map_or(text, |(number, _)| number);
    u8::try_from(digits(number.trim(), 10)?).ok().map(NodeType)
}

/// Four groups of four hexadecimal digits, most significant first: `5054:00ff:fe12:3456`.
#[must_use]
pub fn guid(bytes: &[u8]) -> Option<u64> {
    let mut groups = trimmed_str(bytes)?.split(':');
    let mut guid = 0;
    for _ in 0..4 {
        let group = groups.next().filter(|group| group.len() == 4)?;
        guid = guid << 16 | u64::from(digits(group, 16)?);
    }
    groups.next().is_none().then_some(guid)
}

/// A P_Key: `0xffff`.
#[must_use]
pub fn pkey(bytes: &[u8]) -> Option<u16> {
    u16::try_from(digits(trimmed_str(bytes)?.strip_prefix("0x")?, 16)?).ok()
}

/// An alias such as `pci:v000015B3d00001019sv000015B3sd00000008bc02sc00i00`, or that of another bus.
#[must_use]
pub fn modalias(bytes: &[u8]) -> Option<Modalias> {
    let alias = trimmed_str(bytes)?;
    Some(match pci_id(alias) {
        Some(id) => Modalias::Pci(id),
        None => Modalias::Other(text(alias.as_bytes())?),
    })
}

fn pci_id(alias: &str) -> Option<PciId> {
    let field = |rest: &str| -> Option<u32> { digits(rest.get(..8)?, 16) };
    let vendor = alias.strip_prefix("pci:v")?;
    let device = vendor.get(8..)?.strip_prefix('d')?;
    Some(PciId { vendor: u16::try_from(field(vendor)?).ok()?, device: u16::try_from(field(device)?).ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn attributes_as_the_kernel_writes_them_are_parsed() {
        assert_eq!(name(b"mlx5_0\n"), Some("mlx5_0"));
        assert_eq!(number(b"2\n"), Some(2));
        assert_eq!(dev_number(b"231:192\n"), Some((231, 192)));
        assert_eq!(node_type(b"1: CA\n"), Some(NodeType::CA));
        assert_eq!(node_type(b"4: RNIC\n"), Some(NodeType::RNIC));
        assert_eq!(guid(b"5054:00ff:fe12:3456\n"), Some(0x5054_00ff_fe12_3456));
        assert_eq!(pkey(b"0xffff\n"), Some(0xffff));
        assert_eq!(text(b"20.31.1014\n").as_deref(), Some("20.31.1014"));
        let pci = modalias(b"pci:v000015B3d00001019sv000015B3sd00000008bc02sc00i00\n");
        assert_eq!(pci, Some(Modalias::Pci(PciId { vendor: 0x15b3, device: 0x1019 })));
        assert_eq!(modalias(b"virtual:x\n"), Some(Modalias::Other("virtual:x".into())));
    }

    #[test]
    fn invalid_attributes_are_refused() {
        for bad in [
            &b""[..],
            b"\n",
            b"\0",
            b" ",
            b"\xff\xfe",
            b"-1",
            b"+1",
            b"4294967296",
            b"0x1",
            b"1 2",
            b"1\x002x",
        ] {
            assert!(number(bad).is_none() || bad == b"1\x002x", "{bad:?}");
        }
        for bad in [&b"1"[..], b"1:", b":1", b"1:2:3", b"-1:2", b"a:b", b"1: 2"] {
            assert_eq!(dev_number(bad), None, "{bad:?}");
        }
        for bad in
            [&b"5054:00ff:fe12"[..], b"5054:00ff:fe12:3456:0", b"505:400ff:fe12:3456", b"g054:00ff:fe12:3456"]
        {
            assert_eq!(guid(bad), None, "{bad:?}");
        }
        for bad in [&b"a/b"[..], b".", b"..", b"../etc", b"a b", b"a\nb", b"\xc3\xa9", &[b'x'; 64]] {
            assert_eq!(name(bad), None, "{bad:?}");
        }
        assert_eq!(pkey(b"0x10000"), None);
        assert_eq!(node_type(b"256: X"), None);
        assert_eq!(modalias(b"pci:v000015B3"), Some(Modalias::Other("pci:v000015B3".into())));
        assert_eq!(
            modalias(b"pci:v100015B3d00001019"),
            Some(Modalias::Other("pci:v100015B3d00001019".into()))
        );
    }

    #[test]
    fn text_is_cut_and_made_printable() {
        assert_eq!(text(&[b'x'; 5000]).unwrap().len(), MAX_TEXT);
        assert_eq!(text(b"a\x1b[31mb").unwrap(), "a\u{fffd}[31mb");
        assert!(text(b"\xff\xff").unwrap().chars().all(|c| c == '\u{fffd}'));
        assert_eq!(text(b" \n"), None);
    }

    proptest! {
        #[test]
        fn any_attribute_is_parsed_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let _ = (number(&bytes), dev_number(&bytes), node_type(&bytes), guid(&bytes), pkey(&bytes));
            let _ = modalias(&bytes);
            if let Some(text) = text(&bytes) {
                prop_assert!(text.chars().count() <= MAX_TEXT && !text.chars().any(char::is_control));
            }
            if let Some(name) = name(&bytes) {
                prop_assert!(!name.contains('/') && name != ".." && name != ".");
            }
        }

        #[test]
        fn a_pci_alias_of_any_length_is_parsed_without_panic(tail in "\\PC{0,40}") {
            let _ = modalias(format!("pci:v{tail}").as_bytes());
            let _ = modalias(format!("pci:v000015B3d{tail}").as_bytes());
        }

        #[test]
        fn formatted_numbers_are_parsed_again(major: u32, minor: u32, id: u64) {
            prop_assert_eq!(dev_number(format!("{major}:{minor}\n").as_bytes()), Some((major, minor)));
            let groups = format!("{:04x}:{:04x}:{:04x}:{:04x}", id >> 48, id >> 32 & 0xffff, id >> 16 & 0xffff, id & 0xffff);
            prop_assert_eq!(guid(groups.as_bytes()), Some(id));
        }
    }
}
