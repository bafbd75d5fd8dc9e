"""The page's style: one column on a phone, cards beside each other on a desk, light and dark by the reader's choice."""

from __future__ import annotations

CSS = """
:root {
  color-scheme: light dark;
  --page: #f6f6f4; --card: #ffffff; --ink: #1b1b1a; --soft: #5c5b57; --line: #e3e2de; --grid: #ecebe7;
  --int8: #2a78d6; --float: #b4570f; --bad: #c92f3c; --good: #1d7a4f; --warn: #96610b; --track: #eeedea;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #161615; --card: #20201e; --ink: #ededea; --soft: #a9a8a2; --line: #33322f; --grid: #2b2a28;
    --int8: #6aa9f4; --float: #f0a05c; --bad: #ff7680; --good: #5cc795; --warn: #e2b454; --track: #2d2c2a;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 20px 16px 48px; }
h1 { font-size: 1.45rem; line-height: 1.25; margin: 4px 0 6px; letter-spacing: -0.01em; }
h2 { font-size: 1.08rem; margin: 34px 0 4px; }
h3 { font-size: 0.98rem; margin: 0; overflow-wrap: anywhere; }
p { margin: 4px 0 12px; color: var(--soft); max-width: 72ch; }
code { font-family: ui-monospace, "SF Mono", Menlo, "DejaVu Sans Mono", monospace; font-size: 0.86em;
  overflow-wrap: anywhere; }
.cards { display: grid; gap: 12px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 140px), 1fr));
  margin: 18px 0 8px; }
.card, .panel { background: var(--card); border: 1px solid var(--line); border-radius: 10px; }
.card { padding: 12px 14px; }
.card b { display: block; font-size: 1.5rem; line-height: 1.2; font-variant-numeric: tabular-nums; }
.card span { color: var(--soft); font-size: 0.84rem; }
.panel { padding: 14px 16px; min-width: 0; }
.wide { display: grid; gap: 14px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 300px), 1fr)); }
ul.findings { list-style: none; margin: 8px 0 0; padding: 0; display: grid; gap: 8px; }
ul.findings li { background: var(--card); border: 1px solid var(--line); border-left: 4px solid var(--soft);
  border-radius: 8px; padding: 9px 12px; overflow-wrap: anywhere; }
ul.findings li.warning { border-left-color: var(--warn); }
ul.findings li.fine { border-left-color: var(--good); }
ul.findings small { display: block; color: var(--soft); font-size: 0.88rem; }
.tag { font-size: 0.76rem; font-weight: 600; color: var(--soft); margin-right: 8px; }
.warning .tag { color: var(--warn); }
.fine .tag { color: var(--good); }
figure { margin: 10px 0 0; min-width: 0; }
figcaption { font-size: 0.84rem; color: var(--soft); margin-bottom: 2px; }
svg { display: block; width: 100%; height: auto; overflow: visible; }
svg text { fill: var(--soft); font-size: 11px; font-family: inherit; }
.axis { stroke: var(--line); stroke-width: 1; fill: none; }
.gridline { stroke: var(--grid); stroke-width: 1; }
.stored { fill: var(--int8); fill-opacity: 0.75; }
.twin { stroke: var(--float); stroke-width: 1.6; fill: none; stroke-linejoin: round; }
.same { fill: var(--int8); fill-opacity: 0.5; }
.other { stroke: var(--bad); stroke-width: 1.8; fill: none; }
.identity { stroke: var(--soft); stroke-width: 1; stroke-dasharray: 4 4; }
.scatter { max-width: 460px; }
.pair { display: grid; gap: 0 28px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); }
.pair > section { min-width: 0; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; font-size: 0.84rem; color: var(--soft); margin: 4px 0; }
.legend i { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin-right: 6px;
  vertical-align: -1px; background: var(--int8); }
.legend i.line { height: 3px; border-radius: 2px; vertical-align: 3px; background: var(--float); }
.legend i.cross { background: none; color: var(--bad); font-style: normal; font-weight: 700; line-height: 12px; }
.bars { display: grid; gap: 7px; }
.bar { display: grid; grid-template-columns: minmax(0, 9.5rem) minmax(0, 1fr) 5.4rem; gap: 10px; align-items: center;
  font-size: 0.9rem; }
.bar .name { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.bar .track { background: var(--track); border-radius: 4px; height: 14px; overflow: hidden; }
.bar .fill { background: var(--int8); height: 100%; border-radius: 4px; min-width: 2px; }
.bar.low .fill { background: var(--bad); }
.bar .value { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.facts { font-size: 0.84rem; color: var(--soft); margin: 2px 0 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 0.88rem; font-variant-numeric: tabular-nums; }
th, td { padding: 6px 10px; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--soft); font-weight: 600; }
th:first-child, td:first-child { text-align: left; }
table.checks td:nth-child(2), table.checks td.words { text-align: left; }
table.checks td.words { white-space: normal; min-width: 22ch; }
.verdict { color: var(--soft); font-weight: 600; }
.passed .verdict { color: var(--good); }
.failed .verdict { color: var(--bad); }
.undecided .verdict { color: var(--warn); }
footer { margin-top: 36px; color: var(--soft); font-size: 0.84rem; overflow-wrap: anywhere; }
@media (max-width: 520px) { .bar { grid-template-columns: minmax(0, 6.4rem) minmax(0, 1fr) 4.8rem; gap: 8px; } }
@media print { body { background: #fff; } .card, .panel { break-inside: avoid; } }
"""
