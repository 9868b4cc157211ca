#pragma once

#include <string>

#include "rendezvous/core/coordinator.hpp"
#include "rendezvous/core/run.hpp"

namespace ddprun::sim {

/// One line each, without what differs from seed to seed (tokens, digests).
[[nodiscard]] std::string render(const rdzv::RendezvousMessage& message);
[[nodiscard]] std::string render(const rdzv::Phase& phase);
[[nodiscard]] std::string render_duration(Duration duration);  ///< "1.5s", "200ms"

}  // namespace ddprun::sim
