#!/usr/bin/env python3
"""Flow test of workers that answer a lease with a whole, sound row that is not the one that was ordered. The receiver refuses it,
the daemon dismisses the worker by name, and the stream is that of honest workers.

    prepd_liars.py [ROWS]

With ROWS, one more case: a real worker of whose rows one in a hundred has a flipped bit, while one row in twenty is audited. It is
looked for in at most ROWS rows; it takes 2,000 on average, and one run in 150 does not find it in 10,000."""
import json
import os
import re
import struct
import subprocess
import sys
import threading

import numpy as np
import zmq

from middle import Middle
from prepd_flow import BIN, Daemon, Folder, check, main, run, wait_for
from prepd_workers import FAILED, JOIN, LEASE, ROW, answer, joining, message

sys.path.insert(0, os.path.join(os.environ["TESSERA_SOURCE"], "proto", "python"))
from tessera import client, messages, recording  # noqa: E402

ERROR = 6
ROWS = int(sys.argv[1]) if len(sys.argv) > 1 else 0


class Liar:
    """A worker with the right build and fingerprints, which answers every lease with a row that it was not asked for: one of a
    recording of the same stream, whole and with a good digest, under the number that was ordered. It runs until the daemon has
    said why it is sent away, which is then in `words`."""

    def __init__(self, endpoint, join, rows):
        self.endpoint, self.join, self.rows, self.words, self.stop = endpoint, join, rows, "", False
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        context = zmq.Context()
        s = context.socket(zmq.DEALER)
        s.setsockopt(zmq.LINGER, 0)
        s.connect(self.endpoint)
        s.send_multipart(message(self.join, JOIN))
        while not self.words and not self.stop:
            if not s.poll(50):
                continue
            head, *body = s.recv_multipart()
            kind, = struct.unpack_from("<H", head, 6)
            said = json.loads(body[0]) if kind == LEASE else {}
            if kind == ERROR:
                self.words = bytes(body[0]).decode()
            if said.get("kind") == "row":
                s.send_multipart(self.answer_to(head, said))
        context.destroy(0)

    def answer_to(self, head, said):
        return self.false_row(said["row"])

    def false_row(self, number):
        header, *rest = next(parts for at, parts in self.rows if at != number)
        return [head_of(header, number), *rest]

    def end(self):
        self.stop = True
        self.thread.join()


class BadMemory(Liar):
    """The same, but its rows are the right ones, except that a bit of a pixel is flipped in every second one. Their digests are
    those of the false pixels, so that no receiver can tell."""

    def false_row(self, number):
        header, *rest = dict(self.rows)[number]
        return flipped([header, *rest], number) if number % 2 else [head_of(header, number), *rest]


class BadLink(Middle):
    """Stands before a real worker and flips a bit of a pixel in one of a hundred rows that it makes, so that the digest is
    that of the false pixels. `made` has (good digest, digest that was sent) of each row, `words` why it was dismissed."""

    def __init__(self, daemon):
        self.made, self.words = {}, ""
        super().__init__(daemon, sent=self.hear)

    def hear(self, part):
        if b"has digest" in bytes(part):
            self.words = bytes(part).decode()

    def to_daemon(self, peer, parts):
        if struct.unpack_from("<H", parts[0], 6)[0] == ROW:
            _, number, *_, good = messages.header(parts[0])
            if number % 100 == 7:
                parts = flipped(parts, number)
            self.made[number] = good, messages.header(parts[0])[-1]
        super().to_daemon(peer, parts)


class Pessimist(Liar):
    """It says of the first sample of every lease that it cannot be decoded."""

    def answer_to(self, head, said):
        number, = struct.unpack_from("<Q", head, 8)
        return answer(FAILED, number, {"samples": [{"id": said["docs"][0]["id"], "cause": "a lie"}]})


