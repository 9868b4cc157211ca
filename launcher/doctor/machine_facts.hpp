#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/memory_room.hpp"
#include "base/network_interface.hpp"
#include "launcher/surroundings/gpu.hpp"

namespace ddprun::launcher {

/// The facts that the checks of `ddpctl doctor` read. A fact that could not be read is none.
struct MachineFacts {
    std::optional<std::uint64_t> open_files;       ///< soft limit, which workers get
    std::optional<std::uint64_t> open_files_most;  ///< hard limit, to which ddprun raises its own
    std::optional<std::uint64_t> listen_backlog;   ///< net.core.somaxconn
    std::optional<std::uint64_t> shared_memory_bytes;  ///< size of /dev/shm; 0: there is none
    std::optional<std::uint64_t> shared_memory_free_bytes;
    std::optional<bool> is_clock_synchronised;
    std::vector<NetworkInterface> interfaces;
    std::string hostname;
    std::vector<std::string> hostname_addresses;  ///< what it resolves to; empty: nothing
    std::optional<int> cpus_allowed;
    std::optional<int> cpus_present;
    std::optional<MemoryRoom> memory;
    std::optional<double> cpu_quota;    ///< CPUs' worth of time; none: no bound, or unknown
    std::optional<int> outgoing_ports;  ///< net.ipv4.ip_local_port_range
    std::optional<bool> is_rendezvous_port_free;
    std::optional<std::vector<GpuHealth>> gpus;  ///< none: no driver of NVIDIA answers
    /// Why no cgroup can be made for workers; empty: one can.
    std::optional<std::string> cgroup_refusal;
    /// The same of a PID namespace.
    std::optional<std::string> namespace_refusal;
    std::string python;  ///< runs scripts under ddprun; empty: none was found
    std::string py_spy;  ///< beside that Python or in PATH; empty: none
};

}  // namespace ddprun::launcher
