#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What tests/bench/prefix compares with: transformers trains the same model on the same recorded rows.

    prefix_peer.py values MODEL                                 writes first values, so that all cases begin with the same
    prefix_peer.py train MODEL RECORDING STEPS ROWS THREADS HEAD

A row is given to transformers as its users pack samples: one sequence of all documents end to end, whose positions begin
anew in each, with sdpa. HEAD is `all` (the loss is the model's own, from logits at every position) or `targets` (the head
is computed at targets only, as the trainer does; this is code that its users would have to write). The rows are read and
decoded before anything is timed. Prints, as JSON: the loss of the first step; questions, seconds by the clock and CPU
seconds of the later ones."""

import json
import os
import sys
import time

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that spin would count as work on a machine that others use

import numpy as np  # noqa: E402
import torch  # noqa: E402
from transformers import AutoConfig, Qwen3VLMoeForConditionalGeneration  # noqa: E402

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "proto", "python"))
from tessera import client  # noqa: E402

IGNORED = -100


def write_values(model):
    torch.manual_seed(1)
    Qwen3VLMoeForConditionalGeneration(AutoConfig.from_pretrained(model)).save_pretrained(os.path.join(model, "values"))
    os.rename(os.path.join(model, "values", "model.safetensors"), os.path.join(model, "model.safetensors"))


def inputs_of(row):
    """(what the model takes, labels, number of documents) of a row. A picture is both frames of its patches."""
    borders = row["cu_seqlens"]
    in_document = np.concatenate([np.arange(n) for n in np.diff(borders)])
    one = client.floats(row["pixels"]).reshape(-1, 3, 1, 256)
    inputs = {"input_ids": row["input_ids"][None], "position_ids": np.concatenate([in_document[None], row["position_ids"]])[:, None],
              "image_grid_thw": row["grid_thw"]}
    inputs = {name: torch.from_numpy(value.astype(np.int64)) for name, value in inputs.items()}
    inputs["pixel_values"] = torch.from_numpy(np.concatenate([one, one], axis=2).reshape(-1, 1536))
    return inputs, torch.from_numpy(row["labels"].astype(np.int64)), len(borders) - 1


def loss_of(model, inputs, labels, head):
    """The mean loss of a row's targets."""
    if head == "all":
        return model(**inputs, labels=labels[None], use_cache=False).loss
    hidden = model.model(**inputs, use_cache=False)[0][0]
    before = torch.nonzero(labels[1:] != IGNORED)[:, 0]
    return torch.nn.functional.cross_entropy(model.lm_head(hidden[before]), labels[before + 1])


def train(model, recording, steps, rows, threads, head):
    if threads:
        torch.set_num_threads(threads)
    batch = [row for row, _ in zip(map(inputs_of, client.replay(recording)), range(steps * rows))]
    model = Qwen3VLMoeForConditionalGeneration.from_pretrained(model, dtype=torch.float32, attn_implementation="sdpa").train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    losses = []
    for step in range(steps):
        if step == 1:
            start = time.perf_counter(), time.process_time()
        own = batch[step * rows:(step + 1) * rows]
        targets = [int((labels != IGNORED).sum()) for _, labels, _ in own]
        loss = 0.0
        for (inputs, labels, _), n in zip(own, targets):
            part = loss_of(model, inputs, labels, head) * (n / sum(targets))
            part.backward()
            loss += part.item()
        losses.append(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    seconds, cpu = time.perf_counter() - start[0], time.process_time() - start[1]
    print(json.dumps({"loss": losses[0], "questions": sum(n for _, _, n in batch[rows:]), "seconds": seconds, "cpu": cpu}))


if __name__ == "__main__":
    if sys.argv[1] == "values":
        write_values(sys.argv[2])
    else:
        train(*sys.argv[2:4], *map(int, sys.argv[4:7]), sys.argv[7])
