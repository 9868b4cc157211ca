#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "base/instant.hpp"
#include "base/tagged.hpp"
#include "rendezvous/core/coordinator.hpp"
#include "rendezvous/host/leader_term.hpp"
#include "rendezvous/host/term_writes.hpp"
#include "tests/sim/etcd.hpp"

namespace ddprun::sim {

/// The only job.
inline const JobId kJob{"sim"};

/// The rendezvous' process, with everything around its coordinator that the real daemon owns.
struct Daemon {
    int index = 0;
    std::string name;        ///< of people and agents
    std::uint64_t life = 0;  ///< events of an earlier one are void
    int clock_permille = 1000;
    std::unique_ptr<rdzv::LeaderTerm> term;  ///< of several; null: it is the only one, or not up
    std::optional<Instant> term_timer_at;
    std::uint64_t leads_term = 0;                    ///< the last in which it led
    std::optional<rdzv::TermWrites> writes;          ///< of that term
    std::uint64_t reading = 0;                       ///< answers to earlier readings are void
    JournalEntry read_entry;                         ///< what it read
    std::string leader;                              ///< somebody else, as far as it knows
    std::uint64_t watch = 0;                         ///< number of the last one; 0: watches nothing
    bool is_watched = false;                         ///< etcd knows of that watch
    std::unique_ptr<rdzv::Coordinator> coordinator;  ///< null: it does not lead
    std::uint64_t reign = 0;  ///< of that one: timers of earlier ones are void
    bool is_up = true;
    Instant up_at{};
    bool is_paused = false;
    Instant paused_until{};
    std::deque<std::function<void()>> waits_for_it;  ///< while it is paused, in order
    Instant cut_off_until{};                         ///< from etcd
    std::optional<Instant> tick_at;
    std::set<ConnectionId> served;              ///< connections of the run
    std::map<ConnectionId, rdzv::Join> parked;  ///< agents that wait until somebody leads
    ConnectionId dead_connections;  ///< this one and all before it were of earlier lives
    bool has_journal = true;        ///< writing works
    bool is_behind = false;         ///< it failed, and has not the newest record again
    std::string fault;              ///< of the journal, as the coordinator was told
    bool is_writing = false;
    bool is_erasing = false;    ///< the run is over and told: nothing of it is kept
    std::uint64_t orders = 0;   ///< to write, in this reign
    std::uint64_t written = 0;  ///< of them
    std::uint64_t awaited = 0;  ///< what follows waits for this one
    struct Held {
        std::uint64_t order = 0;
        rdzv::Effect effect;
    };
    std::deque<Held> held;  ///< effects that wait for an order
    Instant let_out_at{};   ///< the last that had waited
};

}  // namespace ddprun::sim
