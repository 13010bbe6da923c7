# SPDX-License-Identifier: Apache-2.0
"""Says which tokens of a row see which, for an attention that is not Tessera's own: as a function (PyTorch's FlexAttention),
as a 4-D mask (transformers) and as a picture. proto/python.md says how to use it.

A token sees itself and the tokens before it in its own document. A token of a branch, a document whose doc_prefix names
another one, also sees all of that other one, its prefix. cu_seqlens alone does not say so: whoever goes by it trains branches
without their prefix, which is where their pictures are. Rows are dictionaries as client.py yields them; needed are cu_seqlens
and, where they are there, doc_prefix and doc_part. Only numpy is needed; torch is imported where a tensor is asked for."""
import struct
import zlib
from typing import Any, Callable, Dict, Tuple

import numpy as np


def documents(row: Dict[str, Any]) -> Tuple[np.ndarray, np.ndarray]:
    """Where the documents of a row begin and end, and what comes before them: (cu_seqlens [D + 1], doc_prefix [D], -1 for a
    document without a prefix). ValueError names the document whose numbers are impossible."""
    def check(good: Any, *words: Any) -> None:
        if not good:
            raise ValueError(" ".join(str(w) for w in (f"row {row['number']}:" if "number" in row else "the row:", *words)))

    def list_of(name: str, absent: Any) -> np.ndarray:
        values = np.asarray(absent if row.get(name) is None else row[name])
        check(values.ndim == 1 and (values.dtype.kind in "iu" or not len(values)), f"{name} has the type {values.dtype} and the "
              f"shape {values.shape}, expected a list of integers")
        return values.astype(np.int64)

    borders = list_of("cu_seqlens", [])
    check(len(borders) > 0, "cu_seqlens is absent or empty, expected 0 and the end of every document")
    n = len(borders) - 1
    prefix = list_of("doc_prefix", np.full(n, -1))
    part = list_of("doc_part", np.where(np.isin(np.arange(len(prefix)), prefix), -1, 0))
    check(borders[0] == 0, "cu_seqlens does not begin with 0")
    for d in range(n):
        check(borders[d] < borders[d + 1], f"cu_seqlens[{d + 1}] is {borders[d + 1]}, expected more than {borders[d]}")
    check("input_ids" not in row or len(row["input_ids"]) == borders[-1], "cu_seqlens ends at", borders[-1], "of",
          len(row.get("input_ids", ())), "tokens")
    check(len(prefix) == n == len(part), f"it has {n} documents, but {len(prefix)} values of doc_prefix and {len(part)} of doc_part")
    for d, p in enumerate(prefix):
        where = f"doc_prefix[{d}] is {p}:"
        check(-1 <= p < n, where, "the row has", n, "documents")
        check(p != d, where, "the document itself")
        check(p < d, where, "a document after it")
        check(p < 0 or prefix[p] < 0, where, "itself a branch, of document", prefix[p])
        check(p in (-1, d - 1, prefix[d - 1]), where, "not directly before it and its other branches")
    branches = np.bincount(prefix[prefix >= 0], minlength=n)
    for d in range(n):
        check(branches[d] != 1, f"document {d} is the prefix of one branch alone, expected two or more")
        check(part[d] >= -1 and (part[d] == -1) == (branches[d] > 0), f"doc_part[{d}] is {part[d]} of a document with {branches[d]} "
              "branches, expected -1 of a prefix and of no other")
    check(row.get("doc_prefix") is None or branches.any(), "doc_prefix names no prefix, expected none to be there")
    return borders, prefix


def by_token(row: Dict[str, Any]) -> Tuple[np.ndarray, np.ndarray]:
    """The document of every token [T], and the prefix that comes before that document [T], or -1."""
    borders, prefix = documents(row)
    document = np.repeat(np.arange(len(prefix)), np.diff(borders))
    return document, prefix[document]


def mask_function(row: Dict[str, Any], device: Any = "cpu") -> Callable[..., Any]:
    """The row's mask as FlexAttention's create_block_mask takes it: mask_mod(b, h, q_idx, kv_idx), true where the token
    q_idx sees the token kv_idx. Its tensors lie on `device`; None makes it a function of numpy arrays. It is of this row
    alone, so B and H are None, and Q_LEN and KV_LEN are the row's tokens."""
    document: Any
    before: Any
    document, before = by_token(row)
    if device is not None:
        import torch
        document, before = (torch.from_numpy(a).to(device) for a in (document, before))

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        shown = document[kv_idx]
        return (kv_idx <= q_idx) & ((shown == document[q_idx]) | (shown == before[q_idx]))
    return mask_mod


