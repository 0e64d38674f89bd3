"""Pages of the documentation that are made from the code, for `make docs`.

mkdocs calls it as a hook: it adds the reference of the Python package (from its docstrings) and of the command (from its
options), and takes links out of docs/ for what they are on a site, the names of files in the repository.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

#: What users import, in the order of the page.
MODULES = {
    "foreload": "Open a data set, describe a cache, read it with NumPy.",
    "foreload.torch": "For PyTorch.",
    "foreload.mmap": "For files that are mapped into memory.",
    "foreload.errors": "What is raised. `foreload.ForeloadError` is the base of all.",
    "foreload.sim": "What a run would take.",
    "foreload.cost": "What it would cost.",
    "foreload.plot": "Pictures of both.",
}
#: A link to a file beside docs/: its text, and where it leads.
OUTSIDE = re.compile(
    r"\[([^\]]+)\]\((?:\.\./)+(crates|bench|requirements|tests|tools|examples|README|CONTRIBUTING|CHANGELOG)[^)]*\)"
)


def api() -> str:
    """The page of the package."""
    parts = ["# Python package\n\nMade from the docstrings. What isn't here is not for users, and may change.\n"]
    for name, about in MODULES.items():
        parts.append(
            f"## `{name}`\n\n{about}\n\n::: {name}\n    options:\n      heading_level: 3\n      show_root_heading: false\n"
        )
    return "\n".join(parts)


def verbs() -> str:
    """The page of the command."""
    import typer.main
    from typer.cli import get_docs_for_click

    from foreload.cli.app import app

    command = typer.main.get_command(app)
    text = get_docs_for_click(obj=command, ctx=typer.Context(command), name="foreload", title="All verbs and options")
    return text.replace("<br/>", " ")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are made."""
    files.append(File.generated(config, "reference/api.md", content=api()))
    files.append(File.generated(config, "reference/verbs.md", content=verbs()))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """A link to a file of the repository is its text."""
    return OUTSIDE.sub(r"\1", markdown)
