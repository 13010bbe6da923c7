# SPDX-License-Identifier: Apache-2.0
"""The same mistake ends both programs with the same exit code: a table of mistakes, each made in as many verbs as can
make it. Every process fails at once."""

import os
import re
import shlex
import socket
import subprocess

from prepd_flow import BIN, SOURCE, Folder, check, free_ports, main, unprivileged

TRAINER = os.path.join(os.path.dirname(BIN), "trainer")
LIMIT_S = 120

# What is wrong: the exit code, what the last line says at least, and command lines of prepd and of the trainer. {c} is
# a good configuration, {f} the folder of the files that are written below, {p} a port in use.
MISTAKES = {
    "no verb": (64, "no verb is given", [""], [""]),
    "an unknown verb": (64, "there is no verb", ["sreve -c {c}"], ["trian -c {c}"]),
    "an unknown word": (64, "does not know --no-such", ["serve -c {c} --no-such", "tokenize --no-such"],
                        ["train -c {c} --no-such", "inspect --no-such"]),
    "a word too many": (64, "unexpected \"more\"", ["check -c {c} more"], ["train -c {c} more", "eval -c {c} more"]),
    "an unknown option": (64, "there is no option \"job.no_such\"", ["serve -c {c} --job.no_such 1", "status -c {c} --job.no_such 1"],
                          ["train -c {c} --job.no_such 1", "plan -c {c} --job.no_such 1"]),
    "a value out of range": (64, "is out of range", ["check -c {c} --training.seq_len 1"], ["train -c {c} --training.seq_len 1"]),
    "a value that is none": (64, "is not one of", ["check -c {c} --data.format vqa3"], ["eval -c {c} --data.format vqa3"]),
    "an option without its value": (64, "needs a value", ["check -c {c} --training.seq_len"], ["train -c {c} --training.seq_len"]),
    "an endpoint that is none": (64, "neither ipc://PATH nor tcp://HOST:PORT", ["status -c {c} --prepd.endpoint foo"],
                                 ["train -c {c} --prepd.endpoint foo"]),
    "a folder as the file": (64, "is a folder", ["serve -c {f}"], ["train -c {f}"]),
    "no model and no file": (64, "model.path is not set", ["plan --data.path {f}"], ["plan", "train", "check", "eval", "bench ops"]),
    "a file that is not there": (66, "none.yaml: cannot open", ["serve -c {f}/none.yaml", "status -c {f}/none.yaml"],
                                 ["train -c {f}/none.yaml", "plan -c {f}/none.yaml"]),
    "a file that may not be read": (66, "secret.yaml: cannot open: Permission denied", ["check -c {f}/secret.yaml"],
                                    ["train -c {f}/secret.yaml"]),
    "a file that is not YAML": (78, "torn.yaml:2: not YAML", ["serve -c {f}/torn.yaml"], ["train -c {f}/torn.yaml"]),
    "an unknown key in the file": (78, "key.yaml:2: there is no option \"training.seq_length\"; did you mean training.seq_len?",
                                   ["serve -c {f}/key.yaml --model.path {f} --data.path {f}"], ["train -c {f}/key.yaml --model.path debug"]),
    "a wrong value in the file": (78, "value.yaml:2: training.seq_len: 1 is out of range",
                                  ["serve -c {f}/value.yaml --model.path {f} --data.path {f}"], ["train -c {f}/value.yaml --model.path debug"]),
    "no model in the file": (78, "model.path is not set", ["serve -c {f}/empty.yaml --data.path {f}", "record -c {f}/empty.yaml --data.path {f} --steps 1 --out x"],
                             ["train -c {f}/empty.yaml", "plan -c {f}/empty.yaml", "bench ops -c {f}/empty.yaml"]),
    "options that contradict each other": (78, "training.steps is 0, so training.epochs decides", ["serve -c {f}/endless.yaml"],
                                           ["train -c {f}/endless.yaml"]),
    "a model that is not there": (66, "is not a folder, and in the Hugging Face cache there is no",
                                  ["serve -c {c} --model.path {f}/no/such", "check -c {c} --model.path {f}/no/such",
                                   "tokenize --model no/such", "fingerprint --model no/such"],
                                  ["train -c {c} --model.path {f}/no/such", "plan -c {c} --model.path {f}/no/such",
                                   "eval -c {c} --model.path {f}/no/such", "export --model no/such --out {f}/x", "inspect no/such"]),
    "a model that prepd synth has not made yet": (66, "no/model is not a folder; prepd synth --out", ["check -c {c} --model.path {f}/no/model"],
                                                  ["train -c {c} --model.path {f}/no/model", "plan -c {c} --model.path {f}/no/model"]),
    "a tokenizer that is not there": (66, "is not a folder", ["serve -c {c} --model.tokenizer {f}/no/model"],
                                      ["train -c {c} --model.tokenizer {f}/no/model"]),
    "a name that is no preset": (66, "nopreset", ["serve -c {c} --model.path nopreset", "tokenize --model nopreset"],
                                 ["train -c {c} --model.path nopreset", "inspect nopreset"]),
    "a folder that is no model": (66, ".json: cannot open", ["serve -c {c} --model.path {f}/hollow"], ["train -c {c} --model.path {f}/hollow"]),
    "data that are not there": (66, "cannot be read", ["serve -c {c} --data.path {f}/none", "digest -c {c} --data.path {f}/none --steps 1"], []),
    "a recording that is not there": (66, "cannot open the recording", [],
                                      ["train -c {c} --feed.replay {f}/none.rec"]),
    "a recording that is none": (65, "this is not a recording", [], ["train -c {c} --feed.replay {c}"]),
    "rates that are not there": (66, "cannot open", [], ["plan --model.path debug --measured {f}/none"]),
    "no daemon": (69, "there is no socket", ["status -c {c}", "scale 1 -c {c}"], ["train -c {c} --feed.timeout 0.5"]),
    "a port in use": (69, "use", ["serve -c {c} --prepd.endpoint tcp://127.0.0.1:{p}", "serve -c {c} --metrics.listen 127.0.0.1:{p}"],
                      ["RANK:{p} train -c {c} --parallelism.world_size 2"]),
    "a place that cannot be written to": (73, "/proc/none", ["sample -c {c} --index 0 --out /proc/none/x", "record -c {c} --steps 1 --out /proc/none/x",
                                                             "synth --out /proc/none/x --images 8 --seed 1", "keygen --out /proc/none/x"],
                                          ["train -c {c} --job.dump_folder /proc/none/x", "check -c {c} --job.dump_folder /proc/none/x"]),
}
FILES = {"torn.yaml": "training: [\n", "key.yaml": "training:\n  seq_length: 512\n", "value.yaml": "training:\n  seq_len: 1\n",
         "empty.yaml": "", "endless.yaml": "model:\n  path: debug\ndata:\n  path: .\ntraining:\n  steps: 0\n"}


