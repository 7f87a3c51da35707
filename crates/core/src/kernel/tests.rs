// SPDX-License-Identifier: MIT OR Apache-2.0
//! The bytes of commands and of their answers, and the parts of the real port that need no device.
// UNSAFETY: the constructors under test are `unsafe`.
#![expect(unsafe_code)]

use super::raw::AttrValue;
use super::script::Script;
use super::*;
use crate::error::Error;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use uverbs_uapi::cmd::ib_uverbs_query_port;
use uverbs_uapi::ids::{
    UVERBS_ATTR_CORE_IN, UVERBS_ATTR_CORE_OUT, UVERBS_ATTR_UHW_IN, UVERBS_ATTR_UHW_OUT,
    UVERBS_ATTR_WRITE_CMD, UVERBS_METHOD_INVOKE_WRITE, UVERBS_OBJECT_DEVICE,
};
use uverbs_uapi::ioctl::UVERBS_ATTR_F_VALID_OUTPUT;

/// A kernel that takes one command, of any method, with this step.
fn once(step: impl FnMut(&mut RawCommand<'_, '_>) -> Result<(), Errno> + Send + 'static) -> Arc<Script> {
    let script = Script::new();
    script.expect_any(step);
    script
}

/// The header's 24 bytes (little-endian machines).
fn header(len: u16, object: u16, method: u16, attrs: u16) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in [len, object, method, attrs] {
        bytes.extend(word.to_ne_bytes());
    }
    bytes.extend([0; 8]);
    bytes.extend(14_u32.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes
}

fn attr(id: u16, len: u16, flags: u16, data: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in [id, len, flags, 0] {
        bytes.extend(word.to_ne_bytes());
    }
    bytes.extend(data.to_ne_bytes());
    bytes
}

#[test]
fn the_attribute_array_has_the_abis_layout() {
    let dir = File::open("/").unwrap();
    let long = [7_u8; 20];
    let mut out = [0_u8; 12];
    let mut command = Command::<10>::new(3, 1);
    command
        .handle_new(0)
        .u32(1, 0x1122_3344)
        .u64(2, 0x1122_3344_5566_7788)
        .fd_in(3, dir.as_fd())
        .handle_in(4, 9)
        .constant(5, 5_u32)
        .optional()
        .input_bytes(6, &[1, 2, 3])
        .input_bytes(7, &long)
        .output_bytes(8, &mut out)
        .enum_in(9, 2, &[4, 5]);
    let raw = command.run(&*once(|raw| {
        let mut expected = header(24 + 16 * 10, 3, 1, 10);
        let mut short = [0; 8];
        short[..4].copy_from_slice(&0x1122_3344_u32.to_ne_bytes());
        expected.extend(attr(0, 0, 1, 0));
        expected.extend(attr(1, 4, 1, u64::from_ne_bytes(short)));
        expected.extend(attr(2, 8, 1, 0x1122_3344_5566_7788));
        expected.extend(attr(3, 0, 1, 0));
        expected.extend(attr(4, 0, 1, 9));
        expected.extend(attr(5, 8, 0, 5));
        expected.extend(attr(6, 3, 1, u64::from_ne_bytes([1, 2, 3, 0, 0, 0, 0, 0])));
        expected.extend(attr(7, 20, 1, 0));
        expected.extend(attr(8, 12, 1, 0));
        let mut last = attr(9, 2, 1, u64::from_ne_bytes([4, 5, 0, 0, 0, 0, 0, 0]));
        last[6] = 2;
        expected.extend(last);
        assert_eq!(raw.to_bytes(), expected);

        assert_eq!(raw.input(1), Some(&0x1122_3344_u32.to_ne_bytes()[..]));
        assert_eq!(raw.input(6), Some(&[1, 2, 3][..]));
        assert_eq!(raw.input(7), Some(&[7; 20][..]));
        assert_eq!((raw.input(8), raw.input(99)), (None, None));
        assert_eq!((raw.handle(4), raw.handle(0), raw.handle(2)), (Some(9), None, None));
        assert!(raw.fd(3).is_some() && raw.fd(4).is_none());
        assert_eq!(raw.attrs().last().unwrap(), RawAttr { id: 9, len: 2, flags: 1, elem_id: 2 });
        Ok(())
    }));
    assert_eq!(raw, Ok(()));
}

