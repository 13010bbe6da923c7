# SPDX-License-Identifier: Apache-2.0
"""The figures of what the trainer waits for come out of one command, and show what they are for: a step that waits
for data no longer does when the pictures are in the cache. This is the quick form; tests/bench/prepd/waiting has
the long one."""

import os
import subprocess
import sys

from prepd_flow import LIMIT_S, SANITIZED, check, main

WAITING = os.path.join(os.environ.get("TESSERA_SOURCE", "."), "tests/bench/prepd/waiting")
CASES = ("as it is", "cache, warm", "not packed", "pictures of a quarter", "vision frozen", "vision frozen, cache",
         "scans, 1 worker", "scans, 2 workers", "scans, cache, warm")


def measured():
    """The table, {case: [samples/s, ms of a step, shares of it .., fill]}."""
    p = subprocess.run([sys.executable, "-B", WAITING, "--quick", "--rounds", "1", "--steps", "4"], capture_output=True, text=True,
                       timeout=4 * LIMIT_S)
    check(p.returncode == 0, p.stdout + p.stderr)
    print(p.stdout, end="")
    table = {}
    for line in p.stdout.splitlines()[2:]:
        rate, step, *shares = line[24:].replace("%", "").split()
        table[line[:24].strip()] = [float(x) for x in (rate, step, *shares)]
    check(tuple(table) == CASES, f"cases: {list(table)}")
    return table


def what_a_step_waits_for():
    """A busy machine is measured again, because a worker without a core is waited for with a cache too. Under a
    sanitizer the model is slow and libvips is not, so nothing is waited for."""
    for _ in range(3):
        table = measured()
        waits = [table[name][2] for name in CASES[-3:]]
        if SANITIZED or waits[0] > 2 * waits[2] and waits[0] > 5:
            break
    for name, (rate, step, *shares, fill) in table.items():
        check(rate > 0 and step > 0 and abs(sum(shares) - 100) < 0.5, f"{name}: {shares} are no shares of a step")
    check(table["not packed"][-1] < table["as it is"][-1], "packing does not fill rows")
    check(SANITIZED or waits[0] > 2 * waits[2] and waits[0] > 5, f"waiting for data, of a step: {waits} %")


main(what_a_step_waits_for)
