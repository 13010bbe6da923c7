"""The Debian packages that cpack makes of this build: which files they hold, what they depend on, what their scripts do
without systemd.

    python3 -B tests/flow/deploy_packages.py --walk [--base FOLDER]

walks as an operator would, as root: it installs the packages into bare Debian roots, runs both programs there, scrapes
the daemon with Prometheus, upgrades, removes and purges. Some minutes and 1.5 GB; --base keeps the base system for
the next time."""

import contextlib
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

from debian_root import Root, lacking
from prepd_flow import BIN, check, free_ports, main, wait_for

SOURCE = os.path.abspath(os.environ.get("TESSERA_SOURCE", "."))
BUILD = os.path.dirname(os.path.dirname(os.path.abspath(BIN)))
TRAINER = os.path.exists(os.path.join(BUILD, "bin/trainer"))
NEVER = ("gcc", "clang", "g++", "libc6-dev", "cmake", "-dev")  # what no package may depend on


def said_by(*args, code=0, **options):
    p = subprocess.run(args, capture_output=True, text=True, **options)
    check(p.returncode == code, f"{args}: exit code {p.returncode}\n{p.stdout}{p.stderr}")
    return p.stdout


class Packages:
    """The packages in a temporary folder, each unpacked below its own name, with its control files in DEBIAN."""

    def __enter__(self):
        self.path = tempfile.mkdtemp(prefix="packages")
        said_by("cpack", "--config", os.path.join(BUILD, "CPackConfig.cmake"), "-B", self.path)
        shutil.rmtree(self.file("_CPack_Packages"))
        self.debs = {os.path.basename(p).split("_")[0]: p for p in glob.glob(self.file("*.deb"))}
        for name, deb in self.debs.items():
            said_by("dpkg-deb", "-R", deb, self.file(name))
        return self

    def file(self, *name):
        return os.path.join(self.path, *name)

    def names(self, package):
        """Files and links of the package, by their paths."""
        return {os.path.relpath(os.path.join(at, name), self.file(package)) for at, folders, names in os.walk(self.file(package))
                for name in names + [f for f in folders if os.path.islink(os.path.join(at, f))]}

    def control(self, package, field):
        return said_by("dpkg-deb", "-f", self.debs[package], field).strip()

    def __exit__(self, *_):
        shutil.rmtree(self.path)


def holds(p, package, wanted, beside=()):
    """The package holds these files and no others except its copyright and those in the folders `beside`."""
    there = {n for n in p.names(package) if not n.startswith("DEBIAN/")}
    wanted = {*wanted, f"usr/share/doc/{package}/copyright"}
    check(wanted <= there, f"{package} lacks {wanted - there}")
    more = {n for n in there - wanted if not n.startswith(tuple(beside))}
    check(not more, f"{package} also has {more}")


def each_file_is_in_one_package():
    with Packages() as p:
        modules = {os.path.basename(m) for m in glob.glob(os.path.join(BUILD, "lib/*.so"))}
        check(set(p.debs) == {"tessera-common", "tessera-prepd", *(["tessera-trainer"] if TRAINER else [])}, p.debs)
        holds(p, "tessera-common", ["usr/share/tessera/python/tessera/client.py", "usr/share/tessera/configs/smoke.yaml",
                                    "usr/share/doc/tessera/prepd/operating.md", "usr/share/doc/tessera/deploy/README.md"],
              beside=("usr/share/tessera/", "usr/share/doc/tessera/"))
        units = "usr/lib/systemd/system/"
        holds(p, "tessera-prepd", ["usr/bin/prepd", "usr/bin/prepd-run", "usr/lib/tessera/bin/prepd", "etc/tessera/prepd.yaml",
                                   "etc/tessera/worker.env", units + "prepd.service", units + "prepd-worker@.service",
                                   units + "prep.slice", *("usr/lib/tessera/lib/" + m for m in modules if "prepd" in m)])
        if TRAINER:
            holds(p, "tessera-trainer", ["usr/bin/trainer", "usr/lib/tessera/bin/trainer", units + "trainer@.service",
                                         *("usr/lib/tessera/lib/" + m for m in modules if "prepd" not in m)])
        conffiles_and_dependencies(p)
        programs_run_from_there(p)
        nothing_of_the_build_is_named(p)
        scripts_cope_without_systemd(p)


