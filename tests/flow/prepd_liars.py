#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Flow test of whom the daemon believes: workers that make false rows, alike and with digests that fit; workers that call good
samples bad; workers that call themselves the daemon's own; consumers that refuse good rows; and workers that only take up room.
Consumers get the rows of honest workers, no healthy sample is bad, and only who lies is excluded.

Over tcp without keys an address stands for a key, so each 127.0.x.1 is a separate machine."""
import json
import os
import struct
import subprocess
import sys
import threading
import time

import numpy as np
import zmq

from middle import Middle
from prepd_flow import BIN, Daemon, Folder, check, free_ports, main, run, wait_for, workers_below
from prepd_workers import FAILED, JOIN, LEASE, ON, ROW, answer, joining, message

sys.path.insert(0, os.path.join(os.environ["TESSERA_SOURCE"], "proto", "python"))
from tessera import client, messages, recording  # noqa: E402

HELLO, WELCOME, ERROR, BYE, REFUSE = 1, 2, 6, 7, 8
STEPS = 25


class Stranger:
    """A worker with the right build and fingerprints, on machine 127.0.`machine`.1, that says what it likes. Sent away, it
    joins again at once. `waits` has what it was told, `leases` the kinds that it was given."""

    def __init__(self, end, join, machine, rows=()):
        """end: the port of a daemon on tcp, or the address of its socket."""
        self.end_of_daemon, self.join, self.machine, self.rows = end, join, machine, dict(rows)
        self.waits, self.leases, self.stop = [], set(), False
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def connected(self, context):
        s = context.socket(zmq.DEALER)
        s.setsockopt(zmq.LINGER, 0)
        end = self.end_of_daemon
        s.connect(end + ".workers" if isinstance(end, str) else f"tcp://127.0.{self.machine}.1:0;127.0.0.1:{end + 1}")
        s.send_multipart(message(self.join, JOIN))
        return s

    def run(self):
        context = zmq.Context()
        s = self.connected(context)
        while not self.stop:
            if not s.poll(50):
                continue
            head, *body = s.recv_multipart()
            kind, number = struct.unpack_from("<HQ", head, 6)
            said = json.loads(body[0])
            if kind in (BYE, ERROR):
                self.waits.append(said)
                s.close()
                time.sleep(0.05)
                s = self.connected(context)
            elif kind == LEASE:
                self.leases.add(said["kind"])
                for parts in self.answers(number, said):
                    s.send_multipart(parts)
        context.destroy(0)

    def answers(self, number, said):
        return ()

    def end(self):
        self.stop = True
        self.thread.join()


class Liar(Stranger):
    """Flips a bit of a pixel in every row. All that there are agree, and the digests are those of the false pixels, so that no
    receiver can tell."""

    def answers(self, number, said):
        if said["kind"] == "row" and said["row"] in self.rows:
            yield answer(ON, number, {"item": said["docs"][0]["id"]})
            yield flipped(self.rows[said["row"]], said["row"])


class FalseContent(Stranger):
    """The same with the digest of the true pixels: the receiver finds out."""

    def answers(self, number, said):
        if said["kind"] == "row" and said["row"] in self.rows:
            yield flipped(self.rows[said["row"]], said["row"], messages.header(self.rows[said["row"]][0])[-1])


class Pessimist(Stranger):
    """Says of the first sample of every lease that it cannot be decoded."""

    def answers(self, number, said):
        if said["kind"] == "row":
            yield answer(FAILED, number, {"samples": [{"id": said["docs"][0]["id"], "cause": "a lie"}]})


def flipped(parts, number, digest=None):
    """The same row with a bit of its first picture flipped, and hashes that fit. The picture is not compressed."""
    header, *rest = (bytes(part) for part in parts)
    k = next((k for k, part in enumerate(rest) if k and len(part) > 32), None)
    if k is None:
        return [head_of(header, number), *rest]
    part = bytearray(rest[k])
    part[40] ^= 1
    part[16:24] = client.hash_of(bytes(part[32:]))[:8]
    rest[k] = bytes(part)
    if digest is None:
        row, _ = client.tensors(messages.unzstd(rest[0], messages.header(header)[3]))
        pixels = [messages.image(p, grid)[1] for p, grid in zip(rest[1:], row["grid_thw"])]
        digest = client.digest_of(dict(row, pixels=np.concatenate(pixels)))
    return [head_of(header, number, digest), *rest]


def head_of(header, number, digest=None):
    """The header with another number, or digest, and without a check."""
    header = bytes(header)
    return header[:8] + struct.pack("<Q", number) + header[16:40] + (digest or header[40:56]) + bytes(8)


class Scene:
    """A daemon on tcp, what honest workers make of its stream, and strangers."""

    def __init__(self, strangers=(), machines=(), **options):
        self.port = free_ports()
        self.f = Folder(images=24, **{"prepd.endpoint": f"tcp://127.0.0.1:{self.port}", "prepd.workers": 2,
                                      "prepd.image_codec": "none", **options})
        self.kind, self.machines, self.options, self.strangers = strangers, machines, options, []

    def __enter__(self):
        f = self.f.__enter__()
        ipc = ("--prepd.endpoint", "ipc://" + f.file("own.sock"), "--prepd.workers", "2", "--prepd.audit", "0")
        run("record", "-c", f.config, "--steps", str(STEPS), "--out", f.file("rows.rec"), *ipc)
        with open(f.file("rows.rec"), "rb") as file:
            kept = recording.Recording("rows.rec", file.read())
            rows = [kept.row(at) for at in kept.rows]
        self.rows = [(messages.header(parts[0])[1], parts[:-1]) for parts in rows]  # the last part is the tag
        self.honest = [client.digest_of(row) for row in client.replay(f.file("rows.rec"))]
        self.join = joining(f)
        self.d = Daemon(f.config).__enter__()
        self.strangers = [self.kind(self.port, self.join, machine, self.rows) for machine in self.machines]
        if self.machines and self.kind is not Stranger:
            wait_for(lambda: len(self.status()["workers"]) > int(self.options.get("prepd.workers", 2)), "strangers have joined", 60)
        return self

    def __exit__(self, *_):
        for stranger in self.strangers:
            stranger.end()
        self.d.__exit__(*_)
        self.f.__exit__(*_)

    def status(self):
        return json.loads(run("status", "-c", self.f.config, "--json"))

    def read(self):
        """All rows by an honest consumer, which comes back when it is told to. Returns their digests, how often it came back,
        and the longest time without a row."""
        got, back, cursor, longest, last = [], 0, None, 0, time.monotonic()
        while len(got) < len(self.honest):
            try:
                for row in client.connect(f"tcp://127.0.0.1:{self.port}", cursor=cursor, timeout=120.0, credit_bytes=4 << 20):
                    now = time.monotonic()
                    longest, last = max(longest, now - last), now
                    got.append(client.digest_of(row))
                    cursor = row["cursor"]
                    if len(got) == len(self.honest):
                        break
            except client.Refused as why:
                check(why.code == "ST_UNAVAILABLE", str(why))
                back += 1
        return got, back, longest

    def good(self):
        """Reads all rows, and checks that they are those of honest workers and that no sample is bad."""
        began = time.monotonic()
        got, back, longest = self.read()
        false = sum(one != other for one, other in zip(got, self.honest))
        said = self.status()
        check(false == 0, f"{false} of {len(got)} rows are false")
        check(said["train"]["quarantined_count"] == 0, f"healthy samples are bad: {said['train']['quarantined']}")
        print(f"{len(got)} rows in {time.monotonic() - began:.1f} s, 0 false, 0 healthy samples bad, {said['rows_checked']} checked, "
              f"{back} sessions begun again, {longest:.1f} s without a row at most", flush=True)
        return said


def excluded(said):
    return sorted(one["key"] for one in said["excluded"])


def liars_that_agree():
    """Three machines with two workers each make the same false rows against two local workers. Every row is checked."""
    with Scene(Liar, (2, 2, 3, 3, 4, 4), **{"prepd.audit": 1.0}) as s:
        said = s.good()
        check(set(excluded(said)) <= {"127.0.2.1", "127.0.3.1", "127.0.4.1"} and said["excluded"], str(said["excluded"]))
        check(said["words_contradicted"] >= 1 and said["rows_unchecked"] == 0, str(said))
        check(all("wait_s" in words for one in s.strangers for words in one.waits), f"{[one.waits[:2] for one in s.strangers]}")
        check("key excluded" in s.d.said() and "is not what two of this machine's workers made of it" in s.d.said(), s.d.said()[-2000:])


def without_a_local_worker_rows_wait():
    """None was asked for, and every row is to be checked: the daemon starts those that it needs to decide."""
    with Scene(Liar, (2, 3), **{"prepd.audit": 1.0, "prepd.workers": -1}) as s:
        said = s.good()
        check(said["deciders"] >= 1 and said["rows_unchecked"] == 0, str(said))


def false_content_with_the_true_digest():
    """The receiver refuses such a row. Its digest is right, so either may be wrong: the maker's next rows are checked, and this
    consumer gets rows of the daemon's own workers."""
    with Scene(FalseContent, (2, 2)) as s:
        said = s.good()
        check([one["key"] for one in said["watched"]] == ["127.0.2.1"] or excluded(said) == ["127.0.2.1"], str(said["watched"]))
        check("row refused" in s.d.said() and "came out the same" in s.d.said(), s.d.said()[-2000:])


