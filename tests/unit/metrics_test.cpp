// Goal: what Prometheus is told of a job is what the job is. Method: a coordinator driven by hand,
// whose events are kept as the daemon keeps them.

#include <string>

#include "rendezvous/core/coordinator.hpp"
#include "rendezvous/core/status.hpp"
#include "rendezvous/events/event_log.hpp"
#include "rendezvous/metrics/prometheus_text.hpp"
#include "tests/support/catch.hpp"

namespace ddprun::rdzv {
namespace {

class Daemon {
public:
    void join(std::uint64_t connection, const std::string& name, int nodes) {
        Join join;
        join.job = id_;
        join.node = NodeId(name);
        join.hostname = "host-" + name;
        join.slots = 2;
        join.store = {name, 1};
        join.settings.min_nodes = nodes;
        join.settings.max_nodes = nodes;
        join.settings.max_restarts = 3;
        step(Received{ConnectionId(connection), join});
    }
    void cut(std::uint64_t connection) { step(ConnectionEnded{ConnectionId(connection), false}); }

    [[nodiscard]] std::string text(FiguresOf extent = {}) const {
        const StatusExtent all{.nodes_max = 1000, .events_max = 0};
        return prometheus_text()(
            {.jobs = {{.status = status_of(id_, *coordinator_.run(), now_, all),
                       .counts = events_.counts(),
                       .time = events_.time_use().shares(now_),
                       .saves = events_.saves(),
                       .saved_at = Milliseconds(1'700'000'000'250),
                       .ranks = board_.told()}},
             .watchers = 2,
             .extent = extent});
    }

    /// The worker of rank 0, whose node is on connection 1, has saved.
    void save(const SavesSeen& seen) {
        step(Received{ConnectionId(1), Reached{.generation = Generation(1),
                                               .moments = {},
                                               .step = {},
                                               .hang = {},
                                               .saves = seen}});
    }

    /// All ranks of `node` are at `step`, and take so long for one.
    void tell(const std::string& node, int base_rank, std::uint64_t step, Milliseconds takes,
              Milliseconds own) {
        Progress progress{.generation = Generation(1), .ranks = {}};
        for (int i = 0; i < 2; ++i) {
            progress.ranks.push_back({.local_rank = LocalRank(i),
                                      .phase = RankPhase::Training,
                                      .step = step,
                                      .step_age_ms = 1500,
                                      .step_ns = std::chrono::nanoseconds(takes).count(),
                                      .own_ns = std::chrono::nanoseconds(own).count(),
                                      .memory_bytes = 1024,
                                      .memory_peak_bytes = 2048,
                                      .gpu_permille = i == 0 ? 900 : 500,
                                      .gpu_memory_bytes = 512,
                                      .gpu_milliwatts = 350500,
                                      .steps = 10,
                                      .samples = 320,
                                      .log_bytes = 1000});
        }
        if (base_rank == 0) {
            progress.store = {
                {.operation = "get", .count = 1600, .timed = 100, .time_ns = 50'000'000}};
        }
        board_.take(now_,
                    {.node = NodeId(node), .hostname = "host-" + node, .base_rank = base_rank},
                    progress);
        board_.judge(now_, now_);
    }

private:
    void step(const Input& input) {
        Effects effects;
        coordinator_.step(now_, input, effects);
        effects.for_each([this](const Effect& effect) {
            if (const auto* publish = std::get_if<Publish>(&effect)) {
                events_.add(publish->event, now_, Milliseconds(0));
            }
        });
        now_ += Milliseconds(100);
    }

