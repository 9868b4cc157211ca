#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.hpp"
#include "tests/support/catch.hpp"
#include "worker_runtime/contract/worker_environment.hpp"
#include "worker_runtime/env/environment.hpp"

namespace ddprun::worker {

namespace {

using Variables = std::map<std::string, std::string>;

Lookup lookup_in(const Variables& variables) {
    return [&variables](const std::string& key) -> std::optional<std::string> {
        const auto found = variables.find(key);
        return found == variables.end() ? std::nullopt : std::optional(found->second);
    };
}

/// The variables that ddprun sets for the sixth of eight workers.
Variables told_by_ddprun() {
    WorkerPlace place;
    place.job = JobId("llama");
    place.node = NodeId("node-b");
    place.generation = Generation(3);
    place.rank = Rank(5);
    place.world_size = 8;
    place.target_world_size = 16;
    place.local_rank = LocalRank(1);
    place.local_world_size = 4;
    place.group_rank = 1;
    place.group_world_size = 2;
    place.memory_partner = 0;
    place.role_world_size = 8;
    place.store = StoreAddress{"10.0.0.9", 29511};
    place.local_address = "10.0.0.10";
    place.start_reason = "rank 2 on node-a exited with code 1";
    place.page = "/proc/7/fd/9";
    place.restart_count = 1;
    place.max_restarts = 7;
    Variables variables;
    for (const auto& [key, value] : worker_environment(place)) {
        variables[key] = value;
    }
    return variables;
}

/// The variables that torchrun sets, and none of ddprun's own.
Variables told_by_torchrun() {
    Variables variables = told_by_ddprun();
    for (const char* key :
         {"DDPRUN_GENERATION", "DDPRUN_NODE_ID", "DDPRUN_LOCAL_ADDR", "DDPRUN_START_REASON",
          "DDPRUN_TARGET_WORLD_SIZE", "DDPRUN_MEMORY_PARTNER", "DDPRUN_SLOT", "DDPRUN_PAGE"}) {
        REQUIRE(variables.erase(key) == 1);
    }
    return variables;
}

std::string error_of(const Variables& variables) {
    const Result<WorkerEnvironment> place = read_environment(lookup_in(variables));
    return place ? "" : place.error().what;
}

}  // namespace

TEST_CASE("a worker reads exactly what its agent has written") {
    const Variables variables = told_by_ddprun();
    const Result<WorkerEnvironment> place = read_environment(lookup_in(variables));
    REQUIRE(place.has_value());
    WorkerEnvironment expected;
    expected.rank = Rank(5);
    expected.world_size = 8;
    expected.target_world_size = 16;
    expected.local_rank = LocalRank(1);
    expected.local_world_size = 4;
    expected.group_rank = 1;
    expected.group_world_size = 2;
    expected.memory_partner = 0;
    expected.restart_count = 1;
    expected.max_restarts = 7;
    expected.store = StoreAddress{"10.0.0.9", 29511};
    expected.generation = Generation(3);
    expected.job = JobId("llama");
    expected.node = NodeId("node-b");
    expected.local_address = "10.0.0.10";
    expected.start_reason = "rank 2 on node-a exited with code 1";
    expected.slot = LocalRank(1);
    expected.page = "/proc/7/fd/9";
    CHECK(*place == expected);
}

TEST_CASE("a worker whose local rank is virtual still knows its slot of the page") {
    Variables variables = told_by_ddprun();
    variables["LOCAL_RANK"] = "0";
    const Result<WorkerEnvironment> place = read_environment(lookup_in(variables));
    REQUIRE(place.has_value());
    CHECK(place->local_rank == LocalRank(0));
    CHECK(place->slot == LocalRank(1));
    variables["LOCAL_RANK"] = "2";
    CHECK_THAT(error_of(variables), Catch::Contains("LOCAL_RANK=2 is neither 0 nor DDPRUN_SLOT=1"));
}

TEST_CASE("a target below the world itself is refused") {
    Variables variables = told_by_ddprun();
    variables["DDPRUN_TARGET_WORLD_SIZE"] = "7";
    CHECK_THAT(error_of(variables),
               Catch::Contains("DDPRUN_TARGET_WORLD_SIZE=7 is less than WORLD_SIZE=8"));
}

TEST_CASE("a memory partner is another node of the generation, or none") {
    Variables variables = told_by_ddprun();
    variables["DDPRUN_MEMORY_PARTNER"] = "";
    const Result<WorkerEnvironment> place = read_environment(lookup_in(variables));
    REQUIRE(place.has_value());
    CHECK_FALSE(place->memory_partner.has_value());
    variables["DDPRUN_MEMORY_PARTNER"] = "2";
    CHECK_THAT(error_of(variables),
               Catch::Contains("DDPRUN_MEMORY_PARTNER=2 does not fit GROUP_WORLD_SIZE=2"));
    variables["DDPRUN_MEMORY_PARTNER"] = "1";
    CHECK_THAT(error_of(variables),
               Catch::Contains("DDPRUN_MEMORY_PARTNER=1 is GROUP_RANK itself"));
    variables["DDPRUN_MEMORY_PARTNER"] = "next";
    CHECK_THAT(error_of(variables), Catch::Contains("DDPRUN_MEMORY_PARTNER=next is no number"));
}

TEST_CASE("with nothing told a worker is a world of one") {
    const Variables variables = {{"PATH", "/bin"}, {"OMP_NUM_THREADS", "1"}};
    const Result<WorkerEnvironment> place = read_environment(lookup_in(variables));
    REQUIRE(place.has_value());
    CHECK(*place == WorkerEnvironment{});
    CHECK(place->world_size == 1);
    CHECK_FALSE(place->store.has_value());
}

TEST_CASE("torchrun's contract is enough") {
    const Variables variables = told_by_torchrun();
    const Result<WorkerEnvironment> place = read_environment(lookup_in(variables));
    REQUIRE(place.has_value());
    CHECK(place->rank == Rank(5));
    CHECK(place->generation == Generation(2));
    CHECK(place->slot == LocalRank(1));
    CHECK(place->target_world_size == 8);
    CHECK(place->page.empty());
}

TEST_CASE("rank 0 serves the store if it is told that no agent does") {
    Variables variables = told_by_torchrun();
    const auto serves = [&] { return read_environment(lookup_in(variables))->serves_store; };
    for (const char* rank : {"0", "5"}) {
        variables["RANK"] = rank;
        variables["LOCAL_RANK"] = rank == std::string("0") ? "0" : "1";
        for (const char* told : {"True", "False", ""}) {
            INFO(rank << " " << told);
            variables["TORCHELASTIC_USE_AGENT_STORE"] = told;
            CHECK(serves() == (rank == std::string("0") && told == std::string("False")));
        }
        variables.erase("TORCHELASTIC_USE_AGENT_STORE");
        CHECK_FALSE(serves());
    }
}

TEST_CASE("each variable that ddprun writes and a worker needs is missed by name") {
    const std::vector<std::string> unread = {"ROLE_RANK",
                                             "ROLE_WORLD_SIZE",
                                             "ROLE_NAME",
                                             "TORCHELASTIC_USE_AGENT_STORE",
                                             "TORCHELASTIC_ERROR_FILE",
                                             "TORCH_NCCL_ASYNC_ERROR_HANDLING",
                                             "OMP_NUM_THREADS",
                                             "DDPRUN_RUN_ID",
                                             "TORCHELASTIC_SIGNALS_TO_HANDLE"};
    for (const auto& [key, value] : told_by_ddprun()) {
        if (std::find(unread.begin(), unread.end(), key) != unread.end()) {
            continue;
        }
        Variables variables = told_by_ddprun();
        variables.erase(key);
        INFO(key);
        if (key == "DDPRUN_TARGET_WORLD_SIZE" || key == "DDPRUN_MEMORY_PARTNER") {
            CHECK(error_of(variables).empty());  // an older ddprun does not set it
        } else if (key == "DDPRUN_GENERATION") {
            CHECK(error_of(variables).empty());  // then it is another launcher's
        } else {
            CHECK_THAT(error_of(variables), Catch::Contains(key + " is not set"));
        }
    }
}

TEST_CASE("a value that cannot be is named with what it must be") {
    const std::vector<std::pair<std::string, std::string>> cases = {
        {"RANK", ""},
        {"RANK", "-1"},
        {"RANK", "8"},
        {"RANK", "5x"},
        {"RANK", " 5"},
        {"RANK", "99999999999999999999"},
        {"WORLD_SIZE", "0"},
        {"LOCAL_RANK", "4"},
        {"DDPRUN_SLOT", "4"},
        {"DDPRUN_SLOT", "x"},
        {"LOCAL_WORLD_SIZE", "9"},
        {"GROUP_RANK", "2"},
        {"MASTER_PORT", "0"},
        {"MASTER_PORT", "65536"},
        {"MASTER_ADDR", ""},
        {"DDPRUN_GENERATION", "0"},
        {"TORCHELASTIC_RESTART_COUNT", "one"},
    };
    for (const auto& [key, value] : cases) {
        Variables variables = told_by_ddprun();
        variables[key] = value;
        INFO(key << "=" << value);
        CHECK_THAT(error_of(variables), Catch::Contains(key));
    }
}

TEST_CASE("whatever the environment holds, the answer is a whole place or an error") {
    Rng rng(20261121);
    const std::vector<std::string> values = {"",
                                             "0",
                                             "1",
                                             "2",
                                             "-1",
                                             "7",
                                             "x",
                                             "65536",
                                             "host",
                                             "18446744073709551616",
                                             std::string("\xff\x00", 2)};
    const Variables complete = told_by_ddprun();
    for (int i = 0; i < 20000; ++i) {
        Variables variables = complete;
        for (auto& [key, value] : variables) {
            if (rng.chance(1, 6)) {
                value = values[rng.below(values.size())];
            }
        }
        const Result<WorkerEnvironment> place = read_environment(lookup_in(variables));
        if (place) {
            REQUIRE(place->rank.value() >= 0);
            REQUIRE(place->rank.value() < place->world_size);
            REQUIRE(place->local_rank.value() < place->local_world_size);
            REQUIRE(place->local_world_size <= place->world_size);
            REQUIRE(place->generation.value() >= 1);
        } else {
            REQUIRE_FALSE(place.error().what.empty());
        }
    }
}

}  // namespace ddprun::worker
