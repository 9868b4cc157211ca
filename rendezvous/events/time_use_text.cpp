#include <chrono>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/printable.hpp"
#include "rendezvous/events/time_use.hpp"

namespace ddprun::rdzv {

namespace {

using nlohmann::ordered_json;

std::int64_t milliseconds(Duration time) {
    return std::chrono::duration_cast<Milliseconds>(time).count();
}

std::string took_text(Duration time) {
    const double seconds = std::chrono::duration<double>(time).count();
    return seconds < 1 ? fmt::format("{:.0f} ms", seconds * 1000)
                       : fmt::format("{:.1f} s", seconds);
}

double percent(Duration part, Duration whole) {
    return whole == Duration::zero() ? 0
                                     : 100 * std::chrono::duration<double>(part).count() /
                                           std::chrono::duration<double>(whole).count();
}

}  // namespace

std::string shares_text(const TimeShares& shares) {
    const Duration whole = shares.whole();
    std::string text =
        fmt::format("{} {:.1f} % of {}{}", shares.is_estimated ? "at work" : "training",
                    percent(shares.training, whole), took_text(whole),
                    shares.is_estimated ? " (estimated: no steps are told)" : "");
    const auto add = [&](std::string_view name, Duration part) {
        if (part > Duration::zero()) {
            text += fmt::format(", {} {}", name, took_text(part));
        }
    };
    add("of that redone about", shares.redone);
    add("checkpointing", shares.checkpointing);
    add("starting", shares.starting);
    add("restarting", shares.restarting);
    add("waiting for nodes", shares.waiting);
    return text;
}

std::string restart_text(const Restart& restart) {
    Duration whole{};
    for (const RestartPhase& phase : restart.phases) {
        whole += phase.took;
    }
    std::string text =
        restart.to == Generation()
            ? fmt::format("after generation {}, {} so far", restart.from.value(), took_text(whole))
            : fmt::format("generation {} to {}, {}", restart.from.value(), restart.to.value(),
                          took_text(whole));
    std::string_view before = ": ";
    for (const RestartPhase& phase : restart.phases) {
        text += fmt::format("{}{} {}{}", before, phase.name, phase.is_estimated ? "~" : "",
                            took_text(phase.took));
        before = ", ";
    }
    if (!restart.cause.empty()) {
        text += "; " + printable(restart.cause, std::string::npos);
    }
    return text;
}

ordered_json time_use_json(const TimeUse& use, Instant now, Milliseconds unix_now) {
    const TimeShares shares = use.shares(now);
    ordered_json object = {{"whole_ms", milliseconds(shares.whole())},
                           {"training_ms", milliseconds(shares.training)},
                           {"redone_ms", milliseconds(shares.redone)},
                           {"checkpointing_ms", milliseconds(shares.checkpointing)},
                           {"starting_ms", milliseconds(shares.starting)},
                           {"restarting_ms", milliseconds(shares.restarting)},
                           {"waiting_ms", milliseconds(shares.waiting)},
                           {"generations", shares.generations},
                           {"estimated", shares.is_estimated},
                           {"text", shares_text(shares)},
                           {"restarts", ordered_json::array()}};
    for (const Restart& restart : use.restarts(now)) {
        ordered_json phases = ordered_json::array();
        for (const RestartPhase& phase : restart.phases) {
            phases.push_back({{"name", phase.name}, {"ms", milliseconds(phase.took)}});
            if (phase.is_estimated) {
                phases.back()["estimated"] = true;
            }
        }
        const Milliseconds ago = std::chrono::duration_cast<Milliseconds>(now - restart.at);
        ordered_json one = {{"time", utc_text(unix_now - ago)}, {"from", restart.from.value()},
                            {"cause", restart.cause},           {"over", restart.is_over},
                            {"phases", std::move(phases)},      {"text", restart_text(restart)}};
        if (restart.to != Generation()) {
            one["to"] = restart.to.value();
        }
        object["restarts"].push_back(std::move(one));
    }
    return object;
}

}  // namespace ddprun::rdzv