def conffiles_and_dependencies(p):
    with open(p.file("tessera-prepd/DEBIAN/conffiles")) as f:
        check({line.strip().lstrip("/") for line in f} == {n for n in p.names("tessera-prepd") if n.startswith("etc/")}, "conffiles")
    version = p.control("tessera-common", "Version")
    check(p.control("tessera-common", "Architecture") == "all" and not p.control("tessera-common", "Depends"), "common")
    for package, needs, never in (("tessera-prepd", ("libvips", "libavcodec", "libzmq5", "passwd"), ("blas", "mpi")),
                                  ("tessera-trainer", ("libopenblas0", "libzmq5"), ("vips", "avcodec", "prepd"))):
        if package not in p.debs:
            continue
        depends = p.control(package, "Depends")
        names = re.findall(r"(?:^|[,|]) *([a-z0-9.+-]+)", depends)
        check(f"tessera-common (= {version})" in depends, depends)
        check(all(any(n.startswith(x) for n in names) for x in needs), f"{package}: {depends}")
        check(not any(x in n for n in names for x in never), f"{package}: {depends}")
        check(not any(n in NEVER or n.endswith("-dev") for n in names), f"{package}: {depends}")


def programs_run_from_there(p):
    """The link in usr/bin leads to a program that finds its modules, and the units start it there."""
    with open(p.file("tessera-prepd/usr/lib/systemd/system/prepd.service")) as f:
        unit = f.read()
    check("ExecStart=/usr/bin/prepd serve" in unit and "@prefix@" not in unit, unit)
    made = p.file("made")
    said_by(p.file("tessera-prepd/usr/bin/prepd"), "synth", "--out", made, "--images", "8", "--seed", "1", "--sizes", "small")
    said = said_by(p.file("tessera-prepd/usr/bin/prepd"), "check", "--data.path", made, "--model.path", made + "/model",
                   "--training.seq_len", "512", "--prepd.cache_dir", p.file("cache"))
    check("0 bad" in said, said)
    if TRAINER:
        said_by(p.file("tessera-trainer/usr/bin/trainer"), "plan", "--model.path", made + "/model", "--training.seq_len", "512")


def nothing_of_the_build_is_named(p):
    for package in p.debs:
        for name in p.names(package):
            if os.path.islink(p.file(package, name)):
                check(not os.readlink(p.file(package, name)).startswith("/"), f"{name} is an absolute link")
                continue
            with open(p.file(package, name), "rb") as f:
                text = f.read()
            for folder in (BUILD, SOURCE):
                check(folder.encode() not in text, f"{package}: {name} names {folder}")
            check(b".debug_info" not in text, f"{package}: {name} is not stripped")


def scripts_cope_without_systemd(p):
    """Each script of a package succeeds where systemd does not run, with the words that dpkg gives it. Those that make
    users or delete folders are run by the walk alone."""
    if os.path.isdir("/run/systemd/system"):
        print("skipped: systemd runs here")
        return
    for package, script, words in (("tessera-prepd", "prerm", "remove"), ("tessera-prepd", "postrm", "remove"),
                                   ("tessera-trainer", "postinst", "configure"), ("tessera-trainer", "prerm", "remove"),
                                   ("tessera-trainer", "postrm", "purge")):
        if package in p.debs:
            said = said_by("/bin/sh", p.file(package, "DEBIAN", script), words)
            check(not said, f"{package} {script}: {said}")


# From here on: the walk.

SCRAPES = """scrape_configs:
- job_name: prepd
  scrape_interval: 1s
  static_configs:
  - targets: ['127.0.0.1:%d']
"""


