#include <csignal>
#include <string>

#include <nlohmann/json.hpp>

#include "agent/watch/report.hpp"
#include "base/printable.hpp"
#include "base/signal_name.hpp"
#include "rendezvous/wire/last_words.hpp"
#include "tests/support/catch.hpp"

namespace ddprun::agent {

namespace {

rdzv::Verdict crashed_in_the_second_generation() {
    rdzv::FailureReport failure;
    failure.generation = Generation(2);
    failure.rank = Rank(3);
    failure.local_rank = LocalRank(1);
    failure.hostname = "gpu-07";
    failure.at = Milliseconds(99900);
    failure.evidence.pid = 4242;
    failure.evidence.progress = 4812;
    failure.evidence.signal = SIGSEGV;
    failure.evidence.stderr_tail =
        "step 41\nTraceback (most recent call last):\n\tcolour \x1b[31mred\nboom\n\n";
    failure.evidence.error_file =
        R"({"message": {"message": "RuntimeError: no memory", "extraInfo": {}}})";
    failure.evidence.log_dir = "/tmp/ddprun-0/llama_01234567/attempt_1/1";
    rdzv::Verdict verdict;
    verdict.kind = rdzv::VerdictKind::Failed;
    verdict.exit_code = 139;
    verdict.text = "rank 3 on gpu-07 was killed by SIGSEGV";
    verdict.first_failure = failure;
    verdict.failure_count = 3;
    verdict.failures = {{.hostname = "gpu-07",
                         .rank = Rank(3),
                         .end = "SIGSEGV",
                         .exit_code = 139,
                         .at = Milliseconds(99900),
                         .cause = "RuntimeError: no memory"},
                        {.hostname = "gpu-112",
                         .rank = Rank(11),
                         .end = "exit code 1",
                         .exit_code = 1,
                         .at = Milliseconds(99920),
                         .cause = ""}};
    verdict.timeline = {
        {Milliseconds(0), "generation 1 started: 2 nodes, 4 workers"},
        {Milliseconds(12345), "node gpu-08 died (its connection ended)"},
        {Milliseconds(12400), "generation 2 started: 1 node, 4 workers"},
        {Milliseconds(99900), "rank 3 on gpu-07 was killed by SIGSEGV"},
        {Milliseconds(99950), "rank 3 on gpu-07 was killed by SIGSEGV"},
        {Milliseconds(99950), "closed: rank 3 on gpu-07 was killed by SIGSEGV"},
    };
    return verdict;
}

/// 2026-11-22 17:21:40 UTC, an hour later here.
constexpr HeardAt kHeard{.unix_ms = 1795368099950, .utc_offset_s = 3600};

std::string report_of(const rdzv::Verdict& verdict, const std::string& program = "train.py") {
    return format_verdict(verdict, program, kHeard);
}

}  // namespace

TEST_CASE("programs read the same report as JSON, whatever bytes a worker wrote") {
    rdzv::Verdict verdict = crashed_in_the_second_generation();
    verdict.first_failure->evidence.stderr_tail += "\xff";
    verdict.first_failure->evidence.kernel_note = "Out of memory: Killed process 4242 (python)";
    const auto report = nlohmann::json::parse(verdict_json(verdict, "train.py", kHeard));
    CHECK(report["verdict"] == "failed");
    CHECK(report["exit_code"] == 139);
    CHECK(report["failures"] == 3);
    CHECK(report["timeline"].size() == 6);
    CHECK(report["failed_ranks"].size() == 2);
    CHECK(report["failed_ranks"][1]["hostname"] == "gpu-112");
    CHECK(report["failed_ranks"][1]["rank"] == 11);
    CHECK(report["failed_ranks"][0]["end"] == "SIGSEGV");
    CHECK(report["failed_ranks"][0]["exit_code"] == 139);
    CHECK(report["failed_ranks"][0]["at"] == "2026-11-22T17:21:39.900Z");
    CHECK(report["failed_ranks"][0]["cause"] == "RuntimeError: no memory");
    const auto& first = report["first_failure"];
    CHECK(first["rank"] == 3);
    CHECK(first["signal_name"] == "SIGSEGV");
    CHECK_FALSE(first.contains("exit_code"));
    CHECK(first["last_step"] == 4812);
    CHECK(first["error"] == "RuntimeError: no memory");
    CHECK(first["kernel"] == "Out of memory: Killed process 4242 (python)");
    CHECK(first["last_words"].get<std::string>().ends_with("boom\n\n\xef\xbf\xbd"));
}

TEST_CASE("who started ddprun as torchrun's worker gets an error file of the first failure") {
    rdzv::Verdict verdict = crashed_in_the_second_generation();
    CHECK(error_file_of(verdict, 12) == verdict.first_failure->evidence.error_file);
    verdict.first_failure->evidence.error_file.clear();
    CHECK(rdzv::parse_error_file(error_file_of(verdict, 12)).message == verdict.text);
    const auto file = nlohmann::json::parse(error_file_of(verdict, 12));
    CHECK(file["message"]["extraInfo"]["timestamp"] == "12");
}

TEST_CASE("a failure is reported with its cause, all failed ranks, where to look and last words") {
    CHECK(report_of(crashed_in_the_second_generation()) ==
          "train.py failed: rank 3 on gpu-07 was killed by SIGSEGV\n"
          "  host     rank  end          time                 cause\n"
          "  gpu-07      3  SIGSEGV      18:21:39    +99.9 s  RuntimeError: no memory\n"
          "  gpu-112    11  exit code 1  18:21:39    +99.9 s\n"
          "  and 1 more\n"
          "  worker     rank 3 (local rank 1 on gpu-07), generation 2, pid 4242\n"
          "  last step  4812\n"
          "  logs       /tmp/ddprun-0/llama_01234567/attempt_1/1\n"
          "  run        2026-11-22 18:20:00 to 18:21:39 +0100, 100.0 s\n"
          "  exit code  139\n"
          "  18:20:00     +0.0 s  generation 1 started: 2 nodes, 4 workers\n"
          "  18:20:12    +12.3 s  node gpu-08 died (its connection ended)\n"
          "  18:20:12    +12.4 s  generation 2 started: 1 node, 4 workers\n"
          "  18:21:39    +99.9 s  rank 3 on gpu-07 was killed by SIGSEGV\n"
          "  error      RuntimeError: no memory\n"
          "  last words\n"
          "    | step 41\n"
          "    | Traceback (most recent call last):\n"
          "    |     colour red\n"
          "    | boom\n");
}

TEST_CASE("lines that the console has shown are not repeated in the report") {
    rdzv::Verdict verdict = crashed_in_the_second_generation();
    rdzv::Evidence& evidence = verdict.first_failure->evidence;
    const auto shown = [&verdict](WordsShown are_shown) {
        return format_verdict(verdict, "train.py", kHeard, are_shown);
    };
    CHECK(shown({.err = true}).find("last words") == std::string::npos);
    CHECK(shown({.err = true}).find("  error      RuntimeError: no memory\n") != std::string::npos);
    CHECK(shown({.out = true}).find("  last words\n") != std::string::npos);
    evidence.stdout_tail = "progress\n";
    CHECK(shown({.err = true}).ends_with("  last words on stdout\n    | progress\n"));
    CHECK(shown({.out = true}).find("progress") == std::string::npos);
    CHECK(shown({.out = true}).ends_with("    | boom\n"));
    CHECK(shown({.out = true, .err = true}).find("| ") == std::string::npos);
    evidence.stderr_tail.clear();
    CHECK(shown({.err = true}).ends_with("  last words\n    | progress\n"));
    CHECK(shown({.out = true}).find("last words") == std::string::npos);
}

TEST_CASE("the last step of a worker that told none is not shown") {
    rdzv::Verdict verdict = crashed_in_the_second_generation();
    verdict.first_failure->evidence.progress.reset();
    CHECK(report_of(verdict, "t").find("last step") == std::string::npos);
}

TEST_CASE("a report says which Python ran, and of other programs nothing") {
    rdzv::Verdict verdict = crashed_in_the_second_generation();
    std::string& program = verdict.first_failure->evidence.program;
    program = "/opt/env/bin/python3.11";
    CHECK(report_of(verdict, "t").find(", pid 4242\n  python     /opt/env/bin/python3.11\n") !=
          std::string::npos);
    CHECK(nlohmann::json::parse(
              verdict_json(verdict, "t", kHeard))["first_failure"]["executable"] == program);
    program = "/opt/python/train";
    CHECK(report_of(verdict, "t").find("  python ") == std::string::npos);
}

TEST_CASE("a success without incidents says nothing") {
    rdzv::Verdict verdict;
    verdict.text = "every rank exited 0";
    verdict.timeline = {{Milliseconds(0), "generation 1 started: 1 node, 8 workers"},
                        {Milliseconds(500), "every rank exited 0"}};
    CHECK(report_of(verdict).empty());
}

TEST_CASE("a success with incidents is told as a timeline") {
    rdzv::Verdict verdict;
    verdict.text = "every rank exited 0";
    verdict.timeline = {{Milliseconds(0), "generation 1 started: 1 node, 8 workers"},
                        {Milliseconds(400), "node gpu-02 joined"},
                        {Milliseconds(7500), "every rank exited 0"}};
    CHECK(report_of(verdict) ==
          "train.py finished: every rank exited 0\n"
          "  run        2026-11-22 18:21:32 to 18:21:39 +0100, 7.5 s\n"
          "  18:21:32     +0.0 s  generation 1 started: 1 node, 8 workers\n"
          "  18:21:32     +0.4 s  node gpu-02 joined\n"
          "  18:21:39     +7.5 s  every rank exited 0\n");
}

TEST_CASE("a run without a failed worker names its reason and its exit code") {
    rdzv::Verdict verdict;
    verdict.kind = rdzv::VerdictKind::Incomplete;
    verdict.exit_code = 71;
    verdict.text = "gave up after 600 s: waiting for 1 node more";
    verdict.timeline = {{Milliseconds(600000), "closed"}};
    CHECK(report_of(verdict) ==
          "train.py gave up after 600 s: waiting for 1 node more\n"
          "  run        2026-11-22 18:11:39 to 18:21:39 +0100, 600.0 s\n"
          "  exit code  71\n");
}

TEST_CASE("no line of a report is wrapped or cut, whatever its length") {
    rdzv::Verdict verdict = crashed_in_the_second_generation();
    verdict.first_failure->evidence.stderr_tail.clear();
    for (int i = 0; i < 40; ++i) {
        verdict.first_failure->evidence.stderr_tail +=
            "line " + std::to_string(i) + std::string(200, 'y') + " end\r\n";
    }
    verdict.first_failure->evidence.stderr_tail += std::string(90, '\xff');
    verdict.first_failure->evidence.kernel_note = "kernel " + std::string(300, 'k') + "!";
    verdict.timeline[1].text =
        "died " + std::string(300, 't') + "! logs in /" + std::string(300, 'x');
    const std::string report = report_of(verdict, std::string(200, 'p'));
    CHECK(report.find("line 25") == std::string::npos);
    CHECK(report.find("    | line 26" + std::string(200, 'y') + " end\n") != std::string::npos);
    CHECK(report.find("    | " + [] {
        std::string escaped;
        for (int i = 0; i < 90; ++i) {
            escaped += "\\xff";
        }
        return escaped;
    }() + "\n") != std::string::npos);
    CHECK(report.find("  kernel     kernel " + std::string(300, 'k') + "!\n") != std::string::npos);
    CHECK(report.find("  " + verdict.timeline[1].text + "\n") != std::string::npos);
    CHECK(report.starts_with(std::string(200, 'p') + " failed: rank 3"));
}

TEST_CASE("a traceback that ends in the last words is shown from its beginning") {
    rdzv::Verdict verdict = crashed_in_the_second_generation();
    verdict.first_failure->evidence.error_file.clear();
    std::string& tail = verdict.first_failure->evidence.stderr_tail;
    tail = "before\n[rank3]: Traceback (most recent call last):\n";
    for (int i = 0; i < 20; ++i) {
        tail += "[rank3]:   File \"train.py\", line " + std::to_string(i) + ", in f\n";
    }
    tail += "[rank3]: ModuleNotFoundError: No module named 'x'\n";
    const std::string report = report_of(verdict);
    CHECK(report.find("before") == std::string::npos);
    CHECK(report.find("    | [rank3]: Traceback (most") != std::string::npos);
    CHECK(report.find("line 0, in f") != std::string::npos);
}

TEST_CASE("an error file is told in full: every line of its message, and the traceback") {
    rdzv::Verdict verdict = crashed_in_the_second_generation();
    rdzv::Evidence& evidence = verdict.first_failure->evidence;
    evidence.error_file = nlohmann::json{{"message",
                                          {{"message", "ValueError: a\nb\nc\nd\ne\nf"},
                                           {"extraInfo",
                                            {{"py_callstack",
                                              "Traceback (most recent call last):\n  File "
                                              "\"t.py\", line 3\nKeyError: 'k'\n"}}}}}}
                              .dump();
    evidence.stderr_tail = "unrelated\n";
    CHECK(report_of(verdict).find("  error      ValueError: a\n"
                                  "             b\n"
                                  "             c\n"
                                  "             d\n"
                                  "             e\n"
                                  "             f\n"
                                  "  error\n"
                                  "    | Traceback (most recent call last):\n"
                                  "    |   File \"t.py\", line 3\n"
                                  "    | KeyError: 'k'\n"
                                  "  last words\n"
                                  "    | unrelated\n") != std::string::npos);
    evidence.stderr_tail =
        "[rank3]: Traceback (most recent call last):\n"
        "[rank3]:   File \"t.py\", line 3\n[rank3]: KeyError: 'k'\n";
    CHECK(report_of(verdict).find("  error\n") == std::string::npos);
    const auto report = nlohmann::json::parse(verdict_json(verdict, "train.py", kHeard));
    CHECK(report["first_failure"]["traceback"].get<std::string>().ends_with("KeyError: 'k'\n"));
}

TEST_CASE("a worker's last words are those of either stream") {
    rdzv::Verdict verdict = crashed_in_the_second_generation();
    rdzv::Evidence& evidence = verdict.first_failure->evidence;
    evidence.stdout_tail = "1\n2\n3\n4\n5\n6\n";
    evidence.stderr_tail = "boom\n";
    CHECK(report_of(verdict).find("  last words on stdout\n"
                                  "    | 2\n    | 3\n    | 4\n    | 5\n    | 6\n"
                                  "  last words on stderr\n"
                                  "    | boom\n") != std::string::npos);
    evidence.stderr_tail.clear();
    CHECK(report_of(verdict).find("  last words\n    | 1\n    | 2\n") != std::string::npos);
    const auto report = nlohmann::json::parse(verdict_json(verdict, "train.py", kHeard));
    CHECK(report["first_failure"]["last_words_stdout"] == evidence.stdout_tail);
}

TEST_CASE("times are of the clock on the wall, whenever the verdict is heard") {
    rdzv::Verdict verdict = crashed_in_the_second_generation();
    const std::string before = report_of(verdict);
    verdict.age = Milliseconds(50000);
    const HeardAt later{.unix_ms = kHeard.unix_ms + 50000, .utc_offset_s = 3600};
    CHECK(format_verdict(verdict, "train.py", later) == before);
    const auto report = nlohmann::json::parse(verdict_json(verdict, "train.py", later));
    CHECK(report["started"] == "2026-11-22T17:20:00.000Z");
    CHECK(report["ended"] == "2026-11-22T17:21:39.950Z");
    CHECK(report["first_failure"]["at"] == "2026-11-22T17:21:39.900Z");
    CHECK(report["timeline"][1]["at"] == "2026-11-22T17:20:12.345Z");
    verdict.timeline.back().at = std::chrono::hours(30);
    CHECK(format_verdict(verdict, "t", later).find("2026-11-21 12:21:39") != std::string::npos);
}

TEST_CASE("an error that the last words tell already is not told twice") {
    rdzv::Verdict verdict = crashed_in_the_second_generation();
    verdict.first_failure->evidence.stderr_tail = "RuntimeError: no memory\n";
    CHECK(report_of(verdict, "t").find("  error ") == std::string::npos);
}

TEST_CASE("any bytes become one line of text") {
    CHECK(printable("plain", 80) == "plain");
    CHECK(printable("a\nb\r\t", 80) == "a\\nb\\r\\t");
    CHECK(printable("\x1b[0m\x7f", 80) == "\\x1b[0m\\x7f");
    CHECK(printable("gr\xc3\xbc\xc3\x9f", 80) == "gr\xc3\xbc\xc3\x9f");
    CHECK(printable("\xc3", 80) == "\\xc3");
    CHECK(printable("\xed\xa0\x80", 80) == "\\xed\\xa0\\x80");
    CHECK(printable("\xc2\x9b", 80) == "\\xc2\\x9b");
    CHECK(printable("abcdef", 6) == "abcdef");
    CHECK(printable("abcdefg", 6) == "abcde…");
}

TEST_CASE("signals are called by their names") {
    CHECK(signal_name(SIGTERM) == "SIGTERM");
    CHECK(signal_name(SIGKILL) == "SIGKILL");
    CHECK(signal_name(63) == "signal 63");
}

}  // namespace ddprun::agent
