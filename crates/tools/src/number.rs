// SPDX-License-Identifier: MIT OR Apache-2.0
//! Numbers as rdma-core's tools take them: decimal, or hexadecimal behind `0x`.

use core::num::IntErrorKind;
use core::str::FromStr;

/// A number on the command line, within the range of `T`.
pub(crate) fn number<T: TryFrom<u64>>(text: &str) -> Result<T, String> {
    let hex = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let value = match hex {
        // `from_str_radix` accepts a sign.
        Some(digits) if digits.starts_with('+') => return Err("not a number".into()),
        Some(digits) => u64::from_str_radix(digits, 16),
        None => u64::from_str(text),
    };
    let value = value.map_err(|error| match error.kind() {
        IntErrorKind::PosOverflow => format!("{text} is too large"),
        _ => "not a number".to_owned(),
    })?;
    T::try_from(value).map_err(|_| format!("{value} is too large"))
}

/// A number of bytes that is not 0, also as a multiple of 1024: `64`, `1k`, `2M`, `1g`.
pub(crate) fn size(text: &str) -> Result<u32, String> {
    let shift = match text.bytes().last().map(|unit| unit.to_ascii_lowercase()) {
        // The last digit of a hexadecimal number is not a unit, because none of these is one.
        Some(b'k') => 10,
        Some(b'm') => 20,
        Some(b'g') => 30,
        _ => return positive(text),
    };
    let count: u64 = positive(&text[..text.len() - 1]).map_err(|error| match error.as_str() {
        "not a number" => "not a number of bytes, such as 64, 1k, 2M".to_owned(),
        _ => error,
    })?;
    let bytes = count.checked_mul(1 << shift).and_then(|bytes| u32::try_from(bytes).ok());
    bytes.ok_or_else(|| format!("{text} is too large"))
}

/// A number that is not 0.
pub(crate) fn positive<T: TryFrom<u64> + PartialEq + Default>(text: &str) -> Result<T, String> {
    let value = number::<T>(text)?;
    if value == T::default() { Err("must not be 0".into()) } else { Ok(value) }
}

/// A rate: a decimal number that is not negative. `f64::from_str` accepts NaN, to which no rate compares as smaller.
pub(crate) fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate.is_finite() && rate >= 0.0 => Ok(rate),
        _ => Err("not a rate".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimal_and_hexadecimal_numbers_within_range_are_parsed() {
        assert_eq!(number::<u32>("4096"), Ok(4096));
        assert_eq!(number::<u32>("0x1000"), Ok(4096));
        assert_eq!(number::<u8>("255"), Ok(255));
        for bad in ["", "0x", "0x+1", "-1", "256", "1k", "99999999999999999999"] {
            assert!(number::<u8>(bad).is_err(), "{bad}");
        }
        for (text, bytes) in
            [("1", 1), ("1k", 1024), ("64K", 65536), ("2m", 2 << 20), ("0x10k", 16384), ("3G", 3 << 30)]
        {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for bad in ["0", "0k", "k", "4g", "1kb", "1.5k", "-1k", "1 k"] {
            assert!(size(bad).is_err(), "{bad}");
        }
        assert!(positive::<u16>("0").is_err());
        assert_eq!(number::<u8>("1x"), Err("not a number".into()));
        assert_eq!(number::<u8>("99999999999999999999"), Err("99999999999999999999 is too large".into()));
        assert_eq!(size("1kk"), Err("not a number of bytes, such as 64, 1k, 2M".into()));
        assert_eq!(positive::<u16>("0x4853"), Ok(0x4853));
    }

    #[test]
    fn rates_are_finite_and_not_negative() {
        assert_eq!(rate("0"), Ok(0.0));
        assert_eq!(rate("1.5"), Ok(1.5));
        assert_eq!(rate("1e9"), Ok(1e9));
        for bad in ["", "nan", "NaN", "inf", "-inf", "1e999", "-1", "0x10", "1k"] {
            assert!(rate(bad).is_err(), "{bad}");
        }
    }
}
