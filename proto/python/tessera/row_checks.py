"""What a row must be beyond its form: documents and prefixes that make sense (as proto/batch_check.c has it), and what the daemon
had ordered of the worker that made it (as proto/tag.c has it). ValueError says what is wrong."""
from typing import Any, Dict

import numpy as np

from . import masks
from .stream_errors import check

LISTS = {"cu_seqlens": np.int32, "doc_part": np.int32, "doc_prefix": np.int32, "doc_sample_id": np.uint64,
         "input_ids": np.int32, "labels": np.int32, "loss_weight": np.float32}


def check_documents(row: Dict[str, Any]) -> None:
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


def check_tag(row: Dict[str, Any], number: int, tag: Dict[str, Any]) -> None:
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
