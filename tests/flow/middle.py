# SPDX-License-Identifier: Apache-2.0
"""Stands between workers and their daemon and changes what they say as a test wants, which gives a worker that lies
although its version, decoder and key are right."""

import json
import struct
import threading

import zmq

RECORDS = 20  # proto/row/frame.h


class Middle:
    """Workers connect to `port`; daemon is the daemon's port for workers, or its address. change(records, k) may change the k-th list of index records, a list of objects, in
    place; it is called once released() was. sent(part) sees each part that goes to a worker."""

    def __init__(self, daemon, change=lambda records, k: None, sent=lambda part: None):
        self.sent = sent
        self.change, self.lists, self.free, self.open = change, 0, threading.Event(), True
        self.context = zmq.Context()
        self.door = self.context.socket(zmq.ROUTER)
        self.port = self.door.bind_to_random_port("tcp://127.0.0.1")
        self.daemon, self.ends = daemon if "://" in str(daemon) else f"tcp://127.0.0.1:{daemon}", {}
        self.held = []
        self.thread = threading.Thread(target=self.pass_on)
        self.thread.start()

    def released(self):
        self.free.set()

    def end_of(self, peer):
        if peer not in self.ends:
            self.ends[peer] = self.context.socket(zmq.DEALER)
            self.ends[peer].setsockopt(zmq.LINGER, 0)
            self.ends[peer].connect(self.daemon)
        return self.ends[peer]

    def changed(self, parts):
        said = json.loads(parts[1])
        self.change(said["records"], self.lists)
        self.lists += 1
        body = json.dumps(said).encode()
        version, kind, row = struct.unpack("<HHQ", parts[0][4:16])
        return [(parts[0][:4] + struct.pack("<HHQIIQQ", version, kind, row, 0, 0, len(body), 0)).ljust(64, b"\0"), body]

    def to_daemon(self, peer, parts):
        if struct.unpack("<H", parts[0][6:8])[0] == RECORDS and not self.free.is_set():
            self.held.append((peer, parts))
        elif struct.unpack("<H", parts[0][6:8])[0] == RECORDS:
            self.end_of(peer).send_multipart(self.changed(parts))
        else:
            self.end_of(peer).send_multipart(parts)

    def pass_on(self):
        while self.open:
            poller = zmq.Poller()
            for s in (self.door, *self.ends.values()):
                poller.register(s, zmq.POLLIN)
            ready = dict(poller.poll(20))
            if self.free.is_set():
                now, self.held = self.held, []
                for peer, parts in now:
                    self.to_daemon(peer, parts)
            if self.door in ready:
                peer, *parts = self.door.recv_multipart()
                self.to_daemon(peer, parts)
            for peer, s in list(self.ends.items()):
                if s in ready:
                    parts = s.recv_multipart()
                    for part in parts:
                        self.sent(part)
                    self.door.send_multipart([peer, *parts])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.open = False
        self.thread.join()
        self.context.destroy(linger=0)
