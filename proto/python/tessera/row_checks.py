# SPDX-License-Identifier: Apache-2.0
"""What a row must be beyond its form: documents and prefixes that make sense (as proto/row/batch_check.c has it), and what the daemon
had ordered of the worker that made it (as proto/row/tag.c has it). ValueError says what is wrong."""
from typing import Any, Dict, List

import numpy as np

from . import masks
from .stream_errors import check

LISTS = {"cu_seqlens": np.int32, "doc_part": np.int32, "doc_prefix": np.int32, "doc_sample_id": np.uint64,
         "input_ids": np.int32, "labels": np.int32, "loss_weight": np.float32}


GRID_MOST = 65536  # along each side


def check_form(row: Dict[str, Any]) -> None:
    """Checks that the row has the tensors of a block (wire.md) and no others, each of its type and shape."""
    for name, like in (("position_ids", (3, "input_ids")), ("visual_row", ("input_ids",)), ("grid_thw", ("grid_thw", 3))):
        check(name in row and row[name].dtype == np.int32 and row[name].ndim == len(like), "the row's", name, "is absent, or of another type")
        shape = tuple(len(row.get(n, ())) if isinstance(n, str) else n for n in like)
        check(row[name].shape == shape, name, "has the shape", row[name].shape, "expected", shape)
    others = set(row) - set(LISTS) - {"position_ids", "visual_row", "grid_thw"}
    check(not others, "the row has a tensor that no row has on the wire:", *others)


def check_tokens(row: Dict[str, Any]) -> None:
    """Checks the numbers of each token and grid, as proto/row/batch_check.c does."""
    labels, weights, grids = row["labels"], row.get("loss_weight", np.ones(1)), row["grid_thw"]
    for name in ("input_ids", "position_ids"):
        check((row[name] >= 0).all(), name, "has a negative number")
    check(((labels >= 0) | (labels == -100)).all(), "labels has a number that is neither a token nor -100")
    check((np.isfinite(weights) & (weights >= 0)).all(), "loss_weight has a number that is no weight")
    check(((grids >= 1) & (grids <= GRID_MOST)).all() and not (grids[:, 1:] % 2).any(), "grid_thw has an impossible grid")
    check(grids.astype(np.int64).prod(1).astype(float).sum() < 2**31, "grid_thw has too many patches")


def check_items(row: Dict[str, Any], widths: List[int]) -> None:
    """Checks that tokens show each item whole and in order, as proto/row/batch_check.c does, and that pictures and clips (widths:
    the bytes of an item's patches) have a token id each."""
    visual, ids, grids = row["visual_row"], row["input_ids"], row["grid_thw"].astype(np.int64)
    document = np.repeat(np.arange(len(row["doc_part"])), np.diff(row["cu_seqlens"]))
    sizes = grids.prod(1) // 4
    begins, shown = np.cumsum(sizes) - sizes, np.flatnonzero(visual != -1)
    at, kinds = 0, []
    while at < len(shown):
        first, seen = visual[shown[at]], len(kinds)
        item = seen if seen < len(sizes) and begins[seen] == first else int(np.searchsorted(begins[:seen], first))
        check(item < len(sizes) and begins[item] == first, f"visual_row[{shown[at]}] is {first}, expected the first row of an item")
        tokens = shown[at:at + sizes[item]]
        check(len(tokens) == sizes[item] and (visual[tokens] == first + np.arange(len(tokens))).all(), "item", item, "is cut")
        check(document[tokens[0]] == document[tokens[-1]] and len(set(ids[tokens])) == 1, "item", item, "is of two documents or kinds")
        if item == seen:
            kinds.append(ids[tokens[0]])
        at += len(tokens)
    check(len(kinds) == len(sizes), "item", len(kinds), "of", len(sizes), "has no tokens")
    found = {(width, kind) for width, kind in zip(widths, kinds)}
    check(len(found) == len({width for width, _ in found}) == len({kind for _, kind in found}), "pictures and clips share token ids")
    check((grids[np.array(widths) == 768, 0] == 1).all(), "a picture has several frames")


def check_documents(row: Dict[str, Any]) -> None:
    """Checks where documents begin and that doc_prefix means what wire.md says, as proto/row/batch_check.c does."""
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


def check_tag(row: Dict[str, Any], number: int, tag: Dict[str, Any]) -> None:
    """Compares a row with its tag, which says what the daemon had ordered, as proto/row/tag.c does."""
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