#[test]
fn the_ioctl_array_has_the_addresses_and_the_descriptors() {
    let dir = File::open("/").unwrap();
    let long = [7_u8; 20];
    let mut out = [0_u8; 12];
    let (long_at, out_at) = (long.as_ptr() as u64, out.as_ptr() as u64);
    let mut command = Command::<4>::new(3, 1);
    command.input_bytes(0, &long).output_bytes(1, &mut out).fd_in(2, dir.as_fd()).u32(3, 1);
    let fd = dir.as_raw_fd() as u64;
    let seen = command.run(&*once(move |raw| {
        let mut words = [u64::MAX; 16];
        assert_eq!(raw.encode(&mut words), Ok(3 + 2 * 4));
        assert_eq!([words[4], words[6], words[8]], [long_at, out_at, fd]);
        assert_eq!(words[11], u64::MAX, "wrote beyond its end");
        assert_eq!(raw.encode(&mut [0; 10]), Err(Errno::EOVERFLOW));
        Ok(())
    }));
    assert_eq!(seen, Ok(()));
}

#[test]
fn invoke_write_has_at_most_five_attributes() {
    let request = ib_uverbs_query_port { port_num: 1, ..Default::default() };
    let (input, mut output, mut core) = ([1_u8; 9], [0_u8; 4], [0_u8; 8]);
    // SAFETY: the bytes name no memory.
    let uhw = unsafe { Uhw::new(&input, &mut output) };
    let mut command = Command::invoke_write(2, &request, &mut core, uhw);
    let port = once(|raw| {
        assert_eq!((raw.object(), raw.method()), (UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE));
        let ids: Vec<_> = raw.attrs().map(|a| (a.id, a.len)).collect();
        let expected = [
            (UVERBS_ATTR_WRITE_CMD, 8),
            (UVERBS_ATTR_CORE_IN, 16),
            (UVERBS_ATTR_CORE_OUT, 8),
            (UVERBS_ATTR_UHW_IN, 9),
            (UVERBS_ATTR_UHW_OUT, 4),
        ];
        assert_eq!(ids, expected);
        // Cut, filled up, marked.
        assert!(raw.answer(UVERBS_ATTR_UHW_OUT, &[1, 2, 3, 4, 5, 6]));
        assert!(raw.answer(UVERBS_ATTR_CORE_OUT, &[9]));
        assert!(!raw.answer(UVERBS_ATTR_CORE_IN, &[9]) && !raw.answer(77, &[9]));
        Ok(())
    });
    assert_eq!(command.run(&*port), Ok(()));
    assert!(command.is_answered(UVERBS_ATTR_CORE_OUT) && !command.is_answered(UVERBS_ATTR_CORE_IN));
    assert_eq!((core, output), ([9, 0, 0, 0, 0, 0, 0, 0], [1, 2, 3, 4]));

    let mut command = Command::invoke_write(2, &request, &mut [], Uhw::none());
    assert_eq!(
        command.run(&*once(|raw| {
            assert_eq!(raw.attrs().count(), 2);
            Ok(())
        })),
        Ok(())
    );
}

#[test]
fn a_command_that_cannot_be_built_is_an_error_and_not_sent() {
    let never = Script::new();
    assert_eq!(Command::<1>::new(0, 0).u32(0, 1).u32(1, 1).run(&*never), Err(Errno::EOVERFLOW));
    assert_eq!(Command::<0>::new(0, 0).handle_new(0).optional().run(&*never), Err(Errno::EOVERFLOW));
    let mut long = vec![0; 1 << 16];
    assert_eq!(Command::<1>::new(0, 0).input_bytes(0, &long).run(&*never), Err(Errno::EOVERFLOW));
    assert_eq!(Command::<1>::new(0, 0).output_bytes(0, &mut long).run(&*never), Err(Errno::EOVERFLOW));
    assert_eq!(Command::<0>::new(0, 0).enum_in(0, 1, &[1]).run(&*never), Err(Errno::EOVERFLOW));
}

#[test]
fn impossible_handles_are_refused() {
    for (answer, expected) in [
        (0, Some(0)),
        (5, Some(5)),
        (i32::MAX as u64, Some(i32::MAX as u32)),
        (u64::from(u32::MAX), None),
        (1 << 31, None),
        (1 << 32, None),
        (u64::MAX, None),
    ] {
        let mut command = Command::<2>::new(0, 0);
        command.handle_new(0).u32(1, 3);
        let port = once(move |raw| {
            assert!(raw.new_handle(0, answer) && !raw.new_handle(1, answer) && !raw.new_handle(9, answer));
            Ok(())
        });
        assert_eq!(command.run(&*port), Ok(()));
        assert_eq!(command.handle(0), expected, "{answer:#x}");
        assert_eq!((command.handle(1), command.handle(2)), (None, None));
    }
}

