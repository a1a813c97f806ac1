"""The judge: plays a scenario on a target, compares every answer with the spec's, and names the broken clause."""

from .play import Failure, Play, agrees, play, without_order
from .render import describe_call, describe_outcome

__all__ = ["Failure", "Play", "agrees", "describe_call", "describe_outcome", "play", "without_order"]
