// ddprun-gpu-use on real processes, with the library of tests/unit/plan_fake_nvml.cpp in the
// driver's place.

#include <unistd.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "agent/process/children.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"
#include "tests/support/process_numbers.hpp"

using namespace ddprun;
using namespace ddprun::test;

namespace {

/// The program, asked these questions, once it has ended.
Process& answers(Cluster& cluster, const std::vector<std::string>& questions,
                 const std::map<std::string, std::string>& env = {}) {
    std::string text;
    for (const std::string& question : questions) {
        text += question + "\n";
    }
    write_file(cluster.dir() / "questions", text);
    Process& program = cluster.start(
        {.argv = {"/bin/sh", "-c", "exec \"$0\" < questions", Cluster::program("ddprun-gpu-use")},
         .env = env,
         .cwd = {},
         .name = {}});
    (void)program.wait_exit();
    return program;
}

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

    /// The answer about the last `milliseconds`, when the driver says `use`.
    std::string look(const std::string& use, const std::string& milliseconds = "60000") {
        const std::string path = cluster.dir() / "use";
        write_file(path, use);
        return answers(cluster,
                       {"use " + milliseconds + " " + pid_of(first) + " " + pid_of(second)},
                       {{"LD_LIBRARY_PATH", DDPRUN_FAKE_NVML}, {"DDPRUN_FAKE_GPU_USE", path}})
            .out();
    }
    static std::string pid_of(const Process& process) { return std::to_string(process.pid()); }

    Cluster cluster;
    Process& first;
    Process& second;
};

constexpr const char* kUsed = "used\n";
constexpr const char* kNotUsed = "unused\n";
constexpr std::uint64_t kUsual = std::uint64_t{20} << 30;  ///< in use when nothing is held

/// The answers when memory is asked for `questions` one after the other.
std::string ask_memory(const std::string& use, const std::vector<std::string>& questions,
                       const std::string& visible = "0,1") {
    Cluster cluster;
    const std::string path = cluster.dir() / "use";
    write_file(path, use);
    return answers(cluster, questions,
                   {{"LD_LIBRARY_PATH", DDPRUN_FAKE_NVML},
                    {"DDPRUN_FAKE_GPU_USE", path},
                    {"CUDA_VISIBLE_DEVICES", visible}})
        .out();
}

std::string memory(std::uint64_t first, std::uint64_t second) {
    return "0:" + std::to_string(first) + " 1:" + std::to_string(second) + "\n";
}

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
    // Too long ago; a kernel that only waits; another process's use.
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

TEST_CASE("memory in use is what no living process holds, of the GPUs that are seen and tell") {
    const std::string usual = "0:" + std::to_string(kUsual);
    CHECK(ask_memory("held 1 100 2 3\n", {"memory", "memory", "memory 0:1 1:1", "memory"}) ==
          memory(kUsual, kUsual) + memory(kUsual, kUsual + 100) + memory(kUsual, kUsual + 100) +
              memory(kUsual, kUsual));
    CHECK(ask_memory("", {"memory"}, "0,1,2") == memory(kUsual, kUsual));
    CHECK(ask_memory("", {"memory"}, "0") == usual + "\n");
    CHECK(ask_memory("", {"memory"}, "") == "\n");
}

TEST_CASE("memory that a living process holds is not in use for nobody") {
    if (!is_in_first_namespace()) {
        return;
    }
    // This test lives; no process has the other number.
    const std::string ours = std::to_string(::getpid());
    const std::string nobodys = "4194305";
    CHECK(ask_memory("holder 1 " + ours + " 70\nholder 1 " + nobodys + " 7\n", {"memory"}) ==
          memory(kUsual, kUsual - 70));
    // A GPU is left out if the driver does not report a holder's memory. The driver is not asked
    // for holders if they cannot matter.
    CHECK(
        ask_memory("holder 0 " + ours + " -\n", {"memory", "memory 0:" + std::to_string(kUsual)}) ==
        "1:" + std::to_string(kUsual) + "\n" + memory(kUsual, kUsual));
}

TEST_CASE("without a driver nothing is used, and without sense nothing is answered") {
    Cluster cluster;
    CHECK(answers(cluster, {"use 1000 " + std::to_string(::getpid()), "memory 0:1"}).out() ==
          "unused\n\n");
    for (const char* nonsense : {"use 1000 1x", "use 1000 0", "use", "memory 0", "", "reset 0"}) {
        CAPTURE(nonsense);
        Process& program = answers(cluster, {nonsense});
        CHECK(program.wait_exit() == 2);
        CHECK(program.out().empty());
    }
    Process& by_hand = cluster.start({.argv = {Cluster::program("ddprun-gpu-use"), "1000", "1"},
                                      .env = {},
                                      .cwd = {},
                                      .name = {}});
    CHECK(by_hand.wait_exit() == 2);
}
