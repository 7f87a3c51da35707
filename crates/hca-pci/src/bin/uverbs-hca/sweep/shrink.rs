// SPDX-License-Identifier: MIT OR Apache-2.0
//! The shortest script that fails in the same way.

/// Leaves out parts of a list as long as `fails` is true for the rest: halves first, then smaller parts, down to single elements
/// (delta debugging, Zeller and Hildebrandt 2002). No single element of the result can be left out.
pub(super) fn shortest<T: Clone>(list: &[T], mut fails: impl FnMut(&[T]) -> bool) -> Vec<T> {
    let mut rest = list.to_vec();
    let mut size = rest.len().div_ceil(2);
    while size > 0 && rest.len() > 1 {
        let mut at = 0;
        let mut is_shorter = false;
        while at < rest.len() && rest.len() > 1 {
            let end = (at + size).min(rest.len());
            let without: Vec<T> = rest[..at].iter().chain(&rest[end..]).cloned().collect();
            if !without.is_empty() && fails(&without) {
                rest = without;
                is_shorter = true;
            } else {
                at = end;
            }
        }
        if size > 1 {
            size = size.div_ceil(2).min(rest.len());
        } else if !is_shorter {
            break;
        }
    }
    rest
}
