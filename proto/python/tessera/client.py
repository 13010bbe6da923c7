"""Reads the rows of a running prepd, or of a recording, as numpy arrays. proto/python.md says how to use it,
proto/wire.md specifies the bytes. Needs python3-numpy, python3-zstandard, python3-zmq (not for recordings) and, to check
hashes, python3-xxhash or libxxhash, which prepd is linked with."""
import argparse
import contextlib
import ctypes
import errno
import json
import mmap
import os
import socket as sockets
import struct
import sys
import time
from typing import Any, Dict, Generator, Iterable, List, Optional, Sequence, Union

import numpy as np

from . import masks

HEADER = struct.Struct("<4sHHQIIQQ16s8s")
IMAGE_HEAD = struct.Struct("<BBHIQ8sQ")
SESSION_VERSION = 3  # of HELLO: 3 since rows come with tags
HELLO, WELCOME, CREDIT, ROW, END, ERROR, BYE, REFUSE = 1, 2, 3, 4, 5, 6, 7, 8
DTYPES = {"U8": "u1", "I32": "<i4", "F32": "<f4", "U64": "<u8"}
LIMIT = 1 << 30
HELLO_LIMIT = 8 << 20  # prepd cuts off a connection that sends more, without a reason
TELL_S = 1.0  # seconds of silence before the reason for it is printed
LOOK_S = 0.1  # how often a wait that can be stopped looks
# Exit codes as prepd's (sysexits.h): by the code of the daemon's refusal, and by the exception raised here.
EXIT_CODES = {"ST_USAGE": 64, "ST_BAD_INPUT": 65, "ST_NO_INPUT": 66, "ST_UNAVAILABLE": 69, "ST_OS": 71,
              "ST_NO_MEMORY": 71, "ST_CANT_CREATE": 73, "ST_IO": 74, "ST_TIMEOUT": 75, "ST_STOPPED": 75,
              "ST_PROTOCOL": 76, "ST_MISMATCH": 69, "ST_CONFIG": 78}
OWN_CODES = {TimeoutError: 69, ImportError: 69, FileNotFoundError: 66, PermissionError: 78, OSError: 74}
NO_HASH = "neither python3-xxhash nor libxxhash is installed"


class Refused(RuntimeError):
    """The daemon refused: its words, and in `code` its reason, such as "ST_CONFIG"."""

    def __init__(self, message, code):
        super().__init__(message)
        self.code = code


def check(good, *words):
    if not good:
        raise ValueError(" ".join(str(w) for w in words))


class Hash128(ctypes.Structure):
    """libxxhash's XXH128_hash_t."""
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


class LibraryHash:
    """XXH3-128 in pieces by libxxhash, for a Python that lacks the module xxhash. It has the calls of that module that
    are used here."""
    library = None

    @classmethod
    def load(cls):
        """This class, or None if there is no such library."""
        try:
            cls.library = ctypes.CDLL("libxxhash.so.0")
        except OSError:
            return None
        state, size = ctypes.c_void_p, ctypes.c_size_t
        for name, result, *arguments in (("createState", state), ("freeState", ctypes.c_int, state),
                                         ("128bits_reset", ctypes.c_int, state), ("128bits_digest", Hash128, state),
                                         ("128bits_update", ctypes.c_int, state, ctypes.c_char_p, size)):
            function = getattr(cls.library, "XXH3_" + name)
            function.restype, function.argtypes = result, arguments
        return cls

    def __init__(self):
        self.state = self.library.XXH3_createState()
        self.library.XXH3_128bits_reset(self.state)

    def __del__(self):
        self.library.XXH3_freeState(self.state)

    def update(self, data):
        data = bytes(data)
        self.library.XXH3_128bits_update(self.state, data, len(data))

    def digest(self):
        found = self.library.XXH3_128bits_digest(self.state)
        return struct.pack(">QQ", found.high, found.low)


try:
    from xxhash import xxh3_128
except ImportError:
    xxh3_128 = LibraryHash.load()


