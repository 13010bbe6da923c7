"""Rows of a running prepd, or of a recording, for PyTorch and numpy. proto/python.md in the project says how to use them."""
from . import masks
from .client import Refused, connect, decode, floats, merge_quarantine, replay
from .row_stream import Progress, Rows, merge_states

__version__ = "0.1.0"
__all__ = ["Progress", "Refused", "Rows", "connect", "decode", "floats", "masks", "merge_quarantine", "merge_states", "replay"]
