#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <string>

#include "base/os/unique_fd.hpp"
#include "base/result.hpp"

namespace ddprun {

/// The address of a socket in a file system, for bind() and connect(). The kernel takes at most 107
/// bytes there: the address goes through the descriptor of the folder, so `path` may be as long as
/// paths are. Its last name may have 80 bytes.
class UnixAddress {
public:
    /// `path` has a folder. Failure names it: the folder is not there, or the last name is too
    /// long.
    [[nodiscard]] static Result<UnixAddress> of(const std::string& path);

    /// Opened with O_PATH, for unlinkat() and its like.
    [[nodiscard]] int folder() const { return folder_.get(); }
    [[nodiscard]] const sockaddr* get() const {
        return static_cast<const sockaddr*>(static_cast<const void*>(&address_));
    }
    [[nodiscard]] socklen_t size() const { return sizeof(address_); }

private:
    UniqueFd folder_;
    sockaddr_un address_{};
};

}  // namespace ddprun
