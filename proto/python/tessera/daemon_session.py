# SPDX-License-Identifier: Apache-2.0
"""A consumer's session with a daemon, over ZeroMQ (proto/wire.md, "Session")."""
import json
import os
import sys
import threading
import time
from typing import Any, Callable, Dict, List, NoReturn, Optional, Union

from . import hashes
from .bad_samples import BadSamples
from .endpoint import absence, read_keys, shorten
from .messages import BYE, CREDIT, END, ERROR, HELLO, REFUSE, ROW, WELCOME, decode, header, message_head
from .row_order import Order
from .stream_errors import NO_PREFIXES, Refused, check, import_needed

SESSION_VERSION = 3  # of HELLO: 3 since rows come with tags
HELLO_LIMIT = 8 << 20  # prepd cuts off a connection that sends more, without a reason
WHY_MOST = 500  # characters of the reason for a refusal
TELL_S = 1.0  # seconds of silence before the reason for it is printed
LOOK_S = 0.1  # how often a wait that can be stopped looks


class Session:
    """A connection to a daemon, from HELLO to BYE. The arguments are those of connect. Closing it from another thread is what
    `stop` is for: once it is set, a call that waits raises InterruptedError."""
    order: Optional[Order]  # and welcome: once WELCOME has come
    welcome: Optional[Dict[str, Any]]
    folder: Optional[int]
    monitor: Any

    def __init__(self, endpoint: str, stream: str = "train", cursor: Union[str, dict, None] = None, start_row: int = 0, rank: int = 0,
                 ranks: int = 1, credit_bytes: int = 256 << 20, timeout: float = 60.0, keys: Optional[str] = None,
                 prefixes: bool = False, quarantine: Union[BadSamples, str, List[dict], None] = None, rows_later: bool = True, run: Optional[str] = None,
                 consumer: Optional[str] = None, watched: bool = False, stop: Optional[threading.Event] = None):
        zmq = import_needed("zmq")
        self.zmq, self.where, self.timeout, self.prefixes, self.stop = zmq, endpoint, timeout, prefixes, stop
        self.is_tcp, self.order, self.tagged, self.welcome, self.told = not endpoint.startswith("ipc://"), None, False, None, timeout <= TELL_S
        self.asked = (cursor, start_row, rank, ranks)
        absence(endpoint)
        if hashes.xxh3_128 is None:
            print(f"tessera: {endpoint}: the digests of rows are not checked, because {hashes.NO_HASH}", file=sys.stderr, flush=True)
        self.keys = read_keys(keys) if keys and self.is_tcp else None
        self.folder = self.monitor = None
        self.greeted = False  # HELLO has been sent
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        try:
            self.reach(endpoint, watched)
            self.known = BadSamples(quarantine, cursor)  # an earlier cursor has a list
            self.keeps = stream != "sample"  # whose rows list what the index refuses
            place: Dict[str, Any] = {"cursor": cursor}
            if len(self.known):
                cut = json.loads(cursor) if isinstance(cursor, str) and cursor else cursor
                place = {"cursor": {k: v for k, v in cut.items() if k != "quarantine"} if cut else None,
                         "quarantine": json.loads(self.known.text())}
            self.send(HELLO, {"version": SESSION_VERSION, "prefixes": prefixes, "program": "tessera for Python", "stream": stream,
                              "options": None, **place, "start_row": start_row, "rank": rank, "ranks": ranks,
                              "credit_bytes": credit_bytes, "rows_later": rows_later, "run": run, "consumer": consumer})
            self.greeted = True
        except BaseException as e:
            self.close()
            if isinstance(e, ValueError):
                raise ValueError(f"{endpoint}: {e}") from None
            raise

    def reach(self, endpoint: str, watched: bool) -> None:
        zmq, socket = self.zmq, self.socket
        socket.setsockopt(zmq.LINGER, 2000)
        socket.setsockopt(zmq.RCVHWM, 0)
        for option, value in ((zmq.TCP_KEEPALIVE, 1), (zmq.TCP_KEEPALIVE_IDLE, 3), (zmq.TCP_KEEPALIVE_INTVL, 3),
                              (zmq.TCP_KEEPALIVE_CNT, 3), (zmq.TCP_MAXRT, 10000)):
            socket.setsockopt(option, value)  # no ZeroMQ heartbeats; wire.c has the reason
        socket.setsockopt(zmq.SNDTIMEO, 1000)  # a daemon that refuses our key reads nothing
        if self.keys:
            socket.curve_publickey, socket.curve_secretkey, socket.curve_serverkey = self.keys
        if watched:
            self.monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        try:
            endpoint, self.folder = shorten(endpoint)
        except OSError as e:
            raise type(e)(f"{endpoint}: the socket's folder cannot be opened: {e.strerror}") from None
        socket.connect(endpoint)

    def send(self, kind: int, message: Dict[str, Any]) -> None:
        text = json.dumps(message).encode()
        if len(text) > HELLO_LIMIT:
            size, longest = max((len(json.dumps(value)), name) for name, value in message.items())
            check(False, "a message has", len(text), "bytes,", size, "of them", longest + ", but prepd accepts", HELLO_LIMIT)
        self.socket.send_multipart([message_head(kind, len(text)), text])

    def receive(self) -> List[memoryview]:
        """The parts of the next message."""
        now = time.monotonic()
        tell, end = now + TELL_S, now + self.timeout
        while True:
            if self.socket.poll(int(1000 * min(max(0, end - now), TELL_S if self.stop is None else LOOK_S))):
                self.told = True  # a daemon is there
                return [p.buffer for p in self.socket.recv_multipart(copy=False)]
            if self.stop is not None and self.stop.is_set():
                raise InterruptedError(f"{self.where}: stopped")
            if self.monitor and self.monitor.poll(0):
                raise Refused(f"{self.where}: the daemon has left", "ST_UNAVAILABLE")
            now = time.monotonic()
            why = None if self.told or now < tell else absence(self.where)
            if why:
                self.told = True
                print(f"tessera: {self.where}: waiting, at most {self.timeout:g} s: {why}", file=sys.stderr, flush=True)
            if now >= end:
                raise self.zmq.Again

    def refuse(self, number: int, why: str) -> NoReturn:
        """Tells the daemon that a row is not what was ordered, and waits until it has ended the session."""
        why = why[:WHY_MOST].encode(errors="replace").decode()  # a worker's own names may be in it
        self.send(REFUSE, {"row": number, "message": why})
        while True:
            parts = self.receive()
            if header(parts[0])[0] == ERROR:
                break
        said = json.loads(bytes(parts[1]))
        again = said.get("code") == "ST_STOPPED"
        raise Refused(f"{self.where}: row {number} was refused: {why}. " + (
            "It is made again by another worker: call this again with the cursor of the row before" if again else said["message"]),
            "ST_UNAVAILABLE" if again else said.get("code"))

    def take_welcome(self, text: bytes) -> None:
        said = self.welcome = json.loads(text)
        self.known.index = said.get("index") or self.known.index
        self.order, self.tagged = Order(said, *self.asked), said.get("version", 0) >= SESSION_VERSION

    def take_row(self, parts: List[memoryview]) -> Dict[str, Any]:
        number, self.bytes = header(parts[0])[1], sum(len(p) for p in parts)
        if not self.order:
            raise ValueError("a row came before WELCOME")
        self.order.take(number)
        self.send(CREDIT, {"bytes": self.bytes})
        try:
            row = decode(parts, self.tagged)
        except ValueError as e:
            self.refuse(number, str(e))
        check(self.prefixes or "doc_prefix" not in row, NO_PREFIXES)
        if self.keeps:
            self.known.add_row(row)
        return dict(row, bad_samples=self.known)

    def take(self) -> Union[bool, Dict[str, Any], None]:
        """The next message: WELCOME (True), a row, or the end (None)."""
        while True:
            parts = self.receive()
            kind = header(parts[0])[0]
            if kind == WELCOME:
                self.take_welcome(bytes(parts[1]))
                return True
            if kind == ROW:
                return self.take_row(parts)
            if kind == END:
                return None
            if kind == ERROR:
                said = json.loads(bytes(parts[1]))
                # A daemon that cannot read HELLO is of another version; an older one cannot say which version this needs.
                unread = not self.order and said.get("code") == "ST_PROTOCOL"
                more = f". This client needs a daemon with protocol version {SESSION_VERSION}" if unread else ""
                raise Refused(f"{self.where}: {said['message']}{more}", said.get("code"))
            check(kind == CREDIT, "a message of the unexpected kind", kind, "came")

    def call(self, what: Callable[[], Any]) -> Any:
        try:
            return what()
        except self.zmq.Again:
            about_keys = ", and does it know these keys" if self.keys else ", and does it demand keys (keys=FOLDER, --keys)"
            why = absence(self.where) or f"is prepd serve running there{about_keys if self.is_tcp else ''}?"
            raise TimeoutError(f"{self.where}: nothing came for {self.timeout:g} s: {why}") from None
        except ValueError as e:
            raise ValueError(f"{self.where}: {e}") from None

    def open(self) -> None:
        """Waits for WELCOME."""
        self.call(self.take)

    def next(self) -> Optional[Dict[str, Any]]:
        """The next row, or None after the last; without open() before."""
        row = self.call(self.take)
        return self.call(self.take) if row is True else row

    def close(self) -> None:
        try:
            if self.greeted:  # else a BYE would be waited for, which says nothing to a daemon
                self.send(BYE, {})
        except self.zmq.Again:
            pass  # the daemon has left
        if self.monitor:
            self.socket.disable_monitor()
            self.monitor.close()
        self.socket.close()
        self.context.term()
        if self.folder is not None:
            os.close(self.folder)
