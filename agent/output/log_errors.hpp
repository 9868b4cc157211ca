#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.hpp"
#include "base/instant.hpp"
#include "base/log_limits.hpp"

namespace ddprun::agent {

/// The last words of a failure's text: the system's reason, as system_error() puts it there.
[[nodiscard]] std::string_view reason_of(std::string_view what);

/// Decides which failures to write logs are said. Pure. One disk is full and one folder is
/// forbidden for all workers alike: a reason (the last words of an error, the system's) is said
/// when it comes up, and while it lasts again every LogLimits::log_error_every. No reason hides
/// another one, and no failure to keep to a limit (LimitExceeded) one by which something is lost.
class LogErrors {
public:
    explicit LogErrors(LogLimits limits = {}) : limits_(limits) {}

    /// The line for people; none: that reason was said a moment ago. `now` never goes back.
    [[nodiscard]] std::optional<std::string> take(Instant now, const Error& error);

private:
    struct Said {
        Instant again_at;
        std::size_t unsaid = 0;  ///< failures since the last line
    };

    LogLimits limits_;
    std::map<std::string, Said, std::less<>> said_;  ///< by reason
};

}  // namespace ddprun::agent
