#include "agent/watch/moments_told.hpp"

#include <algorithm>
#include <chrono>

#include "rendezvous/wire/message_fields.hpp"

namespace ddprun::agent {

namespace {

std::optional<rdzv::Moment> moment_of(rdzv::EventKind kind) {
    switch (kind) {
        case rdzv::EventKind::Spawned:
            return rdzv::Moment::Spawned;
        case rdzv::EventKind::Main:
            return rdzv::Moment::Main;
        case rdzv::EventKind::GroupReady:
            return rdzv::Moment::GroupReady;
        case rdzv::EventKind::Resumed:
            return rdzv::Moment::Resumed;
        case rdzv::EventKind::FirstStep:
            return rdzv::Moment::FirstStep;
        default:
            return std::nullopt;
    }
}

}  // namespace

void MomentsTold::begin(Generation generation, int base_rank) {
    generation_ = generation;
    base_rank_ = base_rank;
    reached_.clear();
    step_.reset();
    checkpointing_ = {};
    told_step_.reset();
    told_checkpointing_ = {};
    hang_.reset();
    saves_.reset();
}

std::optional<rdzv::Reached> MomentsTold::met(Instant now, bool hears) {
    is_heard_ = hears;
    if (!hears || (reached_.empty() && !hang_ && !saves_)) {
        return std::nullopt;
    }
    std::vector<rdzv::Moment> all;
    for (const auto& [what, reached] : reached_) {
        all.push_back(what);
    }
    rdzv::Reached told = message(now, all);
    told.hang = hang_;
    add_saves(now, told);
    return told;
}

std::optional<rdzv::Reached> MomentsTold::note(Instant now,
                                               const std::vector<rdzv::Event>& events) {
    std::vector<rdzv::Moment> fresh;
    for (const rdzv::Event& event : events) {
        const std::optional<rdzv::Moment> what = moment_of(event.kind);
        if (!what || event.generation != generation_) {
            continue;
        }
        const int last = event.rank ? event.rank->value() - base_rank_ : 0;
        rdzv::ReachedMoment moment{.what = *what,
                                   .last = LocalRank(last),
                                   .step = event.step,
                                   .is_estimated = event.is_estimated};
        if (reached_.emplace(*what, Reached{.at = event.at, .moment = moment}).second) {
            fresh.push_back(*what);
        }
    }
    return is_heard_ && !fresh.empty() ? std::optional(message(now, fresh)) : std::nullopt;
}

std::optional<rdzv::Reached> MomentsTold::note_told(Instant now,
                                                    const std::optional<std::uint64_t>& step,
                                                    Duration checkpointing, bool have_ended,
                                                    const std::optional<rdzv::SavesSeen>& saves) {
    step_ = std::max(step_, step);
    checkpointing_ =
        std::max(checkpointing_, std::chrono::duration_cast<Milliseconds>(checkpointing));
    const bool is_new = checkpointing_ > told_checkpointing_ || (have_ended && step_ > told_step_);
    if (saves) {
        saves_ = saves;
        saves_at_ = now;
    }
    if (!is_heard_ || !(is_new || saves)) {
        return std::nullopt;
    }
    rdzv::Reached told = message(now, {});
    if (saves) {
        add_saves(now, told);
    }
    return told;
}

std::optional<rdzv::Reached> MomentsTold::note_hang(Instant now, const rdzv::HangSeen& seen) {
    hang_ = seen;
    if (!is_heard_) {
        return std::nullopt;
    }
    rdzv::Reached told = message(now, {});
    told.hang = seen;
    return told;
}

void MomentsTold::add_saves(Instant now, rdzv::Reached& message) const {
    message.saves = saves_;
    if (message.saves) {
        const auto since = std::chrono::duration_cast<Milliseconds>(now - saves_at_);
        for (Milliseconds* const age : {&message.saves->age, &message.saves->failed_age}) {
            *age = std::min(*age + since, rdzv::kDurationMax);
        }
    }
}

rdzv::Reached MomentsTold::message(Instant now, const std::vector<rdzv::Moment>& which) {
    rdzv::Reached message{
        .generation = generation_, .checkpointing = checkpointing_, .step = step_};
    told_step_ = step_;
    told_checkpointing_ = checkpointing_;
    for (const rdzv::Moment what : which) {
        const Reached& reached = reached_.at(what);
        message.moments.push_back(reached.moment);
        message.moments.back().age =
            std::chrono::duration_cast<Milliseconds>(std::max(now - reached.at, Duration::zero()));
    }
    return message;
}

}  // namespace ddprun::agent
