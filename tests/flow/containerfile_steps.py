# SPDX-License-Identifier: Apache-2.0
"""Reads deploy/Containerfile, and carries out its steps in bare Debian roots, as far as it uses them."""

import dataclasses
import glob
import json
import os
import re
import shlex
import shutil

from debian_root import Root

KNOWN = {"FROM", "ARG", "ENV", "WORKDIR", "COPY", "RUN", "USER", "ENTRYPOINT", "CMD"}


@dataclasses.dataclass
class Stage:
    name: str
    image: str
    steps: list  # (instruction, rest of the line)

    def sources(self):
        """The stages that this one takes files from."""
        return re.findall(r"(?:--|,)from=([\w-]+)", " ".join(rest for _, rest in self.steps))

    def last(self, instruction):
        found = [rest for name, rest in self.steps if name == instruction]
        return found[-1] if found else None


def stages_of(path):
    """{name: Stage} of a Containerfile, in order."""
    with open(path, encoding="utf-8") as f:
        text = "".join(line for line in f if not line.lstrip().startswith("#"))
    found = {}
    for line in text.replace("\\\n", " ").splitlines():
        if not line.strip():
            continue
        instruction, rest = line.split(maxsplit=1)
        if instruction not in KNOWN:
            raise ValueError(f"{path}: this reader does not know {instruction}")
        if instruction == "FROM":
            image, name = re.fullmatch(r"(\S+) AS (\S+)", rest.strip()).groups()
            found[name] = Stage(name, image, [])
        else:
            next(reversed(found.values())).steps.append((instruction, rest.strip()))
    return found


# What leaves no trace in the files of a stage, and is done again for one that is there already.
SETTINGS = {"ARG", "ENV", "USER", "ENTRYPOINT", "CMD", "WORKDIR"}


class Builder:
    """Stages that were finished in the folder before are taken as they are. base: a root that plays the image of every FROM. args: values for ARG. env: further variables of each RUN, such as
    where the certificates of this machine are, which are mounted into the root."""

    def __init__(self, stages, source, folder, base, suite, args, certificates=None):
        self.stages, self.source, self.folder, self.base, self.suite, self.args = stages, source, folder, base, suite, args
        self.certificates, self.roots = certificates, {}

    def built(self, name):
        """The root of a stage, which is built first with those that it needs."""
        if name not in self.roots:
            stage = self.stages[name]
            for other in stage.sources():
                self.built(other)
            path = os.path.join(self.folder, name)
            there = os.path.exists(path + ".whole")
            if not there:
                shutil.rmtree(path, ignore_errors=True)
            root = Root(path) if there else Root.made(path, self.suite, self.base)
            root.user, root.cwd, root.env = "root", "/", {}
            self.roots[name] = root
            for instruction, rest in stage.steps:
                if not there or instruction in SETTINGS:
                    print(f"{name}: {instruction} {rest[:100]}", flush=True)
                    getattr(self, "do_" + instruction.lower())(root, rest)
            with open(path + ".whole", "w"):
                pass
        return self.roots[name]

    def do_arg(self, root, rest):
        key, _, value = rest.partition("=")
        root.env[key] = self.args.get(key, value)

    def do_env(self, root, rest):
        root.env.update(word.split("=", 1) for word in shlex.split(rest))

    def do_workdir(self, root, rest):
        root.cwd = rest
        os.makedirs(root.file(rest), exist_ok=True)

    def do_user(self, root, rest):
        root.user = rest

    def do_entrypoint(self, root, rest):
        root.entrypoint = json.loads(rest)

    def do_cmd(self, root, rest):
        root.cmd = json.loads(rest)

    def do_copy(self, root, rest):
        words = rest.split()
        there = self.source
        if words[0].startswith("--from="):
            there = self.built(words.pop(0).removeprefix("--from=")).path
        *sources, to = words
        for pattern in sources:
            files = glob.glob(os.path.join(there, pattern.lstrip("/")))
            if not files:
                raise ValueError(f"COPY {rest}: there is no {pattern}")
            for path in files:
                target = root.file(os.path.join(root.cwd, to))
                if os.path.isdir(path):
                    shutil.copytree(path, target, symlinks=True, dirs_exist_ok=True)
                else:
                    os.makedirs(target if to.endswith("/") else os.path.dirname(target), exist_ok=True)
                    shutil.copy(path, target)

    def do_run(self, root, rest):
        mounts = []
        while rest.startswith("--mount="):
            mount, rest = rest.split(maxsplit=1)
            parts = dict(part.split("=", 1) for part in mount.removeprefix("--mount=").split(","))
            mounts.append((self.built(parts["from"]).file(parts["source"]), parts["target"]))
        env = dict(root.env)
        if self.certificates:
            env["PIP_CERT"] = "/run/certificates.crt"
            mounts.append((self.certificates, "/run/certificates.crt"))
        root.run("env", *(f"{k}={v}" for k, v in env.items()), "sh", "-c", f"cd {root.cwd} && {rest}", binds=mounts)

    def start_words(self, root, *args):
        """The command line of the image with these arguments, as its own user."""
        return ["setpriv", "--reuid=" + root.user, "--regid=" + root.user, "--init-groups", "env", *(f"{k}={v}" for k, v in root.env.items()),
                "HOME=" + root.cwd, *root.entrypoint, *args]