def hash_of(*pieces):
    """The XXH3-128 of these bytes, one after another."""
    h = xxh3_128()
    for piece in pieces:
        h.update(piece)
    return h.digest()


def header(part):
    """Reads the header of a message: (kind, row, n_images, block_bytes, image_bytes, digest)."""
    check(len(part) >= 6 and part[:4] == b"TSRA", "the message is not Tessera's")
    version = struct.unpack_from("<H", part, 4)[0]
    check(version == 1, "the peer speaks protocol version", version, "but this client version 1")
    check(len(part) == HEADER.size, "the header has", len(part), "bytes, expected", HEADER.size)
    _, _, kind, row, n_images, reserved, block, images, digest, _ = HEADER.unpack(part)
    check(reserved == 0 and max(block, images) <= LIMIT, "the sizes in the header are impossible")
    return kind, row, n_images, block, images, digest


def unzstd(data, size):
    import zstandard  # here, so that a Python without it can read with the C extension
    check(zstandard.frame_content_size(data) == size <= LIMIT, "a zstd frame does not declare the expected", size, "bytes")
    return zstandard.ZstdDecompressor().decompress(data, max_output_size=size)


def tensors(block):
    """Reads a safetensors block: (arrays by name, metadata)."""
    check(len(block) >= 8, "the block has only", len(block), "bytes")
    size = struct.unpack_from("<Q", block)[0]
    check(size <= len(block) - 8, "the safetensors header of", size, "bytes does not fit the block")
    entries, arrays = json.loads(block[8:8 + size]), {}
    metadata = entries.pop("__metadata__", {})
    for name, e in entries.items():
        first, last = e["data_offsets"]
        check(0 <= first <= last <= len(block) - 8 - size, name, "lies outside the block")
        arrays[name] = np.frombuffer(block[8 + size + first:8 + size + last],
                                     DTYPES[e["dtype"]]).reshape(e["shape"])
    return arrays, metadata


