// Clients that mean no good or are broken: each loses its connection, is counted and named, and
// costs no other client anything.

#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tests/process/store_fixture.hpp"

namespace ddprun::rdzv::store_test {

namespace {

constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::min();  // 2^63

std::string count_of(StoreOpcode code, std::int64_t count) {
    return opcode(code) + number(count);
}

std::size_t resident_mib() {
    std::size_t pages = 0;
    std::ifstream statm("/proc/self/statm");
    statm >> pages >> pages;
    return pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)) >> 20;
}

/// Limits under which time runs out soon.
Limits hasty() {
    Limits limits;
    limits.hello_timeout = Milliseconds(100);
    limits.store_stall_timeout = Milliseconds(2000);
    return limits;
}

}  // namespace

TEST_CASE(
    "bytes that no client sends cost the connection, a count and a line, and no other client") {
    struct Case {
        std::string bytes;
        std::string reason;
    };
    const Case hostile = GENERATE(
        Case{validate(0xdeadbeef), "VALIDATE has a wrong magic number"},
        Case{"GET / HTTP/1.1\r\n\r\n", "unknown operation 0x47"},
        Case{std::string("\x16\x03\x01\x02", 4), "unknown operation 0x16"},
        Case{set("k", "1"), "SET before VALIDATE"}, Case{kHello + validate(), "a second VALIDATE"},
        Case{kHello + byte(19), "unknown operation 0x13"},
        Case{kHello + byte(255), "unknown operation 0xff"},
        Case{kHello + count_of(StoreOpcode::Get, kHuge),
             "GET with a key of 9223372036854775808 bytes, more than 8192"},
        Case{kHello + count_of(StoreOpcode::Add, -1),
             "ADD with a key of 18446744073709551615 bytes, more than 8192"},
        Case{kHello + opcode(StoreOpcode::Set) + text("k") + number((8 << 20) + 1),
             "SET with a value of 8388609 bytes, more than 8388608"},
        Case{kHello + opcode(StoreOpcode::QueuePush) + text("k") + number(kHuge),
             "QUEUE_PUSH with a value of 9223372036854775808 bytes, more than 8388608"},
        Case{kHello + count_of(StoreOpcode::Wait, 131073), "WAIT of 131073 keys, more than 131072"},
        Case{kHello + count_of(StoreOpcode::MultiSet, -1),
             "MULTI_SET of 18446744073709551615 keys, more than 131072"},
        Case{kHello + set("k", "x") + of_number(StoreOpcode::Add, "k", 1),
             "ADD on key k: its value x is no decimal number"});
    CAPTURE(hostile.reason);
    Server server;
    server.serve();
    StoreClientSocket other = server.enter();
    REQUIRE(other.send(wait({"go"})));
    StoreClientSocket client = server.connect();
    REQUIRE(client.send(hostile.bytes));
    CHECK(client.receive_all() == (hostile.bytes.starts_with(kHello) ? nonce(1) : ""));
    CHECK(server->counts().cut_off == 1);
    CHECK(server.lines() == std::vector<std::string>{
                                "store: disconnected a client from 127.0.0.1: " + hostile.reason});
    CHECK(ask(other, set("go", "1"), 1) == kStopWaiting);
    CHECK(server->counts().connected == 1);
}

TEST_CASE("a request that is cut off by the end of its connection has no effect") {
    Server server;
    server.serve();
    StoreClientSocket other = server.enter();
    const std::string whole = multi_set({{"a", "1"}, {"b", std::string(100000, 'v')}});
    for (const std::size_t size : {std::size_t{1}, std::size_t{30}, whole.size() - 1}) {
        StoreClientSocket client = server.enter();
        REQUIRE(client.send(whole.substr(0, size)));
        client.finish();
        CHECK(client.receive_all().empty());
    }
    CHECK(ask(other, opcode(StoreOpcode::GetNumKeys), 8) == number(0));
    CHECK(server->counts().connected == 1);
}

TEST_CASE("hundreds of bad clients are all counted and a few named") {
    Server server;
    server.serve();
    const auto begin = std::chrono::steady_clock::now();
    constexpr std::size_t kClients = 300;
    for (std::size_t index = 0; index < kClients; ++index) {
        StoreClientSocket client = server.connect();
        REQUIRE(client.send(byte(99)));
        CHECK(client.receive_all().empty());
    }
    CHECK(server->counts().cut_off == kClients);
    const auto seconds =
        std::chrono::ceil<std::chrono::seconds>(std::chrono::steady_clock::now() - begin);
    CHECK(server.lines().size() <= static_cast<std::size_t>(seconds.count()));
}

TEST_CASE("5,000 connections that say nothing are disconnected, and a client is served meanwhile") {
    rlimit files{};
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &files) == 0);
    rlimit more = files;
    more.rlim_cur = more.rlim_max;
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &more) == 0);
    std::size_t clients = 5000;
    if (more.rlim_cur < 2 * clients + 500) {
        WARN("only 400 clients: this process may open " << more.rlim_cur << " files");
        clients = 400;
    }
    Server server(kLoopback, hasty());
    server.serve();
    StoreClientSocket other = server.enter();
    std::vector<StoreClientSocket> silent;
    for (std::size_t index = 0; index < clients; ++index) {
        silent.push_back(server.connect());
        if (index % 2 == 1) {
            silent.back().send(validate().substr(0, 3));
        }
        if (index % 500 == 0) {
            CHECK(ask(other, ping(3), 4) == nonce(3));
        }
    }
    for (StoreClientSocket& client : silent) {
        CHECK(client.receive_all().empty());
    }
    CHECK(server->counts().cut_off >= clients);
    CHECK(server.lines().front() ==
          "store: disconnected a client from 127.0.0.1: it has not said VALIDATE, for 100 ms");
    CHECK(ask(other, ping(4), 4) == nonce(4));
    silent.clear();
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &files) == 0);
}

