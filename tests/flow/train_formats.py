"""Samples of other formats through the trainer: prepd sample, then one forward and backward."""

import os
import sys

import numpy as np
from formats import in_data, load, options, write_lines
from prepd_flow import Folder, check, main, run
from train_flow import train, trainer

sys.path.insert(0, os.path.join(os.environ.get("TESSERA_SOURCE", "."), "proto"))
import client  # noqa: E402


def read(path):
    with open(path, "rb") as f:
        return client.tensors(f.read())[0]


def with_weights(f):
    """The folder of a model with its first weights."""
    run("record", "-c", f.config, "--steps", "1", "--out", f.file("rows.rec"))
    train(f, "first", feed__replay=f.file("rows.rec"), training__steps=1, optimizer__lr=0,
          training__seq_len=512, checkpoint__enable="true")
    return os.path.join(f.file("first"), "checkpoint")


def probe(f, model, name, index, *args):
    batch, out = f.file(name + ".row"), f.file(name + ".out")
    run("sample", "-c", f.config, "--index", str(index), "--out", batch, *args)
    trainer("probe", "--model", model, "--batch", batch, "--out", out)
    return read(batch), read(out)


def mean_loss(row, logits):
    """From the logits: the mean over targets, by their weights."""
    x = logits.astype(np.float64)
    x -= x.max(axis=1, keepdims=True)
    x -= np.log(np.exp(x).sum(axis=1, keepdims=True))
    at = np.flatnonzero(row["labels"] != -100)
    weight = row.get("loss_weight", np.ones(len(row["labels"])))[at]
    return -(weight * x[at - 1, row["labels"][at]]).sum() / weight.sum()


def conversations_reach_the_trainer():
    with Folder(images=32) as f:
        model = with_weights(f)
        (a, qa, aa), (b, qb, ab) = load(f)[0], load(f)[-1]
        check(a != b, "the set has one picture")
        path = write_lines(in_data(f, "two.jsonl"), [
            {"images": [a, b], "messages": [
                {"role": "user", "content": f"<image>{qa} <image>{qb}"},
                {"role": "assistant", "content": f"{aa} {ab}"}]},
            {"image": a, "question": qa, "answer": ["It is ", "I think ", aa]}])
        args = options(data__format="conversations", data__path=path, data__stage_weights="0.25,0,2")
        for index, images in ((0, 2), (1, 1)):
            row, out = probe(f, model, f"row{index}", index, *args)
            check(len(row["grid_thw"]) == images, f"{len(row['grid_thw'])} images")
            check(("loss_weight" in row), "the weights are not sent")
            loss, wanted = float(out["loss"].reshape(-1)[0]), mean_loss(row, out["logits"])
            check(abs(loss - wanted) < 1e-5 * wanted, f"loss {loss}, from the logits {wanted}")


main(conversations_reach_the_trainer)
