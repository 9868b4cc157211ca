#include "agent/output/log_errors.hpp"

#include <fmt/format.h>

namespace ddprun::agent {

std::string_view reason_of(std::string_view what) {
    const std::size_t colon = what.rfind(": ");
    return colon == std::string_view::npos ? what : what.substr(colon + 2);
}

std::optional<std::string> LogErrors::take(Instant now, const Error& error) {
    // LimitExceeded of a log loses nothing: the file only grows beyond its limit.
    const bool is_lost = error.code != ErrorCode::LimitExceeded;
    const std::string reason = (is_lost ? "" : "limit: ") + std::string(reason_of(error.what));
    auto found = said_.find(reason);
    if (found != said_.end() && now < found->second.again_at) {
        ++found->second.unsaid;
        return std::nullopt;
    }
    if (found == said_.end()) {
        if (said_.size() >= limits_.log_error_reasons_max) {
            said_.clear();
        }
        found = said_.emplace(reason, Said{}).first;
    }
    const std::size_t unsaid = found->second.unsaid;
    found->second = {.again_at = now + limits_.log_error_every};
    const std::string more =
        unsaid == 0 ? "" : fmt::format(" ({} more failures since this was said)", unsaid);
    return fmt::format("ddprun: {}{}{}", error.what, more,
                       is_lost ? "; the job goes on without what cannot be written; free space, or "
                                 "choose another --log-dir"
                               : "");
}

}  // namespace ddprun::agent
