#include "rendezvous/core/adopting.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "base/planted_bug.hpp"
#include "base/probe.hpp"
#include "rendezvous/core/admission.hpp"
#include "rendezvous/core/explain.hpp"
#include "rendezvous/core/forming.hpp"
#include "rendezvous/core/generation.hpp"
#include "rendezvous/core/membership.hpp"
#include "rendezvous/core/publish.hpp"
#include "rendezvous/core/rank_map.hpp"
#include "rendezvous/core/running.hpp"
#include "rendezvous/core/step.hpp"
#include "rendezvous/core/stopping.hpp"
#include "rendezvous/wire/node_sizes.hpp"

namespace ddprun::rdzv {

namespace {

/// The numbers of the generation that `join` holds fit its settings and our limits: they are added
/// up and allocated for.
bool is_plausible(const Join& join, const Limits& limits) {
    const HeldGeneration& held = *join.held;
    const JobSettings& settings = join.settings;
    const auto is_within = [](int value, int least, int most) {
        return value >= least && value <= most;
    };
    const int ranks_max = settings.max_nodes * limits.slots_max;
    const int losses_max = settings.max_node_losses < 0
                               ? limits.node_losses_max
                               : std::min(settings.max_node_losses, limits.node_losses_max);
    const auto nodes = static_cast<std::size_t>(std::max(held.group_world_size, 0));
    const bool is_size = !has_sizes(settings) || largest_size(settings, nodes) == nodes;
    return is_believable(held.generation) &&
           is_within(held.group_world_size, 1, settings.max_nodes) && is_size &&
           is_within(held.group_rank, 0, held.group_world_size - 1) &&
           is_within(held.world_size, join.slots, ranks_max) &&
           is_within(held.base_rank, 0, held.world_size - join.slots) &&
           is_within(held.restart_count, 0, settings.max_restarts) &&
           is_within(held.node_losses, 0, losses_max);
}

/// Those that came back with one and the same generation, in order of group rank.
struct Holders {
    Generation generation;
    std::string digest;
    std::vector<std::pair<ConnectionId, Join>> joins;

