"""A page as a strict reader sees it: tags must close in order; texts and tables by section."""

import html.parser
from pathlib import Path

VOID = {"meta", "br", "img", "link", "input", "hr"}


class Page(html.parser.HTMLParser):
    """Raises `AssertionError` where a tag is closed that is not the last one opened."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.attributes: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.text = ""
        self._open: list[str] = []
        self.source = path.read_text()
        self.feed(self.source)
        self.close()
        assert self._open == []

    def rows(self, first: str) -> list[list[str]]:
        """The rows of the tables' lines that begin with the cell `first`."""
        return [row for table in self.tables for row in table if row and row[0] == first]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            self.attributes.append(name)
            if name == "id":
                self.ids.append(value or "")
            if name in ("href", "src", "xlink:href") or (value or "").startswith("url("):
                self.references.append((value or "").removeprefix("url(").removesuffix(")"))
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> closes nothing"
        assert self._open.pop() == tag, self.getpos()
        self.text += " " if tag in ("dt", "td", "th") else ""

    def handle_data(self, data: str) -> None:
        if "style" in self._open:
            return
        self.text += data
        if {"td", "th"} & set(self._open):
            self.tables[-1][-1][-1] += data.strip()
