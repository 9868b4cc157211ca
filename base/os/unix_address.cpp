#include "base/os/unix_address.hpp"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <iterator>

#include <fmt/format.h>

namespace ddprun {

Result<UnixAddress> UnixAddress::of(const std::string& path) {
    const std::size_t slash = path.rfind('/');
    const std::string folder = path.substr(0, slash + 1);
    UnixAddress made;
    made.folder_ = UniqueFd(::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!made.folder_.is_open()) {
        return system_error(errno, "opening " + folder);
    }
    const std::string way =
        fmt::format("/proc/self/fd/{}/{}", made.folder_.get(), path.substr(slash + 1));
    if (way.size() >= sizeof(made.address_.sun_path)) {
        return Error{ErrorCode::LimitExceeded, fmt::format("{} is too long for a socket", path)};
    }
    made.address_.sun_family = AF_UNIX;
    std::copy(way.begin(), way.end(), std::begin(made.address_.sun_path));
    return made;
}

}  // namespace ddprun
