# SPDX-License-Identifier: Apache-2.0
"""Hostile peers: garbage, half-open connections and thousands of connections, wrong versions, replays, floods whose
sender never reads, credit that is a lie; the same with keys, known and unknown. The daemon neither ends nor grows,
and another consumer gets its rows as fast as the machine allows. prepd_hostile.py CONNECTIONS is the longer form.
Figures are printed."""

import contextlib
import json
import os
import resource
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time

import zmq

import hostile_workers
from hostile_target import (BETWEEN_LOOKS, BUFFER, CONNECTION, GAP_S, GREETING, HELLO, MIB, READY, SHARE, Consumer, Target, dealer,
                            descriptors, raw, told)
from prepd_flow import BIN, Daemon, Folder, check, main, run, wait_for
from prepd_workers import message

sys.path.insert(0, os.path.join(os.environ.get("TESSERA_SOURCE", "."), "proto", "python"))
from tessera import client  # noqa: E402

CONNECTIONS = int(sys.argv[1]) if len(sys.argv) > 1 else 1500
FLOOD_S = 0.5  # a shorter flood does not show what the consumer gets meanwhile
GREETING_CURVE = GREETING.replace(b"NULL\0", b"CURVE")
CURVE_HELLO = b"\x04\xc8\x05HELLO\x01\x00" + bytes(72) + os.urandom(32 + 8 + 80)  # as long as a valid one


def curve(command, rest):
    """A command of CURVE's handshake with the size that a true one has."""
    return b"\x04" + bytes([1 + len(command) + len(rest), len(command)]) + command + rest


def garbage(t):
    held = []
    for port in range(t.port, t.port + 3):
        for data in (b"GET / HTTP/1.0\r\n\r\n", os.urandom(5000), b"\xff" * 100,
                     GREETING[:10], GREETING, GREETING + READY,
                     GREETING + READY + b"\x02" + b"\xff" * 8 + b"x" * 1000,  # claims 2^64 bytes
                     GREETING + READY + b"\x02" + struct.pack(">Q", 1 << 40) + b"x" * 1000,
                     GREETING + READY + b"\x01\x01a" * 3000,  # parts that never end
                     GREETING_CURVE, GREETING_CURVE + READY, GREETING_CURVE + CURVE_HELLO * 100,
                     GREETING_CURVE + curve(b"HELLO", b"short"),
                     GREETING_CURVE + curve(b"INITIATE", os.urandom(200)),
                     GREETING_CURVE + curve(b"MESSAGE", os.urandom(100)),
                     GREETING_CURVE + b"\x06" + b"\xff" * 8 + b"x" * 1000):
            try:
                held.append(raw(port, data))
            except OSError:
                pass  # it may also be refused at once
    t.settled("garbage")
    for s in held:
        s.close()


