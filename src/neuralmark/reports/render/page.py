"""The skeleton all reports share: one HTML page with its style inside, and nothing fetched.

Arguments called `markup` are HTML and go in as they are; everything else is text and is escaped.
Names come from hostile files: give them to `text` or `code` before they meet markup.
"""

import base64
import hashlib
import html
import math
import re
import unicodedata
from collections.abc import Iterable, Sequence

LONGEST_TEXT = 240
MOST_ROWS = 2000
LONG_LIST = 8
_HIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs")

STYLE = """
:root{color-scheme:light dark;--paper:#fff;--ground:#f4f3ef;--ink:#1c1d21;--soft:#5c5f66;
--line:#d9d8d2;--wash:#f7f6f2;--c0:#0072b2;--c1:#d55e00;--c2:#007a59;--c3:#a3568a;--c4:#8a6a00;
--c5:#3d3f46}
@media screen and (prefers-color-scheme:dark){:root{--paper:#191b20;--ground:#101115;--ink:#e9e8e4;
--soft:#a5a7ad;--line:#363942;--wash:#21242a;--c0:#56b4e9;--c1:#f08a3c;--c2:#35c79b;--c3:#dd9cc4;
--c4:#e5c043;--c5:#c9cad0}}
@media print{:root{color-scheme:light;--ground:#fff}}
.c0{--c:var(--c0)}.c1{--c:var(--c1)}.c2{--c:var(--c2)}.c3{--c:var(--c3)}.c4{--c:var(--c4)}
.c5{--c:var(--c5)}
*{box-sizing:border-box}
html{background:var(--ground);-webkit-text-size-adjust:100%}
body{margin:0;color:var(--ink);font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,
"Helvetica Neue",Arial,"DejaVu Sans",sans-serif;overflow-wrap:break-word}
main{max-width:49rem;margin:2rem auto;padding:2.5rem 3rem;background:var(--paper);
border:1px solid var(--line);border-radius:6px}
h1,h2{font-family:Charter,"Iowan Old Style",Georgia,"Times New Roman","DejaVu Serif",serif;
font-weight:600;line-height:1.2;text-wrap:balance}
h1{font-size:2.3rem;margin:0}
h2{font-size:1.35rem;margin:0 0 .6rem}
p{margin:.5rem 0 .8rem;text-wrap:pretty}
section{margin:2.2rem 0 0;padding:1.6rem 0 0;border-top:1px solid var(--line)}
main>section:first-child{margin:0;padding:0;border:0}
sup{font-size:.72em;line-height:0}
code{font:.86em/1.45 ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;
overflow-wrap:anywhere;unicode-bidi:isolate}
.kicker{display:flex;flex-wrap:wrap;justify-content:space-between;gap:0 1rem;margin:0 0 1.4rem;
color:var(--soft);font-size:.85rem;letter-spacing:.02em}
.soft{color:var(--soft)}
.lead{font-size:1.1rem}
.banner{display:flex;gap:1.2rem;align-items:flex-start;padding:1.4rem 1.5rem;
background:var(--wash);border-left:6px solid var(--c);border-radius:4px}
.banner>svg{flex:none;width:3.4rem;height:3.4rem;margin-top:.1rem}
.banner h1{color:var(--c)}
.banner p:last-child{margin-bottom:0}
.tiles{display:flex;flex-wrap:wrap;gap:1px;margin:1rem 0;
padding:0;background:var(--line);border:1px solid var(--line);border-radius:4px;overflow:hidden}
.tiles div{flex:1 1 9.5rem;padding:.8rem 1rem;background:var(--paper)}
.tiles dt{font-size:.8rem;color:var(--soft)}
.tiles dd{margin:.1rem 0 0;font-size:1.5rem;line-height:1.3;font-variant-numeric:tabular-nums}
.tiles small{display:block;font-size:.8rem;color:var(--soft)}
.facts{display:grid;grid-template-columns:minmax(8rem,11rem) 1fr;margin:.6rem 0}
.facts dt,.facts dd{margin:0;padding:.45rem 0;border-bottom:1px solid var(--line)}
.facts dt{color:var(--soft);padding-right:1rem}
.facts small{display:block;font-size:.84rem;color:var(--soft)}
table{width:100%;border-collapse:collapse;font-size:.9rem;margin:.6rem 0 1rem}
th,td{text-align:left;vertical-align:top;padding:.4rem .8rem .4rem 0;
border-bottom:1px solid var(--line)}
td:last-child:not(:has(code)){white-space:nowrap}
th{font-weight:600;color:var(--soft);font-size:.8rem}
.scroll{overflow-x:auto}
.broad{max-width:72rem}.broad p,.broad li,.broad figcaption{max-width:46rem}
.broad td:last-child{white-space:normal}
details{margin:.6rem 0}
summary{cursor:pointer;color:var(--c0)}
figure{margin:1rem 0}
figcaption{font-size:.88rem;color:var(--soft);margin-top:.5rem}
svg{display:block;width:100%;height:auto;print-color-adjust:exact;-webkit-print-color-adjust:exact}
.legend{display:flex;flex-wrap:wrap;gap:.2rem 1.4rem;margin:.2rem 0 .6rem;padding:0;
list-style:none;font-size:.88rem}
.legend li{display:flex;gap:.45rem;align-items:center}
.legend svg{flex:none;width:.95rem;height:.95rem}
.legend .line{width:2rem;height:.5rem}
.fill{fill:var(--c)}.stroke{fill:none;stroke:var(--c)}.ground{fill:var(--line)}
.rule{fill:none;stroke:var(--line)}.axis{fill:none;stroke:var(--soft)}
.strong{fill:none;stroke:var(--ink)}.dots{stroke-linecap:round}
svg text{fill:var(--soft);font-size:12px}svg .bold{fill:var(--ink);font-weight:600}
svg .tiny{font-size:9.5px}svg .halo{paint-order:stroke;stroke:var(--paper);stroke-width:3px}
.sign{display:grid;grid-template-columns:1fr 1fr;gap:2.6rem 2rem;margin:2.8rem 0 .5rem}
.sign div{border-top:1px solid var(--ink);padding-top:.3rem;font-size:.85rem;color:var(--soft)}
.sign .whole{grid-column:1/-1}
@media screen and (max-width:40rem){main{margin:0;padding:1.2rem 1rem 2rem;border:0;border-radius:0}
h1{font-size:1.75rem}.banner{padding:1.1rem 1rem;gap:.9rem}.banner>svg{width:2.4rem;height:2.4rem}
.facts{grid-template-columns:1fr}.facts dt{border:0;padding-bottom:0}
.facts dd{padding-top:.1rem}.wide>svg{min-width:30rem}
.meter text{font-size:19px}
.tiles div{flex-basis:40%;padding:.6rem .7rem}.tiles dd{font-size:1.25rem}}
@media print{@page{size:A4;margin:16mm 17mm 18mm;@bottom-right{content:"Page " counter(page) " of "
counter(pages);font:8pt sans-serif;color:#5c5f66}}
html{font-size:9.5pt}body{font-size:1rem}main{max-width:none;margin:0;padding:0;border:0}h1{font-size:2rem}
h2{break-after:avoid}section{margin-top:5mm;padding-top:4mm}
p{orphans:3;widows:3}figure,.banner,.tiles,.closing,tr,.facts dd,.facts dt{break-inside:avoid}
.facts dt{break-after:avoid}.banner,.tiles{print-color-adjust:exact}.screen{display:none}
details::details-content{content-visibility:visible;display:block;height:auto}
table{font-size:8pt}th,td{padding:.2rem .8rem .2rem 0}
summary{list-style:none;color:inherit;font-weight:600;break-after:avoid}.scroll{overflow:visible}}
"""


