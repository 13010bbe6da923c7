# SPDX-License-Identifier: Apache-2.0
"""Rows kept in a file (proto/wire.md, "Recordings")."""
import contextlib
import json
import mmap
import os
import struct
from typing import Any, Dict, Generator, Iterator, List

from . import hashes
from .messages import decode, header
from .stream_errors import NO_PREFIXES, check


class Recording:
    """An opened recording. Every offset, size and hash in it is checked before it is used, as record_read.c does."""

    def __init__(self, path: str, data: mmap.mmap):
        self.path, self.data = path, data
        self.check(len(data) >= 32 and data[:4] == b"TSRR" and data[4:6] == b"\2\0", "this is not a recording of version 2")
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

    def check(self, good: Any, *words: Any) -> None:
        check(good, f"{self.path}:", *words)

    def match(self, digest: bytes, words: str, data: bytes) -> None:
        """Compares the hash of the data with a digest, which may be the beginning of one."""
        self.check(hashes.xxh3_128 is None or hashes.hash_of(data)[:len(digest)] == digest, words + ": the file is damaged")

    def chunk(self, at: int, kind: int) -> bytes:
        """The payload of the chunk of this kind (1 image part, 2 row) at this byte."""
        what = "row" if kind == 2 else "image"
        there = at + 32 <= self.index
        found, _, size = struct.unpack_from("<IIQ", self.data, at) if there else (0, 0, 0)
        self.check(there and found == kind and at + 32 + size <= self.index, "no", what, "begins at byte", at,
                   "though the index says so: the file is damaged")
        payload = self.data[at + 32:at + 32 + size]
        self.match(self.data[at + 16:at + 32], f"the {what} at byte {at} does not match its hash", payload)
        return payload

    def row(self, at: int) -> List[bytes]:
        """The row whose chunk begins at this byte: the parts of its message."""
        row = self.chunk(at, 2)
        size = struct.unpack_from("<Q", row, 64)[0] if len(row) >= 72 else 0
        end = 72 + size + 16 * (header(row[:64])[2] if len(row) >= 64 else 0)
        names, tag = row[72 + size:end], row[end:]
        self.check(end <= len(row) and (self.tags or not len(tag)), "the row at byte", at, "has impossible sizes: the file is damaged")
        images: List[Any] = [self.images.get(names[i:i + 16]) for i in range(0, len(names), 16)]
        self.check(None not in images, "an image of the row at byte", at, "is not in the index: the file is damaged")
        return [row[:64], row[72:72 + size], *(self.chunk(image_at, 1) for image_at in images),
                *([tag] if len(tag) else [])]


@contextlib.contextmanager
def open_recording(path: str) -> Iterator[Recording]:
    """The Recording in a file."""
    with open(path, "rb") as f:
        check(os.fstat(f.fileno()).st_size > 0, f"{path}: this is not a recording, because it is empty")
        with mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield Recording(path, data)


def welcome_of(path: str) -> Dict[str, Any]:
    """WELCOME of a recording; its "rows" are those of the file."""
    with open_recording(path) as recording:
        return dict(json.loads(recording.welcome), rows=len(recording.rows))


def replay(path: str, unchecked: bool = False, prefixes: bool = False) -> Generator[Dict[str, Any], None, None]:
    """Yields the rows of a recording, once through. Errors name the file: ValueError for one that is damaged or cut short,
    and for one whose samples share prefixes, unless `prefixes` says that the caller heeds doc_prefix.

    Without python3-xxhash and libxxhash no hash can be computed, so damage may stay unseen: ImportError, unless
    `unchecked` says that this is accepted."""
    if hashes.xxh3_128 is None and not unchecked:
        raise ImportError(f"{path}: its hashes cannot be checked, because {hashes.NO_HASH}: install one of them, or accept an unchecked "
                          "file with unchecked=True (--unchecked)")
    with open_recording(path) as recording:
        before = start = None
        for at in recording.rows:
            try:
                parts = recording.row(at)
                number, row = header(parts[0])[1], decode(parts)
            except ValueError as e:
                raise ValueError(str(e) if str(e).startswith(path) else f"{path}: {e}") from None
            recording.check(before is None or number in (before + 1, start), "row", number, "comes after row", before,
                            "- the recording is not of one stream")
            before, start = number, number if start is None else start
            recording.check(prefixes or "doc_prefix" not in row, NO_PREFIXES)
            yield row
