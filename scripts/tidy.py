#!/usr/bin/env python3
"""The rules of this project that clang-format does not know.

usage: scripts/tidy.py [ROOT]

Prints `path:line: what is wrong; what to do` for each finding and exits 1 if there is any. Long
files are named, too: whether each is one idea is for people to say.
A line ending in the comment `tidy: allow RULE` is exempt from that rule; say why beside it.
"""

import ast
import os
import re
import subprocess
import sys

from beginnings import check_beginnings

COLUMNS_MAX = 100
FILE_LINES_MAX = 400  # above it a file is named, not refused
TEST_FILE_LINES_MAX = 800
FUNCTION_LINES_MAX = 70
PURE = ("base/", "worker_runtime/contract/", "rendezvous/wire/", "rendezvous/core/",
        "rendezvous/events/", "rendezvous/host/", "rendezvous/store/protocol/",
        "rendezvous/store/core/", "agent/contract/", "agent/supervise/", "agent/watch/",
        "agent/warm/", "agent/notify/notice_queue.", "agent/output/typed_keys.",
        "launcher/surroundings/", "launcher/place/", "launcher/plan/", "launcher/doctor/")
TORCH_FILES = ("worker_runtime/comm/", "worker_runtime/data/", "worker_runtime/job/",
               "worker_runtime/nn/", "worker_runtime/optim/", "worker_runtime/parallel/",
               "worker_runtime/state/", "examples/", "tests/")
THREAD_FILES = ("rendezvous/store/net/store_server", "rendezvous/journal/sqlite_journal.cpp",
                "rendezvous/server/log_writer", "agent/output/worker_output",
                "agent/daemon/life_watch", "worker_runtime/comm/call_within",
                "worker_runtime/comm/peer_watch", "worker_runtime/comm/work_deadlines",
                "worker_runtime/state/background_save",
                "worker_runtime/checkpoint/old_checkpoints", "tests/", "base/os/file_look.")

# (rule, pattern on code without comments and strings, what to do, where it applies)
BANNED = [
    ("random", r"\brandom_device\b", "use random_seed() of base/rng.hpp and pass an Rng",
     lambda path: True),
    ("clock", r"\b(system_clock|high_resolution_clock|steady_clock::now|clock_now)\b",
     "pure code is given an Instant",
     lambda path: path.startswith(PURE) and not path.startswith("base/os/")),
    # Members of these names, as file.open(), are not meant.
    ("machine_call", r"(?<![\w.>:])(?:::|std::)?(?:(?:secure_)?getenv|setenv|getpid|getuid|geteuid|"
     r"gethostname|getaddrinfo|getrandom|sysconf|isatty|access|l?stat|fstat|statvfs|open|openat|"
     r"fopen|opendir|readlink|realpath|dlopen|socket|fork)\s*\(|\b[io]?fstream\b|"
     r"\bfilesystem::(?:exists|is_\w+|status|current_path|canonical|directory_iterator|"
     r"create_director\w+|remove\w*|file_size|last_write_time)\b|"
     r"#\s*include\s*<(?:unistd|fcntl|dlfcn|dirent|netdb|sys/stat)\.h>",
     "pure code is given what the machine says; ask in a folder that does input and output",
     lambda path: path.startswith(PURE) and not path.startswith("base/os/")),
    ("sleep", r"\b(sleep_for|sleep_until|usleep|nanosleep|(?<![.\w])sleep)\s*\(",
     "wait for the event itself, with a deadline", lambda path: True),
    ("thread", r"\bstd::(thread|jthread|async)\b|\bpthread_create\b",
     "threads are only the store's, the journal's, the logs', the life watch's, the runtime's, and "
     "FileLook's",
     lambda path: not path.startswith(THREAD_FILES)),
    ("detach", r"\bdetach\s*\(", "own it and wait for it; only where workers are spawned",
     # Tensors have a detach(), too.
     lambda path: not path.startswith(("agent/process/", "agent/keeper/") + TORCH_FILES)),
    ("torch", r"#\s*include\s*<(?:torch|ATen|c10|gloo|cuda\w*|nccl)\b",
     "only those folders of worker_runtime that its README names know LibTorch and CUDA",
     lambda path: not path.startswith(TORCH_FILES)),
    ("shell", r"(?<![\w.>])(?:std::|::)?(?:system|popen)\s*\(",
     "spawn the program itself through agent/process", lambda path: True),
    ("new", r"(?<!operator )(?<!<)\bnew\b(?!\s*\()|(?<!operator )\bdelete\b\s*(?:\[|\w)",
     "use std::make_unique or a value", lambda path: True),
    ("using", r"^\s*using namespace\b", "name what you use; headers spread it to everybody",
     lambda path: path.endswith(".hpp")),
    ("cout", r"\bstd::cout\b", "use fmt::print or the log", lambda path: True),
    ("strerror", r"\bstrerror(?:_r)?\s*\(", "use system_error() or std::generic_category()",
     lambda path: True),
]
LEFTOVER = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X)\b")
MACHINE = re.compile(r"(?<![\w.])/wo" r"rk/|(?<![\w.])/ro" r"ot/|--(?:extra-)?index-" r"url|"
                     r"\.\./sha" r"red/|\b[\w-]+\.(?:inter" r"nal|s" r"vc)\b(?!\()")


