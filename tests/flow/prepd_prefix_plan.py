# SPDX-License-Identifier: Apache-2.0
"""data.group shared_prefix as `prepd plan` shows it: what is shared in VQAv2, conversations and mixtures, that no
worker and no death changes the index, and that other streams keep theirs."""

import os
import re
import signal

from formats import in_data, load, options, write_lines
from prepd_flow import Daemon, Folder, check, main, run, wait_for, workers_below

SHARED = options(data__group="shared_prefix")
STORY = "The red circle is to the left of the large blue square, and both lie on a gray ground with lines. " * 3


def plan(f, args):
    """The index, and the numbers that plan prints about prefixes: how many, tokens, branches, most, without."""
    said = run("plan", "-c", f.config, *args)
    found = re.search(r"prefixes: (\d+) \(([0-9.]+) tokens each\), with ([0-9.]+) branches each and at most (\d+); "
                      r"documents without a prefix: (\d+)", said)
    check(found, said)
    return said.split("\n")[0], *(float(x) for x in found.groups()), said


def cost(said, group):
    return [float(x) for x in re.search(rf"^  {group} +([0-9.]+) +([0-9.]+) +([0-9.]+)$", said, re.M).groups()]


def every_picture_of_vqav2_is_a_prefix():
    with Folder(images=64) as f:
        before = run("plan", "-c", f.config).split("\n")[0]
        index, prefixes, tokens, branches, most, alone, said = plan(f, SHARED)
        pictures = [q[0] for q in load(f)]
        asked = [pictures.count(p) for p in set(pictures)]
        check(prefixes == sum(n > 1 for n in asked) and alone == sum(n == 1 for n in asked), said)
        check(most == max(asked) and tokens > 5, said)
        none, images, own = (cost(said, g) for g in ("none", "shared_image", "shared_prefix"))
        check(none[0] == images[0] > own[0] and none[1] > images[1] == own[1] and none[2] > images[2] > own[2], said)
        saved = prefixes * tokens * (branches - 1) / len(pictures)
        check(abs(none[0] - own[0] - saved) < 0.05 * saved, f"{saved}: {said}")
        check(index != before and run("plan", "-c", f.config).split("\n")[0] == before, "another stream has another index")


def the_index_depends_on_no_worker():
    """Built by one worker, by three, and by those that come after workers are killed."""
    with Folder(images=400) as f:
        built = [plan(f, SHARED + options(prepd__cache_dir=f.file(f"c{n}"), prepd__workers=n))[:6] for n in (1, 3)]
        with Daemon(f.config, *SHARED, *options(prepd__cache_dir=f.file("killed"), prepd__workers=3)) as d:
            wait_for(lambda: workers_below(d.p.pid), "workers")
            for worker in workers_below(d.p.pid)[:2]:
                os.kill(worker, signal.SIGKILL)
            wait_for(lambda: "index built" in d.said(), "the index")
        built.append(plan(f, SHARED + options(prepd__cache_dir=f.file("killed")))[:6])
        check(built[0] == built[1] == built[2], f"{built}")


def texts_share_with_their_neighbours():
    """Questions on one document: as many as the limit says share it, if it is long enough, and never across sources."""
    with Folder(images=8) as f:
        talks = [{"conversations": [{"from": "human", "value": f"Story {k // 10}. {STORY} Question {k}: where?"},
                                    {"from": "gpt", "value": "left"}]} for k in range(40)]
        path = write_lines(f.file("talks.jsonl"), talks)
        form = SHARED + options(data__format="conversations", data__path=path)
        for more, wanted in (({}, 4), ({"data__prefix_branches": 5}, 8), ({"data__prefix_min_tokens": 511}, 0)):
            index, prefixes, tokens, branches, most, alone, said = plan(f, form + options(**more))
            check(prefixes == wanted and most <= more.get("data__prefix_branches", 16), said)
            check(wanted == 0 or alone == 0, said)
        write_lines(f.file("again.jsonl"), talks[:5] * 2)
        with open(f.file("mix.yaml"), "w") as x:
            for name in ("one", "two"):
                x.write(f"{name}:\n  format: conversations\n  path: again.jsonl\n")
        _, prefixes, _, _, most, _, said = plan(f, SHARED + options(data__format="mixture", data__path=f.file("mix.yaml")))
        check(most <= 10 and prefixes == 2, said)
        with open(f.file("mix.yaml"), "a") as x:
            x.write("  group: shared_prefix\n")
        said = run("plan", "-c", f.config, *options(data__format="mixture", data__path=f.file("mix.yaml")), code=78)
        check("beside data.path" in said, said)


def plain_text_is_refused():
    with Folder(images=8) as f:
        path = write_lines(in_data(f, "text.jsonl"), [{"text": STORY}] * 4)
        said = run("plan", "-c", f.config, *SHARED, *options(data__format="text", data__path=path), code=78)
        check("data.group is for data with pictures" in said, said)


main(every_picture_of_vqav2_is_a_prefix, the_index_depends_on_no_worker, texts_share_with_their_neighbours,
     plain_text_is_refused)