#[test]
fn a_descriptor_is_taken_once() {
    let mut bytes = [0; 8];
    let mut command = Command::<3>::new(0, 0);
    command.fd_new_inner(0).output_with_fd_inner(1, &mut bytes, 4).output_with_fd_inner(2, &mut [], 9);
    let port = once(|raw| {
        for id in 0..3 {
            assert!(raw.new_fd(id, File::open("/").unwrap().into()));
        }
        assert!(!raw.new_fd(5, File::open("/").unwrap().into()));
        Ok(())
    });
    assert_eq!(command.run(&*port), Ok(()));
    let second: OwnedFd = command.take_fd(1).unwrap();
    assert!(command.take_fd(0).is_some() && command.take_fd(2).is_some());
    assert!(command.take_fd(0).is_none() && command.take_fd(1).is_none());
    assert_eq!(bytes[..4], [0; 4]);
    assert_eq!(bytes[4..], second.as_raw_fd().to_ne_bytes());
}

#[test]
fn a_doorbell_is_a_post_send_without_work_requests() {
    let script = Script::new();
    post_send_doorbell(&*script, 0x77).unwrap();
    req_notify_cq(&*script, 0x78, true).unwrap();
    let written = script.written.lock().unwrap();
    let words = |words: &[u32]| words.iter().flat_map(|w| w.to_ne_bytes()).collect::<Vec<_>>();
    // qp_handle, wr_count, sge_count, wqe_size: sizeof(struct ib_uverbs_send_wr).
    assert_eq!(written[0], (28, words(&[0x77, 0, 0, 56])), "post_send");
    assert_eq!(written[1], (23, words(&[0x78, 1])), "req_notify_cq");
}

#[test]
fn a_write_command_is_a_header_an_address_and_the_request() {
    let (mut words, mut response) = ([9_u64; 4], [0_u8; 4]);
    let at = response.as_ptr() as u64;
    // SAFETY: it is not run, and names no memory.
    let mut command = unsafe { WriteCommand::new(28, &mut words, &mut response) }.unwrap();
    assert_eq!((command.command(), command.request().len()), (28, 16));
    command.response().copy_from_slice(&[1, 2, 3, 4]);
    let bytes = command.encode().to_vec();
    assert_eq!(bytes[..4], 28_u32.to_ne_bytes());
    assert_eq!(
        (bytes[4..6].to_vec(), bytes[6..8].to_vec()),
        (8_u16.to_ne_bytes().into(), 1_u16.to_ne_bytes().into())
    );
    assert_eq!(bytes[8..16], at.to_ne_bytes());
    assert_eq!(bytes.len(), 32);
    // SAFETY: the command is not run, and names no memory.
    let refused = unsafe { WriteCommand::new(28, &mut [], &mut []) };
    assert_eq!(refused.unwrap_err(), Errno::EOVERFLOW);
    let mut short = [0];
    // SAFETY: the command is not run, and names no memory.
    let refused = unsafe { WriteCommand::new(28, &mut short, &mut response) };
    assert_eq!(refused.unwrap_err(), Errno::EOVERFLOW);
    let mut huge = vec![0_u64; 1 << 15];
    // SAFETY: the command is not run, and names no memory.
    let refused = unsafe { WriteCommand::new(28, &mut huge, &mut []) };
    assert_eq!(refused.unwrap_err(), Errno::EOVERFLOW);
}

#[test]
fn a_file_that_is_not_uverbs_is_refused_at_open() {
    let error = UverbsFd::open_path(Path::new("/dev/null"), "null0", &[14]).unwrap_err();
    assert_eq!((error.verb(), error.errno().raw()), ("open_device", libc::ENOTTY), "{error}");
    let error = UverbsFd::open_path(Path::new("/nonexistent"), "none0", &[14]).unwrap_err();
    assert_eq!(error.errno(), Errno::ENOENT);
    assert!(error.to_string().contains("none0 at /nonexistent"), "{error}");
    let error = UverbsFd::open_path(Path::new("/dev/null"), "null0", &[]).unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }));
}

#[test]
fn each_output_has_its_own_flags() {
    let (mut a, mut b) = (0_u32, 0_u32);
    let mut command = Command::<2>::new(0, 0);
    command.output(0, &mut a).output(1, &mut b).optional();
    let port = once(|raw| {
        raw.output(1).unwrap().fill(1);
        assert!(raw.mark_valid(1) && !raw.mark_valid(2));
        assert!(matches!(raw.values[0], AttrValue::Output(_)));
        assert_eq!(raw.attrs().map(|a| a.flags).collect::<Vec<_>>(), [1, UVERBS_ATTR_F_VALID_OUTPUT]);
        Ok(())
    });
    assert_eq!(command.run(&*port), Ok(()));
    assert_eq!(
        (command.is_answered(0), command.is_answered(1), command.is_answered(2)),
        (false, true, false)
    );
    assert_eq!((a, b), (0, 0x0101_0101));
}