def image(part, grid):
    """Decodes an image part: (patch_bytes, pixels [n_patches, patch_bytes])."""
    check(len(part) >= IMAGE_HEAD.size, "an image part has only", len(part), "bytes")
    kind, codec, width, n, decoded, _, payload = IMAGE_HEAD.unpack_from(part)
    data = part[IMAGE_HEAD.size:]
    check(kind in (0, 1) and codec in (0, 1) and width in (768, 1536), "an image part has an unknown filter, codec or patch size")
    check(n == int(np.prod(grid, dtype=np.int64)) and decoded == n * width, "an image part does not fit its grid")
    check(payload == len(data), "an image part is cut short")
    data = unzstd(data, decoded) if codec else data
    check(len(data) == decoded, "an image has", len(data), "bytes, expected", decoded)
    pixels = np.frombuffer(data, np.uint8).reshape(n, 3, width // 768, 16, 16)
    if kind:
        pixels = pixels.cumsum(3, dtype=np.uint8).cumsum(4, dtype=np.uint8)
        pixels[:, 0::2] += pixels[:, 1:2]
    return width, pixels.reshape(n, width)


def floats(pixels: np.ndarray, resampler: str = "torch") -> np.ndarray:
    """The float32 values that transformers' image processor computes from these bytes, bit for bit. "torch" is its default
    processor; "pillow" and "pillow13" are its PIL processor, which rounds in another place."""
    check(resampler in ("torch", "pillow", "pillow13"), "there is no resampler", resampler)
    x, half = pixels.astype(np.float32), np.float32(127.5)
    return x / half - np.float32(1) if resampler != "torch" else (x - half) / half


def digest_of(row):
    """The row digest (wire.md, Row digest)."""
    h = xxh3_128()
    names = {np.dtype(v): k for k, v in DTYPES.items()}
    for name in sorted(k for k, v in row.items() if isinstance(v, np.ndarray)):
        a = np.ascontiguousarray(row[name])
        h.update(name.encode() + b"\0" + names[a.dtype].encode() + b"\0")
        h.update(struct.pack(f"<{1 + a.ndim}Q", a.ndim, *a.shape) + a.tobytes())
    return h.digest()


LISTS = {"cu_seqlens": np.int32, "doc_part": np.int32, "doc_prefix": np.int32, "doc_sample_id": np.uint64,
         "input_ids": np.int32, "labels": np.int32, "loss_weight": np.float32}


def check_documents(row):
    """Checks where documents begin and that doc_prefix means what wire.md says, as proto/batch_check.c does."""
    for name, dtype in LISTS.items():
        check(name in row or name in ("doc_prefix", "loss_weight"), "the row has no", name)
        check(name not in row or (row[name].ndim == 1 and row[name].dtype == dtype), name, "is no list of", np.dtype(dtype).name)
    borders, prefix = masks.documents(row)
    labels, number = row["labels"], row["doc_sample_id"]
    check(len(number) == len(prefix) and len(labels) == len(row["input_ids"]) == len(row.get("loss_weight", labels)),
          "the row's lists differ in length")
    check((labels[borders[:-1]] == -100).all(), "the first token of a document has a label")
    check((row["doc_part"][prefix >= 0] == 0).all(), "a branch is a part of a longer document")
    for doc in np.unique(prefix[prefix >= 0]):
        tokens = slice(borders[doc], borders[doc + 1])
        check(number[doc] == number[doc + 1], f"doc_sample_id[{doc}] is not that of the prefix's first branch")
        check((labels[tokens] == -100).all() and ("loss_weight" not in row or (row["loss_weight"][tokens] == 1).all()),
              f"document {doc} is a prefix, but has labels or weights")


def check_tag(row, number, tag):
    """Compares a row with its tag, which says what the daemon had ordered, as proto/tag.c does."""
    blame = f"the row made by worker {tag.get('worker', '-')} is not what was ordered:"
    check(tag["row"] == number, blame, "it has the number", number, "but", tag["row"], "was ordered")
    borders, n = row["cu_seqlens"].astype(np.int64), len(row["doc_sample_id"])
    labelled = np.concatenate([[0], np.cumsum(row["labels"] != -100)])
    found = {"ids": row["doc_sample_id"], "parts": row["doc_part"], "prefixes": row.get("doc_prefix", np.full(n, -1)),
             "lengths": np.diff(borders), "targets": np.diff(labelled[borders]), "grids": row["grid_thw"].ravel()}
    for name, values in found.items():
        ordered = tag.get(name) or []
        check(len(values) == len(ordered), blame, "it has", len(values), name, "but", len(ordered), "were ordered")
        for i, (is_, was) in enumerate(zip(values, ordered)):
            check(was is None or int(is_) == was, blame, f"{name} [{i}] is", is_, "but", was, "was ordered")


def decode(parts: Sequence[Any], tagged: bool = False) -> Dict[str, Any]:
    """Decodes the parts of a ROW message to a dictionary of arrays, with "number" and, as JSON texts or "", "cursor",
    "quarantine" and "references". tagged: the row must have a tag, from which those texts are then taken."""
    kind, number, n_images, block_bytes, image_bytes, digest = header(parts[0])
    check(kind == ROW and len(parts) - 2 - n_images in (0, 1), "these are not the parts of a row")
    check(not tagged or len(parts) == 3 + n_images, "row", number, "came without a tag")
    row, metadata = tensors(unzstd(parts[1], block_bytes))
    check(len(row["grid_thw"]) == n_images, "there are", n_images, "images for", len(row["grid_thw"]), "grids")
    pixels = {768: [np.zeros((0, 768), np.uint8)], 1536: []}
    for part, grid in zip(parts[2:2 + n_images], row["grid_thw"]):
        width, data = image(part, grid)
        pixels[width].append(data)
    row["pixels"] = np.concatenate(pixels[768])
    if pixels[1536]:
        row["pixels_video"] = np.concatenate(pixels[1536])
    total = row["pixels"].nbytes + (row["pixels_video"].nbytes if pixels[1536] else 0)
    check(total == image_bytes, "there are", total, "bytes of pixels, but the header says", image_bytes)
    check(xxh3_128 is None or digest_of(row) == digest, "the row does not match its digest")
    check_documents(dict(row, number=number))
    if len(parts) == 3 + n_images:
        metadata = json.loads(bytes(parts[-1]))
        check_tag(row, number, metadata)
    return dict(row, number=number, cursor=metadata.get("cursor", ""),
                quarantine=metadata.get("quarantine", ""), references=metadata.get("references", ""))


class Order:
    """Checks which row a consumer gets next, by the rules of row_order.c (wire.md, "Order")."""

    def __init__(self, welcome, cursor, start_row, rank, ranks):
        rounds = welcome.get("recording") or {}
        self.first, self.rows = rounds.get("first", 0), rounds.get("rows", 0)
        self.rank, self.ranks, self.size = rank, max(ranks, 1), welcome.get("global_batch_size") or 0
        cursor = json.loads(cursor) if isinstance(cursor, str) and cursor else cursor
        asked = cursor["row"] - self.first if cursor else start_row
        row = welcome.get("row")
        self.next = asked if row is None else row - self.first
        late = self.next - asked
        check(late == 0 or (self.ranks > 1 and late > 0 and (not self.size or late < self.size)),
              "the stream begins at row", self.number(self.next), "but row", self.number(asked), "was asked for")
        if self.rows and self.rows < 2 * self.size:
            self.size = 0  # a number would not tell the round of its row
        self.got, self.step = 0, self.next // self.size if self.size else 0
        self.entered = bool(self.size and self.next % self.size)

    def number(self, place):
        return self.first + place % self.rows if self.rows else place

    def take(self, number):
        place = number
        if self.rows:
            place = self.next - self.next % self.rows + number - self.first
            place += self.rows if place < self.next else 0
        check(self.number(place) == number and place >= self.next and (self.ranks > 1 or place == self.next),
              "row", number, "came where row", self.number(self.next), "was expected")
        if self.ranks > 1 and self.size:
            step, share = place // self.size, self.size // self.ranks + (self.rank < self.size % self.ranks)
            check(self.got < share if step == self.step else
                  step == self.step + 1 and (self.got == share or self.entered),
                  "row", number, "of step", step, "came after", self.got, "of this rank's", share, "rows of step", self.step)
            self.got, self.entered = (self.got + 1, self.entered) if step == self.step else (1, False)
            self.step = step
        self.next = place + 1


def shorten(endpoint):
    """Shortens an ipc path that is too long for a socket's address: (endpoint through its opened folder, the folder's
    descriptor). Any other endpoint: (endpoint, None)."""
    if not endpoint.startswith("ipc://") or len(os.fsencode(endpoint)) <= 6 + 107:
        return endpoint, None
    path, name = os.path.split(endpoint[6:])  # as proto/endpoint.c does
    folder = os.open(path, os.O_PATH | os.O_DIRECTORY)
    return f"ipc:///proc/self/fd/{folder}/{name}", folder


def absence(endpoint):
    """The reason why nothing can answer at an endpoint. None if a process listens there, and always for tcp, about which
    nothing is known. Raises PermissionError if this user may not write to the socket, since waiting does not change that."""
    if not endpoint.startswith("ipc://"):
        return None
    folder = None
    try:
        address, folder = shorten(endpoint)
        with sockets.socket(sockets.AF_UNIX) as s:
            s.setblocking(False)
            s.connect(address[6:])
    except PermissionError:
        raise PermissionError(f"{endpoint}: this user may not write to the socket, which connecting requires: run this as "
                              "the user of prepd serve, or as a member of its group") from None
    except BlockingIOError:
        return None  # its queue is full, so a process is there
    except ConnectionRefusedError:
        return "no process listens on this socket: prepd serve has died; start it again"
    except OSError as e:
        return f"there is no socket ({e.strerror}): prepd serve is not running, or has another prepd.endpoint"
    finally:
        if folder is not None:
            os.close(folder)
    return None


def read_keys(folder):
    """Reads a client's folder: (its public key, its secret key, the daemon's public key)."""
    try:
        with open(os.path.join(folder, "client.key"), encoding="ascii") as f:
            own = [line.split()[0].encode() for line in f.read().splitlines()[:2]]
        with open(os.path.join(folder, "daemon.pub"), encoding="ascii") as f:
            return *own, f.read().split()[0].encode()
    except OSError as e:
        raise type(e)(f"{e.filename}: cannot be read: {e.strerror}; on the daemon's machine run prepd keygen --out FOLDER "
                      "--client NAME (FOLDER is its prepd.keys), and copy FOLDER/NAME here") from None


def decisions_of(said, row=None):
    """The quarantine decisions in a list, its JSON text, or a cursor (an object or its text). row: of those that do not
    name theirs."""
    said = json.loads(said) if isinstance(said, str) else said
    said = said.get("quarantine") if isinstance(said, dict) else said
    for entry in said or []:
        check(isinstance(entry.get("id"), int) and isinstance(entry.get("cause"), str), "a quarantine list has an entry", entry)
        yield {k: v for k, v in (("id", entry["id"]), ("cause", entry["cause"]), ("row", entry.get("row", row))) if v is not None}


def merge_quarantine(states: Iterable[dict]) -> List[dict]:
    """The bad samples that any rank has heard of, each once, by rising id: [{"id":N,"cause":"...","row":R}..]. What is
    given back does not depend on the order of the ranks.

    states: what each rank has: a row of connect, or its "cursor" and "decisions" in a dictionary. The cause that was
    found in the lowest row stands. A decision without a row, which a cursor gives, comes after all others."""
    found: Dict[int, dict] = {}
    for state in states:
        for said in (state.get("decisions"), state.get("cursor")):
            for entry in decisions_of(said or []):
                found[entry["id"]] = min(found.get(entry["id"], entry), entry,
                                         key=lambda e: (e.get("row", float("inf")), e["cause"].encode()))
    return [found[key] for key in sorted(found)]


NO_PREFIXES = ("the row's samples share prefixes, and its doc_prefix says which (data.group shared_prefix): cu_seqlens alone "
               "would show questions without their pictures. Take the row's mask from masks.py, and say so with prefixes=True")


class Session:
    """A connection to a daemon, from HELLO to BYE. The arguments are those of connect. Closing it from another thread is what
    `stop` is for: once it is set, a call that waits raises InterruptedError."""

    def __init__(self, endpoint, stream="train", cursor=None, start_row=0, rank=0, ranks=1, credit_bytes=256 << 20, timeout=60.0,
                 keys=None, prefixes=False, quarantine=None, rows_later=True, run=None, consumer=None, watched=False, stop=None):
        import zmq  # here, so that recordings do not need it
        self.zmq, self.where, self.timeout, self.prefixes, self.stop = zmq, endpoint, timeout, prefixes, stop
        self.is_tcp, self.order, self.tagged, self.welcome, self.told = not endpoint.startswith("ipc://"), None, False, None, timeout <= TELL_S
        self.asked = (cursor, start_row, rank, ranks)
        self.heard = merge_quarantine([{"decisions": quarantine}])
        absence(endpoint)
        if xxh3_128 is None:
            print(f"tessera: {endpoint}: the digests of rows are not checked, because {NO_HASH}", file=sys.stderr, flush=True)
        self.keys = read_keys(keys) if keys and self.is_tcp else None
        self.folder = self.monitor = None
        self.greeted = False  # HELLO has been sent
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        try:
            self.reach(endpoint, watched)
            place = {"cursor": cursor}
            if quarantine:  # one list for both, since a long one must not be in HELLO twice
                cut = json.loads(cursor) if isinstance(cursor, str) and cursor else cursor
                place = {"cursor": dict(cut, quarantine=[]) if cut else None,
                         "quarantine": merge_quarantine([{"decisions": quarantine, "cursor": cursor}])}
            self.listed = len(place.get("quarantine", []))
            self.send(HELLO, {"version": SESSION_VERSION, "prefixes": prefixes, "program": "tessera for Python", "stream": stream,
                              "options": None, **place, "start_row": start_row, "rank": rank, "ranks": ranks,
                              "credit_bytes": credit_bytes, "rows_later": rows_later, "run": run, "consumer": consumer})
            self.greeted = True
        except BaseException as e:
            self.close()
            if isinstance(e, ValueError):
                raise ValueError(f"{endpoint}: {e}") from None
            raise

    def reach(self, endpoint, watched):
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

    def send(self, kind, message):
        text = json.dumps(message).encode()
        if len(text) > HELLO_LIMIT:
            size, longest = max((len(json.dumps(value)), name) for name, value in message.items())
            check(False, "a message has", len(text), "bytes,", size, "of them", longest + ", but prepd accepts", HELLO_LIMIT)
        head = HEADER.pack(b"TSRA", 1, kind, 0, 0, 0, len(text), 0, bytes(16), bytes(8))
        self.socket.send_multipart([head, text])

    def receive(self):
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

    def refuse(self, number, why):
        """Tells the daemon that a row is not what was ordered, and waits until it has ended the session."""
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

    def take_welcome(self, text):
        self.welcome = json.loads(text)
        check("recording" in self.welcome or (self.welcome.get("quarantined") or 0) >= self.listed,
              "this daemon is older than the quarantine list of HELLO, which it has not taken")
        self.order, self.tagged = Order(self.welcome, *self.asked), self.welcome.get("version", 0) >= SESSION_VERSION

    def take_row(self, parts):
        number, self.bytes = header(parts[0])[1], sum(len(p) for p in parts)
        check(self.order, "a row came before WELCOME")
        self.order.take(number)
        self.send(CREDIT, {"bytes": self.bytes})
        try:
            row = decode(parts, self.tagged)
        except ValueError as e:
            self.refuse(number, str(e))
        check(self.prefixes or "doc_prefix" not in row, NO_PREFIXES)
        own = list(decisions_of(row["quarantine"] or [], number))
        self.heard = merge_quarantine([{"decisions": self.heard}, {"decisions": own}]) if own else self.heard
        return dict(row, decisions=self.heard)

    def take(self):
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

    def call(self, what):
        try:
            return what()
        except self.zmq.Again:
            about_keys = ", and does it know these keys" if self.keys else ", and does it demand keys (keys=FOLDER, --keys)"
            why = absence(self.where) or f"is prepd serve running there{about_keys if self.is_tcp else ''}?"
            raise TimeoutError(f"{self.where}: nothing came for {self.timeout:g} s: {why}") from None
        except ValueError as e:
            raise ValueError(f"{self.where}: {e}") from None

    def open(self):
        """Waits for WELCOME."""
        self.call(self.take)

    def next(self):
        """The next row, or None after the last; without open() before."""
        row = self.call(self.take)
        return self.call(self.take) if row is True else row

    def close(self):
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


def connect(endpoint: str, stream: str = "train", cursor: Union[str, dict, None] = None, start_row: int = 0, rank: int = 0, ranks: int = 1,
            credit_bytes: int = 256 << 20, timeout: float = 60.0, keys: Optional[str] = None, prefixes: bool = False,
            quarantine: Optional[List[dict]] = None) -> Generator[Dict[str, Any], None, None]:
    """Yields the rows of a running daemon until the stream ends.

    cursor: the cursor of the last row taken, to go on after it. quarantine: what merge_quarantine gave of the rows that
    all ranks had taken by then. rank, ranks: which share of every step to get.
    credit_bytes: how many bytes of rows may be under way. timeout: the longest silence in seconds. keys: a client's
    folder made by `prepd keygen`, for a tcp endpoint with CURVE keys. prefixes: the caller heeds doc_prefix; otherwise a
    stream whose samples share prefixes is refused.

    Errors name the endpoint: TimeoutError after `timeout` seconds of silence, Refused (a RuntimeError) with the daemon's
    words, or because a row was not what the daemon had ordered of its worker, ValueError for a message that is malformed or out of order, PermissionError if this user may not use the
    socket. Nothing is tried again: call this again with the last cursor. A wait for a socket that does not exist is
    reported on stderr, once."""
    session = Session(endpoint, stream, cursor, start_row, rank, ranks, credit_bytes, timeout, keys, prefixes, quarantine)
    try:
        while (row := session.next()) is not None:
            yield row
    finally:
        session.close()


class Recording:
    """An opened recording. Every offset, size and hash in it is checked before it is used, as record_read.c does."""

    def __init__(self, path, data):
        self.path, self.data = path, data
        self.check(len(data) >= 32 and data[:4] == b"TSRR" and data[4:6] in (b"\1\0", b"\2\0"), "this is not a recording of version 1 or 2")
        self.tags = data[4:6] == b"\2\0"
        size = struct.unpack_from("<Q", data, 8)[0]
        self.check(size <= len(data) - 32, "the recording is cut short: it ends at byte", len(data), "inside its WELCOME")
        self.match(data[16:32], "the WELCOME does not match the hash in the head", data[32:32 + size])
        self.welcome = bytes(data[32:32 + size])
        first = (32 + size + 7) // 8 * 8  # the first chunk
        self.check(len(data) >= first + 32 and data[-4:] == b"TSRE", "the recording is cut short: it ends at byte", len(data),
                   "without its index; record it again")
        self.index, n_rows, n_images = struct.unpack("<QQI", data[-32:-12])
        self.check(first <= self.index and self.index + 8 * n_rows + 24 * n_images + 32 == len(data),
                   "an index of", n_rows, "rows and", n_images, "images cannot begin at byte", self.index, "- the file is damaged")
        self.match(data[-12:-4], "the index does not match the hash in the tail", data[self.index:-12])
        images = self.index + 8 * n_rows
        self.rows = [at for at, in struct.iter_unpack("<Q", data[self.index:images])]
        self.images = dict(struct.iter_unpack("<16sQ", data[images:-32]))

    def check(self, good, *words):
        check(good, f"{self.path}:", *words)

    def match(self, digest, words, data):
        """Compares the hash of the data with a digest, which may be the beginning of one."""
        self.check(xxh3_128 is None or hash_of(data)[:len(digest)] == digest, words + ": the file is damaged")

    def chunk(self, at, kind):
        """The payload of the chunk of this kind (1 image part, 2 row) at this byte."""
        what = "row" if kind == 2 else "image"
        there = at is not None and at + 32 <= self.index
        found, _, size = struct.unpack_from("<IIQ", self.data, at) if there else (0, 0, 0)
        self.check(there and found == kind and at + 32 + size <= self.index, "no", what, "begins at byte", at,
                   "though the index says so: the file is damaged")
        payload = self.data[at + 32:at + 32 + size]
        self.match(self.data[at + 16:at + 32], f"the {what} at byte {at} does not match its hash", payload)
        return payload

    def row(self, at):
        """The row whose chunk begins at this byte: the parts of its message."""
        row = self.chunk(at, 2)
        size = struct.unpack_from("<Q", row, 64)[0] if len(row) >= 72 else 0
        end = 72 + size + 16 * (header(row[:64])[2] if len(row) >= 64 else 0)
        hashes, tag = row[72 + size:end], row[end:]
        self.check(end <= len(row) and (self.tags or not len(tag)), "the row at byte", at, "has impossible sizes: the file is damaged")
        images = [self.images.get(hashes[i:i + 16]) for i in range(0, len(hashes), 16)]
        self.check(None not in images, "an image of the row at byte", at, "is not in the index: the file is damaged")
        return [row[:64], row[72:72 + size], *(self.chunk(image_at, 1) for image_at in images),
                *([tag] if len(tag) else [])]


@contextlib.contextmanager
def open_recording(path):
    """The Recording in a file."""
    with open(path, "rb") as f:
        check(os.fstat(f.fileno()).st_size > 0, f"{path}: this is not a recording, because it is empty")
        with mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield Recording(path, data)


def welcome_of(path):
    """WELCOME of a recording; its "rows" are those of the file."""
    with open_recording(path) as recording:
        return dict(json.loads(recording.welcome), rows=len(recording.rows))


def replay(path: str, unchecked: bool = False, prefixes: bool = False) -> Generator[Dict[str, Any], None, None]:
    """Yields the rows of a recording, once through. Errors name the file: ValueError for one that is damaged or cut short,
    and for one whose samples share prefixes, unless `prefixes` says that the caller heeds doc_prefix.

    Without python3-xxhash and libxxhash no hash can be computed, so damage may stay unseen: ImportError, unless
    `unchecked` says that this is accepted."""
    if xxh3_128 is None and not unchecked:
        raise ImportError(f"{path}: its hashes cannot be checked, because {NO_HASH}: install one of them, or accept an unchecked "
                          "file with unchecked=True (--unchecked)")
    with open_recording(path) as recording:
        before = start = None
        for at in recording.rows:
            parts = recording.row(at)
            number = header(parts[0])[1]
            recording.check(before is None or number in (before + 1, start), "row", number, "comes after row", before,
                            "- the recording is not of one stream")
            before, start = number, number if start is None else start
            row = decode(parts)
            recording.check(prefixes or "doc_prefix" not in row, NO_PREFIXES)
            yield row


def exit_code(error, live):
    """The exit code for an exception, from a daemon (live) or a recording."""
    if isinstance(error, Refused):
        return EXIT_CODES.get(error.code, 70)
    unsound = 76 if live else 65
    return next((code for kind, code in OWN_CODES.items() if isinstance(error, kind)), unsound)


class Parser(argparse.ArgumentParser):
    def error(self, message):
        self.print_usage(sys.stderr)
        self.exit(64, f"tessera: {message}\n")


def main():
    parser = Parser("tessera", description=__doc__)
    parser.add_argument("source", help="ipc://PATH, tcp://HOST:PORT or the file of a recording")
    parser.add_argument("--rows", type=int, default=0, help="stop after this many rows; 0 for all")
    parser.add_argument("--stream", default="train", help="train, eval or sample")
    parser.add_argument("--keys", help="folder with client.key and daemon.pub, made on the daemon's machine (prepd "
                                       "keygen --client NAME) and copied here")
    parser.add_argument("--timeout", type=float, default=60.0, help="longest silence, in seconds")
    parser.add_argument("--unchecked", action="store_true", help="read a recording although its hashes cannot be checked")
    parser.add_argument("--out", help="write the arrays of the last row to this .npz file")
    parser.add_argument("--mask", help="draw which tokens of the last row see which to this .png file")
    parser.add_argument("--overwrite", action="store_true", help="replace these files if they are there")
    args = parser.parse_args()
    for path in (args.out, args.mask):
        if path and os.path.exists(path) and not args.overwrite:
            print(f"tessera: {path}: this exists already; name another place, or say --overwrite", file=sys.stderr)
            sys.exit(EXIT_CODES["ST_CANT_CREATE"])
    live = args.source.startswith(("ipc://", "tcp://"))
    rows = (connect(args.source, args.stream, timeout=args.timeout, keys=args.keys, prefixes=True) if live
            else replay(args.source, args.unchecked, prefixes=True))
    row = None
    try:
        for n, row in enumerate(rows, 1):
            print("row", row["number"], "tokens", len(row["input_ids"]), "documents",
                  len(row["doc_sample_id"]), "items", len(row["grid_thw"]), "patches",
                  len(row["pixels"]), "digest", "unchecked" if xxh3_128 is None else "good", flush=True)
            if n == args.rows:
                break
    except (ImportError, OSError, RuntimeError, ValueError) as e:
        print(f"tessera: {e}", file=sys.stderr)
        sys.exit(exit_code(e, live))
    rows.close()
    if args.out and row is not None:
        np.savez(args.out, **{k: v for k, v in row.items() if isinstance(v, np.ndarray)})
    if args.mask and row is not None:
        masks.draw(row, args.mask)

