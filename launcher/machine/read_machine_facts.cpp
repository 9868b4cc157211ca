#include "launcher/machine/read_machine_facts.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <unistd.h>

#include <cerrno>
#include <sstream>

#include "agent/process/containment_refusal.hpp"
#include "agent/process/stacks_program.hpp"
#include "base/os/machine_identity.hpp"
#include "base/os/network_interfaces.hpp"
#include "base/os/numeric_address.hpp"
#include "base/os/read_memory_room.hpp"
#include "base/os/unique_fd.hpp"
#include "base/trimmed.hpp"
#include "base/whole_number.hpp"
#include "launcher/machine/nvml.hpp"
#include "launcher/machine/real_surroundings.hpp"
#include "launcher/plan/cores.hpp"
#include "launcher/plan/python.hpp"
#include "launcher/plan/rendezvous_port.hpp"

namespace ddprun::launcher {

namespace {

void read_limits(MachineFacts& facts) {
    rlimit files{};
    if (::getrlimit(RLIMIT_NOFILE, &files) == 0) {
        facts.open_files = files.rlim_cur;
        facts.open_files_most = files.rlim_max;
    }
    struct statvfs shared {};
    if (::statvfs("/dev/shm", &shared) == 0) {
        facts.shared_memory_bytes = std::uint64_t{shared.f_blocks} * shared.f_frsize;
        facts.shared_memory_free_bytes = std::uint64_t{shared.f_bavail} * shared.f_frsize;
    } else if (errno == ENOENT) {
        facts.shared_memory_bytes = 0;
    }
    timex clock{};
    if (const int state = ::adjtimex(&clock); state >= 0) {
        facts.is_clock_synchronised = state != TIME_ERROR && (clock.status & STA_UNSYNC) == 0;
    }
}

void read_cpus(const Surroundings& surroundings, MachineFacts& facts) {
    facts.cpus_allowed = static_cast<int>(surroundings.allowed_cpus().size());
    if (const long present = ::sysconf(_SC_NPROCESSORS_ONLN); present > 0) {
        facts.cpus_present = static_cast<int>(present);
    }
    facts.cpu_quota = cpu_quota(surroundings);
    facts.memory = read_memory_room();
}

/// Whether a rendezvous could listen there, for all of this machine's addresses.
std::optional<bool> is_port_free(std::uint16_t port) {
    const UniqueFd socket(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    address.sin6_port = htons(port);
    const int on = 1;
    if (!socket.is_open() ||
        ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0) {
        return std::nullopt;
    }
    const void* const any = &address;
    if (::bind(socket.get(), static_cast<const sockaddr*>(any), sizeof address) == 0) {
        return true;
    }
    return errno == EADDRINUSE ? std::optional(false) : std::nullopt;
}

void read_ports(const Surroundings& surroundings, MachineFacts& facts) {
    const std::string range =
        surroundings.read_file("/proc/sys/net/ipv4/ip_local_port_range").value_or("");
    std::istringstream numbers(range);
    int first = 0;
    int last = 0;
    if (numbers >> first >> last) {
        facts.outgoing_ports = last - first + 1;
    }
    facts.is_rendezvous_port_free = is_port_free(kRendezvousPort);
}

}  // namespace

MachineFacts read_machine_facts() {
    const std::unique_ptr<const Surroundings> surroundings = real_surroundings();
    MachineFacts facts;
    read_limits(facts);
    read_cpus(*surroundings, facts);
    read_ports(*surroundings, facts);
    facts.gpus = gpu_health_of_nvml();
    const std::string backlog =
        surroundings->read_file("/proc/sys/net/core/somaxconn").value_or("");
    facts.listen_backlog = whole_number<std::uint64_t>(trimmed(backlog));
    facts.interfaces = network_interfaces();
    facts.hostname = host_name();
    facts.hostname_addresses = addresses_of(facts.hostname);
    facts.cgroup_refusal = agent::containment_refusal(ContainmentLevel::Cgroup);
    facts.namespace_refusal = agent::containment_refusal(ContainmentLevel::PidNamespace);
    if (const Result<Python> python = find_python("a script", *surroundings); python) {
        facts.python = python->path;
        facts.py_spy = agent::path_of_py_spy(facts.python);
    }
    return facts;
}

}  // namespace ddprun::launcher
