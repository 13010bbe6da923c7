# SPDX-License-Identifier: Apache-2.0
"""Times a whole training step of a few layers of Qwen3-VL-30B-A3B's text model in PyTorch and transformers, as a user would run
it: bf16, the experts' grouped_mm where transformers has it, its fastest attention, activation checkpointing, fused AdamW. Rows are
one document each, as in `trainer bench step`, and pass one after the other, since the logits of several do not fit.

    torch_step.py LAYERS ROWS SEQ_LEN eager|compiled [OURS_MS OURS_GIB]

OURS_MS and OURS_GIB are those of a step of ours with the same layers and rows; with them ratios are printed. LAYERS 0 is a tiny
model on the CPU, whose loss must fall."""

import sys
import time

import torch
import transformers
from transformers import AutoConfig
from transformers.models.qwen3_vl_moe import modeling_qwen3_vl_moe as reference

LAYERS, ROWS, LENGTH = (int(word) for word in sys.argv[1:4])
COMPILED = sys.argv[4] == "compiled"
TINY = LAYERS == 0
DEVICE = "cpu" if TINY else "cuda"
WARM, TIMED = (3, 3) if TINY else (3, 6)
REAL = dict(hidden_size=2048, num_attention_heads=32, num_key_value_heads=4, head_dim=128, moe_intermediate_size=768,
            intermediate_size=6144, num_experts=128, num_experts_per_tok=8, vocab_size=151936)
SMALL = dict(hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=16, moe_intermediate_size=32,
             intermediate_size=64, num_experts=8, num_experts_per_tok=2, vocab_size=256)


def text_config():
    c = AutoConfig.for_model("qwen3_vl_moe").text_config
    for key, value in (SMALL if TINY else REAL).items():
        setattr(c, key, value)
    c.num_hidden_layers = 2 if TINY else LAYERS
    rope = {"rope_type": "default", "rope_theta": 5e6, "mrope_interleaved": True,
            "mrope_section": [4, 2, 2] if TINY else [24, 20, 20]}
    c.rope_scaling = rope  # read by transformers 4
    c.rope_parameters = rope  # read by transformers 5
    c.use_cache = False
    c._attn_implementation = "sdpa"  # its flash kernel, as a row is one document and no mask is needed
    c._experts_implementation = "grouped_mm"  # read by transformers 5
    return c


def make():
    torch.manual_seed(1)
    c = text_config()
    model = reference.Qwen3VLMoeTextModel(c).to(DEVICE, torch.bfloat16)
    head = torch.nn.Linear(c.hidden_size, c.vocab_size, bias=False, device=DEVICE, dtype=torch.bfloat16)
    for p in (*model.parameters(), *head.parameters()):
        torch.nn.init.normal_(p, std=0.02) if p.dim() > 1 else None
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    return c, model, head


def wait():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def main():
    c, model, head = make()
    experts = getattr(c, "_experts_implementation", "its own loop") if transformers.__version__ >= "5" else "its own loop"
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, {sys.argv[4]}, experts by {experts}", flush=True)
    forward = torch.compile(model) if COMPILED else model
    every = [*model.parameters(), *head.parameters()]
    update = torch.optim.AdamW(every, lr=1e-3 if TINY else 1e-5, fused=DEVICE == "cuda")
    ids = torch.randint(0, c.vocab_size, (ROWS, 1, LENGTH), device=DEVICE)
    at = torch.arange(LENGTH, device=DEVICE).view(1, 1, -1).expand(3, 1, -1)

    def loss_of(row):
        states = forward(input_ids=row, position_ids=at, use_cache=False).last_hidden_state
        return torch.nn.functional.cross_entropy(head(states)[0, :-1].float(), row[0, 1:])

    losses, seconds = [], []
    for _ in range(WARM + TIMED):
        wait()
        began = time.perf_counter()
        total = 0.0
        for row in ids:
            loss = loss_of(row) / ROWS
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(every, 1.0)
        update.step()
        update.zero_grad(set_to_none=True)
        wait()
        seconds.append(time.perf_counter() - began)
        losses.append(float(total))
    if not losses[-1] < losses[0]:
        sys.exit(f"failed: the loss does not fall: {losses}")
    ms = 1e3 * sorted(seconds[WARM:])[TIMED // 2]
    peak = torch.cuda.max_memory_allocated() / 2**30 if DEVICE == "cuda" else 0.0
    print(f"torch: {sys.argv[4]}: step of {c.num_hidden_layers} layers, {ROWS} x {LENGTH} tokens: {ms:.1f} ms, "
          f"{ROWS * LENGTH / ms * 1e3:.0f} tokens/s, peak {peak:.1f} GiB, loss {losses[0]:.3f} to {losses[-1]:.3f}")
    if len(sys.argv) > 6:
        ours, memory = float(sys.argv[5]), float(sys.argv[6])
        print(f"ratio: transformers {sys.argv[4]} takes {ms / ours:.2f} times the time of ours ({ours:.1f} ms) and "
              f"{peak / memory:.2f} times its memory ({memory:.1f} GiB)")


main()