def connections(t, *said):
    """As many as CONNECTIONS, each of which has said one of these."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    n = min(CONNECTIONS, hard // 4)
    held = [raw(t.port + k % 3, said[k // 3 % len(said)]) for k in range(n)]
    t.settled(f"{n} connections", n)
    for s in held:
        s.close()
    wait_for(lambda: descriptors(t.pid) <= t.before[1] + 5, "descriptors come back")
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return n


def bytes_that_follow_no_protocol():
    with Folder(**{"prepd.buffer_bytes": BUFFER}) as f, Target(f) as t:
        garbage(t)


def many_connections():
    with Folder(**{"prepd.buffer_bytes": BUFFER}) as f, Target(f) as t:
        n = connections(t, b"", GREETING, GREETING + READY)
        held = [raw(t.port) for _ in range(50)]  # half-open connections, which the time limit of the handshake ends
        wait_for(lambda: descriptors(t.pid) > t.before[1] + 40, "they are connected")
        wait_for(lambda: descriptors(t.pid) <= t.before[1] + 5, "half-open ones are cut off")
        t.settled("their end", n)
        for s in held:
            s.close()


def more_connections_than_descriptors():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with Folder() as f:
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
        try:  # the hard limit must be low too, because the daemon may raise its soft one
            t = Target(f, "--prepd.workers", "1")
            resource.prlimit(t.pid, resource.RLIMIT_NOFILE, (128, 128))
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            with t:
                held = [raw(t.port) for _ in range(300)]
                t.settled("300 connections for 128 descriptors")
                for s in held:
                    s.close()
                wait_for(lambda: json.loads(run("status", "--connect", t.endpoint, "--json"))["ok"],
                         "status")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def flood(daemon, s, parts, n):
    """Returns how many were sent: n, or as many as go in FLOOD_S. A DEALER whose pipe is full does not notice that
    it was disconnected."""
    cuts, sent, end = daemon.said().count("peer cut off"), 0, time.monotonic() + FLOOD_S
    while sent < n or time.monotonic() < end:
        try:
            s.send_multipart(parts, zmq.DONTWAIT)
        except zmq.Again:
            wait_for(lambda: s.poll(20, zmq.POLLOUT) or daemon.said().count("peer cut off") > cuts,
                     "the flood is taken or cut off", 30, 0)
            if not s.poll(0, zmq.POLLOUT):
                break
            s.send_multipart(parts)
        sent += 1
    return sent


def floods(t):
    status, scale = message({"command": "status"}, 32), message({"command": "x" * 1000}, 32)
    context = zmq.Context()
    for what, port, parts, n in (("status answers", t.port + 2, status, 30000),
                                 ("refused commands", t.port + 2, scale, 30000),
                                 ("garbage messages", t.port, [b"x" * 200], 30000),
                                 ("other versions", t.port, message(HELLO, 1, 9), 30000),
                                 ("joins of no worker", t.port + 1, message({"version": "x"}, 16),
                                  30000),
                                 ("hellos", t.port, message(HELLO), 300)):
        s = dealer(context, f"tcp://127.0.0.1:{port}", t.keys)
        t.settled(f"{flood(t.daemon, s, parts, n)} {what}")
        s.close()
    log = len(t.daemon.said())
    check(log < 100000, f"the flood wrote {log} bytes of log")
    context.destroy(0)


def floods_that_are_never_read():
    with Folder(**{"prepd.buffer_bytes": BUFFER}) as f, Target(f) as t:
        floods(t)


def strangers_with_keys(t):
    """Their handshake is right but their keys are not allowed: they come again and again, and nothing of theirs is
    read."""
    other = t.folder.file("other")
    run("keygen", "--out", other)
    shutil.copy(t.keys + "/daemon.pub", other + "/daemon.pub")
    context, held = zmq.Context(), []
    for k in range(60):
        held.append(dealer(context, f"tcp://127.0.0.1:{t.port + k % 3}", other))
        for _ in range(50):
            try:
                held[-1].send_multipart(message(HELLO), zmq.DONTWAIT)
            except zmq.Again:
                break
    wait_for(lambda: t.status()["refused_keys"] >= len(held), "they are refused")
    there = t.status()
    check(len(there["consumers"]) == 1 and there["refused_messages"] == 0, f"one was heard: {there}")
    t.settled(f"{there['refused_keys']} connections with keys of others")
    context.destroy(0)


class Tap:
    """A relay before a port of the daemon. said: what came to it over each connection."""

    def __init__(self, port):
        self.port, self.said, self.links = port, [], []
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self.listening.getsockname()[1]}"
        threading.Thread(target=self.relay, daemon=True).start()

    def relay(self):
        while True:
            try:
                here = self.listening.accept()[0]
            except OSError:
                return
            there = socket.create_connection(("127.0.0.1", self.port))
            self.links += here, there
            self.said.append(bytearray())
            threading.Thread(target=self.pump, args=(here, there, self.said[-1]), daemon=True).start()
            threading.Thread(target=self.pump, args=(there, here, bytearray()), daemon=True).start()

    def pump(self, a, b, kept):
        try:
            while data := a.recv(1 << 16):
                kept += data
                b.sendall(data)
        except OSError:
            pass
        for s in (a, b):
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listening.shutdown(socket.SHUT_RDWR)
        for s in (self.listening, *self.links):
            s.close()


def said_by_a_consumer(t):
    """What a consumer that took 20 rows said, byte for byte."""
    with Tap(t.port) as tap:
        rows = client.connect(tap.endpoint, timeout=60.0, credit_bytes=1 << 20, keys=t.keys)
        for _ in range(400):
            next(rows)
        rows.close()
        return bytes(tap.said[0])


def said_by_a_worker(t):
    """The same of a worker that made rows and has left since."""
    with Tap(t.port + 1) as tap:
        p = subprocess.Popen([BIN, "worker", "--connect", tap.endpoint, "--data-root", t.folder.file("data"),
                              *(("--keys", t.keys) if t.keys else ())], stderr=subprocess.DEVNULL)
        wait_for(lambda: any(not w["local"] and w["leases"] > 10 for w in t.status()["workers"]), "the worker does some work")
        p.terminate()
        p.wait(60)
        wait_for(lambda: all(w["local"] for w in t.status()["workers"]), "the worker has left")
        return bytes(max(tap.said, key=len))


def replayed(port, data, patience_s=0.2):
    """How many bytes were answered, until none came for a while."""
    got = 0
    try:
        with raw(port, data) as s:
            s.settimeout(patience_s)
            while more := s.recv(1 << 20):
                got += len(more)
    except OSError:
        pass  # cut off, or nothing more comes
    return got


def frames_of_live_sessions_replayed():
    """Replayed, they are one more consumer, and a worker whose rows were never asked for."""
    with Folder(**{"prepd.buffer_bytes": BUFFER}) as f, Target(f) as t:
        recorded = ("a worker", t.port + 1, said_by_a_worker(t)), ("a consumer", t.port, said_by_a_consumer(t))
        t.settled("recording")
        first = len(t.consumer.rows)
        for what, port, data in recorded:
            twice = data + data[len(GREETING) + len(READY):]
            answers = [replayed(port, x) for x in (data, data, data, twice)]
            patience_s = 0.4
            while max(answers) <= 1000 and patience_s < 8:  # the machine may be busy
                answers.append(replayed(port, data, patience_s))
                patience_s *= 2
            check(b"TSRA" in data and max(answers) > 1000, f"{what}: {len(data)} bytes, answers of {answers} bytes")
            t.settled(f"what {what} said again, {len(data)} bytes, answers of {max(answers)}")
        with raw(t.port + 1, recorded[0][2][:4096]):  # the recording up to its JOIN: it gets work and sends no rows
            wait_for(lambda: any(not w["local"] and w["busy"] for w in t.status()["workers"]), "it is given work")
        seen = [(n, h) for n, _, h in t.consumer.rows[first:]]
        again = Consumer(t.endpoint, start_row=first)
        wait_for(lambda: len(again.rows) >= len(seen), "the rows again")
        again.stop()
        check([(n, h) for n, _, h in again.rows[:len(seen)]] == seen, "a row was changed")
        wait_for(lambda: t.status()["leases_lost"] + t.status()["leases_taken"] > 0,
                 "the leases of the replayed worker are given again")
        check(t.status()["train"]["quarantined_count"] == 0, "a replay made samples bad")


def frames_of_a_session_with_keys_replayed(t):
    """They belong to keys that only that connection had."""
    data = said_by_a_consumer(t)
    wait_for(lambda: len(t.status()["consumers"]) == 1, "the recorded consumer has left")
    answers = [replayed(t.port, data) for _ in range(4)]
    check(len(data) > 2000 and max(answers) < 1000, f"{len(data)} bytes, answers of {answers} bytes")
    check(len(t.status()["consumers"]) == 1, "a replayed connection became a consumer")
    t.settled(f"{len(data)} bytes of a consumer again, answers of {max(answers)}")


def the_same_with_keys():
    """The strangers are in CURVE's handshake, and the floods come from a peer that was let in."""
    with Folder(**{"prepd.buffer_bytes": BUFFER}) as f, Target(f, keys=True) as t:
        strangers_with_keys(t)
        frames_of_a_session_with_keys_replayed(t)
        garbage(t)
        connections(t, b"", GREETING_CURVE, GREETING_CURVE + CURVE_HELLO)
        floods(t)


