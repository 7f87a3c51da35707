// SPDX-License-Identifier: MIT OR Apache-2.0
//! The Linux RDMA (uverbs) kernel ABI as bytes.
//!
//! Structs and constants carry their C names, are plain integers and convert to and from bytes with zerocopy.
//! The crate does no I/O, checks no values and makes no decisions. Values that the kernel may write are integers, so
//! every answer of the kernel is a valid value. Flexible array members are zero-length arrays: they give the struct its
//! alignment and the tail its offset. A union consists of words, with a typed struct for each member.
//!
//! `tests/headers` compares all of it with the C headers, the newest and those installed. Layouts are
//! those of 64-bit targets.
//!
//! | module    | header                                         |
//! |-----------|------------------------------------------------|
//! | [`ioctl`] | `rdma/rdma_user_ioctl_cmds.h`                  |
//! | [`ids`]   | `rdma/ib_user_ioctl_cmds.h`                    |
//! | [`verbs`] | `rdma/ib_user_ioctl_verbs.h`                   |
//! | [`cmd`]   | `rdma/ib_user_verbs.h`                         |
//! | [`event`] | `rdma/ib_user_verbs.h`, `infiniband/verbs.h`   |
//! | [`rdma_cm`] | `rdma/rdma_user_cm.h`, `ib_user_sa.h`, `rdma_cma.h` |
//! | [`rxe`]   | `rdma/rdma_user_rxe.h`, `linux/in.h`, `in6.h`  |
//! | [`siw`]   | `rdma/siw-abi.h`                               |
//! | [`efa`]   | `rdma/efa-abi.h`                               |
//! | [`mlx5`]  | `rdma/mlx5-abi.h`, `mlx5_user_ioctl_*.h`       |
#![no_std]
#![forbid(unsafe_code)]

// All crates of this project depend on this one, so a build for another system ends here, with this error only.
#[cfg(not(target_os = "linux"))]
compile_error!(
    "uverbs is for Linux: it uses the kernel's RDMA subsystem. A program for several systems names the dependency in the table \
     [target.'cfg(target_os = \"linux\")'.dependencies] of its Cargo.toml, and has #[cfg(target_os = \"linux\")] before the \
     code that uses it."
);

pub mod be;
pub mod cmd;
pub mod efa;
pub mod event;
pub mod ids;
pub mod ioctl;
#[doc(hidden)]
pub mod layout;
pub mod mlx5;
pub mod rdma_cm;
pub mod rxe;
pub mod siw;
pub mod verbs;

/// Every module that declares a part of the ABI. The header test fails if a declaration is missing here.
#[doc(hidden)]
pub const MODULES: &[layout::Module] = &[
    layout::Module { path: "ioctl.rs", structs: ioctl::STRUCTS, consts: ioctl::CONSTS },
    layout::Module { path: "ids.rs", structs: &[], consts: ids::CONSTS },
    layout::Module { path: "verbs/mod.rs", structs: verbs::STRUCTS, consts: verbs::CONSTS },
    layout::Module { path: "verbs/kern.rs", structs: &[], consts: verbs::kern::CONSTS },
    layout::Module { path: "cmd/mod.rs", structs: cmd::STRUCTS, consts: cmd::CONSTS },
    layout::Module { path: "cmd/ah.rs", structs: cmd::ah::STRUCTS, consts: &[] },
    layout::Module { path: "cmd/cq.rs", structs: cmd::cq::STRUCTS, consts: cmd::cq::CONSTS },
    layout::Module { path: "cmd/device.rs", structs: cmd::device::STRUCTS, consts: cmd::device::CONSTS },
    layout::Module { path: "cmd/flow.rs", structs: cmd::flow::STRUCTS, consts: &[] },
    layout::Module { path: "cmd/mr.rs", structs: cmd::mr::STRUCTS, consts: &[] },
    layout::Module { path: "cmd/post.rs", structs: cmd::post::STRUCTS, consts: cmd::post::CONSTS },
    layout::Module { path: "cmd/qp.rs", structs: cmd::qp::STRUCTS, consts: cmd::qp::CONSTS },
    layout::Module { path: "cmd/srq.rs", structs: cmd::srq::STRUCTS, consts: &[] },
    layout::Module { path: "cmd/wq.rs", structs: cmd::wq::STRUCTS, consts: cmd::wq::CONSTS },
    layout::Module { path: "efa.rs", structs: efa::STRUCTS, consts: efa::CONSTS },
    layout::Module { path: "event.rs", structs: event::STRUCTS, consts: event::CONSTS },
    layout::Module { path: "mlx5/mod.rs", structs: mlx5::STRUCTS, consts: mlx5::CONSTS },
    layout::Module { path: "mlx5/cmds.rs", structs: &[], consts: mlx5::cmds::CONSTS },
    layout::Module { path: "mlx5/devx.rs", structs: &[], consts: mlx5::devx::CONSTS },
    layout::Module { path: "rdma_cm.rs", structs: rdma_cm::STRUCTS, consts: rdma_cm::CONSTS },
    layout::Module { path: "rxe.rs", structs: rxe::STRUCTS, consts: rxe::CONSTS },
    layout::Module { path: "siw.rs", structs: siw::STRUCTS, consts: siw::CONSTS },
];
