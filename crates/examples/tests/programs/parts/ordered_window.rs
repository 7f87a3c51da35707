// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of [`uverbs_examples::ordered::window`].

use proptest::prelude::*;
use uverbs_examples::ordered::window::*;

#[test]
fn what_is_early_waits() {
    let mut window = Window::new(3);
    assert_eq!(window.insert(1, 'b'), Ok(1));
    assert_eq!(window.insert(2, 'c'), Ok(1));
    assert_eq!(window.pop(), None);
    assert_eq!(window.insert(3, 'd'), Err(Refused::TooFar(3)));
    assert_eq!(window.insert(1, 'b'), Err(Refused::Twice(1)));
    assert_eq!(window.insert(0, 'a'), Ok(0));
    assert_eq!(
        [window.pop(), window.pop(), window.pop(), window.pop()],
        [Some('a'), Some('b'), Some('c'), None]
    );
    assert_eq!(window.insert(0, 'a'), Err(Refused::Twice(0)));
    assert_eq!(window.insert(u64::MAX, 'z'), Err(Refused::TooFar(u64::MAX)));
    assert_eq!(window.next(), 3);
}

proptest! {
    /// In whatever order messages within the window arrive, they leave in the order of their numbers, each once.
    #[test]
    fn any_order_becomes_the_right_one(size in 1_usize..20, picks in proptest::collection::vec(any::<usize>(), 1..300)) {
        let mut window = Window::new(size);
        let mut flying: Vec<u64> = (0..size as u64).collect();
        let mut delivered = Vec::new();
        for pick in picks {
            let number = flying.swap_remove(pick % flying.len());
            prop_assert!(window.insert(number, number).is_ok());
            while let Some(message) = window.pop() {
                // The sender gets a credit for each.
                flying.push(message + size as u64);
                delivered.push(message);
            }
            prop_assert!(!flying.is_empty(), "what is late is in flight");
        }
        let expected: Vec<u64> = (0..delivered.len() as u64).collect();
        prop_assert_eq!(delivered, expected);
    }
}
