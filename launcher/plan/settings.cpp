#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <string_view>

#include <fmt/format.h>

#include "base/limits.hpp"
#include "launcher/plan/sections.hpp"
#include "launcher/plan/values.hpp"

namespace ddprun::launcher {

namespace {

constexpr int kBudgetMax = 1'000'000;

/// Keys of --rdzv-conf that have an effect.
constexpr std::array<std::string_view, 6> kUsedKeys = {
    "last_call_timeout", "join_timeout", "grow_delay",
    "failure_grace",     "lost_timeout", "max_node_losses",
};

/// torchrun's keys that change nothing here.
struct UnusedKey {
    std::string_view name;
    std::string_view why;
};

constexpr std::string_view kLease =
    "a silent node is lost when its lease of one second ends, whatever is set";
constexpr std::string_view kEtcd = "only etcd needs it, and ddprun brings its own rendezvous";

constexpr std::array kUnusedKeys = {
    UnusedKey{"timeout", "join_timeout is how long nodes are awaited"},
    UnusedKey{"close_timeout", "a run is closed at once"},
    UnusedKey{"heartbeat_timeout", kLease},
    UnusedKey{"keep_alive_interval", kLease},
    UnusedKey{"keep_alive_max_attempt", kLease},
    UnusedKey{"read_timeout", "no store is read to form a group"},
    UnusedKey{"is_host", "the machine that owns the endpoint's address serves it"},
    UnusedKey{"rank", "the flag --node-rank says it"},
    UnusedKey{"etcd_prefix", kEtcd},
    UnusedKey{"protocol", kEtcd},
    UnusedKey{"ssl_cert", kEtcd},
    UnusedKey{"ssl_cert_key", kEtcd},
    UnusedKey{"ca_cert", kEtcd},
    UnusedKey{"cert", kEtcd},
    UnusedKey{"key", kEtcd},
    UnusedKey{"cacert", kEtcd},
};

std::string known_keys() {
    std::string names = fmt::format("{}", fmt::join(kUsedKeys, ", "));
    for (const UnusedKey& key : kUnusedKeys) {
        names += fmt::format(", {}", key.name);
    }
    return names + ", store_type";
}

using Conf = std::map<std::string, Given>;

Result<Conf> read_conf(const CommandLine& line, LaunchPlan& plan) {
    const std::optional<Given> given = line.value("rdzv-conf");
    if (!given || given->value.empty()) {
        return Conf{};
    }
    Result<Conf> conf = parse_key_values(*given);
    if (!conf) {
        return conf;
    }
    for (const auto& [key, entry] : *conf) {
        const auto unused =
            std::find_if(kUnusedKeys.begin(), kUnusedKeys.end(),
                         [&key = key](const UnusedKey& it) { return it.name == key; });
        if (unused != kUnusedKeys.end()) {
            plan.warnings.push_back(
                fmt::format("{} has no effect: {}", entry.shown(), unused->why));
        } else if (key == "store_type") {
            if (entry.value != "tcp") {
                return bad_value(entry, "ddprun serves its rendezvous over TCP; leave it out");
            }
        } else if (std::find(kUsedKeys.begin(), kUsedKeys.end(), key) == kUsedKeys.end()) {
            return bad_value(entry, fmt::format("unknown key; known are {}", known_keys()));
        }
    }
    return conf;
}

/// The flag wins over the key of the same meaning; an empty name is no flag or no key.
std::optional<Given> pick(const CommandLine& line, std::string_view flag, const Conf& conf,
                          const std::string& key) {
    std::optional<Given> given = line.value(flag);
    if (given) {
        return given;
    }
    const auto found = conf.find(key);
    return found == conf.end() ? std::nullopt : std::optional<Given>{found->second};
}

/// --node-unit: the bounds are moved to the multiples between them.
Result<void> take_node_unit(const CommandLine& line, LaunchPlan& plan) {
    const std::optional<Given> given = line.value("node-unit");
    if (!given) {
        return {};
    }
    const auto nodes_max = static_cast<int>(Limits{}.nodes_max);
    const Result<int> unit = parse_whole_number(*given, {.least = 1, .most = nodes_max});
    if (!unit) {
        return unit.error();
    }
    rdzv::JobSettings& settings = plan.settings;
    const std::optional<Given> nodes = line.value("nnodes");
    const std::string shown = nodes ? nodes->shown() : "--nnodes 1";
    if (*unit == 1) {
        return {};
    }
    if (!settings.node_sizes.empty()) {
        return bad_value(*given,
                         fmt::format("{} lists the sizes already; leave one of both out", shown));
    }
    if (*unit > settings.max_nodes) {
        return bad_value(*given,
                         fmt::format("larger than {}, so no number of nodes would do; write "
                                     "--nnodes {}, or leave it out",
                                     shown, *unit));
    }
    const int most = settings.max_nodes / *unit * *unit;
    if (most < settings.min_nodes) {
        return bad_value(
            *given, fmt::format("{} has no multiple of it; write --nnodes {} or --nnodes {}", shown,
                                most, most + *unit));
    }
    settings.node_unit = *unit;
    settings.min_nodes = (settings.min_nodes + *unit - 1) / *unit * *unit;
    settings.max_nodes = most;
    return {};
}

Result<void> take_nodes(const CommandLine& line, LaunchPlan& plan) {
    const std::optional<Given> given = line.value("nnodes");
    if (!given) {
        return {};
    }
    const Result<NodeCounts> counts = parse_nnodes(*given);
    if (!counts) {
        return counts.error();
    }
    const auto nodes_max = static_cast<int>(Limits{}.nodes_max);
    if (counts->most > nodes_max) {
        return bad_value(*given, fmt::format("at most {} nodes are possible", nodes_max));
    }
    plan.settings.min_nodes = counts->least;
    plan.settings.max_nodes = counts->most;
    plan.settings.node_sizes = counts->sizes;
    return {};
}

Result<void> take_budgets(const CommandLine& line, const Conf& conf, LaunchPlan& plan) {
    if (const std::optional<Given> given = line.value("max-restarts")) {
        const Result<int> number = parse_whole_number(*given, {.least = 0, .most = kBudgetMax});
        if (!number) {
            return number.error();
        }
        plan.settings.max_restarts = *number;
    }
    if (const std::optional<Given> given = pick(line, "max-node-losses", conf, "max_node_losses")) {
        const Result<int> number = parse_whole_number(*given, {.least = 0, .most = kBudgetMax});
        if (!number) {
            return number.error();
        }
        plan.settings.max_node_losses = *number;
    }
    if (const std::optional<Given> given = line.value("max-restarts-at-step")) {
        const Result<int> number = parse_whole_number(*given, {.least = 0, .most = kBudgetMax});
        if (!number) {
            return number.error();
        }
        plan.settings.max_restarts_at_step = *number;
    }
    if (const std::optional<Given> given = line.value("grow")) {
        const Result<std::size_t> choice = parse_choice(*given, {"auto", "never"});
        if (!choice) {
            return choice.error();
        }
        plan.settings.grow = *choice == 0;
    }
    return {};
}

Result<void> take_same(const CommandLine& line, LaunchPlan& plan) {
    const std::optional<Given> given = line.value("same");
    if (!given) {
        return {};
    }
    const Result<std::size_t> choice = parse_choice(*given, {"warn", "strict", "off"});
    if (!choice) {
        return choice.error();
    }
    constexpr std::array kChoices = {rdzv::Sameness::Warn, rdzv::Sameness::Strict,
                                     rdzv::Sameness::Off};
    plan.settings.same = kChoices.at(*choice);
    return {};
}

Result<void> take_hang_timeout(const CommandLine& line, LaunchPlan& plan) {
    const std::optional<Given> given = line.value("hang-timeout");
    if (!given) {
        return {};
    }
    plan.settings.learns_hang_timeout = given->value == "auto";
    if (plan.settings.learns_hang_timeout) {
        return {};
    }
    const Result<Milliseconds> seconds = parse_seconds(*given);
    if (!seconds) {
        return bad_value(*given, "it must be auto or a number of seconds; 0 is never");
    }
    constexpr Milliseconds kLeast = Limits{}.hang_timeout_min;
    if (*seconds > Milliseconds::zero() && *seconds < kLeast) {
        return bad_value(*given, fmt::format("it must be at least {} s; 0 is never",
                                             std::chrono::duration<double>(kLeast).count()));
    }
    plan.settings.hang_timeout = *seconds;
    return {};
}

Result<void> take_hang_notice(const CommandLine& line, LaunchPlan& plan) {
    if (const std::optional<Given> given = line.value("hang-notice")) {
        const Result<Milliseconds> seconds = parse_seconds(*given);
        if (!seconds) {
            return bad_value(*given, "it must be a number of seconds; 0 is never");
        }
        plan.hang_notice = *seconds;
    }
    return {};
}

/// torchrun's own variable for the default of --shutdown-timeout.
std::optional<Given> shutdown_timeout(const CommandLine& line, const Surroundings& surroundings) {
    constexpr char kVariable[] = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT";
    std::optional<Given> given = line.value("shutdown-timeout");
    const std::optional<std::string> variable = surroundings.variable(kVariable);
    if (!given && variable && !variable->empty()) {
        given = Given{kVariable, *variable};
    }
    return given;
}

Result<void> take_times(const CommandLine& line, const Surroundings& surroundings, const Conf& conf,
                        LaunchPlan& plan) {
    constexpr Milliseconds kNone{0};
    constexpr Milliseconds kSome{1};  // an end to wait for must lie ahead
    const std::optional<Given> grace = pick(line, "failure-grace", conf, "failure_grace");
    const std::optional<Given> lost = pick(line, "rdzv-lost-timeout", conf, "lost_timeout");
    Milliseconds lost_timeout{0};
    struct Time {
        std::optional<Given> given;
        Milliseconds least;
        Milliseconds* target;
    };
    const std::array times = {
        Time{pick(line, {}, conf, "last_call_timeout"), kNone, &plan.settings.patience},
        Time{pick(line, {}, conf, "join_timeout"), kSome, &plan.settings.join_timeout},
        Time{pick(line, {}, conf, "grow_delay"), kNone, &plan.settings.grow_delay},
        Time{grace, kNone, &plan.settings.failure_grace},
        Time{shutdown_timeout(line, surroundings), kNone, &plan.settings.shutdown_timeout},
        Time{lost, kSome, &lost_timeout},
    };
    for (const Time& time : times) {
        if (!time.given) {
            continue;
        }
        const Result<Milliseconds> seconds = parse_seconds(*time.given, time.least);
        if (!seconds) {
            return seconds.error();
        }
        *time.target = *seconds;
    }
    if (lost) {
        plan.rendezvous_lost_timeout = lost_timeout;
    }
    if (plan.settings.failure_grace > plan.settings.shutdown_timeout) {
        plan.settings.failure_grace = plan.settings.shutdown_timeout;
        if (grace) {
            plan.warnings.push_back(fmt::format(
                "{} is cut to the shutdown timeout of {:g} s: after a failure nobody waits longer",
                grace->shown(),
                std::chrono::duration<double>{plan.settings.shutdown_timeout}.count()));
        }
    }
    return {};
}

}  // namespace

Result<void> take_settings(const CommandLine& line, const Surroundings& surroundings,
                           LaunchPlan& plan) {
    if (Result<void> taken = take_nodes(line, plan); !taken) {
        return taken;
    }
    if (Result<void> taken = take_node_unit(line, plan); !taken) {
        return taken;
    }
    const Result<Conf> conf = read_conf(line, plan);
    if (!conf) {
        return conf.error();
    }
    if (Result<void> taken = take_budgets(line, *conf, plan); !taken) {
        return taken;
    }
    if (Result<void> taken = take_same(line, plan); !taken) {
        return taken;
    }
    if (Result<void> taken = take_hang_timeout(line, plan); !taken) {
        return taken;
    }
    if (Result<void> taken = take_hang_notice(line, plan); !taken) {
        return taken;
    }
    return take_times(line, surroundings, *conf, plan);
}

}  // namespace ddprun::launcher