def mask_4d(row: Dict[str, Any], dtype: Any = bool, device: Any = "cpu") -> Any:
    """The row's mask [1, 1, T, T] as transformers takes it for attention_mask: true where the query (third axis) sees the
    key (fourth), or for a float type what is added to the scores, 0 there and the least finite number elsewhere. A dtype of
    torch gives a tensor on `device`, one of numpy an array. sdpa takes bool, eager needs the model's float type. T tokens
    take T * T times the size of the dtype: at 8,192 tokens 64 MiB as bool, 256 MiB as float32."""
    borders, prefix = documents(row)
    seen = np.zeros((borders[-1], borders[-1]), bool)
    for d, p in enumerate(prefix):
        own = slice(borders[d], borders[d + 1])
        seen[own, own] = np.tri(borders[d + 1] - borders[d], dtype=bool)
        if p >= 0:
            seen[own, borders[p]:borders[p + 1]] = True
    seen = seen[None, None]
    if type(dtype).__module__ == "torch":
        import torch
        tensor = torch.from_numpy(seen).to(device)
        if dtype == torch.bool:
            return tensor
        return torch.zeros(tensor.shape, dtype=dtype, device=device).masked_fill_(~tensor, torch.finfo(dtype).min)
    dtype = np.dtype(dtype)
    return seen if dtype == bool else np.where(seen, dtype.type(0), np.finfo(dtype).min)


def cu_seqlens(row: Dict[str, Any]) -> np.ndarray:
    """The borders of a row's documents [D + 1], for attention that knows documents and no more (FlashAttention's varlen
    functions). ValueError names the prefix of a row that has one, since such attention would train its branches without it."""
    borders, prefix = documents(row)
    if (prefix >= 0).any():
        name = f"row {row['number']}" if "number" in row else "the row"
        raise ValueError(f"{name}: document {int(np.argmax(prefix >= 0))} is a branch of document {prefix[prefix >= 0][0]}, and "
                         "cu_seqlens cannot say so: use mask_function or mask_4d, or serve the stream with another data.group")
    return np.asarray(row["cu_seqlens"])


# The picture. Colours of what a token sees: its own document, if that is an ordinary one, a prefix or a branch; its prefix.
ORDINARY, PREFIX, BRANCH, SHARED = (120, 120, 130), (0, 95, 140), (215, 95, 30), (120, 185, 215)
UNSEEN, BORDER, PAGE = (244, 244, 240), (205, 205, 200), (255, 255, 255)
TEXT, VISUAL, TARGET = (225, 225, 225), (90, 160, 60), (40, 40, 40)  # of the bands: what kind of token it is
SIDE, BAND, GAP = 1000, 10, 4  # pixels: about the side of the square; the width of a band; the space between them


def write_png(path: str, pixels: np.ndarray) -> None:
    """Writes pixels [height, width, 3] u8 as a PNG."""
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    height, width, _ = pixels.shape
    lines = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)
    with open(path, "wb") as f:
        f.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
                + chunk(b"IDAT", zlib.compress(lines.tobytes(), 9)) + chunk(b"IEND", b""))


def shrink(colours: np.ndarray, by: int) -> np.ndarray:
    """The means of `by` neighbours along the second to last axis; the last group may have fewer."""
    edges = np.arange(0, colours.shape[-2], by)
    sums = np.add.reduceat(colours, edges, axis=-2)
    return sums / np.diff(np.append(edges, colours.shape[-2]))[:, None]


def picture(row: Dict[str, Any]) -> np.ndarray:
    """A picture of the row's mask, u8 [height, width, 3]: a line for each token, a column for each token it may see. A long
    row is shrunk, a pixel being the mean of several tokens, and a short one enlarged. The bands at the left and at the top
    show the document's kind, and whether a token is text, visual or a target."""
    document, before = by_token(row)
    tokens = len(document)
    if tokens == 0:
        raise ValueError("a row without tokens has no picture")
    by, times = -(-tokens // SIDE), max(1, min(SIDE // tokens, 16))
    kind = np.where(before >= 0, 2, np.isin(document, before[before >= 0]))
    palette = np.array([ORDINARY, PREFIX, BRANCH, SHARED, UNSEEN, BORDER], float)
    lines, place = [], np.arange(tokens)
    sees = mask_function(row, device=None)
    for first in range(0, tokens, by):
        query = place[first:first + by, None]
        what = np.where(document[query] == document, kind[query], 3)
        what = np.where(sees(0, 0, query, place), what, 4)
        lines.append(shrink(palette[what].mean(0), by))
    square = np.array(lines).reshape(-(-tokens // by), -1, 3).repeat(times, 0).repeat(times, 1)
    if times > 2:  # a token is large enough for a line before each document to leave something of it
        begins = np.zeros(len(square), bool)
        begins[(np.flatnonzero(np.diff(document)) + 1) * times] = True
        square[(begins[:, None] | begins) & (square == UNSEEN).all(-1)] = BORDER
    token = np.array([TEXT, VISUAL, TARGET], float)[np.where(np.asarray(row["visual_row"]) >= 0, 1,
                                                             2 * (np.asarray(row["labels"]) >= 0))]
    bands = [shrink(band, by).repeat(times, 0) for band in (palette[kind], token)]
    first = GAP + 2 * (BAND + GAP)
    page = np.empty((first + len(square) + GAP, first + len(square) + GAP, 3))
    page[:] = PAGE
    for i, band in enumerate(bands):
        at = slice(GAP + i * (BAND + GAP), GAP + i * (BAND + GAP) + BAND)
        page[first:-GAP, at], page[at, first:-GAP] = band[:, None], band[None]
    page[first:-GAP, first:-GAP] = square
    return page.round().astype(np.uint8)


def draw(row: Dict[str, Any], path: str) -> None:
    """Draws the row's mask as a PNG."""
    write_png(path, picture(row))
