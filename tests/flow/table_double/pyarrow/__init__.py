# SPDX-License-Identifier: Apache-2.0
"""Stands in for pyarrow where it is missing: a "parquet file" is JSON, {"columns": {name: type}, "groups": [[row, ...], ...],
"metadata": text}, in which bytes are {"$": HEX}. A group that is a text cannot be read, nor a row {"!": WORDS}. TABLE_DOUBLE_KILL=N kills the process when it reads the Nth row group;
TABLE_DOUBLE_MEMORY="WHERE N" lets memory run out there: when the group, its table, a row or a value is asked for."""
