// The example's unmodified PyTorch training, killed in the middle and resumed.

#include <signal.h>

#include <map>
#include <string>
#include <vector>

#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"
#include "tests/support/places.hpp"

using namespace ddprun::test;

TEST_CASE("a PyTorch training survives the loss of a node and goes on from its checkpoint") {
    const std::string python = DDPRUN_TORCH_PYTHON;
    if (python.empty()) {
        WARN(
            "SKIPPED: no Python with torch was found, run scripts/setup.sh; no training is tested");
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
