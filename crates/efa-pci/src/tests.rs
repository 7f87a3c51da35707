// SPDX-License-Identifier: MIT OR Apache-2.0
//! The function as a VM uses it: over vfio-user, and by arbitrary accesses.

use crate::{DOORBELLS, PciFunction, REGISTERS, SEND_RINGS};
use core::time::Duration;
use nix::sys::eventfd::{EfdFlags, EventFd};
use proptest::prelude::*;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::Instant;
use uverbs_efa_device::{Fabric, Generation, Stat};
use uverbs_efa_hw::regs::{
    EFA_REGS_DEV_CTL_OFF, EFA_REGS_DEV_STS_OFF, EFA_REGS_DEV_STS_RESET_IN_PROGRESS_MASK,
    EFA_REGS_MMIO_REG_READ_OFF, EFA_REGS_MMIO_RESP_LO_OFF, EFA_REGS_VERSION_OFF,
};
use uverbs_fabric::memory::Memory;
use uverbs_vfio::{Control, Device, Function, sealed};
use vfio_user::Client;

/// Bytes of the VM's memory.
const MEMORY: u64 = 1 << 20;
/// Indices of vfio: the regions of BARs are their numbers.
const CONFIG_REGION: u32 = 7;
const MSIX_IRQS: u32 = 2;
/// `VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER`
const TRIGGER: u32 = 1 << 2 | 1 << 5;

fn function(fabric: &Fabric, generation: Generation) -> PciFunction {
    PciFunction::new(fabric.device("efa0").generation(generation)).unwrap()
}