    [[nodiscard]] const HeldGeneration& first() const { return *joins.front().second.held; }
    [[nodiscard]] int missing() const {
        return first().group_world_size - static_cast<int>(joins.size());
    }
};

bool is_before(const std::pair<ConnectionId, Join>& left,
               const std::pair<ConnectionId, Join>& right) {
    return left.second.held->group_rank < right.second.held->group_rank;
}

/// The newest generation that nodes hold; among rivals of one number (two daemons made them) the
/// one that most nodes hold. Nothing if all that nodes hold is older than the record.
std::optional<Holders> newest_holders(const Run& run, const Limits& limits) {
    std::map<std::pair<Generation, std::string>, Holders> all;
    for (const auto& [connection, join] : run.parked) {
        if (join.held && is_plausible(join, limits) &&
            join.held->generation >= run.current.number) {
            Holders& holders = all[{join.held->generation, join.held->digest}];
            holders.generation = join.held->generation;
            holders.digest = join.held->digest;
            holders.joins.emplace_back(connection, join);
        }
    }
    if (all.empty()) {
        return std::nullopt;
    }
    const auto is_less = [](const auto& left, const auto& right) {
        return std::make_tuple(left.second.generation, left.second.joins.size()) <
               std::make_tuple(right.second.generation, right.second.joins.size());
    };
    Holders newest = DDP_RULE(std::max_element(all.begin(), all.end(), is_less),
                              AdoptsLowerGeneration, all.begin())
                         ->second;
    std::sort(newest.joins.begin(), newest.joins.end(), is_before);
    return newest;
}

/// Their rows fit each other: each group rank once, and ranks that do not overlap.
bool is_consistent(const Holders& holders) {
    const HeldGeneration& first = holders.first();
    int next_group_rank = 0;
    int next_rank = 0;
    for (const auto& [connection, join] : holders.joins) {
        const HeldGeneration& held = *join.held;
        if (held.group_world_size != first.group_world_size ||
            held.world_size != first.world_size || held.store != first.store ||
            held.group_rank < next_group_rank || held.base_rank < next_rank ||
            join.run_token != holders.joins.front().second.run_token) {
            return false;
        }
        next_group_rank = held.group_rank + 1;
        next_rank = held.base_rank + join.slots;
    }
    const bool has_right_sum = holders.missing() > 0 || next_rank == first.world_size;
    return next_group_rank <= first.group_world_size && next_rank <= first.world_size &&
           has_right_sum;
}

void take_over(Step& step, const Holders& holders) {
    Run& run = step.run;
    const Join& first = holders.joins.front().second;
    run.token = first.run_token;
    run.settings = first.settings;
    if (run.target_nodes && !is_size(run.settings, *run.target_nodes)) {
        run.target_nodes.reset();
    }
    run.current.number = holders.generation;
    run.current.digest = holders.digest;
    run.current.store = first.held->store;
    run.current.started_at = step.now - kLongAgo;
    run.current.places.clear();
    Running running{.since = step.now};
    for (const auto& [connection, join] : holders.joins) {
        run.budgets.learn_used(*join.held, run.settings);
        learn_size(run, join);
        run.current.places.push_back(place_of(join));
        running.unfinished.insert(join.node);
    }
    run.current.write_rows(run.settings, run.budgets);
    become(run, std::move(running));
    for (const auto& [connection, join] : holders.joins) {
        Start& row = run.current.rows.at(join.node);
        row.base_rank = join.held->base_rank;
        row.group_rank = join.held->group_rank;
        if (holders.missing() > 0) {
            row.memory_partner.reset();  // it follows from the places of all nodes
        }
        Node& node = run.nodes.add(join.node);
        node.info = join;
        node.info.held.reset();
        node.joined_as = ++run.joins;
        run.nodes.set_standing(join.node, Standing::Member);
        attach(step, node, connection);
    }
    run.current.admitted =
        admitted_addresses(run.current.places, run.nodes, run.settings, step.options.limits);
    note(step, fmt::format("generation {} goes on: {} came back to a rendezvous without a journal",
                           run.current.number.value(), node_count(holders.joins.size())));
    publish(step, EventKind::Restored,
            {{"nodes", static_cast<std::int64_t>(holders.joins.size())}, {"runs", true}});
    write_behind(step);
}

/// The others did not come in time: their loss ends the generation like any other.
void count_missing(Step& step, int missing) {
    const std::string why =
        fmt::format("{} of generation {} did not come back after the rendezvous was restarted",
                    node_count(static_cast<std::size_t>(missing)), step.run.current.number.value());
    Stopping& stopping = enter_stopping(step, StopCause::Failure, 15, why);
    stopping.lost_nodes.assign(static_cast<std::size_t>(missing), "that did not come back");
    stopping.loss_why = why;
    stopping.is_explained_by_loss = true;
}

void decide(Step& step, const std::optional<Holders>& newest) {
    Run& run = step.run;
    const std::map<ConnectionId, Join> parked = run.parked.take_all();
    for (const auto& [connection, join] : parked) {
        if (join.held && is_plausible(join, step.options.limits)) {
            run.adopted_up_to = std::max(run.adopted_up_to, join.held->generation);
        }
    }
    std::set<ConnectionId> taken;
    if (newest && is_consistent(*newest)) {
        DDP_PROBE(generation_adopted);
        take_over(step, *newest);
        for (const auto& [connection, join] : newest->joins) {
            taken.insert(connection);
        }
        if (newest->missing() > 0) {
            DDP_PROBE(adopted_without_some);
            count_missing(step, newest->missing());
        }
    } else {
        run.current.places.clear();
        run.current.rows.clear();
        enter_forming(step, "the rendezvous was restarted");
    }
    for (const auto& [connection, message] : parked) {
        if (!taken.contains(connection)) {
            join(step, connection, message);
        }
    }
}

/// The newest generation that this join proves to have started. A member knows a number other than
/// the record's only from a later generation of the same run, which it may have ended. Other nodes
/// may know a number from another run.
Generation newest_told(const Run& run, const Join& message, const Limits& limits) {
    if (message.held) {
        return is_plausible(message, limits) ? message.held->generation : Generation();
    }
    const auto known = run.nodes.find(message.node);
    const bool is_member = known != run.nodes.end() && known->second.is_member();
    return is_member ? message.newest : Generation();
}

}  // namespace

bool is_news_of_generation(const Run& run, const Join& message, const Limits& limits, Instant now) {
    const Generation told = newest_told(run, message, limits);
    if (message.run_token.empty() || !is_believable(told) ||
        told <= std::max(run.current.number, run.adopted_up_to)) {
        return false;
    }
    const bool is_unknown_run = run.may_be_older && run.current.number == Generation() &&
                                std::holds_alternative<Forming>(run.phase);
    const bool is_record_old =
        message.run_token == run.token &&
        (std::holds_alternative<Restored>(run.phase) || now < run.returns_until);
    return is_unknown_run || is_record_old;
}

void trace_implausible(Step& step, const Join& message) {
    if (!message.held || is_plausible(message, step.options.limits)) {
        return;
    }
    const HeldGeneration& held = *message.held;
    trace(step, fmt::format("node {} says what cannot be of generation {} (group rank {} of {}, {} "
                            "ranks from {} of {}, {} restarts, {} node losses): it is not adopted",
                            message.hostname, held.generation.value(), held.group_rank,
                            held.group_world_size, message.slots, held.base_rank, held.world_size,
                            held.restart_count, held.node_losses));
}

void enter_adopting(Step& step) {
    Run& run = step.run;
    if (std::holds_alternative<Adopting>(run.phase)) {
        return;
    }
    DDP_PROBE(unknown_generation_came_back);
    note(step, "nodes come back with a generation that the rendezvous does not know");
    for (const auto& [id, node] : run.nodes) {
        drop_connection(step, node, "join again: a generation of this job is running");
    }
    run.nodes.clear();
    run.doubt.until.reset();
    run.explain_at.reset();
    const Limits& limits = step.options.limits;
    become(run, Adopting{.not_before = step.now + limits.lease,
                         .until = step.now + limits.adoption_patience});
}

void adopt_if_possible(Step& step, const Adopting& adopting) {
    if (step.now < adopting.not_before ||
        (step.now < adopting.until && !step.run.parked.may_be_whole())) {
        return;
    }
    const std::optional<Holders> newest = newest_holders(step.run, step.options.limits);
    const bool is_complete = newest && newest->missing() <= 0 && is_consistent(*newest);
    if (is_complete || step.now >= adopting.until) {
        decide(step, newest);
    }
}

Instant deadline_of(const Adopting& adopting, Instant now) {
    return now < adopting.not_before ? adopting.not_before : adopting.until;
}

void prolong(Adopting& adopting, Duration by) {
    adopting.not_before += by;
    adopting.until += by;
}

}  // namespace ddprun::rdzv
