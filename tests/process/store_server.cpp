// The store's server with real sockets on loopback.

#include "rendezvous/store/net/store_server.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <array>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "tests/process/store_fixture.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/store_requests.hpp"
#include "tests/support/store_transcripts.hpp"

namespace ddprun::rdzv::store_test {

namespace {

/// Returns the replies of each connection to `transcript`, joined.
std::vector<std::string> replay(const Transcript& transcript, std::uint16_t port) {
    std::vector<StoreClientSocket> clients;
    for (std::size_t index = 0; index < transcript.connections; ++index) {
        clients.emplace_back(kLoopback, port);
    }
    std::vector<std::string> received(transcript.connections);
    const TranscriptStep* before = nullptr;
    for (const TranscriptStep& step : transcript.steps) {
        // Before another client speaks, what the last one said must have been heard.
        if (before != nullptr && before->is_from_client && step.is_from_client &&
            before->connection != step.connection) {
            CHECK(ask(clients[before->connection], ping(77), 4) == nonce(77));
        }
        before = &step;
        if (step.is_from_client) {
            clients[step.connection].send(
                step.bytes);  // Fails if the server has closed; see below.
        } else {
            received[step.connection] += clients[step.connection].receive(step.bytes.size());
        }
    }
    for (std::size_t index = 0; index < clients.size(); ++index) {
        clients[index].finish();
        received[index] += clients[index].receive_all();
    }
    return received;
}

std::string congestion_control_of(const UniqueFd& socket) {
    std::array<char, 32> name{};
    socklen_t size = name.size();
    REQUIRE(::getsockopt(socket.get(), IPPROTO_TCP, TCP_CONGESTION, name.data(), &size) == 0);
    return name.data();
}

}  // namespace

TEST_CASE("the server answers as PyTorch's store did") {
    Server server;
    for (const Transcript& transcript : load_transcripts()) {
        CAPTURE(transcript.name);
        if (kDeliberateDifferences.contains(transcript.name)) {
            continue;
        }
        std::vector<std::string> expected(transcript.connections);
        for (const TranscriptStep& step : transcript.steps) {
            expected[step.connection] += step.is_from_client ? "" : step.bytes;
        }
        server.serve();
        std::vector<std::string> received = replay(transcript, server.port());
        if (transcript.is_unordered) {
            received[0] = sorted(received[0]);
            expected[0] = sorted(expected[0]);
        }
        CHECK(received == expected);
    }
}

TEST_CASE("VALIDATE may arrive byte by byte") {
    Server server;
    server.serve();
    StoreClientSocket client = server.connect();
    for (const char value : kHello) {
        REQUIRE(client.send(std::string(1, value)));
    }
    CHECK(client.receive(4) == nonce(1));
}

TEST_CASE("a client that does not begin with VALIDATE is disconnected, and the reason is said") {
    Server server;
    server.serve();
    StoreClientSocket client = server.connect();
    REQUIRE(client.send(ping(1) + set("k", "1")));
    CHECK(client.receive_all().empty());
    StoreClientSocket other = server.enter();
    CHECK(ask(other, opcode(StoreOpcode::GetNumKeys), 8) == number(0));
    CHECK(server->counts().cut_off == 1);
    CHECK(server.lines() == std::vector<std::string>{"store: disconnected a client from 127.0.0.1: "
                                                     "PING before VALIDATE"});
}

TEST_CASE("replies to what came before a bad request are sent") {
    Server server;
    server.serve();
    StoreClientSocket client = server.connect();
    REQUIRE(client.send(kHello + ping(2) + byte(99)));
    CHECK(client.receive_all() == nonce(1) + nonce(2));
}

TEST_CASE("clients that connected before the store was served are answered then") {
    Server server;
    StoreClientSocket client = server.connect();
    REQUIRE(client.send(kHello + set("k", "1") + get("k")));
    server.serve();
    CHECK(client.receive(13) == nonce(1) + text("1"));
}

TEST_CASE("serving again disconnects all clients and begins with an empty store") {
    Server server;
    server.serve();
    StoreClientSocket before = server.enter();
    CHECK(ask(before, set("k", "1") + opcode(StoreOpcode::GetNumKeys), 8) == number(1));
    StoreClientSocket waiting = server.enter();
    CHECK(ask(waiting, wait({"x"}) + ping(2), 4) == nonce(2));
    server.serve();
    CHECK(before.receive_all().empty());
    CHECK(waiting.receive_all().empty());
    StoreClientSocket after = server.enter();
    CHECK(ask(after, opcode(StoreOpcode::GetNumKeys), 8) == number(0));
    CHECK(server->counts().admitted == 3);
    CHECK(server->counts().connected == 1);
}

TEST_CASE("close disconnects all clients and answers nobody until the store is served again") {
    Server server;
    server.serve();
    StoreClientSocket client = server.enter();
    server->close();
    CHECK(client.receive_all().empty());
    CHECK(server->counts().connected == 0);
    server->close();
    StoreClientSocket early = server.connect();
    server.serve();
    CHECK(ask(early, kHello, 4) == nonce(1));
}

TEST_CASE("a server that is asked says who waits in its store, and nothing if it never served") {
    StoreServer idle{Limits()};
    idle.ask_who_waits([](const StoreWaits&) { FAIL("there is no store"); });

    Server server;
    server.serve();
    std::promise<StoreWaits> empty;
    server->ask_who_waits([&empty](const StoreWaits& waits) { empty.set_value(waits); });
    CHECK(empty.get_future().get() == StoreWaits());
    StoreClientSocket one = server.connect();
    StoreClientSocket two = server.connect();
    CHECK(ask(one, validate() + ping(1), 4) == nonce(1));
    // Both in one piece: who has the second answer has been heard to wait.
    CHECK(ask(two, validate() + wait({"key"}) + ping(2), 4) == nonce(2));
    std::promise<StoreWaits> told;
    server->ask_who_waits([&told](const StoreWaits& waits) { told.set_value(waits); });
    CHECK(told.get_future().get() ==
          StoreWaits{.clients = 2, .waiting = 1, .key = "key", .for_key = 1});
}

TEST_CASE("the destructor disconnects all clients, and a server that never served has no thread") {
    StoreServer idle{Limits{}};
    auto server = std::make_unique<Server>();
    server->serve();
    StoreClientSocket client = server->enter();
    server.reset();
    CHECK(client.receive_all().empty());
}

TEST_CASE("a socket that nobody else holds is closed with the store") {
    StoreServer server{Limits{}};
    Result<StoreSocket> socket = listen_for_store(kLoopback, 0);
    REQUIRE(socket.has_value());
    const std::uint16_t port = socket->port;
    server.serve(std::move(socket->fd), {});
    {
        StoreClientSocket client(kLoopback, port);
        CHECK(ask(client, kHello, 4) == nonce(1));
        server.close();
        CHECK(client.receive_all().empty());
    }
    Result<StoreSocket> again = listen_for_store(kLoopback, port);
    CHECK(again.has_value());
}

TEST_CASE("clients from other addresses are disconnected, counted, and named once") {
    Server server;
    server.serve({"127.0.0.2", "::ffff:127.0.0.3", "no address"});
    for (const char* from : {"127.0.0.2", "127.0.0.3"}) {
        StoreClientSocket client(kLoopback, server.port(), from);
        CHECK(ask(client, kHello, 4) == nonce(1));
    }
    for (int attempt = 0; attempt < 3; ++attempt) {
        StoreClientSocket client = server.connect();
        client.send(kHello);
        CHECK(client.receive_all().empty());
    }
    CHECK(server->counts().admitted == 2);
    CHECK(server->counts().refused == 3);
    CHECK(server.lines() ==
          std::vector<std::string>{
              "store: no address in the list of admitted addresses is no numeric address and "
              "admits nobody",
              "store: refused a client from 127.0.0.1: it is not the address of a node of this "
              "generation; if it belongs to the job (NAT, a sidecar), start with --store-admit "
              "any"});
}

TEST_CASE("a client of an earlier generation's node is told from a stranger") {
    Server server;
    server.serve({"127.0.0.1", "127.0.0.2"});
    server.enter();
    server.serve({"127.0.0.1", "127.0.0.3"});
    server.enter();
    server->close();
    server.serve({"127.0.0.1"});
    for (const char* from : {"127.0.0.2", "127.0.0.3", "127.0.0.4"}) {
        StoreClientSocket client(kLoopback, server.port(), from);
        client.send(kHello);
        CHECK(client.receive_all().empty());
    }
    const std::string earlier =
        ": it is the address of a node of an earlier generation, not of this one; end what still "
        "runs there, or start ddprun there again";
    const std::vector<std::string> lines = server.lines();
    REQUIRE(lines.size() == 3);
    CHECK(lines[0] == "store: refused a client from 127.0.0.2" + earlier);
    CHECK(lines[1] == "store: refused a client from 127.0.0.3" + earlier);
    CHECK(lines[2].find("127.0.0.4: it is not the address of a node") != std::string::npos);
}

TEST_CASE("an IPv4 client of a socket that takes both kinds is admitted by its IPv4 address") {
    if (!listen_for_store("::", 0)) {
        WARN("no IPv6 on this machine: left out");
        return;
    }
    Server server("::");
    server.serve({kLoopback});
    StoreClientSocket client = server.connect();
    CHECK(ask(client, kHello, 4) == nonce(1));
    StoreClientSocket other("::1", server.port());
    CHECK(other.receive_all().empty());
}

TEST_CASE("one client more than the limit is refused until another leaves") {
    Limits limits;
    limits.store_clients_max = 2;
    Server server(kLoopback, limits);
    server.serve();
    StoreClientSocket first = server.enter();
    StoreClientSocket second = server.enter();
    StoreClientSocket third = server.connect();
    CHECK(third.receive_all().empty());
    first.finish();
    CHECK(first.receive_all().empty());
    StoreClientSocket fourth = server.enter();
    CHECK(server->counts().refused == 1);
}

TEST_CASE("a slow reader is not read from either, loses nothing and delays nobody") {
    Server server;
    server.serve();
    const std::string value(8 << 20, 'v');
    StoreClientSocket slow = server.enter();
    REQUIRE(slow.send(set("k", value)));
    std::string requests;
    constexpr std::size_t kRequests = 30;
    for (std::size_t index = 0; index < kRequests; ++index) {
        requests += get("k");
    }
    REQUIRE(slow.send(requests + set("after", "1")));
    StoreClientSocket other = server.enter();
    CHECK(ask(other, ping(5) + of_keys(StoreOpcode::Check, {"after"}), 5) == nonce(5) + kNotReady);
    const std::string expected = text(value);
    for (std::size_t index = 0; index < kRequests; ++index) {
        REQUIRE((slow.receive(expected.size()) == expected));
    }
    CHECK(ask(slow, get("after"), 9) == text("1"));
}

TEST_CASE("a client with too many unread replies is disconnected") {
    Limits limits;
    limits.send_queue_bytes_max = std::size_t{64} << 20;
    limits.store_reply_bytes_max = std::size_t{16} << 20;
    Server server(kLoopback, limits);
    server.serve();
    StoreClientSocket slow = server.enter();
    std::string requests = set("k", std::string(8 << 20, 'v'));
    REQUIRE(slow.send(requests));
    StoreClientSocket other = server.enter();
    for (int index = 0; index < 12; ++index) {
        slow.send(get("k"));
        CHECK(ask(other, ping(6), 4) == nonce(6));
    }
    CHECK(slow.receive_all().size() < 12 * (std::size_t{8} << 20));
    CHECK(server->counts().cut_off == 1);
}

TEST_CASE("one SET releases hundreds of clients") {
    Server server;
    server.serve();
    std::vector<StoreClientSocket> clients;
    constexpr std::size_t kClients = 400;
    for (std::size_t index = 0; index < kClients; ++index) {
        clients.push_back(server.enter());
        CHECK(ask(clients.back(), wait({"go"}) + ping(2), 4) == nonce(2));
    }
    StoreClientSocket leader = server.enter();
    REQUIRE(leader.send(set("go", "1")));
    for (StoreClientSocket& client : clients) {
        CHECK(client.receive(1) == kStopWaiting);
    }
}

TEST_CASE("without free descriptors a client is disconnected, and served once there are some") {
    Server server;
    server.serve();
    StoreClientSocket first = server.enter();
    StoreClientSocket second = server.connect();
    rlimit limit{};
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &limit) == 0);
    // Sockets made while descriptors are left connect when there is none left for the other end.
    CHECK(ask(second, kHello, 4) == nonce(1));
    std::vector<UniqueFd> fillers;
    rlimit small = limit;
    small.rlim_cur = 64;
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &small) == 0);
    while (true) {
        UniqueFd filler(::open("/dev/null", O_RDONLY | O_CLOEXEC));
        if (!filler.is_open()) {
            break;
        }
        fillers.push_back(std::move(filler));
    }
    fillers.pop_back();
    StoreClientSocket refused = server.connect();
    CHECK(refused.receive_all().empty());
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &limit) == 0);
    fillers.clear();
    CHECK(server->counts().refused == 1);
    StoreClientSocket third = server.enter();
    CHECK(ask(first, ping(9), 4) == nonce(9));
}

