# SPDX-License-Identifier: Apache-2.0
"""What an operator does, as root: installs the Debian packages into bare roots, one for prepd and one for the trainer, runs both
there, watches them with a real Prometheus, upgrades, removes and purges.

    python3 -B tests/flow/operator_walk.py --walk [--base FOLDER] [--pages FOLDER]

takes some minutes and 1.5 GB. --base keeps the base system for the next time. --pages: where pictures of the pages go, as a
browser shows them. Without --walk nothing is done (exit code 77)."""

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

from browser import picture
from debian_packages import SOURCE, Packages
from debian_root import Root, lacking
from prepd_flow import check, free_ports, wait_for
from prometheus import asked_by_dashboard

RULES = "/etc/prometheus/tessera.yaml"  # the package's own, kept for the time after it is purged
SCRAPES = """global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [%s]
scrape_configs:
- {job_name: prepd, static_configs: [{targets: ['127.0.0.1:%d']}]}
- {job_name: trainer, static_configs: [{targets: ['127.0.0.1:%d']}]}
"""
ONE_STREAM = """sum by (id) (rate(prepd_rows_total[1m]) * on (instance) group_left (id) prepd_stream_info{section="train"})
and on (id) label_replace(trainer_run_info, "id", "$1", "stream", "(.*)")"""


def tessera_files(root):
    """What bears a name of ours, except what apt and dpkg keep about packages."""
    return {n for n in root.files() if re.search("tessera|prepd", n)
            and not n.startswith(("/var/lib/dpkg/", "/var/lib/apt", "/var/cache/apt", "/proc/", "/dev/", "/sys/", "/tmp/", "/srv/", RULES))}


def installed(root):
    return set(root.run("dpkg-query", "-W", "-f", "${db:Status-Abbrev} ${Package}\n").splitlines())


def install(root, debs, never):
    """Installs packages and all that they depend on, and returns how many packages that adds. None may match `never`."""
    os.makedirs(root.file("srv/debs"), exist_ok=True)
    for deb in debs:
        shutil.copy(deb, root.file("srv/debs"))
    before = installed(root)
    root.apt("install", *("/srv/debs/" + os.path.basename(deb) for deb in debs))
    added = installed(root) - before
    check(not any(re.search(never, n) for n in added), added)
    return len(added)


@contextlib.contextmanager
def running(root, *args, said):
    """A command in the root, which gets SIGTERM at the end and must end in order. Gives a function that waits for something while
    the command runs."""
    def words():
        with open(root.file(said)) as f:
            return f"{args}: exit code {p.poll()}\n{f.read()[-4000:]}"

    def until(what, name):
        wait_for(lambda: p.poll() is not None or what(), name)
        check(p.poll() is None, words())
    with open(root.file(said), "w") as out, subprocess.Popen(root.words(*args), stdout=out, stderr=out) as p:
        try:
            yield until
        finally:
            p.send_signal(signal.SIGTERM)
            code = p.wait(120)
    check(code == 0, words())


