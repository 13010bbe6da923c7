# SPDX-License-Identifier: Apache-2.0
"""Which row a consumer gets next."""
import json
from typing import Any, Dict, Union

from .stream_errors import check


class Order:
    """Checks which row a consumer gets next, by the rules of row_order.c (wire.md, "Order")."""

    def __init__(self, welcome: Dict[str, Any], cursor: Union[str, dict, None], start_row: int, rank: int, ranks: int):
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

    def number(self, place: int) -> int:
        return self.first + place % self.rows if self.rows else place

    def take(self, number: int) -> None:
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
