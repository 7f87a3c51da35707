// SPDX-License-Identifier: MIT OR Apache-2.0
//! Numbers and values, with a model of the slab.

use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::sync::Arc;

const TAG: u64 = 0xffff_ffff_ffff_fff3;

/// Inserts into a slab in one thread, which is its poster.
fn insert<T>(slab: &InFlight<T>, value: T) -> Option<u64> {
    // SAFETY: the tests that call this insert by one thread.
    unsafe { slab.vacant(TAG) }.map(|vacant| vacant.fill(value))
}

/// As above, into any slot.
fn insert_anywhere<T>(slab: &InFlight<T>, value: T) -> Option<u64> {
    // SAFETY: the tests that call this insert by one thread.
    unsafe { slab.vacant_anywhere(TAG) }.map(|vacant| vacant.fill(value))
}

#[test]
fn a_number_finds_its_value_once() {
    let slab = InFlight::new(3, 5, TAG);
    assert_eq!(slab.capacity(), 4);
    let number = insert(&slab, "a").unwrap();
    assert_eq!((number, slab.len()), (5 << 32, 1));
    let far = u64::from(4 * STEP);
    for other in [number + far, 0, 4 << 32, number | 1 << 63, TAG, BUSY, TAG - 1, BUSY - 1, TAG - far] {
        assert_eq!(slab.take(other), None, "{other:#x}");
        assert_eq!(slab.take_scoped(other), None, "{other:#x}");
    }
    assert_eq!(slab.take(number), Some("a"));
    assert_eq!((slab.take(number), slab.is_empty()), (None, true));
}

/// The states of free slots and the guards are words that a device can report, too.
#[test]
fn states_and_guards_are_no_numbers() {
    let slab = InFlight::<u32>::new(4, 0, TAG);
    let low = (0..32).flat_map(|low| [low, BUSY - low]);
    for number in low.chain([0, u64::from(u32::MAX), BUSY << 32]) {
        assert_eq!((slab.take(number), slab.take_scoped(number)), (None, None), "{number:#x}");
    }
    assert_eq!(insert(&slab, 7), Some(0), "all slots are free still");
    assert_eq!((1..8).find_map(|near| slab.take(near)), None);
    assert_eq!(slab.take(0), Some(7));
}

#[test]
fn scoped_values_are_found_by_take_scoped_only() {
    let slab = InFlight::new(4, 5, TAG);
    let [a, b, c] = ["a", "b", "c"].map(|value| {
        // SAFETY: one thread.
        unsafe { slab.vacant(TAG) }.unwrap().fill_scoped(value)
    });
    assert_eq!((slab.take(a), slab.take_scoped(a), slab.take_scoped(a)), (None, Some("a"), None));
    assert_eq!((slab.take_any(b), slab.take_any(b)), (Some("b"), None));
    let d = insert(&slab, "d").unwrap();
    let mut taken = Vec::new();
    slab.take_range(a as u32, d, |value| taken.push(value));
    assert_eq!((taken, slab.take_scoped(c), slab.take_scoped(d)), (vec!["c"], None, None));
    assert_eq!(slab.take_any(d), Some("d"));
}

/// A device can report a number with any bits: none of them finds a scoped value.
#[test]
fn no_other_number_finds_a_scoped_value() {
    let slab = InFlight::new(4, 5, TAG);
    // SAFETY: one thread.
    let number = unsafe { slab.vacant(TAG) }.unwrap().fill_scoped("a");
    for bit in 0..64 {
        let other = number ^ 1 << bit;
        assert_eq!((slab.take(other), slab.take_scoped(other)), (None, None), "bit {bit}");
    }
    assert_eq!((slab.take(number | 3), slab.take_scoped(number | 3)), (None, None));
    let mut taken = Vec::new();
    slab.take_all(|value| taken.push(value));
    assert_eq!((taken, slab.take_any(number), slab.is_empty()), (vec!["a"], None, true));
}

#[test]
fn another_tag_finds_no_vacant_slot() {
    let slab = InFlight::new(2, 5, TAG);
    for tag in [TAG ^ 4, TAG_BITS] {
        // SAFETY: one thread, and tags with `TAG_BITS`.
        assert!(unsafe { slab.vacant(tag) }.is_none());
        // SAFETY: as above.
        assert!(unsafe { slab.vacant_anywhere(tag) }.is_none());
    }
    let first = insert(&slab, 1).unwrap();
    // SAFETY: as above.
    assert!(unsafe { slab.vacant(TAG ^ 4) }.is_none());
    assert_eq!(slab.take(first), Some(1));
}

