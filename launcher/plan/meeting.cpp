#include <algorithm>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/limits.hpp"
#include "launcher/plan/rendezvous_port.hpp"
#include "launcher/plan/sections.hpp"
#include "launcher/plan/values.hpp"
#include "rendezvous/wire/endpoint.hpp"

namespace ddprun::launcher {

namespace {

/// Given and not empty: an empty variable of a shell script asks for nothing.
std::optional<Given> value_if_any(const CommandLine& line, std::string_view flag) {
    std::optional<Given> given = line.value(flag);
    return given && given->value.empty() ? std::nullopt : given;
}

Result<void> check_backend(const CommandLine& line) {
    const std::optional<Given> given = line.value("rdzv-backend");
    if (!given || given->value == "c10d" || given->value == "static") {
        return {};
    }
    if (given->value == "etcd" || given->value == "etcd-v2") {
        return bad_value(*given,
                         "ddprun brings its own rendezvous and needs no etcd; leave the "
                         "flag out, and give --rdzv-endpoint HOST:29400 with one of the "
                         "nodes as HOST");
    }
    return bad_value(*given, "must be c10d or static, which both mean ddprun's own rendezvous");
}

/// --standalone: one node, whatever else says where nodes meet.
Result<void> stand_alone(const CommandLine& line, LaunchPlan& plan) {
    if (plan.identity().settings.min_nodes > 1) {
        return Error{
            ErrorCode::InvalidArgument,
            fmt::format("--standalone is for one node, but {} asks for {}; leave one out",
                        line.value("nnodes")->shown(), plan.identity().settings.min_nodes)};
    }
    if (plan.identity().settings.max_nodes > 1) {
        plan.identity().settings.max_nodes = 1;
        plan.identity().settings.node_sizes.clear();
        plan.warnings.push_back(fmt::format("{} has no effect: --standalone is for one node",
                                            line.value("nnodes")->shown()));
    }
    if (const std::optional<Given> endpoint = value_if_any(line, "rdzv-endpoint")) {
        plan.warnings.push_back(fmt::format(
            "{} has no effect: with --standalone this machine stays alone", endpoint->shown()));
    }
    return {};
}

/// "h1:29400,h2,h3": daemons of which one leads. The first is taken as if it were alone.
Result<Given> take_other_endpoints(const Given& given, LaunchPlan& plan) {
    const std::vector<std::string_view> all = split(given.value, ',');
    for (std::size_t i = 1; i < all.size(); ++i) {
        const Given next{given.source, std::string(all[i])};
        const Result<HostAndPort> endpoint = parse_host_and_port(next);
        if (!endpoint) {
            return endpoint.error();
        }
        const std::uint16_t port = endpoint->port.value_or(kRendezvousPort);
        if (port == 0) {
            return bad_value(next, "port 0 is none that can be found; write HOST:PORT");
        }
        plan.other_endpoints.push_back({endpoint->host, port});
    }
    return Given{given.source, std::string(all.front())};
}

Result<void> meet_at_endpoint(const Given& all, LaunchPlan& plan) {
    const Result<Given> one = take_other_endpoints(all, plan);
    if (!one) {
        return one.error();
    }
    const Given& given = *one;
    const Result<HostAndPort> endpoint = parse_host_and_port(given);
    if (!endpoint) {
        return endpoint.error();
    }
    const std::uint16_t port = endpoint->port.value_or(kRendezvousPort);
    if (port == 0) {
        // torchrun's way to say "any free port", which only a single node can use.
        if (plan.identity().settings.max_nodes > 1) {
            return bad_value(given,
                             fmt::format("port 0 would be another one on every node; write {}",
                                         rdzv::to_string({endpoint->host, kRendezvousPort})));
        }
        return {};
    }
    plan.is_single_node = false;
    plan.endpoint_host = endpoint->host;
    plan.endpoint_port = port;
    if (plan.master_port == port) {
        plan.master_port = 0;
        plan.warnings.push_back(
            fmt::format("--master-port {} is the port of {} too: the workers' store takes a free "
                        "port",
                        port, given.shown()));
    }
    return {};
}

/// torchrun's static way: nodes meet at `host`, the node of rank 0, and the workers' store is on
/// the same port.
void meet_statically(const std::string& host, LaunchPlan& plan) {
    if (plan.identity().settings.max_nodes == 1) {
        plan.agent.supervisor.store_host = host;
        return;
    }
    plan.is_single_node = false;
    plan.endpoint_host = host;
    if (plan.master_port != 0) {
        plan.endpoint_port = std::exchange(plan.master_port, std::uint16_t{0});
        plan.agent.supervisor.is_store_at_rendezvous = true;
    }
}

Result<void> meet_at_static_endpoint(const Given& given, LaunchPlan& plan) {
    const Result<HostAndPort> endpoint = parse_host_and_port(given);
    if (!endpoint) {
        return endpoint.error();
    }
    plan.master_port = endpoint->port.value_or(plan.master_port);
    meet_statically(endpoint->host, plan);
    return {};
}

Result<void> meet_at_master(const Given& given, LaunchPlan& plan) {
    // Without a port behind it an IPv6 address needs no brackets.
    const bool is_bare_ipv6 = !given.value.starts_with('[') &&
                              std::count(given.value.begin(), given.value.end(), ':') > 1;
    const Given bracketed{given.source, is_bare_ipv6 ? "[" + given.value + "]" : given.value};
    const Result<HostAndPort> endpoint = parse_host_and_port(bracketed);
    if (!endpoint) {
        return endpoint.error();
    }
    if (endpoint->port) {
        return bad_value(given, fmt::format("is a host without a port; write --master-addr {} "
                                            "--master-port {}",
                                            endpoint->host, *endpoint->port));
    }
    meet_statically(endpoint->host, plan);
    return {};
}

/// Nodes meet at the scheduler's first node; one node needs no place to meet.
void meet_at_place(const Place& place, LaunchPlan& plan) {
    if (place.nodes == 1) {
        return;
    }
    plan.is_single_node = false;
    plan.endpoint_host = place.endpoint_host;
    plan.endpoint_port = place.endpoint_port;
    plan.identity().node_rank = place.node_rank;
}

Result<void> choose_place(const CommandLine& line, LaunchPlan& plan) {
    if (const std::optional<Given> port = value_if_any(line, "master-port")) {
        const Result<int> number = parse_whole_number(*port, {.least = 0, .most = 65535});
        if (!number) {
            return number.error();
        }
        plan.master_port = static_cast<std::uint16_t>(*number);
    }
    if (line.is_on("standalone")) {
        return stand_alone(line, plan);
    }
    if (Result<void> checked = check_backend(line); !checked) {
        return checked;
    }
    if (plan.takes_place) {
        meet_at_place(*plan.place, plan);
        return {};
    }
    if (const std::optional<Given> endpoint = value_if_any(line, "rdzv-endpoint")) {
        const std::optional<Given> backend = line.value("rdzv-backend");
        // Several are daemons that a site runs: nothing about them is torchrun's.
        const bool is_static =
            backend && backend->value == "static" && endpoint->value.find(',') == std::string::npos;
        return is_static ? meet_at_static_endpoint(*endpoint, plan)
                         : meet_at_endpoint(*endpoint, plan);
    }
    const std::optional<Given> master = value_if_any(line, "master-addr");
    if (master && (plan.identity().settings.max_nodes > 1 || plan.master_port != 0)) {
        return meet_at_master(*master, plan);
    }
    if (plan.identity().settings.max_nodes == 1) {
        return {};
    }
    return bad_value(*line.value("nnodes"),
                     fmt::format("several nodes need a place to meet; add --rdzv-endpoint HOST:{}, "
                                 "the same on every node, where HOST is one of them",
                                 kRendezvousPort));
}

/// Whether torchrun would take its static way, on which workers always share the launcher's store.
bool is_static(const CommandLine& line, const LaunchPlan& plan) {
    const std::optional<Given> backend = line.value("rdzv-backend");
    if (line.is_on("standalone") || plan.takes_place || (backend && backend->value != "static")) {
        return false;
    }
    if (value_if_any(line, "rdzv-endpoint")) {
        return backend.has_value();
    }
    return plan.identity().settings.max_nodes > 1 || value_if_any(line, "master-port").has_value();
}

/// Whether rank 0's worker serves the store: a new one each time that it makes its process group.
void leave_store_to_rank_0(const CommandLine& line, const Surroundings& surroundings,
                           LaunchPlan& plan) {
    constexpr const char* kVariable = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE";
    if (surroundings.variable(kVariable).value_or("") != "1") {
        return;
    }
    const auto without_effect = [&](std::string_view why) {
        plan.warnings.push_back(fmt::format("{}=1 has no effect: {}", kVariable, why));
    };
    if (const std::optional<Given> store = value_if_any(line, "store")) {
        without_effect(store->shown() + " says who serves the workers' store");
    } else if (is_static(line, plan)) {
        without_effect(
            "static nodes share the launcher's store, under torchrun too; give --rdzv-backend "
            "c10d and --rdzv-endpoint");
    } else {
        plan.agent.supervisor.is_store_of_rank_0 = true;
        if (std::exchange(plan.agent.supervisor.relays_store, false)) {
            plan.warnings.push_back(
                fmt::format("{} has no effect: with {}=1 rank 0 serves the workers' store",
                            line.value("store-relay")->shown(), kVariable));
        }
    }
}

/// Whose port the workers' store is on, and whom it answers.
Result<void> choose_store(const CommandLine& line, LaunchPlan& plan) {
    if (const std::optional<Given> given = value_if_any(line, "store-admit")) {
        const Result<std::size_t> choice = parse_choice(*given, {"members", "any"});
        if (!choice) {
            return choice.error();
        }
        plan.identity().settings.store_admits_any = *choice == 1;
    }
    if (const std::optional<Given> given = value_if_any(line, "store-relay")) {
        const Result<std::size_t> choice = parse_choice(*given, {"off", "on"});
        if (!choice) {
            return choice.error();
        }
        plan.agent.supervisor.relays_store = *choice == 1 && !plan.is_single_node;
        if (*choice == 1 && plan.is_single_node) {
            plan.warnings.push_back(
                fmt::format("{} has no effect: a single node's store is its own", given->shown()));
        }
    }
    const std::optional<Given> given = value_if_any(line, "store");
    if (!given) {
        return {};
    }
    const Result<std::size_t> choice = parse_choice(*given, {"agent", "daemon"});
    if (!choice) {
        return choice.error();
    }
    plan.agent.supervisor.is_store_at_rendezvous = *choice == 1 && !plan.is_single_node;
    if (*choice == 1 && plan.is_single_node) {
        plan.warnings.push_back(
            fmt::format("{} has no effect: a single node has no rendezvous port", given->shown()));
    } else if (plan.agent.supervisor.is_store_at_rendezvous && plan.master_port != 0) {
        plan.warnings.push_back(
            fmt::format("--master-port {} has no effect: {} means the port of the endpoint",
                        plan.master_port, given->shown()));
        plan.master_port = 0;
    }
    return {};
}

Result<void> name_job(const CommandLine& line, LaunchPlan& plan) {
    // Log folders are called <job>_<8 hex>.
    const std::size_t bytes_max = Limits{}.name_bytes_max - 9;
    std::optional<Given> id = line.value("rdzv-id");
    if (!id && plan.takes_place && !plan.place->job_id.empty()) {
        id = Given{plan.place->job, plan.place->job_id};
    }
    if (id) {
        const Result<std::string> name = parse_name(*id, bytes_max);
        if (!name) {
            return name.error();
        }
        plan.identity().job = JobId{*name};
    } else if (plan.identity().settings.max_nodes > 1) {
        plan.identity().job = JobId{"none"};
        plan.warnings.push_back(
            "no --rdzv-id: the job is called none; two jobs at one endpoint need different names");
    }
    return {};
}

void take_topology(const CommandLine& line, LaunchPlan& plan) {
    if (const std::optional<Given> key = value_if_any(line, "topology")) {
        plan.identity().topology_key = key->value.substr(0, Limits{}.name_bytes_max);
    } else if (plan.place) {
        plan.identity().topology_key = plan.place->topology_key;
    }
}

Result<void> name_node(const CommandLine& line, LaunchPlan& plan) {
    if (const std::optional<Given> id = value_if_any(line, "node-id")) {
        const Result<std::string> name = parse_name(*id, Limits{}.name_bytes_max);
        if (!name) {
            return name.error();
        }
        plan.identity().node = NodeId{*name};
    }
    if (const std::optional<Given> address = value_if_any(line, "local-addr")) {
        if (!is_plain(address->value) || address->value.find_first_of("/,") != std::string::npos ||
            address->value.size() > Limits{}.name_bytes_max) {
            return bad_value(*address, "not a host name or address of this machine");
        }
        plan.agent.supervisor.store_host = address->value;
    }
    if (const std::optional<Given> rank = value_if_any(line, "node-rank")) {
        const int most = plan.identity().settings.max_nodes - 1;
        const Result<int> number = parse_whole_number(*rank, {.least = 0, .most = most});
        if (!number) {
            return bad_value(*rank, fmt::format("must be a whole number from 0 to {}: --nnodes "
                                                "allows {} node{}",
                                                most, most + 1, most == 0 ? "" : "s"));
        }
        plan.identity().node_rank = *number;
    }
    return {};
}

/// The nodes of a scheduler's job share the folder of a home, where all jobs have the same secret.
/// If homes are not shared, the secret is in the job's own folder, if that is shared.
void choose_secret(const Surroundings& surroundings, LaunchPlan& plan) {
    const auto folder_of = [&](const char* name) {
        return surroundings.variable(name).value_or("");
    };
    const std::string config = folder_of("XDG_CONFIG_HOME");
    const std::string home = config.empty() ? folder_of("HOME") : config;
    const std::string here = surroundings.working_directory();
    if (!plan.takes_place || plan.identity().job.value().empty() || surroundings.is_shared(home) ||
        !surroundings.is_shared(here)) {
        return;
    }
    plan.secret_file = fmt::format("{}/.ddprun-secret-{}", here, plan.identity().job.value());
    plan.makes_secret = true;
    plan.removes_secret = plan.identity().node_rank == 0;
    if (plan.removes_secret && plan.place->task_here == 0) {
        plan.notes.push_back(
            fmt::format("homes are not shared: the nodes' secret is {}, until the "
                        "job ends",
                        plan.secret_file));
    }
}

Result<void> take_operator_secret(const CommandLine& line, const Surroundings& surroundings,
                                  LaunchPlan& plan) {
    const std::optional<Given> file = value_if_any(line, "operator-secret-file");
    if (!file || plan.is_single_node) {
        return {};  // there its user is the operator
    }
    if (!surroundings.exists(file->value) || surroundings.is_directory(file->value)) {
        return bad_value(*file,
                         "no such file; make it once, for who may give orders: "
                         "openssl rand -hex 32");
    }
    plan.operator_secret_file = file->value;
    return {};
}

Result<void> take_secret(const CommandLine& line, const Surroundings& surroundings,
                         LaunchPlan& plan) {
    std::optional<Given> file = value_if_any(line, "secret-file");
    if (file && plan.is_insecure) {
        return bad_value(*file, "contradicts --insecure; leave one out");
    }
    if (!file) {
        file =
            Given{"DDPRUN_SECRET_FILE", surroundings.variable("DDPRUN_SECRET_FILE").value_or("")};
    }
    if (plan.is_single_node || plan.is_insecure) {
        return {};
    }
    if (file->value.empty()) {
        choose_secret(surroundings, plan);
        return {};
    }
    if (!surroundings.exists(file->value) || surroundings.is_directory(file->value)) {
        return bad_value(*file,
                         "no such file; copy the secret of another node there, or leave "
                         "this out for ~/.config/ddprun/secret");
    }
    plan.secret_file = file->value;
    return {};
}

}  // namespace

Result<void> take_meeting(const CommandLine& line, const Surroundings& surroundings,
                          LaunchPlan& plan) {
    if (Result<void> taken = choose_place(line, plan); !taken) {
        return taken;
    }
    if (Result<void> taken = choose_store(line, plan); !taken) {
        return taken;
    }
    leave_store_to_rank_0(line, surroundings, plan);
    take_topology(line, plan);
    if (Result<void> taken = name_job(line, plan); !taken) {
        return taken;
    }
    if (Result<void> taken = name_node(line, plan); !taken) {
        return taken;
    }
    if (Result<void> taken = take_operator_secret(line, surroundings, plan); !taken) {
        return taken;
    }
    return take_secret(line, surroundings, plan);
}

}  // namespace ddprun::launcher
