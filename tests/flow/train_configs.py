# SPDX-License-Identifier: Apache-2.0
"""Every configuration of configs/: both programs read it, its plan is printed and fits its card, it is refused only
for lack of GPUs, and at reduced size it trains two steps."""

import glob
import io
import os
import re
import shutil
import subprocess
import tarfile
import tempfile

from formats import in_data, llava, load, write_lines
from prepd_flow import BIN, Folder, check, main, run
from prepd_video import data_set
from train_flow import TRAINER, options, trainer

CONFIGS = sorted(path for path in glob.glob(os.path.join(os.environ.get("TESSERA_SOURCE", "."), "configs/*.yaml"))
                 if not path.endswith("-sources.yaml"))  # a list of sources, which the data.path of a mixture names
ONE_RANK = {"parallelism.world_size": 0, "parallelism.data_parallel_shard_degree": -1,
            **{f"parallelism.{d}_degree": 1 for d in
               ("data_parallel_replicate", "tensor_parallel", "context_parallel", "pipeline_parallel",
                "expert_parallel", "expert_tensor_parallel")}}
PRESETS = {"smoke.yaml": "debug", **{f"{name}.yaml": "qwen3-vl-30b-a3b" for name in
                                    ("conversations", "text", "mixture", "video", "webdataset")}}

# On such a machine the run of one rank would begin, and there are no data.
HOLDS_THEM = shutil.which("nvidia-smi") or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE") > 160 << 30


def printed(program, verb, path):
    p = subprocess.run([program, verb, "-c", path, "--print-config"], capture_output=True, text=True, timeout=60)
    check(p.returncode == 0, f"{path}: {p.stderr}")
    return dict(line.split(": ", 1) for line in p.stdout.splitlines() if ": " in line and line[0] != "#")


def both_programs_read_them():
    check(len(CONFIGS) >= 20, f"{CONFIGS}")
    for path in CONFIGS:
        check(printed(BIN, "serve", path) == printed(TRAINER, "train", path), path)


def plans_are_printed():
    with tempfile.TemporaryDirectory() as out:
        for path in CONFIGS:
            plan_is_printed(path, ["--job.dump_folder", out])


def head_has_host_memory(path, said):
    """A configuration that needs more than 64 GiB of a machine's memory beside its GPUs says so, with the plan's figure."""
    size, unit = re.search(r"^host memory: ([0-9.]+) (\w+) a machine", said, re.MULTILINE).groups()
    with open(path, encoding="utf-8") as f:
        head = re.match(r"(#.*\n)*", f.read())[0]
    named = re.search(r"^# Host memory: ([0-9.]+) GiB a machine", head, re.MULTILINE)
    needs = size if unit == "GiB" and float(size) > 64 else None
    check((named and named[1]) == needs, f"{path}: its head names {named and named[1]} GiB of host memory, the plan {size} {unit}")


def head_has_cost_of_a_token(path, said):
    """A head that says what a token costs, frozen and not, has the plan's useful FLOPs."""
    with open(path, encoding="utf-8") as f:
        named = re.search(r"A token costs ([0-9.]+)\s(?:# )?instead of ([0-9.]+) GFLOP", f.read())
    if not named:
        return False
    whole = trainer("plan", "-c", path, "--freeze.pattern", "")
    for figure, plan in zip(named.groups(), (said, whole), strict=True):
        rows, tokens = map(int, re.search(r"^step: (\d+) rows of (\d+) tokens", plan, re.MULTILINE).groups())
        useful = int(re.search(r"^  training, useful +(\d+)$", plan, re.MULTILINE)[1]) / rows / tokens
        check(figure == f"{useful / 1e9:.1f}", f"{path}: its head says {figure} GFLOP a token, the plan {useful / 1e9:.1f}")
    return True


