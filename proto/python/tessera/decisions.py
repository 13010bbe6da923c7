"""Lists of the samples that were found bad."""
import json
from typing import Dict, Iterable, Iterator, List, Optional, Union

from .stream_errors import check


def decisions_of(said: Union[str, dict, List[dict], None], row: Optional[int] = None) -> Iterator[dict]:
    """The quarantine decisions in a list, its JSON text, or a cursor (an object or its text). row: of those that do not
    name theirs."""
    said = json.loads(said) if isinstance(said, str) else said
    said = said.get("quarantine") if isinstance(said, dict) else said
    for entry in said or []:
        check(isinstance(entry.get("id"), int) and isinstance(entry.get("cause"), str), "a quarantine list has an entry", entry)
        yield {k: v for k, v in (("id", entry["id"]), ("cause", entry["cause"]), ("row", entry.get("row", row))) if v is not None}


def merge_quarantine(states: Iterable[dict]) -> List[dict]:
    """The bad samples that any rank has heard of, each once, by rising id: [{"id":N,"cause":"...","row":R}..]. What is
    given back does not depend on the order of the ranks.

    states: what each rank has: a row of connect, or its "cursor" and "decisions" in a dictionary. The cause that was
    found in the lowest row stands. A decision without a row, which a cursor gives, comes after all others."""
    found: Dict[int, dict] = {}
    for state in states:
        for said in (state.get("decisions"), state.get("cursor")):
            for entry in decisions_of(said or []):
                found[entry["id"]] = min(found.get(entry["id"], entry), entry,
                                         key=lambda e: (e.get("row", float("inf")), e["cause"].encode()))
    return [found[key] for key in sorted(found)]
