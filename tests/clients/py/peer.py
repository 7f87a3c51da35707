# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the two ends of a program of a wheel have in common: a TCP connection for their addresses, and the data they check.

The words of a call are `--device D --gid G --port P [HOST]`; the end with a host is the client.
"""

import argparse
import ctypes
import json
import os
import socket
import sys
import time

START = time.monotonic()
# The time for which an end waits for a message of the other one.
LIMIT = 30


class Peer:
    """The connection, and the words of the call."""

    def __init__(self, others=(), limit=LIMIT):
        """`others` are further options, which need a value; `limit` is the time for which this end waits."""
        parser = argparse.ArgumentParser()
        parser.add_argument("--device", required=True)
        parser.add_argument("--gid", type=int, required=True)
        parser.add_argument("--port", type=int, required=True)
        for other in others:
            parser.add_argument(other, required=True)
        parser.add_argument("host", nargs="?")
        self.args = parser.parse_args()
        self.is_client = self.args.host is not None
        if self.is_client:
            self.socket = socket.create_connection((self.args.host, self.args.port), limit)
        else:
            with socket.create_server(("", self.args.port)) as listener:
                listener.settimeout(limit)
                self.socket, _ = listener.accept()
        self.socket.settimeout(limit)
        # One file for both ways would drop a line that came early when it writes.
        self.lines = self.socket.makefile("r")

    def send(self, message):
        self.socket.sendall((json.dumps(message) + "\n").encode())

    def receive(self):
        line = self.lines.readline()
        if not line:
            sys.exit("the other end has closed the connection")
        return json.loads(line)

    def exchange(self, message):
        """Sends a message and returns that of the other end."""
        self.send(message)
        return self.receive()

    def end(self):
        """Ends the program when the other end is ready for that: until then it may need answers of this end's device. At once,
        because threads of a wheel that still run must not fail a row that has passed."""
        self.exchange("end")
        sys.stdout.flush()
        os._exit(0)


def pattern(seed, length):
    """Bytes that differ for each seed, at each offset of a page, and in each page."""
    word = bytes((seed * 37 + i * 11 + (i >> 8) * 5) & 0xFF for i in range(4096))
    turned = (word[page % 4093 :] + word[: page % 4093] for page in range(length // 4096 + 1))
    return b"".join(turned)[:length]


class Memory:
    """Memory at a fixed address, which is a multiple of a page."""

    def __init__(self, length):
        self.length = length
        self.room = ctypes.create_string_buffer(length + 4096)
        self.address = (ctypes.addressof(self.room) + 4095) & ~4095

    def fill(self, data, offset=0):
        ctypes.memmove(self.address + offset, data, len(data))

    def data(self, offset=0, length=None):
        return ctypes.string_at(self.address + offset, self.length if length is None else length)


def check(what, is_true):
    """Ends the program if something is not as it should be."""
    if not is_true:
        sys.exit(f"wrong: {what}")
    print(f"ok: {what} ({time.monotonic() - START:.1f} s)", flush=True)
