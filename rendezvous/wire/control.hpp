#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/instant.hpp"
#include "base/limits.hpp"
#include "base/result.hpp"
#include "base/tagged.hpp"
#include "rendezvous/wire/messages.hpp"

/// Messages of a connection with PeerRole::Control (one question and one answer, which change
/// nothing) or PeerRole::Operator (one order and its answer). No token travels: members prove
/// themselves with it.
namespace ddprun::rdzv {

/// How things stand with the job of the connection's hello.
struct AskStatus {
    static constexpr std::string_view kType = "ask_status";

    JobId job;  ///< empty: all jobs

    bool operator==(const AskStatus&) const = default;
};

enum class JobPhase { Forming, Running, Stopping, Closed, Adopting };

enum class NodeStanding {
    Member,     ///< of the current generation
    Ready,      ///< may be taken into the next one
    Spare,      ///< ready, beyond the maximum
    Unready,    ///< came back with workers of a generation that is over
    Preparing,  ///< waits for the end of a prepare command
};

struct NodeStatus {
    NodeId node;
    std::string hostname;
    NodeStanding standing = NodeStanding::Ready;
    std::optional<int> group_rank;  ///< of members, as base_rank
    std::optional<int> base_rank;   ///< its first rank; the others follow
    int slots = 1;
    int finished = 0;  ///< ranks of the current generation that exited 0
    bool is_connected = false;
    bool is_suspect = false;  ///< cut off, and believed alive until its lease ends
    Milliseconds last_heard{0};
    Milliseconds lease_left{0};
    std::optional<int> leaving;   ///< the signal that told it to leave
    Milliseconds quarantined{0};  ///< left out so much longer, if others suffice
    std::string quarantine_why;   ///< what it has done, after "it"
    std::string containment;      ///< of its workers, a word of --containment
    /// The least that one of its ranks has reported; left out, like the next, without a watcher.
    std::optional<std::uint64_t> step;
    std::optional<std::uint64_t> step_ns;       ///< a step takes so long, of late
    std::optional<std::uint64_t> memory_bytes;  ///< as in HostMemory, like the next two
    std::optional<std::uint64_t> memory_limit_bytes;
    std::optional<int> memory_pressure_permille;
    std::string log_lost;  ///< as in Progress

    bool operator==(const NodeStatus&) const = default;
};

/// A node that is left out for a while, and is not here.
struct AbsentStatus {
    NodeId node;
    std::string hostname;
    Milliseconds quarantined{0};  ///< as in NodeStatus, as is the next
    std::string quarantine_why;

    bool operator==(const AbsentStatus&) const = default;
};

/// The steps of all ranks are longer because of one rank.
struct SlowestStatus {
    Rank rank;
    NodeId node;
    std::string hostname;
    int cost_permille = 0;  ///< of a step

    bool operator==(const SlowestStatus&) const = default;
};

/// Its ranks live, and get no further.
struct StallStatus {
    Milliseconds age{0};       ///< since the last step of any rank, or its last output
    std::optional<Rank> rank;  ///< for which all others wait, as far as is known
    std::string hostname;      ///< its node
    std::string text;          ///< all of this, for people

    bool operator==(const StallStatus&) const = default;
};

struct JobStatus {
    JobId job;
    JobPhase phase = JobPhase::Forming;
    Milliseconds age{0};       ///< since the first join
    Milliseconds in_phase{0};  ///< since the phase began
    Generation generation;     ///< the current one, or the last while forming
    std::string waits_for;     ///< empty when nothing is awaited
    std::string not_durable;  ///< why a restart of the daemon would lose news of this run; or empty
    int min_nodes = 1;
    int max_nodes = 1;
    std::string nnodes;  ///< as the flags say it; empty: an older daemon does not send it
    int world_size = 0;  ///< of the generation, 0 before the first
    int restarts_used = 0;
    int max_restarts = 0;
    int node_losses_used = 0;
    int max_node_losses = -1;           ///< -1: unbounded
    int target_nodes = 0;               ///< an operator wants no more; 0: max_nodes
    Milliseconds held{0};               ///< an operator lets no generation start so much longer
    std::string held_by;                ///< who that was
    std::vector<NodeStatus> nodes;      ///< members by rank, then others
    int nodes_left_out = 0;             ///< those that need no attention first
    std::vector<AbsentStatus> absent;   ///< by id
    int absent_left_out = 0;            ///< the last ones of them
    std::vector<TimelineEvent> events;  ///< the last ones
    int events_left_out = 0;
    std::optional<int> exit_code;  ///< Closed
    std::string verdict;           ///< Closed
    std::optional<SlowestStatus> slow;
    std::optional<StallStatus> stall;
    std::string time_text;        ///< where its time went, for people
    std::string checkpoint_text;  ///< how its saves go, for people; empty: there was none

    bool operator==(const JobStatus&) const = default;
};

struct StatusReply {
    static constexpr std::string_view kType = "status";

    std::vector<JobStatus> jobs;  ///< by id
    int jobs_left_out = 0;

    bool operator==(const StatusReply&) const = default;
};

/// Actions that operators may order for a job.
enum class OperatorAction {
    Drain,       ///< a node saves and leaves
    Restart,     ///< the workers save, and start anew
    Hold,        ///< no generation starts for a while
    Stop,        ///< the workers save, and the job is over
    Grow,        ///< at least so many nodes, as soon as they come
    Shrink,      ///< at most so many nodes
    Quarantine,  ///< a node is left out for a while if others suffice
    Release,     ///< a node from that; without a node the job, which is held
};

struct OperatorOrder {
    static constexpr std::string_view kType = "order";

    JobId job;
    OperatorAction action = OperatorAction::Restart;
    std::string node;          ///< its id or its host's name
    Milliseconds duration{0};  ///< of Hold and Quarantine; 0: of the latter as long as is usual
    int nodes = 0;             ///< of Grow and Shrink
    std::string by;            ///< who asks, as the client says

    bool operator==(const OperatorOrder&) const = default;
};

/// Why nothing was done.
enum class OrderFault {
    None,
    Invalid,   ///< what is asked for makes no sense for this job
    Unknown,   ///< there is no such job or node
    Conflict,  ///< not as things are now
};

struct OperatorReply {
    static constexpr std::string_view kType = "ordered";

    OrderFault fault = OrderFault::None;
    std::uint64_t event = 0;  ///< the number of the event `operator`, if it was taken
    std::string text;         ///< a line: what happens now, or why nothing does

    bool operator==(const OperatorReply&) const = default;
};

[[nodiscard]] std::string encode(const OperatorOrder& order);
[[nodiscard]] std::string encode(const OperatorReply& reply);
[[nodiscard]] std::string encode(const AskStatus& question);
[[nodiscard]] std::string encode(const StatusReply& reply);
/// As it stands in a reply.
[[nodiscard]] std::string encode(const JobStatus& job);

/// Failure is BadMessage and names the field.

}  // namespace ddprun::rdzv
