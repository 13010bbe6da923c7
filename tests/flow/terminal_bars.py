# SPDX-License-Identifier: Apache-2.0
"""What a person sees while prepd and trainer run: progress bars that fit the terminal, that leave before a line comes
and at the end, and that never lie in another program's lines; and files without a trace of them."""

import os
import re
import shlex
import subprocess

from prepd_flow import BIN, LIMIT_S, Folder, check, main
from resume_flow import STREAM, command, recorded
from terminal import Terminal

ENV = dict(os.environ, TERM="xterm")
LINE = re.compile(r"\d\d:\d\d:\d\d (error|warn |info |debug) (prepd|worker|trainer)\S*: ")


def frames(said):
    """Every bar that was drawn, in order."""
    return re.findall("\r([^\r\n\x1b]+)\x1b\\[K\r", said)


def at_a_terminal(*words, columns=80, env=ENV, **options):
    terminal = Terminal(*words, columns=columns, env=env, **options)
    code = terminal.end()
    check(code == 0, f"{words}: exit code {code}\n{terminal.said}")
    return terminal


def fits(terminal, form):
    """Bars were drawn, in this form, and none is left."""
    drawn = frames(terminal.said)
    check(drawn and all(len(frame) < terminal.columns for frame in drawn), drawn or terminal.said)
    check(any(re.fullmatch(form, frame) for frame in drawn), f"no {form}: {drawn}")
    check(not any(re.search(r"#|--[-\]]", line) for line in terminal.screen()), terminal.screen())


def every_command_fits_its_terminal():
    with Folder(images=64) as f:
        for columns, form in ((120, r"\[#{30}\] picture 64 of 64, 0:00 left"), (40, r"\[#{9}\] picture 64 of 64, 0:00 left"),
                              (20, r"picture 64 of 64, 0")):
            synth = at_a_terminal(BIN, "synth", "--out", f.file("more"), "--images", "64", "--seed", "1", columns=columns)
            fits(synth, form)
            check("".join(synth.screen()).startswith(f.file("more") + ": "), synth.screen())
        for form, words in ((r"\[#*-*\] sample \d+ of \d+, 0 bad, \d+:\d\d left", ["check"]),
                            (r"\[#{30}\] row 16 of 16, 0:00 left", ["record", "--steps", "4", "--out", f.file("r.rec")]),
                            (r"\[#{30}\] row 16 of 16, 0:00 left", ["digest", "--steps", "4"])):
            said = at_a_terminal(BIN, words[0], "-c", f.config, *words[1:], columns=80)
            fits(said, form)
            check(len("".join(said.screen()).splitlines()) == 1, said.screen())


def the_width_is_asked_for_each_time():
    with Folder(images=8) as f:
        terminal = Terminal(BIN, "synth", "--out", f.file("more"), "--images", "3000", "--seed", "1", columns=120, env=ENV)
        terminal.until(r"picture [1-9]")
        terminal.resize(40)
        from_here = len(terminal.said)
        terminal.until(r"picture 3000 of")
        check(terminal.end() == 0, terminal.said)
        wide, narrow = frames(terminal.said[:from_here]), frames(terminal.said[from_here:])[2:]  # those on their way
        check(wide and max(map(len, wide)) > 50 and narrow and max(map(len, narrow)) < 40, (wide, narrow))


def a_file_has_no_trace_of_a_bar():
    """Nor has a terminal that says it is dumb, or a log for machines."""
    with Folder(**STREAM) as f:
        train = [*command(f, "run", **recorded(f, 4)), "--metrics.log_freq", "1"]
        for words in ([BIN, "check", "-c", f.config], train):
            p = subprocess.run(words, capture_output=True, env=ENV, timeout=LIMIT_S)
            check(p.returncode == 0 and not re.search(rb"[\r\x1b]", p.stdout + p.stderr), p.stdout + p.stderr)
        for env, more in ((dict(ENV, TERM="dumb"), []), (ENV, ["--log.json", "true"])):
            said = at_a_terminal(*train, "--job.dump_folder", f.file("plain"), "--checkpoint.enable", "false", *more, env=env).said
            check("step:  4" in said and not re.search("[\r\x1b]", said), said)


