# SPDX-License-Identifier: Apache-2.0
"""CURVE keys: required beyond loopback; unknown ones are refused and logged, known ones are served."""

import json
import os
import signal
import subprocess
import sys

from prepd_flow import BIN, Daemon, Folder, check, free_ports, main, run, wait_for

sys.path.insert(0, os.path.join(os.environ.get("TESSERA_SOURCE", "."), "proto", "python"))
from tessera import client  # noqa: E402


THERE = "on the daemon's machine run prepd keygen --out FOLDER --client NAME"


def command(*args):
    p = subprocess.run([BIN, *args], capture_output=True, text=True, timeout=60)
    return p.returncode, p.stdout + p.stderr


def numbers(endpoint, n=8, timeout=20.0, **options):
    rows = client.connect(endpoint, timeout=timeout, **options)
    out = [next(rows)["number"] for _ in range(n)]
    rows.close()
    return out


def beyond_loopback_needs_keys():
    with Folder() as f:
        for end in ("tcp://0.0.0.0:", "tcp://*:"):
            code, said = command("serve", "-c", f.config, "--prepd.endpoint",
                                 end + str(free_ports()))
            check(code == 78 and "keygen --out FOLDER and name" in said, f"{code}: {said}")
        for verb, port in (("status", 5557), ("worker", 5555)):
            code, said = command(verb, "--connect", "tcp://192.0.2.1:5555")
            check(code == 78 and THERE in said and f":{port}\"" in said, f"{code}: {said}")
            check(("the control port of tcp://192.0.2.1:5555: " in said) == (verb == "status"), said)
            code, said = command(verb, "--connect", "tcp://192.0.2.1:5555", "--keys", f.file("none"))
            check(code == 66 and "none/client.key" in said and THERE in said, f"{code}: {said}")


def keys_of_the_wrong_side_are_told():
    """Each folder in the place of the other's, and keys for a machine before the daemon has any."""
    with Folder() as f:
        keys = f.file("keys")
        code, said = command("keygen", "--out", keys, "--client", "node2")
        check(code == 66 and f"first run prepd keygen --out {keys}, without --client" in said, f"{code}: {said}")
        for folder, what in ((keys, "run prepd keygen --out FOLDER as the daemon"), (keys + "/node2", "this is a client's folder")):
            code, said = command("serve", "-c", f.config, "--prepd.keys", folder, "--prepd.endpoint",
                                 f"tcp://0.0.0.0:{free_ports()}")
            check(code == 66 and what in said and "daemon.key" in said, f"{code}: {said}")
            if folder == keys:
                run("keygen", "--out", keys)
                run("keygen", "--out", keys, "--client", "node2")


def keygen_overwrites_nothing_and_hides_secrets():
    with Folder() as f:
        keys = f.file("keys")
        run("keygen", "--out", keys)
        with open(keys + "/daemon.key", "rb") as x:
            before = x.read()
        code, said = command("keygen", "--out", keys)
        check(code == 73 and "daemon.key" in said, f"{code}: {said}")
        with open(keys + "/daemon.key", "rb") as x:
            check(x.read() == before, "keys were overwritten")
        for name in ("daemon.key", "client.key"):
            check(os.stat(f"{keys}/{name}").st_mode & 0o077 == 0, f"others may read {name}")
        check(command("keygen", "--out", keys, "--client", "../x")[0] == 64, "a name with a path")
        for words, remedy in ((["--client", "control"], "not a role's"), (["--client", "x", "--roles", "row"], "rows, work, control"),
                              (["--roles", "work"], "belongs to --client")):
            code, said = command("keygen", "--out", keys, *words)
            check(code == 64 and remedy in said and not os.path.exists(keys + "/x"), f"{code}: {said}")
        check(run("keygen", "--out", keys, "--client", "x", "--roles", "work,rows").endswith("roles: rows,work\n"), "what x may do")
        with open(keys + "/allowed") as x:
            check([line.split()[1:] for line in x] == [["client", "rows,work,control"], ["x", "rows,work"]], "the roles written")
        os.chmod(keys + "/daemon.key", 0o644)
        code, said = command("serve", "-c", f.config, "--prepd.keys", keys, "--prepd.endpoint",
                             f"tcp://127.0.0.1:{free_ports()}")
        check(code == 78 and "chmod" in said, f"a secret that others read is used: {said}")


