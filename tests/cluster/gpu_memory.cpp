// The next generation starts when the GPU memory of the last one is freed, with the library of
// tests/unit/plan_fake_nvml.cpp in the driver's place.

#include <algorithm>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"
#include "tests/support/process_numbers.hpp"

using namespace ddprun::test;

namespace {

constexpr const char* kHeld = "warning: 4 s after all workers were gone GPU 0 holds 20.0 GiB more";
constexpr const char* kUnanswered = "warning: NVIDIA's driver does not answer";

/// ddprun with a driver that does as `use` says. Its worker, which is started again whenever it
/// fails, runs `script` in the folder of the driver's marks. The driver makes use.memory1 when it
/// first reports how much memory is in use, before the workers. `fail` in the script waits for
/// use.memory1 and then fails.
struct Job {
    Job(const std::string& use, const std::string& script) {
        std::filesystem::create_directory(folder());
        write_file(folder() + "/use", use);
        write_file(folder() + "/script", "cd " + folder() + "\nfail() { exec " + Cluster::worker() +
                                             " --wait-for-file use.memory1 --exit-code 3; }\n" +
                                             script);
        node = &cluster.start_ddprun(
            {"--max-restarts", "50", "--no-python", "/bin/sh", folder() + "/script"},
            {{"LD_LIBRARY_PATH", DDPRUN_FAKE_NVML}, {"DDPRUN_FAKE_GPU_USE", folder() + "/use"}});
    }

    [[nodiscard]] std::string folder() const { return cluster.dir() / "gpus"; }

    /// How often the driver had told by the start of each generation.
    [[nodiscard]] std::vector<int> told_before_starts() const {
        std::istringstream text(read_file(folder() + "/started"));
        std::vector<int> counts;
        for (int count = 0; text >> count;) {
            counts.push_back(count);
        }
        return counts;
    }

    Cluster cluster;
    Process* node = nullptr;
};

constexpr const char* kNoteStart = "ls | grep -c memory >> started\n";

}  // namespace

TEST_CASE("no generation starts while the driver still counts memory of the last one") {
    // The second to the fourth time it is asked.
    Job job("held 0 21474836480 2 4\n",
            std::string(kNoteStart) + "test -e use.memory5 && exit 0\nfail\n");
    CHECK(job.node->wait_exit() == 0);
    const std::vector<int> told = job.told_before_starts();
    REQUIRE(told.size() >= 2);
    CHECK(told.front() <= 1);
    CHECK(told.back() >= 5);
    CHECK(std::none_of(told.begin(), told.end(), [](int n) { return n >= 2 && n <= 4; }));
    CHECK(job.node->count_lines("warning: ") == 0);
    job.cluster.wait_all_gone();
}

TEST_CASE("memory that others hold is not waited for") {
    if (!is_in_first_namespace()) {
        return;
    }
    // Process 1 comes after the first workers.
    Job job("held 0 21474836480 2 1000\n",
            std::string(kNoteStart) + "test -e use.memory2 && exit 0\n" + Cluster::worker() +
                " --wait-for-file use.memory1\necho holder 0 1 21474836480 >> use\nexit 3\n");
    CHECK(job.node->wait_exit() == 0);
    CHECK(job.told_before_starts().back() == 2);
    job.cluster.wait_all_gone();
}

TEST_CASE("memory that is never freed is named, and the next generation starts, once for all") {
    Job job("held 0 21474836480 2 1000\n",
            "test -e third && exit 0\n"
            "test -e use.memory2 && touch third && exit 3\nfail\n");
    CHECK(job.node->wait_exit() == 0);
    CHECK(job.node->count_lines(kHeld) == 1);
    CHECK(job.node->count_lines("waiting for the GPU memory of the last workers") >= 1);
    job.cluster.wait_all_gone();
}

TEST_CASE("a driver that does not answer any more is given up once, with a line") {
    Job job("",
            "test -e third && exit 0\n"
            "test -e use.blocked1 && touch third && exit 3\n"
            "test -e use.memory1 && echo block-memory > use\nfail\n");
    CHECK(job.node->wait_exit() == 0);
    CHECK(job.node->count_lines(kUnanswered) == 1);
    CHECK_FALSE(std::filesystem::exists(job.folder() + "/use.blocked2"));
    job.cluster.wait_all_gone();
}

TEST_CASE("a driver that has never answered holds up nothing, and nobody survives in it") {
    SECTION("the job ends") {
        Job job("block-memory\n", "test -e second && exit 0\ntouch second\nexec " +
                                      Cluster::worker() +
                                      " --wait-for-file use.blocked1 --exit-code 3\n");
        CHECK(job.node->wait_exit() == 0);
        CHECK(job.node->count_lines("warning: ") == 0);
        job.cluster.wait_all_gone();
    }
    SECTION("the agent is killed") {
        Job job("block-memory\n",
                "exec " + Cluster::worker() + " --wait-for-file use.blocked1 --print --hang\n");
        job.node->wait_for_line("^worker ");
        job.node->signal(9);
        CHECK(job.node->wait_exit() == -9);
        job.cluster.wait_all_gone();
    }
}
