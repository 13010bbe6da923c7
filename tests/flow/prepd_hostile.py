"""Hostile peers: garbage, half-open and thousands of connections, wrong versions, replays, floods
whose sender never reads, credit that is a lie. The daemon neither falls nor grows, and another
consumer gets its rows. prepd_hostile.py CONNECTIONS for a longer form; figures are printed."""

import json
import os
import resource
import socket
import struct
import subprocess
import sys
import tempfile
import time

import zmq

from prepd_flow import Daemon, Folder, check, free_ports, main, run, wait_for

sys.path.insert(0, os.path.join(os.environ.get("TESSERA_SOURCE", "."), "proto"))
import client  # noqa: E402

CONNECTIONS = int(sys.argv[1]) if len(sys.argv) > 1 else 1500
BUFFER = 8 << 20  # prepd.buffer_bytes
ROOM = 48 << 20  # libraries, stacks: what may come on top
CONNECTION = 32 << 10  # and what ZeroMQ holds of each
# What a sender at full speed may make of the daemon before it is seen and cut off: the more, the longer the daemon
# waits for a core. Kept, it would be over a gigabyte.
BETWEEN_LOOKS = 256 << 20
MIB = 1 << 20
SANITIZED = "asan" in os.environ.get("TESSERA_BIN", "")
# What an attack may do to a consumer beside it. It takes a core of two, and others may come to the machine after the
# rate was measured: seen were a fifth of it, 1.9 s without a row. A loop that serves floods first gives none for as
# long as they last.
GAP_S = 10
SHARE = 10
SLACK = 20  # rows: attacks of a tenth of a second
# A process, so that what a test does to be hostile takes no time from it.
CONSUMER = """import hashlib, sys, time
import client
for row in client.connect(sys.argv[1], timeout=30.0, credit_bytes=1 << 20):
    now, h = time.monotonic(), hashlib.blake2b()
    for name in ("input_ids", "labels", "doc_sample_id", "pixels"):
        h.update(row[name].tobytes())
    print(row["number"], now, h.hexdigest(), flush=True)
"""


def message(payload, kind=1, version=1):
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    head = b"TSRA" + struct.pack("<HHQIIQQ", version, kind, 0, 0, 0, len(body), 0)
    return [head.ljust(64, b"\0"), body]


GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16 + 32)
READY = b"\x04\x1c\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
HELLO = {"version": 1, "stream": "train", "start_row": 0, "rank": 0, "ranks": 1,
         "credit_bytes": 1 << 40}


def stat_of(pid, key):
    with open(f"/proc/{pid}/status") as f:
        return int(next(line for line in f if line.startswith(key)).split()[1]) * 1024


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


class Consumer:
    """It takes rows all the time: (number, when it came, fingerprint)."""

    def __init__(self, endpoint):
        self.said, self.errors = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        self.seen, self.at = [], 0
        self.p = subprocess.Popen([sys.executable, "-B", "-c", CONSUMER, endpoint], stdout=self.said,
                                  stderr=self.errors, env={**os.environ, "PYTHONPATH": os.path.dirname(client.__file__)})

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
        """Its exit code, None if it was still at work."""
        code = self.p.poll()
        self.p.kill()
        self.p.wait()
        return code


