# SPDX-License-Identifier: Apache-2.0
"""Which samples are known to be bad: the twin of proto/row/bad_samples.c."""
import json
from array import array
from bisect import bisect_left
from typing import Any, Dict, Iterable, Iterator, Union

import numpy as np

from .stream_errors import check

MOST = 2_000_000  # in any list
DIGITS = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", np.uint8)
VALUES = np.full(256, 255, np.uint8)
VALUES[DIGITS] = np.arange(64)
DIGIT_BITS, DIGITS_MOST = 5, 12
FULL = f"there are more than {MOST:,} bad samples: repair the data and raise data.generation"


class BadSamples:
    """Ids of bad samples, rising, and the index of the data that they belong to ("": not known). Adding one of a known id costs
    the same however many there are; the text is made when it is asked for."""

    def __init__(self, *said: Any):
        self.ids, self.index, self.known_text = array("q"), "", ""
        for one in said:
            self.merge(one)

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[int]:
        return iter(self.ids)

    def __contains__(self, sample: int) -> bool:
        at = bisect_left(self.ids, sample)
        return at < len(self.ids) and self.ids[at] == sample

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, BadSamples) and self.ids == other.ids

    def add(self, sample: int) -> None:
        at = bisect_left(self.ids, sample)
        if at == len(self.ids) or self.ids[at] != sample:
            check(0 <= sample < 1 << 60, "a bad sample has the impossible id", sample)
            check(len(self.ids) < MOST, FULL)
            self.ids.insert(at, sample)
            self.known_text = ""

    def add_row(self, row: Dict[str, Any]) -> None:
        """Adds those that a row lists, which are its own."""
        if row["quarantine"] not in ("", "[]"):
            for sample in read_list(row["quarantine"])[0].tolist():
                self.add(sample)

    def merge(self, said: Union["BadSamples", str, dict, list, None]) -> None:
        """Adds another list, or the text or object of one; or what earlier programs had: an array, or a cursor with one."""
        if isinstance(said, BadSamples):
            ids, index = np.array(said.ids, np.int64), said.index
        else:
            ids, index = read_list(said)
        if not len(ids):
            return
        check(not index or not self.index or index == self.index, "the bad samples of two lists are of different data: of index",
              self.index, "and of index", index)
        united = np.union1d(np.array(self.ids, np.int64), ids)
        check(len(united) <= MOST, FULL)
        if len(united) > len(self.ids) or index != self.index:
            self.ids, self.index, self.known_text = array("q", united.tobytes()), self.index or index, ""

    def text(self) -> str:
        """The list as JSON, as HELLO and checkpoints have it; "" if it is empty."""
        if self.ids and not self.known_text:
            named = {"index": self.index} if self.index else {}
            self.known_text = json.dumps({**named, "count": len(self.ids), "ids": write_ids(np.array(self.ids, np.int64))},
                                         separators=(",", ":"))
        return self.known_text


def read_list(said: Any) -> tuple:
    """(ids, index) of a list's text or object, an array, or a cursor."""
    said = json.loads(said) if isinstance(said, str) and said else said or {}
    index = said.get("index") or "" if isinstance(said, dict) else ""
    if isinstance(said, dict) and "ids" not in said:
        said = said.get("quarantine") or []
    if isinstance(said, dict):
        check(isinstance(said.get("count"), int) and isinstance(said.get("ids"), str) and isinstance(index, str),
              "a quarantine is no object of index, count and ids")
        return read_ids(said["ids"], said["count"]), index
    check(isinstance(said, list) and all(isinstance(e, dict) and isinstance(e.get("id"), int) and e["id"] >= 0 for e in said),
          "a quarantine is neither an object nor an array of objects with an id")
    return np.array([entry["id"] for entry in said], np.int64), index


def write_ids(ids: np.ndarray) -> str:
    """The first id and the differences, in digits of 5 bits, lowest first; all but the last of a number are 32 higher."""
    steps = np.diff(ids, prepend=0)
    width = max(1, (int(steps.max()).bit_length() + DIGIT_BITS - 1) // DIGIT_BITS)
    left = steps[:, None] >> (DIGIT_BITS * np.arange(width, dtype=np.int64))
    digits = (left & 31) + 32 * (left >> DIGIT_BITS > 0)
    used = left > 0
    used[:, 0] = True
    return DIGITS[digits[used]].tobytes().decode()


def read_ids(text: str, count: int) -> np.ndarray:
    check(0 <= count <= MOST, "a list has", count, "bad samples, and", MOST, "are the most: repair the data and raise data.generation")
    digits = VALUES[np.frombuffer(text.encode(), np.uint8)].astype(np.int64)
    last = digits < 32
    check(not (digits == 255).any() and np.count_nonzero(last) == count and (not len(last) or last[-1]),
          "the text of", count, "bad samples cannot be read")
    if not count:
        return np.empty(0, np.int64)
    begins = np.concatenate([[0], np.flatnonzero(last)[:-1] + 1])
    place = np.arange(len(digits)) - np.repeat(begins, np.diff(begins, append=len(digits)))
    check(place.max() < DIGITS_MOST and not (digits[last & (place > 0)] == 0).any(), "a bad sample's number is impossible")
    steps = np.add.reduceat((digits & 31) << (DIGIT_BITS * place), begins)
    check((steps[1:] > 0).all() and steps.astype(float).sum() < 2**62, "bad samples are not in rising order")
    return np.cumsum(steps)


def merge_quarantine(states: Iterable[dict]) -> BadSamples:
    """The bad samples that any rank knows. states: what each rank has: "bad_samples" (a BadSamples or its text), or what earlier
    programs kept: "decisions", and a "cursor" with a list."""
    united = BadSamples()
    for state in states:
        for said in (state.get("bad_samples"), state.get("decisions"), state.get("cursor")):
            united.merge(said)
    return united