SORTING = """
document.querySelectorAll("table").forEach(function(table){
var body=table.tBodies[0],heads=table.querySelectorAll("thead th");
function key(row,at){var cell=row.cells[at];if(!cell)return "";
var said=cell.textContent.trim().replace(/[,\\u2212]/g,function(c){return c===","?"":"-"});
var found=said.match(/^(?:2)?(-?[0-9]+(?:\\.[0-9]+)?)/);
return {text:said.toLowerCase(),number:found?parseFloat(found[1]):NaN}}
heads.forEach(function(head,at){head.tabIndex=0;head.style.cursor="pointer";
function sort(){var down=head.getAttribute("aria-sort")==="ascending";
heads.forEach(function(each){each.removeAttribute("aria-sort")});
head.setAttribute("aria-sort",down?"descending":"ascending");
Array.from(body.rows).map(function(row,i){return [key(row,at),i,row]}).sort(function(a,b){
var x=a[0],y=b[0],numbers=!isNaN(x.number)&&!isNaN(y.number);
var order=numbers?x.number-y.number:x.text<y.text?-1:x.text>y.text?1:0;
return (down?-order:order)||a[1]-b[1]}).forEach(function(each){body.appendChild(each[2])})}
head.addEventListener("click",sort);
head.addEventListener("keydown",function(e){if(e.key==="Enter"){sort()}})})});
"""
"""Sorts tables by the column whose head is clicked; the only script that any page has."""


