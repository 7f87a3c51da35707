// SPDX-License-Identifier: MIT OR Apache-2.0
//! Wireshark reads the capture files and agrees with each header: tshark(1) dissects one packet of each opcode on each link.
//! Of packets of XRC it knows only the base header. Without tshark the test says that it was skipped; the gate installs it.

use std::fs;
use std::process::Command;
use uverbs_roce::capture::{LinkType, Writer};
use uverbs_roce::frame::{Ethernet, Frame, Grh, Infiniband, Link, Net};
use uverbs_roce::opcode::{Opcode, Service};
use uverbs_roce::transport::{Aeth, AtomicEth, Bth, Deth, Headers, Packet, Reth, Syndrome};

const GRH: Grh = Grh {
    sgid: [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0xff, 0xfe, 0, 0, 1],
    dgid: [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0xff, 0xfe, 0, 0, 2],
    tclass: 0x2e,
    flow_label: 0x1_2345,
    hop_limit: 64,
};

fn links() -> Vec<(&'static str, Link)> {
    let v4 = Ethernet::v4([2, 0, 0, 0, 0, 1], [10, 0, 0, 1], [2, 0, 0, 0, 0, 2], [10, 0, 0, 2]);
    let infiniband = |grh| Link::Infiniband(Infiniband { slid: 0x12, dlid: 0x34, sl: 3, vl: 1, grh });
    vec![
        ("v4", Link::Ethernet(v4)),
        ("v4-vlan", Link::Ethernet(Ethernet { vlan: Some(7), ..v4 })),
        ("v6", Link::Ethernet(Ethernet { net: Net::V6(GRH, 0xc123), ..v4 })),
        ("v1", Link::Ethernet(Ethernet { net: Net::Grh(GRH), ..v4 })),
        ("lrh", infiniband(None)),
        ("grh", infiniband(Some(GRH))),
    ]
}

/// The packets of all opcodes, with payloads of all lengths modulo 4.
fn packets() -> Vec<Packet> {
    let opcodes = (0..=u8::MAX).filter_map(Opcode::from_bits);
    let packet = |(i, opcode): (usize, Opcode)| {
        let has = opcode.extended();
        let headers = Headers {
            deth: has.deth.then_some(Deth { qkey: 0x1111_1111, src_qpn: 0x321 }),
            xrc_srqn: has.xrceth.then_some(0x77),
            reth: has.reth.then_some(Reth { addr: 0x7f00_0000_1000, rkey: 0x1f2f, len: 4096 }),
            atomic: has.atomic.then_some(AtomicEth {
                addr: 0x7f00_0000_2000,
                rkey: 0x1f30,
                swap_add: 5,
                compare: 6,
            }),
            aeth: has.aeth.then_some(Aeth { syndrome: Syndrome::NO_CREDITS, msn: 9 }),
            atomic_ack: has.atomic_ack.then_some(0x1234_5678_9abc_def0),
            imm: has.imm.then_some(0xdead_beef),
            ieth: has.ieth.then_some(0x5555),
        };
        let bth =
            Bth { dest_qpn: 0x100 + i as u32, psn: 1000 + i as u32, ack_req: i % 2 == 0, ..Bth::new(opcode) };
        Packet { bth, headers, payload: if opcode.has_payload() { vec![0x5a; i % 9] } else { Vec::new() } }
    };
    opcodes.enumerate().map(packet).collect()
}

/// The fields that are compared. Where a packet does not have the header, the field is empty.
const FIELDS: [&str; 18] = [
    "frame.interface_name",
    "frame.comment",
    "infiniband.bth.opcode",
    "infiniband.bth.destqp",
    "infiniband.bth.psn",
    "infiniband.bth.a",
    "infiniband.bth.padcnt",
    "infiniband.deth.srcqp",
    "infiniband.deth.q_key",
    "infiniband.reth.r_key",
    "infiniband.reth.dmalen",
    "infiniband.atomiceth.cmpdt",
    "infiniband.atomiceth.swapdt",
    "infiniband.aeth.msn",
    "infiniband.atomicacketh.origremdt",
    "infiniband.immdt",
    "infiniband.ieth",
    "_ws.malformed",
];

#[test]
fn wireshark_agrees_with_each_header() {
    let has_tshark = Command::new("tshark").arg("--version").output().is_ok_and(|out| out.status.success());
    if !has_tshark {
        assert!(std::env::var_os("CI").is_none(), "tshark is not installed");
        eprintln!("skipped: tshark is not installed");
        return;
    }
    let mut file = Writer::new(Vec::new(), "uverbs-roce").unwrap();
    let mut expected = Vec::new();
    for (name, link) in links() {
        let kind = match link {
            Link::Ethernet(_) => LinkType::Ethernet,
            Link::Infiniband(_) => LinkType::Infiniband,
        };
        let interface = file.interface(kind, name).unwrap();
        for packet in packets() {
            let bth = packet.bth;
            let is_known = bth.opcode.service() != Service::Xrc;
            let headers = if is_known { packet.headers } else { Headers::default() };
            let comment = format!("WR {}", bth.psn);
            let hex = |value: Option<u32>, digits: usize| {
                value.map_or(String::new(), |v| format!("0x{v:0digits$x}"))
            };
            let plain = |value: Option<u32>| value.map_or(String::new(), |v| format!("{v:08x}"));
            let number = |value: Option<u64>| value.map_or(String::new(), |v| v.to_string());
            expected.push(vec![
                name.to_owned(),
                comment.clone(),
                bth.opcode.bits().to_string(),
                hex(Some(bth.dest_qpn), 6),
                bth.psn.to_string(),
                u8::from(bth.ack_req).to_string(),
                (packet.payload.len().wrapping_neg() % 4).to_string(),
                hex(headers.deth.map(|deth| deth.src_qpn), 8),
                hex(headers.deth.map(|deth| deth.qkey), 16),
                hex(headers.reth.map(|reth| reth.rkey).or(headers.atomic.map(|atomic| atomic.rkey)), 8),
                number(headers.reth.map(|reth| reth.len.into())),
                number(headers.atomic.map(|atomic| atomic.compare)),
                number(headers.atomic.map(|atomic| atomic.swap_add)),
                number(headers.aeth.map(|aeth| aeth.msn.into())),
                number(headers.atomic_ack),
                plain(headers.imm),
                plain(headers.ieth),
                String::new(),
            ]);
            let bytes = Frame { link, packet }.encode().unwrap();
            file.packet(interface, 1_700_000_000_000_000_000, &bytes, &comment).unwrap();
        }
    }
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("each-header.pcapng");
    fs::write(&path, file.into_inner()).unwrap();

    let mut tshark = Command::new("tshark");
    // The payloads are of no protocol.
    tshark
        .args(["--disable-protocol", "rpcordma", "--disable-protocol", "infiniband.eoib"])
        .arg("-r")
        .arg(&path)
        .args(["-T", "fields", "-E", "separator=/t"]);
    tshark.args(FIELDS.iter().flat_map(|field| ["-e", field]));
    let out = tshark.output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let text = String::from_utf8(out.stdout).unwrap();
    let found: Vec<Vec<String>> =
        text.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect();
    assert_eq!(found.len(), expected.len());
    for (found, row) in found.iter().zip(&expected) {
        for ((field, found), expected) in FIELDS.iter().zip(found).zip(row) {
            // Some fields are printed twice, as a number and as text.
            let found = found.split(',').next().unwrap_or_default();
            assert_eq!(found, expected, "{field} of {}, opcode {}", row[0], row[2]);
        }
    }
}
