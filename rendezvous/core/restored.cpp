#include "rendezvous/core/restored.hpp"

#include <algorithm>
#include <utility>

#include "rendezvous/core/publish.hpp"
#include "rendezvous/core/step.hpp"

namespace ddprun::rdzv {

namespace {

// Nothing was decided while no node was here: no time has passed for what was recorded.
void set_forward(Forming& forming, Duration by) {
    forming.since += by;
    forming.give_up_at += by;
}

void set_forward(Running& running, Duration by) {
    running.since += by;
}

void set_forward(Stopping& stopping, Duration by) {
    stopping.since += by;
    stopping.give_up_at += by;
}

}  // namespace

Restored restored_at(Instant now, std::variant<Forming, Running, Stopping> recorded,
                     const Limits& limits) {
    return Restored{.since = now,
                    .strangers_wait_until = now + limits.reconnect_grace,
                    .kept_until = now + limits.restored_run_kept,
                    .recorded = std::move(recorded)};
}

void leave_restored(Step& step) {
    Run& run = step.run;
    Restored restored = std::get<Restored>(run.phase);
    std::visit(
        [&](auto& recorded) {
            set_forward(recorded, step.now - restored.since);
            become(run, std::move(recorded));
        },
        restored.recorded);
    publish(step, EventKind::Restored,
            {{"nodes", static_cast<std::int64_t>(run.nodes.size())},
             {"runs", std::holds_alternative<Running>(run.phase)}});
    run.returns_until = step.now + step.options.limits.reconnect_grace;
    run.doubt.until = run.returns_until;  // also of those who come and are cut off again
    run.explain_at = step.now + step.options.limits.explain_every;
    for (const auto& [id, node] : run.nodes) {
        run.nodes.at(id).last_heard = step.now;
        run.nodes.set_lease(id, run.returns_until);
    }
}

bool is_given_up(const Run& run, const Restored& restored, Instant now) {
    return now >= restored.kept_until ||
           (now >= restored.strangers_wait_until && !run.parked.empty());
}

Instant deadline_of(const Run& run, const Restored& restored) {
    return run.parked.empty() ? restored.kept_until
                              : std::min(restored.strangers_wait_until, restored.kept_until);
}

void prolong(Restored& restored, Duration by) {
    restored.strangers_wait_until += by;
    restored.kept_until += by;
}

}  // namespace ddprun::rdzv
