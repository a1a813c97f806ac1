"""The command line's words: commands, options and the examples that ``--help`` shows."""

from __future__ import annotations

import argparse
from typing import NoReturn

from auxout_spec.profiles import PROFILES

from .mistakes import UserMistake
from .version import tool_version

EXIT_CODES = """\
exit codes
  0  every target conforms, apart from known and expected findings
  1  a violation
  2  the command line, or a file it names, is not usable; nothing was judged
  3  a target is broken: it cannot be loaded, crashed or hung
  4  a judgement did not finish
  With several targets the first of 1, 3, 4, 0 that occurs: a violation always shows."""

TARGET_FORMS = """\
targets
  reference, impl      our own two implementations
  my_module:make       a function in an importable module that returns a connector
  vllm, vllm==0.32.0   the installed or a released vLLM (the wheel is fetched once)
  `auxout targets` lists what can be judged here, and all forms."""

_MAIN = f"""\
examples
  auxout smoke my_module:make              does my adapter answer at all? (seconds)
  auxout conform my_module:make            judge it, clause by clause
  auxout conform vllm==0.32.0 impl         a released vLLM and our implementation
  auxout verify fix.diff --base vllm==0.32.0  what does this change break or fix?
  auxout drift vllm==0.32.0 vllm==0.33.0   what of the protocol did a release change?
  auxout replay found.json my_module:make  play one scenario again
  auxout clauses SCHED-TERM-2              what does this clause say?
  auxout init .                            start adapters of your own

{EXIT_CODES}"""

_SMOKE = f"""\
Loads the target, makes every kind of call and checks the clauses with a few cases each. Use it while you
write an adapter; `auxout conform` is the judgement.

examples
  auxout smoke my_module:make
  auxout smoke ./vllm --profile 0.32

{TARGET_FORMS}"""

_CONFORM = f"""\
examples
  auxout conform reference impl vllm==0.31.0
  auxout conform my_module:make -x                       stop at the first violation
  auxout conform my_module:make --suite deep --seed 7    many random scenarios, these ones
  auxout conform vllm==0.32.0 --profile 0.31             judge it by another version's protocol
  auxout conform vllm==0.32.0 --patch fix.diff           a released vLLM with a change
  auxout conform impl --report report.jsonl              every result as JSON lines
  auxout conform my_module:make --write-expect known.json   note what is violated now, fill in the reasons
  auxout conform my_module:make --expect known.json      from now on fail on anything else

{TARGET_FORMS}

{EXIT_CODES}"""

_VERIFY = """\
PATCH is a file with a unified diff, or the changed code itself: a checkout, a wheel, vllm==X, DIR@REV. The base is
what it changes: vllm==X, vllm (the installed one), a wheel, a checkout. Both are judged alike; then every clause is
kept, broken, fixed or still violated, and changes of behaviour that the protocol leaves open are listed.

examples
  auxout verify fix.diff --base vllm==0.32.0
  auxout verify fix.diff --base path/to/vllm --report verified.jsonl
  auxout verify --base path/to/vllm --base-rev origin/main --rev HEAD
  auxout verify --base . --base-rev HEAD                   what is not committed yet
  auxout verify vllm==0.32.0 --base vllm==0.31.0           what changed between two releases?

exit codes
  0  nothing is broken
  1  a clause is broken, or a public signature changed
  2  the command line is not usable, or the patch is no diff or does not apply
  3  the patched code does not import, hangs or kills its process, or the base is broken
  4  the judgement did not finish, or something that changed was not judged: lines that no play executed are named"""

_DRIFT = """\
OLD and NEW are a released, installed or checked-out vLLM: vllm==X, vllm, a wheel, a source tree, DIR@REV, or the
connector's folder alone. Of both the protocol's part is found (the connector's package, and what of the engine calls
it, feeds it or is given its answers) and compared: files, signatures, fields, calls in order, refusals, conditions. A
line that begins with - is only in OLD, one that begins with + only in NEW. Then the suite of OLD's protocol version is
played on both, and each clause that NEW answers otherwise is shown with an example. Where `make real` was made, 20
engine events are played on both schedulers, and the order of connector calls is compared.

examples
  auxout drift vllm==0.32.0 vllm==0.33.0                what does a profile of 0.33 need?
  auxout drift vllm==0.32.0 path/to/vllm --json drift.json
  auxout drift vllm==0.32.0 path/to/vllm --source       seconds: nothing is run

exit codes
  0  no drift
  1  drift
  2  the command line is not usable, or one of the two is no vLLM with the connector
  3  the newer code does not import, hangs or kills its process; how its source differs is shown all the same
  4  no drift was found, and not everything was compared, such as the engine around a connector's folder"""

