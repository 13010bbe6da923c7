# SPDX-License-Identifier: Apache-2.0
"""The scripts of deploy/ without root, network, systemd or Slurm: their help and their answers to wrong words, how
the quickstart treats incomplete data, which packages count as missing, what is started. Also the style check of
the top level where there is no git."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile

from prepd_flow import BIN, LIMIT_S, check, main, run, wait_for
from terminal import Terminal

SOURCE = os.path.abspath(os.environ.get("TESSERA_SOURCE", "."))
TRAINER = os.path.join(os.path.dirname(os.path.abspath(BIN)), "trainer")


class Place:
    """A temporary folder with stand-in programs that come before the machine's; each appends its words to the file
    "said"."""

    def __enter__(self):
        self.path = tempfile.mkdtemp(prefix="deploy")
        os.makedirs(self.file("path"))
        return self

    def file(self, name):
        return os.path.join(self.path, name)

    def write(self, name, text):
        os.makedirs(os.path.dirname(self.file(name)), exist_ok=True)
        with open(self.file(name), "w") as f:
            f.write(text)
        return self.file(name)

    def program(self, name, lines=""):
        path = self.write(name, f"#!/bin/bash\necho \"{os.path.basename(name)} $*\" >>{self.file('said')}\n{lines}\n")
        os.chmod(path, 0o755)

    def said(self):
        if not os.path.exists(self.file("said")):
            return []
        with open(self.file("said")) as f:
            lines = f.read().splitlines()
        os.remove(self.file("said"))
        return lines

    def run(self, *args, code=0, cwd=None, **env):
        p = subprocess.run(args, cwd=cwd or self.path, capture_output=True, text=True, timeout=120,
                           env=dict(os.environ, PATH=self.file("path") + ":" + os.environ["PATH"], **env))
        check(p.returncode == code, f"{args}: exit code {p.returncode}, wanted {code}\n{p.stdout}{p.stderr}")
        return p.stdout if code == 0 else p.stderr

    def __exit__(self, *_):
        shutil.rmtree(self.path)


def their_help_is_their_head():
    """--help prints the comment at the head of the script, from any folder, and no line of code. Unknown words are
    named."""
    with Place() as place:
        for name in ("quickstart", "install-deps", "prepd-run"):
            with open(os.path.join(SOURCE, "deploy", name)) as f:
                head = f.read().split("\nset -euo")[0].splitlines()[1:]
            head = "".join(line[2:] + "\n" for line in head)
            for cwd, path in ((os.path.join(SOURCE, "deploy"), "./" + name), (SOURCE, "deploy/" + name),
                              (place.path, os.path.join(SOURCE, "deploy", name))):
                said = place.run(path, "--help", cwd=cwd)
                check(said == head, f"{path} in {cwd}: {said}")
                said = place.run(path, "--foo", code=64, cwd=cwd)
                check(said.startswith(name + ": unknown") and "--foo" in said.splitlines()[0] and head in said, said)


TOML = """# One published run: text alone, rows of 12,288 tokens on eight GPUs.
[job]
dump_folder = "./outputs"

[model]
name = "qwen3"
flavor = "30B-A3B"
hf_assets_path = "./assets/hf/Qwen3-30B-A3B"

[optimizer]
name = "AdamW"
lr = 3e-4

[lr_scheduler]
warmup_steps = 600

[training]
local_batch_size = 4
seq_len = 12288
steps = 3000
dataset = "c4"

