"""The pytest plugin of ``auxout``: judge a connector with one test per curated case.

    pytest --pyargs auxout_conformance.cases --auxout-target my_module:make

Every pytest run in an environment that has ``auxout`` loads this file, so it imports nothing of ours until a
target is named.
"""

from __future__ import annotations

import pytest

NO_TARGET = "no connector to judge: give --auxout-target T, for example my_module:make"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options; they do nothing unless a test uses the fixtures below."""
    group = parser.getgroup("auxout", "conformance of auxiliary-output connectors")
    group.addoption(
        "--auxout-target",
        metavar="T",
        help="the connector to judge, for example my_module:make; `auxout targets` lists the forms",
    )
    group.addoption("--auxout-profile", metavar="P", help="judge it under this protocol version")
    group.addoption("--auxout-expect", metavar="F", help="the violations that F lists are expected failures")


def pytest_configure(config: pytest.Config) -> None:
    """A target that cannot be judged is a mistake on the command line, not a failing test for each case."""
    target = config.getoption("--auxout-target")
    if target is None:
        return
    from auxout_conformance import expect
    from auxout_conformance.hosts import TargetBroken, open_host
    from auxout_conformance.mistakes import UserMistake
    from auxout_conformance.targets import resolve
    from auxout_conformance.targets.adapter import TargetError

    file = config.getoption("--auxout-expect")
    try:
        resolved = resolve(target, config.getoption("--auxout-profile"))
        if file is not None:
            expect.check_same_profile(expect.read(file), resolved.profile)
        open_host(resolved).close()
    except (TargetError, TargetBroken) as error:
        raise pytest.UsageError(f"--auxout-target {target}: {error}") from None
    except UserMistake as error:
        raise pytest.UsageError(f"--auxout-expect {file}: {error}") from None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say aloud that nothing was judged; pytest shows reasons for skipping only when asked."""
    skipped = terminalreporter.stats.get("skipped", [])
    if any(NO_TARGET in str(report.longrepr) for report in skipped):
        terminalreporter.write_line(f"auxout: {NO_TARGET}")


@pytest.fixture(scope="session")
def auxout_target(request: pytest.FixtureRequest) -> str:
    """The name given with ``--auxout-target``; the test is skipped without one."""
    target = request.config.getoption("--auxout-target")
    if target is None:
        pytest.skip(NO_TARGET)
    return target


@pytest.fixture(scope="session")
def auxout_profile(request: pytest.FixtureRequest) -> str | None:
    """The name given with ``--auxout-profile``."""
    return request.config.getoption("--auxout-profile")
