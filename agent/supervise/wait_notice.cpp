#include "agent/supervise/wait_notice.hpp"

#include <algorithm>

namespace ddprun::agent {

void WaitNotice::update(Instant now, const std::string& text, std::optional<Instant> over_at) {
    over_at_ = over_at;
    if (text == text_) {
        return;
    }
    if (text.empty()) {
        said_at_.reset();
    } else if (said_at_.has_value()) {
        due_ = std::min(due_, std::max(now, *said_at_ + first_after_));
    } else if (text_.empty()) {
        due_ = now + first_after_;
    }
    text_ = text;
}

std::optional<std::string> WaitNotice::take_due(Instant now) {
    if (text_.empty() || now < due_) {
        return std::nullopt;
    }
    said_at_ = now;
    due_ = std::max(now, over_at_.value_or(now)) + every_;
    return text_;
}

std::optional<Instant> WaitNotice::next_deadline() const {
    if (text_.empty()) {
        return std::nullopt;
    }
    return due_;
}

}  // namespace ddprun::agent
