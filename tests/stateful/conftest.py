"""Long runs are for ``pytest -m slow tests/stateful``: here ``slow`` means minutes, so it must be asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without ``-m`` and without its own name, leave out what is slow in this folder."""
    if config.option.markexpr or any("::" in word for word in config.args):
        return
    slow = [item for item in items if HERE in item.path.parents and item.get_closest_marker("slow")]
    config.hook.pytest_deselected(items=slow)
    items[:] = [item for item in items if item not in slow]
