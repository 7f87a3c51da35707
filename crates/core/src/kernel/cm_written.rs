// SPDX-License-Identifier: MIT OR Apache-2.0
//! The commands that a program writes to `/dev/infiniband/rdma_cm`, for a port in the process.
#![expect(unsafe_code)]
// UNSAFETY: commands have addresses of the program, as write(2) takes them.

use super::cm::{CmPort, Pointer, layout};
use crate::errno::Errno;
use uverbs_uapi::rdma_cm::{
    RDMA_USER_CM_CMD_BIND, RDMA_USER_CM_CMD_BIND_IP, RDMA_USER_CM_CMD_JOIN_IP_MCAST,
    RDMA_USER_CM_CMD_JOIN_MCAST, RDMA_USER_CM_CMD_RESOLVE_ADDR, RDMA_USER_CM_CMD_RESOLVE_IP,
    rdma_ucm_cmd_hdr, rdma_ucm_set_option,
};
use zerocopy::FromBytes;

/// Bytes of an option's value at most (a page, as in `ucma_set_option()` of the kernel).
const MAX_VALUE: usize = 4096;
/// Bytes of a `struct sockaddr_in6`, which also holds a `struct sockaddr_in`, and of `struct __kernel_sockaddr_storage`.
const SOCKADDR_IN6: usize = 28;
const STORAGE: usize = 128;

/// Runs a command of which a program has written these bytes, as write(2) of an open `/dev/infiniband/rdma_cm` does: the header and the
/// struct, which has the address of the answer or of an option's value. For programs of librdmacm with a software NIC.
///
/// # Errors
/// `EINVAL` for bytes that are no command, `ENOSYS` for one that is not known here; the error of the port.
///
/// # Safety
/// The address of the answer is valid for writes of the bytes that the header has room for, and that of a value for reads of its bytes.
/// Nothing else accesses them during the call.
pub unsafe fn run_written(port: &dyn CmPort, bytes: &[u8]) -> Result<(), Errno> {
    let (header, rest) = rdma_ucm_cmd_hdr::read_from_prefix(bytes).map_err(|_| Errno::EINVAL)?;
    let given = rest.get(..header.input.into()).ok_or(Errno::EINVAL)?;
    let (cmd, given) = match of_ip(header.cmd, given)? {
        Some((cmd, newer)) => (cmd, newer),
        None => (header.cmd, given.to_vec()),
    };
    let (len, pointer) = layout(cmd).ok_or(Errno::ENOSYS)?;
    // Programs may know a shorter struct, or a longer one.
    let mut input = given;
    input.resize(len, 0);
    let mut answer: &mut [u8] = &mut [];
    match pointer {
        Pointer::None => {}
        Pointer::Answer(at) => {
            let start = core::ptr::with_exposed_provenance_mut::<u8>(number(&input, at) as usize);
            if !start.is_null() && header.out > 0 {
                // SAFETY: not NULL (checked), valid for writes of so many bytes, which nothing else accesses (contract of this function).
                answer = unsafe { core::slice::from_raw_parts_mut(start, header.out.into()) };
            }
        }
        Pointer::Value(at) => {
            let optlen = word(&input, core::mem::offset_of!(rdma_ucm_set_option, optlen)) as usize;
            let start = core::ptr::with_exposed_provenance::<u8>(number(&input, at) as usize);
            if optlen > MAX_VALUE || start.is_null() && optlen > 0 {
                return Err(Errno::EINVAL);
            }
            if optlen > 0 {
                // SAFETY: not NULL (checked), valid for reads of so many bytes (contract of this function).
                input.extend_from_slice(unsafe { core::slice::from_raw_parts(start, optlen) });
            }
        }
    }
    port.command(cmd, &input, answer)
}

/// A number of a struct; 0 behind its end.
fn number(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|bytes| bytes.first_chunk()).map_or(0, |bytes| u64::from_ne_bytes(*bytes))
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|bytes| bytes.first_chunk()).map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}

