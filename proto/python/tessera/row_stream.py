# SPDX-License-Identifier: Apache-2.0
"""tessera.Rows: the rows of a stream for a training loop, received ahead by a thread, that can be saved and gone on with."""
import json
import os
import queue
import sys
import threading
import time
import uuid
import weakref
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, NoReturn, Optional

import numpy as np

from . import row_readers
from .bad_samples import BadSamples, merge_quarantine
from .row_readers import Gone, Options, Place, Row
from .stream_errors import Refused, check

STATE = 2  # the form of state_dict; 1 had "decisions" instead of "quarantine"
LOOK_S = 0.1  # how often the thread looks whether it is to stop
NAP_S = 0.2  # between two tries to enter the stream of a daemon that is not back yet
WORKERS = ("tessera.Rows would give every worker of a DataLoader all rows: use num_workers=0. Rows are received and decoded ahead of the "
           "loop by a thread of its own (prefetch), without the interpreter's lock")


class Progress(NamedTuple):
    """How far a rank is in its stream."""
    taken: int                # rows that the loop has taken, over all resumes
    rows: Optional[int]       # rows that this rank gets in all; None: without end, or not counted yet
    number: Optional[int]     # the number of the last row in the stream of all ranks
    epoch: int                # in which the next row lies
    bytes: int                # received by this object
    waited: float             # seconds that the loop has waited for rows
    ready: int                # rows that wait for the loop


class Feed:
    """The thread that receives rows. It holds no reference to its Rows, so that a loop that forgets its Rows ends it."""

    def __init__(self, options: Options, place: Place, prefetch: int, convert: Callable[[Row], Row], native: bool):
        self.options, self.place, self.convert = options, place, convert
        self.reader = (row_readers.NativeReader if native else row_readers.NumpyReader)(options, place)
        self.ready: "queue.Queue[tuple]" = queue.Queue(prefetch)
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self.run, name="tessera.Rows", daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self.stopping.set()
        self.reader.interrupt()
        if self.thread is not threading.current_thread():
            self.thread.join(10)

    def put(self, *item: Any) -> None:
        while not self.stopping.is_set():
            try:
                return self.ready.put(item, timeout=LOOK_S)
            except queue.Full:
                pass

    def run(self) -> None:
        try:
            self.put(None, self.reader.open(self.place), 0)
            row: Optional[Row] = {}
            while row is not None and not self.stopping.is_set():
                row = self.take()
                self.put(None, row if row is None else self.convert(row),
                         0 if row is None else self.reader.bytes)
        except InterruptedError:
            pass  # stop() asked for it
        except Gone as gone:  # it never was there
            self.put(TimeoutError(f"{self.options.source}: {gone}"), None, 0)
        except BaseException as error:  # noqa: B902  the loop gets it
            self.put(error, None, 0)
        finally:
            self.reader.close()

    def take(self) -> Optional[Row]:
        """The next row. Where the daemon is gone, waits for it and goes on after the last row."""
        while True:
            try:
                row = self.reader.next()
            except Gone as gone:
                self.rejoin(gone)
                continue
            if row is not None:
                self.place = Place(row["cursor"], self.place.bad_samples, self.place.taken + 1)
            return row

    def rejoin(self, why: Gone) -> None:
        where, patience = self.options.source, self.options.reconnect
        end = time.monotonic() + patience
        print(f"tessera: {where}: the daemon is gone ({why}); waiting for it for up to {patience:g} s", file=sys.stderr, flush=True)
        while (left := end - time.monotonic()) > 0 and not self.stopping.is_set():
            try:
                self.reader.rejoin(self.place, min(left, 1.0))
                print(f"tessera: {where}: the daemon is back; the stream continues after the last row", file=sys.stderr, flush=True)
                return
            except TimeoutError:
                pass
            except Gone:
                self.stopping.wait(NAP_S)
        if self.stopping.is_set():
            raise InterruptedError
        raise Refused(f"{where}: the daemon did not come back within {patience:g} s (reconnect): {why}", "ST_UNAVAILABLE")


