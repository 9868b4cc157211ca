#pragma once

#include <functional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "base/instant.hpp"
#include "base/result.hpp"

namespace ddprun::launcher {

/// Makes what /status reports to the page of a job that is over. `job` is of ended_job(); `state`
/// is the run's status.json, null: there is none. Pure.
[[nodiscard]] nlohmann::ordered_json ended_status(const nlohmann::ordered_json& job,
                                                  const nlohmann::ordered_json& state,
                                                  Milliseconds now);

/// Serves the page of the run in `folder`, which is over, on a loopback port that the kernel
/// chooses, until SIGINT or SIGTERM: its last state, the newest of its events, the ends of its
/// logs. This user and root are answered, as on the socket of a run at work. `on_begun` is told the
/// port. Blocks. Failure: it cannot listen.
[[nodiscard]] Result<void> serve_ended_page(const std::string& folder,
                                            const std::function<void(std::uint16_t)>& on_begun);

}  // namespace ddprun::launcher
