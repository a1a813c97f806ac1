"""What the random judge draws from, and how often each kind of event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

STORES = st.sampled_from((64, 64, 8, 4))
"""Objects that the store may hold; few enough now and then that some must go, or do not fit."""
KV_CACHES: SearchStrategy[Mapping[str, Any]] = st.fixed_dictionaries(
    {"kv_blocks": st.sampled_from((64, 64, 4, 1))},
    optional={"kv_connector": st.just(True)},
) | st.fixed_dictionaries({"kv_blocks": st.sampled_from((64, 4)), "lookahead": st.sampled_from((1, 1, 2))})
"""KV caches that a scheduler connector may be built with; rows of so few blocks are kept that some must go."""
PROMPT_STARTS = st.sampled_from((0, 0, 1, 3, 6, 12))
SESSION = CHUNKED = EXTERNAL = st.sampled_from((False, False, True))
CUTS = st.sampled_from((0, 0, 0, 0, 1, 2))
STOPS = st.sampled_from((False, False, False, True))

WEIGHTS = {
    "add": 5,
    "launch": 9,
    "launch_nothing": 2,
    "land": 9,
    "abort": 2,
    "preempt": 3,
    "evict": 1,
    "load": 1,
    "loaded": 4,
    "reset": 2,
    "pause_and_reset": 1,
    "chunk": 3,
    "end": 1,
    "tamper_output": 2,
    "tamper_hashes": 2,
    "tamper_metadata": 2,
    "tamper_batch": 1,
    "tamper_report": 1,
    "close": 1,
    "unpack": 1,
}
"""How often each kind of event is drawn, against the others that are possible."""
