"""JUnit XML: a test suite for each target, a test case for each clause, as CI systems read it."""

from __future__ import annotations

from xml.etree import ElementTree as xml

from auxout_spec.clauses import ALL_CLAUSES

from ..report import ReportFile
from .document import ClauseRow, Patch, Section, Trouble, document


def render(file: ReportFile) -> str:
    """The report as JUnit XML."""
    made = document(file)
    root = xml.Element("testsuites", name=made.tool)
    if made.patch is not None and file.verification is not None:
        root.append(_patch_suite(made.patch, file.verification["seconds"]))
    else:
        root.extend(
            _suite(section, report.seconds)
            for section, report in zip(made.sections, file.reports, strict=True)
        )
    for suite in root:
        suite.set("timestamp", str(file.head.get("time", "")))
    for name in ("tests", "failures", "errors", "skipped"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in root)))
    xml.indent(root)
    return xml.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _suite(section: Section, seconds: float) -> xml.Element:
    suite = xml.Element("testsuite", name=section.target, time=f"{seconds:.3f}")
    properties = xml.SubElement(suite, "properties")
    for name, value in section.facts:
        xml.SubElement(properties, "property", name=name, value=value)
    troubles: dict[str, list[Trouble]] = {}
    for each in section.troubles:
        troubles.setdefault(each.clause, []).append(each)
    for row in section.clauses:
        _case(suite, section.target, row, troubles.get(row.clause, []))
    listed = {row.clause for row in section.clauses}
    for clause in troubles.keys() - listed:
        row = ClauseRow(clause, "", troubles[clause][0].sentence, "violated", 0, ())
        _case(suite, section.target, row, troubles[clause])
    if section.exit_code not in (0, 1) or (section.reason and not section.troubles and section.exit_code):
        case = xml.SubElement(suite, "testcase", classname=section.target, name="judgement")
        error = xml.SubElement(case, "error", message=section.reason or section.verdict)
        error.text = section.replay
    return _counted(suite)


def _patch_suite(patch: Patch, seconds: float) -> xml.Element:
    """A verification: what the patch does to each clause; what the base breaks already is no failure of the patch."""
    suite = xml.Element("testsuite", name=patch.title, time=f"{seconds:.3f}")
    troubles = {each.clause: each for each in patch.troubles}
    for outcome, names in patch.outcomes:
        for name in names:
            clause = name.partition(" ")[0]
            case = xml.SubElement(suite, "testcase", classname=patch.title, name=clause)
            if outcome == "broken":
                failure = xml.SubElement(case, "failure", message=f"broken: {ALL_CLAUSES[clause].sentence}")
                failure.text = _text(troubles[clause]) if clause in troubles else ""
            elif outcome not in ("kept", "fixed"):
                xml.SubElement(case, "skipped", message=outcome)
    if patch.exit_code and not troubles:
        case = xml.SubElement(suite, "testcase", classname=patch.title, name="verification")
        xml.SubElement(case, "error", message=patch.reason or patch.result).text = patch.replay
    return _counted(suite)


def _counted(suite: xml.Element) -> xml.Element:
    """The suite with its numbers of cases, failures, errors and skipped cases."""
    cases = suite.findall("testcase")
    suite.set("tests", str(len(cases)))
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(name, str(sum(case.find(tag) is not None for case in cases)))
    return suite


def _case(suite: xml.Element, target: str, row: ClauseRow, troubles: list[Trouble]) -> None:
    case = xml.SubElement(suite, "testcase", classname=target, name=row.clause)
    if troubles and not troubles[0].announced:
        failure = xml.SubElement(case, "failure", type=row.level, message=troubles[0].sentence)
        failure.text = "\n\n".join(map(_text, troubles))
    elif troubles:
        xml.SubElement(case, "skipped", message="violated, as the expectation file says")
    elif row.status == "known":
        xml.SubElement(case, "skipped", message=f"known finding {', '.join(row.findings)}")
    elif row.status == "not judged":
        xml.SubElement(case, "skipped", message="not judged")


def _text(trouble: Trouble) -> str:
    expected = "".join(part.text for part in trouble.expected)
    actual = "".join(part.text for part in trouble.actual)
    lines = [
        f"{trouble.happened:<9} {trouble.call}",
        f"expected  {expected}",
        f"actual    {actual}",
        f"found by  {trouble.found_by}",
    ]
    timeline = [] if trouble.timeline is None else ["", trouble.text]
    return "\n".join([*lines, *timeline, "", trouble.replay])
