// SPDX-License-Identifier: MIT OR Apache-2.0
//! The locking of a queue, which is fixed when the queue is created.

use std::ffi::OsStr;
use std::sync::OnceLock;
use uverbs_core::provider::Driver;
use uverbs_core::sync::{Dynamic, Locked};
use uverbs_mlx5::Mlx5;

/// Wraps a queue in a lock. The lock has no effect if the program guarantees that one thread at a time uses this queue
/// (a thread domain, `IBV_CREATE_CQ_ATTR_SINGLE_THREADED`) or every queue of mlx5 devices (`MLX5_SINGLE_THREADED`).
pub(crate) fn locked<D: Driver, Q>(queue: Q, is_shared: bool) -> Locked<Q, Dynamic> {
    Locked::dynamic(queue, is_shared && !(D::DRIVER_ID == Mlx5::DRIVER_ID && is_single_threaded()))
}

/// `MLX5_SINGLE_THREADED`, which is read once.
fn is_single_threaded() -> bool {
    static SINGLE: OnceLock<bool> = OnceLock::new();
    *SINGLE.get_or_init(|| removes_locks(std::env::var_os("MLX5_SINGLE_THREADED").as_deref()))
}

/// libmlx5 accepts no other value than 1.
fn removes_locks(value: Option<&OsStr>) -> bool {
    value.is_some_and(|value| value == "1")
}

#[cfg(test)]
mod tests {
    use super::*;
    use uverbs_core::sync::LockError;
    use uverbs_rxe::Rxe;

    #[test]
    fn only_1_removes_locks() {
        let values = [None, Some(""), Some("0"), Some("1"), Some("01"), Some("yes")];
        assert_eq!(
            values.map(|v| removes_locks(v.map(OsStr::new))),
            [false, false, false, true, false, false]
        );
    }

    #[test]
    #[expect(unsafe_code, reason = "the queue is entered")]
    fn queues_are_locked_unless_one_thread_uses_them() {
        for (queue, second) in
            [(locked::<Rxe, _>(1, true), Err(LockError::Reentered)), (locked::<Rxe, _>(1, false), Ok(()))]
        {
            // SAFETY: one thread, and no reference to the value is used.
            assert_eq!(unsafe { queue.enter() }.map(drop), Ok(()));
            // SAFETY: one thread, and no reference to the value is used.
            assert_eq!(unsafe { queue.enter() }.map(drop), second);
        }
    }
}