class Target:
    """A daemon on tcp, and a consumer beside all that is done to it."""

    def __init__(self, folder, *args):
        self.folder, self.port = folder, free_ports()
        self.endpoint = f"tcp://127.0.0.1:{self.port}"
        self.daemon = Daemon(folder.config, "--prepd.endpoint", self.endpoint, *args)
        self.pid = self.daemon.p.pid
        self.consumer = Consumer(self.endpoint)
        wait_for(lambda: len(self.consumer.rows) > 100, "rows", 60)
        times = [t for _, t, _ in self.consumer.rows[20:]]
        self.rate = (len(times) - 1) / (times[-1] - times[0])
        self.before = stat_of(self.pid, "VmRSS"), descriptors(self.pid)
        self.since = time.monotonic()

    def settled(self, what, connections=0, rate=True):
        """After an attack: alive, no larger than it may be, the consumer served throughout. rate: not judged where the
        attackers have their part of the rows or of the workers, or fill memory as fast as two cores can."""
        n = len(self.consumer.rows)
        wait_for(lambda: len(self.consumer.rows) > n + 20 or self.consumer.p.poll() is not None,
                 f"the consumer's rows after {what}", 30)
        check(self.consumer.p.poll() is None, f"{what}: the consumer has ended: {self.consumer.complaint()}")
        check(self.daemon.p.poll() is None, f"{what}: {self.daemon.said()}")
        times = [self.since, *(t for _, t, _ in self.consumer.rows if t > self.since)]
        gap, took, got = max(b - a for a, b in zip(times, times[1:])), times[-1] - times[0], len(times) - 1
        peak = stat_of(self.pid, "VmHWM")
        print(f"{what}: {self.before[0] / MIB:.1f} MiB before, {peak / MIB:.1f} at most, "
              f"{descriptors(self.pid) - self.before[1]} descriptors more; {got / took:.0f} rows/s in {took:.1f} s, "
              f"{self.rate:.0f} before, {gap:.2f} s without any", flush=True)
        check(gap < GAP_S, f"{what}: the consumer got nothing for {gap:.1f} s")
        check(not rate or got + SLACK > took * self.rate / SHARE,
              f"{what}: {got} rows in {took:.1f} s, {self.rate:.1f}/s before")
        check(SANITIZED or peak < self.before[0] + BUFFER + ROOM + connections * CONNECTION, f"{what}: it grew to {peak}")
        self.since = time.monotonic()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        code = self.consumer.stop()
        self.daemon.__exit__()
        numbers = [n for n, *_ in self.consumer.rows]
        check(numbers == list(range(len(numbers))), "the consumer lost rows")
        check(code is None, f"the consumer ended: {self.consumer.complaint()}")


def raw(port, data=b""):
    """A connection that says this; what is behind a greeting, after the daemon's own."""
    s = socket.create_connection(("127.0.0.1", port), timeout=5)
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


def dealer(context, endpoint):
    s = context.socket(zmq.DEALER)
    s.setsockopt(zmq.LINGER, 0)
    s.setsockopt(zmq.SNDHWM, 100)  # what was sent is on its way, but for these
    s.setsockopt(zmq.RCVHWM, 1)  # and nobody reads: the pipe and the kernel's buffers fill up
    s.setsockopt(zmq.RCVBUF, 4096)
    s.connect(endpoint)
    return s


def bytes_that_are_no_protocol():
    with Folder(**{"prepd.buffer_bytes": BUFFER}) as f, Target(f) as t:
        held = []
        for port in range(t.port, t.port + 3):
            for data in (b"GET / HTTP/1.0\r\n\r\n", os.urandom(5000), b"\xff" * 100,
                         GREETING[:10], GREETING, GREETING + READY,
                         GREETING + READY + b"\x02" + b"\xff" * 8 + b"x" * 1000,  # 2^64 bytes
                         GREETING + READY + b"\x02" + struct.pack(">Q", 1 << 40) + b"x" * 1000,
                         GREETING + READY + b"\x01\x01a" * 3000):  # parts without an end
                try:
                    held.append(raw(port, data))
                except OSError:
                    pass  # refused at once: as good
        t.settled("garbage")
        for s in held:
            s.close()


