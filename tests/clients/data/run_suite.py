# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs rdma-core's test suite, each test in a child, and prints a line for each: result, seconds, name, reason.

Arguments: the folder of the tests, prefixes of names with commas between them, and the options of rdma-core's run_tests.py.
"""

import os
import random
import signal
import sys
import time
import unittest
from importlib.machinery import SourceFileLoader

LIMIT = 120


def load(folder):
    """The tests, by the way that run_tests.py loads them."""
    sys.path.insert(0, folder)
    from args_parser import parser
    parser.parse_args()
    module = SourceFileLoader('tests', os.path.join(folder, '__init__.py')).load_module()
    return unittest.defaultTestLoader.loadTestsFromModule(module)


def flat(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from flat(test)
        else:
            yield test


def run(test):
    """The test's result and its reason."""
    result = unittest.TestResult()
    test.run(result)
    for name, entries in (('error', result.errors), ('failed', result.failures)):
        if entries:
            return name, entries[0][1].strip().splitlines()[-1]
    if result.skipped:
        return 'skipped', result.skipped[0][1]
    return 'ok', ''


def run_in_child(test):
    """The same. A test that crashes or does not end has no influence on the next one."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        signal.alarm(LIMIT)
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        # Tests choose capacities and flags at random, of which a device may lack some: the same in each run.
        random.seed(test.id())
        os.write(writable, '\t'.join(run(test)).encode()[:4000])
        os._exit(0)
    os.close(writable)
    with os.fdopen(readable, errors='replace') as pipe:
        # A child of the test may have the pipe, too; what the test itself wrote is complete when it has ended.
        _, status = os.waitpid(child, 0)
        os.set_blocking(pipe.fileno(), False)
        answer = pipe.read() or ''
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        pass
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return 'error', 'time limit' if number == signal.SIGALRM else f'signal {number}'
    result, _, reason = answer.partition('\t')
    return result or 'error', reason


def main():
    folder, prefixes = sys.argv[1:3]
    prefixes = tuple(prefixes.split(','))
    del sys.argv[1:3]
    for test in flat(load(folder)):
        name = test.id().removeprefix('tests.')
        if not name.startswith(prefixes):
            continue
        start = time.monotonic()
        result, reason = run_in_child(test)
        reason = ' '.join(reason.split())
        print(f'{result:8} {time.monotonic() - start:6.2f} {name} {reason}', flush=True)


main()
