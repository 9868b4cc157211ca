#include "launcher/plan/fills.hpp"

#include <chrono>
#include <csignal>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/limits.hpp"

namespace ddprun::launcher::fill {

Result<void> hang_timeout(const Given& given, LaunchPlan& plan) {
    plan.identity().settings.learns_hang_timeout = given.value == "auto";
    if (plan.identity().settings.learns_hang_timeout) {
        return {};
    }
    const Result<Milliseconds> seconds = parse_seconds(given);
    if (!seconds) {
        return bad_value(given, "it must be auto or a number of seconds; 0 is never");
    }
    constexpr Milliseconds kLeast = Limits{}.hang_timeout_min;
    if (*seconds > Milliseconds::zero() && *seconds < kLeast) {
        return bad_value(given, fmt::format("it must be at least {} s; 0 is never",
                                            std::chrono::duration<double>(kLeast).count()));
    }
    plan.identity().settings.hang_timeout = *seconds;
    return {};
}

Result<void> hang_notice(const Given& given, LaunchPlan& plan) {
    const Result<Milliseconds> seconds = parse_seconds(given);
    if (!seconds) {
        return bad_value(given, "it must be a number of seconds; 0 is never");
    }
    plan.agent.supervisor.hang_notice = *seconds;
    return {};
}

Result<void> signals(const Given& given, LaunchPlan& plan) {
    return write<&LaunchPlan::agent, &agent::AgentOptions::signals_to_handle>(parse_signals(given),
                                                                              plan);
}

Result<void> ignore_hup(const Given& /*given*/, LaunchPlan& plan) {
    plan.ignores_hup = true;
    std::erase(plan.agent.signals_to_handle, SIGHUP);
    return {};
}

Result<void> prepare(const Given& given, LaunchPlan& plan) {
    if (given.value.empty()) {
        return {};
    }
    constexpr std::string_view kOnce = "job:";
    const bool is_once = given.value.starts_with(kOnce);
    plan.identity().prepares = is_once ? rdzv::Prepares::Job : rdzv::Prepares::Node;
    plan.agent.prepare_command = given.value.substr(is_once ? kOnce.size() : 0);
    if (plan.agent.prepare_command.find_first_not_of(' ') == std::string::npos) {
        return bad_value(given,
                         "there is no command; write it for the shell, as in --prepare 'python "
                         "download.py' or --prepare 'job:make data'");
    }
    return {};
}

Result<void> notify(const Given& given, LaunchPlan& plan) {
    if (given.value.find_first_not_of(' ') == std::string::npos) {
        return {};
    }
    Result<agent::NotifyTarget> target = agent::read_notify_target(given.value);
    if (!target) {  // The value may hold a token: no message has it.
        return Error{ErrorCode::InvalidArgument,
                     fmt::format("{}: {}", given.source, target.error().what)};
    }
    plan.agent.notify = *std::move(target);
    return {};
}

/// A given time counts for every rendezvous, also for one that a site keeps running.
Result<void> rendezvous_lost_timeout(const Given& given, LaunchPlan& plan) {
    const Result<Milliseconds> seconds = parse_seconds(given, Milliseconds{1});
    if (!seconds) {
        return seconds.error();
    }
    plan.agent.supervisor.rendezvous_lost_timeout = *seconds;
    plan.agent.supervisor.lasting_rendezvous_lost_timeout = *seconds;
    return {};
}

Result<void> role(const Given& given, LaunchPlan& plan) {
    Result<std::string> name = parse_name(given, Limits{}.name_bytes_max);
    if (!name) {
        return name.error();
    }
    plan.agent.output.role = *name;
    plan.identity().role = *std::move(name);
    return {};
}

}  // namespace ddprun::launcher::fill
