# SPDX-License-Identifier: Apache-2.0
"""check_masks.py FOLDER: the masks of tessera/masks.py are those of a loop over every pair of tokens, on trees drawn at random; a
row whose documents cannot be is refused with its place; borders alone are not given of a row with prefixes; the picture of a
mask shows it. Exit code 77 (skipped): python3-numpy is missing."""
import os
import struct
import sys
import tempfile
import zlib

try:
    import numpy as np
except ImportError:
    print("skipped: no python3-numpy")
    sys.exit(77)

sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[1])
from tessera import masks  # noqa: E402


def draw_row(draw, trees=4):
    """A row of trees (a prefix and two or more branches) and ordinary documents, and for each token its document and the list
    of documents that it may see, kept beside it while it is drawn."""
    lengths, prefix, part, seen = [], [], [], []
    for _ in range(trees):
        branches = int(draw.integers(2, 9)) * int(draw.integers(0, 4) > 0)
        for i in range(branches + 1):
            root = len(lengths) - i if i else -1
            lengths.append(int(draw.integers(1, 12)))
            prefix.append(root)
            part.append(-1 if branches and not i else 0)
            seen.append({len(lengths) - 1, root} - {-1})
    row = {"cu_seqlens": np.cumsum([0] + lengths).astype(np.int32), "doc_part": np.array(part, np.int32), "number": 7}
    if max(prefix) >= 0:
        row["doc_prefix"] = np.array(prefix, np.int32)
    tokens = sum(lengths)
    row["input_ids"] = np.arange(tokens, dtype=np.int32)
    row["visual_row"] = np.where(draw.random(tokens) < 0.5, 1, -1).astype(np.int32)
    row["labels"] = np.where(draw.random(tokens) < 0.5, 3, -100).astype(np.int32)
    return row, [(d, seen[d]) for d, n in enumerate(lengths) for _ in range(n)]


def masks_are_those_of_every_pair():
    draw = np.random.default_rng(1)
    shared = 0
    for i in range(60):
        row, tokens = draw_row(draw, trees=1 + i % 4)
        want = np.array([[k <= q and document in seen for k, (document, _) in enumerate(tokens)] for q, (_, seen) in enumerate(tokens)])
        shared += "doc_prefix" in row
        mask_mod = masks.mask_function(row, device=None)
        place = np.arange(len(tokens))
        assert (mask_mod(0, 0, place[:, None], place[None]) == want).all(), row
        assert all(mask_mod(0, 0, q, k) == want[q, k] for q, k in draw.integers(0, len(tokens), (20, 2))), row
        got = masks.mask_4d(row)
        assert got.dtype == bool and got.shape == (1, 1, *want.shape) and (got[0, 0] == want).all(), row
        for kind in (np.float32, "float16"):
            got = masks.mask_4d(row, kind)
            assert got.dtype == kind and (got[0, 0] == np.where(want, 0, np.finfo(kind).min)).all(), row
    assert 40 < shared < 60, shared


def borders_alone_are_refused_where_there_are_prefixes():
    draw = np.random.default_rng(2)
    for _ in range(20):
        row, _ = draw_row(draw, trees=1)
        refused = refusal(masks.cu_seqlens, row)
        if "doc_prefix" in row:
            branch = int(np.flatnonzero(row["doc_prefix"] >= 0)[0])
            place = f"row 7: document {branch} is a branch of document {row['doc_prefix'][branch]}, and cu_seqlens cannot say so"
            assert refused and refused.startswith(place), refused
        else:
            assert refused is None and (masks.cu_seqlens(row) == row["cu_seqlens"]).all(), refused


def refusal(function, *arguments):
    """What the call is refused with, or None."""
    try:
        function(*arguments)
    except ValueError as e:
        return str(e)
    return None


