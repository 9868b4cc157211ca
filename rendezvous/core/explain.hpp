#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/instant.hpp"
#include "rendezvous/wire/messages.hpp"

/// Explanations for people: the nodes and events that a run waits for.
namespace ddprun::rdzv {

struct Run;
struct Step;

/// There is news for those who wait. They are told at once, or with all that changes within
/// Limits::explain_gather of the last time: each of thousands that come is news to all others.
void explain_soon(Step& step);
/// Tells the nodes that wait what has changed, when it is time.
void explain_waits(Step& step);
/// On the console of group rank 0's node, which waits for nothing while a generation exists.
void tell_head(Step& step, const std::string& text);
/// On the console of every node.
void tell_all(Step& step, const std::string& text);

/// "a, b", and only the first of very many.
[[nodiscard]] std::string list_of(const std::vector<std::string>& names);
[[nodiscard]] std::string explain_run(const Run& run, Instant now);
[[nodiscard]] std::string names_here(const Run& run);  ///< of the ready nodes
/// "c is not fit (...)", of those that said so and are not here; empty if there are none.
[[nodiscard]] std::string names_unfit(const Run& run, Instant now);
/// "; with --store-relay ...", where the workers' store serves more than these so; else empty.
[[nodiscard]] std::string hint_of_relays(int workers_max);
[[nodiscard]] std::string node_count(std::size_t count);  ///< "1 node", "3 nodes"

}  // namespace ddprun::rdzv
