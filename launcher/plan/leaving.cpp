// When this node has to be gone.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "launcher/plan/path_lookup.hpp"
#include "launcher/plan/sections.hpp"
#include "launcher/plan/values.hpp"

namespace ddprun::launcher {

namespace {

/// The default grace of a pod. terminationGracePeriodSeconds changes it; the pod cannot read that.
constexpr Milliseconds kPodsGrace{30000};

std::optional<Milliseconds> usual_kill_wait(const Surroundings& surroundings,
                                            const LaunchPlan& plan) {
    if (plan.place && plan.place->kill_wait) {
        return plan.place->kill_wait;
    }
    const bool is_pod = !surroundings.variable("KUBERNETES_SERVICE_HOST").value_or("").empty();
    return is_pod ? std::optional(kPodsGrace) : std::nullopt;
}

/// If the user set `--shutdown-timeout`, no kill delay is assumed.
Result<void> take_kill_wait(const CommandLine& line, const Surroundings& surroundings,
                            LaunchPlan& plan) {
    const std::optional<Given> given = line.value("kill-wait");
    if (!given) {
        const bool is_usual =
            plan.identity().settings.shutdown_timeout == rdzv::JobSettings{}.shutdown_timeout;
        plan.agent.supervisor.kill_wait =
            is_usual ? usual_kill_wait(surroundings, plan) : std::nullopt;
        return {};
    }
    const Result<Milliseconds> seconds = parse_seconds(*given);
    if (!seconds) {
        return seconds.error();
    }
    plan.agent.supervisor.kill_wait =
        *seconds == Milliseconds::zero() ? std::nullopt : std::optional(*seconds);
    return {};
}

/// As the SDKs of AWS are told it: http://HOST[:PORT], another address for IPv6.
Result<rdzv::Endpoint> metadata_server(const Surroundings& surroundings) {
    constexpr char kVariable[] = "AWS_EC2_METADATA_SERVICE_ENDPOINT";
    constexpr std::uint16_t kHttp = 80;
    Given given{kVariable, surroundings.variable(kVariable).value_or("")};
    if (given.value.empty()) {
        const std::string mode =
            surroundings.variable("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE").value_or("");
        const bool is_ipv6 = mode == "IPv6" || mode == "ipv6";
        return rdzv::Endpoint{is_ipv6 ? "fd00:ec2::254" : "169.254.169.254", kHttp};
    }
    constexpr std::string_view kScheme = "http://";
    Given server{given.shown(), given.value};
    if (!server.value.starts_with(kScheme)) {
        return bad_value(given, "must be http://HOST or http://HOST:PORT");
    }
    server.value.erase(0, kScheme.size());
    if (server.value.ends_with('/')) {
        server.value.pop_back();
    }
    const Result<HostAndPort> parts = parse_host_and_port(server);
    if (!parts) {
        return bad_value(given, "must be http://HOST or http://HOST:PORT");
    }
    return rdzv::Endpoint{parts->host, parts->port.value_or(kHttp)};
}

Result<agent::DrainSource> drain_source(const Given& given, const std::string& word,
                                        const Surroundings& surroundings) {
    const auto behind = [&word](std::string_view kind) {
        return word.starts_with(kind) ? word.substr(kind.size()) : std::string();
    };
    if (word == "aws") {
        const Result<rdzv::Endpoint> server = metadata_server(surroundings);
        if (!server) {
            return server.error();
        }
        return agent::DrainSource{agent::DrainOnAws{*server}};
    }
    if (std::string path = behind("file:"); !path.empty() && !path.ends_with('/')) {
        const bool is_whole = path.starts_with('/');
        return agent::DrainSource{agent::DrainOnFile{
            is_whole ? path : fmt::format("{}/{}", surroundings.working_directory(), path)}};
    }
    if (std::string command = behind("cmd:"); !command.empty()) {
        return agent::DrainSource{agent::DrainOnCommand{std::move(command)}};
    }
    return bad_value(given, fmt::format("'{}' is none of aws, file:PATH, cmd:COMMAND", word));
}

/// A command may have commas: it is the last one.
Result<void> take_drain_on(const CommandLine& line, const Surroundings& surroundings,
                           LaunchPlan& plan) {
    const std::optional<Given> given = line.value("drain-on");
    if (!given || given->value.empty()) {
        return {};
    }
    std::string_view rest = given->value;
    for (bool is_last = false; !is_last;) {
        const std::size_t end = rest.starts_with("cmd:") ? std::string_view::npos : rest.find(',');
        const Result<agent::DrainSource> source =
            drain_source(*given, std::string(rest.substr(0, end)), surroundings);
        if (!source) {
            return source.error();
        }
        plan.agent.drain_on.push_back(*source);
        is_last = end == std::string_view::npos;
        rest.remove_prefix(is_last ? rest.size() : end + 1);
    }
    return {};
}

/// That Slurm would refuse it is found out later, by asking.
Result<void> take_requeue(const CommandLine& line, const Surroundings& surroundings,
                          LaunchPlan& plan) {
    constexpr int kMost = 1'000'000;
    const std::optional<Given> given = line.value("requeue");
    if (!given) {
        return {};
    }
    const Result<int> number = parse_whole_number(*given, {.least = 0, .most = kMost});
    if (!number || *number == 0) {
        return number ? Result<void>() : Result<void>(number.error());
    }
    const std::optional<std::string> job = surroundings.variable("SLURM_JOB_ID");
    const bool is_in_slurm = plan.place && !job.value_or("").empty();
    const std::optional<std::string> scontrol =
        look_up_in_path("scontrol", surroundings).executable;
    if (is_in_slurm && scontrol) {
        plan.requeues = *number;
        plan.scontrol = *scontrol;
        plan.slurm_job = *job;
    } else if (!is_in_slurm || (plan.place->node_rank == 0 && plan.place->task_here == 0)) {
        plan.warnings.push_back(fmt::format(
            "{} has no effect: {}", given->shown(),
            is_in_slurm ? "there is no scontrol in PATH, which asks Slurm for it; in a container, "
                          "mount it with its configuration and munge's socket"
                        : "this is no job of Slurm; start it with sbatch"));
    }
    return {};
}

}  // namespace

Result<void> take_leaving(const CommandLine& line, const Surroundings& surroundings,
                          LaunchPlan& plan) {
    if (Result<void> taken = take_kill_wait(line, surroundings, plan); !taken) {
        return taken;
    }
    if (Result<void> taken = take_drain_on(line, surroundings, plan); !taken) {
        return taken;
    }
    return take_requeue(line, surroundings, plan);
}

}  // namespace ddprun::launcher
