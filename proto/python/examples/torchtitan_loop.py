# SPDX-License-Identifier: Apache-2.0
"""The loop of torchtitan on rows of prepd, with a small decoder in place of its models: a data loader with state_dict that gives
(input_dict, labels), the sum of the losses over the step's targets on all ranks, attention masks from the loader.

    python torchtitan_loop.py SOURCE OUT --steps 20 [--stop 10] [--vocabulary 152064]"""
import argparse
import os

import torch
from torch import nn
from torch.nn import functional

import tessera
from tessera import collate


class RowsLoader:
    """What torchtitan calls a dataloader: iterable and Stateful. A batch is a row."""

    def __init__(self, source, attention):
        self.rows, self.collate = tessera.Rows(source, prefixes=True), collate.for_torchtitan(attention, pixels=False)

    def __iter__(self):
        return (self.collate([row]) for row in self.rows)

    def state_dict(self):
        return self.rows.state_dict()

    def load_state_dict(self, state):
        self.rows.load_state_dict(state)


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.norms = heads, nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, attention_masks):
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(functional.scaled_dot_product_attention(q, k, v, attn_mask=attention_masks).transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.norms[1](x))))


class Decoder(nn.Module):
    def __init__(self, vocabulary, width=64, layers=2, heads=4, longest=8192):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(longest, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens, attention_masks=None, positions=None):
        x = self.tokens(tokens) + self.places(positions)
        for layer in self.layers:
            x = layer(x, attention_masks)
        return self.head(self.norm(x))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source")
    parser.add_argument("out")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--stop", type=int)
    parser.add_argument("--vocabulary", type=int, default=152064)
    asked = parser.parse_args()
    torch.manual_seed(1)
    model, loader = Decoder(asked.vocabulary), RowsLoader(asked.source, "sdpa")
    optimizer, first = torch.optim.AdamW(model.parameters(), lr=3e-3), 0
    kept = os.path.join(asked.out, "last.pt")
    if os.path.exists(kept):
        state = torch.load(kept, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["dataloader"])
        first = state["step"]
    batches, accumulation = iter(loader), loader.rows.welcome["global_batch_size"]
    for step in range(first, asked.stop or asked.steps):
        optimizer.zero_grad()
        micro = [next(batches) for _ in range(accumulation)]
        valid = sum((labels != -100).sum() for _, labels in micro)
        total = 0.0
        for inputs, labels in micro:
            logits = model(inputs["input"], attention_masks=inputs["attention_masks"], positions=inputs["positions"])
            loss = functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="sum", ignore_index=-100) / valid
            loss.backward()
            total += loss.item()
        optimizer.step()
        print("step", step + 1, "loss", total, flush=True)
    os.makedirs(asked.out, exist_ok=True)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "dataloader": loader.state_dict(),
                "step": asked.stop or asked.steps}, kept)


if __name__ == "__main__":
    main()
