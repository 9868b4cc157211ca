#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/os/unique_fd.hpp"

namespace ddprun::rdzv::store_test {

/// A client that sends bytes and waits for bytes. Every wait fails its test after a minute.
class StoreClientSocket {
public:
    /// Connects to `host`, numeric, from `from` if given. The test fails if it cannot.
    StoreClientSocket(const std::string& host, std::uint16_t port,
                      const std::optional<std::string>& from = {});

    /// False when the server is gone.
    bool send(const std::string& bytes);

    /// Sends as much as the connection takes without waiting, and returns how much that was.
    std::size_t send_some(const std::string& bytes);

    /// Waits for `size` bytes; fewer when the server closes before.
    std::string receive(std::size_t size);

    /// All that comes until the server closes.
    std::string receive_all();

    /// Sends nothing more, so that the server closes in its turn.
    void finish();

private:
    bool wait_readable();

    UniqueFd fd_;
};

}  // namespace ddprun::rdzv::store_test
