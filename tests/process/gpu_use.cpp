// ddprun-gpu-use on real processes, with the library of tests/unit/plan_fake_nvml.cpp in the
// driver's place.

#include <unistd.h>

#include <map>
#include <string>

#include "agent/process/children.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"

using namespace ddprun;
using namespace ddprun::test;

namespace {

/// Two workers, the first of which sees the first of the GPUs, the second the second.
struct Gpus {
    Gpus()
        : first(cluster.start({.argv = {"/bin/sleep", "1000"},
                               .env = {{"CUDA_VISIBLE_DEVICES", "0"}},
                               .cwd = {},
                               .name = {}})),
          second(cluster.start({.argv = {"/bin/sh", "-c", "sleep 1000 & echo ready; wait"},
                                .env = {{"CUDA_VISIBLE_DEVICES", "1"}},
                                .cwd = {},
                                .name = {}})) {
        second.wait_for_line("ready");
    }

    /// Exit code of a look at the last `milliseconds`, when the driver says `use`.
    int look(const std::string& use, const std::string& milliseconds = "60000") {
        const std::string path = cluster.dir() / "use";
        write_file(path, use);
        return cluster
            .start({.argv = {Cluster::program("ddprun-gpu-use"), milliseconds, pid_of(first),
                             pid_of(second)},
                    .env = {{"LD_LIBRARY_PATH", DDPRUN_FAKE_NVML}, {"DDPRUN_FAKE_GPU_USE", path}},
                    .cwd = {},
                    .name = {}})
            .wait_exit();
    }
    static std::string pid_of(const Process& process) { return std::to_string(process.pid()); }

    Cluster cluster;
    Process& first;
    Process& second;
};

constexpr int kUsed = 0;
constexpr int kNotUsed = 1;

}  // namespace

TEST_CASE("GPUs are used if a worker, or what descends from it, has touched their memory lately") {
    Gpus gpus;
    const std::vector<int> below = agent::descendants_of(gpus.second.pid());
    REQUIRE(below.size() == 1);
    const std::string worker = Gpus::pid_of(gpus.first);
    const std::string descendant = std::to_string(below[0]);
    CHECK(gpus.look("") == kNotUsed);
    CHECK(gpus.look("process 1 " + worker + " 1 100\n") == kUsed);
    CHECK(gpus.look("process 0 " + descendant + " 50 100\n") == kUsed);
    // Too long ago; a kernel that only waits; somebody else's.
    CHECK(gpus.look("process 1 " + worker + " 90 5000\n", "4000") == kNotUsed);
    CHECK(gpus.look("process 1 " + worker + " 0 100\n") == kNotUsed);
    CHECK(gpus.look("process 1 1 90 100\n") == kNotUsed);
}

TEST_CASE("where the driver does not tell who uses a GPU, anybody's use of those seen counts") {
    Gpus gpus;
    CHECK(gpus.look("untold\nmemory 0 20\n") == kUsed);
    CHECK(gpus.look("untold\nmemory 1 20\n") == kUsed);
    CHECK(gpus.look("untold\n") == kNotUsed);
    gpus.first.signal(9);
    CHECK(gpus.first.wait_exit() == -9);
    CHECK(gpus.look("untold\nmemory 0 20\n") == kNotUsed);
    CHECK(gpus.look("untold\nmemory 1 20\n") == kUsed);
}

TEST_CASE("without a driver nothing is used, and without sense nothing is done") {
    Cluster cluster;
    const auto exit_of = [&cluster](std::vector<std::string> arguments) {
        arguments.insert(arguments.begin(), Cluster::program("ddprun-gpu-use"));
        return cluster.start({.argv = arguments, .env = {}, .cwd = {}, .name = {}}).wait_exit();
    };
    CHECK(exit_of({"1000", std::to_string(::getpid())}) == kNotUsed);
    CHECK(exit_of({"1000", "1x"}) == 2);
    CHECK(exit_of({}) == 2);
}
