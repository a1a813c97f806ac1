"""How Sphinx builds the site: ``make docs``."""

from __future__ import annotations

from importlib.metadata import version as version_of

project = "auxout"
author = "the auxout authors"
copyright = author
version = release = version_of("auxout")

extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
nitpicky = True

html_theme = "furo"
html_title = "auxout"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
