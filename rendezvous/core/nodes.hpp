#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "base/instant.hpp"
#include "base/tagged.hpp"
#include "rendezvous/wire/messages.hpp"

namespace ddprun::rdzv {

/// The state of a node in the run at the moment.
enum class Standing {
    Ready,      ///< no workers, a store socket open: may be taken into the next generation
    Unready,    ///< came back with workers of a generation that is over; they must go first
    Preparing,  ///< a command that it runs, or another node for it, must end first
    Member,     ///< belongs to the current generation
};

/// One node of the run. Fields that indexes depend on change only through Nodes.
class Node {
public:
    Join info;                     ///< its last join; of a restored node little more than the name
    std::uint64_t joined_as = 0;   ///< order of joining within the run
    Instant last_heard{};          ///< its last sign of life
    Duration held_up_before{};     ///< Doubt::held_up_for then
    std::set<LocalRank> finished;  ///< ranks of the current generation that exited 0
    std::set<LocalRank> failed;    ///< those of it that were reported as failed
    Duration quiet_for{};          ///< as it said; meaningful while in Running::quiet
    Instant quiet_since{};         ///< as above
    std::string said_waiting;      ///< the last explanation sent
    std::optional<Instant> said_over_at;  ///< when that wait ends, as it was sent

    [[nodiscard]] Standing standing() const { return standing_; }
    [[nodiscard]] bool is_member() const { return standing_ == Standing::Member; }
    /// Nothing while the node is cut off: it is believed alive until its lease ends.
    [[nodiscard]] std::optional<ConnectionId> connection() const { return connection_; }
    /// Meaningless without leases.
    [[nodiscard]] Instant lease_end() const { return lease_end_; }
    /// The signal that told it to leave.
    [[nodiscard]] std::optional<int> leaving() const { return leaving_; }

private:
    friend class Nodes;
    Standing standing_ = Standing::Ready;
    std::optional<ConnectionId> connection_;
    Instant lease_end_{};
    std::optional<int> leaving_;
};

/// All nodes of a run: members, spares, newcomers. Owns the indexes over them, which fit after
/// every call: no decision walks all nodes. To read, it is a map.
class Nodes {
public:
    using Map = std::map<NodeId, Node>;
    using Lease = std::pair<Instant, NodeId>;

    [[nodiscard]] Map::const_iterator begin() const { return nodes_.begin(); }
    [[nodiscard]] Map::const_iterator end() const { return nodes_.end(); }
    [[nodiscard]] Map::const_iterator find(const NodeId& id) const { return nodes_.find(id); }
    [[nodiscard]] bool contains(const NodeId& id) const { return nodes_.contains(id); }
    [[nodiscard]] const Node& at(const NodeId& id) const { return nodes_.at(id); }
    [[nodiscard]] Node& at(const NodeId& id) { return nodes_.at(id); }
    [[nodiscard]] Node* get(const NodeId& id);  ///< null: it is not here
    [[nodiscard]] std::size_t size() const { return nodes_.size(); }
    [[nodiscard]] bool empty() const { return nodes_.empty(); }

    /// Ready, connected and not leaving.
    [[nodiscard]] const std::set<NodeId>& ready() const { return ready_; }
    /// Preparing and not leaving, cut off or not.
    [[nodiscard]] const std::set<NodeId>& preparing() const { return preparing_; }
    /// Those of them that wait for the job's command, which another node runs or one of them
    /// is to run.
    [[nodiscard]] const std::set<NodeId>& waiting_for_job() const { return waiting_for_job_; }
    /// Not connected, lease not yet ended.
    [[nodiscard]] const std::set<NodeId>& suspects() const { return suspects_; }
    /// Those that run, the first to end first.
    [[nodiscard]] const std::set<Lease>& leases() const { return leases_; }
    [[nodiscard]] const std::map<ConnectionId, NodeId>& by_connection() const {
        return by_connection_;
    }
    /// How often one has connected: who looks for new ones need not while it is the same.
    [[nodiscard]] std::uint64_t connects() const { return connects_; }
    [[nodiscard]] Node* speaking_on(ConnectionId connection);  ///< null: no node that has joined
    /// The node that asked for this --node-rank; null: no node did.
    [[nodiscard]] const Node* with_node_rank(int node_rank) const;

    /// A ready node that is cut off and has no lease; the one of that name, if it is here.
    Node& add(const NodeId& id);
    /// Its voice from now on. Its `info` says what it joined with.
    void connect(const NodeId& id, ConnectionId connection);
    void cut_off(const NodeId& id);
    void set_standing(const NodeId& id, Standing standing);
    void set_leaving(const NodeId& id, int signal);
    void set_prepares(const NodeId& id, Prepares prepares);
    void set_lease(const NodeId& id, Instant end);
    /// As set_lease(), but the lease does not run yet.
    void promise_lease(const NodeId& id, Instant end);
    /// The node as it was.
    Node remove(const NodeId& id);
    void clear() {
        Nodes none;
        none.connects_ = connects_;
        *this = std::move(none);
    }

private:
    void index(const NodeId& id, const Node& node);

    Map nodes_;
    std::map<ConnectionId, NodeId> by_connection_;
    std::uint64_t connects_ = 0;
    std::set<NodeId> ready_;
    std::set<NodeId> preparing_;
    std::set<NodeId> waiting_for_job_;
    std::set<NodeId> suspects_;
    std::set<Lease> leases_;
    std::map<int, NodeId> node_ranks_;  // one may be left behind by a node that asks another now
};

}  // namespace ddprun::rdzv
