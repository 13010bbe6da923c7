# SPDX-License-Identifier: Apache-2.0
"""parquet_columns: which column of an image table is what, and the records that its rows become. No part of it knows
pyarrow: a column is its name and the text of its type, a row a dict of Python values.

Roles: image and choices (one column, or several joined by +, in that order), question, answer, conversation, caption;
question_id and image_id, which only VQAv2's own form needs."""

import ast
import collections
import json
import re

# Names that people give to columns, the most telling first. The first one that is there and has a fitting type is taken.
NAMES = {
    "image": "image images img picture pictures photo jpg png webp pixel_values".split(),
    "conversation": "messages conversations conversation texts dialog dialogue chat turns qa qas".split(),
    "question": "question query prompt instruction problem user input".split(),
    "answer": "multiple_choice_answer answer answers response output solution target assistant label".split(),
    "choices": "choices options".split(),
    "caption": "caption captions description text sentences alt_text title label labels".split(),
    "question_id": ["question_id"],
    "image_id": ["image_id"],
}
PICTURE = r"(large_)?binary|struct<.*\bbytes: (large_)?binary\b.*>|(large_)?string"
TEXT = r"(large_)?string|u?int\d+|bool|float|double|halffloat"
PARTS = r"list<.*struct<.*>>"
FITS = {
    "image": rf"{PICTURE}|(large_)?list<\w+: ({PICTURE})>",
    "conversation": rf"{PARTS}|(large_)?string",
    "question": r"(large_)?string",
    "answer": rf"{TEXT}|(large_)?list<.*>",
    "choices": rf"{TEXT}|(large_)?list<\w+: ({TEXT})>",
    "caption": rf"{TEXT}|(large_)?list<\w+: (large_)?string>",
    "question_id": r"u?int\d+|(large_)?string",
    "image_id": r"u?int\d+|(large_)?string",
}
WORDS = {
    "image": "binary, a struct with bytes, or the path of a file, or a list of one of these",
    "conversation": "a list of structs (role and content, from and value, user and assistant, question and answer), or that as JSON",
    "question": "a string",
    "answer": "a string, a number, or a list of answers",
    "choices": "a list of strings, such a list written as text, or several columns of one choice each",
    "caption": "a string, a list of strings, or a class label",
    "question_id": "an integer",
    "image_id": "an integer",
}
MARK = "<image>"
CHOICES_MOST = 10000  # characters of a list of choices written as text: Python's reader of literals may crash on long nested ones
NUMBERED = r"<image ?(\d+)>"  # MMMU's marks, which name the picture


class Wrong(Exception):
    """What the table or its map of columns cannot be used for, in a sentence."""


class Skipped(Exception):
    """Why one row makes no record."""


def described(columns):
    return "; ".join(f"{name} is {kind}" for name, kind in columns.items())


def fitting(role, kind):
    return re.fullmatch(FITS[role], kind) is not None


def holds_bytes(kind):
    return "binary" in kind


def guess_pictures(columns):
    """Pictures inside the table come before paths, a usual name before any other."""
    inside = [n for n, kind in columns.items() if fitting("image", kind) and holds_bytes(kind)]
    named = [n for n in NAMES["image"] if n in columns and fitting("image", columns[n])]
    for name in [n for n in named if n in inside] + inside + named:
        numbered = re.fullmatch(r"(.*?)_?\d+", name)
        if not numbered or name not in inside:
            return [name]
        stem = numbered.group(1)
        return sorted((n for n in inside if re.fullmatch(re.escape(stem) + r"_?\d+", n)), key=lambda n: int(re.search(r"\d+$", n).group()))
    return []


def guess(columns):
    """{role: [columns]} of what the names and types say."""
    found = {"image": guess_pictures(columns)}
    free = [n for n in columns if n not in found["image"]]
    for role in list(NAMES)[1:]:
        found[role] = [n for n in NAMES[role] if n in free and fitting(role, columns[n])
                       and (role != "choices" or re.search("list|string", columns[n]))][:1]
        if role == "conversation" and found[role] and columns[found[role][0]].endswith("string") and \
                found[role][0] not in ("messages", "conversations", "conversation"):
            found[role] = []
    if found["conversation"]:
        found["question"] = found["answer"] = found["choices"] = found["caption"] = []
    elif found["question"] and found["answer"]:
        found["caption"] = []
        letters = [n for n in "ABCDEFGHIJ" if n in free and fitting("question", columns[n])]
        if not found["choices"] and letters[:2] == ["A", "B"]:
            found["choices"] = letters
    else:
        found["question"] = found["answer"] = found["choices"] = []
    return {role: names for role, names in found.items() if names}


