#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launcher/plan/sections.hpp"

namespace ddprun::launcher {

namespace {

/// Workers can meet over it.
bool is_usable(const NetworkInterface& interface) {
    return interface.is_up && !interface.addresses.empty();
}

std::string list_of_usable(const std::vector<NetworkInterface>& interfaces) {
    std::vector<std::string> texts;
    for (const NetworkInterface& one : interfaces) {
        if (is_usable(one)) {
            texts.push_back(fmt::format("{} ({})", one.name, one.addresses.front()));
        }
    }
    return texts.empty() ? "none" : fmt::format("{}", fmt::join(texts, ", "));
}

/// Empty: `name` is one that workers can meet over.
std::string fault_of(const std::string& name, const std::vector<NetworkInterface>& interfaces) {
    const auto found = std::find_if(interfaces.begin(), interfaces.end(),
                                    [&](const NetworkInterface& one) { return one.name == name; });
    return found == interfaces.end()  ? "this machine has no such interface"
           : !found->is_up            ? "it is down"
           : found->addresses.empty() ? "it has no IP address"
                                      : "";
}

/// A variable that the user has set stays; the environment counts as typed by the user.
bool may_set(const Surroundings& surroundings, const char* variable, const Given& given,
             LaunchPlan& plan) {
    const std::optional<std::string> set = surroundings.variable(variable);
    if (set && !set->empty()) {
        plan.notes.push_back(
            fmt::format("{}: {} is set already, to {}, and stays", given.shown(), variable, *set));
    }
    return !set || set->empty();
}

}  // namespace

Result<void> take_interface(const CommandLine& line, const Surroundings& surroundings,
                            LaunchPlan& plan) {
    const std::optional<Given> given = line.value("ifname");
    if (!given || given->value.empty()) {
        return {};
    }
    agent::InterfaceChoice choice;
    choice.follows_link = given->value == "auto";
    if (!choice.follows_link) {
        choice.name = given->value;
        const std::vector<NetworkInterface> interfaces = surroundings.interfaces();
        if (const std::string fault = fault_of(choice.name, interfaces); !fault.empty()) {
            return Error{
                ErrorCode::InvalidArgument,
                fmt::format("{}: {}; those that are up: {}; or let it be chosen, --ifname auto",
                            given->shown(), fault, list_of_usable(interfaces))};
        }
    }
    choice.sets_nccl = may_set(surroundings, "NCCL_SOCKET_IFNAME", *given, plan);
    choice.sets_gloo = may_set(surroundings, "GLOO_SOCKET_IFNAME", *given, plan);
    plan.agent.supervisor.interface = std::move(choice);
    return {};
}

}  // namespace ddprun::launcher
