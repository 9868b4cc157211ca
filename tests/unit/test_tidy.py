"""Every rule of scripts/tidy.py finds what it is for, and leaves alone what is fine.

Each case is a small tree in a temporary folder; the rules named by its findings are compared.
"""

import os
import sys
import tempfile
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, os.path.join(ROOT, "scripts"))

import tidy  # noqa: E402

LAYERS = """# comment
rendezvous/base:
rendezvous/protocol: rendezvous/base
rendezvous/core: rendezvous/protocol
rendezvous/server: rendezvous/core
agent/process: rendezvous/base
tests: rendezvous/server
"""
LEFT = "TO" + "DO"


def findings(files, layers=LAYERS):
    with tempfile.TemporaryDirectory() as root:
        files = {"scripts/layers.txt": layers, **files}
        for path, text in files.items():
            os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
            with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                file.write(text)
        return list(tidy.check_tree(root, sorted(files)))


def rules(files, layers=LAYERS):
    return sorted({rule for _, _, rule, _ in findings(files, layers)} - {"dead"})


def rules_of_cpp(text, path="rendezvous/server/a.cpp"):
    return rules({path: text})


class Beginnings(unittest.TestCase):
    def count(self, files, allowed):
        found = findings({**files, "scripts/beginnings.txt": allowed})
        return [(path, number) for path, number, rule, _ in found if rule == "beginning"]

    def test_each_more_than_allowed_is_found(self):
        files = {"agent/a.hpp": "#pragma once\n/// What the agent\n/// heard. Of whom: of it.\n"
                                "int a;  ///< of a: What b does\n",
                 "agent/a.py": '"""Runs. Where it runs."""\nx = 1  # Nobody knows\n',
                 "docs/a.md": "# A\n\nWho asks waits.\n\n* Such a list\n\n"
                              "| What | is |\n| --- | --- |\n| Neither | nor |\n"}
        self.assertEqual(self.count(files, "agent: 5\ndocs: 3\n"), [])
        self.assertEqual(self.count(files, "agent: 4\ndocs: 3\n"),
                         [("agent/a.hpp", 2), ("agent/a.hpp", 2), ("agent/a.hpp", 4),
                          ("agent/a.py", 1), ("agent/a.py", 2)])

    def test_a_number_that_is_too_large_is_found(self):
        self.assertEqual(self.count({"agent/a.cpp": "// What.\n"}, "agent: 2\n"),
                         [("scripts/beginnings.txt", 1)])

    def test_questions_code_and_middles_are_fine(self):
        self.assertEqual(self.count(
            {"agent/a.cpp": "// Asks: What is it? Who else, and what? A Who.\n"
                            'const char* text = "// Who.";\nint of;  // the What of it\n',
             "docs/a.md": "# A\n\n```\nWhat\n```\n\n## What is it?\n"}, ""), [])


class Tokens(unittest.TestCase):
    def test_banned_tokens_are_found(self):
        for rule, text in [
            ("random", "std::random_device d;"), ("sleep", "std::this_thread::sleep_for(1s);"),
            ("sleep", "::sleep(1);"), ("thread", "std::thread t;"), ("detach", "t.detach();"),
            ("shell", 'system("ls");'), ("shell", 'std::system("ls");'), ("shell", 'popen("l");'),
            ("new", "auto* p = new Thing(1);"), ("new", "delete p;"), ("new", "delete[] p;"),
            ("cout", "std::cout << 1;"), ("strerror", "strerror(errno);"),
        ]:
            with self.subTest(text):
                self.assertEqual(rules_of_cpp(text), [rule])

    def test_names_that_only_look_banned_are_fine(self):
        self.assertEqual(rules_of_cpp(
            'Error e = system_error(1, "system(x) new y");\n'
            "// a new thing: std::cout, sleep_for(1)\n"
            "Thing(const Thing&) = delete;\nauto x = boost::asio::detached;\n"
            "#include <new>\nauto* at = ::new (place) Thing{};\n"
            "std::this_thread::get_id();\nfile_system(1);\nasio.detached_(1);\nint newest = 1;\n"
            "const char c = '\"'; int n = 1'000'000; auto r = R\"(new x)\";\n"), [])

    def test_pure_code_reads_no_clock(self):
        text = "auto now = std::chrono::steady_clock::now();"
        self.assertEqual(rules_of_cpp(text, "rendezvous/core/a.cpp"), ["clock"])
        self.assertEqual(rules_of_cpp(text), [])
        self.assertEqual(rules_of_cpp(text, "base/os/a.cpp"), [])

    def test_pure_code_asks_the_machine_nothing(self):
        for text in ['auto home = std::getenv("HOME");', "::stat(path, &status);",
                     "access(path, X_OK);", 'std::ifstream file("/proc/stat");',
                     'auto* library = ::dlopen("x.so", 0);', "if (std::filesystem::exists(p)) {}",
                     "#include <unistd.h>",
                     "const int fd = open(path, 0);"]:
            with self.subTest(text):
                self.assertEqual(rules_of_cpp(text, "launcher/plan/a.cpp"), ["machine_call"])
                self.assertEqual(rules_of_cpp(text, "base/os/a.cpp"), [])
                self.assertEqual(rules_of_cpp(text), [])
        self.assertEqual(rules_of_cpp(
            "file.open(1); link->access(2); surroundings.stat(3); reopen(4); Store::open(5);\n"
            'const std::filesystem::path folder{"a"}; // getenv("HOME")\n',
            "launcher/plan/a.cpp"), [])

    def test_some_files_may(self):
        self.assertEqual(rules_of_cpp("p.detach();", "agent/process/a.cpp"), [])
        self.assertEqual(rules_of_cpp("std::thread t;", "tests/a.cpp"), [])
        self.assertEqual(rules_of_cpp("#include <torch/torch.h>"), ["torch"])
        self.assertEqual(rules_of_cpp("#include <ATen/Context.h>", "worker_runtime/env/a.cpp"),
                         ["torch"])
        self.assertEqual(rules_of_cpp("#include <torch/types.h>", "worker_runtime/nn/a.cpp"), [])
        self.assertEqual(rules_of_cpp("std::thread t;  // tidy: allow thread: because"), [])

    def test_headers(self):
        self.assertEqual(rules_of_cpp("using namespace std;", "agent/process/a.hpp"),
                         ["pragma", "using"])
        self.assertEqual(rules_of_cpp("#pragma once\nusing std::string;", "agent/process/a.hpp"),
                         [])

    def test_leftovers_and_machine_paths(self):
        self.assertEqual(rules_of_cpp(f"// {LEFT}: more"), ["leftover"])
        self.assertEqual(rules({"a.md": f"# A\n{LEFT}\n"}), ["leftover"])
        self.assertEqual(rules({"a.md": "# A\nsee /wo" + "rk/main\n"}), ["machine"])
        self.assertEqual(rules({"a.md": "# A\nsee /proc/work/a and ./work/\n"}), [])