/// What a batch has inserted is what the count says, without the slots of values that stay.
#[test]
fn skipped_slots_are_counted() {
    let slab = InFlight::new(4, 5, TAG);
    assert_eq!(insert(&slab, 0), Some(slab.number(0)));
    let others: Vec<_> = (1..4).map(|i| insert(&slab, i).unwrap()).collect();
    assert_eq!((slab.skipped_since(0), slab.skipped_since(2 * STEP)), (0, 0));
    assert!(others.into_iter().all(|number| slab.take(number).is_some()));
    let first = slab.next_count();
    assert_eq!(slab.skipped_since(first), 0);
    (0..3).for_each(|i| assert!(insert_anywhere(&slab, i).is_some()));
    assert_eq!(slab.next_count().wrapping_sub(first) / STEP, 4);
    assert_eq!(slab.skipped_since(first), 1, "the slot of the first value");
    assert!(insert_anywhere(&slab, 9).is_none());
    assert_eq!(slab.skipped_since(slab.next_count()), 0);
}

#[test]
fn a_full_slab_has_no_vacant_slot() {
    let slab = InFlight::new(2, 5, TAG);
    let first = insert(&slab, 1).unwrap();
    let second = insert(&slab, 2).unwrap();
    assert_eq!(insert(&slab, 3), None);
    assert_eq!(slab.take(second), Some(2));
    assert_eq!(insert(&slab, 3), None, "slots are used in order");
    let skipped = insert_anywhere(&slab, 3).unwrap();
    assert_eq!(insert_anywhere(&slab, 4), None);
    assert_eq!((slab.take(first), slab.take(skipped)), (Some(1), Some(3)));
}

/// A post that finds no slot is refused as often as the program tries, and the counts of a batch stay few.
#[test]
fn a_refused_insertion_does_not_move_the_count() {
    let slab = InFlight::new(8, 5, TAG);
    let numbers: Vec<u64> = (0..8).map(|i| insert(&slab, i).unwrap()).collect();
    let next = slab.next_count();
    for _ in 0..3 {
        assert_eq!((insert_anywhere(&slab, 8), slab.next_count()), (None, next));
    }
    assert_eq!(slab.take(numbers[5]), Some(5));
    assert_eq!(insert_anywhere(&slab, 8).map(|number| number as u32), Some(next + 5 * STEP));
}

/// When the counts come around, a value that has stayed has the number of a slot that is skipped.
#[test]
fn a_batch_that_comes_around_takes_only_its_own_values() {
    for key in [0, 5] {
        let slab = InFlight::new(4, key, TAG);
        let (old, second) = (insert(&slab, "old").unwrap(), insert(&slab, "second").unwrap());
        let around = |count: u32| {
            // SAFETY: this is the poster's thread.
            unsafe { slab.retract(count) }
        };
        let undo = |first| {
            let mut taken = Vec::new();
            // SAFETY: as above.
            unsafe { slab.take_from(first, |value| taken.push(value)) };
            taken
        };
        let first = 0_u32.wrapping_sub(STEP);
        for _ in 0..2 {
            around(first);
            assert!(insert_anywhere(&slab, "a").is_some() && insert_anywhere(&slab, "b").is_some());
            assert_eq!((slab.skipped_since(first), undo(first)), (2, vec!["a", "b"]));
        }
        assert_eq!((slab.take(old), slab.take(second)), (Some("old"), Some("second")));
        // The places that were skipped are used again, and skipped at other counts.
        around(4 * STEP - STEP);
        let all: Vec<u64> = (0..4).map(|_| insert_anywhere(&slab, "c").unwrap()).collect();
        assert_eq!((insert_anywhere(&slab, "d"), slab.take(all[2])), (None, Some("c")));
        assert!(insert_anywhere(&slab, "d").is_some());
        around(first);
        assert_eq!(all.iter().filter_map(|number| slab.take(*number)).count(), 3);
        assert!(insert(&slab, "e").is_some() && insert(&slab, "f").is_some());
        assert_eq!(undo(first), ["e", "f"]);
    }
}

