#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/os/unique_fd.hpp"
#include "base/result.hpp"
#include "rendezvous/store/protocol/value.hpp"

namespace ddprun::rdzv {

/// A bound TCP socket and the port the kernel gave it.
struct StoreSocket {
    UniqueFd fd;
    std::uint16_t port = 0;
};

/// Binds and listens on the numeric address `host` (never a name: no look-ups) with the kernel's
/// largest backlog. Port 0 lets the kernel choose. Failure names host, port and reason.
[[nodiscard]] Result<StoreSocket> listen_for_store(const std::string& host, std::uint16_t port);

/// Keeps a port for the store of another process, which may listen on it while this socket lives,
/// as often as it likes; the kernel gives the port to no process that asks for any. Otherwise as
/// listen_for_store().
[[nodiscard]] Result<StoreSocket> keep_port_for_store(const std::string& host, std::uint16_t port);

/// One line for each limit of this machine or process that `clients` connections would meet.
[[nodiscard]] std::vector<std::string> store_capacity_warnings(std::size_t clients);

/// Address of the connected peer; none: it is gone.
[[nodiscard]] std::optional<sockaddr_storage> peer_of(int fd);

/// Bytes that one client has not been sent yet, in order. Costs no memory while empty.
class StoreOutbox {
public:
    [[nodiscard]] bool empty() const { return chunks_.empty(); }
    /// Bytes that are not sent.
    [[nodiscard]] std::size_t size() const { return size_; }
    /// Memory that copies take. A partly sent copy counts as a whole.
    [[nodiscard]] std::size_t copied() const { return copied_; }
    /// Bytes that were here and have been sent.
    [[nodiscard]] std::uint64_t sent() const { return sent_; }

    /// Copies `bytes`, at least one.
    void add(std::string_view bytes);
    /// Keeps `text`, at least one byte, without copying it.
    void add(SharedText text);

    /// Sends what the kernel takes without waiting, on a socket that is ready or not. False: the
    /// peer is gone.
    [[nodiscard]] bool send(int fd);

private:
    struct Chunk {
        std::string own;
        SharedText shared;

        [[nodiscard]] std::string_view bytes() const {
            return shared.owner != nullptr ? shared.bytes : std::string_view(own);
        }
    };

    std::list<Chunk> chunks_;
    std::size_t begin_ = 0;  ///< of what is left of the first chunk
    std::size_t size_ = 0;
    std::size_t copied_ = 0;
    std::uint64_t sent_ = 0;
};

/// Sends what the kernel takes of `bytes` without waiting and removes it from them. False: the peer
/// is gone.
[[nodiscard]] bool send_some(int fd, std::string_view& bytes);

}  // namespace ddprun::rdzv