def ended(program, words, by):
    """Exit code and standard error. RANK:PORT before the verb: as the first of two ranks that torchrun has started."""
    env = {**os.environ, "LSAN_OPTIONS": "detect_leaks=0", "ASAN_OPTIONS": "detect_leaks=0"}
    if words[:1] and words[0].startswith("RANK:"):
        port, words = words[0][5:], words[1:]
        env.update(RANK="0", WORLD_SIZE="2", LOCAL_RANK="0", LOCAL_WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    p = subprocess.run([*by, program, *words], capture_output=True, text=True, errors="replace", timeout=LIMIT_S, env=env)
    return p.returncode, p.stderr


def the_same_mistake_has_the_same_code():
    with Folder(images=8, **{"training.backend": "cpu"}) as f, socket.socket() as taken:
        port = free_ports()
        taken.bind(("127.0.0.1", port))
        taken.listen()
        for name, text in FILES.items():
            with open(f.file(name), "w", encoding="utf-8") as file:
                file.write(text)
        os.mkdir(f.file("hollow"))
        wrong = []
        for what, (code, told, of_prepd, of_trainer) in MISTAKES.items():
            if "secret" in told:
                continue
            for program, lines in ((BIN, of_prepd), (TRAINER, of_trainer)):
                for line in lines if os.path.exists(program) else ():
                    words = [w.format(c=f.config, f=f.path, p=port) for w in shlex.split(line)]
                    got, said = ended(program, words, ())
                    told_so = any(t in said for t in (told, told.replace("use", "busy")))
                    if got != code or not told_so:
                        wrong.append(f"{what}: {os.path.basename(program)} {line}: exit code {got}, not {code}: {said[-300:]}")
        check(not wrong, "\n".join(wrong))


def a_file_that_may_not_be_read():
    code, told, of_prepd, of_trainer = MISTAKES["a file that may not be read"]
    with Folder(images=8) as f:
        with open(f.file("secret.yaml"), "w", encoding="utf-8"):
            pass
        by = unprivileged(f) if os.geteuid() == 0 else ()
        if by is None:
            return
        os.chmod(f.file("secret.yaml"), 0)
        for line in of_prepd:  # the trainer's file is read by the same code
            words = [w.format(f=f.path) for w in shlex.split(line)]
            p = subprocess.run([*by, BIN, *words], capture_output=True, text=True, timeout=LIMIT_S)
            check(p.returncode == code and told in p.stderr, f"{line}: exit code {p.returncode}, {p.stderr}")


def the_page_has_every_code():
    with open(os.path.join(SOURCE, "configs/README.md"), encoding="utf-8") as f:
        page = f.read().split("## Exit codes")[1]
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.M)}
    made = {code for code, _, _, _ in MISTAKES.values()}
    check(made <= listed, f"{made - listed} are not in configs/README.md")
    with open(os.path.join(SOURCE, "common/base/status.h"), encoding="utf-8") as f:
        all_codes = {int(code) for code in re.findall(r"^\s+X\(ST_\w+, (\d+),", f.read(), re.M)} - {0}
    check(all_codes == listed, f"configs/README.md lists {sorted(listed)}, and there are {sorted(all_codes)}")


main(the_same_mistake_has_the_same_code, a_file_that_may_not_be_read, the_page_has_every_code)
