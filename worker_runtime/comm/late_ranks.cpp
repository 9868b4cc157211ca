#include "worker_runtime/comm/late_ranks.hpp"

#include <exception>
#include <set>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "worker_runtime/comm/exception_text.hpp"

namespace ddprun::worker {

std::string late_peers_text(const std::vector<int>& peers) {
    const std::set<int> ranks(peers.begin(), peers.end());
    return fmt::format("{} {} has not begun it, or does not answer",
                       ranks.size() > 1 ? "one of ranks" : "rank", fmt::join(ranks, ", "));
}

std::string name_late_ranks(const c10::intrusive_ptr<c10d::Store>& store, const BackendPlace& place,
                            std::uint64_t number, const RuntimeLimits& limits) {
    const auto key_of = [&](int rank) { return fmt::format("late/{}/{}", number, rank); };
    try {
        // The group's thread may be waiting for the store, and holds its connection meanwhile.
        const c10::intrusive_ptr<c10d::Store> own = store->clone();
        own->set(key_of(place.rank), std::vector<std::uint8_t>{1});
        std::vector<std::string> of_all;
        for (int rank = 0; rank < place.world_size; ++rank) {
            of_all.push_back(key_of(rank));
        }
        try {
            own->wait(of_all, limits.late_answer);
            return "all ranks wait for it: they may have called different collectives";
        } catch (const std::exception&) {
            // A rank has not reported it; the loop below finds out which.
        }
        std::vector<int> late;
        for (int rank = 0; rank < place.world_size; ++rank) {
            if (!own->check({key_of(rank)})) {
                late.push_back(rank);
            }
        }
        return fmt::format(
            fmt::runtime(late.size() > 1 ? "ranks {} have not begun it, or do not answer"
                                         : "rank {} has not begun it, or does not answer"),
            fmt::join(late, ", "));
    } catch (const std::exception& failure) {
        return fmt::format("the store does not say who keeps it waiting: {}", first_line(failure));
    }
}

}  // namespace ddprun::worker
