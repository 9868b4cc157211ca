// Goal: a worker's environment is read as a whole, possible place, or refused with the name of what
// is wrong. Method: the input is the environment, KEY=VALUE after KEY=VALUE with NULs in between,
// as the kernel keeps it; a place that is read is written as an agent writes it and read again.
#include "worker_runtime/env/environment.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/check.hpp"
#include "tests/fuzz/choices.hpp"
#include "worker_runtime/contract/worker_environment.hpp"

namespace ddprun::worker {

namespace {

using Variables = std::map<std::string, std::string>;

Result<WorkerEnvironment> read(const Variables& variables) {
    return read_environment([&variables](const std::string& key) -> std::optional<std::string> {
        const auto found = variables.find(key);
        return found == variables.end() ? std::nullopt : std::optional(found->second);
    });
}

void check_possible(const WorkerEnvironment& place) {
    DDP_CHECK(place.rank.value() >= 0 && place.rank.value() < place.world_size);
    DDP_CHECK(place.local_rank.value() >= 0 && place.local_rank.value() < place.local_world_size);
    DDP_CHECK(place.group_rank >= 0 && place.group_rank < place.group_world_size);
    DDP_CHECK(place.local_world_size <= place.world_size);
    DDP_CHECK(place.memory_partner != place.group_rank);
    DDP_CHECK(place.memory_partner.value_or(0) < place.group_world_size);
    DDP_CHECK(place.restart_count >= 0 && place.max_restarts >= 0);
    DDP_CHECK(place.generation.value() >= 1);
    DDP_CHECK(!place.store || (!place.store->host.empty() && place.store->port != 0));
    DDP_CHECK(place.store || place == WorkerEnvironment{});
}

/// Returns the variables that an agent would set for a worker in this place.
Variables written(const WorkerEnvironment& place) {
    WorkerPlace told;
    told.job = place.job;
    told.node = place.node;
    told.generation = place.generation;
    told.rank = place.rank;
    told.world_size = place.world_size;
    told.target_world_size = place.target_world_size;
    told.local_rank = place.slot;
    if (place.local_rank != place.slot) {
        told.only_device = "0";
    }
    told.local_world_size = place.local_world_size;
    told.group_rank = place.group_rank;
    told.group_world_size = place.group_world_size;
    told.memory_partner = place.memory_partner;
    told.memory_checkpoints = place.memory_checkpoints;
    told.store = *place.store;
    told.local_address = place.local_address;
    told.start_reason = place.start_reason;
    told.page = place.page;
    told.restart_count = place.restart_count;
    told.max_restarts = place.max_restarts;
    Variables variables;
    for (const auto& [key, value] : worker_environment(told)) {
        variables[key] = value;
    }
    return variables;
}

void run(fuzz::Choices& choices) {
    Variables variables;
    while (!choices.is_empty()) {
        const std::string_view entry = choices.up_to('\0');
        const std::size_t equals = entry.find('=');
        if (equals != std::string_view::npos) {
            variables.emplace(entry.substr(0, equals), entry.substr(equals + 1));
        }
    }
    const Result<WorkerEnvironment> place = read(variables);
    if (!place) {
        const Error& error = place.error();
        const bool names_a_key = std::any_of(
            kWorkerVariables.begin(), kWorkerVariables.end(),
            [&error](const auto& it) { return error.what.find(it.key) != std::string::npos; });
        DDP_CHECK(error.code == ErrorCode::InvalidArgument && names_a_key, error.what);
        return;
    }
    check_possible(*place);
    if (place->store) {
        const Result<WorkerEnvironment> again = read(written(*place));
        DDP_CHECK(again.has_value(), again.has_value() ? std::string() : again.error().what);
        DDP_CHECK(*again == *place);
    }
}

}  // namespace

}  // namespace ddprun::worker

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    ddprun::fuzz::Choices choices(data, size);
    ddprun::worker::run(choices);
    return 0;
}