def whole_lines(terminal):
    """No line that a person sees has a piece of a bar in it, or another line before or after it."""
    for line in terminal.screen():
        check(not re.search(r"\[[#-]|[#-]\]|\d left|step \d+ of \d", line) and not LINE.search(line, 1)
              and (not line.startswith("step: ") or re.fullmatch(r"step: .*  wait: [\d.]+%", line)),
              f"{line!r} in\n" + "\n".join(terminal.screen()))


def a_bar_leaves_before_lines():
    with Folder(**STREAM) as f:
        train = command(f, "run", **recorded(f, 6))
        terminal = at_a_terminal(*train, "--metrics.log_freq", "2", columns=200)
        fits(terminal, r"\[#+-+\] step \d of 6, \d+:\d\d left")
        whole_lines(terminal)
        check([n for n in (1, 2, 4, 6) if f"step:  {n}" in "\n".join(terminal.screen())] == [1, 2, 4, 6], terminal.screen())


def ctrl_c_leaves_no_bar():
    with Folder(images=64) as f:
        for words, bar in (([BIN, "synth", "--out", f.file("more"), "--images", "100000", "--seed", "1"], r"\] picture [1-9]"),
                           ([BIN, "record", "-c", f.config, "--steps", "4000", "--out", f.file("r.rec")], r"\] row [1-9]")):
            terminal = Terminal(*words, env=ENV)
            terminal.until(bar)
            terminal.ctrl_c()
            check(terminal.end() != 0, terminal.said)
            check(not any(re.search(r"[-#]\]|\d left", line) for line in terminal.screen()), terminal.screen())


def two_programs_leave_a_clean_terminal():
    """The daemon in the background of a person's shell, which has job control, and of a script, which has none: its
    bar stays away and its lines lie over the trainer's bar."""
    with Folder(**STREAM, **{"eval.enable": "true", "eval.limit": 4}) as f:
        train = command(f, "run", training__steps=4, checkpoint__enable="false", metrics__log_freq=2, eval__freq=2, eval__generate=0,
                        eval__show=2)
        for shell in ("set -m", "set +m"):
            # SIGHUP makes the daemon print lines while the trainer's bar is drawn.
            script = f"""{shell}
                {shlex.quote(BIN)} serve -c {shlex.quote(f.config)} &
                daemon=$!
                (until [ -S {f.file("d.sock")} ]; do sleep 0.05; done; while kill -HUP $daemon; do sleep 0.05; done) 2>/dev/null &
                {shlex.join(train)} || echo "it failed: $?"
                {{ kill -TERM $daemon; wait $daemon; }} 2>/dev/null"""
            terminal = at_a_terminal("bash", "-c", script, columns=200)
            fits(terminal, r"\[#+-+\] step \d of 4, \d+:\d\d left")
            check("epoch" not in terminal.said, terminal.said)
            whole_lines(terminal)
            seen = "\n".join(terminal.screen())
            check(len(re.findall(r"prepd: reloaded options=0", seen)) > 1, seen)  # a quiet machine trains in a second


def a_command_in_the_background_shows_no_bar():
    with Folder(images=8) as f:
        synth = shlex.join([BIN, "synth", "--out", f.file("more"), "--images", "200", "--seed", "1"])
        terminal = at_a_terminal("bash", "-c", f"set -m; {synth} & wait", columns=200)
        check(not frames(terminal.said) and " pictures for train" in terminal.said, terminal.said)


main(every_command_fits_its_terminal, ctrl_c_leaves_no_bar, the_width_is_asked_for_each_time, a_file_has_no_trace_of_a_bar,
     a_bar_leaves_before_lines, two_programs_leave_a_clean_terminal, a_command_in_the_background_shows_no_bar)
