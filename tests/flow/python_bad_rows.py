# SPDX-License-Identifier: Apache-2.0
"""Bad rows: those of the fuzz targets' seeds with their members, numbers and bytes changed, and a few by name. The reader in numpy
takes what the C extension takes, answers everything else with a ValueError, so that a daemon gets a REFUSE and the stream continues,
and takes no more memory than a sound row may need. It needs python3-numpy, python3-zmq and python3-zstandard.

    python_bad_rows.py [ROWS]      changed rows of each seed, 150 unless said otherwise"""

import json
import os
import random
import resource
import struct
import sys
import tempfile
import threading

import numpy as np
import zmq
import zstandard

from prepd_flow import SOURCE, check, main

BUILT = os.path.join(os.path.dirname(os.path.abspath(os.environ.get("TESSERA_BIN", "build/bin"))), "python")
sys.path.insert(0, BUILT if os.path.isdir(BUILT) else os.path.join(SOURCE, "proto", "python"))
import tessera  # noqa: E402
from tessera import client, hashes, messages, row_readers  # noqa: E402

ROWS = int(sys.argv[1]) if len(sys.argv) > 1 else 150
SEEDS = os.path.join(SOURCE, "tests", "fuzz", "seeds", "codec")
ODD = [None, -1, 0, 1, 2**31, 2**63, 1.5, "", "x", [], [0], [[]], {}, {"a": 1}, [-1, 4], [0, 2**40], True, "BF16", "\ud800"]
if not row_readers._reader:
    print("skipped: the C extension, which was not built here; the reader in numpy alone is tested")
if hashes.xxh3_128 is None:
    print(f"skipped: digests, because {hashes.NO_HASH}")


class Change:
    """A row of a seed, as its block's JSON and data and its image parts, that can be changed and made a message again."""

    def __init__(self, name):
        with open(os.path.join(SEEDS, name), "rb") as f:
            flags, left, parts = f.read(1), f.read(), []
        check(flags == b"\1", f"{name} has a header of its own")
        while left:
            size, = struct.unpack_from("<I", left)
            parts.append(left[4:4 + size])
            left = left[4 + size:]
        size, = struct.unpack_from("<Q", parts[0])
        self.entries, self.data, self.images = json.loads(parts[0][8:8 + size]), parts[0][8 + size:], parts[1:]
        self.number, self.head, self.tag, self.packed, self.hashed = 7, {}, None, None, True

    def block(self):
        text = self.entries if isinstance(self.entries, bytes) else json.dumps(self.entries).encode()
        text += b" " * (-len(text) % 8)
        return struct.pack("<Q", len(text)) + text + self.data

    def arrays(self):
        row, _ = client.tensors(self.block())
        pixels = [messages.image(p, grid) for p, grid in zip(self.images, row["grid_thw"])]
        row["pixels"] = np.concatenate([np.zeros((0, 768), np.uint8), *(p for w, p in pixels if w == 768)])
        if any(w == 1536 for w, _ in pixels):
            row["pixels_video"] = np.concatenate([p for w, p in pixels if w == 1536])
        return row

    def order(self):
        """Writes the tag of the row as it is now, so that what is changed later is not what was ordered."""
        row = self.arrays()
        borders, docs = row["cu_seqlens"].tolist(), len(row["doc_sample_id"])
        self.tag = {"row": self.number, "worker": "w", "ids": row["doc_sample_id"].tolist(), "parts": row["doc_part"].tolist(),
                    "prefixes": row.get("doc_prefix", np.full(docs, -1)).tolist(), "lengths": np.diff(borders).tolist(),
                    "targets": [int((row["labels"][a:b] != -100).sum()) for a, b in zip(borders, borders[1:])],
                    "grids": row["grid_thw"].ravel().tolist(), "cursor": json.dumps({"stream": "train", "row": self.number + 1}),
                    "quarantine": "", "references": ""}

    def parts(self):
        block, digest = self.block(), bytes(16)
        try:
            digest = client.digest_of(self.arrays()) if self.hashed else digest
        except Exception:  # then it is bad without it
            pass
        heads = [struct.unpack_from("<Q", image, 8)[0] if len(image) >= 16 else 0 for image in self.images]
        kind, number, n, block_bytes, image_bytes = (self.head.get(k, v) for k, v in (
            ("kind", messages.ROW), ("row", self.number), ("n_images", len(self.images)), ("block", len(block)),
            ("images", min(sum(heads), 2**64 - 1))))
        head = messages.HEADER.pack(b"TSRA", 1, kind, number, n, 0, block_bytes, image_bytes, digest, bytes(8))
        tag = [json.dumps(self.tag).encode()] if self.tag is not None else []
        return [head, self.packed or zstandard.ZstdCompressor(level=1).compress(block), *self.images, *tag]


