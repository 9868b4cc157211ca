#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "agent/contract/leave_notice.hpp"
#include "base/instant.hpp"
#include "base/result.hpp"
#include "rendezvous/wire/endpoint.hpp"

/// The sources that may say that a node will be taken away, and their answers. Pure.
namespace ddprun::agent {

/// The metadata server of an EC2 instance.
struct DrainOnAws {
    rdzv::Endpoint metadata;

    bool operator==(const DrainOnAws&) const = default;
};

/// A file that comes to be there.
struct DrainOnFile {
    std::string path;  ///< absolute

    bool operator==(const DrainOnFile&) const = default;
};

/// A program for the shell, that ends with 0 or prints a deadline.
struct DrainOnCommand {
    std::string command;

    bool operator==(const DrainOnCommand&) const = default;
};

using DrainSource = std::variant<DrainOnAws, DrainOnFile, DrainOnCommand>;

using WallTime = std::chrono::sys_time<Milliseconds>;

/// Two clocks, read at once.
struct Clocks {
    Instant now{};
    WallTime wall{};
};

/// Returns the moment that a line gives: seconds from now, `120`, or a time in UTC,
/// `2026-11-23T05:12:00Z`. Returns nothing if the line says something else.
[[nodiscard]] std::optional<Instant> deadline_in(std::string_view line, const Clocks& clocks);

/// AWS's spot/instance-action: {"action": "terminate", "time": "2026-11-23T05:12:00Z"}. Fails if it
/// is not that.
[[nodiscard]] Result<LeaveNotice> read_spot_notice(const std::string& body, const Clocks& clocks);

/// AWS's events/recommendations/rebalance: the instance is likely to be taken soon.
[[nodiscard]] LeaveNotice rebalance_notice();

}  // namespace ddprun::agent
