#include "rendezvous/core/explain.hpp"

#include <algorithm>
#include <chrono>
#include <span>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/planted_bug.hpp"
#include "rendezvous/core/preparing.hpp"
#include "rendezvous/core/publish.hpp"
#include "rendezvous/core/quarantine.hpp"
#include "rendezvous/core/running.hpp"
#include "rendezvous/core/step.hpp"
#include "rendezvous/wire/node_sizes.hpp"

namespace ddprun::rdzv {

namespace {

bool is_absent_as_unfit(const Run& run, const NodeId& id, Instant now) {
    const auto found = run.quarantined.find(id);
    return found != run.quarantined.end() && found->second.is_unfit && found->second.until > now &&
           !run.nodes.contains(id);
}

/// Lists the nodes of the last generation that are missing now, with how each was lost. Nodes that
/// left are omitted; unfit nodes are named with the reason.
std::string names_missing(const Run& run, Instant now) {
    std::vector<std::string> names;
    for (const Place& place : run.current.places) {
        if (!run.nodes.contains(place.node) && !run.departed.contains(place.node) &&
            !is_absent_as_unfit(run, place.node, now)) {
            const auto lost = run.lost.find(place.node);
            names.push_back(lost == run.lost.end()
                                ? place.hostname
                                : fmt::format("{} {}", place.hostname, lost->second));
        }
    }
    return list_of(names);
}

std::string hosts_of(const Run& run, const std::set<NodeId>& ids) {
    std::vector<std::string> names;
    for (const NodeId& id : ids) {
        names.push_back(run.nodes.at(id).info.hostname);
    }
    return list_of(names);
}

/// Silent for a lease (stalled time not counted), and not lost yet: this process suspects itself.
std::string names_excused(const Run& run, Instant now) {
    std::vector<std::string> names;
    if (run.doubt.is_on(now)) {
        for (const auto& [lease_end, id] : run.nodes.leases()) {
            const Node& node = run.nodes.at(id);
            if (lease_end + run.doubt.held_up_since_heard(node) > now) {
                break;
            }
            names.push_back(node.info.hostname);
        }
    }
    return list_of(names);
}

/// Those that run a command now.
std::string names_preparing(const Run& run) {
    std::vector<std::string> names;
    for (const NodeId& id : run.nodes.preparing()) {
        const Node& node = run.nodes.at(id);
        if (is_own_to_end(node.info) || run.preparation.by == id) {
            names.push_back(node.info.hostname);
        }
    }
    return list_of(names);
}

std::string explain_forming(const Run& run, const Forming& forming, Instant now) {
    const std::string unfit = names_unfit(run, now);
    const std::string strangers = run.strangers.text();
    const std::string and_absent = (strangers.empty() ? "" : "; turned away: " + strangers) +
                                   (unfit.empty() ? "" : "; " + unfit);
    const std::size_t here = run.nodes.ready().size();
    const std::string range = nnodes_of(run.settings);
    const bool is_first = run.current.places.empty();
    if (is_held(run, now)) {
        return fmt::format(
            "held by {} for {} s, or until it is released (ddpctl release): {} of "
            "{} here ({}){}",
            run.hold->by, run.hold->asked.count() / 1000, node_count(here), range,
            here == 0 ? "none" : names_here(run), and_absent);
    }
    if (is_preparing(run) && (is_first || here < minimum(run))) {
        return fmt::format("waiting for the prepare command on {}: {} of {} ready{}",
                           names_preparing(run), node_count(here), range, and_absent);
    }
    if (here >= minimum(run)) {
        if (forming.not_before) {
            return "pausing before the next restart: too many in a minute";
        }
        if (!run.nodes.suspects().empty()) {
            return fmt::format("waiting for {}, cut off", hosts_of(run, run.nodes.suspects()));
        }
        return fmt::format("{} of {} here ({}); starting soon unless more come{}", node_count(here),
                           range, names_here(run), and_absent);
    }
    std::string text =
        fmt::format("waiting for {} more: {} of {} here ({})", node_count(minimum(run) - here),
                    here, range, here == 0 ? "none" : names_here(run));
    if (!run.nodes.suspects().empty()) {
        text += fmt::format("; cut off: {}", hosts_of(run, run.nodes.suspects()));
    }
    if (const std::string missing = names_missing(run, now); !missing.empty()) {
        text += fmt::format("; missing: {}", missing);
    }
    if (!run.turned_away.empty()) {
        text += fmt::format("; turned away: {}", run.turned_away);
    }
    return text + and_absent;
}

/// If spares wait beside a generation: how many nodes it needs to grow to its next size. Empty if
/// it has the largest size, or does not grow.
std::string growth_missing(const Run& run) {
    const std::size_t size = run.current.places.size();
    const std::size_t here = size + run.nodes.ready().size();
    const std::optional<std::size_t> wanted = larger_size(run, size);
    if (!has_sizes(run.settings) || !run.settings.grow || !wanted || here >= *wanted) {
        return {};
    }
    return fmt::format("; --nnodes {} has no size of {}: with {} more it is {}",
                       nnodes_of(run.settings), here, node_count(*wanted - here), *wanted);
}

/// If spares wait beside a generation: says that it is as large as its workers' store allows.
std::string store_full(const Run& run) {
    if (!is_bound_by_store(run) || run.current.places.size() < maximum(run)) {
        return {};
    }
    return fmt::format(
        "; the workers of more nodes would be more than the {} that their store "
        "serves{}",
        run.workers_max, hint_of_relays(run.workers_max));
}

std::string explain_running(const Run& run, const Running& running, Instant now) {
    if (running.has_finished_rank) {
        return fmt::format("generation {} is finishing: {} still {} workers",
                           run.current.number.value(), hosts_of(run, running.unfinished),
                           running.unfinished.size() == 1 ? "has" : "have");
    }
    if (run.nodes.ready().empty() && run.nodes.suspects().empty() && !running.quiet.empty()) {
        return fmt::format("generation {} runs; no sign of life of the workers on {}",
                           run.current.number.value(), hosts_of(run, running.quiet));
    }
    if (run.nodes.ready().empty()) {
        return run.nodes.suspects().empty()
                   ? std::string()
                   : fmt::format("generation {} runs; waiting for {} to connect again",
                                 run.current.number.value(), hosts_of(run, run.nodes.suspects()));
    }
    const std::string text = fmt::format("generation {} runs on {}", run.current.number.value(),
                                         node_count(run.current.places.size()));
    if (grow_time(run, running, now)) {
        return text + "; it will be drained and grown to take more in";
    }
    return text + "; this node is a spare and takes over when one is lost" + growth_missing(run) +
           store_full(run);
}

std::string explain_phase(const Run& run, Instant now) {
    if (const Restored* restored = std::get_if<Restored>(&run.phase)) {
        const auto whole =
            std::chrono::floor<std::chrono::seconds>(restored->kept_until - restored->since);
        return fmt::format("the rendezvous was restarted: waiting up to {} s for {} to come back",
                           whole.count(), hosts_of(run, run.nodes.suspects()));
    }
    if (const Forming* forming = std::get_if<Forming>(&run.phase)) {
        return explain_forming(run, *forming, now);
    }
    if (std::holds_alternative<Adopting>(run.phase)) {
        return fmt::format(
            "the rendezvous was restarted and has no journal of this job: {} came back; the newest "
            "generation that all its nodes agree on goes on",
            node_count(run.parked.size()));
    }
    if (const Stopping* stopping = std::get_if<Stopping>(&run.phase)) {
        const NodeId& first = *stopping->pending.begin();
        const auto node = run.nodes.find(first);
        return fmt::format("generation {} is stopping: waiting for {}{} to end its workers",
                           run.current.number.value(),
                           node == run.nodes.end() ? first.value() : node->second.info.hostname,
                           stopping->pending.size() > 1
                               ? fmt::format(" and {} more", stopping->pending.size() - 1)
                               : "");
    }
    if (const Running* running = std::get_if<Running>(&run.phase)) {
        return explain_running(run, *running, now);
    }
    return {};
}

/// When a running group grows.
std::optional<Instant> end_of_wait(const Run& run, Instant now) {
    const Running* const running = std::get_if<Running>(&run.phase);
    return running != nullptr ? grow_time(run, *running, now) : std::nullopt;
}

/// With the time that is left for the minimum to be reached, or until a running group grows.
Waiting waiting_for(const Run& run, const std::string& text, Instant now) {
    Waiting waiting{.text = text};
    if (const std::optional<Instant> over_at = end_of_wait(run, now)) {
        waiting.over_in =
            std::max(std::chrono::ceil<Milliseconds>(*over_at - now), Milliseconds(1));
        return waiting;
    }
    const Forming* const forming = std::get_if<Forming>(&run.phase);
    if (forming != nullptr && run.nodes.ready().size() < minimum(run) && !is_preparing(run) &&
        !is_held(run, now)) {
        const auto left = std::chrono::duration_cast<Milliseconds>(forming->give_up_at - now);
        waiting.limit = run.settings.join_timeout;
        waiting.waited = std::clamp(waiting.limit - left, Milliseconds(0), waiting.limit);
    }
    return waiting;
}

}  // namespace

std::string list_of(const std::vector<std::string>& names) {
    constexpr std::size_t kNamesMax = 8;
    const std::string more =
        names.size() > kNamesMax ? fmt::format(" and {} more", names.size() - kNamesMax) : "";
    const auto shown = std::span(names).first(std::min(names.size(), kNamesMax));
    return fmt::format("{}{}", fmt::join(shown, ", "), more);
}

std::string names_here(const Run& run) {
    return hosts_of(run, run.nodes.ready());
}

std::string names_unfit(const Run& run, Instant now) {
    std::vector<std::string> names;
    for (const auto& [id, one] : run.quarantined) {
        if (is_absent_as_unfit(run, id, now)) {
            names.push_back(fmt::format("{} {}", one.hostname, one.why));
        }
    }
    return list_of(names);
}

void tell_head(Step& step, const std::string& text) {
    const Run& run = step.run;
    if (std::holds_alternative<Running>(run.phase) || std::holds_alternative<Stopping>(run.phase)) {
        const auto head = run.nodes.find(run.current.places.front().node);
        if (head != run.nodes.end()) {
            send(step, head->second, Notice{text});
            publish(step, EventKind::Notice, {{"text", text}});
        }
    }
}

void tell_all(Step& step, const std::string& text) {
    for (const auto& [id, node] : step.run.nodes) {
        send(step, node, Notice{text});
    }
    publish(step, EventKind::Notice, {{"text", text}});
}

void explain_soon(Step& step) {
    Run& run = step.run;
    const Instant at = std::max(step.now, run.explained_at + step.options.limits.explain_gather);
    run.explain_at = std::min(run.explain_at.value_or(at), at);
}

void explain_waits(Step& step) {
    Run& run = step.run;
    if (!run.explain_at || *run.explain_at > step.now) {
        return;
    }
    run.explained_at = step.now;
    const bool changes_by_itself = !std::holds_alternative<Running>(run.phase);
    run.explain_at = changes_by_itself
                         ? std::optional<Instant>(step.now + step.options.limits.explain_every)
                         : std::nullopt;
    if (std::holds_alternative<Closed>(run.phase)) {
        run.explain_at.reset();
        return;
    }
    const std::string text = explain_run(run, step.now);
    if (text != run.said_waiting) {
        run.said_waiting = text;
        publish(step, EventKind::Waiting, {{"text", text}});
    }
    const std::optional<Instant> over_at = end_of_wait(run, step.now);
    const auto tell = [&](Node& node) {
        const std::string mine =
            run.quarantined.is_left_out(node.info.node, step.now)
                ? fmt::format("{}; this one {}, so it is left out for a while when others suffice",
                              text, run.quarantined.at(node.info.node).why)
                : text;
        const bool is_news = node.said_waiting != mine || node.said_over_at != over_at;
        if (DDP_RULE(is_news, SilentWait, false)) {
            node.said_waiting = mine;
            node.said_over_at = over_at;
            send(step, node, waiting_for(run, mine, step.now));
        }
    };
    if (std::holds_alternative<Stopping>(run.phase)) {
        for (const auto& [id, node] : run.nodes) {
            tell(run.nodes.at(id));
        }
        return;
    }
    for (const NodeId& id : run.nodes.ready()) {
        tell(run.nodes.at(id));
    }
    for (const NodeId& id : run.nodes.preparing()) {
        tell(run.nodes.at(id));
    }
}

std::string explain_run(const Run& run, Instant now) {
    std::string text = explain_phase(run, now);
    if (const std::string excused = names_excused(run, now); !excused.empty()) {
        text += fmt::format(
            "{}no sign of life of {}; not given up yet, because this rendezvous was held up itself",
            text.empty() ? "" : "; ", excused);
    }
    return text;
}

std::string hint_of_relays(int workers_max) {
    return static_cast<std::size_t>(workers_max) >= Limits().store_relayed_max
               ? ""
               : "; with --store-relay on, on every node, it serves more";
}

std::string node_count(std::size_t count) {
    return count == 1 ? "1 node" : fmt::format("{} nodes", count);
}

}  // namespace ddprun::rdzv
