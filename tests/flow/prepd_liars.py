#!/usr/bin/env python3
"""Flow test of workers that answer a lease with a whole, sound row that is not the one that was ordered. The receiver refuses it,
the daemon dismisses the worker by name, and the stream is that of honest workers."""
import json
import os
import struct
import sys
import threading

import zmq

from prepd_flow import Daemon, Folder, check, main, run, wait_for
from prepd_workers import JOIN, LEASE, joining, message

sys.path.insert(0, os.path.join(os.environ["TESSERA_SOURCE"], "proto"))
import client  # noqa: E402

ERROR = 6


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
                s.send_multipart(self.false_row(said["row"]))
        context.destroy(0)

    def false_row(self, number):
        header, *rest = next(parts for at, parts in self.rows if at != number)
        header = bytes(header)
        return [header[:8] + struct.pack("<Q", number) + header[16:56] + bytes(8), *rest]

    def end(self):
        self.stop = True
        self.thread.join()


def recorded(path):
    """The rows of a recording as (number, parts of the message that its worker had sent)."""
    with open(path, "rb") as f:
        recording = client.Recording(path, f.read())
        rows = [recording.row(at) for at in recording.rows]
    return [(client.header(parts[0])[1], parts[:-1]) for parts in rows]  # the last part is the tag


def a_row_that_was_not_ordered():
    with Folder(images=24, **{"prepd.workers": 1}) as f:
        run("record", "-c", f.config, "--steps", "12", "--out", f.file("rows.rec"))
        rows = recorded(f.file("rows.rec"))
        honest = [client.digest_of(row) for row in client.replay(f.file("rows.rec"))]
        join = joining(f)
        with Daemon(f.config) as d:
            endpoint, got, refused, cursor = "ipc://" + f.file("d.sock"), [], 0, None
            liar = Liar(endpoint + ".workers", join, rows)
            wait_for(lambda: len(json.loads(run("status", "-c", f.config, "--json"))["workers"]) == 2, "the liar has joined")
            while len(got) < len(honest):
                try:
                    for row in client.connect(endpoint, cursor=cursor, timeout=20.0, credit_bytes=4 << 20):
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


main(a_row_that_was_not_ordered)
