# SPDX-License-Identifier: MIT OR Apache-2.0
"""NIXL: an agent at each end with the backend UCX. The client's agent reads and writes the memory of the server's one, and each
transfer ends with a notification. The module of the wheel is used without its Python package, which needs numpy.

`--transports` is the list of UCX's transports.
"""

import base64
import os
import time

from peer import Memory, Peer, check, pattern

LENGTH = 2 << 20
BLOCK = 32 << 10
SHORT = 40
# The time for which an end waits: the other one may still load its libraries, on an emulated CPU.
LIMIT = 120

peer = Peer(("--transports",), LIMIT)
first, second, third, fourth = (pattern(seed, LENGTH) for seed in (1, 2, 3, 4))
# UCX reads them when it is loaded.
os.environ["UCX_TLS"] = peer.args.transports
os.environ["UCX_NET_DEVICES"] = f"{peer.args.device}:1"
# Not thousands of receives, whose pages are slow to get on an emulated CPU.
os.environ["UCX_UD_RX_QUEUE_LEN"] = os.environ["UCX_RC_RX_QUEUE_LEN"] = "256"
import _bindings as nixl  # noqa: E402

own, other = ("client", "server") if peer.is_client else ("server", "client")
agent = nixl.nixlAgent(own, nixl.nixlAgentConfig(True))
backend = [agent.createBackend("UCX", {})]
memory = Memory(LENGTH)
if not peer.is_client:
    memory.fill(first)
registered = nixl.nixlRegDList(nixl.DRAM_SEG)
registered.append((memory.address, LENGTH, 0, b""))
check("a registration", agent.registerMem(registered, backend) == nixl.NIXL_SUCCESS)


def libraries():
    """The files of libibverbs and libmlx5 that are in use."""
    with open("/proc/self/maps") as maps:
        paths = {line.split(None, 5)[5].strip() for line in maps if ".so" in line}
    return sorted(path for path in paths if "/libibverbs" in path or "/libmlx5" in path)


# The wheel has copies of both under names of its own, which must be those of the folder that the variable names, if it is set:
# others would pass, too. Without it, the wheel's copy looks for drivers of the system, which load the system's library.
folder = os.environ.get("LD_LIBRARY_PATH")
found = libraries()
from_wheel = [path for path in found if path.startswith(os.path.dirname(os.path.abspath(__file__)))]
is_right = all(path.startswith(folder) for path in found) if folder else len(from_wheel) == 2
check(f"the libraries {' '.join(found)}", found and is_right)

metadata, address = peer.exchange([base64.b64encode(agent.getLocalMD()).decode(), memory.address])
check("the other agent", agent.loadRemoteMD(base64.b64decode(metadata)) == other.encode())


def descriptors(base, ranges):
    # One after the other: the constructor of a list of them imports numpy.
    made = nixl.nixlXferDList(nixl.DRAM_SEG)
    for offset, length in ranges:
        made.append((base + offset, length, 0))
    return made


def transfer(operation, ranges, note):
    """Transfers ranges, which have the same offsets at both ends, and then notifies the other agent."""
    here, there = descriptors(memory.address, ranges), descriptors(address, ranges)
    request = agent.createXferReq(operation, here, there, other, note, backend)
    status = agent.postXferReq(request)
    end = time.monotonic() + LIMIT
    while status == nixl.NIXL_IN_PROG and time.monotonic() < end:
        time.sleep(0.001)
        status = agent.getXferStatus(request)
    agent.releaseXferReq(request)
    return status == nixl.NIXL_SUCCESS


def wait_for(note):
    """Waits for a notification of the other agent."""
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        for message in agent.getNotifs({}, backend).get(other, []):
            check(f"the notification {message.decode()}", message == note.encode())
            return
        time.sleep(0.001)
    check(f"the notification {note} in time", False)


whole = [(0, LENGTH)]
blocks = [(offset, BLOCK) for offset in range(0, LENGTH, BLOCK)]
# At addresses that are no multiples of anything, of lengths at both sides of that up to which UCX copies.
short = [(offset + 3, SHORT + offset // BLOCK * 97) for offset, _ in blocks]


def with_short(data, others):
    """The data, with the bytes of others in the short ranges."""
    data = bytearray(data)
    for offset, length in short:
        data[offset : offset + length] = others[offset : offset + length]
    return bytes(data)


if peer.is_client:
    check("a read", transfer(nixl.NIXL_READ, whole, "read"))
    check("the data read", memory.data() == first)
    memory.fill(second)
    check("writes", transfer(nixl.NIXL_WRITE, blocks, "written"))
    wait_for("checked")
    memory.fill(third)
    check("short writes", transfer(nixl.NIXL_WRITE, short, "short"))
    wait_for("checked")
    memory.fill(fourth)
    check("short reads", transfer(nixl.NIXL_READ, short, "end"))
    check("the data of short reads", memory.data() == with_short(fourth, third))
else:
    wait_for("read")
    wait_for("written")
    check("the data written", memory.data() == second)
    check("a notification", agent.genNotif(other, "checked", backend) == nixl.NIXL_SUCCESS)
    wait_for("short")
    check("the data of short writes", memory.data() == with_short(second, third))
    check("a notification", agent.genNotif(other, "checked", backend) == nixl.NIXL_SUCCESS)
    wait_for("end")
peer.exchange("done")
check("the end of the registration", agent.deregisterMem(registered, backend) == nixl.NIXL_SUCCESS)
check("the end of the connection", agent.invalidateRemoteMD(other) == nixl.NIXL_SUCCESS)
del agent
peer.end()
