"""The public surface of the released connector, read from its files: names, fields, methods and their parameters."""

from __future__ import annotations

import ast
import json
from pathlib import Path

FILES = {
    "connector": "distributed/aux_output_connector/connector.py",
    "worker": "distributed/aux_output_connector/worker.py",
    "store": "distributed/aux_output_connector/store.py",
    "routed_experts": "distributed/aux_output_connector/routed_experts.py",
    "capturer": "model_executor/layers/fused_moe/routed_experts_capturer.py",
}
RECORDED = Path(__file__).with_name("surface.json")

Surface = dict[str, dict[str, list[str]]]
"""Module -> name, or ``Class.name`` -> parameters; of a field or a class none."""


def recorded() -> dict[str, Surface]:
    """Release -> what was read of it."""
    return json.loads(RECORDED.read_text(encoding="utf-8"))


def read(vllm: Path) -> Surface:
    """What a release has, without what begins with an underscore."""
    return {module: _names((vllm / path).read_text(encoding="utf-8")) for module, path in FILES.items()}


def _names(source: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            found[node.name] = _parameters(node)
            for member in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(member, ast.FunctionDef):
                    name = member.name
                elif isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
                    name = member.target.id
                else:
                    continue
                if not name.startswith("_") or name == "__init__":
                    found[f"{node.name}.{name}"] = _parameters(member)
    return found


def _parameters(node: ast.AST) -> list[str]:
    if not isinstance(node, ast.FunctionDef):
        return []
    arguments = node.args
    return [each.arg for each in (*arguments.args, *arguments.kwonlyargs) if each.arg != "self"]
