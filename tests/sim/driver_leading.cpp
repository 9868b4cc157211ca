// One of several daemons: competes in etcd for being the one that decides, leads or follows. As
// rendezvous/journal (Leadership, EtcdJournal) and rendezvous/server (server_leading.cpp) do it.

#include <algorithm>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "base/planted_bug.hpp"
#include "rendezvous/wire/codec.hpp"
#include "tests/sim/driver.hpp"
#include "tests/sim/message_text.hpp"

namespace ddprun::sim {

namespace {

/// As leader_lease.cpp and leadership.cpp have them.
constexpr int kProlongationsPerLease = 4;
constexpr int kMarginPart = 10;
constexpr int kTriesPerLease = 16;
constexpr int kWatchLeases = 4;

/// Etcd looks at its leases now and then.
constexpr Milliseconds kExpiryLate{500};
constexpr Milliseconds kSlowMost{3000};

}  // namespace

// ------------------------------------------------------------------------------------ the way to
// etcd

/// When something that is sent now between `daemon` and etcd arrives; none: never.
std::optional<Instant> Simulation::passes_at(const Daemon& daemon) {
    const Instant now = events_.now();
    const Duration most = now < etcd_slow_until_ ? Duration(kSlowMost) : Duration();
    const Duration delay = dice_.up_to(options_.journal_delay_max + most);
    const Instant passable = std::max(daemon.cut_off_until, etcd_away_until_);
    if (passable <= now) {
        return now + delay;
    }
    // TCP may send it again once it can, long after whoever asked has given up.
    return dice_.chance(1, 2) ? std::optional(passable + delay) : std::nullopt;
}

void Simulation::ask_etcd(Daemon& daemon, Duration patience, EtcdRequest request,
                          EtcdAnswered answered) {
    const auto is_over = std::make_shared<bool>(false);
    const auto end = [is_over, answered = std::move(answered)](Daemon& same,
                                                               const EtcdAnswer* answer) {
        if (!std::exchange(*is_over, true)) {
            answered(same, answer);
        }
    };
    later_in_daemon(daemon, patience, [end](Daemon& same) { end(same, nullptr); });
    const std::optional<Instant> arrives = passes_at(daemon);
    if (!arrives.has_value()) {
        return;
    }
    events_.at(*arrives, [this, &daemon, life = daemon.life, end, request = std::move(request)] {
        const EtcdAnswer answer = request();
        const std::optional<Instant> back = passes_at(daemon);
        if (life == daemon.life && back.has_value()) {
            later_in_daemon(daemon, *back - events_.now(),
                            [end, answer](Daemon& same) { end(same, &answer); });
        }
    });
}

// ------------------------------------------------------------------------------------------
// competing

/// To be asked before every decision.
bool Simulation::may_decide(const Daemon& daemon) const {
    return !has_several() || (daemon.coordinator != nullptr && events_.now() < daemon.seat.until);
}

void Simulation::look_for_leader(Daemon& daemon) {
    daemon.seat.watch = 0;
    ask_etcd(
        daemon, options_.limits.etcd_timeout / 2,
        [this] { return EtcdAnswer{.leader = etcd_.leader(), .entry = {}}; },
        [this](Daemon& same, const EtcdAnswer* answer) {
            const bool is_vacant = answer != nullptr && !answer->leader.has_value();
            is_vacant ? campaign(same) : take_seat(same, answer);
        });
}

void Simulation::campaign(Daemon& daemon) {
    Seat& seat = daemon.seat;
    seat.watch = 0;
    // A campaign that was not answered may yet be won.
    const Instant now = events_.now();
    if (seat.lease == 0 || now - seat.asked_at >= leader_lease() / 2) {
        seat.lease = ++last_lease_;
        seat.asked_at = now;
    }
    ask_etcd(
        daemon, options_.limits.etcd_timeout / 2,
        [this, index = daemon.index, lease = seat.lease] {
            if (etcd_.campaign(events_.now(), index, lease)) {
                watch_leaders_lease();
            }
            return EtcdAnswer{.leader = etcd_.leader(), .entry = {}};
        },
        [this](Daemon& same, const EtcdAnswer* answer) { take_seat(same, answer); });
}

void Simulation::take_seat(Daemon& daemon, const EtcdAnswer* answer) {
    Seat& seat = daemon.seat;
    if (answer == nullptr || !answer->leader.has_value()) {
        look_again(daemon);
        return;
    }
    const LeaderKey& key = *answer->leader;
    if (key.lease == seat.lease) {
        reign(daemon, key.term);
        return;
    }
    seat.lease = 0;
    // It may be our own endpoint: we were killed, and started again within our lease.
    follow(daemon, key.daemon == daemon.index ? std::nullopt : std::optional(key.daemon));
}

void Simulation::look_again(Daemon& daemon) {
    Milliseconds& backoff = daemon.seat.backoff;
    backoff = std::clamp(backoff * 2, options_.limits.reconnect_backoff_min,
                         options_.limits.leader_lease / kTriesPerLease);
    later_in_daemon(daemon, backoff, [this](Daemon& same) { look_for_leader(same); });
}

// --------------------------------------------------------------------------------------------
// leading

/// Counted from when etcd was asked, which is before it counts from, and not wholly used: clocks
/// run at different speeds.
void Simulation::believe(Daemon& daemon, Instant asked_at) {
    daemon.seat.asked_at = DDP_BUG(LeaseFromAnswer) ? events_.now() : asked_at;
    const Duration trusted = leader_lease() - leader_lease() / kMarginPart;
    daemon.seat.until = daemon.seat.asked_at + trusted / daemon.clock_permille * 1000;
    if (DDP_BUG(LeaderOutlivesLease)) {
        daemon.seat.until = Instant::max();
    }
}

/// The key is ours.
void Simulation::reign(Daemon& daemon, std::uint64_t term) {
    Seat& seat = daemon.seat;
    believe(daemon, seat.asked_at);
    if (events_.now() >= seat.until) {
        // Etcd was away for longer than the lease, and has kept it for us all the same.
        const Instant asked_at = events_.now();
        ask_etcd(
            daemon, options_.limits.etcd_timeout,
            [this, lease = seat.lease] {
                return EtcdAnswer{.is_done = etcd_.prolong(events_.now(), lease), .entry = {}};
            },
            [this, term, asked_at](Daemon& same, const EtcdAnswer* answer) {
                if (answer == nullptr || !answer->is_done) {
                    same.seat.lease = answer == nullptr ? same.seat.lease : 0;
                    look_again(same);
                    return;
                }
                same.seat.asked_at = asked_at;
                reign(same, term);
            });
        return;
    }
    trace(daemon.name, fmt::format("has the leader's key, term {}", term));
    seat.term = term;
    seat.leader.reset();
    watch_own_lease(daemon);
    prolong_lease(daemon);
    load_record(daemon);
}

void Simulation::prolong_lease(Daemon& daemon) {
    const Duration every = leader_lease() / kProlongationsPerLease;
    const std::uint64_t term = daemon.seat.term;
    const Duration pause = daemon.seat.asked_at + every - events_.now();
    later_in_daemon(daemon, std::max(pause, Duration()), [this, every, term](Daemon& same) {
        const Instant asked_at = events_.now();
        if (same.seat.term != term || asked_at >= same.seat.until) {
            return;
        }
        ask_etcd(
            same, std::min(every, same.seat.until - asked_at),
            [this, lease = same.seat.lease] {
                return EtcdAnswer{.is_done = etcd_.prolong(events_.now(), lease), .entry = {}};
            },
            [this, term, asked_at](Daemon& asker, const EtcdAnswer* answer) {
                if (asker.seat.term != term) {
                    return;
                }
                if (answer != nullptr && !answer->is_done) {
                    asker.seat.lease = 0;
                    lose_seat(asker, "etcd has ended the lease");
                    return;
                }
                if (answer != nullptr) {
                    believe(asker, asked_at);
                }
                prolong_lease(asker);
            });
    });
}

/// The daemon's own timer, which may be late.
void Simulation::watch_own_lease(Daemon& daemon) {
    const Duration left = daemon.seat.until - events_.now();
    if (daemon.seat.until == Instant::max()) {
        return;
    }
    later_in_daemon(daemon, left, [this, term = daemon.seat.term](Daemon& same) {
        if (same.seat.term != term) {
            return;
        }
        if (events_.now() >= same.seat.until) {
            lose_seat(same, "etcd was not heard from for a whole lease");
        } else {
            watch_own_lease(same);
        }
    });
}

void Simulation::load_record(Daemon& daemon) {
    ask_etcd(
        daemon, options_.limits.etcd_timeout,
        [this] { return EtcdAnswer{.is_done = true, .leader = {}, .entry = etcd_.entry()}; },
        [this, term = daemon.seat.term](Daemon& same, const EtcdAnswer* answer) {
            if (same.seat.term != term || events_.now() >= same.seat.until) {
                return;
            }
            if (answer != nullptr) {
                begin_leading(same, answer->entry);
            } else {
                later_in_daemon(same, leader_lease() / kProlongationsPerLease,
                                [this, term](Daemon& later) {
                                    if (later.seat.term == term) {
                                        load_record(later);
                                    }
                                });
            }
        });
}

void Simulation::begin_leading(Daemon& daemon, const JournalEntry& entry) {
    trace(daemon.name, fmt::format("leads from now on, with the record of {}", entry.revision));
    daemon.seat.backoff = Milliseconds::zero();
    daemon.seat.known_revision = entry.revision;
    checker_.daemon_died(Memory::Whole);
    disturb_all(events_.now());
    open_coordinator(daemon, entry);
    judge_return(daemon);
    const std::map<ConnectionId, rdzv::Join> parked = std::exchange(daemon.parked, {});
    for (const auto& [connection, join] : parked) {
        take_message(daemon, connection, rdzv::AgentMessage(join));
    }
}

/// It must not decide any more.
void Simulation::lose_seat(Daemon& daemon, const std::string& why) {
    trace(daemon.name, fmt::format("leads no more: {}", why));
    daemon.seat.term = 0;
    daemon.seat.until = Instant::min();
    if (daemon.coordinator != nullptr) {
        disturb_all(events_.now());
        const std::set<ConnectionId> served = daemon.served;
        close_coordinator(daemon);
        for (const ConnectionId connection : served) {
            network_.close_at_rendezvous(connection, PacketKind::Reset);
        }
    }
    look_for_leader(daemon);
}

// ------------------------------------------------------------------------------------------
// following

/// Until the leader's key is deleted. No polling, but a watch that is silent for long is not
/// trusted.
void Simulation::follow(Daemon& daemon, std::optional<int> leader) {
    Seat& seat = daemon.seat;
    seat.backoff = Milliseconds::zero();
    if (seat.leader != leader) {
        trace(daemon.name, leader.has_value() ? "follows " + this->daemon(*leader).name
                                              : std::string("knows no leader"));
    }
    seat.leader = leader;
    seat.watch = ++last_watch_;
    if (leader.has_value()) {
        const std::map<ConnectionId, rdzv::Join> parked = std::exchange(daemon.parked, {});
        for (const auto& [connection, join] : parked) {
            send_to_leader(daemon, connection);
        }
    }
    later_in_daemon(daemon, leader_lease() * kWatchLeases,
                    [this, watch = seat.watch](Daemon& same) {
                        if (same.seat.watch == watch) {
                            look_for_leader(same);
                        }
                    });
}

void Simulation::send_to_leader(Daemon& daemon, ConnectionId connection) {
    const rdzv::Redirect redirect{this->daemon(*daemon.seat.leader).name};
    network_.send_to_node(connection, rdzv::encode(rdzv::RendezvousMessage(redirect)));
    network_.close_at_rendezvous(connection);
}

void Simulation::receive_as_follower(Daemon& daemon, ConnectionId connection,
                                     const rdzv::AgentMessage& message) {
    const rdzv::Join* join = std::get_if<rdzv::Join>(&message);
    const rdzv::Unfit* unfit = std::get_if<rdzv::Unfit>(&message);
    if ((join == nullptr && unfit == nullptr) || !network_.node_of(connection).has_value()) {
        return;
    }
    trace(daemon.name, fmt::format("<- {} {}", connection.value(), message_text(message)));
    const std::optional<int> leader = daemon.seat.leader;
    const std::string& unreachable = join != nullptr ? join->unreachable : unfit->unreachable;
    if (leader.has_value() && this->daemon(*leader).name != unreachable) {
        send_to_leader(daemon, connection);
    } else if (join != nullptr) {
        daemon.parked[connection] = *join;
    }
}

// -----------------------------------------------------------------------------------------------
// etcd

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
            const std::optional<Instant> arrives = passes_at(daemon);
            if (daemon.seat.watch == 0 || !arrives.has_value()) {
                continue;
            }
            later_in_daemon(daemon, *arrives - events_.now(),
                            [this, watch = daemon.seat.watch](Daemon& same) {
                                if (same.seat.watch == watch) {
                                    same.seat.leader.reset();
                                    campaign(same);
                                }
                            });
        }
    });
}

