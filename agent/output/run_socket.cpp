#include "agent/output/run_socket.hpp"

#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "base/os/unix_address.hpp"

namespace ddprun::agent {

namespace {

/// The socket's name until it listens: a socket under the final name already listens.
constexpr const char* kUnfinishedName = "ddprun.sock.new";

}  // namespace

Result<UniqueFd> listen_in_run(const std::string& folder) {
    const std::string name = folder + "/" + kRunSocketName;
    const Result<UnixAddress> address = UnixAddress::of(folder + "/" + kUnfinishedName);
    if (!address) {
        return address.error();
    }
    const int there = address->folder();
    UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    ::unlinkat(there, kUnfinishedName, 0);
    // The socket's mode does not matter before listen(): until then connecting fails.
    if (!socket.is_open() || ::bind(socket.get(), address->get(), address->size()) != 0 ||
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
    const Result<UnixAddress> address = UnixAddress::of(name);
    if (!address) {
        return address.error();
    }
    UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!socket.is_open() || ::connect(socket.get(), address->get(), address->size()) != 0) {
        return system_error(errno, "connecting to " + name);
    }
    return socket;
}

}  // namespace ddprun::agent
