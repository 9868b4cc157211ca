#include "rendezvous/core/forming.hpp"

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "base/check.hpp"
#include "base/planted_bug.hpp"
#include "base/probe.hpp"
#include "rendezvous/core/closed.hpp"
#include "rendezvous/core/explain.hpp"
#include "rendezvous/core/preparing.hpp"
#include "rendezvous/core/publish.hpp"
#include "rendezvous/core/quarantine.hpp"
#include "rendezvous/core/rank_map.hpp"
#include "rendezvous/core/step.hpp"
#include "rendezvous/wire/node_sizes.hpp"

namespace ddprun::rdzv {

namespace {

/// The ready nodes that get a place, as many as the largest size has room for: previous members
/// first, then those with as many slots as a lost one had, near it or anywhere, then explicit
/// ranks, then in the order of joining. Nodes in quarantine come after all others.
std::vector<Candidate> choose(const Run& run, Instant now) {
    struct Ranked {
        bool is_left_out;
        int preference;
        int node_rank;
        std::uint64_t joined_as;
        const Node* node;
        NodeId id;
    };
    std::set<NodeId> previous;
    std::set<int> holes;  // their sizes
    std::set<std::pair<int, std::string>> near_holes;
    for (const Place& place : run.current.places) {
        previous.insert(place.node);
        if (!run.nodes.ready().contains(place.node)) {
            holes.insert(place.slots);
            near_holes.emplace(place.slots, place.topology_key);
        }
    }
    std::vector<Ranked> ranked;
    for (const NodeId& id : run.nodes.ready()) {
        const Node& node = run.nodes.at(id);
        int preference = 3;
        if (previous.contains(id)) {
            preference = 0;
        } else if (near_holes.contains({node.info.slots, node.info.topology_key})) {
            preference = 1;
        } else if (holes.contains(node.info.slots)) {
            preference = 2;
        }
        ranked.push_back(Ranked{run.quarantined.is_left_out(id, now), preference,
                                node.info.node_rank.value_or(INT32_MAX), node.joined_as, &node,
                                id});
    }
    std::sort(ranked.begin(), ranked.end(), [](const Ranked& left, const Ranked& right) {
        return std::tie(left.is_left_out, left.preference, left.node_rank, left.joined_as) <
               std::tie(right.is_left_out, right.preference, right.node_rank, right.joined_as);
    });
    const std::size_t usable = usable_count(run, now);
    const std::size_t most = std::min(usable, maximum(run));
    const std::size_t fitting =
        largest_size(run.settings, DDP_RULE(most, LargerSizeMissed, minimum(run)));
    const std::size_t size = DDP_RULE(fitting, SizesIgnored, most);
    ranked.resize(DDP_RULE(size, SpareStarted, std::min(usable, size + 1)));
    std::vector<Candidate> chosen;
    for (const Ranked& one : ranked) {
        chosen.push_back({place_of(one.node->info), one.node->info.node_rank});
    }
    return chosen;
}

void send_rows(Step& step, const std::string& why) {
    for (const Place& place : step.run.current.places) {
        Start row = step.run.current.rows.at(place.node);
        row.why = why;
        send(step, step.run.nodes.at(place.node), std::move(row));
    }
}

void start_generation(Step& step, const std::string& why) {
    Run& run = step.run;
    const bool is_first = run.current.places.empty();
    run.current.begin(step.now, order_places(run.current.places, choose(run, step.now)), run.token,
                      step.rng.next());
    Running running{.since = step.now};
    for (const Place& place : run.current.places) {
        Node& node = run.nodes.at(place.node);
        DDP_CHECK(node.standing() == Standing::Ready, place.node.value());
        run.nodes.set_standing(place.node, Standing::Member);
        node.finished.clear();
        node.failed.clear();
        node.said_waiting.clear();
        running.unfinished.insert(place.node);
    }
    run.current.open_store(run.nodes, run.settings, step.options.limits);
    run.current.write_rows(run.settings, run.budgets);
    run.pace.started(step.now);
    become(run, std::move(running));
    run.turned_away.clear();
    run.strangers.clear();
    run.lost.clear();
    const bool is_anybody_left_out = !run.nodes.ready().empty() || !run.nodes.preparing().empty();
    run.explain_at = is_anybody_left_out ? std::optional<Instant>(step.now) : std::nullopt;
    await_record(step);
    const int workers = run.current.worker_count();
    note(step,
         fmt::format("generation {} started: {}, {} worker{}", run.current.number.value(),
                     node_count(run.current.places.size()), workers, workers == 1 ? "" : "s"));
    publish_formed(step, why);
    send_rows(step, why);
    tell_differences(step);
    if (is_first) {
        if (const std::string unfit = names_unfit(run, step.now); !unfit.empty()) {
            tell_head(step, unfit);
        }
    }
}

/// When the next generation may start, if no other node comes or goes; none: not as things are.
std::optional<Instant> start_time(const Run& run, const Forming& forming, Instant now) {
    std::optional<Instant> at;
    const std::size_t usable = usable_count(run, now);
    if (usable >= maximum(run)) {
        at = forming.since;
    } else if (run.current.places.empty() && is_preparing(run)) {
        return std::nullopt;
    } else if (usable >= minimum(run) &&
               DDP_RULE(run.nodes.suspects().empty(), SuspectNotAwaited, true)) {
        at = forming.patience_end.value_or(forming.since);
    }
    if (at && forming.not_before) {
        at = std::max(*at, *forming.not_before);
    }
    if (at && is_held(run, now)) {
        at = std::max(*at, run.hold->until);
    }
    return at;
}

}  // namespace

void enter_forming(Step& step, std::string why) {
    Run& run = step.run;
    Forming forming{.since = step.now,
                    .give_up_at = step.now + run.settings.join_timeout,
                    .not_before = run.pace.back_off(step.options.limits, step.now),
                    .why = std::move(why)};
    for (const auto& [id, node] : run.nodes) {
        if (node.is_member()) {
            run.nodes.set_standing(id, Standing::Ready);
        }
    }
    become(run, std::move(forming));
    run.strangers.clear();
    run.explain_at = step.now + step.options.limits.explain_every;
    write_behind(step);
}

void form_if_possible(Step& step, Forming& forming) {
    const Run& run = step.run;
    if (run.nodes.ready().size() >= minimum(run) || is_preparing(run) || is_held(run, step.now)) {
        forming.give_up_at = step.now + run.settings.join_timeout;
    }
    if (forming.not_before && *forming.not_before <= step.now) {
        forming.not_before.reset();
    }
    const bool is_first = run.current.places.empty();
    if (is_first && run.nodes.ready().size() >= minimum(run) && !is_preparing(run)) {
        if (!forming.patience_end) {
            forming.patience_end = step.now + run.settings.patience;
        }
    } else {
        forming.patience_end.reset();
    }
    const std::optional<Instant> at = start_time(run, forming, step.now);
    if (at && *at <= step.now) {
        const std::string why = forming.why;
        start_generation(step, why);
    }
}

void end_hold(Step& step) {
    step.run.hold.reset();
    if (Forming* forming = std::get_if<Forming>(&step.run.phase)) {
        forming->give_up_at = step.now + step.run.settings.join_timeout;
    }
    step.run.explain_at = step.now;
    write_behind(step);
}

void give_up_forming(Step& step, const Forming& forming) {
    if (step.run.nodes.ready().size() < minimum(step.run) && !is_preparing(step.run) &&
        !is_held(step.run, step.now) && forming.give_up_at <= step.now) {
        DDP_PROBE(minimum_never_reached);
        close_incomplete(step);
    }
}

std::optional<Instant> deadline_of(const Run& run, const Forming& forming, Instant now) {
    if (run.nodes.ready().size() >= minimum(run)) {
        return start_time(run, forming, now);  // none: a suspect's lease decides
    }
    if (is_preparing(run) || is_held(run, now)) {
        return std::nullopt;  // an end of either is a step, and gives the join time-out anew
    }
    return forming.give_up_at;
}

}  // namespace ddprun::rdzv
