#include "rendezvous/server/control.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/os/unix_time.hpp"
#include "rendezvous/core/coordinator.hpp"
#include "rendezvous/core/status.hpp"
#include "rendezvous/wire/codec.hpp"
#include "rendezvous/wire/control.hpp"

namespace ddprun::rdzv {

namespace {

/// Adds the known pace of the job's ranks, in short.
void add_pace(JobStatus& job, const RankBoard& board) {
    for (NodeStatus& node : job.nodes) {
        const NodeTold* told = board.told(node.node);
        if (told == nullptr) {
            continue;
        }
        node.step = told->step;
        node.step_ns = told->step_ns;
        node.log_lost = told->log_lost;
        if (told->memory) {
            node.memory_bytes = told->memory->bytes;
            node.memory_limit_bytes = told->memory->limit_bytes;
            node.memory_pressure_permille = told->memory->pressure_permille;
        }
    }
    const std::optional<Stall>& stall = board.stall();
    if (stall && job.phase == JobPhase::Running) {
        job.stall = StallStatus{.age = stall->age,
                                .rank = stall->culprit.rank,
                                .hostname = stall->culprit.host,
                                .text = stall->text};
    }
    if (const std::optional<NamedSlowest>& named = board.slowest()) {
        constexpr double kPermille = 1000;
        job.slow =
            SlowestStatus{.rank = named->slowest.rank,
                          .node = named->where.node,
                          .hostname = named->where.hostname,
                          .cost_permille = static_cast<int>(named->slowest.cost_share * kPermille)};
    }
}

StatusReply status_of_jobs(const JobId& wanted, const Jobs& jobs, const ProgressWatch& progress,
                           Instant now, std::size_t jobs_max, const StatusExtent& extent) {
    StatusReply reply;
    StatusExtent left = extent;
    jobs.host().visit([&](const JobId& id, const Coordinator& coordinator) {
        if (coordinator.run() == nullptr || (!wanted.value().empty() && id != wanted)) {
            return;
        }
        if (reply.jobs.size() >= jobs_max) {
            ++reply.jobs_left_out;
            return;
        }
        reply.jobs.push_back(status_of(id, *coordinator.run(), now, left));
        const EventLog& log = *jobs.events(id);
        reply.jobs.back().time_text = shares_text(log.time_use().shares(now));
        reply.jobs.back().checkpoint_text = saves_text(log.saves(), now);
        if (const RankBoard* board = progress.board(id)) {
            add_pace(reply.jobs.back(), *board);
        }
        left.nodes_max -= reply.jobs.back().nodes.size() + reply.jobs.back().absent.size();
    });
    return reply;
}

}  // namespace

std::string status_body(const JobId& wanted, const Jobs& jobs, const ProgressWatch& progress,
                        const Limits& limits) {
    const Instant now = std::chrono::steady_clock::now();
    StatusExtent extent{.nodes_max = limits.status_nodes_max,
                        .events_max = limits.timeline_events_max};
    std::size_t jobs_max = limits.jobs_max;
    // If the body is too large, it halves first the nodes, then the events, then the jobs.
    for (;;) {
        std::string body = encode(status_of_jobs(wanted, jobs, progress, now, jobs_max, extent));
        if (body.size() <= limits.frame_bytes_max) {
            return body;
        }
        if (extent.nodes_max > 0) {
            extent.nodes_max /= 2;
        } else if (extent.events_max > 0) {
            extent.events_max /= 2;
        } else {
            jobs_max /= 2;
        }
    }
}

namespace {

/// One job in the form that HTTP reports.
struct WholeJob {
    JobStatus status;
    std::optional<RanksTold> ranks;
    nlohmann::ordered_json time;
    nlohmann::ordered_json saves;  ///< null: there was none
};

void add_text(std::string& text, const WholeJob& job, std::size_t& ranks_left) {
    using Json = nlohmann::ordered_json;
    text += encode(job.status);
    text.pop_back();
    if (job.ranks) {
        text += ",\"ranks\":" + job.ranks->ranks_json(ranks_left);
        ranks_left -= std::min(ranks_left, job.ranks->rank_count());
        if (const std::string slowest = job.ranks->slowest_json(); !slowest.empty()) {
            text += ",\"slowest\":" + slowest;
        }
    }
    if (!job.saves.is_null()) {
        text += ",\"checkpoint\":" + job.saves.dump(-1, ' ', false, Json::error_handler_t::replace);
    }
    text += ",\"time\":" + job.time.dump(-1, ' ', false, Json::error_handler_t::replace) + "}";
}

}  // namespace

std::function<std::string()> status_text(const JobId& wanted, const Jobs& jobs,
                                         const ProgressWatch& progress, const Limits& limits) {
    const Instant now = std::chrono::steady_clock::now();
    const StatusExtent extent{.nodes_max = limits.status_nodes_max,
                              .events_max = limits.timeline_events_max};
    StatusReply reply = status_of_jobs(wanted, jobs, progress, now, limits.jobs_max, extent);
    std::vector<WholeJob> whole;
    for (JobStatus& status : reply.jobs) {
        const RankBoard* board = progress.board(status.job);
        const EventLog& log = *jobs.events(status.job);
        whole.push_back({.status = std::move(status),
                         .ranks = board ? std::optional(board->told()) : std::nullopt,
                         .time = time_use_json(log.time_use(), now, unix_now()),
                         .saves = log.saves().has_any() ? saves_json(log.saves(), now, unix_now())
                                                        : nlohmann::ordered_json()});
    }
    return [whole = std::move(whole), left_out = reply.jobs_left_out] {
        std::string text = "{\"jobs\":[";
        std::size_t ranks_left = WatchLimits().status_ranks_max;
        for (const WholeJob& job : whole) {
            text += text.back() == '[' ? "" : ",";
            add_text(text, job, ranks_left);
        }
        text += fmt::format("],\"jobs_left_out\":{},\"type\":\"status\"}}\n", left_out);
        return text;
    };
}

Result<JobId> asked_job(const RendezvousHandshake& handshake, std::string_view question,
                        const Limits& limits) {
    const Result<AskStatus> asked = decode<AskStatus>(question, limits);
    if (!asked) {
        return asked.error();
    }
    if (!handshake.is_for(asked->job)) {
        return Error{ErrorCode::BadMessage, "it asks about another job than it greeted for"};
    }
    return asked->job;
}

}  // namespace ddprun::rdzv
