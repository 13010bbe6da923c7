# SPDX-License-Identifier: Apache-2.0
"""Prints a line for each row of a daemon or of a recording: `python -m tessera SOURCE`, or `python PATH/tessera SOURCE` without an
installation."""
import os
import sys

if not __package__:  # run as a folder
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

try:
    from tessera.command import main
except ImportError as error:
    print(f"tessera: {error}", file=sys.stderr)
    sys.exit(69)

main()
