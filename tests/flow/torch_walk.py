# SPDX-License-Identifier: Apache-2.0
"""What a user of PyTorch does: makes an environment, installs the package with pip, runs the README's lines, meets a DataLoader with
workers and a wrong address, and then trains a tiny Qwen3-VL by every example, from the installed package.

    TESSERA_PYTHON=V/bin/python python3 -B tests/flow/torch_walk.py --walk

TESSERA_PYTHON names an interpreter with torch, transformers and accelerate, which the new environment borrows. pip takes setuptools
from PyPI. Some minutes. Without --walk nothing is done (exit code 77)."""

import os
import subprocess
import sys
import tempfile

from prepd_flow import BIN, LIMIT_S, SOURCE, Daemon, Folder, check, run, wait_for

PYTHON = os.environ.get("TESSERA_PYTHON", "")
HERE = os.path.dirname(os.path.abspath(__file__))
EXAMPLES = 5  # tests of python_examples.py, each of which may take LIMIT_S
DATALOADER = """import sys, torch, tessera
rows = tessera.Rows(sys.argv[1], prefixes=True)
loader = torch.utils.data.DataLoader(rows, batch_size=None, num_workers=2)
try:
    next(iter(loader))
except Exception as error:
    print(error)
whole = torch.utils.data.DataLoader(rows, batch_size=None)
print("rows", sum(1 for _ in whole), "of", len(rows))
"""
WRONG = """import sys, tessera
try:
    next(tessera.Rows(sys.argv[1], timeout=1))
except Exception as error:
    print(error)
"""
NUMPY_ALONE = """import sys, tessera, zmq
try:
    tessera.Rows(sys.argv[1], native=True)
except ImportError as error:
    print(error)
rows = tessera.Rows(sys.argv[1])
print(rows.native, sum(1 for _ in rows) > 0)
"""


def said_by(*words, limit_s=LIMIT_S, **more):
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "TESSERA_PYTHON")}
    p = subprocess.run(words, capture_output=True, text=True, timeout=limit_s, env=dict(env, CUDA_VISIBLE_DEVICES="", **more))
    check(p.returncode == 0, f"{words}: exit code {p.returncode}\n{p.stdout}{p.stderr}")
    return p.stdout


def environment(folder):
    """A new one with the package in it, which sees what is installed beside TESSERA_PYTHON. Returns its interpreter."""
    said_by(PYTHON, "-m", "venv", folder)
    python = os.path.join(folder, "bin/python")
    purelib = "import sysconfig; print(sysconfig.get_path('purelib'))"
    with open(os.path.join(said_by(python, "-c", purelib).strip(), "borrowed.pth"), "w") as f:
        f.write(said_by(PYTHON, "-c", purelib))
    said_by(python, "-m", "pip", "install", "-q", os.path.join(SOURCE, "proto/python"), TESSERA_EXTENSION="1")
    at = said_by(python, "-c", "import tessera, tessera._reader; print(tessera.__file__)")
    check(at.startswith(os.path.realpath(folder)), at)
    return python


def without_a_compiler(folder):
    """pip installs what the reader in numpy needs, which reads then, and says why when the extension is demanded."""
    said_by(PYTHON, "-m", "venv", folder)
    python = os.path.join(folder, "bin/python")
    said_by(python, "-m", "pip", "install", "-q", os.path.join(SOURCE, "proto/python"), CC="/bin/false")
    with Folder(images=16, **{"training.seq_len": 256}) as f:
        run("record", "-c", f.config, "--steps", "1", "--out", f.file("rows.rec"))
        said = said_by(python, "-c", NUMPY_ALONE, f.file("rows.rec"))
    check("no C compiler that works (/bin/false" in said and said.endswith("False True\n"), said)


def the_lines_of_the_readme(python, end):
    with open(os.path.join(SOURCE, "README.md"), encoding="utf-8") as f:
        lines = f.read().split("```python\n")[1].split("```")[0]
    check('"ipc://build/smoke/prepd.sock"' in lines, lines)
    said = said_by(python, "-c", lines.replace("ipc://build/smoke/prepd.sock", end)).splitlines()
    check(len(said) > 3 and all(int(line.split()[0]) == i for i, line in enumerate(said)), said)
    return len(said)


def walk(folder):
    os.symlink(os.path.dirname(os.path.abspath(BIN)), os.path.join(folder, "bin"))  # without a python beside it
    without_a_compiler(os.path.join(folder, "numpy"))
    python = environment(os.path.join(folder, "venv"))
    with Folder(images=32, **{"training.epochs": 1, "training.seq_len": 256}) as f, Daemon(f.config, "--data.group", "shared_prefix"):
        wait_for(lambda: os.path.exists(f.file("d.sock.control")), "control endpoint")
        end = "ipc://" + f.file("d.sock")
        rows = the_lines_of_the_readme(python, end)
        said = said_by(python, "-c", DATALOADER, end)
        check("num_workers=0" in said and f"rows {rows} of {rows}" in said, said)
        said = said_by(python, "-c", WRONG, "ipc://" + f.file("none.sock"))
        check("there is no socket" in said, said)
    print(f"installed, {rows} rows by the README's lines and by a DataLoader")
    print(said_by("/usr/bin/python3", "-B", os.path.join(HERE, "python_examples.py"), TESSERA_BIN=os.path.join(folder, "bin"),
                  TESSERA_PYTHON=python, limit_s=EXAMPLES * LIMIT_S), end="")


why = "the walk takes minutes and PyPI; --walk asks for it" if "--walk" not in sys.argv[1:] else \
    "" if PYTHON else "TESSERA_PYTHON names no interpreter with torch and transformers"
if why:
    print(f"skipped: {why}")
    sys.exit(77)
with tempfile.TemporaryDirectory() as place:
    walk(place)
