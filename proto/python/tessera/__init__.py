# SPDX-License-Identifier: Apache-2.0
"""Rows of a running prepd, or of a recording, for PyTorch and numpy. proto/python.md in the project says how to use them."""
import sys

try:
    import numpy  # noqa: F401
except ImportError as error:
    REMEDY = f"{error}: tessera keeps rows in arrays of numpy: pip install numpy (Debian: python3-numpy)"
    if sys.argv[:1] == ["-m"]:  # as long as Python looks for the program of `python -m tessera`
        print(f"tessera: {REMEDY}", file=sys.stderr)
        sys.exit(69)
    raise ImportError(REMEDY, name=error.name) from None

from . import masks
from .client import BadSamples, Refused, connect, decode, floats, merge_quarantine, replay
from .row_stream import Progress, Rows, merge_states

__version__ = "0.1.0"
__all__ = ["BadSamples", "Progress", "Refused", "Rows", "connect", "decode", "floats", "masks", "merge_quarantine", "merge_states", "replay"]
