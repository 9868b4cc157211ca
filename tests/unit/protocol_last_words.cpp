// A worker's last words and torchrun's error file name the cause of a failure.

#include <string>
#include <vector>

#include "rendezvous/wire/last_words.hpp"
#include "tests/support/catch.hpp"

namespace ddprun::rdzv {

namespace {

using Lines = std::vector<std::string>;

std::string cause_of(std::string stderr_tail, std::string stdout_tail = {},
                     std::string error_file = {}) {
    Evidence evidence;
    evidence.stderr_tail = std::move(stderr_tail);
    evidence.stdout_tail = std::move(stdout_tail);
    evidence.error_file = std::move(error_file);
    return cause_line(evidence).text;
}

}  // namespace

TEST_CASE("an error file is read in both of its forms, and only if it can be") {
    CHECK(parse_error_file(R"({"message": "plain"})").message == "plain");
    const ErrorFile full = parse_error_file(
        R"({"message": {"message": "nested", "extraInfo": {"py_callstack": "Traceback"}}})");
    CHECK(full.message == "nested");
    CHECK(full.traceback == "Traceback");
    CHECK(parse_error_file("").message.empty());
    CHECK(parse_error_file("{").message.empty());
    CHECK(parse_error_file("[1]").message.empty());
    CHECK(parse_error_file(R"({"message": 3})").message.empty());
    CHECK(parse_error_file(R"({"message": {"message": 3, "extraInfo": []}})").traceback.empty());
    CHECK(parse_error_file(std::string(60000, '[')).message.empty());
}

TEST_CASE("lines are shown as a terminal shows them in the end") {
    CHECK(shown_lines("a\nb\n\n").size() == 2);
    CHECK(shown_lines("\n\na") == Lines{"", "", "a"});
    CHECK(shown_lines("10%|#\r50%|###\r100%|#####\r\n") == Lines{"100%|#####"});
    CHECK(shown_lines("10%|#\r\x1b[K\n") == Lines{"10%|#"});
    CHECK(shown_lines("\x1b[1;31mred\x1b[0m\tx") == Lines{"red    x"});
    CHECK(shown_lines("\x1b(Bplain") == Lines{"plain"});  // not only colours
    CHECK(shown_lines("\x1b]8;;http://x\x1b\\link\x1b]8;;\a!") == Lines{"link!"});
    CHECK(shown_lines("\x1b[12") == Lines{"\x1b[12"});
    CHECK(shown_lines("\x1b") == Lines{"\x1b"});
    CHECK(shown_lines("").empty());
    CHECK(shown_lines("\n\r\n").empty());
}

TEST_CASE("the cause is the error file's, the exception behind a traceback, or the last line") {
    CHECK(cause_of("").empty());
    CHECK(cause_of("first\nlast\n") == "last");
    CHECK(cause_of("", "only this\n") == "only this");
    CHECK(cause_of("err\n", "out\n") == "err");
    Evidence quiet;
    CHECK_FALSE(cause_line(quiet).is_stdouts_last);
    quiet.stdout_tail = "only this\n";
    CHECK(cause_line(quiet).is_stdouts_last);
    quiet.stderr_tail = "err\n";
    CHECK_FALSE(cause_line(quiet).is_stdouts_last);
    const std::string trace =
        "[rank0]: Traceback (most recent call last):\n[rank0]:   File \"t.py\", line 1\n"
        "[rank0]: ModuleNotFoundError: No module named 'x'\n";
    CHECK(cause_of(trace + "[W1122] Warning: destroy_process_group() was not called\n") ==
          "ModuleNotFoundError: No module named 'x'");
    CHECK(cause_of("noise\n", trace) == "ModuleNotFoundError: No module named 'x'");
    CHECK(cause_of("[rank12]: it is over\n") == "it is over");
    CHECK(cause_of(trace, {}, R"({"message": {"message": "RuntimeError: no memory\n more"}})") ==
          "RuntimeError: no memory");
    CHECK(cause_of("Traceback (most recent call last):\n") == "Traceback (most recent call last):");
}

}  // namespace ddprun::rdzv