def chosen(words, columns):
    """The roles that --columns gives: "answer=best,caption=" takes one column and leaves a role out."""
    found = {}
    for word in filter(None, words.split(",")):
        role, equals, names = word.partition("=")
        if not equals or role not in NAMES:
            raise Wrong(f"--columns {word}: a role and its column are wanted, such as answer=best; the roles are {', '.join(NAMES)}")
        found[role] = list(filter(None, names.split("+")))
        for name in found[role]:
            if name not in columns:
                raise Wrong(f"there is no column {name}; {described(columns)}")
            if not fitting(role, columns[name]):
                raise Wrong(f"column {name} is {columns[name]}, but {role} must be {WORDS[role]}")
    return found


def column_map(columns, words):
    """The roles that were guessed, changed by those of --columns."""
    given = chosen(words, columns)
    found = guess({n: kind for n, kind in columns.items() if not any(n in names for names in given.values())})
    if given.get("conversation"):
        found = {role: names for role, names in found.items() if role not in ("question", "answer", "choices", "caption")}
    elif given.get("question") or given.get("answer") or given.get("caption"):
        found.pop("conversation", None)
        rest = guess({n: kind for n, kind in columns.items() if n not in found.get("image", []) and not fitting("conversation", kind)})
        found = {**{r: n for r, n in rest.items() if r != "image"}, **found}
    found.update(given)
    found = {role: names for role, names in found.items() if names}
    for role in ("question", "answer"):
        other = "answer" if role == "question" else "question"
        if role in found and other not in found:
            found[other] = next(([n] for n in NAMES[other] if n in columns and fitting(other, columns[n])
                                 and [n] != found[role]), [])
            if not found[other]:
                raise Wrong(f"column {found[role][0]} is the {role}, but no column is its {other}: --columns {other}=NAME; "
                            + described(columns))
    return found


def check_map(found, columns, pictures_wanted):
    if pictures_wanted and not found.get("image"):
        raise Wrong("no column holds pictures. A picture is " + WORDS["image"] + "; " + described(columns)
                    + ". --columns image=NAME names it; --no-pictures makes records of text alone")
    if not any(role in found for role in ("conversation", "question", "caption")):
        raise Wrong("no column has a text to learn: --columns question=NAME,answer=NAME, or conversation=NAME, or caption=NAME; "
                    + described(columns))


# --- values to texts ---

def text_of(value, labels=None):
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and labels:
        return labels[value] if 0 <= value < len(labels) else None
    if value is None:
        return None
    return value if isinstance(value, str) else format(value, "g") if isinstance(value, float) else str(value)


def answer_of(value, labels=None):
    """The answer; of a list of answers that people gave, the most common, and of equally common ones the first."""
    if isinstance(value, list):
        words = [text_of(v.get("answer") if isinstance(v, dict) else v) for v in value]
        counted = collections.Counter(w for w in words if w)
        return counted.most_common(1)[0][0] if counted else None
    return text_of(value, labels)


def choices_of(row, columns):
    """The texts of the choices; none if the row has no choice. A list may be written as text, as JSON or as Python writes it."""
    value = [row[name] for name in columns] if len(columns) > 1 else row[columns[0]]
    if isinstance(value, str) and value.strip() and len(value) <= CHOICES_MOST:
        for read in json.loads, ast.literal_eval:
            try:
                value = read(value)
                break
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                pass
    if value and not isinstance(value, (list, tuple)):
        raise Skipped("the choices are no list; --columns choices= leaves them out")
    texts = [text_of(c) or "" for c in value or []]
    while texts and not texts[-1]:
        texts.pop()
    return texts


def choice(question, answer, texts):
    """A question with its choices, and the line of the answer, which may be the text, the letter or the number of a choice. A
    choice that is a picture is answered by its letter."""
    lines = [f"{chr(ord('A') + i)}. {text}" for i, text in enumerate(texts)]
    if answer in texts:
        at = texts.index(answer)
    elif isinstance(answer, str) and re.fullmatch("[A-Z]", answer):
        at = ord(answer) - ord("A")
    elif isinstance(answer, int) or (isinstance(answer, str) and re.fullmatch("[0-9]+", answer)):
        at = int(answer)
    else:
        at = None
    if at is None or not 0 <= at < len(lines):
        raise Skipped("the answer is none of the choices")
    return "\n".join([question, *lines]), lines[at][:1] if MARK in texts[at] or re.search(NUMBERED, texts[at]) else lines[at]


ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system", "bot": "assistant",
         "model": "assistant"}


