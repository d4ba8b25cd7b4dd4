"""Every "section 4.1" or "table 5" in docstrings, comments and documents is a part that its paper has.

docs/papers.toml has the papers' tables of contents. A reference belongs to the paper named last before it in
the same docstring, comment or paragraph; where none is named there, to that of the heading above it; where no
heading names one, to the paper that the file names first. Parts that nothing here is about, related work for
example, are refused. What a table of contents can't tell is a part that exists and is another: "OpenWebRL,
section 4" for its 5, or "WebAgent-R1, section 3" for its 2.3, would pass here, and were read by eye.
"""

import ast
import io
import re
import subprocess
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAPERS = tomllib.loads((ROOT / "docs" / "papers.toml").read_text())
OTHERS = PAPERS.pop("others")
KINDS = {"section": "sections", "appendi": "appendices", "table": "tables", "figure": "figures"}
REFERENCE = re.compile(r"\b(section|appendi|table|figure)(?:s|x|ces)?\s+(?=(?:\d|[A-H]\b))", re.IGNORECASE)
NAME = re.compile("|".join(map(re.escape, [*PAPERS, *OTHERS])))
NUMBER = re.compile(r"(?:[A-H](?:\.\d)*|\d+(?:\.\d+)*)(?![\w%])")  # 4, 4.3, A.1.4
PANEL = re.compile(r"(\d+)[a-d]\b(?:,? [a-d]\b)*")  # figure 3c
NEXT = re.compile(
    r"(?:\s+\([^()]*\))?(?:,\s+and\s+|\s+and\s+|\s+to\s+|,\s+)(?=[\dA-H])"
)  # ", 3", " (as is) and B"
SKIPPED = {"docs/papers.toml"}

Block = tuple[str, str]  # a docstring, comment or paragraph, and whose it is if it names nobody


def joined(text: str) -> str:
    """The text in one line, without the marks of comments."""
    return " ".join(line.strip().lstrip("#").strip() for line in text.splitlines())


def blocks_of_python(text: str) -> Iterator[Block]:
    tree = ast.parse(text)
    first = NAME.search(joined(ast.get_docstring(tree) or ""))
    paper = first[0] if first else ""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield joined(ast.get_docstring(node) or ""), paper
    comment: list[str] = []
    last = -1
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            alone = token.line.lstrip().startswith("#")
            if comment and not (alone and token.start[0] == last + 1):
                yield joined("\n".join(comment)), paper
                comment = []
            comment.append(token.string)
            last = token.start[0] if alone else -1
    yield joined("\n".join(comment)), paper


def blocks_of_text(text: str) -> Iterator[Block]:
    """Paragraphs; headings are Markdown's, and lines of dashes in TOML."""
    first = NAME.search(text)
    default = paper = first[0] if first else ""
    for paragraph in re.split(r"\n\s*\n", text):
        heading = re.match(r"#+ (?:-+ )?(.*)", paragraph)
        named = NAME.search(heading[1]) if heading else None
        if heading and (named or paragraph.startswith(("## ", "# -"))):
            paper = named[0] if named else default
        yield joined(paragraph), paper


def references(block: str, paper: str) -> list[tuple[str, str, str]]:
    """(paper, kind, number) of each reference in a block; the paper is "" where none is named.

    >>> references("OpenWebRL, sections 4.3 and 5.3; figure 3c", "")
    [('OpenWebRL', 'sections', '4.3'), ('OpenWebRL', 'sections', '5.3'), ('OpenWebRL', 'figures', '3')]
    """
    found = []
    for match in REFERENCE.finditer(block):
        named = NAME.findall(block[: match.start()])
        whose = named[-1] if named else paper
        if whose in OTHERS:
            continue
        kind = KINDS[match[1].lower()]
        place = match.end()
        while number := PANEL.match(block, place) or NUMBER.match(block, place):
            found.append((whose, kind, number[1] if number.re is PANEL else number[0]))
            following = NEXT.match(block, number.end())
            if not following:
                break
            place = following.end()
    return found