def asked(url):
    """The answer; "" as long as there is none, or not yet."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        check(error.code == 503, f"{url}: {error.code} {error.read()}")
        return ""
    except OSError:
        return ""


class Prometheus:
    """A real one in a root, with the alert rules of the package, and what it answers."""

    def __init__(self, root, prepd, trainer):
        self.root, self.at = root, f"127.0.0.1:{free_ports()}"
        root.apt("install", "prometheus")
        shutil.copy(root.file("usr/share/tessera/prometheus-alerts.yaml"), root.file(RULES))
        with open(root.file("etc/prometheus/prometheus.yml"), "w") as f:
            f.write(SCRAPES % (RULES, prepd, trainer))
        said = root.run("promtool", "check", "config", "/etc/prometheus/prometheus.yml")
        check(f"{RULES}" in said and "rules found" in said, said)
        with open(os.path.join(SOURCE, "tests/flow/prometheus_alerts_test.yaml")) as f:
            text = re.sub(r"rule_files: .*", f"rule_files: [{RULES}]", f.read())
        with open(root.file("srv/rules_test.yaml"), "w") as f:
            f.write(text)
        root.run("promtool", "test", "rules", "/srv/rules_test.yaml")

    def running(self):
        return running(self.root, "prometheus", "--config.file", "/etc/prometheus/prometheus.yml", "--storage.tsdb.path", "/srv/tsdb",
                       "--web.listen-address", self.at, said="srv/prometheus.log")

    def api(self, path):
        answer = asked(f"http://{self.at}/api/v1/{path}")
        return json.loads(answer)["data"] if answer else {}

    def series(self, query):
        return self.api("query?" + urllib.parse.urlencode({"query": query})).get("result", [])

    def check_metrics(self, port):
        """promtool finds nothing wrong with the text of a program."""
        with open(self.root.file("srv/metrics"), "w") as f:
            f.write(asked(f"http://127.0.0.1:{port}/metrics"))
        said = self.root.run("sh", "-c", "promtool check metrics </srv/metrics")
        check(not said.strip(), said)

    def check_panels(self, dashboard, until):
        """Each query of each panel finds series, some a little later. Returns how many queries there are."""
        panels = [(title, text.replace("$instance", ".*")) for title, text, _ in asked_by_dashboard(dashboard) if title != "variables"]
        for title, query in panels:
            until(lambda q=query: self.series(q), f"{dashboard}, {title}: series for {query}")
        return len(panels)


def make_rows(root, options):
    """Data in the root, checked, and rows of them in a recording."""
    root.run("prepd", "synth", "--out", "/srv/data", "--images", "64", "--seed", "1", "--sizes", "small")
    check("0 bad" in root.run("prepd", "check", "-c", "/etc/tessera/prepd.yaml", *options), "check")
    root.run("prepd", "record", *options, "--training.global_batch_size", "2", "--steps", "3", "--out", "/srv/rows.rec")
    root.run("sh", "-c", "mkdir /run/prepd /var/cache/prepd && chown prepd: /run/prepd /var/cache/prepd")  # as systemd would


def python_reads(root, deb):
    """The client's package alone brings all that it needs; every Python program there may import it."""
    added = install(root, [deb], "vips|blas0|mpi|gcc-|clang|-dev$|^ii +tessera")
    said = root.run("python3", "-m", "tessera", "/srv/rows.rec")
    check(len(said.splitlines()) >= 6, said)
    check(root.run("python3", "-c", "from tessera import row_readers; print(row_readers._reader is not None)") == "True\n", "no extension")
    return added


def watch(data, train, options, pages):
    """The daemon serves as its own user in one root, a run trains on its rows in the other, and Prometheus scrapes both."""
    rows, daemon, run = free_ports(), free_ports(), free_ports()
    serve = ["setpriv", "--reuid=prepd", "--regid=prepd", "--clear-groups", "prepd", "serve", "-c", "/etc/tessera/prepd.yaml", *options,
             "--training.global_batch_size", "2", "--prepd.workers", "1", "--prepd.cache_dir", "/var/cache/prepd",
             "--prepd.endpoint", f"tcp://127.0.0.1:{rows}", "--metrics.listen", f"127.0.0.1:{daemon}"]
    learn = ["trainer", "train", "--prepd.endpoint", f"tcp://127.0.0.1:{rows}", "--shared", *options, "--training.global_batch_size", "2",
             "--training.local_batch_size", "1", "--training.steps", "100000", "--eval.enable", "true", "--eval.freq", "4",
             "--metrics.log_freq", "1", "--metrics.peak_tflops", "1", "--metrics.trainer_listen", f"127.0.0.1:{run}",
             "--job.dump_folder", "/var/lib/tessera/watched", "--checkpoint.enable", "true", "--checkpoint.interval", "4",
             "--checkpoint.keep_latest_k", "1"]
    prometheus = Prometheus(data, daemon, run)
    with prometheus.running():
        with running(data, *serve, said="srv/prepd.log") as until:
            until(lambda: asked(f"http://127.0.0.1:{daemon}/readyz"), "the daemon is ready")
            with running(train, *learn, said="srv/trainer.log") as until:
                until(lambda: len(prometheus.series("up == 1")) == 2, "Prometheus has scraped both")
                queries = sum(prometheus.check_panels(name, until) for name in ("grafana-prepd.json", "grafana-trainer.json"))
                until(lambda: prometheus.series(ONE_STREAM), "the run and the daemon name one stream")
                rules = [rule for group in prometheus.api("rules")["groups"] for rule in group["rules"]]
                check(len(rules) > 14 and all(r["health"] == "ok" for r in rules), [(r["name"], r["health"]) for r in rules])
                check(not prometheus.series('ALERTS{alertstate="firing"}'), "an alert fires though all is well")
                for port in daemon, run:
                    prometheus.check_metrics(port)
                if pages:
                    for name, port in ("prepd", daemon), ("trainer", run):
                        picture(f"http://127.0.0.1:{port}", os.path.join(pages, name + ".png"))
        wait_for(lambda: {s["metric"]["alertname"] for s in prometheus.series("ALERTS")} >= {"PrepdDown", "TrainerDown"},
                 "alerts about what is gone")
    print(f"prometheus: both programs scraped, {len(rules)} rules and {queries} queries of dashboards answered")


