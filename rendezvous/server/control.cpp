#include "rendezvous/server/control.hpp"

#include <chrono>
#include <cstddef>

#include "rendezvous/core/coordinator.hpp"
#include "rendezvous/core/status.hpp"
#include "rendezvous/wire/control.hpp"

namespace ddprun::rdzv {

namespace {

StatusReply status_of_jobs(const JobId& wanted, const Jobs& jobs, Instant now, std::size_t jobs_max,
                           const StatusExtent& extent) {
    StatusReply reply;
    StatusExtent left = extent;
    jobs.visit([&](const JobId& id, const Coordinator& coordinator) {
        if (coordinator.run() == nullptr || (!wanted.value().empty() && id != wanted)) {
            return;
        }
        if (reply.jobs.size() >= jobs_max) {
            ++reply.jobs_left_out;
            return;
        }
        reply.jobs.push_back(status_of(id, *coordinator.run(), now, left));
        left.nodes_max -= reply.jobs.back().nodes.size() + reply.jobs.back().absent.size();
    });
    return reply;
}

}  // namespace

std::string status_body(const JobId& wanted, const Jobs& jobs, const Limits& limits) {
    const Instant now = std::chrono::steady_clock::now();
    StatusExtent extent{.nodes_max = limits.status_nodes_max,
                        .events_max = limits.timeline_events_max};
    std::size_t jobs_max = limits.jobs_max;
    // What does not fit is left out by halves: nodes, then events, then jobs.
    for (;;) {
        std::string body = encode(status_of_jobs(wanted, jobs, now, jobs_max, extent));
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

Result<std::string> answer_control(const RendezvousHandshake& handshake, std::string_view question,
                                   const Jobs& jobs, const Limits& limits) {
    const Result<AskStatus> asked = decode_ask_status(question, limits);
    if (!asked) {
        return asked.error();
    }
    if (!handshake.is_for(asked->job)) {
        return Error{ErrorCode::BadMessage, "it asks about another job than it greeted for"};
    }
    return status_body(asked->job, jobs, limits);
}

}  // namespace ddprun::rdzv
