#!/usr/bin/env python3
"""Draws docs/screen.svg from a screen of the tests: python3 docs/screen.py. Run it when the screen changes (tests/house/docs.rs compares)."""
import html
import re

SCREEN = "tests/snapshots/looked_120x40.snap"
CELL, LINE, PAD = 8.4, 18, 14
PANEL = 72  # columns from here on are the panel
INK, DIM, BACK = "#d4d4d8", "#8b8b94", "#18181b"
ROLES = [(r"^ (you|sala|document)\b", "#7dd3fc"), (r"looked at.*|^ \│ +\[\d\].*", "#fcd34d"), (r"^ (idle|Enter).*", DIM)]


def colour(line, row, rows):
    if row < 2 or row == rows - 4:
        return DIM
    for pattern, ink in ROLES:
        if re.search(pattern, line):
            return ink
    return INK


def main():
    lines = open(SCREEN).read().split("---\n", 2)[2].rstrip("\n").split("\n")
    lines = [line for line in lines if not line.startswith("caret ")]
    width = round(max(len(line) for line in lines) * CELL + 2 * PAD)
    height = len(lines) * LINE + 2 * PAD
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
        f'<rect width="100%" height="100%" rx="10" fill="{BACK}"/>',
        f'<g font-family="ui-monospace, Menlo, Consolas, DejaVu Sans Mono, monospace" font-size="14" xml:space="preserve">',
    ]
    for row, line in enumerate(lines):
        if line.strip():
            ink = colour(line, row, len(lines))
            y = PAD + (row + 1) * LINE - 5
            # Words have their column each, so that the screen keeps its shape with any font.
            for run in re.finditer(r"\S+(?: \S+)*", line):
                x, length = round(PAD + run.start() * CELL), round(len(run[0]) * CELL)
                ink = INK if run.start() > PANEL else ink
                out.append(f'<text x="{x}" y="{y}" fill="{ink}" textLength="{length}">{html.escape(run[0], quote=False)}</text>')
    out += ["</g>", "</svg>", ""]
    open("docs/screen.svg", "w").write("\n".join(out))


main()