/// The command with addresses of any family in place of one with IP addresses: `struct rdma_ucm_bind_ip`, `rdma_ucm_resolve_ip`,
/// `rdma_ucm_join_ip_mcast` of the kernel's `rdma_user_cm.h`. librdmacm writes these if it can't bind an address of InfiniBand.
fn of_ip(cmd: u32, given: &[u8]) -> Result<Option<(u32, Vec<u8>)>, Errno> {
    let address = |at: usize| -> Result<(u16, [u8; STORAGE]), Errno> {
        let bytes = given.get(at..at + SOCKADDR_IN6).ok_or(Errno::EINVAL)?;
        let size = match i32::from(u16::from_ne_bytes([bytes[0], bytes[1]])) {
            0 => 0,
            libc::AF_INET => 16,
            libc::AF_INET6 => SOCKADDR_IN6 as u16,
            _ => return Err(Errno::EINVAL),
        };
        let mut storage = [0; STORAGE];
        storage[..SOCKADDR_IN6].copy_from_slice(bytes);
        Ok((size, storage))
    };
    Ok(Some(match cmd {
        RDMA_USER_CM_CMD_BIND_IP => {
            let (size, addr) = address(8)?;
            let id = word(given, 8 + SOCKADDR_IN6).to_ne_bytes();
            (RDMA_USER_CM_CMD_BIND, [&id[..], &size.to_ne_bytes(), &[0; 2], &addr].concat())
        }
        RDMA_USER_CM_CMD_RESOLVE_IP => {
            let ((src_size, src), (dst_size, dst)) = (address(0)?, address(SOCKADDR_IN6)?);
            let ids = given.get(2 * SOCKADDR_IN6..2 * SOCKADDR_IN6 + 8).ok_or(Errno::EINVAL)?;
            let sizes = [src_size.to_ne_bytes(), dst_size.to_ne_bytes(), [0; 2], [0; 2]].concat();
            (RDMA_USER_CM_CMD_RESOLVE_ADDR, [ids, &sizes, &src, &dst].concat())
        }
        RDMA_USER_CM_CMD_JOIN_IP_MCAST => {
            let (size, addr) = address(16)?;
            let head = given.get(..16).ok_or(Errno::EINVAL)?;
            let id = word(given, 16 + SOCKADDR_IN6).to_ne_bytes();
            (RDMA_USER_CM_CMD_JOIN_MCAST, [head, &id, &size.to_ne_bytes(), &[0; 2], &addr].concat())
        }
        _ => return Ok(None),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Result as Outcome;
    use crate::kernel::cm::tests::encoded;
    use std::os::fd::BorrowedFd;
    use std::sync::Arc;
    use uverbs_uapi::rdma_cm::{
        RDMA_USER_CM_CMD_CREATE_ID, RDMA_USER_CM_CMD_LISTEN, RDMA_USER_CM_CMD_SET_OPTION,
        RDMA_USER_CM_CMD_WRITE_CM_EVENT, rdma_ucm_create_id,
    };
    use zerocopy::IntoBytes;

    /// A port that notes its commands, and answers with bytes that count.
    #[derive(Debug, Default)]
    struct Noting(std::sync::Mutex<Vec<(u32, Vec<u8>, usize)>>);

    impl CmPort for Noting {
        fn command(&self, cmd: u32, input: &[u8], output: &mut [u8]) -> Result<(), Errno> {
            self.0.lock().unwrap().push((cmd, input.to_vec(), output.len()));
            output.iter_mut().zip(1..).for_each(|(byte, n)| *byte = n);
            Ok(())
        }

        fn fd(&self) -> BorrowedFd<'_> {
            unreachable!("no test asks for it")
        }

        fn open_channel(&self) -> Outcome<Arc<dyn CmPort>> {
            unreachable!("no test asks for it")
        }

        fn is_creator_process(&self) -> bool {
            true
        }
    }

    #[test]
    fn what_is_written_for_the_kernel_reaches_a_port() {
        let port = Noting::default();
        let run = |bytes: &[u8]| {
            // SAFETY: the addresses are those of `answer` and `value`, which are as long as the commands say and live.
            unsafe { run_written(&port, bytes) }
        };
        // The inverse of what `RdmaCmFd` writes.
        let (mut answer, value) = ([0_u8; 8], [7_u8, 8, 9]);
        let create = rdma_ucm_create_id { uid: 5, ..Default::default() };
        run(&encoded(RDMA_USER_CM_CMD_CREATE_ID, create.as_bytes(), &mut answer).unwrap()).unwrap();
        assert_eq!(answer, [1, 2, 3, 4, 5, 6, 7, 8]);
        let option = rdma_ucm_set_option { id: 3, optlen: 3, ..Default::default() };
        let input = [option.as_bytes(), &value].concat();
        run(&encoded(RDMA_USER_CM_CMD_SET_OPTION, &input, &mut []).unwrap()).unwrap();
        let noted = port.0.lock().unwrap();
        assert_eq!((noted[0].0, noted[0].2, noted[1].2), (RDMA_USER_CM_CMD_CREATE_ID, 8, 0));
        assert_eq!(noted[0].1[..8], 5_u64.to_ne_bytes());
        assert!(noted[1].1.len() == size_of::<rdma_ucm_set_option>() + 3 && noted[1].1.ends_with(&value));
        drop(noted);
        // Shorter structs of older programs are zeros behind their end; what is no command is refused.
        let listen = |cmd: u32, input: u16, rest: usize| {
            let header = rdma_ucm_cmd_hdr { cmd, input, out: 0 };
            run(&[header.as_bytes(), &vec![1; rest]].concat())
        };
        assert_eq!(listen(RDMA_USER_CM_CMD_LISTEN, 4, 4), Ok(()));
        assert_eq!(port.0.lock().unwrap()[2].1, [1, 1, 1, 1, 0, 0, 0, 0]);
        assert_eq!(listen(RDMA_USER_CM_CMD_LISTEN, 8, 4), Err(Errno::EINVAL));
        assert_eq!(listen(RDMA_USER_CM_CMD_WRITE_CM_EVENT, 0, 0), Err(Errno::ENOSYS));
        assert_eq!(run(&[0; 3]), Err(Errno::EINVAL));
        let long = rdma_ucm_set_option { optval: 8, optlen: u32::MAX, ..Default::default() };
        let header = rdma_ucm_cmd_hdr {
            cmd: RDMA_USER_CM_CMD_SET_OPTION,
            input: size_of::<rdma_ucm_set_option>() as u16,
            out: 0,
        };
        assert_eq!(run(&[header.as_bytes(), long.as_bytes()].concat()), Err(Errno::EINVAL));
    }

    #[test]
    fn commands_with_ip_addresses_are_those_with_any_address() {
        let port = Noting::default();
        let run = |cmd: u32, input: &[u8]| {
            let header = rdma_ucm_cmd_hdr { cmd, input: input.len() as u16, out: 0 };
            // SAFETY: the commands have no address of an answer.
            unsafe { run_written(&port, &[header.as_bytes(), input].concat()) }
        };
        let mut four = [0_u8; SOCKADDR_IN6];
        four[..8].copy_from_slice(&[2, 0, 0x1b, 0x39, 10, 77, 0, 1]);
        let none = [0; SOCKADDR_IN6];
        assert_eq!(run(RDMA_USER_CM_CMD_BIND_IP, &[&[0; 8][..], &four, &[9, 0, 0, 0]].concat()), Ok(()));
        assert_eq!(
            run(RDMA_USER_CM_CMD_RESOLVE_IP, &[&none[..], &four, &[9, 0, 0, 0, 7, 0, 0, 0]].concat()),
            Ok(())
        );
        let noted = port.0.lock().unwrap();
        let (bind, resolve) = (&noted[0], &noted[1]);
        assert_eq!((bind.0, resolve.0), (RDMA_USER_CM_CMD_BIND, RDMA_USER_CM_CMD_RESOLVE_ADDR));
        assert_eq!((&bind.1[..8], &bind.1[8..16]), (&[9, 0, 0, 0, 16, 0, 0, 0][..], &four[..8]));
        assert_eq!(resolve.1[..16], [9, 0, 0, 0, 7, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0]);
        assert_eq!((&resolve.1[16..24], &resolve.1[16 + STORAGE..24 + STORAGE]), (&[0; 8][..], &four[..8]));
        drop(noted);
        let mut other = four;
        other[0] = 1;
        assert_eq!(
            run(RDMA_USER_CM_CMD_BIND_IP, &[&[0; 8][..], &other, &[9, 0, 0, 0]].concat()),
            Err(Errno::EINVAL)
        );
        assert_eq!(run(RDMA_USER_CM_CMD_RESOLVE_IP, &four), Err(Errno::EINVAL));
    }
}
