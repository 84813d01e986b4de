"""Tables of the lab for LaTeX with booktabs."""

import re

from neuralmark.lab.comparing import CONTRADICTS, Cell
from neuralmark.lab.contract import Table


def latex(table: Table, label: str = "") -> str:
    """A table for LaTeX with booktabs; its note stands below it."""
    columns = "l" + "c" * (len(table.head) - 1)
    lines = [r"\begin{table}", r"  \centering", rf"  \caption{{{tex(table.title)}}}"]
    if label:
        lines.append(rf"  \label{{{label}}}")
    lines += [rf"  \begin{{tabular}}{{{columns}}}", r"    \toprule"]
    lines.append("    " + " & ".join(map(tex, table.head)) + r" \\")
    lines.append(r"    \midrule")
    for row in table.rows:
        lines.append("    " + " & ".join(map(_latex_cell, row)) + r" \\")
    lines += [r"    \bottomrule", r"  \end{tabular}"]
    if table.note:
        lines.append(rf"  \par\smallskip{{\footnotesize {tex(table.note)}\par}}")
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def _latex_cell(cell: Cell | str) -> str:
    if isinstance(cell, str):
        return tex(cell)
    theirs = rf" {{\scriptsize [{tex(cell.paper)}]}}" if cell.paper else ""
    sign = r"$^{\neq}$" if cell.standing == CONTRADICTS else r"$^{\neq ?}$"
    return tex(cell.ours) + (sign if cell.contradicts else "") + theirs


_TEX = {
    "\\": r"\textbackslash{}",
    **{each: "\\" + each for each in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "*": r"$^{*}$",  # behind a line's end, a bare star or bracket would belong to the line's end
    "[": "{[}",
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
    '"': r"\textquotedbl{}",
    "λ": r"$\lambda$",
    "η": r"$\eta$",
    "σ": r"$\sigma$",
    "±": r"$\pm$",
    "×": r"$\times$",
    "→": r"$\rightarrow$",
    "≠": r"$\neq$",
    "≈": r"$\approx$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "−": "$-$",
    "′": "$'$",
    "–": "--",
    "—": "---",
    "…": r"\ldots{}",
    "·": r"$\cdot$",
    "\u00a0": "~",
}
_POWER = re.compile(r"2\^(-?\d+)|(σ)z")


def tex(words: str) -> str:
    r"""Text for LaTeX: specials escaped, signs as mathematics, powers of two and σz set properly.

    >>> print(tex("below 2^-128 & 4 σz"))
    below $2^{-128}$ \& 4 $\sigma_z$
    """
    made, end = [], 0
    for found in _POWER.finditer(words):
        made += [_TEX.get(each, each) for each in words[end : found.start()]]
        made.append(r"$\sigma_z$" if found[2] else f"$2^{{{found[1]}}}$")
        end = found.end()
    return "".join([*made, *(_TEX.get(each, each) for each in words[end:])])
