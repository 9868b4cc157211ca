#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/instant.hpp"
#include "base/tagged.hpp"
#include "rendezvous/events/slowest.hpp"
#include "rendezvous/events/stall.hpp"
#include "rendezvous/wire/messages.hpp"

namespace ddprun::rdzv {

/// Samples a second: by the recent time of a step, and the average samples of all its steps.
[[nodiscard]] std::optional<double> samples_per_second(const RankProgress& rank);

/// Place of a node in the generation whose progress it reports.
struct NodeOfRanks {
    NodeId node;
    std::string hostname;
    int base_rank = 0;
};

/// The rank of a generation for which the others wait most.
struct NamedSlowest {
    Slowest slowest;
    NodeOfRanks where;
};

/// The newest progress that a node has told. Never changed.
struct NodeTold {
    NodeOfRanks where;
    Instant at{};
    std::string text;  ///< its ranks, without the brackets of a list
    std::vector<RankProgress> ranks;
    std::vector<StepTime> times;
    std::optional<std::uint64_t> step;     ///< the least of its ranks
    std::optional<std::uint64_t> step_ns;  ///< the longest of its ranks
    std::optional<HostMemory> memory;
    std::vector<StoreOperations> store;
    std::string log_lost;
};

/// How far the ranks of a generation were at one moment; copying it copies no texts. Pure.
class RanksTold {
public:
    RanksTold(std::vector<std::shared_ptr<const NodeTold>> nodes,
              std::optional<NamedSlowest> slowest, std::optional<Stall> stall)
        : nodes_(std::move(nodes)), slowest_(std::move(slowest)), stall_(std::move(stall)) {}

    [[nodiscard]] std::size_t rank_count() const;

    /// The ranks as a list in JSON, by rank, at most about `ranks_max` of them: whole nodes.
    [[nodiscard]] std::string ranks_json(std::size_t ranks_max) const;

    /// As JSON; empty: none stands out.
    [[nodiscard]] std::string slowest_json() const;

    /// Nothing if the ranks get further, or it is not known.
    [[nodiscard]] const std::optional<Stall>& stall() const { return stall_; }

    /// Visits the newest progress of each rank, in order.
    using Visitor = std::function<void(const NodeOfRanks&, Rank, const RankProgress&)>;
    void visit(const Visitor& visitor) const;

    /// Requests that the workers' store has answered, as reported by the node that has rank 0.
    [[nodiscard]] std::vector<StoreOperations> store() const;

private:
    std::vector<std::shared_ptr<const NodeTold>> nodes_;  ///< by base rank
    std::optional<NamedSlowest> slowest_;
    std::optional<Stall> stall_;
};

/// The newest progress of the ranks of one generation, as its nodes told it. Texts are made as news
/// come, so that an answer about thousands of ranks only puts them together. Pure.
class RankBoard {
public:
    /// Takes the news of one node; those of an older generation are forgotten. Those that are not
    /// of the newest one change nothing.
    void take(Instant now, const NodeOfRanks& node, const Progress& progress);

    /// Finds anew whether the ranks get no further, else the slowest one. Forgets progress that was
    /// told before `since`.
    void judge(Instant now, Instant since);

    void clear() { *this = RankBoard(); }

    [[nodiscard]] Generation generation() const { return generation_; }
    [[nodiscard]] std::size_t node_count() const { return nodes_.size(); }

    /// All of it, as it is now.
    [[nodiscard]] RanksTold told() const;

    /// The line that passes those who follow, about that node. Empty: it has told nothing.
    [[nodiscard]] std::string line(const NodeId& node) const;

    /// Null: it has told nothing.
    [[nodiscard]] const NodeTold* told(const NodeId& node) const;

    [[nodiscard]] const std::optional<NamedSlowest>& slowest() const { return slowest_; }
    [[nodiscard]] const std::optional<Stall>& stall() const { return stall_; }

private:
    void look_at(Rank rank, const RankProgress& told);
    [[nodiscard]] std::optional<Slowest> find_slowest_now() const;

    Generation generation_;
    std::map<int, std::shared_ptr<const NodeTold>> nodes_;  ///< by base rank
    std::map<NodeId, int> base_rank_of_;                    ///< the key of each
    std::map<Rank, WaitLooks> looks_;  ///< of ranks that do not report how they wait
    std::optional<NamedSlowest> slowest_;
    std::optional<Stall> stall_;
};

}  // namespace ddprun::rdzv