void Simulation::write_to_etcd(Daemon& daemon, std::optional<rdzv::RunRecord> record) {
    const Seat& seat = daemon.seat;
    ask_etcd(
        daemon, options_.limits.etcd_timeout / 2,
        [this, term = seat.term, known = seat.known_revision, record = std::move(record)] {
            EtcdAnswer answer{.leader = etcd_.leader(), .entry = {}};
            if (DDP_BUG(UnguardedWrite)) {
                etcd_.put(record);
                answer.is_done = true;
            } else {
                answer.is_done = etcd_.put_guarded(record, term, known);
            }
            const bool is_foreign = !etcd_.leader().has_value() || etcd_.leader()->term != term;
            if (answer.is_done && is_foreign) {
                checker_.violate("S1",
                                 fmt::format("the daemon of term {} wrote after its reign", term));
            }
            answer.entry.revision = etcd_.entry().revision;
            return answer;
        },
        [this, reign = daemon.reign, orders = daemon.orders](Daemon& same,
                                                             const EtcdAnswer* answer) {
            if (same.reign != reign) {
                return;
            }
            same.is_writing = false;
            if (answer == nullptr) {
                // Nothing is told that could not be written: another daemon may decide by now.
                tell_durability(same, "etcd does not answer");
                later_in_daemon(same, options_.limits.reconnect_backoff_min,
                                [this, reign](Daemon& later) {
                                    if (later.reign == reign && !later.is_writing) {
                                        begin_write(later);
                                    }
                                });
                return;
            }
            const bool leads = answer->leader.has_value() && answer->leader->term == same.seat.term;
            if (!answer->is_done && !leads) {
                lose_seat(same, "etcd says that another daemon leads, or none");
                return;
            }
            same.seat.known_revision = answer->entry.revision;
            if (!answer->is_done) {
                begin_write(same);  // an earlier request of ours had not been answered
                return;
            }
            tell_durability(same, "");
            record_is_written(same, orders);
        });
}

}  // namespace ddprun::sim
