#include "rendezvous/core/quarantine.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/planted_bug.hpp"
#include "rendezvous/core/explain.hpp"
#include "rendezvous/core/membership.hpp"
#include "rendezvous/core/publish.hpp"
#include "rendezvous/core/step.hpp"

namespace ddprun::rdzv {

namespace {

std::string text_of(const Quarantine& one, Instant now) {
    return fmt::format("node {} {}: left out for {} s while others suffice", one.hostname, one.why,
                       std::chrono::duration_cast<std::chrono::seconds>(one.until - now).count());
}

/// False if there is no room.
bool quarantine(Step& step, const NodeId& id, Quarantine one, bool is_news = true) {
    if (!step.run.quarantined.has_room_for(id, step.options.limits, step.now)) {
        return false;
    }
    if (is_news) {
        note(step, text_of(one, step.now));
        publish(step, EventKind::Quarantine,
                {{"host", one.hostname}, {"node", id.value()}, {"text", one.why}});
    }
    step.run.quarantined.put(id, std::move(one));
    write_behind(step);
    return true;
}

}  // namespace

bool QuarantineList::is_left_out(const NodeId& id, Instant now) const {
    const auto found = all_.find(id);
    return DDP_RULE(found != all_.end() && found->second.until > now, QuarantineIgnored, false);
}

std::size_t QuarantineList::healthy_count(const std::set<NodeId>& nodes, Instant now) const {
    const auto is_here_and_ill = [&](const auto& one) {
        return one.second.until > now && nodes.contains(one.first);
    };
    return nodes.size() -
           static_cast<std::size_t>(std::count_if(all_.begin(), all_.end(), is_here_and_ill));
}

std::optional<Instant> QuarantineList::next_end(const std::set<NodeId>& nodes, Instant now) const {
    std::optional<Instant> end;
    for (const auto& [id, one] : all_) {
        if (one.until > now && nodes.contains(id) && (!end || one.until < *end)) {
            end = one.until;
        }
    }
    return end;
}

bool QuarantineList::has_room_for(const NodeId& id, const Limits& limits, Instant now) {
    std::erase_if(all_, [&](const auto& old) { return old.second.until <= now; });
    return all_.size() < limits.nodes_max || all_.contains(id);
}

void QuarantineList::put(const NodeId& id, Quarantine one) {
    blames_.erase(id);
    all_[id] = std::move(one);
}

void QuarantineList::release(const NodeId& id) {
    blames_.erase(id);
    all_.erase(id);
}

std::size_t QuarantineList::count_failure(const NodeId& id, const Limits& limits, Instant now) {
    if (blames_.size() >= limits.nodes_max && !blames_.contains(id)) {
        return 0;
    }
    std::deque<Instant>& blames = blames_[id];
    blames.push_back(now);
    while (blames.size() > static_cast<std::size_t>(limits.quarantine_after) ||
           now - blames.front() > limits.quarantine_window) {
        blames.pop_front();
    }
    return blames.size();
}

void blame(Step& step, const NodeId& id, const std::string& hostname) {
    const Limits& limits = step.options.limits;
    const std::size_t failures = step.run.quarantined.count_failure(id, limits, step.now);
    if (failures >= static_cast<std::size_t>(limits.quarantine_after)) {
        quarantine_if_dispensable(step, id, hostname,
                                  fmt::format("began {} failures within {} s", failures,
                                              limits.quarantine_window.count() / 1000));
    }
}

void quarantine_if_dispensable(Step& step, const NodeId& id, const std::string& hostname,
                               const std::string& why) {
    // A node that has just been lost is not among them any more.
    const std::size_t others = step.run.nodes.size() - (step.run.nodes.contains(id) ? 1 : 0);
    if (others >= minimum(step.run)) {
        quarantine(step, id,
                   Quarantine{.until = step.now + step.options.limits.quarantine_cooldown,
                              .hostname = hostname,
                              .why = why});
    }
}

bool quarantine_unfit(Step& step, const NodeId& id, const std::string& hostname,
                      const std::string& why) {
    Quarantine unfit{.until = step.now + step.options.limits.quarantine_cooldown,
                     .hostname = hostname,
                     .why = fmt::format("is not fit ({})", why),
                     .is_unfit = true};
    // A ddprun that is started again and again until it is fit must not fill the timeline.
    const bool is_news = !step.run.quarantined.is_left_out(id, step.now) ||
                         step.run.quarantined.at(id).why != unfit.why;
    return quarantine(step, id, std::move(unfit), is_news) && is_news;
}

bool quarantine_by_order(Step& step, const NodeId& id, const std::string& hostname,
                         const std::string& by, Milliseconds duration) {
    return quarantine(step, id,
                      Quarantine{.until = step.now + duration,
                                 .hostname = hostname,
                                 .why = fmt::format("was put in quarantine by {}", by)});
}

void judge_unfit(Step& step, const std::vector<Unfit>& told) {
    Run& run = step.run;
    for (const Unfit& unfit : told) {
        Node* known = run.nodes.get(unfit.node);
        if (known == nullptr) {
            if (DDP_RULE(quarantine_unfit(step, unfit.node, unfit.hostname, unfit.why),
                         UnfitStrangerForgotten, false)) {
                tell_head(step, text_of(run.quarantined.at(unfit.node), step.now));
            }
        } else if (DDP_RULE(unfit.run_token == run.token && unfit.process == known->info.process,
                            UnfitStrangerBelieved, true)) {
            drop_connection(step, *known, "this node is not fit");
            gone_for_good(step, unfit.node, unfit.why);
        } else {
            trace(step, fmt::format("another ddprun with the name of node {} is not fit",
                                    known->info.hostname));
        }
    }
}

std::size_t usable_count(const Run& run, Instant now) {
    const std::set<NodeId>& ready = run.nodes.ready();
    const std::size_t healthy = run.quarantined.healthy_count(ready, now);
    return healthy >= minimum(run) ? healthy : ready.size();
}

}  // namespace ddprun::rdzv
