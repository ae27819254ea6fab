"""The pages that are made from the code when the site is built (mkdocs-gen-files): one for each method, and the list of them."""

from __future__ import annotations

import inspect

import mkdocs_gen_files

from excise import registry


def text_of(component: object) -> str:
    """A docstring as Markdown: what follows ``Paper:`` and ``Differs:`` stands in paragraphs of its own."""
    lines = inspect.getdoc(component) or ""
    return lines.replace("Paper:", "**Paper.**").replace("Differs:", "**Differs.**").replace("``", "`")


def page(name: str) -> str:
    component = registry.find("methods", name)
    rows = "\n".join(
        f"| `{field}` | `{kind.replace('|', chr(92) + '|')}` | `{default}` |" for field, kind, default in registry.settings_of("methods", component)
    )
    return f"# {name}\n\n{text_of(component)}\n\n| setting | type | default |\n|---|---|---|\n{rows}\n"


def main() -> None:
    rows: list[str] = []
    for name in registry.names("methods"):
        component = registry.find("methods", name)
        with mkdocs_gen_files.open(f"methods/{name}.md", "w") as file:
            file.write(page(name))
        rows.append(f"| [`{name}`](methods/{name}.md) | {registry.summary(component)} | {registry.paper(component) or ''} |")
    with mkdocs_gen_files.open("methods.md", "w") as file:
        head = "# Methods\n\nEach runs in full fine-tuning or with LoRA where that makes sense; `a+b` in a recipe runs one after the other.\n\n"
        file.write(head + "| method | what it does | paper |\n|---|---|---|\n" + "\n".join(rows) + "\n")


main()
