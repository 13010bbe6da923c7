# SPDX-License-Identifier: Apache-2.0
"""What the flow tests of /metrics share: the text format, and what dashboards and rules ask for."""

import json
import os
import re

from prepd_flow import SOURCE, check

LINE = re.compile(r'([a-z_]+)(\{[a-z]+="(?:[^"\\]|\\.)*"(?:,[a-z]+="(?:[^"\\]|\\.)*")*\})? (-?[0-9.e+-]+|NaN)')


def figures(text):
    """{metric with its labels: value} of an answer, whose form is checked."""
    value, typed = {}, set()
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            name, kind = line.split()[2:]
            check(kind != "counter" or name.endswith("_total"), f"counter {name}")
            check(name not in typed, f"{name} is told twice")
            typed.add(name)
        elif not line.startswith("#"):
            m = LINE.fullmatch(line)
            check(m and m[1] in typed, f"not in the text format: {line}")
            value[m[1] + (m[2] or "")] = float(m[3])
    check(typed == {name.partition("{")[0] for name in value}, f"without a value: {typed}")
    return value


def asked_by_dashboard(name):
    """(what asks, its expression, the labels of its legend) of a dashboard in deploy/."""
    with open(os.path.join(SOURCE, "deploy", name)) as f:
        board = json.load(f)
    yield from (("variables", v["query"], "") for v in board["templating"]["list"] if v["type"] == "query")
    yield from ((p["title"], t["expr"], t.get("legendFormat", "")) for p in board["panels"] for t in p["targets"])


def asked_by_rules(program):
    """The same of the alert rules about a program. They are read line by line, so that no YAML reader is needed."""
    with open(os.path.join(SOURCE, "deploy/prometheus-alerts.yaml")) as f:
        rules = re.findall(r"- alert: (\w+)\n +expr: (?:>-\n((?: {10}.*\n)+)|(.*)\n)", f.read())
    ours = [(name, " ".join((folded or plain).split()), "") for name, folded, plain in rules
            if name.lower().startswith(program)]
    check(len(ours) >= 7, f"rules about {program}: {ours}")
    return [(name, text, legend) for name, text, legend in ours if not text.startswith("up{")]


def check_asked(asked, program, value, other=()):
    """What is asked for must be told by the program ("prepd", "trainer") with the labels that are named; `other` are
    metrics that it tells only at other times."""
    told = {name.partition("{")[0] for name in value}
    labels = {(name.partition("{")[0], label) for name in value for label in re.findall(r'([a-z]+)="', name)}
    for what, text, legend in asked:
        names = re.findall(rf"\b((?:{program}|process)_[a-z_]+)({{[^}}]*}})?", text)
        check(names, f"{what} asks for nothing: {text}")
        by = re.findall(r"{{([a-z]+)}}", legend) + re.findall(r"by \(([a-z]+)", text)
        for name, selector in names:
            wanted = {*by, *re.findall(r"([a-z]+)=", selector)} - {"instance", "job"}  # Prometheus adds these
            check(name in told or name in other, f"{what}: not told: {name}")
            check(all((name, label) in labels for label in wanted), f"{what}: {name} has not all of {wanted}")
