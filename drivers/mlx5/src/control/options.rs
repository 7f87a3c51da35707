// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tuning by environment variables: those of libmlx5 that have an effect here.
//!
//! | variable                   | what                                                                          |
//! |----------------------------|-------------------------------------------------------------------------------|
//! | `MLX5_TOTAL_UUARS`         | doorbell registers for QPs that several threads post to, 16                   |
//! | `MLX5_NUM_LOW_LAT_UUARS`   | of those, the ones that belong to one QP each and need no lock, 4             |
//! | `MLX5_SHUT_UP_BF`          | not `0`: never write a WQE to a register                                      |
//! | `MLX5_POST_SEND_PREFER_BF` | `0`: do so only for WQEs with inline data                                     |
//! | `MLX5_SCATTER_TO_CQE`      | `0`: the device must not put short data into CQEs, even if a QP requests it  |
//! | `MLX5_CQE_SIZE`            | 64 or 128                                                                     |
//! | `MLX_QP_ALLOC_TYPE`, ..    | `HUGE`, `PREFER_HUGE`: the pages of queues; also `CQ`, `SRQ`, `RWQ`           |
//!
//! Ignored: `MLX5_SINGLE_THREADED` (locking is a type), `MLX5_QP_SIGNATURE`, `MLX5_SRQ_SIGNATURE` (no signatures),
//! `MLX5_STALL_*`, `MLX5_FREEZE_ON_ERROR_CQE` and `MLX5_DEBUG_*`.

use crate::memory::Pages;
use uverbs_core::error::{Error, Result};
use uverbs_mlx5_hw::doorbell::BFREGS_PER_UAR;

/// The maximum number of doorbell registers that a process can request (`MLX5_MAX_BFREGS`).
const MAX_BFREGS: u32 = 512;
/// Registers above this number are low latency ones (`MLX5_MED_BFREGS_TSHOLD`).
const SHARED_AT_MOST: u32 = 12;

/// Options for opening a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// Doorbell registers for QPs that several threads post to. An exclusive QP, or one of a thread domain, has a register
    /// in addition to these.
    pub total_uuars: u32,
    /// The number of these registers that belong to one QP each.
    pub num_low_lat_uuars: u32,
    /// Never write a whole WQE to a register.
    pub shut_up_bf: bool,
    /// Write a whole WQE to a register also if it has no inline data.
    pub prefer_bf: bool,
    /// The device may put short data into CQEs.
    pub scatter_to_cqe: bool,
    /// Bytes of a CQE, 64 or 128. With another number the creation of a CQ fails.
    pub cqe_size: u32,
    /// The pages of the queues of QPs.
    pub qp_pages: Pages,
    /// The pages of CQs.
    pub cq_pages: Pages,
    /// The pages of SRQs.
    pub srq_pages: Pages,
    /// The pages of work queues.
    pub wq_pages: Pages,
    /// The data path executes a full fence for every post and poll instead of relying on membarrier(2). If the kernel
    /// refuses membarrier(2), this is always the case. Not read from the environment.
    pub full_fences: bool,
    /// Commands for the firmware. Not read from the environment.
    pub devx: Devx,
}

/// Whether a context may send commands to the firmware (DEVX).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Devx {
    /// The context is opened without commands.
    #[default]
    Off,
    /// The context is opened with commands if the kernel permits that, otherwise without, as by libmlx5's
    /// ibv_open_device(3).
    IfPermitted,
    /// Opening fails if the kernel does not permit commands.
    Required,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            total_uuars: 16,
            num_low_lat_uuars: 4,
            shut_up_bf: false,
            prefer_bf: true,
            scatter_to_cqe: true,
            cqe_size: 64,
            qp_pages: Pages::Usual,
            cq_pages: Pages::Usual,
            srq_pages: Pages::Usual,
            wq_pages: Pages::Usual,
            full_fences: false,
            devx: Devx::Off,
        }
    }
}

impl Options {
    /// The options from the process's environment.
    ///
    /// # Errors
    /// A number that is invalid or out of range.
    pub fn from_env() -> Result<Self> {
        Self::parse(|name| std::env::var(name).ok())
    }