class Source:
    """One file: its text, and for C++ the code with comments and literals blanked out."""

    def __init__(self, root, path):
        self.path = path
        self.full_path = os.path.join(root, path)
        with open(self.full_path, encoding="utf-8", errors="replace") as file:
            self.text = file.read()
        self.lines = self.text.split("\n")
        self.is_cpp = path.endswith((".cpp", ".hpp"))
        self.is_python = path.endswith(".py")
        self.is_cmake = path.endswith((".cmake", "CMakeLists.txt"))
        self.is_shell = path.endswith(".sh") or path == ".ci/run"
        self.is_code = self.is_cpp or self.is_python or self.is_cmake or self.is_shell
        self.code = blank_comments_and_literals(self.text) if self.is_cpp else ""

    def line_of(self, offset):
        return self.text.count("\n", 0, offset) + 1


LITERALS = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|'
                      r"(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'", re.DOTALL)


def blank_comments_and_literals(text):
    """The same text, same length and lines, with spaces where comments and literals were."""
    def blank(match):
        found = match.group()
        if not found.startswith("/") and len(found) > 1:
            return found[0] + re.sub(r"[^\n]", " ", found[1:-1]) + found[-1]
        return re.sub(r"[^\n]", " ", found)
    return re.sub(r'R"', ' "', LITERALS.sub(blank, text))


def closing(code, start):
    """Offset of the bracket that closes the one at `start`; the end of the code if none does."""
    depth = 0
    for offset in range(start, len(code)):
        if code[offset] in "([{":
            depth += 1
        elif code[offset] in ")]}":
            depth -= 1
            if depth == 0:
                return offset
    return len(code)


# ------------------------------------------------------------------------------------- size

def long_files(root, paths):
    """(path, number of lines) of code that may be more than one idea. No finding: it may be one."""
    for source in (Source(root, path) for path in paths):
        limit = TEST_FILE_LINES_MAX if source.path.startswith("tests/") else FILE_LINES_MAX
        count = len(source.lines) - 1
        if source.is_code and count > limit:
            yield source.path, count


def check_size(source):
    for number, line in enumerate(source.lines, 1):
        if source.is_code and len(line) > COLUMNS_MAX:
            yield number, "columns", f"{len(line)} columns, at most {COLUMNS_MAX}"
    functions = cpp_functions(source) if source.is_cpp else python_functions(source)
    for number, count in functions:
        if count > FUNCTION_LINES_MAX:
            yield number, "function", (f"a function of {count} lines, at most "
                                       f"{FUNCTION_LINES_MAX}; give its parts names")