def turns_of(value):
    """A conversation as messages, whatever its members are called."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise Skipped("the conversation is not JSON") from None
    messages = []
    for turn in value or []:
        if not isinstance(turn, dict):
            raise Skipped("a turn is no record")
        pair = next(((a, b) for a, b in (("user", "assistant"), ("question", "answer")) if a in turn and b in turn), None)
        if pair:
            messages += [{"role": role, "content": text_of(turn[key])} for role, key in zip(("user", "assistant"), pair)]
            continue
        role = ROLES.get(turn.get("role") or turn.get("from"))
        content = turn.get("content", turn.get("value"))
        if isinstance(content, list) and not all(isinstance(part, dict) for part in content):
            raise Skipped("a part of a turn is no record")
        if isinstance(content, list):  # parts, in which a picture is a mark
            content = "".join(MARK if part.get("type") == "image" else part.get("text") or "" for part in content)
        if role is None:
            raise Skipped(f"a turn is of {turn.get('role') or turn.get('from')!r}, which is neither user nor assistant")
        if content is not None and not isinstance(content, str):
            raise Skipped("a turn has no text")
        messages.append({"role": role, "content": content})
    if not any(m["role"] == "assistant" and m["content"] for m in messages):
        raise Skipped("nothing is answered in the conversation")
    if any(m["content"] is None for m in messages):
        raise Skipped("a turn is empty")
    return messages


def numbered(messages, pictures):
    """Marks <image N> become plain ones. Returns the pictures in the order of these marks, after those that none names."""
    named = [int(n) for m in messages if m["role"] == "user" for n in re.findall(NUMBERED, m["content"])]
    for n in named:
        if not 1 <= n <= len(pictures) or pictures[n - 1] is None:
            raise Skipped("a mark <image N> names a picture that the row does not have")
    if not named:
        return [p for p in pictures if p is not None]
    if any(MARK in m["content"] for m in messages if m["role"] == "user"):
        raise Skipped("marks <image> and <image N> beside each other")
    first = [p for n, p in enumerate(pictures, 1) if p is not None and n not in named]
    for m in messages:
        if m["role"] == "user":
            m["content"] = re.sub(NUMBERED, MARK, m["content"])
    if first:
        user = next(m for m in messages if m["role"] == "user")
        user["content"] = MARK * len(first) + user["content"]
    return first + [pictures[n - 1] for n in named]


def marked(messages, n_pictures):
    """With as many marks as pictures: if there is none, they come before the first words of the user."""
    marks = sum(m["content"].count(MARK) for m in messages if m["role"] == "user")
    if marks == 0 and n_pictures:
        first = next((m for m in messages if m["role"] == "user"), None)
        if first is None:
            raise Skipped("there are pictures, but the user says nothing")
        first["content"] = MARK * n_pictures + first["content"]
    elif marks != n_pictures:
        raise Skipped(f"{marks} marks <image> for {n_pictures} pictures")
    return messages


def asked_in(row, found, labels):
    """The question and the answer of a row, with its choices."""
    column = found["answer"][0]
    question, answer = row[found["question"][0]], row[column]
    if not question:
        raise Skipped("no question")
    choices = choices_of(row, found["choices"]) if "choices" in found else []
    if choices:
        question, answer = choice(question, answer, choices)
    answer = answer_of(answer, labels.get(column))
    if not answer:
        raise Skipped("no answer")
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def names_of(pictures):
    return {"image": pictures[0]} if len(pictures) == 1 else {"images": pictures} if pictures else {}


def records_of(row, found, pictures, prompt, labels):
    """The records of data.format conversations that a row becomes. pictures: the names of its files, None where the row has none."""
    if "conversation" in found or "question" in found:
        messages = turns_of(row[found["conversation"][0]]) if "conversation" in found else asked_in(row, found, labels)
        pictures = numbered(messages, pictures)
        return [{**names_of(pictures), "messages": marked(messages, len(pictures))}]
    column = found["caption"][0]
    captions = row[column] if isinstance(row[column], list) else [row[column]]
    texts = [t for t in (text_of(c, labels.get(column)) for c in captions) if t]
    if not texts:
        raise Skipped("no caption")
    return [{**names_of([p for p in pictures if p is not None]), "question": prompt, "answer": text} for text in texts]
