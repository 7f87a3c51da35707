// SPDX-License-Identifier: MIT OR Apache-2.0
//! Packets of InfiniBand and of RoCE version 2 as bytes, in both directions.
//!
//! | module        | what                                                                                      |
//! |---------------|-------------------------------------------------------------------------------------------|
//! | [`opcode`]    | the opcodes of the base transport header, and the headers that follow each                |
//! | [`transport`] | a transport packet: base header, extended headers, payload                                |
//! | [`frame`]     | what carries it: Ethernet, IP and UDP (RoCE version 2), or LRH and GRH (InfiniBand)       |
//! | [`datagram`]  | RoCE version 2 by a UDP socket, whose kernel has the IP header                            |
//! | [`crc`]       | the invariant and the variant CRC                                                         |
//! | [`capture`]   | capture files (pcapng), which Wireshark reads                                            |
//!
//! Nothing here sends or receives. Numbers are in host byte order, as everywhere in verbs, except the immediate, whose bytes have no
//! meaning to the device: [`Headers::imm`](transport::Headers) is the number that the big-endian bytes of the packet represent.
//!
//! Sources: InfiniBand Architecture Specification volume 1, chapters 7 (LRH, CRCs), 8 (GRH) and 9 (transport headers), and its annexes 14
//! (XRC), 16 and 17 (RoCE and RoCE version 2).
//!
//! ```
//! use uverbs_roce::frame::{Ethernet, Frame, Link};
//! use uverbs_roce::opcode::Opcode;
//! use uverbs_roce::transport::{Bth, Headers, Packet};
//!
//! let packet = Packet {
//!     bth: Bth { dest_qpn: 0x11, psn: 7, ack_req: true, ..Bth::new(Opcode::RC_SEND_ONLY) },
//!     headers: Headers::default(),
//!     payload: b"hello".to_vec(),
//! };
//! let link = Link::Ethernet(Ethernet::v4([2, 0, 0, 0, 0, 1], [10, 0, 0, 1], [2, 0, 0, 0, 0, 2], [10, 0, 0, 2]));
//! let frame = Frame { link, packet };
//! let bytes = frame.encode()?;
//! assert_eq!(Frame::decode_ethernet(&bytes)?, frame);
//! # Ok::<(), uverbs_roce::Error>(())
//! ```

pub mod capture;
pub mod crc;
pub mod datagram;
mod error;
pub mod frame;
pub mod opcode;
pub mod transport;

pub use error::{Error, Result};
