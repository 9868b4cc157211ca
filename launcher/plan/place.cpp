#include "launcher/place/place.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/limits.hpp"
#include "launcher/plan/gpus.hpp"
#include "launcher/plan/placement.hpp"
#include "launcher/plan/sections.hpp"
#include "launcher/plan/values.hpp"

namespace ddprun::launcher {

namespace {

/// Any of them says how large the job is, where nodes meet or who this one is: then none of that is
/// taken from the scheduler.
constexpr std::array kSettings = {"nnodes",      "node-unit",   "rdzv-endpoint",
                                  "master-addr", "master-port", "node-rank"};

/// The first of kSettings that is given, or --standalone, as the user wrote it; empty: none.
std::string setting_of(const CommandLine& line) {
    if (line.is_on("standalone")) {
        return "--standalone";
    }
    for (const char* name : kSettings) {
        const std::optional<Given> given = line.value(name);
        if (given && !given->value.empty()) {
            return given->shown();
        }
    }
    return {};
}

Error refusal(std::string text) {
    return Error{ErrorCode::InvalidArgument, std::move(text)};
}

std::string plural(int number, std::string_view what) {
    return fmt::format("{} {}{}", number, what, number == 1 ? "" : "s");
}

/// How many GPUs a program that is started here sees, where a variable of the scheduler says it;
/// the driver is not asked, which would take longer than all the rest.
std::optional<int> gpus_shown(const Surroundings& surroundings) {
    for (const char* name : {"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"}) {
        if (const std::optional<std::string> list = surroundings.variable(name)) {
            return static_cast<int>(visible_gpus(std::nullopt, list).size());
        }
    }
    return std::nullopt;
}

int gpus_usable(const Place& place, const Surroundings& surroundings) {
    const int given = *place.gpus;
    return std::min(given, gpus_shown(surroundings).value_or(given));
}

/// All CPUs that are on, of this machine.
int cpus_of_machine(const Surroundings& surroundings) {
    const std::string online =
        surroundings.read_file("/sys/devices/system/cpu/online").value_or("");
    const std::optional<std::vector<int>> list = parse_cpu_list(online);
    return list ? static_cast<int>(list->size()) : 0;
}

/// The flags to add if the place does not give the number of nodes, or where they meet.
std::string flags_untold(const Place& place) {
    return fmt::format("--nnodes {} --rdzv-endpoint {}:{}",
                       place.nodes == 0 ? "N" : fmt::format("{}", place.nodes),
                       place.endpoint_host.empty() ? "HOST" : place.endpoint_host, kRendezvousPort);
}

/// Nodes are several, or may be, and cannot find each other from the place alone.
bool lacks_meeting(const Place& place) {
    return place.nodes == 0 || (place.nodes > 1 && place.endpoint_host.empty());
}

Error ask_for_meeting(const Place& place) {
    const std::string untold = place.nodes == 0
                                   ? "does not tell how many nodes it has"
                                   : fmt::format("has {}, and does not tell where they can meet",
                                                 plural(place.nodes, "node"));
    const std::string others =
        place.tasks_here == 1 ? "" : fmt::format(", {} ddprun on this one", place.tasks_here);
    const std::string line = place.tasks_here == 1
                                 ? "add " + flags_untold(place)
                                 : fmt::format("start one on each: {} ddprun {} ...",
                                               place.start_line, flags_untold(place));
    const std::string host = place.endpoint_host.empty() ? ", where HOST is one of them" : "";
    return refusal(
        fmt::format("{} {}{}; {}, the same on every node{} (--standalone for this node "
                    "alone)",
                    place.job, untold, others, line, host));
}

/// One ddprun for each worker, as other launchers want it: what the first one of a node cannot use
/// is lost to all workers there, because it starts them.
Result<void> check_task(const Place& place, const Surroundings& surroundings) {
    const auto allowed = static_cast<int>(surroundings.allowed_cpus().size());
    std::string lacking;
    if (place.tasks_id.empty()) {
        lacking = "does not know which one it is";
    } else if (place.gpus && gpus_usable(place, surroundings) < *place.gpus) {
        lacking = fmt::format("sees {} of {}", gpus_usable(place, surroundings),
                              plural(*place.gpus, "GPU"));
    } else if (place.cpus && allowed < *place.cpus) {
        lacking = fmt::format("may use {} of {}", allowed, plural(*place.cpus, "CPU"));
    }
    if (lacking.empty()) {
        return {};
    }
    return refusal(
        fmt::format("{} has {} on this node, and each {}; one ddprun starts all workers "
                    "of a node: {} ...",
                    place.job, plural(place.tasks_here, "task"), lacking, start_command(place)));
}

/// --spare-nodes: how many of the scheduler's nodes wait. The others are the job's size.
Result<int> spares_of(const Place& place, const CommandLine& line) {
    const std::optional<Given> given = line.value("spare-nodes");
    if (!given || given->value.empty()) {
        return 0;
    }
    const Result<int> spares =
        parse_whole_number(*given, {.least = 0, .most = static_cast<int>(Limits{}.nodes_max) - 1});
    if (spares && *spares >= place.nodes) {
        return bad_value(*given, fmt::format("{} has {}, and none would be left to train; ask the "
                                             "scheduler for more than {}, or for fewer spares",
                                             place.job, plural(place.nodes, "node"), *spares));
    }
    return spares;
}

/// Without a scheduler's nodes there is nothing that spares are a part of.
void warn_of_spares(const CommandLine& line, const std::string& setting, LaunchPlan& plan) {
    const std::optional<Given> given = line.value("spare-nodes");
    if (given && !given->value.empty() && given->value != "0") {
        plan.warnings.push_back(fmt::format(
            "{} has no effect{}: nodes beyond --nnodes are spares anyway", given->shown(),
            setting.empty() ? " without a scheduler" : fmt::format(" beside {}", setting)));
    }
}

/// The scheduler's nodes, rank and endpoint, none of which the user has set.
Result<void> use(const Place& place, const CommandLine& line, const Surroundings& surroundings,
                 LaunchPlan& plan) {
    if (!place.is_on_every_node && (place.nodes > 1 || !place.is_on_node)) {
        return refusal(fmt::format(
            "{} has {}, and {}; start ddprun on each: {} ... (--standalone for {} alone)",
            place.job, plural(place.nodes, "node"),
            place.is_on_node ? "this is started on one of them only" : "this machine is none",
            start_command(place), place.is_on_node ? "this node" : "this machine"));
    }
    if (lacks_meeting(place)) {
        return ask_for_meeting(place);
    }
    if (place.tasks_here > 1) {
        if (Result<void> checked = check_task(place, surroundings); !checked) {
            return checked;
        }
    }
    const Result<int> spares = spares_of(place, line);
    if (!spares) {
        return spares.error();
    }
    plan.identity().settings.min_nodes = place.nodes - *spares;
    plan.identity().settings.max_nodes = place.nodes - *spares;
    plan.takes_place = true;
    return {};
}

/// The user has said something of nodes, rank or endpoint, but not how many nodes: that is one.
Result<void> check_world(const Place& place, const CommandLine& line, const std::string& setting) {
    const std::optional<Given> nnodes = line.value("nnodes");
    if (place.nodes == 1 || line.is_on("standalone") || (nnodes && !nnodes->value.empty())) {
        return {};
    }
    const std::string nodes = place.nodes == 0 ? "N" : fmt::format("{}", place.nodes);
    return refusal(
        fmt::format("{0} has {1} nodes, but with {2} nothing is taken from it, and --nnodes is 1: "
                    "each node would be a job of its own; {3}add --nnodes {1} and "
                    "--rdzv-endpoint, or --nnodes 1 if that is meant",
                    place.job, nodes, setting,
                    lacks_meeting(place) ? "" : fmt::format("leave {} out, or ", setting)));
}

/// "16 launchers of --nnodes 2": the flags of torchrun in a step that has a task for each GPU.
Result<void> check_launchers(const Place& place, const CommandLine& line, const LaunchPlan& plan) {
    const int most = plan.identity().settings.max_nodes;
    if (plan.takes_place || place.tasks_here == 1 || most == 1 || most >= place.tasks) {
        return {};
    }
    return refusal(fmt::format(
        "{}, but {} starts {} ddprun, {} on this node; start one on each node: {} ...{}",
        line.value("nnodes")->shown(), place.job, place.tasks, place.tasks_here,
        start_command(place),
        lacks_meeting(place) ? "" : ", which needs neither --nnodes nor an endpoint"));
}

/// Only the first ddprun of a job speaks for what is alike on all nodes.
bool is_first(const Place& place) {
    return place.node_rank == 0 && place.task_here == 0;
}

void note_found(const Place& place, bool takes_gpus, LaunchPlan& plan) {
    std::string text = place.job;
    const char* separator = ": ";
    const auto add = [&](const std::string& part) {
        text += std::exchange(separator, ", ") + part;
    };
    if (plan.takes_place) {
        const int spares = place.nodes - plan.identity().settings.max_nodes;
        add(plural(plan.identity().settings.max_nodes, "node") +
            (spares == 0 ? "" : " and " + plural(spares, "spare")));
    }
    if (plan.takes_place && place.nodes > 1) {
        add(fmt::format("endpoint {}:{}", place.endpoint_host, place.endpoint_port));
    }
    if (takes_gpus) {
        add(plural(plan.identity().slots, "GPU") + " here");
    }
    if (place.restarts > 0) {
        add(fmt::format("started again {}", plural(place.restarts, "time")));
    }
    plan.notes.push_back(std::move(text));
}

/// srun gives one CPU where nothing is asked for, whatever the job has; mpirun binds to one.
void warn_of_cpus(const Place& place, const Surroundings& surroundings, LaunchPlan& plan) {
    const auto allowed = static_cast<int>(surroundings.allowed_cpus().size());
    const int of_job = place.cpus.value_or(0);
    const int all = of_job > allowed ? of_job : cpus_of_machine(surroundings);
    const bool are_few = allowed == 1 || allowed < plan.identity().slots || allowed * 2 <= of_job;
    if (are_few && allowed < all && !place.cpus_flag.empty()) {
        const bool takes_number = place.cpus_flag.ends_with('=');
        plan.warnings.push_back(
            fmt::format("{} of {} CPUs allowed: add {}{} to {}", allowed, all, place.cpus_flag,
                        takes_number ? fmt::format("{}", all) : "",
                        place.start_line.substr(0, place.start_line.find(' '))));
    }
}

}  // namespace

Result<void> take_place(const CommandLine& line, const Surroundings& surroundings,
                        LaunchPlan& plan) {
    const std::string setting = setting_of(line);
    if (const std::optional<Given> given = line.value("place"); given && !given->value.empty()) {
        const Result<std::size_t> choice = parse_choice(*given, {"auto", "none"});
        if (!choice) {
            return choice.error();
        }
        if (*choice == 1) {
            warn_of_spares(line, setting, plan);
            return {};
        }
    }
    Result<std::optional<Place>> place = find_place(surroundings);
    if (!place) {
        // A user who has set all by hand need not care for what the scheduler says.
        return setting.empty()
                   ? Result<void>(refusal(place.error().what +
                                          "; --place none starts without the scheduler"))
                   : Result<void>{};
    }
    plan.place = *std::move(place);
    if (plan.place && setting.empty()) {
        return use(*plan.place, line, surroundings, plan);
    }
    warn_of_spares(line, setting, plan);
    return plan.place ? check_world(*plan.place, line, setting) : Result<void>{};
}

Result<void> take_place_slots(const CommandLine& line, const Surroundings& surroundings,
                              LaunchPlan& plan) {
    if (!plan.place) {
        return {};
    }
    const Place& place = *plan.place;
    if (Result<void> checked = check_launchers(place, line, plan); !checked) {
        return checked;
    }
    const std::optional<Given> given = line.value("nproc-per-node");
    // Several ddprun on a node that the user has set up by hand would each take all GPUs.
    const bool is_default = !given && (plan.takes_place || place.tasks_here == 1);
    bool takes_gpus = false;
    if (is_default) {
        const std::optional<int> gpus =
            place.gpus ? gpus_usable(place, surroundings) : usable_gpus(surroundings, false);
        takes_gpus = gpus.value_or(0) > 0;
        plan.identity().slots = takes_gpus ? std::min(*gpus, Limits{}.slots_max) : place.tasks_here;
    }
    if (!is_first(place)) {
        return {};
    }
    if (plan.takes_place || takes_gpus) {
        note_found(place, takes_gpus, plan);
    }
    if (place.is_on_every_node) {
        warn_of_cpus(place, surroundings, plan);
    }
    return {};
}

}  // namespace ddprun::launcher
