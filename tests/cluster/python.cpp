// Trainings in Python: PyTorch's own, unmodified, and those that use the package `ddprun`.

#include <signal.h>

#include <map>
#include <regex>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"
#include "tests/support/places.hpp"

using namespace ddprun::test;

namespace {

std::string torch_python() {
    const std::string python = DDPRUN_TORCH_PYTHON;
    if (python.empty()) {
        WARN(
            "SKIPPED: no Python with torch was found, run scripts/setup.sh; no training is tested");
    }
    return python;
}

/// Environment in which `python` finds the package without installing it.
std::map<std::string, std::string> with_package(const std::string& python) {
    return {{"PYTHON_EXEC", python}, {"PYTHONPATH", source_dir() + "/worker_runtime/python"}};
}

std::string asks_each_step() {
    return source_dir() + "/tests/cluster/workers/asks_each_step.py";
}

/// The step after which `rank` has left.
std::string last_step(Process& node, int rank) {
    const std::string line =
        node.wait_for_line("^rank " + std::to_string(rank) + " leaves after step ");
    std::smatch found;
    REQUIRE(std::regex_search(line, found, std::regex("after step ([0-9]+)")));
    return found[1];
}

}  // namespace

TEST_CASE("on SIGTERM all ranks of a training in Python leave after the same step") {
    const std::string python = torch_python();
    if (python.empty()) {
        return;
    }
    Cluster cluster;
    Process& node =
        cluster.start_ddprun({"--nproc-per-node", "2", asks_each_step()}, with_package(python));
    node.wait_for_lines("^rank [01] trains$", 2);
    node.signal(SIGTERM);
    CHECK(node.wait_exit() == 128 + SIGTERM);
    CHECK(last_step(node, 0) == last_step(node, 1));
    CHECK(node.count_lines("failed|exited with code|terminate called") == 0);
    cluster.wait_all_gone();
}

TEST_CASE("when only one node is asked, the ranks of all leave after the same step") {
    const std::string python = torch_python();
    if (python.empty()) {
        return;
    }
    Cluster cluster;
    const FreePort port;
    const std::vector<std::string> args = {
        "--nnodes",      "2",     "--nproc-per-node", "1",
        "--rdzv-id",     "stops", "--rdzv-endpoint",  port.endpoint(),
        asks_each_step()};
    Process& a = cluster.start_ddprun(args, with_package(python));
    Process& b = cluster.start_ddprun(args, with_package(python));
    a.wait_for_line("^rank [01] trains$");
    b.wait_for_line("^rank [01] trains$");
    a.signal(SIGTERM);
    CHECK(a.wait_exit() == 128 + SIGTERM);
    b.wait_for_line("^rank [01] leaves");
    b.signal(SIGTERM);  // it waits for another node
    CHECK(b.wait_exit() == 128 + SIGTERM);
    Process& first = a.count_lines("^rank 0 leaves") > 0 ? a : b;
    Process& second = &first == &a ? b : a;
    CHECK(last_step(first, 0) == last_step(second, 1));
    CHECK(a.count_lines("terminate called") + b.count_lines("terminate called") == 0);
    cluster.wait_all_gone();
}

TEST_CASE("a training in Python knows why the last generation ended, and its last step is told") {
    const std::string python = torch_python();
    if (python.empty()) {
        return;
    }
    Cluster cluster;
    Process& node = cluster.start_ddprun(
        {"--max-restarts", "1", "--nproc-per-node", "2", asks_each_step(), "--aborts-after", "3"},
        with_package(python));
    CHECK(node.wait_exit() == 128 + SIGABRT);
    CHECK(node.count_lines("^generation 1 restarts 0 reason ''$") == 2);
    CHECK(node.count_lines("^generation 2 restarts 1 reason 'rank 1 on .* SIGABRT.*'$") == 2);
    CHECK(node.count_lines("^  last step  3$") == 1);
    cluster.wait_all_gone();
}

