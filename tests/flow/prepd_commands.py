"""prepd's commands as a user types them: what they take over from a daemon's file, what they say, what --help says."""

from prepd_flow import Daemon, Folder, check, digest, free_ports, main, run, wait_for


def a_command_beside_the_daemon():
    """It takes none of the daemon's ports, and has workers where those of the daemon are elsewhere."""
    listen = f"127.0.0.1:{free_ports()}"
    with Folder(**{"prepd.workers": -1, "metrics.listen": listen}) as f:
        quiet = digest(f.config, "--steps", "2")
        with Daemon(f.config) as d:
            wait_for(lambda: "serving" in d.said(), "it serves")
            check(digest(f.config, "--steps", "2") == quiet, "another stream")
            check(run("check", "-c", f.config).strip().endswith(" 0 bad"), "bad samples")
            check("epoch" in run("plan", "-c", f.config), "no plan")
            run("sample", "-c", f.config, "--index", "0", "--out", f.file("sample.safetensors"))
            run("record", "-c", f.config, "--steps", "1", "--out", f.file("rows"))
            check(d.p.poll() is None and d.stop() == 0, d.said())


main(a_command_beside_the_daemon)