class Size(unittest.TestCase):
    def test_columns(self):
        self.assertEqual(rules_of_cpp("// " + "x" * 97 + "\n"), [])
        self.assertEqual(rules_of_cpp("// " + "x" * 98 + "\n"), ["columns"])
        self.assertEqual(rules_of_cpp("// " + "é" * 97 + "\n"), [])

    def test_long_files_are_named_and_no_finding(self):
        lengths = {"rendezvous/a.cpp": 400, "rendezvous/b.cpp": 401, "tests/c.cpp": 800,
                   "tests/d.cpp": 801, "README.md": 900}
        with tempfile.TemporaryDirectory() as root:
            for path, lines in lengths.items():
                os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
                with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                    file.write("\n" * lines)
            self.assertEqual(list(tidy.long_files(root, sorted(lengths))),
                             [("rendezvous/b.cpp", 401), ("tests/d.cpp", 801)])
        self.assertEqual(rules_of_cpp("\n" * 401), [])

    def test_function_length(self):
        long, short = "\n" * 70, "\n" * 60
        for header in ["void f() ", "A::A() : a_(1) ", "A::A() : a_{1}, b_{2} ",
                       "std::pair<int, int> f(int a) const noexcept ", "struct X f(int a) ",
                       "namespace n {\nclass A {\n  void f() override ",
                       "std::vector<std::string> f() && "]:
            with self.subTest(header):
                close = "}" * (1 + header.count("{\n"))
                self.assertEqual(rules_of_cpp(header + "{" + short + close), [])
                if not header.startswith("struct"):
                    self.assertEqual(rules_of_cpp(header + "{" + long + close), ["function"])

    def test_classes_and_namespaces_are_no_functions(self):
        self.assertEqual(rules_of_cpp("namespace a {\nclass B {" + "\n" * 90 + "};\n}\n"
                                      "const int table[] = {" + "\n" * 90 + "};\n"), [])

    def test_python_functions(self):
        self.assertEqual(rules({"scripts/a.py": "def f():\n" + "    a = 1\n" * 70}), ["function"])
        self.assertEqual(rules({"scripts/a.py": "def f():\n" + "    a = 1\n" * 69}), [])


