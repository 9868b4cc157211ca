#include "agent/supervise/supervisor.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "base/planted_bug.hpp"

namespace ddprun::agent {

namespace {

std::optional<Instant> earlier(std::optional<Instant> a, std::optional<Instant> b) {
    if (!a.has_value() || !b.has_value()) {
        return a.has_value() ? a : b;
    }
    return std::min(*a, *b);
}

}  // namespace

Supervisor::Supervisor(SupervisorOptions options)
    : options_(std::move(options)),
      quiet_(options_.identity.settings),
      deadlines_(options_.limits, options_.identity.settings.shutdown_timeout, options_.kill_wait),
      notice_(options_.limits) {
    DDP_CHECK(options_.identity.slots >= 1, options_.identity.slots);
    DDP_CHECK(!options_.command.empty());
    if (options_.saving.has_value()) {
        deadlines_.learn_saving(*options_.saving);
    }
}

void Supervisor::step(Instant now, const Input& input, Effects& out) {
    if (is_done_) {
        return;
    }
    begin(now, out);
    std::visit([this](const auto& alternative) { take(alternative); }, input);
    settle();
}

void Supervisor::begin(Instant now, Effects& out) {
    DDP_CHECK(now >= now_);
    now_ = now;
    out_ = &out;
    if (!first_step_.has_value()) {
        first_step_ = now;
        if (options_.known_end.has_value()) {
            deadlines_.add(now, *options_.known_end);
        }
    }
}

void Supervisor::settle() {
    if (!is_done_) {
        judge_held_back(false);
    }
    if (!is_done_ && group_.has_value()) {
        const WorkersStop* stop = std::get_if<WorkersStop>(&group_->phase);
        const bool is_due = stop != nullptr && now_ >= stop->kill_at;
        if (DDP_RULE(is_due, DrainDeadlineIgnored, is_due && stop->manner != StopManner::Drain)) {
            kill_workers();
        }
    }
    judge_prepare();
    if (is_telling_unfit() && now_ >= *ending_->tells_until) {
        finish();
    }
    const std::optional<Instant> lost_at = give_up_at();
    if (lost_at.has_value() && now_ >= *lost_at) {
        lose_rendezvous();
    }
    leave_if_due();
    if (is_done_) {
        return;
    }
    update_publishing();
    look_if_due();
    send_due_beat();
    judge_silence();
    const Wait wait = waits_for();
    // The last phase of a healthy run may be long: it is explained on request only.
    notice_.update(now_, wait == Wait::OtherNodesEnd ? "" : explain(wait),
                   wait == Wait::RendezvousSays ? rendezvous_wait_.over_at : std::nullopt);
    if (std::optional<std::string> text = notice_.take_due(now_)) {
        say_wait(wait, *text);
    }
}

std::optional<Instant> Supervisor::next_deadline() const {
    if (is_done_) {
        return std::nullopt;
    }
    std::optional<Instant> result =
        earlier(earlier(give_up_at(), notice_.next_deadline()), leave_at());
    if (is_telling_unfit()) {
        result = earlier(result, ending_->tells_until);
    }
    result = earlier(result, prepare_deadline());
    if (group_.has_value()) {
        result = earlier(earlier(result, group_->next_deadline()), quiet_.next_look());
    }
    if (const LinkIsAccepted* accepted = std::get_if<LinkIsAccepted>(&link_)) {
        result = earlier(earlier(result, accepted->beat_at), silence_end());
    }
    return result;
}

std::optional<ExitReason> Supervisor::exit_reason() const {
    return ending_.has_value() ? std::optional(ending_->reason) : std::nullopt;
}

std::optional<Generation> Supervisor::held_generation() const {
    if (!holds_workers()) {
        return std::nullopt;
    }
    return group_->generation();
}

}  // namespace ddprun::agent
