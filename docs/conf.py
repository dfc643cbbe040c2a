"""The pages as a site: `make site` builds it strictly into build/site, with search, from the same Markdown."""

# ruff: noqa: INP001 - Sphinx looks for it here
import re

project = "aliquot"
html_title = "aliquot"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
# As GitHub makes them: pages link to headings by these.
myst_heading_anchors = 5
# Diagrams stay text: what draws them in a browser would be loaded from elsewhere.
suppress_warnings = ["misc.highlighting_failure"]
html_theme = "furo"
html_show_sphinx = False
html_copy_source = False

_OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./([A-Za-z][^)#]*)(?:#[^)]*)?\)")
_FOLDER = re.compile(r"\[([^\]]+)\]\([a-z]+/\)")


def _within(_app, name, source):  # noqa: ANN001, ANN202 - as Sphinx calls it
    """What a page refers to outside this folder is in the repository; records are found by their index."""
    if "/" not in name:
        source[0] = _FOLDER.sub(r"\1", _OUTSIDE.sub(r"\1 (`\2` in the repository)", source[0]))
    elif name != "decisions/README":
        source[0] = f"---\norphan: true\n---\n{source[0]}"


def setup(app):  # noqa: ANN001, ANN201 - as Sphinx calls it
    """Sphinx's hook."""
    app.connect("source-read", _within)
