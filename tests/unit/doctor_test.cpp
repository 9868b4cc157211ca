#include <map>
#include <string>

#include "launcher/doctor/checks.hpp"
#include "launcher/doctor/peers.hpp"
#include "launcher/machine/read_machine_facts.hpp"
#include "tests/support/catch.hpp"

using namespace ddprun::launcher;

namespace {

GpuHealth healthy_gpu() {
    return {.uuid = "GPU-1",
            .uncorrected_errors = 0,
            .has_failed_remap = false,
            .has_pending_remap = false,
            .memory_bytes = std::uint64_t{80} << 30,
            .memory_used_bytes = std::uint64_t{500} << 20};
}

MachineFacts good_machine() {
    MachineFacts facts;
    facts.open_files = 65536;
    facts.open_files_most = 1048576;
    facts.listen_backlog = 4096;
    facts.shared_memory_bytes = std::uint64_t{64} << 30;
    facts.shared_memory_free_bytes = std::uint64_t{63} << 30;
    facts.is_clock_synchronised = true;
    facts.interfaces = {{"lo", true, true, {"127.0.0.1"}}, {"eth0", true, false, {"10.0.0.7"}}};
    facts.hostname = "gpu-07";
    facts.hostname_addresses = {"10.0.0.7"};
    facts.memory = ddprun::MemoryRoom{std::uint64_t{256} << 30, std::uint64_t{200} << 30};
    facts.cpus_allowed = 64;
    facts.cpus_present = 64;
    facts.outgoing_ports = 28232;
    facts.is_rendezvous_port_free = true;
    facts.gpus = {healthy_gpu(), healthy_gpu()};
    facts.cgroup_refusal = "";
    facts.namespace_refusal = "";
    facts.python = "/venv/bin/python3";
    facts.py_spy = "/venv/bin/py-spy";
    return facts;
}

/// The names of the checks that are not good, with what they found.
std::string wrong_with(const MachineFacts& facts) {
    std::string text;
    for (const Finding& finding : check_machine(facts)) {
        CHECK_FALSE(finding.what.empty());
        const bool needs_nothing =
            finding.result == CheckResult::Good || finding.result == CheckResult::Unknown;
        CHECK(finding.todo.empty() == needs_nothing);
        if (finding.result != CheckResult::Good) {
            text += text.empty() ? "" : "; ";
            text += std::string(finding.check) + " " + std::string(name_of(finding.result));
        }
    }
    return text;
}

}  // namespace

TEST_CASE("nothing is wrong with a good machine, and every check says what it saw") {
    CHECK(wrong_with(good_machine()).empty());
    CHECK(check_machine(good_machine()).size() == 13);
}

TEST_CASE("what could not be read is unknown, not good") {
    CHECK(wrong_with(MachineFacts{}) ==
          "open files unknown; listen backlog unknown; shared memory unknown; clock unknown; "
          "interfaces doubtful; host name doubtful; ports unknown; CPUs unknown; GPUs unknown; "
          "cgroups unknown; PID namespaces unknown; memory unknown; py-spy unknown");
}