#[test]
fn values_that_stay_are_dropped_with_the_slab() {
    let value = Arc::new(());
    let slab = InFlight::new(4, 5, TAG);
    insert(&slab, value.clone()).unwrap();
    let taken = insert(&slab, value.clone()).unwrap();
    drop(slab.take(taken));
    assert_eq!(Arc::strong_count(&value), 2);
    drop(slab);
    assert_eq!(Arc::strong_count(&value), 1);
}

#[derive(Clone, Debug)]
enum Step {
    Insert,
    InsertAnywhere,
    Take(u32),
    TakeThrough(u32),
    Retract,
    TakeAll,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // Counts near those that are in use, and any others.
    let near = (0u32..64).prop_map(|back| 40u32.wrapping_sub(back).wrapping_mul(STEP));
    let count = prop_oneof![near, any::<u32>()];
    let step = prop_oneof![
        4 => Just(Step::Insert),
        2 => Just(Step::InsertAnywhere),
        3 => count.clone().prop_map(Step::Take),
        3 => count.prop_map(Step::TakeThrough),
        1 => Just(Step::Retract),
        1 => Just(Step::TakeAll),
    ];
    proptest::collection::vec(step, 0..200)
}

proptest! {
    /// Whatever numbers are reported, each value comes out at most once, and by its own number.
    #[test]
    fn any_numbers_agree_with_a_list_of_values(steps in steps(), first: u32) {
        let slab = InFlight::new(8, 5, TAG);
        let first = first & !(STEP - 1);
        // SAFETY: one thread, and no values yet.
        unsafe { slab.retract(first) };
        let mut model: VecDeque<(u32, u32)> = VecDeque::new();
        let mut tail = first;
        let mut serial = 0;
        for step in steps {
            serial += 1;
            match step {
                Step::Insert | Step::InsertAnywhere => {
                    let inserted = match step {
                        Step::Insert => insert(&slab, serial),
                        _ => insert_anywhere(&slab, serial),
                    };
                    if let Some(number) = inserted {
                        prop_assert_eq!(number >> 32, 5);
                        let count = number as u32;
                        prop_assert!(model.iter().all(|(t, _)| (t / STEP) & 7 != (count / STEP) & 7));
                        model.push_back((count, serial));
                    } else if matches!(step, Step::InsertAnywhere) {
                        prop_assert_eq!(model.len(), 8);
                    }
                }
                Step::Take(count) => {
                    let count = count.wrapping_add(first);
                    let at = model.iter().position(|(t, _)| *t == count);
                    let expected = at.and_then(|at| model.remove(at)).map(|(_, value)| value);
                    prop_assert_eq!(slab.take(slab.number(count)), expected);
                }
                Step::TakeThrough(count) => {
                    let count = count.wrapping_add(first);
                    let at = model.iter().position(|(t, _)| *t == count);
                    let value = slab.take(slab.number(count));
                    prop_assert_eq!(value, at.map(|at| model[at].1));
                    if at.is_some() {
                        let mut taken = Vec::new();
                        slab.take_range(tail, slab.number(count), |value| taken.push(value));
                        tail = count.wrapping_add(STEP);
                        for value in taken {
                            let at = model.iter().position(|(_, v)| *v == value).unwrap();
                            let (t, _) = model.remove(at).unwrap();
                            prop_assert!(count.wrapping_sub(t) <= 8 * STEP, "a later value was taken");
                        }
                        model.retain(|(t, _)| *t != count);
                    }
                }
                Step::Retract => {
                    if let Some((count, value)) = model.back().copied()
                        && count.wrapping_add(STEP) == slab.next_count()
                    {
                        model.pop_back();
                        prop_assert_eq!(slab.take(slab.number(count)), Some(value));
                        // SAFETY: one thread.
                        unsafe { slab.retract(count) };
                    }
                }
                Step::TakeAll => {
                    let mut taken = Vec::new();
                    slab.take_all(|value| taken.push(value));
                    taken.sort_unstable();
                    prop_assert_eq!(taken, model.drain(..).map(|(_, value)| value).collect::<Vec<_>>());
                }
            }
        }
    }
}
