"""The chart of goodput / bound by servers and staleness, as an SVG without any script or font."""

from __future__ import annotations

from collections.abc import Mapping

WIDTH, HEIGHT = 640, 300
_LEFT, _TOP, _BOTTOM = 44, 34, 50
_BAR, _GAP = 38, 34
"""width of a bar; room between two sizes"""
_COLOURS = {0: "#9aa5b1", 1: "#7fb2d9", 2: "#2f7ebc", 4: "#14466f"}


def draw(shares: Mapping[tuple[int, int], float]) -> str:
    """`shares`: (servers, staleness) -> goodput / bound."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(_LEFT, 18, "Tokens trained on a second / bound", "start"),
        *[_line(share) for share in (0.0, 0.5, 0.9, 1.0)],
    ]
    x = _LEFT + 12
    for servers in sorted({servers for servers, _ in shares}):
        begin = x
        for staleness in sorted(k for n, k in shares if n == servers):
            parts += _bar(x, staleness, shares[servers, staleness])
            x += _BAR
        parts.append(_text((begin + x) / 2, HEIGHT - 14, f"{servers} servers"))
        x += _GAP
    return "\n".join([*parts, "</svg>"]) + "\n"


def _bar(x: float, staleness: int, share: float) -> list[str]:
    top = _y(share)
    label = f"k={staleness}" if staleness else "in turns"
    return [
        f'<rect x="{x + 2}" y="{top:.1f}" width="{_BAR - 4}" height="{_y(0) - top:.1f}" '
        f'fill="{_COLOURS[staleness]}"/>',
        _text(x + _BAR / 2, top - 4, f"{share:.2f}", size=11),
        _text(x + _BAR / 2, _y(0) + 14, label, size=9),
    ]


def _line(share: float) -> str:
    y = _y(share)
    dash = ' stroke-dasharray="4 3"' if share == 0.9 else ""
    return (
        f'<line x1="{_LEFT}" x2="{WIDTH - 10}" y1="{y:.1f}" y2="{y:.1f}" stroke="#c5ccd3"{dash}/>'
        + _text(_LEFT - 6, y + 4, f"{share:.1f}", "end")
    )


def _y(share: float) -> float:
    return HEIGHT - _BOTTOM - share * (HEIGHT - _TOP - _BOTTOM)


def _text(x: float, y: float, text: str, anchor: str = "middle", size: int = 12) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
        f'fill="#20262c">{text}</text>'
    )
