#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>

#include "base/instant.hpp"
#include "base/limits.hpp"
#include "base/result.hpp"
#include "rendezvous/etcd/etcd_messages.hpp"
#include "rendezvous/transport/http_connection.hpp"
#include "rendezvous/wire/endpoint.hpp"

namespace ddprun::rdzv {

/// One HTTP connection to one of several etcds: the one that answered last, the next one if it does
/// not. One call or one stream at a time; who wants several has several clients. One thread.
/// Outlives its coroutines, and the handlers that these leave cancelled: who destroys it while the
/// loop runs lets those that are ready have their turn first.
class EtcdClient {
public:
    EtcdClient(boost::asio::io_context& io, std::vector<Endpoint> etcds, const Limits& limits);
    EtcdClient(const EtcdClient&) = delete;
    EtcdClient& operator=(const EtcdClient&) = delete;

    /// The body of an answer with status 200 from the first etcd that has one for us; each is given
    /// `each`, all together until `until`. Failure is of the last that was tried; it may have done
    /// what was asked all the same. Refused: etcd understood, and trying again will not help.
    [[nodiscard]] boost::asio::awaitable<Result<std::string>> call(EtcdRequest request,
                                                                   Milliseconds each,
                                                                   Instant until);

    /// Begins a stream of lines, at the first etcd that has one.
    [[nodiscard]] boost::asio::awaitable<Result<void>> open_stream(EtcdRequest request);

    /// Its next line. TimedOut: none came within `patience`. The stream is over after a failure,
    /// and the next one begins at another etcd.
    [[nodiscard]] boost::asio::awaitable<Result<std::string>> next_line(Milliseconds patience);

    /// Ends what is under way. Later calls are carried out.
    void cancel();

private:
    using Answer = HttpConnection::Answer;
    using AnswerParser = HttpConnection::AnswerParser;

    [[nodiscard]] boost::asio::awaitable<Result<Answer>> attempt(const EtcdRequest& request);
    [[nodiscard]] boost::asio::awaitable<Result<Answer>> exchange(const EtcdRequest& request);
    [[nodiscard]] boost::asio::awaitable<Result<void>> begin_stream(const EtcdRequest& request);
    [[nodiscard]] boost::asio::awaitable<HttpConnection::Failure> send(const EtcdRequest& request,
                                                                       AnswerParser& answer);
    void ask_often_when_silent();
    void try_next();
    [[nodiscard]] Error lost(const HttpConnection::Failure& why) const;
    [[nodiscard]] Error not_done(const Answer& answer) const;
    [[nodiscard]] std::string peer() const { return to_string(etcds_[current_]); }

    const std::vector<Endpoint> etcds_;
    const Limits limits_;
    HttpConnection connection_;
    std::optional<AnswerParser> stream_;
    std::size_t current_ = 0;    ///< of etcds_
    bool is_cancelled_ = false;  ///< what is under way
};

}  // namespace ddprun::rdzv
