# SPDX-License-Identifier: Apache-2.0
"""The commit of the tree that a bench measures."""
import os
import subprocess


def tree_commit():
    """Its short name, with "-dirty" if files differ; "unknown" where there is no git, or git refuses the tree."""
    try:
        said = subprocess.run(["git", "-C", os.path.dirname(os.path.abspath(__file__)), "describe", "--always", "--dirty"],
                              capture_output=True, text=True).stdout.strip()
    except FileNotFoundError:
        said = ""
    return said or "unknown"
