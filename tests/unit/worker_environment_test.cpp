#include "worker_runtime/contract/worker_environment.hpp"

#include <algorithm>
#include <set>
#include <string>

#include "tests/support/catch.hpp"

namespace ddprun::rdzv {

namespace {

WorkerPlace fifth_of_eight() {
    WorkerPlace place;
    place.job = JobId("llama");
    place.tracked_run = "0123456789abcdef0123456789abcdef";
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
    place.role_rank = 1;
    place.role_world_size = 4;
    place.role = "trainer";
    place.store = StoreAddress{"10.0.0.9", 29511};
    place.local_address = "10.0.0.2";
    place.memory_checkpoints = "@0001f";
    place.start_reason = "rank 3 on gpu-07 exited with code 1";
    place.page = "/proc/4711/fd/9";
    place.restart_count = 1;
    place.max_restarts = 7;
    place.error_file = "/logs/attempt_2/1/error.json";
    place.signals_to_handle = "SIGTERM,SIGINT";
    place.omp_num_threads = 6;
    place.only_device = "GPU-7";
    place.preload = "/opt/ddprun/ddprun-preload.so:/opt/libjemalloc.so";
    place.python_path = "/opt/ddprun/share/ddprun/python:/home/user/own";
    return place;
}

bool has_key(const Environment& environment, const std::string& key) {
    return std::any_of(environment.begin(), environment.end(),
                       [&key](const auto& pair) { return pair.first == key; });
}

}  // namespace

TEST_CASE("the worker environment is torchrun's, word for word") {
    const Environment expected = {
        {"RANK", "5"},
        {"WORLD_SIZE", "8"},
        {"LOCAL_RANK", "0"},
        {"LOCAL_WORLD_SIZE", "4"},
        {"GROUP_RANK", "1"},
        {"GROUP_WORLD_SIZE", "2"},
        {"ROLE_RANK", "1"},
        {"ROLE_WORLD_SIZE", "4"},
        {"ROLE_NAME", "trainer"},
        {"MASTER_ADDR", "10.0.0.9"},
        {"MASTER_PORT", "29511"},
        {"TORCHELASTIC_RESTART_COUNT", "1"},
        {"TORCHELASTIC_MAX_RESTARTS", "7"},
        {"TORCHELASTIC_RUN_ID", "llama"},
        {"TORCHELASTIC_USE_AGENT_STORE", "True"},
        {"TORCHELASTIC_ERROR_FILE", "/logs/attempt_2/1/error.json"},
        {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
        {"OMP_NUM_THREADS", "6"},
        {"CUDA_VISIBLE_DEVICES", "GPU-7"},
        {"LD_PRELOAD", "/opt/ddprun/ddprun-preload.so:/opt/libjemalloc.so"},
        {"PYTHONPATH", "/opt/ddprun/share/ddprun/python:/home/user/own"},
        {"TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT"},
        {"DDPRUN_RUN_ID", "0123456789abcdef0123456789abcdef"},
        {"DDPRUN_GENERATION", "3"},
        {"DDPRUN_NODE_ID", "node-b"},
        {"DDPRUN_LOCAL_ADDR", "10.0.0.2"},
        {"DDPRUN_MEMORY_CHECKPOINTS", "@0001f"},
        {"DDPRUN_START_REASON", "rank 3 on gpu-07 exited with code 1"},
        {"DDPRUN_TARGET_WORLD_SIZE", "16"},
        {"DDPRUN_MEMORY_PARTNER", "0"},
        {"DDPRUN_SLOT", "1"},
        {"DDPRUN_PAGE", "/proc/4711/fd/9"},
    };
    CHECK(worker_environment(fifth_of_eight()) == expected);
}

TEST_CASE("PyTorch is told that rank 0 serves the store in its own spelling") {
    WorkerPlace place = fifth_of_eight();
    place.is_store_of_rank_0 = true;
    const Environment environment = worker_environment(place);
    CHECK(std::find(environment.begin(), environment.end(),
                    std::pair<std::string, std::string>("TORCHELASTIC_USE_AGENT_STORE", "False")) !=
          environment.end());
}

TEST_CASE("what the user set is not overwritten") {
    WorkerPlace place = fifth_of_eight();
    place.sets_nccl_async_error_handling = false;
    place.omp_num_threads = 0;
    place.only_device.reset();
    place.preload.clear();
    const Environment environment = worker_environment(place);
    CHECK_FALSE(has_key(environment, "TORCH_NCCL_ASYNC_ERROR_HANDLING"));
    CHECK_FALSE(has_key(environment, "OMP_NUM_THREADS"));
    CHECK_FALSE(has_key(environment, "CUDA_VISIBLE_DEVICES"));
    CHECK_FALSE(has_key(environment, "LD_PRELOAD"));
    CHECK(std::find(environment.begin(), environment.end(),
                    std::pair<std::string, std::string>("LOCAL_RANK", "1")) != environment.end());
}

TEST_CASE("without a memory partner the variable is set and empty") {
    WorkerPlace place = fifth_of_eight();
    place.memory_partner.reset();
    const Environment environment = worker_environment(place);
    CHECK(std::find(environment.begin(), environment.end(),
                    std::pair<std::string, std::string>("DDPRUN_MEMORY_PARTNER", "")) !=
          environment.end());
}

TEST_CASE("without log files the error file is set and empty") {
    WorkerPlace place = fifth_of_eight();
    place.error_file.clear();
    const Environment environment = worker_environment(place);
    const auto found = std::find_if(environment.begin(), environment.end(), [](const auto& pair) {
        return pair.first == "TORCHELASTIC_ERROR_FILE";
    });
    REQUIRE(found != environment.end());
    CHECK(found->second.empty());
}

TEST_CASE("the table of keys and the environment tell the same story") {
    const Environment environment = worker_environment(fifth_of_eight());
    REQUIRE(environment.size() == kWorkerVariables.size());
    std::set<std::string> keys;
    for (std::size_t i = 0; i < environment.size(); ++i) {
        CHECK(environment[i].first == kWorkerVariables[i].key);
        CHECK_FALSE(kWorkerVariables[i].meaning.empty());
        keys.insert(environment[i].first);
    }
    CHECK(keys.size() == kWorkerVariables.size());
}

}  // namespace ddprun::rdzv
