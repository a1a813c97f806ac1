"""The engine model: what an inference engine may do to the connector, and in which order.

``events`` is the vocabulary of scenarios, ``guards`` says what a real engine never does, ``state`` is what the
engine remembers, ``step`` applies one event, ``options`` lists the events that are possible.
"""

from .events import (
    Abort,
    Add,
    Chunk,
    Close,
    End,
    Event,
    Evict,
    Land,
    Launch,
    Load,
    Loaded,
    Pause,
    Preempt,
    Reset,
    Tamper,
    Unpack,
)
from .guards import GUARDS, Guard, Impossible
from .state import EngineConfig, EngineRequest, EngineState, initial
from .step import step

__all__ = [
    "GUARDS",
    "Abort",
    "Add",
    "Chunk",
    "Close",
    "End",
    "EngineConfig",
    "EngineRequest",
    "EngineState",
    "Event",
    "Evict",
    "Guard",
    "Impossible",
    "Land",
    "Launch",
    "Load",
    "Loaded",
    "Pause",
    "Preempt",
    "Reset",
    "Tamper",
    "Unpack",
    "initial",
    "step",
]