def good_samples_stay():
    """Three machines say of every first sample that it cannot be decoded."""
    with Scene(Pessimist, (2, 2, 3, 3, 4, 4)) as s:
        said = s.good()
        check(said["excluded"] and said["words_contradicted"] >= 1, str(said))
        check("it said that sample" in s.d.said(), s.d.said()[-2000:])


def who_says_that_it_is_local():
    """Strangers say the daemon's host and the pid of each of its workers, with tickets that they made up or with none. They get no
    seat, or one without any right, and no lease of the index. The children keep theirs."""
    with Scene(Stranger) as s:
        wait_for(lambda: len([w for w in s.status()["workers"] if w["local"]]) == 2, "both local workers have joined", 60)
        pids = workers_below(s.d.p.pid)
        for k in range(60):
            claim = dict(s.join, pid=pids[k % 2], **({"ticket": f"{k:032x}"} if k % 3 else {}))
            s.strangers.append(Stranger(s.port, claim, 2 + k % 3))
        wait_for(lambda: len(s.status()["workers"]) == 22, "those without a ticket have joined", 60)
        wait_for(lambda: sum(bool(one.waits) for one in s.strangers) == 40, "those with one are sent away", 60)
        said = s.good()
        check(sorted(w["pid"] for w in said["workers"] if w["local"]) == sorted(workers_below(s.d.p.pid)), str(said["workers"]))
        check(not any(w["local"] for w in said["workers"] if w["key"].startswith("127.0.")), str(said["workers"]))
        check(all(one.leases <= {"row"} for one in s.strangers), "an index lease went to a stranger")


