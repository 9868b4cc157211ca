#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <boost/asio/io_context.hpp>

#include "rendezvous/base/rng.hpp"
#include "rendezvous/base/unique_fd.hpp"
#include "rendezvous/protocol/limits.hpp"
#include "rendezvous/protocol/secret.hpp"

namespace ddprun::rdzv {

struct ServerOptions {
    UniqueFd listener;                ///< a listening TCP socket (listener.hpp)
    std::optional<JobSecret> secret;  ///< none: --insecure, admits only agents without a secret
    Limits limits;
    bool exits_when_idle = false;            ///< ends by itself, see Server
    Milliseconds idle_start_timeout{30000};  ///< exits_when_idle: nobody ever joined
    Rng rng{0};
    std::function<void(const std::string&)> log;  ///< one line; may be empty
};

/// The rendezvous daemon without its process: accepts agents, lets each prove the secret, and feeds
/// one Coordinator per job. Decides nothing about jobs itself. Lives on the one thread of `io`.
/// With exits_when_idle it ends once a run has existed, every run is done and nobody is connected,
/// or when nobody has joined in time. Once it has ended it holds no more work on `io`.
class Server {
public:
    Server(boost::asio::io_context& io, ServerOptions options);
    ~Server();
    Server(const Server&) = delete;
    Server& operator=(const Server&) = delete;

    /// `on_ended` is called once, from the loop, when the server ended by itself.
    void start(std::function<void()> on_ended);

    /// Stops listening and closes every connection. Agents take it for a daemon that went away.
    void stop();

    [[nodiscard]] std::size_t job_count() const;
    [[nodiscard]] std::size_t connection_count() const;  ///< half-open ones included

private:
    class Impl;
    std::shared_ptr<Impl> impl_;
};

}  // namespace ddprun::rdzv