TEST_CASE("the store listens on numeric addresses only and says why it cannot") {
    const Result<StoreSocket> named = listen_for_store("localhost", 0);
    REQUIRE_FALSE(named.has_value());
    CHECK(named.error().code == ErrorCode::InvalidArgument);
    const Result<StoreSocket> first = listen_for_store(kLoopback, 0);
    REQUIRE(first.has_value());
    const Result<StoreSocket> second = listen_for_store(kLoopback, first->port);
    REQUIRE_FALSE(second.has_value());
    CHECK(second.error().code == ErrorCode::AddressInUse);
    CHECK(second.error().what == "the store cannot listen on 127.0.0.1 port " +
                                     std::to_string(first->port) + ": Address already in use");
    CHECK((::fcntl(first->fd.get(), F_GETFD) & FD_CLOEXEC) != 0);
}

TEST_CASE("a port that is kept is for whoever listens on it by its number, again and again") {
    const Result<StoreSocket> kept = keep_port_for_store(kLoopback, 0);
    REQUIRE(kept.has_value());
    for (const std::string& host : {std::string(kLoopback), std::string("0.0.0.0")}) {
        INFO(host);
        const Result<StoreSocket> listening = listen_for_store(host, kept->port);
        REQUIRE(listening.has_value());
        const StoreClientSocket client(kLoopback, kept->port);
        const UniqueFd accepted(::accept(listening->fd.get(), nullptr, nullptr));
        CHECK(accepted.is_open());
    }
    const Result<StoreSocket> other = listen_for_store(kLoopback, 0);
    REQUIRE(other.has_value());
    const Result<StoreSocket> refused = keep_port_for_store(kLoopback, other->port);
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().what == "no port of 127.0.0.1 can be kept for rank 0's store, " +
                                      std::to_string(other->port) +
                                      " was asked for: Address already in use");
}

TEST_CASE("a store for this machine alone controls no congestion; others do as the site wants") {
    const Result<StoreSocket> socket = listen_for_store(kLoopback, 0);
    REQUIRE(socket.has_value());
    const StoreClientSocket client(kLoopback, socket->port);
    const UniqueFd accepted(::accept(socket->fd.get(), nullptr, nullptr));
    REQUIRE(accepted.is_open());
    CHECK(congestion_control_of(accepted) == "reno");
    const Result<StoreSocket> sixth = listen_for_store("::1", 0);
    if (sixth.has_value()) {
        CHECK(congestion_control_of(sixth->fd) == "reno");
    } else {
        WARN("left out: ::1: " << sixth.error().what);
    }
    const UniqueFd plain(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const Result<StoreSocket> everywhere = listen_for_store("0.0.0.0", 0);
    REQUIRE(everywhere.has_value());
    CHECK(congestion_control_of(everywhere->fd) == congestion_control_of(plain));
}

}  // namespace ddprun::rdzv::store_test