def plan_is_printed(path, out):
    name = os.path.basename(path)
    model = options({"model.path": PRESETS[name]}) if name in PRESETS else []
    said = trainer("plan", "-c", path, *model)
    check(re.search(r"^fits: [0-9.]+ % of the card", said, re.MULTILINE), f"{name}: {said}")
    check(re.search(r"^  step .* tokens/s per rank, mfu [1-9]", said, re.MULTILINE), f"{name}: {said}")
    if name not in PRESETS:  # of these the model is the user's
        head_has_host_memory(path, said)
    check(head_has_cost_of_a_token(path, said) or name != "vqav2-30b-frozen-vision.yaml", f"{name}: its head names no cost")
    mfu = float(re.search(r"^  step .* mfu ([0-9.]+) %$", said, re.MULTILINE)[1])
    check(mfu >= 30 or name != "vqav2-30b-one-h200.yaml", f"{name}: {mfu} % of the peak is predicted")
    ranks = int(re.search(r"layout: (\d+) ranks", said)[1])
    if name == "smoke.yaml" or (ranks == 1 and HOLDS_THEM):
        return
    said = trainer("train", "-c", path, *model, *out, code=78)
    lack = "a GPU each" if ranks > 1 else "no GPU for this run: "
    check(re.search(r"^fits: [0-9.]+ % of the card", said, re.MULTILINE), f"{name}: {said}")
    check(lack in said and said.count(" error ") == 1, f"{name}: {said}")
    if ranks == 1:  # with the CPU chosen, only the CPU is mentioned
        said = trainer("train", "-c", path, *model, *out, "--training.backend", "cpu", code=78)
        check("GPU" not in said and "  total  " in said, f"{name}: {said}")


def published_page_has_the_plans():
    """configs/published.md names what the plan prints now, for every configuration in its tables."""
    with open(os.path.join(os.path.dirname(CONFIGS[0]), "published.md"), encoding="utf-8") as f:
        page = f.read()
    rows = re.findall(r"\[[\w-]+\]\(([\w-]+\.yaml)\) \| ([0-9,?]+) \| ([0-9.?]+)(?: %)? \|$", page, re.MULTILINE)
    tokens = re.search(r"its\s+plan:\s+([0-9,?]+)\s+tokens/s", page)[1]
    check(len(rows) == 15, f"{rows}")
    for name, rate, mfu in rows + [("kvasir-vqa-cot.yaml", tokens, None)]:
        said = trainer("plan", "-c", os.path.join(os.path.dirname(CONFIGS[0]), name), "--device", "h200")
        step = re.search(r"^  step .* ([0-9]+) tokens/s per rank, mfu ([0-9.]+) %$", said, re.MULTILINE)
        check(f"{int(step[1]):,}" == rate and mfu in (None, step[2]), f"{name}: {rate}, {mfu} % on the page, {step[0]}")


def plan_of(path, rows, **more):
    """With this many rows in a micro-batch: whether it fits, and all that was said."""
    values = {"training.local_batch_size": rows, "training.global_batch_size": 8 * 2520,
              **{key.replace("__", "."): value for key, value in more.items()}}
    said = trainer("plan", "-c", path, "--full", *options(values))
    return re.search(r"^(fits|does not fit): ", said, re.MULTILINE)[1] == "fits", said


def what_fits_is_named():
    """The change that is named does fit, and one row more does not; in a pipeline its largest stage decides. Another
    mode is named only if it lets more rows in."""
    path = next(p for p in CONFIGS if p.endswith("vqav2-30b-packed.yaml"))
    for more in {}, {"parallelism__pipeline_parallel_degree": 4}, {"activation_checkpoint__mode": "none"}:
        fits, said = plan_of(path, 2520, **more)
        words = re.search(r"^what fits: (?:activation_checkpoint.mode (\w+), )?training.local_batch_size (\d+), "
                          r"training.seq_len 8192 \([0-9.]+ GiB\)(; .*)?$", said, re.MULTILINE)
        most = [int(n) for n in re.findall(r"GiB +[0-9.]+ % +(\d+)$", said, re.MULTILINE)]
        check(not fits and words and int(words[2]) == max(most) and bool(words[1]) == (most[0] < max(most)), said)
        more = dict(more, **({"activation_checkpoint__mode": words[1]} if words[1] else {}))
        check(plan_of(path, int(words[2]), **more)[0] and not plan_of(path, int(words[2]) + 1, **more)[0], said)
        stages = re.findall(r"^ +\d+ +(\d+)\.\.(\d+) .* (\d+\.\d) GiB(  the most)?$", said, re.MULTILINE)
        check(len(stages) == more.get("parallelism__pipeline_parallel_degree", 0), said)
        if stages:
            largest = max(stages, key=lambda s: float(s[2]))
            check([s for s in stages if s[3]] == [largest], said)
            total = float(re.search(r"^  total +\d+ bytes +([0-9.]+) GiB$", said, re.MULTILINE)[1])
            check(abs(total - float(largest[2])) < 0.1 and stages[0][0] == "0" and stages[-1][1] == "47", said)


