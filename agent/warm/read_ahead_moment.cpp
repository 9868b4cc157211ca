#include "agent/warm/read_ahead_moment.hpp"

#include <variant>

#include "base/overloaded.hpp"

namespace ddprun::agent {

namespace {

/// The generation whose workers write no checkpoint any more.
std::optional<Generation> ends(const Effect& effect) {
    using None = std::optional<Generation>;
    return std::visit(
        Overloaded{
            [](const SignalWorkers& e) { return e.spares_asked ? None() : None(e.generation); },
            [](const SaveStacks& e) { return None(e.generation); },
            [](const EmptyGeneration& e) { return None(e.generation); },
            [](const auto&) { return None(); },
        },
        effect);
}

}  // namespace

std::optional<Generation> ReadAheadMoment::of(const Effect& effect, bool is_ending) {
    if (const auto* sent = std::get_if<SendToRendezvous>(&effect)) {
        is_leaving_ = is_leaving_ || std::holds_alternative<rdzv::Leave>(sent->message);
    }
    if (std::holds_alternative<StartWorkers>(effect)) {
        begun_ = Generation();  // Another run may use its number again.
    }
    const std::optional<Generation> ended = ends(effect);
    if (is_ending || is_leaving_ || !ended || *ended == kPrepareGeneration || *ended == begun_) {
        return std::nullopt;
    }
    begun_ = *ended;
    return ended;
}

}  // namespace ddprun::agent