def prepd_is_changed_and_purged(root, debs):
    with open(root.file("etc/tessera/prepd.yaml"), "a") as f:
        f.write("# changed by the operator\n")
    root.run("dpkg", "-i", *("/srv/debs/" + os.path.basename(deb) for deb in debs))  # an upgrade leaves what an operator has changed
    with open(root.file("etc/tessera/prepd.yaml")) as f:
        check("changed by the operator" in f.read(), "the configuration was replaced")
    root.apt("remove", "tessera-prepd")
    check("/etc/tessera/prepd.yaml" in root.files() and "/usr/bin/prepd" not in root.files(), "remove")
    root.apt("purge", "tessera-prepd", "tessera-common", "python3-tessera")
    shutil.rmtree(root.file("run/prepd"))  # systemd's, and in memory
    check(not tessera_files(root), f"left after the purge: {tessera_files(root)}")
    check(not root.run("dpkg", "--audit"), "dpkg finds something half done")


def trainer_alone(root):
    """Without prepd and without anything of NVIDIA it trains on the CPU from a recording, and leaves runs when it is purged."""
    said = root.run("trainer", "train", "--feed.replay", "/srv/rows.rec", "--model.path", "/srv/data/model", "--training.seq_len", "512",
                    "--training.global_batch_size", "2", "--training.local_batch_size", "1", "--training.steps", "3",
                    "--job.dump_folder", "/var/lib/tessera/first", "--metrics.log_freq", "1", "--checkpoint.enable", "true")
    losses = re.findall(r"loss: +([0-9.]+)", said)
    check(len(losses) >= 3, said)
    root.apt("purge", "tessera-trainer", "tessera-common")
    left = tessera_files(root)
    check(left and all(n.startswith("/var/lib/tessera") for n in left), f"left after the purge: {left}")
    check(not root.run("dpkg", "--audit"), "dpkg finds something half done")
    return losses


def walk(base, pages):
    with open("/etc/os-release") as f:
        suite = re.search(r"^VERSION_CODENAME=(\w+)", f.read(), re.M).group(1)
    begun = time.monotonic()
    options = ["--data.format", "vqav2", "--data.path", "/srv/data", "--model.path", "/srv/data/model", "--training.seq_len", "512"]
    with Packages() as p, tempfile.TemporaryDirectory() as folder:
        data, train = (Root.made(os.path.join(folder, name), suite, base) for name in ("data", "train"))
        for root in data, train:
            root.apt("update")
        debs = [p.debs["tessera-common"], p.debs["tessera-prepd"]]
        brought = install(data, debs, "blas|mpi|gcc-|clang|-dev$"), install(train, [debs[0], p.debs["tessera-trainer"]],
                                                                            "vips|avcodec|gcc-|clang|nvidia|-dev$")
        check("prepd" in data.run("id", "prepd"), "no user")
        make_rows(data, options)
        print(f"python3-tessera: installed with {python_reads(data, p.debs['python3-tessera'])} packages, read a recording")
        shutil.copy(data.file("srv/rows.rec"), train.file("srv/rows.rec"))
        shutil.copytree(data.file("srv/data/model"), train.file("srv/data/model"))
        watch(data, train, options, pages)
        prepd_is_changed_and_purged(data, debs)
        print(f"tessera-prepd: installed with {brought[0]} packages, served, was upgraded and purged")
        losses = trainer_alone(train)
        print(f"tessera-trainer: installed with {brought[1]} packages, trained on the CPU (loss {losses[0]} to {losses[-1]}), purged")
    print(f"walked through a bare {suite} in {time.monotonic() - begun:.0f} s")


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--walk", action="store_true")
parser.add_argument("--base")
parser.add_argument("--pages")
wanted = parser.parse_args()
why = lacking() if wanted.walk else "the walk takes minutes and a Debian mirror; --walk asks for it"
if why:
    print(f"skipped: {why}")
    sys.exit(77)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
walk(wanted.base, wanted.pages)