def known_keys_are_served_and_others_refused():
    with Folder() as f:
        keys, other = f.file("keys"), f.file("other")
        run("keygen", "--out", keys)
        run("keygen", "--out", keys, "--client", "site", "--roles", "rows,work")
        run("keygen", "--out", other)
        with open(keys + "/daemon.pub") as x, open(other + "/daemon.pub", "w") as y:
            y.write(x.read())  # the key of this daemon, with a client key that it does not know
        port = free_ports()
        end = f"tcp://127.0.0.1:{port}"
        run("plan", "-c", f.config)  # with an index no worker of the daemon's own has to stay
        with Daemon(f.config, "--prepd.endpoint", f"tcp://0.0.0.0:{port}", "--prepd.keys",
                    keys) as d:
            with_keys = ("--connect", end, "--keys")
            wait_for(lambda: command("status", *with_keys, keys)[0] == 0, "the daemon answers")
            quiet = numbers(end, keys=keys)
            check(numbers(end, keys=keys + "/site") == quiet, "another machine's key")
            code, said = command("status", *with_keys, other)
            check(code == 78 and "refuses our key" in said and THERE in said, f"unknown key: {code}: {said}")
            check(f"the control port of {end}: tcp://127.0.0.1:{port + 2} refuses" in said, said)
            code, said = command("status", "--connect", end)
            check(code == 78 and "demands CURVE keys" in said and THERE in said, f"no key: {code}: {said}")
            try:
                numbers(end, 1, 3.0, keys=other)
            except TimeoutError as refused:  # pyzmq gives no error, only silence
                check(end in str(refused) and "does it know these keys" in str(refused), repr(refused))
            else:
                raise AssertionError("an unknown key gets rows")
            worker = ("worker", "--connect", f"tcp://127.0.0.1:{port + 1}", "--data-root",
                      f.file("data"), "--keys")
            code, said = command(*worker, other)
            check(code == 78 and "refuses our key" in said, f"worker: {code}: {said}")
            run("scale", "0", *with_keys, keys)
            p = subprocess.Popen([BIN, *worker, keys + "/site"])
            wait_for(lambda: [w["local"] for w in json.loads(
                run("status", *with_keys, keys, "--json"))["workers"]] == [False], "the worker")
            check(numbers(end, keys=keys) == quiet, "the worker with a key does no work")
            p.send_signal(signal.SIGTERM)
            check(p.wait(60) == 0, "the worker does not leave")
            check("key refused" in d.said() and "is not in" in d.said(), d.said())
            check(json.loads(run("status", *with_keys, keys, "--json"))["refused_keys"] > 0,
                  "refused keys are not counted")


def allowed_keys_are_read_again():
    """On SIGHUP a key that was added is let in, one that was removed no longer is; a broken list changes nothing."""
    with Folder() as f:
        keys, late, end = f.file("keys"), f.file("keys/late"), f"tcp://127.0.0.1:{free_ports()}"
        run("keygen", "--out", keys)

        def refused(folder):
            code, said = command("status", "--connect", end, "--keys", folder)
            check(code in (0, 78), said)
            return code == 78 and "refuses our key" in said

        with Daemon(f.config, "--prepd.endpoint", end, "--prepd.keys", keys) as d:
            def hup(word, times):
                d.p.send_signal(signal.SIGHUP)
                wait_for(lambda: d.said().count(word) == times, f"the reload {d.said()}")
            wait_for(lambda: command("status", "--connect", end, "--keys", keys)[0] == 0, "the daemon answers")
            run("keygen", "--out", keys, "--client", "late", "--roles", "rows,control")
            check(refused(late), "a key is let in that was not read")
            hup("reloaded options=0", 1)
            check(not refused(late), "a key that was added is not let in")
            rows = client.connect(end, timeout=60.0, credit_bytes=1 << 20, keys=late)
            next(rows)
            with open(keys + "/allowed") as x:
                lines = x.readlines()
            with open(keys + "/allowed", "a") as x:
                x.write("not a key\n")
            hup("keys not reloaded", 1)
            check(not refused(late) and not refused(keys), "a broken list changed something")
            with open(keys + "/allowed", "w") as x:
                x.writelines(line for line in lines if "late" not in line)
            hup("reloaded options=0", 3)
            check(refused(late), "a key that was removed is let in")
            check(not refused(keys), "another one is gone too")
            check([next(rows)["number"] for _ in range(40)][-1] == 40, "a connection that was there is cut")
            rows.close()


