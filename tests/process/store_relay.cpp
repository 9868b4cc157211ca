// Goal: a client that reaches the store through a relay is served as if directly, and no client
// pays for what another client of the relay does. Method: a store and a relay on threads, clients
// that send bytes.

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "rendezvous/store/core/relayed_clients.hpp"
#include "rendezvous/store/relay/relay.hpp"
#include "tests/process/store_fixture.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/store_requests.hpp"

namespace ddprun::rdzv::store_test {

namespace {

/// A store and a relay to it, each with its server.
class RelayedStore {
public:
    explicit RelayedStore(Limits limits = {})
        : store_(kLoopback, limits), relay_(kLoopback, limits) {
        relay_->serve_with(make_relay(limits, {kLoopback, store_.port()},
                                      [this](std::string line) { relay_.say(std::move(line)); }),
                           relay_.duplicate());
    }

    /// The relays' clients are clients of this store.
    Server& store() { return store_; }
    Server& relay() { return relay_; }

private:
    Server store_;
    Server relay_;
};

/// A connection that has said RELAY to a store.
StoreClientSocket enter_as_relay(Server& server) {
    StoreClientSocket relay = server.connect();
    std::string hello = validate() + opcode(StoreOpcode::Relay);
    append_u32(hello, kRelayVersion);
    REQUIRE(relay.send(hello));
    return relay;
}

std::string receive_like(StoreClientSocket& client, const std::string& expected) {
    return client.receive(expected.size());
}

/// Answers PING, and has no room from the end of each turn in which it was asked until a moment
/// later.
class BusyBackend final : public StoreBackend {
public:
    explicit BusyBackend(std::atomic<int>& asked_in_vain) : asked_in_vain_(asked_in_vain) {}

