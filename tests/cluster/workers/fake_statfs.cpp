// In the place of libc's statfs(): what is below FAKE_STATFS_SHARED, and does not begin with
// FAKE_STATFS_LOCAL, is on NFS.

#include <linux/magic.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace {

bool begins_with(const char* text, const char* variable) {
    const char* beginning = ::getenv(variable);
    return beginning != nullptr && std::strncmp(text, beginning, std::strlen(beginning)) == 0;
}

}  // namespace

extern "C" int statfs(const char* path, struct statfs* told) noexcept {
    const long code = ::syscall(SYS_statfs, path, told);
    if (code == 0) {
        const bool is_shared =
            begins_with(path, "FAKE_STATFS_SHARED") && !begins_with(path, "FAKE_STATFS_LOCAL");
        told->f_type = is_shared ? NFS_SUPER_MAGIC : TMPFS_MAGIC;
    }
    return static_cast<int>(code);
}
