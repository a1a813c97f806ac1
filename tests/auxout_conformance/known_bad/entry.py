"""One entry of the catalogue, and the places of the reference connector that its edits name."""

from __future__ import annotations

from typing import NamedTuple

from .edits import Edit

CONNECTOR = "AuxOutputSchedulerConnector"
INIT = f"{CONNECTOR}.__init__"
BUILD = f"{CONNECTOR}._build"
TAKE = f"{CONNECTOR}._take"
FINISH = f"{CONNECTOR}._finish"
RESET = f"{CONNECTOR}.reset"
EMIT_START = f"{CONNECTOR}._emit_start"
METADATA = f"{CONNECTOR}._metadata"
ITERATE = "PackedBlockHashes.__iter__"


class KnownBad(NamedTuple):
    """One faulty connector."""

    name: str
    clauses: tuple[str, ...]
    """Clauses that it breaks, the one it is about first; a judgement may name any of them."""
    story: str
    edits: tuple[Edit, ...]
    profile: str = "0.32"
    """The profile under which it is wrong."""
    file: str = "connector.py"
    """The module of the reference that is edited; any other than the connector's makes it a worker."""

    @property
    def is_worker(self) -> bool:
        """Whether it is a faulty worker, not a faulty scheduler connector."""
        return self.file != "connector.py"
