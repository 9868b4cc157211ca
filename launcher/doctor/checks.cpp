#include "launcher/doctor/checks.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "agent/warm/standby_slots.hpp"
#include "base/limits.hpp"
#include "launcher/plan/rendezvous_port.hpp"

namespace ddprun::launcher {

namespace {

constexpr std::uint64_t kOpenFilesGood = 4096;
constexpr std::uint64_t kOpenFilesBad = 256;
constexpr std::uint64_t kBacklogGood = 1024;
constexpr std::uint64_t kSharedMemoryGood = std::uint64_t{1} << 30;
constexpr std::uint64_t kMebibyte = std::uint64_t{1} << 20;
constexpr int kOutgoingPortsGood = 10'000;
/// An idle GPU has less in use: what the driver keeps.
constexpr std::uint64_t kGpuMemoryUsedGood = std::uint64_t{2} << 30;

Finding unknown(std::string_view check, std::string what) {
    return {check, CheckResult::Unknown, std::move(what), {}};
}

Finding good(std::string_view check, std::string what) {
    return {check, CheckResult::Good, std::move(what), {}};
}

Finding doubtful(std::string_view check, std::string what, std::string todo) {
    return {check, CheckResult::Doubtful, std::move(what), std::move(todo)};
}

Finding check_open_files(const MachineFacts& facts) {
    constexpr std::string_view kName = "open files";
    if (!facts.open_files || !facts.open_files_most) {
        return unknown(kName, "the limit cannot be read");
    }
    Finding finding = good(kName, fmt::format("a worker may open {}, ddprun {}", *facts.open_files,
                                              *facts.open_files_most));
    if (*facts.open_files < kOpenFilesGood) {
        finding.result =
            *facts.open_files < kOpenFilesBad ? CheckResult::Bad : CheckResult::Doubtful;
        finding.todo = fmt::format(
            "data loaders and NCCL open hundreds per worker: ulimit -n {} before ddprun",
            std::min(*facts.open_files_most, kOpenFilesGood * 16));
    }
    return finding;
}

Finding check_backlog(const MachineFacts& facts) {
    constexpr std::string_view kName = "listen backlog";
    if (!facts.listen_backlog) {
        return unknown(kName, "net.core.somaxconn cannot be read");
    }
    std::string what = fmt::format("net.core.somaxconn is {}", *facts.listen_backlog);
    return *facts.listen_backlog >= kBacklogGood
               ? good(kName, std::move(what))
               : doubtful(kName, std::move(what),
                          "so many workers can reach the store of the first node at once: sysctl "
                          "net.core.somaxconn=4096");
}

Finding check_shared_memory(const MachineFacts& facts) {
    constexpr std::string_view kName = "shared memory";
    if (!facts.shared_memory_bytes) {
        return unknown(kName, "the size of /dev/shm cannot be read");
    }
    const std::uint64_t bytes = *facts.shared_memory_bytes;
    const std::uint64_t free = facts.shared_memory_free_bytes.value_or(bytes);
    if (bytes == 0) {
        return {kName, CheckResult::Bad, "there is no /dev/shm",
                "data loaders and NCCL need it: mount a tmpfs there"};
    }
    std::string what =
        fmt::format("/dev/shm has {} MiB, {} MiB of it free", bytes / kMebibyte, free / kMebibyte);
    if (free >= kSharedMemoryGood) {
        return good(kName, std::move(what));
    }
    return doubtful(kName, std::move(what),
                    bytes < kSharedMemoryGood
                        ? "data loaders and NCCL die of SIGBUS when it is full: start the "
                          "container with --shm-size=8g or --ipc=host"
                        : "somebody has left files there: ls -l /dev/shm");
}

/// Checks the memory by which --warm prepares standbys.
Finding check_memory(const MachineFacts& facts) {
    constexpr std::string_view kName = "memory";
    if (!facts.memory) {
        return unknown(kName, "its size cannot be read");
    }
    const auto reserve = static_cast<std::uint64_t>(Limits{}.standby_memory_reserve);
    const std::uint64_t kept = facts.memory->total / 100 * reserve;
    const std::uint64_t room = facts.memory->free - std::min(facts.memory->free, kept);
    const std::uint64_t standbys = room / agent::kStandbyWithTorchBytes;
    std::string what =
        fmt::format("{} of {} MiB are free: room for {} standbys of --warm with torch, {} MiB each",
                    facts.memory->free / kMebibyte, facts.memory->total / kMebibyte, standbys,
                    agent::kStandbyWithTorchBytes / kMebibyte);
    return standbys > 0 ? good(kName, std::move(what))
                        : doubtful(kName, std::move(what),
                                   "workers may be killed for memory, and --warm auto prepares no "
                                   "standby: see what has it, or raise the limit of the container");
}

Finding check_clock(const MachineFacts& facts) {
    constexpr std::string_view kName = "clock";
    if (!facts.is_clock_synchronised) {
        return unknown(kName, "the kernel does not tell whether it is synchronised");
    }
    return *facts.is_clock_synchronised
               ? good(kName, "synchronised")
               : doubtful(kName, "not synchronised",
                          "times in logs of several nodes will not compare, and certificates may "
                          "be refused: run chrony or ntp");
}

bool is_loopback(const std::string& address) {
    return address.starts_with("127.") || address == "::1";
}

Finding check_interfaces(const MachineFacts& facts) {
    constexpr std::string_view kName = "interfaces";
    std::string names;
    for (const NetworkInterface& interface : facts.interfaces) {
        for (const std::string& address : interface.addresses) {
            if (interface.is_up && !interface.is_loopback) {
                names += fmt::format("{}{} {}", names.empty() ? "" : ", ", interface.name, address);
            }
        }
    }
    return !names.empty()
               ? good(kName, names)
               : doubtful(kName, "none is up but loopback",
                          "no other node can reach this one; a single node is all that works");
}

/// PyTorch's Gloo binds to what the host's name resolves to: to loopback no other node connects.
Finding check_hostname(const MachineFacts& facts) {
    constexpr std::string_view kName = "host name";
    if (facts.hostname_addresses.empty()) {
        return doubtful(kName, fmt::format("{} does not resolve", facts.hostname),
                        "Gloo looks for it: add it to /etc/hosts, or set GLOO_SOCKET_IFNAME");
    }
    const bool is_reachable =
        !std::all_of(facts.hostname_addresses.begin(), facts.hostname_addresses.end(), is_loopback);
    std::string what =
        fmt::format("{} resolves to {}", facts.hostname, fmt::join(facts.hostname_addresses, ", "));
    return is_reachable ? good(kName, std::move(what))
                        : doubtful(kName, std::move(what),
                                   "with several nodes Gloo would wait there for the others: set "
                                   "GLOO_SOCKET_IFNAME, or its line in /etc/hosts");
}

Finding check_cpus(const MachineFacts& facts) {
    constexpr std::string_view kName = "CPUs";
    if (!facts.cpus_allowed || !facts.cpus_present) {
        return unknown(kName, "their number cannot be read");
    }
    Finding finding =
        good(kName, fmt::format("{} of {} may be used", *facts.cpus_allowed, *facts.cpus_present));
    if (*facts.cpus_allowed < *facts.cpus_present) {
        finding.result = CheckResult::Doubtful;
        finding.todo =
            "if that is not meant: look at taskset -p $$, the container's cpuset, and what the "
            "batch system was asked for";
    }
    if (facts.cpu_quota && *facts.cpu_quota < *facts.cpus_allowed) {
        finding.result = CheckResult::Doubtful;
        finding.what += fmt::format(", for {:.3g} CPUs' worth of time", *facts.cpu_quota);
        finding.todo =
            "a cgroup's quota stops all threads when it is used up: ask for more, or "
            "start fewer threads";
    }
    return finding;
}

Finding check_cgroups(const MachineFacts& facts) {
    constexpr std::string_view kName = "cgroups";
    if (!facts.cgroup_refusal) {
        return unknown(kName, "not tried");
    }
    return facts.cgroup_refusal->empty()
               ? good(kName, "one can be made for the workers")
               : doubtful(kName, *facts.cgroup_refusal,
                          "the keeper alone contains the workers; systemd-run --user --scope -p "
                          "Delegate=yes gives a cgroup");
}

/// Only who asks for one needs it.
Finding check_namespaces(const MachineFacts& facts) {
    constexpr std::string_view kName = "PID namespaces";
    if (!facts.namespace_refusal) {
        return unknown(kName, "not tried");
    }
    return good(
        kName,
        facts.namespace_refusal->empty()
            ? "--containment pid-namespace can be had"
            : fmt::format("--containment pid-namespace cannot be had, nothing else needs one: {}",
                          *facts.namespace_refusal));
}

Finding check_py_spy(const MachineFacts& facts) {
    constexpr std::string_view kName = "py-spy";
    if (facts.python.empty()) {
        return unknown(kName, "no Python was found, so no stacks of Python are shown");
    }
    return facts.py_spy.empty()
               ? doubtful(kName,
                          fmt::format("missing beside {} and in PATH: of a Python worker that "
                                      "hangs only native stacks are shown",
                                      facts.python),
                          fmt::format("{} -m pip install py-spy", facts.python))
               : good(kName, fmt::format("{} shows Python's stacks", facts.py_spy));
}

Finding check_ports(const MachineFacts& facts) {
    constexpr std::string_view kName = "ports";
    if (!facts.outgoing_ports || !facts.is_rendezvous_port_free) {
        return unknown(kName, "which are free cannot be read");
    }
    const bool is_free = *facts.is_rendezvous_port_free;
    std::string what =
        fmt::format("{} for outgoing connections; {}, where nodes meet, is {}",
                    *facts.outgoing_ports, kRendezvousPort, is_free ? "free" : "taken");
    if (*facts.outgoing_ports < kOutgoingPortsGood) {
        return doubtful(kName, std::move(what),
                        "many ranks open thousands of connections: sysctl -w "
                        "net.ipv4.ip_local_port_range='32768 60999'");
    }
    return is_free ? good(kName, std::move(what))
                   : doubtful(kName, std::move(what),
                              "fine if that is a rendezvous of yours (ss -ltnp tells); else "
                              "--rdzv-endpoint HOST:PORT");
}

Finding look_at_gpu(std::string_view check, std::size_t index, const GpuHealth& gpu) {
    if (gpu.uuid.empty()) {
        return {check, CheckResult::Bad, fmt::format("GPU {} does not answer", index),
                "look for Xid in dmesg: it has to be reset, or the machine started again"};
    }
    const std::string name = fmt::format("GPU {} ({})", index, gpu.uuid);
    if (gpu.has_failed_remap.value_or(false)) {
        return {check, CheckResult::Bad, name + " has bad memory that could not be replaced",
                "take it out of service"};
    }
    if (gpu.uncorrected_errors.value_or(0) > 0) {
        return {check, CheckResult::Bad,
                fmt::format("{} had {} uncorrected memory errors", name, *gpu.uncorrected_errors),
                "reset it before the next job: nvidia-smi --gpu-reset"};
    }
    if (gpu.has_pending_remap.value_or(false)) {
        return doubtful(check, name + " has bad memory that a reset will replace",
                        "when it is idle: nvidia-smi --gpu-reset");
    }
    if (gpu.memory_used_bytes.value_or(0) > kGpuMemoryUsedGood) {
        return doubtful(
            check,
            fmt::format("{} has {} of {} MiB in use", name, *gpu.memory_used_bytes / kMebibyte,
                        gpu.memory_bytes.value_or(0) / kMebibyte),
            "if no job of yours runs: nvidia-smi lists whose it is");
    }
    return good(check, {});
}

Finding check_gpus(const MachineFacts& facts) {
    constexpr std::string_view kName = "GPUs";
    if (!facts.gpus) {
        return unknown(kName, "no driver of NVIDIA tells how they are");
    }
    Finding worst = good(kName, fmt::format("{}, healthy and not in use", facts.gpus->size()));
    for (std::size_t i = 0; i < facts.gpus->size(); ++i) {
        Finding found = look_at_gpu(kName, i, (*facts.gpus)[i]);
        if (found.result == CheckResult::Good) {
            continue;
        }
        if (worst.result == found.result) {
            worst.what += "; " + found.what;
        } else if (worst.result != CheckResult::Bad) {
            worst = std::move(found);
        }
    }
    return worst;
}

}  // namespace

std::string_view name_of(CheckResult result) {
    constexpr std::array<std::string_view, 4> kNames = {"good", "doubtful", "bad", "unknown"};
    return kNames.at(static_cast<std::size_t>(result));
}

std::vector<Finding> check_machine(const MachineFacts& facts) {
    return {check_open_files(facts), check_backlog(facts),    check_shared_memory(facts),
            check_clock(facts),      check_interfaces(facts), check_hostname(facts),
            check_ports(facts),      check_cpus(facts),       check_gpus(facts),
            check_cgroups(facts),    check_namespaces(facts), check_memory(facts),
            check_py_spy(facts)};
}

}  // namespace ddprun::launcher
