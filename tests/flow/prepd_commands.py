# SPDX-License-Identifier: Apache-2.0
"""prepd's commands as a user types them: which settings of a daemon's file they use, what they print, what --help
prints."""

import ctypes
import errno
import io
import json
import os
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tarfile
import tempfile
import unicodedata
import urllib.request

from faults import sanitized, trap, trouble
from prepd_flow import BIN, LIMIT_S, UNPRIVILEGED, Daemon, Folder, check, children, command_line, digest, free_ports, main, run, unprivileged, wait_for

sys.path.insert(0, os.path.join(os.environ.get("TESSERA_SOURCE", "."), "proto", "python"))
from tessera import client  # noqa: E402

TRAINER = os.path.join(os.path.dirname(BIN), "trainer")
CLIENT = os.path.join(os.environ.get("TESSERA_SOURCE", "."), "proto", "python", "tessera")
PROGRAMS = [BIN] + [TRAINER] * os.path.exists(TRAINER)


def a_command_beside_the_daemon():
    """It uses none of the daemon's ports, and has workers of its own if the daemon's are elsewhere."""
    listen = f"127.0.0.1:{free_ports()}"
    with Folder(**{"prepd.workers": -1, "metrics.listen": listen}) as f:
        quiet = digest(f.config, "--steps", "2")
        with Daemon(f.config) as d:
            wait_for(lambda: "serving" in d.said(), "the daemon serves")
            check(digest(f.config, "--steps", "2") == quiet, "another stream")
            check(run("check", "-c", f.config).strip().endswith(" 0 bad"), "bad samples")
            check("epoch" in run("plan", "-c", f.config), "no plan")
            run("sample", "-c", f.config, "--index", "0", "--out", f.file("sample.safetensors"))
            run("record", "-c", f.config, "--steps", "1", "--out", f.file("rows"))
            end = "ipc://" + f.file("d.sock")
            wrong = said(BIN, "worker", "--connect", end, "--data-root", f.file("data"), code=78)
            check("workers connect to the same with .workers appended" in wrong, wrong)
            try:
                next(client.connect(end + ".workers"))
                check(False, "a consumer was taken for a worker")
            except RuntimeError as refused:
                check("trainers connect to prepd.endpoint" in str(refused), str(refused))
                said(sys.executable, CLIENT, end + ".workers", code=76)
                check(refused.code == "ST_PROTOCOL", refused.code)
            check(d.p.poll() is None and d.stop() == 0, d.said())


def the_build_s_name_is_of_its_sources():
    """The same sources give the same name wherever they lie; another byte or file name gives another. Only cmake is
    needed."""
    source = os.path.join(os.path.abspath(os.environ.get("TESSERA_SOURCE", ".")))
    names = os.path.join(os.path.dirname(os.path.dirname(BIN)), "prepd/row_sources.txt")

    def name_of(folder, listed):
        out = os.path.join(tempfile.gettempdir(), f"build_id{os.getpid()}.c")
        subprocess.run(["cmake", f"-DSOURCE={folder}", f"-DLIST={listed}", f"-DOUT={out}", "-P",
                        os.path.join(source, "prepd/agreed/build_id.cmake")], check=True, env={"PATH": "/usr/bin:/bin"}, timeout=LIMIT_S)
        with open(out) as x:
            text = x.read()
        os.remove(out)
        return text.split('"')[-2]
    told = dict(line.split() for line in run("fingerprint").splitlines())
    check(sorted(told) == sorted("build images videos jpeg png webp resizing frames texts packing clips".split()) and all(len(v) == 32 for v in told.values()), f"{told}")
    check(told["build"] == name_of(source, names), f"{told}, not of these sources")
    with tempfile.TemporaryDirectory() as folder:
        listed, seen = os.path.join(folder, "list"), set()
        for files in ({"a.c": "int a;"}, {"a.c": "int b;"}, {"b.c": "int a;"}, {"a.c": "int a;", "b.c": ""}):
            for name, text in files.items():
                with open(os.path.join(folder, name), "w") as x:
                    x.write(text)
            with open(listed, "w") as x:
                x.write("\n".join(reversed(files)) + "\n")
            seen.add(name_of(folder, listed))
            with open(listed, "w") as x:
                x.write("\n".join(files) + "\n")
            seen.add(name_of(folder, listed))
        check(len(seen) == 4, f"{seen}")


def said(program, *words, code, stdout=subprocess.PIPE):
    """What prepd says of a command line. Only the exit code tells, so no command is run for long."""
    p = subprocess.run([program, *words], stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=LIMIT_S)
    check(p.returncode == code, f"{words}: exit code {p.returncode}, not {code}: {p.stderr}")
    return p.stderr if code else p.stdout


