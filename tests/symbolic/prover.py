"""Runs CrossHair on contracts in docstrings and says, line by line, what it proved.

``contracts`` reads which conditions a source file states, without CrossHair; ``check`` asks CrossHair for each
of them; ``rerun`` replays a counterexample concretely; ``differences`` compares two functions on one domain.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

CONFIRMED = "Confirmed over all paths."
EXHAUSTED = "All paths exhausted"
_SECONDS_PER_CONDITION = 20
_MESSAGE = re.compile(r"^(?P<file>.*):(?P<line>\d+): (?P<level>info|warning|error): (?P<text>.*)$")
_CALL = re.compile(r"when calling (?P<call>.*)$")


class Contract(NamedTuple):
    """One function and what its docstring promises; a condition is ``(line, expression)``."""

    function: str
    parameters: tuple[tuple[str, str], ...]
    """Name and annotation, in order."""
    returns: str
    pre: tuple[tuple[int, str], ...]
    post: tuple[tuple[int, str], ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.parameters)


def contracts(source: str) -> dict[str, Contract]:
    """Every top-level function of a module with its contract, by name; also those that state none."""
    functions = (node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef))
    return {node.name: _contract(node) for node in functions}


def _contract(node: ast.FunctionDef) -> Contract:
    conditions: dict[str, list[tuple[int, str]]] = {"pre": [], "post": []}
    docstring = node.body[0]
    if isinstance(docstring, ast.Expr) and isinstance(docstring.value, ast.Constant):
        for line, text in enumerate(str(docstring.value.value).splitlines(), docstring.lineno):
            kind, colon, expression = text.strip().partition(":")
            if colon and kind in conditions:
                conditions[kind].append((line, expression.strip()))
    parameters = ((arg.arg, ast.unparse(arg.annotation or ast.Constant(None))) for arg in node.args.args)
    returns = ast.unparse(node.returns or ast.Constant(None))
    return Contract(
        node.name, tuple(parameters), returns, tuple(conditions["pre"]), tuple(conditions["post"])
    )


def check(file: Path, line: int = 0) -> dict[int, str]:
    """CrossHair's word on each condition of a file, by line; a line it does not mention is absent.

    With ``line``, only the function that holds that line is checked. An exception is reported at the line
    that raises it instead of the condition's.
    """
    options = ("--report_all", f"--per_condition_timeout={_SECONDS_PER_CONDITION}")
    output = _crosshair("check", *options, f"{file}:{line}" if line else str(file))
    messages = [_MESSAGE.match(text) for text in output.splitlines()]
    assert all(messages), f"CrossHair said something unexpected:\n{output}"
    return {int(message["line"]): message["text"] for message in messages if message}


def unproved(file: Path) -> list[str]:
    """Functions of a file without a contract and conditions without a proof; empty if there are none."""
    stated = contracts(file.read_text())
    verdicts = check(file)
    problems = [f"{name} has no postcondition" for name, contract in stated.items() if not contract.post]
    for name, contract in stated.items():
        for line, expression in contract.post:
            verdict = verdicts.pop(line, "CrossHair says nothing")
            if verdict != CONFIRMED:
                problems.append(f"{name}: {expression}: {verdict}")
    problems += [f"line {line}: {text}" for line, text in verdicts.items() if text != CONFIRMED]
    return problems


def rerun(contract: Contract, line: int, verdict: str, function: Callable[..., Any]) -> str:
    """Run CrossHair's counterexample without CrossHair and say what broke, for example ``f(1, 0) returns 2``.

    Raises:
        AssertionError: the counterexample is none: outside the domain, or the contract holds there.
    """
    arguments = _arguments(contract, verdict)
    for _, expression in contract.pre:
        assert _holds(expression, arguments), f"outside the domain ({expression}): {arguments}"
    call = f"{contract.function}({', '.join(map(repr, arguments.values()))})"
    broken = dict(contract.post).get(line)
    if broken is None:  # CrossHair reports an exception at the line that raised it
        return f"{call} raises {_raised(function, arguments)}"
    result = function(**arguments)
    assert not _holds(broken, {**arguments, "__return__": result}), f"{call} returns {result}: {broken} holds"
    return f"{call} returns {result!r}"


def _raised(function: Callable[..., Any], arguments: dict[str, Any]) -> str:
    try:
        result = function(**arguments)
    except Exception as error:  # Whatever CrossHair says it raises.
        return type(error).__name__
    raise AssertionError(f"no exception for {arguments}, but {result!r}")


def _arguments(contract: Contract, verdict: str) -> dict[str, Any]:
    """The argument values in a CrossHair message, literal values only."""
    found = _CALL.search(verdict)
    assert found is not None, f"no counterexample in {verdict!r}"
    text = found["call"].removesuffix(")").rsplit(" (which returns", 1)[0]
    call = ast.parse(text if text.endswith(")") else text + ")", mode="eval").body
    assert isinstance(call, ast.Call), f"no call in {verdict!r}"
    values = dict(zip(contract.names, (ast.literal_eval(value) for value in call.args), strict=False))
    values |= {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    return values


def _holds(expression: str, names: dict[str, Any]) -> bool:
    return bool(eval(expression, {}, names))  # the expression is a contract of ours


def under_contract(contract: Contract, module: str) -> str:
    """Source of a function that promises ``contract`` and calls ``module``'s function of that name."""
    conditions = [f"    pre: {expression}" for _, expression in contract.pre]
    conditions += [f"    post: {expression}" for _, expression in contract.post]
    body = '    """\n' + "\n".join(conditions) + '\n    """'
    return (
        f"{_head(contract)}\n{body}\n    return {module}.{contract.function}({', '.join(contract.names)})\n"
    )


def on_domain(contract: Contract, module: str) -> str:
    """Source of a function that is ``module``'s on the contract's domain and raises ValueError outside it.

    ``diffbehavior`` ignores preconditions, so both sides of a comparison have to do the same outside.
    """
    domain = " and ".join(f"({expression})" for _, expression in contract.pre) or "True"
    guard = f"    if not ({domain}):\n        raise ValueError('outside the domain')"
    return (
        f"{_head(contract)}\n{guard}\n    return {module}.{contract.function}({', '.join(contract.names)})\n"
    )


def _head(contract: Contract) -> str:
    parameters = ", ".join(f"{name}: {annotation}" for name, annotation in contract.parameters)
    return f"def {contract.function}({parameters}) -> {contract.returns}:"


def differences(first: str, second: str, search_path: Path, seconds: int = _SECONDS_PER_CONDITION) -> str:
    """What CrossHair says of two functions, named ``module.function``; empty if it proved them equal.

    It uses the whole time after it has found a difference, so give little where one is expected.
    """
    timeout = f"--per_condition_timeout={seconds}"
    output = _crosshair("diffbehavior", timeout, first, second, search_path=search_path)
    return "" if EXHAUSTED in output and "No differences found" in output else output


def _crosshair(*arguments: str, search_path: Path | None = None) -> str:
    path = [str(search_path)] if search_path else []
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*path, *sys.path])}
    command = [sys.executable, "-m", "crosshair", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)
    sound = done.returncode in (0, 1) and "Traceback" not in done.stderr  # a crash also exits with 1
    assert sound, f"CrossHair failed:\n{done.stdout}{done.stderr}"
    return done.stdout
