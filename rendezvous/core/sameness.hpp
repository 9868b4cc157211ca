#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "rendezvous/wire/messages.hpp"

/// Whether the nodes of a job run the same program, Python, torch, NCCL and driver. A value that a
/// node does not know equals any value. Nodes with other roles may run other programs.
namespace ddprun::rdzv {

struct Run;
struct Step;

/// By what differs, the two values that were told of last: each difference is told once.
using DifferencesTold = std::map<std::string_view, std::pair<std::string, std::string>>;

/// Why the node that joins may not be with those who are here, where that is asked; empty: it may.
[[nodiscard]] std::string objection_as_unlike(const Run& run, const Join& join);

/// Tells how the nodes of the generation that has just started differ: to its first node and on the
/// timeline.
void tell_differences(Step& step);

}  // namespace ddprun::rdzv
