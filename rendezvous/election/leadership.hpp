#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>

#include "base/instant.hpp"
#include "base/limits.hpp"
#include "base/os/deadline_timer.hpp"
#include "rendezvous/etcd/etcd_client.hpp"
#include "rendezvous/host/leader_term.hpp"
#include "rendezvous/journal/etcd_journal.hpp"
#include "rendezvous/journal/etcd_records.hpp"
#include "rendezvous/journal/journal.hpp"
#include "rendezvous/wire/endpoint.hpp"

namespace ddprun::rdzv {

struct LeadershipOptions {
    std::vector<Endpoint> etcds;  ///< at least one; the order is the order of trying
    std::string cluster;     ///< daemons that compete share it: keys are "/ddprun/<cluster>/..."
    std::string advertised;  ///< "HOST:PORT" at which agents reach this daemon
    Limits limits;
};

/// Called on the loop's thread, never before the call that started it has returned.
struct LeadershipEvents {
    /// This daemon leads from now on and every run's record was read since it won. `term` is the
    /// revision of etcd at which it won: a later leader has a higher one. The same term may come
    /// again after lost(), when etcd was away for a while and no other daemon won meanwhile; the
    /// records were read again then, and replace whatever was known.
    std::function<void(std::uint64_t term, std::map<JobId, std::string> records)> leads;

    /// Another daemon leads: "HOST:PORT"; empty: not known (yet). Called on change only.
    std::function<void(std::string leader)> follows;

    /// This daemon led and must stop deciding now. Then follows a call of leads() or follows().
    std::function<void(std::string why)> lost;

    /// A line for people: etcd cannot be reached, or can again.
    std::function<void(std::string line)> say;
};

/// One daemon's part in the competition of several for being the one that decides, through a lease
/// in etcd. At most one leads at a time: a leader believes in its lease by its own clock, from the
/// moment it *asked* for the last prolongation, and stops before etcd gives the lease to others.
/// A process that was stopped for a while finds is_leading() false when it goes on.
///
/// Carries out what the pure LeaderTerm asks for. Its questions, the watch, the reading of records
/// and the journal have a connection to etcd each. One thread, that of `io`.
///
/// Outlives the loop, as its coroutines and handlers refer to it. stop() gives the lease up;
/// without it the lease runs out.
class Leadership {
public:
    Leadership(boost::asio::io_context& io, LeadershipOptions options);
    Leadership(const Leadership&) = delete;
    Leadership& operator=(const Leadership&) = delete;

    /// Once. Competes until stop().
    void start(LeadershipEvents events);

    /// Gives the lease up, so that another takes over at once, and calls `done`; no event comes
    /// any more. Takes at most Limits::etcd_timeout.
    void stop(std::function<void()> done);

    /// To be asked before every decision. True from leads() until the lease may be over.
    [[nodiscard]] bool is_leading(Instant now) const;

    /// The end of the lease as it is known now; in the past if this daemon does not lead.
    [[nodiscard]] Instant leads_until() const;

    /// The records of all runs in etcd. Each write happens only if this daemon still leads when
    /// etcd carries it out: otherwise it fails, and lost() follows. Lives as long as this object.
    [[nodiscard]] Journal& journal() { return journal_; }

private:
    enum class Stage { New, Running, Stopped };

    boost::asio::awaitable<void> ask(AskEtcd question);
    boost::asio::awaitable<void> read(std::uint64_t number, EtcdClient& client);
    boost::asio::awaitable<void> watch(WatchKey asked);
    boost::asio::awaitable<void> give_up(std::int64_t lease, std::function<void()> done);

    [[nodiscard]] EtcdRequest request_of(const AskEtcd& question) const;
    void step(const TermInput& input);
    void carry_out(const TermEffects& effects);
    void begin_leading(std::uint64_t term);
    void end_leading(const std::string& why);
    void stop_reading();

    boost::asio::io_context& io_;
    const LeadershipOptions options_;
    const EtcdKeys keys_;
    LeaderTerm term_;
    EtcdClient client_;
    EtcdClient watch_client_;
    EtcdClient parting_client_;                           ///< gives the lease up
    std::map<std::uint64_t, EtcdClient> record_clients_;  ///< each until its read() has ended
    std::uint64_t last_reading_ = 0;
    std::uint64_t reading_ = 0;  ///< whose records are awaited; 0: none are
    EtcdRecords records_;        ///< as they were read for this term
    EtcdJournal journal_;
    DeadlineTimer timer_;  ///< of the term
    LeadershipEvents events_;
    Stage stage_ = Stage::New;
};

}  // namespace ddprun::rdzv