def a_consumer_that_refuses_good_rows():
    """It ends no worker, not even one of another machine: its own rows are made by the daemon's workers alone, and then it is turned
    away. An honest consumer beside it gets all."""
    with Scene() as s:
        remote = subprocess.Popen([BIN, "worker", "--connect", f"tcp://127.0.0.1:{s.port + 1}", "--workers", "2", "--data-root",
                                   s.f.file("data"), "--model", s.f.file("data/model")], stderr=subprocess.DEVNULL)
        wait_for(lambda: len(s.status()["workers"]) == 4, "the remote workers have joined", 60)
        context, words = zmq.Context(), []
        for _ in range(9):
            c = context.socket(zmq.DEALER)
            c.setsockopt(zmq.LINGER, 0)
            c.connect(f"tcp://127.0.9.1:0;127.0.0.1:{s.port}")
            c.send_multipart(message({"version": 3, "stream": "train", "rank": 0, "ranks": 1, "credit_bytes": 1 << 24,
                                      "start_row": 0}, HELLO))
            while True:
                check(c.poll(60000), "the daemon is silent")
                head, *body = c.recv_multipart()
                kind, number = struct.unpack_from("<HQ", head, 6)
                if kind == ROW:
                    c.send_multipart(message({"row": number, "message": "it is false"}, REFUSE))
                if kind == ERROR:
                    words.append(json.loads(body[0])["message"])
                    break
            c.close()
        said = s.good()
        check(remote.poll() is None and len(said["workers"]) == 4, f"{remote.poll()} {said['workers']}")
        check(said["excluded"] == [], str(said["excluded"]))
        check(any("try again in" in text for text in words), str(words))
        remote.terminate()
        check(remote.wait(60) == 0, f"the supervisor left with {remote.returncode}")
        context.destroy(0)


