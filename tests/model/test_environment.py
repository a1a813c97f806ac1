"""docs/environment.md: everything that an engine may do happened in an explored trace."""

from __future__ import annotations

import re
from pathlib import Path

from auxout_spec.explorer.manifest import load
from auxout_spec.explorer.witnesses import WITNESSES

PAGE = (Path(__file__).parents[2] / "docs" / "environment.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| +(\d*) *\| [^|]*\| [^|]*\| ([^|`]+) \| `([\w.-]+)` \|$", PAGE, re.MULTILINE)
"""Number, witnesses and model of each line."""


def test_what_the_page_says_happened_in_the_model_it_names() -> None:
    met = {name: set(entry.witnesses) for name, entry in load().items()}
    for _, witnesses, model in ROWS:
        missing = [name for name in witnesses.split("; ") if name not in met[model]]
        assert not missing, model


def test_every_item_is_there() -> None:
    assert [int(number) for number, _, _ in ROWS if number] == list(range(1, 14))


def test_every_witness_of_the_environment_is_named_or_follows_from_the_connector() -> None:
    named = {name for _, witnesses, _ in ROWS for name in witnesses.split("; ")}
    of_the_protocol = {
        "hash-only update", "object evicted at a launch", "object evicted at a landing", "pending block",
        "rows from the store", "replaced hashes sent again", "request failed alone",
        "block retained", "block released", "store grown",
    }  # fmt: skip
    assert {witness.name for witness in WITNESSES} - named == of_the_protocol
