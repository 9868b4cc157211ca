#include "rendezvous/host/leader_term.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "base/check.hpp"
#include "base/planted_bug.hpp"
#include "base/probe.hpp"

namespace ddprun::rdzv {

namespace {

/// A prolongation is asked for this often within one lease.
constexpr int kProlongationsPerLease = 4;
/// This part of the lease is not used.
constexpr int kMarginPart = 10;
/// A watch that is silent for so many leases is begun anew, at another etcd: that one may hang.
constexpr int kWatchLeases = 4;
/// While etcd does not answer it is asked at least this often within one lease: its own election
/// may be over at any moment, and until we know that, no daemon decides.
constexpr int kTriesPerLease = 16;

}  // namespace

LeaderTerm::LeaderTerm(std::string endpoint, const Limits& limits)
    : endpoint_(std::move(endpoint)), limits_(limits), backoff_(limits.reconnect_backoff_min) {}

void LeaderTerm::start(Instant /*now*/, TermEffects& out) {
    look(out);
}

void LeaderTerm::step(Instant now, const TermInput& input, TermEffects& out) {
    if (const Holding* holding = std::get_if<Holding>(&state_);
        holding != nullptr && now >= lease_->until) {
        DDP_PROBE(lease_lapsed);
        if (std::holds_alternative<LeaseProlonged>(input)) {
            DDP_PROBE(renewal_came_late);
        }
        lose(holding->why_lost, out);
    }
    std::visit([&](const auto& in) { take(now, in, out); }, input);
}

std::optional<Instant> LeaderTerm::timer() const {
    if (const Pausing* pausing = std::get_if<Pausing>(&state_)) {
        return pausing->until;
    }
    const Holding* holding = std::get_if<Holding>(&state_);
    if (holding == nullptr) {
        return std::nullopt;
    }
    Instant at = lease_->until;
    if (!holding->asked_at) {
        at = std::min(at, holding->prolong_at);
    }
    if (const Rereading* rereading = std::get_if<Rereading>(&holding->records)) {
        at = std::min(at, rereading->at);
    }
    return at;
}

bool LeaderTerm::is_leading(Instant now) const {
    const Holding* holding = std::get_if<Holding>(&state_);
    return holding != nullptr && std::holds_alternative<Leading>(holding->records) &&
           now < lease_->until;
}

Instant LeaderTerm::leads_until() const {
    return std::holds_alternative<Holding>(state_) ? lease_->until : Instant::min();
}

std::optional<std::int64_t> LeaderTerm::lease() const {
    return lease_ ? std::optional(lease_->id) : std::nullopt;
}

// --------------------------------------------------------------------------------------- competing

void LeaderTerm::look(TermEffects& out) {
    state_ = Looking{};
    // One etcd that has lost its leader is silent until it knows that: another may have a new one.
    ask(LookAtKey{}, limits_.etcd_timeout / 2, Instant::max(), out);
}

/// With a lease of which at least half is left: the one whose campaign was not answered may yet
/// win.
void LeaderTerm::campaign(Instant now, TermEffects& out) {
    if (lease_ && now - lease_->asked_at < limits_.leader_lease / 2) {
        DDP_PROBE(campaign_with_same_lease);
        take_key(out);
        return;
    }
    lease_.reset();
    state_ = Granting{now};
    ask(GrantLease{std::chrono::ceil<std::chrono::seconds>(limits_.leader_lease)},
        limits_.etcd_timeout / 2, Instant::max(), out);
}

void LeaderTerm::take_key(TermEffects& out) {
    state_ = Taking{};
    ask(TakeKey{lease_->id}, limits_.etcd_timeout / 2, lease_->until, out);
}

void LeaderTerm::take(Instant /*now*/, const LeaseGranted& granted, TermEffects& out) {
    const Granting* granting = std::get_if<Granting>(&state_);
    DDP_CHECK(granting != nullptr, granted.lease);
    believe(granted.lease, granted.ttl, granting->asked_at);
    take_key(out);
}

void LeaderTerm::take(Instant now, const KeySeen& seen, TermEffects& out) {
    const bool has_looked = std::holds_alternative<Looking>(state_);
    DDP_CHECK(has_looked || std::holds_alternative<Taking>(state_), state_.index());
    if (!seen.key) {
        has_looked ? campaign(now, out) : look(out);
    } else if (lease_ && seen.key->lease == lease_->id) {
        if (has_looked) {
            DDP_PROBE(key_is_ours_after_all);
        }
        hold(now, seen.key->term, out);
    } else {
        // It may be our own endpoint under another lease: we were killed and started again.
        follow(now, seen.key->endpoint == endpoint_ ? std::string() : seen.key->endpoint, out);
        out.push_back(WatchKey{.revision = seen.revision + 1,
                               .silence_max = kWatchLeases * limits_.leader_lease});
    }
}

void LeaderTerm::take(Instant now, const EtcdFailed& failed, TermEffects& out) {
    note_trouble(failed.why, out);
    if (Holding* holding = std::get_if<Holding>(&state_)) {
        DDP_PROBE(prolongation_failed);
        holding->asked_at.reset();
        holding->why_lost = failed.why;
        holding->prolong_at = now + next_backoff();
        return;
    }
    if (std::holds_alternative<Leaving>(state_)) {
        DDP_PROBE(prolongation_failed_after_term);
        look(out);
        return;
    }
    if (std::holds_alternative<Taking>(state_) && failed.is_refused) {
        lease_.reset();  // etcd does not know it
    }
    pause(now);
}

void LeaderTerm::pause(Instant now) {
    state_ = Pausing{now + next_backoff()};
}

Milliseconds LeaderTerm::next_backoff() {
    return std::exchange(backoff_, std::min(2 * backoff_, limits_.leader_lease / kTriesPerLease));
}

// ----------------------------------------------------------------------------------------- leading

void LeaderTerm::believe(std::int64_t lease, Duration ttl, Instant asked_at) {
    const Instant until =
        DDP_RULE(asked_at + ttl - ttl / kMarginPart, LeaderOutlivesLease, Instant::max());
    lease_ = Lease{.id = lease, .asked_at = asked_at, .until = until};
}

/// The key is ours.
void LeaderTerm::hold(Instant now, std::uint64_t term, TermEffects& out) {
    DDP_RULE(void(), LeaseFromAnswer, believe(lease_->id, limits_.leader_lease, now));
    if (now >= lease_->until) {
        DDP_PROBE(key_outlived_lease);
        state_ = Regaining{.term = term, .asked_at = now};
        ask(ProlongLease{lease_->id}, prolong_every(), now + limits_.etcd_timeout, out);
        return;
    }
    followed_.reset();
    state_ = Holding{.term = term,
                     .asked_at = std::nullopt,
                     .prolong_at = lease_->asked_at + prolong_every(),
                     .records = Reading{},
                     .why_lost = "etcd was not heard from for a whole lease"};
    out.push_back(ReadRecords{});
}

void LeaderTerm::prolong(Instant now, Holding& holding, TermEffects& out) {
    holding.asked_at = now;
    ask(ProlongLease{lease_->id}, prolong_every(), lease_->until, out);
}

void LeaderTerm::take(Instant now, const LeaseProlonged& prolonged, TermEffects& out) {
    const bool is_over = prolonged.ttl <= Duration::zero();
    const std::string over = "etcd has ended the lease";
    if (Holding* holding = std::get_if<Holding>(&state_)) {
        const Instant asked_at = std::exchange(holding->asked_at, std::nullopt).value();
        if (is_over) {
            note_trouble(over, out);
            lease_.reset();
            lose(over, out);
            return;
        }
        believe(lease_->id, prolonged.ttl, asked_at);
        holding->prolong_at = asked_at + prolong_every();
        note_success(out);
    } else if (const Regaining* regaining = std::get_if<Regaining>(&state_)) {
        if (is_over) {
            note_trouble(over, out);
            lease_.reset();
            pause(now);
            return;
        }
        believe(lease_->id, prolonged.ttl, regaining->asked_at);
        hold(now, regaining->term, out);
    } else {
        DDP_CHECK(std::holds_alternative<Leaving>(state_), state_.index());
        DDP_PROBE(prolonged_after_term);
        if (is_over) {
            lease_.reset();
        }
        look(out);
    }
}

void LeaderTerm::take(Instant /*now*/, const RecordsRead& /*read*/, TermEffects& out) {
    Holding* holding = std::get_if<Holding>(&state_);
    if (holding != nullptr && std::holds_alternative<Reading>(holding->records)) {
        holding->records = Leading{};
        note_success(out);
        out.push_back(BeginLeading{holding->term});
    }
}

void LeaderTerm::take(Instant now, const RecordsFailed& failed, TermEffects& out) {
    Holding* holding = std::get_if<Holding>(&state_);
    if (holding != nullptr && std::holds_alternative<Reading>(holding->records)) {
        DDP_PROBE(records_unread);
        note_trouble(failed.why, out);
        holding->records = Rereading{now + prolong_every()};
    }
}

void LeaderTerm::take(Instant /*now*/, const TermDeposed& /*deposed*/, TermEffects& out) {
    if (std::holds_alternative<Holding>(state_)) {
        lose("etcd says that another daemon leads, or none", out);
    }
}

void LeaderTerm::lose(std::string why, TermEffects& out) {
    const Holding& holding = std::get<Holding>(state_);
    if (std::holds_alternative<Reading>(holding.records)) {
        DDP_PROBE(term_lost_before_records);
        out.push_back(StopReading{});
    }
    if (std::holds_alternative<Leading>(holding.records)) {
        out.push_back(EndLeading{std::move(why)});
    }
    if (holding.asked_at) {
        state_ = Leaving{};
    } else {
        look(out);
    }
}

void LeaderTerm::take(Instant now, const TermTimer& /*timer*/, TermEffects& out) {
    if (const Pausing* pausing = std::get_if<Pausing>(&state_)) {
        if (now >= pausing->until) {
            look(out);
        }
        return;
    }
    Holding* holding = std::get_if<Holding>(&state_);
    if (holding == nullptr) {
        return;
    }
    if (!holding->asked_at && now >= holding->prolong_at) {
        prolong(now, *holding, out);
    }
    const Rereading* rereading = std::get_if<Rereading>(&holding->records);
    if (rereading != nullptr && now >= rereading->at) {
        holding->records = Reading{};
        out.push_back(ReadRecords{});
    }
}

// --------------------------------------------------------------------------------------- following

void LeaderTerm::follow(Instant /*now*/, const std::string& endpoint, TermEffects& out) {
    state_ = Following{};
    if (followed_ != endpoint) {
        followed_ = endpoint;
        out.push_back(FollowLeader{endpoint});
    }
}

void LeaderTerm::take(Instant /*now*/, const WatchHeard& /*heard*/, TermEffects& out) {
    note_success(out);
}

void LeaderTerm::take(Instant now, const KeyDeleted& /*deleted*/, TermEffects& out) {
    note_success(out);
    if (std::holds_alternative<Following>(state_)) {
        follow(now, {}, out);  // send no agents to the old leader until a daemon has won
        campaign(now, out);
    }
}

void LeaderTerm::take(Instant /*now*/, const WatchSilent& /*silent*/, TermEffects& out) {
    if (std::holds_alternative<Following>(state_)) {
        DDP_PROBE(watch_silent);
        look(out);
    }
}

void LeaderTerm::take(Instant now, const WatchEnded& ended, TermEffects& out) {
    if (!ended.why.empty()) {
        note_trouble(ended.why, out);
    }
    if (std::holds_alternative<Following>(state_)) {
        pause(now);
    }
}

// ----------------------------------------------------------------------------------------- helpers

void LeaderTerm::ask(std::variant<LookAtKey, GrantLease, TakeKey, ProlongLease> what,
                     Milliseconds each, Instant until, TermEffects& out) const {
    out.push_back(AskEtcd{.what = what, .each = each, .until = until});
}

Milliseconds LeaderTerm::prolong_every() const {
    return limits_.leader_lease / kProlongationsPerLease;
}

void LeaderTerm::note_trouble(const std::string& why, TermEffects& out) {
    if (why != trouble_) {
        trouble_ = why;
        out.push_back(SayLine{fmt::format("{}; trying again", why)});
    }
}

void LeaderTerm::note_success(TermEffects& out) {
    backoff_ = limits_.reconnect_backoff_min;
    if (!trouble_.empty()) {
        trouble_.clear();
        out.push_back(SayLine{"etcd answers again"});
    }
}

}  // namespace ddprun::rdzv
