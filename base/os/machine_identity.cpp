#include "base/os/machine_identity.hpp"

#include <unistd.h>

#include <array>
#include <climits>

#include "base/os/read_files.hpp"

namespace ddprun {

namespace {

std::string first_line_in(const char* path) {
    const std::string text = read_whole(path).value_or(std::string());
    return text.substr(0, text.find('\n'));
}

}  // namespace

std::string host_name() {
    std::array<char, HOST_NAME_MAX + 1> name{};
    return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "localhost";
}

MachineIdentity read_machine_identity() {
    return {.name = host_name(),
            .boot_id = first_line_in("/proc/sys/kernel/random/boot_id"),
            .machine_id = first_line_in("/etc/machine-id")};
}

bool is_same_boot(const MachineIdentity& here, const MachineIdentity& there) {
    return !here.name.empty() && here.name == there.name && !here.boot_id.empty() &&
           here.boot_id == there.boot_id;
}

bool may_be_earlier_boot(const MachineIdentity& here, const MachineIdentity& there) {
    const bool is_of_older_ddprun = there.machine_id.empty() && there.boot_id.empty();
    return !here.name.empty() && here.name == there.name &&
           (here.machine_id == there.machine_id || is_of_older_ddprun);
}

}  // namespace ddprun
