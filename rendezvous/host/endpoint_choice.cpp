#include "rendezvous/host/endpoint_choice.hpp"

#include <algorithm>
#include <utility>

#include "base/check.hpp"
#include "base/planted_bug.hpp"

namespace ddprun::rdzv {

EndpointChoice::EndpointChoice(std::vector<Endpoint> endpoints, const Limits& limits, Rng rng)
    : endpoints_(std::move(endpoints)),
      limits_(limits),
      rng_(rng),
      backoff_(limits.reconnect_backoff_min) {
    DDP_CHECK(!endpoints_.empty());
}

EndpointAttempt EndpointChoice::next() {
    EndpointAttempt attempt;
    const AskAgain* const again = std::get_if<AskAgain>(&suspect_);
    is_out_of_turn_ = sent_to_.has_value() || again != nullptr;
    if (sent_to_.has_value()) {
        attempt = attempt_at(*std::exchange(sent_to_, std::nullopt));
    } else if (again != nullptr) {
        attempt = attempt_at(again->endpoint);
        // The kernel takes connections for a process that is stopped, and no answer comes then.
        attempt.hello_timeout = std::min(attempt.hello_timeout, attempt.connect_timeout);
        just_asked_ = AskOthersFirst{attempt.endpoint, endpoints_.size() - 1};
        suspect_ = NothingKnown{};
    } else {
        attempt = next_in_turn();
    }
    asked_ = attempt.endpoint;
    return attempt;
}

/// With several daemons, a dead one must not be waited for long.
EndpointAttempt EndpointChoice::attempt_at(const Endpoint& endpoint) const {
    return {.endpoint = endpoint,
            .connect_timeout = has_several()
                                   ? std::min(limits_.connect_timeout, limits_.leader_lease / 2)
                                   : limits_.connect_timeout,
            .hello_timeout = limits_.hello_timeout};
}

EndpointAttempt EndpointChoice::next_in_turn() {
    bool begins_round = turn_ == 0;
    if (has_several() && misses_turn(endpoints_[turn_])) {
        turn_ = (turn_ + 1) % endpoints_.size();
        begins_round = begins_round || turn_ == 0;
    }
    EndpointAttempt attempt = attempt_at(endpoints_[turn_]);
    turn_ = (turn_ + 1) % endpoints_.size();
    if (begins_round && !std::exchange(is_first_round_, false)) {
        attempt.pause = next_pause();
    }
    return attempt;
}

bool EndpointChoice::misses_turn(const Endpoint& endpoint) {
    if (just_asked_.has_value()) {
        const bool is_it = just_asked_->endpoint == endpoint;
        if (--just_asked_->others_left == 0) {
            just_asked_.reset();
        }
        if (is_it) {
            return true;
        }
    }
    Unreachable* const silent = std::get_if<Unreachable>(&suspect_);
    if (silent == nullptr || silent->endpoint != endpoint || silent->turns_left == 0) {
        return false;
    }
    --silent->turns_left;
    return true;
}

Milliseconds EndpointChoice::next_pause() {
    const Milliseconds least = backoff_ / 2;
    backoff_ = std::min(2 * backoff_, limits_.reconnect_backoff_max);
    return least + Milliseconds(rng_.below(static_cast<std::uint64_t>(least.count()) + 1));
}

void EndpointChoice::failed(bool is_timed_out) {
    if (has_several() && (is_out_of_turn_ || is_timed_out)) {
        // To be refused takes no time, and a daemon that has died may be back.
        const Unreachable silent{asked_, is_timed_out ? limits_.missed_turns_max : 0};
        suspect_ = DDP_RULE(silent, SilentAskedForEver, Suspect(AskAgain{asked_}));
    }
}

void EndpointChoice::fell_silent() {
    if (has_several()) {
        suspect_ = AskAgain{asked_};
    }
}

// Our join told who does not answer: a follower that names it nevertheless knows that it leads
// anew.
void EndpointChoice::redirected(const std::string& endpoint) {
    const Result<Endpoint> leader = parse_endpoint(endpoint);
    if (leader.has_value() && ++redirects_ <= limits_.redirects_max) {
        sent_to_ = *leader;
        suspect_ = NothingKnown{};
    } else {
        redirects_ = 0;
    }
}

// It may be cut off from etcd, or the silent one may lead again in the same term, which is no news
// to it: so others are asked, the silent one too.
void EndpointChoice::nobody_leads() {
    suspect_ = NothingKnown{};
    just_asked_ = AskOthersFirst{asked_, 1};
}

void EndpointChoice::answered() {
    redirects_ = 0;
    backoff_ = limits_.reconnect_backoff_min;
    suspect_ = NothingKnown{};
    just_asked_.reset();
}

std::optional<Milliseconds> EndpointChoice::asking(AgentMessage& message) const {
    Join* const join = std::get_if<Join>(&message);
    Unfit* const unfit = std::get_if<Unfit>(&message);
    if (!has_several() || (join == nullptr && unfit == nullptr)) {
        return std::nullopt;
    }
    const Unreachable* const silent = std::get_if<Unreachable>(&suspect_);
    (join != nullptr ? join->unreachable : unfit->unreachable) =
        silent != nullptr ? to_string(silent->endpoint) : std::string();
    return DDP_RULE(std::optional(limits_.leader_lease), FollowerAwaitedForEver, std::nullopt);
}

}  // namespace ddprun::rdzv
