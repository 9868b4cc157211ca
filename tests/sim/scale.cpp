#include "tests/sim/scale.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <variant>

#include <fmt/format.h>

#include "base/check.hpp"
#include "rendezvous/core/coordinator.hpp"
#include "rendezvous/wire/codec.hpp"
#include "rendezvous/wire/run_record.hpp"
#include "tests/sim/cpu_time.hpp"

namespace ddprun::sim {

namespace {

constexpr int kSlots = 8;
constexpr int kSpares = 64;
constexpr int kBeats = 20000;

/// A coordinator whose members are played here, by messages as they travel.
class Stage {
public:
    explicit Stage(int nodes)
        : coordinator_(JobId("scale"), {.limits = limits_, .has_leases = true}, Rng(1)),
          nodes_(nodes) {}

    void join(int index) {
        rdzv::Join join;
        join.job = JobId("scale");
        join.node = NodeId(fmt::format("gpu-node-{:05}", index));
        join.hostname = join.node.value();
        join.slots = kSlots;
        join.topology_key = fmt::format("rack-{:03}", index / 16);
        join.addresses = {fmt::format("10.{}.{}.{}", index / 65536, index / 256 % 256, index % 256),
                          fmt::format("fd00::{:x}", index)};
        join.store = {.host = join.addresses.front(), .port = 40000};
        join.settings.min_nodes = nodes_;
        join.settings.max_nodes = nodes_;
        join.settings.max_restarts = 100;
        receive(index, join);
    }

    void receive(int index, const rdzv::AgentMessage& message) {
        const std::string body = rdzv::encode(message);
        last_bytes = body.size();
        const auto decoded = rdzv::decode_agent_message(body, limits_);
        DDP_CHECK(decoded.has_value());
        step(rdzv::Received{ConnectionId(static_cast<std::uint64_t>(index) + 1), decoded.value()});
    }

    void step(const rdzv::Input& input) {
        rdzv::Effects effects;
        coordinator_.step(now, input, effects);
        persists += effects.record != rdzv::RecordWrite::None ? 1 : 0;
        effects.for_each([&](const rdzv::Effect& effect) {
            if (const rdzv::Send* send = std::get_if<rdzv::Send>(&effect)) {
                deliver(*send);
            }
        });
    }

    /// The workers of all nodes exit 0, and all nodes leave. One spare has become a member.
    void end(int nodes) {
        for (int i = 0; i <= nodes; ++i) {
            for (int rank = 0; rank < kSlots && i != nodes - 1; ++rank) {
                receive(i, rdzv::WorkerFinished{.generation = Generation(2),
                                                .local_rank = LocalRank(rank)});
            }
        }
        for (int i = 0; i < nodes + kSpares; ++i) {
            if (i != nodes - 1) {
                receive(i, rdzv::Goodbye{});
                step(rdzv::ConnectionEnded{
                    .connection = ConnectionId(static_cast<std::uint64_t>(i) + 1),
                    .is_end_of_stream = true});
            }
        }
    }

    /// Beats of all nodes, so that no node is silent.
    void beat_all(int count) {
        for (int i = 0; i < count; ++i) {
            receive(i, rdzv::Beat{++beats_});
        }
    }

    [[nodiscard]] std::size_t record_bytes() const {
        const std::optional<rdzv::RunRecord> record = coordinator_.record(now);
        return record.has_value() ? rdzv::encode(*record).size() : 0;
    }

    Instant now{std::chrono::hours(1)};
    std::size_t last_bytes = 0;
    std::size_t start_bytes = 0;
    std::size_t store_start_bytes = 0;
    std::size_t stop_bytes = 0;
    int starts = 0;
    int stops = 0;
    int persists = 0;

private:
    void deliver(const rdzv::Send& send) {
        const std::string body = rdzv::encode(send.message);
        const auto decoded = rdzv::decode_rendezvous_message(body, limits_);
        DDP_CHECK(decoded.has_value());
        if (const auto* start = std::get_if<rdzv::Start>(&decoded.value())) {
            (start->group_rank == 0 ? store_start_bytes : start_bytes) = body.size();
            ++starts;
        } else if (std::holds_alternative<rdzv::Stop>(decoded.value())) {
            stop_bytes = body.size();
            ++stops;
        }
    }

