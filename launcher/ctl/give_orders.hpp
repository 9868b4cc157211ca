#pragma once

#include <optional>
#include <string>

#include "base/instant.hpp"
#include "base/result.hpp"
#include "launcher/ctl/rendezvous_events.hpp"
#include "rendezvous/wire/control.hpp"
#include "rendezvous/wire/secret.hpp"

namespace ddprun::launcher {

/// Reads a time of whole seconds: "90", "90s", "10m", "2h". Returns nothing if it is no time.
[[nodiscard]] std::optional<Milliseconds> parse_time(const std::string& text);

/// "alice@head", as far as this machine knows who asks.
[[nodiscard]] std::string who_asks();

/// Gives the order to the first of the rendezvous that knows its job. Failure: none of them heard
/// it.
[[nodiscard]] Result<rdzv::OperatorReply> give_to_rendezvous(const RendezvousAsked& asked,
                                                             const rdzv::JobSecret& secret,
                                                             const rdzv::OperatorOrder& order);

/// Gives the order to the ddprun of the run in `folder`, on this machine. Failure: it has not heard
/// it.
[[nodiscard]] Result<rdzv::OperatorReply> give_to_run(const std::string& folder,
                                                      const rdzv::OperatorOrder& order);

}  // namespace ddprun::launcher
