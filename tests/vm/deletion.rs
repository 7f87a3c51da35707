// SPDX-License-Identifier: MIT OR Apache-2.0
//! The deletion of an rxe device in use.

use crate::lifecycle::mappings;
use anyhow::{Context as _, Result, ensure};
use core::marker::PhantomData;
use core::time::Duration;
use std::path::Path;
use std::process::{Command, Stdio};
use uverbs::{Context, Driver, DriverVisitor, Errno, Exclusive, Rc, open_with};
use uverbs_tests::bed::VmBed;
use uverbs_tests::child::{open_files, spawn};
use uverbs_tests::lab::{PORT, find};
use uverbs_tests::wait::{LIMIT, until};
use uverbs_tests::{Child, Face, Lab, LabEnv, Outcome, Pair, run};

/// A separate device on a separate link, created like those of the lab.
struct Device;

impl Device {
    const NAME: &str = "rxedel";
    const ADDRESS: &str = "10.0.9.1";

    fn ip(words: &[&str]) -> Result<String> {
        run(Command::new("/usr/bin/ip").args(words), LIMIT)
    }

    fn new() -> Result<Self> {
        let this = Self;
        Self::ip(&["link", "add", "x0", "type", "veth", "peer", "name", "x1"])?;
        Self::ip(&["addr", "add", &format!("{}/24", Self::ADDRESS), "dev", "x0"])?;
        Self::ip(&["link", "set", "x0", "up"])?;
        Self::ip(&["link", "set", "x1", "up"])?;
        this.add()?;
        Ok(this)
    }

    fn add(&self) -> Result<()> {
        let words = ["link", "add", Self::NAME, "type", "rxe", "netdev", "x0"];
        run(Command::new("/usr/bin/rdma").args(words), LIMIT)?;
        Ok(())
    }

    fn delete() -> Result<Child> {
        spawn(Command::new("/usr/bin/rdma").args(["link", "delete", Self::NAME]).stdin(Stdio::null()))
    }

    fn exists() -> bool {
        Path::new("/sys/class/infiniband").join(Self::NAME).exists()
    }

    /// Opens the device as both ends of a lab.
    fn with<R>(env: &LabEnv, f: impl DeviceTest<R>) -> Result<R> {
        struct Visit<R, F>(F, LabEnv, PhantomData<R>);
        impl<R, F: DeviceTest<R>> DriverVisitor for Visit<R, F> {
            type Out = Result<R>;
            fn visit<D: Driver>(self, context: Context<D>) -> Result<R> {
                let Self(f, mut env, _) = self;
                let gid = format!("::ffff:{}", Device::ADDRESS).parse()?;
                let mut index = None;
                until("the address's GID is there", LIMIT, || {
                    let table = context.query_gid_table()?;
                    // RoCE version 2.
                    let entry =
                        table.iter().find(|e| e.gid == gid && e.gid_type == uverbs::attr::GidType::ROCE_V2);
                    index = entry.and_then(|e| u8::try_from(e.gid_index).ok());
                    Ok(index.is_some())
                })?;
                env.gid_index = index.context("no GID")?;
                let (device, port) = (context.query_device()?, context.query_port(PORT)?);
                f.run(Lab {
                    a: context.clone(),
                    b: context,
                    gid_index: env.gid_index,
                    bed: Box::new(VmBed(env)),
                    device,
                    port,
                })
            }
        }
        open_with(&find(Self::NAME)?, Visit(f, env.clone(), PhantomData))?
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // Deleting the network device deletes the RDMA device.
        if let Err(e) = Self::ip(&["link", "delete", "x0"]) {
            eprintln!("    the extra link was not removed: {e:#}");
        }
    }
}

/// The test to run on the device.
trait DeviceTest<R> {
    fn run<D: Driver>(self, lab: Lab<D>) -> Result<R>;
}

/// The test sends a message, and ends.
struct Traffic;

impl DeviceTest<()> for Traffic {
    fn run<D: Driver>(self, lab: Lab<D>) -> Outcome {
        Pair::<D, Rc, Exclusive>::new(&lab)?.message(Face::Batch, 3000, 1)
    }
}

/// The device is deleted while it is in use.
struct DeletedInUse;

impl DeviceTest<Child> for DeletedInUse {
    fn run<D: Driver>(self, lab: Lab<D>) -> Result<Child> {
        let mut pair = Pair::<D, Rc, Exclusive>::new(&lab)?;
        pair.message(Face::Batch, 3000, 1)?;
        let mut child = Device::delete()?;
        std::thread::sleep(Duration::from_millis(500));
        if child.is_running()? {
            lab.note("the deletion waits for its users");
            // The objects still exist.
            lab.a.alloc_pd()?;
            let message = pair.message(Face::Batch, 3000, 2);
            lab.note(format_args!("a message meanwhile: {message:?}"));
            ensure!(child.is_running()?, "the deletion did not wait");
        } else {
            lab.note("the deletion does not wait");
            let errno = lab.a.alloc_pd().map_err(|e| e.errno());
            ensure!(errno.as_ref().err() == Some(&Errno::EIO), "{errno:?}");
        }
        drop(pair);
        drop(lab);
        Ok(child)
    }
}

/// `rdma link delete` of a device in use returns when all its objects are closed, and leaves no object. A new device
/// works.
pub(crate) fn deletion_waits_for_users(env: &LabEnv) -> Outcome {
    let files = open_files()?;
    let device = Device::new()?;
    for turn in 0..2 {
        Device::with(env, Traffic).context("before")?;
        let child = Device::with(env, DeletedInUse)?;
        child.success(LIMIT)?;
        until("the device was removed", LIMIT, || Ok(!Device::exists()))?;
        ensure!(find(Device::NAME).is_err(), "the device is still listed");
        let left = open_files()?;
        ensure!(left == files, "turn {turn}: open before {files:?}, after {left:?}");
        ensure!(mappings()? == 0, "turn {turn}: mappings of the device are left");
        device.add().context("a new device")?;
    }
    Device::with(env, Traffic).context("after")?;
    // Without users, the deletion returns immediately.
    Device::delete()?.success(LIMIT)?;
    Ok(())
}
