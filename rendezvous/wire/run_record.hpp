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

/// The part of a run that must survive the daemon that decides about it. Written whole at every
/// change of phase; small next to the facts that agents repeat by themselves when they reconnect:
/// which workers finished or failed, who was told to leave, which store sockets wait.
namespace ddprun::rdzv {

enum class RecordedPhase { Forming, Running, Stopping, Closed };

/// A node in a rank map; the map's order is the order of group ranks.
struct Place {
    NodeId node;
    int slots = 1;
    std::string hostname;
    std::string role;
    std::string topology_key;

    bool operator==(const Place&) const = default;
};

/// A node that was in the run: the daemon waits for it, a full grace long.
struct RecordedNode {
    NodeId node;
    std::string process;
    std::string hostname;
    int slots = 1;
    bool is_member = false;           ///< of the current generation
    std::optional<int> leaving = {};  ///< the signal that told it to leave, or an operator's

    bool operator==(const RecordedNode&) const = default;
};

/// A node that is left out for a while.
struct RecordedQuarantine {
    NodeId node;
    std::string hostname;
    Milliseconds remaining{0};
    std::string why = "keeps failing";  ///< after "it"
    bool is_unfit = false;              ///< as it said itself

    bool operator==(const RecordedQuarantine&) const = default;
};

struct RunRecord {
    static constexpr std::string_view kType = "run";

    JobId job;
    std::string token;
    JobSettings settings;
    Milliseconds age{0};  ///< since the first join
    RecordedPhase phase = RecordedPhase::Forming;
    Generation generation;
    std::string digest;
    StoreAddress store;                 ///< of the current generation
    std::vector<std::string> admitted;  ///< to it
    std::vector<Place> places;
    std::vector<RecordedNode> nodes;
    std::vector<std::string> departed;  ///< node ids
    int restarts_used = 0;
    int node_losses_used = 0;
    std::optional<std::uint64_t> failed_step;
    int failures_at_step = 0;
    std::vector<RecordedQuarantine> quarantined;
    int target_nodes = 0;         ///< an operator wants no more; 0: as the settings say
    Milliseconds held_for{0};     ///< by an operator, from now; 0: not held
    Milliseconds held_in_all{0};  ///< what it asked for
    std::string held_by;          ///< who asked
    bool is_prepared = false;     ///< the job's prepare command has run; older records lack it
    std::string why;              ///< Forming: of the generation to come
    std::optional<Stop> order;    ///< Stopping: what members were told
    bool is_failure = false;      ///< Stopping: whatever the order was, a member is missed now
    std::vector<std::string> unfinished;  ///< Running, Stopping: ids of nodes with ranks that have
                                          ///< not exited 0
    std::vector<std::string> lost_nodes;  ///< Stopping: host names, to be charged
    std::string loss_why;
    bool is_explained_by_loss = false;
    std::string ended_by;            ///< Stopping: the operator that ends the job; empty
    std::optional<Verdict> verdict;  ///< Closed
    std::vector<TimelineEvent> timeline;

    bool operator==(const RunRecord&) const = default;
};

/// As JSON.
[[nodiscard]] std::string encode(const RunRecord& record);

/// Failure is BadMessage and names the field: the record is damaged or of another version.

}  // namespace ddprun::rdzv
