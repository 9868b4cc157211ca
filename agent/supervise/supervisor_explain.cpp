// Texts for people: why this node waits.

#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "agent/supervise/supervisor.hpp"
#include "base/signal_name.hpp"

namespace ddprun::agent {

namespace {

std::int64_t whole_seconds(Duration time) {
    return std::chrono::duration_cast<std::chrono::seconds>(time).count();
}

}  // namespace

void Supervisor::say(std::string text) {
    emit(Say{std::move(text)});
}

void Supervisor::trace(std::string text) {
    emit(Trace{std::move(text)});
}

std::string Supervisor::explain_down(const LinkIsDown& down) const {
    if (!run_token_.empty()) {
        return fmt::format("cut off from the rendezvous: {}; {}, trying again", down.why,
                           holds_workers() ? "workers go on" : "no workers here");
    }
    return down.why.empty()
               ? fmt::format("waiting for the rendezvous at {}", options_.endpoint)
               : fmt::format("cannot reach the rendezvous: {}; trying again", down.why);
}

/// Says, for a wait with a limit, how much of it is over and what sets the limit.
void Supervisor::say_wait(Wait wait, const std::string& text) {
    Instant since = rendezvous_wait_.since;
    Milliseconds limit =
        wait == Wait::RendezvousSays ? rendezvous_wait_.limit : Milliseconds::zero();
    if (wait == Wait::Prepare) {
        say(fmt::format("{}, which has run for {} s", text, whole_seconds(now_ - prepare_since_)));
        return;
    }
    if (wait == Wait::RendezvousSays && rendezvous_wait_.over_at > now_) {
        const Duration left = *rendezvous_wait_.over_at - now_;
        say(fmt::format("{}; {} s left", text,
                        std::chrono::ceil<std::chrono::seconds>(left).count()));
        return;
    }
    const bool is_cut_off = wait == Wait::Link && !run_token_.empty();
    if (wait == Wait::Link) {
        since = is_cut_off ? unheard_since_.value_or(*first_step_) : *first_step_;
        limit = is_cut_off ? lost_timeout() : options_.connect_timeout;
        said_unheard_since_ = since;
    }
    say(limit == Milliseconds::zero()
            ? text
            : fmt::format("{}; {} s of {} s ({})", text, whole_seconds(now_ - since),
                          whole_seconds(limit),
                          is_cut_off ? "--rdzv-lost-timeout" : "--rdzv-conf join_timeout"));
}

void Supervisor::say_connected() {
    if (said_unheard_since_.has_value()) {
        const Duration took = now_ - *std::exchange(said_unheard_since_, std::nullopt);
        say(fmt::format("{} the rendezvous{} after {} s",
                        run_token_.empty() ? "reached" : "connected to",
                        run_token_.empty() ? "" : " again", whole_seconds(took)));
    }
}

Wait Supervisor::waits_for() const {
    if (is_done_) {
        return Wait::Nothing;
    }
    if (group_.has_value() && group_->is_in<WorkersKilling>()) {
        return Wait::KilledWorkers;
    }
    if (group_.has_value() && group_->is_in<WorkersHang>()) {
        return Wait::Stacks;
    }
    if (group_.has_value() && group_->is_in<WorkersStop>()) {
        return Wait::StoppedWorkers;
    }
    if (prepare_ == PrepareState::Stops ||
        (prepare_ == PrepareState::Killing && ending_.has_value())) {
        return Wait::PrepareToEnd;
    }
    if (is_telling_unfit()) {
        return Wait::UnfitHeard;
    }
    if (!is_link_up()) {
        return Wait::Link;
    }
    if (preparation_ != Preparation::None) {
        return preparation_ == Preparation::GpuMemory ? Wait::GpuMemory : Wait::Preflight;
    }
    if (owed_ != Generation() && group_.has_value() && group_->awaits_words()) {
        return Wait::LastWords;
    }
    if (!has_joined()) {
        return Wait::StoreSocket;
    }
    if (!is_accepted()) {
        return Wait::JoinAnswer;
    }
    if (holds_prepare()) {
        return Wait::Prepare;
    }
    if (!rendezvous_wait_.text.empty()) {
        return Wait::RendezvousSays;
    }
    if (is_leaving()) {
        return Wait::OtherNodesDrain;
    }
    if (!holds_workers()) {
        return Wait::Generation;
    }
    return group_->has_all_exited() ? Wait::OtherNodesEnd : Wait::Nothing;
}

std::string Supervisor::explain(Wait wait) const {
    switch (wait) {
        case Wait::Nothing:
            return "";
        case Wait::KilledWorkers:
            return fmt::format("waiting for the killed processes of generation {} to be gone",
                               group_->generation().value());
        case Wait::Stacks:
            return fmt::format("waiting for the stacks of {} to be saved", group_->running_text());
        case Wait::StoppedWorkers:
            return fmt::format("waiting for {} to end after {}", group_->running_text(),
                               signal_name(std::get<WorkersStop>(group_->phase).signal));
        case Wait::UnfitHeard:
            return "telling the rendezvous that this node is not fit";
        case Wait::Link:
            return explain_down(std::get<LinkIsDown>(link_));
        case Wait::GpuMemory:
            return "waiting for the GPU memory of the last workers to be freed";
        case Wait::Preflight:
            return "waiting for the preflight command";
        case Wait::Prepare:
            return "waiting for the prepare command";
        case Wait::PrepareToEnd:
            return "waiting for the prepare command to end";
        case Wait::LastWords:
            return "waiting for the log disk: the last words of a failed worker are being read";
        case Wait::StoreSocket:
            return "waiting for a socket for the workers' store";
        case Wait::JoinAnswer:
            return "waiting for the rendezvous to answer";
        case Wait::RendezvousSays:
            return rendezvous_wait_.text;
        case Wait::OtherNodesDrain:
            return "waiting for the other nodes to drain";
        case Wait::Generation:
            return "waiting for the rendezvous to start a generation";
        case Wait::OtherNodesEnd:
            return "workers here have ended; waiting for those of other nodes";
    }
    return "";
}

}  // namespace ddprun::agent
