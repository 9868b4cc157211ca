// Texts for people: why this node waits.

#include <fmt/format.h>

#include "agent/core/supervisor_state.hpp"
#include "base/signal_name.hpp"

namespace ddprun::agent {

namespace {

constexpr const char* kOthersRun = "workers here have ended; waiting for those of other nodes";

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
        if (run_token_.empty()) {
            return down->why.empty()
                       ? "waiting for the rendezvous"
                       : fmt::format("cannot reach the rendezvous: {}; trying again", down->why);
        }
        return fmt::format("cut off from the rendezvous: {}; {}, trying again for {} s", down->why,
                           holds_workers() ? "workers go on" : "no workers here",
                           lost_timeout().count() / 1000);
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
    if (!rendezvous_waits_.empty()) {
        return rendezvous_waits_;
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
