"""One HTML page that loads nothing: style, script and pictures are in it."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ..report import ReportFile
from .document import OUTCOMES, STATUSES, Trouble, document


def render(file: ReportFile) -> str:
    """The report as a page."""
    environment = Environment(
        loader=PackageLoader("auxout_conformance.reports", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["picture"] = _picture
    environment.globals["asset"] = lambda name: Markup(environment.get_template(name).render())
    page = environment.get_template("page.html")
    return page.render(document=document(file), statuses=STATUSES, outcomes=OUTCOMES)


def _picture(trouble: Trouble, name: str) -> Markup:
    """The drawing escapes what it shows."""
    return Markup(trouble.svg(name))
