# SPDX-License-Identifier: Apache-2.0
"""data.generation: records are added and a file is repaired in mid-run. The run keeps weights, moments, schedule and step, and reads
the changed data from their first row."""

import os

from formats import in_data, llava, load, write_lines
from prepd_flow import Daemon, Folder, check, main
from resume_flow import STREAM, command, go, ledger, one_line_a_step, same
from train_flow import trainer


CONVERSATIONS = {"data.format": "conversations", "training.epochs": 1, "eval.enable": "false", **STREAM}


def words(f, generation):
    return ["--data.path", f.file("data/talk.jsonl"), "--data.images", f.file("data"), "--data.generation", str(generation)]


def go_on(f, name, generation, code=0, **changed):
    return go(f, name, *words(f, generation), "--shared", code=code, training__epochs=1, eval__enable="false", **changed)


def samples(f, name, first):
    """The samples of the steps from `first` on, in the ledger's order; and the last step."""
    steps = ledger(f, name)
    return [i for step in sorted(steps) if step >= first for i in steps[step]["ids"]], max(steps)


def records_are_added():
    with Folder(images=40, **CONVERSATIONS) as f:
        talk = [llava(*s) for s in load(f)[:36]]
        path = write_lines(in_data(f, "talk.jsonl"), talk[:24])
        with Daemon(f.config, *words(f, 0)):
            for name in "run", "stopped":
                go_on(f, name, 0, checkpoint__keep_latest_k=0)
        ids, done = samples(f, "run", 1)
        check(sorted(ids) == list(range(24)), f"{ids}")

        os.remove(in_data(f, talk[3]["image"]))  # it was good, and comes back in another size
        os.link(in_data(f, talk[35]["image"]), in_data(f, talk[3]["image"]))
        write_lines(path, talk)
        with Daemon(f.config, *words(f, 0)):
            said = go_on(f, "run", 0, code=78)
            check("files or options have changed" in said and "raise data.generation" in said and "load_step" not in said, said)
        with Daemon(f.config, *words(f, 1)) as daemon:
            said = go_on(f, "run", 1, checkpoint__keep_latest_k=0)
            check(f"data.generation was raised from 0 to 1: after step {done} the run reads" in said, said)
            check(f"resuming from step {done}" in said and "set aside" not in said, said)
            ids, last = samples(f, "run", done + 1)
            check(sorted(ids) == list(range(36)) and ids != sorted(ids), f"{ids}")
            check(f"the run has {last} steps in all, {done} of them done" in said and f" in {last} steps\n" in said, said)
            one_line_a_step(f, "run")
            said = go_on(f, "run", 1)
            check(f"step {last} of {last}" in said, said)
            said = go_on(f, "run", 0, code=78)
            check("data.generation is 0, but the run kept here has reached generation 1, and it may only grow" in said, said)
            values = [word for word in command(f, "run", training__epochs=1)[2:]] + words(f, 1)
            said = trainer("verify", *values, "--from", str(done - 1), "--shared", code=78)
            check(f"data.generation was raised after step {done}" in said and f"--from {done}" in said, said)
            said = trainer("verify", *values, "--from", str(done), "--shared")
            check(f"{last - done} steps, {done + 1} to {last}, agree" in said, said)
            # Stopped in the middle of the new generation.
            go_on(f, "stopped", 1, training__steps=done + 2)
            said = go_on(f, "stopped", 1, training__steps=0)
            check(f"resuming from step {done + 2}" in said and "was raised" not in said, said)
            same(f, "run", "stopped", last)
            check(daemon.p.poll() is None, "the daemon has ended")


main(records_are_added)