TEST_CASE("who stops in the middle of a request is disconnected, and who only waits is not") {
    Server server(kLoopback, hasty());
    server.serve();
    StoreClientSocket waiting = server.enter();
    REQUIRE(waiting.send(wait({"go"})));
    const std::string request = set("k", std::string(300000, 'v'));
    std::vector<StoreClientSocket> slow;
    for (const std::size_t size : {std::size_t{1}, std::size_t{20}, request.size() - 1}) {
        slow.push_back(server.enter());
        REQUIRE(slow.back().send(request.substr(0, size)));
    }
    for (StoreClientSocket& client : slow) {
        CHECK(client.receive_all().empty());
    }
    CHECK(server->counts().cut_off >= slow.size());
    CHECK(server.lines() == std::vector<std::string>{"store: disconnected a client from 127.0.0.1: "
                                                     "its request is incomplete, for 2000 ms"});
    CHECK(ask(waiting, set("go", "1"), 1) == kStopWaiting);
    CHECK(server->counts().connected == 1);
}

TEST_CASE("clients that never read are disconnected, and share one copy of what they asked for") {
    Server server(kLoopback, hasty());
    server.serve();
    StoreClientSocket other = server.enter();
    REQUIRE(other.send(set("k", std::string(8 << 20, 'v'))));
    CHECK(ask(other, ping(5), 4) == nonce(5));
    const std::size_t before = resident_mib();
    constexpr std::size_t kClients = 20;
    std::string requests;
    for (int index = 0; index < 30; ++index) {
        requests += get("k");
    }
    std::vector<StoreClientSocket> clients;
    for (std::size_t index = 0; index < kClients; ++index) {
        clients.push_back(server.enter());
        REQUIRE(clients.back().send(requests));
    }
    CHECK(ask(other, ping(6), 4) == nonce(6));
    const std::size_t after = resident_mib();
    CHECK(after < before + kClients * 8 / 2);
    while (server->counts().connected > 1) {
        CHECK(ask(other, ping(7), 4) == nonce(7));
    }
    CHECK(server->counts().cut_off >= kClients);
    CHECK(server.lines().front() ==
          "store: disconnected a client from 127.0.0.1: it does not read its replies, for 2000 ms");
}

TEST_CASE("incomplete requests are bounded together, and who is over is disconnected") {
    Limits limits;
    limits.store_partial_bytes_max = std::uint64_t{4} << 20;
    Server server(kLoopback, limits);
    server.serve();
    StoreClientSocket other = server.enter();
    const std::string part = set("k", std::string(1 << 20, 'v')).substr(0, 900'000);
    constexpr std::size_t kClients = 20;
    std::vector<StoreClientSocket> clients;
    for (std::size_t index = 0; index < kClients; ++index) {
        clients.push_back(server.enter());
        clients.back().send(part);
    }
    while (server->counts().connected > 5) {
        CHECK(ask(other, ping(5), 4) == nonce(5));
    }
    CHECK(server->counts().cut_off >= kClients - 4);
    CHECK(server.lines().front() ==
          "store: disconnected a client from 127.0.0.1: its request is incomplete, and incomplete "
          "requests of all clients take more than 4194304 bytes");
    // Their room goes to others.
    clients.clear();
    while (server->counts().connected > 1) {
        CHECK(ask(other, ping(6), 4) == nonce(6));
    }
    REQUIRE(other.send(set("k", std::string(1 << 20, 'v'))));
    CHECK(ask(other, get("k"), 8 + (1 << 20)) == text(std::string(1 << 20, 'v')));
}

TEST_CASE("the largest requests of PyTorch's clients arrive, and larger ones are refused") {
    Server server;
    server.serve();
    StoreClientSocket client = server.enter();
    const std::string value(8 << 20, 'v');
    REQUIRE(client.send(set("k", value)));
    CHECK(ask(client, compare_set("k", value, value), 8 + value.size()) == text(value));
    const std::string pair = text("k") + text(value);
    std::string large = opcode(StoreOpcode::MultiSet) + number(8);
    while (large.size() <= Limits{}.store_request_bytes_max) {
        large += pair;
    }
    client.send(large);
    CHECK(client.receive_all().empty());
    CHECK(server.lines() == std::vector<std::string>{"store: disconnected a client from 127.0.0.1: "
                                                     "MULTI_SET of more than 67108864 bytes"});
}

TEST_CASE("replies that nobody reads are bounded together, and who is over is disconnected") {
    Limits limits;
    limits.store_unread_bytes_max = std::uint64_t{40} << 20;
    Server server(kLoopback, limits);
    server.serve();
    StoreClientSocket other = server.enter();
    REQUIRE(other.send(set("k", std::string(60'000, 'v'))));
    CHECK(ask(other, ping(5), 4) == nonce(5));
    std::string request = opcode(StoreOpcode::MultiGet) + number(350);
    for (int index = 0; index < 350; ++index) {
        request += text("k");
    }
    constexpr std::size_t kClients = 20;  // 21 MB each; the kernel takes some of it.
    std::vector<StoreClientSocket> clients;
    for (std::size_t index = 0; index < kClients; ++index) {
        clients.push_back(server.enter());
        REQUIRE(clients.back().send(request));
    }
    while (server->counts().connected > 10) {
        CHECK(ask(other, ping(6), 4) == nonce(6));
    }
    CHECK(server.lines().front() ==
          "store: disconnected a client from 127.0.0.1: it does not read its replies, and those "
          "that all clients leave unread take more than 41943040 bytes");
    CHECK(ask(other, get("k"), 60'008) == text(std::string(60'000, 'v')));
}

}  // namespace ddprun::rdzv::store_test
