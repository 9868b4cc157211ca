#pragma once

#include <string>
#include <vector>

#include "tests/cluster/nodes.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"

namespace ddprun::test {

/// A job of two nodes or three. Workers run until the file `end` exists and leave at once when they
/// are told. Those of generation 2 read the page and say `isolated` once they may be replaced.
inline Job watched_job(const Cluster& cluster, const std::string& endpoint) {
    Job job;
    job.nnodes = "2:3";
    job.endpoint = endpoint;
    job.script = {"--exit-on-signal",
                  "15",
                  "0",
                  "--when-generation",
                  "2",
                  "--attach-page",
                  "--wait-for-isolation",
                  "0",
                  "--always",
                  "--print",
                  "--when-generation",
                  "2",
                  "--wait-for-isolation",
                  "1",
                  "--say",
                  "isolated",
                  "--hang",
                  "--always",
                  "--wait-for-file",
                  cluster.dir() / "end"};
    return job;
}

inline std::string world_in(int world, int generation) {
    return "^worker .* world=" + std::to_string(world) +
           " .* generation=" + std::to_string(generation) + " restarts=0 ";
}

inline void finish(Cluster& cluster, const std::vector<Process*>& nodes) {
    touch(cluster.dir() / "end");
    for (Process* node : nodes) {
        CHECK(node->wait_exit() == 0);
    }
}

/// Checks a job around a fault that silences one of three nodes, and its end: the node is declared
/// dead and the others go on without it, its workers know that they may be replaced, and when it is
/// back they are ended before it counts again.
template <typename Fault, typename Healing>
void live_without(Process& daemon, Cluster& cluster, const std::vector<Process*>& nodes,
                  const Fault& fault, const Healing& healing) {
    Process& silent = *nodes.at(2);
    const std::string held = silent.wait_for_line(world_in(3, 2));
    const UniqueFd zombie = Cluster::watch(field(held, "pid"));
    for (Process* node : nodes) {
        node->wait_for_line(world_in(3, 2));
    }
    fault();
    daemon.wait_for_line("test: node .* was silent for [0-9]+ ms");
    int ranks = 0;
    for (Process* node : {nodes.at(0), nodes.at(1)}) {
        ranks += 1 + field(node->wait_for_line(world_in(2, 3)), "rank");
    }
    CHECK(ranks == 3);  // 0 and 1
    silent.wait_for_line("^isolated$");
    CHECK(silent.count_lines(place_in(3)) == 0);
    healing();
    cluster.wait_gone(zombie);
    for (Process* node : nodes) {
        node->wait_for_line(world_in(3, 4));
    }
    CHECK(daemon.count_lines("test: node .* was silent for") == 1);
}

}  // namespace ddprun::test
