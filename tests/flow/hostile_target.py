# SPDX-License-Identifier: Apache-2.0
"""What prepd_hostile.py attacks: a daemon on tcp and an honest consumer beside all that is done to it; and peers that say what they
like, byte for byte."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time

import zmq

from prepd_flow import SANITIZED, Daemon, check, free_ports, run, wait_for

sys.path.insert(0, os.path.join(os.environ.get("TESSERA_SOURCE", "."), "proto", "python"))
from tessera import client  # noqa: E402

IO_THREADS = 3  # of the daemon; several read the connections of one socket
BUFFER = 8 << 20  # prepd.buffer_bytes
ROOM = 48 << 20  # for libraries and stacks
CONNECTION = 32 << 10  # memory that ZeroMQ needs for a connection
# By how much a sender at full speed may make the daemon grow before it is noticed and cut off. It is the more, the
# longer the daemon waits for a core. Everything it sends would be over a gigabyte.
BETWEEN_LOOKS = 2 * 256 << 20  # two threads read the consumers' connections
MIB = 1 << 20
# What an attack may cost a consumer beside it: it must never be without a row for GAP_S, and must get rows at a SHARE-th of
# its quiet rate at least. An attack takes one core of two, and other processes may start after the quiet rate was
# measured; a fifth of that rate and 2.4 s without a row have been seen. A loop that served floods first would give no rows while
# they last. All attacks of a test count together, without their first LAG_S.
GAP_S = 10
SHARE = 10
LAG_S = 1
# A separate process, so that the work of the attack takes no time from it.
CONSUMER = """import hashlib, sys, time
from tessera import client
for row in client.connect(sys.argv[1], timeout=60.0, credit_bytes=1 << 20, keys=sys.argv[2] or None,
                          start_row=int(sys.argv[3])):
    now, h = time.monotonic(), hashlib.blake2b()
    for name in ("input_ids", "labels", "doc_sample_id", "pixels"):
        h.update(row[name].tobytes())
    print(row["number"], now, h.hexdigest(), flush=True)
