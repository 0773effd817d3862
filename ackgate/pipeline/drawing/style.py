"""A report's style sheet: one set of colours for light, one for dark.

Pure.
"""

from __future__ import annotations

from typing import Final

STYLE: Final = """
:root { color-scheme: light dark; --page: #f6f7f9; --card: #ffffff; --ink: #1d2329; --quiet: #5d6873;
 --line: #dfe3e8; --blue: #1f6fd6; --blue-wash: #1f6fd633; --grey: #8894a1; --orange: #c26a00;
 --red: #c7322b; --red-wash: #c7322b2b; --green: #1b7f52; --heat: 31 111 214; }
@media (prefers-color-scheme: dark) { :root { --page: #101418; --card: #181d23; --ink: #e4e8ec;
 --quiet: #98a3ae; --line: #2c343d; --blue: #64a5f5; --blue-wash: #64a5f533; --grey: #77828e;
 --orange: #f0a043; --red: #f2716b; --red-wash: #f2716b33; --green: #59c394; --heat: 100 165 245; } }
* { box-sizing: border-box; }
body { margin: 0; padding: 28px; background: var(--page); color: var(--ink);
 font: 14px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1360px; margin: 0 auto; }
h1 { font-size: 22px; margin: 0 0 2px; } h2 { font-size: 16px; margin: 0; overflow-wrap: anywhere; }
p { margin: 4px 0 12px; color: var(--quiet); max-width: 100ch; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 8px;
 padding: 16px 18px; margin: 16px 0; }
.cards { display: flex; flex-wrap: wrap; gap: 10px; margin: 16px 0; }
.cards div { background: var(--card); border: 1px solid var(--line); border-radius: 8px;
 padding: 8px 16px; color: var(--quiet); }
.cards b { display: block; font-size: 20px; color: var(--ink); font-weight: 600; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { padding: 5px 10px; text-align: right; border-bottom: 1px solid var(--line);
 white-space: nowrap; vertical-align: top; }
th { color: var(--quiet); font-weight: 500; }
th:first-child, td:first-child { text-align: left; white-space: normal; overflow-wrap: anywhere;
 min-width: 220px; padding-left: 0; }
a { color: var(--blue); text-decoration: none; } a:hover { text-decoration: underline; }
small { color: var(--quiet); display: block; } .alarm { color: var(--red); font-weight: 600; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(520px, 100%), 1fr));
 gap: 14px 26px; }
svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--ink); font-size: 11px; } svg .title { font-size: 13px; font-weight: 600; }
svg .tick, svg .axis, svg .key, svg .note { fill: var(--quiet); }
polyline { fill: none; stroke-width: 1.6; stroke-linejoin: round; }
.grid { stroke: var(--line); stroke-width: 1; } .base { stroke: var(--grey); stroke-width: 1; }
.line0 { stroke: var(--blue); } .line1 { stroke: var(--orange); } .line2 { stroke: var(--green); }
.line3 { stroke: var(--red); } .line4 { stroke: var(--grey); } .dashed { stroke-dasharray: 5 3; }
.box0 { fill: var(--blue); } .box1 { fill: var(--orange); } .box2 { fill: var(--green); }
.box3 { fill: var(--red); } .box4 { fill: var(--grey); }
.heat0 { fill: rgb(var(--heat) / .18); } .heat1 { fill: rgb(var(--heat) / .36); }
.heat2 { fill: rgb(var(--heat) / .56); } .heat3 { fill: rgb(var(--heat) / .78); }
.heat4 { fill: rgb(var(--heat)); }
"""
