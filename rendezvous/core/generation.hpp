#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/instant.hpp"
#include "base/limits.hpp"
#include "base/tagged.hpp"
#include "rendezvous/core/budgets.hpp"
#include "rendezvous/core/moments.hpp"
#include "rendezvous/core/nodes.hpp"
#include "rendezvous/wire/messages.hpp"
#include "rendezvous/wire/run_record.hpp"

namespace ddprun::rdzv {

/// How long a generation that this process has not seen begin may have run.
inline constexpr std::chrono::hours kLongAgo{24 * 365};

/// No job comes to so many generations: a larger number in a join is not believed.
[[nodiscard]] inline bool is_believable(Generation generation) {
    return generation.value() < std::uint64_t{1} << 48;
}

/// The generation that runs; the last one while the next one forms. Numbers only grow.
struct CurrentGeneration {
    Generation number;
    Generation floor;              ///< the highest number that any node has told: later ones follow
    Instant started_at{};          ///< at the earliest: no failure of it is older
    std::string digest;            ///< names it and its rank map
    std::vector<Place> places;     ///< its rank map, in order of group rank
    std::map<NodeId, Start> rows;  ///< what each member was sent, for one that missed it
    StoreAddress store;
    std::vector<std::string> admitted;  ///< addresses that may use its store; empty: all
    MomentsReached reached;             ///< how far its workers are
    std::map<NodeId, SavesSeen> saves;  ///< of those that lead saves; no record has it

    /// A daemon before this one may have used it: it is not used again.
    void learn_number(Generation heard);
    /// Continues with the next number, on `chosen`. The digest includes `random`, which tells the
    /// maps of two daemons apart.
    void begin(Instant now, std::vector<Place> chosen, const std::string& run_token,
               std::uint64_t random);
    /// Group rank 0's store, and who may use it.
    void open_store(const Nodes& nodes, const JobSettings& settings, const Limits& limits);
    /// `rows` from the rank map, its memory partners, the store and what is used of the budgets.
    void write_rows(const JobSettings& settings, const Budgets& budgets);

    [[nodiscard]] int worker_count() const;
    /// The rank of one of the member's workers.
    [[nodiscard]] Rank rank_of(const NodeId& id, LocalRank local_rank) const;
    /// The store goes with that node; the rendezvous's does not.
    [[nodiscard]] bool takes_store_along(const NodeId& id) const;
};

/// The addresses that may use a store: the members' interfaces if they all fit into a message, else
/// the addresses that members were reached at. Empty: every address may.
[[nodiscard]] std::vector<std::string> admitted_addresses(const std::vector<Place>& places,
                                                          const Nodes& nodes,
                                                          const JobSettings& settings,
                                                          const Limits& limits);

}  // namespace ddprun::rdzv
