"""What the report's pictures have beside the common style sheet.

Pure.
"""

from __future__ import annotations

from typing import Final

STYLE: Final = """
h3 { font-size: 13px; margin: 18px 0 0; }
.plots table { margin-bottom: 14px; }
.ranges { stroke: var(--blue); } .kept { stroke: var(--green); stroke-dasharray: 5 3; }
.told { stroke: var(--orange); stroke-dasharray: 3 3; } .band { fill: var(--orange); opacity: .2; }
.limit { stroke: var(--red); } .now { stroke: var(--grey); stroke-dasharray: 1 3; }
.shut { fill: var(--red-wash); } .shut-bar { fill: var(--red); }
.age { stroke: var(--orange); } .mark { stroke: var(--orange); }
.bytes { fill: var(--blue); } .node { fill: var(--orange); } .cut { fill: var(--red); }
"""
