"""Auxiliary outputs of LLM engines: drop-in implementations of vLLM's protocol.

``auxout.connector`` has the shape of ``vllm.distributed.aux_output_connector.connector``, ``auxout.worker`` that of
its ``worker``; ``auxout.core`` is the worker without torch, for other runners.
"""

from .connector import (
    AuxOutputConnectorMetadata,
    AuxOutputSchedulerConnector,
    AuxRequestOutput,
    PackedBlockHashes,
)
from .core import WorkerCore
from .errors import ProtocolViolation, StoreError
from .worker import AuxOutputWorkerConnector

__all__ = [
    "AuxOutputConnectorMetadata",
    "AuxOutputSchedulerConnector",
    "AuxOutputWorkerConnector",
    "AuxRequestOutput",
    "PackedBlockHashes",
    "ProtocolViolation",
    "StoreError",
    "WorkerCore",
]
