#include "rendezvous/server/session.hpp"

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "rendezvous/store/core/admission.hpp"
#include "rendezvous/transport/tls.hpp"

namespace ddprun::rdzv {

namespace asio = boost::asio;

namespace {

/// Who speaks on a new connection, but for the store's clients.
enum class Protocol { Agent, Tls, Unknown };

constexpr char kStoreByte = '\0';  // VALIDATE, with which PyTorch's clients begin
constexpr std::size_t kTellingBytes = kMagic.size();

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

asio::awaitable<std::optional<Error>> greet_agent(Session& session) {
    Connection& connection = session.connection;
    connection.tune();
    std::optional<Error> refused = Error{ErrorCode::ConnectionLost, "it ended in the handshake"};
    std::array<char, kHelloBytes> hello{};
    kMagic.copy(hello.data(), kMagic.size());
    Result<void> moved = co_await connection.read_exactly(hello.data() + kMagic.size(),
                                                          hello.size() - kMagic.size());
    if (!moved) {
        co_return refused;
    }
    if (session.tls && !connection.has_tls()) {
        const std::string words = answer_about_tls(true);
        moved = co_await connection.write_whole(words);
        refused = Error{ErrorCode::Refused, "it was started without --tls-ca, we speak TLS only"};
        co_return refused;
    }
    const RendezvousHandshake::Answer answer =
        session.handshake.answer(std::string_view(hello.data(), hello.size()));
    const Result<void> answered = co_await connection.write_whole(answer.bytes);
    if (answer.refused) {
        refused = answer.refused;
        co_return refused;
    }
    std::array<char, kProofBytes> proof{};
    moved = co_await connection.read_exactly(proof.data(), proof.size());
    if (!answered || !moved) {
        refused->what += "; perhaps its secret is another";
        co_return refused;
    }
    const Result<SessionKeys> keys =
        session.handshake.finish(std::string_view(proof.data(), proof.size()));
    if (!keys) {
        refused = keys.error();
        co_return refused;
    }
    connection.secure(*keys);
    refused.reset();
    co_return refused;
}

/// TLS, and inside it what is said without TLS too. `first` bytes of it were read.
asio::awaitable<std::optional<Error>> greet_in_tls(Session& session, std::string_view first) {
    Connection& connection = session.connection;
    std::optional<Error> refused;
    if (!session.tls) {
        const std::string words = answer_about_tls(false);
        const Result<void> told = co_await connection.write_whole(words);
        static_cast<void>(told);
        refused = Error{ErrorCode::Refused, "it speaks TLS, we were started without --tls-cert"};
        co_return refused;
    }
    Result<void> moved = co_await connection.shake_tls(session.tls, first);
    std::array<char, kTellingBytes> inner{};
    if (moved) {
        moved = co_await connection.read_exactly(inner.data(), inner.size());
    }
    if (!moved) {
        refused = Error{moved.error().code, "no TLS: " + moved.error().what};
        co_return refused;
    }
    if (connection.has_ended()) {
        // Its deadline, a newer connection or the daemon's end has closed it while the answer was
        // on its way; the bytes that were just read had arrived before.
        refused = Error{ErrorCode::ConnectionLost, "it ended in the handshake"};
        co_return refused;
    }
    const std::string_view telling(inner.data(), inner.size());
    if (is_of_http(telling.front())) {
        session.state = Session::Watching{std::string(telling)};
        refused.reset();
        co_return refused;
    }
    if (protocol_of(telling) != Protocol::Agent) {
        refused = Error{ErrorCode::BadMessage, "it is no ddprun agent"};
        co_return refused;
    }
    refused = co_await greet_agent(session);
    co_return refused;
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

const JobId* Session::job() const {
    const OfJob* const member = std::get_if<OfJob>(&state);
    return member == nullptr ? nullptr : &member->job;
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
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    if (::getpeername(fd, static_cast<sockaddr*>(static_cast<void*>(&address)), &size) != 0) {
        return "a connection";
    }
    const void* const any = &address;
    const in_port_t port = address.ss_family == AF_INET6
                               ? static_cast<const sockaddr_in6*>(any)->sin6_port
                               : static_cast<const sockaddr_in*>(any)->sin_port;
    return fmt::format("{} port {}", address_text(address), ntohs(port));
}

asio::awaitable<std::optional<Error>> greet(Session& session, Instant deadline) {
    arm_deadline(session, deadline);
    std::array<char, kTellingBytes> first{};
    const Result<void> heard = co_await session.connection.read_exactly(first.data(), first.size());
    std::optional<Error> refused = Error{ErrorCode::BadMessage, "it is no ddprun agent"};
    const std::string_view telling(first.data(), first.size());
    const Protocol protocol = heard ? protocol_of(telling) : Protocol::Unknown;
    if (protocol == Protocol::Agent) {
        refused = co_await greet_agent(session);
    } else if (protocol == Protocol::Tls) {
        refused = co_await greet_in_tls(session, telling);
    }
    session.deadline.cancel();
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
