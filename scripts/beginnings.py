"""Sentences that begin with a word that names nothing, as What, Who or Of.

A sentence without a subject that acts is read twice. The number of such sentences may only fall:
scripts/beginnings.txt has `folder: how many there may be at most`.
"""

import ast
import collections
import io
import os
import re
import tokenize

ALLOWED = "scripts/beginnings.txt"
WORDS = "What Who Whoever Whatever Of Where None Nobody Somebody Such Neither Nor".split()
# Questions, headings and the heads of tables are fine.
BEGINNING = re.compile(rf"(?:^|(?<=[.!?:;]\s))(?:{'|'.join(WORDS)}|So is)\b(?![^.!?]*\?)")
CPP_COMMENTS = re.compile(r"(?:^[^\S\n]*//[^\n]*\n)+|//[^\n]*\n", re.MULTILINE)
LITERALS = re.compile(r'"(?:\\.|[^"\\\n])*"')


def folder_of(path):
    return path.partition("/")[0] if "/" in path else "."


def texts_of(source):
    """(line, text) of each comment, docstring and paragraph; a text has one line."""
    if source.is_cpp:
        code = LITERALS.sub(lambda found: "_" * len(found.group()), source.text)
        for found in CPP_COMMENTS.finditer(code):
            yield source.line_of(found.start()), re.sub(r"^\s*//[/!]?<?", "", found.group(),
                                                        flags=re.MULTILINE)
    elif source.is_python:
        for node in ast.walk(ast.parse(source.text)):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                yield getattr(node, "lineno", 1), ast.get_docstring(node) or ""
        for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string.lstrip("#! ")
    elif source.path.endswith(".md"):
        text = re.sub(r"^```.*?^```|^#[^\n]*|^[^\n]*\n(?=\|[\s:|-]+\|$)", lambda found: re.sub(
            r"[^\n]", " ", found.group()), source.text, flags=re.DOTALL | re.MULTILINE)
        for found in re.finditer(r"[^\n|]+(?:\n(?![\n#|*-]|\s+[*-] )[^\n|]+)*", text):
            yield source.line_of(found.start()), found.group().strip().lstrip("*-# >")


def refused(source):
    """(line, the beginning of the sentence) of each."""
    for line, text in texts_of(source):
        text = re.sub(r"\s+", " ", text).strip()
        for found in BEGINNING.finditer(text):
            yield line, text[found.start():found.start() + 40]


def read_allowed(root):
    path = os.path.join(root, ALLOWED)
    if not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as file:
        pairs = (line.partition("#")[0].partition(":") for line in file)
        return {folder.strip(): int(count) for folder, colon, count in pairs if colon}


def check_beginnings(root, sources):
    """Findings as (path, line, rule, text)."""
    allowed = read_allowed(root)
    found = collections.defaultdict(list)
    for source in sources:
        for line, text in refused(source):
            found[folder_of(source.path)].append((source.path, line, text))
    for folder in sorted(found.keys() | allowed.keys()):
        count, most = len(found[folder]), allowed.get(folder, 0)
        if count > most:
            for path, line, text in found[folder]:
                yield path, line, "beginning", (
                    f"\"{text}…\": {folder} has {count} sentences that begin so, at most {most}; "
                    "begin with what acts")
        elif count < most:
            yield ALLOWED, 1, "beginning", f"{folder} has {count} now: write {folder}: {count}"
