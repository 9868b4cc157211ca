#pragma once

#include <memory>
#include <string>
#include <vector>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>

#include "base/instant.hpp"

namespace ddprun::rdzv {

/// The addresses of host names, from the system's resolver on a helper thread. Nothing interrupts
/// that one, and it may hang longer than any caller waits: only a question that no caller waits for
/// any more outlives this object, and io_context::run() returns only after it. One thread.
class NameLookup {
public:
    struct Answer {
        boost::system::error_code failure;  ///< timed_out: there was none in time
        std::vector<boost::asio::ip::address> addresses;
    };

    explicit NameLookup(boost::asio::io_context& io) : io_(io) {}
    NameLookup(const NameLookup&) = delete;
    NameLookup& operator=(const NameLookup&) = delete;

    /// Looks up `host`, which may be an address. Waits for the answer until `until`; a question
    /// that took too long is not asked anew by the next call, but waited for again. One at a time.
    [[nodiscard]] boost::asio::awaitable<Answer> resolve(std::string host, Instant until);

    /// The resolve() under way fails.
    void cancel();

private:
    struct Question;

    boost::asio::io_context& io_;
    std::shared_ptr<Question> last_;  ///< its handler's too
};

}  // namespace ddprun::rdzv