def flipped(parts, number):
    """The same row with a bit of its first picture flipped, and hashes that fit. The picture is not compressed."""
    header, *rest = (bytes(part) for part in parts)
    k = next((k for k, part in enumerate(rest) if k and len(part) > 32), None)
    if k is None:
        return [head_of(header, number), *rest]
    part = bytearray(rest[k])
    part[40] ^= 1
    part[16:24] = client.hash_of(bytes(part[32:]))[:8]
    rest[k] = bytes(part)
    row, _ = client.tensors(messages.unzstd(rest[0], messages.header(header)[3]))
    pixels = [messages.image(p, grid)[1] for p, grid in zip(rest[1:], row["grid_thw"])]
    row = dict(row, pixels=np.concatenate(pixels))
    return [head_of(header, number, client.digest_of(row)), *rest]


def head_of(header, number, digest=None):
    """The header with another number, or digest, and without a check."""
    header = bytes(header)
    return header[:8] + struct.pack("<Q", number) + header[16:40] + (digest or header[40:56]) + bytes(8)


def recorded(path):
    """The rows of a recording as (number, parts of the message that its worker had sent)."""
    with open(path, "rb") as f:
        kept = recording.Recording(path, f.read())
        rows = [kept.row(at) for at in kept.rows]
    return [(messages.header(parts[0])[1], parts[:-1]) for parts in rows]  # the last part is the tag


def status(f):
    return json.loads(run("status", "-c", f.config, "--json"))


def a_row_that_was_not_ordered():
    with Folder(images=24, **{"prepd.workers": 1}) as f:
        run("record", "-c", f.config, "--steps", "12", "--out", f.file("rows.rec"))
        rows = recorded(f.file("rows.rec"))
        honest = [client.digest_of(row) for row in client.replay(f.file("rows.rec"))]
        join = joining(f)
        with Daemon(f.config) as d:
            endpoint, got, refused, cursor = "ipc://" + f.file("d.sock"), [], 0, None
            liar = Liar(endpoint + ".workers", join, rows)
            wait_for(lambda: len(status(f)["workers"]) == 2, "the liar has joined")
            while len(got) < len(honest):
                try:
                    for row in client.connect(endpoint, cursor=cursor, timeout=60.0, credit_bytes=4 << 20):
                        got.append(client.digest_of(row))
                        cursor = row["cursor"]
                        if len(got) == len(honest):
                            break
                except client.Refused as why:
                    check(why.code == "ST_UNAVAILABLE" and "is not what was ordered" in str(why), str(why))
                    check(f"made by worker {join['pid']} on {join['host']}" in str(why), str(why))
                    refused += 1
                    wait_for(lambda: liar.words, "the liar is told why")
                    check("is not what was ordered" in liar.words, liar.words)
            liar.end()
            check(got == honest, "the rows differ from those of honest workers")
            check(refused == 1, f"{refused} rows were refused")
            check(d.said().count("row refused") == 1 and "worker dismissed" in d.said(), d.said()[-2000:])
            print(f"a false row was refused, and {len(got)} rows came as from honest workers", flush=True)


def a_bit_that_is_flipped():
    """Every row is made by two workers. Where they differ a third decides, which the daemon starts. No false row is sent."""
    with Folder(images=24, **{"prepd.workers": 1, "prepd.audit": 1.0}) as f:
        run("record", "-c", f.config, "--steps", "12", "--out", f.file("rows.rec"))
        honest = [client.digest_of(row) for row in client.replay(f.file("rows.rec"))]
        with Daemon(f.config) as d:
            endpoint = "ipc://" + f.file("d.sock")
            liar = BadMemory(endpoint + ".workers", joining(f), recorded(f.file("rows.rec")))
            wait_for(lambda: len(status(f)["workers"]) == 2, "it has joined")
            rows = client.connect(endpoint, timeout=60.0, credit_bytes=4 << 20)
            got = [client.digest_of(row) for row, _ in zip(rows, honest)]
            wait_for(lambda: liar.words, "it is told why")
            check("has digest" in liar.words and f"worker {liar.join['pid']} on {liar.join['host']}" in liar.words, liar.words)
            liar.end()
            rows.close()
            check(got == honest, "a false row was sent")
            said = status(f)
            check(said["audit_deviants"] == 1 and said["rows_audited"] >= 1, str(said))
            check(said["train"]["quarantined_count"] == 0, "a sample is blamed")
            check("another local worker is started to decide" in d.said(), d.said()[-2000:])
            print(f"{said['rows_audited']} rows were made alike by two workers before the one with bad memory was found", flush=True)


