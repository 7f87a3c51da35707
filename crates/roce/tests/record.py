#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Writes frames of RoCE version 2 by scapy, whose ICRC is independent of this crate, on IPv4: tests/scapy.txt.

Each line: opcode, destination QP, PSN, acknowledgement requested, congestion bits, partition, migrated, the bytes after BTH without ICRC,
the frame. Run it with Debian's python3-scapy.
"""
import random
from scapy.all import Ether, IP, UDP, Raw, raw
from scapy.contrib.roce import BTH

random.seed(4791)
LENGTHS = {0: 0, 4: 0, 10: 16, 12: 16, 17: 4, 18: 12, 19: 28, 0x64: 8, 0x2a: 16, 5: 4}
for number in range(60):
    opcode = random.choice(sorted(LENGTHS))
    fixed = LENGTHS[opcode]
    has_payload = opcode not in (12, 17, 18, 19)
    length = random.randrange(200) if has_payload else 0
    pad = -length % 4
    body = bytearray(random.randbytes(fixed + length) + bytes(pad))
    if opcode == 17 or opcode == 18:
        body[0] = 0x1F
    if opcode == 0x64:
        body[4] = 0
    bth = dict(opcode=opcode, migreq=random.randrange(2), padcount=pad, pkey=random.randrange(1 << 16),
               fecn=random.randrange(2), becn=random.randrange(2), dqpn=random.randrange(1 << 24),
               ackreq=random.randrange(2), psn=random.randrange(1 << 24))
    net = IP(src="10.1.2.3", dst="10.4.5.6", tos=random.randrange(256), ttl=random.randrange(1, 256), flags="DF", id=0)
    frame = raw(Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02") / net /
                UDP(sport=random.randrange(1 << 16), dport=4791, chksum=0) / BTH(**bth) / Raw(bytes(body)))
    fields = [opcode, bth["dqpn"], bth["psn"], bth["ackreq"], bth["fecn"] * 2 + bth["becn"], bth["pkey"], bth["migreq"]]
    print(*fields, body.hex() or "-", frame.hex())