def a_socket_that_is_missing_or_belongs_to_another():
    """Either is reported at once. A command waits for a daemon that may come, but not where it has no permission."""
    with Folder() as f:
        end = f.file("d.sock")
        told = said(sys.executable, CLIENT, f"ipc://{end}", "--timeout", "0.3", code=69)
        check(f"{end}: nothing came for 0.3 s: there is no socket" in told and "waiting" not in told, told)
        waits = subprocess.Popen([sys.executable, CLIENT, f"ipc://{end}", "--timeout", str(LIMIT_S), "--rows", "1"],
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = waits.stderr.readline()
        check(f"{end}: waiting, at most {LIMIT_S} s: there is no socket" in line, line)
        with Daemon(f.config):  # the daemon starts a moment later
            out, err = waits.communicate(timeout=LIMIT_S)
        check(waits.returncode == 0 and out.startswith("row 0 ") and not err, out + err)
        told = said(sys.executable, CLIENT, f"tcp://127.0.0.1:{free_ports()}", "--timeout", "0.3", code=69)
        check("does it demand keys" in told, told)
        told = said(sys.executable, CLIENT, "tcp://127.0.0.1:1", "--keys", f.file("none"), code=66)
        check("none/client.key" in told and "keygen --out FOLDER --client NAME" in told, told)
        said(sys.executable, CLIENT, f.file("none"), code=66)
        said(sys.executable, CLIENT, code=64)
        first = subprocess.Popen([BIN, "status", "-c", f.config], stderr=subprocess.PIPE, text=True)
        check("there is no socket" in first.stderr.readline(), "the missing socket is not reported at once")
        for kind in ("", ".workers", ".control"):
            with socket.socket(socket.AF_UNIX) as s:  # a socket file as a killed daemon leaves it
                s.bind(end + kind)
        check(first.wait(60) == 69, f"exit code {first.returncode}")
        check("no daemon answered within 5 s" in (told := first.stderr.read()) and "no process listens on" in told, told)
        told = said(sys.executable, CLIENT, f"ipc://{end}", "--timeout", "0.3", code=69)
        check("no process listens on this socket" in told, told)
        may_not_write_to_the_socket(f, end)
        waits = subprocess.Popen([BIN, "worker", "--connect", f"ipc://{end}"], stderr=subprocess.PIPE, text=True)
        line = waits.stderr.readline()
        waits.terminate()
        waits.communicate(timeout=LIMIT_S)
        check("waiting for the daemon at" in line and "there is no socket" in line, line)


def may_not_write_to_the_socket(f, end):
    root = os.geteuid() == 0
    by = unprivileged(f) if root else []
    if by is None:
        return
    with socket.socket(socket.AF_UNIX) as s, socket.socket(socket.AF_UNIX) as control:
        for kind, one in (("", s), (".control", control)):
            os.remove(end + kind)
            one.bind(end + kind)
            one.listen()
            os.chmod(end + kind, 0o500 if root else 0)
        shutil.copytree(CLIENT, f.file("tessera"))
        for words in ([*by, BIN, "status", "--connect"], [*by, BIN, "worker", "--connect"],
                      [*UNPRIVILEGED * root, "/usr/bin/python3", "-B", f.file("tessera")]):
            p = subprocess.run([*words, f"ipc://{end}"], capture_output=True, text=True, timeout=LIMIT_S)
            check(p.returncode == 78 and "may not write to the socket" in p.stderr, f"{words}: {p.stderr}")
    os.remove(end)
    os.remove(end + ".control")
    mask = os.umask(0)  # with which others are admitted, but not to the control socket
    with Daemon(f.config):
        os.umask(mask)
        wait_for(lambda: os.path.exists(end + ".control"), "the daemon listens")
        check(os.stat(end + ".control").st_mode & 0o777 == 0o600 and os.stat(end).st_mode & 0o777 == 0o777, "modes")
        if root:
            p = subprocess.run([*by, BIN, "status", "--connect", f"ipc://{end}"], capture_output=True, text=True, timeout=LIMIT_S)
            check(p.returncode == 78 and "or as root, since control belongs to no one else" in p.stderr, p.stderr)
        run("drain", "--connect", f"ipc://{end}")


def no_folder_can_hold_the_index():
    """The index is only a cache: the daemon says that it has no place for it and goes on, and so do the commands."""
    with Folder() as f, tempfile.TemporaryDirectory() as tmp:
        quiet = digest(f.config, "--steps", "2")
        shutil.rmtree(f.file("data/.tessera"))
        open(f.file("data/.tessera"), "w").close()  # a file where a folder is expected
        os.symlink(f.path, os.path.join(tmp, f"tessera-{os.getuid()}"))
        there = {**os.environ, "TMPDIR": tmp, "HOME": "", "XDG_CACHE_HOME": ""}
        p = subprocess.run([BIN, "digest", "-c", f.config, "--steps", "2"], env=there, capture_output=True, text=True)
        check(p.returncode == 0 and p.stdout.split()[-1] == quiet, p.stderr)
        check("the index is not kept" in p.stderr and "is a symbolic link" in p.stderr, p.stderr)
        p = subprocess.run([BIN, "plan", "-c", f.config], env=there, capture_output=True, text=True)
        check(p.returncode == 0 and "planning:" in p.stdout and "the index is not kept" in p.stderr, f"{p.returncode}: {p.stderr}")


def opens_of(path, args):
    """How often the file was opened while prepd ran (inotify)."""
    libc = ctypes.CDLL(None, use_errno=True)
    # Both are watched, because inotify merges equal events in a row.
    fd, opened, closed = libc.inotify_init1(os.O_NONBLOCK), 0x20, 0x10
    check(fd >= 0 and libc.inotify_add_watch(fd, path.encode(), opened | closed) >= 0, os.strerror(ctypes.get_errno()))
    run(*args)
    events = os.read(fd, 1 << 20)
    os.close(fd)
    return sum(mask == opened for _, mask, _, _ in struct.iter_unpack("iIII", events))  # events of a watched file carry no name


def plan_opens_the_data_once():
    with Folder() as f:
        questions = f.file("data/v2_OpenEnded_mscoco_train2014_questions.json")
        n = opens_of(questions, ("plan", "-c", f.config))
        check(n == 1, f"plan opened the data set {n} times")


def help_of_every_verb():
    """--help has a line for each verb, the help of a verb names all its words, and a help that cannot be written is
    a failure."""
    for program in PROGRAMS:
        name = os.path.basename(program)
        listed = said(program, "--help", code=0)
        verbs = [line.split()[0] for line in listed.splitlines() if line.startswith("  ") and name not in line]
        check(len(verbs) >= 8, listed)
        for verb in verbs:
            usage = said(program, verb, "--help", code=0)
            check(usage.startswith(f"usage: {name} {verb} "), usage)
            whole = said(program, verb, "--help", "all", code=0)
            check(len(whole) >= len(usage), whole)
            wide = [line for line in (listed + usage + whole).splitlines() if len(line) > 80]
            check(not wide, f"{name} {verb}: more than 80 columns: {wide}")
            shown = re.findall(r"^  --([a-z_]+\.[a-z_0-9]+) ", usage, re.M)
            check(len(set(shown)) == len(shown), f"{name} {verb} lists an option twice: {shown}")
        with open("/dev/full", "w") as full:
            for words in (["--help"], [verbs[0], "--help"], ["--version"]):
                check("write failed" in said(program, *words, code=74, stdout=full), "no word of a full disk")
    for verb in ("status", "scale", "drain", "admit"):
        usage = run(verb, "--help")
        check(all(word in usage for word in ("-c FILE  ", "--connect ENDPOINT  ", "--keys DIR  ", "code 69")), usage)
        options = [line.split()[0] for line in usage.splitlines() if line.startswith("  --") and "." in line.split()[0]]
        check(options == ["--section.key", "--prepd.endpoint", "--prepd.keys", "--log.level", "--log.json"], usage)
    if TRAINER in PROGRAMS:
        check("--nproc N: starts" in said(TRAINER, "train", "--help", code=0), "no word of what --nproc does")
        expert = "\n  --comm.init_timeout_seconds X   (expert)\n"
        check(expert not in said(TRAINER, "train", "--help", code=0), "an expert option in the plain help")
        check(expert in said(TRAINER, "train", "--help", "all", code=0), "no expert option in the whole help")
        check(expert not in said(TRAINER, "plan", "--help", "all", code=0), "plan lists what it does not read")


def all_mistakes_are_told_at_once():
    """A file of 65 keys of which 25 are unknown gives 25 lines and one that counts them, in both programs."""
    with Folder() as f:
        table = run("serve", "-c", f.config, "--print-config")
        known = [line for line in table.splitlines() if line and not line.startswith("#")][:40]
        with open(f.file("foreign.yaml"), "w") as file:
            file.write("\n".join(known + [f"foreign.key_{i}: {i}" for i in range(25)]) + "\n")
        for program in PROGRAMS:
            for verb in {"prepd": ["serve", "check", "status"], "trainer": ["train", "plan", "eval"]}[os.path.basename(program)]:
                lines = said(program, verb, "-c", f.file("foreign.yaml"), code=78).splitlines()
                check(len(lines) == 26, lines)
                check(all(f"foreign.yaml:{41 + i}: there is no option \"foreign.key_{i}\"" in lines[i] for i in range(25)), lines)
                check("25 mistakes in the options, so nothing was started" in lines[-1], lines[-1])
        with open(f.file("foreign.yaml"), "w") as file:
            file.write("".join(f"foreign.key_{i}: {i}\n" for i in range(200)))
        lines = said(BIN, "status", "-c", f.file("foreign.yaml"), code=78).splitlines()
        check(len(lines) == 52 and "and 150 more like these" in lines[50] and "200 mistakes" in lines[51], lines)
        lines = said(BIN, "serve", "--no-such", "--training.sed", "1", "--data.pack=perhaps", "--optimizer.lr", "1", code=64).splitlines()
        for words in ("does not know --no-such", "did you mean training.seed?", "data.pack: expected true or false",
                      "prepd serve does not read --optimizer.lr, so", "3 mistakes in the options"):
            check(sum(words in line for line in lines) == 1, lines)
        lines = said(BIN, "serve", "more", code=64).splitlines()
        check([w for w in ("model.path is not set", "data.path is not set", "unexpected \"more\"", "3 mistakes")
               if not any(w in line for line in lines)] == [] and len(lines) == 4, lines)


def an_option_that_the_verb_does_not_read():
    """In a file that verbs share it is fine. On the command line it is warned of, unless the words are said to be shared
    too."""
    with Folder(**{"training.steps": 3, "metrics.log_freq": 1}) as f:
        run("plan", "-c", f.config)
        told = subprocess.run([BIN, "plan", "-c", f.config, "--training.steps", "3"], stderr=subprocess.PIPE, text=True, check=True).stderr
        check("prepd plan does not read --training.steps, so" in told and "these do: trainer train" in told, told)
        told = said(BIN, "status", "-c", f.config, "--data.path", "x", code=69)
        check("warn  prepd: prepd status does not read --data.path, so it changes nothing here (--shared if that is meant); these do: prepd serve, prepd check"
              in told, told)
        check("does not read" not in said(BIN, "status", "-c", f.config, "--data.path", "x", "--shared", code=69), "a warning")
        run("plan", "-c", f.config, "--training.steps", "3", "--shared")
        run("record", "-c", f.config, "--prepd.ahead_bytes", "2MiB", "--steps", "1", "--out", f.file("rows"))
        if TRAINER in PROGRAMS:
            words = ["plan", "--model.path", "debug", "--training.backend", "cpu"]
            for more, told in ((["--checkpoint.interval=5"], "trainer plan does not read --checkpoint.interval, so"),
                               (["--prepd.workers=5"], "trainer plan does not read --prepd.workers, so"),
                               (["--checkpoint.interval=5", "--shared"], "")):
                p = subprocess.run([TRAINER, *words, *more], capture_output=True, text=True, timeout=60)
                check(p.returncode == 0 and told in p.stderr and bool(told) == bool(p.stderr), p.stderr)
            told = said(TRAINER, "eval", "--optimizer.lr", "5", code=64)
            check("trainer eval does not read --optimizer.lr, so" in told and "trainer train" in told, told)


def every_verb_with_every_option():
    """Given all options, a verb warns of those whose rows in options.def do not name it, and of no other. The verbs that
    make or take rows compare the STREAM options."""
    with open(os.path.join(os.environ.get("TESSERA_SOURCE", "."), "common/conf/options.def"), encoding="utf-8") as x:
        rows = re.findall(r"^OPTION_(?:INT|REAL|BOOL|TEXT|ENUM)\((\w+), (\w+), .*?, ([A-Z |]+), (STREAM|LOCAL), (?:BASIC|EXPERT), ",
                          x.read(), re.M)
    groups = {"SERVE": "serve", "CONSUMERS": "check sample digest record", "ROWS": "serve check plan sample digest record",
              "CONTROL": "status scale drain admit"}
    trains = {"TRAIN": "train", "EVAL": "eval", "VERIFY": "verify", "CHECK": "check", "PLAN": "plan", "BENCH": "bench",
              "STEPS": "train verify check bench", "RUNS": "train eval verify check bench", "MODEL": "train eval verify check plan bench"}
    check(len(rows) > 100, f"{len(rows)} rows")
    for program, meant in (BIN, groups), (TRAINER, trains):
        if program not in PROGRAMS:
            continue
        for verb in sorted({v for names in meant.values() for v in names.split()}):
            def names(words, verb=verb, meant=meant):
                return any(verb in meant.get(w, "").split() for w in words.split(" | "))
            unread = {f"{section}.{name}" for section, name, words, stream in rows
                      if not names(words) and not (stream == "STREAM" and names("ROWS | RUNS"))}
            printed = subprocess.run([program, verb, "--print-config"], capture_output=True, text=True, timeout=LIMIT_S, check=True).stdout
            values = re.findall(r"^(\w+\.\w+): (.*)$", printed, re.M)
            words = [f"--{key}={json.loads(value) if value.startswith(chr(34)) else value}" for key, value in values]
            p = subprocess.run([program, verb, "--print-config", *words], capture_output=True, text=True, timeout=LIMIT_S, check=True)
            warned = set(re.findall(r"does not read --([\w.]+), so", p.stderr))
            check(len(values) == len(rows) and warned == unread, f"{os.path.basename(program)} {verb}: {warned ^ unread}")


def mistyped_words_have_a_suggestion():
    near = [("sevre", "\"serve\""), ("serve --quite", "--quiet"), ("check --hsah", "--hash"),
            ("serve --seq_len 5", "--training.seq_len"), ("serve --training 5", "--training is a section"),
            ("serve --training.sed 5", "training.seed"), ("worker --training.seed 1", "does not read the options"),
            ("serve more", "unexpected \"more\"")]
    for words, remedy in near:
        check(remedy in said(BIN, *words.split(), code=64), words)
    if TRAINER in PROGRAMS:
        for words, remedy in (("trian", "\"train\""), ("train --nprc 2", "--nproc"), ("plan --swep 3", "--sweep"),
                              ("verify --form 1", "--from"), ("check --step 2", "--steps")):
            check(remedy in said(TRAINER, *words.split(), code=64), words)


def words_unlike_any_other_have_no_suggestion():
    wrong = [(BIN, "xyzzy", "there is no verb \"xyzzy\"; prepd --help lists all"),
             (BIN, "serve --no-such", "does not know --no-such; prepd serve --help lists what it accepts"),
             (BIN, "serve --foo.bar 1", "there is no option \"foo.bar\""),
             (TRAINER, "verify --nproc 2", "does not know --nproc; trainer verify --help lists what it accepts")]
    for program, words, told in wrong:
        if program in PROGRAMS:
            got = said(program, *words.split(), code=64)
            check(told in got and "did you mean" not in got, got)


def a_word_after_a_switch():
    """A word after a switch belongs to the verb if the verb accepts words; otherwise it was meant for the switch."""
    for words in ("serve --data.ship maybe", "check --log.json maybe --hash"):
        got = said(BIN, *words.split(), code=64)
        check("\"maybe\" after --" in got and "is neither true nor false, and prepd" in got, got)
    check("unexpected \"more\"" in said(BIN, "serve", "--data.ship", "yes", "more", code=64), "another word")
    check("scale 2000:" in said(BIN, "scale", "--log.json", "2000", code=64), "not scale's")


def nothing_is_replaced_unasked():
    """What is there stays, whatever the verb, and the refusal comes before any work; --overwrite replaces it."""
    with Folder() as f:
        there, full = f.file("there"), f.file("full")
        os.mkdir(full)
        os.mkdir(f.file("empty"))
        for path in (there, os.path.join(full, "there")):
            with open(path, "w") as x:
                x.write("mine")
        rows = said(BIN, "record", "-c", f.config, "--steps", "1", "--out", f.file("rows.rec"), code=0)
        check("rows.rec: 4 rows" in rows, rows)
        verbs = [(BIN, "record", "-c", f.config, "--steps", "1", "--out", there), (BIN, "sample", "-c", f.config, "--index", "0", "--out", there),
                 (BIN, "sample", "-c", f.config, "--index", "0", "--png", there), (BIN, "sample", "-c", f.config, "--index", "0", "--png", full),
                 (sys.executable, CLIENT, f.file("rows.rec"), "--out", there), (sys.executable, CLIENT, f.file("rows.rec"), "--mask", there)]
        if TRAINER in PROGRAMS:
            verbs += [(TRAINER, "export", "--model", f.file("data/model"), "--out", full),
                      (TRAINER, "bench", "ops", "--model.path", "debug", "--rates", there)]
        for words in verbs:
            told = said(*words, code=73)
            check("; name another place, or say --overwrite" in told and told.count("\n") == 1, told)
        for path in (there, os.path.join(full, "there")):
            with open(path) as x:
                check(x.read() == "mine", f"{path} was replaced")
        said(BIN, "sample", "-c", f.config, "--index", "0", "--png", f.file("empty"), code=0)
        for words in verbs[:2] + verbs[3:6]:
            said(*words, "--overwrite", code=0)
        with open(there, "rb") as x:
            check(x.read(4) == b"\x89PNG", "not replaced by the last of them, the picture of a mask")


def a_sample_as_png():
    """The PNG files have the pixels that the model gets: read again, they give the same patches."""
    with Folder(images=16) as f:
        folder, frames = f.file("png"), f.file("frames")

        def tensors(index, *more):
            run("sample", "-c", f.config, "--index", str(index), "--out", f.file("s"), "--overwrite", *more)
            with open(f.file("s"), "rb") as x:
                return client.tensors(x.read())[0]
        picture, other = (os.path.basename(p) for p in f.train_images()[:2])
        images = os.path.dirname(f.train_images()[0])
        talks = ["--data.format", "video", "--data.path", f.file("talks.jsonl"), "--data.images", images]

        def write(*records):
            with open(f.file("talks.jsonl"), "w") as x:
                x.writelines(json.dumps({**r, "question": "what?", "answer": "red"}) + "\n" for r in records)
        write({"images": [picture, other]}, {"image": other}, {})
        both, one = tensors(0, *talks, "--png", folder), tensors(1, *talks, "--png", f.file("one.png"))
        check(sorted(os.listdir(folder)) == ["image-0.png", "image-1.png"], os.listdir(folder))
        for index, png in ((0, os.path.join(folder, "image-0.png")), (1, f.file("one.png"))):
            shutil.copy(png, os.path.join(images, f"again{index}.png"))
        for k in range(4):  # a picture four times, as the frames of a clip
            os.makedirs(os.path.join(images, "clip"), exist_ok=True)
            shutil.copy(os.path.join(folder, "image-0.png"), os.path.join(images, "clip", f"{k}.png"))
        told = said(BIN, "sample", "-c", f.config, *talks, "--index", "0", "--png", f.file("two.png"), code=64)
        check("shows 2 pictures: name a folder, not a file" in told, told)
        told = said(BIN, "sample", "-c", f.config, *talks, "--index", "2", "--png", f.file("none.png"), code=64)
        check("the sample shows no picture" in told, told)
        write({"images": ["again0.png", "again1.png"]}, {"video": "clip", "fps": 2})
        check(tensors(0, *talks)["pixels"].tobytes() == both["pixels"].tobytes(), "other pixels of two pictures")
        check(both["pixels"].tobytes().endswith(one["pixels"].tobytes()), "the second is not the picture alone")
        clip = tensors(1, *talks, "--png", frames)
        check(sorted(os.listdir(frames)) == [f"clip-0-frame-{k:02}.png" for k in range(4)], os.listdir(frames))
        shutil.rmtree(os.path.join(images, "clip"))
        shutil.copytree(frames, os.path.join(images, "clip"))
        check(tensors(1, *talks)["pixels_video"].tobytes() == clip["pixels_video"].tobytes(), "other pixels of a clip")


def a_stopped_command_leaves_nothing():
    """Neither its output, half written, nor its temporary folder, whatever stops it, also on a file system without
    unnamed files; and it ends by the signal."""
    with Folder(images=64, **{"prepd.workers": 1}) as f, trap():
        out, tmp = f.file("outputs"), f.file("tmp")
        os.mkdir(out)
        os.mkdir(tmp)
        rows = os.path.join(out, "rows.rec")
        record = ("record", "--steps", "4", "--out", rows)
        digest(f.config, "--steps", "1")  # the index
        env = {**os.environ, "TMPDIR": tmp, "POISON_SLOW_MS": "400"}

        def hears():
            signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which nohup would have ignored

        def begun(*words, half=False, before=hears, **more):
            p = subprocess.Popen([BIN, words[0], "-c", f.config, *words[1:]], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 text=True, preexec_fn=before, **more)
            wait_for(lambda: p.poll() is not None or (os.path.exists(rows + ".tmp") if half else any("s" in os.listdir(os.path.join(tmp, d)) for d in os.listdir(tmp))),
                     f"{words} begins")
            return p

        def left(p, codes, *words):
            told = p.communicate(timeout=LIMIT_S)[1]
            check(p.returncode in codes and all(w in told for w in words), f"{p.args}: {p.returncode}, {told}")
            check(os.listdir(out) == [] and os.listdir(tmp) == [], f"{p.args}: left {os.listdir(out)} {os.listdir(tmp)}")
        for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            for words in (record, ("digest", "--steps", "4"), ("check",), ("sample", "--index", "0", "--out", rows, "--png", out + "/png"))[:4 if sig == signal.SIGINT else 1]:
                p = begun(*words)
                p.send_signal(sig)
                left(p, (-sig,), "stopped before the end signal=")
        p = begun(*record, start_new_session=True)
        os.killpg(p.pid, signal.SIGINT)  # as a terminal does: the private daemon gets it too
        left(p, (-signal.SIGINT,))
        p = begun(*record)
        os.kill(next(c for c in children(p.pid) if "serve" in command_line(c)), signal.SIGKILL)
        left(p, (69, 70), "daemon")  # before WELCOME, or after

        def small_disk():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
        env["POISON_SLOW_MS"] = "0"  # what is written reaches the file at its end
        left(begun(*record, before=small_disk), (74,), "rows.rec.tmp: the recording cannot be written: File too large")
        if sanitized():
            return
        env["POISON_SLOW_MS"] = "400"
        with trouble(f, "open", errno.EOPNOTSUPP, out, 1, verb="record"):
            env.update({k: v for k, v in os.environ.items() if k.startswith("FAULT_") or k == "LD_PRELOAD"})
            p = begun(*record, half=True)
            p.send_signal(signal.SIGTERM)
            left(p, (-signal.SIGTERM,))


def the_private_daemon_s_cause_is_told_once():
    with Folder(images=128) as f:
        def told(code, *words):
            # LeakSanitizer prints a line of its own if a thread ends while it looks.
            lines = [line for line in said(BIN, *words, "-c", f.config, code=code).splitlines()
                     if not re.match(r"==\d+==Unable to get registers from thread ", line)]
            check(len(lines) == 1 and "ipc:" not in lines[0] and "private" not in lines[0], f"{words}: {lines}")
            return lines[0]
        verbs = (("digest", "--steps", "1"), ("record", "--steps", "1", "--out", f.file("rows")), ("plan",))
        for verb in (*verbs, ("check",), ("sample", "--index", "0", "--out", f.file("s"))):
            check("data.path cannot be read" in told(66, *verb, "--data.path", f.file("none")), verb)
            check(f"{f.config} and the command line: model.path is not set: name a Hugging Face folder, or a preset and "
                  "model.tokenizer" in told(78, *verb, "--model.path", ""), verb)
        for path in f.train_images():
            with open(path, "w") as file:
                file.write("no picture")
        for verb in verbs:
            check("error prepd: no sample can be used; what is wrong with the first: " in told(65, *verb), verb)
        check("listed on standard output" in told(65, "check"), "check")


def names_are_shown_with_control_characters_escaped():
    """Names of files, samples, members of a tar and tensors: no byte of them that controls a terminal or ends a line
    reaches one, in lists, messages, status, the daemon's metrics and JSON."""
    hostile = "\x1b[31m<script>'\"&\n\u009b2J\u202egpj.jpg"
    shown = "\\x1b[31m<script>'\"&\\x0a\\u009b2J\\u202egpj.jpg"
    listen = f"127.0.0.1:{free_ports()}"
    with Folder(images=128, **{"prepd.workers": 1, "metrics.listen": listen}) as f:
        folder = os.path.dirname(f.train_images()[0])
        shutil.copy(f.train_images()[0], os.path.join(folder, hostile))
        with open(f.train_images()[0], "rb") as whole, open(os.path.join(folder, "cut" + hostile), "wb") as cut:
            cut.write(whole.read()[:700])
        talk = {"conversations": [{"from": "human", "value": "<image>\nwhat?"}, {"from": "gpt", "value": "red"}]}
        with open(f.file("talks.jsonl"), "w") as file:
            for name in (hostile, "absent" + hostile, "cut" + hostile):
                file.write(json.dumps({"id": hostile, "image": name, **talk}) + "\n")
        words = ["-c", f.config, "--data.format", "conversations", "--data.path", f.file("talks.jsonl"), "--data.images",
                 folder]
        out = run("check", *words, "--hash", code=65)
        plain(out, "\t")
        lines = out.splitlines()
        check(sum(line.startswith("hash\t") and line.endswith("\t" + shown) for line in lines) == 1, out)
        check(sum(line.startswith("1\t") and "absent" + shown in line for line in lines) == 1, out)
        with Daemon(f.config, *words[2:]) as d:
            wait_for(lambda: "serving" in d.said(), "the daemon serves")
            next(client.connect("ipc://" + f.file("d.sock")))
            wait_for(lambda: ", 1 quarantined" in run("status", "-c", f.config), "the cut picture is found")
            status, told = run("status", "-c", f.config), run("status", "-c", f.config, "--json")
            check("cut" + shown in status, status)
            for text in (status, told, urllib.request.urlopen(f"http://{listen}/metrics").read().decode(), d.said()):
                plain(text)
            check(any("cut" + hostile in q["cause"] for q in json.loads(told)["train"]["quarantined"]), told)
        with tarfile.open(f.file("s-000.tar"), "w") as tar:
            for name in ("a\udcff\x1b.png", "a\udcff\x1b.json"):
                member = tarfile.TarInfo(name)
                member.size = 4
                tar.addfile(member, io.BytesIO(b"null"))
        out = run("check", "-c", f.config, "--data.format", "webdataset", "--data.path", f.file("s-000.tar"), code=65)
        check("a\ufffd\\x1b" in plain(out, "\t\ufffd"), out)
        with open(f.file("mix.yaml"), "w") as file:
            json.dump({"s\x1b[31m": {"path": "data", "format": "vqav2", "weight": 1}}, file)
        out = run("plan", "-c", f.config, "--data.format", "mixture", "--data.path", f.file("mix.yaml"))
        check("source s\\x1b[31m: " in plain(out), out)
        if TRAINER in PROGRAMS:
            header = json.dumps({hostile: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
            with open(f.file("data/model/model.safetensors"), "wb") as file:
                file.write(len(header).to_bytes(8, "little") + header + b"\0" * 4)
            p = subprocess.run([TRAINER, "inspect", f.file("data/model")], capture_output=True, text=True)
            check("extra      " + shown in plain(p.stdout) and plain(p.stderr), p.stdout[-500:] + p.stderr)


def plain(text, allowed=()):
    """The text, after checking that nothing in it controls a terminal except line ends and what is allowed."""
    bad = [c for c in text if (unicodedata.category(c) in ("Cc", "Cf", "Cs") or c == "\ufffd") and c != "\n" and c not in allowed]
    check(not bad, f"{bad} in {text!r}")
    return text


def values_that_are_missing_or_out_of_range():
    """The message names the word, its range and its place. Exit code 64 for the command line, 78 for the file."""
    with Folder() as f:
        wrong = [("scale -1 --connect ipc://x", "scale -1: expected a whole number from 0 to 1024"),
                 ("scale --connect ipc://x", "needs the number of workers"),
                 ("scale 1 2 --connect ipc://x", "unexpected \"2\""),
                 ("status --connect foo", "--connect: endpoint \"foo\": expected ipc://PATH or tcp://HOST:PORT"),
                 ("worker --connect foo", "--connect: endpoint \"foo\""),
                 ("status --prepd.endpoint foo", "neither ipc://PATH nor tcp://HOST:PORT"),
                 ("keygen", "--out DIR"), ("keygen --client a", "--out DIR"),
                 ("synth --out x --images 1 --seed 0", "--images 1: expected a whole number from 2 to 1000000"),
                 ("synth --out x --images", "--images needs a value"),
                 ("sample --out --index 3", "--out needs a value"),
                 (f"sample -c {f.config} --out x", "--index is missing: give it a whole number of at least 0"),
                 ("tokenize folder", "unexpected \"folder\": a value follows its --option, a YAML file follows -c; see prepd tokenize --help"),
                 (f"serve -c {f.path}", "is a folder; -c takes a YAML file"),
                 (f"serve -c {f.path}/run.toml", "TOML is not read; deploy/from-torchtitan (installed: share/tessera) turns"),
                 ("check --prepd.workers 99999", "allowed: -1 to 1024 processes"),
                 (f"sample -c {f.config} --index 100000 --out {f.file('s')}", "past the last sample: the data set has")]
        for words, remedy in wrong:
            got = said(BIN, *words.split(), code=64)
            check(remedy in got, f"{words}: {got}")
        for text, remedy in (("training: 5", ".yaml:1: training is a section"),
                             ("log:\n  json: perhaps", ".yaml:2: log.json: expected true or false (yes, "),
                             ("prepd:\n  endpoint: foo", ".yaml:2: prepd.endpoint: \"foo\""),
                             ("job:", f"{f.file('wrong.yaml')}: model.path is not set: "),
                             (f"model:\n  path: {f.file('data/model')}\ndata:\n  format: webdataset",
                              f"{f.file('wrong.yaml')}: data.path is not set: "),
                             ("prepd:\n  workers: 99999", ".yaml:2: prepd.workers: 99999 is out of range; allowed:")):
            with open(f.file("wrong.yaml"), "w") as file:
                file.write(text + "\n")
            got = said(BIN, "serve", "-c", f.file("wrong.yaml"), code=78)
            check(remedy in got, got)
        if TRAINER not in PROGRAMS:
            return
        for words, code, remedy in (("verify", 64, "-c FILE"), (f"verify -c {f.config}", 66, "job.dump_folder must be"),
                                    ("plan --sweep 3", 64, "model.path is not set: name a Hugging Face folder or a preset"), ("plan --model.path debug --sweep 0", 64, "from 1 to 65536"),
                                    ("plan --model.path debug --sweep 3", 78, "no layout of 3 ranks is possible"),
                                    ("export --model a --out b --dtype f8", 64, "expected bf16 or f32"),
                                    ("bench --model.path debug", 64, "what to measure: ops or step"),
                                    ("bench", 64, "model.path is not set")):
            got = said(TRAINER, *words.split(), code=code)
            check(remedy in got, f"{words}: {got}")
        check("qwen3-vl-30b-a3b\n" in said(TRAINER, "inspect", code=0), "no list of presets")


main(a_command_beside_the_daemon, the_build_s_name_is_of_its_sources, a_socket_that_is_missing_or_belongs_to_another,
     no_folder_can_hold_the_index, plan_opens_the_data_once, help_of_every_verb, all_mistakes_are_told_at_once,
     an_option_that_the_verb_does_not_read, every_verb_with_every_option, mistyped_words_have_a_suggestion,
     words_unlike_any_other_have_no_suggestion, a_word_after_a_switch,
     nothing_is_replaced_unasked, a_sample_as_png, a_stopped_command_leaves_nothing, the_private_daemon_s_cause_is_told_once,
     names_are_shown_with_control_characters_escaped, values_that_are_missing_or_out_of_range)
