# SPDX-License-Identifier: Apache-2.0
"""What a browser shows of a page, as a picture for people to look at."""

import os
import shutil
import subprocess
import tempfile

from prepd_flow import check

BROWSER = shutil.which("chromium")


def picture(url, path, size=(1280, 900)):
    """Writes what chromium shows of a page as a PNG; says so where there is no chromium."""
    if not BROWSER:
        print(f"skipped: no chromium, so there is no picture of {url}")
        return
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with tempfile.TemporaryDirectory() as profile:
        p = subprocess.run([BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=5000",
                            f"--user-data-dir={profile}", f"--window-size={size[0]},{size[1]}", f"--screenshot={path}", url],
                           capture_output=True, text=True, timeout=300)
    check(p.returncode == 0 and os.path.isfile(path), f"{url}: {p.stdout}{p.stderr}")
