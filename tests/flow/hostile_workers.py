# SPDX-License-Identifier: Apache-2.0
"""Workers with the right key and the right build that break the protocol. Part of prepd_hostile.py."""

import json
import math
import struct
import time

import zmq

from hostile_target import Consumer, Target, dealer, told
from prepd_flow import LIMIT_S, Folder, check, wait_for
from prepd_workers import FAILED, JOIN, LEASE, ON, RECORDS, ROW, answer, joining, message

TIMEOUT_S = 3  # prepd.sample_timeout


def one_of_another_build(t, join):
    """It is refused if it has another lease form, and both builds are named, or if it makes other rows."""
    context = zmq.Context()
    form = join["form"]
    for change in ({"build": "0" * 32, "form": form + 1}, {"build": None, "form": None}, {"version": "0.0.9", "form": form - 1},
                   *({"build": "0" * 32, "fingerprints": {**join["fingerprints"], kind: "0" * 32}} for kind in
                     ("images", "tokens", "webp", "packing"))):
        s = dealer(context, f"tcp://127.0.0.1:{t.port + 1}")
        s.send_multipart(message({**join, **change}, JOIN))
        text = told(s)
        if "fingerprints" in change:
            kind = next(k for k, v in change["fingerprints"].items() if v == "0" * 32)
            check(f"fingerprint of {kind} {'0' * 32} there, {join['fingerprints'][kind]} here" in text, text)
        else:
            check(f"build {join['build']}, lease form {form}: install the same" in text and
                  (change.get("build") or change.get("version") or "build unknown") in text, text)
        s.close()
    context.destroy(0)


# What a worker that breaks the protocol may send for the lease n of this row with these samples; k counts its earlier ones.
BREACHES = (
    lambda n, row, ids, k: [answer(ROW, row + 1, b"x")],
    lambda n, row, ids, k: [answer(FAILED, n, {"samples": [{"id": ids[0], "cause": "a lie"}, {"id": 1 << 40, "cause": "x"}]})],
    lambda n, row, ids, k: [answer(ROW, row, b"x", 3)],
    lambda n, row, ids, k: [answer(RECORDS, n, {"records": []})],
    lambda n, row, ids, k: [answer(ON, n, {"item": 1 << 40})],
    lambda n, row, ids, k: [answer(FAILED, n, {"samples": []})],
    lambda n, row, ids, k: [answer(FAILED, n, b"{")],
    lambda n, row, ids, k: [[b"no header", b"x"]],
    lambda n, row, ids, k: [answer(99, n, b"x")],
    lambda n, row, ids, k: [message({"version": 1}, 1)],
)


class Breaker:
    """A worker that does all that is asked of one: it joins, takes a lease, begins one of its samples. Then it sends
    what no worker sends. Three of them share an address, because one machine soon gets no more work."""
    made = 0

    def __init__(self, context, port, join, address=None):
        self.socket = context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        Breaker.made += 1
        a, b = divmod(Breaker.made // 3, 250)
        self.socket.connect(f"tcp://{address or f'127.0.{a + 1}.{b + 1}'}:0;127.0.0.1:{port}")
        self.socket.send_multipart(message(join, JOIN))

    def heard(self):
        """How many bad answers it gave to what came."""
        given = 0
        while self.socket.poll(0):
            head, *body = self.socket.recv_multipart()
            kind, number = struct.unpack_from("<HQ", head, 6)
            if kind != LEASE:
                continue
            said = json.loads(body[0])
            ids = [d["id"] for d in said["docs"]]
            self.socket.send_multipart(answer(ON, number, {"item": ids[Breaker.made % len(ids)]}))
            for parts in BREACHES[Breaker.made % len(BREACHES)](number, said["row"], ids, given):
                self.socket.send_multipart(parts)
            given += 1
        return given


def breaches(t, join, wanted, limit_s=LIMIT_S, address=None, at_once=24):
    """This many bad answers to leases, or those of this many seconds."""
    context, given, end = zmq.Context(), 0, time.monotonic() + limit_s
    open_ones = []
    while given < wanted and time.monotonic() < end:
        while len(open_ones) < at_once:
            open_ones.append(Breaker(context, t.port + 1, join, address))
        for b in list(open_ones):
            n = b.heard()
            given += n
            if n:
                open_ones.remove(b)
                b.socket.close(200)
        zmq.select([b.socket for b in open_ones], [], [], 0.02)
        check(t.daemon.p.poll() is None, t.daemon.said()[-2000:])
    context.destroy(200)
    return given


def one_machine_is_held_off(t, join):
    """It gets work a few times, and then after pauses that double. Its workers join one at a time, because several
    could each hold a lease before the first of them is seen to break the protocol."""
    start = time.monotonic()
    given = breaches(t, join, 3, LIMIT_S, "127.1.0.1", 1)
    given += breaches(t, join, 1 << 30, 3.0, "127.1.0.1", 1)
    took = time.monotonic() - start
    check(3 <= given <= 4 + math.log2(1 + took), f"{given} leases for a machine whose workers broke the protocol for {took:.1f} s")


def an_item_told_again_and_again(t, join):
    """A worker that says for ever that it is at work on the same sample gets no more time for it than any other. It keeps its
    seat while it is connected, without work, and is told to start anew."""
    context = zmq.Context()
    b = Breaker(context, t.port + 1, dict(join, pid=424242), "127.1.0.2")
    work, start = [], time.monotonic()

    def lost():
        while b.socket.poll(0):
            head, *body = b.socket.recv_multipart()
            kind, number = struct.unpack_from("<HQ", head, 6)
            if kind == LEASE and not work:
                work.append((number, json.loads(body[0])["docs"][0]["id"]))
        if not work:
            return False
        b.socket.send_multipart(answer(ON, work[0][0], {"item": work[0][1]}))
        return not any(w["pid"] == 424242 and w["busy"] for w in t.status()["workers"])
    wait_for(lost, "its lease is given to another", 60, 0.2)
    print(f"an ON without an end held its row for {time.monotonic() - start:.1f} s at prepd.sample_timeout {TIMEOUT_S}", flush=True)
    context.destroy(0)


def workers_that_break_the_protocol(least):
    """They have the right key and the right build. No sample is blamed, no row differs, and the one honest worker
    keeps the stream going. least: so many bad answers, and 2,000 at least."""
    wanted = max(2000, least)
    with Folder(**{"prepd.workers": 1, "prepd.solo_deaths": 1, "prepd.sample_timeout": TIMEOUT_S}) as f, Target(f) as t:
        join = joining(f)
        one_of_another_build(t, join)
        start = time.monotonic()
        given = breaches(t, join, wanted)
        took = time.monotonic() - start
        one_machine_is_held_off(t, join)
        an_item_told_again_and_again(t, join)
        n = len(t.consumer.rows)
        wait_for(lambda: len(t.consumer.rows) > n + 50, "rows after it")
        said = t.status()
        check(said["train"]["quarantined_count"] == 0, f"{given} bad answers in {took:.1f} s: {said['train']['quarantined_count']} "
              "healthy samples are quarantined")
        check(said["lost_by_breach"] >= wanted - 50, f"{given} bad answers, {said['lost_by_breach']} breaches told")
        seen = [(n, h) for n, _, h in t.consumer.rows]
        again = Consumer(t.endpoint)
        wait_for(lambda: len(again.rows) >= len(seen), "the rows again")
        again.stop()
        check([(n, h) for n, _, h in again.rows[:len(seen)]] == seen, "a row was changed")
        print(f"{given} bad answers in {took:.1f} s, {said['lost_by_breach']} leases given again, {len(seen)} rows as without", flush=True)
