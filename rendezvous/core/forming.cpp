#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <xxhash.h>

#include "rendezvous/base/check.hpp"
#include "rendezvous/core/step.hpp"
#include "rendezvous/protocol/exit_codes.hpp"

namespace ddprun::rdzv {

namespace {

/// The ready nodes that get a place, at most the maximum: previous members first, then those with
/// as many slots as a lost one had, then explicit ranks, then whoever came first.
std::vector<Candidate> choose(const Run& run) {
    struct Ranked {
        int preference;
        int node_rank;
        std::uint64_t joined_as;
        const Node* node;
        NodeId id;
    };
    std::set<NodeId> previous;
    std::set<int> holes;  // their sizes
    for (const Place& place : run.places) {
        previous.insert(place.node);
        if (!run.ready.contains(place.node)) {
            holes.insert(place.slots);
        }
    }
    std::vector<Ranked> ranked;
    for (const NodeId& id : run.ready) {
        const Node& node = run.nodes.at(id);
        const int preference =
            previous.contains(id) ? 0 : (holes.contains(node.info.slots) ? 1 : 2);
        ranked.push_back(
            Ranked{preference, node.info.node_rank.value_or(INT32_MAX), node.joined_as, &node, id});
    }
    std::sort(ranked.begin(), ranked.end(), [](const Ranked& left, const Ranked& right) {
        return std::tie(left.preference, left.node_rank, left.joined_as) <
               std::tie(right.preference, right.node_rank, right.joined_as);
    });
    ranked.resize(std::min(ranked.size(), maximum(run)));
    std::vector<Candidate> chosen;
    for (const Ranked& one : ranked) {
        chosen.push_back(Candidate{one.id, one.node->info.slots, one.node->info.node_rank,
                                   one.node->info.topology_key, one.node->info.hostname});
    }
    return chosen;
}

/// Names this generation and its rank map; the random part tells two daemons' apart.
std::string digest_of(const Run& run, std::uint64_t random) {
    std::string text = fmt::format("{}|{}|{:016x}", run.token, run.generation.value(), random);
    for (const Place& place : run.places) {
        text += fmt::format("|{}:{}", place.node.value(), place.slots);
    }
    return fmt::format("{:016x}", XXH64(text.data(), text.size(), 0));
}

std::vector<std::string> admitted_addresses(const Run& run) {
    std::vector<std::string> admitted;
    for (const Place& place : run.places) {
        const Join& info = run.nodes.at(place.node).info;
        admitted.insert(admitted.end(), info.addresses.begin(), info.addresses.end());
        admitted.push_back(info.store.host);
    }
    std::sort(admitted.begin(), admitted.end());
    admitted.erase(std::unique(admitted.begin(), admitted.end()), admitted.end());
    return admitted;
}

/// What all rows of the current rank map have in common.
Start common_row(const Run& run) {
    Start row;
    row.generation = run.generation;
    row.digest = run.digest;
    row.group_world_size = static_cast<int>(run.places.size());
    for (const Place& place : run.places) {
        row.world_size += place.slots;
    }
    row.world_size -= 1;  // the default of one worker
    row.restart_count = run.restarts_used;
    row.max_restarts = run.settings.max_restarts;
    row.store = run.nodes.at(run.places.front().node).info.store;
    return row;
}

/// Writes and sends every member's row.
void send_rows(Step& step, const std::string& why) {
    Run& run = step.run;
    Start row = common_row(run);
    row.why = why;
    std::map<std::string, int> role_sizes;
    for (const Place& place : run.places) {
        role_sizes[run.nodes.at(place.node).info.role] += place.slots;
    }
    std::map<std::string, int> role_bases;
    for (const Place& place : run.places) {
        const Node& node = run.nodes.at(place.node);
        row.role_base_rank = role_bases[node.info.role];
        row.role_world_size = role_sizes[node.info.role];
        Start mine = row;
        if (row.group_rank == 0) {
            mine.admitted = admitted_addresses(run);
        }
        run.rows[place.node] = mine;
        send(step, node, std::move(mine));
        role_bases[node.info.role] += place.slots;
        row.base_rank += place.slots;
        row.group_rank += 1;
    }
}

void start_generation(Step& step, const std::string& why) {
    Run& run = step.run;
    run.places = order_places(run.places, choose(run));
    run.generation = Generation(run.generation.value() + 1);
    run.digest = digest_of(run, step.rng.next());
    Running running{.since = step.now};
    for (const Place& place : run.places) {
        Node& node = run.nodes.at(place.node);
        DDP_CHECK(node.standing == Standing::Ready, place.node.value());
        node.standing = Standing::Member;
        node.finished.clear();
        node.failed.clear();
        node.said_waiting.clear();
        running.unfinished.insert(place.node);
        reindex(step, place.node);
    }
    run.rows.clear();
    run.recent_starts.push_back(step.now);
    run.phase = std::move(running);
    run.explain_at = run.ready.empty() ? std::optional<Instant>() : step.now;
    int workers = 0;
    for (const Place& place : run.places) {
        workers += place.slots;
    }
    note(step, fmt::format("generation {} started: {}, {} worker{}", run.generation.value(),
                           node_count(run.places.size()), workers, workers == 1 ? "" : "s"));
    send_rows(step, why);
}

/// When the next generation may start, if nobody else comes or goes; none: not as things are.
std::optional<Instant> start_time(const Run& run, const Forming& forming) {
    std::optional<Instant> at;
    if (run.ready.size() >= maximum(run)) {
        at = forming.since;
    } else if (run.ready.size() >= minimum(run) && run.suspects.empty()) {
        at = forming.patience_end.value_or(forming.since);
    }
    if (at && forming.not_before) {
        at = std::max(*at, *forming.not_before);
    }
    return at;
}

}  // namespace

void enter_forming(Step& step, std::string why) {
    Run& run = step.run;
    Forming forming{.since = step.now,
                    .give_up_at = step.now + run.settings.join_timeout,
                    .why = std::move(why)};
    const Limits& limits = step.options.limits;
    while (!run.recent_starts.empty() &&
           step.now - run.recent_starts.front() > limits.restart_burst_window) {
        run.recent_starts.pop_front();
    }
    if (run.recent_starts.size() > static_cast<std::size_t>(limits.restart_burst_max)) {
        forming.not_before = step.now + limits.restart_backoff;
    }
    for (auto& [id, node] : run.nodes) {
        if (node.standing == Standing::Member) {
            node.standing = Standing::Ready;
            reindex(step, id);
        }
    }
    run.phase = std::move(forming);
    run.explain_at = step.now + limits.explain_every;
}

void form_if_possible(Step& step) {
    Run& run = step.run;
    Forming* forming = std::get_if<Forming>(&run.phase);
    if (forming == nullptr) {
        return;
    }
    if (run.ready.size() >= minimum(run)) {
        forming->give_up_at = step.now + run.settings.join_timeout;
    }
    if (forming->not_before && *forming->not_before <= step.now) {
        forming->not_before.reset();
    }
    const bool is_first = run.places.empty();
    if (is_first && run.ready.size() >= minimum(run)) {
        if (!forming->patience_end) {
            forming->patience_end = step.now + run.settings.patience;
        }
    } else {
        forming->patience_end.reset();
    }
    const std::optional<Instant> at = start_time(run, *forming);
    if (at && *at <= step.now) {
        const std::string why = forming->why;
        start_generation(step, why);
    }
}

std::optional<Instant> grow_time(const Run& run, const Running& running) {
    const bool is_wanted = run.settings.grow && !running.has_finished_rank && !run.ready.empty() &&
                           run.places.size() < maximum(run);
    return is_wanted ? std::optional<Instant>(running.since + run.settings.grow_delay)
                     : std::nullopt;
}

void grow_if_wanted(Step& step) {
    const Running* running = std::get_if<Running>(&step.run.phase);
    if (running == nullptr) {
        return;
    }
    const std::optional<Instant> at = grow_time(step.run, *running);
    if (at && *at <= step.now) {
        const std::string why = fmt::format("{} joined", names_here(step.run));
        begin_stopping(step, StopCause::Grow, 15, why);
    }
}

void judge_forming(Step& step) {
    Run& run = step.run;
    const Forming* forming = std::get_if<Forming>(&run.phase);
    if (forming == nullptr || run.ready.size() >= minimum(run) || forming->give_up_at > step.now) {
        return;
    }
    close_run(step, Verdict{.kind = VerdictKind::Incomplete,
                            .exit_code = kExitNodesMissing,
                            .text = fmt::format("gave up after {} s: {}",
                                                run.settings.join_timeout.count() / 1000,
                                                explain_run(run))});
}

std::optional<Instant> forming_deadline(const Run& run) {
    if (const Forming* forming = std::get_if<Forming>(&run.phase)) {
        if (run.ready.size() >= minimum(run)) {
            return start_time(run, *forming);  // none: a suspect's lease decides
        }
        return forming->give_up_at;
    }
    if (const Running* running = std::get_if<Running>(&run.phase)) {
        return grow_time(run, *running);
    }
    return std::nullopt;
}

}  // namespace ddprun::rdzv
