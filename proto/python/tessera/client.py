# SPDX-License-Identifier: Apache-2.0
"""Reads the rows of a running prepd, or of a recording, as numpy arrays. proto/python.md says how to use it,
proto/wire.md specifies the bytes. Needs python3-numpy, python3-zstandard, python3-zmq (not for recordings) and, to check
hashes, python3-xxhash or libxxhash, which prepd is linked with."""
from typing import Any, Dict, Generator, List, Optional, Union

from .bad_samples import BadSamples, merge_quarantine
from .daemon_session import Session
from .hashes import hash_of
from .messages import decode, digest_of, floats, tensors
from .recording import replay, welcome_of
from .row_checks import check_documents
from .stream_errors import Refused

__all__ = ["BadSamples", "Refused", "check_documents", "connect", "decode", "digest_of", "floats", "hash_of", "merge_quarantine", "replay", "tensors", "welcome_of"]


def connect(endpoint: str, stream: str = "train", cursor: Union[str, dict, None] = None, start_row: int = 0, rank: int = 0, ranks: int = 1,
            credit_bytes: int = 256 << 20, timeout: float = 60.0, keys: Optional[str] = None, prefixes: bool = False,
            quarantine: Union[BadSamples, str, List[dict], None] = None) -> Generator[Dict[str, Any], None, None]:
    """Yields the rows of a running daemon until the stream ends.

    cursor: the cursor of the last row taken, to go on after it. quarantine: the bad samples known by then: row["bad_samples"],
    or what merge_quarantine gave of those of all ranks. row["bad_samples"] is one object, which grows as rows come. rank, ranks: which share of every step to get. credit_bytes: how many bytes of rows may be
    under way. timeout: the longest silence in seconds. keys: a client's folder made by `prepd keygen`, for a tcp endpoint
    with CURVE keys. prefixes: the caller heeds doc_prefix; otherwise a stream whose samples share prefixes is refused.

    Errors name the endpoint: TimeoutError after `timeout` seconds of silence; Refused (a RuntimeError) with the daemon's
    words, or because a row was not what the daemon had ordered of its worker; ValueError for a message that is malformed or
    out of order; PermissionError if this user may not use the socket. Nothing is tried again: call this again with the last
    cursor. A wait for a socket that does not exist is reported on stderr, once."""
    session = Session(endpoint, stream, cursor, start_row, rank, ranks, credit_bytes, timeout, keys, prefixes, quarantine)
    try:
        while (row := session.next()) is not None:
            yield row
    finally:
        session.close()