TEST_CASE("each thing that jobs run into is found") {
    MachineFacts facts = good_machine();
    SECTION("few descriptors") {
        facts.open_files = 1024;
        CHECK(wrong_with(facts) == "open files doubtful");
        facts.open_files = 64;
        CHECK(wrong_with(facts) == "open files bad");
    }
    SECTION("a short backlog") {
        facts.listen_backlog = 128;
        CHECK(wrong_with(facts) == "listen backlog doubtful");
    }
    SECTION("a container's shared memory") {
        facts.shared_memory_bytes = std::uint64_t{64} << 20;
        facts.shared_memory_free_bytes = std::uint64_t{64} << 20;
        CHECK(wrong_with(facts) == "shared memory doubtful");
        CHECK(check_machine(facts)[2].what == "/dev/shm has 64 MiB, 64 MiB of it free");
        facts.shared_memory_bytes = 0;
        CHECK(wrong_with(facts) == "shared memory bad");
    }
    SECTION("shared memory that others have filled") {
        facts.shared_memory_free_bytes = 0;
        CHECK(wrong_with(facts) == "shared memory doubtful");
        CHECK(check_machine(facts)[2].todo == "somebody has left files there: ls -l /dev/shm");
    }
    SECTION("a clock that runs free") {
        facts.is_clock_synchronised = false;
        CHECK(wrong_with(facts) == "clock doubtful");
    }
    SECTION("no network") {
        facts.interfaces.pop_back();
        CHECK(wrong_with(facts) == "interfaces doubtful");
    }
    SECTION("a host name that leads nowhere else") {
        facts.hostname_addresses = {"127.0.1.1", "::1"};
        CHECK(wrong_with(facts) == "host name doubtful");
        facts.hostname_addresses = {"127.0.1.1", "10.0.0.7"};
        CHECK(wrong_with(facts).empty());
        facts.hostname_addresses.clear();
        CHECK(wrong_with(facts) == "host name doubtful");
    }
    SECTION("fewer CPUs than there are") {
        facts.cpus_allowed = 4;
        CHECK(wrong_with(facts) == "CPUs doubtful");
        CHECK(check_machine(facts)[7].what == "4 of 64 may be used");
    }
    SECTION("a quota") {
        facts.cpu_quota = 2.5;
        CHECK(wrong_with(facts) == "CPUs doubtful");
        CHECK(check_machine(facts)[7].what == "64 of 64 may be used, for 2.5 CPUs' worth of time");
        facts.cpu_quota = 64;
        CHECK(wrong_with(facts).empty());
    }
    SECTION("no cgroup") {
        facts.cgroup_refusal = "cannot make one";
        CHECK(wrong_with(facts) == "cgroups doubtful");
    }
    SECTION("no PID namespace, which only some ask for") {
        facts.namespace_refusal = "not allowed here";
        CHECK(wrong_with(facts).empty());
        CHECK(check_machine(facts)[10].what ==
              "--containment pid-namespace cannot be had, nothing else needs one: not allowed "
              "here");
    }
}

TEST_CASE("ports that are few or taken, and GPUs that are used or ill, are found") {
    MachineFacts facts = good_machine();
    SECTION("few ports") {
        facts.outgoing_ports = 1000;
        CHECK(wrong_with(facts) == "ports doubtful");
    }
    SECTION("a port that somebody has") {
        facts.is_rendezvous_port_free = false;
        CHECK(wrong_with(facts) == "ports doubtful");
        CHECK(check_machine(facts)[6].what ==
              "28232 for outgoing connections; 29400, where nodes meet, is taken");
    }
    SECTION("a GPU that is used") {
        (*facts.gpus)[1].memory_used_bytes = std::uint64_t{61} << 30;
        CHECK(wrong_with(facts) == "GPUs doubtful");
        CHECK(check_machine(facts)[8].what == "GPU 1 (GPU-1) has 62464 of 81920 MiB in use");
    }
    SECTION("GPUs that are ill, of which the worst counts") {
        (*facts.gpus)[0].has_pending_remap = true;
        CHECK(wrong_with(facts) == "GPUs doubtful");
        (*facts.gpus)[1].uncorrected_errors = 2;
        CHECK(wrong_with(facts) == "GPUs bad");
        CHECK(check_machine(facts)[8].what == "GPU 1 (GPU-1) had 2 uncorrected memory errors");
        (*facts.gpus)[0].has_failed_remap = true;
        CHECK(check_machine(facts)[8].what ==
              "GPU 0 (GPU-1) has bad memory that could not be replaced; GPU 1 (GPU-1) had 2 "
              "uncorrected memory errors");
        (*facts.gpus)[0] = GpuHealth{};
        CHECK(wrong_with(facts) == "GPUs bad");
        (*facts.gpus)[0] = GpuHealth{.uuid = "GPU-0"};
        (*facts.gpus)[1] = healthy_gpu();
        CHECK(wrong_with(facts).empty());
    }
}

