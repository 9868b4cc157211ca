#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/instant.hpp"
#include "base/tagged.hpp"
#include "rendezvous/core/coordinator.hpp"
#include "rendezvous/host/daemon_host.hpp"
#include "rendezvous/host/job_host.hpp"
#include "rendezvous/host/leader_term.hpp"
#include "rendezvous/host/term_writes.hpp"
#include "tests/sim/etcd.hpp"

namespace ddprun::sim {

/// The only job.
inline const JobId kJob{"sim"};

/// A write that is to be answered.
struct AskedWrite {
    rdzv::JobLife life;
    std::uint64_t number = 0;
};

/// A task of the journal: it writes that record, or erases the run's.
struct JournalWrite {
    std::uint64_t host_number = 0;  ///< whose answers are wanted
    std::optional<rdzv::RunRecord> record;
    std::vector<AskedWrite> answers;
};

/// The rendezvous' process: its host, and the disk, clock and network that are made up around it.
struct Daemon {
    int index = 0;
    std::string name;        ///< of people and agents
    std::uint64_t life = 0;  ///< events of an earlier one are void
    int clock_permille = 1000;
    std::unique_ptr<rdzv::LeaderTerm> term;  ///< of several; null: it is the only one, or not up
    std::optional<Instant> term_timer_at;
    std::uint64_t leads_term = 0;                ///< the last in which it led
    std::optional<rdzv::TermWrites> writes;      ///< of that term
    std::uint64_t leads_number = 0;              ///< how often it has begun to lead
    std::uint64_t reading = 0;                   ///< answers to earlier readings are void
    JournalEntry read_entry;                     ///< what it read
    std::uint64_t watch = 0;                     ///< number of the last one; 0: watches nothing
    bool is_watched = false;                     ///< etcd knows of that watch
    std::unique_ptr<rdzv::StepWatcher> watcher;  ///< of the host
    std::unique_ptr<rdzv::DaemonHost> host;      ///< null: it is not up
    /// How often a host began to decide, or ended: timers and answers from before are void.
    std::uint64_t host_number = 0;
    bool is_up = true;
    Instant up_at{};
    bool is_paused = false;
    Instant paused_since{};  ///< the last time
    Instant paused_until{};
    std::deque<std::function<void()>> waits_for_it;  ///< while it is paused, in order
    Instant cut_off_until{};                         ///< from etcd
    std::optional<Instant> timer_at;                 ///< of the job
    rdzv::JobLife timer_life;
    ConnectionId dead_connections;  ///< this one and all before it were of earlier lives
    bool is_behind = false;         ///< something was told that the journal has not
    std::uint64_t last_write = 0;
    bool is_writing = false;
    std::optional<JournalWrite> waiting_write;
    bool was_waiting = false;  ///< effects waited for a record
    Instant waits_since{};     ///< for a record, or for the next one since the last was taken
    Instant fails_since{};     ///< records fail although the journal works, as judged since then
    Instant let_out_at{};      ///< the last that had waited

    [[nodiscard]] bool is_deciding() const { return host != nullptr && !host->leader(); }
    /// Null: the daemon has no such job.
    [[nodiscard]] const rdzv::JobHost* job() const {
        return host == nullptr ? nullptr : host->host(kJob);
    }
    /// Null: there is none.
    [[nodiscard]] const rdzv::Run* run() const {
        return host == nullptr ? nullptr : host->run(kJob);
    }
    [[nodiscard]] std::optional<rdzv::RunRecord> record(Instant now) const {
        return job() == nullptr ? std::nullopt : job()->coordinator().record(now);
    }
    [[nodiscard]] std::string explain() const {
        return job() == nullptr ? "" : job()->coordinator().explain();
    }
    /// Messages to nodes wait for a record.
    [[nodiscard]] bool is_waiting() const { return job() != nullptr && job()->is_waiting(); }
};

}  // namespace ddprun::sim
