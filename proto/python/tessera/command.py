# SPDX-License-Identifier: Apache-2.0
"""The program tessera-rows: prints a line per row of a daemon or of a recording."""
import argparse
import os
import sys
from typing import Any, Dict, NoReturn

import numpy as np

from . import client, hashes, masks
from .stream_errors import Refused

# Exit codes as prepd's (sysexits.h): by the code of the daemon's refusal, and by the exception raised here.
EXIT_CODES = {"ST_USAGE": 64, "ST_BAD_INPUT": 65, "ST_NO_INPUT": 66, "ST_UNAVAILABLE": 69, "ST_OS": 71,
              "ST_NO_MEMORY": 71, "ST_CANT_CREATE": 73, "ST_IO": 74, "ST_TIMEOUT": 75, "ST_STOPPED": 75,
              "ST_PROTOCOL": 76, "ST_MISMATCH": 69, "ST_CONFIG": 78}
OWN_CODES = {TimeoutError: 69, ImportError: 69, FileNotFoundError: 66, PermissionError: 78, OSError: 74}


def exit_code(error: Exception, live: bool) -> int:
    """The exit code for an exception, from a daemon (live) or a recording."""
    if isinstance(error, Refused):
        return EXIT_CODES.get(error.code or "", 70)
    unsound = 76 if live else 65
    return next((code for kind, code in OWN_CODES.items() if isinstance(error, kind)), unsound)


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(64, f"tessera: {message}\n")


def main() -> None:
    parser = Parser("tessera", description=client.__doc__)
    parser.add_argument("source", help="ipc://PATH, tcp://HOST:PORT or the file of a recording")
    parser.add_argument("--rows", type=int, default=0, help="stop after this many rows; 0 for all")
    parser.add_argument("--stream", default="train", help="train, eval or sample")
    parser.add_argument("--keys", help="folder with client.key and daemon.pub, made on the daemon's machine (prepd "
                                       "keygen --client NAME) and copied here")
    parser.add_argument("--timeout", type=float, default=60.0, help="longest silence, in seconds")
    parser.add_argument("--unchecked", action="store_true", help="read a recording although its hashes cannot be checked")
    parser.add_argument("--out", help="write the arrays of the last row to this .npz file")
    parser.add_argument("--mask", help="draw which tokens of the last row see which to this .png file")
    parser.add_argument("--overwrite", action="store_true", help="replace these files if they are there")
    args = parser.parse_args()
    for path in (args.out, args.mask):
        if path and os.path.exists(path) and not args.overwrite:
            print(f"tessera: {path}: this exists already; name another place, or say --overwrite", file=sys.stderr)
            sys.exit(EXIT_CODES["ST_CANT_CREATE"])
    live = args.source.startswith(("ipc://", "tcp://"))
    rows = (client.connect(args.source, args.stream, timeout=args.timeout, keys=args.keys, prefixes=True) if live
            else client.replay(args.source, args.unchecked, prefixes=True))
    row = None
    try:
        for n, row in enumerate(rows, 1):
            print("row", row["number"], "tokens", len(row["input_ids"]), "documents",
                  len(row["doc_sample_id"]), "items", len(row["grid_thw"]), "patches",
                  len(row["pixels"]), "digest", "unchecked" if hashes.xxh3_128 is None else "good", flush=True)
            if n == args.rows:
                break
    except (ImportError, OSError, RuntimeError, ValueError) as e:
        print(f"tessera: {e}", file=sys.stderr)
        sys.exit(exit_code(e, live))
    rows.close()
    if args.out and row is not None:
        arrays: Dict[str, Any] = {k: v for k, v in row.items() if isinstance(v, np.ndarray)}
        np.savez(args.out, **arrays)
    if args.mask and row is not None:
        masks.draw(row, args.mask)
