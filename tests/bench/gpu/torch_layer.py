# SPDX-License-Identifier: Apache-2.0
"""Times layers of Qwen3-VL-30B-A3B in PyTorch and transformers, one forward and one backward pass each: a layer of the
decoder with its experts, and a block and a merger of the vision tower. Ours are printed beside them, from the newest
report of bench-text and from the profile in that of train. Needs a GPU. --tiny runs small layers on the CPU instead, in
bf16 and float32, whose numbers must agree."""

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
FRAMES, SIDE = (2, (4, 6)) if TINY else (1, (30, 40))  # pictures, and their height and width in patches
TEXT = dict(hidden_size=128, num_attention_heads=8, num_key_value_heads=2, head_dim=32,
            moe_intermediate_size=48, intermediate_size=256, num_experts=16,
            num_experts_per_tok=4, vocab_size=2048) if TINY else \
    dict(hidden_size=2048, num_attention_heads=32, num_key_value_heads=4, head_dim=128,
         moe_intermediate_size=768, intermediate_size=6144, num_experts=128,
         num_experts_per_tok=8, vocab_size=151936)
EYE = dict(hidden_size=144, num_heads=2, intermediate_size=256, out_hidden_size=128, depth=1) if TINY else \
    dict(hidden_size=1152, num_heads=16, intermediate_size=4304, out_hidden_size=2048, depth=1)
BLOCKS, MERGERS = 27, 4


def config(part, widths):
    c = getattr(AutoConfig.for_model("qwen3_vl_moe"), part)
    for key, value in widths.items():
        setattr(c, key, value)
    c._attn_implementation = "sdpa"
    c._experts_implementation = "grouped_mm"  # read by transformers 5
    return c


def text_config():
    c = config("text_config", TEXT)
    c.num_hidden_layers = 1
    rope = {"rope_type": "default", "rope_theta": 5e6, "mrope_interleaved": True,
            "mrope_section": [8, 4, 4] if TINY else [24, 20, 20]}
    c.rope_scaling = rope  # read by transformers 4
    c.rope_parameters = rope  # read by transformers 5
    return c


def ready(layer, dtype):
    torch.manual_seed(1)
    layer = layer.to(DEVICE, torch.float32)
    for p in layer.parameters():  # some have no values yet; all get the same in every dtype
        torch.nn.init.normal_(p, std=0.02)
    return layer.to(dtype)


def draw(dtype, *shape):
    torch.manual_seed(2)
    return torch.randn(*shape, dtype=torch.float32).to(DEVICE, dtype)


def text_layer(dtype):
    """Returns a function that calls the layer on one row."""
    c = text_config()
    layer = ready(reference.Qwen3VLMoeTextDecoderLayer(c, 0), dtype)
    rotary = reference.Qwen3VLMoeTextRotaryEmbedding(c).to(DEVICE)
    x = draw(dtype, 1, LENGTH, c.hidden_size)
    at = torch.arange(LENGTH, device=DEVICE).view(1, 1, -1).expand(3, 1, -1)
    angles = rotary(x, at)
    return x, lambda x: layer(x, position_embeddings=angles)


def eye_block(dtype, frames):
    """Returns a function that calls a vision block on pictures of 640 x 480, packed as the model packs them."""
    c = config("vision_config", EYE)
    layer = ready(reference.Qwen3VLMoeVisionBlock(c), dtype)
    patches, half = SIDE[0] * SIDE[1], c.hidden_size // c.num_heads // 2
    x = draw(dtype, frames * patches, c.hidden_size)
    ends = torch.arange(frames + 1, device=DEVICE, dtype=torch.int32) * patches
    angle = torch.arange(frames * patches, device=DEVICE).float()[:, None] % SIDE[1] * \
        10000.0 ** (-torch.arange(half, device=DEVICE) / half)
    angle = torch.cat((angle, angle), dim=-1)
    places = (angle.cos(), angle.sin())
    return x, lambda x: layer(x, cu_seqlens=ends, position_embeddings=places)


def eye_merger(dtype, frames):
    c = config("vision_config", EYE)
    layer = ready(reference.Qwen3VLMoeVisionPatchMerger(c), dtype)
    return draw(dtype, frames * SIDE[0] * SIDE[1], c.hidden_size), layer


def run(x, call):
    """Runs one forward and backward; returns the output and the gradient of the input."""
    x = x.detach().requires_grad_(True)
    out = call(x)
    out = out[0] if isinstance(out, tuple) else out
    out.float().square().mean().backward()
    return out.detach(), x.grad


def wait():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def milliseconds(case, times=1):
    x, call = case
    measured = []
    for _ in range(STEPS + 2):
        wait()
        start = time.perf_counter()
        for _ in range(times):
            run(x, call)
        wait()
        measured.append((time.perf_counter() - start) * 1e3)
    return sorted(measured[2:])[STEPS // 2]


def agree():
    """Checks for each layer, forward and backward, that bf16 is a rounding of float32."""
    for name, make in (("text layer", text_layer), ("vision block", lambda t: eye_block(t, FRAMES)),
                       ("merger", lambda t: eye_merger(t, FRAMES))):
        exact, rounded = run(*make(torch.float32)), run(*make(torch.bfloat16))
        off = [((a.float() - b).norm() / b.norm()).item() for a, b in zip(rounded, exact)]
        print(f"{name}: bf16 beside float32: {100 * off[0]:.2f} % forward, {100 * off[1]:.2f} % backward")
        if not max(off) < 0.1:
            sys.exit(f"{name}: not the same layer")


def newest(stages, pattern):
    """Finds the pattern's last match in the newest report that has one, and returns its first group."""
    folder = os.environ.get("TESSERA_GPU_REPORTS") or os.path.join(HERE, "../results")
    reports = [p for s in stages for p in glob.glob(os.path.join(folder, f"*_{s}.txt"))]
    for path in sorted(reports, key=os.path.getmtime, reverse=True):
        with open(path) as f:
            found = re.findall(pattern, f.read(), re.M)
        if found:
            return found[-1], os.path.basename(path)
    return None, None


def compare(what, ms, ours, path):
    if ours is None:
        print(f"{what}: no report of ours here: no ratio")
    else:
        print(f"{what}: ours {ours:.3f} ms with full recomputation ({path}), ratio {ms / ours:.2f}")


def main():
    import transformers
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    if TINY:
        agree()
    ms = milliseconds(text_layer(torch.bfloat16), ROWS)
    print(f"torch: text layer: {ms:.3f} ms, forward and backward of {ROWS} x {LENGTH} tokens")
    ours, path = newest(["bench-text"], r"^fit: [0-9.-]+ \+ ([0-9.]+) x layers ms")
    compare("text layer", ms, ours and float(ours), path)

    # As many pictures as a step of the trainer had, one after the other as far as memory allows.
    found, path = newest(["train"], r"^profile: vision +([0-9.]+) ms")
    patches, _ = newest(["train"], r"^patches of a step: ([0-9.]+)")
    frames = max(1, round(float(patches) / (SIDE[0] * SIDE[1]))) if patches else FRAMES
    block, merger = (milliseconds(make(torch.bfloat16, frames)) for make in (eye_block, eye_merger))
    tower = BLOCKS * block + MERGERS * merger
    print(f"torch: vision block {block:.3f} ms, merger {merger:.3f} ms, forward and backward of {frames} pictures "
          f"of {SIDE[0] * SIDE[1]} patches; {BLOCKS} blocks and {MERGERS} mergers {tower:.3f} ms")
    compare("vision tower", tower, found and float(found), path)


main()
