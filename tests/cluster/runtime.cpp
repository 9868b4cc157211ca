// How a training in C++ ends under ddprun: what its exit code is, and what is told of a failure.

#include <signal.h>

#include <string>

#include <nlohmann/json.hpp>

#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"

using namespace ddprun::test;

namespace {

constexpr const char* kPeer = DDPRUN_TESTS_DIR "/runtime_peer";

struct Failed {
    std::string text;
    nlohmann::json report;
    nlohmann::json error_file;
};

/// Two ranks of which the second fails in this way.
Failed fail(const std::string& how, const std::string& stacktraces = "0") {
    Cluster cluster;
    const std::string error_file = cluster.dir() / "error.json";
    Process& job = cluster.start_ddprun(
        {"--nproc-per-node", "2", "--max-restarts", "0", kPeer, "fails", how},
        {{"TORCHELASTIC_ERROR_FILE", error_file}, {"TORCH_SHOW_CPP_STACKTRACES", stacktraces}});
    CHECK(job.wait_exit() == 1);
    cluster.wait_all_gone();
    return {.text = job.text(),
            .report = nlohmann::json::parse(read_file(cluster.dir() / "logs/latest/report.json")),
            .error_file = nlohmann::json::parse(read_file(error_file))};
}

}  // namespace

TEST_CASE("what a C++ training throws is told with its rank, and is the first failure") {
    const auto [how, what] = GENERATE(
        table<std::string, std::string>({{"program", "the loss is nan at step 12"},
                                         {"libtorch",
                                          "mat1 and mat2 shapes cannot be multiplied "
                                          "(2x3 and 2x3)"},
                                         {"result", "broadcast was refused on rank 1 of 2: "},
                                         {"no exception",
                                          "an exception that is no "
                                          "std::exception"}}));
    const Failed failed = fail(how);
    INFO(failed.text);
    CHECK_THAT(failed.text, Catch::Contains("runtime_peer: rank 1 of 2: " + what));
    CHECK(failed.report["first_failure"]["rank"] == 1);
    CHECK_THAT(failed.error_file["message"]["message"].get<std::string>(), Catch::StartsWith(what));
    CHECK(failed.text.find("frame #") == std::string::npos);
}

TEST_CASE("LibTorch's backtrace is shown to those who ask for it") {
    const Failed failed = fail("libtorch", "1");
    INFO(failed.text);
    CHECK_THAT(failed.text, Catch::Contains("mat1 and mat2 shapes cannot be multiplied") &&
                                Catch::Contains("frame #"));
}

TEST_CASE("a C++ training that leaves when asked ends the job in order") {
    // The second time with a store that rank 0 serves.
    const std::string own_store = GENERATE("0", "1");
    Cluster cluster;
    Process& job = cluster.start_ddprun({"--nproc-per-node", "2", kPeer, "until_asked"},
                                        {{"TORCH_DISABLE_SHARE_RDZV_TCP_STORE", own_store}});
    job.wait_for_lines("trains", 2);
    job.signal(SIGTERM);
    CHECK(job.wait_exit() == 128 + SIGTERM);
    CHECK(job.count_lines("left together, deadline true") == 2);
    CHECK(job.count_lines("runtime_peer: ") == 0);
    cluster.wait_all_gone();
}
