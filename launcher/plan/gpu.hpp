#pragma once

#include <string>
#include <vector>

namespace ddprun::launcher {

/// One GPU of this machine. What is not known is empty.
struct Gpu {
    std::string uuid;         ///< "GPU-…"
    std::string pci_address;  ///< as the kernel writes it: "0000:3b:00.0"
    std::vector<std::string> mig_uuids;

    bool operator==(const Gpu&) const = default;
};

}  // namespace ddprun::launcher
