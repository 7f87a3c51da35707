# SPDX-License-Identifier: MIT OR Apache-2.0
"""mooncake: reads and writes between two of its transfer engines, one by one and in batches."""

import json
import os
import tempfile

from mooncake.engine import TransferEngine
from peer import Memory, Peer, check, pattern

PAGE = 65536
PAGES = 16

peer = Peer()
engine = TransferEngine()
name = "127.0.0.1"
# It finds devices by their files in /dev/infiniband, which those of a process do not have; and without devices it would use TCP.
with tempfile.NamedTemporaryFile("w", suffix=".json") as topology:
    json.dump({"cpu:0": [[peer.args.device], []]}, topology)
    topology.flush()
    os.environ.update(
        MC_CUSTOM_TOPO_JSON=topology.name, MC_FORCE_HCA="1", MC_GID_INDEX=str(peer.args.gid)
    )
    result = engine.initialize(name, "P2PHANDSHAKE", "rdma", peer.args.device)
check("the engine's start", result == 0)
memory = Memory(PAGE * PAGES)
check("a registration", engine.register_memory(memory.address, memory.length) == 0)
if not peer.is_client:
    memory.fill(pattern(1, memory.length))
other = peer.exchange({"node": f"{name}:{engine.get_rpc_port()}", "address": memory.address})
node, remote = other["node"], other["address"]

if peer.is_client:
    for page in range(4):
        at = page * PAGE
        result = engine.transfer_sync_read(node, memory.address + at, remote + at, PAGE)
        check(f"read {page}", result == 0)
    pages = range(4, PAGES)
    local = [memory.address + page * PAGE for page in pages]
    there = [remote + page * PAGE for page in pages]
    lengths = [PAGE] * len(pages)
    check("a batch of reads", engine.batch_transfer_sync_read(node, local, there, lengths) == 0)
    check("the data read", memory.data() == pattern(1, memory.length))
    memory.fill(pattern(2, memory.length))
    check("a write", engine.transfer_sync_write(node, memory.address, remote, 4 * PAGE) == 0)
    check("a batch of writes", engine.batch_transfer_sync_write(node, local, there, lengths) == 0)
    peer.send("written")
    check("the other end's data", peer.receive())
else:
    peer.receive()
    good = memory.data() == pattern(2, memory.length)
    peer.send(good)
    check("the data written", good)
check("the end of the registration", engine.unregister_memory(memory.address) == 0)
peer.end()
