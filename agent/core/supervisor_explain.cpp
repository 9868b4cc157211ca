// Texts for people: why this node waits.

#include <utility>

#include <fmt/format.h>

#include "agent/core/supervisor_state.hpp"
#include "base/signal_name.hpp"

namespace ddprun::agent {

namespace {

constexpr const char* kOthersRun = "workers here have ended; waiting for those of other nodes";

std::int64_t whole_seconds(Duration time) {
    return std::chrono::duration_cast<std::chrono::seconds>(time).count();
}

}  // namespace

bool Supervisor::State::is_worth_saying(const std::string& text) const {
    // The last phase of a healthy run may be long: it is there for those who ask.
    return text != kOthersRun;
}

void Supervisor::State::say(std::string text) {
    emit(Say{std::move(text)});
}

void Supervisor::State::trace(std::string text) {
    emit(Trace{std::move(text)});
}

std::string Supervisor::State::explain_down(const LinkIsDown& down) const {
    if (!run_token_.empty()) {
        return fmt::format("cut off from the rendezvous: {}; {}, trying again", down.why,
                           holds_workers() ? "workers go on" : "no workers here");
    }
    return down.why.empty()
               ? fmt::format("waiting for the rendezvous at {}", options_.endpoint)
               : fmt::format("cannot reach the rendezvous: {}; trying again", down.why);
}

/// Of a wait with a limit, how much of it is over.
void Supervisor::State::say_wait(const std::string& text) {
    Instant since = rendezvous_wait_.since;
    Milliseconds limit =
        text == rendezvous_wait_.text ? rendezvous_wait_.limit : Milliseconds::zero();
    const LinkIsDown* const down = std::get_if<LinkIsDown>(&link_);
    if (down != nullptr && text == explain_down(*down)) {
        since = run_token_.empty() ? *first_step_ : unheard_since_.value_or(*first_step_);
        limit = run_token_.empty() ? options_.connect_timeout : lost_timeout();
        said_unheard_since_ = since;
    }
    say(limit == Milliseconds::zero()
            ? text
            : fmt::format("{}; {} s of {} s", text, whole_seconds(now_ - since),
                          whole_seconds(limit)));
}

void Supervisor::State::say_connected() {
    if (said_unheard_since_.has_value()) {
        const Duration took = now_ - *std::exchange(said_unheard_since_, std::nullopt);
        say(fmt::format("{} the rendezvous{} after {} s",
                        run_token_.empty() ? "reached" : "connected to",
                        run_token_.empty() ? "" : " again", whole_seconds(took)));
    }
}

std::string Supervisor::State::explain() const {
    if (is_done_) {
        return {};
    }
    if (group_.has_value() && group_->is_in<WorkersKilling>()) {
        return fmt::format("waiting for the killed processes of generation {} to be gone",
                           group_->generation().value());
    }
    if (group_.has_value() && group_->is_in<WorkersHang>()) {
        return fmt::format("waiting for the stacks of {} to be saved", group_->running_text());
    }
    if (group_.has_value() && group_->is_in<WorkersStop>()) {
        return fmt::format("waiting for {} to end after {}", group_->running_text(),
                           signal_name(std::get<WorkersStop>(group_->phase).signal));
    }
    if (is_telling_unfit()) {
        return "telling the rendezvous that this node is not fit";
    }
    if (const LinkIsDown* down = std::get_if<LinkIsDown>(&link_)) {
        return explain_down(*down);
    }
    const LinkIsUp& up = std::get<LinkIsUp>(link_);
    if (preparation_ == Preparation::GpuMemory) {
        return "waiting for the GPU memory of the last workers to be freed";
    }
    if (preparation_ == Preparation::Preflight) {
        return "waiting for the preflight command";
    }
    if (owed_ != Generation() && group_.has_value() && !group_->words_awaited.empty()) {
        return "waiting for the log disk: the last words of a failed worker are being read";
    }
    if (!up.join_sent_at.has_value()) {
        return "waiting for a socket for the workers' store";
    }
    if (!up.is_accepted) {
        return "waiting for the rendezvous to answer";
    }
    if (!rendezvous_wait_.text.empty()) {
        return rendezvous_wait_.text;
    }
    if (is_leaving()) {
        return "waiting for the other nodes to drain";
    }
    if (!holds_workers()) {
        return "waiting for the rendezvous to start a generation";
    }
    return group_->has_all_exited() ? kOthersRun : "";
}

}  // namespace ddprun::agent
