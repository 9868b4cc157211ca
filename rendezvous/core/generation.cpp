#include "rendezvous/core/generation.hpp"

#include <algorithm>
#include <map>

#include "rendezvous/core/run.hpp"

namespace ddprun::rdzv {

std::vector<std::string> admitted_addresses(const Run& run, const Limits& limits) {
    if (run.settings.store_admits_any) {
        return {};
    }
    std::vector<std::string> all;
    std::vector<std::string> main;
    std::size_t bytes = 0;
    for (const Place& place : run.places) {
        const Join& info = run.nodes.at(place.node).info;
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

void write_rows(Run& run) {
    Start row;
    row.generation = run.generation;
    row.digest = run.digest;
    row.group_world_size = static_cast<int>(run.places.size());
    row.restart_count = run.budgets.restarts_used;
    row.max_restarts = run.settings.max_restarts;
    row.node_losses = run.budgets.node_losses_used;
    row.store = run.store;
    row.world_size = 0;
    std::map<std::string, int> role_sizes;
    for (const Place& place : run.places) {
        row.world_size += place.slots;
        role_sizes[place.role] += place.slots;
    }
    std::map<std::string, int> role_bases;
    run.rows.clear();
    for (const Place& place : run.places) {
        row.role_base_rank = role_bases[place.role];
        row.role_world_size = role_sizes[place.role];
        Start& mine = run.rows[place.node] = row;
        if (row.group_rank == 0) {
            mine.admitted = run.admitted;
        }
        role_bases[place.role] += place.slots;
        row.base_rank += place.slots;
        row.group_rank += 1;
    }
}

Rank rank_of(const Run& run, const NodeId& id, LocalRank local_rank) {
    return Rank(run.rows.at(id).base_rank + local_rank.value());
}

bool takes_store_along(const Run& run, const NodeId& id) {
    return run.places.front().node == id && run.store.port != 0;
}

}  // namespace ddprun::rdzv
