#include "tests/support/daemon_plays.hpp"

#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/check.hpp"
#include "rendezvous/core/run.hpp"
#include "rendezvous/core/status.hpp"
#include "rendezvous/wire/codec.hpp"
#include "rendezvous/wire/control.hpp"
#include "rendezvous/wire/run_record.hpp"

namespace ddprun::test {

namespace {

constexpr int kSlots = 8;
constexpr int kRepeats = 5;
constexpr int kBeatsLeast = 2000;

void beat_all(Stage& stage) {
    for (int done = 0; done < kBeatsLeast; done += stage.nodes()) {
        for (int node = 0; node < stage.nodes(); ++node) {
            stage.beat(node);
        }
    }
}

/// Members say that they are empty; the last one's turn is a row of its own.
void empty_all(Stage& stage, const std::vector<int>& members, Generation generation,
               const std::string& event, const std::string& last_event) {
    stage.measure(event);
    for (const int node : members) {
        if (node == members.back()) {
            stage.measure(last_event);
        }
        rdzv::Stopped stopped{.generation = generation};
        stopped.store = stage.join_of(node).store;
        stage.receive(node, stopped);
    }
    stage.pass(Milliseconds(100));
}

std::string record_of(const Stage& stage) {
    const std::optional<rdzv::RunRecord> record = stage.coordinator().record(stage.now);
    DDP_CHECK(record.has_value());
    return rdzv::encode(*record);
}

/// Records and statuses of a running job.
void look(Stage& stage) {
    stage.measure("a record");
    for (int i = 0; i < kRepeats; ++i) {
        stage.turn([&] { stage.count(record_of(stage)); });
    }
    stage.measure("a status");
    const Limits limits;
    for (int i = 0; i < kRepeats; ++i) {
        stage.turn([&] {
            rdzv::StatusReply reply;
            reply.jobs.push_back(rdzv::status_of(
                JobId("scale"), *stage.coordinator().run(), stage.now,
                {.nodes_max = limits.status_nodes_max, .events_max = limits.timeline_events_max}));
            stage.count(rdzv::encode(reply));
        });
    }
}

}  // namespace

void play_job(Stage& stage) {
    const int nodes = stage.nodes();
    stage.begin({});
    stage.measure("joins");
    for (int node = 0; node < nodes; ++node) {
        if (node == nodes - 1) {
            stage.measure("the last join: generation 1 starts");
        }
        stage.join(node, stage.join_of(node));
    }
    stage.pass(Milliseconds(100));
    DDP_CHECK(stage.starts() == static_cast<std::size_t>(nodes), stage.starts());
    stage.measure("beats");
    beat_all(stage);
    look(stage);

    stage.measure("a node is lost");
    stage.end(nodes - 1, rdzv::PeerEnd::ProcessGone);
    std::vector<int> left(static_cast<std::size_t>(nodes) - 1);
    std::iota(left.begin(), left.end(), 0);
    empty_all(stage, left, Generation(1), "the others stop", "the last of them stops");
    stage.measure("all links break");
    for (const int node : left) {
        stage.end(node, rdzv::PeerEnd::Lost);
    }
    stage.measure("their nodes join again");
    for (const int node : left) {
        rdzv::Join join = stage.join_of(node);
        join.run_token = stage.run_token();
        stage.join(node, join);
    }
    stage.measure("another node joins: generation 2 starts");
    stage.join(nodes, stage.join_of(nodes));
    stage.pass(Milliseconds(100));
    left.push_back(nodes);
    stage.measure("ranks exit 0");
    for (const int node : left) {
        for (int rank = 0; rank < kSlots; ++rank) {
            if (node == left.back() && rank == kSlots - 1) {
                stage.measure("the last one does: the verdict");
            }
            stage.receive(node, rdzv::WorkerFinished{.generation = Generation(2),
                                                     .local_rank = LocalRank(rank)});
        }
    }
    stage.pass(Milliseconds(100));
    DDP_CHECK(rdzv::is_closed(*stage.coordinator().run()));
    stage.measure("nodes say goodbye");
    for (const int node : left) {
        stage.receive(node, rdzv::Goodbye{});
        stage.end(node, rdzv::PeerEnd::ProcessGone);
    }
}

void play_failure(Stage& stage) {
    constexpr int kFailures = 64;
    const int nodes = stage.nodes();
    stage.begin({});
    stage.measure("joins with --prepare");
    for (int node = 0; node < nodes; ++node) {
        rdzv::Join join = stage.join_of(node);
        join.prepares = rdzv::Prepares::Node;
        stage.join(node, join);
    }
    stage.measure("beats while nodes run --prepare");
    beat_all(stage);
    std::vector<int> all(static_cast<std::size_t>(nodes));
    std::iota(all.begin(), all.end(), 0);
    empty_all(stage, all, Generation(), "nodes have prepared",
              "the last of them has: generation 1 starts");
    DDP_CHECK(stage.starts() == static_cast<std::size_t>(nodes), stage.starts());
    stage.measure("64 ranks fail, with 64 KiB of last words each");
    for (int i = 0; i < kFailures; ++i) {
        rdzv::WorkerFailed failed{.generation = Generation(1), .local_rank = LocalRank(i % kSlots)};
        failed.evidence.exit_code = 1;
        failed.evidence.stderr_tail = std::string(std::size_t{64} << 10, 'e');
        failed.evidence.stdout_tail = failed.evidence.stderr_tail;
        stage.receive(i / kSlots, failed);
    }
    empty_all(stage, all, Generation(1), "all stop after failures",
              "the last of them stops: the verdict with last words");
    DDP_CHECK(rdzv::is_closed(*stage.coordinator().run()));
}

void play_return(Stage& stage, bool has_journal) {
    const int nodes = stage.nodes();
    stage.begin({});
    for (int node = 0; node < nodes; ++node) {
        stage.join(node, stage.join_of(node));
    }
    stage.pass(Milliseconds(100));
    std::vector<rdzv::Join> joins;
    const rdzv::Run& run = *stage.coordinator().run();
    for (int node = 0; node < nodes; ++node) {
        rdzv::Join join = stage.join_of(node);
        const rdzv::Start& row = run.current.rows.at(join.node);
        join.run_token = run.token;
        join.newest = row.generation;
        join.held = rdzv::HeldGeneration{.generation = row.generation,
                                         .digest = row.digest,
                                         .group_rank = row.group_rank,
                                         .group_world_size = row.group_world_size,
                                         .base_rank = row.base_rank,
                                         .world_size = row.world_size,
                                         .store = row.store};
        joins.push_back(std::move(join));
    }
    std::map<JobId, std::string> records;
    if (has_journal) {
        records.emplace(JobId("scale"), record_of(stage));
    }
    stage.pace = std::chrono::duration_cast<Duration>(std::chrono::seconds(2)) / nodes;
    stage.measure_nothing();
    if (has_journal) {
        stage.measure("a daemon reads the record");
    }
    stage.begin(records);
    stage.measure(has_journal ? "nodes come back to a record" : "nodes come back, no journal");
    for (int node = 0; node < nodes; ++node) {
        stage.join(node, joins[static_cast<std::size_t>(node)]);
    }
    stage.pass(Milliseconds(100));
    DDP_CHECK(std::holds_alternative<rdzv::Running>(stage.coordinator().run()->phase));
}

}  // namespace ddprun::test
