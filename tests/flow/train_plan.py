# SPDX-License-Identifier: Apache-2.0
"""trainer plan: what it says of memory, for which model and for which device; and that train says the same."""

import json
import os
import re
import subprocess
import sys

from prepd_flow import Folder, check, main, run
from train_flow import SHORT, TRAINER, has_mpi, options, trainer

CONFIG = os.path.join(os.environ.get("TESSERA_SOURCE", "."), "configs/qwen3-30b-12x8192.yaml")  # save: auto
DEBUG = ["--model.path", "debug"]
MPI = has_mpi()
FULL = ["--full"]


def parameters(*words):
    return int(re.search(r"^\S+: (\d+) parameters in ", trainer("plan", *words), re.M)[1])


def regions(said):
    """The one table of a plan: its heading, and the bytes of every line by name."""
    heading, rest = re.search(r"^one rank(.*):\n((?:  .* bytes .*\n)+)", said, re.M).groups()
    return heading, {name: int(n) for name, n in re.findall(r"^  (\S.*?\S) +(\d+) bytes ", rest, re.M)}


def model_layers_are_honoured():
    """A model that is cut for benchmarks is planned as train would open it, and the same cut is refused."""
    check(parameters(*DEBUG, "--model.layers", "3") < parameters(*DEBUG), "as many parameters as with all layers")
    check(parameters(*DEBUG, "--model.layers", "4") == parameters(*DEBUG), "all four layers are the whole model")
    said = trainer("plan", *DEBUG, "--model.layers", "1", code=78)
    check("model.layers is 1, but debug can only be cut to 3 to 4" in said, said)


def train_names_the_same_figures():
    """To the byte, on the CPU. Then the stream tells its shapes, which are no wider."""
    with Folder(images=16) as f:
        run("record", "-c", f.config, "--steps", "2", "--out", f.file("rows.rec"), "--training.seq_len", "256")
        for mode in "none", "full", "selective":
            values = options(dict(SHORT, **{"training.backend": "cpu", "feed.replay": f.file("rows.rec"),
                                            "training.steps": 2, "activation_checkpoint.mode": mode,
                                            "job.dump_folder": f.file(mode)}))
            device, whole = regions(trainer("plan", "-c", f.config, *values, *FULL))
            trainer("train", "-c", f.config, *values)
            with open(f.file(f"{mode}/memory.json")) as file:
                kept = json.load(file)
            own = list(kept["regions"].values())
            check(whole.pop("total") == kept["planned_by_options"] and " on the device CPU of " in device, f"{mode}: {whole} {kept}")
            check(len(own) == len(whole) and all(n <= most for n, most in zip(own, whole.values())), f"{mode}: {whole} {kept}")
            fixed = "parameters", "gradients", "moments"
            check(all(kept["regions"][k] == whole[k] for k in fixed), f"{mode}: {whole} {kept}")


def a_cpu_hears_of_a_cpu():
    for words in ["--training.backend", "cpu"], ["--device", "cpu"], ["--device", "CPU"]:
        said = trainer("plan", *DEBUG, *FULL, *words)
        check(" on the device CPU of " in regions(said)[0] and "H200" not in said and "GPU" not in said, said)
        check("host: snapshot of a checkpoint" in said and "captured steps" not in said, said)
        r = regions(said)[1]
        check(r["total"] == sum(r.values()) - r["total"], f"{r}")
        check(re.search(r"^fits: [0-9.]+ % of this machine's memory", said, re.M), said)


