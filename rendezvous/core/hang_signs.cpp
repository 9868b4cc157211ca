#include "rendezvous/core/hang_signs.hpp"

#include <algorithm>
#include <utility>

namespace ddprun::rdzv {

namespace {

bool is_of_job(const HangSeen& seen) {
    return seen.looks_every == Milliseconds::zero();
}

/// A sign of the whole job says most, then one that knows a step, the lower the more, then one
/// that names a rank.
bool tells_more(const HangSeen& one, const HangSeen& other) {
    if (is_of_job(one) != is_of_job(other)) {
        return is_of_job(one);
    }
    if (one.step != other.step) {
        return one.step && (!other.step || *one.step < *other.step);
    }
    return one.rank && !other.rank;
}

}  // namespace

void HangSigns::add(Instant now, const NodeId& node, std::size_t members, const HangSeen& seen) {
    if (is_told_ || !seen_by_.insert(node).second) {
        return;
    }
    if (!worst_ || tells_more(seen, *worst_)) {
        worst_ = seen;
    }
    const bool is_whole = is_of_job(seen) || seen_by_.size() >= members;
    const Instant complete = is_whole ? now : now + seen.looks_every;
    due_ = due_ ? std::min(*due_, complete) : complete;
}

std::optional<HangSeen> HangSigns::take_due(Instant now) {
    if (!due_ || now < *due_) {
        return std::nullopt;
    }
    due_.reset();
    is_told_ = true;
    seen_by_.clear();
    return std::exchange(worst_, std::nullopt);
}

}  // namespace ddprun::rdzv
