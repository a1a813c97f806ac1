"""The ``auxout`` command: reads the command line, runs a command, tells mistakes in one sentence each."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from . import interrupts
from .mistakes import UserMistake, shortened
from .options import build_parser
from .targets.wheels import cache_dir
from .verdicts import EXIT_USAGE, Verdict

EXIT_BROKEN_PIPE = 141
"""128 + SIGPIPE: whoever read our output went away, as ``head`` does."""
_NEEDED = (
    "coverage",
    "griffe",
    "hypothesis",
    "numpy",
    "rich",
    "shtab",
    "unidiff",
    "jinja2",
    "markupsafe",
    "jsonschema",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. A traceback that escapes is a fault of ours."""
    if argv is None:
        # Hypothesis would leave its notes in whatever folder the command was typed.
        os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(cache_dir() / "hypothesis"))
        interrupts.install()
    words = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    try:
        code = _run(words)
        sys.stdout.flush()
        return code
    except UserMistake as mistake:
        print(f"auxout: {shortened(str(mistake))}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        print("auxout: interrupted; there is no result.", file=sys.stderr)
        return Verdict.INCOMPLETE.exit_code
    except BrokenPipeError:
        # What is still buffered must not fail again when the interpreter exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE


def _run(words: list[str]) -> int:
    parser = build_parser()
    if not words:
        parser.print_help(sys.stderr)
        return EXIT_USAGE
    try:
        args = parser.parse_args(words)
    except SystemExit as done:  # --help and --version
        return int(done.code or 0)
    try:
        from . import commands
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _NEEDED:
            raise
        raise UserMistake(
            f"the command line needs {missing}, which is not installed: pip install 'auxout[conformance]'"
        ) from None
    return commands.run(args, words)


if __name__ == "__main__":
    sys.exit(main())
