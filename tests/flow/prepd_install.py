# SPDX-License-Identifier: Apache-2.0
"""prepd installed into an empty prefix: programs, image module, configs, client, pages and units are in their places. A
worker from there serves a daemon of the build tree, systemd accepts the units, and prepd-run works.
prepd_install.py --build also builds and installs prepd alone where none of the trainer's libraries can be found."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

from prepd_flow import BIN, Daemon, Folder, check, free_ports, main, run, scale, wait_for, workers_below

SOURCE = os.environ.get("TESSERA_SOURCE", ".")
BUILD = os.path.abspath(os.path.dirname(os.path.dirname(BIN)))


TRAINERS = ("blas", "mpi", "cuda", "cudnn", "nccl")  # parts of the names of libraries


def said_by(*args, code=0, limit_s=120, **options):
    p = subprocess.run(args, capture_output=True, text=True, timeout=limit_s, **options)
    check(p.returncode == code, f"{args}: exit code {p.returncode}\n{p.stdout}{p.stderr}")
    return p.stdout + p.stderr


def dead_links(top):
    """The links of all pages below a folder that lead to no file, or to no heading of a page."""
    dead = []
    for folder, _, names in os.walk(top):
        for name in names:
            page = os.path.join(folder, name)
            for link in links_of(page) if name.endswith((".md", ".html")) else ():
                path, _, heading = link.partition("#")
                target = os.path.normpath(os.path.join(folder, path)) if path else page
                if not os.path.isfile(target) or (heading and heading not in headings_of(target)):
                    dead.append(f"{os.path.relpath(page, top)}: {link}")
    return dead


def links_of(page):
    with open(page) as f:
        links = re.findall(r'\]\(([^()\s]+)\)|^\[[^]]+\]: *(\S+)|(?:href|src)="([^"]+)"', f.read(), re.M)
    return [link for link in map("".join, links) if not re.match("[a-z]+:", link)]


def headings_of(page):
    """A heading's words are joined by dashes, as by everything that shows Markdown."""
    with open(page) as f:
        return {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in re.findall(r"^#+ (.*)$", f.read(), re.M)}


def manual_is_whole(path, program):
    """The manual page has each verb with its words and each option, and formatters have nothing to say against it."""
    with open(path) as f:
        page = f.read().replace("\\-", "-")
    for verb in re.findall(r"^  (\w+) {2,}", said_by(program, "--help").split("VERB --help")[0], re.M):
        check(f"{os.path.basename(program)} {verb}\\fR " in page, f"{path} lacks {verb}")
        named = set(re.findall(r"--[\w.-]+\w", said_by(program, verb, "--help", "all")))
        check(all(word in page for word in named - {"--print-config", "--shared", "--section.key"}), f"{path}: {verb}: {named}")
    if not shutil.which("groff"):
        print("skipped: no groff")
        return
    said = said_by("groff", "-man", "-ww", "-z", path)
    check(not said, said)


class Prefix:
    def __enter__(self):
        self.path = tempfile.mkdtemp(prefix="prefix")
        where, name = os.path.split(self.path)
        said_by("cmake", "--install", BUILD, "--prefix", name, cwd=where)  # a relative path, as people type it
        return self

    def file(self, name):
        return os.path.join(self.path, name)

    def __exit__(self, *_):
        shutil.rmtree(self.path)


def links_nothing_of_the_trainer(prefix):
    """prepd links no library of the trainer, down to the last library that its own link. For the modules, whose
    libraries are Debian's own affair, only the libraries that they name themselves count."""
    needed = said_by("ldd", prefix + "/bin/prepd")
    check("libzmq" in needed and not any(x in needed for x in TRAINERS + ("vips", "avcodec")), needed)
    for name, word in (("libprepd_image.so", "libvips"), ("libprepd_video.so", "libavcodec")):
        needed = "".join(x for x in said_by("readelf", "-d", f"{prefix}/lib/tessera/{name}").splitlines(True) if "NEEDED" in x)
        check(word in needed and not any(x in needed for x in TRAINERS), f"{name}: {needed}")


