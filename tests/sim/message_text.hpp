#pragma once

#include <string>

#include "rendezvous/wire/messages.hpp"

namespace ddprun::sim {

/// "Stopped 3 10.0.0.2:1007", for traces.
[[nodiscard]] std::string message_text(const rdzv::AgentMessage& message);
[[nodiscard]] std::string message_text(const rdzv::RendezvousMessage& message);

/// The generation that `message` speaks of; 0 if of none.
[[nodiscard]] Generation generation_of(const rdzv::AgentMessage& message);

}  // namespace ddprun::sim
