#include "rendezvous/core/preparing.hpp"

#include <cstdint>
#include <set>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "base/probe.hpp"
#include "rendezvous/core/closed.hpp"
#include "rendezvous/core/step.hpp"

namespace ddprun::rdzv {

namespace {

void make_ready(Step& step, const NodeId& id) {
    step.run.nodes.set_standing(id, Standing::Ready);
    step.run.nodes.at(id).said_waiting.clear();
    step.run.explain_at = step.now;
}

void finish_for_job(Step& step) {
    DDP_PROBE(job_prepared);
    Run& run = step.run;
    const std::optional<NodeId> by = std::exchange(run.preparation.by, std::nullopt);
    run.preparation.is_done = true;
    for (const NodeId& id : std::set<NodeId>(run.nodes.preparing())) {
        if (id == by || run.nodes.at(id).info.prepares == Prepares::Job) {
            make_ready(step, id);
        }
    }
}

/// By its --node-rank, else who came first.
std::optional<NodeId> next_preparer(const Run& run) {
    std::optional<NodeId> chosen;
    std::tuple<int, std::uint64_t> best;
    for (const NodeId& id : run.nodes.preparing()) {
        const Node& node = run.nodes.at(id);
        const std::tuple order(node.info.node_rank.value_or(INT32_MAX), node.joined_as);
        if (node.info.prepares == Prepares::Job && node.connection() && (!chosen || order < best)) {
            chosen = id;
            best = order;
        }
    }
    return chosen;
}

}  // namespace

bool has_to_prepare(const Run& run, const Join& info) {
    // The workers of an earlier generation could not have started without it.
    const bool is_job_prepared = run.preparation.is_done || run.current.number != Generation();
    return is_own_to_end(info) || (info.prepares == Prepares::Job && !is_job_prepared);
}

void ask_to_prepare(Step& step, const Node& node) {
    Preparation& preparation = step.run.preparation;
    if (node.info.prepares == Prepares::JobHere && !preparation.by && !preparation.is_done) {
        DDP_PROBE(preparing_goes_on);
        preparation.by = node.info.node;
    }
    if (node.info.prepares == Prepares::Node || preparation.by == node.info.node) {
        send(step, node, Prepare{});
    }
}

void prepared(Step& step, Node& node, const Stopped& message) {
    const NodeId id = node.info.node;
    const bool is_for_job = step.run.preparation.by == id;
    if (message.generation != Generation() || !(is_for_job || is_own_to_end(node.info))) {
        return;
    }
    node.info.store = message.store;
    trace(step, fmt::format("node {} has prepared", node.info.hostname));
    if (is_for_job) {
        finish_for_job(step);
    } else {
        DDP_PROBE(node_prepared);
        make_ready(step, id);
    }
}

void joined_prepared(Step& step, const Node& node) {
    if (node.info.prepares == Prepares::Nobody && step.run.preparation.by == node.info.node) {
        finish_for_job(step);
    }
}

void preparing_failed(Step& step, const Node& node, const Goodbye& message) {
    const std::string text =
        fmt::format("the prepare command on {} {}", node.info.hostname, message.unprepared);
    if (step.run.current.number != Generation()) {
        DDP_PROBE(newcomer_unprepared);
        note(step, text);
        return;
    }
    DDP_PROBE(job_unprepared);
    close_unprepared(step, text, message.exit_code);
}

void choose_preparer(Step& step) {
    Run& run = step.run;
    std::optional<NodeId>& by = run.preparation.by;
    if (by && !run.nodes.preparing().contains(*by)) {
        by.reset();
    }
    if (by || run.preparation.is_done || is_closed(run)) {
        return;
    }
    by = next_preparer(run);
    if (by) {
        trace(step, fmt::format("node {} prepares for the job", run.nodes.at(*by).info.hostname));
        ask_to_prepare(step, run.nodes.at(*by));
        run.explain_at = step.now;
    }
}

bool is_preparing(const Run& run) {
    return !run.nodes.preparing().empty();
}

}  // namespace ddprun::rdzv