class CoAwait(unittest.TestCase):
    def body(self, statement):
        return rules_of_cpp("awaitable<void> f() {\n    " + statement + "\n}\n")

    def test_what_the_compiler_gets_wrong_is_found(self):
        for statement in [
            "co_await f([t] { use(t); });",
            "co_await f([t = std::move(t)]() mutable { use(t); });",
            "co_await f([=] { use(t); });",
            "co_await f(Options{1, 2});",
            "co_await f(Options{.a = 1});",
            "co_await f({1, 2});",
            "co_await f(1, {1, 2});",
            "auto r = co_await g(a, std::vector<int>{1, 2});",
            "co_await [t]() -> awaitable<void> { co_return; }();",
            "auto x = flag ? co_await f() : 0;",
            "if (co_await f(Options{1})) { g(); }",
            "return g(Options{1}, co_await f());",
            "co_spawn(context, [t]() -> awaitable<void> { co_return; }, detached);",
        ]:
            with self.subTest(statement):
                self.assertEqual(self.body(statement), ["co_await"])

    def test_the_good_forms_are_fine(self):
        for statement in [
            "co_await f(a, 1, std::move(b));",
            "co_await f([&] { use(t); });",
            "co_await f([&t, this](int n) { std::vector<int> v{1, n}; return T{v}; });",
            "auto [error, size] = co_await socket.async_read(buffer(data), use_token);",
            "const auto [error] = co_await timer.async_wait(kToken);\n    Options o{1};",
            "Options o{1}; auto op = f(std::move(o)); co_await std::move(op);",
            "if (co_await f(a[1])) { g(Options{1}); }",
            "while (co_await f()) { int a = b ? 1 : 2; }",
            "for (;;) { T t{1}; co_await f(t); }",
            "co_spawn(context, run(context, a), detached);",
            "co_spawn(context, run(), [this](std::exception_ptr e) { done(e); });",
        ]:
            with self.subTest(statement):
                self.assertEqual(self.body(statement), [])


class AcrossFiles(unittest.TestCase):
    def test_includes_go_down_only(self):
        self.assertEqual(rules_of_cpp('#include "rendezvous/base/x.hpp"'), [])
        self.assertEqual(rules_of_cpp('#include "rendezvous/server/x.hpp"'), [])
        self.assertEqual(rules_of_cpp('#include "rendezvous/server/x.hpp"',
                                      "rendezvous/core/a.cpp"), ["layers"])
        self.assertEqual(rules_of_cpp('#include "agent/process/x.hpp"'), ["layers"])
        self.assertEqual(rules_of_cpp('#include "x.hpp"'), ["layers"])

    def test_links_go_down_only(self):
        files = {"rendezvous/base/CMakeLists.txt": "ddprun_library(base LINKS fmt::fmt)\n",
                 "rendezvous/core/CMakeLists.txt": "ddprun_library(core LINKS ddprun::base)\n"}
        self.assertEqual(rules(files), [])
        files["rendezvous/base/CMakeLists.txt"] = "ddprun_library(base LINKS ddprun::core)\n"
        self.assertEqual(rules(files), ["layers"])

    def test_a_folder_without_a_layer_is_found(self):
        self.assertEqual(rules_of_cpp('#include "rendezvous/base/x.hpp"', "other/a.cpp"),
                         ["layers"])

    def test_layers_stand_in_order(self):
        self.assertEqual(rules({}, layers="agent: rendezvous\nrendezvous:\n"), ["layers"])

    def test_dead_files(self):
        files = {"rendezvous/base/CMakeLists.txt": "ddprun_library(base SOURCES a.cpp)\n",
                 "rendezvous/base/a.cpp": '#include "rendezvous/base/a.hpp"\n',
                 "rendezvous/base/a.hpp": "#pragma once\n"}
        self.assertEqual(findings(files), [])
        loop = "foreach(x a)\n  ddprun_library(${x} SOURCES ${x}.cpp)\nendforeach()\n"
        files["rendezvous/base/CMakeLists.txt"] = loop
        self.assertEqual(findings(files), [])
        files["rendezvous/base/b.cpp"] = "\n"
        files["rendezvous/base/b.hpp"] = "#pragma once\n"
        self.assertEqual([(path, rule) for path, _, rule, _ in findings(files)],
                         [("rendezvous/base/b.cpp", "dead"), ("rendezvous/base/b.hpp", "dead")])


class Documents(unittest.TestCase):
    def test_one_title(self):
        self.assertEqual(rules({"a.md": "# A\n## B\n```\n# no title\n```\n"}), [])
        self.assertEqual(rules({"a.md": "# A\n# B\n"}), ["title"])
        self.assertEqual(rules({"a.md": "text\n"}), ["title"])

    def test_links_lead_somewhere(self):
        good = "# A\n[b](b.md#x) [c](https://c.org/)\n"
        self.assertEqual(rules({"a.md": good, "b.md": "# B"}), [])
        self.assertEqual(rules({"a.md": "# A\n[b](b.md)\n"}), ["link"])

    def test_error_codes_and_limits_have_comments(self):
        path = "base/error.hpp"
        good = "#pragma once\nenum class ErrorCode {\n    A,  ///< a\n    B,  ///< b\n};\n"
        self.assertEqual(rules({path: good}), [])
        self.assertEqual(rules({path: good.replace("  ///< b", "")}), ["documented"])
        path = "base/limits.hpp"
        good = "#pragma once\nstruct Limits {\n    int a = 1;  ///< a\n    /// b\n    T b{1};\n};\n"
        self.assertEqual(rules({path: good}), [])
        self.assertEqual(rules({path: good.replace("/// b", "")}), ["documented"])


if __name__ == "__main__":
    unittest.main()
