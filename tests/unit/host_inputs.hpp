#pragma once

#include <string>

#include "base/instant.hpp"
#include "base/tagged.hpp"
#include "rendezvous/wire/messages.hpp"

/// Inputs of the tests of hosts.
namespace ddprun::rdzv::test {

inline Instant at(int ms) {
    return Instant(Milliseconds(100000 + ms));
}

/// Returns the join of the only node of a job, with one worker.
inline Join join_of(const JobId& job, const std::string& node, const std::string& process) {
    Join join;
    join.job = job;
    join.node = NodeId(node);
    join.process = process;
    join.hostname = node;
    join.slots = 1;
    join.settings.min_nodes = 1;
    join.settings.max_nodes = 1;
    join.store = {.host = "10.0.0.1", .port = 4000};
    return join;
}

}  // namespace ddprun::rdzv::test
