# SPDX-License-Identifier: MIT OR Apache-2.0
"""peercache: batches of one-sided reads and writes between two of its transfer engines, from two threads."""

import threading

from peer import Memory, Peer, check, pattern
from peercache import _peercache

PAGE = 65536
PAGES = 16
ROUNDS = 8

peer = Peer()
check("the wheel has RDMA", _peercache.HAS_RDMA)
engine = _peercache.TransferEngine(
    device_names=[peer.args.device],
    gid_index=peer.args.gid,
    bind_host="127.0.0.1",
    bind_port=0,
    max_channels_per_peer=2,
)
memory = Memory(PAGE * PAGES)
handle = engine.register_mr(memory.address, memory.length)[0]
if not peer.is_client:
    memory.fill(pattern(1, memory.length))
other = peer.exchange(
    {"node": engine.local_endpoint(), "address": memory.address, "rkey": handle.rkey}
)


def batch(pages):
    """The parameters of a batch with these pages."""
    count = len(pages)
    return (
        [other["node"]] * count,
        [memory.address + page * PAGE for page in pages],
        [other["address"] + page * PAGE for page in pages],
        [other["rkey"]] * count,
        [PAGE] * count,
    )


if peer.is_client:
    results = []

    def reader(pages):
        for _ in range(ROUNDS):
            results.extend(engine.batch_read_v(*batch(pages)))

    half = PAGES // 2
    threads = [
        threading.Thread(target=reader, args=[range(first, first + half)]) for first in (0, half)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check(f"{len(results)} reads", len(results) == ROUNDS * PAGES and all(results))
    check("the data read", memory.data() == pattern(1, memory.length))
    memory.fill(pattern(2, memory.length))
    results = engine.batch_write_v(*batch(range(PAGES)))
    check(f"{len(results)} writes", len(results) == PAGES and all(results))
    peer.send("written")
    check("the other end's data", peer.receive())
else:
    peer.receive()
    good = memory.data() == pattern(2, memory.length)
    peer.send(good)
    check("the data written", good)
peer.end()
