#include "rendezvous/core/preparing.hpp"

#include <cstdint>
#include <set>
#include <tuple>

#include <fmt/format.h>

#include "base/probe.hpp"
#include "rendezvous/core/closed.hpp"
#include "rendezvous/core/explain.hpp"
#include "rendezvous/core/publish.hpp"
#include "rendezvous/core/step.hpp"

namespace ddprun::rdzv {

namespace {

void make_ready(Step& step, const NodeId& id) {
    step.run.nodes.set_standing(id, Standing::Ready);
    step.run.nodes.at(id).said_waiting.clear();
    explain_soon(step);
}

/// A node that only waited for the job's command is ready. One that runs it has to end it first.
void make_waiting_ready(Step& step) {
    for (const NodeId& id : std::set<NodeId>(step.run.nodes.waiting_for_job())) {
        make_ready(step, id);
    }
}

void finish_for_job(Step& step) {
    DDP_PROBE(job_prepared);
    step.run.preparation = {.by = std::nullopt, .is_done = true};
    publish(step, EventKind::Prepared);
    write_behind(step);
    make_waiting_ready(step);
}

/// By its --node-rank, else who came first.
std::optional<NodeId> next_preparer(const Run& run) {
    std::optional<NodeId> chosen;
    std::tuple<int, std::uint64_t> best;
    for (const NodeId& id : run.nodes.waiting_for_job()) {
        const Node& node = run.nodes.at(id);
        const std::tuple order(node.info.node_rank.value_or(INT32_MAX), node.joined_as);
        if (node.connection() && (!chosen || order < best)) {
            chosen = id;
            best = order;
        }
    }
    return chosen;
}

}  // namespace

bool is_job_prepared(const Run& run) {
    return run.preparation.is_done || run.current.number != Generation();
}

bool has_to_prepare(const Run& run, const Join& info) {
    return is_own_to_end(info) || (info.prepares == Prepares::Job && !is_job_prepared(run));
}

void ask_to_prepare(Step& step, Node& node) {
    Preparation& preparation = step.run.preparation;
    if (node.info.prepares == Prepares::JobHere && !preparation.by && !preparation.is_done) {
        DDP_PROBE(preparing_goes_on);
        preparation.by = node.info.node;
    }
    if (preparation.by == node.info.node) {
        step.run.nodes.set_prepares(node.info.node, Prepares::JobHere);
    } else if (node.info.prepares != Prepares::Node) {
        return;
    }
    send(step, node, Prepare{});
}

void prepared(Step& step, Node& node, const Stopped& message) {
    if (message.generation != Generation() || !is_own_to_end(node.info)) {
        return;
    }
    node.info.store = message.store;
    trace(step, fmt::format("node {} has prepared", node.info.hostname));
    make_ready(step, NodeId(node.info.node));
    if (node.info.prepares == Prepares::JobHere) {
        finish_for_job(step);
    } else {
        DDP_PROBE(node_prepared);
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
    if (is_job_prepared(run)) {
        make_waiting_ready(step);
        return;
    }
    if (by || is_closed(run)) {
        return;
    }
    by = next_preparer(run);
    if (by) {
        trace(step, fmt::format("node {} prepares for the job", run.nodes.at(*by).info.hostname));
        ask_to_prepare(step, run.nodes.at(*by));
        explain_soon(step);
    }
}

bool is_preparing(const Run& run) {
    return !run.nodes.preparing().empty();
}

}  // namespace ddprun::rdzv
