#include <csignal>
#include <string>

#include <nlohmann/json.hpp>

#include "agent/core/report.hpp"
#include "base/printable.hpp"
#include "base/signal_name.hpp"
#include "tests/support/catch.hpp"

namespace ddprun::agent {

namespace {

rdzv::Verdict crashed_in_the_second_generation() {
    rdzv::FailureReport failure;
    failure.generation = Generation(2);
    failure.rank = Rank(3);
    failure.local_rank = LocalRank(1);
    failure.hostname = "gpu-07";
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
    verdict.timeline = {
        {Milliseconds(0), "generation 1 started: 2 nodes, 4 workers"},
        {Milliseconds(12345), "node gpu-08 died (its connection ended)"},
        {Milliseconds(12400), "generation 2 started: 1 node, 4 workers"},
        {Milliseconds(99900), "rank 3 on gpu-07 was killed by SIGSEGV"},
        {Milliseconds(99950), "rank 3 on gpu-07 was killed by SIGSEGV"},
    };
    return verdict;
}

}  // namespace

TEST_CASE("programs read the same report as JSON, whatever bytes a worker wrote") {
    rdzv::Verdict verdict = crashed_in_the_second_generation();
    verdict.first_failure->evidence.stderr_tail += "\xff";
    verdict.first_failure->evidence.kernel_note = "Out of memory: Killed process 4242 (python)";
    const auto report = nlohmann::json::parse(verdict_json(verdict, "train.py"));
    CHECK(report["verdict"] == "failed");
    CHECK(report["exit_code"] == 139);
    CHECK(report["failures"] == 3);
    CHECK(report["timeline"].size() == 5);
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
    CHECK(error_file_message(error_file_of(verdict, 12)) == verdict.text);
    const auto file = nlohmann::json::parse(error_file_of(verdict, 12));
    CHECK(file["message"]["extraInfo"]["timestamp"] == "12");
}

TEST_CASE("a failure is told with its first cause, where to look and its last words") {
    CHECK(format_verdict(crashed_in_the_second_generation(), "train.py") ==
          "train.py failed: rank 3 on gpu-07 was killed by SIGSEGV\n"
          "  worker     rank 3 (local rank 1 on gpu-07), generation 2, pid 4242\n"
          "  last step  4812\n"
          "  logs       /tmp/ddprun-0/llama_01234567/attempt_1/1\n"
          "  error      RuntimeError: no memory\n"
          "  last words\n"
          "    | step 41\n"
          "    | Traceback (most recent call last):\n"
          "    |     colour \\x1b[31mred\n"
          "    | boom\n"
          "  then       2 other workers failed\n"
          "  exit code  139\n"
          "    +0.0 s  generation 1 started: 2 nodes, 4 workers\n"
          "   +12.3 s  node gpu-08 died (its connection ended)\n"
          "   +12.4 s  generation 2 started: 1 node, 4 workers\n"
          "   +99.9 s  rank 3 on gpu-07 was killed by SIGSEGV\n");
}

TEST_CASE("the last step of a worker that told none is not shown") {
    rdzv::Verdict verdict = crashed_in_the_second_generation();
    verdict.first_failure->evidence.progress.reset();
    CHECK(format_verdict(verdict, "t").find("last step") == std::string::npos);
}

TEST_CASE("a report says which Python ran, and of other programs nothing") {
    rdzv::Verdict verdict = crashed_in_the_second_generation();
    std::string& program = verdict.first_failure->evidence.program;
    program = "/opt/env/bin/python3.11";
    CHECK(format_verdict(verdict, "t").find(", pid 4242\n  python     /opt/env/bin/python3.11\n") !=
          std::string::npos);
    CHECK(nlohmann::json::parse(verdict_json(verdict, "t"))["first_failure"]["executable"] ==
          program);
    program = "/opt/python/train";
    CHECK(format_verdict(verdict, "t").find("  python ") == std::string::npos);
}

TEST_CASE("a success without incidents says nothing") {
    rdzv::Verdict verdict;
    verdict.text = "every rank exited 0";
    verdict.timeline = {{Milliseconds(0), "generation 1 started: 1 node, 8 workers"},
                        {Milliseconds(500), "every rank exited 0"}};
    CHECK(format_verdict(verdict, "train.py").empty());
}

TEST_CASE("a success with incidents is told as a timeline") {
    rdzv::Verdict verdict;
    verdict.text = "every rank exited 0";
    verdict.timeline = {{Milliseconds(0), "generation 1 started: 1 node, 8 workers"},
                        {Milliseconds(400), "node gpu-02 joined"},
                        {Milliseconds(7500), "every rank exited 0"}};
    CHECK(format_verdict(verdict, "train.py") ==
          "train.py finished: every rank exited 0\n"
          "    +0.0 s  generation 1 started: 1 node, 8 workers\n"
          "    +0.4 s  node gpu-02 joined\n"
          "    +7.5 s  every rank exited 0\n");
}

TEST_CASE("a run without a failed worker names its reason and its exit code") {
    rdzv::Verdict verdict;
    verdict.kind = rdzv::VerdictKind::Incomplete;
    verdict.exit_code = 71;
    verdict.text = "gave up after 600 s: waiting for 1 node more";
    CHECK(format_verdict(verdict, "train.py") ==
          "train.py gave up after 600 s: waiting for 1 node more\n"
          "  exit code  71\n");
}

TEST_CASE("no line of a report is wider than 90 columns and only the last lines are shown") {
    rdzv::Verdict verdict = crashed_in_the_second_generation();
    verdict.first_failure->evidence.stderr_tail.clear();
    for (int i = 0; i < 40; ++i) {
        verdict.first_failure->evidence.stderr_tail +=
            "line " + std::to_string(i) + std::string(200, '\xff') + "\r\n";
    }
    verdict.first_failure->evidence.log_dir = std::string(300, 'x');
    const std::string report = format_verdict(verdict, std::string(200, 'p'));
    CHECK(report.find("line 24") == std::string::npos);
    CHECK(report.find("line 25") != std::string::npos);
    std::size_t start = 0;
    while (start < report.size()) {
        const std::size_t end = report.find('\n', start);
        REQUIRE(end != std::string::npos);
        std::size_t columns = 0;
        for (std::size_t i = start; i < end; ++i) {
            columns += (static_cast<unsigned char>(report[i]) & 0xc0U) != 0x80 ? 1 : 0;
        }
        CHECK(columns <= 90);
        start = end + 1;
    }
}

TEST_CASE("an error file is read in both of its forms, and only if it can be") {
    CHECK(error_file_message(R"({"message": "plain"})") == "plain");
    CHECK(error_file_message(R"({"message": {"message": "nested"}})") == "nested");
    CHECK(error_file_message("").empty());
    CHECK(error_file_message("{").empty());
    CHECK(error_file_message("[1]").empty());
    CHECK(error_file_message(R"({"message": 3})").empty());
    CHECK(error_file_message(std::string(60000, '[')).empty());
}

TEST_CASE("an error that the last words tell already is not told twice") {
    rdzv::Verdict verdict = crashed_in_the_second_generation();
    verdict.first_failure->evidence.stderr_tail = "RuntimeError: no memory\n";
    CHECK(format_verdict(verdict, "t").find("  error ") == std::string::npos);
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