def tessera_files(root):
    """What bears a name of ours, except what apt and dpkg keep about packages."""
    return {n for n in root.files() if re.search("tessera|prepd", n)
            and not n.startswith(("/var/lib/dpkg/", "/var/lib/apt", "/var/cache/apt", "/proc/", "/dev/", "/sys/", "/tmp/", "/srv/"))}


def installed(root):
    return set(root.run("dpkg-query", "-W", "-f", "${db:Status-Abbrev} ${Package}\n").splitlines())


def put(root, debs):
    os.makedirs(root.file("srv/debs"), exist_ok=True)
    for deb in debs:
        shutil.copy(deb, root.file("srv/debs"))
    return ["/srv/debs/" + os.path.basename(deb) for deb in debs]


@contextlib.contextmanager
def running(root, *args):
    p = subprocess.Popen(root.words(*args), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield p
    finally:
        p.send_signal(signal.SIGTERM)
        check(p.wait(60) == 0, f"{args}: exit code {p.returncode}")


def asked(url):
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.read().decode()
    except OSError:
        return ""


def scraped_by_prometheus(root, port):
    """A real Prometheus in the same root takes the daemon's metrics; promtool finds nothing wrong with them."""
    root.apt("install", "prometheus")
    with open(root.file("etc/prometheus/prometheus.yml"), "w") as f:
        f.write(SCRAPES % port)
    with open(root.file("srv/metrics"), "w") as f:
        f.write(asked(f"http://127.0.0.1:{port}/metrics"))
    said = root.run("sh", "-c", "promtool check metrics </srv/metrics")
    check("error" not in said.lower(), said)
    its = free_ports()
    with running(root, "prometheus", "--config.file", "/etc/prometheus/prometheus.yml", "--storage.tsdb.path", "/srv/tsdb",
                 "--web.listen-address", f"127.0.0.1:{its}"):
        query = f"http://127.0.0.1:{its}/api/v1/query?query="

        def value(what):
            answer = asked(query + what)
            found = json.loads(answer)["data"]["result"] if answer else []
            return float(found[0]["value"][1]) if found else None
        wait_for(lambda: value("up") == 1, "Prometheus has scraped the daemon")
        series = [n for n in json.loads(asked(f"http://127.0.0.1:{its}/api/v1/label/__name__/values"))["data"] if "prepd" in n]
        check(len(series) > 10, series)
        print(f"prometheus: up 1, {len(series)} series of prepd")


def prepd_alone(root, debs):
    """Installed without the trainer: the daemon serves as its own user, is scraped, upgraded and purged."""
    before = installed(root)
    root.apt("install", *debs)
    added = installed(root) - before
    check(not any(re.search("blas|mpi|gcc-|clang|-dev$", n) for n in added), added)
    check("prepd" in root.run("id", "prepd"), "no user")
    root.run("prepd", "synth", "--out", "/srv/data", "--images", "64", "--seed", "1", "--sizes", "small")
    options = ["--data.format", "vqav2", "--data.path", "/srv/data", "--model.path", "/srv/data/model", "--training.seq_len", "512"]
    check("0 bad" in root.run("prepd", "check", "-c", "/etc/tessera/prepd.yaml", *options), "check")
    root.run("prepd", "record", *options, "--training.global_batch_size", "2", "--steps", "3", "--out", "/srv/rows.rec")
    root.run("sh", "-c", "mkdir /run/prepd /var/cache/prepd && chown prepd: /run/prepd /var/cache/prepd")  # as systemd would
    port = free_ports()
    with running(root, "setpriv", "--reuid=prepd", "--regid=prepd", "--clear-groups", "prepd", "serve", "-c", "/etc/tessera/prepd.yaml",
                 *options, "--prepd.workers", "1", "--prepd.cache_dir", "/var/cache/prepd", "--metrics.listen", f"127.0.0.1:{port}"):
        wait_for(lambda: asked(f"http://127.0.0.1:{port}/readyz"), "the daemon is ready")
        check("prepd" in asked(f"http://127.0.0.1:{port}/metrics"), "metrics")
        scraped_by_prometheus(root, port)
    with open(root.file("etc/tessera/prepd.yaml"), "a") as f:
        f.write("# changed by the operator\n")
    root.run("dpkg", "-i", *debs)  # an upgrade leaves what an operator has changed
    with open(root.file("etc/tessera/prepd.yaml")) as f:
        check("changed by the operator" in f.read(), "the configuration was replaced")
    root.apt("remove", "tessera-prepd")
    check("/etc/tessera/prepd.yaml" in root.files() and "/usr/bin/prepd" not in root.files(), "remove")
    root.apt("purge", "tessera-prepd", "tessera-common")
    shutil.rmtree(root.file("run/prepd"))  # systemd's, and in memory
    check(not tessera_files(root), f"left after the purge: {tessera_files(root)}")
    check(not root.run("dpkg", "--audit"), "dpkg finds something half done")
    print(f"tessera-prepd: installed with {len(added)} packages, served, was upgraded and purged")


def trainer_alone(root, debs, rows, model):
    """Installed without prepd and without anything of NVIDIA: it trains on the CPU from a recording."""
    before = installed(root)
    root.apt("install", *debs)
    added = installed(root) - before
    check(not any(re.search("vips|avcodec|gcc-|clang|nvidia|-dev$", n) for n in added), added)
    shutil.copy(rows, root.file("srv/rows.rec"))
    shutil.copytree(model, root.file("srv/model"))
    said = root.run("trainer", "train", "--feed.replay", "/srv/rows.rec", "--model.path", "/srv/model", "--training.seq_len", "512",
                    "--training.global_batch_size", "2", "--training.local_batch_size", "1", "--training.steps", "3",
                    "--job.dump_folder", "/var/lib/tessera/first", "--metrics.log_freq", "1", "--checkpoint.enable", "true")
    losses = re.findall(r"loss: +([0-9.]+)", said)
    check(len(losses) >= 3, said)
    root.apt("purge", "tessera-trainer", "tessera-common")
    left = tessera_files(root)
    check(left and all(n.startswith("/var/lib/tessera") for n in left), f"left after the purge: {left}")
    check(not root.run("dpkg", "--audit"), "dpkg finds something half done")
    print(f"tessera-trainer: installed with {len(added)} packages, trained on the CPU (loss {losses[0]} to {losses[-1]}), purged")


def walk(base):
    lack = lacking()
    if lack:
        print(f"skipped: {lack}")
        return
    with open("/etc/os-release") as f:
        suite = re.search(r"^VERSION_CODENAME=(\w+)", f.read(), re.M).group(1)
    begun = time.monotonic()
    with Packages() as p, tempfile.TemporaryDirectory() as folder:
        data = Root.made(os.path.join(folder, "data"), suite, base)
        data.apt("update")
        prepd_alone(data, put(data, [p.debs["tessera-common"], p.debs["tessera-prepd"]]))
        train = Root.made(os.path.join(folder, "train"), suite, base)
        train.apt("update")
        trainer_alone(train, put(train, [p.debs["tessera-common"], p.debs["tessera-trainer"]]), data.file("srv/rows.rec"),
                      data.file("srv/data/model"))
    print(f"walked through a bare {suite} in {time.monotonic() - begun:.0f} s")


if "--walk" in sys.argv[1:]:
    walk(sys.argv[sys.argv.index("--base") + 1] if "--base" in sys.argv[1:] else None)
    sys.exit(0)
missing = [tool for tool in ("cpack", "dpkg-deb", "dpkg-shlibdeps", "file") if not shutil.which(tool)]
if missing:
    print(f"skipped: no {', '.join(missing)}")
    sys.exit(77)
main(each_file_is_in_one_package)