def auto_decides_for_the_device():
    """What fits on a card of 141 GB is not kept on one of 80, and the plan says which device it is for."""
    kept = {}
    ranks = options({"parallelism.world_size": 16, "parallelism.data_parallel_shard_degree": 16,
                     **{f"parallelism.{kind}_parallel_degree": 1 for kind in ("tensor", "expert")},
                     "parallelism.expert_tensor_parallel_degree": 1, "training.local_batch_size": 4, "training.global_batch_size": 64})
    for device in "h100", "h200", "b200", "80000000000":
        said = trainer("plan", "-c", CONFIG, *ranks, *FULL, "--device", device)
        name = device.upper() if device[0] in "hb" else "GPU"
        check(f" on the device {name} of " in regions(said)[0] and re.search(r"^fits: ", said, re.M), said)
        kept[device] = regions(said)[1]["activations and scratch"], re.search(r"^\* (selective: .*?) {2,}", said, re.M)[1]
    check(kept["h100"][0] < kept["h200"][0] < kept["b200"][0] and len({k[1] for k in kept.values()}) > 2, f"{kept}")
    check(kept["80000000000"][0] < kept["h100"][0], f"80 GB are less than 79.1 GiB: {kept}")


def devices_are_named():
    said = trainer("plan", *DEBUG)
    if "no GPU was found here" in said:
        check(re.search(r"^planned for the device H200 \(no GPU was found here: NVML .*; --device names another", said, re.M), said)
    said = trainer("plan", *DEBUG, "--device", "a100")
    check("attention backward: own kernels (text), own kernels (vision)" in said and "products use the portable kernel" in said, said)
    check("rates (none measured for the A100: those of the H200 in proportion to NVIDIA's datasheets)" in said, said)
    for size, line in {"24000000000": "GPU of 22.4 GiB is not a card known by name; it is planned like the nearest in size, the RTX 4090 of 24 GB",
                       "5000000000": "GPU of 4.7 GiB is not a card known by name; no known card is about as large, so there are no rates"}.items():
        said = trainer("plan", *DEBUG, "--device", size)
        check(line in said and "shipped for the H200" not in said, said)
    check("time: not predicted, because no rates of such a GPU are known" in said, said)
    said = trainer("plan", *DEBUG, "--device", "5000000000", "--sweep", "2", code=64)
    check("--sweep for such a GPU needs --measured FILE" in said, said)
    said = trainer("plan", *DEBUG, "--device", "v100", code=64)
    listed = re.search(r"--device v100: expected cpu, a GPU's memory in bytes, or one of (.*)", said)
    check(listed, said)
    help_ = trainer("plan", "--help")
    for word in listed[1].split(", "):
        check(re.search(rf"(?<![\w-]){word}[,.\n]", help_), f"{word} is not in the help: {help_}")
    check("parameters" not in said, f"an unknown device is refused before anything is printed: {said}")
    said = trainer("plan", *DEBUG, "--json", "--sweep", "8", code=64)
    check("--json prints one plan" in said, said)


def table_lines(said):
    return said[said.index("one rank"):].split("\n")


def the_table_is_short_unless_asked():
    """Six lines at most, in units that fit each figure; every region to the byte in memory.json, and with --full."""
    with Folder(images=16) as f:
        run("record", "-c", f.config, "--steps", "2", "--out", f.file("rows.rec"), "--training.seq_len", "256")
        values = options(dict(SHORT, **{"training.backend": "cpu", "feed.replay": f.file("rows.rec"),
                                        "training.steps": 2, "job.dump_folder": f.file("run")}))
        said = trainer("train", "-c", f.config, *values)
        table = [line for line in table_lines(said)[1:7] if line.startswith("  ")]
        check(3 <= len(table) <= 5 and "bytes" not in said, said)
        with open(f.file("run/memory.json")) as file:
            kept = json.load(file)
        check(kept["total"] == sum(kept["regions"].values()) and kept["sharers"] == 1, f"{kept}")
        check(0 < kept["usable_bytes"] <= kept["device_bytes"] and kept["device"] == "CPU", f"{kept}")
    for device in "h200", "cpu":
        said = trainer("plan", *DEBUG, "--device", device)
        table = [line for line in table_lines(said)[1:7] if line.startswith("  ")]
        check(3 <= len(table) <= 5 and not re.search(r"\d bytes", said) and "rows fit" in said, said)
        check(re.search(r"^  total +[0-9.]+ [KMG]iB  [0-9.]+ % of the [0-9.]+ GiB available; host memory " if device != "cpu" else r"^  total +[0-9.]+ [KMG]iB  [0-9.]+ % of the [0-9.]+ GiB available", said, re.M), said)


