# SPDX-License-Identifier: Apache-2.0
"""Trains a model of transformers on the rows of a recording as Tessera's trainer does, to compare both.

    python train_beside.py values MODEL [--all-experts]      writes first values into the folder of a config.json
    python train_beside.py train RECORDING MODEL --steps 50 [--rows 4] [--lr 1e-3] [--how packed|documents] [--metrics metrics.jsonl]

AdamW as the trainer's defaults have it (decay 0.1 for what has two dimensions or more, clipping at 1), at a constant learning rate.
--all-experts changes the configuration so that every token goes to all experts. --how documents: a call for each document instead of one for a row. With --metrics, the file of the trainer's run on the same
recording, it prints the largest relative difference of a step's loss. Prints as JSON: the losses; seconds and CPU seconds of all
steps but the first."""
import argparse
import json
import os
import time

import torch
from transformers import AutoConfig, AutoModelForImageTextToText

import tessera
from tessera import collate


def write_values(folder, all_experts):
    torch.manual_seed(1)
    path = os.path.join(folder, "config.json")
    with open(path, encoding="utf-8") as f:
        config = json.load(f)
    if all_experts:
        config["text_config"]["num_experts_per_tok"] = config["text_config"]["num_experts"]
        with open(path, "w", encoding="utf-8") as f:
            json.dump(config, f)
    model = AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(folder)).float()
    model.save_pretrained(os.path.join(folder, "values"))
    os.rename(os.path.join(folder, "values", "model.safetensors"), os.path.join(folder, "model.safetensors"))


def optimizer_of(model, lr):
    flat = [p for p in model.parameters() if p.dim() < 2]
    rest = [p for p in model.parameters() if p.dim() >= 2]
    return torch.optim.AdamW([{"params": rest, "weight_decay": 0.1}, {"params": flat, "weight_decay": 0.0}], lr=lr, betas=(0.9, 0.95), eps=1e-8)


def train_step(model, optimizer, batches):
    """One step; returns its loss, the mean over all targets."""
    targets = [int((b["labels"] >= 0).sum()) for b in batches]
    loss = 0.0
    for batch, n in zip(batches, targets):
        if n:
            part = model(**batch).loss * (n / sum(targets))
            part.backward()
            loss += part.item()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss


def train(asked):
    if asked.threads:
        torch.set_num_threads(asked.threads)
    model = AutoModelForImageTextToText.from_pretrained(asked.model, dtype=torch.float32, attn_implementation="sdpa").train()
    collator = collate.for_transformers("sdpa")
    if asked.how == "packed":
        collator.guard(model)
    optimizer, losses = optimizer_of(model, asked.lr), []
    with tessera.Rows(asked.recording, rank=0, world=1, prefixes=True) as rows:
        for step in range(asked.steps):
            if step == 1:
                start = time.perf_counter(), time.process_time()
            taken = [next(rows) for _ in range(asked.rows)]
            if asked.how == "documents":
                taken = [one for row in taken for one in collate.split_row(row)]
            losses.append(train_step(model, optimizer, [collator([row]) for row in taken]))
    return {"losses": losses, "seconds": time.perf_counter() - start[0], "cpu": time.process_time() - start[1]}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = parser.add_subparsers(required=True, dest="verb")
    values = verbs.add_parser("values")
    values.add_argument("model")
    values.add_argument("--all-experts", action="store_true")
    run = verbs.add_parser("train")
    run.add_argument("recording")
    run.add_argument("model")
    run.add_argument("--steps", type=int, default=50)
    run.add_argument("--rows", type=int, default=4, help="of a step: training.global_batch_size")
    run.add_argument("--lr", type=float, default=1e-3)
    run.add_argument("--how", choices=("packed", "documents"), default="packed")
    run.add_argument("--threads", type=int, default=0)
    run.add_argument("--metrics")
    asked = parser.parse_args()
    if asked.verb == "values":
        return write_values(asked.model, asked.all_experts)
    done = train(asked)
    if asked.metrics:
        with open(asked.metrics, encoding="utf-8") as f:
            theirs = [line["loss"] for line in map(json.loads, f) if "loss" in line][:asked.steps]
        assert len(theirs) == asked.steps, f"{asked.metrics} has {len(theirs)} steps"
        done["difference"] = max(abs(a - b) / b for a, b in zip(done["losses"], theirs))
    print(json.dumps(done))


if __name__ == "__main__":
    main()
