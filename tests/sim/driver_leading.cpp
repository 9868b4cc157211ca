// One of several daemons: carries out what its LeaderTerm wants, with an etcd that is made up.

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "base/overloaded.hpp"
#include "rendezvous/wire/codec.hpp"
#include "tests/sim/driver.hpp"
#include "tests/sim/message_text.hpp"

namespace ddprun::sim {

namespace {

/// Etcd checks its leases now and then.
constexpr Milliseconds kExpiryLate{500};
constexpr Milliseconds kSlowMost{3000};
constexpr const char* kEtcdFull = "etcd has no room";

}  // namespace

// -------------------------------------------------------------------------------- the way to etcd

/// When something that is sent now between `daemon` and etcd arrives; none: never.
std::optional<Instant> Simulation::passes_at(const Daemon& daemon) {
    const Instant now = events_.now();
    const Duration most = now < etcd_slow_until_ ? Duration(kSlowMost) : Duration();
    const Duration delay = dice_.up_to(options_.journal_delay_max + most);
    const Instant passable = std::max(daemon.cut_off_until, etcd_away_until_);
    if (passable <= now) {
        return now + delay;
    }
    // TCP may send it again once it can, long after the sender has given up.
    return dice_.chance(1, 2) ? std::optional(passable + delay) : std::nullopt;
}

void Simulation::ask_etcd(Daemon& daemon, Duration patience, EtcdRequest request,
                          EtcdReply unanswered) {
    const auto is_over = std::make_shared<bool>(false);
    const auto end = [is_over](Daemon& same, const EtcdReply& reply) {
        if (!std::exchange(*is_over, true)) {
            reply(same);
        }
    };
    later_in_daemon(daemon, patience, [end, unanswered = std::move(unanswered)](Daemon& same) {
        end(same, unanswered);
    });
    const std::optional<Instant> arrives = passes_at(daemon);
    if (!arrives.has_value()) {
        return;
    }
    events_.at(*arrives, [this, &daemon, life = daemon.life, end, request = std::move(request)] {
        const EtcdReply reply = request();
        const std::optional<Instant> back = passes_at(daemon);
        if (life == daemon.life && back.has_value()) {
            later_in_daemon(daemon, *back - events_.now(),
                            [end, reply](Daemon& same) { end(same, reply); });
        }
    });
}

/// As `daemon`'s clock shows it, which may run fast or slow.
Instant Simulation::local_now(const Daemon& daemon) const {
    return Instant(events_.now().time_since_epoch() / 1000 * daemon.clock_permille);
}

/// When that clock shows `local`: rounded so that no timer fires early.
Instant Simulation::true_time(const Daemon& daemon, Instant local) {
    if (local == Instant::max() || local == Instant::min()) {
        return local;
    }
    const Duration::rep permille = daemon.clock_permille;
    return Instant(Duration((local.time_since_epoch().count() + permille - 1) / permille * 1000));
}

// ---------------------------------------------------------------------------------------- the term

bool Simulation::may_decide(const Daemon& daemon) const {
    return !has_several() || daemon.term->is_leading(local_now(daemon));
}

void Simulation::compete(Daemon& daemon) {
    daemon.term = std::make_unique<rdzv::LeaderTerm>(daemon.name, options_.limits);
    rdzv::TermEffects effects;
    daemon.term->start(local_now(daemon), effects);
    carry_out(daemon, effects);
}

void Simulation::step_term(Daemon& daemon, const rdzv::TermInput& input) {
    rdzv::TermEffects effects;
    daemon.term->step(local_now(daemon), input, effects);
    carry_out(daemon, effects);
}

void Simulation::carry_out(Daemon& daemon, const rdzv::TermEffects& effects) {
    const Overloaded act{
        [&](const rdzv::AskEtcd& question) { ask_for_term(daemon, question); },
        [&](const rdzv::WatchKey& asked) { watch_key(daemon, asked); },
        [&](const rdzv::ReadRecords&) { read_record(daemon); },
        [&](const rdzv::StopReading&) { daemon.reading += 1; },
        [&](const rdzv::BeginLeading& begun) { begin_leading(daemon, begun.term); },
        [&](const rdzv::EndLeading& ended) { end_leading(daemon, ended.why); },
        [&](const rdzv::FollowLeader& followed) { follow(daemon, followed.endpoint); },
        [&](const rdzv::SayLine& line) { trace(daemon.name, line.text); },
    };
    for (const rdzv::TermEffect& effect : effects) {
        std::visit(act, effect);
    }
    arm_term(daemon);
}

void Simulation::arm_term(Daemon& daemon) {
    const std::optional<Instant> local = daemon.term->timer();
    if (!local.has_value() || *local == Instant::max()) {
        daemon.term_timer_at.reset();
        return;
    }
    const Instant at = std::max(true_time(daemon, *local), events_.now());
    if (daemon.term_timer_at == at) {
        return;
    }
    daemon.term_timer_at = at;
    events_.at(at, [this, &daemon, at, life = daemon.life] {
        if (life == daemon.life && daemon.is_up && !daemon.is_paused) {
            term_timer_fires(daemon, at);
        }
    });
}

void Simulation::term_timer_fires(Daemon& daemon, Instant at) {
    if (daemon.term_timer_at == at) {
        daemon.term_timer_at.reset();
        step_term(daemon, rdzv::TermTimer{});
    }
}

void Simulation::ask_for_term(Daemon& daemon, const rdzv::AskEtcd& question) {
    const Duration left = true_time(daemon, question.until) - events_.now();
    const Duration patience =
        question.until == Instant::max() ? question.each : std::min<Duration>(question.each, left);
    ask_etcd(
        daemon, patience,
        [this, name = daemon.name, what = question.what]() -> EtcdReply {
            const rdzv::TermInput answer =
                std::visit([&](const auto& asked) { return etcd_answers(name, asked); }, what);
            return [this, answer](Daemon& same) { step_term(same, answer); };
        },
        [this](Daemon& same) { step_term(same, rdzv::EtcdFailed{.why = "etcd is silent"}); });
}

rdzv::TermInput Simulation::etcd_answers(const std::string& /*who*/,
                                         const rdzv::LookAtKey& /*asked*/) {
    return etcd_.look();
}

rdzv::TermInput Simulation::etcd_answers(const std::string& /*who*/,
                                         const rdzv::GrantLease& /*asked*/) {
    if (!grants_lease()) {
        return rdzv::EtcdFailed{.why = kEtcdFull};
    }
    return etcd_.grant(events_.now());
}

rdzv::TermInput Simulation::etcd_answers(const std::string& who, const rdzv::TakeKey& asked) {
    const bool was_vacant = !etcd_.leader().has_value();
    if (was_vacant && !grants_lease()) {
        return rdzv::EtcdFailed{.why = kEtcdFull};
    }
    const std::optional<rdzv::KeySeen> seen = etcd_.campaign(events_.now(), who, asked.lease);
    if (!seen.has_value()) {
        return rdzv::EtcdFailed{.why = "etcd knows no such lease", .is_refused = true};
    }
    if (was_vacant) {
        watch_leaders_lease();
    }
    return *seen;
}

rdzv::TermInput Simulation::etcd_answers(const std::string& /*who*/,
                                         const rdzv::ProlongLease& asked) {
    const bool is_known = etcd_.prolong(events_.now(), asked.lease);
    return rdzv::LeaseProlonged{is_known ? leader_lease() : Duration::zero()};
}

void Simulation::read_record(Daemon& daemon) {
    const std::uint64_t number = ++daemon.reading;
    ask_etcd(
        daemon, options_.limits.etcd_timeout,
        [this, number]() -> EtcdReply {
            return [this, number, entry = etcd_.entry()](Daemon& same) {
                if (same.reading == number) {
                    same.read_entry = entry;
                    step_term(same, rdzv::RecordsRead{});
                }
            };
        },
        [this, number](Daemon& same) {
            if (same.reading == number) {
                step_term(same, rdzv::RecordsFailed{"etcd is silent"});
            }
        });
}

void Simulation::begin_leading(Daemon& daemon, std::uint64_t term) {
    const JournalEntry& entry = daemon.read_entry;
    trace(daemon.name,
          fmt::format("leads from now on, term {}, with the record of {}", term, entry.revision));
    daemon.leads_term = term;
    daemon.leads_number += 1;
    std::map<JobId, std::uint64_t> known;
    if (entry.record.has_value()) {
        known[kJob] = entry.revision;
    }
    daemon.writes.emplace(term, std::move(known));
    bool is_old = std::exchange(is_etcd_behind_, false);
    for (Daemon& one : daemons_) {
        is_old |= std::exchange(one.is_behind, false);  // it is paused, and led until now
    }
    checker_.daemon_died(is_old ? Memory::Older : Memory::Whole);
    is_record_old_ |= is_old;
    has_forgotten_ |= is_old;
    disturb_all(events_.now());
    begin_deciding(daemon);
    rdzv::DaemonEffects effects;
    daemon.host->lead(
        events_.now(), records_of(entry), [this, &daemon](Instant) { return may_decide(daemon); },
        effects);
    carry_out(daemon, effects);
    judge_restored(daemon, entry);
    judge_return(daemon);
}

/// It must not decide any more.
void Simulation::end_leading(Daemon& daemon, const std::string& why) {
    trace(daemon.name, fmt::format("leads no more: {}", why));
    disturb_all(events_.now());
    end_deciding(daemon);
    rdzv::DaemonEffects effects;
    daemon.host->follow("", effects);
    carry_out(daemon, effects);
}

// --------------------------------------------------------------------------------------- following

void Simulation::follow(Daemon& daemon, const std::string& leader) {
    trace(daemon.name, leader.empty() ? "knows no leader" : "follows " + leader);
    rdzv::DaemonEffects effects;
    daemon.host->follow(leader, effects);
    carry_out(daemon, effects);
}

/// Until the leader's key is deleted, or nothing was heard for long.
void Simulation::watch_key(Daemon& daemon, const rdzv::WatchKey& asked) {
    const std::uint64_t number = ++last_watch_;
    daemon.watch = number;
    later_in_daemon(daemon, asked.silence_max, [this, number](Daemon& same) {
        if (same.watch == number) {
            same.watch = 0;
            step_term(same, rdzv::WatchSilent{});
        }
    });
    const std::optional<Instant> arrives = passes_at(daemon);
    if (!arrives.has_value()) {
        return;
    }
    events_.at(*arrives, [this, &daemon, number, revision = asked.revision] {
        if (daemon.watch == number && etcd_.was_deleted_since(revision)) {
            tell_deletion(daemon);
        } else if (daemon.watch == number) {
            daemon.is_watched = true;
        }
    });
}

void Simulation::tell_deletion(Daemon& daemon) {
    daemon.is_watched = false;
    const std::optional<Instant> arrives = passes_at(daemon);
    if (!arrives.has_value()) {
        return;
    }
    later_in_daemon(daemon, *arrives - events_.now(), [this, number = daemon.watch](Daemon& same) {
        if (same.watch == number) {
            same.watch = 0;
            step_term(same, rdzv::KeyDeleted{});
        }
    });
}

// -------------------------------------------------------------------------------------------- etcd

/// Etcd ends the leader's lease by its own clock, and those who watch are told.
void Simulation::watch_leaders_lease() {
    const std::uint64_t term = etcd_.leader()->term;
    const Instant due = std::max(etcd_.lease_end(), etcd_away_until_);
    events_.at(due + dice_.up_to(kExpiryLate), [this, term] {
        if (!etcd_.leader().has_value() || etcd_.leader()->term != term) {
            return;
        }
        if (events_.now() < etcd_away_until_ || !etcd_.expire(events_.now())) {
            watch_leaders_lease();
            return;
        }
        trace("etcd", fmt::format("the leader's lease of term {} is over", term));
        for (Daemon& daemon : daemons_) {
            if (daemon.is_watched) {
                tell_deletion(daemon);
            }
        }
    });
}

/// Or a record is too large for it: leases go on all the same.
void Simulation::plan_full_etcd() {
    if (!has_several() || options_.etcd_full_for <= Milliseconds(0)) {
        return;
    }
    const Instant from(options_.etcd_full_at);
    events_.at(from, [this] { trace("fault", "etcd takes no records, and keeps leases"); });
    events_.at(from + options_.etcd_full_for, [this] { trace("fault", "etcd takes records"); });
}

bool Simulation::was_etcd_full(Instant since) const {
    const Instant from(options_.etcd_full_at);
    return has_several() && from <= events_.now() && since < from + options_.etcd_full_for;
}

void Simulation::write_to_etcd(Daemon& daemon, JournalWrite wanted) {
    const rdzv::WriteGuard guard = daemon.writes->guard(kJob);
    ask_etcd(
        daemon, options_.limits.etcd_timeout / 2,
        [this, guard, wanted, term = daemon.leads_term,
         number = daemon.leads_number]() -> EtcdReply {
            if (wanted.record.has_value() && is_etcd_full()) {
                return [this, wanted, number](Daemon& same) {
                    if (same.is_deciding() && same.leads_number == number) {
                        has_written(same, wanted, kEtcdFull);
                    }
                };
            }
            const bool is_foreign = !etcd_.leader().has_value() || etcd_.leader()->term != term;
            const rdzv::GuardedAnswer answer = etcd_.put(wanted.record, guard);
            if (answer.is_done && is_foreign) {
                checker_.violate("S1",
                                 fmt::format("the daemon of term {} wrote after its lease", term));
            }
            return [this, answer, wanted, number](Daemon& same) {
                if (same.is_deciding() && same.leads_number == number) {
                    etcd_has_answered(
                        same, wanted,
                        same.writes->answered(kJob, !wanted.record.has_value(), answer));
                }
            };
        },
        [this, wanted, number = daemon.leads_number](Daemon& same) {
            if (same.is_deciding() && same.leads_number == number) {
                has_written(same, wanted, "etcd does not answer");
            }
        });
}

void Simulation::etcd_has_answered(Daemon& daemon, JournalWrite wanted,
                                   rdzv::WriteOutcome outcome) {
    if (outcome == rdzv::WriteOutcome::Deposed) {
        step_term(daemon, rdzv::TermDeposed{});
    } else if (outcome == rdzv::WriteOutcome::Again) {
        write_to_etcd(daemon, std::move(wanted));
    } else {
        has_written(daemon, wanted, "");
    }
}

}  // namespace ddprun::sim
