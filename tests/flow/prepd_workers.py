# SPDX-License-Identifier: Apache-2.0
"""What flow tests need to play a worker: the messages that it sends, and what one of this build says when it joins."""
import json
import struct
import subprocess

import zmq

from prepd_flow import BIN, check, run

ROW, ON, RECORDS, FAILED, JOIN, LEASE = 4, 19, 20, 21, 16, 18


def message(payload, kind=1, version=1):
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    head = b"TSRA" + struct.pack("<HHQIIQQ", version, kind, 0, 0, 0, len(body), 0)
    return [head.ljust(64, b"\0"), body]


def answer(kind, number, body, images=0):
    """As message(), of a lease or a row."""
    parts = message(body, kind)
    parts[0] = parts[0][:8] + struct.pack("<QI", number, images) + parts[0][20:]
    return parts


def joining(f):
    """What a worker of this build says when it joins."""
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.bind("ipc://" + f.file("join.sock"))
    p = subprocess.Popen([BIN, "worker", "--connect", "ipc://" + f.file("join.sock"), "--data-root", f.file("data")],
                         stderr=subprocess.DEVNULL)
    said = {}
    while "build" not in said:  # its supervisor sends messages too
        said = json.loads(router.recv_multipart()[2])
    p.kill()
    p.wait(60)
    context.destroy(0)
    prints = dict(line.split() for line in run("fingerprint", "--model", f.file("data/model")).splitlines())
    check(said["build"] == prints.pop("build") and said["fingerprints"]["images"] == prints["images"], f"{said} {prints}")
    return {**{k: v for k, v in said.items() if k != "ship"}, "fingerprints": prints}
