"""trainer plan: what it says of memory, for which model and for which device; and that train says the same."""

import os
import re

from prepd_flow import Folder, check, main, run
from train_flow import SHORT, options, trainer

CONFIG = os.path.join(os.environ.get("TESSERA_SOURCE", "."), "configs/qwen3-30b-12x8192.yaml")  # save: auto
DEBUG = ["--model.path", "debug"]


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
            planned, trained = trainer("plan", "-c", f.config, *values), trainer("train", "-c", f.config, *values)
            (device, whole), (same, own) = regions(planned), regions(trained)
            told = re.search(r"^memory: (\d+) bytes by the options alone", trained, re.M)
            check(whole["total"] == (int(told[1]) if told else own["total"]), f"{mode}: {planned}{trained}")
            check(device == same and whole.keys() == own.keys(), f"{mode}: {planned}{trained}")
            fixed = "parameters", "gradients", "moments", "units gathered, their gradients"
            check(all(own[k] == whole[k] if k in fixed else own[k] <= whole[k] for k in whole), f"{whole} {own}")


def a_cpu_hears_of_a_cpu():
    for words in ["--training.backend", "cpu"], ["--device", "cpu"]:
        said = trainer("plan", *DEBUG, *words)
        check(" on the device CPU of " in regions(said)[0] and "H200" not in said and "GPU" not in said, said)
        check("host: snapshot of a checkpoint" in said and "captured steps" not in said, said)
        r = regions(said)[1]
        check(r["total"] == sum(r.values()) - r["total"], f"{r}")
        check(re.search(r"^fits: [0-9.]+ % of this machine's memory", said, re.M), said)


def auto_decides_for_the_device():
    """What fits on a card of 141 GB is not kept on one of 80, and the plan says which device it is for."""
    kept = {}
    ranks = options({"parallelism.world_size": 16, "parallelism.data_parallel_shard_degree": 16,
                     "training.local_batch_size": 4, "training.global_batch_size": 64})
    for device in "h100", "h200", "b200", "80000000000":
        said = trainer("plan", "-c", CONFIG, *ranks, "--device", device)
        name = device.upper() if device[0] in "hb" else "GPU"
        check(f" on the device {name} of " in regions(said)[0] and re.search(r"^fits: ", said, re.M), said)
        kept[device] = regions(said)[1]["activations and scratch"], re.search(r"^\* (selective: .*?) {2,}", said, re.M)[1]
    check(kept["h100"][0] < kept["h200"][0] < kept["b200"][0] and len({k[1] for k in kept.values()}) > 2, f"{kept}")
    check(kept["80000000000"][0] < kept["h100"][0], f"80 GB are less than 79.1 GiB: {kept}")


def devices_are_named():
    said = trainer("plan", *DEBUG)
    if "there is no GPU here" in said:
        check("planned for the device H200 (there is no GPU here; --device names another" in said, said)
    said = trainer("plan", *DEBUG, "--device", "a100", code=64)
    check("--device a100: expected h100, h200, b200, cpu, or a GPU's memory in bytes" in said, said)
    said = trainer("train", *DEBUG, "--device", "h100", code=64)
    check("train plans for the device it runs on" in said, said)
    for device in "h100", "h200":
        said = trainer("train", "--dry-run", *DEBUG, "--device", device, "--activation_checkpoint.mode", "selective")
        check(f" on the device {device.upper()} of " in said, said)


main(model_layers_are_honoured, train_names_the_same_figures, a_cpu_hears_of_a_cpu, auto_decides_for_the_device,
     devices_are_named)
