// Goal: a command line becomes a plan that the rendezvous accepts, or one line that says what is
// wrong. Method: the input holds arguments, and variables with a `$` in front, with NULs in
// between; the Join that a plan leads to must survive the codec.
#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/check.hpp"
#include "launcher/plan/make_plan.hpp"
#include "launcher/surroundings/surroundings.hpp"
#include "rendezvous/wire/codec.hpp"
#include "rendezvous/wire/node_sizes.hpp"
#include "tests/fuzz/choices.hpp"
#include "worker_runtime/contract/exit_codes.hpp"

namespace ddprun::launcher {

namespace {

class MadeUpSurroundings final : public Surroundings {
public:
    std::map<std::string, std::string> variables{{"PATH", "/usr/bin"}};

    std::optional<std::string> variable(const std::string& name) const override {
        const auto found = variables.find(name);
        return found == variables.end() ? std::nullopt : std::optional(found->second);
    }
    bool exists(const std::string& path) const override {
        return path == "train.py" || path == "secret" || is_directory(path) ||
               is_executable_file(path);
    }
    bool is_directory(const std::string& path) const override { return path == "/tmp"; }
    bool is_executable_file(const std::string& path) const override {
        return path == "/usr/bin/python3" || path == "/usr/bin/true";
    }
    std::string working_directory() const override { return "/home/user"; }
    std::string own_folder() const override { return "/usr/bin"; }
    std::string started_folder() const override { return "/usr/bin"; }
    bool is_shared(const std::string& /*folder*/) const override { return false; }
    bool is_same_folder(const std::string& a, const std::string& b) const override {
        return a == b;
    }
    std::vector<NetworkInterface> interfaces() const override {
        return {{.name = "eth0", .is_up = true, .addresses = {"10.0.0.7"}}};
    }
    unsigned user_id() const override { return 1000; }
    bool is_at_terminal() const override { return true; }
    std::vector<std::string> names_in(const std::string& /*folder*/) const override { return {}; }
    std::optional<std::string> read_file(const std::string& /*path*/) const override { return {}; }
    std::optional<std::string> read_text(const std::string& /*path*/) const override {
        return "--local_rank";
    }
    std::string host_name() const override { return "here"; }
    std::vector<int> allowed_cpus() const override { return {0, 1, 2, 3, 4, 5}; }
    std::optional<std::vector<Gpu>> gpus_of_nvml() const override {
        return std::vector<Gpu>{{"GPU-a", "", {"MIG-b"}}, {"GPU-c", "", {}}};
    }
    Result<Topology> topology() const override {
        Topology machine;
        for (int i = 0; i < 8; ++i) {
            machine.cpus.push_back({i, i < 6, i / 2 * 2, i / 4 * 4, i / 4, 0});
        }
        return machine;
    }
};

bool is_one_line(std::string_view text) {
    return !text.empty() && std::none_of(text.begin(), text.end(), [](char c) {
        return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
    });
}

/// Returns the message that an agent with this plan sends first.
rdzv::Join join_of(const LaunchPlan& plan) {
    rdzv::Join join;
    join.job = plan.identity().job.value().empty() ? JobId("random") : plan.identity().job;
    join.node = plan.identity().node.value().empty() ? NodeId("derived") : plan.identity().node;
    join.slots = plan.identity().slots;
    join.role = plan.identity().role;
    join.node_rank = plan.identity().node_rank;
    join.store = {plan.agent.supervisor.store_host, plan.master_port};
    join.settings = plan.identity().settings;
    return join;
}

void check_plan(const LaunchPlan& plan) {
    const rdzv::AgentMessage join = join_of(plan);
    const Result<rdzv::AgentMessage> arrived = rdzv::decode_agent_message(rdzv::encode(join), {});
    DDP_CHECK(arrived.has_value(), arrived.has_value() ? std::string() : arrived.error().what);
    DDP_CHECK(*arrived == join, rdzv::encode(join));
    DDP_CHECK(rdzv::are_sizes_sound(plan.identity().settings),
              rdzv::nnodes_of(plan.identity().settings));
    DDP_CHECK(!plan.identity().node_rank ||
                  *plan.identity().node_rank < plan.identity().settings.max_nodes,
              plan.identity().node_rank.value_or(0));
    DDP_CHECK(plan.identity().settings.failure_grace <= plan.identity().settings.shutdown_timeout);
    DDP_CHECK(plan.is_single_node || plan.endpoint_port != 0, plan.endpoint_host);
    DDP_CHECK(plan.is_single_node || is_one_line(plan.endpoint_host), plan.endpoint_host);
    DDP_CHECK(plan.is_single_node == plan.endpoint_host.empty(), plan.endpoint_host);
    DDP_CHECK(!plan.is_single_node || plan.identity().settings.max_nodes == 1,
              plan.identity().settings.max_nodes);
    DDP_CHECK(plan.log_dir.empty() || plan.log_dir.front() == '/', plan.log_dir);
    DDP_CHECK(!plan.agent.supervisor.command.empty() &&
              MadeUpSurroundings().is_executable_file(plan.agent.supervisor.command.front()));
    for (const auto& [rank, console] : plan.agent.output.console) {
        DDP_CHECK(rank >= 0 && rank < plan.identity().slots, rank, plan.identity().slots);
    }
}

void run(fuzz::Choices& choices) {
    MadeUpSurroundings surroundings;
    std::vector<std::string> arguments;
    while (!choices.is_empty()) {
        std::string_view part = choices.up_to('\0');
        if (!part.starts_with('$')) {
            arguments.emplace_back(part);
            continue;
        }
        part.remove_prefix(1);
        const std::size_t equals = std::min(part.find('='), part.size());
        surroundings.variables[std::string(part.substr(0, equals))] =
            part.substr(std::min(equals + 1, part.size()));
    }
    const PlanOutcome outcome = make_plan(arguments, surroundings);
    if (const auto* error = std::get_if<UsageError>(&outcome)) {
        DDP_CHECK(is_one_line(error->line), error->line);
        DDP_CHECK(error->exit_code == kExitUsage || error->exit_code == kExitNotExecutable ||
                      error->exit_code == kExitNotFound,
                  error->exit_code);
    } else if (const auto* text = std::get_if<ShowText>(&outcome)) {
        DDP_CHECK(text->text.ends_with('\n'));
    } else {
        check_plan(std::get<LaunchPlan>(outcome));
    }
}

}  // namespace

}  // namespace ddprun::launcher

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    ddprun::fuzz::Choices choices(data, size);
    ddprun::launcher::run(choices);
    return 0;
}
