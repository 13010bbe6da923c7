# SPDX-License-Identifier: Apache-2.0
"""Many daemons, one stream: eight daemons, each of which serves eight of 64 ranks (prepd.ranks), as on eight nodes. On
one cold cache one of them builds the index; their rows together are those of a single daemon; one that is killed and
comes back goes on where its ranks were.

prepd_many_daemons.py [DAEMONS]    long form: 128, for 1,024 ranks; it needs 10 GiB of memory"""

import contextlib
import json
import os
import resource
import sys
import threading

from faults import trap
from prepd_flow import Daemon, Folder, check, main, run, wait_for

sys.path.insert(0, os.path.join(os.environ.get("TESSERA_SOURCE", "."), "proto", "python"))
from tessera import client  # noqa: E402

DAEMONS, EACH = int(sys.argv[1]) if len(sys.argv) > 1 else 8, 8
RANKS = DAEMONS * EACH
KILLED = 3  # which of the daemons dies under its consumers
BEFORE = 2  # rows of each rank before that
SILENCE_S = 5.0 * RANKS / 64  # after which a consumer comes again
IMAGES = 3 * RANKS
INDEX_MS = 3200  # that the headers take which the index is made of, so that its builder can be killed in the middle
STREAM = {"training.seq_len": 64, "training.global_batch_size": RANKS, "training.epochs": 2, "prepd.workers": 1}


class Node:
    """A daemon that serves the ranks of one node."""

    def __init__(self, f, number, *args):
        self.ranks = f"{number * EACH}-{number * EACH + EACH - 1}"
        self.endpoint = "ipc://" + f.file(f"node{number}")
        self.start = lambda: Daemon(f.config, "--prepd.endpoint", self.endpoint, "--prepd.ranks", self.ranks, *args)
        self.daemon = self.start()

    def status(self):
        return json.loads(run("status", "--connect", self.endpoint, "--json"))

    def has_index(self):
        return "index built" in self.daemon.said() or "index loaded" in self.daemon.said()


@contextlib.contextmanager
def nodes_on_one_cache(f):
    """Daemons that started together on an empty cache."""
    cache, made = f.file("cache"), []
    os.mkdir(cache)
    try:
        for number in range(DAEMONS):
            made.append(Node(f, number, "--prepd.cache_dir", cache))
        yield made
    finally:
        for node in made:
            node.daemon.__exit__()


def one_of_them_builds_the_index(nodes):
    """Its death in the middle hands that over to another."""
    def waiting():
        return [n for n in nodes if "waiting for it" in n.daemon.said()]
    wait_for(lambda: len(waiting()) == DAEMONS - 1, "all but one that wait for it")
    builder, = set(nodes) - set(waiting())
    wait_for(lambda: os.path.exists(builder.endpoint[6:] + ".control"), "the builder's control socket")

    def left():
        train = builder.status()["train"]
        return train["records_left"] if train["state"] == "building the index" else 0
    wait_for(left, "an index that is being built")
    total = left()
    wait_for(lambda: left() < total, "records")
    builder.daemon.stop(9)
    others = [n for n in nodes if n is not builder]
    wait_for(lambda: all(n.has_index() for n in others), "an index for the others")
    check(not builder.has_index(), "it was killed too late to show anything")
    built = [n.ranks for n in others if "index built" in n.daemon.said()]
    check(len(built) == 1, f"the index was built by the daemons of the ranks {built}")
    builder.daemon.__exit__()
    builder.daemon = builder.start()
    wait_for(builder.has_index, "an index for the one that was killed")
    check("index loaded" in builder.daemon.said(), builder.daemon.said())


