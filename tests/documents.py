"""The documentation as tests read it: fenced blocks with their place."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tests import ROOT


@dataclass(frozen=True)
class Block:
    """A fenced block. line: of its first line in the file, from 1.  section: the heading above it."""

    file: Path
    line: int
    section: str
    language: str
    text: str


def document(name: str) -> Path:
    return ROOT / "docs" / name


def documents() -> list[Path]:
    """The README, everything in docs, and what stands beside the units of deploy."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "deploy" / "README.md"]
    return [file for file in found if file.exists()]


def blocks(file: Path) -> list[Block]:
    """All fenced blocks of a file, in order."""
    found: list[Block] = []
    section, fence, start, language, lines = "", "", 0, "", list[str]()
    for number, line in enumerate(file.read_text().splitlines(), 1):
        opening = re.match(r"^\s*(`{3,})(\w*)", line)
        if fence and opening and opening[1] == fence:
            found.append(Block(file, start, section, language, "\n".join(lines) + "\n"))
            fence = ""
        elif fence:
            lines.append(line)
        elif opening:
            fence, language, start, lines = opening[1], opening[2], number + 1, []
        elif heading := re.match(r"^#{2,} (.*)", line):
            section = heading[1]
    assert not fence, f"{file.name}: a block of line {start} has no end"
    return found