TEST_CASE("the example that asks is stopped after a step and goes on from its checkpoint") {
    const std::string python = torch_python();
    if (python.empty()) {
        return;
    }
    Cluster cluster;
    const std::vector<std::string> args = {
        "--nproc-per-node",
        "2",
        source_dir() + "/examples/python_ddp/train_with_ddprun.py",
        "--epochs",
        "100000",
        "--checkpoint-dir",
        cluster.dir() / "checkpoints"};
    Process& first = cluster.start_ddprun(args, with_package(python));
    first.wait_for_line("^epoch 1/");
    first.signal(SIGTERM);
    CHECK(first.wait_exit() == 128 + SIGTERM);
    CHECK(first.count_lines("failed|exited with code|terminate called") == 0);
    const std::vector<std::string> saved = list_folder(cluster.dir() / "checkpoints");
    Process& second = cluster.start_ddprun(args, with_package(python));
    const std::string resumed = second.wait_for_line("^resumed from step ");
    second.signal(SIGTERM);
    CHECK(second.wait_exit() == 128 + SIGTERM);
    REQUIRE_FALSE(saved.empty());
    const std::string step = resumed.substr(std::string("resumed from step ").size());
    CHECK(saved.back() == fmt::format("step-{:012}", std::stoll(step)));
    CHECK(std::stoul(step) >= 23 * first.count_lines("^epoch "));  // steps of an epoch
    cluster.wait_all_gone();
}

TEST_CASE("the example that was stopped within an epoch ends as the one that was not") {
    const std::string python = torch_python();
    if (python.empty()) {
        return;
    }
    Cluster cluster;
    const auto start = [&](const std::string& folder) -> Process& {
        return cluster.start_ddprun(
            {"--nproc-per-node", "2", source_dir() + "/examples/python_ddp/train_with_ddprun.py",
             "--epochs", "6", "--min-epoch-seconds", "0.2", "--checkpoint-dir",
             cluster.dir() / folder},
            with_package(python));
    };
    Process& whole = start("whole");
    const std::string wanted = whole.wait_for_line("^parameters ");
    CHECK(whole.wait_exit() == 0);
    Process& stopped = start("stopped");
    stopped.wait_for_line("^epoch 2/6");
    stopped.signal(SIGTERM);
    CHECK(stopped.wait_exit() == 128 + SIGTERM);
    CHECK(stopped.count_lines("^parameters ") == 0);
    Process& resumed = start("stopped");
    CHECK(resumed.wait_for_line("^parameters ") == wanted);
    CHECK(resumed.count_lines("^resumed from step ") == 1);
    CHECK(resumed.wait_exit() == 0);
    cluster.wait_all_gone();
}

TEST_CASE("a PyTorch training survives the loss of a node and goes on from its checkpoint") {
    const std::string python = torch_python();
    if (python.empty()) {
        return;
    }
    Cluster cluster;
    const FreePort port;
    const std::vector<std::string> args = {"--nnodes",
                                           "1:2",
                                           "--nproc-per-node",
                                           "1",
                                           "--rdzv-id",
                                           "digits",
                                           "--rdzv-endpoint",
                                           port.endpoint(),
                                           "--rdzv-conf",
                                           "last_call_timeout=10,grow_delay=0",
                                           source_dir() + "/examples/python_ddp/train.py",
                                           "--epochs",
                                           "6",
                                           "--min-epoch-seconds",
                                           "0.3",
                                           "--checkpoint-dir",
                                           cluster.dir() / "checkpoints"};
    const std::map<std::string, std::string> env = {{"PYTHON_EXEC", python}};
    Process& a = cluster.start_ddprun(args, env);
    Process& b = cluster.start_ddprun(args, env);
    const auto is_said = [&](const std::string& pattern) {
        return a.count_lines(pattern) + b.count_lines(pattern) > 0;
    };
    cluster.wait_until("epoch 2 is done", [&] { return is_said("^epoch 2/6"); });
    CHECK(is_said("^training on 2 workers"));
    // The node of rank 0, which alone prints and holds the workers' store.
    Process& killed = a.count_lines("^epoch 2/6") > 0 ? a : b;
    Process& survivor = &killed == &a ? b : a;
    killed.signal(SIGKILL);
    survivor.wait_for_line("^resumed from epoch-");
    survivor.wait_for_line("^training on 1 workers");
    CHECK(survivor.wait_exit() == 0);
    CHECK(survivor.count_lines("^finished 6 epochs") == 1);
    CHECK(survivor.count_lines("^epoch 1/6") == 0);
    cluster.wait_all_gone();
}
