#pragma once

#include <string>
#include <vector>

#include "tests/support/cluster.hpp"

namespace ddprun::test {

/// The settings that start every node of one job.
struct Job {
    std::string nnodes = "2";
    int slots = 1;
    std::string endpoint;
    std::string id = "test";
    std::vector<std::string> flags;   ///< further ones
    std::vector<std::string> script;  ///< of the test worker
};

/// The arguments of a ddprun of `job`. It starts as soon as the minimum of nodes has come and grows
/// at once; `flags` are this node's own.
inline std::vector<std::string> node_args(const Job& job,
                                          const std::vector<std::string>& flags = {}) {
    std::vector<std::string> args = {"--nnodes",         job.nnodes,
                                     "--nproc-per-node", std::to_string(job.slots),
                                     "--rdzv-id",        job.id,
                                     "--rdzv-endpoint",  job.endpoint,
                                     "--rdzv-conf",      "last_call_timeout=0,grow_delay=0"};
    args.insert(args.end(), job.flags.begin(), job.flags.end());
    args.insert(args.end(), flags.begin(), flags.end());
    args.push_back(Cluster::worker());
    args.insert(args.end(), job.script.begin(), job.script.end());
    return args;
}

inline Process& start_node(Cluster& cluster, const Job& job,
                           const std::vector<std::string>& flags = {}) {
    return cluster.start_ddprun(node_args(job, flags));
}

/// The pattern of a test worker's --print line in `generation`.
inline std::string place_in(int generation) {
    return "^worker .* generation=" + std::to_string(generation) + " ";
}

}  // namespace ddprun::test
