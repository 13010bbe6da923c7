# SPDX-License-Identifier: Apache-2.0
"""mutation.py: builds the simulator of the dispatcher with changed sources of its core, and plays schedules until they are found.

Used by tests/sim/mutant and tests/sim/mutants. Needs a build tree (build/, or $TESSERA_BUILD) in which sim_prepd is built.
"""
import glob
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
BUILD = os.environ.get("TESSERA_BUILD", os.path.join(ROOT, "build"))
CORE = "prepd/serve/core"
CHUNKS = (50, 250, 2700, 27000, 70000)  # 100,000 schedules in all


def core_files():
    return sorted(os.path.relpath(path, ROOT) for path in glob.glob(os.path.join(ROOT, CORE, "*", "*.c")))


def read(path):
    with open(os.path.join(ROOT, path)) as file:
        return file.read()


def link_words(pattern):
    """What build.ninja says of linking the simulator, with whole paths."""
    with open(os.path.join(BUILD, "build.ninja")) as file:
        text = file.read()
    words = re.search(r"^build tests/sim_prepd:" + pattern, text, re.S | re.M).group(1).split()
    return [word if word[0] in "/-" else os.path.join(BUILD, word) for word in words]


def link_libraries():
    return link_words(r".*?LINK_LIBRARIES = ([^\n]*)")


def objects():
    return [word for word in link_words(r" ([^|\n]*)") if word.endswith(".c.o")]


def compile_one(path, source, out, above):
    """Compiles a source; above: folders that are looked at before the tree. None, or what the compiler says."""
    flags = ["-DTESSERA_VERSION=\"0.1.0\"", "-D_GNU_SOURCE", "-O2", "-Werror=incompatible-pointer-types",
             "-Werror=int-conversion", "-fno-strict-aliasing", "-std=gnu11",
             f"-ffile-prefix-map={os.path.dirname(source)}/="]
    done = subprocess.run([os.environ.get("CC", "cc"), *flags, *[f"-I{folder}" for folder in above], f"-I{ROOT}", "-c", source,
                           "-o", out], capture_output=True, text=True)
    return None if done.returncode == 0 else done.stderr


def build(changed, folder):
    """Builds the simulator with the changed files, a dict of path to text. Returns the program; None if that does not compile."""
    headers = any(path.endswith(".h") for path in changed)
    for path, text in changed.items():
        os.makedirs(os.path.join(folder, os.path.dirname(path)), exist_ok=True)
        with open(os.path.join(folder, path), "w") as file:
            file.write(text)
    made, sources = [], [path for path in changed if path.endswith(".c")]
    if headers:  # then everything that may include them is compiled again
        sources += [path for path in core_files() if path not in changed]
        sources += [f"tests/sim/prepd/{os.path.basename(name)[:-2]}" for name in objects()]
    for path in sources:
        out = os.path.join(folder, path.replace("/", "+") + ".o")
        source = os.path.join(folder if path in changed else ROOT, path)
        if compile_one(path, source, out, [folder]) is not None:
            return None
        made.append(out)
    program = os.path.join(folder, "sim")
    rest = [] if headers else objects()
    done = subprocess.run([os.environ.get("CC", "cc"), *made, *rest, *link_libraries(), "-o", program], capture_output=True, text=True)
    return program if done.returncode == 0 else None


def play(program, schedules):
    """Plays schedules in growing portions. Returns how the mutant was found, or None."""
    seed = 1
    for chunk in CHUNKS:
        count = min(chunk, schedules - seed + 1)
        if count <= 0:
            break
        limit = 4 + count // 25  # seconds of CPU: several times what an unchanged core takes
        done = subprocess.run([program, "--schedules", str(count), "--seed", str(seed), "--stop"], capture_output=True, text=True,
                              errors="replace", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (limit, limit)))
        found = re.search(r"^broken: (.*); its story: .*--seed (\d+)", done.stdout, re.M)
        if found:
            return f"seed {found.group(2)}: {found.group(1)}"
        if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
            return f"hangs in seeds {seed} to {seed + count - 1}"
        if done.returncode != 0:
            return f"ends by {done.returncode} in seeds {seed} to {seed + count - 1}"
        seed += count
    return None


def judge(changed, schedules):
    """Whether the changed core is found out: (True, how), (False, None), or (None, why) if it cannot be built."""
    with tempfile.TemporaryDirectory() as folder:
        program = build(changed, folder)
        if not program:
            return None, "it does not compile"
        how = play(program, schedules)
        return how is not None, how