def flip(data, draw):
    """The bytes with a few of them changed, put in or taken out."""
    data = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(data)) if data else 0
        data[at:at + draw.randint(0, 2)] = bytes(draw.randrange(256) for _ in range(draw.choice((0, 1, 1, 2))))
    return bytes(data)


def change(row, draw):
    """Changes one thing or two of the row."""
    for _ in range(draw.choice((1, 1, 2))):
        names = [name for name in row.entries if name != "__metadata__"] if isinstance(row.entries, dict) else []
        how = draw.randrange(10)
        if how == 0 and names:
            row.entries.pop(draw.choice(names))
        elif how == 1 and names:
            row.entries[draw.choice(names)] = draw.choice(ODD)
        elif how == 2 and names:
            entry = row.entries[draw.choice(names)]
            if isinstance(entry, dict) and entry:
                entry[draw.choice(list(entry))] = draw.choice(ODD)
        elif how == 3 and names:
            row.entries[draw.choice(("__metadata__", "number", "bad_samples", "pixels", "x" * 100))] = draw.choice(ODD)
        elif how == 4:
            row.entries = flip(json.dumps(row.entries).encode(), draw) if isinstance(row.entries, dict) else row.entries
        elif how in (5, 6):  # a number of a tensor
            at = 4 * draw.randrange(max(1, len(row.data) // 4))
            old = int.from_bytes(row.data[at:at + 4], "little", signed=True)
            new = draw.choice((old + 1, old - 1, -1, -100, 0, 2**31 - 1, draw.randrange(2**31)))
            row.data = row.data[:at] + (new & 0xffffffff).to_bytes(4, "little") + row.data[at + 4:]
        elif how == 7 and row.images:
            k = draw.randrange(len(row.images))
            row.images[k] = flip(row.images[k][:48], draw) + row.images[k][48:] if draw.randrange(2) else flip(row.images[k], draw)
        elif how == 8 and row.images:
            row.images.pop(draw.randrange(len(row.images))) if draw.randrange(2) else row.images.append(draw.choice(row.images))
        else:
            row.head[draw.choice(("kind", "row", "n_images", "block", "images"))] = draw.choice((0, 1, 2, 4, 2**16 - 1))
    if draw.randrange(20) == 0:
        row.packed = flip(zstandard.ZstdCompressor(level=1).compress(row.block()), draw)


def record(path, parts, tagged):
    """Writes a recording of this one row."""
    hash_of, body = hashes.hash_of, b""
    n = struct.unpack_from("<I", parts[0], 16)[0]
    images, tag = parts[2:2 + n], parts[2 + n:]

    def chunk(kind, data):
        at = first + len(body)
        return at, struct.pack("<IIQ", kind, 0, len(data)) + hash_of(data) + data + bytes(-len(data) % 8)
    welcome = b'{"stream":"train","rank":0,"ranks":1,"rows":1,"row":7,"version":3}'
    head = b"TSRR" + struct.pack("<HHQ", 2, 0, len(welcome)) + hash_of(welcome) + welcome
    head += bytes(-len(head) % 8)
    first, places = len(head), {}
    for image in images:
        if hash_of(image) not in places:
            places[hash_of(image)], made = chunk(1, image)
            body += made
    names = b"".join(hash_of(image) for image in images)
    row, made = chunk(2, parts[0] + struct.pack("<Q", len(parts[1])) + parts[1] + names + b"".join(tag))
    body += made
    index = struct.pack("<Q", row) + b"".join(name + struct.pack("<Q", at) for name, at in sorted(places.items()))
    index += struct.pack("<QQI", first + len(body), 1, len(places))
    with open(path, "wb") as f:
        f.write(head + body + index + hash_of(index)[:8] + b"TSRE")


def by_numpy(parts, tagged):
    """The row's arrays and texts; None: refused."""
    try:
        row = messages.decode(parts, tagged)
    except ValueError:
        return None
    return {k: (str(v.dtype), v.shape, v.tobytes()) if isinstance(v, np.ndarray) else v for k, v in row.items()}


def by_extension(path, parts, tagged):
    record(path, parts, tagged)
    reader = row_readers._reader.Reader()
    reader.open_recording(path)
    try:
        number, _, arrays, texts = reader.next()
    except row_readers._reader.Failure as failure:
        check(isinstance(row_readers.exception_of(*failure.args), ValueError), f"{failure!r}")
        return None
    finally:
        reader.close()
    texts.pop("worker")
    row = dict(row_readers.arrays_of(arrays), number=number, **texts)
    return {k: (str(v.dtype), v.shape, v.tobytes()) if isinstance(v, np.ndarray) else v for k, v in row.items()}


def both_readers_take_the_same_rows():
    both = row_readers._reader and hashes.xxh3_128
    with tempfile.TemporaryDirectory() as folder:
        path, taken, n = os.path.join(folder, "row.rec"), 0, 0
        for name in sorted(s for s in os.listdir(SEEDS) if s.startswith("open_")):
            for k in range(ROWS + 1):
                draw = random.Random(f"{name} {k}")
                row = Change(name)
                if k % 2:
                    row.order()
                if k > 0:
                    change(row, draw)
                parts, tagged = row.parts(), row.tag is not None
                got = by_numpy(parts, tagged)
                check(k > 0 or got, f"{name} itself is refused")
                n, taken = n + 1, taken + bool(got)
                if both and tagged and len(parts) == 2 + row.head.get("n_images", len(row.images)) + tagged:
                    wanted = by_extension(path, parts, tagged)
                    check(got == wanted, f"{name}, change {k}: numpy {'takes' if got else 'refuses'} it, the extension "
                          f"{'takes' if wanted else 'refuses'} it")
        check(n // 100 < taken < n, f"{taken} of {n} rows were taken")
        print(f"{n} rows, of which {taken} were taken", flush=True)


def bad_ones():
    """Rows of which each once ended the reader with another error, or without a REFUSE."""
    for name, made in (("a missing tensor", lambda row: row.entries.pop("input_ids")), ("an entry that is no object", lambda row: row.entries.update(labels=3)),
                       ("a list of entries", lambda row: setattr(row, "entries", b"[]")), ("metadata that is a list", lambda row: row.entries.update(__metadata__=[])),
                       ("no zstd frame", lambda row: setattr(row, "packed", b"none")), ("nested lists", lambda row: setattr(row, "entries", b"[" * 10**5)),
                       ("a long name", lambda row: row.entries.update({"\ud800" + "x" * (9 << 20): 1})), ("an unknown type", lambda row: row.entries["labels"].update(dtype="BF16"))):
        row = Change("open_image")
        row.number = 0
        row.order()
        made(row)
        yield name, row.parts()


def a_bad_row_is_refused_and_the_stream_goes_on():
    """A daemon that sends one bad row after another hears a REFUSE for each, and the loop never sees them."""
    bad, good = list(bad_ones()), Change("open_image")
    good.number = 0
    good.order()
    heard, context = [], zmq.Context()
    with tempfile.TemporaryDirectory() as folder:
        end = "ipc://" + os.path.join(folder, "d.sock")
        socket = context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.RCVTIMEO, 30000)
        socket.setsockopt(zmq.LINGER, 0)
        socket.bind(end)

        def say(peer, kind, said):
            text = json.dumps(said).encode()
            socket.send_multipart([peer, messages.message_head(kind, len(text)), text])

        def serve():
            try:
                while len(heard) <= len(bad):
                    peer, head, *rest = socket.recv_multipart()
                    kind = messages.header(head)[0]
                    if kind == messages.HELLO:
                        say(peer, messages.WELCOME, {"version": 3, "row": 0, "global_batch_size": 1, "rows": 1})
                        socket.send_multipart([peer, *(bad[len(heard)][1] if len(heard) < len(bad) else good.parts())])
                    elif kind == messages.REFUSE:
                        heard.append(json.loads(rest[0]))
                        say(peer, messages.ERROR, {"code": "ST_STOPPED", "message": "row refused"})
                    elif kind == messages.CREDIT and len(heard) == len(bad):
                        heard.append(None)
                        say(peer, messages.END, {"rows": 1})
            except zmq.Again:
                pass  # the reader has ended; what was heard says how far it came
        daemon = threading.Thread(target=serve)
        daemon.start()
        rows = tessera.Rows(end, native=False, timeout=20.0, prefetch=1)
        try:
            got = [row["number"] for row in rows]
        except Exception as e:
            check(False, f"{bad[len(heard)][0]}: the loop ended with {e!r:.300}")
        finally:
            rows.close()
            daemon.join()
            socket.close()
    context.term()
    check(got == [0] and [h["row"] for h in heard[:-1]] == [0] * len(bad), f"{got}, {heard}")
    check(all(0 < len(h["message"]) < 1000 for h in heard[:-1]), f"reasons of {[len(h['message']) for h in heard[:-1]]} characters")


def zeros(size):
    """A zstd frame of so many zeros, which takes four bytes for each 128 KiB."""
    blocks, left = b"", size
    while left:
        now = min(left, 128 << 10)
        left -= now
        blocks += (now << 3 | 2 | (not left)).to_bytes(3, "little") + b"\0"
    return b"\x28\xb5\x2f\xfd\xa0" + struct.pack("<I", size) + blocks


def memory_is_bounded_before_it_is_decoded():
    """Image parts of a gigabyte each, of which the header has room for one, and one that was not ordered."""
    grid, n = (1, 1024, 1364), 1024 * 1364
    part = messages.IMAGE_HEAD.pack(1, 1, 768, n, n * 768, bytes(8), len(zeros(n * 768))) + zeros(n * 768)
    for images, tagged in ((3, False), (1, True)):
        row = Change("open_text")
        row.entries["grid_thw"]["shape"] = [images, 3]
        at = row.entries["grid_thw"]["data_offsets"][0]
        for entry in row.entries.values():
            if "data_offsets" in entry and entry["data_offsets"][0] >= at and entry is not row.entries["grid_thw"]:
                entry["data_offsets"] = [x + 12 * images for x in entry["data_offsets"]]
        row.entries["grid_thw"]["data_offsets"][1] += 12 * images
        row.data = row.data[:at] + struct.pack("<3i", *grid) * images + row.data[at:]
        row.images, row.head, row.hashed = [part] * images, {"images": n * 768}, False
        if tagged:
            tag = Change("open_text")
            tag.order()
            row.tag = tag.tag
        parts = row.parts()
        child = os.fork()
        if child == 0:
            with open("/proc/self/statm") as f:
                now = int(f.read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (now + (512 << 20),) * 2)
            try:
                messages.decode(parts, tagged)
            except ValueError:
                os._exit(0)
            except BaseException as e:
                print(f"{e!r}", file=sys.stderr, flush=True)
            os._exit(1)
        check(os.waitpid(child, 0)[1] == 0, f"{images} image parts of {n * 768} bytes each were decoded")


main(both_readers_take_the_same_rows, a_bad_row_is_refused_and_the_stream_goes_on, memory_is_bounded_before_it_is_decoded)
