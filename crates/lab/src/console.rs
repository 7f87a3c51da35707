// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the reason of a failure in the log of a guest's console.

/// The reason for the end of a guest, from its console log.
pub(crate) fn verdict(log: &str) -> &'static str {
    // An oops panics (oops=panic), so it is searched for first.
    if ["Oops:", "BUG: ", "general protection fault", "kernel BUG at"].iter().any(|sign| log.contains(sign)) {
        "GUEST KERNEL OOPS"
    } else if log.contains("Kernel panic") {
        "GUEST KERNEL PANIC"
    } else {
        "THE GUEST STOPPED before its command ended"
    }
}

/// The first warning with a backtrace (WARN_ON). The kernel continues after it.
pub(crate) fn warning(log: &str) -> Option<&str> {
    let mut lines = log.lines().skip_while(|line| !line.contains("[ cut here ]"));
    lines.next()?;
    lines.next()
}

/// The last lines of a text.
pub(crate) fn tail(text: &str, lines: usize) -> String {
    let all: Vec<_> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_oops_is_not_reported_as_a_panic() {
        assert_eq!(
            verdict("x\nOops: 0002 [#1]\nKernel panic - not syncing: Fatal exception"),
            "GUEST KERNEL OOPS"
        );
        assert_eq!(verdict("Kernel panic - not syncing: No working init found."), "GUEST KERNEL PANIC");
        assert_eq!(verdict(""), "THE GUEST STOPPED before its command ended");
    }

    #[test]
    fn a_warning_is_the_line_after_cut_here() {
        let log = "a\n[ 1.0] ------------[ cut here ]------------\n[ 1.0] WARNING: CPU: 0 at x\nb";
        assert_eq!(warning(log), Some("[ 1.0] WARNING: CPU: 0 at x"));
        assert_eq!(warning("a\nb"), None);
    }

    #[test]
    fn the_tail_is_the_end() {
        assert_eq!(tail("a\nb\nc", 2), "b\nc");
        assert_eq!(tail("a", 5), "a");
    }
}
