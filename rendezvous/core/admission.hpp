#pragma once

#include <string>

#include "base/limits.hpp"
#include "base/tagged.hpp"
#include "rendezvous/core/coordinator.hpp"
#include "rendezvous/wire/messages.hpp"

/// Admission of nodes: first joins and returns of every kind.
namespace ddprun::rdzv {

class Node;
struct Step;

/// Why no run may be opened or joined with `message`, whatever its state; empty if it makes sense.
[[nodiscard]] std::string fault_of(const Join& message, const Limits& limits);
void refuse(Effects& out, ConnectionId connection, const std::string& text, int exit_code);
void join(Step& step, ConnectionId connection, const Join& message);
/// `connection` is the node's voice from now on, and is told so.
void attach(Step& step, Node& node, ConnectionId connection);

}  // namespace ddprun::rdzv
