#include "rendezvous/core/strangers.hpp"

#include <vector>

#include <fmt/format.h>

#include "rendezvous/core/explain.hpp"
#include "rendezvous/core/step.hpp"

namespace ddprun::rdzv {

namespace {

/// Few different texts, however often a stranger comes: each new one goes to all nodes that wait.
std::string times_text(std::size_t times) {
    std::size_t least = 1;
    for (std::size_t next = 10; next <= times; next *= 10) {
        least = next;
    }
    return times < 4 ? fmt::format("{} times", times)
                     : fmt::format("{} times or more", times < 10 ? 4 : least);
}

}  // namespace

bool Strangers::add(const StrangerRefused& refused, std::size_t addresses_max) {
    const bool is_known = times_.contains(refused.address);
    if (is_known || times_.size() < addresses_max) {
        ++times_[refused.address];
        why_ = refused.why;
    }
    return !is_known && times_.contains(refused.address);
}

std::string Strangers::text() const {
    std::vector<std::string> names;
    for (const auto& [address, times] : times_) {
        names.push_back(times == 1 ? address : fmt::format("{} ({})", address, times_text(times)));
    }
    return names.empty() ? std::string() : fmt::format("{}: {}", list_of(names), why_);
}

void hear_of_stranger(Step& step, const StrangerRefused& refused) {
    Run& run = step.run;
    if (is_closed(run) || !run.strangers.add(refused, step.options.limits.strangers_named_max)) {
        return;
    }
    trace(step, fmt::format("{} was turned away: {}", refused.address, refused.why));
    if (std::holds_alternative<Forming>(run.phase)) {
        run.explain_at = step.now;
    } else {
        tell_head(step, fmt::format("turned away: {}: {}", refused.address, refused.why));
    }
}

}  // namespace ddprun::rdzv