def fault(paper: str, kind: str, number: str) -> str:
    """What is wrong with a reference, or nothing."""
    if not paper:
        return f"{kind} {number}: name the paper"
    if number not in PAPERS[paper][kind]:
        return f"{paper} has no {kind} {number}"
    if number in PAPERS[paper]["never"].get(kind, []):
        return f"{paper}'s {kind} {number} is {PAPERS[paper][kind][number]!r}: nothing here is about that"
    return ""


def all_references() -> Iterator[tuple[str, str, tuple[str, str, str]]]:
    """File, block and reference, of every file but the tests and what is skipped."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    names = listed.stdout.split()
    if listed.returncode:  # no checkout: all that lies in its folders
        folders = ("minirl", "docs", "examples", "benchmarks")
        paths = [path for folder in folders for path in (ROOT / folder).rglob("*.*")]
        names = [path.relative_to(ROOT).as_posix() for path in (*paths, *ROOT.glob("*.*"))]
    for name in names:
        if name.startswith("tests/") or name in SKIPPED or not name.endswith((".py", ".toml", ".md", ".j2")):
            continue
        blocks = blocks_of_python if name.endswith(".py") else blocks_of_text
        for block, paper in blocks((ROOT / name).read_text()):
            for reference in references(block, paper):
                yield name, block, reference


def test_every_reference_is_to_a_part_that_the_paper_has():
    wrong = []
    parts = set()
    for name, block, reference in all_references():
        parts.add(reference)
        if problem := fault(*reference):
            wrong.append(f"{name}: {problem}: {block[:80]}")
    assert not wrong, "\n" + "\n".join(wrong)
    assert {paper for paper, *_ in parts} == set(PAPERS) and len(parts) > 60, "the control"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("OpenWebRL, section\n# 3.4.", "OpenWebRL has no sections 3.4"),
        ("OpenWebRL sections 4.1 to 4.5", "OpenWebRL has no sections 4.5"),
        ("Tables 7 (training) and 12 of OpenWebRL", "tables 7: name the paper"),
        ("OpenWebRL, tables 7 (training), 8 and 12", "OpenWebRL has no tables 12"),
        ("AutoWebWorld, appendices A.1.4, B and F", "AutoWebWorld has no appendices F"),
        ("WebAgent-R1, section 4.1", "WebAgent-R1's sections 4.1 is 'LLM-based Agents': nothing"),
        ("OpenWebRL and AutoWebWorld, section 3.2", "AutoWebWorld has no sections 3.2"),
        ("OpenWebRL, table 7, in 30 s; figure 3b, c; as Liu et al. have it, section 9.9", ""),
        ("AutoWebWorld, figures 4 and 5, table 2's costs", ""),
        ("a table 480 pixels wide", "tables 480: name the paper"),
        ("the section Above, table by table", ""),
    ],
)
def test_what_is_wrong_with_a_reference_is_found(text, problem):
    problems = [fault(*reference) for reference in references(joined(text), "")]
    assert next(filter(None, problems), "").startswith(problem) and bool(any(problems)) == bool(problem)


def test_a_reference_belongs_to_the_paper_named_before_it():
    text = '"""OpenWebRL, section 4.1."""\n# table 6\na = 1  # WebAgent-R1, table 5\nb = 2  # table 4'
    found = [reference for block, paper in blocks_of_python(text) for reference in references(block, paper)]
    assert [(paper, number) for paper, _, number in found] == [
        ("OpenWebRL", "4.1"),
        ("OpenWebRL", "6"),
        ("WebAgent-R1", "5"),
        ("OpenWebRL", "4"),
    ]
    text = "OpenWebRL.\n\n## AutoWebWorld\n\nTable 1\n\n## More\n\nTable 2\n\n# -- WebAgent-R1\n\nTable 3"
    found = [reference for block, paper in blocks_of_text(text) for reference in references(block, paper)]
    assert [paper for paper, *_ in found] == ["AutoWebWorld", "OpenWebRL", "WebAgent-R1"]
