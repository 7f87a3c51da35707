# SPDX-License-Identifier: MIT OR Apache-2.0
"""DLSlime: writes, reads, writes with immediate data and messages between two of its endpoints, each of which has two QPs."""

import os

from peer import Memory, Peer, check, pattern

PAGE = 65536
PAGES = 16
IMMEDIATE = 0x1234567

peer = Peer()
# It finds a GID by files in /sys, which devices of a process do not have. It reads the variable when it is loaded.
os.environ["SLIME_GID_INDEX"] = str(peer.args.gid)
from dlslime import RDMAEndpoint  # noqa: E402

endpoint = RDMAEndpoint(peer.args.device, ib_port=1, link_type="RoCE", num_qp=2)
memory = Memory(PAGE * PAGES)
own = endpoint.register_memory_region("memory", memory.address, 0, memory.length)
check("a registration", own >= 0)
if not peer.is_client:
    memory.fill(pattern(1, memory.length))
info, regions = peer.exchange([endpoint.endpoint_info(), endpoint.mr_info()])
endpoint.connect(info)
there = endpoint.register_remote_memory_region("memory", regions["memory"])
check("a region of the other end", there >= 0)
peer.exchange("connected")


def pages(numbers):
    """The keys, the offsets at the other end and here, and the length of each page."""
    return [(own, there, page * PAGE, page * PAGE, PAGE) for page in numbers]


def chunk(page):
    """A page as the parameter of a message, which registers it. An offset, the second number, would be ignored."""
    return (memory.address + page * PAGE, 0, PAGE)


if peer.is_client:
    check("reads", endpoint.read(pages(range(PAGES)), None).wait() == 0)
    check("the data read", memory.data() == pattern(1, memory.length))
    memory.fill(pattern(2, memory.length))
    check("writes", endpoint.write(pages(range(PAGES - 1)), None).wait() == 0)
    last = endpoint.write_with_imm(pages([PAGES - 1]), imm_data=IMMEDIATE)
    check("a write with immediate data", last.wait() == 0)
    check("the other end's data", peer.receive())
    memory.fill(pattern(3, PAGE))
    check("a message", endpoint.send(chunk(0), None).wait() == 0)
    check("the other end's message", peer.receive())
else:
    last = endpoint.imm_recv()
    check("a receive of immediate data", last.wait() == 0)
    check("the immediate data", last.imm_data() == IMMEDIATE)
    good = memory.data() == pattern(2, memory.length)
    peer.send(good)
    check("the data written", good)
    check("a receive of a message", endpoint.recv(chunk(1), None).wait() == 0)
    good = memory.data(PAGE, PAGE) == pattern(3, PAGE)
    peer.send(good)
    check("the message", good)
peer.end()
