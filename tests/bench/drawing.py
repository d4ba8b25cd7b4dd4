"""Pictures for docs/, as SVG: curves of shares, and stacked bars."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

WIDTH, HEIGHT, LEFT, TOP = 720, 400, 56, 40  # of a picture; of its axes' corner
COLOURS = ("#2f6f5e", "#2d5fa4", "#c0562f", "#7a4f9a", "#b08a2e")


@dataclass
class Curve:
    name: str
    points: Sequence[tuple[float, float]]  # x, and a share from 0 to 1
    colour: str
    dashed: bool = False  # and without a line in the legend


def text(x: float, y: float, words: str, style: str = "") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" {style}>{words}</text>'


def whole(title: str, parts: Sequence[str], width: float = WIDTH, height: float = HEIGHT) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}"'
    head += (
        ' font-family="sans-serif" font-size="13" fill="#333"><rect width="100%" height="100%" fill="#fff"/>'
    )
    return head + text(LEFT, 22, title, 'font-weight="bold"') + "".join(parts) + "</svg>\n"


def lines(
    title: str, curves: Sequence[Curve], below: str, marks: Sequence[float] | Mapping[float, str]
) -> str:
    """Return curves over a common axis, which is called `below` and has `marks`, as numbers or as named."""
    named = marks if isinstance(marks, Mapping) else {mark: f"{mark:g}" for mark in marks}
    wide, high = WIDTH - LEFT - 150, HEIGHT - TOP - 50
    every = [*marks, *(x for curve in curves for x, _ in curve.points)]
    low, span = min(every), max(every) - min(every) or 1

    def x(value: float) -> float:
        return LEFT + wide * (value - low) / span

    def y(share: float) -> float:
        return TOP + high * (1 - share)

    out = []
    for share in (0, 0.25, 0.5, 0.75, 1):
        out.append(f'<path stroke="#ddd" d="M{LEFT} {y(share):.1f}h{wide}"/>')
        out.append(text(LEFT - 8, y(share) + 4, f"{share:.0%}", 'text-anchor="end"'))
    out += [text(x(mark), HEIGHT - 32, name, 'text-anchor="middle"') for mark, name in named.items()]
    out.append(text(LEFT + wide / 2, HEIGHT - 12, below, 'text-anchor="middle"'))
    shown = 0
    for curve in curves:
        style = f'stroke="{curve.colour}" stroke-width="2"' + ' stroke-dasharray="5 4"' * curve.dashed
        points = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in curve.points)
        out.append(f'<polyline fill="none" {style} points="{points}"/>')
        if not curve.dashed:
            at = TOP + 16 + 24 * shown
            out.append(f'<path {style} d="M{LEFT + wide + 14} {at}h22"/>')
            out.append(text(LEFT + wide + 42, at + 4, curve.name))
            shown += 1
    return whole(title, out)


def bars(title: str, frames: Mapping[str, float], parts: Mapping[str, Mapping[str, float]], unit: str) -> str:
    """Return a stacked bar of parts for each name, in a grey frame of all that there was."""
    names = list(dict.fromkeys(part for each in parts.values() for part in each))
    out, wide, high, most = [], 80, 240, max(frames.values())
    for n, (name, frame) in enumerate(frames.items()):
        x, y, tall = LEFT + n * (wide + 30), float(TOP + high), high * frame / most
        out.append(f'<rect x="{x}" y="{y - tall:.1f}" width="{wide}" height="{tall:.1f}" fill="#e8e8e8"/>')
        for part, colour in zip(names, COLOURS, strict=False):
            tall = high * parts[name].get(part, 0.0) / most
            y -= tall
            out.append(f'<rect x="{x}" y="{y:.1f}" width="{wide}" height="{tall:.1f}" fill="{colour}"/>')
        out.append(text(x + wide / 2, TOP + high + 18, name, 'text-anchor="middle"'))
        out.append(text(x + wide / 2, TOP + high + 36, f"{frame:.0f} {unit}", 'text-anchor="middle"'))
    edge = LEFT + len(frames) * (wide + 30)
    for n, (part, colour) in enumerate(zip(names, COLOURS, strict=False)):
        out.append(f'<rect x="{edge}" y="{TOP + 24 * n}" width="14" height="14" fill="{colour}"/>')
        out.append(text(edge + 22, TOP + 12 + 24 * n, part))
    return whole(title, out, edge + 120, TOP + high + 50)


TAUGHT = {
    "seeing": "The base model: words named (vision), points in their control (words, agent), unseen shops",
    "reading": "The text base model: pages of which all numbers are right (words), right turns, unseen shops",
}


def making(made: Mapping[str, list[dict]], title: str) -> str:
    """Return the curve of a base model's making, which docs/seeing.json or docs/reading.json holds."""
    stages = list(dict.fromkeys(point["stage"] for point in made["curve"]))
    curves = [
        Curve(stage, [(p["minutes"], p["accuracy"]) for p in made["curve"] if p["stage"] == stage], colour)
        for stage, colour in zip(stages, COLOURS, strict=False)
    ]
    return lines(title, curves, "minutes on two cores", range(0, int(made["curve"][-1]["minutes"]) + 1, 5))


if __name__ == "__main__":  # python tests/bench/drawing.py docs/seeing.json
    source = Path(sys.argv[1])
    drawn = making(json.loads(source.read_text()), TAUGHT[source.stem])
    source.with_suffix(".svg").write_text(drawn)
