#include "agent/contract/drain_sources.hpp"

#include <ctime>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/printable.hpp"
#include "base/trimmed.hpp"
#include "base/whole_number.hpp"
#include "rendezvous/wire/json_text.hpp"

namespace ddprun::agent {

namespace {

/// A hundred years: no clock overflows.
constexpr std::uint64_t kSecondsMax = std::uint64_t{100} * 366 * 86400;

std::optional<WallTime> utc_time(const std::string& text) {
    std::tm parts{};
    const char* end = strptime(text.c_str(), "%Y-%m-%dT%H:%M:%SZ", &parts);
    if (end == nullptr || *end != '\0') {
        return std::nullopt;
    }
    return WallTime(std::chrono::seconds(timegm(&parts)));
}

}  // namespace

std::optional<Instant> deadline_in(std::string_view line, const Clocks& clocks) {
    const std::string text(trimmed(line));
    if (const auto seconds = whole_number<std::uint64_t>(text)) {
        if (*seconds > kSecondsMax) {
            return std::nullopt;
        }
        return clocks.now + std::chrono::seconds(*seconds);
    }
    const std::optional<WallTime> time = utc_time(text);
    if (!time) {
        return std::nullopt;
    }
    return clocks.now + std::chrono::duration_cast<Duration>(*time - clocks.wall);
}

Result<LeaveNotice> read_spot_notice(const std::string& body, const Clocks& clocks) {
    const nlohmann::json read = rdzv::parse_shallow_json(body);
    const std::string action = rdzv::text_in(read, "action");
    if (action.empty()) {
        return Error{ErrorCode::InvalidArgument,
                     fmt::format("'{}' is no spot notice", printable(body, 200))};
    }
    return LeaveNotice{.why = fmt::format("AWS takes this instance away ({})", action),
                       .gone_at = deadline_in(rdzv::text_in(read, "time"), clocks)};
}

LeaveNotice rebalance_notice() {
    return LeaveNotice{.why = "AWS recommends to leave this instance (rebalance)",
                       .gone_at = std::nullopt};
}

}  // namespace ddprun::agent
