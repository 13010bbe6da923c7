# SPDX-License-Identifier: Apache-2.0
"""A worker compares rows of others with what it makes of the same lease. A relay between a real daemon and a real worker
sends the leases again, with rows to compare."""

import json
import os
import struct
import subprocess
import sys
import threading

import zmq

from prepd_flow import BIN, Daemon, Folder, check, main, run, wait_for
from prepd_workers import LEASE, ON, ROW, answer

sys.path.insert(0, os.path.join(os.environ.get("TESSERA_SOURCE", "."), "proto", "python"))
from tessera import client  # noqa: E402


def head_of(parts):
    """Kind and row number of a message."""
    return struct.unpack_from("<HQ", parts[0], 6)


class Relay:
    """Passes on what worker and daemon send each other, and keeps the leases of rows with their answers."""

    def __init__(self, f):
        self.context = zmq.Context()
        self.daemon_end, self.end = "ipc://" + f.file("d.sock.workers"), "ipc://" + f.file("relay.sock")
        self.router = self.context.socket(zmq.ROUTER)
        self.router.bind(self.end)
        self.daemon, self.leased, self.made = {}, {}, {}

    def run(self, until):
        while not until():
            for who, socket in self.daemon.items():
                while socket.poll(0):
                    parts = socket.recv_multipart()
                    if head_of(parts)[0] == LEASE and json.loads(parts[1])["kind"] == "row":
                        self.leased[json.loads(parts[1])["row"]] = parts
                    self.router.send_multipart([who, *parts])
            if not self.router.poll(5):
                continue
            who, *parts = self.router.recv_multipart()
            if who not in self.daemon:
                self.daemon[who] = self.context.socket(zmq.DEALER)
                self.daemon[who].connect(self.daemon_end)
            kind, row = head_of(parts)
            if kind == ROW:
                self.made[row] = (who, self.leased[row], parts)
            self.daemon[who].send_multipart(parts)

    def again(self, who, lease, rows):
        """Sends a lease once more, with rows to compare. What the worker sends of it up to its row, as (kind, JSON or row). It may
        still be at a later lease, of which nothing is returned."""
        said = {**json.loads(lease[1]), "compare": [len(row) for row in rows]}
        self.router.send_multipart([who, *answer(LEASE, head_of(lease)[1], said), *lease[2:], *(part for row in rows for part in row)])
        came = []
        while not came or came[-1][0] != ROW:
            check(self.router.poll(60000), f"no row came, only {came}")
            by, *parts = self.router.recv_multipart()
            kind, number = head_of(parts)
            if by == who and number == (said["row"] if kind == ROW else head_of(lease)[1]):
                came.append((kind, parts if kind == ROW else json.loads(parts[1])))
        return came


def without_workers(f):
    """A daemon that has its index, so that no worker of its own has to stay."""
    run("plan", "-c", f.config)
    return Daemon(f.config, "--prepd.workers", "-1")


def rows_of_others_are_compared(**options):
    with Folder(images=64, **options) as f, without_workers(f) as d:
        wait_for(lambda: os.path.exists(f.file("d.sock.control")), d.said())
        relay = Relay(f)
        words = [BIN, "worker", "--connect", relay.end] + ([] if options else ["--data-root", f.file("data")])
        p = subprocess.Popen(words, stderr=subprocess.DEVNULL)
        try:
            took = []

            def consume():
                rows = client.connect("ipc://" + f.file("d.sock"), timeout=60)
                took.extend(next(rows)["number"] for _ in range(6))
                rows.close()
            reader = threading.Thread(target=consume)
            reader.start()
            relay.run(lambda: len(took) == 6)
            reader.join()
            (who, lease, made), (_, _, other) = list(relay.made.values())[:2]
            spoilt = [*made[:-1], made[-1][:-1] + bytes([made[-1][-1] ^ 1])]
            for rows, same in (([made], [True]), ([other, made], [False, True]), ([made, spoilt], [True, False]), ([], None)):
                came = relay.again(who, lease, rows)
                about = [said for kind, said in came if kind == ON]
                check([said["comparing"] for said in about if "comparing" in said] == list(range(len(rows))), f"{about}")
                check(about[-1].get("same") == same and "stage_ns" in about[-1], f"{about[-1]}, wanted {same}")
                check(came[-1][1] == made, "the row itself is another")
        finally:
            p.kill()
            p.wait(60)
            relay.context.destroy(0)


def so_are_they_behind_files_that_were_sent():
    rows_of_others_are_compared(**{"data.ship": "true"})


main(rows_of_others_are_compared, so_are_they_behind_files_that_were_sent)
