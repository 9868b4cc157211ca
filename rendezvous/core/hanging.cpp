// A generation none of whose workers shows a sign of life.
#include <algorithm>
#include <chrono>

#include <fmt/format.h>

#include "base/planted_bug.hpp"
#include "rendezvous/core/step.hpp"

namespace ddprun::rdzv {

namespace {

/// A node whose workers wait for those of another one, which work, does not hang.
bool is_all_quiet(const Running& running) {
    const std::size_t wanted = DDP_BUG(HangOfOneNode) ? 1 : running.unfinished.size();
    return running.quiet.size() >= wanted;
}

/// Who waited for a rank that has finished since may need a moment: each node has its time again.
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

void quiet(Step& step, ConnectionId connection, const Quiet& message) {
    Node* node = current_member(step, connection, message.generation);
    Running* running = std::get_if<Running>(&step.run.phase);
    if (node == nullptr || running == nullptr) {
        return;
    }
    const NodeId id = step.run.by_connection.at(connection);
    forget_quiet(step.run, id);
    if (message.quiet_for > Milliseconds::zero() && running->unfinished.contains(id)) {
        const Duration longest = std::max(step.now - step.run.started_at, Duration::zero());
        node->quiet_for = std::min(Duration(message.quiet_for), longest);
        node->quiet_since = step.now - node->quiet_for;
        running->quiet.insert(id);
        trace(step, fmt::format("no sign of life of the workers on {} for {} ms",
                                node->info.hostname, message.quiet_for.count()));
    }
}

void forget_quiet(Run& run, const NodeId& id) {
    if (Running* running = std::get_if<Running>(&run.phase)) {
        running->quiet.erase(id);
        running->hangs_at.reset();
    }
}

void judge_hang(Step& step) {
    Run& run = step.run;
    Running* running = std::get_if<Running>(&run.phase);
    if (running == nullptr || !is_all_quiet(*running)) {
        return;
    }
    if (!running->hangs_at) {
        running->hangs_at = hang_time(run, *running, step.now);
    }
    if (*running->hangs_at > step.now) {
        return;
    }
    Instant since = running->finished_at.value_or(Instant{});
    for (const NodeId& id : running->quiet) {
        since = std::max(since, run.nodes.at(id).quiet_since);
    }
    const auto silence = std::chrono::duration_cast<std::chrono::seconds>(step.now - since);
    const std::string why =
        fmt::format("generation {} hung: no sign of life of any worker for {} s",
                    run.generation.value(), silence.count());
    note(step, why);
    begin_stopping(step, StopCause::Hang, 15, why);
}

}  // namespace ddprun::rdzv