def everything_is_in_its_place():
    with Prefix() as p:
        wrong = dead_links(p.path)
        check(not wrong, f"{len(wrong)} dead links: {wrong}")
        for program in (n for n in os.listdir(p.file("bin")) if n != "prepd-run"):
            manual_is_whole(p.file(f"share/man/man1/{program}.1"), p.file("bin/" + program))
        for name in ("bin/prepd", "bin/prepd-run", "lib/tessera/libprepd_image.so", "lib/tessera/libprepd_video.so",
                     "share/tessera/python/tessera/client.py", "share/tessera/python/tessera/__main__.py", "share/tessera/configs/smoke.yaml",
                     "share/tessera/grafana-prepd.json", "lib/systemd/system/prep.slice"):
            check(os.path.isfile(p.file(name)), f"{name} is not installed")
        links_nothing_of_the_trainer(p.path)
        named = set(re.findall(r"\b[A-Za-z/_-]*\.md", said_by(p.file("bin/prepd"), "status", "--help")))
        for folder, _, names in os.walk(p.path):
            if "/share/doc" in folder:
                continue
            for name in names:
                with open(os.path.join(folder, name), "rb") as f:
                    named |= {x.decode() for x in re.findall(rb"(?<![a-z/])[a-z]+/[A-Za-z/_-]*\.md", f.read().replace(p.path.encode(), b""))}
        missing = [x for x in named if not os.path.isfile(p.file("share/doc/tessera/" + x))]
        check(len(named) > 1 and not missing, f"pages that are named and not installed: {missing}")
        for name in ("prepd.service", "prepd-worker@.service"):
            with open(p.file("lib/systemd/system/" + name)) as f:
                text = f.read()
            check("AF_NETLINK" in text and "MemoryMax=" in text, f"{name}: tcp or memory")
            check("@prefix@" not in text and f"ExecStart={p.path}/bin/prepd" in text, text)
        said_by("/usr/bin/python3", "-c", "import sys; sys.path.insert(0, sys.argv[1]); import tessera",
                p.file("share/tessera/python"))


def a_worker_from_there_serves_a_daemon():
    with Prefix() as p, Folder(**{"training.epochs": 1, "prepd.workers": 1}) as f:
        port = free_ports()
        end = f"tcp://127.0.0.1:{port}"
        with Daemon(f.config, "--prepd.endpoint", end) as d:
            clean = {"PATH": "/usr/bin:/bin"}
            if "ASAN_OPTIONS" in os.environ:
                clean["ASAN_OPTIONS"] = os.environ["ASAN_OPTIONS"]
            worker = subprocess.Popen(
                [p.file("bin/prepd"), "worker", "--connect", f"tcp://127.0.0.1:{port + 1}",
                 "--data-root", f.file("data")], env=clean, cwd="/")
            try:
                def status():
                    return json.loads(said_by(p.file("bin/prepd"), "status", "--connect", end,
                                              "--json"))
                wait_for(lambda: subprocess.run([BIN, "status", "--connect", end],
                                                capture_output=True).returncode == 0, "answers")
                wait_for(lambda: len(status()["workers"]) == 2, "the worker")
                scale(f, d, 0)
                wait_for(lambda: len(status()["workers"]) == 1, "it is alone")
                pid = workers_below(worker.pid)[0]
                with open(f"/proc/{pid}/maps") as m:
                    check(p.file("lib/tessera/libprepd_image.so") in m.read(), "another image module")
                rows = said_by("/usr/bin/python3", p.file("share/tessera/python/tessera"), end)
                check(rows.count("row ") > 8, f"the installed client: {rows}")
                check([w["leases"] > 0 for w in status()["workers"]] == [True], "it did no work")
            finally:
                worker.terminate()
                worker.wait(60)


def units_that_systemd_understands():
    if not shutil.which("systemd-analyze"):
        print("skipped: no systemd-analyze")
        return
    with Prefix() as p:
        units = [p.file("lib/systemd/system/" + n) for n in
                 ("prepd.service", "prepd-worker@.service", "prep.slice")]
        said = said_by("systemd-analyze", "verify", "--man=no", *units)
        check(p.path not in said, f"systemd-analyze verify: {said}")
        if os.path.exists(p.file("bin/trainer")):
            unit = p.file("lib/systemd/system/trainer@.service")
            said = said_by("systemd-analyze", "verify", "--man=no", unit)
            check(p.path not in said, f"systemd-analyze verify: {said}")
        for unit in units[:2]:
            said = said_by("systemd-analyze", "security", "--offline=yes", "--threshold=25",
                           "--no-pager", unit)
            print(next(x for x in said.splitlines() if "Overall exposure" in x).strip("→ \n"))


def prepd_run_prints_its_line():
    with Folder() as f:
        script = os.path.join(SOURCE, "deploy/prepd-run")
        with Prefix() as p:
            said = said_by(p.file("bin/prepd-run"), "--print", "--cpus", "0-1", "--memory", "4G",
                           f.config, "--prepd.workers", "1")
            for word in ("systemd-run", "--service-type=notify", "AllowedCPUs=0-1", "MemoryMax=4G",
                         "TimeoutStartSec=infinity", p.file("bin/prepd"), f.config, "--prepd.workers"):
                check(word in said, f"{word} is not in: {said}")
            if not os.path.isdir("/run/systemd/system"):
                said = said_by(p.file("bin/prepd-run"), f.config, code=69)
                check("systemd is not running" in said and f"serve -c {f.config}" in said, said)
        said_by(script, code=64)
        said_by(script, "--print", f.file("absent.yaml"), code=66)


