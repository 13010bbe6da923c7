# SPDX-License-Identifier: Apache-2.0
"""What tessera.Rows takes its rows from: proto's own reader in C (the extension _reader), or the one in numpy (daemon_session.py and
recording.py) where there is no extension. Both make the same checks, take the same rows and raise the same exceptions."""
import importlib.util
import json
import os
import threading
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, Iterator, Optional

import numpy as np

from .bad_samples import BadSamples
from .daemon_session import Session
from .messages import DTYPES
from .recording import replay, welcome_of
from .stream_errors import NO_PREFIXES, Refused, check

try:
    from . import _reader
except ImportError:
    if importlib.util.find_spec(f"{__package__}._reader"):  # it is there, but a library that it needs is not
        raise
    _reader = None  # type: ignore[assignment]  # installed without a C compiler or without the libraries' headers

Row = Dict[str, Any]


def why_absent() -> str:
    """Why there is no C extension, as the build of the package said."""
    try:
        with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "absent.txt"), encoding="utf-8") as f:
            return f.read().strip()
    except OSError:
        return "this copy of the package was not built (pip install ./proto/python, or build/python of the project)"


class Gone(RuntimeError):
    """The daemon has left; the stream continues when it is back."""


@dataclass(frozen=True)
class Options:
    """What tessera.Rows was asked for."""
    source: str
    stream: str
    rank: int
    world: int
    keys: Optional[str]
    prefixes: bool
    credit_bytes: int
    timeout: float
    reconnect: float
    run: Optional[str]
    consumer: Optional[str]


@dataclass
class Place:
    """Where a reader enters the stream: after a row with this cursor, of a recording after so many rows. bad_samples: those known
    at the beginning, as text; a reader adds what its rows list."""
    cursor: str = ""
    bad_samples: str = ""
    taken: int = 0