def page(title: str, markup: str, *, sortable: bool = False, broad: bool = False) -> str:
    """A whole HTML page: the title as text, the body as markup; its tables can be sorted.

    A broad one has room for tables of many columns; what is read keeps the usual length of lines.
    """
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    main = '<main class="broad">' if broad else "<main>"
    script = ""
    if sortable:
        digest = base64.b64encode(hashlib.sha256(SORTING.encode()).digest()).decode()
        policy += f"; script-src 'sha256-{digest}'"
        script = f"<script>{SORTING}</script>\n"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(title)}</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n{main}\n{markup}\n</main>\n{script}</body>\n</html>\n"
    )


def text(value: object, limit: int = LONGEST_TEXT) -> str:
    r"""Escape text for markup and attributes; show hidden characters, shorten very long text.

    >>> text("<b>\u202e")
    '&lt;b&gt;\\u202e'
    """
    full = str(value)
    shown = full
    if len(full) > limit:
        tail = limit // 3
        shown = f"{full[: limit - tail]} … {full[-tail:]}"
    shown = "".join(map(_visible, shown))
    if len(full) > limit:
        shown += f" [{len(full):,} characters]"
    return html.escape(shown)


def code(value: object) -> str:
    """Text in a fixed-width face that may break after dots: names, digests, paths."""
    return "<code>" + re.sub(r"([._/])", r"\1<wbr>", text(value)) + "</code>"


def number(value: float) -> str:
    """A number as ticks and tables show it: a true minus, thousands apart.

    >>> number(-0.5), number(20000.0), number(3e-7)
    ('−0.5', '20,000', '3e−07')
    """
    plain = f"{value:,.0f}" if float(value).is_integer() and abs(value) < 1e7 else f"{value:.6g}"
    return plain.replace("-", "−")


def power_of_two(exponent: float) -> str:
    """Markup of 2^exponent with two decimals, rounded up, so that no chance looks too small.

    >>> power_of_two(-128.999), power_of_two(-256.0), power_of_two(0.0)
    ('2<sup>−128.99</sup>', '2<sup>−256</sup>', '1')
    """
    rounded = math.ceil(round(exponent * 100, 6)) / 100
    if rounded == 0:
        return "1"
    return f"2<sup>{rounded:.2f}</sup>".replace("-", "−").replace(".00<", "<")


def chance_in_words(log2: float) -> str:
    r"""A chance, given as its log2, in words (markup); odds are rounded down.

    >>> chance_in_words(-128.99), chance_in_words(-10.0)
    ('less than 1 in 6.7\xa0×\xa010<sup>38</sup>', 'about 1 in 1,024')
    """
    if log2 > math.log2(0.995):
        return "as good as certain"
    if log2 > math.log2(0.01):
        return f"about {math.ceil(100 * 2**log2 - 1e-9)} in 100"
    if log2 > -20:
        return f"about 1 in {math.floor(2**-log2 + 1e-9):,}"
    power, fraction = divmod(-log2 * math.log10(2), 1.0)
    odds = math.floor(10 * 10**fraction) / 10
    return f"less than 1 in {odds:.1f}\u00a0×\u00a010<sup>{power:.0f}</sup>"


