#include "rendezvous/metrics/prometheus_text.hpp"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <chrono>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/tagged.hpp"
#include "rendezvous/events/event_counts.hpp"
#include "rendezvous/events/time_use.hpp"
#include "rendezvous/wire/control_fields.hpp"

namespace ddprun::rdzv {

namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Label = std::pair<std::string_view, std::string_view>;

ClientMetric labelled(std::initializer_list<Label> labels) {
    ClientMetric metric;
    for (const auto& [name, value] : labels) {
        metric.label.push_back({std::string(name), std::string(value)});
    }
    return metric;
}

double seconds(Duration duration) {
    return std::chrono::duration<double>(duration).count();
}

/// One figure, of each job, or of whatever else its labels say.
class Family {
public:
    Family(std::string_view name, std::string_view help, MetricType type = MetricType::Gauge) {
        family_.name = name;
        family_.help = help;
        family_.type = type;
    }

    void add(std::initializer_list<Label> labels, double value) {
        ClientMetric metric = labelled(labels);
        (family_.type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
        family_.metric.push_back(std::move(metric));
    }

    void add(std::initializer_list<Label> labels, const DurationHistogram& histogram) {
        ClientMetric metric = labelled(labels);
        metric.histogram.sample_count = histogram.count();
        metric.histogram.sample_sum = histogram.sum_seconds();
        for (std::size_t i = 0; i < DurationHistogram::kBoundsSeconds.size(); ++i) {
            metric.histogram.bucket.push_back(
                {histogram.at_most(i), DurationHistogram::kBoundsSeconds.at(i)});
        }
        family_.metric.push_back(std::move(metric));
    }

    /// A sum and of how many, as a summary without quantiles.
    void add(std::initializer_list<Label> labels, std::uint64_t count, double sum) {
        ClientMetric metric = labelled(labels);
        metric.summary.sample_count = count;
        metric.summary.sample_sum = sum;
        family_.metric.push_back(std::move(metric));
    }

    /// One without a figure is left out.
    void move_to(std::vector<MetricFamily>& families) {
        if (!family_.metric.empty()) {
            families.push_back(std::move(family_));
        }
    }

private:
    MetricFamily family_;
};

/// A figure that each job has once.
template <typename Value>
void add_of_each(std::vector<MetricFamily>& families, const std::vector<JobFigures>& jobs,
                 std::string_view name, std::string_view help, MetricType type, Value value) {
    Family family(name, help, type);
    for (const JobFigures& job : jobs) {
        family.add({{"job_id", job.status.job.value()}}, static_cast<double>(value(job)));
    }
    family.move_to(families);
}

void add_states(std::vector<MetricFamily>& families, const std::vector<JobFigures>& jobs) {
    Family phase("ddprun_job_phase", "1 for the phase in which the job is, 0 for the others.");
    Family nodes("ddprun_job_nodes", "Nodes of the job, by how they stand.");
    for (const JobFigures& job : jobs) {
        const std::string_view name = job.status.job.value();
        for (const auto& [word, value] : kJobPhaseNames) {
            phase.add({{"job_id", name}, {"phase", word}}, job.status.phase == value ? 1 : 0);
        }
        for (const auto& [word, value] : kNodeStandingNames) {
            const auto here = [standing = value](const NodeStatus& node) {
                return node.standing == standing;
            };
            nodes.add({{"job_id", name}, {"standing", word}},
                      static_cast<double>(
                          std::count_if(job.status.nodes.begin(), job.status.nodes.end(), here)));
        }
        nodes.add({{"job_id", name}, {"standing", "absent"}},
                  static_cast<double>(job.status.absent.size()));
    }
    phase.move_to(families);
    nodes.move_to(families);
}

/// The oldest sign of life of a node that is believed alive.
double oldest_sign_of_life(const JobFigures& job) {
    Milliseconds oldest{0};
    for (const NodeStatus& node : job.status.nodes) {
        oldest = std::max(oldest, node.last_heard);
    }
    return seconds(oldest);
}

void add_gauges(std::vector<MetricFamily>& families, const std::vector<JobFigures>& jobs) {
    const auto add = [&families, &jobs](std::string_view name, std::string_view help, auto value) {
        add_of_each(families, jobs, name, help, MetricType::Gauge, value);
    };
    add("ddprun_job_generation", "Number of the current attempt, or of the last one while forming.",
        [](const JobFigures& job) { return job.status.generation.value(); });
    add("ddprun_job_world_size", "Workers of the generation; 0 before the first.",
        [](const JobFigures& job) { return job.status.world_size; });
    add("ddprun_job_nodes_min", "Nodes that the job needs.",
        [](const JobFigures& job) { return job.status.min_nodes; });
    add("ddprun_job_nodes_max", "Nodes that the job has at most.",
        [](const JobFigures& job) { return job.status.max_nodes; });
    add("ddprun_job_restarts_used", "Restarts that count against --max-restarts.",
        [](const JobFigures& job) { return job.status.restarts_used; });
    add("ddprun_job_restarts_max", "What --max-restarts allows.",
        [](const JobFigures& job) { return job.status.max_restarts; });
    add("ddprun_job_last_heard_seconds", "Since the node was heard that is silent longest.",
        oldest_sign_of_life);
    add("ddprun_job_durable", "1 if a restart of this daemon loses nothing of the run.",
        [](const JobFigures& job) { return job.status.not_durable.empty() ? 1 : 0; });
}

void add_counters(std::vector<MetricFamily>& families, const std::vector<JobFigures>& jobs) {
    const auto add = [&families, &jobs](std::string_view name, std::string_view help,
                                        std::uint64_t (EventCounts::*value)() const) {
        add_of_each(families, jobs, name, help, MetricType::Counter,
                    [value](const JobFigures& job) { return (job.counts.*value)(); });
    };
    add("ddprun_job_failures_total", "Ranks that failed.", &EventCounts::failures);
    add("ddprun_job_nodes_lost_total", "Nodes that were given up.", &EventCounts::nodes_lost);
    add("ddprun_job_cut_off_total", "Connections to nodes that were lost.", &EventCounts::cut_off);
    add("ddprun_job_refusals_total", "Joins that were refused.", &EventCounts::refusals);
    add("ddprun_job_hold_ups_total", "How often this daemon was held up, and judged no silence.",
        &EventCounts::hold_ups);
    Family restarts("ddprun_job_restarts_total", "Generations after the first, by cause.",
                    MetricType::Counter);
    for (const JobFigures& job : jobs) {
        for (const auto& [cause, count] : job.counts.restarts()) {
            restarts.add({{"job_id", job.status.job.value()}, {"cause", cause}},
                         static_cast<double>(count));
        }
    }
    restarts.move_to(families);
}

void add_times(std::vector<MetricFamily>& families, const std::vector<JobFigures>& jobs) {
    Family phases("ddprun_restart_phase_seconds", "How long each phase of a restart took.",
                  MetricType::Histogram);
    Family shares("ddprun_job_time_seconds", "Where the time of the run went.");
    for (const JobFigures& job : jobs) {
        const std::string_view name = job.status.job.value();
        for (const auto& [phase, histogram] : job.counts.phases()) {
            phases.add({{"job_id", name}, {"phase", phase}}, histogram);
        }
        const TimeShares& use = job.time;
        for (const auto& [share, took] : {std::pair{std::string_view("starting"), use.starting},
                                          {std::string_view("training"), use.training},
                                          {std::string_view("restarting"), use.restarting},
                                          {std::string_view("waiting"), use.waiting},
                                          {std::string_view("checkpointing"), use.checkpointing},
                                          {std::string_view("redone"), use.redone}}) {
            shares.add({{"job_id", name}, {"share", share}}, seconds(took));
        }
    }
    phases.move_to(families);
    shares.move_to(families);
}

/// Adds the saves of jobs whose workers report them.
void add_saves(std::vector<MetricFamily>& families, const std::vector<JobFigures>& jobs) {
    Family saves("ddprun_job_checkpoints_total", "Checkpoints that were saved.",
                 MetricType::Counter);
    Family failures("ddprun_job_checkpoint_failures_total", "Saves that have failed.",
                    MetricType::Counter);
    Family behind("ddprun_job_checkpoint_behind", "1 while saves fall behind.");
    Family step("ddprun_job_checkpoint_step", "Step of the last checkpoint.");
    Family bytes("ddprun_job_checkpoint_bytes", "What all ranks have saved in it.");
    Family took("ddprun_job_checkpoint_duration_seconds", "From its begin until it was complete.");
    Family stall("ddprun_job_checkpoint_stall_seconds", "Training stood still so long for it.");
    Family time("ddprun_job_checkpoint_timestamp_seconds", "When it was complete, since 1970.");
    for (const JobFigures& job : jobs) {
        if (!job.saves.has_any()) {
            continue;
        }
        const std::initializer_list<Label> labels{{"job_id", job.status.job.value()}};
        saves.add(labels, static_cast<double>(job.saves.saves()));
        failures.add(labels, static_cast<double>(job.saves.failures()));
        behind.add(labels, job.saves.behind().empty() ? 0 : 1);
        if (const std::optional<LastSave>& last = job.saves.last()) {
            step.add(labels, static_cast<double>(last->step.value_or(0)));
            bytes.add(labels, static_cast<double>(last->bytes));
            took.add(labels, seconds(last->took));
            stall.add(labels, seconds(last->stall));
            time.add(labels, seconds(job.saved_at));
        }
    }
    for (Family* family : {&saves, &failures, &behind, &step, &bytes, &took, &stall, &time}) {
        family->move_to(families);
    }
}

void add_nodes(std::vector<MetricFamily>& families, const std::vector<JobFigures>& jobs) {
    Family connected("ddprun_node_connected", "1 if the node's agent is connected.");
    Family heard("ddprun_node_last_heard_seconds", "Since the node was heard.");
    Family lease("ddprun_node_lease_left_seconds", "Until a silent node is given up.");
    Family slots("ddprun_node_workers", "Workers that the node has place for.");
    for (const JobFigures& job : jobs) {
        for (const NodeStatus& node : job.status.nodes) {
            const std::initializer_list<Label> labels{{"job_id", job.status.job.value()},
                                                      {"node", node.node.value()},
                                                      {"host", node.hostname}};
            connected.add(labels, node.is_connected ? 1 : 0);
            heard.add(labels, seconds(node.last_heard));
            lease.add(labels, seconds(node.lease_left));
            slots.add(labels, node.slots);
        }
    }
    for (Family* family : {&connected, &heard, &lease, &slots}) {
        family->move_to(families);
    }
}

constexpr double kNanosecondsPerSecond = 1e9;
constexpr double kPermille = 1000;
constexpr double kMillisecondsPerSecond = 1000;
constexpr double kMilliwattsPerWatt = 1000;

/// Adds the progress of jobs; ranks that report steps all take equally many of them.
void add_progress(std::vector<MetricFamily>& families, const std::vector<JobFigures>& jobs) {
    Family step("ddprun_job_step", "The last training step that all ranks have told.");
    Family pace("ddprun_job_steps_per_second", "Training steps that the job makes, of late.");
    Family stalled("ddprun_job_stalled_seconds",
                   "Since the last step of any rank; 0 while the job gets further.");
    Family samples("ddprun_job_samples_per_second", "What all ranks together train on.");
    Family logs("ddprun_job_log_bytes", "What the workers of this generation have written.");
    Family gpu("ddprun_job_gpu_use_ratio", "Share of the time in which its GPUs work, of late.");
    for (const JobFigures& job : jobs) {
        if (!job.ranks) {
            continue;
        }
        std::optional<std::uint64_t> least;
        std::uint64_t longest_ns = 0;
        double gpu_use = 0;
        int gpu_ranks = 0;
        std::optional<double> rate;
        std::optional<std::uint64_t> written;
        job.ranks->visit([&](const NodeOfRanks&, Rank, const RankProgress& rank) {
            if (rank.step) {
                least = std::min(least.value_or(*rank.step), *rank.step);
            }
            longest_ns = std::max(longest_ns, rank.step_ns.value_or(0));
            gpu_use += rank.gpu_permille.value_or(0) / kPermille;
            gpu_ranks += rank.gpu_permille ? 1 : 0;
            if (const std::optional<double> own = samples_per_second(rank)) {
                rate = rate.value_or(0) + *own;
            }
            if (rank.log_bytes) {
                written = written.value_or(0) + *rank.log_bytes;
            }
        });
        const std::initializer_list<Label> labels{{"job_id", job.status.job.value()}};
        if (least) {
            step.add(labels, static_cast<double>(*least));
        }
        const std::optional<Stall> stall =
            job.status.phase == JobPhase::Running ? job.ranks->stall() : std::nullopt;
        if (least) {
            stalled.add(labels, stall ? seconds(stall->age) : 0);
        }
        if (longest_ns > 0) {
            pace.add(labels, stall ? 0 : kNanosecondsPerSecond / static_cast<double>(longest_ns));
        }
        if (rate) {
            samples.add(labels, *rate);
        }
        if (written) {
            logs.add(labels, static_cast<double>(*written));
        }
        if (gpu_ranks > 0) {
            gpu.add(labels, gpu_use / gpu_ranks);
        }
    }
    for (Family* family : {&step, &pace, &stalled, &samples, &logs, &gpu}) {
        family->move_to(families);
    }
}

/// Adds the counts of the workers' stores on the node that has rank 0.
void add_store(std::vector<MetricFamily>& families, const std::vector<JobFigures>& jobs) {
    Family counts("ddprun_store_operations_total", "Requests that the workers' store has answered.",
                  MetricType::Counter);
    Family times("ddprun_store_operation_seconds",
                 "How long a sample of them took, from the request's last byte to the answer.",
                 MetricType::Summary);
    for (const JobFigures& job : jobs) {
        if (!job.ranks) {
            continue;
        }
        for (const StoreOperations& told : job.ranks->store()) {
            const std::initializer_list<Label> labels{{"job_id", job.status.job.value()},
                                                      {"operation", told.operation}};
            counts.add(labels, static_cast<double>(told.count));
            times.add(labels, told.timed,
                      static_cast<double>(told.time_ns) / kNanosecondsPerSecond);
        }
    }
    counts.move_to(families);
    times.move_to(families);
}

/// A figure of each rank that reports it.
struct OfRank {
    Family family;
    std::optional<double> (*value)(const RankProgress&);
};

std::optional<double> number(const std::optional<std::uint64_t>& value, double per = 1) {
    return value ? std::optional(static_cast<double>(*value) / per) : std::nullopt;
}

std::vector<OfRank> rank_families() {
    using Value = std::optional<double>;
    std::vector<OfRank> list;
    list.push_back({Family("ddprun_rank_step", "The last training step that the rank has told."),
                    [](const RankProgress& rank) { return number(rank.step); }});
    list.push_back({Family("ddprun_rank_step_age_seconds", "Since it told its last step."),
                    [](const RankProgress& rank) {
                        return number(rank.step_age_ms, kMillisecondsPerSecond);
                    }});
    list.push_back({Family("ddprun_rank_steps_per_second", "Training steps it makes, of late."),
                    [](const RankProgress& rank) {
                        return is_stalled(rank, WatchLimits()) ? Value(0)
                               : rank.step_ns.value_or(0) > 0
                                   ? Value(kNanosecondsPerSecond /
                                           static_cast<double>(*rank.step_ns))
                                   : Value();
                    }});
    list.push_back(
        {Family("ddprun_rank_own_ratio",
                "Share of a step in which it does not wait for others; the slowest has most."),
         [](const RankProgress& rank) {
             return rank.own_ns && rank.step_ns.value_or(0) > 0
                        ? Value(std::min(static_cast<double>(*rank.own_ns) /
                                             static_cast<double>(*rank.step_ns),
                                         1.0))
                        : Value();
         }});
    list.push_back({Family("ddprun_rank_samples_per_second", "What it trains on, of late."),
                    samples_per_second});
    list.push_back({Family("ddprun_rank_log_bytes_total", "What its process has written.",
                           MetricType::Counter),
                    [](const RankProgress& rank) { return number(rank.log_bytes); }});
    list.push_back({Family("ddprun_rank_memory_bytes", "Memory of the machine it holds, resident."),
                    [](const RankProgress& rank) { return number(rank.memory_bytes); }});
    list.push_back({Family("ddprun_rank_memory_peak_bytes", "The most of that so far."),
                    [](const RankProgress& rank) { return number(rank.memory_peak_bytes); }});
    list.push_back({Family("ddprun_rank_gpu_memory_bytes", "Of its GPUs, in use by anybody."),
                    [](const RankProgress& rank) { return number(rank.gpu_memory_bytes); }});
    list.push_back(
        {Family("ddprun_rank_gpu_power_watts", "What its GPUs draw."),
         [](const RankProgress& rank) { return number(rank.gpu_milliwatts, kMilliwattsPerWatt); }});
    list.push_back(
        {Family("ddprun_rank_gpu_use_ratio", "Share of the time in which its GPUs work, of late."),
         [](const RankProgress& rank) {
             return rank.gpu_permille ? Value(*rank.gpu_permille / kPermille) : Value();
         }});
    return list;
}

void add_ranks(std::vector<MetricFamily>& families, const std::vector<JobFigures>& jobs) {
    std::vector<OfRank> list = rank_families();
    for (const JobFigures& job : jobs) {
        if (!job.ranks) {
            continue;
        }
        job.ranks->visit([&](const NodeOfRanks& node, Rank number, const RankProgress& rank) {
            const std::string rank_text = std::to_string(number.value());
            for (OfRank& one : list) {
                if (const std::optional<double> value = one.value(rank)) {
                    one.family.add({{"job_id", job.status.job.value()},
                                    {"rank", rank_text},
                                    {"node", node.node.value()},
                                    {"host", node.hostname}},
                                   *value);
                }
            }
        });
    }
    for (OfRank& one : list) {
        one.family.move_to(families);
    }
}

std::string serialized(const DaemonFigures& daemon) {
    std::vector<MetricFamily> families;
    Family known("ddprun_jobs", "Jobs that this daemon knows.");
    known.add({}, static_cast<double>(daemon.jobs.size()));
    known.move_to(families);
    Family watching("ddprun_watchers", "Who is connected over HTTP.");
    watching.add({}, static_cast<double>(daemon.watchers));
    watching.move_to(families);
    add_states(families, daemon.jobs);
    add_gauges(families, daemon.jobs);
    add_counters(families, daemon.jobs);
    add_times(families, daemon.jobs);
    add_saves(families, daemon.jobs);
    add_progress(families, daemon.jobs);
    add_store(families, daemon.jobs);
    if (daemon.extent.nodes) {
        add_nodes(families, daemon.jobs);
    }
    if (daemon.extent.ranks) {
        add_ranks(families, daemon.jobs);
    }
    return prometheus::TextSerializer().Serialize(families);
}

}  // namespace

MetricsText prometheus_text() {
    return serialized;
}

}  // namespace ddprun::rdzv
