"""The known-bad connectors and workers: mistakes that someone could make, each an edit of the reference.

A suite that passes one of these is broken. Each entry says in one sentence what its author got wrong, and which
clause that breaks; further clauses are named where the same mistake can also first show up as theirs.
"""

from __future__ import annotations

from .end_faults import RESET_FAULTS, RESTART_FAULTS, TERMINAL_FAULTS
from .entry import KnownBad
from .look_faults import LOOK_FAULTS
from .output_faults import REFUSAL_FAULTS, TAKE_FAULTS, WIRE_FAULTS
from .reader_faults import READER_FAULTS
from .size_faults import SIZE_FAULTS
from .step_faults import EMIT_FAULTS, HASH_FAULTS, METADATA_FAULTS
from .store_faults import CAPTURE_FAULTS, STORE_FAULTS
from .watch_faults import WATCH_FAULTS
from .worker_faults import BEGIN_FAULTS, EMIT_FAULTS_OF_WORKERS, STEP_FAULTS, TEAR_FAULTS

KNOWN_BAD: tuple[KnownBad, ...] = (
    *METADATA_FAULTS,
    *EMIT_FAULTS,
    *HASH_FAULTS,
    *TERMINAL_FAULTS,
    *RESTART_FAULTS,
    *RESET_FAULTS,
    *TAKE_FAULTS,
    *REFUSAL_FAULTS,
    *WIRE_FAULTS,
    *BEGIN_FAULTS,
    *STEP_FAULTS,
    *CAPTURE_FAULTS,
    *EMIT_FAULTS_OF_WORKERS,
    *TEAR_FAULTS,
    *STORE_FAULTS,
    *LOOK_FAULTS,
    *WATCH_FAULTS,
    *SIZE_FAULTS,
    *READER_FAULTS,
)
