# SPDX-License-Identifier: Apache-2.0
"""What goes wrong with a stream, and the exceptions that say so."""
import importlib
from typing import Any, Optional

NO_PREFIXES = ("the row's samples share prefixes, and its doc_prefix says which (data.group shared_prefix): cu_seqlens alone "
               "would show questions without their pictures. Take the row's mask from masks.py, and say so with prefixes=True")


class Refused(RuntimeError):
    """The daemon refused: its words, and in `code` its reason, such as "ST_CONFIG"."""

    def __init__(self, message: str, code: Optional[str]):
        super().__init__(message)
        self.code = code


def check(good: Any, *words: Any) -> None:
    """Raises ValueError with these words unless something that came from outside is good."""
    if not good:
        raise ValueError(" ".join(str(w) for w in words))


def import_needed(name: str) -> Any:
    """A module that the reader in numpy needs. It is imported when it is needed, so that recordings can be read without zmq, and
    everything by the C extension without both."""
    try:
        return importlib.import_module(name)
    except ImportError as e:
        raise ImportError(f"{e}: this copy of tessera reads with numpy, which needs it: pip install pyzmq zstandard xxhash (Debian: "
                          "python3-zmq python3-zstandard python3-xxhash)", name=name) from None
