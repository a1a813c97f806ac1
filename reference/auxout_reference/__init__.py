"""Scheduler connector and worker core in plain Python: short, slow where that is clearer, and meant to be read.

A drop-in for ``vllm.distributed.aux_output_connector.connector``, and what a worker connector does between
devices and engine. It is the measure for everything faster, so it follows the protocol sentence by sentence;
clause ids such as ``SCHED-HASH-8`` name the sentences.
"""

from .connector import (
    AuxOutputConnectorMetadata,
    AuxOutputSchedulerConnector,
    AuxRequestOutput,
    PackedBlockHashes,
)
from .errors import ProtocolViolation
from .worker import WorkerCore

__all__ = [
    "AuxOutputConnectorMetadata",
    "AuxOutputSchedulerConnector",
    "AuxRequestOutput",
    "PackedBlockHashes",
    "ProtocolViolation",
    "WorkerCore",
]