def impossible_documents_are_refused_with_their_place():
    """The row: prefix 0 with the branches 1 and 2, the ordinary document 3, prefix 4 with the branches 5 to 7."""
    good = {"cu_seqlens": np.arange(0, 27, 3), "doc_prefix": np.array([-1, 0, 0, -1, -1, 4, 4, 4]),
            "doc_part": np.array([-1, 0, 0, 0, -1, 0, 0, 0]), "number": 12}

    def changed(**members):
        row = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in good.items()}
        for name, (at, value) in members.items():
            row[name][at] = value
        return row
    assert refusal(masks.documents, good) is None
    assert refusal(masks.documents, {k: v for k, v in good.items() if k != "doc_part"}) is None
    cases = [
        (changed(doc_prefix=(1, 1)), "doc_prefix[1] is 1: the document itself"),
        (changed(doc_prefix=(1, 4)), "doc_prefix[1] is 4: a document after it"),
        (changed(doc_prefix=(6, 5)), "doc_prefix[6] is 5: itself a branch, of document 4"),
        (changed(doc_prefix=(6, 8)), "doc_prefix[6] is 8: the row has 8 documents"),
        (changed(doc_prefix=(6, -2)), "doc_prefix[6] is -2: the row has 8 documents"),
        (changed(doc_prefix=(6, 0)), "doc_prefix[6] is 0: not directly before it"),
        (changed(doc_prefix=(4, 3)), "doc_prefix[5] is 4: itself a branch, of document 3"),
        (changed(doc_prefix=(1, -1)), "doc_prefix[2] is 0: not directly before it"),
        (changed(doc_prefix=(2, -1)), "document 0 is the prefix of one branch alone"),
        (changed(doc_part=(0, 0)), "doc_part[0] is 0 of a document with 2 branches"),
        (changed(doc_part=(3, -1)), "doc_part[3] is -1 of a document with 0 branches"),
        (changed(cu_seqlens=(0, 1)), "cu_seqlens does not begin with 0"),
        (changed(cu_seqlens=(3, 6)), "cu_seqlens[3] is 6, expected more than 6"),
        ({**good, "input_ids": np.zeros(23)}, "cu_seqlens ends at 24 of 23 tokens"),
        ({**good, "doc_prefix": good["doc_prefix"][:-1]}, "it has 8 documents, but 7 values"),
        ({**good, "doc_prefix": np.full(8, -1), "doc_part": np.zeros(8, int)}, "doc_prefix names no prefix"),
        (changed(doc_part=(0, -2)), "doc_part[0] is -2 of a document with 2 branches"),
        ({**good, "cu_seqlens": np.array([], int)}, "cu_seqlens is absent or empty"),
        ({**good, "cu_seqlens": []}, "cu_seqlens is absent or empty"),
        ({k: v for k, v in good.items() if k != "cu_seqlens"}, "cu_seqlens is absent or empty"),
        ({**good, "cu_seqlens": good["cu_seqlens"][None]}, "cu_seqlens has the type int64 and the shape (1, 9), expected a list"),
        ({**good, "doc_prefix": good["doc_prefix"] + 0.5}, "doc_prefix has the type float64 and the shape (8,), expected a list"),
        ({**good, "doc_part": good["doc_part"].astype(bool)}, "doc_part has the type bool and the shape (8,), expected a list"),
    ]
    for row, words in cases:
        for function in (masks.documents, masks.mask_4d, masks.cu_seqlens, lambda r: masks.mask_function(r, None)):
            said = refusal(function, row)
            assert said and said.startswith("row 12: ") and words in said, f"expected: {words}; said: {said}"


def read_png(path):
    with open(path, "rb") as f:
        data = f.read()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, lines = 8, b""
    while at < len(data):
        size, kind = struct.unpack_from(">I4s", data, at)
        body = data[at + 8:at + 8 + size]
        assert struct.unpack_from(">I", data, at + 8 + size)[0] == zlib.crc32(kind + body), kind
        if kind == b"IHDR":
            width, height, *form = struct.unpack(">IIBBBBB", body)
        lines += body if kind == b"IDAT" else b""
        at += 12 + size
    assert form == [8, 2, 0, 0, 0] and kind == b"IEND"
    lines = np.frombuffer(zlib.decompress(lines), np.uint8).reshape(height, 1 + 3 * width)
    assert (lines[:, 0] == 0).all()
    return lines[:, 1:].reshape(height, width, 3)


def the_picture_shows_the_mask():
    """Of a short row every token is a square of one colour; of a long one a pixel is the mean of its tokens."""
    draw = np.random.default_rng(3)
    row, _ = draw_row(draw)
    while "doc_prefix" not in row:
        row, _ = draw_row(draw)
    long = {"cu_seqlens": np.array([0, 900, 1500, 2000, 2100]), "doc_part": np.array([-1, 0, 0, 0]),
            "doc_prefix": np.array([-1, 0, 0, -1]), "visual_row": np.full(2100, -1), "labels": np.full(2100, -100)}
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "mask.png")
        masks.draw(row, path)
        shown = read_png(path)
        masks.draw(long, path)
        shrunk = read_png(path)
    seen = masks.mask_4d(row)[0, 0]
    tokens, first = len(seen), len(shown) - masks.GAP
    times = 16 if tokens * 16 <= 1000 else 1000 // tokens
    first -= tokens * times
    square = shown[first + times // 2:, first + times // 2:][:tokens * times:times, :tokens * times:times]
    assert ((square == masks.UNSEEN).all(-1) == ~seen).all()
    document, before = masks.by_token(row)
    assert ((square == masks.SHARED).all(-1) == (before[:, None] == document)).all()
    is_prefix = np.isin(document, before[before >= 0])
    for colour, kind in ((masks.PREFIX, is_prefix), (masks.BRANCH, before >= 0), (masks.ORDINARY, ~is_prefix & (before < 0))):
        own = (document[:, None] == document) & seen & kind[:, None]
        assert ((square == colour).all(-1) == own).all(), colour
    # 2,100 tokens, three to a pixel: 700 pixels. On the diagonal a pixel has six of nine pairs.
    first = len(shrunk) - masks.GAP - 700
    assert (shrunk[first + 400, first:first + 300] == masks.SHARED).all()
    assert (shrunk[first + 400, first + 401:first + 700] == masks.UNSEEN).all()
    assert (shrunk[first + 600, first + 300:first + 500] == masks.UNSEEN).all()
    mixed = np.round((6 * np.array(masks.BRANCH) + 3 * np.array(masks.UNSEEN)) / 9)
    assert refusal(masks.picture, {"cu_seqlens": np.array([0])}) == "a row without tokens has no picture"
    assert (shrunk[first + 400, first + 400] == mixed).all(), (shrunk[first + 400, first + 400], mixed)


for case in (masks_are_those_of_every_pair, borders_alone_are_refused_where_there_are_prefixes,
             impossible_documents_are_refused_with_their_place, the_picture_shows_the_mask):
    case()
    print(case.__name__.replace("_", " "))