    Limits limits_;
    rdzv::Coordinator coordinator_;
    int nodes_;
    std::uint64_t beats_ = 0;
};

}  // namespace

ScaleRow measure_scale(int nodes) {
    ScaleRow row;
    row.nodes = nodes;
    Stage stage(nodes);
    double began = cpu_seconds();
    for (int i = 0; i < nodes; ++i) {
        stage.join(i);
    }
    row.join_bytes = stage.last_bytes;
    row.form_ms = (cpu_seconds() - began) * 1e3;
    DDP_CHECK(stage.starts == nodes, stage.starts, nodes);
    row.form_records = stage.persists;
    began = cpu_seconds();
    row.record_bytes = stage.record_bytes();
    row.record_ms = (cpu_seconds() - began) * 1e3;

    began = cpu_seconds();
    for (int i = 0; i < kSpares; ++i) {
        stage.join(nodes + i);
    }
    row.join_us = (cpu_seconds() - began) * 1e6 / kSpares;

    const int everybody = nodes + kSpares;
    began = cpu_seconds();
    for (int done = 0; done < kBeats; done += everybody) {
        stage.now += Milliseconds(200);
        stage.beat_all(everybody);
    }
    const int rounds = (kBeats + everybody - 1) / everybody;
    row.beat_us = (cpu_seconds() - began) * 1e6 / (static_cast<double>(rounds) * everybody);

    constexpr int kTicks = 1000;
    began = cpu_seconds();
    for (int i = 0; i < kTicks; ++i) {
        stage.step(rdzv::Tick{});
    }
    row.tick_us = (cpu_seconds() - began) * 1e6 / kTicks;

    stage.persists = 0;
    began = cpu_seconds();
    const auto dead = ConnectionId(static_cast<std::uint64_t>(nodes));
    stage.step(rdzv::ConnectionEnded{.connection = dead, .is_end_of_stream = true});
    row.failure_ms = (cpu_seconds() - began) * 1e3;
    row.failure_us = row.failure_ms * 1e3 / std::max(stage.stops, 1);
    row.stop_bytes = stage.stop_bytes;

    began = cpu_seconds();
    for (int i = 0; i + 1 < nodes; ++i) {
        stage.receive(i, rdzv::Stopped{.generation = Generation(1),
                                       .store = {.host = "10.0.0.1", .port = 40001}});
    }
    row.restart_ms = (cpu_seconds() - began) * 1e3;
    row.restart_records = stage.persists;
    row.restart_us = row.restart_ms * 1e3 / nodes;
    DDP_CHECK(stage.starts == 2 * nodes || nodes == 1, stage.starts, nodes);
    stage.persists = 0;
    began = cpu_seconds();
    stage.end(nodes);
    row.end_ms = (cpu_seconds() - began) * 1e3;
    row.end_us = row.end_ms * 1e3 / nodes;
    row.end_records = stage.persists;
    row.start_bytes = stage.start_bytes;
    row.store_start_bytes = stage.store_start_bytes;
    return row;
}

void print_scale(const std::vector<ScaleRow>& rows) {
    fmt::print("CPU time of one core; messages encoded and decoded at both ends, no sockets\n\n");
    fmt::print("{:>6} {:>9} {:>8} {:>8} {:>8}  {:>18}  {:>18}  {:>18}  {:>18}\n", "nodes",
               "form ms", "join us", "beat us", "tick us", "failure ms us/node",
               "restart ms us/node", "end ms us/node", "record ms      KiB");
    for (const ScaleRow& row : rows) {
        fmt::print(
            "{:>6} {:>9.2f} {:>8.1f} {:>8.2f} {:>8.2f}  {:>10.2f} {:>7.1f}  {:>10.2f} "
            "{:>7.1f}  {:>10.2f} {:>7.1f}  {:>9.2f} {:>8}\n",
            row.nodes, row.form_ms, row.join_us, row.beat_us, row.tick_us, row.failure_ms,
            row.failure_us, row.restart_ms, row.restart_us, row.end_ms, row.end_us, row.record_ms,
            row.record_bytes / 1024);
    }
    fmt::print("\n{:>6} {:>10} {:>11} {:>17} {:>10} {:>15} {:>18} {:>14}\n", "nodes", "join bytes",
               "start bytes", "start of node 0", "stop bytes", "records to form",
               "records to restart", "records to end");
    for (const ScaleRow& row : rows) {
        fmt::print("{:>6} {:>10} {:>11} {:>17} {:>10} {:>15} {:>18} {:>14}\n", row.nodes,
                   row.join_bytes, row.start_bytes, row.store_start_bytes, row.stop_bytes,
                   row.form_records, row.restart_records, row.end_records);
    }
}

}  // namespace ddprun::sim
