#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>

#include "base/instant.hpp"
#include "base/limits.hpp"
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
    /// again after lost(), when etcd was away for a while and nobody else had won meanwhile; the
    /// records were read again then, and replace whatever was known.
    std::function<void(std::uint64_t term, std::map<JobId, std::string> records)> leads;

    /// Somebody else leads: "HOST:PORT"; empty: not known (yet). Called on change only.
    std::function<void(std::string leader)> follows;

    /// This daemon led and must stop deciding now. What follows is leads() or follows().
    std::function<void(std::string why)> lost;

    /// A line for people: etcd cannot be reached, or can again.
    std::function<void(std::string line)> say;
};

/// One daemon's part in the competition of several for being the one that decides, through a lease
/// in etcd. At most one leads at a time: a leader believes in its lease by its own clock, from the
/// moment it *asked* for the last prolongation, and stops before etcd gives the lease to others.
/// A process that was stopped for a while finds is_leading() false when it goes on.
///
/// One thread, that of `io`. The destructor calls nothing back and lets the lease run out; stop()
/// gives it up.
class Leadership {
public:
    Leadership(boost::asio::io_context& io, LeadershipOptions options);
    ~Leadership();
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
    [[nodiscard]] Journal& journal();

private:
    class Impl;
    std::shared_ptr<Impl> impl_;
};

}  // namespace ddprun::rdzv