@contextlib.contextmanager
def hidden():
    """An environment in which neither pkg-config nor the path has any of the trainer's or the tests' libraries."""
    with tempfile.TemporaryDirectory() as folder:
        paths = said_by("pkg-config", "--variable", "pc_path", "pkg-config").strip()
        for path in reversed(paths.split(":")):  # in reverse, so that the first one wins
            for name in os.listdir(path) if os.path.isdir(path) else ():
                if name.endswith(".pc") and not any(x in name for x in TRAINERS + ("lapack", "cmocka")):
                    with contextlib.suppress(FileExistsError):
                        os.symlink(os.path.join(path, name), os.path.join(folder, name))
        for name in ("mpirun", "mpicc", "nvcc"):  # hides those in /usr/bin
            os.symlink("/bin/false", os.path.join(folder, name))
        env = {k: v for k, v in os.environ.items() if not k.startswith(("CUDA", "NCCL", "CUDNN", "LD_", "CPATH"))}
        yield {**env, "PKG_CONFIG_LIBDIR": folder, "PKG_CONFIG_PATH": "", "PATH": folder + ":/usr/bin:/bin"}


def configured(build, env, trainer, *more, code=0):
    return said_by("cmake", "-S", SOURCE, "-B", build, "-G", "Ninja", "-DTRAINER=" + trainer, *more, code=code, env=env)


def what_the_build_lacks_is_named_with_its_command():
    """Without ninja, a compiler, pkg-config or any library, cmake's error names deploy/install-deps. Libraries are looked for by
    one function, so one of them stands for all."""
    with hidden() as env, tempfile.TemporaryDirectory() as path, tempfile.TemporaryDirectory() as build:
        for lacking, there, more in (("ninja", (), ()), ("C compiler", ("ninja",), ()),
                                     ("pkg-config", ("ninja",), ("-DCMAKE_DISABLE_FIND_PACKAGE_PkgConfig=ON",)),
                                     ("openblas", ("ninja",), ("-DCMAKE_DISABLE_FIND_PACKAGE_PkgConfig=OFF",))):
            for name in ("cmake", *there):
                if not os.path.exists(os.path.join(path, name)):
                    os.symlink(shutil.which(name), os.path.join(path, name))
            # CMake finds a compiler in /usr/bin too, so a name that is nothing stands for none.
            compiler = {"CC": "none"} if lacking == "C compiler" else {}
            said = configured(build, {**env, "PATH": path if lacking == "ninja" else env["PATH"], **compiler}, "ON", *more, code=1)
            check(lacking in said and "Run deploy/install-deps" in " ".join(said.split()), f"without {lacking}: {said}")
    areas = [os.path.join(SOURCE, area) for area in ("common", "proto", "prepd", "trainer", "tests")]
    said_by("grep", "-r", "--include=CMakeLists.txt", r"pkg_check_modules(.*REQUIRED\|find_package(.*REQUIRED", *areas, code=1)


def a_second_configuration_changes_no_command():
    with tempfile.TemporaryDirectory() as build:
        commands = [(configured(build, None, "ON"), said_by("ninja", "-C", build, "-t", "commands", "all"))[1] for _ in range(2)]
        check(commands[0] == commands[1], "a second cmake makes ninja compile again")


def prepd_alone_needs_no_trainer():
    """prepd is configured without the trainer where nothing that only the trainer needs can be found."""
    with hidden() as env, tempfile.TemporaryDirectory() as build, tempfile.TemporaryDirectory() as other:
        said = configured(build, env, "OFF")
        check("openblas" in configured(other, env, "ON", code=1), "the trainer's libraries are not hidden")
        with open(os.path.join(build, "build.ninja")) as f:
            plan = f.read()
        for word in ("openblas", "-lmpi", "cudart", "trainer/model"):
            check(word not in plan.lower() and word not in said.lower(), f"{word} is asked for")
        check("bin/prepd" in plan, "prepd is not built")
        packages = said_by("sed", "-n", "/^prepd=/,/^trainer=/p",
                           os.path.join(SOURCE, "deploy/install-deps")).split("trainer=")[0]
        check(not any(x in packages for x in ("blas", "mpi", "cuda", "cmocka")), packages)
        if sys.argv[1:] == ["--build"]:
            said_by("nice", "cmake", "--build", build, limit_s=3600, env=env)
            said_by("cmake", "--install", build, "--prefix", build + "/installed")
            installed_without_the_trainer(build + "/installed")


def installed_without_the_trainer(prefix):
    check(sorted(os.listdir(prefix + "/bin")) == ["prepd", "prepd-run"], f"{os.listdir(prefix + '/bin')}")
    check(not os.path.exists(prefix + "/lib/systemd/system/trainer@.service"), "the trainer's unit is installed")
    links_nothing_of_the_trainer(prefix)
    with Folder() as f:
        made = [said_by(program, "digest", "-c", f.config, "--steps", "4").splitlines()[-1]
                for program in (BIN, prefix + "/bin/prepd")]
        check(made[0] == made[1], f"other rows: {made}")


main(everything_is_in_its_place, a_worker_from_there_serves_a_daemon,
     units_that_systemd_understands, prepd_run_prints_its_line, prepd_alone_needs_no_trainer,
     what_the_build_lacks_is_named_with_its_command, a_second_configuration_changes_no_command)
