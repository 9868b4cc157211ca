#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <xxhash.h>

#include "base/check.hpp"
#include "base/planted_bug.hpp"
#include "base/probe.hpp"
#include "rendezvous/core/step.hpp"
#include "worker_runtime/contract/exit_codes.hpp"

namespace ddprun::rdzv {

namespace {

/// The ready nodes that get a place, at most the maximum: previous members first, then those with
/// as many slots as a lost one had, near it or anywhere, then explicit ranks, then whoever came
/// first. Nodes in quarantine come after all others.
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
    for (const Place& place : run.places) {
        previous.insert(place.node);
        if (!run.ready.contains(place.node)) {
            holes.insert(place.slots);
            near_holes.emplace(place.slots, place.topology_key);
        }
    }
    std::vector<Ranked> ranked;
    for (const NodeId& id : run.ready) {
        const Node& node = run.nodes.at(id);
        int preference = 3;
        if (previous.contains(id)) {
            preference = 0;
        } else if (near_holes.contains({node.info.slots, node.info.topology_key})) {
            preference = 1;
        } else if (holes.contains(node.info.slots)) {
            preference = 2;
        }
        ranked.push_back(Ranked{is_quarantined(run, id, now), preference,
                                node.info.node_rank.value_or(INT32_MAX), node.joined_as, &node,
                                id});
    }
    std::sort(ranked.begin(), ranked.end(), [](const Ranked& left, const Ranked& right) {
        return std::tie(left.is_left_out, left.preference, left.node_rank, left.joined_as) <
               std::tie(right.is_left_out, right.preference, right.node_rank, right.joined_as);
    });
    const std::size_t surplus = DDP_BUG(SpareStarted) ? 1 : 0;
    ranked.resize(std::min(usable_count(run, now), maximum(run) + surplus));
    std::vector<Candidate> chosen;
    for (const Ranked& one : ranked) {
        const Join& info = one.node->info;
        chosen.push_back(Candidate{.node = one.id,
                                   .slots = info.slots,
                                   .node_rank = info.node_rank,
                                   .topology_key = info.topology_key,
                                   .hostname = info.hostname,
                                   .role = info.role});
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

void send_rows(Step& step, const std::string& why) {
    for (const Place& place : step.run.places) {
        Start row = step.run.rows.at(place.node);
        row.why = why;
        send(step, step.run.nodes.at(place.node), std::move(row));
    }
}

void start_generation(Step& step, const std::string& why) {
    Run& run = step.run;
    const bool is_first = run.places.empty();
    run.places = order_places(run.places, choose(run, step.now));
    run.generation = Generation(std::max(run.generation, run.generation_floor).value() + 1);
    run.digest = digest_of(run, step.rng.next());
    run.started_at = step.now;
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
    run.store = run.nodes.at(run.places.front().node).info.store;
    run.admitted = admitted_addresses(run, step.options.limits);
    write_rows(run);
    run.recent_starts.push_back(step.now);
    become(run, std::move(running));
    run.turned_away.clear();
    run.explain_at = run.ready.empty() ? std::optional<Instant>() : step.now;
    await_record(step);
    int workers = 0;
    for (const Place& place : run.places) {
        workers += place.slots;
    }
    note(step, fmt::format("generation {} started: {}, {} worker{}", run.generation.value(),
                           node_count(run.places.size()), workers, workers == 1 ? "" : "s"));
    send_rows(step, why);
    if (is_first) {
        if (const std::string unfit = names_unfit(run, step.now); !unfit.empty()) {
            tell_head(step, unfit);
        }
    }
}

/// When the next generation may start, if nobody else comes or goes; none: not as things are.
std::optional<Instant> start_time(const Run& run, const Forming& forming, Instant now) {
    std::optional<Instant> at;
    const std::size_t usable = usable_count(run, now);
    if (usable >= maximum(run)) {
        at = forming.since;
    } else if (usable >= minimum(run) && (run.suspects.empty() || DDP_BUG(SuspectNotAwaited))) {
        at = forming.patience_end.value_or(forming.since);
    }
    if (at && forming.not_before) {
        at = std::max(*at, *forming.not_before);
    }
    return at;
}

/// A pause after very many starts, longer each time; forgotten once a generation has lasted.
std::optional<Instant> back_off(Run& run, const Limits& limits, Instant now) {
    std::deque<Instant>& starts = run.recent_starts;
    if (!starts.empty() && now - starts.back() >= limits.restart_burst_window) {
        run.next_backoff = Milliseconds::zero();
    }
    while (!starts.empty() && now - starts.front() > limits.restart_burst_window) {
        starts.pop_front();
    }
    if (starts.size() <= static_cast<std::size_t>(limits.restart_burst_max) ||
        DDP_BUG(BackoffMissing)) {
        return std::nullopt;
    }
    DDP_PROBE(restart_burst_used_up);
    const Milliseconds pause = std::max(run.next_backoff, limits.restart_backoff);
    run.next_backoff = std::min(pause * 2, limits.restart_backoff_max);
    return now + pause;
}

}  // namespace

void enter_forming(Step& step, std::string why) {
    Run& run = step.run;
    Forming forming{.since = step.now,
                    .give_up_at = step.now + run.settings.join_timeout,
                    .not_before = back_off(run, step.options.limits, step.now),
                    .why = std::move(why)};
    for (auto& [id, node] : run.nodes) {
        if (node.standing == Standing::Member) {
            node.standing = Standing::Ready;
            reindex(step, id);
        }
    }
    become(run, std::move(forming));
    run.explain_at = step.now + step.options.limits.explain_every;
    write_behind(step);
}

std::vector<std::string> admitted_addresses(const Run& run, const Limits& limits) {
    if (run.settings.store_admits_any) {
        return {};
    }
    std::vector<std::string> all;
    std::vector<std::string> main;
    std::size_t bytes = 0;
    for (const Place& place : run.places) {
        const Join& info = run.nodes.at(place.node).info;
        main.push_back(info.store.host);
        for (const std::string& address : info.addresses) {
            bytes += address.size() + 3;  // with quotes and comma
            all.push_back(address);
        }
    }
    std::vector<std::string> admitted = bytes < limits.frame_bytes_max / 2 ? all : main;
    admitted.insert(admitted.end(), main.begin(), main.end());
    std::sort(admitted.begin(), admitted.end());
    admitted.erase(std::unique(admitted.begin(), admitted.end()), admitted.end());
    return admitted;
}

void write_rows(Run& run) {
    Start row;
    row.generation = run.generation;
    row.digest = run.digest;
    row.group_world_size = static_cast<int>(run.places.size());
    row.restart_count = run.restarts_used;
    row.max_restarts = run.settings.max_restarts;
    row.node_losses = run.node_losses_used;
    row.store = run.store;
    row.world_size = 0;
    std::map<std::string, int> role_sizes;
    for (const Place& place : run.places) {
        row.world_size += place.slots;
        role_sizes[place.role] += place.slots;
    }
    std::map<std::string, int> role_bases;
    run.rows.clear();
    for (const Place& place : run.places) {
        row.role_base_rank = role_bases[place.role];
        row.role_world_size = role_sizes[place.role];
        Start& mine = run.rows[place.node] = row;
        if (row.group_rank == 0) {
            mine.admitted = run.admitted;
        }
        role_bases[place.role] += place.slots;
        row.base_rank += place.slots;
        row.group_rank += 1;
    }
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
    const std::optional<Instant> at = start_time(run, *forming, step.now);
    if (at && *at <= step.now) {
        const std::string why = forming->why;
        start_generation(step, why);
    }
}

std::optional<Instant> grow_time(const Run& run, const Running& running, Instant now) {
    if (!run.settings.grow || running.has_finished_rank || run.ready.empty() ||
        run.places.size() >= maximum(run)) {
        return std::nullopt;
    }
    const Instant earliest = running.since + run.settings.grow_delay;
    if (healthy_count(run, now) > 0) {
        return earliest;
    }
    const std::optional<Instant> cured = quarantine_end(run, now);
    return cured ? std::max(earliest, *cured) : earliest;
}

void grow_if_wanted(Step& step) {
    const Running* running = std::get_if<Running>(&step.run.phase);
    if (running == nullptr) {
        return;
    }
    const std::optional<Instant> at = grow_time(step.run, *running, step.now);
    if (at && *at <= step.now) {
        const std::string why = fmt::format("{} joined", names_here(step.run));
        DDP_PROBE(grown);
        begin_stopping(step, StopCause::Grow, 15, why);
    }
}

void judge_forming(Step& step) {
    Run& run = step.run;
    const Forming* forming = std::get_if<Forming>(&run.phase);
    if (forming == nullptr || run.ready.size() >= minimum(run) || forming->give_up_at > step.now) {
        return;
    }
    DDP_PROBE(minimum_never_reached);
    close_run(step, Verdict{.kind = VerdictKind::Incomplete,
                            .exit_code = kExitNodesMissing,
                            .text = fmt::format("gave up after {} s: {}",
                                                run.settings.join_timeout.count() / 1000,
                                                explain_run(run, step.now))});
}

std::optional<Instant> forming_deadline(const Run& run, Instant now) {
    if (const Forming* forming = std::get_if<Forming>(&run.phase)) {
        if (run.ready.size() >= minimum(run)) {
            return start_time(run, *forming, now);  // none: a suspect's lease decides
        }
        return forming->give_up_at;
    }
    if (const Running* running = std::get_if<Running>(&run.phase)) {
        return grow_time(run, *running, now);
    }
    return std::nullopt;
}

}  // namespace ddprun::rdzv
