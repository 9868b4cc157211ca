#include "rendezvous/core/running.hpp"

#include <algorithm>
#include <chrono>

#include <fmt/format.h>

#include "base/planted_bug.hpp"
#include "base/probe.hpp"
#include "rendezvous/core/closed.hpp"
#include "rendezvous/core/explain.hpp"
#include "rendezvous/core/first_failure.hpp"
#include "rendezvous/core/publish.hpp"
#include "rendezvous/core/quarantine.hpp"
#include "rendezvous/core/step.hpp"
#include "rendezvous/core/stopping.hpp"

namespace ddprun::rdzv {

namespace {

/// A node whose workers wait for those of another one, which work, does not hang.
bool is_all_quiet(const Running& running) {
    const std::size_t wanted = DDP_RULE(running.unfinished.size(), HangOfOneNode, 1);
    return running.quiet.size() >= wanted;
}

/// A node that waited for a rank that has just finished may need a moment: all get a new timeout.
Instant hang_time(const Run& run, const Running& running, Instant now) {
    Instant at = now;
    if (!running.finished_at) {
        return at;
    }
    for (const NodeId& id : running.quiet) {
        const Duration patience = run.settings.learns_hang_timeout
                                      ? run.nodes.at(id).quiet_for
                                      : Duration(run.settings.hang_timeout);
        at = std::max(at, *running.finished_at + patience);
    }
    return at;
}

}  // namespace

void rank_finished(Step& step, Running& running, const Node& node, bool is_news) {
    const NodeId& id = node.info.node;
    running.has_finished_rank = true;
    if (is_news) {
        running.finished_at = step.now;
        running.hangs_at.reset();
    }
    const bool is_whole = node.finished.size() == static_cast<std::size_t>(node.info.slots);
    if (is_whole && running.unfinished.erase(id) > 0) {
        write_behind(step);
        forget_quiet(step.run, id);
        if (DDP_RULE(running.unfinished.empty(), SuccessOnFirstExit, true)) {
            close_succeeded(step);
        }
    }
}

void rank_failed(Step& step, const Running& /*running*/, Node& node, const WorkerFailed& message) {
    const Rank rank = step.run.current.rank_of(node.info.node, message.local_rank);
    const std::string why =
        fmt::format("rank {} on {} {}", rank.value(), node.info.hostname,
                    describe_end(trimmed(message.evidence, step.options.limits)));
    note(step, why);
    rank_failed(step, enter_stopping(step, StopCause::Failure, 15, why), node, message);
}

void member_emptied(Step& step, const Running& running, Node& node, const Stopped& message) {
    const NodeId& id = node.info.node;
    if (!running.unfinished.contains(id) && !step.run.current.takes_store_along(id)) {
        DDP_PROBE(finished_node_let_go_by_former_daemon);
        // All its ranks had exited 0, and a daemon before this one let it go.
        node.info.store = message.store;
        step.run.nodes.set_standing(id, Standing::Ready);
        return;
    }
    DDP_PROBE(stopped_by_former_daemon);
    // A daemon before this one had told it to. Why, those who failed say again.
    Stopping& stopping =
        enter_stopping(step, StopCause::Failure, 15,
                       fmt::format("node {} had ended its workers", node.info.hostname));
    member_emptied(step, stopping, node, message);
}

void member_lost(Step& step, const Running& running, const Node& node, Instant died_at,
                 const std::string& how) {
    const NodeId& id = node.info.node;
    const bool is_missed =
        DDP_RULE(running.unfinished.contains(id) || step.run.current.takes_store_along(id),
                 FinishedNodeMissed, true);
    if (!is_missed) {
        DDP_PROBE(finished_node_lost);
        write_behind(step);
        return;  // all its ranks exited 0: nothing is missed
    }
    Stopping& stopping = enter_stopping(step, StopCause::Failure, 15,
                                        fmt::format("node {} {}", node.info.hostname, how));
    member_lost(step, stopping, node, died_at, how);
}

void drain_for_leaver(Step& step, const Running& /*running*/, const Node& node,
                      const Leave& message) {
    enter_stopping(step, StopCause::Leave, message.signal,
                   fmt::format("node {} was told to leave", node.info.hostname), message.within);
}

void hear_quiet(Step& step, Running& running, Node& node, const Quiet& message) {
    const NodeId& id = node.info.node;
    forget_quiet(step.run, id);
    if (message.quiet_for > Milliseconds::zero() && running.unfinished.contains(id)) {
        const Duration longest = std::max(step.now - step.run.current.started_at, Duration::zero());
        node.quiet_for = std::min(Duration(message.quiet_for), longest);
        node.quiet_since = step.now - node.quiet_for;
        running.quiet.insert(id);
        trace(step, fmt::format("no sign of life of the workers on {} for {} ms",
                                node.info.hostname, message.quiet_for.count()));
        publish(step, EventKind::Quiet, node.info,
                {{"quiet_ms", std::int64_t{message.quiet_for.count()}}});
    }
}

void forget_quiet(Run& run, const NodeId& id) {
    if (Running* running = std::get_if<Running>(&run.phase)) {
        running->quiet.erase(id);
        running->hangs_at.reset();
    }
}

void stop_if_hung(Step& step, Running& running) {
    const Run& run = step.run;
    if (!is_all_quiet(running)) {
        return;
    }
    if (!running.hangs_at) {
        running.hangs_at = hang_time(run, running, step.now);
    }
    if (*running.hangs_at > step.now) {
        return;
    }
    Instant since = running.finished_at.value_or(Instant{});
    for (const NodeId& id : running.quiet) {
        since = std::max(since, run.nodes.at(id).quiet_since);
    }
    const auto silence = std::chrono::duration_cast<std::chrono::seconds>(step.now - since);
    const std::string why =
        fmt::format("generation {} hung: no sign of life of any worker for {} s",
                    run.current.number.value(), silence.count());
    note(step, why);
    enter_stopping(step, StopCause::Hang, 15, why);
}

void hear_hang(Step& step, Running& running, const Node& node, const HangSeen& seen) {
    HangSeen believed = seen;
    if (believed.rank && believed.rank->value() >= step.run.current.worker_count()) {
        believed.rank.reset();
    }
    running.signs.add(step.now, node.info.node, step.run.current.places.size(), believed);
}

void tell_hang(Step& step, Running& running) {
    if (const std::optional<HangSeen> seen = running.signs.take_due(step.now)) {
        trace(step, seen->text);
        publish_hang(step, *seen);
    }
}

std::optional<Instant> grow_time(const Run& run, const Running& running, Instant now) {
    const std::set<NodeId>& ready = run.nodes.ready();
    const std::optional<std::size_t> wanted = larger_size(run, run.current.places.size());
    if (!run.settings.grow || running.has_finished_rank || !wanted) {
        return std::nullopt;
    }
    const std::size_t more = DDP_RULE(*wanted - run.current.places.size(), GrowthWithoutSize, 1);
    if (ready.size() < more) {
        return std::nullopt;
    }
    Instant earliest = running.since + run.settings.grow_delay;
    if (is_held(run, now)) {
        earliest = std::max(earliest, run.hold->until);  // they would only wait
    }
    if (run.quarantined.healthy_count(ready, now) >= more) {
        return earliest;
    }
    const std::optional<Instant> cured = run.quarantined.next_end(run.nodes.ready(), now);
    return cured ? std::max(earliest, *cured) : earliest;
}

void grow_if_wanted(Step& step, const Running& running) {
    const std::optional<Instant> at = grow_time(step.run, running, step.now);
    if (at && *at <= step.now) {
        const std::string why = fmt::format("{} joined", names_here(step.run));
        DDP_PROBE(grown);
        enter_stopping(step, StopCause::Grow, 15, why);
    }
}

std::optional<Instant> deadline_of(const Run& run, const Running& running, Instant now) {
    std::optional<Instant> first = grow_time(run, running, now);
    for (const std::optional<Instant>& deadline : {running.hangs_at, running.signs.due()}) {
        if (deadline && (!first || *deadline < *first)) {
            first = deadline;
        }
    }
    return first;
}

}  // namespace ddprun::rdzv