def python_functions(source):
    if source.is_python:
        for node in ast.walk(ast.parse(source.text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield node.lineno, node.end_lineno - node.lineno + 1


def cpp_functions(source):
    """(line, number of lines) of every function body, found by the text before its brace."""
    code, offset, head = source.code, 0, 0
    while offset < len(code):
        if code[offset] in ";}":
            head = offset + 1
        elif code[offset] == "{":
            header = re.sub(r"^\s*#.*$", "", code[head:offset], flags=re.MULTILINE)
            if re.search(r"\)[^)]*(?<!:):(?!:)", header) and re.search(r"[\w>]\s*$", header):
                offset = closing(code, offset)  # a member initialiser; the body comes later
            elif "(" in header and not re.match(r"\s*(?:class|struct|namespace|enum)\b", header):
                end = closing(code, offset)
                first = source.line_of(offset)
                yield first, source.line_of(end) - first + 1
                offset, head = end, end + 1
            else:
                head = offset + 1
        offset += 1


# ------------------------------------------------------------------------------------ tokens

def check_tokens(source):
    if source.is_cpp:
        for number, line in enumerate(source.code.split("\n"), 1):
            for rule, pattern, instead, applies in BANNED:
                found = re.search(pattern, line)
                if found and applies(source.path):
                    yield number, rule, f"`{found.group().strip()}` is not used here; {instead}"
        if source.path.endswith(".hpp") and "#pragma once" not in source.text:
            yield 1, "pragma", "no #pragma once"
    for number, line in enumerate(source.lines, 1):
        found = LEFTOVER.search(line)
        if found:
            yield number, "leftover", f"`{found.group()}` is left over; do it or open an issue"
        found = MACHINE.search(line)
        if found:
            yield number, "machine", f"`{found.group()}` exists on one machine only"


def check_markdown(source):
    if source.path.endswith(".md"):
        text = re.sub(r"^```.*?^```", "", source.text, flags=re.DOTALL | re.MULTILINE)
        titles = len(re.findall(r"^# ", text, flags=re.MULTILINE))
        if titles != 1:
            yield 1, "title", f"{titles} titles (`# `), exactly one is wanted"
        for number, line in enumerate(source.lines, 1):
            for link in re.findall(r"\]\(([^)#:\s]+)[^):]*\)", line):
                if not os.path.exists(os.path.join(os.path.dirname(source.full_path), link)):
                    yield number, "link", f"{link} does not exist"


# --------------------------------------------------------------------------------- co_await

def lambda_body(code, offset):
    """Offset of the `{` of the lambda whose `[` is at `offset`, or None if it is no lambda."""
    if re.search(r"[\w)\]]\s*$", code[:offset]) and not re.search(r"\breturn\s*$", code[:offset]):
        return None
    rest = re.compile(r"\s*(?:\((?:[^()]|\([^()]*\))*\))?[\w\s:<>&*,-]*\{")
    found = rest.match(code, closing(code, offset) + 1)
    return found.end() - 1 if found else None


def is_trivial_capture(capture):
    return capture.strip() in ("", "this") or capture.strip().startswith("&")


def statement_around(code, offset):
    """Start and end of the statement that holds `offset`."""
    start, depth = offset, 0
    while start > 0:
        character = code[start - 1]
        is_argument = character == "}" and re.match(r"\s*[,).]", code[start:start + 80])
        if depth == 0 and character in ";{}" and not is_argument:
            break
        depth += (character == "}") - (character == "{")
        start -= 1
    end, depth = offset, 0
    while end < len(code):
        if code[end] in "([":
            body = lambda_body(code, end) if code[end] == "[" else None
            end, depth = (closing(code, body), depth) if body else (end, depth + 1)
        elif code[end] in ")]":
            depth -= 1
        elif code[end] == "{" and depth <= 0 and not re.search(r"[\w>]\s*$", code[start:end]):
            break
        elif code[end] == ";" and depth <= 0:
            break
        elif code[end] == "{":
            end = closing(code, end)
        end += 1
    return start, end


def check_co_await(source):
    """g++ 12 destroys such temporaries twice; see CONTRIBUTING.md."""
    for found in re.finditer(r"\bco_await\b", source.code):
        number = source.line_of(found.start())
        start, end = statement_around(source.code, found.start())
        offset = start
        while offset < end:
            character, before = source.code[offset], source.code[start:offset]
            if character == "[" and (body := lambda_body(source.code, offset)) is not None:
                captures = source.code[offset + 1:closing(source.code, offset)].split(",")
                if re.search(r"\bco_await\s*$", before):
                    yield number, "co_await", "awaits a lambda; name the coroutine function"
                elif not all(map(is_trivial_capture, captures)):
                    yield number, "co_await", ("a lambda with captures by value; give it a name "
                                               "first and move it in")
                offset = closing(source.code, body)
            elif character == "{" and re.search(r"[\w>(,=]\s*$", before):
                yield number, "co_await", "a braced temporary; give it a name first and move it in"
                offset = closing(source.code, offset)
            elif character == "?" and source.code[offset:offset + 2] != "??":
                yield number, "co_await", "co_await inside ?:; write the if"
            offset += 1
    for found in re.finditer(r"\bco_spawn\s*\(", source.code):
        arguments = source.code[found.end():closing(source.code, found.end() - 1)]
        if re.match(r"[^,]*,\s*\[[^\]]*\][^{}]*->\s*[\w:]*awaitable", arguments):
            yield (source.line_of(found.start()), "co_await",
                   "spawns a lambda coroutine; name the coroutine function")


# ---------------------------------------------------------------------------- documentation

def check_documented(source):
    limits = (r"struct \w*Limits\s*\{", r"^\s*[\w:]+ (\w+)\s*(?:=|\{)")
    wanted = {"base/error.hpp": (r"enum class ErrorCode\s*\{", r"^\s*(\w+)\s*[,=]"),
              "base/limits.hpp": limits, "base/watch_limits.hpp": limits,
              "base/read_ahead_limits.hpp": limits, "base/log_limits.hpp": limits,
              "base/runtime_limits.hpp": limits, "base/memory_limits.hpp": limits}
    if source.path not in wanted:
        return
    opening, field = wanted[source.path]
    found = re.search(opening, source.code)
    first = source.line_of(found.end()) if found else 1
    last = source.line_of(closing(source.code, found.end() - 1)) if found else 0
    for number in range(first + 1, last):
        name = re.match(field, source.lines[number - 1])
        above = source.lines[number - 2].strip()
        if name and "///<" not in source.lines[number - 1] and not above.startswith("/// "):
            yield number, "documented", f"{name.group(1)} has no comment: its unit and why"


# ----------------------------------------------------------------------- across the files

def read_layers(root):
    """{folder: set of folders it may use, itself and indirect ones included}, and findings."""
    direct, findings, path = {}, [], "scripts/layers.txt"
    with open(os.path.join(root, path), encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            folder, colon, used = line.partition("#")[0].partition(":")
            if colon:
                for name in used.split():
                    if name not in direct:
                        findings.append((path, number, "layers",
                                         f"{name} must stand above {folder.strip()}"))
                direct[folder.strip()] = set(used.split())
    allowed = {}
    for folder in direct:
        seen, queue = {folder}, [folder]
        while queue:
            for name in direct.get(queue.pop(), ()):
                if name not in seen:
                    seen.add(name)
                    queue.append(name)
        allowed[folder] = seen
    return allowed, findings


def folder_of(path, layers):
    folder = os.path.dirname(path)
    while folder.strip("/") and folder not in layers:
        folder = os.path.dirname(folder)
    return folder.strip("/")


def check_layers(root, sources):
    layers, findings = read_layers(root)
    yield from findings
    libraries = {}
    for source in sources:
        for name in re.findall(r"ddprun_library\((\w+)", source.text) if source.is_cmake else ():
            libraries[name] = os.path.dirname(source.path)
    for source in sources:
        uses = []
        if source.is_cpp:
            uses = re.finditer(r'^\s*#\s*include\s*"([^"]+)"', source.text, re.MULTILINE)
        elif source.is_cmake:
            uses = re.finditer(r"ddprun::(\w+)", re.sub(r"#[^\n]*", lambda m: " " * len(m.group()),
                                                        source.text))
        home = folder_of(source.path, layers)
        for use in uses:
            target = libraries.get(use.group(1), "") + "/" if source.is_cmake else use.group(1)
            if source.is_cmake and target == "/":
                continue  # declared in another way
            other = folder_of(target, layers)
            if not other:
                yield (source.path, source.line_of(use.start()), "layers",
                       f'"{use.group(1)}" is no path from the root of the repository')
            elif not home or other not in layers[home] and not other.startswith(home + "/"):
                yield (source.path, source.line_of(use.start()), "layers",
                       f"{home or source.path} may not use {other}; see scripts/layers.txt")


def expand_loops(cmake):
    """The text with foreach(name a b) … endforeach() written out."""
    def expand(match):
        name, *values = match.group(1).split()
        return "".join(match.group(2).replace("${" + name + "}", value) for value in values)
    return re.sub(r"foreach\(([^)]*)\)(.*?)endforeach\(\)", expand, cmake, flags=re.DOTALL)


def check_dead(sources):
    listed = set()
    included = set()
    for source in sources:
        if source.is_cmake:
            folder = os.path.dirname(source.path)
            for name in re.findall(r"[\w./${}]+\.cpp\b", expand_loops(source.text)):
                name = re.sub(r"\$\{(?:PROJECT|CMAKE)_SOURCE_DIR\}/", "/", name)
                listed.add(name[1:] if name.startswith("/") else
                           os.path.normpath(os.path.join(folder, name)))
        if source.is_cpp:
            included.update(re.findall(r'#\s*include\s*[<"]([^>"]+)[>"]', source.text))
    for source in sources:
        if source.path.endswith(".cpp") and source.path not in listed:
            yield source.path, 1, "dead", "no CMakeLists.txt lists it; list it or remove it"
        if source.path.endswith(".hpp") and source.path not in included:
            yield source.path, 1, "dead", "nobody includes it; remove it"


# ------------------------------------------------------------------------------------- main

def tracked_files(root):
    """Everything git tracks or would track."""
    listing = subprocess.run(["git", "-C", root, "ls-files", "-z", "--cached", "--others",
                              "--exclude-standard"], check=True, capture_output=True, text=True)
    return sorted(path for path in set(listing.stdout.split("\0"))
                  if path and os.path.isfile(os.path.join(root, path)))


def check_tree(root, paths):
    """All findings in `paths` as (path, line, rule, text)."""
    known = (".cpp", ".hpp", ".py", ".sh", ".cmake", ".md", "CMakeLists.txt", ".txt", ".json")
    sources = [Source(root, path) for path in paths if path.endswith(known) or path == ".ci/run"]
    findings = []
    for source in sources:
        for check in (check_size, check_tokens, check_markdown, check_co_await, check_documented):
            findings += [(source.path, *finding) for finding in check(source)]
    findings += check_layers(root, sources)
    findings += check_dead(sources)
    findings += check_beginnings(root, sources)
    by_path = {source.path: source for source in sources}
    for path, number, rule, text in sorted(set(findings)):
        if not (path in by_path and f"tidy: allow {rule}" in by_path[path].lines[number - 1]):
            yield path, number, rule, text


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "..")
    paths = tracked_files(root)
    count = 0
    for path, number, rule, text in check_tree(root, paths):
        count += 1
        print(f"{path}:{number}: {text} [{rule}]")
    for path, lines in long_files(root, paths):
        print(f"{path}: {lines} lines; is it still one idea?", file=sys.stderr)
    print(f"tidy: {len(paths)} files, {count} findings", file=sys.stderr)
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
