# SPDX-License-Identifier: Apache-2.0
"""XXH3-128, by python3-xxhash or by libxxhash. Without both `xxh3_128` is None: then no hash is checked, and whoever reads rows
says so."""
import ctypes
import struct
from typing import Any, Optional

NO_HASH = "neither python3-xxhash nor libxxhash is installed"


class Hash128(ctypes.Structure):
    """libxxhash's XXH128_hash_t."""
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


class LibraryHash:
    """XXH3-128 in pieces by libxxhash, for a Python that lacks the module xxhash. It has the calls of that module that
    are used here."""
    library: Any = None

    @classmethod
    def load(cls) -> Optional[type]:
        """This class, or None if there is no such library."""
        try:
            cls.library = ctypes.CDLL("libxxhash.so.0")
        except OSError:
            return None
        state, size = ctypes.c_void_p, ctypes.c_size_t
        for name, result, *arguments in (("createState", state), ("freeState", ctypes.c_int, state),
                                         ("128bits_reset", ctypes.c_int, state), ("128bits_digest", Hash128, state),
                                         ("128bits_update", ctypes.c_int, state, ctypes.c_char_p, size)):
            function = getattr(cls.library, "XXH3_" + name)
            function.restype, function.argtypes = result, arguments
        return cls

    def __init__(self) -> None:
        self.state = self.library.XXH3_createState()
        self.library.XXH3_128bits_reset(self.state)

    def __del__(self) -> None:
        self.library.XXH3_freeState(self.state)

    def update(self, data: Any) -> None:
        data = bytes(data)
        self.library.XXH3_128bits_update(self.state, data, len(data))

    def digest(self) -> bytes:
        found = self.library.XXH3_128bits_digest(self.state)
        return struct.pack(">QQ", found.high, found.low)


try:
    from xxhash import xxh3_128
except ImportError:
    xxh3_128 = LibraryHash.load()


def hash_of(*pieces: Any) -> bytes:
    """The XXH3-128 of these bytes, one after another."""
    h = xxh3_128()
    for piece in pieces:
        h.update(piece)
    return h.digest()
