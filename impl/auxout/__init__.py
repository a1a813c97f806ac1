"""Auxiliary outputs of LLM engines: drop-in implementations of vLLM's protocol.

``auxout.connector`` has the shape of ``vllm.distributed.aux_output_connector.connector``.
"""

from .connector import (
    AuxOutputConnectorMetadata,
    AuxOutputSchedulerConnector,
    AuxRequestOutput,
    PackedBlockHashes,
)
from .errors import ProtocolViolation

__all__ = [
    "AuxOutputConnectorMetadata",
    "AuxOutputSchedulerConnector",
    "AuxRequestOutput",
    "PackedBlockHashes",
    "ProtocolViolation",
]
