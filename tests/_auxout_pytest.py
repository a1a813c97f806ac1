"""The pytest plugin of ``auxout``: judge a connector with one test per curated case.

    pytest --pyargs auxout_conformance.cases --auxout-target my_module:make

Every pytest run in an environment that has ``auxout`` loads this file, so it imports nothing of ours until a
test asks for it.
"""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options; they do nothing unless a test uses the fixtures below."""
    group = parser.getgroup("auxout", "conformance of auxiliary-output connectors")
    group.addoption(
        "--auxout-target",
        metavar="T",
        help="the connector to judge, for example my_module:make; `auxout targets` lists the forms",
    )
    group.addoption("--auxout-profile", metavar="P", help="judge it under this protocol version")


@pytest.fixture(scope="session")
def auxout_target(request: pytest.FixtureRequest) -> str:
    """The name given with ``--auxout-target``; the test is skipped without one."""
    target = request.config.getoption("--auxout-target")
    if target is None:
        pytest.skip("no connector to judge: give --auxout-target T, for example my_module:make")
    return target


@pytest.fixture(scope="session")
def auxout_profile(request: pytest.FixtureRequest) -> str | None:
    """The name given with ``--auxout-profile``."""
    return request.config.getoption("--auxout-profile")
