// Checker follows a run through generations, ranks and verdicts.

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "rendezvous/wire/node_sizes.hpp"
#include "tests/sim/checker.hpp"
#include "tests/sim/message_text.hpp"

namespace ddprun::sim {

namespace {

/// --nnodes MAX, or what an operator wants.
std::size_t most_nodes(const rdzv::Run& run) {
    return static_cast<std::size_t>(run.target_nodes.value_or(run.settings.max_nodes));
}

}  // namespace

void Checker::check_new_generation(const rdzv::Run& run, Instant now) {
    GenerationTruth truth;
    truth.token = run.token;
    truth.generation = run.current.number;
    truth.decided_at = now;
    truth.places = run.current.places;
    int ranks = 0;
    for (const rdzv::Place& place : run.current.places) {
        truth.group_ranks.emplace(place.node, truth.base_ranks.size());
        truth.base_ranks.push_back(ranks);
        truth.partners.push_back(run.current.rows.at(place.node).memory_partner);
        ranks += place.slots;
    }
    truth.ranks.assign(static_cast<std::size_t>(ranks), RankTruth::NotStarted);
    if (truth.group_ranks.size() != run.current.places.size()) {
        violate("S2", "a node has two places in one generation");
    }
    if (run.current.places.size() > static_cast<std::size_t>(run.settings.max_nodes)) {
        violate("S15", fmt::format("{} nodes have places, {} may", run.current.places.size(),
                                   run.settings.max_nodes));
    }
    if (run.current.places.size() < static_cast<std::size_t>(run.settings.min_nodes)) {
        violate("L1", "fewer nodes than the minimum were started");
    }
    const auto previous = truths_.find(before_.digest);
    if (previous != truths_.end() && previous->second.token == run.token) {
        if (run.current.number <= previous->second.generation) {
            violate("S1", fmt::format("generation {} follows {}", run.current.number.value(),
                                      previous->second.generation.value()));
        }
        // A generation adopted instead of an old record may know nothing of the places before.
        if (previous->second.is_whole && before_.phase != kAdopting) {
            check_places(run, previous->second);
        }
    }
    check_orders_are_heeded(run, now);
    check_choice(run, now);
    check_size(run, now);
    check_programs(run);
    check_partners(run, truth);
    check_pace(now);
    truths_[run.current.digest] = std::move(truth);
}

/// Survivors keep their order; with the same slots at every place, a replacement moves no node.
void Checker::check_places(const rdzv::Run& run, const GenerationTruth& old) {
    std::set<NodeId> here;
    for (const rdzv::Place& place : run.current.places) {
        here.insert(place.node);
    }
    std::size_t last = 0;
    for (const rdzv::Place& place : run.current.places) {
        const auto row = old.group_ranks.find(place.node);
        if (row == old.group_ranks.end()) {
            continue;
        }
        if (row->second < last) {
            violate("S14", fmt::format("node {} changed places with another", place.node.value()));
        }
        last = row->second;
    }
    const bool is_same_shape = std::equal(
        run.current.places.begin(), run.current.places.end(), old.places.begin(), old.places.end(),
        [](const rdzv::Place& a, const rdzv::Place& b) { return a.slots == b.slots; });
    for (std::size_t i = 0; is_same_shape && i < run.current.places.size(); ++i) {
        if (here.contains(old.places[i].node) && run.current.places[i].node != old.places[i].node) {
            violate("S14", fmt::format("node {} lost its place", old.places[i].node.value()));
        }
    }
}

/// Checks which nodes got a place, and which did not.
void Checker::check_choice(const rdzv::Run& run, Instant now) {
    const auto is_left_out = [&](const NodeId& id) {
        const auto found = run.quarantined.find(id);
        return found != run.quarantined.end() && found->second.until > now;
    };
    std::size_t ill = 0;
    for (const rdzv::Place& place : run.current.places) {
        ill += is_left_out(place.node) ? 1 : 0;
    }
    // Nodes that waited for a run to which no member came back join the next run one by one. The
    // next run may begin before the last of them joins.
    const bool is_in_turn = before_.parked > 0 && before_.token != run.token;
    const bool has_better =
        !is_in_turn && std::any_of(run.nodes.ready().begin(), run.nodes.ready().end(),
                                   [&](const NodeId& id) { return !is_left_out(id); });
    const bool do_others_suffice =
        run.current.places.size() - ill >= static_cast<std::size_t>(run.settings.min_nodes);
    if (ill > 0 && (has_better || do_others_suffice)) {
        violate("quarantine", "a node in quarantine was taken although others suffice");
    }
    const bool is_full = run.current.places.size() >= most_nodes(run);
    if (has_leases_ && !is_full && !run.nodes.suspects().empty()) {
        violate("S14", fmt::format("node {}, cut off for a moment, was not waited for",
                                   run.nodes.suspects().begin()->value()));
    }
}

bool Checker::is_size(const rdzv::JobSettings& settings, std::size_t nodes) {
    const auto count = static_cast<int>(nodes);
    const bool is_listed = settings.node_sizes.empty() ||
                           std::find(settings.node_sizes.begin(), settings.node_sizes.end(),
                                     count) != settings.node_sizes.end();
    return is_listed && count % settings.node_unit == 0 && count >= settings.min_nodes &&
           count <= settings.max_nodes;
}

bool Checker::is_size_between(const rdzv::JobSettings& settings, std::size_t above,
                              std::size_t most) {
    for (std::size_t nodes = above + 1; nodes <= most; ++nodes) {
        if (is_size(settings, nodes)) {
            return true;
        }
    }
    return false;
}

/// A generation has a size that --nnodes and --node-unit allow, and no larger one would have
/// fitted.
void Checker::check_size(const rdzv::Run& run, Instant now) {
    const std::size_t size = run.current.places.size();
    if (!is_size(run.settings, size)) {
        violate("S15", fmt::format("{} nodes have places, and that is no size of {}", size,
                                   rdzv::nnodes_of(run.settings)));
    }
    const auto is_healthy = [&](const NodeId& id) {
        const auto found = run.quarantined.find(id);
        return found == run.quarantined.end() || found->second.until <= now;
    };
    const std::set<NodeId>& ready = run.nodes.ready();
    const auto spares =
        static_cast<std::size_t>(std::count_if(ready.begin(), ready.end(), is_healthy));
    const bool is_in_turn = before_.parked > 0 && before_.token != run.token;
    if (!is_in_turn &&
        is_size_between(run.settings, size, std::min(size + spares, most_nodes(run)))) {
        violate("S15", fmt::format("{} nodes have places, {} more wait, and a larger size of {} "
                                   "would have fitted",
                                   size, spares, rdzv::nnodes_of(run.settings)));
    }
}

/// With --same strict all run the same program; else people are told that they do not.
void Checker::check_programs(const rdzv::Run& run) {
    std::set<std::string> programs;
    for (const rdzv::Place& place : run.current.places) {
        if (run.nodes.contains(place.node)) {  // else the generation was adopted without it
            programs.insert(run.nodes.at(place.node).info.fingerprint.program);
        }
    }
    programs.erase("");  // of who was restored, or is unknown
    if (programs.size() < 2) {
        return;
    }
    if (run.settings.same == rdzv::Sameness::Strict) {
        violate("S15", "nodes that run different programs have places together");
    } else if (!run.differences_told.contains("program")) {
        violate("S15", "nodes run different programs, and nobody is told");
    }
}

/// Once the burst is used up every restart waits (L6).
void Checker::check_pace(Instant now) {
    const Instant since = forming_since_.value_or(now);
    while (!starts_.empty() && since - starts_.front() > limits_.restart_burst_window) {
        starts_.pop_front();
    }
    const bool is_burst_over = starts_.size() > static_cast<std::size_t>(limits_.restart_burst_max);
    if (is_burst_over && now - since < limits_.restart_backoff) {
        violate("L6", fmt::format("{} starts within a minute, and no pause before the next",
                                  starts_.size()));
    }
    starts_.push_back(now);
}

/// Judges a choice of memory partners by what is wanted of it, not by how it is made. No choice can
/// do with fewer pairs on one rack than the largest rack has nodes beyond those elsewhere.
void Checker::check_partners(const rdzv::Run& run, const GenerationTruth& truth) {
    const std::vector<rdzv::Place>& places = truth.places;
    const bool is_wanted = run.settings.memory_replicas > 0 && places.size() > 1;
    std::set<int> chosen;
    std::map<std::string, int> racks;
    int largest = 0;
    int same_rack = 0;
    for (std::size_t i = 0; i < places.size(); ++i) {
        const std::optional<int> partner = truth.partners[i];
        if (partner.has_value() != is_wanted) {
            violate("partner", fmt::format("node {} has {} memory partner", places[i].node.value(),
                                           is_wanted ? "no" : "an unwanted"));
            return;
        }
        if (!is_wanted) {
            continue;
        }
        if (*partner < 0 || *partner >= static_cast<int>(places.size()) ||
            *partner == static_cast<int>(i) || !chosen.insert(*partner).second) {
            violate("partner", fmt::format("node {} has the memory partner {}: itself, no node, or "
                                           "one that is another's",
                                           places[i].node.value(), *partner));
            return;
        }
        const std::string& rack = places[i].topology_key;
        if (!rack.empty()) {
            largest = std::max(largest, ++racks[rack]);
            same_rack += places[static_cast<std::size_t>(*partner)].topology_key == rack ? 1 : 0;
        }
    }
    if (same_rack > std::max(0, 2 * largest - static_cast<int>(places.size()))) {
        violate("partner", fmt::format("{} of {} nodes have their memory partner on their rack, "
                                       "and another rack has room",
                                       same_rack, places.size()));
    }
}

void Checker::told(const rdzv::Start& start) {
    const auto found = truths_.find(start.digest);
    if (found == truths_.end()) {
        violate("S1", "a generation was told that nobody decided");
        return;
    }
    GenerationTruth& truth = found->second;
    const auto row = static_cast<std::size_t>(start.group_rank);
    const bool is_row = start.generation == truth.generation && start.group_rank >= 0 &&
                        row < truth.places.size() && start.base_rank == truth.base_ranks[row] &&
                        start.world_size == static_cast<int>(truth.ranks.size()) &&
                        start.group_world_size == static_cast<int>(truth.places.size()) &&
                        start.memory_partner == truth.partners[row];
    if (!is_row) {
        violate("S2", fmt::format("row {} of generation {} does not fit the rank map",
                                  start.group_rank, start.generation.value()));
    }
    int& restarts = restarts_told_[truth.token];
    if (start.restart_count < restarts) {
        violate("S9", fmt::format("{} restarts were charged, then only {}", restarts,
                                  start.restart_count));
    }
    restarts = start.restart_count;
    if (!truth.was_told) {
        Generation& newest = newest_told_[truth.token];
        if (truth.generation <= newest) {
            violate("S1", fmt::format("number {} is used again after {}", truth.generation.value(),
                                      newest.value()));
        }
        newest = truth.generation;
        truth.was_told = true;
    }
}

void Checker::check_verdict(const rdzv::Run& run, const rdzv::Verdict& verdict) {
    ++verdicts_;
    last_verdict_ = message_text(rdzv::RendezvousMessage(verdict));
    const auto truth = truths_.find(run.current.digest);
    if (verdict.kind == rdzv::VerdictKind::Succeeded && truth != truths_.end()) {
        for (std::size_t rank = 0; rank < truth->second.ranks.size(); ++rank) {
            if (truth->second.ranks[rank] != RankTruth::ExitedZeroByItself) {
                violate("S17", fmt::format("success, but rank {} of generation {} did not exit 0 "
                                           "by itself",
                                           rank, run.current.number.value()));
            }
        }
    }
    if (verdict.kind == rdzv::VerdictKind::Stopped) {
        if (!has_anybody_left_) {
            violate("S5", "stopped, but nobody left");
        }
        if (!run.nodes.empty()) {
            violate("S5", fmt::format("stopped, but {} nodes are still there", run.nodes.size()));
        }
    }
    if (verdict.kind == rdzv::VerdictKind::Ended && !ended_.contains(run.token)) {
        violate("orders", "ended by an operator, but none wanted that");
    }
    if (verdict.kind != rdzv::VerdictKind::Succeeded && verdict.exit_code == 0) {
        violate("S10", "an end that is no success has exit code 0");
    }
    if (verdict.kind == rdzv::VerdictKind::Failed) {
        check_first_failure(run, verdict);
    }
}

void Checker::check_first_failure(const rdzv::Run& run, const rdzv::Verdict& verdict) {
    if (run.current.number == Generation()) {
        if (verdict.first_failure.has_value()) {
            violate("S10", "a worker failed before the first generation");
        }
        return;  // a prepare command has failed
    }
    const auto found = truths_.find(run.current.digest);
    if (!verdict.first_failure.has_value() || found == truths_.end()) {
        violate("S10", "a failure without its first cause");
        return;
    }
    const GenerationTruth& truth = found->second;
    const auto named = static_cast<std::size_t>(verdict.first_failure->rank.value());
    const bool hung = verdict.first_failure->evidence.hung;
    if (hung && !truth.failed_at.empty()) {
        violate("S10", fmt::format("rank {} hung and is called the first failure, rank {} died",
                                   named, truth.failed_at.begin()->first));
    }
    if (hung && named < truth.ranks.size()) {
        // It may have ended by itself before it was made to.
        check_earliest(truth, truth.hung_since, named);
        return;
    }
    if (named >= truth.ranks.size() || truth.ranks[named] != RankTruth::EndedOtherwise) {
        violate("S10", "the first failure is a rank that did not fail");
        return;
    }
    check_earliest(truth, truth.failed_at, named);
}

void Checker::check_earliest(const GenerationTruth& truth, const std::map<int, Instant>& reports,
                             std::size_t named) {
    const auto named_at = reports.find(static_cast<int>(named));
    for (const auto& [rank, at] : reports) {
        const bool is_sure = at > truth.decided_at && named_at != reports.end();
        if (is_sure && at + Milliseconds(1) < named_at->second) {
            violate("S10", fmt::format("rank {} is called the first failure, rank {} was earlier",
                                       named, rank));
        }
    }
}

void Checker::workers_started(const std::string& digest, Rank base, int count, const NodeId& node) {
    const auto found = truths_.find(digest);
    if (found == truths_.end()) {
        violate("S1", "workers of a generation that nobody started");
        return;
    }
    GenerationTruth& truth = found->second;
    const auto row = truth.group_ranks.find(node);
    if (row == truth.group_ranks.end()) {
        violate("S15", fmt::format("node {} starts workers and has no place", node.value()));
        return;
    }
    if (truth.base_ranks[row->second] != base.value() || truth.places[row->second].slots != count) {
        violate("S2", fmt::format("node {} starts {} ranks from {}, not {} from {}", node.value(),
                                  count, base.value(), truth.places[row->second].slots,
                                  truth.base_ranks[row->second]));
        return;
    }
    for (int i = 0; i < count; ++i) {
        RankTruth& rank = truth.ranks[static_cast<std::size_t>(base.value() + i)];
        if (rank != RankTruth::NotStarted) {
            violate("S3", fmt::format("rank {} of generation {} was started twice",
                                      base.value() + i, truth.generation.value()));
        }
        rank = RankTruth::Lives;
    }
}

void Checker::worker_ended(const std::string& digest, Rank rank, bool is_zero_by_itself) {
    const auto found = truths_.find(digest);
    const auto index = static_cast<std::size_t>(rank.value());
    if (found != truths_.end() && index < found->second.ranks.size()) {
        found->second.ranks[index] =
            is_zero_by_itself ? RankTruth::ExitedZeroByItself : RankTruth::EndedOtherwise;
    }
}

}  // namespace ddprun::sim
