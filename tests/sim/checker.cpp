#include "tests/sim/checker.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "tests/sim/machine.hpp"
#include "tests/sim/message_text.hpp"

namespace ddprun::sim {

namespace {

/// A node without workers says what it waits for, but for the time that messages travel.
constexpr Milliseconds kSilenceMax{10000};

}  // namespace

void Checker::violate(const std::string& property, const std::string& what) {
    if (!violation_.has_value()) {
        violation_ = fmt::format("{}: {}", property, what);
    }
}

Checker::Snapshot Checker::snapshot_of(const rdzv::Run* run) {
    Snapshot snapshot;
    if (run == nullptr) {
        return snapshot;
    }
    snapshot.token = run->token;
    snapshot.phase = run->phase.index() + 1;
    snapshot.generation = run->generation;
    snapshot.restarts = run->restarts_used;
    snapshot.losses = run->node_losses_used;
    if (const rdzv::Stopping* stopping = std::get_if<rdzv::Stopping>(&run->phase)) {
        snapshot.failures = stopping->failures.size();
        snapshot.cause = stopping->cause;
    }
    for (const auto& [id, node] : run->nodes) {
        snapshot.finished += node.finished.size();
    }
    return snapshot;
}

void Checker::before_step(const rdzv::Coordinator& coordinator, const rdzv::Input& input) {
    before_ = snapshot_of(coordinator.run());
    is_stale_ = false;
    const rdzv::Received* received = std::get_if<rdzv::Received>(&input);
    if (received == nullptr || coordinator.run() == nullptr) {
        return;
    }
    const bool is_report = std::holds_alternative<rdzv::WorkerFinished>(received->message) ||
                           std::holds_alternative<rdzv::WorkerFailed>(received->message);
    is_stale_ = is_report && generation_of(received->message) < coordinator.run()->generation;
}

void Checker::after_step(const rdzv::Coordinator& coordinator, const rdzv::Effects& effects) {
    const rdzv::Run* run = coordinator.run();
    if (run == nullptr) {
        return;
    }
    const Snapshot after = snapshot_of(run);
    if (is_stale_ && after != before_) {
        violate("S4", "a report of an older generation changed the run");
    }
    if (after.token == before_.token) {
        if (after.generation < before_.generation) {
            violate("S1", "the generation went back");
        }
        check_charges(*run, after);
    }
    if (run->timeline.size() > limits_.timeline_events_max + 1 ||
        after.failures > limits_.failures_kept_max || run->nodes.size() > limits_.nodes_max) {
        violate("S11", "a list of the run is longer than its limit");
    }
    if (!run->digest.empty() && run->digest != newest_digest_) {
        check_new_generation(*run);
    }
    for (const rdzv::Effect& effect : effects) {
        const rdzv::Send* send = std::get_if<rdzv::Send>(&effect);
        if (send == nullptr) {
            continue;
        }
        if (const rdzv::Start* start = std::get_if<rdzv::Start>(&send->message)) {
            check_start(*run, *start);
        }
    }
    const rdzv::Closed* closed = std::get_if<rdzv::Closed>(&run->phase);
    const bool was_closed = before_.token == after.token && before_.phase == after.phase;
    if (closed != nullptr && !was_closed) {
        check_verdict(*run, closed->verdict);
    }
}

void Checker::forget_run() {
    newest_digest_.clear();
}

void Checker::check_new_generation(const rdzv::Run& run) {
    if (truths_.contains(run.digest)) {
        violate("S1", "a digest was used twice");
    }
    const auto previous = truths_.find(newest_digest_);
    if (previous != truths_.end() && previous->second.token == run.token) {
        const GenerationTruth& old = previous->second;
        if (run.generation.value() != old.generation.value() + 1) {
            violate("S1", fmt::format("generation {} follows {}", run.generation.value(),
                                      old.generation.value()));
        }
        // With the same slots at every place, a replacement moves nobody else.
        const bool is_same_shape = std::equal(
            run.places.begin(), run.places.end(), old.places.begin(), old.places.end(),
            [](const rdzv::Place& a, const rdzv::Place& b) { return a.slots == b.slots; });
        for (std::size_t i = 0; is_same_shape && i < run.places.size(); ++i) {
            const bool is_elsewhere = std::any_of(
                run.places.begin(), run.places.end(),
                [&](const rdzv::Place& place) { return place.node == old.places[i].node; });
            if (is_elsewhere && run.places[i].node != old.places[i].node) {
                violate("S14", fmt::format("node {} lost its place", old.places[i].node.value()));
            }
        }
    }
    GenerationTruth truth{
        .token = run.token, .generation = run.generation, .places = run.places, .ranks = {}};
    int rank = 0;
    for (const rdzv::Place& place : run.places) {
        for (int i = 0; i < place.slots; ++i) {
            truth.ranks[rank++] = RankTruth::NotStarted;
        }
    }
    truths_[run.digest] = std::move(truth);
    newest_digest_ = run.digest;
}

void Checker::check_start(const rdzv::Run& run, const rdzv::Start& start) {
    int base = 0;
    int world = 0;
    for (std::size_t i = 0; i < run.places.size(); ++i) {
        base += static_cast<int>(i) < start.group_rank ? run.places[i].slots : 0;
        world += run.places[i].slots;
    }
    const bool is_row = start.generation == run.generation && start.digest == run.digest &&
                        start.base_rank == base && start.world_size == world &&
                        start.group_world_size == static_cast<int>(run.places.size()) &&
                        start.restart_count == run.restarts_used;
    if (!is_row) {
        violate("S2", fmt::format("row {} of generation {} does not fit the rank map",
                                  start.group_rank, start.generation.value()));
    }
}

void Checker::check_charges(const rdzv::Run& run, const Snapshot& after) {
    const int restarts = after.restarts - before_.restarts;
    const int losses = after.losses - before_.losses;
    if (restarts < 0 || losses < 0 || restarts > 1) {
        violate("S9", fmt::format("one step charged {} restarts and {} losses", restarts, losses));
    }
    if (after.restarts > run.settings.max_restarts ||
        (run.settings.max_node_losses >= 0 && after.losses > run.settings.max_node_losses)) {
        violate("S9", "a budget is overdrawn");
    }
    const bool goes_on = after.generation == before_.generation && after.phase == before_.phase;
    if ((restarts > 0 || losses > 0) && goes_on) {
        violate("S9", "a charge without the end of a generation");
    }
}

void Checker::check_verdict(const rdzv::Run& run, const rdzv::Verdict& verdict) {
    last_verdict_ = message_text(rdzv::RendezvousMessage(verdict));
    if (verdict.kind == rdzv::VerdictKind::Succeeded) {
        for (const auto& [rank, truth] : truths_.at(run.digest).ranks) {
            if (truth != RankTruth::ExitedZeroByItself) {
                violate("S17", fmt::format("success, but rank {} of generation {} did not exit 0 "
                                           "by itself",
                                           rank, run.generation.value()));
            }
        }
    }
    if (verdict.kind == rdzv::VerdictKind::Stopped && !is_anybody_signalled_) {
        violate("S5", "stopped, but nobody was told to leave");
    }
    if (verdict.kind != rdzv::VerdictKind::Failed) {
        return;
    }
    if (!verdict.first_failure.has_value() || verdict.exit_code == 0) {
        violate("S10", "a failure without its first cause or with exit code 0");
        return;
    }
    const std::map<int, RankTruth>& ranks = truths_.at(run.digest).ranks;
    const auto first = ranks.find(verdict.first_failure->rank.value());
    if (first == ranks.end() || first->second != RankTruth::EndedOtherwise) {
        violate("S10", "the first failure is a rank that did not fail");
    }
}

void Checker::agent_stepped(const Machine& machine, Instant now) {
    const agent::Supervisor& supervisor = *machine.supervisor;
    if (!supervisor.held_generation().has_value() && !machine.workers.empty()) {
        violate("S3",
                fmt::format("{} believes to be empty and has workers of generation {}",
                            machine.node.value(), machine.workers.front().generation.value()));
    }
    const bool is_explained =
        supervisor.held_generation().has_value() || !supervisor.explain().empty();
    if (is_explained) {
        silent_since_.erase(machine.node);
        return;
    }
    const Instant since = silent_since_.try_emplace(machine.node, now).first->second;
    if (now - since > kSilenceMax) {
        violate("L3", fmt::format("{} waits and nobody says for what", machine.node.value()));
    }
}

void Checker::agent_ended(const Machine& machine) {
    silent_since_.erase(machine.node);
}

void Checker::workers_started(const std::string& digest, Rank base, int count, const NodeId& node) {
    const auto found = truths_.find(digest);
    if (found == truths_.end()) {
        violate("S1", "workers of a generation that nobody started");
        return;
    }
    int expected = 0;
    for (const rdzv::Place& place : found->second.places) {
        if (place.node == node) {
            break;
        }
        expected += place.slots;
    }
    if (expected != base.value()) {
        violate("S2", fmt::format("node {} starts ranks from {}, not {}", node.value(),
                                  base.value(), expected));
    }
    for (int i = 0; i < count; ++i) {
        RankTruth& truth = found->second.ranks[base.value() + i];
        if (truth != RankTruth::NotStarted) {
            violate("S3", fmt::format("rank {} of generation {} was started twice",
                                      base.value() + i, found->second.generation.value()));
        }
        truth = RankTruth::Lives;
    }
}

void Checker::worker_ended(const std::string& digest, Rank rank, bool is_zero_by_itself) {
    const auto found = truths_.find(digest);
    if (found != truths_.end()) {
        found->second.ranks[rank.value()] =
            is_zero_by_itself ? RankTruth::ExitedZeroByItself : RankTruth::EndedOtherwise;
    }
}

}  // namespace ddprun::sim