def share_of(rows: int, step: int, rank: int, world: int) -> int:
    """How many of a stream's first rows belong to a rank, of steps of so many rows."""
    if world == 1:
        return rows
    steps, left = divmod(rows, step)
    return steps * (step // world + (rank < step % world)) + left // world + (rank < left % world)


def rows_before(taken: int, options: Options, step: int) -> int:
    """The rows of all ranks that come before a rank's next step in a recording, of which it has taken so many itself."""
    if options.world == 1:
        return taken
    own = share_of(step, step, options.rank, options.world)
    check(own and taken % own == 0, f"{options.source}: {taken} rows were taken of it, which are no whole steps of {own} rows of "
          f"this rank, and {options.world} ranks go on in a recording only where a step begins")
    return taken // own * step


def is_endpoint(source: str) -> bool:
    return source.startswith(("ipc://", "tcp://"))


def arrays_of(values: dict) -> Row:
    """The numpy arrays over a row's memory, which they own together: nothing is copied."""
    arrays = {}
    for name, (memory, dtype, shape) in values.items():
        dtype = np.dtype(DTYPES[dtype])
        arrays[name] = np.frombuffer(memory, dtype).reshape(shape) if 0 not in shape else np.zeros(shape, dtype)
    return arrays


class NativeReader:
    """Rows by the C extension."""

    def __init__(self, options: Options, place: Place):
        self.options = options
        self.reader = _reader.Reader()
        self.bytes = 0

    def open(self, place: Place, rows_later: bool = True) -> dict:
        """Enters the stream; returns WELCOME."""
        o = self.options
        if is_endpoint(o.source):
            self.call(self.reader.open_daemon, o.source, o.stream, place.cursor or None,
                      place.bad_samples or None, rank=o.rank, ranks=o.world, credit=o.credit_bytes,
                      rows_later=rows_later, timeout=o.timeout, keys=o.keys, patient=True,
                      run=o.run, consumer=o.consumer)
        else:
            self.call(self.reader.open_recording, o.source)
            welcome = json.loads(self.reader.welcome())
            step = int(welcome.get("global_batch_size") or 0) if o.world > 1 else 0
            if place.taken or o.world > 1:
                self.reader.close()
                self.call(self.reader.open_recording, o.source, skip=rows_before(place.taken, o, step), rank=o.rank, ranks=o.world,
                          step_rows=step)
        welcome = json.loads(self.reader.welcome())
        recorded, left = self.reader.recorded()
        if recorded >= 0:
            welcome["rows"] = recorded - left
        check(o.prefixes or not welcome.get("prefixes"), f"{o.source}:", NO_PREFIXES)
        return welcome

    def next(self) -> Optional[Row]:
        values = self.call(self.reader.next)
        if values is None:
            return None
        number, self.bytes, arrays, texts = values
        row = dict(arrays_of(arrays), number=number, cursor=texts["cursor"], quarantine=texts["quarantine"],
                   references=texts["references"])
        check(self.options.prefixes or "doc_prefix" not in row, f"{self.options.source}:", NO_PREFIXES)
        return row

    def rejoin(self, place: Place, seconds: float) -> None:
        """Tries for this long to enter the stream of a daemon that had left. Gone: it is not back."""
        self.call(self.reader.rejoin, place.cursor or None, seconds)

    def call(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        try:
            return function(*arguments, **named)
        except _reader.Failure as failure:
            raise exception_of(*failure.args) from None

    def interrupt(self) -> None:
        self.reader.interrupt()

    def close(self) -> None:
        self.reader.close()


def exception_of(code: str, words: str) -> Exception:
    """The exception that the reader in numpy raises for the same."""
    kinds = {"ST_STOPPED": InterruptedError, "ST_TIMEOUT": TimeoutError, "ST_NO_INPUT": FileNotFoundError, "ST_IO": OSError,
             "ST_BAD_INPUT": ValueError, "ST_PROTOCOL": ValueError, "ST_NO_MEMORY": MemoryError}
    if code == "ST_UNAVAILABLE":
        return Gone(words)
    if code == "ST_CONFIG" and "this user may not write to the socket" in words:
        return PermissionError(words)
    return kinds[code](words) if code in kinds else Refused(words, code)


class NumpyReader:
    """Rows by the reader in numpy."""

    def __init__(self, options: Options, place: Place):
        self.options, self.known, self.stop = options, BadSamples(place.bad_samples), threading.Event()
        self.session: Any = None  # a Session
        self.recording: Optional[Iterator[Row]] = None
        self.bytes = 0

    def open(self, place: Place, rows_later: bool = True) -> dict:
        o = self.options
        if is_endpoint(o.source):
            return self.enter(place, o.timeout, rows_later)
        check(o.world == 1, f"{o.source}: sharing a recording out among {o.world} ranks needs the C extension")
        self.recording = replay(o.source, prefixes=o.prefixes)
        for _ in range(place.taken):
            check(next(self.recording, None), f"{o.source}: it has fewer rows than the {place.taken} that were taken")
        return welcome_of(o.source)

    def enter(self, place: Place, seconds: float, rows_later: bool = True) -> dict:
        o = self.options
        self.session = Session(o.source, o.stream, place.cursor or None, 0, o.rank, o.world, o.credit_bytes, seconds, o.keys,
                               o.prefixes, self.known, rows_later, o.run, o.consumer, watched=True, stop=self.stop)
        self.call(self.session.open)
        self.session.timeout = o.timeout
        return self.session.welcome

    def next(self) -> Optional[Row]:
        if self.recording:
            return next(self.recording, None)
        row = self.call(self.session.next)
        self.bytes, self.known = self.session.bytes, self.session.known
        if row is not None:
            del row["bad_samples"]  # it is ahead of the loop
        return row

    def call(self, function: Callable[[], Any]) -> Any:
        try:
            return function()
        except Refused as refused:
            if refused.code in ("ST_UNAVAILABLE", "ST_STOPPED"):
                raise Gone(str(refused)) from None
            raise

    def rejoin(self, place: Place, seconds: float) -> None:
        self.close()
        self.enter(place, seconds)

    def interrupt(self) -> None:
        self.stop.set()

    def close(self) -> None:
        if self.session:
            self.session.close()
        self.session = None


def count_rows(options: Options, native: bool) -> int:
    """The rows of a daemon's stream, all epochs being planned for that; -1 without end. It takes a separate session."""
    options = replace(options, credit_bytes=1, rank=0, world=1, prefixes=True, run=None, consumer=None)
    reader = (NativeReader if native else NumpyReader)(options, Place())
    try:
        return reader.open(Place(), rows_later=False)["rows"]
    finally:
        reader.close()
