// SPDX-License-Identifier: MIT OR Apache-2.0
//! The values that the functions of the crate make of structs: unions, integers in network order, the number of the ioctl.

use uverbs_uapi::be::{Be16, Be32, Be64};
use uverbs_uapi::cmd::*;
use uverbs_uapi::ioctl::*;
use uverbs_uapi::rxe::*;
use zerocopy::{FromBytes, IntoBytes};

#[test]
fn big_endian_integers_are_stored_in_network_order() {
    assert_eq!(Be16::new(0x0102).as_bytes(), [1, 2]);
    assert_eq!(Be32::new(0x0102_0304).as_bytes(), [1, 2, 3, 4]);
    assert_eq!(Be64::new(0x0102_0304_0506_0708).as_bytes(), [1, 2, 3, 4, 5, 6, 7, 8]);
}

#[test]
fn big_endian_bits_are_those_of_the_word() {
    let word = Be32::new(0x0102_0304);
    assert_eq!(word.to_bits(), u32::from_ne_bytes([1, 2, 3, 4]));
    assert_eq!(Be32::from_bits(word.to_bits()), word);
    assert_eq!(u32::from(word), 0x0102_0304);
}

#[test]
fn the_ioctl_number_is_that_of_the_kernel() {
    assert_eq!(RDMA_VERBS_IOCTL, 0xc018_1b01);
}

#[test]
fn an_attribute_is_written_and_read_again() {
    let mut attr =
        ib_uverbs_attr { attr_id: 0x1234, len: 8, flags: UVERBS_ATTR_F_MANDATORY, ..Default::default() };
    attr.set_elem_id(7);
    attr.set_data_s64(-1);
    let bytes: [u8; 16] = attr.as_bytes().try_into().expect("16 bytes");
    assert_eq!(bytes[6..], [7, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
    let back = ib_uverbs_attr::read_from_bytes(&bytes).expect("same size");
    assert_eq!((back, back.elem_id(), back.data_s64()), (attr, 7, -1));
}

#[test]
fn the_header_has_the_fixed_size() {
    let hdr = ib_uverbs_ioctl_hdr { length: 24, driver_id: 14, ..Default::default() };
    assert_eq!(hdr.as_bytes().len(), 24);
    assert_eq!(ib_uverbs_ioctl_hdr::read_from_bytes(hdr.as_bytes()).expect("same size"), hdr);
}

#[test]
fn a_send_wr_is_written_and_read_again() {
    let atomic = ib_uverbs_send_wr_atomic { remote_addr: 1, compare_add: 2, swap: 3, rkey: 4, reserved: 0 };
    let mut wr = ib_uverbs_send_wr {
        wr_id: 9,
        opcode: IB_UVERBS_WR_ATOMIC_CMP_AND_SWP,
        wr: atomic.into(),
        ..Default::default()
    };
    wr.set_invalidate_rkey(0x0102_0304);
    assert_eq!(wr.as_bytes()[20..24], 0x0102_0304_u32.to_ne_bytes());
    let back = ib_uverbs_send_wr::read_from_bytes(wr.as_bytes()).expect("same size");
    assert_eq!((back.wr.atomic(), back.invalidate_rkey()), (atomic, 0x0102_0304));
    assert_eq!(back.wr.rdma().remote_addr, 1);
}

#[test]
fn immediate_data_are_in_network_order() {
    let wr = ib_uverbs_send_wr { imm_data: 0x0102_0304.into(), ..Default::default() };
    assert_eq!(wr.as_bytes()[20..24], [1, 2, 3, 4]);
}

#[test]
fn the_fields_of_the_union_share_their_words() {
    let ud = rxe_send_wr_ud { remote_qpn: 0x11, remote_qkey: 0x22, ah_num: 3, ..Default::default() };
    let mut wr = rxe_send_wr { wr_id: 1, wr: ud.into(), ..Default::default() };
    assert_eq!(wr.wr.ud(), ud);
    assert_eq!(wr.wr.rdma().remote_addr, u64::from_ne_bytes([0x11, 0, 0, 0, 0x22, 0, 0, 0]));
    wr.wr.set_rdma(rxe_send_wr_rdma { remote_addr: 7, rkey: 8, reserved: 0 });
    assert_eq!((wr.wr.rdma().rkey, wr.wr.words[0]), (8, 7));
    let back = rxe_send_wr::read_from_bytes(wr.as_bytes()).expect("same size");
    assert_eq!(back, wr);
}

#[test]
fn a_gid_is_in_wire_order() {
    let raw = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    let gid = rxe_gid::from(raw);
    assert_eq!(gid.global[1].get(), 0x0102_0304_0506_0708);
    assert_eq!(gid.raw(), raw);
}
