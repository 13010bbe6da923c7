# SPDX-License-Identifier: Apache-2.0
"""The installed units under systemd itself, which is process 1 of a machine made of namespaces and an overlay of this
machine's files, with its own /tmp, /run and network. Needs root, overlayfs, cgroup 2 and systemd; skipped
without them."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from faults import OTHER_JPEG
from prepd_flow import BIN, LIMIT_S, SANITIZED, Folder, check, children, main, wait_for

SYSTEMD = "/lib/systemd/systemd"
BUILD = os.path.dirname(os.path.dirname(os.path.abspath(BIN)))
LOG = "/run/said"
# Makes the mounts and becomes systemd. If anything fails before that, it exits with 77.
BOOT = r"""
set -e
trap '[ $? = 0 ] || exit 77' EXIT
here=$1
mount --make-rprivate /
mount -t tmpfs none "$here/layers"
mkdir "$here/layers/up" "$here/layers/work"
cp -a "$here/installed" "$here/layers/installed"
mount -t overlay none -o "lowerdir=$here/layers/installed:/,upperdir=$here/layers/up,workdir=$here/layers/work" "$here/root"
cd "$here/root"
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
for d in tmp var/tmp; do mount -t tmpfs none $d; done
for d in run dev; do mount -t tmpfs -o mode=755 none $d; done
for d in null:3 zero:5 full:7 random:8 urandom:9; do mknod -m 666 dev/${d%:*} c 1 ${d#*:}; done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts
mount -t tmpfs none dev/shm
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
mount -t tmpfs none sys/fs/cgroup
mount -t cgroup2 none sys/fs/cgroup
ip link set lo up
mkdir old
pivot_root . old
umount -l old
exec env -i container=unshare PATH=/usr/sbin:/usr/bin:/sbin:/bin """ + SYSTEMD + \
    " --system --unit=tessera.target --show-status=no"


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def cgroup2():
    """The folder of our own cgroup."""
    with open("/proc/mounts") as f:
        mounted = [line.split()[1] for line in f if line.split()[2] == "cgroup2"]
    with open("/proc/self/cgroup") as f:
        own = [line[3:].strip() for line in f if line.startswith("0::")]
    return mounted[0] + own[0] if mounted and own else None


class Machine:
    def __init__(self, config):
        """config: of the daemon, by its keys."""
        self.folder = tempfile.mkdtemp(prefix="machine")
        for name in ("layers", "root"):
            os.mkdir(self.file(name))
        os.chmod(self.folder, 0o755)
        subprocess.run(["cmake", "--install", BUILD, "--prefix", "/opt/tessera"], check=True, capture_output=True,
                       env={**os.environ, "DESTDIR": self.file("installed")})
        for name in ("etc/tessera", "etc/systemd/system", "srv"):
            os.makedirs(self.file("installed/" + name))
        subprocess.run([BIN, "synth", "--out", self.file("installed/srv/data"), "--images", "64", "--seed", "1"],
                       check=True, capture_output=True)
        self.write("etc/systemd/system/tessera.target", "[Unit]\nDescription=what the test asks for\n")
        for unit in ("prepd.service", "prepd-worker@.service", "prep.slice"):
            os.symlink("/opt/tessera/lib/systemd/system/" + unit, self.file("installed/etc/systemd/system/" + unit))
            if unit != "prep.slice":  # there is no journal
                more = f"[Service]\nStandardOutput=append:{LOG}\nStandardError=append:{LOG}\n"
                if unit == "prepd.service":
                    more += "WatchdogSec=15\n"
                self.write(f"etc/systemd/system/{unit}.d/test.conf", more)
        self.write("etc/tessera/prepd.yaml", "model: {path: /srv/data/model}\ndata: {path: /srv/data}\n"
                   "training: {seq_len: 512, global_batch_size: 4}\n" + config)
        shutil.copy(OTHER_JPEG["LD_PRELOAD"], self.file("installed/srv/other_jpeg.so"))
        subprocess.run(["chmod", "-R", "a+rX", self.file("installed")], check=True)
        self.group = os.path.join(cgroup2() or skip("no cgroup 2 is mounted"), f"machine{os.getpid()}")
        try:
            os.mkdir(self.group)
        except OSError as e:
            shutil.rmtree(self.folder)
            skip(f"cgroups cannot be made: {e}")
        enter = 'echo 0 > "$1/cgroup.procs" && shift && exec unshare --pid --mount --net --uts --ipc --cgroup --fork "$@"'
        self.log = open(self.file("console"), "w+")
        self.p = subprocess.Popen(["sh", "-c", enter, "sh", self.group, "bash", "-c", BOOT, "bash", self.folder],
                                  stdout=self.log, stderr=self.log)

    def file(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        os.makedirs(os.path.dirname(self.file("installed/" + name)), exist_ok=True)
        with open(self.file("installed/" + name), "w") as f:
            f.write(text)

    def do(self, *args, code=0):
        first = children(self.p.pid)
        if not first:
            return None
        p = subprocess.run(["nsenter", "-t", str(first[0]), "-a", "env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", *args],
                           capture_output=True, text=True, timeout=LIMIT_S)
        if code is not None and p.returncode != code:
            raise AssertionError(f"{args}: exit code {p.returncode}\n{p.stdout}{p.stderr}{self.said()}")
        return p.stdout if code == 0 else p

    def said(self):
        return self.do("cat", LOG, code=None).stdout

    def show(self, unit, name):
        return self.do("systemctl", "show", unit, "-p", name, "--value").strip()

    def status(self, *args):
        p = self.do("/opt/tessera/bin/prepd", "status", "--json", "--connect", *args, code=None)
        return json.loads(p.stdout) if p.returncode == 0 else None

    def up(self):
        def running():
            if self.p.poll() == 77:
                self.log.seek(0)
                skip("no machine can be made here: " + self.log.read().strip())
            p = self.do("systemctl", "is-system-running", code=None)
            return p is not None and p.stdout.strip() in ("running", "degraded")
        wait_for(running, "systemd runs")

    def __enter__(self):
        try:
            self.up()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for pid in children(self.p.pid):
            os.kill(pid, signal.SIGKILL)  # all processes there end with it, and the mounts go
        self.p.kill()
        self.p.wait()
        self.log.close()
        end = time.monotonic() + 10
        while time.monotonic() < end:  # until the cgroups of processes that have just ended can be removed
            for folder, _, _ in os.walk(self.group, topdown=False):
                try:
                    os.rmdir(folder)
                except OSError:
                    pass
            if not os.path.exists(self.group):
                break
            time.sleep(0.1)
        shutil.rmtree(self.folder)


SOCKET = "ipc:///run/prepd/prepd.sock"
CLIENT = ["/usr/bin/python3", "/opt/tessera/share/tessera/python/tessera"]


def not_again(m, unit, code):
    """Started, it ends with this exit code and is not started again."""
    before = m.show(unit, "NRestarts")
    m.do("systemctl", "start", unit, code=None)
    wait_for(lambda: m.show(unit, "ActiveState") == "failed" and m.show(unit, "ExecMainStatus") == str(code),
             f"{unit} stays ended with {code}: {m.said()}")
    check(m.show(unit, "NRestarts") == before, f"{unit} was started again after {code}")
    m.do("systemctl", "reset-failed", unit)


def the_daemon_as_a_unit():
    with Machine(f"prepd: {{workers: 2, endpoint: \"{SOCKET}\"}}\n") as m:
        m.do("systemctl", "start", "prepd")  # returns once prepd has said READY
        check(m.show("prepd", "ActiveState") == "active", m.said())
        main_pid = m.show("prepd", "MainPID")
        def a_worker():
            return m.do("pgrep", "-f", "prepd worker", code=None).stdout.split()
        wait_for(a_worker, "there is a worker")
        for pid in (main_pid, a_worker()[0]):
            about = dict(x.split(":\t", 1) for x in m.do("cat", f"/proc/{pid}/status").splitlines() if ":\t" in x)
            check(about["CapEff"].strip("0") == "" and about["NoNewPrivs"] == "1" and about["Seccomp"] == "2" and
                  about["Uid"].split()[0] != "0", f"the process has too many rights: {about}")
        rows = m.do(*CLIENT, SOCKET, "--rows", "40")
        check(rows.count("row ") == 40, rows)
        wait_for(lambda: "rows" in m.show("prepd", "StatusText") and not m.show("prepd", "StatusText").startswith(
            "no consumer, 0 rows"), "the status tells of rows")
        m.do("systemctl", "reload", "prepd")
        wait_for(lambda: "reloaded options=0" in m.said(), "it was reloaded")
        for what, sig in (("stopped for longer than its watchdog allows", "STOP"), ("killed", "KILL")):
            before = m.show("prepd", "NRestarts")
            m.do("kill", f"-{sig}", m.show("prepd", "MainPID"))
            wait_for(lambda: m.show("prepd", "NRestarts") > before and m.show("prepd", "ActiveState") == "active",
                     f"a daemon that was {what} is started again")
            check(m.do(*CLIENT, SOCKET, "--rows", "4").count("row ") == 4, "no rows from it")
        m.do("systemctl", "stop", "prepd")
        check(m.show("prepd", "Result") == "success" and m.show("prepd", "ExecMainStatus") == "0", m.said())
        check("drained rows=" in m.said(), m.said())
        check(m.do("pgrep", "-c", "prepd", code=None).stdout.strip() == "0", "workers are left")
        m.do("sh", "-c", "cp /etc/tessera/prepd.yaml /tmp; echo nonsense: 1 >> /etc/tessera/prepd.yaml")
        not_again(m, "prepd", 78)
        # Exit code 65 means too many bad samples, which takes more samples than this test has. A shell plays the daemon.
        m.do("sh", "-c", "mkdir -p /etc/systemd/system/prepd.service.d; cd /etc/systemd/system/prepd.service.d; "
             "printf '[Service]\nType=exec\nExecStart=\nExecStart=/bin/sh -c \"exit 65\"\n' > z.conf; systemctl daemon-reload")
        not_again(m, "prepd", 65)
        m.do("sh", "-c", "rm /etc/systemd/system/prepd.service.d/z.conf; systemctl daemon-reload")
        m.do("cp", "/tmp/prepd.yaml", "/etc/tessera/prepd.yaml")
        # prepd-run starts prepd as a unit of its own name, so no other unit may have that name.
        m.do("sh", "-c", "rm -r /etc/systemd/system/prepd.service*; systemctl daemon-reload")
        m.do("/opt/tessera/bin/prepd-run", "/etc/tessera/prepd.yaml", "--prepd.endpoint", "ipc:///run/by-line.sock",
             "--prepd.cache_dir", "/tmp/cache")
        check(m.do(*CLIENT, "ipc:///run/by-line.sock", "--rows", "4").count("row ") == 4, "no rows by prepd-run")
        m.do("systemctl", "stop", "prepd")


def one_of_another_kind(m, joined):
    """Its libjpeg is not the daemon's. It is refused, and started again until the daemon has the same one; then it
    is accepted, and the others are refused, until all is as before."""
    def has(unit, more):
        where = f"/etc/systemd/system/{unit}.service.d"
        m.do("sh", "-c", f"mkdir -p {where}; printf '[Service]\n{more}\n' > {where}/kind.conf; systemctl daemon-reload")
    for unit in ("prepd-worker@1", "prepd-worker@2", "prepd-worker@3"):
        has(unit, "RestartSec=1s" + ("\nEnvironment=LD_PRELOAD=/srv/other_jpeg.so" if "@3" in unit else ""))
    m.do("systemctl", "start", "prepd-worker@3")
    wait_for(lambda: m.show("prepd-worker@3", "ExecMainStatus") == "69" and int(m.show("prepd-worker@3", "NRestarts")) > 1,
             "a worker unit of another kind is started again")
    check("fingerprint of images" in m.said() and joined() == 5, m.said())
    has("prepd", "Environment=LD_PRELOAD=/srv/other_jpeg.so")
    m.do("systemctl", "restart", "prepd")
    wait_for(lambda: joined() == 3, "it is taken by a daemon of its kind, and the others are not")
    has("prepd", "")
    m.do("systemctl", "restart", "prepd")
    wait_for(lambda: joined() == 5, "the others are taken again")
    m.do("systemctl", "stop", "prepd-worker@3")


def workers_as_units_with_keys():
    """Two of them over tcp, as lasting users."""
    with Machine("prepd: {workers: 1, endpoint: \"tcp://0.0.0.0:5555\", keys: /etc/tessera/keys}\n") as m:
        for user in ("prepd", "prepd-worker"):
            m.do("useradd", "--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin", user)
        m.do("/opt/tessera/bin/prepd", "keygen", "--out", "/etc/tessera/keys")
        m.do("/opt/tessera/bin/prepd", "keygen", "--out", "/etc/tessera/keys", "--client", "site", "--roles", "work")
        m.do("sh", "-c", "chown -R prepd: /etc/tessera/keys; chmod 755 /etc/tessera/keys; "
             "chown -R prepd-worker: /etc/tessera/keys/site; "
             "echo PREPD_CONNECT=tcp://127.0.0.1:5556 > /etc/tessera/worker.env; "
             "echo PREPD_OPTIONS=--data-root /srv/data --keys /etc/tessera/keys/site --workers 2 >> /etc/tessera/worker.env")
        m.do("systemctl", "start", "prepd", "prepd-worker@1", "prepd-worker@2")
        where = ("tcp://127.0.0.1:5555", "--keys", "/etc/tessera/keys")
        def joined():
            said = m.status(*where) or {"workers": [], "supervisors": 0}
            return len(said["workers"]), said["supervisors"]
        wait_for(lambda: joined() == (5, 2), "all workers and their supervisors have joined")
        check(m.do(*CLIENT, where[0], "--keys", where[2], "--rows", "40").count("row ") == 40, "rows")
        one_of_another_kind(m, lambda: joined()[0])
        m.do("systemctl", "stop", "prepd-worker@2")
        check(m.show("prepd-worker@2", "Result") == "success", m.said())
        wait_for(lambda: len(m.status(*where)["workers"]) == 3, "its workers have left")
        restarts = m.show("prepd-worker@1", "NRestarts")
        m.do("/opt/tessera/bin/prepd", "drain", "--connect", *where)  # drained for good, so nothing is started again
        wait_for(lambda: m.show("prepd", "ActiveState") == "inactive" and
                 m.show("prepd-worker@1", "ActiveState") == "inactive", "the daemon and the worker unit have ended")
        check(m.show("prepd-worker@1", "NRestarts") in ("0", restarts) and m.show("prepd", "Result") == "success",
              f"{restarts} restarts before, {m.show('prepd-worker@1', 'NRestarts')} after: {m.said()}")
        m.do("sed", "-i", "s/--workers 2/--workers 0/", "/etc/tessera/worker.env")
        not_again(m, "prepd-worker@1", 64)


if SANITIZED:
    skip("a unit's sandbox leaves a sanitizer no way to look for leaks")
if os.geteuid() != 0 or not os.path.exists(SYSTEMD) or not shutil.which("nsenter") or not shutil.which("ip"):
    skip("needs root, systemd, nsenter and ip")
main(the_daemon_as_a_unit, workers_as_units_with_keys)