def one_that_lied_is_admitted_again():
    """prepd admit lifts what holds against it."""
    with Folder(images=24, **{"prepd.workers": 1}) as f:
        join, end = joining(f), "ipc://" + f.file("d.sock")
        with Daemon(f.config):
            liar = Pessimist(end, join, 0)
            wait_for(lambda: len(json.loads(run("status", "-c", f.config, "--json"))["workers"]) == 2, "it has joined", 60)
            for _, _ in zip(client.connect(end, timeout=60.0), range(20)):
                pass
            wait_for(lambda: liar.waits, "it is sent away", 60)
            liar.end()
            check(excluded(json.loads(run("status", "-c", f.config, "--json"))) == ["ipc"], "it is not excluded")
            check("key ipc is excluded for " in run("status", "-c", f.config), "not in the words of status")
            check("127.0.0.9" in run("admit", "127.0.0.9", "-c", f.config, code=64), "an address that is not there")
            check("excluded" in run("admit", "ipc", "-c", f.config), "what it was")
            check(excluded(json.loads(run("status", "-c", f.config, "--json"))) == [], "it is excluded still")


def trusted_keys_decide():
    """A head node that starts no worker: the workers of a key with the role trusted decide against liars of another key. Without
    such a key, and without the pictures, the daemon does not start."""
    port = free_ports()
    end, door = f"tcp://127.0.0.1:{port}", f"tcp://127.0.0.1:{port + 1}"
    with Folder(images=24, **{"prepd.workers": -1, "prepd.audit": 1.0, "prepd.endpoint": end}) as f:
        keys = f.file("keys")
        run("keygen", "--out", keys)
        run("keygen", "--out", keys, "--client", "crew", "--roles", "trusted")
        run("keygen", "--out", keys, "--client", "others", "--roles", "work")
        run("record", "-c", f.config, "--steps", "5", "--out", f.file("rows.rec"), "--prepd.workers", "2", "--prepd.endpoint",
            "ipc://" + f.file("own.sock"))
        honest = [client.digest_of(row) for row in client.replay(f.file("rows.rec"))]
        with Daemon(f.config, "--prepd.keys", keys) as d:
            crews = [subprocess.Popen([BIN, "worker", "--connect", door, "--keys", f"{keys}/{name}", "--workers", "2", "--data-root",
                                       f.file("data"), "--model", f.file("data/model")], stderr=subprocess.DEVNULL)
                     for name in ("crew", "others")]
            rows = client.connect(end, timeout=120.0, keys=keys)
            got = [client.digest_of(row) for row, _ in zip(rows, honest)]
            rows.close()
            said = json.loads(run("status", "-c", f.config, "--prepd.keys", keys, "--json"))
            check(got == honest and said["deciders"] == 2 and said["workers_alive"] == 0, str(said))
            check({w["key"]: w["decider"] for w in said["workers"]} == {"crew": True, "others": False}, str(said["workers"]))
            for crew in crews:
                crew.terminate()
                check(crew.wait(60) == 0, f"a supervisor left with {crew.returncode}")
        text = run("serve", "-c", f.config, "--data.images", f.file("none"), code=66)
        check("nobody could decide" in text and "role trusted" in text, text)


# A separate process, so that it takes no time from the consumer.
FLOOD = """import json, sys, time, zmq
sys.path.insert(0, sys.argv[2])
from prepd_workers import JOIN, message
join, context = json.load(sys.stdin), zmq.Context()
while True:
    c = context.socket(zmq.DEALER)
    c.setsockopt(zmq.LINGER, 0)
    c.connect(sys.argv[1])
    c.send_multipart(message(join, JOIN))
    c.send_multipart(message({}, 7))
    time.sleep(0.005)
    c.close(100)
"""