def many_connections():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    n = min(CONNECTIONS, hard // 4)
    with Folder(**{"prepd.buffer_bytes": BUFFER}) as f, Target(f) as t:
        held = [raw(t.port + k % 3, (b"", GREETING, GREETING + READY)[k // 3 % 3]) for k in range(n)]
        t.settled(f"{n} connections", n)
        for s in held:
            s.close()
        wait_for(lambda: descriptors(t.pid) <= t.before[1] + 5, "descriptors come back", 30)
        held = [raw(t.port) for _ in range(50)]  # half-open: cut off by the handshake's limit
        wait_for(lambda: descriptors(t.pid) > t.before[1] + 40, "they are connected")
        wait_for(lambda: descriptors(t.pid) <= t.before[1] + 5, "half-open ones are cut off", 30)
        t.settled("their end", n)
        for s in held:
            s.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def more_connections_than_descriptors():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with Folder() as f:
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
        try:  # the daemon may raise its soft limit: the hard one must be low for this
            t = Target(f, "--prepd.workers", "1")
            resource.prlimit(t.pid, resource.RLIMIT_NOFILE, (128, 128))
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            with t:
                held = [raw(t.port) for _ in range(300)]
                t.settled("300 connections for 128 descriptors")
                for s in held:
                    s.close()
                wait_for(lambda: json.loads(run("status", "--connect", t.endpoint, "--json"))["ok"],
                         "status", 30)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def flood(daemon, s, parts, n):
    """How many of them were sent; a DEALER whose pipe is full does not hear that it was cut off."""
    cuts = daemon.said().count("peer cut off")
    for k in range(n):
        try:
            s.send_multipart(parts, zmq.DONTWAIT)
        except zmq.Again:
            wait_for(lambda: s.poll(20, zmq.POLLOUT) or daemon.said().count("peer cut off") > cuts,
                     "the flood is taken or cut off", 30, 0)
            if not s.poll(0, zmq.POLLOUT):
                return k
            s.send_multipart(parts)
    return n


def floods_that_nobody_reads():
    status, scale = message({"command": "status"}, 32), message({"command": "x" * 1000}, 32)
    with Folder(**{"prepd.buffer_bytes": BUFFER}) as f, Target(f) as t:
        context = zmq.Context()
        for what, port, parts, n in (("status answers", t.port + 2, status, 30000),
                                     ("refused commands", t.port + 2, scale, 30000),
                                     ("garbage messages", t.port, [b"x" * 200], 30000),
                                     ("other versions", t.port, message(HELLO, 1, 9), 30000),
                                     ("joins of no worker", t.port + 1, message({"version": "x"}, 16),
                                      30000),
                                     ("hellos", t.port, message(HELLO), 300)):
            s = dealer(context, f"tcp://127.0.0.1:{port}")
            t.settled(f"{flood(t.daemon, s, parts, n)} {what}")
            s.close()
        log = len(t.daemon.said())
        check(log < 100000, f"the flood wrote {log} bytes of log")
        context.destroy(0)


def floods_at_full_speed():
    """Frames written to the socket as fast as it takes them, and cut off in the middle."""
    def frame(part, more):
        return struct.pack(">BQ", 2 | more, len(part)) + part

    with Folder(**{"prepd.buffer_bytes": BUFFER}) as f, Target(f) as t:
        # The first two come slowly enough for a daemon that waits for a core.
        for port, parts, room in ((t.port, message(HELLO, 1, 9), 0), (t.port + 2, message({"command": "status"}, 32), 0),
                                  (t.port, [b"x", b"y" * 100000], BETWEEN_LOOKS), (t.port, [b""] * 9000, BETWEEN_LOOKS)):
            data = b"".join(frame(p, k + 1 < len(parts)) for k, p in enumerate(parts))
            data *= max(1, 200000 // len(data))
            with raw(port, GREETING + READY) as s:
                end = time.monotonic() + 2.0
                sent = 0
                try:
                    while time.monotonic() < end:
                        s.sendall(data)
                        sent += len(data)
                except OSError:
                    pass  # cut off: as good
            t.settled(f"{sent / MIB:.0f} MiB of frames", room // CONNECTION)


def told(s):
    """The text of the ERROR that answers nonsense."""
    check(s.poll(10000), "no answer")
    head, body = s.recv_multipart()
    check(head[6] == 6, f"kind {head[6]}: {body}")
    return json.loads(body)["message"]


def ids_that_peers_choose():
    """libzmq aborts where it gives a connection the number that another has claimed: none is told, none can be known
    beforehand, and those that choose are refused."""
    first = bytes.fromhex("006b8b4567")  # where libzmq begins when nobody seeds rand()
    with Folder(**{"prepd.buffer_bytes": BUFFER}) as f, Target(f) as t:
        context, held = zmq.Context(), []
        for port, kind in ((t.port, 3), (t.port + 1, 17), (t.port + 2, 32)):
            end, known = f"tcp://127.0.0.1:{port}", [first]
            for parts in (message(b"{", kind), message([], kind), message({}, kind, 9)):
                s = dealer(context, end)
                s.send_multipart(parts)
                text = told(s)
                if "peer 00" in text:
                    known.append(bytes.fromhex(text.split("peer ")[1][:10]))
                s.close()
            print(f"port {port - t.port}: ids known {[k.hex() for k in known]}", flush=True)
            for chosen in [b"a trainer", b"x" * 200, b"x" * 255, *[b"\0" + (int.from_bytes(k, "big") + n).to_bytes(5, "big")[1:]
                                                                for k in known for n in range(1, 40)]]:
                held.append(context.socket(zmq.DEALER))
                held[-1].setsockopt(zmq.LINGER, 0)
                held[-1].setsockopt(zmq.ROUTING_ID, chosen)
                held[-1].connect(end)
                held[-1].send_multipart(message(b"{", kind))
            time.sleep(0.2)
            for _ in range(60):
                s = dealer(context, end)
                s.send_multipart(message(b"{", kind))
                told(s)
                s.close()
            check(len(known) == 1, f"peers are told their ids: {known}")
            for s in held[-3 - 39:][:3]:
                check("ZMQ_ROUTING_ID" in told(s), "a chosen id was taken")
        t.settled("ids that peers choose")
        context.destroy(0)


def the_longest_messages_at_full_speed():
    """HELLOs of 7 MiB faster than they can be read: what comes between two looks is here, then the sender is cut off."""
    parts = message(dict(HELLO, program="x" * (7 << 20)))
    data = b"".join(struct.pack(">BQ", 2 | (k + 1 < len(parts)), len(p)) + p for k, p in enumerate(parts))
    with Folder(**{"prepd.buffer_bytes": BUFFER}) as f, Target(f) as t:
        with raw(t.port, GREETING + READY) as s:
            end, sent = time.monotonic() + 3.0, 0
            try:
                while time.monotonic() < end:
                    s.sendall(data)
                    sent += 7
            except OSError:
                pass  # cut off: as good
        t.settled(f"{sent} MiB in messages of 7 MiB", BETWEEN_LOOKS // CONNECTION, rate=False)


def messages_without_an_end():
    """ZeroMQ keeps the parts of a message until the last is there: the sender is cut off before it is large."""
    with Folder(**{"prepd.buffer_bytes": BUFFER}) as f, Target(f) as t:
        for port in range(t.port, t.port + 3):
            for part in (b"\x01\x00", b"\x01\x01a", struct.pack(">BQ", 3, 100000) + bytes(100000)):
                data = part * max(1, 200000 // len(part))
                many = {raw(port, GREETING + READY): 0 for _ in range(20)}
                end = time.monotonic() + 3.0
                for s in many:
                    s.settimeout(0.01)
                while time.monotonic() < end:
                    for s in many:
                        try:
                            many[s] += s.send(data[many[s] % len(data):])
                        except OSError:
                            pass  # full, or cut off
                t.settled(f"{sum(many.values()) / MIB:.0f} MiB in parts of {len(part)} bytes",
                          (32 * (12 << 20) + BETWEEN_LOOKS) // CONNECTION, rate=False)
                for s in many:
                    s.close()
                wait_for(lambda: descriptors(t.pid) <= t.before[1] + 5, "descriptors come back", 30)
        check("cut off" in t.daemon.said(), t.daemon.said()[-2000:])


def pings_of_peers_that_went():
    """libzmq aborts where it reads a PING behind messages that waited when their link was cut."""
    ping = b"\x04\x07\x04PING\x00\x00"
    parts = message(HELLO, 1, 9)
    data = b"".join(struct.pack(">BQ", 2 | (k + 1 < len(parts)), len(p)) + p for k, p in enumerate(parts))
    with Folder(**{"prepd.buffer_bytes": BUFFER}) as f, Target(f) as t:
        for port in [t.port, t.port + 1, t.port + 2] * 20:
            with raw(port, GREETING + READY) as s:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                s.settimeout(0.2)
                try:
                    s.sendall((data * 20 + ping) * 200)
                except OSError:
                    pass  # it does not read on, or cut us off
            time.sleep(0.05)
            check(t.daemon.p.poll() is None, t.daemon.said()[-2000:])
        t.settled("PINGs of peers that went")


def readers_that_do_not_read():
    """They grant a terabyte and take nothing: each holds its share of prepd.buffer_bytes."""
    with Folder(**{"prepd.buffer_bytes": BUFFER}) as f, Target(f) as t:
        context = zmq.Context()
        held = []
        for _ in range(8):
            held.append(dealer(context, t.endpoint))
            held[-1].send_multipart(message(HELLO))
        time.sleep(1.0)
        t.settled("8 readers that do not read")
        under_way = sum(s["unreturned_bytes"] for s in json.loads(
            run("status", "--connect", t.endpoint, "--json"))["consumers"])
        check(under_way <= 2 * BUFFER, f"{under_way} bytes under way")
        for k in range(1000):  # credit for rows never taken
            held[k % 8].send_multipart(message({"bytes": 1 << 40}, 3))
        t.settled("credit that was never spent")
        context.destroy(0)


def a_crowd_that_does_not_read():
    """Each consumer may have a row under way: as many are let in as the buffer has room for."""
    with Folder(**{"prepd.buffer_bytes": BUFFER}) as f, Target(f) as t:
        context = zmq.Context()
        held = [dealer(context, t.endpoint) for _ in range(400)]
        for s in held:
            s.send_multipart(message(HELLO))
        wait_for(lambda: json.loads(run("status", "--connect", t.endpoint, "--json"))["refused_messages"] >= 140,
                 "those beyond the bound are refused", 30)
        there = json.loads(run("status", "--connect", t.endpoint, "--json"))["consumers"]
        check(len(there) <= 256, f"{len(there)} consumers")
        check("consumers are here already" in t.daemon.said(), t.daemon.said())
        t.settled(f"{len(held)} consumers that do not read", len(held), rate=False)
        context.destroy(0)
        wait_for(lambda: len(json.loads(run("status", "--connect", t.endpoint, "--json"))["consumers"]) == 1,
                 "they are forgotten", 40)


def long_hellos_without_an_index():
    """What is kept until the index is there has a bound; short ones are taken meanwhile."""
    with Folder(**{"prepd.buffer_bytes": BUFFER, "prepd.workers": -1}) as f, Daemon(f.config) as d:
        end = "ipc://" + f.file("d.sock")
        wait_for(lambda: os.path.exists(f.file("d.sock.control")), "the daemon")
        context = zmq.Context()
        held = [dealer(context, end) for _ in range(10)]
        for s in held:
            s.send_multipart(message(dict(HELLO, program="x" * (3 << 19))))
        held.append(dealer(context, end))
        held[-1].send_multipart(message(HELLO))

        def status():
            return json.loads(run("status", "--connect", end, "--json"))
        wait_for(lambda: status()["refused_messages"] == 9 and len(status()["consumers"]) == 2, "all but one are refused", 60)
        check("over 1048576 bytes" in d.said(), d.said())
        context.destroy(0)


def places_far_ahead():
    """All rows before the first are planned: a stream without end is not planned for ever."""
    with Folder(**{"prepd.buffer_bytes": BUFFER, "training.epochs": 0}) as f, Target(f) as t:
        for row in (1 << 62, (1 << 63) - 1):
            try:
                next(client.connect(t.endpoint, start_row=row, timeout=20.0))
                check(False, f"row {row} was promised")
            except RuntimeError as told:
                check("1000 epochs" in str(told), str(told))
        near = next(client.connect(t.endpoint, start_row=5000, timeout=20.0))
        check(near["number"] == 5000, "a row not far ahead")
        t.settled("places far ahead")


main(ids_that_peers_choose, places_far_ahead, bytes_that_are_no_protocol, many_connections,
     more_connections_than_descriptors, floods_that_nobody_reads, floods_at_full_speed,
     the_longest_messages_at_full_speed, messages_without_an_end, pings_of_peers_that_went,
     readers_that_do_not_read, a_crowd_that_does_not_read, long_hellos_without_an_index)
