# SPDX-License-Identifier: Apache-2.0
"""One stream, however it is cut, stored or computed, gives one training run."""

import json
import os
import shutil
import signal
import struct
import subprocess
import time

from formats import client
from prepd_flow import BUSY_S, LIMIT_S, Daemon, Folder, check, main, run
from train_flow import SHORT, TRAINER, close, facts, options, train, trainer

STREAM = {"training.seq_len": 256, "training.global_batch_size": 4}


def same_bits_live_and_recorded():
    with Folder(**STREAM) as f:
        with Daemon(f.config):
            live = facts(train(f, "live"))
            again = facts(train(f, "again"))
        run("record", "-c", f.config, "--steps", "4", "--out", f.file("rows.rec"))
        replayed = facts(train(f, "replayed", feed__replay=f.file("rows.rec")))
        check(live == again, f"two runs differ:\n{live}\n{again}")
        check(live == replayed, f"a recording differs:\n{live}\n{replayed}")
        check(live[-1][1] < live[0][1], f"the loss did not fall: {live}")


def with_other_welcome(source, target, change):
    """A copy of a recording with its WELCOME changed by `change`; the size must stay the same."""
    with open(source, "rb") as f:
        data = bytearray(f.read())
    size = struct.unpack_from("<Q", data, 8)[0]
    text = json.dumps(change(json.loads(data[32:32 + size])), separators=(",", ":")).encode()
    check(len(text) <= size, "the changed WELCOME is longer")
    text = text.ljust(size)
    data[16:32] = client.hash_of(text)
    data[32:32 + size] = text
    with open(target, "wb") as f:
        f.write(data)


def buckets_change_no_bit():
    """A run in the shape buckets of its stream, and in one that holds anything."""
    with Folder(images=400, **STREAM) as f:
        rows, one = f.file("rows.rec"), f.file("one.rec")
        run("record", "-c", f.config, "--steps", "2", "--out", rows,
            "--data.window", "16")  # too few samples for rows that are all full
        n = []

        def forget(welcome):
            n.append(len(welcome.pop("buckets")))
            return welcome

        with_other_welcome(rows, one, forget)
        check(n[0] > 1, f"{n[0]} buckets for rows of many kinds")
        many = facts(train(f, "many", feed__replay=rows, training__local_batch_size=2,
                           training__steps=2))
        single = facts(train(f, "single", feed__replay=one, training__local_batch_size=2,
                             training__steps=2))
        check(many == single, f"buckets change the run:\n{many}\n{single}")

        def beyond(welcome):
            welcome["buckets"] = welcome["buckets"][:1]
            welcome["buckets"][0]["tokens"] = 24
            return welcome

        with_other_welcome(rows, one, beyond)
        said = trainer("train", "-c", f.config, *options(dict(
            SHORT, **{"feed.replay": one, "job.dump_folder": f.file("beyond")})), code=65)
        check("do not fit the batch's capacity" in said, said)


def same_gradients_in_other_batches():
    """With a tolerance, because float32 is summed in another order; the first steps only, since runs drift apart."""
    with Folder(**STREAM) as f:
        run("record", "-c", f.config, "--steps", "2", "--out", f.file("rows.rec"))
        common = {"feed__replay": f.file("rows.rec"), "training__steps": 2}
        one = train(f, "one", **common)
        for rows in (2, 4):
            other = train(f, f"rows{rows}", training__local_batch_size=rows, **common)
            close(one, other, 2e-5, f"{rows} rows in a micro-batch")
        full = train(f, "full", activation_checkpoint__mode="full", **common)
        close(one, full, 1e-6, "full activation checkpointing")
        threads = train(f, "threads", training__threads=1, **common)
        check(facts(one) == facts(threads), "the number of threads changes bits")


def exported_model_goes_on():
    with Folder(**STREAM) as f:
        with Daemon(f.config):
            first = train(f, "run", checkpoint__enable="true")
            exported = f.file("run/checkpoint")
            said = trainer("inspect", exported)
            check("missing" not in said.lower() or "0 missing" in said.lower(), said)
            second = train(f, "more", model__path=exported, training__steps=1)
            check(second[0]["loss"] < first[0]["loss"], f"weights were lost: {first} {second}")
            said = trainer("eval", "-c", f.config, "--model.path", exported, "--eval.limit", "40",
                           "--eval.show", "2", "--training.seq_len", "256", code=78)
            check("eval.limit" in said, f"the key that differs is not named: {said}")
            said = trainer("eval", "-c", f.config, "--model.path", exported, "--eval.show", "2")
            check("accuracy:" in said and "answer:" in said, said)
            told = subprocess.run([TRAINER, "eval", "-c", f.config, "--model.path", exported], capture_output=True, text=True,
                                  timeout=LIMIT_S).stderr
            check("the model is loaded from its weights name=checkpoint parameters=" in told, told)


def stops_when_asked():
    with Folder(**STREAM) as f:
        with Daemon(f.config) as daemon:
            values = dict(SHORT, **{"training.steps": 100000, "job.dump_folder": f.file("run"),
                                    "checkpoint.enable": "true"})
            p = subprocess.Popen([TRAINER, "train", "-c", f.config, *options(values)],
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            while not p.stdout.readline().startswith("step:"):
                check(p.poll() is None, "the trainer ended")
            p.send_signal(signal.SIGTERM)
            out, err = p.communicate(timeout=LIMIT_S)
            check(p.returncode == 0, f"exit code {p.returncode}: {err}")
            check("stopping after step" in err and "trained:" in out, out + err)
            check(os.path.exists(f.file("run/checkpoint/model.safetensors")), "no model was left")
            # The daemon must still work after its consumer has left.
            train(f, "after", training__steps=1)
            check(daemon.p.poll() is None, "the daemon ended with its consumer")


def daemon_dies_while_training():
    with Folder(**STREAM) as f:
        with Daemon(f.config) as daemon:
            # Few rows ahead, or the run continues for minutes with those that had come already.
            values = dict(SHORT, **{"training.steps": 100000, "job.dump_folder": f.file("run"),
                                    "prepd.ahead_bytes": 1048576, "prepd.reconnect_timeout": 0})
            p = subprocess.Popen([TRAINER, "train", "-c", f.config, *options(values)],
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            while not p.stdout.readline().startswith("step:"):
                check(p.poll() is None, "the trainer ended")
            daemon.p.kill()
            start = time.monotonic()
            out, err = p.communicate(timeout=LIMIT_S)
            check(p.returncode in (69, 75, 76), f"exit code {p.returncode}: {out}{err}")
            check(time.monotonic() - start < BUSY_S, "the trainer took too long to notice")


def epochs_end_the_run():
    with Folder(images=80, **STREAM) as f:
        with Daemon(f.config, "--training.epochs", "1"):
            metrics = train(f, "run", training__epochs=1, training__steps=0)
        seen = sum(m["samples"] for m in metrics)
        samples = len(run("check", "-c", f.config).splitlines())
        check(seen > 0 and samples > 0, "nothing was seen")
        check(all(not m["skipped"] for m in metrics[:-1]), "an update was skipped")
        shutil.rmtree(f.file("run"))


main(same_bits_live_and_recorded, buckets_change_no_bit, same_gradients_in_other_batches,
     exported_model_goes_on, stops_when_asked, daemon_dies_while_training, epochs_end_the_run)