def healthy_samples_stay():
    """What a worker says of a sample is tried by another one, and by a third, which the daemon starts."""
    with Folder(images=24, **{"prepd.workers": 1}) as f:
        run("record", "-c", f.config, "--steps", "12", "--out", f.file("rows.rec"))
        honest = [client.digest_of(row) for row in client.replay(f.file("rows.rec"))]
        with Daemon(f.config) as d:
            endpoint = "ipc://" + f.file("d.sock")
            liar = Pessimist(endpoint + ".workers", joining(f), [])
            wait_for(lambda: len(status(f)["workers"]) == 2, "it has joined")
            rows = client.connect(endpoint, timeout=60.0, credit_bytes=4 << 20)
            got = [client.digest_of(row) for row, _ in zip(rows, honest)]
            wait_for(lambda: liar.words, "it is told why")
            check("cannot be decoded" in liar.words and "two others found that it can" in liar.words, liar.words)
            liar.end()
            rows.close()
            said = status(f)
            check(got == honest and said["train"]["quarantined_count"] == 0, f"a healthy sample is in quarantine: {said['train']}")
            check(said["audit_deviants"] == 1, str(said))
            check("another local worker is started to decide" in d.said(), d.said()[-2000:])


def one_row_in_a_hundred():
    """The rows that were compared are right, the worker is named with the row, and so are rows of it that nobody compared."""
    with Folder(images=64, **{"prepd.workers": 1, "prepd.audit": 0.05, "training.epochs": 0, "prepd.image_codec": "none",
                              "prepd.image_filter": "none"}) as f, Daemon(f.config) as d:
        endpoint = "ipc://" + f.file("d.sock")
        with BadLink(endpoint + ".workers") as link:
            worker = subprocess.Popen([BIN, "worker", "--connect", f"tcp://127.0.0.1:{link.port}", "--workers", "1", "--data-root",
                                       f.file("data"), "--model", f.file("data/model")], stderr=subprocess.DEVNULL)
            wait_for(lambda: len(status(f)["workers"]) == 2, "it has joined", 60)
            got, false = 0, []
            for row in client.connect(endpoint, timeout=60.0, credit_bytes=4 << 20):
                good, sent = link.made.get(row["number"], (None, None))
                digest = client.digest_of(row)
                check(good is None or digest in (good, sent), f"row {row['number']} is neither what it made nor what it should be")
                false += [row["number"]] if good and digest != good else []
                got += 1
                if link.words or got >= ROWS:
                    break
            said = status(f)
            worker.terminate()
            worker.wait(60)
        check(link.words, f"it was not found in {got} rows, of which {len(false)} came false")
        row, pid = map(int, re.search(r"row (\d+) of worker (\d+) on", link.words).groups())
        check(row % 100 == 7 and row not in false, f"row {row} is named, and these came false: {false}")
        check(f"worker dismissed: row {row} of worker {pid} on" in d.said(), d.said()[-2000:])
        listed = [int(n) for n in re.findall(r"train (\d+)", link.words)]
        check(listed and set(listed) <= set(link.made), f"{link.words}")
        check(said["audit_deviants"] == 1, str(said))
        print(f"after {got} rows, {len(link.made)} of them its own, row {row} named the worker; {said['rows_audited']} rows were "
              f"compared, {said['rows_unaudited']} drawn where there was no other worker yet; {len(false)} had come false uncompared, "
              f"{len(listed)} rows are listed to be doubted", flush=True)


main(a_row_that_was_not_ordered, healthy_samples_stay, a_bit_that_is_flipped, *([one_row_in_a_hundred] if ROWS else []))
