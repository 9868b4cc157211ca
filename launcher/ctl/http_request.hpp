#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <boost/asio/io_context.hpp>
#include <boost/beast/core/flat_buffer.hpp>

#include "base/limits.hpp"
#include "base/os/unique_fd.hpp"
#include "base/result.hpp"
#include "rendezvous/http/http_stream.hpp"
#include "rendezvous/transport/tls.hpp"

namespace ddprun::launcher {

/// Takes the next piece of an answer; false: its reader is gone.
using TakePiece = std::function<bool(std::string_view piece)>;

struct HttpAnswer {
    unsigned status = 0;
    std::string body;
};

/// One request to a ddprun or a rendezvous. Failure says who has not answered, and why.
class HttpRequest {
public:
    /// `peer`: who is asked, for messages to people. `tls`: null: in clear.
    explicit HttpRequest(std::string peer, std::shared_ptr<const rdzv::TlsContext> tls = nullptr)
        : peer_(std::move(peer)), tls_(std::move(tls)) {}

    /// Sends GET `target` on `connected`, a stream socket of that family. `token`: shown if it is
    /// not empty.
    [[nodiscard]] Result<void> send(UniqueFd connected, int family, const std::string& host,
                                    const std::string& target, const std::string& token = {});

    /// Sends POST `target` with `json` on `connected`, a Unix socket.
    [[nodiscard]] Result<void> post(UniqueFd connected, const std::string& target,
                                    const std::string& json);

    /// The whole answer, whatever it says, within Limits::run_answer_timeout.
    [[nodiscard]] Result<HttpAnswer> read_answer();

    /// The same; it must be what was asked for.
    [[nodiscard]] Result<std::string> read_all();

    /// Gives the answer to `take` as it comes, until it ends or `take` returns false.
    [[nodiscard]] Result<void> copy_to(const TakePiece& take);

private:
    [[nodiscard]] Result<void> take(UniqueFd connected, int family);
    [[nodiscard]] Result<void> shake_hands(UniqueFd connected, int family);
    template <typename Begin>
    [[nodiscard]] boost::system::error_code finish(Begin begin);
    [[nodiscard]] Error lost(const boost::system::error_code& failure) const;

    const Limits limits_{};
    const std::string peer_;
    const std::shared_ptr<const rdzv::TlsContext> tls_;
    boost::asio::io_context io_{1};
    std::optional<rdzv::HttpStream> stream_;
    boost::beast::flat_buffer buffer_;
};

}  // namespace ddprun::launcher