def the_head_is_counted_at_targets():
    targets = trainer("plan", "--model.path", "debug", "--data.format", "text", "--training.seq_len", "64", "--training.global_batch_size",
                      "1", "--device", "h200")
    check(re.search(rf"^  head, at targets +{2 * 63 * 128 * 2048}$", targets, re.M), targets)


def the_page_of_cards_is_what_is_planned():
    """configs/what-fits.md; and what the script prints for one model and card is what trainer plan says of these options."""
    script = os.path.join(os.environ["TESSERA_SOURCE"], "deploy/what-fits")
    p = subprocess.run([sys.executable, "-B", script, "--check"], capture_output=True, text=True)
    check(p.returncode == 0 and p.stdout == "", p.stdout + p.stderr)
    p = subprocess.run([sys.executable, "-B", script, "--model", "tile", "--device", "l40s", "--memory.limit", "0.9"],
                       capture_output=True, text=True)
    row = re.search(r"^\| all parameters \| l40s \| 1 x 8192 \| (\w+) \| ([0-9.]+) \| [0-9.]+ \| ~(\d+) \| ~(\d+) % \| own kernels \|$",
                    p.stdout, re.M)
    check(p.returncode == 0 and row, p.stdout + p.stderr)
    said = trainer("plan", "--model.path", "tile", "--device", "l40s", "--training.seq_len", "8192", "--training.local_batch_size", "1",
                   "--training.global_batch_size", "32", "--checkpoint.enable", "true", "--activation_checkpoint.mode", row[1])
    check(re.search(rf"^  step .* {row[3]} tokens/s per rank, mfu ", said, re.M), f"{row[0]}\n{said}")
    p = subprocess.run([sys.executable, "-B", script, "--model", "qwen3-vl-2b", "--device", "6000000000"], capture_output=True, text=True)
    check(re.search(r"^\| all parameters \| 6000000000 \| one card lacks [0-9.]+ GiB; \d+ cards: 1 x ", p.stdout, re.M), p.stdout + p.stderr)


def ranks_share_a_cpu():
    """Two ranks on this machine's CPU plan with half of it each, before they start and when they have."""
    if not MPI:
        print("skipped: no MPI engine")
        return
    with Folder(images=16) as f:
        run("record", "-c", f.config, "--steps", "2", "--out", f.file("rows.rec"), "--training.seq_len", "256")
        values = options(dict(SHORT, **{"training.backend": "cpu", "feed.replay": f.file("rows.rec"), "training.steps": 2,
                                        "training.global_batch_size": 2, "activation_checkpoint.mode": "selective"}))
        kept = {}
        for ranks in 1, 2:
            trainer("train", "-c", f.config, *values, "--nproc", str(ranks), "--job.dump_folder", f.file(f"run-{ranks}"))
            with open(f.file(f"run-{ranks}/memory.json")) as file:
                kept[ranks] = json.load(file)
        one, two = kept[1], kept[2]
        check((one["sharers"], two["sharers"]) == (1, 2) and one["device_bytes"] == two["device_bytes"], f"{kept}")
        check(0.35 < two["usable_bytes"] / one["usable_bytes"] < 0.65, f"{kept}")  # what else runs here comes and goes
        said = trainer("plan", *DEBUG, "--device", "cpu", "--parallelism.world_size", "2", "--training.global_batch_size", "2")
        check(re.search(r"^one rank on the device CPU of [0-9.]+ GiB, shared by 2 ranks, ", said, re.M), said)
        check(re.search(r" GiB are free, for 2 ranks: [0-9.]+ GiB each\)", said), said)


main(the_head_is_counted_at_targets, the_page_of_cards_is_what_is_planned, model_layers_are_honoured, the_table_is_short_unless_asked, ranks_share_a_cpu, train_names_the_same_figures, a_cpu_hears_of_a_cpu, auto_decides_for_the_device,
     devices_are_named)
