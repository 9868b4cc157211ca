#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include <boost/asio/io_context.hpp>

#include "base/instant.hpp"
#include "base/limits.hpp"
#include "base/os/unique_fd.hpp"
#include "base/rng.hpp"
#include "base/tagged.hpp"
#include "rendezvous/journal/journal.hpp"
#include "rendezvous/wire/secret.hpp"

namespace ddprun::rdzv {

class TlsContext;

struct ServerOptions {
    UniqueFd listener;                ///< a listening TCP socket (listener.hpp)
    std::optional<JobSecret> secret;  ///< none: --insecure, admits only agents without a secret
    std::shared_ptr<const TlsContext> tls;  ///< null: none; else who does not speak it is refused
    Limits limits;
    std::unique_ptr<Journal> journal;        ///< null: runs are kept in memory only
    std::map<JobId, std::string> records;    ///< what it holds: the runs to go on with
    bool is_one_of_several = false;          ///< decides nothing before lead()
    bool serves_tcpstore = false;            ///< to whoever reaches the port, for torchrun
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

    // With is_one_of_several:

    /// This daemon decides from now on, about the runs of `records`, as long as `may_decide` says
    /// so. What it cannot write to `journal` it does not tell.
    void lead(Journal& journal, const std::map<JobId, std::string>& records,
              std::function<bool(Instant)> may_decide);

    /// It decides nothing from now on: agents are sent to `leader` (HOST:PORT). Empty: nobody is
    /// known; agents that come wait until somebody is.
    void follow(const std::string& leader);

    /// Stops listening and closes every connection. Agents take it for a daemon that went away.
    void stop();

    [[nodiscard]] std::size_t job_count() const;
    [[nodiscard]] std::size_t connection_count() const;  ///< half-open ones included

private:
    class Impl;
    std::shared_ptr<Impl> impl_;
};

}  // namespace ddprun::rdzv
