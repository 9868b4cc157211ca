#include "rendezvous/core/generation.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <xxhash.h>

#include "rendezvous/core/memory_partner.hpp"

namespace ddprun::rdzv {

void CurrentGeneration::learn_number(Generation heard) {
    if (is_believable(heard)) {
        floor = std::max(floor, heard);
    }
}

void CurrentGeneration::begin(Instant now, std::vector<Place> chosen, const std::string& run_token,
                              std::uint64_t random) {
    number = Generation(std::max(number, floor).value() + 1);
    started_at = now;
    places = std::move(chosen);
    reached.clear();
    saves.clear();
    std::string text = fmt::format("{}|{}|{:016x}", run_token, number.value(), random);
    for (const Place& place : places) {
        text += fmt::format("|{}:{}", place.node.value(), place.slots);
    }
    digest = fmt::format("{:016x}", XXH64(text.data(), text.size(), 0));
}

void CurrentGeneration::open_store(const Nodes& nodes, const JobSettings& settings,
                                   const Limits& limits) {
    store = nodes.at(places.front().node).info.store;
    admitted = admitted_addresses(places, nodes, settings, limits);
}

void CurrentGeneration::write_rows(const JobSettings& settings, const Budgets& budgets) {
    Start row;
    row.generation = number;
    row.digest = digest;
    row.group_world_size = static_cast<int>(places.size());
    row.restart_count = budgets.restarts_used;
    row.max_restarts = settings.max_restarts;
    row.node_losses = budgets.node_losses_used;
    row.store = store;
    row.world_size = 0;
    int slots_max = 1;
    std::map<std::string, int> role_sizes;
    for (const Place& place : places) {
        row.world_size += place.slots;
        slots_max = std::max(slots_max, place.slots);
        role_sizes[place.role] += place.slots;
    }
    // Each missing node counts as many slots as the largest node here; none misses at full size.
    row.target_world_size =
        row.world_size + (settings.max_nodes - row.group_world_size) * slots_max;
    std::vector<int> partners;
    if (settings.memory_replicas > 0) {
        partners = memory_partners(places);
    }
    std::map<std::string, int> role_bases;
    rows.clear();
    for (const Place& place : places) {
        row.role_base_rank = role_bases[place.role];
        row.role_world_size = role_sizes[place.role];
        Start& mine = rows[place.node] = row;
        if (row.group_rank == 0) {
            mine.admitted = admitted;
        }
        if (!partners.empty()) {
            mine.memory_partner = partners[static_cast<std::size_t>(row.group_rank)];
        }
        role_bases[place.role] += place.slots;
        row.base_rank += place.slots;
        row.group_rank += 1;
    }
}

int CurrentGeneration::worker_count() const {
    int workers = 0;
    for (const Place& place : places) {
        workers += place.slots;
    }
    return workers;
}

Rank CurrentGeneration::rank_of(const NodeId& id, LocalRank local_rank) const {
    return Rank(rows.at(id).base_rank + local_rank.value());
}

bool CurrentGeneration::takes_store_along(const NodeId& id) const {
    return places.front().node == id && store.port != 0;
}

std::vector<std::string> admitted_addresses(const std::vector<Place>& places, const Nodes& nodes,
                                            const JobSettings& settings, const Limits& limits) {
    if (settings.store_admits_any) {
        return {};
    }
    std::vector<std::string> all;
    std::vector<std::string> main;
    std::size_t bytes = 0;
    for (const Place& place : places) {
        const Join& info = nodes.at(place.node).info;
        main.push_back(info.store.host);
        for (const std::string& address : info.addresses) {
            bytes += address.size() + 3;  // with quotes and comma
            all.push_back(address);
        }
    }
    std::vector<std::string> admitted = bytes < limits.frame_bytes_max / 2 ? all : main;
    admitted.insert(admitted.end(), main.begin(), main.end());
    std::sort(admitted.begin(), admitted.end());
    admitted.erase(std::unique(admitted.begin(), admitted.end()), admitted.end());
    return admitted;
}

}  // namespace ddprun::rdzv
