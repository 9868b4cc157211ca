#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace ddprun::launcher {

/// An event, given as its line of JSON (docs/events.md), as a line for people without a line end:
/// when it happened by this machine's clock, what, where, and what its fields say. A line that is
/// no event stays as it is, but for what a terminal would obey. Pure, but for the time zone.
[[nodiscard]] std::string event_text(std::string_view line);

/// How the worker of an event `failure` ended: "died of SIGSEGV". Pure.
[[nodiscard]] std::string end_text(const nlohmann::json& failure);

}  // namespace ddprun::launcher
