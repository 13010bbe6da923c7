# SPDX-License-Identifier: Apache-2.0
"""The Python package as CMake builds it: Rows by the C extension and by numpy give what connect gives, refuse the same, go on
exactly where they stopped, and outlive a daemon that is killed. It needs python3-numpy for the extension; for the other reader
python3-zmq and python3-zstandard too."""

import ast
import gc
import glob
import inspect
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import types

from prepd_flow import LIMIT_S, SOURCE, Daemon, Folder, check, main, run, wait_for

BUILT = os.path.join(os.path.dirname(os.path.abspath(os.environ.get("TESSERA_BIN", "build/bin"))), "python")
sys.path.insert(0, BUILT if os.path.isdir(BUILT) else os.path.join(SOURCE, "proto", "python"))
import tessera  # noqa: E402
from tessera import client, row_readers  # noqa: E402

STEP = 4
NATIVE = [True, False] if row_readers._reader else [False]
if not row_readers._reader:
    print("skipped: the C extension, which was not built here; the reader in numpy alone is tested")


def end_of(f):
    return "ipc://" + f.file("d.sock")


def up(f):
    wait_for(lambda: os.path.exists(f.file("d.sock.control")), "control endpoint")


def one_epoch(**more):
    return Folder(images=64, **{"training.epochs": 1, "training.seq_len": 256, "training.global_batch_size": STEP, **more})


def print_of(row):
    """All of a row that must not depend on who reads it, and when."""
    return (row["number"], row["cursor"], row["quarantine"], sorted((k, str(v.dtype), v.shape, v.tobytes()) for k, v in row.items()
                                                                    if hasattr(v, "tobytes")))


def refused(what, kind, *words):
    try:
        what()
    except kind as e:
        check(all(w in str(e) for w in words), f"{e!r}, wanted: {words}")
    else:
        check(False, f"taken, wanted {kind.__name__}: {words}")


