#pragma once

#include <string>

namespace ddprun {

/// The kernel's; "localhost" if it reports none.
[[nodiscard]] std::string host_name();

/// The identity of a machine or container. A value that could not be read is empty.
struct MachineIdentity {
    std::string name;        ///< its host name
    std::string boot_id;     ///< of its kernel, another one after each boot
    std::string machine_id;  ///< of its installation

    bool operator==(const MachineIdentity&) const = default;
};

/// The machine that this process runs on.
[[nodiscard]] MachineIdentity read_machine_identity();

/// One machine, since the same boot: each sees the other's locks. Containers share a kernel, so the
/// host name must be equal too.
[[nodiscard]] bool is_same_boot(const MachineIdentity& here, const MachineIdentity& there);

/// `there` may be this machine before its last boot, or what an older ddprun wrote. No proof:
/// copies of a disk or an image have one machine_id, or none.
[[nodiscard]] bool may_be_earlier_boot(const MachineIdentity& here, const MachineIdentity& there);

}  // namespace ddprun
