# SPDX-License-Identifier: Apache-2.0
"""Answers in the model's own words by ranks that share rows, heads or experts, or are pipeline stages: they are those
of one rank word for word and picture for picture, and so is the official accuracy, in trainer eval and between the
steps of a run. A daemon that disappears while several ranks evaluate, or a signal to one of them, ends or stops
all; with a daemon that comes back the run continues.

train_rank_answers.py [KILLS]    the long form has more layouts, all questions, and kills the daemon as often, at
moments a seed decides"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time

from prepd_flow import LIMIT_S, Daemon, Folder, check, children, kill_below, main, run, seed, text_of, wait_for
from train_flow import SHORT, TRAINER, has_mpi, options, trainer

LONG = len(sys.argv) > 1
KILLS = int(sys.argv[1]) if LONG else 1
ASKED = 500 if LONG else 12
STREAM = {"training.seq_len": 256, "training.global_batch_size": 4}
LAYOUTS = {"tensor 2": {"tensor_parallel_degree": 2}, "context 2": {"context_parallel_degree": 2},
           "pipeline 2": {"pipeline_parallel_degree": 2},
           "expert 2": {"data_parallel_shard_degree": 2, "expert_parallel_degree": 2},
           "shard 2 x tensor 2": {"data_parallel_shard_degree": 2, "tensor_parallel_degree": 2}}
MORE = {"context 2 x tensor 2, expert 2, expert-tensor 2": {
               "context_parallel_degree": 2, "tensor_parallel_degree": 2, "expert_parallel_degree": 2,
               "expert_tensor_parallel_degree": 2},
           "pipeline 2 x context 2": {"pipeline_parallel_degree": 2, "context_parallel_degree": 2}}


def of_layout(degrees):
    ranks = 1
    for name, degree in degrees.items():
        ranks *= 1 if name.startswith("expert") else degree
    return {"nproc": ranks, "training.backend": "cpu", **{"parallelism." + k: v for k, v in degrees.items()}}


def learned(f):
    run("record", "-c", f.config, "--steps", "40", "--out", f.file("rows.rec"))
    trainer("train", "-c", f.config, *options(dict(SHORT, **{
        "feed.replay": f.file("rows.rec"), "training.steps": 60, "optimizer.lr": 0.003,
        "job.dump_folder": f.file("learned"), "checkpoint.enable": "true"})))
    return f.file("learned/checkpoint")


def said_of(text):
    """Figures of an evaluation, without its seconds."""
    found = re.findall(r"^(eval: .*?)  seconds|^(vqa: .*)|^(  (?:answer|question) type .*)", text, re.MULTILINE)
    check(len(found) > 4, text)
    return ["".join(line) for line in found]


def words_of(path):
    with open(path) as file:
        return re.findall(r'<tr class="(?:right|wrong)">(.*?)</tr>', file.read())


def judged(f, model, name, values):
    page = f.file(name.replace(" ", "-") + ".html")
    text = trainer("eval", "-c", f.config, *options(dict(values, **{
        "model.path": model, "eval.generate": ASKED, "eval.show": 0, "eval.page": page, "job.dump_folder": f.file("log")})))
    return said_of(text), words_of(page)


def the_words_are_those_of_one_rank():
    with Folder(images=48 if LONG else 16, **STREAM) as f:
        model = learned(f)
        with Daemon(f.config):
            want = judged(f, model, "one", {})
            check(len(want[1]) >= 12 and len({w for w in want[1]}) > 5, want)
            for name, degrees in dict(LAYOUTS, **(MORE if LONG else {})).items():
                got = judged(f, model, name, of_layout(degrees))
                check(got == want, f"{name}: {got}\nwanted {want}")
            between_steps(f, model)
        together(f, model, want)


def together(f, model, apart):
    """The same where questions share a prefix in their rows; the words are those that they get apart."""
    shared = {"data.group": "shared_prefix"}
    with Daemon(f.config, *options(shared)):
        want = judged(f, model, "one, shared", shared)
        mine, theirs = ({line.rsplit("<td>", 1)[1]: line for line in words} for _, words in (want, apart))
        both = mine.keys() & theirs.keys()  # the first rows have other questions
        check(len(both) >= 4 and all(mine[k] == theirs[k] for k in both), f"{want}\napart {apart}")
        for name in LAYOUTS if LONG else ("tensor 2", "context 2", "pipeline 2", "expert 2"):
            got = judged(f, model, name + ", shared", dict(of_layout(LAYOUTS[name]), **shared))
            check(got == want, f"{name}, shared prefixes: {got}\nwanted {want}")


def between_steps(f, model):
    """The same in a run: with a learning rate of 0 every evaluation is of the model it began with."""
    found = []
    for name, degrees in (("one", {}), ("tensor 2 x pipeline 2", {"tensor_parallel_degree": 2, "pipeline_parallel_degree": 2})):
        text = trainer("train", "-c", f.config, *options(dict(SHORT, **of_layout(degrees) if degrees else {}, **{
            "model.path": model, "training.steps": 2, "optimizer.lr": 1e-12, "eval.enable": "true", "eval.freq": 1,
            "eval.generate": 10, "eval.show": 0, "job.dump_folder": f.file("run " + name)})))
        vqa = re.findall(r"^vqa: .*", text, re.MULTILINE)
        check(len(vqa) == 2 and "of 10 questions" in vqa[1], text)
        found.append(vqa)
    check(found[0] == found[1], f"{found}")


@contextlib.contextmanager
def started(f, name, values):
    """A run, which is ended with the block."""
    with open(f.file(name + ".said"), "w") as said:
        p = subprocess.Popen([TRAINER, "train", "-c", f.config, *options(values)], stdout=said, stderr=said)
    try:
        yield p
    finally:
        if p.poll() is None:
            kill_below(p.pid)
            p.kill()
        p.wait()


def said(f, name):
    with open(f.file(name + ".said")) as file:
        return file.read()


def log(f, name, rank=0):
    return text_of(f.file(f"{name}/log/rank-{rank}.log"))


def evaluating(f, name, p, nth):
    """Waits until the nth evaluation has begun; the first is asked for before the steps begin."""
    wait_for(lambda: p.poll() is not None or log(f, name).count("for the eval stream") > nth,
             f"evaluation {nth}: {said(f, name)}", LIMIT_S)
    check(p.poll() is None, said(f, name))


def ended(f, name, p):
    try:
        return p.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"it hangs: {said(f, name)}") from None


def evaluated(**changed):
    """Steps with an evaluation after each, of many rows of which few are on their way."""
    values = dict(SHORT, **{"training.global_batch_size": 2, "eval.enable": "true", "eval.freq": 1, "eval.show": 0,
                            "eval.generate": 0, "checkpoint.enable": "true", "prepd.ahead_bytes": 1 << 20,
                            "comm.train_timeout_seconds": 20})
    return dict(values, **{k.replace("__", "."): v for k, v in changed.items()})


TWO = {"shard 2": {"data_parallel_shard_degree": 2}, "tensor 2": {"tensor_parallel_degree": 2}}


def killed_while_it_evaluates(f, degrees, rng):
    """The name of the run and its exit code; again if the evaluation was over before the daemon was gone."""
    for n in range(8):
        name = f"gone-{n}"
        # Generating answers to all questions takes so long that most rows have not come yet when the daemon is killed.
        values = dict(evaluated(training__steps=2, prepd__reconnect_timeout=1.5, feed__timeout=30,
                                eval__generate=-1, job__dump_folder=f.file(name)), **of_layout(degrees))
        with Daemon(f.config) as daemon, started(f, name, values) as p:
            evaluating(f, name, p, 1)
            time.sleep(rng.uniform(0, 0.2 / (1 + n)))
            daemon.p.kill()
            daemon.p.wait()
            code = ended(f, name, p)
        if "eval: step: 1 " not in said(f, name):
            return name, code
    raise AssertionError(f"too fast: {said(f, name)}")


def a_daemon_that_stays_away_costs_the_evaluation():
    rng = seed()
    for layout, degrees in TWO.items():
        with Folder(images=96, **dict(STREAM, **{"training.global_batch_size": 2})) as f:
            name, code = killed_while_it_evaluates(f, degrees, rng)
            words = said(f, name)
            check(code == 69 and "d.sock" in words, f"{layout}: exit code {code}: {words}")
            not_there = [re.findall(r"step (\d+) is not evaluated: (.*)", log(f, name, r)) for r in range(2)]
            steps = [[int(n) for n, _ in rank] for rank in not_there]
            check(steps == [[1], [1]], f"{layout}: {not_there}\n{words}")
            check(any("rank 0: " in why or "rank 1: " in why for rank in not_there for _, why in rank),
                  f"{layout}: {not_there}")
            check(os.path.isdir(f.file(f"{name}/checkpoint/step-2")), f"{layout}: {words}")


def the_evaluation_goes_on_with_a_daemon_that_comes_back():
    rng = seed()
    with Folder(images=96, **dict(STREAM, **{"training.global_batch_size": 2})) as f:
        def values(name):
            return dict(evaluated(training__steps=KILLS + 1, job__dump_folder=f.file(name)), **of_layout(TWO["tensor 2"]))

        with Daemon(f.config), started(f, "quiet", values("quiet")) as p:
            check(ended(f, "quiet", p) == 0, said(f, "quiet"))
        want = evaluations(f, "quiet")
        check(len(want) == KILLS + 1, said(f, "quiet"))
        for n in range(8):
            name = f"killed-{n}"
            killed_and_started_again(f, name, values(name), rng)
            check(evaluations(f, name) == want, f"{evaluations(f, name)}\nwanted {want}\n{said(f, name)}")
            waits = said(f, name).count("is back after")
            if waits > 0:
                break
        check(waits > 0, f"too fast: {said(f, name)}")
        print(f"the daemon was killed {KILLS} times while two ranks evaluated, and waited for after a row {waits} times")


def evaluations(f, name):
    return re.findall(r"^eval: (.*?)  seconds", said(f, name), re.MULTILINE)


def evaluates_rows(f):
    """More rows than fit ahead, so that the run has some: a daemon that disappears before the first row costs the
    evaluation."""
    consumers = json.loads(run("status", "--connect", "ipc://" + f.file("d.sock"), "--json"))["consumers"]
    return any(c["stream"] == "eval" and c["rows_sent"] > 2 for c in consumers)


def killed_and_started_again(f, name, values, rng):
    with contextlib.ExitStack() as ends:
        p = None
        for i in range(KILLS):
            with Daemon(f.config) as daemon:
                p = p or ends.enter_context(started(f, name, values))
                evaluating(f, name, p, 1 + i)
                wait_for(lambda: evaluates_rows(f) or len(evaluations(f, name)) > i, "the evaluation of a row", LIMIT_S)  # noqa: B023
                time.sleep(rng.uniform(0, 0.3) if LONG else 0)
                daemon.p.kill()
                daemon.p.wait()
            time.sleep(rng.uniform(0.1, 1))
        with Daemon(f.config):
            check(ended(f, name, p) == 0, said(f, name))


def a_signal_to_one_rank_stops_all():
    with Folder(images=96, **dict(STREAM, **{"training.global_batch_size": 2})) as f, Daemon(f.config), started(
            f, "stopped", dict(evaluated(training__steps=400, job__dump_folder=f.file("stopped")),
                               **of_layout(TWO["shard 2"]))) as p:
        evaluating(f, "stopped", p, 1)
        ranks = children(children(p.pid)[0])
        check(len(ranks) == 2, f"{ranks}")
        os.kill(ranks[1], signal.SIGTERM)
        code, words = ended(f, "stopped", p), said(f, "stopped")
        check(code == 0 and re.search(r"stopping after step \d+ as asked", words), f"exit code {code}: {words}")


if not has_mpi():
    print("skipped: Open MPI was not found when this was built")
    sys.exit(77)
main(the_words_are_those_of_one_rank, a_daemon_that_stays_away_costs_the_evaluation,
     the_evaluation_goes_on_with_a_daemon_that_comes_back, a_signal_to_one_rank_stops_all)
