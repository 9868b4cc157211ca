// Whether GPUs are used, only wait, or stand still, as drivers and NCCL's RAS report it.

#include <chrono>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "agent/watch/gpu_figures.hpp"
#include "agent/watch/ras_status.hpp"

using namespace ddprun;
using namespace ddprun::agent;
using namespace std::chrono_literals;

namespace {

const Instant kStart = Instant() + 1000s;

AllGpuFigures two_gpus(std::uint64_t first, std::uint64_t second) {
    return {{.number = 0,
             .permille = first,
             .bytes = 10,
             .total_bytes = 80,
             .milliwatts = first * 700,
             .ranks = {LocalRank(0)}},
            {.number = 3,
             .permille = second,
             .bytes = 20,
             .total_bytes = 80,
             .milliwatts = second * 700,
             .ranks = {LocalRank(1)}}};
}

/// In the words of NCCL 2.29.
std::string ras_answer(int first, int second) {
    const auto rank = [](int number, int count) {
        return R"({"rank": )" + std::to_string(number) + R"(, "host": "172.16.64.21)" +
               std::to_string(number) +
               R"(", "pid": 4711, "cuda_dev": 0, "nvml_dev": 0,
                "status": {"init_state": 0, "async_error": 0, "finalize_called": false,
                           "destroy_flag": false, "abort_flag": false},
                "collective_counts": {"Broadcast": 2, "Reduce": 0, "AllGather": 0,
                                      "ReduceScatter": 0, "AllReduce": )" +
               std::to_string(count) + "}}";
    };
    return "SERVER PROTOCOL 2\nOK\nOK\n" + std::string(R"({"nccl_version": "2.29.1",
        "communicators_count": 1, "communicators": [{"hash": "0xae94423cfbb2ef4a",
        "secondary_hash": "0xb7e7187447156001:0xb8242ed28a71381e", "size": 2, "ranks_count": 2,
        "missing_ranks_count": 0, "ranks": [)") +
           rank(0, first) + "," + rank(1, second) +
           R"(], "missing_ranks": []}], "ras": {"collection_time_sec": 0.0, "timeouts_count": 0}})";
}

}  // namespace

TEST_CASE("what GPUs do is told in one line, and read again") {
    AllGpuFigures gpus = two_gpus(973, 0);
    gpus[1].ranks.emplace_back(4);
    gpus.push_back({.number = 5});
    const std::string text = text_of(gpus);
    CHECK(text == "0:973:10:80:681100:0 3:0:20:80:0:1,4 5:-:-:-:-:-");
    CHECK(gpu_figures_from(text) == gpus);
    CHECK(gpu_figures_from("") == AllGpuFigures());
    for (const char* bad : {"x", "0", "0:1:2:3", "0:x:1:1:1:-", "0:1:1:1:1:x", "-1:-:-:-:-:-2"}) {
        INFO(bad);
        CHECK_FALSE(gpu_figures_from(bad));
    }
}

TEST_CASE("a worker's GPUs are told together") {
    AllGpuFigures gpus = two_gpus(900, 100);
    gpus[1].ranks = {LocalRank(0)};
    std::vector<WorkerState> workers(2);
    add_gpu_figures(gpus, workers);
    CHECK(workers[0].gpu_permille == 500);
    CHECK(workers[0].gpu_memory_bytes == 30u);
    CHECK(workers[0].gpu_memory_total_bytes == 160u);
    CHECK(workers[0].gpu_milliwatts == 700'000u);
    CHECK_FALSE(workers[1].gpu_permille);
    CHECK_FALSE(workers[1].gpu_memory_bytes);
}

TEST_CASE("one line answers whether all GPUs are used") {
    GpuBusy busy{WatchLimits()};
    CHECK_FALSE(busy.line(Rank(8), "a"));
    busy.add({{.number = 5}});
    CHECK_FALSE(busy.line(Rank(8), "a"));
    busy.add(two_gpus(900, 980));
    busy.add(two_gpus(920, 960));
    CHECK(busy.line(Rank(8), "a") == "all 2 GPUs of a are busy in the first minute: 91 to 97 %");

    GpuBusy half{WatchLimits()};
    half.add(two_gpus(900, 4));
    CHECK(half.line(Rank(8), "a") ==
          "1 of 2 GPUs of a is busy in the first minute; GPU 3 (rank 9) is idle: 0 %");
    GpuBusy none{WatchLimits()};
    AllGpuFigures unowned = two_gpus(0, 0);
    unowned[1].ranks.clear();
    none.add(unowned);
    CHECK(none.line(Rank(8), "a") ==
          "0 of 2 GPUs of a are busy in the first minute; GPU 0 (rank 8) is idle: 0 %; GPU 3 (no "
          "rank's) is idle: 0 %");
    GpuBusy one{WatchLimits()};
    one.add({{.number = 0, .permille = 500}});
    CHECK(one.line(Rank(0), "a") == "the GPU of a is busy in the first minute: 50 to 50 %");
}

TEST_CASE("GPUs that draw little of what they drew for long only wait") {
    GpuPower power{WatchLimits()};
    power.add(kStart, two_gpus(1000, 900));
    CHECK_FALSE(power.waits(kStart + 9999s, 600s));
    power.add(kStart + 10s, two_gpus(400, 800));  // one of them still works
    CHECK_FALSE(power.waits(kStart + 9999s, 600s));
    power.add(kStart + 20s, two_gpus(400, 300));
    power.add(kStart + 300s, two_gpus(420, 310));
    CHECK_FALSE(power.waits(kStart + 619s, 600s));
    REQUIRE(power.waits(kStart + 620s, 600s));
    const HangSeen seen = power.seen(600s, Rank(8), "a");
    CHECK(seen.rank == Rank(9));
    CHECK(seen.host == "a");
    CHECK(seen.text ==
          "the GPUs of a only wait for 600 s: least draws GPU 3 (rank 9), 217 W of "
          "630 W before");
    power.add(kStart + 630s, two_gpus(400, 900));
    CHECK_FALSE(power.waits(kStart + 9999s, 600s));
    power.add(kStart + 640s, {});
    CHECK_FALSE(power.waits(kStart + 9999s, 600s));
    power.begin();
    power.add(kStart + 650s, two_gpus(10, 10));
    CHECK_FALSE(power.waits(kStart + 9999s, 600s));
}

TEST_CASE("a communicator whose counts differ and stand still is told with the rank behind") {
    const auto status = [](int first, int second) {
        const auto read = ras_status_from(ras_answer(first, second));
        REQUIRE(read);
        REQUIRE(read->size() == 1);
        CHECK(read->front().size == 2);
        return *read;
    };
    RasWatch watch;
    CHECK_FALSE(watch.look(kStart, 600s, 2, status(6650, 6649)));
    CHECK_FALSE(watch.look(kStart + 500s, 600s, 2, status(6651, 6650)));  // it goes on
    CHECK_FALSE(watch.look(kStart + 600s, 600s, 2, status(6651, 6650)));
    const auto seen = watch.look(kStart + 1100s, 600s, 2, status(6651, 6650));
    REQUIRE(seen);
    CHECK(seen->rank == Rank(1));
    CHECK(seen->host == "172.16.64.211");
    CHECK(seen->collective == "AllReduce");
    CHECK(seen->text ==
          "an NCCL communicator of 2 ranks stands still for 600 s: rank 1 on "
          "172.16.64.211 has launched 6650 AllReduce, others 6651");
    // The communicator is not that of the whole job: the rank in the job is not known.
    const auto part = watch.look(kStart + 1200s, 600s, 8, status(6651, 6650));
    REQUIRE(part);
    CHECK_FALSE(part->rank);

    // All have launched the same: they may compute, or be idle.
    CHECK_FALSE(watch.look(kStart + 1300s, 600s, 2, status(6651, 6651)));
    CHECK_FALSE(watch.look(kStart + 2000s, 600s, 2, status(6651, 6651)));
    CHECK_FALSE(watch.look(kStart + 2001s, 600s, 2, status(6651, 6650)));
    watch.begin();
    CHECK_FALSE(watch.look(kStart + 9999s, 600s, 2, status(6651, 6650)));
}

TEST_CASE("what is no answer of RAS in JSON is refused") {
    for (const char* bad : {"", "SERVER PROTOCOL 2\n", "{", "{}", R"({"communicators": 1})",
                            R"({"communicators": [1]})", R"({"communicators": [{"hash": "1"}]})",
                            R"({"communicators": [{"hash": "1", "ranks": [{"rank": "x"}]}]})",
                            "Job summary\n===========\n"}) {
        INFO(bad);
        CHECK_FALSE(ras_status_from(bad));
    }
}