[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 1
expert_parallel_degree = 4
expert_tensor_parallel_degree = 1

[checkpoint]
enable = false
export_dtype = "float16"

[activation_checkpoint]
mode = "selective"  # none, selective, full
selective_ac_option = "op"

[compile]
enable = true

[training_extra]
unheard = 3
"""


# Sections that say the same as [training], which comes last.
TOML_LAST = """[validation]
seq_len = 128
local_batch_size = 1
[lr_scheduler]
total_steps = 9
[dataloader]
dataset = "vqav2"
[training]
local_batch_size = 4
seq_len = 12288
steps = 3000
dataset = "c4"
"""


def torchtitans_toml_becomes_yaml():
    """The result is accepted by trainer plan; what could not be translated is named with its file and line. TOML itself is
    refused with the name of the script."""
    with Place() as place:
        toml, made = place.write("run.toml", TOML), place.file("run.yaml")
        script = os.path.join(SOURCE, "deploy/from-torchtitan")
        said = subprocess.run([sys.executable, "-B", script, toml, "--out", made], capture_output=True, text=True).stderr.splitlines()
        for place_, words in ((31, "checkpoint.export_dtype: here trainer export --dtype"), (41, "training_extra.unheard: not a key of torchtitan")):
            check(sum(line.startswith(f"from-torchtitan: {toml}:{place_}: {words}") for line in said) == 1, said)
        check(len(said) == 2, said)
        place.run(sys.executable, "-B", script, "--strict", toml, "--out", made, code=65)
        planned = place.run(TRAINER, "plan", "-c", made, "--device", "h200")
        check("step: 32 rows of 12288 tokens = 4 x 8 data-parallel ranks x 1 micro-batches" in planned, planned)
        check("of these expert 4, expert tensor 1" in planned and "fits: " in planned, planned)
        printed = place.run(TRAINER, "train", "-c", made, "--print-config").splitlines()
        for line in ("data.format: text", 'cuda_graph.scope: "step"', "lr_scheduler.warmup_steps: 600", 'model.path: "qwen3-30b-a3b"'):
            check(line in printed, f"{line}: {printed}")
        place.run(sys.executable, "-B", script, place.file("none.toml"), code=66)
        check("not TOML" in place.run(sys.executable, "-B", script, place.write("bad.toml", "[a\n"), code=65), "bad TOML")
        check("--strict" in place.run(sys.executable, "-B", script, "--help"), "its help")

        def translated(text):
            p = subprocess.run([sys.executable, "-B", script, place.write("some.toml", text)], capture_output=True, text=True)
            check(p.returncode == 0, p.stderr)
            return p.stdout, [line.removeprefix(f"from-torchtitan: {place.file('some.toml')}:") for line in p.stderr.splitlines()]
        printed, said = translated(TOML_LAST)
        for line in ("local_batch_size: 4", "seq_len: 12288", "steps: 3000", "format: text", "global_batch_size: 32"):
            check(f"  {line}\n" in printed, f"{line}: {printed}")
        check(said == ["2: validation.seq_len: here training.seq_len: held-out rows are as long as the others",
                       "3: validation.local_batch_size: here training.local_batch_size: held-out rows are in batches of the same size",
                       "5: lr_scheduler.total_steps: training.steps is already 3000", "7: dataloader.dataset: data.format is already text"], said)
        printed, said = translated("[validation]\nseq_len = 128\n[lr_scheduler]\ntotal_steps = 9\n")
        check("  steps: 9\n" in printed and "seq_len" not in printed and len(said) == 1, printed)
        printed, said = translated("[training]\nbatch_size = 3\n[debug]\nseed = 7\n")  # older names
        check("  local_batch_size: 3\n" in printed and "  global_batch_size: 24\n" in printed and "  seed: 7\n" in printed, printed)
        printed, said = translated("[training]\nbatch_size = 3\nlocal_batch_size = 4\n")
        check("  local_batch_size: 4\n" in printed and said == ["2: training.batch_size: training.local_batch_size is already 4"], said)
        printed, said = translated('[activation_checkpoint]\nper_op_sac_force_recompute_mm_shapes_by_fqns = ["moe.router.gate"]\n')
        check("save" not in printed and said[0].endswith(": here activation_checkpoint.save"), said)  # a list of other words
        for section, line, words in (("training", 'dataset = ["a"]', "it must be text"), ("training", "compile = 1", "it must be true or false"),
                                     ("parallelism", 'tensor_parallel_degree = "2"', "it must be an integer"),
                                     ("checkpoint", "interval = true", "it must be an integer"), ("optimizer", "lr = inf", "it must be a number"),
                                     ("checkpoint", "folder = 2026-01-01", "it must be text"), ("model", "flavor = [1]", "it must be text"),
                                     ("parallelism", "pipeline_parallel_split_points = 3", "it must be a list")):
            file = place.write("kind.toml", f"[{section}]\n{line}\n")
            said = place.run(sys.executable, "-B", script, file, code=65)
            check(said.startswith(f"from-torchtitan: {file}:2: {section}.{line.split()[0]}: {words}, and is ") and said.count("\n") == 1, said)
        check('it must be text, and is ["a"]' in place.run(sys.executable, "-B", script, place.write("kind.toml", 'training.dataset = ["a"]'), code=65),
              "the value")
        for out in place.file("none/run.yaml"), place.path, "/dev/full":
            said = place.run(sys.executable, "-B", script, toml, "--out", out, code=73)
            check(said.startswith(f"from-torchtitan: {out}: cannot be written: ") and said.count("\n") == 1, said)
        for program in (BIN, "serve"), (TRAINER, "train"):
            refused = place.run(*program, "-c", toml, code=64)
            check(f"{toml}: TOML is not read; deploy/from-torchtitan" in refused, refused)


def quickstart_makes_unfinished_data_again():
    """If prepd synth was interrupted anywhere, the next quickstart makes the data again; complete data is left
    alone."""
    with Place() as place:
        os.mkdir(place.file("deploy"))
        for name in ("quickstart", "progress"):
            shutil.copy(os.path.join(SOURCE, "deploy", name), place.file("deploy"))
        for name in ("cmake", "ninja"):
            place.program("path/" + name)
        place.program("build/bin/prepd", f'[ "$1" != synth ] || exec {shlex.quote(os.path.abspath(BIN))} synth --out "$3" '
                      "--images 8 --seed 1 --sizes small")
        place.program("build/bin/trainer", "echo 'trained: loss 2 to 1'")

        def quickstart():
            said = place.run(place.file("deploy/quickstart"), "--no-install").splitlines()
            check(said[-1] == "quickstart: loss 2 to 1", said)
            return any(line.startswith("prepd synth") for line in place.said())
        check(quickstart(), "no data were made")
        check(not quickstart(), "whole data were made again")
        smoke = place.file("build/smoke")
        files = [os.path.join(at, name) for at, _, names in os.walk(smoke) for name in names if not name.endswith(".log")]
        files.sort(key=lambda path: (os.stat(path).st_mtime_ns, path))
        check(len(files) > 12 and files[0].endswith("synth.json"), files)
        for end in range(1, len(files)):  # as it was when the next file was being written
            for path in files[end:]:
                os.remove(path)
            check(quickstart(), f"the data that end with {files[end - 1]} were taken for whole")
            check(all(map(os.path.exists, files)), f"made again from {files[end - 1]}, not all is there")


def prometheus_accepts_the_alert_rules():
    """promtool, which is part of Debian's package prometheus, checks the rules and tries them with made series."""
    if not shutil.which("promtool"):
        print("skipped: promtool is not installed, so Prometheus has not read the alert rules")
        return
    for words in (["check", "rules", os.path.join(SOURCE, "deploy/prometheus-alerts.yaml")],
                  ["test", "rules", os.path.join(SOURCE, "tests/flow/prometheus_alerts_test.yaml")]):
        p = subprocess.run(["promtool", *words], capture_output=True, text=True, timeout=LIMIT_S)
        check(p.returncode == 0, p.stdout + p.stderr)


def dashboards_are_of_grafanas_form():
    """What Grafana's schema of a dashboard demands (kinds/dashboard/dashboard_kind.cue), and what would be seen as an empty or covered
    panel. Whether the programs tell what a panel asks for is tested beside their metrics."""
    def some(value, *kinds):
        return isinstance(value, kinds) and value not in ("", [], {})
    for name in "prepd", "trainer":
        with open(os.path.join(SOURCE, f"deploy/grafana-{name}.json"), encoding="utf-8") as f:
            board = json.load(f)
        check(some(board["title"], str) and 0 < len(board["uid"]) <= 40 and board["schemaVersion"] >= 36, name)
        check(all(some(board["time"][end], str) for end in ("from", "to")), f"{name}: {board['time']}")
        variables = {v["name"]: v["type"] for v in board["templating"]["list"]}
        check(variables == {"source": "datasource", "instance": "query"}, f"{name}: {variables}")
        check(len({p["id"] for p in board["panels"]}) == len(board["panels"]) >= 10, f"{name}: ids of panels")
        covered = set()
        for panel in board["panels"]:
            where = f"{name}, panel {panel['id']}"
            check(some(panel["type"], str) and some(panel["title"], str) and some(panel["description"], str), where)
            at = panel["gridPos"]
            cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
            check(cells and at["x"] >= 0 and at["x"] + at["w"] <= 24 and not cells & covered, f"{where} lies outside or upon another: {at}")
            covered |= cells
            config = panel.get("fieldConfig", {"defaults": {}, "overrides": []})
            check(config.keys() == {"defaults", "overrides"} and isinstance(config["overrides"], list), f"{where}: {config}")
            check(panel["datasource"] == {"type": "prometheus", "uid": "$source"}, f"{where}: {panel['datasource']}")
            names = [t["refId"] for t in panel["targets"]]
            check(names and len(set(names)) == len(names) and all(some(t["expr"], str) for t in panel["targets"]), f"{where}: {names}")
            used = {v for t in panel["targets"] for v in re.findall(r"\$(\w+)", t["expr"])}
            check(used <= {*variables, "__rate_interval", "__interval", "__range"}, f"{where}: {used}")


def what_lies_on_the_top_level_is_seen_without_git():
    script = os.path.join(SOURCE, "tests/style/top_level")
    with Place() as place, Place() as tree:
        place.program("path/git", "exit 127")
        shutil.copy(os.path.join(SOURCE, ".gitignore"), tree.path)
        for name in ("README.md", "prepd/cli/main.c", ".ci/run", "build/x", "build-asan/x", "outputs/x", "x.o", ".git/HEAD"):
            tree.write(name, "")
        os.rmdir(tree.file("path"))
        check(place.run(script, tree.path) == "", "what belongs there is refused")
        for name in ("notes.txt", ".hidden/x", "prep/main.c", "rebuild/x"):
            tree.write(name, "")
        said = subprocess.run([script, tree.path], capture_output=True, text=True, check=False)
        wrong = [f"style: {name} does not belong on the top level" for name in (".hidden", "notes.txt", "prep", "rebuild")]
        check(said.returncode == 1 and sorted(said.stdout.splitlines()) == wrong, said.stdout + said.stderr)


def who_includes_whom_is_held_against_the_page():
    script = os.path.join(SOURCE, "tests/style/rooms")
    page = "<!-- rooms -->\n```\ncommon/base\ncommon/json    common/base\n```\n<!-- /rooms -->\n"
    for change, wrong in ((("common/json/b.c", '#include "common/base/a.h"'), None),
                          (("common/base/b.c", '#include "common/json/a.h"'), "does not list common/base -> common/json"),
                          (("common/conf/b.c", ""), "does not list common/conf"),
                          (("common/json/b.c", ""), "lists common/json -> common/base, which no file needs"),
                          (("ARCHITECTURE.md", page.replace("base\n", "base    common/json\n", 1)), "does not stand above it")):
        with Place() as tree:
            for name, text in (("ARCHITECTURE.md", page), ("common/base/a.h", ""), ("common/json/a.h", ""),
                               ("common/json/b.c", '#include "common/base/a.h"'), change):
                tree.write(name, text)
            said = subprocess.run([script], capture_output=True, text=True, check=False, cwd=tree.path)
            check((said.returncode == 1 and wrong in said.stdout) if wrong else (said.returncode == 0 and not said.stdout),
                  f"{change}: {said}")


# WAITS plays a program that, when interrupted, exits with 2 as make does. TRAINS plays a trainer, which ends its step and
# keeps a checkpoint.
WAITS = """[ ! -e there ] || exit 0
echo {name} waits; trap 'rm -f busy; exit 2' INT; touch busy there; for i in {{1..6000}}; do sleep 0.05; done"""
TRAINS = """[ ! -e there ] || { echo 'trained: loss 2 to 1'; exit 0; }
checkpoint=build/smoke/run/checkpoint; mkdir -p $checkpoint/step-50
echo 'step: 50'; trap 'sleep 0.2; mkdir $checkpoint/step-118; echo the last words; exit 0' INT; touch there
for i in {1..6000}; do sleep 0.05; done"""


def begun(place, phase):
    """Puts stand-ins for the programs of quickstart in place; the one of this phase waits when it is first run."""
    for name in ("quickstart", "install-deps", "progress"):
        os.makedirs(place.file("deploy"), exist_ok=True)
        shutil.copy(os.path.join(SOURCE, "deploy", name), place.file("deploy"))
    waits = {phase: WAITS.format(name=phase)}
    place.program("path/dpkg", "echo native")
    place.program("path/dpkg-query", "[ -e there ] && echo native installed || exit 1" if phase == "packages" else "echo all installed")
    place.program("path/id", "echo 0")
    # apt-get reports success even if it was interrupted.
    place.program("path/apt-get", '[ "$1" != install ] || {\n' + waits.get("packages", "").replace("exit 2", "echo W: dump >&2; exit 0") + "\n}")
    place.program("path/cmake", waits.get("configure", ""))
    place.program("path/ninja", waits.get("build", "").replace("build waits", "'[1000035/1000070] Building C object x.c.o'; sleep 0.5"))
    place.program("build/bin/prepd", "[ $1 != serve ] || { touch serves; trap 'rm serves; exit 0' TERM; while :; do sleep 0.05; done; }\n"
                  "mkdir -p build/smoke\n" + waits.get("data", "") + "\ntouch build/smoke/v2_mscoco_val2014_annotations.json")
    place.program("build/bin/trainer", TRAINS if phase == "training" else "echo 'trained: loss 2 to 1'")


def in_a_pipe(words, env, ready):
    """Ctrl-C in `quickstart | cat`: all processes of the terminal get the signal. Returns the exit code and the
    output."""
    p = subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
    wait_for(ready, "it waits")
    os.killpg(p.pid, signal.SIGINT)
    said = p.communicate(timeout=LIMIT_S)[0]
    return p.returncode, said


def on_a_terminal(words, env, ready):
    terminal = Terminal(*words, env=env)
    while not ready():
        check(terminal.read(0.05), terminal.said)
    terminal.ctrl_c()
    code = terminal.end()
    check(not any(re.search(r"[-#]\] |ends in order.", line) for line in terminal.screen()), terminal.screen())
    return code, terminal.said.replace("\r\x1b[K", "")


def ctrl_c_ends_quickstart_in_order():
    """In every phase, one line says how far it got and that the same command continues, which it does."""
    for phase, step, way in (("packages", "packages", on_a_terminal), ("configure", "build", in_a_pipe),
                             ("build", "build", on_a_terminal), ("data", "data", in_a_pipe),
                             ("training", "training", on_a_terminal), ("training", "training", in_a_pipe)):
        with Place() as place:
            begun(place, phase)
            words = [place.file("deploy/quickstart")]
            env = dict(os.environ, PATH=place.file("path") + ":" + os.environ["PATH"], TERM="xterm")
            code, said = way(words, env, lambda: os.path.exists(place.file("there")))  # noqa: B023
            lines = said.splitlines()
            end = {"training": "after step 118; the same command resumes from there"}.get(
                step, f'during "{step}"; the same command goes on')
            check(code == 130 and lines[-1] == "quickstart: stopped " + end, f"{phase}: exit code {code}\n{said}")
            check(("the last words" in lines) == (phase == "training"), said)
            check("failed" not in said and "dump" not in said and len(lines) < 20, said)
            check(not os.path.exists(place.file("busy")) and not os.path.exists(place.file("serves")), "something was left")
            said = place.run(*words, cwd=place.path)
            check(said.endswith("quickstart: loss 2 to 1\n"), said)


# Two seconds of a build, and of an installation.
BUILDS = """echo "[0/2] Re-checking globbed directories..."
for i in {1..70}; do echo "[$i/70] Building C object x.c.o"; sleep 0.03; done; echo 'a.c:1: a warning'"""
INSTALLS = """[ "$1" = install ] || exit 0
for i in {1..30}; do echo "dlstatus:$i:$i.5:Retrieving file $i of 30 (2s remaining)" >&3; sleep 0.03; done
for i in {1..30}; do echo "pmstatus:libc6:amd64:$((i * 3)).3333:Unpacking libc6 (amd64)" >&3; sleep 0.03; done"""
BAR = r"\[#+-*\] "


def frames(terminal):
    """The states of the line that is drawn over itself."""
    found = re.findall("\r([^\r\n\x1b]*)\x1b\\[K\r", terminal.said)
    check(all(len(frame) < terminal.columns for frame in found), found)
    return found


def builds_and_installations_say_how_far_they_are():
    """By a line that is drawn over itself on a terminal; by plain lines, every half minute, in a log."""
    with Place() as place:
        for name in ("cmake", "ctest"):
            place.program("path/" + name)
        place.program("path/ninja", BUILDS)
        place.program("path/apt-get", INSTALLS)
        place.program("path/dpkg", "echo native")
        place.program("path/dpkg-query", "exit 1")
        place.program("path/id", "echo 0")
        env = dict(os.environ, PATH=place.file("path") + ":" + os.environ["PATH"], TERM="xterm")
        test = [os.path.join(SOURCE, "tests/run"), "--no-install", "--only", "unit"]
        install = [os.path.join(SOURCE, "deploy/install-deps")]
        for words, columns, form in ((test, 80, BAR + r"built \d+ of 70"), (test, 18, r"built \d+ of 70"),
                                     (install, 80, BAR + r"downloaded \d+ of 30 files"),
                                     (install, 80, BAR + r"unpacked and configured \d+ %")):
            terminal = Terminal(*words, env=env, columns=columns)
            check(terminal.end() == 0, terminal.said)
            found = [frame for frame in frames(terminal) if re.fullmatch(form, frame)]
            check(len(found) >= 3, f"{form}: {found}\n{terminal.said}")
            check(not any("#" in line for line in terminal.screen()), terminal.screen())
        for words, ends in ((test, ["a.c:1: a warning", "built 70 of 70"]), (install, ["downloaded 30 of 30 files"])):
            log = place.run(*words, TERM="xterm")
            check(not re.search(r"[\r\x1b]", log) and len(re.findall(r"^(built|downloaded|unpacked) ", log, re.M)) == 1, log)
            check("\n".join(["", *ends, ""]) in log and "built 0" not in log, log)


# Of four tests, two have ended and one was skipped when it waits. The build is counted too.
TESTS = """case " $* " in *" -N "*) echo 'Total Tests: 7'; exit ;; esac
mkdir -p {at}/Testing/Temporary
echo 'skipped: no GPU' >{at}/Testing/Temporary/LastTest.log.tmp
echo 'Test project {at}
1/4 Test  #1: one ...   Passed    0.01 sec
2/4 Test #12: two ...***Failed    0.01 sec
3/4 Test  #3: three .***Skipped   0.01 sec'
touch {at}/there; sleep 600"""


def ctrl_c_prints_the_counts_of_the_tests_so_far():
    for way in (on_a_terminal, in_a_pipe):
        with Place() as place:
            for name in ("cmake", "ninja"):
                place.program("path/" + name)
            place.program("path/ctest", TESTS.format(at=place.path))
            env = dict(os.environ, PATH=place.file("path") + ":" + os.environ["PATH"], TMPDIR=place.file("tmp"))
            os.mkdir(place.file("tmp"))
            code, said = way([os.path.join(SOURCE, "tests/run"), "--no-install", "--only", "unit"], env,
                             lambda: os.path.exists(place.file("there")))  # noqa: B023
            lines = said.splitlines()
            check(code == 130 and lines[-1] == "2 passed, 1 failed, 1 skipped", f"exit code {code}\n{said}")
            check(lines[-2].startswith("tests/run --all adds: 7 long tests "), said)
            check("1 skipped: no GPU" in said and not os.listdir(place.file("tmp")), said)


CMAKE = r"""
if [ "$1" = --build ]; then
    [ -e "$2/made" ] && [ -z "$AGAIN" ] || echo "[1/1] Building C object a.o"
    touch "$2/made"
    echo "$WARNING"
else
    mkdir -p "$2/bin"
    ln -sf /bin/true "$2/bin/prepd"
    ln -sf /bin/true "$2/bin/trainer"
fi
"""


def a_variant_compiles_without_a_warning_and_once():
    with Place() as place:
        place.program("path/cmake", CMAKE)
        place.program("path/ctest", "")
        variants = os.path.join(SOURCE, "tests/variants")
        said = place.run(variants, "no-mpi", AGAIN="", WARNING="")
        check("no-mpi           ok" in said and said.endswith("\n1 ok, 0 failed, 0 skipped\n"), said)
        calls = place.said()
        check(all(word in calls[0].split() for word in ("-DMPI=OFF", "-DWERROR=ON")) and "ctest" in calls[-1], calls)
        said = place.run(variants, "release", code=1, AGAIN="1", WARNING="")
        check("a second cmake makes these 1 again:\n[1/1] Building" in said, said)
        check("a.c:1: warning: b" in place.run(variants, "lto", code=1, AGAIN="", WARNING="a.c:1: warning: b"), "a warning")
        check(place.run(variants, "--turn", AGAIN="", WARNING="").endswith("\n1 ok, 0 failed, 0 skipped\n"), "one in turn")
        check("there is no none" in place.run(variants, "none", code=64), "another name")


def a_second_quickstart_says_what_it_takes_and_how_to_begin_anew():
    with Place() as place:
        begun(place, None)
        at = place.file("build/smoke/run")
        place.program("build/bin/trainer", f"mkdir -p {at}/checkpoint/step-9; touch {at}/report.html {at}/predictions.html\n"
                      "echo 'trained: loss 2 to 1'")
        first, second = (place.run(place.file("deploy/quickstart"), "--no-install") for _ in range(2))
        pages = [f"{name}: {at}/{name}.html" for name in ("report", "predictions")]
        for said in (first, second):
            check(said.splitlines()[-3:] == [*pages, "quickstart: loss 2 to 1"], said)
        check("anew" not in first, first)
        check("going on from step 9, which an earlier quickstart left; rm -r build/smoke/run makes it train anew\n" in second, second)
        check("nothing was trained now: step 9 is the last" in second, second)


# libone is installed for two architectures, libtwo only for another one, and all others for every architecture.
DPKG_QUERY = """case ${!#} in
libzmq3-dev) printf 'foreign installed\\nnative installed\\n' ;;
libyaml-dev) printf 'foreign installed\\n' ;;
libyajl-dev) printf 'native config-files\\n' ;;
libpcre2-dev) exit 1 ;;
*) echo all installed ;;
esac"""
APT_GET = """if [ "$1" = update ] && [ ! -e taken ]; then
    touch taken
    echo "E: Could not get lock lists/lock. It is held by process 1 (apt-get)" >&2
    exit 100
fi
[ "$1" != update ] || [ ! -e broken ] || { echo "E: no network" >&2; exit 100; }"""


def packages_of_this_architecture_are_asked_for():
    """Only packages of this architecture count as installed, and another apt is waited for."""
    script = os.path.join(SOURCE, "deploy/install-deps")
    with Place() as place:
        place.program("path/dpkg", "echo native")
        place.program("path/dpkg-query", DPKG_QUERY)
        place.program("path/apt-get", APT_GET)
        place.program("path/id", "echo 1000")
        said = place.run(script, "--prepd", code=77)
        check(said == "install-deps: root is needed to install these packages: libyaml-dev libyajl-dev libpcre2-dev\n", said)
        check(not any(line.startswith("apt-get") for line in place.said()), "it installs all the same")
        place.program("path/id", "echo 0")
        place.run(script, "--prepd")
        asked = [line.split() for line in place.said() if line.startswith("apt-get")]
        check([line[1] for line in asked] == ["update", "update", "install"], asked)
        check(asked[2][-3:] == ["libyaml-dev", "libyajl-dev", "libpcre2-dev"], asked)
        check("DPkg::Lock::Timeout=300" in asked[2], asked)
        place.write("broken", "")
        check(place.run(script, "--prepd", code=1) == "E: no network\n", "another error is waited for")
        place.program("path/dpkg-query", "echo native installed")
        place.said()
        check("everything is installed" in place.run(script), "what is there is missing")
        check(not any(line.startswith("apt-get") for line in place.said()), "there is nothing to install")


def prepd_run_names_what_is_wrong_and_hands_on_what_is_right():
    with Place() as place:
        place.program("prepd")
        shutil.copy(os.path.join(SOURCE, "deploy/prepd-run"), place.file("prepd-run"))
        script = place.file("prepd-run")
        config = place.write("a $HOME/c.yaml", "")
        for words, first in ((["--cpus"], "--cpus needs"), (["--memory"], "--memory needs"),
                             (["--cpus", "--print", config], "--cpus needs"), (["--memory", "", config], "--memory needs"),
                             (["--print"], "no configuration is given"), ([], "no configuration is given")):
            said = place.run(script, *words, code=64)
            check(said.startswith("prepd-run: " + first) and "deploy" not in said.splitlines()[0], said)
        said = place.run(script, "--print", place.file("none/c.yaml"), code=66)
        check("none/c.yaml cannot be read" in said, said)
        more = ["--data.path", "/data/${X}/$HOME/$$", "--data.system", "it's 5 $, \"100 %\""]
        line = place.run(script, "--print", "--cpus", "0-1", "--memory", "4G", config, *more)
        words = shlex.split(line)
        check(words[0] == "systemd-run" and {"AllowedCPUs=0-1", "MemoryMax=4G"} <= set(words), line)
        # The service manager turns $$ into $ and replaces any other $NAME or ${NAME}.
        at = words.index(place.file("prepd"))
        check(words[at + 1:at + 3] == ["serve", "-c"], line)
        check([w.replace("$$", "$") for w in words[at + 3:]] == [config, *more], line)
        check(all(w.count("$") == 2 * w.count("$$") for w in words[at + 3:]), line)
        if not os.path.isdir("/run/systemd/system"):
            said = place.run(script, config, *more, code=69)
            check(shlex.split(said.splitlines()[-1])[:-1] == [place.file("prepd"), "serve", "-c", config, *more], said)


def several_nodes_are_told_the_first(place, script, config):
    """prepd listens on all addresses, and ranks connect to its node with a key for rows alone; an endpoint that only one
    node can reach is refused."""
    env = {"TESSERA_BIN": place.file("bin"), "SLURM_JOB_ID": "1", "SLURM_NNODES": "2", "SLURMD_NODENAME": "node7"}
    keys = ["--prepd.keys", place.file("keys")]
    run("keygen", "--out", place.file("keys"))
    for words, lack in ((["--prepd.endpoint", "tcp://127.0.0.1:5555", *keys], "127.0.0.1"),
                        (["--prepd.endpoint", "tcp://0.0.0.0:5555"], "prepd.keys is not set"),
                        (["--prepd.endpoint", "tcp://0.0.0.0:5555", *keys], "the ranks have no key")):
        said = place.run("bash", script, config, *words, code=78, **env)
        check(lack in said and "keygen" in said and place.said() == [], said)
    run("keygen", "--out", place.file("keys"), "--client", "ranks", "--roles", "rows")
    place.program("path/srun", f"for i in {{1..600}}; do grep -q ^prepd {place.file('said')} && break; sleep 0.05; done; exit 3")
    for endpoint, there in (("0.0.0.0:5557", " --prepd.endpoint tcp://node7:5557"), ("data9:5557", "")):
        words = ["--prepd.endpoint", "tcp://" + endpoint, *keys]
        place.run("bash", script, config, *words, code=3, **env)
        said = place.said()
        check("prepd serve -c " + " ".join([config, *words, "--shared"]) in said, said)
        ranks, = [line for line in said if line.startswith("srun")]
        check(ranks.endswith(f"train -c {config} {' '.join(words)} --shared --prepd.keys {place.file('keys/ranks')}{there}"), ranks)
    with open(place.file("keys/allowed")) as allowed:
        check(sum(line.split()[1:] == ["ranks", "rows"] for line in allowed) == 1, "the ranks' key may do more than take rows")


def several_nodes_have_a_prepd_each(place, script, config):
    """With ipc, srun starts one on every node, and the ranks find it at a path that no other node sees. When the ranks have
    ended, Slurm is asked to end the daemons, and the script waits for them: srun itself would kill them."""
    env = {"TESSERA_BIN": place.file("bin"), "SLURM_JOB_ID": "17", "SLURM_NNODES": "3", "SLURMD_NODENAME": "node7"}
    place.program("bin/prepd", f"echo $$ >{place.file('pid')}; exec sleep 60")
    place.program("path/scancel", f"kill $(cat {place.file('pid')})")
    place.program("path/srun", 'case "$*" in *" serve "*) shift 8; exec "$@" ;; esac\n'
                  f"for i in {{1..600}}; do grep -q ^prepd {place.file('said')} && break; sleep 0.05; done; exit 3")
    place.run("bash", script, config, code=3, **env)
    said, there = place.said(), f"-c {config} --shared --prepd.endpoint ipc:///tmp/tessera-job-17.sock"
    check(f"prepd serve {there}" in said, said)
    check(f"srun --overlap --ntasks 3 --ntasks-per-node 1 --cpu-bind none --kill-on-bad-exit=0 {place.file('bin/prepd')} serve {there}"
          in said, said)
    check(f"srun --mpi=pmix --kill-on-bad-exit=0 {place.file('bin/trainer')} train {there}" in said, said)
    check(said[-1] == "scancel --signal=TERM 17", said)


def the_slurm_script_starts_prepd_unless_a_recording_is_read():
    if not os.path.exists(TRAINER):
        print("skipped: no trainer")
        return
    script = os.path.join(SOURCE, "deploy/slurm/train.sbatch")
    with Place() as place:
        os.makedirs(place.file("bin"))
        os.symlink(TRAINER, place.file("bin/trainer"))
        place.program("bin/prepd", "exec sleep 60")
        plain = place.write("plain.yaml", "training:\n  steps: 2\n")
        nested = place.write("nested.yaml", "feed:\n  timeout: 2\n  replay: a file.rec\n")
        dotted = place.write("dotted.yaml", "feed.replay: a.rec\n")
        for words, daemon in (([plain], True), ([plain, "--feed.replay", "a.rec"], False),
                              ([plain, "--feed.replay=a.rec"], False), ([nested], False), ([dotted], False),
                              ([plain, "--data.system", " --feed.replay "], True),
                              ([nested, "--feed.replay="], True)):
            begun = f"for i in {{1..600}}; do grep -q ^prepd {place.file('said')} && break; sleep 0.05; done"
            place.program("path/srun", (begun if daemon else "sleep 0.2") + "; exit 3")
            place.run("bash", script, *words, code=3, TESSERA_BIN=place.file("bin"), SLURM_JOB_ID="1", SLURM_PROCID="0",
                      SLURM_NTASKS="8")
            said = place.said()
            check(("prepd serve -c " + " ".join([*words, "--shared"]) in said) == daemon, f"{words}: {said}")
            check([line for line in said if line.startswith("srun")] ==
                  [f"srun --mpi=pmix --kill-on-bad-exit=0 {place.file('bin/trainer')} train -c {' '.join(words)} --shared"], said)
        several_nodes_are_told_the_first(place, script, plain)
        several_nodes_have_a_prepd_each(place, script, plain)
        said = place.run("bash", script, plain, "--feed.reply", "a.rec", code=64, TESSERA_BIN=place.file("bin"))
        check("feed.reply" in said and place.said() == [], said)


def units_start_again_where_that_may_help():
    """Input that is not there (66) may come back with its mount, so daemon and workers wait for it; a run that ends so is
    looked at."""
    wanted = {"prepd.service": {64, 65, 78}, "prepd-worker@.service": {0, 64, 78}, "trainer@.service": {64, 65, 66, 78}}
    for unit, codes in wanted.items():
        with open(os.path.join(SOURCE, "deploy/systemd", unit)) as x:
            line = next(line for line in x if line.startswith("RestartPreventExitStatus="))
        check(set(map(int, line.split("=")[1].split())) == codes, f"{unit}: {line}")


def a_toolkit_that_is_named_goes_before_the_path():
    """A toolkit named in the environment comes before the path, and the path before /usr/local/cuda."""
    with open(os.path.join(SOURCE, "trainer/ops/CMakeLists.txt")) as f:
        search, = [line.strip() for line in f if "find_program(NVCC" in line]
    with Place() as place:
        for name in ("home/bin", "old/bin", "path"):
            place.program(name + "/nvcc")
        script = place.write("search.cmake", search + "\nmessage(STATUS ${NVCC})\n")
        named = {"CUDA_HOME": place.file("home"), "CUDA_PATH": place.file("old")}
        for env, found in ((named, "home/bin/nvcc"), (dict(named, CUDA_HOME=""), "old/bin/nvcc"),
                           (dict.fromkeys(named, ""), "path/nvcc")):
            said = place.run("cmake", "-P", script, **env)
            check(said == f"-- {place.file(found)}\n", f"{env}: {said}")


def the_picture_of_the_readme_is_small_or_refused():
    script = os.path.join(SOURCE, "tests/bench/results/picture")
    with Place() as place:
        page, out = place.write("page of mine.html", "<p>page"), place.file("out.png")
        said = place.run(script, "--page", place.file("none.html"), code=66)
        check("none.html" in said and "deploy/quickstart" in said, said)
        check("--page FILE" in place.run(script, "--wrong", code=64), "its words")
        draws = 'for word; do case $word in --screenshot=*) head -c %d /dev/zero >"${word#*=}" ;; esac; done'
        place.program("path/chromium", draws % 1000)
        said = place.run(script, "--page", page, "--out", out)
        check(said == f"wrote {out} (1000 bytes)\n" and os.path.getsize(out) == 1000, said)
        check(f"file://{page}" in place.said()[0], "another page")
        for lines, code, why in ((draws % 153601, 73, "153601 bytes"), ("echo no display; exit 1", 70, "no display"), ("", 70, "no picture")):
            place.program("path/chromium", lines)
            said = place.run(script, "--page", page, "--out", out, code=code)
            check(why in said and os.path.getsize(out) == 1000, said)
        for tool in ("bash", "dirname", "realpath", "sed"):
            os.symlink(shutil.which(tool), place.file("path/" + tool))
        os.remove(place.file("path/chromium"))
        p = subprocess.run([script, "--page", page], env={"PATH": place.file("path")}, capture_output=True, text=True)
        check(p.returncode == 69 and "apt-get install chromium" in p.stderr, f"{p}")
    picture = os.path.join(SOURCE, "tests/bench/results/predictions.png")
    check(os.path.getsize(picture) <= 150 * 1024, "the README's picture is too large")


main(their_help_is_their_head, a_variant_compiles_without_a_warning_and_once, quickstart_makes_unfinished_data_again, units_start_again_where_that_may_help, ctrl_c_ends_quickstart_in_order,
     ctrl_c_prints_the_counts_of_the_tests_so_far,
     a_second_quickstart_says_what_it_takes_and_how_to_begin_anew, builds_and_installations_say_how_far_they_are,
     packages_of_this_architecture_are_asked_for, torchtitans_toml_becomes_yaml,
     what_lies_on_the_top_level_is_seen_without_git, who_includes_whom_is_held_against_the_page,
     prepd_run_names_what_is_wrong_and_hands_on_what_is_right,
     the_slurm_script_starts_prepd_unless_a_recording_is_read, a_toolkit_that_is_named_goes_before_the_path,
     the_picture_of_the_readme_is_small_or_refused, prometheus_accepts_the_alert_rules, dashboards_are_of_grafanas_form)