TEST_CASE("a Python without py-spy is named with the command that installs it") {
    MachineFacts facts = good_machine();
    CHECK(check_machine(facts).back().what == "/venv/bin/py-spy shows Python's stacks");
    facts.py_spy.clear();
    CHECK(wrong_with(facts) == "py-spy doubtful");
    CHECK(check_machine(facts).back().todo == "/venv/bin/python3 -m pip install py-spy");
    facts.python.clear();
    CHECK(wrong_with(facts) == "py-spy unknown");
}

TEST_CASE("this machine is looked at") {
    const MachineFacts facts = read_machine_facts();
    CHECK(facts.open_files.value_or(0) > 0);
    CHECK(facts.cpus_allowed.value_or(0) >= 1);
    CHECK(facts.listen_backlog.value_or(0) > 0);
    CHECK_FALSE(facts.hostname.empty());
    CHECK(facts.cgroup_refusal.has_value());
    CHECK(facts.namespace_refusal.has_value());
    CHECK(facts.outgoing_ports.value_or(0) > 0);
    CHECK(facts.is_rendezvous_port_free.has_value());
    CHECK(check_machine(facts).size() == 13);
}

namespace {

PeerFacts reached_peer(const std::string& host) {
    return {.host = host,
            .address = "10.0.0.2",
            .common = {Reach::Reached},
            .chosen = {Reach::Reached},
            .chosen_port = 40001,
            .came_to_common = true,
            .came_to_chosen = true};
}

std::vector<Finding> findings_of(std::vector<PeerFacts> peers) {
    return check_peers(
        {.self = "gpu-01", .port = 29400, .peers = std::move(peers), .waited_s = 30});
}

}  // namespace

TEST_CASE("nodes that all reach each other are one good finding") {
    const std::vector<Finding> findings = findings_of({reached_peer("gpu-02")});
    REQUIRE(findings.size() == 1);
    CHECK(findings[0].result == CheckResult::Good);
    CHECK(findings[0].what ==
          "gpu-01 and 1 other node reach each other, at port 29400 and at ports that kernels "
          "chose");
}

TEST_CASE("each way that is closed is a finding that names both ends and the port") {
    PeerFacts peer = reached_peer("gpu-02");
    const auto only_finding = [&] {
        const std::vector<Finding> findings = findings_of({reached_peer("gpu-03"), peer});
        REQUIRE(findings.size() == 1);
        CHECK(findings[0].result == CheckResult::Bad);
        return findings[0].what + " -> " + findings[0].todo;
    };
    SECTION("to the chosen port") {
        peer.chosen = {Reach::Refused};
        CHECK(only_finding() ==
              "gpu-01 cannot reach gpu-02 (10.0.0.2) at port 40001, which its kernel chose: "
              "refused -> it runs there, and gpu-02 is heard here: a firewall of gpu-02 or on the "
              "way rejects TCP to port 40001, which its kernel chose; open it for the nodes of "
              "the job");
    }
    SECTION("from there") {
        peer.came_to_chosen = false;
        CHECK(only_finding().starts_with(
            "gpu-02 has not reached gpu-01 at a port that the kernel chose -> "));
    }
    SECTION("nothing is known of it") {
        peer = {.host = "gpu-02", .address = "10.0.0.2", .common = {Reach::Silent}};
        CHECK(only_finding() ==
              "gpu-01 cannot reach gpu-02 (10.0.0.2) at port 29400: nothing answered within 30 s "
              "-> does `ddpctl doctor --peers` run there, with the same list? If it does, a "
              "firewall or a missing route drops TCP from gpu-01 to port 29400");
    }
    SECTION("no name") {
        peer = {.host = "gpu-02"};
        CHECK(only_finding().starts_with("gpu-01 cannot resolve gpu-02 -> "));
    }
}

TEST_CASE("a port that is in use here is the only thing to be said") {
    const std::vector<Finding> findings =
        check_peers({.self = "a", .port = 1, .port_taken = "port 1 is in use", .peers = {{}}});
    REQUIRE(findings.size() == 1);
    CHECK(findings[0].what == "port 1 is in use");
}
