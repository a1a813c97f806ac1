"""What vLLM's worker gets in addition: new weights while it lives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from .training import EMBEDDINGS


class Updating:
    """Mixed into the worker by vLLM (``worker_extension_cls``).

    Not ``reload_weights``: in the CPU build of 0.32.0 the model chooses other experts after it has reloaded the very
    checkpoint that it was started with. Embeddings are not repacked for the CPU and are written in place.
    """

    model_runner: Any

    def take_embeddings(self, checkpoint: str) -> None:
        """Those of a checkpoint, whose other weights are the same."""
        from safetensors.torch import load_file

        loaded = load_file(Path(checkpoint) / "model.safetensors")[EMBEDDINGS]
        parameter = self.model_runner.get_model().get_parameter(EMBEDDINGS)
        with torch.no_grad():
            parameter[: len(loaded)].copy_(loaded)