    const JobId id_{"llama \"7\"\n"};
    Coordinator coordinator_{id_, {.limits = {}}, Rng(1)};
    EventLog events_{Limits{}, EventsOf::Job};
    RankBoard board_;
    Instant now_{};
};

bool has_line(const std::string& text, const std::string& line) {
    return ("\n" + text).find("\n" + line + "\n") != std::string::npos;
}

TEST_CASE("a job's phase, nodes and size are told, and its name is escaped") {
    Daemon daemon;
    daemon.join(1, "a", 2);
    const std::string job = R"(job_id="llama \"7\"\n")";
    std::string text = daemon.text();
    CHECK(has_line(text, "ddprun_jobs 1"));
    CHECK(has_line(text, "ddprun_watchers 2"));
    CHECK(has_line(text, "ddprun_job_phase{" + job + R"(,phase="forming"} 1)"));
    CHECK(has_line(text, "ddprun_job_phase{" + job + R"(,phase="running"} 0)"));
    CHECK(has_line(text, "ddprun_job_nodes{" + job + R"(,standing="ready"} 1)"));
    CHECK(has_line(text, "ddprun_job_world_size{" + job + "} 0"));
    CHECK(has_line(text, "# TYPE ddprun_job_failures_total counter"));
    daemon.join(2, "b", 2);
    text = daemon.text();
    CHECK(has_line(text, "ddprun_job_phase{" + job + R"(,phase="running"} 1)"));
    CHECK(has_line(text, "ddprun_job_nodes{" + job + R"(,standing="member"} 2)"));
    CHECK(has_line(text, "ddprun_job_world_size{" + job + "} 4"));
    CHECK(has_line(text, "ddprun_job_generation{" + job + "} 1"));
    daemon.cut(2);
    CHECK(has_line(daemon.text(), "ddprun_job_cut_off_total{" + job + "} 1"));
}

TEST_CASE("the figures of each node are told only to who asks for them") {
    Daemon daemon;
    daemon.join(1, "a", 2);
    CHECK(daemon.text().find("ddprun_node_") == std::string::npos);
    CHECK(daemon.text({.nodes = true}).find(R"(,node="a",host="host-a"} 1)") != std::string::npos);
}

TEST_CASE("what the ranks have told is told of the job, and of each rank to who asks") {
    Daemon daemon;
    daemon.join(1, "a", 2);
    daemon.join(2, "b", 2);
    CHECK(daemon.text().find("ddprun_job_step") == std::string::npos);
    daemon.tell("a", 0, 41, Milliseconds(500), Milliseconds(100));
    daemon.tell("b", 2, 40, Milliseconds(400), Milliseconds(100));
    const std::string job = R"(job_id="llama \"7\"\n")";
    const std::string text = daemon.text({.ranks = true});
    CHECK(has_line(text, "ddprun_job_step{" + job + "} 40"));
    CHECK(has_line(text, "ddprun_job_steps_per_second{" + job + "} 2"));
    CHECK(has_line(text, "ddprun_job_gpu_use_ratio{" + job + "} 0.7"));
    const std::string rank = job + R"(,rank="3",node="b",host="host-b"} )";
    CHECK(has_line(text, "ddprun_rank_step{" + rank + "40"));
    CHECK(has_line(text, "ddprun_rank_step_age_seconds{" + rank + "1.5"));
    CHECK(has_line(text, "ddprun_rank_steps_per_second{" + rank + "2.5"));
    CHECK(has_line(text, "ddprun_rank_own_ratio{" + rank + "0.25"));
    CHECK(has_line(text, "ddprun_rank_memory_bytes{" + rank + "1024"));
    CHECK(has_line(text, "ddprun_rank_memory_peak_bytes{" + rank + "2048"));
    CHECK(has_line(text, "ddprun_rank_gpu_use_ratio{" + rank + "0.5"));
    CHECK(has_line(text, "ddprun_rank_gpu_memory_bytes{" + rank + "512"));
    CHECK(has_line(text, "ddprun_rank_gpu_power_watts{" + rank + "350.5"));
    CHECK(has_line(text, "ddprun_job_samples_per_second{" + job + "} 288"));
    CHECK(has_line(text, "ddprun_rank_samples_per_second{" + rank + "80"));
    CHECK(has_line(text, "ddprun_job_log_bytes{" + job + "} 4000"));
    CHECK(has_line(text, "ddprun_rank_log_bytes_total{" + rank + "1000"));
    const std::string get = job + R"(,operation="get"} )";
    CHECK(has_line(text, "ddprun_store_operations_total{" + get + "1600"));
    CHECK(has_line(text, "ddprun_store_operation_seconds_count{" + get + "100"));
    CHECK(has_line(text, "ddprun_store_operation_seconds_sum{" + get + "0.05"));
    CHECK(text.find("quantile") == std::string::npos);
    CHECK(daemon.text({.nodes = true}).find("ddprun_rank_") == std::string::npos);
}

TEST_CASE("saves are told of a job whose workers report them") {
    Daemon daemon;
    daemon.join(1, "a", 1);
    const std::string job = R"({job_id="llama \"7\"\n"} )";
    CHECK(daemon.text().find("checkpoint_") == std::string::npos);
    daemon.save({.saved = 0, .failed = 1, .failed_step = 3});
    std::string text = daemon.text();
    CHECK(has_line(text, "ddprun_job_checkpoints_total" + job + "0"));
    CHECK(has_line(text, "ddprun_job_checkpoint_failures_total" + job + "1"));
    CHECK(text.find("ddprun_job_checkpoint_step") == std::string::npos);
    daemon.save({.saved = 3,
                 .step = 1200,
                 .bytes = 4096,
                 .stall = Milliseconds(12),
                 .took = Milliseconds(800),
                 .places = 1,
                 .failed = 1,
                 .behind = "too slow"});
    text = daemon.text();
    CHECK(has_line(text, "# TYPE ddprun_job_checkpoints_total counter"));
    CHECK(has_line(text, "ddprun_job_checkpoints_total" + job + "3"));
    CHECK(has_line(text, "ddprun_job_checkpoint_failures_total" + job + "1"));
    CHECK(has_line(text, "ddprun_job_checkpoint_behind" + job + "1"));
    CHECK(has_line(text, "ddprun_job_checkpoint_step" + job + "1200"));
    CHECK(has_line(text, "ddprun_job_checkpoint_bytes" + job + "4096"));
    CHECK(has_line(text, "ddprun_job_checkpoint_duration_seconds" + job + "0.8"));
    CHECK(has_line(text, "ddprun_job_checkpoint_stall_seconds" + job + "0.012"));
    CHECK(has_line(text, "ddprun_job_checkpoint_timestamp_seconds" + job + "1700000000.25"));
    daemon.save({.saved = 4, .step = 1300, .failed = 1});
    CHECK(has_line(daemon.text(), "ddprun_job_checkpoint_behind" + job + "0"));
}

}  // namespace
}  // namespace ddprun::rdzv
