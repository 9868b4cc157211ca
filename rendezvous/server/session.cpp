#include "rendezvous/server/session.hpp"

#include <array>
#include <chrono>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "rendezvous/store/core/admission.hpp"
#include "rendezvous/store/net/socket.hpp"
#include "rendezvous/transport/tls.hpp"

namespace ddprun::rdzv {

namespace asio = boost::asio;

namespace {

/// The protocol of a new connection, apart from the store's clients.
enum class Protocol { Agent, Tls, Unknown };

constexpr char kStoreByte = '\0';  // VALIDATE, with which PyTorch's clients begin
constexpr std::size_t kTellingBytes = kMagic.size();
constexpr const char* kEnded = "it ended in the handshake";
constexpr const char* kNoAgent = "it is no ddprun agent";

// All that is ever read from a peer that has not proved itself, but for its TLS handshake.
static_assert(kHelloBytes + kProofBytes <= Limits().hello_bytes_max);

Protocol protocol_of(std::string_view first_bytes) {
    if (first_bytes.front() == kTlsByte) {
        return Protocol::Tls;
    }
    return first_bytes == kMagic ? Protocol::Agent : Protocol::Unknown;
}

// A timer that has fired already is not cancelled: by then the session may be through.
void arm_deadline(Session& session, Instant deadline) {
    session.deadline.expires_at(deadline);
    session.deadline.async_wait([&session](boost::system::error_code cancelled) {
        if (!cancelled && session.connection.is_in_handshake()) {
            session.connection.close();
        }
    });
}

asio::awaitable<Result<void>> greet_agent(Session& session) {
    Connection& connection = session.connection;
    connection.tune();
    std::array<char, kHelloBytes> hello{};
    kMagic.copy(hello.data(), kMagic.size());
    Result<void> moved = co_await connection.read_exactly(hello.data() + kMagic.size(),
                                                          hello.size() - kMagic.size());
    if (!moved) {
        co_return Error{ErrorCode::ConnectionLost, kEnded};
    }
    const RendezvousHandshake::Answer answer =
        session.handshake.answer(std::string_view(hello.data(), hello.size()));
    if (session.tls && !connection.has_tls()) {
        const std::string words = answer_about_tls(true);
        moved = co_await connection.write_whole(words);
        co_return Error{ErrorCode::Refused, "it was started without --tls-ca, we speak TLS only"};
    }
    const Result<void> answered = co_await connection.write_whole(answer.bytes);
    if (answer.refused) {
        co_return *answer.refused;
    }
    std::array<char, kProofBytes> proof{};
    moved = co_await connection.read_exactly(proof.data(), proof.size());
    if (!answered || !moved) {
        co_return Error{ErrorCode::ConnectionLost,
                        std::string(kEnded) + "; perhaps its secret is another"};
    }
    const Result<SessionKeys> keys =
        session.handshake.finish(std::string_view(proof.data(), proof.size()));
    if (!keys) {
        co_return keys.error();
    }
    connection.secure(*keys);
    co_return Result<void>();
}

/// TLS, and inside it what is said without TLS too. `first` bytes of it were read.
asio::awaitable<Result<void>> greet_in_tls(Session& session, std::string_view first) {
    Connection& connection = session.connection;
    if (!session.tls) {
        const std::string words = answer_about_tls(false);
        const Result<void> told = co_await connection.write_whole(words);
        static_cast<void>(told);
        co_return Error{ErrorCode::Refused, "it speaks TLS, we were started without --tls-cert"};
    }
    Result<void> moved = co_await connection.shake_tls(session.tls, first);
    std::array<char, kTellingBytes> inner{};
    if (moved) {
        moved = co_await connection.read_exactly(inner.data(), inner.size());
    }
    if (!moved) {
        co_return Error{moved.error().code, "no TLS: " + moved.error().what};
    }
    if (connection.has_ended()) {
        // Its deadline, a newer connection or the daemon's end has closed it while the answer was
        // on its way; the bytes that were just read had arrived before.
        co_return Error{ErrorCode::ConnectionLost, kEnded};
    }
    const std::string_view telling(inner.data(), inner.size());
    if (is_of_http(telling.front())) {
        session.state = Session::Watching{std::string(telling)};
        co_return Result<void>();
    }
    if (protocol_of(telling) != Protocol::Agent) {
        co_return Error{ErrorCode::BadMessage, kNoAgent};
    }
    co_return co_await greet_agent(session);
}

}  // namespace

Session::Session(ConnectionId number, asio::ip::tcp::socket socket, const Limits& limits,
                 std::string address, RendezvousHandshake hello,
                 std::shared_ptr<const TlsContext> ours)
    : id(number),
      connection(std::move(socket), limits),
      deadline(connection.socket().get_executor()),
      peer(std::move(address)),
      handshake(std::move(hello)),
      tls(std::move(ours)) {}

void Session::limit(Milliseconds patience) {
    deadline.expires_after(patience);
    deadline.async_wait([this](boost::system::error_code cancelled) {
        if (!cancelled) {
            connection.close();
        }
    });
}

bool is_of_store(char first_byte) {
    return first_byte == kStoreByte;
}

bool is_of_http(char first_byte) {
    // GET, HEAD, POST, PUT, PATCH, OPTIONS. Those of DELETE are the hello's.
    constexpr std::string_view kFirst = "GHPO";
    return kFirst.find(first_byte) != kFirst.npos;
}

std::string peer_name(int fd) {
    const std::optional<sockaddr_storage> peer = peer_of(fd);
    return peer ? fmt::format("{} port {}", address_text(*peer), port_of(*peer)) : "a connection";
}

asio::awaitable<Result<void>> greet(Session& session, Instant deadline) {
    arm_deadline(session, deadline);
    std::array<char, kTellingBytes> first{};
    const Result<void> heard = co_await session.connection.read_exactly(first.data(), first.size());
    Result<void> greeted = Error{ErrorCode::BadMessage, kNoAgent};
    const std::string_view telling(first.data(), first.size());
    const Protocol protocol = heard ? protocol_of(telling) : Protocol::Unknown;
    if (protocol == Protocol::Agent) {
        greeted = co_await greet_agent(session);
    } else if (protocol == Protocol::Tls) {
        greeted = co_await greet_in_tls(session, telling);
    }
    session.deadline.cancel();
    co_return greeted;
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
