"""Rows of a running prepd, or of a recording, for PyTorch and numpy. proto/python.md in the project says how to use them."""
from . import masks
from .client import Refused, connect, decode, floats, merge_quarantine, replay

__version__ = "0.1.0"
__all__ = ["Refused", "connect", "decode", "floats", "masks", "merge_quarantine", "replay"]
