#include "rendezvous/server/session.hpp"

#include <array>
#include <chrono>
#include <string_view>
#include <utility>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <fmt/format.h>

namespace ddprun::rdzv {

namespace asio = boost::asio;

namespace {

/// Who speaks on a new connection. Other protocols of the port go here.
enum class Protocol { Agent, Unknown };

constexpr std::size_t kTellingBytes = kMagic.size();

// All that is ever read from a peer that has not proved itself.
static_assert(kHelloBytes + kProofBytes <= Limits().hello_bytes_max);

Protocol protocol_of(std::string_view first_bytes) {
    return first_bytes == kMagic ? Protocol::Agent : Protocol::Unknown;
}

// A timer that has fired already is not cancelled: by then the session may be through.
void arm_deadline(const std::shared_ptr<Session>& session, Milliseconds patience) {
    session->deadline.expires_after(patience);
    session->deadline.async_wait([session](boost::system::error_code cancelled) {
        if (!cancelled && !session->connection->is_secured()) {
            session->connection->close();
        }
    });
}

asio::awaitable<std::optional<Error>> greet_agent(std::shared_ptr<Session> session) {
    Connection::Socket& socket = session->connection->socket();
    std::optional<Error> refused = Error{ErrorCode::ConnectionLost, "it ended in the handshake"};
    std::array<char, kHelloBytes> hello{};
    kMagic.copy(hello.data(), kMagic.size());
    const auto [cut_off, rest] = co_await asio::async_read(
        socket, asio::buffer(hello) + kMagic.size(), asio::as_tuple(asio::use_awaitable));
    if (cut_off) {
        co_return refused;
    }
    const RendezvousHandshake::Answer answer =
        session->handshake.answer(std::string_view(hello.data(), hello.size()));
    const auto [unsent, sent] = co_await asio::async_write(socket, asio::buffer(answer.bytes),
                                                           asio::as_tuple(asio::use_awaitable));
    if (answer.refused) {
        refused = answer.refused;
        co_return refused;
    }
    std::array<char, kProofBytes> proof{};
    const auto [unproved, count] =
        co_await asio::async_read(socket, asio::buffer(proof), asio::as_tuple(asio::use_awaitable));
    if (unsent || unproved) {
        refused->what += "; perhaps its secret is another";
        co_return refused;
    }
    const Result<SessionKeys> keys =
        session->handshake.finish(std::string_view(proof.data(), proof.size()));
    if (!keys) {
        refused = keys.error();
        co_return refused;
    }
    session->connection->secure(*keys);
    refused.reset();
    co_return refused;
}

}  // namespace

Session::Session(ConnectionId number, asio::ip::tcp::socket socket, const Limits& limits,
                 std::string address, RendezvousHandshake hello)
    : id(number),
      connection(std::make_shared<Connection>(std::move(socket), limits)),
      deadline(connection->socket().get_executor()),
      peer(std::move(address)),
      handshake(std::move(hello)) {}

asio::awaitable<std::optional<Error>> greet(std::shared_ptr<Session> session,
                                            Milliseconds patience) {
    arm_deadline(session, patience);
    std::array<char, kTellingBytes> first{};
    const auto [silent, count] = co_await asio::async_read(
        session->connection->socket(), asio::buffer(first), asio::as_tuple(asio::use_awaitable));
    std::optional<Error> refused = Error{ErrorCode::BadMessage, "it is no ddprun agent"};
    if (!silent && protocol_of(std::string_view(first.data(), count)) == Protocol::Agent) {
        refused = co_await greet_agent(session);
    }
    session->deadline.cancel();
    co_return refused;
}

std::optional<std::string> RefusalLog::note(Instant now, const std::string& text) {
    if (last_ && now - *last_ < std::chrono::seconds(1)) {
        ++left_out_;
        return std::nullopt;
    }
    last_ = now;
    const std::size_t left_out = std::exchange(left_out_, 0);
    return left_out == 0 ? text : fmt::format("{} (and {} others before)", text, left_out);
}

}  // namespace ddprun::rdzv