#[test]
fn a_vm_sees_a_device_of_its_generation_and_its_registers_answer() {
    let socket = std::env::temp_dir().join(format!("uverbs-efa-pci-{}", std::process::id()));
    let fabric = Fabric::new(1);
    let device = function(&fabric, Generation::Second);
    let server = {
        let (device, socket) = (device.clone(), socket.clone());
        std::thread::spawn(move || uverbs_vfio::serve(&device, &socket, || true))
    };
    let start = Instant::now();
    let mut vm = loop {
        match Client::new(&socket) {
            Ok(vm) => break vm,
            Err(error) => assert!(start.elapsed() < Duration::from_secs(60), "{error:?}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let mut id = [0; 4];
    vm.region_read(CONFIG_REGION, 0, &mut id).unwrap();
    assert_eq!(u32::from_le_bytes(id), 0xefa1_1d0f);
    // Memory of the VM from 1 MiB on, and an interrupt.
    let (file, event) =
        (sealed(MEMORY).unwrap(), EventFd::from_value_and_flags(0, EfdFlags::EFD_NONBLOCK).unwrap());
    vm.dma_map(0, 1 << 20, MEMORY, file.as_raw_fd()).unwrap();
    vm.set_irqs(MSIX_IRQS, TRIGGER, 0, 1, &[event.as_fd().as_raw_fd()]).unwrap();
    let mut write = |offset: u32, value: u32| {
        vm.region_write(REGISTERS.into(), offset.into(), &value.to_le_bytes()).unwrap();
    };
    write(EFA_REGS_MMIO_RESP_LO_OFF, 0x10_0040);
    write(EFA_REGS_MMIO_REG_READ_OFF, 5 | EFA_REGS_VERSION_OFF << 16);
    let answer = || {
        let mut answer = [0; 8];
        device.vm().memory.read(0x10_0040, &mut answer).map(|()| answer)
    };
    assert_eq!(answer(), Ok([5, 0, 0, 0, 1, 0, 0, 0]));
    // An address without memory: there is no answer, and no fault.
    write(EFA_REGS_MMIO_RESP_LO_OFF, 0x40);
    write(EFA_REGS_MMIO_REG_READ_OFF, 6 | EFA_REGS_VERSION_OFF << 16);
    assert_eq!(answer(), Ok([5, 0, 0, 0, 1, 0, 0, 0]));
    device.vm().vectors.raise(0);
    device.vm().vectors.raise(1);
    assert_eq!(event.read(), Ok(1));
    // Behind the end, and in a BAR that does not exist: the VM reads zeros.
    for (region, offset) in [(REGISTERS, 8192 - 2), (1, 0)] {
        let mut data = [7; 4];
        let read = vm.region_read(region.into(), offset, &mut data);
        assert!(read.is_err() || data == [0; 4]);
    }
    // What a VM has left behind is not there for the next one.
    vm.region_write(REGISTERS.into(), EFA_REGS_DEV_CTL_OFF.into(), &1_u32.to_le_bytes()).unwrap();
    vm.shutdown().unwrap();
    drop(vm);
    server.join().unwrap().unwrap();
    assert!(answer().is_err());
    device.vm().vectors.raise(0);
    assert!(event.read().is_err());
    let mut status = [0; 4];
    device.read(REGISTERS, EFA_REGS_DEV_STS_OFF.into(), &mut status);
    assert_eq!(u32::from_le_bytes(status) & EFA_REGS_DEV_STS_RESET_IN_PROGRESS_MASK, 0);
}

#[test]
fn send_rings_are_memory_and_bars_are_powers_of_two() {
    let fabric = Fabric::deterministic(1);
    for generation in [Generation::First, Generation::Fifth] {
        let device = function(&fabric, generation);
        assert!(device.layout().bars.iter().all(|bar| bar.bytes.is_power_of_two() && bar.bytes >= 4096));
        let size = device.llq.len();
        device.write(SEND_RINGS, size - 8, &[7; 8]);
        device.write(SEND_RINGS, size - 4, &[8; 8]);
        device.write(SEND_RINGS, u64::MAX, &[8; 8]);
        let mut back = [0; 8];
        device.read(SEND_RINGS, size - 8, &mut back);
        assert_eq!(back, [7; 8]);
    }
}

#[test]
fn commands_name_the_device() {
    let fabric = Fabric::deterministic(1);
    let device = function(&fabric, Generation::Third);
    for name in ["stop", "go", "fatal"] {
        assert_eq!(device.command(name, &[]), Some(Ok(String::new())));
        assert_eq!(device.command(name, &["now"]), None);
    }
}

#[test]
fn the_control_socket_has_the_commands_of_every_device() {
    let fabric = Fabric::deterministic(1);
    let devices = Arc::new(vec![function(&fabric, Generation::Third)]);
    let (quit, _end) = std::sync::mpsc::channel();
    let control = Control { fabric, devices, quit };
    let mut answers = Vec::new();
    let lines = "link 0 down\nstat 0\npackets 0\nrepairs\nviolations\nforgive\nstat 1\nstop 0\n";
    control.run(lines.as_bytes(), &mut answers);
    let answers = String::from_utf8(answers).unwrap();
    let answers: Vec<&str> = answers.lines().collect();
    assert_eq!(answers[0], "ok");
    let stat = answers[1].strip_prefix("ok efa0 ").and_then(Stat::parse).unwrap();
    assert!(!stat.up && stat.qps.is_empty());
    assert_eq!(answers[2..], ["ok 0 0", "ok 0", "ok 0", "ok", "error 1: no such device", "ok"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A guest may access anything, in any size.
    #[test]
    fn any_accesses_leave_the_device_working(
        ops in proptest::collection::vec((0..6_u8, prop_oneof![0..0x80_u64, any::<u64>()], 0..70_usize, any::<u32>()), 1..60),
    ) {
        let fabric = Fabric::deterministic(1);
        let device = function(&fabric, Generation::Fourth);
        device.vm().memory.map(0, MEMORY, &sealed(MEMORY).unwrap(), 0).unwrap();
        for (op, offset, len, value) in ops {
            let mut data = value.to_le_bytes().repeat(len.div_ceil(4).max(1));
            if len % 4 != 0 { data.truncate(len) }
            match op {
                0 => device.read(value as u8 % 6, offset, &mut data),
                1 => device.write(REGISTERS, offset & !3, &value.to_le_bytes()),
                2 => device.write(DOORBELLS, offset, &value.to_le_bytes()),
                3 => device.write(SEND_RINGS, offset, &data),
                4 => device.write(value as u8 % 6, offset, &data),
                _ => device.vm().memory.unmap(u64::from(value), MEMORY),
            }
        }
        device.reset();
        let mut version = [0; 4];
        device.read(REGISTERS, EFA_REGS_VERSION_OFF.into(), &mut version);
        prop_assert_eq!(version, [1, 0, 0, 0]);
    }
}