def layouts_are_compared_by_measured_rates():
    with Folder(images=4) as f:
        rates = f.file("rates.yaml")
        trainer("bench", "ops", "gemm,attention_fwd,attention_bwd", "--model.path", "debug", "--training.backend", "cpu", "--training.seq_len",
                "64", "--seconds", "0.01", "--rates", rates)
        said = trainer("plan", "-c", next(p for p in CONFIGS if p.endswith("vqav2-30b-buckets.yaml")),
                       "--measured", rates, "--sweep", "8")
        measured = set(re.findall(r"^  (\w+)_tflops +[0-9.]+ measured$", said, re.M))
        check(measured == {"dense", "attention_forward", "attention_backward", "attention_any_order", "own_attention", "own_vision_attention",
                           "vision_attention_forward", "vision_attention_backward", "vision_attention_any_order"}
              and "experts_tflops" in said, said)
        check(re.search(r"of \d+ layouts of 8 ranks fit; predicted, not measured", said), said)


def data_of(f, kind):
    if kind == "vqav2":
        return f.file("data")
    if kind == "conversations":
        return write_lines(in_data(f, "talk.jsonl"), [llava(*s) for s in load(f)[:40]])
    if kind == "video":
        return data_set(f, 4)[0]
    if kind == "mixture":
        with open(f.file("sources.yaml"), "w") as x:
            x.write("vqa:\n  format: vqav2\n  path: data\n  weight: 1\ntalks:\n  format: conversations\n  images: data\n"
                    f"  path: {data_of(f, 'conversations')}\n  weight: 2\n")
        return f.file("sources.yaml")
    if kind == "webdataset":
        with tarfile.open(in_data(f, "shard.tar"), "w") as t:
            for k, (image, _, answer) in enumerate(load(f)[:40]):
                t.add(in_data(f, image), f"{k}.jpg")
                info = tarfile.TarInfo(f"{k}.txt")
                info.size = len(answer)
                t.addfile(info, io.BytesIO(answer.encode()))
        return in_data(f, "shard.tar")
    return write_lines(in_data(f, "text.jsonl"), [{"text": " ".join(q for _, q, _ in load(f)[i:i + 30])}
                                                  for i in range(40)])


def two_steps_at_reduced_size():
    with Folder(images=32) as f:
        rows, models = {}, f.file("data/model")
        for path in CONFIGS:
            name, c = os.path.basename(path), printed(TRAINER, "train", path)
            small = {"model.path": models, "data.patch_budget": 0, "training.seq_len": 512,
                     "training.local_batch_size": 2 if c["optimizer.in_backward"] == "true" else 1, "training.global_batch_size": 2,
                     "data.images": f.file("data"), "lora.random_base": "true",
                     **ONE_RANK}
            # The sources of the mixture are not here, so VQAv2 stands in for them.
            kind = (c["data.format"].replace("mixture", "vqav2"), c["data.pack"])
            if kind not in rows:
                rows[kind] = f.file("-".join(kind) + ".rec")
                run("record", "-c", path, "--shared", "--steps", "2", "--out", rows[kind], "--overwrite", *options(small),
                    "--data.format", kind[0], "--data.path", data_of(f, kind[0]))
            said = trainer("train", "-c", path, "--shared", *options(small), "--feed.replay", rows[kind],
                           "--job.dump_folder", f.file(name), "--training.steps", "2",
                           "--metrics.peak_tflops", "1", "--checkpoint.enable", "false",
                           "--memory.limit", "0.9")
            check("in 2 steps" in said, f"{name}: {said}")


main(both_programs_read_them, plans_are_printed, published_page_has_the_plans, what_fits_is_named,
     layouts_are_compared_by_measured_rates, two_steps_at_reduced_size)