def rate(s, seconds, cursor=None):
    """Rows a second that an honest consumer gets in so many seconds, and where it is then."""
    count, end = 0, time.monotonic() + seconds
    for row in client.connect(f"tcp://127.0.0.1:{s.port}", cursor=cursor, timeout=120.0, credit_bytes=4 << 20):
        count, cursor = count + 1, row["cursor"]
        if time.monotonic() > end:
            return count / seconds, cursor


def a_crowd(most, quiet_s, crowd_s):
    """Workers that take leases and say nothing, and others that JOIN and leave for ever, beside one local worker: all rows come, and
    they are the right ones."""
    with Scene(Stranger, **{"prepd.workers": 1, "training.epochs": 0}) as s:
        s.good()
        quiet, cursor = rate(s, quiet_s)
        context = zmq.Context()
        flood = subprocess.Popen([sys.executable, "-c", FLOOD, f"tcp://127.0.7.1:0;127.0.0.1:{s.port + 1}",
                                  os.path.dirname(os.path.abspath(__file__))], stdin=subprocess.PIPE)
        flood.stdin.write(json.dumps(s.join).encode())
        flood.stdin.close()
        crowd = []
        for k in range(most):  # their connections end with the context, and nobody reads what comes
            c = context.socket(zmq.DEALER)
            c.setsockopt(zmq.LINGER, 0)
            c.connect(f"tcp://127.0.{2 + k % 4}.1:0;127.0.0.1:{s.port + 1}")
            c.send_multipart(message(s.join, JOIN))
            crowd.append(c)
        wait_for(lambda: len(s.status()["workers"]) > most // 2, "the crowd is here", 60)
        beside, _ = rate(s, crowd_s, cursor)
        said = s.good()
        flood.kill()
        flood.wait()
        context.destroy(0)
        print(f"beside {most} mute workers of 4 keys and a flood of JOINs {beside:.0f} rows/s in {crowd_s} s instead of {quiet:.0f} "
              f"({100 * beside / quiet:.0f} %); {said['leases_taken']} leases were taken from them, {said['joins_deferred']} JOINs were "
              f"told to wait", flush=True)


def crowds():
    a_crowd(40, 3, 10)


def a_large_crowd():
    a_crowd(400, 10, 60)


class CutOff(Middle):
    """Stands before a real worker. Once that has a lease, nothing of it passes any more."""

    def __init__(self, daemon):
        self.cut, self.leases = threading.Event(), 0
        super().__init__(daemon, sent=self.hear)

    def hear(self, part):
        if bytes(part)[:4] == b"TSRA" and struct.unpack_from("<H", part, 6)[0] == LEASE:
            self.leases += 1
            self.cut.set()

    def to_daemon(self, peer, parts):
        if not self.cut.is_set():
            super().to_daemon(peer, parts)


def a_machine_that_is_cut_off():
    """In the middle of a lease nothing comes from it any more, and its connection stays. An idle local worker takes the lease."""
    with Scene(Stranger, **{"prepd.workers": 1}) as s, CutOff(s.port + 1) as link:
        link.released()
        worker = subprocess.Popen([BIN, "worker", "--connect", f"tcp://127.0.0.1:{link.port}", "--workers", "1", "--data-root",
                                   s.f.file("data"), "--model", s.f.file("data/model")], stderr=subprocess.DEVNULL)
        wait_for(lambda: len(s.status()["workers"]) == 2, "it has joined", 60)
        said = s.good()
        while link.leases == 0:  # it had not loaded what it needs
            said = s.good()
        check(link.leases >= 1 and said["leases_taken"] >= 1, f"{link.leases} leases went there, {said['leases_taken']} were taken")
        worker.kill()
        worker.wait(60)


main(liars_that_agree, without_a_local_worker_rows_wait, false_content_with_the_true_digest, good_samples_stay,
     who_says_that_it_is_local, a_consumer_that_refuses_good_rows, one_that_lied_is_admitted_again, trusted_keys_decide, crowds,
     a_machine_that_is_cut_off, a_large_crowd)
