"""The text layers of Qwen3-VL-30B-A3B by PyTorch and transformers: milliseconds per layer of one
forward and backward, beside ours from the newest report of bench-text. Needs a GPU, or --tiny."""

import glob
import os
import re
import sys
import time

import torch
from transformers import AutoConfig
from transformers.models.qwen3_vl_moe import modeling_qwen3_vl_moe as reference

HERE = os.path.dirname(os.path.abspath(__file__))
TINY = "--tiny" in sys.argv[1:]
DEVICE = "cpu" if TINY else "cuda"
ROWS, LENGTH, STEPS = (1, 64, 2) if TINY else (4, 12288, 10)
WIDTHS = dict(hidden_size=128, num_attention_heads=8, num_key_value_heads=2, head_dim=32,
              moe_intermediate_size=48, intermediate_size=256, num_experts=16,
              num_experts_per_tok=4, vocab_size=2048) if TINY else \
    dict(hidden_size=2048, num_attention_heads=32, num_key_value_heads=4, head_dim=128,
         moe_intermediate_size=768, intermediate_size=6144, num_experts=128,
         num_experts_per_tok=8, vocab_size=151936)


def config():
    c = AutoConfig.for_model("qwen3_vl_moe").text_config
    for key, value in WIDTHS.items():
        setattr(c, key, value)
    c.num_hidden_layers = 1
    rope = {"rope_type": "default", "rope_theta": 5e6, "mrope_interleaved": True,
            "mrope_section": [8, 4, 4] if TINY else [24, 20, 20]}
    c.rope_scaling = rope # transformers 4
    c.rope_parameters = rope # 5
    c._attn_implementation = "sdpa"
    return c


def wait():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def milliseconds():
    c = config()
    torch.manual_seed(1)
    layer = reference.Qwen3VLMoeTextDecoderLayer(c, 0).to(DEVICE, torch.bfloat16)
    for p in layer.parameters(): # some are made without values
        torch.nn.init.normal_(p, std=0.02)
    rotary = reference.Qwen3VLMoeTextRotaryEmbedding(c).to(DEVICE)
    x = torch.randn(1, LENGTH, c.hidden_size, device=DEVICE, dtype=torch.bfloat16)
    at = torch.arange(LENGTH, device=DEVICE).view(1, 1, -1).expand(3, 1, -1)
    angles = rotary(x, at)
    times = []
    for _ in range(STEPS + 2):
        wait()
        start = time.perf_counter()
        for _ in range(ROWS):
            out = layer(x.detach().requires_grad_(True), position_embeddings=angles)
            (out[0] if isinstance(out, tuple) else out).float().square().mean().backward()
        wait()
        times.append((time.perf_counter() - start) * 1e3)
    return sorted(times[2:])[STEPS // 2]


def ours():
    reports = sorted(glob.glob(os.path.join(HERE, "../results/*_bench-text.txt")),
                     key=os.path.getmtime)
    for path in reversed(reports):
        with open(path) as f:
            found = re.search(r"^fit: [0-9.-]+ \+ ([0-9.]+) x layers ms", f.read(), re.M)
        if found:
            return float(found.group(1)), os.path.basename(path)
    return None


def main():
    import transformers
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    ms = milliseconds()
    print(f"torch: {ms:.3f} ms per layer, forward and backward of {ROWS} x {LENGTH} tokens")
    mine = ours()
    if mine is None:
        print("no report of bench-text here: no ratio")
    else:
        print(f"ours: {mine[0]:.3f} ms per layer with full recomputation ({mine[1]})\n"
              f"ratio: {ms / mine[0]:.2f}")


main()
