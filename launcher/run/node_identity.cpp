#include "launcher/run/node_identity.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include <fmt/format.h>
#include <xxhash.h>

#include "base/os/file_identity.hpp"
#include "base/os/machine_identity.hpp"
#include "base/os/network_interfaces.hpp"

namespace ddprun::launcher {

namespace {

constexpr int kNumbersMax = 4096;  ///< ddprun of one job on one machine

/// Distinguishes containers that share a boot id.
std::string network_namespace() {
    struct stat status {};
    return stat("/proc/self/ns/net", &status) == 0 ? fmt::format("{:x}", status.st_ino) : "0";
}

/// The locked file, or no file if another process has it locked.
Result<UniqueFd> try_lock(const std::string& path) {
    constexpr int kTries = 16;  // a holder that ends meanwhile removes the file under our hands
    for (int i = 0; i < kTries; ++i) {
        UniqueFd lock(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
        if (!lock.is_open()) {
            return ddprun::system_error(errno, fmt::format("cannot open {}", path));
        }
        if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
            if (errno == EWOULDBLOCK) {
                return UniqueFd();
            }
            return ddprun::system_error(errno, fmt::format("cannot lock {}", path));
        }
        if (is_same_file(lock.get(), path)) {
            return lock;
        }
    }
    return UniqueFd();
}

}  // namespace

NumberLock::~NumberLock() {
    if (fd_.is_open()) {
        unlink(path_.c_str());
    }
}

Result<NodeIdentity> derive_node_identity(const std::string& state_folder, const JobId& job,
                                          const std::string& slurm_node_name) {
    const std::string machine = fmt::format("{}|{}|{}", read_machine_identity().boot_id,
                                            network_namespace(), slurm_node_name);
    const std::string prefix = fmt::format("{:016x}", XXH64(machine.data(), machine.size(), 0));
    const std::string job_hash =
        fmt::format("{:016x}", XXH64(job.value().data(), job.value().size(), 0));
    for (int number = 0; number < kNumbersMax; ++number) {
        std::string path =
            fmt::format("{}/node-{}-{}-{}.lock", state_folder, prefix, job_hash, number);
        Result<UniqueFd> lock = try_lock(path);
        if (!lock) {
            return lock.error();
        }
        if (lock->is_open()) {
            return NodeIdentity{NodeId(fmt::format("{}-{}", prefix, number)), number,
                                NumberLock(std::move(path), std::move(*lock))};
        }
    }
    return Error{
        ErrorCode::LimitExceeded,
        fmt::format("{} ddprun of job {} already run on this machine", kNumbersMax, job.value())};
}

std::vector<std::string> interface_addresses() {
    std::vector<std::string> addresses;
    for (const NetworkInterface& one : network_interfaces()) {
        for (const std::string& address : one.addresses) {
            if (one.is_up) {
                addresses.push_back(address.substr(0, address.find('%')));
            }
        }
    }
    std::sort(addresses.begin(), addresses.end());
    addresses.erase(std::unique(addresses.begin(), addresses.end()), addresses.end());
    return addresses;
}

}  // namespace ddprun::launcher
