"""What is on record of the released connectors' public surface is what their files say."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import released, surface

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("default")]


def test_the_record_is_that_of_the_release() -> None:
    version = released.version()
    import vllm

    assert surface.recorded()[version] == surface.read(Path(vllm.__file__).parent)
