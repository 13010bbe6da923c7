# SPDX-License-Identifier: Apache-2.0
"""The part of pyarrow.parquet that deploy/from-parquet uses."""

import json
import os
import signal

asked = 0


def value_of(value):
    if isinstance(value, list):
        return [value_of(v) for v in value]
    if isinstance(value, dict):
        return bytes.fromhex(value["$"]) if "$" in value else {k: value_of(v) for k, v in value.items()}
    return value


class Field:
    def __init__(self, name, kind):
        self.name, self.type = name, kind


class Schema(list):
    metadata = None


class ParquetFile:
    def __init__(self, path):
        with open(path, encoding="utf-8") as f:
            self.table = json.load(f)
        self.schema_arrow = Schema(Field(*column) for column in self.table["columns"].items())
        if self.table.get("metadata"):
            self.schema_arrow.metadata = {b"huggingface": self.table["metadata"].encode()}
        self.num_row_groups = len(self.table["groups"])
        self.metadata = self

    def row_group(self, group):
        """What the metadata say of a group."""
        rows = Rows(self.table["groups"][group])
        rows.num_rows = len(rows)
        return rows

    def read_row_group(self, group, columns):
        global asked
        asked += 1
        if os.environ.get("TABLE_DOUBLE_KILL") == str(asked):
            os.kill(os.getpid(), signal.SIGKILL)
        where, _, number = os.environ.get("TABLE_DOUBLE_MEMORY", "").partition(" ")
        short = where if number == str(asked) else ""
        if short == "group":
            raise MemoryError("malloc of size 64 failed")
        rows = self.table["groups"][group]
        if isinstance(rows, str):
            raise OSError(f"Unexpected end of stream in {rows}")
        return Rows([row if "!" in row else {name: value_of(row.get(name)) for name in columns or row} for row in rows], short)


class Heavy(dict):
    def __getitem__(self, name):
        raise MemoryError


class Rows(list):
    def __init__(self, rows, short=""):
        super().__init__(rows)
        self.short = short

    def to_pylist(self):
        if self.short == "table" or self.short == "row" and len(self) == 1:
            raise MemoryError("malloc of size 64 failed")
        if self.short == "row":
            raise ValueError("a row of it cannot be read")
        if self.short == "value":
            return [Heavy(row) for row in self]
        for row in self:
            if "!" in row:
                raise ValueError(row["!"])
        return list(self)

    def slice(self, first, n):
        return Rows(self[first:first + n], self.short)