    /// The options from variables.
    pub(crate) fn parse(get: impl Fn(&str) -> Option<String>) -> Result<Self> {
        const VERB: &str = "open_device";
        let default = Self::default();
        let number = |name: &'static str, default: u32| match get(name) {
            None => Ok(default),
            Some(text) => text
                .trim()
                .parse::<u32>()
                .map_err(|_| Error::invalid(VERB, name, format!("{text:?} is not a number"))),
        };
        let flag = |name: &str, default: bool| get(name).map_or(default, |text| text != "0");
        let pages = |name: &str| Pages::named(get(name).as_deref());
        let total = number("MLX5_TOTAL_UUARS", default.total_uuars)?;
        if total == 0 || total > MAX_BFREGS {
            return Err(Error::invalid(
                VERB,
                "MLX5_TOTAL_UUARS",
                format!("{total} is not from 1 to {MAX_BFREGS}"),
            ));
        }
        let total = total.next_multiple_of(BFREGS_PER_UAR as u32);
        let low = number("MLX5_NUM_LOW_LAT_UUARS", default.num_low_lat_uuars)?;
        let low = low.max(total.saturating_sub(SHARED_AT_MOST));
        if low >= total {
            let reason = format!("{low} of {total} leaves no shared register");
            return Err(Error::invalid(VERB, "MLX5_NUM_LOW_LAT_UUARS", reason));
        }
        let cqe_size = number("MLX5_CQE_SIZE", default.cqe_size)?;
        Ok(Self {
            total_uuars: total,
            num_low_lat_uuars: low,
            shut_up_bf: flag("MLX5_SHUT_UP_BF", default.shut_up_bf),
            prefer_bf: flag("MLX5_POST_SEND_PREFER_BF", default.prefer_bf),
            scatter_to_cqe: flag("MLX5_SCATTER_TO_CQE", default.scatter_to_cqe),
            cqe_size,
            qp_pages: pages("MLX_QP_ALLOC_TYPE"),
            cq_pages: pages("MLX_CQ_ALLOC_TYPE"),
            srq_pages: pages("MLX_SRQ_ALLOC_TYPE"),
            wq_pages: pages("MLX_RWQ_ALLOC_TYPE"),
            full_fences: default.full_fences,
            devx: default.devx,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(vars: &[(&str, &str)]) -> Result<Options> {
        Options::parse(|name| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned()))
    }

    #[test]
    fn an_empty_environment_gives_the_defaults() {
        assert_eq!(parse(&[]).unwrap(), Options::default());
    }

    #[test]
    fn each_variable_sets_its_option() {
        let options = parse(&[
            ("MLX5_TOTAL_UUARS", "31"),
            ("MLX5_NUM_LOW_LAT_UUARS", "2"),
            ("MLX5_SHUT_UP_BF", "1"),
            ("MLX5_POST_SEND_PREFER_BF", "0"),
            ("MLX5_SCATTER_TO_CQE", "0"),
            ("MLX5_CQE_SIZE", "128"),
        ])
        .unwrap();
        assert_eq!((options.total_uuars, options.num_low_lat_uuars), (32, 20), "at most 12 are shared");
        assert!(options.shut_up_bf && !options.prefer_bf && !options.scatter_to_cqe);
        assert_eq!(options.cqe_size, 128);
        assert!(!parse(&[("MLX5_SHUT_UP_BF", "0")]).unwrap().shut_up_bf);
        let options = parse(&[
            ("MLX_QP_ALLOC_TYPE", "HUGE"),
            ("MLX_CQ_ALLOC_TYPE", "PREFER_HUGE"),
            ("MLX_SRQ_ALLOC_TYPE", "CONTIG"),
            ("MLX_RWQ_ALLOC_TYPE", "ALL"),
        ])
        .unwrap();
        assert_eq!((options.qp_pages, options.cq_pages), (Pages::Huge, Pages::PreferHuge));
        assert_eq!((options.srq_pages, options.wq_pages), (Pages::Usual, Pages::PreferHuge));
    }

    #[test]
    fn invalid_numbers_are_errors() {
        for (name, value) in [
            ("MLX5_TOTAL_UUARS", "0"),
            ("MLX5_TOTAL_UUARS", "513"),
            ("MLX5_TOTAL_UUARS", "many"),
            ("MLX5_NUM_LOW_LAT_UUARS", "16"),
            ("MLX5_CQE_SIZE", "big"),
        ] {
            let error = parse(&[(name, value)]).unwrap_err();
            assert!(error.to_string().contains(name), "{error}");
        }
    }
}