def floods_at_full_speed():
    """Frames are written to the socket as fast as it takes them, and cut off in the middle."""
    def frame(part, more):
        return struct.pack(">BQ", 2 | more, len(part)) + part

    with Folder(**{"prepd.buffer_bytes": BUFFER}) as f, Target(f) as t:
        # The first two come so slowly that a daemon without a core keeps up.
        for port, parts, room in ((t.port, message(HELLO, 1, 9), 0), (t.port + 2, message({"command": "status"}, 32), 0),
                                  (t.port, [b"x", b"y" * 100000], BETWEEN_LOOKS), (t.port, [b""] * 9000, BETWEEN_LOOKS)):
            data = b"".join(frame(p, k + 1 < len(parts)) for k, p in enumerate(parts))
            data *= max(1, 200000 // len(data))
            with raw(port, GREETING + READY) as s:
                s.settimeout(2.0)
                end = time.monotonic() + 2.0
                sent = 0
                try:
                    while time.monotonic() < end:
                        s.sendall(data)
                        sent += len(data)
                except OSError:
                    pass  # it was cut off, as it should be
            t.settled(f"{sent / MIB:.0f} MiB of frames", room // CONNECTION)


def ids_that_peers_choose():
    """libzmq aborts if it gives a connection the number that another one has claimed. So the daemon tells no peer
    its number, none can be known beforehand, and a peer that chooses one is refused."""
    first = bytes.fromhex("006b8b4567")  # libzmq's first number, if rand() has no seed
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
    """HELLOs of 7 MiB come faster than they can be read. What arrives between two looks is kept, then the sender is
    disconnected."""
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
                pass  # it was cut off, as it should be
        t.settled(f"{sent} MiB in messages of 7 MiB", BETWEEN_LOOKS // CONNECTION, rate=False)


def messages_that_never_end():
    """ZeroMQ keeps the parts of a message until the last one has come; the sender is disconnected before the message
    is large."""
    with Folder(**{"prepd.buffer_bytes": BUFFER}) as f, Target(f) as t:
        parts = b"\x01\x00", struct.pack(">BQ", 3, 100000) + bytes(100000), b"\x01\x01a"
        for port in range(t.port, t.port + 3):
            for part in parts if port == t.port else parts[:2]:
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
                            pass  # the buffer is full, or the connection was cut
                t.settled(f"{sum(many.values()) / MIB:.0f} MiB in parts of {len(part)} bytes",
                          (32 * (12 << 20) + BETWEEN_LOOKS) // CONNECTION, rate=False)
                for s in many:
                    s.close()
                wait_for(lambda: descriptors(t.pid) <= t.before[1] + 5, "descriptors come back")
        check("cut off" in t.daemon.said(), t.daemon.said()[-2000:])


def pings_of_peers_that_have_gone():
    """libzmq aborts if it reads a PING after messages that waited when their link was cut."""
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
                    pass  # it reads no more, or has cut the connection
            time.sleep(0.05)
            check(t.daemon.p.poll() is None, t.daemon.said()[-2000:])
        t.settled("PINGs of peers that went")


def consumers_that_do_not_read():
    """They grant a terabyte of credit and take nothing: each occupies its share of prepd.buffer_bytes."""
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
        for k in range(1000):  # credit for rows that were never taken
            held[k % 8].send_multipart(message({"bytes": 1 << 40}, 3))
        t.settled("credit that was never spent")
        context.destroy(0)


def a_crowd_that_does_not_read():
    """Each consumer may have a row on its way, so as many are let in as the buffer has room for."""
    with Folder(**{"prepd.buffer_bytes": BUFFER}) as f, Target(f) as t:
        context = zmq.Context()
        held = [dealer(context, t.endpoint) for _ in range(400)]
        for s in held:
            s.send_multipart(message(HELLO))
        wait_for(lambda: json.loads(run("status", "--connect", t.endpoint, "--json"))["refused_messages"] >= 140,
                 "those beyond the bound are refused")
        there = json.loads(run("status", "--connect", t.endpoint, "--json"))["consumers"]
        check(len(there) <= 256, f"{len(there)} consumers")
        check("consumers are here already" in t.daemon.said(), t.daemon.said())
        # Each of the other consumers gets its row first.
        t.settled(f"{len(held)} consumers that do not read", len(held), rate=False, gap_s=max(GAP_S, SHARE * 256 / t.rate))
        context.destroy(0)
        wait_for(lambda: len(json.loads(run("status", "--connect", t.endpoint, "--json"))["consumers"]) == 1,
                 "they are forgotten", 40)


def long_hellos_without_an_index():
    """What is kept until the index is there has a bound; short ones are accepted meanwhile."""
    with Folder(**{"prepd.buffer_bytes": BUFFER}) as f, Daemon(f.config, *f.without_workers()) as d:
        end = "ipc://" + f.file("d.sock")
        wait_for(lambda: os.path.exists(f.file("d.sock.control")), "the daemon")
        context = zmq.Context()
        held = [dealer(context, end) for _ in range(10)]
        for s in held:
            s.send_multipart(message(dict(HELLO, cursor={"row": 0, "more": "x" * (3 << 19)})))
        held.append(dealer(context, end))
        held[-1].send_multipart(message(HELLO))

        def status():
            return json.loads(run("status", "--connect", end, "--json"))
        wait_for(lambda: status()["refused_messages"] == 9 and len(status()["consumers"]) == 2, "all but one are refused")
        check("more than 1048576 bytes" in d.said(), d.said())
        context.destroy(0)


def places_far_ahead():
    """All rows before the first one are planned, but a stream without end is not planned for ever."""
    with Folder(**{"prepd.buffer_bytes": BUFFER, "training.epochs": 0}) as f, Target(f) as t:
        for row in (1 << 62, (1 << 63) - 1):
            try:
                next(client.connect(t.endpoint, start_row=row, timeout=60.0))
                check(False, f"row {row} was promised")
            except RuntimeError as told:
                check("1000 epochs" in str(told), str(told))
        near = next(client.connect(t.endpoint, start_row=5000, timeout=60.0))
        check(near["number"] == 5000, "a row not far ahead")
        t.settled("places far ahead")


def workers_that_break_the_protocol():
    hostile_workers.workers_that_break_the_protocol(CONNECTIONS)


main(ids_that_peers_choose, places_far_ahead, workers_that_break_the_protocol, bytes_that_follow_no_protocol,
     many_connections, more_connections_than_descriptors, floods_that_are_never_read, frames_of_live_sessions_replayed,
     the_same_with_keys, floods_at_full_speed, the_longest_messages_at_full_speed, messages_that_never_end,
     pings_of_peers_that_have_gone, consumers_that_do_not_read, a_crowd_that_does_not_read, long_hellos_without_an_index)
