# SPDX-License-Identifier: Apache-2.0
"""model.path as Org/Name: both programs find the snapshot of refs/main in the Hugging Face cache and follow its
links. If something is missing, the message names the place that was searched."""

import filecmp
import os
import shutil
import subprocess

from prepd_flow import BIN, Folder, check, main, run
from train_flow import trainer

CACHE_KEYS = ("HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME")
NAME = "Tiny-Org/tiny.model-1"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def make_cache(root, model):
    """Makes root/models--.../snapshots/COMMIT with links into blobs, laid out as the hub's own tools do it."""
    at = os.path.join(root, "models--" + NAME.replace("/", "--"))
    snapshot = os.path.join(at, "snapshots", COMMIT)
    os.makedirs(snapshot)
    os.makedirs(os.path.join(at, "blobs"))
    os.makedirs(os.path.join(at, "refs"))
    with open(os.path.join(at, "refs", "main"), "w") as f:
        f.write(COMMIT)
    for name in os.listdir(model):
        blob = "b10b" + name.encode().hex()
        shutil.copy(os.path.join(model, name), os.path.join(at, "blobs", blob))
        os.symlink(os.path.join("../../blobs", blob), os.path.join(snapshot, name))
    return at


def set_cache(**values):
    for key in CACHE_KEYS:
        os.environ.pop(key, None)
    os.environ.update(values)


def every_variable_leads_there():
    with Folder(images=8) as f:
        at = make_cache(f.file("home/.cache/huggingface/hub"), f.file("data/model"))
        hub, cache, home = f.file("home/.cache/huggingface/hub"), f.file("home/.cache"), f.file("home")
        for values in ({"HOME": home}, {"HOME": "/", "XDG_CACHE_HOME": cache},
                       {"HOME": "/", "XDG_CACHE_HOME": "/none", "HF_HOME": cache + "/huggingface"},
                       {"HOME": home, "HF_HOME": "/none", "HF_HUB_CACHE": "~/.cache/huggingface/hub"}):
            set_cache(**values)
            said = trainer("inspect", NAME)
            check(said.startswith(NAME + ": qwen3_vl_moe"), f"{values}: {said[:200]}")
            check(NAME.split("/")[1] not in trainer("inspect", "debug"), "a preset stays a preset")
        set_cache(HOME="/", HF_HUB_CACHE=f.file("empty"))
        said = trainer("inspect", NAME, code=66)
        check(f.file("empty/models--Tiny-Org--tiny.model-1") in said, f"where it looked: {said}")
        set_cache(HOME="/", HF_HUB_CACHE=hub)
        os.remove(at + "/refs/main")
        said = trainer("export", "--model", NAME, "--out", f.file("out"), code=66)
        check(at + "/refs/main" in said, f"what is not there: {said}")


def both_programs_run_from_it():
    set_cache(HOME="/")
    with Folder(images=16, **{"model.path": NAME, "training.seq_len": 256}) as f:
        at = make_cache(f.file("hub"), f.file("data/model"))
        said = run("check", "-c", f.config, code=66)
        check("models--Tiny-Org--tiny.model-1" in said, f"prepd does not say where it looked: {said}")
        set_cache(HOME="/", HF_HUB_CACHE=f.file("hub"))
        run("record", "-c", f.config, "--steps", "1", "--out", f.file("rows.rec"))
        p = subprocess.run([BIN, "tokenize", "--model", NAME], input="a b\n", capture_output=True, text=True)
        check(p.returncode == 0 and p.stdout.strip(), f"prepd tokenize: {p.stderr}")
        said = trainer("train", "-c", f.config, "--feed.replay", f.file("rows.rec"), "--training.steps", "1",
                       "--training.local_batch_size", "1", "--job.dump_folder", f.file("run"),
                       "--checkpoint.enable", "true", "--metrics.peak_tflops", "1")
        check("trained:" in said, said)
        # A checkpoint holds files, not links into the cache.
        left = f.file("run/checkpoint")
        for name in ("tokenizer.json", "generation_config.json"):
            check(filecmp.cmp(f"{left}/{name}", f.file("data/model/" + name), shallow=False), f"the checkpoint's {name}")
        check(not any(os.path.islink(os.path.join(left, n)) for n in os.listdir(left)), "the checkpoint has a link")
        os.symlink("../../blobs/never-fetched", f"{at}/snapshots/{COMMIT}/model.safetensors")
        said = trainer("inspect", NAME, code=66)
        check("model.safetensors" in said, f"a download cut short is told: {said}")


main(every_variable_leads_there, both_programs_run_from_it)