def to_torch(row: Row, pin: bool) -> Row:
    """The row with tensors instead of arrays, over the same memory unless they are pinned. torch lacks much for unsigned
    numbers, so doc_sample_id is signed."""
    import torch
    out = {}
    for name, value in row.items():
        if isinstance(value, np.ndarray):
            value = value.view(np.int64) if value.dtype == np.uint64 else value
            value = torch.from_numpy(value if value.flags.writeable else value.copy())
            value = value.pin_memory() if pin else value
        out[name] = value
    return out


class Rows:
    """The rows of a stream for one rank, as dictionaries (proto/python.md lists what is in them).

    source: an endpoint of prepd serve, or the file of a recording. rank, world: the share of every step; without them those of
    torchrun (RANK and WORLD_SIZE), or all rows. tensors: "numpy" or "torch"; pin_memory: tensors of torch in pinned memory.
    prefetch: rows that are received and decoded ahead of the loop. reconnect: seconds to wait for a daemon that has left;
    its stream continues after the last row. run: a name for the run, the same for all of its ranks and when it starts again: a
    second consumer of the same run and rank is then refused, unless the first is gone. native: True demands the C extension, False does without it; None takes it where
    it is. The other arguments are those of connect.

    Iterating goes on where the last loop stopped, as in a file; so a loop that is left and entered again gets every row once.
    state_dict() stands after the last row that the loop has taken, however many wait. rewind() goes back to the beginning."""

    def __init__(self, source: str, *, rank: Optional[int] = None, world: Optional[int] = None, stream: str = "train",
                 tensors: str = "numpy", pin_memory: bool = False, prefetch: int = 2, keys: Optional[str] = None,
                 prefixes: bool = False, credit_bytes: int = 256 << 20, timeout: float = 60.0, reconnect: float = 300.0,
                 run: Optional[str] = None, native: Optional[bool] = None):
        check((rank is None) == (world is None), "rank and world belong together")
        rank = int(os.environ.get("RANK", 0)) if rank is None else rank
        world = int(os.environ.get("WORLD_SIZE", 1)) if world is None else world
        check(0 <= rank < world, "rank", rank, "of", world, "ranks")
        check(tensors in ("numpy", "torch"), "there are no tensors of", tensors)
        check(prefetch >= 1, "prefetch is", prefetch, "expected 1 or more")
        if native and row_readers._reader is None:
            raise ImportError(f"the C extension is not there: {row_readers.why_absent()}")
        self.options = Options(str(source), stream, rank, world, keys, prefixes, credit_bytes, timeout, reconnect, run,
                               uuid.uuid4().hex if run else None)
        self.prefetch, self.native = prefetch, row_readers._reader is not None if native is None else native
        self.convert = (lambda row: row) if tensors == "numpy" and not pin_memory else (lambda row: to_torch(row, pin_memory))
        if pin_memory:
            import torch
            check(torch.cuda.is_available(), "pin_memory is for a GPU, and torch finds none")
        self.feed: Optional[Feed] = None
        self.known: Dict[str, Any] = {}  # WELCOME
        self.rewind()
        data = sys.modules.get("torch.utils.data")  # DataLoader treats everything else as a list of samples
        if data is not None:
            data.IterableDataset.register(Rows)

    # --- the place in the stream ---

    def rewind(self) -> None:
        """Goes back to the stream's beginning."""
        self.close()
        self.place, self.bad_samples, self.number, self.ended = Place(), BadSamples(), None, False
        self.bytes, self.waited = 0, 0.0

    def state_dict(self) -> Dict[str, Any]:
        """What load_state_dict needs to go on after the last row that the loop has taken; texts and numbers alone."""
        return {"tessera": STATE, "stream": self.options.stream, "world": self.options.world, "taken": self.place.taken,
                "number": self.number, "cursor": self.place.cursor, "quarantine": self.bad_samples.text()}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Goes on where a state_dict was taken. After a whole step the states of all ranks mean the same, and any number of ranks
        can go on from any one of them, or from merge_states of all."""
        check(state.get("tessera") in (1, STATE), "this is no state of tessera.Rows:", sorted(state))
        check(state["stream"] == self.options.stream, "the state is of the stream", state["stream"] + ", not of", self.options.stream)
        self.rewind()
        self.bad_samples = BadSamples(*quarantines_of(state))
        self.place = Place(state["cursor"], taken=share_again(state, self.options.world))
        self.number = state["number"]

    # --- rows ---

    def __iter__(self) -> Iterator[Row]:
        refuse_worker()
        return self

    def __next__(self) -> Row:
        if self.ended:
            raise StopIteration
        self.start()
        begin = time.monotonic()
        row = self.get()
        self.waited += time.monotonic() - begin
        if row is None:
            self.ended = True
            self.close()
            raise StopIteration
        self.place = Place(row["cursor"], taken=self.place.taken + 1)
        if self.options.stream != "sample":  # whose rows list what the index refuses
            self.bad_samples.add_row(row)
        self.number = row["number"]
        return row

    def start(self) -> None:
        """Starts the thread, if there is none, and waits for WELCOME."""
        if self.feed is None:
            refuse_worker()
            place = Place(self.place.cursor, self.bad_samples.text(), self.place.taken)
            self.feed = Feed(self.options, place, self.prefetch, self.convert, self.native)
            self.stop_feed = weakref.finalize(self, self.feed.stop)
            self.known = self.get()
            self.bad_samples.index = self.known.get("index") or self.bad_samples.index

    def get(self) -> Any:
        """The next thing that the thread has put."""
        assert self.feed is not None
        error, value, size = self.feed.ready.get()
        if error:
            self.close()
            raise error
        self.bytes += size
        return value

    def close(self) -> None:
        """Ends the thread and the session. Iterating again begins a new one after the last row taken."""
        if self.feed is not None:
            self.stop_feed()
            self.feed = None

    def __enter__(self) -> "Rows":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    # --- numbers ---

    @property
    def welcome(self) -> Dict[str, Any]:
        """What the daemon, or the recording, says of the stream (proto/wire.md, WELCOME)."""
        if not self.known:
            self.start()
        return self.known

    def __len__(self) -> int:
        """The rows that this rank gets in the whole stream. TypeError if it has no end (training.epochs 0)."""
        rows = self.count()
        if rows is None:
            raise TypeError(f"{self.options.source}: the stream has no end, and so no length")
        return rows

    def count(self) -> Optional[int]:
        total = self.welcome.get("rows")
        if total is None:  # not all epochs are planned yet: another session is welcomed when they are
            total = self.known["rows"] = row_readers.count_rows(self.options, self.native)
        if total < 0 or "recording" in self.known:
            return None
        return row_readers.share_of(total, int(self.known.get("global_batch_size") or 1), self.options.rank, self.options.world)

    @property
    def progress(self) -> Progress:
        rows = self.known.get("rows")
        cursor = json.loads(self.place.cursor) if self.place.cursor else {}
        return Progress(self.place.taken, self.count() if rows is not None else None, self.number, int(cursor.get("epoch", 0)),
                        self.bytes, self.waited, self.feed.ready.qsize() if self.feed else 0)

    def __getitem__(self, _: int) -> Row:
        raise TypeError("the rows of a stream come in its order: iterate. (For a DataLoader import torch before Rows is made.)")

    def __reduce__(self) -> NoReturn:
        raise TypeError(WORKERS)


def refuse_worker() -> None:
    """RuntimeError in a worker of a DataLoader, where each worker would get every row."""
    data = sys.modules.get("torch.utils.data")
    if data is not None and data.get_worker_info() is not None:
        raise RuntimeError(WORKERS)


def share_again(state: Dict[str, Any], world: int) -> int:
    """The rows that a rank has taken, told for another number of ranks."""
    return state["taken"] if world == state["world"] else state["taken"] * state["world"] // world


def quarantines_of(state: Dict[str, Any]) -> tuple:
    """What a state says of bad samples. One of the first form has a list, and its cursor another."""
    return (state["quarantine"],) if state["tessera"] == STATE else (state["decisions"], state["cursor"])


def merge_states(states: List[Dict[str, Any]]) -> Dict[str, Any]:
    """The states of all ranks after a whole step as one, with the bad samples that any rank has heard of."""
    first = states[0]
    rows = {json.loads(s["cursor"])["row"] if s["cursor"] else 0 for s in states}
    check(len(rows) == 1, "the ranks' states are not after the same step: they go on at the rows", sorted(rows))
    united = BadSamples(*(said for state in states for said in quarantines_of(state)))
    return dict(first, tessera=STATE, quarantine=united.text(), number=max((s["number"] for s in states if s["number"] is not None),
                                                                      default=None))