class Consumers:
    """A consumer for each rank, a thread each, that wait after their first rows until `go`."""

    def __init__(self, nodes):
        self.nodes, self.rows, self.came_again, self.failed = nodes, [[] for _ in range(RANKS)], set(), []
        self.go, self.here = threading.Event(), threading.Semaphore(0)
        self.threads = [threading.Thread(target=self.run, args=(rank,), daemon=True) for rank in range(RANKS)]
        for thread in self.threads:
            thread.start()

    def run(self, rank):
        try:
            cursor = None
            while not self.take(rank, cursor):
                self.came_again.add(rank)
                cursor = self.rows[rank][-1][2] if self.rows[rank] else None
        except BaseException as e:  # the main thread tells it
            self.failed.append(e)
            self.here.release()

    def take(self, rank, cursor):
        """Takes rows until the stream ends. False if the daemon has gone. A credit of one byte: one row at a time."""
        rows = self.rows[rank]
        try:
            for row in client.connect(self.nodes[rank // EACH].endpoint, rank=rank, ranks=RANKS, cursor=cursor, credit_bytes=1,
                                      timeout=SILENCE_S):
                rows.append((row["number"], client.digest_of(row), row["cursor"]))
                if len(rows) == BEFORE:
                    self.here.release()
                    self.go.wait()
            return True
        except (TimeoutError, client.Refused) as e:
            check(getattr(e, "code", "") != "ST_CONFIG", f"rank {rank}: {e}")
            return False

    def all_here(self):
        for _ in range(RANKS):
            self.here.acquire()
        check(not self.failed, f"{self.failed}")

    def finish(self):
        self.go.set()
        for thread in self.threads:
            thread.join()
        check(not self.failed, f"{self.failed}")


def each_refuses_the_ranks_of_others(nodes):
    for number, rank in ((0, EACH), (DAEMONS - 1, 0)):
        try:
            next(client.connect(nodes[number].endpoint, rank=rank, ranks=RANKS))
        except client.Refused as e:
            check(e.code == "ST_CONFIG" and f"serves the ranks {nodes[number].ranks}" in str(e), f"{e}")
        else:
            check(False, f"the daemon of the ranks {nodes[number].ranks} gave rank {rank} a row")
    check(nodes[0].status()["ranks"] == nodes[0].ranks, "the status names other ranks")


def their_rows_are_the_stream(nodes, alone):
    consumers = Consumers(nodes)
    consumers.all_here()
    killed = nodes[KILLED]
    killed.daemon.stop(9)
    killed.daemon.__exit__()
    killed.daemon = killed.start()
    consumers.finish()
    ranks = set(range(KILLED * EACH, KILLED * EACH + EACH))
    check(consumers.came_again >= ranks, f"only the ranks {sorted(consumers.came_again)} came again")
    rows = sorted(row[:2] for share in consumers.rows for row in share)
    check([r[0] for r in rows] == [r[0] for r in alone], "the rows of all ranks are not each row once")
    check(rows == alone, f"other rows: {[r[0] for r, a in zip(rows, alone) if r != a]}")
    for node in nodes:  # a daemon makes the rows of its ranks and no others
        share, sent = len(alone) // DAEMONS, node.status()["rows"]
        check(sent < share if node is killed else sent >= share, f"the daemon of the ranks {node.ranks} sent {sent} rows of {share}")
    print(f"{len(rows)} rows by {DAEMONS} daemons for {RANKS} consumers, {len(consumers.came_again)} of which came again")


def many_daemons_give_the_stream_of_one():
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a consumer has about ten descriptors
    with Folder(images=IMAGES, **STREAM) as f:
        with Daemon(f.config, "--prepd.cache_dir", f.file("alone")):
            alone = [(r["number"], client.digest_of(r)) for r in client.connect("ipc://" + f.file("d.sock"), timeout=60.0)]
        check(len(alone) >= 4 * RANKS, f"only {len(alone)} rows")
        os.environ["POISON_SLOW_HEADER_MS"] = str(INDEX_MS // (2 * RANKS))
        with trap(), nodes_on_one_cache(f) as nodes:
            one_of_them_builds_the_index(nodes)
            each_refuses_the_ranks_of_others(nodes)
            their_rows_are_the_stream(nodes, alone)


main(many_daemons_give_the_stream_of_one)
