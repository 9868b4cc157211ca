#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/instant.hpp"
#include "base/tagged.hpp"
#include "rendezvous/core/rank_map.hpp"
#include "rendezvous/wire/messages.hpp"

namespace ddprun::rdzv {

/// What a node is to the run at the moment.
enum class Standing {
    Ready,    ///< no workers, a store socket open: may be taken into the next generation
    Unready,  ///< came back with workers of a generation that is over; they must go first
    Member,   ///< belongs to the current generation
};

struct Node {
    Join info;
    Standing standing = Standing::Ready;
    std::uint64_t joined_as = 0;             ///< order of joining within the run
    std::optional<ConnectionId> connection;  ///< none: cut off, believed alive until its lease ends
    Instant last_heard{};                    ///< its last sign of life
    Duration held_up_before{};               ///< Run::held_up_for then
    Instant lease_end{};                     ///< meaningless without leases
    std::set<LocalRank> finished;            ///< ranks of the current generation that exited 0
    std::set<LocalRank> failed;              ///< those of it that were reported as failed
    Duration quiet_for{};                    ///< as it said; meaningful while in Running::quiet
    Instant quiet_since{};                   ///< as above
    std::optional<int> leaving;              ///< the signal that told it to leave
    std::string said_waiting;                ///< the last explanation sent
};

/// A failure and when it happened on the coordinator's clock.
struct TimedFailure {
    Instant at{};
    FailureReport report;
};

/// Left out until then, if others suffice.
struct Quarantine {
    Instant until{};
    std::string hostname;
    std::string why;        ///< "began 3 failures within 600 s"
    bool is_unfit = false;  ///< as it said itself
};

/// A connection whose node has nothing more to say but Goodbye.
struct Departing {
    NodeId node;
    Instant until{};  ///< then it is closed
};

// ---------------------------------------------------------------------------------------- phases

/// Nodes came back with workers of a run that this daemon does not know. It decides nothing, and
/// answers nobody, until it can tell which generation is the newest.
struct Adopting {
    Instant not_before{};  ///< a lease: whoever the last daemon fenced knows it by then
    Instant until{};
};

/// Too few nodes, or the patience for more has not ended, or a back-off has not.
struct Forming {
    Instant since{};
    Instant give_up_at{};                 ///< while the minimum is missing
    std::optional<Instant> patience_end;  ///< set when the minimum was reached, first generation
    std::optional<Instant> not_before;    ///< back-off after a burst of restarts
    std::string why;                      ///< of the generation to come
};

/// Every member has its row; workers live.
struct Running {
    Instant since{};
    std::set<NodeId> unfinished;      ///< members some of whose ranks have not exited 0
    std::set<NodeId> quiet;           ///< of those, whose workers show no sign of life, as they say
    std::optional<Instant> hangs_at;  ///< if they all stay so
    std::optional<Instant> finished_at;  ///< the last rank that did
    bool has_finished_rank = false;
};

/// Every member was told to stop; those in `pending` have not proven to be empty.
struct Stopping {
    StopCause cause = StopCause::Failure;  ///< of order, or Failure once a node was lost
    Instant since{};
    Instant give_up_at{};  ///< a node that is still pending then is lost
    Stop order;            ///< what members were told, for those that reconnect
    std::set<NodeId> pending;
    std::set<NodeId> unfinished;          ///< as in Running when the stop began
    std::vector<TimedFailure> failures;   ///< the earliest, in no order
    int failure_count = 0;                ///< all that were reported
    std::vector<std::string> lost_nodes;  ///< host names of members that are missed
    std::string loss_why;                 ///< of the first of them
    bool is_explained_by_loss = false;    ///< a node went when the failures began: its doing
};

struct Closed {
    Verdict verdict;
    Instant at{};
};

/// A run from the journal to which nobody has come back. Perhaps it ended with the daemon:
/// strangers wait for a grace, then begin anew. Else it is kept as long as its agents may come
/// back.
struct Restored {
    Instant since{};
    Instant strangers_wait_until{};
    Instant kept_until{};
    /// What goes on, with its clocks set forward, once a node of it is back.
    std::variant<Forming, Running, Stopping> recorded;
};

using Phase = std::variant<Forming, Running, Stopping, Closed, Adopting, Restored>;

/// One life of the job, from the first join to the verdict. Data only: coordinator.cpp and the
/// files beside it decide. The simulator's checkers and status pages read it.
struct Run {
    std::string token;  ///< names this run; members present it when they reconnect
    JobSettings settings;
    Instant opened_at{};
    Phase phase;
    Generation generation;         ///< the current one, or the last while forming
    Generation generation_floor;   ///< the highest number that any node has told: later ones follow
    Instant started_at{};          ///< it, at the earliest: no failure of it is older
    std::string digest;            ///< of its rank map
    std::vector<Place> places;     ///< its rank map, in order of group rank
    std::map<NodeId, Start> rows;  ///< what each member was sent, for one that missed it
    StoreAddress store;            ///< of the current generation
    std::vector<std::string> admitted;  ///< to it
    int restarts_used = 0;
    int node_losses_used = 0;
    std::optional<std::uint64_t> failed_step;  ///< where the last failure happened, if it told
    int failures_at_step = 0;                  ///< in a row, all there
    std::deque<Instant> recent_starts;         ///< within the back-off window
    Milliseconds next_backoff{0};              ///< 0: the first one
    /// When each node began a failure, within Limits::quarantine_window; at most nodes_max.
    std::map<NodeId, std::deque<Instant>> blames;
    std::map<NodeId, Quarantine> quarantined;  ///< here or not; at most nodes_max
    std::string not_durable;                   ///< why the journal has not the last record; empty
    Generation adopted_up_to;                  ///< older generations that nodes hold are no news
    bool may_be_older = false;                 ///< this process knows of no earlier run of the job
    /// Joins that wait, unanswered, until it is known which run goes on: each node's last one.
    std::map<ConnectionId, Join> parked;
    /// A restored run somebody is back to: the others may come, with newer news, until then.
    Instant returns_until{};
    std::vector<TimelineEvent> timeline;
    std::uint64_t joins = 0;

    std::map<NodeId, Node> nodes;  ///< members, spares, newcomers
    std::map<ConnectionId, NodeId> by_connection;
    std::map<ConnectionId, Departing> departing;  ///< told to go and still connected
    std::set<NodeId> departed;                    ///< left or said goodbye, at most nodes_max

    // Indexes over `nodes`, kept by reindex(): no decision walks all nodes.
    std::set<NodeId> ready;     ///< Ready, connected and not leaving
    std::set<NodeId> suspects;  ///< not connected, lease not yet ended
    std::set<std::pair<Instant, NodeId>> leases;
    std::map<int, NodeId> node_ranks;   ///< explicit ones
    std::string turned_away;            ///< why the last one was, since a generation ran
    std::optional<Instant> explain_at;  ///< when waiting nodes are told why, at the latest
    /// Set while the coordinator suspects itself: until then no silence is judged, unless it is
    /// longer than any hold-up excuses.
    std::optional<Instant> doubt_until;
    Duration held_up_for{};  ///< all hold-ups of this process together, as far as they are known
};

}  // namespace ddprun::rdzv