class Asking:
    """What each key may ask of a daemon: whether it did, or else the line that would let it."""

    def __init__(self, folder, keys, port):
        self.folder, self.keys, self.end, self.port = folder, keys, f"tcp://127.0.0.1:{port}", port

    def line(self, code, said):
        check(code == 78 and "this key does not have the role" in said, f"{code}: {said}")
        return said.split("(SIGHUP): ")[1].split("\n")[0]

    def rows(self, name):
        try:
            return numbers(self.end, 1, keys=f"{self.keys}/{name}") == [0]
        except client.Refused as refused:
            check(refused.code == "ST_CONFIG", refused.code)
            return self.line(78, str(refused))

    def control(self, name, *words):
        code, said = command(*(words or ("status",)), "--connect", self.end, "--keys", f"{self.keys}/{name}")
        return code == 0 or self.line(code, said)

    def work(self, name):
        p = subprocess.Popen([BIN, "worker", "--connect", f"tcp://127.0.0.1:{self.port + 1}", "--data-root", self.folder.file("data"),
                              "--keys", f"{self.keys}/{name}"], stderr=subprocess.PIPE, text=True)
        wait_for(lambda: p.poll() is not None or any(not w["local"] for w in json.loads(
            run("status", "--connect", self.end, "--keys", self.keys, "--json"))["workers"]), "it joins or is refused")
        if p.poll() is None:
            p.terminate()
        said = p.communicate(timeout=60)[1]
        return p.returncode == 0 or self.line(p.returncode, said)


def a_key_has_its_roles_alone():
    """A key is refused what its line does not give, with the line to add; once that is there it may. A line from before
    there were roles gives rows alone. The daemon's own key has all."""
    with Folder(images=48) as f:
        keys, port = f.file("keys"), free_ports()
        run("keygen", "--out", keys)
        for name, roles in (("reader", "rows"), ("maker", "work"), ("boss", "control"), ("old", "rows")):
            run("keygen", "--out", keys, "--client", name, "--roles", roles)
        with open(keys + "/allowed") as x:
            lines = x.read()
        with open(keys + "/allowed", "w") as x:
            x.write(lines.replace(" old rows\n", " old\n"))
        of = {line.split()[1]: line.split()[0] for line in lines.splitlines()}
        ask = Asking(f, keys, port)
        with Daemon(f.config, "--prepd.endpoint", ask.end, "--prepd.keys", keys) as d:
            wait_for(lambda: command("status", "--connect", ask.end, "--keys", keys)[0] == 0, "the daemon answers")
            for name, has in (("reader", "rows"), ("maker", "work"), ("boss", "control"), ("old", "rows")):
                for role, asks in (("rows", ask.rows), ("work", ask.work), ("control", ask.control)):
                    both = ",".join(r for r in ("rows", "work", "control") if r in (has, role))
                    got = asks(name)
                    check(got == (True if role == has else f"{of[name]} {name} {both}"), f"{name} asks for {role}: {got}")
            check(ask.control("reader", "drain") and "draining" not in d.said(), "a reader drained the daemon")
            check(ask.control("boss", "scale", "1") is True, "scale")
            with open(keys + "/allowed", "a") as x:
                x.write(ask.work("old") + "\n")
            d.p.send_signal(signal.SIGHUP)
            wait_for(lambda: "reloaded options=0" in d.said(), "the reload")
            check(ask.work("old") is True and ask.rows("old") is True, "the line was added")
            check("does not have the role work" in d.said(), d.said())
            check(ask.control("boss", "drain") is True and d.p.wait(60) == 0, "drained")