_COMPLETION = """\
examples
  auxout completion bash > ~/.local/share/bash-completion/completions/auxout
  auxout completion zsh > ~/.zfunc/_auxout"""

_REPLAY = f"""\
SCENARIO is a file, - for standard input, the JSON itself, which is what failure messages print, or the name
of a curated case or a known finding, which `auxout clauses ID` shows.
The profile is that of --profile, else of the scenario, else of the target.

examples
  auxout replay found.json my_module:make
  auxout replay found.json my_module:make reference      where do they differ?
  auxout replay - impl < found.json
  auxout replay F31-1 vllm==0.31.0
  auxout replay F31-1 reference --svg restart.svg        the timeline as a picture
  auxout replay '{{"auxout": "scenario/1", "events": [{{"add": "A", "prompt": 4}}, {{"launch": {{"A": 4}}}}]}}' impl

{EXIT_CODES}"""

_EXPLORE = """\
Tries everything that a model of the whole system allows: engine, scheduler connector, worker and store of the
specification. Without a model it lists them. Verdicts, counts and witnesses are compared with those on record.

examples
  auxout explore                        the models, what each is for and must come to
  auxout explore --all                  every model of the everyday set, in parallel
  auxout explore found-abort-and-reset  one model, with its shortest counterexample as a scenario
  auxout explore --nightly --jobs 2     the larger bounds

exit codes
  0  every model came to what is on record
  1  one did not
  4  one was cut short"""

_COVER = f"""\
Leads a target through every transition of models of the whole system: what `auxout explore` tries on the
specification, tried on code. Each transition is taken once, by a scenario from the start; the first wrong answer of a
model is shown, and its scenario made small. Models are cut at the states that are nearest to the start, a thousand by
default. Without a model it is all of the everyday set of the target's protocol version in which nothing breaks.

examples
  auxout cover my_connector:make                      every model, to a thousand states each
  auxout cover impl default --max-states 100000       one model, whole
  auxout cover vllm==0.32.0 conversation bounded      a release, its known findings accepted

{EXIT_CODES}"""

_TRACE = """\
A trace holds the calls of a scheduler connector in a running engine and what they returned, as JSON lines;
auxout_conformance.recording.Recorder writes one. The first answer that the protocol does not allow is shown.

example
  auxout trace check run.ndjson --profile 0.32

exit codes
  0  a connector that keeps the protocol can have made every answer
  1  one it cannot have made
  2  the file is not a trace, or the command was wrong"""

_REPORT = """\
FILE is what `--report FILE` of `auxout conform`, `verify` or `client-check` wrote. Without --format it is shown as on
the terminal then. markdown is for a pull-request comment or a CI step summary, junit for CI systems, html is one page
that loads nothing else.

examples
  auxout report result.jsonl
  auxout report result.jsonl --format html -o result.html
  auxout report result.jsonl --format junit -o result.xml
  auxout report result.jsonl --format markdown >> "$GITHUB_STEP_SUMMARY"

exit codes
  0  the report was written; what it says changes nothing
  2  the file is not a report, or the command was wrong"""

_CLAUSES = """\
examples
  auxout clauses                   all of them
  auxout clauses --profile 0.31    those of one protocol version
  auxout clauses SCHED-TERM        one group
  auxout clauses SCHED-TERM-2      one clause: what it says, where it comes from, its cases
  auxout clauses ENV               what the engine model holds an engine to (level engine)"""

_CLIENT_CHECK = """\
FUNCTION turns a conversation (calls with tokens and rows) into the array that a trainer gets: a dictionary in, one with
rows, mask and dtype out. It raises to refuse, and NotImplementedError where it does not offer what is asked. The cases
and their schema are JSON files, in auxout_conformance/client.

examples
  auxout client-check my_trainer.rows:merge
  auxout client-check my_trainer.rows:merge --case gap-of-one-row
  auxout client-check auxout.client.conversation:play --table
  auxout client-check mine:merge theirs:merge --report clients.jsonl     for `auxout report`: a page, a comment, JUnit

exit codes, the most serious of several functions (1, then 3, 4, 0)
  0  every case that the function offers is right
  1  one is not
  2  the command line is not usable
  3  the function does not load, crashed or hung
  4  it offers none of the cases"""