"""

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16 + 32)
READY = b"\x04\x1c\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
HELLO = {"version": 3, "stream": "train", "start_row": 0, "rank": 0, "ranks": 1,
         "credit_bytes": 1 << 40}


def stat_of(pid, key):
    with open(f"/proc/{pid}/status") as f:
        return int(next(line for line in f if line.startswith(key)).split()[1]) * 1024


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


class Consumer:
    """It takes rows all the time, as (number, when it came, fingerprint)."""

    def __init__(self, endpoint, keys=None, start_row=0):
        self.said, self.errors = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        self.seen, self.at = [], 0
        self.p = subprocess.Popen([sys.executable, "-B", "-c", CONSUMER, endpoint, keys or "", str(start_row)],
                                  stdout=self.said, stderr=self.errors,
                                  env={**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(client.__file__))})

    @property
    def rows(self):
        text = os.pread(self.said.fileno(), os.fstat(self.said.fileno()).st_size - self.at, self.at)
        text = text[:text.rfind(b"\n") + 1]
        self.at += len(text)
        self.seen += [(int(n), float(t), digest) for n, t, digest in map(bytes.split, text.splitlines())]
        return self.seen

    def complaint(self):
        return os.pread(self.errors.fileno(), 1 << 20, 0).decode()

    def stop(self):
        """Returns the exit code, None if it was still at work."""
        code = self.p.poll()
        self.p.kill()
        self.p.wait()
        return code


def io_threads(pid):
    """Found by the names that libzmq gives its threads."""
    n = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/comm") as f:
            n += "/IO/" in f.read()
    return n


class Target:
    """A daemon on tcp, and a consumer beside everything that is done to it."""

    def __init__(self, folder, *args, keys=False):
        self.folder, self.port = folder, free_ports()
        self.endpoint = f"tcp://127.0.0.1:{self.port}"
        self.keys = folder.file("keys") if keys else None
        if keys:
            run("keygen", "--out", self.keys)
            args = (*args, "--prepd.keys", self.keys)
        self.daemon = Daemon(folder.config, "--prepd.endpoint", self.endpoint, "--prepd.io_threads", str(IO_THREADS),
                             *args)
        self.pid = self.daemon.p.pid
        self.consumer = Consumer(self.endpoint, self.keys)
        wait_for(lambda: len(self.consumer.rows) > 100, "rows")
        check(io_threads(self.pid) == IO_THREADS, f"{io_threads(self.pid)} threads read and write connections")
        self.rate = self.rate_from(20)
        self.before = stat_of(self.pid, "VmRSS"), descriptors(self.pid)
        self.attacked_s, self.came = 0.0, 0
        self.since = time.monotonic()

    def rate_from(self, first):
        """Rows per second that the consumer got, from this one on."""
        times = [t for _, t, _ in self.consumer.rows[first:]]
        return (len(times) - 1) / (times[-1] - times[0])

    def status(self):
        keys = ("--keys", self.keys) if self.keys else ()
        return json.loads(run("status", "--connect", self.endpoint, "--json", *keys))

    def settled(self, what, connections=0, rate=True, gap_s=GAP_S):
        """After an attack the daemon is alive, no larger than allowed, and has served the consumer throughout. rate:
        not judged if the attackers take part of the rows or of the workers, or fill memory as fast as two cores
        can."""
        n, ended = len(self.consumer.rows), time.monotonic()
        wait_for(lambda: len(self.consumer.rows) > n + 20 or self.consumer.p.poll() is not None,
                 f"the consumer's rows after {what}")
        check(self.consumer.p.poll() is None, f"{what}: the consumer has ended: {self.consumer.complaint()}")
        check(self.daemon.p.poll() is None, f"{what}: {self.daemon.said()}")
        times = [self.since, *(t for _, t, _ in self.consumer.rows if t > self.since)]
        gap, took, came = max(b - a for a, b in zip(times, times[1:])), ended - self.since, sum(t < ended for t in times) - 1
        peak = stat_of(self.pid, "VmHWM")
        print(f"{what}: {self.before[0] / MIB:.1f} MiB before, {peak / MIB:.1f} at most, "
              f"{descriptors(self.pid) - self.before[1]} descriptors more; {came / took:.0f} rows/s in its {took:.1f} s, "
              f"{self.rate:.0f} before, {gap:.2f} s without any", flush=True)
        check(gap < gap_s, f"{what}: the consumer got nothing for {gap:.1f} s")
        if rate:
            self.attacked_s += took
            self.came += came
        check(SANITIZED or peak < self.before[0] + BUFFER + ROOM + connections * CONNECTION, f"{what}: it grew to {peak}")
        self.since = time.monotonic()

    def __enter__(self):
        return self

    def rate_in_quiet(self):
        """The smaller of the rate before and the rate now, since the machine may be busier than it was."""
        n = len(self.consumer.rows)
        wait_for(lambda: len(self.consumer.rows) > n + 100 or self.consumer.p.poll() is not None or
                 self.daemon.p.poll() is not None, "rows in quiet")
        return min(self.rate, self.rate_from(n)) if len(self.consumer.rows) > n + 100 else self.rate

    def __exit__(self, failed, *_):
        rate = self.rate if failed else self.rate_in_quiet()
        code = self.consumer.stop()
        self.daemon.__exit__()
        numbers = [n for n, *_ in self.consumer.rows]
        check(numbers == list(range(len(numbers))), "the consumer lost rows")
        check(code is None, f"the consumer ended: {self.consumer.complaint()}")
        check(self.came >= (self.attacked_s - LAG_S) * rate / SHARE,
              f"{self.came} rows in {self.attacked_s:.1f} s of attacks, {rate:.1f}/s in quiet")


def raw(port, data=b""):
    """A connection that says this; what follows a greeting is said after the daemon's own greeting."""
    s = socket.create_connection(("127.0.0.1", port), timeout=60)
    at = len(GREETING) if data[:1] == b"\xff" and data[9:11] == b"\x7f\x03" else len(data)
    s.sendall(data[:at])
    if data[at:]:
        got = b""
        while len(got) < len(GREETING):
            more = s.recv(1000)
            if not more:
                raise ConnectionError("closed before it greeted")
            got += more
        s.sendall(data[at:])
    return s


def dealer(context, endpoint, keys=None):
    s = context.socket(zmq.DEALER)
    s.setsockopt(zmq.LINGER, 0)
    s.setsockopt(zmq.SNDHWM, 100)  # all but these messages have left this process once they are sent
    if keys:
        with open(f"{keys}/client.key") as x, open(f"{keys}/daemon.pub") as y:
            s.curve_publickey, s.curve_secretkey = (line.split()[0].encode() for line in x.read().splitlines()[:2])
            s.curve_serverkey = y.read().split()[0].encode()
    s.setsockopt(zmq.RCVHWM, 1)  # nothing is read, so the pipe and the kernel's buffers fill up
    s.setsockopt(zmq.RCVBUF, 4096)
    s.connect(endpoint)
    return s


def told(s):
    """The text of the ERROR that answers nonsense."""
    check(s.poll(10000), "no answer")
    head, body = s.recv_multipart()
    check(head[6] == 6, f"kind {head[6]}: {body}")
    return json.loads(body)["message"]
