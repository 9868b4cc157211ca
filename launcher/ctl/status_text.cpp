#include "launcher/ctl/status_text.hpp"

#include <algorithm>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "base/text_table.hpp"
#include "rendezvous/wire/control_fields.hpp"
#include "worker_runtime/contract/containment_level.hpp"

namespace ddprun::launcher {

namespace {

using rdzv::JobPhase;
using rdzv::JobStatus;
using rdzv::NodeStatus;

/// The first of very many nodes and events are enough for a screen; --json has them all.
constexpr std::size_t kEventsShown = 10;

std::string clean(std::string text) {
    std::replace_if(
        text.begin(), text.end(),
        [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, '?');
    return text;
}

/// "840 ms", "12.3 s", "5 min 3 s", "2 h 10 min".
std::string duration_text(Milliseconds time) {
    const auto ms = time.count();
    const auto seconds = ms / 1000;
    if (ms < 1000) {
        return fmt::format("{} ms", ms);
    }
    if (seconds < 60) {
        return fmt::format("{}.{} s", seconds, ms % 1000 / 100);
    }
    if (seconds < 3600) {
        return fmt::format("{} min {} s", seconds / 60, seconds % 60);
    }
    return fmt::format("{} h {} min", seconds / 3600, seconds % 3600 / 60);
}

std::string_view phase_text(JobPhase phase) {
    return phase == JobPhase::Adopting ? "being adopted" : word_of(phase, rdzv::kJobPhaseNames);
}

std::string budget_text(int used, int most, std::string_view what) {
    return most < 0 ? fmt::format("{} {} (no bound)", used, what)
                    : fmt::format("{} of {} {}", used, most, what);
}

std::string pace_text(const NodeStatus& node, bool is_stalled) {
    std::string text = fmt::format("step {}", *node.step);
    if (node.step_ns && !is_stalled) {
        constexpr double kNanosecondsPerSecond = 1e9;
        text += fmt::format(", {:.3g} steps/s",
                            kNanosecondsPerSecond / static_cast<double>(*node.step_ns));
    }
    return text;
}

std::string notes_text(const NodeStatus& node, bool is_stalled) {
    std::vector<std::string> notes;
    if (node.step) {
        notes.push_back(pace_text(node, is_stalled));
    }
    if (node.is_suspect) {
        notes.emplace_back("cut off");
    }
    if (node.leaving) {
        notes.push_back(fmt::format("leaving after signal {}", *node.leaving));
    }
    if (node.quarantined > Milliseconds(0)) {
        notes.push_back(fmt::format("left out for {}: it {}", duration_text(node.quarantined),
                                    node.quarantine_why));
    }
    if (node.containment == names_of(ContainmentLevel::Session).word) {
        notes.emplace_back("its workers may leave processes behind");
    }
    if (!node.log_lost.empty()) {
        notes.push_back(clean(node.log_lost));
    }
    if (node.finished > 0) {
        notes.push_back(fmt::format("{} of {} ranks done", node.finished, node.slots));
    }
    return fmt::format("{}", fmt::join(notes, ", "));
}

TableRow row_of(const NodeStatus& node, bool is_stalled) {
    std::string ranks = "-";
    if (node.base_rank) {
        const int last = *node.base_rank + node.slots - 1;
        ranks =
            node.slots == 1 ? std::to_string(last) : fmt::format("{}-{}", *node.base_rank, last);
    }
    return {clean(node.hostname),
            std::string(word_of(node.standing, rdzv::kNodeStandingNames)),
            node.group_rank ? std::to_string(*node.group_rank) : "-",
            ranks,
            std::to_string(node.slots),
            duration_text(node.last_heard) + " ago",
            duration_text(node.lease_left),
            notes_text(node, is_stalled)};
}

std::string table_of(const std::vector<NodeStatus>& nodes, bool is_stalled) {
    std::vector<TableRow> rows = {
        {"HOST", "STANDING", "GROUP", "RANKS", "SLOTS", "HEARD", "LEASE", "NOTES"}};
    for (const NodeStatus& node : nodes) {
        rows.push_back(row_of(node, is_stalled));
    }
    return table_text(rows, "  ");
}

std::string events_of(const JobStatus& job) {
    const std::size_t shown = std::min(job.events.size(), kEventsShown);
    std::string text;
    for (std::size_t i = job.events.size() - shown; i < job.events.size(); ++i) {
        text += fmt::format("  after {:>11}  {}\n", duration_text(job.events[i].at),
                            clean(job.events[i].text));
    }
    return text;
}

std::string nnodes_text(const JobStatus& job) {
    if (!job.nnodes.empty()) {
        return clean(job.nnodes);
    }
    return job.min_nodes == job.max_nodes ? std::to_string(job.min_nodes)
                                          : fmt::format("{}:{}", job.min_nodes, job.max_nodes);
}

std::string job_text(const JobStatus& job) {
    std::string text = fmt::format("job {}: {} for {}", clean(job.job.value()),
                                   phase_text(job.phase), duration_text(job.in_phase));
    if (job.generation.value() > 0) {
        text += fmt::format(", generation {}, {} ranks", job.generation.value(), job.world_size);
    }
    text += fmt::format(", --nnodes {}\n", nnodes_text(job));
    if (job.stall) {
        text += fmt::format("  {}\n", clean(job.stall->text));
    }
    if (!job.waits_for.empty()) {
        text += fmt::format("  {}\n", clean(job.waits_for));
    }
    if (job.exit_code) {
        text += fmt::format("  exit code {}: {}\n", *job.exit_code, clean(job.verdict));
    }
    if (job.slow) {
        constexpr int kPermillePerPercent = 10;
        text += fmt::format("  slowest: rank {} on {}; the others wait for it {} % of the time\n",
                            job.slow->rank.value(), clean(job.slow->hostname),
                            job.slow->cost_permille / kPermillePerPercent);
    }
    if (!job.time_text.empty()) {
        text += fmt::format("  time: {}\n", clean(job.time_text));
    }
    if (!job.checkpoint_text.empty()) {
        text += fmt::format("  last checkpoint: {}\n", clean(job.checkpoint_text));
    }
    if (!job.not_durable.empty()) {
        text += fmt::format("  not durable: {}\n", clean(job.not_durable));
    }
    if (job.held > Milliseconds(0)) {
        text += fmt::format("  no generation starts for {} more: held by {}\n",
                            duration_text(job.held), clean(job.held_by));
    }
    if (job.target_nodes > 0) {
        text += fmt::format("  at most {} nodes, as an operator wants\n", job.target_nodes);
    }
    text += fmt::format("  used: {}, {}\n",
                        budget_text(job.restarts_used, job.max_restarts, "restarts"),
                        budget_text(job.node_losses_used, job.max_node_losses, "node losses"));
    if (!job.nodes.empty()) {
        text += table_of(job.nodes, job.stall.has_value());
    }
    if (job.nodes_left_out > 0) {
        text += fmt::format("  and {} more nodes\n", job.nodes_left_out);
    }
    for (const rdzv::AbsentStatus& node : job.absent) {
        text += fmt::format("  {} is not here; left out for {}: it {}\n", clean(node.hostname),
                            duration_text(node.quarantined), clean(node.quarantine_why));
    }
    if (job.absent_left_out > 0) {
        text += fmt::format("  and {} more that are not here\n", job.absent_left_out);
    }
    return text + events_of(job);
}

}  // namespace

std::string status_text(const rdzv::StatusReply& reply) {
    std::string text;
    for (const JobStatus& job : reply.jobs) {
        text += (text.empty() ? "" : "\n") + job_text(job);
    }
    if (reply.jobs_left_out > 0) {
        text += fmt::format("\nand {} more jobs; name one with --rdzv-id\n", reply.jobs_left_out);
    }
    return text;
}

}  // namespace ddprun::launcher