_TARGETS = """\
example
  auxout targets"""

_INIT = """\
Writes my_connector.py and my_worker.py (stubs with every method to fill in, of a scheduler connector and of a
worker), test_conformance.py (a pytest test) and .github/workflows/conformance.yml (runs all on every push).
Nothing is overwritten.

examples
  auxout init .
  auxout init my-port && cd my-port && auxout smoke my_connector:make"""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are a user's mistakes like any other."""

    def error(self, message: str) -> NoReturn:
        raise UserMistake(f"{message}; see `{self.prog} --help`")


def build_parser() -> Parser:
    """The parser of the whole command line; ``command`` names the command."""
    parser = Parser(
        prog="auxout",
        description="Judges implementations of vLLM's auxiliary-output protocol against its specification.",
        epilog=_MAIN,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"auxout {tool_version()}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)
    _add_smoke(commands)
    _add_conform(commands)
    _add_verify(commands)
    _add_drift(commands)
    _add_replay(commands)
    _add_explore(commands)
    _add_cover(commands)
    trace = _add(commands, "trace", "check recorded connector calls", _TRACE)
    trace.add_argument("action", choices=("check",), help="what to do with the trace")
    trace.add_argument("file", metavar="FILE", help="the trace")
    _add_profile(
        trace, "the protocol version to check by (default: the one the trace names, else the latest)"
    )
    report = _add(commands, "report", "turn a report file into a page, a comment or JUnit XML", _REPORT)
    report.add_argument("file", metavar="FILE", help="the report file; - for standard input")
    report.add_argument("--format", choices=("terminal", "markdown", "junit", "html"), default="terminal")
    report.add_argument("-o", dest="output", metavar="OUT", help="where to write (default: standard output)")
    clauses = _add(commands, "clauses", "show the rules of the protocol", _CLAUSES)
    clauses.add_argument("id", nargs="?", metavar="ID", help="a clause, or the first words of a group")
    _add_profile(clauses, "only the clauses of this protocol version")
    _add(commands, "targets", "show what can be judged here", _TARGETS)
    client = _add(commands, "client-check", "judge how a trainer joins and lays out rows", _CLIENT_CHECK)
    client.add_argument("functions", nargs="+", metavar="FUNCTION", help="module:function")
    client.add_argument("--case", action="append", metavar="NAME", help="only this case; may be repeated")
    client.add_argument("--table", action="store_true", help="also list every case")
    client.add_argument("--report", metavar="F", help="also write every result to F, as JSON lines")
    init = _add(commands, "init", "start adapters, a test and a CI file of your own", _INIT)
    init.add_argument("dir", metavar="DIR", help="where to write; created if it is not there")
    completion = _add(commands, "completion", "print a script that completes the command line", _COMPLETION)
    completion.add_argument("shell", choices=("bash", "zsh"), help="for this shell")
    return parser


def _add_smoke(commands: argparse._SubParsersAction[Parser]) -> None:
    smoke = _add(commands, "smoke", "check in seconds that an adapter works", _SMOKE)
    smoke.add_argument("targets", nargs=1, metavar="T", help="the target")
    _add_profile(smoke, "judge it by this protocol version")


def _add_conform(commands: argparse._SubParsersAction[Parser]) -> None:
    conform = _add(commands, "conform", "judge targets clause by clause", _CONFORM)
    add = conform.add_argument
    add("targets", nargs="+", metavar="T", help="a target")
    add("-x", dest="stop_first", action="store_true", help="stop at the first violation")
    _add_suite(conform)
    _add_profile(conform, "judge by this protocol version instead of the target's own")
    add("--seed", type=int, metavar="N", help="seed of the random scenarios")
    add("--patch", metavar="F", help="apply the diff in F to a copy of the target first")
    add("--report", metavar="F", help="also write every result to F, as JSON lines")
    add("--expect", metavar="F", help="the violations that F lists are expected; anything else is not")
    add("--write-expect", metavar="F", help="write what is violated now to F, to be used with --expect")
    add(
        "--no-known",
        dest="known",
        action="store_false",
        help="judge a released vLLM without its known findings",
    )


def _add_verify(commands: argparse._SubParsersAction[Parser]) -> None:
    verify = _add(commands, "verify", "judge a change of vLLM's connector", _VERIFY)
    add = verify.add_argument
    add("patch", nargs="?", metavar="PATCH", help="a diff, or the changed code")
    add("--base", required=True, metavar="T", help="what is changed")
    add("--base-rev", metavar="A", help="the base is this git revision of the checkout T")
    add("--rev", metavar="B", help="the changed code is this revision of T (default: its files as they are)")
    _add_suite(verify)
    _add_profile(verify, "judge both by this protocol version instead of the base's own")
    add("--seed", type=int, metavar="N", help="seed of the random scenarios")
    add("--report", metavar="F", help="also write every result to F, as JSON lines")
    add("--expect", metavar="F", help="the patch may break the clauses that F lists, and must")
    add("--write-expect", metavar="F", help="write what the patch breaks to F, to be used with --expect")
    add(
        "--allow-unplayed",
        action="store_true",
        help="changed lines that no play executed do not make the verdict incomplete",
    )


def _add_drift(commands: argparse._SubParsersAction[Parser]) -> None:
    drift = _add(commands, "drift", "show what of the protocol differs between two vLLMs", _DRIFT)
    drift.add_argument("old", metavar="OLD", help="the older vLLM")
    drift.add_argument("new", metavar="NEW", help="the newer vLLM")
    drift.add_argument("--json", metavar="F", help="also write everything to F, as JSON")
    drift.add_argument("--source", action="store_true", help="compare the source alone, play nothing")
    _add_suite(drift, "smoke")
    _add_profile(drift, "the protocol version of OLD, where its files do not tell")
    drift.add_argument(
        "--python", metavar="P", help="a Python with what vLLM imports (default: .venv-real of `make real`)"
    )
    drift.add_argument("--seed", type=int, metavar="N", help="seed of the random scenarios")


def _add_suite(parser: Parser, usual: str = "default") -> None:
    choices = ("smoke", "default", "deep")
    parser.add_argument("--suite", choices=choices, default=usual, help="how much to try")


def _add_replay(commands: argparse._SubParsersAction[Parser]) -> None:
    replay = _add(commands, "replay", "play one scenario again", _REPLAY)
    replay.add_argument("scenario", metavar="SCENARIO", help="a file, -, the JSON itself or a name")
    replay.add_argument("targets", nargs="+", metavar="T", help="a target")
    _add_profile(replay, "play it under this protocol version")
    add = replay.add_argument
    add("--known", action="store_true", help="accept the known findings of a released vLLM")
    add("--optimized", action="store_true", help="run the target under python -O")
    add("--patch", metavar="F", help="apply the diff in F to a copy of the targets first")
    add("--svg", metavar="FILE", help="also draw the timeline to FILE, of the first target that is wrong")


def _add_explore(commands: argparse._SubParsersAction[Parser]) -> None:
    explore = _add(commands, "explore", "search models of the whole protocol", _EXPLORE)
    add = explore.add_argument
    add("models", nargs="*", metavar="MODEL", help="the name of a model")
    add("--all", dest="every", action="store_true", help="every model of the everyday set")
    add("--nightly", action="store_true", help="the models with larger bounds")
    _add_profile(explore, "only models of this protocol version")
    add("--jobs", type=int, metavar="N", help="processes at a time (default: one per processor)")
    add(
        "--max-states",
        type=int,
        default=20_000_000,
        metavar="N",
        help="give a model up beyond so many states",
    )
    add("--svg", metavar="FILE", help="draw the timeline of the first counterexample to FILE")
    add("--freeze", action="store_true", help="put what is found on record")


def _add_cover(commands: argparse._SubParsersAction[Parser]) -> None:
    cover = _add(commands, "cover", "lead a target through models of the whole protocol", _COVER)
    cover.add_argument("targets", nargs=1, metavar="T", help="the target")
    cover.add_argument("models", nargs="*", metavar="MODEL", help="the name of a model")
    _add_profile(cover, "judge by this protocol version instead of the target's own")
    cover.add_argument(
        "--max-states",
        type=int,
        default=1000,
        metavar="N",
        help="leave out what follows a model's first N states (default %(default)s)",
    )


def _add(commands: argparse._SubParsersAction[Parser], name: str, what: str, epilog: str) -> Parser:
    return commands.add_parser(
        name,
        help=what,
        description=f"{what[0].upper()}{what[1:]}.",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _add_profile(parser: Parser, what: str) -> None:
    parser.add_argument("--profile", metavar="P", help=f"{what}: {' or '.join(PROFILES)}")