def with_powers(sentence: str) -> str:
    """Escape a sentence and set what it writes as 2^-128 with a proper superscript.

    >>> with_powers("below 2^-128 & so on")
    'below 2<sup>−128</sup> &amp; so on'
    """
    return re.sub(
        r"2\^(-?\d+(?:\.\d+)?)",
        lambda match: f"2<sup>{match[1].replace('-', '−').removesuffix('.00')}</sup>",
        text(sentence, limit=4 * LONGEST_TEXT),
    )


def section(heading: str, markup: str, *, name: str = "") -> str:
    """A part of the page under its heading; `name` becomes its class."""
    opening = f'<section class="{text(name)}">' if name else "<section>"
    return f"{opening}\n<h2>{text(heading)}</h2>\n{markup}\n</section>"


def paragraphs(*markups: str) -> str:
    """Each as a paragraph; empty ones are left out."""
    return "\n".join(f"<p>{markup}</p>" for markup in markups if markup)


def tiles(figures: Iterable[tuple[str, str, str]]) -> str:
    """Key figures: label, value (markup), small remark (markup)."""
    cells = (
        f"<div><dt>{text(label)}</dt><dd>{value}<small>{remark}</small></dd></div>"
        for label, value, remark in figures
    )
    return '<dl class="tiles">\n' + "\n".join(cells) + "\n</dl>"


def facts(pairs: Iterable[tuple[str, str, str]]) -> str:
    """A list of facts: label, value (markup), explanation (markup, may be empty)."""
    rows = (
        f"<dt>{text(label)}</dt><dd>{value}{f'<small>{why}</small>' if why else ''}</dd>"
        for label, value, why in pairs
    )
    return '<dl class="facts">\n' + "\n".join(rows) + "\n</dl>"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, name: str = "") -> str:
    """A table of markup cells; one with a name is closed, until opened or printed, when long."""
    columns = "".join(f'<th scope="col">{text(name)}</th>' for name in head)
    lines = [
        "<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows[:MOST_ROWS]
    ]
    if len(rows) > MOST_ROWS:
        rest = f"and {len(rows) - MOST_ROWS:,} more, all listed in the JSON record"
        lines.append(f'<tr><td colspan="{len(head)}">{rest}</td></tr>')
    body = "\n".join(lines)
    whole = (
        f'<div class="scroll"><table>\n<thead><tr>{columns}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody>\n</table></div>"
    )
    return folded(f"{name}: {len(rows):,}", whole) if name and len(rows) > LONG_LIST else whole


def folded(summary: str, markup: str) -> str:
    """Markup closed behind one line until opened or printed."""
    return f"<details><summary>{text(summary)}</summary>\n{markup}\n</details>"


def histogram_table(
    edges: Sequence[float], stacks: Sequence[tuple[str, Sequence[int]]], unit: str
) -> str:
    """The counts of a histogram, folded, for those who cannot see the picture; not printed."""
    columns = zip(*(counts for _, counts in stacks), strict=True)
    rows = [
        [f"{number(float(f'{low:.3g}'))} to {number(float(f'{high:.3g}'))}", *map(number, counts)]
        for low, high, counts in zip(edges, edges[1:], columns, strict=False)
        if any(counts)
    ]
    whole = table([unit, *(name for name, _ in stacks)], rows)
    return f'<div class="screen">{folded("The counts as a table", whole)}</div>'


def figure(markup: str, caption: str, *, wide: bool = False) -> str:
    """A picture (markup) with its caption (markup); a wide one scrolls on narrow screens."""
    holder = "scroll wide" if wide else "scroll"
    return (
        f'<figure><div class="{holder}">{markup}</div>\n<figcaption>{caption}</figcaption></figure>'
    )


def legend(entries: Iterable[tuple[str, str]]) -> str:
    """Samples (markup) with what they mean (text)."""
    items = (f"<li>{sample}{text(meaning)}</li>" for sample, meaning in entries)
    return '<ul class="legend">' + "".join(items) + "</ul>"


def _visible(character: str) -> str:
    """A character that can be seen: control, direction and odd space characters as escapes."""
    if character == " " or unicodedata.category(character) not in _HIDDEN:
        return character
    return f"\\x{ord(character):02x}" if character < "\x80" else ascii(character)[1:-1]
