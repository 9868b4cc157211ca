#include "base/os/shared_file_system.hpp"

#include <linux/magic.h>
#include <sys/vfs.h>

#include <algorithm>
#include <array>
#include <cstdint>

namespace ddprun {

namespace {

/// By statfs(2).
constexpr std::array<std::uint32_t, 15> kSharedSystems = {
    NFS_SUPER_MAGIC,  SMB_SUPER_MAGIC, CIFS_SUPER_MAGIC, SMB2_SUPER_MAGIC,
    CEPH_SUPER_MAGIC, AFS_SUPER_MAGIC, V9FS_MAGIC,       FUSE_SUPER_MAGIC,
    0x0bd00bd0,  // Lustre
    0x47504653,  // Storage Scale (GPFS)
    0x19830326,  // BeeGFS
    0x18031977,  // WEKA
    0xaad7aaea,  // PanFS
    0x20030528,  // OrangeFS
    0x013111a8,  // IBRIX
};

}  // namespace

bool is_on_shared_file_system(const std::string& path) {
    struct statfs system {};
    return ::statfs(path.c_str(), &system) == 0 &&
           std::find(kSharedSystems.begin(), kSharedSystems.end(),
                     static_cast<std::uint32_t>(system.f_type)) != kSharedSystems.end();
}

}  // namespace ddprun
