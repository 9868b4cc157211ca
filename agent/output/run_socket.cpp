#include "agent/output/run_socket.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include <fmt/format.h>

namespace ddprun::agent {

namespace {

/// The socket has it until it listens: one that is there answers.
constexpr const char* kUnfinishedName = "ddprun.sock.new";

/// The path of a socket has at most 107 bytes: through /proc that of a folder is short.
struct ShortPath {
    UniqueFd folder;
    sockaddr_un address{};
};

Result<ShortPath> short_path(const std::string& folder, const std::string& file) {
    ShortPath path;
    path.folder = UniqueFd(::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!path.folder.is_open()) {
        return system_error(errno, "opening " + folder);
    }
    const std::string name = fmt::format("/proc/self/fd/{}/{}", path.folder.get(), file);
    path.address.sun_family = AF_UNIX;
    std::memcpy(path.address.sun_path, name.c_str(), name.size() + 1);
    return path;
}

const sockaddr* generic(const sockaddr_un& address) {
    return static_cast<const sockaddr*>(static_cast<const void*>(&address));
}

}  // namespace

Result<UniqueFd> listen_in_run(const std::string& folder) {
    const std::string name = folder + "/" + kRunSocketName;
    Result<ShortPath> path = short_path(folder, kUnfinishedName);
    if (!path) {
        return path.error();
    }
    const int there = path->folder.get();
    UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    ::unlinkat(there, kUnfinishedName, 0);
    // Nobody can connect before listen(): until then its mode does not matter.
    if (!socket.is_open() ||
        ::bind(socket.get(), generic(path->address), sizeof(path->address)) != 0 ||
        ::fchmodat(there, kUnfinishedName, S_IRUSR | S_IWUSR, 0) != 0 ||
        ::listen(socket.get(), SOMAXCONN) != 0 ||
        ::renameat(there, kUnfinishedName, there, kRunSocketName) != 0) {
        const int failure = errno;
        ::unlinkat(there, kUnfinishedName, 0);
        return system_error(failure, "listening on " + name);
    }
    return socket;
}

Result<UniqueFd> connect_to_run(const std::string& folder) {
    const std::string name = folder + "/" + kRunSocketName;
    Result<ShortPath> path = short_path(folder, kRunSocketName);
    if (!path) {
        return path.error();
    }
    UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!socket.is_open() ||
        ::connect(socket.get(), generic(path->address), sizeof(path->address)) != 0) {
        return system_error(errno, "connecting to " + name);
    }
    return socket;
}

}  // namespace ddprun::agent