    Result<void> handle(StoreClient client, std::string_view request, StoreReplies& replies,
                        const std::shared_ptr<const void>& /*owner*/) override {
        asked_in_vain_ += full_until_ ? 1 : 0;
        was_asked_ = true;
        if (request.size() == ping(0).size() && request.front() == ping(0).front()) {
            replies.begin_reply(client).append(request.substr(1));
            replies.end_reply();
        }
        return {};
    }
    void disconnected(StoreClient /*client*/, StoreReplies& /*replies*/) override {}
    bool has_room() const override { return !full_until_; }
    void end_turn(StoreReplies& /*replies*/) override {
        if (std::exchange(was_asked_, false)) {
            full_until_ = std::chrono::steady_clock::now() + std::chrono::milliseconds(1);
        }
    }
    std::optional<Instant> next_deadline() const override { return full_until_; }
    void on_time(Instant now, StoreReplies& /*replies*/) override {
        if (full_until_ && *full_until_ <= now) {
            full_until_.reset();
        }
    }

private:
    std::atomic<int>& asked_in_vain_;
    bool was_asked_ = false;
    std::optional<Instant> full_until_;
};

std::string repeated(int times, const std::string& request) {
    std::string out;
    for (int i = 0; i < times; ++i) {
        out += request;
    }
    return out;
}

const std::string kEnter = opcode(StoreOpcode::Enter);
const std::string kLeave = opcode(StoreOpcode::Leave);

}  // namespace

TEST_CASE("clients of a relay share one connection to the store") {
    RelayedStore stores;
    stores.store().serve();
    StoreClientSocket one = stores.relay().enter();
    StoreClientSocket two = stores.relay().enter();
    REQUIRE(one.send(set("k", "v")));
    CHECK(ask(one, get("k"), 9) == text("v"));
    CHECK(ask(two, get("k"), 9) == text("v"));
    // The relay and its clients.
    CHECK(stores.store()->counts().connected == 3);
    StoreClientSocket direct = stores.store().enter();
    CHECK(ask(direct, get("k"), 9) == text("v"));
}

TEST_CASE("clients of a relay take no connection of those that the store has") {
    Limits limits;
    limits.store_clients_max = 2;
    limits.store_relayed_max = 3;
    Server server(kLoopback, limits);
    server.serve();
    StoreClientSocket relay = enter_as_relay(server);
    REQUIRE(relay.send(clients({1, 2, 3}) + kEnter + clients({1, 2, 3}) +
                       of_number(StoreOpcode::Add, "n", 1)));
    const std::string counted =
        replied({1}, number(1)) + replied({2}, number(2)) + replied({3}, number(3));
    CHECK(receive_like(relay, counted) == counted);
    StoreClientSocket direct = server.enter();
    CHECK(ask(direct, ping(3), 4) == nonce(3));
    // One of each more is too many, until another one has gone.
    StoreClientSocket refused = server.connect();
    CHECK(refused.receive_all().empty());
    REQUIRE(relay.send(clients({4}) + kEnter));
    CHECK(receive_like(relay, replied({4}, "")) == replied({4}, ""));
    REQUIRE(relay.send(clients({2}) + kLeave));
    CHECK(receive_like(relay, replied({2}, "")) == replied({2}, ""));
    REQUIRE(relay.send(clients({5}) + kEnter + clients({5}) + ping(9)));
    CHECK(receive_like(relay, replied({5}, nonce(9))) == replied({5}, nonce(9)));
}

TEST_CASE("each client of a relay waits on its own") {
    RelayedStore stores;
    stores.store().serve();
    StoreClientSocket leaves = stores.relay().enter();
    StoreClientSocket cancels = stores.relay().enter();
    StoreClientSocket stays = stores.relay().enter();
    StoreClientSocket other = stores.relay().enter();
    for (StoreClientSocket* client : {&leaves, &cancels, &stays}) {
        REQUIRE(client->send(wait({"k"})));
        CHECK(ask(*client, ping(5), 4) == nonce(5));  // It may ask meanwhile.
    }
    REQUIRE(other.send(wait({"another"})));
    leaves.finish();
    CHECK(leaves.receive_all().empty());
    CHECK(ask(cancels, opcode(StoreOpcode::CancelWait), 1) == kWaitCanceled);
    StoreClientSocket direct = stores.store().enter();
    REQUIRE(direct.send(set("k", "v")));
    CHECK(stays.receive(1) == kStopWaiting);
    CHECK(ask(cancels, ping(6), 4) == nonce(6));
    REQUIRE(direct.send(set("another", "v")));
    CHECK(other.receive(1) == kStopWaiting);
}

TEST_CASE("an element of a queue goes to one of a relay's clients") {
    RelayedStore stores;
    stores.store().serve();
    StoreClientSocket one = stores.relay().enter();
    StoreClientSocket two = stores.relay().enter();
    for (StoreClientSocket* client : {&one, &two}) {
        REQUIRE(client->send(wait({"q"})));
        CHECK(ask(*client, ping(5), 4) == nonce(5));
    }
    StoreClientSocket direct = stores.store().enter();
    REQUIRE(direct.send(of_value(StoreOpcode::QueuePush, "q", "e")));
    CHECK(one.receive(1) == kStopWaiting);
    CHECK(ask(two, ping(6), 4) == nonce(6));  // It has been told nothing.
    one.finish();                             // Without the pop: the element is offered again.
    CHECK(two.receive(1) == kStopWaiting);
    CHECK(ask(two, of_key(StoreOpcode::QueuePop, "q"), 17) == number(1) + text("e"));
}

TEST_CASE("what a relay's client does wrong ends its connection alone") {
    RelayedStore stores;
    stores.store().serve();
    StoreClientSocket good = stores.relay().enter();
    REQUIRE(good.send(wait({"k"})));
    REQUIRE(good.send(set("word", "no number")));
    CHECK(ask(good, ping(5), 4) == nonce(5));
    const std::string wrong = GENERATE(
        of_number(StoreOpcode::Add, "word", 1),
        repeated(50, of_number(StoreOpcode::Add, "word", 1)), byte(0x13), byte(0xff), validate(),
        opcode(StoreOpcode::Relay) + nonce(kRelayVersion), clients({1}) + kEnter, kLeave,
        opcode(StoreOpcode::Set) + number(-1), set("k", std::string(9 << 20, 'v')));
    StoreClientSocket bad = stores.relay().enter();
    bad.send(wrong);
    CHECK(bad.receive_all().empty());
    CHECK(ask(good, ping(6), 4) == nonce(6));
    REQUIRE(stores.relay().enter().send(set("k", "v")));
    CHECK(good.receive(1) == kStopWaiting);
}

TEST_CASE("when the store is gone, so are a relay's clients, until there is one again") {
    RelayedStore stores;
    stores.store().serve();
    StoreClientSocket waits = stores.relay().enter();
    REQUIRE(waits.send(set("k", "v") + wait({"never"})));
    CHECK(ask(waits, ping(5), 4) == nonce(5));
    stores.store()->close();
    CHECK(waits.receive_all().empty());
    stores.store().serve();
    StoreClientSocket next = stores.relay().enter();
    CHECK(ask(next, get("k"), 8) == text(""));
    stores.relay()->close();
    CHECK(next.receive_all().empty());
}

TEST_CASE("a relay whose store cannot be reached disconnects its clients and says why") {
    Server relay;
    std::uint16_t port = 0;
    {
        Result<StoreSocket> closed = listen_for_store(kLoopback, 0);
        REQUIRE(closed.has_value());
        port = closed->port;
    }
    relay->serve_with(make_relay(Limits{}, {kLoopback, port},
                                 [&](std::string line) { relay.say(std::move(line)); }),
                      relay.duplicate());
    StoreClientSocket client = relay.connect();
    client.send(kHello);
    CHECK(client.receive_all().empty());
    REQUIRE(relay.lines().size() == 1);
    CHECK(relay.lines().front() ==
          "relay: the workers' store at 127.0.0.1:" + std::to_string(port) +
              " cannot be used: Connection refused");
}

TEST_CASE("big values pass a relay, and who does not read them holds up nobody") {
    RelayedStore stores;
    stores.store().serve();
    StoreClientSocket sends = stores.relay().enter();
    StoreClientSocket sleeps = stores.relay().enter();
    const std::string value(8 << 20, 'v');
    REQUIRE(sends.send(set("k", value) + get("k")));
    CHECK(sends.receive(8 + value.size()) == text(value));
    REQUIRE(sleeps.send(get("k") + get("k") + get("k")));
    CHECK(ask(sends, get("k"), 8 + value.size()) == text(value));
    CHECK(ask(sends, ping(5), 4) == nonce(5));
    CHECK(sleeps.receive(3 * (8 + value.size())) == text(value) + text(value) + text(value));
}

TEST_CASE("a backend without room is asked for nothing, and afterwards for what has waited") {
    std::atomic<int> asked_in_vain = 0;
    Server server;
    server->serve_with(std::make_unique<BusyBackend>(asked_in_vain), server.duplicate());
    StoreClientSocket one = server.enter();
    StoreClientSocket two = server.enter();
    for (std::uint32_t i = 0; i < 50; ++i) {
        REQUIRE(one.send(ping(i) + ping(i + 1)));
        REQUIRE(two.send(ping(i)));
        CHECK(one.receive(8) == nonce(i) + nonce(i + 1));
        CHECK(two.receive(4) == nonce(i));
    }
    CHECK(asked_in_vain == 0);
}

TEST_CASE("a relay has no room for more than the store takes, and has again when it takes it") {
    Limits limits;
    limits.send_queue_bytes_max = 100000;
    Result<StoreSocket> store = listen_for_store(kLoopback, 0);
    REQUIRE(store.has_value());
    const UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
    const std::unique_ptr<StoreBackend> relay = make_relay(limits, {kLoopback, store->port}, {});
    StoreReplies replies;
    relay->attach(epoll.get(), 7);
    CHECK(relay->handle(StoreClient(1), validate(), replies, {}).has_value());
    CHECK(relay->has_room());
    const std::string request = set("k", std::string(1 << 20, 'v'));
    CHECK(relay->handle(StoreClient(1), request, replies, {}).has_value());
    CHECK_FALSE(relay->has_room());
    relay->end_turn(replies);
    CHECK_FALSE(relay->has_room());  // It connects still.
    UniqueFd accepted;
    while (!relay->has_room()) {
        epoll_event event{};
        REQUIRE(::epoll_wait(epoll.get(), &event, 1, 60000) == 1);
        CHECK(event.data.u64 == 7);
        relay->on_event(event.events, replies);
        if (!accepted.is_open()) {
            accepted.reset(::accept(store->fd.get(), nullptr, nullptr));
        }
        std::string bytes(1 << 20, 'x');
        static_cast<void>(::recv(accepted.get(), bytes.data(), bytes.size(), MSG_DONTWAIT));
    }
    CHECK(replies.empty());
}

TEST_CASE("what a relay's clients send too fast arrives all the same") {
    Limits limits;
    limits.send_queue_bytes_max = 65536;
    RelayedStore stores(limits);  // Its store lets the relay wait in the backlog.
    StoreClientSocket client = stores.relay().connect();
    const std::string value(100000, 'v');
    std::thread sender([&] {
        client.send(kHello);
        for (int i = 0; i < 300; ++i) {
            client.send(set("k" + std::to_string(i), value));
        }
        client.send(opcode(StoreOpcode::GetNumKeys));
    });
    stores.store().serve();
    CHECK(client.receive(4) == nonce(1));
    CHECK(client.receive(8) == number(300));
    sender.join();
}

TEST_CASE("a store answers each client of a relay, and together those that are to get the same") {
    Server server;
    server.serve();
    StoreClientSocket relay = enter_as_relay(server);
    REQUIRE(relay.send(clients({7, 8, 9}) + kEnter));
    REQUIRE(relay.send(clients({8, 7}) + of_number(StoreOpcode::Add, "n", 2)));
    const std::string counted = replied({8}, number(2)) + replied({7}, number(4));
    CHECK(receive_like(relay, counted) == counted);
    REQUIRE(relay.send(clients({7, 8, 9}) + wait({"k"}) + clients({9}) + ping(3)));
    CHECK(receive_like(relay, replied({9}, nonce(3))) == replied({9}, nonce(3)));
    REQUIRE(relay.send(clients({8}) + kLeave));
    CHECK(receive_like(relay, replied({8}, "")) == replied({8}, ""));
    StoreClientSocket direct = server.enter();
    REQUIRE(direct.send(set("k", "v")));
    CHECK(receive_like(relay, replied({7, 9}, kStopWaiting)) == replied({7, 9}, kStopWaiting));
    // No frame names a client twice: the two replies would be mixed when it arrives in parts.
    REQUIRE(relay.send(clients({7, 9}) + get("k") + clients({7}) + get("k")));
    const std::string values = replied({7, 9}, text("v")) + replied({7}, text("v"));
    CHECK(receive_like(relay, values) == values);
    CHECK(server->counts().connected == 4);
    relay.finish();
    CHECK(relay.receive_all().empty());
    CHECK(ask(direct, ping(4), 4) == nonce(4));
    CHECK(server->counts().connected == 1);
}

TEST_CASE("a client that the store refuses is named to its relay, and what follows is ignored") {
    Server server;
    server.serve();
    StoreClientSocket relay = enter_as_relay(server);
    REQUIRE(relay.send(clients({1, 2}) + kEnter + clients({1}) + set("word", "no number") +
                       clients({1, 2}) + of_number(StoreOpcode::Add, "word", 1) + clients({1}) +
                       set("late", "") + clients({2}) + kLeave + clients({3}) + kEnter +
                       clients({3}) + of_keys(StoreOpcode::Check, {"late"})));
    const std::string expected = replied({3}, kNotReady) + replied({1, 2}, "");
    CHECK(receive_like(relay, expected) == expected);
    CHECK(server->counts().cut_off == 2);
    CHECK(server->counts().connected == 2);
}

TEST_CASE("a relay that breaks the protocol loses its connection and all that came through it") {
    Server server;
    server.serve();
    StoreClientSocket other = server.enter();
    StoreClientSocket relay = enter_as_relay(server);
    REQUIRE(relay.send(clients({1, 2}) + kEnter + clients({1}) + ping(3)));
    CHECK(receive_like(relay, replied({1}, nonce(3))) == replied({1}, nonce(3)));
    const std::string wrong = GENERATE(
        clients({}), nonce(0xffffffff), clients({1}) + kEnter, clients({1}) + byte(0x13),
        clients({1}) + validate(), clients({1}) + opcode(StoreOpcode::Relay) + nonce(kRelayVersion),
        clients({1}) + opcode(StoreOpcode::Set) + number(-1));
    relay.send(wrong);
    CHECK(relay.receive_all().empty());
    CHECK(ask(other, ping(4), 4) == nonce(4));
    CHECK(server->counts().connected == 1);
}

TEST_CASE("RELAY is the first request of a connection or none, and of a known version") {
    Server server;
    server.serve();
    StoreClientSocket late = server.enter();
    REQUIRE(late.send(opcode(StoreOpcode::Relay) + nonce(kRelayVersion)));
    CHECK(late.receive_all().empty());
    StoreClientSocket newer = server.connect();
    REQUIRE(newer.send(validate() + opcode(StoreOpcode::Relay) + nonce(kRelayVersion + 1)));
    CHECK(newer.receive_all().empty());
    StoreClientSocket early = server.connect();
    REQUIRE(early.send(validate() + kEnter));
    CHECK(early.receive_all().empty());
}

TEST_CASE("a client of a relay that is one too many is disconnected alone") {
    Limits limits;
    limits.store_relayed_max = 2;
    Server server(kLoopback, limits);
    server.serve();
    StoreClientSocket relay = enter_as_relay(server);
    REQUIRE(relay.send(clients({1, 2, 3}) + kEnter + clients({3, 2}) + ping(3)));
    const std::string expected = replied({2}, nonce(3)) + replied({3}, "");
    CHECK(receive_like(relay, expected) == expected);
}

TEST_CASE("what a relay's client waits for, and what it has sent of a request, is bounded") {
    Limits limits;
    limits.store_wait_bytes_max = 10'000;
    limits.store_partial_bytes_max = std::uint64_t{4} << 20;
    RelayedStore stores(limits);
    stores.store().serve();
    StoreClientSocket good = stores.relay().enter();
    REQUIRE(good.send(wait({"go"})));
    StoreClientSocket waits = stores.relay().enter();
    REQUIRE(waits.send(wait({std::string(8'000, 'a'), std::string(8'000, 'b')})));
    CHECK(waits.receive_all().empty());
    CHECK(stores.store()->counts().cut_off == 1);
    const std::string part = set("k", std::string(1 << 20, 'v')).substr(0, 900'000);
    std::vector<StoreClientSocket> clients;
    for (int index = 0; index < 20; ++index) {
        clients.push_back(stores.relay().enter());
        clients.back().send(part);
    }
    while (stores.relay()->counts().connected > 5) {
        CHECK(ask(good, ping(5), 4) == nonce(5));
    }
    CHECK(stores.relay()->counts().cut_off >= 16);
    CHECK(stores.store()->counts().cut_off == 1);
    REQUIRE(good.send(set("go", "")));
    CHECK(good.receive(1) == kStopWaiting);
}

}  // namespace ddprun::rdzv::store_test