def both_readers_give_the_same_rows():
    """Of a daemon, for one rank and two, and of a recording; with bad samples, and with weights."""
    with one_epoch() as f:
        with open(f.train_images()[5], "rb+") as image:
            image.truncate(os.path.getsize(image.name) // 2)
        with Daemon(f.config):
            up(f)
            list(client.connect(end_of(f), timeout=60.0))  # the cursors of a later session list the bad sample from the first row on
            wanted = [print_of(r) for r in client.connect(end_of(f), timeout=60.0)]
            check(any(w[2] != "[]" for w in wanted), "no bad sample was met")
            for native in NATIVE:
                rows = tessera.Rows(end_of(f), native=native, timeout=30.0)
                check(len(rows) == len(wanted) and rows.progress.taken == 0, f"length {len(rows)}")
                check([print_of(r) for r in rows] == wanted, f"other rows, native {native}")
                check(list(rows) == [] and rows.progress.taken == len(wanted) == rows.progress.rows, f"{rows.progress}")
                rows.rewind()
                check(next(rows)["number"] == 0 and rows.progress.bytes > 1000, "not at the beginning again")
                rows.close()
                pair = [tessera.Rows(end_of(f), rank=k, world=2, native=native, timeout=30.0) for k in range(2)]
                check([len(p) for p in pair] == [len(wanted) // 2] * 2, "the ranks' lengths")
                # A sample that is bad is known from its row on; who hears of it otherwise depends on the rank.
                got = sorted(print_of(r)[:1] + print_of(r)[3:4] for p in pair for r in p)
                check(got == [w[:1] + w[3:4] for w in wanted], "two ranks have other rows")
        run("record", "-c", f.config, "--steps", "2", "--out", f.file("rows.rec"))
        recorded = [print_of(r)[:4] for r in client.replay(f.file("rows.rec"))]
        for native in NATIVE:
            rows = tessera.Rows(f.file("rows.rec"), native=native)
            check(rows.welcome["rows"] == 2 * STEP, f"rows in WELCOME of a recording: {rows.welcome['rows']}")
            check([print_of(r)[:4] for r in rows] == recorded, "other rows of a recording")
            rows.load_state_dict(dict(rows.state_dict(), taken=3))
            check([print_of(r)[:4] for r in rows] == recorded[3:], "it does not go on after three rows")
        if True in NATIVE:
            pair = [[r["number"] for r in tessera.Rows(f.file("rows.rec"), rank=k, world=2)] for k in range(2)]
            check(sorted(pair[0] + pair[1]) == list(range(2 * STEP)) and len(pair[0]) == STEP, f"{pair}")


def a_row_lives_as_long_as_its_arrays():
    """Rows share no memory with rows that came later, and the memory of one that is gone is used again."""
    with one_epoch() as f, Daemon(f.config):
        up(f)
        wanted = [print_of(r) for r in client.connect(end_of(f), timeout=60.0)]
        for native in NATIVE:
            kept = list(tessera.Rows(end_of(f), native=native, timeout=30.0, prefetch=3))
            check([print_of(r) for r in kept] == wanted, "a row changed after it was taken")
            ids = [r["input_ids"] for r in kept]
            del kept
            gc.collect()
            check([i.tobytes() for i in ids] == [dict((a[0], a[3]) for a in w[3])["input_ids"] for w in wanted], "an array lost its memory")
            one = next(tessera.Rows(end_of(f), native=native, timeout=30.0))
            if native:
                check(all(v.flags.writeable for v in one.values() if hasattr(v, "flags")), "an array that owns its memory is not writable")


def it_goes_on_where_it_stopped():
    """From a state after any row, as JSON, though rows had been received ahead; with other ranks after a whole step."""
    with one_epoch() as f, Daemon(f.config):
        up(f)
        wanted = [r["number"] for r in client.connect(end_of(f), timeout=60.0)]
        for native in NATIVE:
            def rows(rank=0, world=1):
                return tessera.Rows(end_of(f), rank=rank, world=world, native=native, timeout=30.0, prefetch=4)
            for stop in (0, 1, STEP + 1):
                first = rows()
                got = [next(first)["number"] for _ in range(stop)]
                state = json.loads(json.dumps(first.state_dict()))
                first.close()
                again = rows()
                again.load_state_dict(state)
                check(got + [r["number"] for r in again] == wanted, f"stopped after {stop} rows")
                check(again.progress.taken == len(wanted), f"{again.progress}")
            # A loop that is left and entered again, without a state.
            one = rows()
            for row in one:
                if row["number"] == 2:
                    break
            check([r["number"] for r in one] == wanted[3:], "a loop that was entered again")
            pair = [rows(k, 2) for k in range(2)]
            got = sorted(next(p)["number"] for p in pair for _ in range(STEP // 2))
            whole = tessera.merge_states([p.state_dict() for p in pair])
            one = rows()
            one.load_state_dict(whole)
            check(got + [r["number"] for r in one] == wanted, "one rank resumes from two")
            check(one.progress.taken == len(wanted), f"rows taken by one after two: {one.progress.taken}")
            next(pair[0])
            refused(lambda: tessera.merge_states([p.state_dict() for p in pair]), ValueError, "not after the same step")
            refused(lambda: rows().load_state_dict({"cursor": ""}), ValueError, "no state of tessera.Rows")
            for p in pair:
                p.close()


def a_daemon_that_is_restarted():
    """Killed and started again while a loop runs, it costs no row and gives none twice. One that stays away is an error."""
    with one_epoch() as f:
        with Daemon(f.config):
            up(f)
            wanted = [print_of(r) for r in client.connect(end_of(f), timeout=60.0)]
        for native in NATIVE:
            first, rows, got = Daemon(f.config), tessera.Rows(end_of(f), native=native, timeout=30.0, credit_bytes=1 << 20), []
            with first:
                up(f)
                got += [print_of(next(rows)) for _ in range(3)]
                first.stop(signal.SIGKILL)
            with Daemon(f.config):
                got += [print_of(r) for r in rows]
            check(got == wanted, f"native {native}: {[g[0] for g in got]}, wanted {[w[0] for w in wanted]}")
            with Daemon(f.config) as last:
                up(f)
                rows = tessera.Rows(end_of(f), native=native, timeout=30.0, reconnect=0.5, prefetch=1, credit_bytes=1)
                next(rows)
                last.stop(signal.SIGKILL)
                refused(lambda: list(rows), client.Refused, "did not come back within 0.5 s")


def what_is_not_right_is_refused():
    """Both readers refuse the same, with the same kind of error."""
    with one_epoch() as f:
        path = f.file("rows.rec")
        run("record", "-c", f.config, "--steps", "1", "--out", path)
        with open(path, "rb") as x:
            whole = x.read()
        index, n = (int.from_bytes(whole[k:k + 8], "little") for k in (len(whole) - 32, len(whole) - 24))
        row = int.from_bytes(whole[index + 8 * (n - 1):index + 8 * n], "little")
        for native in NATIVE:
            def of(source, **more):
                return list(tessera.Rows(source, native=native, timeout=0.3, **more))
            for at in (0, 40, row + 32 + 150, index, len(whole) - 10):
                with open(path, "wb") as x:
                    x.write(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1:])
                refused(lambda: of(path), ValueError, path)
            refused(lambda: of(f.file("none.rec")), FileNotFoundError)
            refused(lambda: of("ipc://" + f.file("none.sock")), (TimeoutError, client.Refused), "there is no socket")
            refused(lambda: of(path, rank=2, world=2), ValueError, "rank 2 of 2")
            refused(lambda: of(path, rank=0), ValueError, "belong together")
            refused(lambda: of(path, prefetch=0), ValueError, "prefetch is 0")
        with Daemon(f.config, "--data.group", "shared_prefix", "--training.epochs", "0"):
            up(f)
            for native in NATIVE:
                rows = tessera.Rows(end_of(f), native=native, timeout=30.0)
                refused(lambda: next(rows), (ValueError, client.Refused), "prefixes=True")
                rows = tessera.Rows(end_of(f), native=native, timeout=30.0, prefixes=True)
                check("doc_prefix" in next(rows), "no prefix in the first row")
                refused(lambda: len(rows), TypeError, "no end")
                rows.load_state_dict(dict(rows.state_dict(), cursor=json.dumps(dict(json.loads(rows.state_dict()["cursor"]), index="0" * 32))))
                refused(lambda: next(rows), client.Refused, "index")


def of_two_with_one_run_and_rank_the_second_is_refused():
    """In words, while the first is there; others of the stream are not. Once the first is gone, the second is taken."""
    with one_epoch(**{"training.seq_len": 128}) as f, Daemon(f.config):
        up(f)
        for native in NATIVE:
            def rows(**more):
                return tessera.Rows(end_of(f), native=native, timeout=30.0, credit_bytes=1, **more)
            first, second = rows(run="mine", rank=0, world=2), rows(run="mine", rank=0, world=2)
            next(first)
            refused(lambda: next(second), client.Refused, "mine", "rank 0")
            for other in (rows(run="mine", rank=1, world=2), rows(run="another", rank=0, world=2), rows(rank=0, world=2)):
                next(other)
                other.close()
            first.close()
            wait_for(lambda: json.loads(run("status", "-c", f.config, "--json"))["consumers"] == [], "it has left")
            next(second)
            second.close()


def a_worker_of_a_dataloader_is_refused():
    """And so is a Rows that is sent to one. torch is played here by a module with what matters."""
    with one_epoch() as f, Daemon(f.config), tempfile.TemporaryDirectory() as stub:
        up(f)
        os.makedirs(os.path.join(stub, "torch/utils"))
        for name, text in (("__init__", ""), ("utils/__init__", ""), ("utils/data", "import abc\nclass IterableDataset(abc.ABC): pass\n"
                                                                     "info = None\ndef get_worker_info(): return info\n")):
            with open(os.path.join(stub, "torch", name + ".py"), "w") as x:
                x.write(text)
        code = ("import sys, pickle, torch.utils.data as d, tessera\n"
                "rows = tessera.Rows(sys.argv[1])\n"
                "assert isinstance(rows, d.IterableDataset) and next(iter(rows))['number'] == 0\n"
                "for sent in (lambda: pickle.dumps(rows), lambda: iter(rows), lambda: next(tessera.Rows(sys.argv[1]))):\n"
                "    try: sent(); sys.exit('a worker got rows')\n"
                "    except (TypeError, RuntimeError) as e: print(e)\n"
                "    d.info = 'worker 1 of 2'\n")
        p = subprocess.run([sys.executable, "-B", "-c", code, end_of(f)], capture_output=True, text=True, timeout=LIMIT_S,
                           env={**os.environ, "PYTHONPATH": os.pathsep.join([stub, sys.path[0]])})
        check(p.returncode == 0 and p.stdout.count("num_workers=0") == 3 and p.stdout.count("thread of its own") == 3, p.stdout + p.stderr)


def tensors_share_memory_and_the_thread_pins_them():
    """torch is played here by a module whose tensors know their array and who pinned them."""
    class Tensor:
        def __init__(self, array, pinned_by=None):
            self.array, self.pinned_by = array, pinned_by

        def pin_memory(self):
            return Tensor(self.array.copy(), threading.current_thread().name)
    torch = types.ModuleType("torch")
    torch.from_numpy, torch.cuda = Tensor, types.SimpleNamespace(is_available=lambda: False)
    with one_epoch() as f:
        path = f.file("rows.rec")
        run("record", "-c", f.config, "--steps", "1", "--out", path)
        real, sys.modules["torch"] = sys.modules.get("torch"), torch
        try:
            refused(lambda: tessera.Rows(path, pin_memory=True), ValueError, "torch finds none")
            torch.cuda.is_available = lambda: True
            refused(lambda: tessera.Rows(path, tensors="jax"), ValueError, "no tensors of jax")
            for native in NATIVE:
                wanted = list(tessera.Rows(path, native=native))
                for pin in False, True:
                    for row, arrays in zip(tessera.Rows(path, native=native, tensors="torch", pin_memory=pin), wanted):
                        made = {name: row[name] for name, value in arrays.items() if hasattr(value, "tobytes")}
                        check(all(t.array.tobytes() == arrays[name].tobytes() for name, t in made.items()), "other values")
                        check(made["doc_sample_id"].array.dtype == "int64" and made["input_ids"].array.dtype == "int32", "other types")
                        check({t.pinned_by for t in made.values()} == {"tessera.Rows" if pin else None}, f"pinned, asked for: {pin}")
                        check(not native or pin or not any(t.array.flags.owndata for t in made.values()), "a tensor is a copy")
        finally:
            sys.modules.pop("torch")
            if real:
                sys.modules["torch"] = real


def it_waits_for_a_daemon_as_long_as_the_trainer():
    with open(os.path.join(SOURCE, "common/conf/options.def"), encoding="utf-8") as f:
        seconds = float(re.search(r"^OPTION_REAL\(prepd, reconnect_timeout, ([0-9.]+),", f.read(), re.M)[1])
    check(inspect.signature(tessera.Rows).parameters["reconnect"].default == seconds, seconds)


def every_function_is_typed():
    """py.typed promises it: each parameter and each result."""
    files = glob.glob(os.path.join(SOURCE, "proto/python/tessera/*.py"))
    check(os.path.exists(os.path.join(SOURCE, "proto/python/tessera/py.typed")) and len(files) > 10, files)
    for path in files:
        with open(path, encoding="utf-8") as f:
            functions = [n for n in ast.walk(ast.parse(f.read())) if isinstance(n, ast.FunctionDef)]
        for function in functions:
            a = function.args
            lacking = [p.arg for p in (*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg)
                       if p and not p.annotation and p.arg not in ("self", "cls")]
            check(not lacking and (function.returns or function.name == "__init__"),
                  f"{os.path.basename(path)}:{function.lineno}: {function.name} has no types: {lacking}")


def what_the_reader_in_numpy_lacks_is_named():
    with one_epoch() as f:
        run("record", "-c", f.config, "--steps", "1", "--out", f.file("rows.rec"))
        for module, source in (("zstandard", f.file("rows.rec")), ("zmq", end_of(f))):
            real, sys.modules[module] = sys.modules.get(module), None  # an import of it fails
            try:
                refused(lambda: list(tessera.Rows(source, native=False)), ImportError, module, "pip install pyzmq zstandard xxhash")
            finally:
                sys.modules.pop(module)
                if real:
                    sys.modules[module] = real


def without_numpy_one_line_says_what_to_install():
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "numpy.py"), "w") as f:
            f.write("raise ImportError(\"No module named 'numpy'\")\n")
        package = os.path.join(folder, "tessera")  # numpy is looked for beside it first
        os.symlink(os.path.dirname(os.path.abspath(tessera.__file__)), package)
        env = dict(os.environ, PYTHONPATH=folder, PYTHONDONTWRITEBYTECODE="1")
        for words in ("-m", "tessera", "rows.rec"), (package, "rows.rec"):
            p = subprocess.run([sys.executable, *words], capture_output=True, text=True, env=env, timeout=LIMIT_S)
            said = p.stdout + p.stderr
            check(p.returncode == 69 and said.startswith("tessera: No module named 'numpy'") and said.count("\n") == 1
                  and "pip install numpy (Debian: python3-numpy)" in said, f"{words}: {p.returncode}\n{said}")


main(both_readers_give_the_same_rows, a_row_lives_as_long_as_its_arrays, it_goes_on_where_it_stopped, a_daemon_that_is_restarted,
     what_is_not_right_is_refused, of_two_with_one_run_and_rank_the_second_is_refused, a_worker_of_a_dataloader_is_refused,
     tensors_share_memory_and_the_thread_pins_them, it_waits_for_a_daemon_as_long_as_the_trainer, every_function_is_typed,
     what_the_reader_in_numpy_lacks_is_named, without_numpy_one_line_says_what_to_install)
