#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/instant.hpp"
#include "base/limits.hpp"
#include "base/tagged.hpp"
#include "rendezvous/wire/messages.hpp"

/// Nodes that keep failing, or are not fit, are left out for a while where others suffice.
namespace ddprun::rdzv {

struct Run;
struct Step;

/// Left out until then, if others suffice.
struct Quarantine {
    Instant until{};
    std::string hostname;
    std::string why;        ///< "began 3 failures within 600 s"
    bool is_unfit = false;  ///< as it said itself
};

/// Nodes that are left out, or began failures lately, here or not. At most Limits::nodes_max each.
class QuarantineList {
public:
    using Map = std::map<NodeId, Quarantine>;
    // To read: a map, in which some may be over.
    [[nodiscard]] Map::const_iterator begin() const { return all_.begin(); }
    [[nodiscard]] Map::const_iterator end() const { return all_.end(); }
    [[nodiscard]] Map::const_iterator find(const NodeId& id) const { return all_.find(id); }
    [[nodiscard]] bool contains(const NodeId& id) const { return all_.contains(id); }
    [[nodiscard]] const Quarantine& at(const NodeId& id) const { return all_.at(id); }
    [[nodiscard]] std::size_t size() const { return all_.size(); }
    [[nodiscard]] bool empty() const { return all_.empty(); }

    [[nodiscard]] bool is_left_out(const NodeId& id, Instant now) const;
    /// How many of `nodes` are not left out.
    [[nodiscard]] std::size_t healthy_count(const std::set<NodeId>& nodes, Instant now) const;
    /// When the next one of `nodes` leaves quarantine.
    [[nodiscard]] std::optional<Instant> next_end(const std::set<NodeId>& nodes, Instant now) const;

    /// Forgets those that are over.
    [[nodiscard]] bool has_room_for(const NodeId& id, const Limits& limits, Instant now);
    /// Needs has_room_for(). Forgets the node's earlier failures.
    void put(const NodeId& id, Quarantine one);
    /// It is left out no more, and nothing that it began counts.
    void release(const NodeId& id);
    /// How many failures the node has begun within Limits::quarantine_window, with this one; 0 if
    /// there is no room to count.
    std::size_t count_failure(const NodeId& id, const Limits& limits, Instant now);

private:
    Map all_;
    std::map<NodeId, std::deque<Instant>> blames_;  // when each node began a failure
};

/// The node began a failure; after several it is left out, if the others suffice.
void blame(Step& step, const NodeId& id, const std::string& hostname);
/// Nothing happens while the others would not suffice.
void quarantine_if_dispensable(Step& step, const NodeId& id, const std::string& hostname,
                               const std::string& why);
/// For `why`, which a node found wrong with itself. True if that is news.
bool quarantine_unfit(Step& step, const NodeId& id, const std::string& hostname,
                      const std::string& why);
/// An operator wants it. False if there is no room.
bool quarantine_by_order(Step& step, const NodeId& id, const std::string& hostname,
                         const std::string& by, Milliseconds duration);
/// Nodes that said so instead of joining: a stranger goes into quarantine, a node of the run that
/// said so itself is lost, and one that has its name from another ddprun stays what it is.
void judge_unfit(Step& step, const std::vector<Unfit>& told);

/// How many of the ready nodes the next generation may be made of: those in quarantine only if the
/// others do not suffice.
[[nodiscard]] std::size_t usable_count(const Run& run, Instant now);

}  // namespace ddprun::rdzv