def a_list_that_others_may_write_is_refused():
    """At the start by name, with the command that mends it; at a reload the old list stays in force."""
    with Folder(images=48) as f:
        keys, end = f.file("keys"), f"tcp://127.0.0.1:{free_ports()}"
        run("keygen", "--out", keys)
        words = ("serve", "-c", f.config, "--prepd.endpoint", end, "--prepd.keys", keys)
        for path, mode, was in ((keys + "/allowed", 0o660, 0o600), (keys, 0o777, 0o700)):
            os.chmod(path, mode)
            code, said = command(*words)
            check(code == 78 and f"{path}: other users may write to it" in said and "run chmod go-w" in said, f"{code}: {said}")
            os.chmod(path, was)
        with Daemon(f.config, *words[3:]) as d:
            wait_for(lambda: command("status", "--connect", end, "--keys", keys)[0] == 0, "the daemon answers")
            os.chmod(keys + "/allowed", 0o666)
            with open(keys + "/allowed", "w") as x:
                x.write("# no one\n")
            d.p.send_signal(signal.SIGHUP)
            wait_for(lambda: "keys not reloaded" in d.said(), "the reload")
            check("other users may write to it" in d.said(), d.said())
            check(command("status", "--connect", end, "--keys", keys)[0] == 0, "the old list is no longer in force")


def a_trusted_key_may_work():
    """And admit, as any command but status, belongs to keys with control."""
    with Folder(images=48) as f:
        keys = f.file("keys")
        run("keygen", "--out", keys)
        check(run("keygen", "--out", keys, "--client", "head", "--roles", "trusted").endswith("roles: trusted\n"), "what head may do")
        run("keygen", "--out", keys, "--client", "maker", "--roles", "work")
        ask = Asking(f, keys, free_ports())
        with Daemon(f.config, "--prepd.endpoint", ask.end, "--prepd.keys", keys) as d:
            wait_for(lambda: command("status", "--connect", ask.end, "--keys", keys)[0] == 0, "the daemon answers")
            check(ask.work("head") is True, "a trusted key does not work")
            check(ask.rows("head").endswith(" head rows,work,trusted"), ask.rows("head"))
            check(ask.control("maker", "admit", "maker").endswith(" maker work,control"), "it admitted itself")
            code, said = command("admit", "--connect", ask.end)
            check(code == 64 and "admit needs the name of a key" in said, f"{code}: {said}")
            check(d.p.poll() is None, d.said())


def on_loopback_without_keys_no_one_commands():
    """Every user of the machine may connect, so status is answered, and scale and drain are not."""
    with Folder(images=48) as f:
        end = f"tcp://127.0.0.1:{free_ports()}"
        with Daemon(f.config, "--prepd.endpoint", end) as d:
            wait_for(lambda: command("status", "--connect", end)[0] == 0, "the daemon answers")
            for words in (("scale", "0"), ("drain",), ("admit", "node2")):
                code, said = command(*words, "--connect", end)
                check(code == 78 and "only status is answered" in said and "keygen --out FOLDER" in said, f"{code}: {said}")
            check(json.loads(run("status", "--connect", end, "--json"))["workers_target"] == 2 and d.p.poll() is None, d.said())


main(beyond_loopback_needs_keys, keys_of_the_wrong_side_are_told, keygen_overwrites_nothing_and_hides_secrets,
     known_keys_are_served_and_others_refused, allowed_keys_are_read_again, a_key_has_its_roles_alone,
     a_list_that_others_may_write_is_refused, a_trusted_key_may_work,
     on_loopback_without_keys_no_one_commands)
