#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/os/own_variable.hpp"
#include "launcher/ctl/peer_check.hpp"
#include "launcher/ctl/verbs/verbs.hpp"
#include "launcher/doctor/doctor_text.hpp"
#include "launcher/doctor/peers.hpp"
#include "launcher/machine/read_machine_facts.hpp"
#include "launcher/machine/real_surroundings.hpp"
#include "launcher/place/host_list.hpp"
#include "launcher/place/place.hpp"
#include "launcher/plan/rendezvous_port.hpp"

namespace ddprun::launcher {

namespace {

struct DoctorOptions {
    bool wants_json = false;
    std::string peers;
    int port = 0;  ///< 0: not given
    double wait_s = 30;
};

/// Reads the hosts that --peers names, or the nodes of a step of Slurm.
Result<PeerCheckOptions> read_peers(const DoctorOptions& asked) {
    const Result<std::optional<Place>> place = find_place(*real_surroundings());
    std::string source = "--peers " + asked.peers;
    std::string list = asked.peers;
    for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"}) {
        if (list.empty()) {
            list = own_variable(name);
            source = fmt::format("{}={}", name, list);
        }
    }
    if (list.empty()) {
        return Error{ErrorCode::InvalidArgument,
                     "--peers: nobody says which nodes; name them, the same list on each: "
                     "--peers gpu-01,gpu-02 or --peers 'gpu-[01-16]'"};
    }
    Result<std::vector<std::string>> hosts = expand_host_list(list);
    if (!hosts) {
        return Error{hosts.error().code, fmt::format("{}: {}", source, hosts.error().what)};
    }
    PeerCheckOptions options{.hosts = *std::move(hosts), .port = kRendezvousPort};
    if (asked.peers.empty() && place && *place) {
        options.self = (*place)->node;
    }
    options.wait = Milliseconds(static_cast<std::int64_t>(asked.wait_s * 1000));
    if (asked.port != 0) {
        options.port = static_cast<std::uint16_t>(asked.port);
    } else if (place && *place && (*place)->endpoint_port != 0) {
        options.port = (*place)->endpoint_port;
    }
    return options;
}

Result<std::vector<Finding>> check_reach(const DoctorOptions& asked) {
    const Result<PeerCheckOptions> options = read_peers(asked);
    if (!options) {
        return options.error();
    }
    const Result<PeersFacts> facts = try_peers(*options);
    if (!facts) {
        return facts.error();
    }
    return check_peers(*facts);
}

int show_findings(const Result<std::vector<Finding>>& findings, bool wants_json) {
    if (!findings) {
        return complain(findings.error());
    }
    fmt::print("{}", wants_json ? doctor_json(*findings) : doctor_text(*findings));
    const bool is_fit =
        std::none_of(findings->begin(), findings->end(),
                     [](const Finding& finding) { return finding.result == CheckResult::Bad; });
    return is_fit ? kExitSuccess : kExitNo;
}

}  // namespace

Action declare_doctor(CLI::App& verb) {
    const auto options = std::make_shared<DoctorOptions>();
    CLI::Option* const peers =
        add_value(verb, "--peers", "[HOSTS]", options->peers,
                  "try to reach these nodes: a,b,c or gpu-[01-16]; default: those of "
                  "Slurm's step")
            ->expected(0, 1);
    add_value(verb, "--port", "N", options->port,
              "the port that all know, of --rdzv-endpoint; default: that of Slurm's step, else "
              "29400")
        ->check(CLI::Range(1, 65535))
        ->needs(peers);
    add_value(verb, "--wait", "SECONDS", options->wait_s,
              "nodes may begin so much later than others; default: 30")
        ->check(CLI::Range(0.001, 86400.0))
        ->needs(peers);
    verb.add_flag("--json", options->wants_json, "everything, as one line of JSON");
    verb.footer(R"(
It checks limits, shared memory, the clock, names, CPUs, cgroup, name spaces,
GPUs, memory, and whether py-spy is there for the stacks of Python. Exit code 1:
something is bad. --peers runs on every node at once, each with the same list:
all try to reach all, at the port that all know and at one that the kernel
chose, and each says whom it cannot reach and who has not reached it.

examples:
  ddpctl doctor
  srun ddpctl doctor --peers                    # on every node of the step
  ddpctl doctor --peers gpu-01,gpu-02           # on gpu-01 and on gpu-02
)");
    return [options, peers] {
        if (peers->count() > 0) {
            return show_findings(check_reach(*options), options->wants_json);
        }
        return show_findings(check_machine(read_machine_facts()), options->wants_json);
    };
}

}  // namespace ddprun::launcher
