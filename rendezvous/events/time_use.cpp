#include "rendezvous/events/time_use.hpp"

#include <algorithm>
#include <chrono>

namespace ddprun::rdzv {

namespace {

void note_first(std::optional<Instant>& moment, Instant at) {
    if (!moment) {
        moment = at;
    }
}

/// Adds phases, each from the end of the one before.
class Waterfall {
public:
    explicit Waterfall(Restart& restart) : restart_(restart), reached_(restart.at) {}

    void reach(std::string_view name, const std::optional<Instant>& at, bool is_estimated = false) {
        if (at) {
            const Instant end = std::max(*at, reached_);
            restart_.phases.push_back(
                {.name = name, .took = end - reached_, .is_estimated = is_estimated});
            reached_ = end;
        }
    }

private:
    Restart& restart_;
    Instant reached_;
};

}  // namespace

void TimeUse::take(const Event& event) {
    if (!since_) {
        since_ = event.at;
    }
    GenerationTimes* const times = find(event.generation);
    if (times != nullptr && event.step) {
        times->last_step = std::max(times->last_step.value_or(0), *event.step);
    }
    switch (event.kind) {
        case EventKind::Joined:
            note_joined(event.at);
            break;
        case EventKind::Ready:
            ready_ = event.at;
            break;
        case EventKind::Restored:
            go_on(event);
            break;
        case EventKind::Formed:
            form(event);
            break;
        case EventKind::Spawned:
            note(event, &GenerationTimes::spawned);
            break;
        case EventKind::Main:
            note(event, &GenerationTimes::main);
            break;
        case EventKind::GroupReady:
            note(event, &GenerationTimes::group_ready);
            break;
        case EventKind::Resumed:
            note(event, &GenerationTimes::resumed);
            break;
        case EventKind::FirstStep:
            if (times != nullptr && !times->first_number) {
                times->first_number = event.step;
            }
            note(event, &GenerationTimes::first_step);
            break;
        case EventKind::Failure:
        case EventKind::Stop:
            if (times != nullptr) {
                note_end(*times, event.at, text_of(event, "text"));
            }
            break;
        case EventKind::Stopped:
            note(event, &GenerationTimes::stopped);
            break;
        case EventKind::Empty:
            note_empty(event);
            break;
        case EventKind::Verdict:
        case EventKind::Exit:
            note_first(ended_, event.at);
            if (!generations_.empty()) {
                note_end(generations_.back(), event.at, {});
            }
            break;
        default:
            break;
    }
}

void TimeUse::note_told(Generation generation, const std::optional<std::uint64_t>& step,
                        Duration checkpointing) {
    if (GenerationTimes* const times = find(generation)) {
        times->last_step = std::max(times->last_step, step);
        times->checkpointing = std::max(times->checkpointing, checkpointing);
    }
}

void TimeUse::note_joined(Instant at) {
    const bool is_between = generations_.empty() || generations_.back().detected.has_value();
    if (whose_ == EventsOf::Node) {
        ready_ = at;
    } else if (is_between) {
        note_first(ready_, at);
    }
}

/// In a job the last node's event counts; from then on the job waits for others. The node reports
/// how long ago its workers had ended and that was proven: it has got ready since.
void TimeUse::note_empty(const Event& event) {
    GenerationTimes* const times = find(event.generation);
    if (whose_ == EventsOf::Node) {
        note(event, &GenerationTimes::empty);
        return;
    }
    ready_ = event.at;
    if (times != nullptr) {
        const Instant ended = event.at - Milliseconds(number_of(event, "ended_ms_ago"));
        const Instant proven = event.at - Milliseconds(number_of(event, "proven_ms_ago"));
        times->stopped = std::max(times->stopped.value_or(ended), ended);
        times->empty = std::max(times->empty.value_or(proven), proven);
    }
}

/// The rendezvous was started anew while the generation ran: that trains, as far as is known.
void TimeUse::go_on(const Event& event) {
    const bool runs =
        std::any_of(event.fields.begin(), event.fields.end(), [](const EventField& field) {
            const bool* value = std::get_if<bool>(&field.value);
            return field.name == "runs" && value != nullptr && *value;
        });
    if (runs && event.generation != Generation() && find(event.generation) == nullptr) {
        form(event);
        note(event, &GenerationTimes::spawned);
    }
}

GenerationTimes* TimeUse::find(Generation generation) {
    for (GenerationTimes& times : generations_) {
        if (times.generation == generation) {
            return &times;
        }
    }
    return nullptr;
}

void TimeUse::note(const Event& event, std::optional<Instant> GenerationTimes::*moment) {
    if (GenerationTimes* const times = find(event.generation)) {
        if (event.is_estimated && !(times->*moment)) {
            times->estimated.insert(event.kind);
        }
        note_first(times->*moment, event.at);
    }
}

/// The earliest of several: a failure is dated back to when it was known.
void TimeUse::note_end(GenerationTimes& times, Instant at, const std::string& cause) {
    times.detected = std::min(times.detected.value_or(at), at);
    if (times.cause.empty()) {
        times.cause = cause;
    }
}

void TimeUse::form(const Event& event) {
    if (!generations_.empty()) {
        // Ends the generation of a node that was replaced while it was away.
        note_end(generations_.back(), event.at, {});
        ready_ = ready_ ? std::max(*ready_, *generations_.back().detected) : ready_;
    }
    if (generations_.size() == generations_max_) {
        add_generation(forgotten_, 0, event.at);
        since_ = end_of(0, event.at);
        generations_.pop_front();
    }
    GenerationTimes times{.generation = event.generation, .ready = ready_, .formed = event.at};
    times.cause.clear();
    generations_.push_back(std::move(times));
    ready_.reset();
}

/// No worker told when its training began.
bool TimeUse::is_estimated(const GenerationTimes& times) {
    return times.first_step ? times.estimated.contains(EventKind::FirstStep)
                            : times.spawned.has_value();
}

Instant TimeUse::end_of(std::size_t index, Instant now) const {
    return generations_[index].detected.value_or(now);
}

/// The way to a generation's training, or as far as it has come.
void TimeUse::add_way(TimeShares& shares, Instant from, std::optional<Instant> ready,
                      std::optional<Instant> formed, Instant until) const {
    Duration waited{};
    if (ready) {
        const Instant begin = std::clamp(*ready, from, until);
        waited = std::clamp(formed.value_or(until), begin, until) - begin;
    }
    shares.waiting += waited;
    (shares.has_trained ? shares.restarting : shares.starting) += until - from - waited;
}

/// Training in a generation that has told its first step: from then on, without checkpoints.
Duration TimeUse::training_in(std::size_t index, Instant now) const {
    const GenerationTimes& times = generations_[index];
    const Duration whole = std::max(end_of(index, now) - *times.first_step, Duration::zero());
    return whole - std::min(times.checkpointing, whole);
}

Duration TimeUse::redone_in(std::size_t index, Instant now) const {
    if (index == 0) {
        return {};
    }
    const GenerationTimes& lost = generations_[index - 1];
    const GenerationTimes& again = generations_[index];
    const bool is_known = lost.first_step && lost.first_number && lost.last_step &&
                          again.first_step && again.first_number;
    if (!is_known || *again.first_number > *lost.last_step) {
        return {};
    }
    // The first step was done when training began; checkpoints are not redone.
    const std::uint64_t steps = *lost.last_step - std::min(*lost.first_number, *lost.last_step);
    const double each = std::chrono::duration<double>(training_in(index - 1, now)).count() /
                        static_cast<double>(std::max<std::uint64_t>(steps, 1));
    const double seconds = each * static_cast<double>(*lost.last_step - *again.first_number);
    const std::chrono::duration<double> most = training_in(index, now);
    return std::chrono::duration_cast<Duration>(
        std::clamp(std::chrono::duration<double>(seconds), most * 0, most));
}

void TimeUse::add_generation(TimeShares& shares, std::size_t index, Instant now) const {
    const GenerationTimes& times = generations_[index];
    const Instant from = index == 0 ? *since_ : end_of(index - 1, now);
    const Instant end = std::max(end_of(index, now), from);
    const Instant trains = std::clamp(times.trains_from().value_or(end), from, end);
    add_way(shares, from, times.ready, times.formed, trains);
    const Duration checkpointing = std::min(times.checkpointing, end - trains);
    shares.checkpointing += checkpointing;
    shares.training += end - trains - checkpointing;
    shares.redone += redone_in(index, now);
    shares.has_trained |= times.trains_from().has_value();
    shares.is_estimated |= is_estimated(times);
    ++shares.generations;
}

TimeShares TimeUse::shares(Instant now) const {
    TimeShares shares = forgotten_;
    if (!since_) {
        return shares;
    }
    const Instant until = std::max(ended_.value_or(now), *since_);
    for (std::size_t i = 0; i < generations_.size(); ++i) {
        add_generation(shares, i, until);
    }
    // On the way to a generation that is not formed yet.
    const Instant last = generations_.empty() ? *since_ : end_of(generations_.size() - 1, until);
    if (last < until) {
        add_way(shares, last, ready_, std::nullopt, until);
    }
    return shares;
}

std::vector<Restart> TimeUse::restarts(Instant now) const {
    std::vector<Restart> restarts;
    for (std::size_t i = 0; i < generations_.size(); ++i) {
        const GenerationTimes& from = generations_[i];
        const bool has_next = i + 1 < generations_.size();
        if (!from.detected || (!has_next && ended_)) {
            continue;
        }
        Restart restart{.from = from.generation,
                        .to = Generation(),
                        .at = *from.detected,
                        .cause = from.cause,
                        .phases = {},
                        .is_over = false};
        Waterfall waterfall(restart);
        waterfall.reach("stop", from.stopped);
        waterfall.reach("prove empty", from.empty);
        if (has_next) {
            const GenerationTimes& to = generations_[i + 1];
            restart.to = to.generation;
            restart.is_over = to.trains_from().has_value();
            waterfall.reach("get ready", to.ready);
            waterfall.reach("wait for nodes", to.formed);
            waterfall.reach("spawn", to.spawned);
            const auto is_guess = [&to](EventKind kind) { return to.estimated.contains(kind); };
            waterfall.reach("start programs", to.main, is_guess(EventKind::Main));
            waterfall.reach("connect", to.group_ready, is_guess(EventKind::GroupReady));
            waterfall.reach("resume", to.resumed);
            waterfall.reach("first step", to.first_step, is_guess(EventKind::FirstStep));
        } else {
            waterfall.reach("get ready", ready_);
            waterfall.reach("so far", now);
        }
        restarts.push_back(std::move(restart));
    }
    return restarts;
}

}  // namespace ddprun::rdzv
