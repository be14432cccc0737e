"""A bar chart of a session as SVG: a panel per workload, a bar per engine, both colour schemes."""

from __future__ import annotations

from collections.abc import Iterator
from xml.sax.saxutils import escape

from benchmarks.side_by_side.results import Results

_WIDTH, _NAMES, _VALUES = 760, 150, 230
_BAR, _GAP, _TITLE, _MARGIN = 15, 5, 34, 12
_STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1f2328; }
  .title { font-weight: 600; }
  .quiet { fill: #59636e; }
  .ours { fill: #0969da; }
  .theirs { fill: #9aa4af; }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc; }
    .quiet { fill: #9198a1; }
    .ours { fill: #4493f8; }
    .theirs { fill: #59636e; }
  }
"""


def svg(results: Results) -> str:
    """Tokens per second, each panel on a scale of its own; fractions of the roofline in words."""
    rows = results.summary(())
    height = _MARGIN + sum(_TITLE + len(row["tokens_per_second"]) * (_BAR + _GAP) for row in rows)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">',
        f"<title>{escape(_title(results))}</title>",
        f"<style>{_STYLE}</style>",
    ]
    y = 0
    for row in rows:
        y += _TITLE
        lines.append(f'<text class="title" x="0" y="{y - 12}">{escape(row["workload"])}</text>')
        lines += _bars(row["tokens_per_second"], row["roofline_fraction"], y)
        y += len(row["tokens_per_second"]) * (_BAR + _GAP)
    return "\n".join([*lines, "</svg>", ""])


def _title(results: Results) -> str:
    return (
        f"Tokens per second of {', '.join(results.contestants())} on {results.settings['model']}, "
        f"{results.machine['cpu']}, {results.settings['num_threads']} threads"
    )


def _bars(speeds: dict[str, float], fractions: dict[str, float], top: int) -> Iterator[str]:
    longest = max(speeds.values())
    for i, (name, speed) in enumerate(speeds.items()):
        y = top + i * (_BAR + _GAP)
        length = (_WIDTH - _NAMES - _VALUES) * speed / longest
        kind = "ours" if name.startswith("Octavo") else "theirs"
        says = f"{speed:,.0f} tokens/s"
        if name in fractions:
            says += f" · {fractions[name]:.0%} of roofline"
        baseline = y + _BAR - 3
        yield f'<text x="{_NAMES - 8}" y="{baseline}" text-anchor="end">{escape(name)}</text>'
        yield (
            f'<rect class="{kind}" x="{_NAMES}" y="{y}" width="{length:.1f}" height="{_BAR}" '
            'rx="2"/>'
        )
        yield f'<text class="quiet" x="{_NAMES + length + 6:.1f}" y="{baseline}">{says}</text>'
