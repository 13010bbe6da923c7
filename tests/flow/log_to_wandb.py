# SPDX-License-Identifier: Apache-2.0
"""deploy/log-to-wandb with stand-ins for wandb and mlflow: a run that grows and resumes reaches the receiver once,
whenever the script is stopped and started, and once more under another name."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile

from prepd_flow import LIMIT_S, check, main, wait_for

SCRIPT = os.path.join(os.path.abspath(os.environ.get("TESSERA_SOURCE", ".")), "deploy/log-to-wandb")

# Both stand-ins append what they are told to the file SAID, and fail while there is a file SAID.fail, or at the beginning SAID.closed.
COMMON = '''
import json, os
def say(*words):
    with open(os.environ["SAID"], "a") as f:
        f.write(json.dumps(words) + "\\n")
def fail(at=".fail"):
    if os.path.exists(os.environ["SAID"] + at):
        raise OSError("no network")
'''
WANDB = COMMON + '''
class Run:
    def define_metric(self, name, step_metric=None): say("define", name, step_metric)
    def log(self, values):
        fail()
        say("log", values)
    def finish(self): say("finish")
def init(**words):
    fail(".closed")
    run = Run()
    run.id = words["id"]
    if not run.id:
        with open(os.environ["SAID"] + ".ids", "a+") as f:
            f.write("x")
            run.id = f"id{f.tell()}"
    say("init", dict(words, id=run.id, asked=words["id"]))
    return run
'''
MLFLOW = COMMON + '''
def set_experiment(name): say("experiment", name)
class Info: pass
def start_run(run_id=None, run_name=None, tags=None):
    say("start", run_id, run_name, tags)
    run = Info()
    run.info = Info()
    run.info.run_id = run_id or "server-id"
    return run
def log_params(values): say("params", values)
def log_metrics(values, step=None):
    fail()
    say("log", values, step)
def end_run(): say("end")
'''


class Run:
    """A folder with the files of a run, and the stand-ins beside it."""

    def __enter__(self):
        self.path = tempfile.mkdtemp(prefix="follow")
        for name, text in (("wandb", WANDB), ("mlflow", MLFLOW)):
            os.makedirs(self.file("modules"), exist_ok=True)
            with open(self.file(f"modules/{name}.py"), "w") as f:
                f.write(text)
        os.mkdir(self.file("vqav2"))
        self.env = dict(os.environ, PYTHONPATH=self.file("modules"), SAID=self.file("said"), PYTHONDONTWRITEBYTECODE="1")
        return self

    def file(self, name):
        return os.path.join(self.path, name)

    def lines(self, steps, loss=lambda n: 5 - n / 10, name="metrics", anew=False, end="\n", **more):
        """Appends lines as the trainer does, or replaces the file as a run does that resumes."""
        path = self.file(f"vqav2/{name}.jsonl")
        text = "\n".join(json.dumps({"step": n, "held_out_loss" if name == "eval" else "loss": loss(n), "mfu_percent": None,
                                     "skipped": False, **more}) for n in steps)
        with open(path + ".tmp" if anew else path, "w" if anew else "a") as f:
            f.write(text + end if text else "")
        if anew:
            os.rename(path + ".tmp", path)

    def start(self, *words):
        return subprocess.Popen([sys.executable, "-B", SCRIPT, self.file("vqav2"), *words], env=self.env,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def once(self, *words, code=0):
        with self.start("--once", *words) as p:
            said = p.communicate(timeout=LIMIT_S)[0]
            check(p.returncode == code, f"exit code {p.returncode}, wanted {code}\n{said}")
        return said

    def told(self, kind):
        if not os.path.exists(self.file("said")):
            return []
        with open(self.file("said")) as f:
            words = [json.loads(line) for line in f]
        return [w[1:] for w in words if w[0] == kind]

    def steps(self):
        return [values["step"] for values, in self.told("log")]

    def __exit__(self, *_):
        shutil.rmtree(self.path)


def a_run_under_way_is_followed():
    with Run() as run:
        with run.start("--project", "p", "--name", "n") as p:
            try:
                run.lines([1, 10], loss=lambda n: 1 / n)
                wait_for(lambda: run.steps() == [1, 10], "two lines")
                run.lines([20], end="")  # it is being written
                run.lines([5], name="eval")
                wait_for(lambda: run.steps() == [1, 10, 5], "an evaluation, and no half line")
                run.lines([], end="")
                with open(run.file("vqav2/metrics.jsonl"), "a") as f:
                    f.write("\n")
            finally:
                p.send_signal(signal.SIGTERM)
            check(p.wait(LIMIT_S) == 0, p.stdout.read())
        check(run.steps() == [1, 10, 5, 20], f"what was left was not handed on: {run.steps()}")
        (first,), = run.told("init")
        check(first["project"] == "p" and first["name"] == "n" and first["asked"] is None, f"{first}")
        check(run.told("define") == [["step", None], ["*", "step"]], f"{run.told('define')}")
        values = [v for v, in run.told("log")]
        check(values[1] == {"step": 10, "train/loss": 0.1, "train/skipped": 0}, f"{values[1]}")
        check(values[2]["eval/held_out_loss"] == 4.5, f"{values[2]}")


def a_run_that_resumes_is_told_once():
    with Run() as run:
        run.lines(range(1, 7))
        run.once()
        check(run.steps() == [1, 2, 3, 4, 5, 6], f"{run.steps()}")
        run.lines(range(1, 4), anew=True)  # it went on from the checkpoint of step 3
        run.once()
        run.lines(range(4, 9), loss=lambda n: (5 - n / 10) * 1.0001)  # another GPU, other last digits
        run.once()
        check(run.steps() == list(range(1, 9)), f"{run.steps()}")
        check([w["id"] for w, in run.told("init")] == ["id1"] * 3, "one run")
        run.lines([8], name="eval")
        run.once()
        run.lines([8], name="eval", anew=True, swapped_percent=30)  # the last evaluation says more
        run.once()
        check(run.steps()[-2:] == [8, 8] and run.told("log")[-1][0]["eval/swapped_percent"] == 30, f"{run.told('log')[-2:]}")


def another_name_begins_another_run():
    """With the whole history, in the same group; the first can be gone on with."""
    with Run() as run:
        run.lines(range(1, 7))
        run.once()
        run.lines(range(1, 4), anew=True)
        run.lines(range(4, 6), loss=lambda n: 3.0)  # the learning rate was changed
        run.once("--name", "lr/slower")
        run.lines([6, 7], loss=lambda n: 3.0)
        run.once("--name", "lr/slower")
        check(run.steps() == [*range(1, 7), *range(1, 8)], f"{run.steps()}")
        run.once()
        check(run.steps()[-1:] == [7] and len(run.steps()) == 14, f"{run.steps()}")
        runs = [(w["id"], w["name"], w["group"]) for w, in run.told("init")]
        one, two = ("id1", "vqav2", "vqav2"), ("id2", "lr/slower", "vqav2")
        check(runs == [one, two, two, one], f"{runs}")


def what_fails_is_tried_again():
    with Run() as run:
        run.lines([1, 2])
        open(run.file("said.fail"), "w").close()
        said = run.once(code=1)
        check("no network" in said and "start it again later" in said and run.steps() == [], said)
        os.remove(run.file("said.fail"))
        run.once()
        check(run.steps() == [1, 2], f"{run.steps()}")
        open(run.file("said.closed"), "w").close()
        said = run.once(code=1)
        check("wandb could not begin: no network" in said and "Traceback" not in said, said)
        said = run.once("--options", run.file("options"), code=1)
        check(run.file("options") in said and "Traceback" not in said, said)
        os.remove(run.file("modules/wandb.py"))
        said = run.once(code=1)
        check("pip install wandb" in said and "Traceback" not in said, said)


def a_bad_line_is_skipped():
    """It is named by its number, once, and what comes after it is handed on."""
    bad = [b"{", b'{"loss": 1}', b'{"step": "9", "loss": 1}', b"[]", b"\xff\xfe", b"[" * 10**5, b'{"step": 1e400}', b'{"step": -1}', b'{"step": 9, "a\\u0000": 1}',
           b'{"step": 9, "loss": 1' + b"0" * 400 + b"}", b""]
    with Run() as run:
        run.lines([1])
        with open(run.file("vqav2/metrics.jsonl"), "ab") as f:
            f.write(b"\n".join(bad) + b"\n")
        run.lines([2, 3])
        run.lines([4], end="")
        with run.start() as p:
            try:
                wait_for(lambda: run.steps() == [1, 2, 3], "the lines after the bad ones")
                run.lines([], end="")
                with open(run.file("vqav2/metrics.jsonl"), "ab") as f:
                    f.write(b"\n{\n")
                run.lines([5])
                wait_for(lambda: run.steps() == [1, 2, 3, 4, 5], "a line that was being written")
            finally:
                p.send_signal(signal.SIGTERM)
            said = p.communicate(timeout=LIMIT_S)[0]
        check(p.returncode == 0, said)
        numbers = [int(line.split("metrics.jsonl:")[1].split(":")[0]) for line in said.splitlines() if "the line is skipped" in line]
        check(numbers == [*range(2, 2 + len(bad)), 5 + len(bad)], said)


def mlflow_is_told_too():
    with Run() as run:
        run.lines([1, 2])
        with open(run.file("options"), "w") as f:
            f.write("# job: the run\njob.description: \"a: b\"\ntraining.steps: 5\n")
        run.once("--to", "mlflow", "--options", run.file("options"))
        run.lines([3])
        run.once("--to", "mlflow")
        check(run.told("start") == [[None, "vqav2", {"group": "vqav2"}], ["server-id", "vqav2", {"group": "vqav2"}]],
              f"{run.told('start')}")
        check(run.told("params") == [[{"job.description": '"a: b"', "training.steps": "5"}]], f"{run.told('params')}")
        check([step for _, step in run.told("log")] == [1, 2, 3], f"{run.told('log')}")


main(a_run_under_way_is_followed, a_run_that_resumes_is_told_once, another_name_begins_another_run, what_fails_is_tried_again,
     a_bad_line_is_skipped, mlflow_is_told_too)
