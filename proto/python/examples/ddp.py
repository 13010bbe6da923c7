# SPDX-License-Identifier: Apache-2.0
"""Trains a model of transformers on rows of prepd with DistributedDataParallel. It stops after --stop steps, and run again goes on
as if it had not: with the same number of ranks the weights are then the same to the bit.

    torchrun --nproc-per-node 2 ddp.py SOURCE MODEL OUT --steps 100 [--stop 50]"""
import argparse
import contextlib
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import tessera
from hf_trainer import load_model, sha_of
from tessera import collate


def train_step(model, optimizer, rows, collator, device):
    """One step of the daemon's global_batch_size rows over all ranks; returns its loss, the mean over all targets of all ranks."""
    world = dist.get_world_size()
    batches = [collator([next(rows)]) for _ in range(rows.welcome["global_batch_size"] // world)]
    targets = [int((b["labels"] >= 0).sum()) for b in batches]
    counted = torch.tensor([sum(targets), 0.0], dtype=torch.float64, device=device)
    dist.all_reduce(counted)
    loss_here = 0.0
    for i, (batch, n) in enumerate(zip(batches, targets)):
        batch = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in batch.items()}
        with model.no_sync() if i + 1 < len(batches) else contextlib.nullcontext():
            # DistributedDataParallel takes the mean over ranks of the gradients, so a rank's share counts `world` times.
            loss = model(**batch).loss * (n / counted[0].item())
            (loss * world).backward()
        loss_here += loss.item()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    counted[1] = loss_here
    dist.all_reduce(counted)
    return counted[1].item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("source", "model", "out"):
        parser.add_argument(name)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--stop", type=int)
    asked = parser.parse_args()
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    model = load_model(asked.model, "sdpa").to(device)
    collator = collate.for_transformers("sdpa")
    collator.guard(model)
    rows = tessera.Rows(asked.source, prefixes=True, run="ddp")  # rank and world are torchrun's
    optimizer, first = torch.optim.AdamW(model.parameters(), lr=1e-3), 0
    kept = os.path.join(asked.out, "last.pt")
    if os.path.exists(kept):
        state = torch.load(kept, map_location=device, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        rows.load_state_dict(state["rows"])
        first = state["step"]
    parallel = DistributedDataParallel(model)
    for step in range(first, asked.stop or asked.steps):
        loss = train_step(parallel, optimizer, rows, collator, device)
        if dist.get_rank() == 0:
            print("step", step + 1, "loss", loss, flush=True)
    states = [None] * dist.get_world_size()
    dist.all_gather_object(states, rows.state_dict())
    if dist.get_rank() == 0:
        os.makedirs(asked.out, exist_ok=True)
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rows": tessera.merge_states(states),
                    "step": asked.stop or asked.steps}, kept + ".new")
        os.rename(kept + ".new", kept)
        print("sha256", sha_of(model))
    rows.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
