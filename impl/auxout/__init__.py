"""Auxiliary outputs of LLM engines: drop-in implementations of vLLM's protocol.

``auxout.connector`` has the shape of ``vllm.distributed.aux_output_connector.connector``.
"""

from .connector import (
    AuxOutputConnectorMetadata,
    AuxOutputSchedulerConnector,
    AuxRequestOutput,
    PackedBlockHashes,
)
from .core import WorkerCore
from .errors import ProtocolViolation, StoreError

__all__ = [
    "AuxOutputConnectorMetadata",
    "AuxOutputSchedulerConnector",
    "AuxRequestOutput",
    "PackedBlockHashes",
    "ProtocolViolation",
    "StoreError",
    "WorkerCore",
]
