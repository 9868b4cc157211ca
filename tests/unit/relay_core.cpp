#include "rendezvous/store/relay/relay_core.hpp"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/catch.hpp"
#include "tests/support/store_requests.hpp"

namespace ddprun::rdzv::store_test {

namespace {

const std::string kEnter = opcode(StoreOpcode::Enter);
const std::string kLeave = opcode(StoreOpcode::Leave);

std::string add(std::string_view key) {
    return of_number(StoreOpcode::Add, key, 1);
}

/// A relay, and what its clients have been sent. Clients are numbered as they come, so that here
/// the relay's own number of client N is N.
class Relay {
public:
    explicit Relay(Limits limits = {}) : limits_(limits), core_(limits_) {}

    void enter(std::uint32_t client) { ask(client, validate()); }
    void ask(std::uint32_t client, const std::string& request) {
        core_.handle(StoreClient(client), request);
    }
    void leave(std::uint32_t client) { core_.disconnected(StoreClient(client)); }

    /// The bytes that the relay sends the store for this turn.
    std::string turn() {
        std::string sent;
        for (const RelayFrames& frames : core_.take_frames()) {
            sent += frames.bytes;
            sent += frames.shared.bytes;
        }
        return sent;
    }

    /// The store sends this; false when the relay refuses it.
    bool answer(std::string_view bytes) {
        StoreReplies replies;
        const bool is_taken = core_.take_replies(bytes, replies).has_value();
        deliver(replies);
        return is_taken;
    }

    void lose_store() {
        StoreReplies replies;
        core_.lose_store(replies);
        deliver(replies);
    }

    std::string take(std::uint32_t client) { return std::exchange(inbox_[client], {}); }
    RelayCore& core() { return core_; }

private:
    void deliver(const StoreReplies& replies) {
        std::size_t at = 0;
        for (const StoreReplies::Piece& piece : replies.pieces()) {
            std::string& inbox = inbox_[piece.client.value()];
            inbox += replies.bytes().substr(at, piece.size);
            inbox += piece.is_last ? "CLOSE" : "";
            at += piece.size;
        }
    }

    Limits limits_;
    RelayCore core_;
    std::map<std::uint32_t, std::string> inbox_;
};

}  // namespace

TEST_CASE("a relay's clients enter with their first request and leave with their connection") {
    Relay relay;
    CHECK(relay.turn().empty());
    relay.enter(1);
    relay.enter(2);
    CHECK(relay.core().has_clients());
    CHECK(relay.turn() == clients({1, 2}) + kEnter);
    relay.leave(1);
    relay.leave(7);  // It has not said VALIDATE.
    CHECK(relay.turn() == clients({1}) + kLeave);
    relay.enter(1);
    CHECK(relay.turn() == clients({3}) + kEnter);  // No number is used twice.
    relay.leave(1);
    relay.leave(2);
    CHECK_FALSE(relay.core().has_clients());
}

TEST_CASE("equal requests of one batch travel once, others one by one") {
    Relay relay;
    for (const std::uint32_t client : {1U, 2U, 3U}) {
        relay.enter(client);
    }
    static_cast<void>(relay.turn());
    const std::string request =
        GENERATE(add("k"), get("k"), wait({"k", "l"}), of_keys(StoreOpcode::Check, {"k"}),
                 of_number(StoreOpcode::Barrier, "k", 3), opcode(StoreOpcode::CancelWait));
    relay.ask(3, request);
    relay.ask(1, get("another"));
    relay.ask(2, request);
    CHECK(relay.turn() == clients({3, 2}) + request + clients({1}) + get("another"));
    CHECK(relay.answer(replied({1}, text("v"))));
    relay.ask(1, request);
    CHECK(relay.turn() == clients({1}) + request);  // The batch before is gone.
}

TEST_CASE("what has a reply of its own kind, or none, is never combined") {
    Relay relay;
    relay.enter(1);
    relay.enter(2);
    static_cast<void>(relay.turn());
    const std::string request =
        GENERATE(set("k", "v"), of_value(StoreOpcode::QueuePush, "q", "e"),
                 of_key(StoreOpcode::QueuePop, "q"), opcode(StoreOpcode::ListKeys),
                 compare_set("k", "", "v"), of_keys(StoreOpcode::MultiGet, {"k"}));
    relay.ask(1, request);
    relay.ask(2, request);
    CHECK(relay.turn() == clients({1}) + request + clients({2}) + request);
}

TEST_CASE("a client's own requests keep their order, whatever they could be combined with") {
    Relay relay;
    relay.enter(1);
    relay.enter(2);
    static_cast<void>(relay.turn());
    // The second client's ADD comes after its GET, so it may not join the first one's before that.
    relay.ask(1, add("k"));
    relay.ask(2, get("k"));
    relay.ask(2, add("k"));
    relay.ask(1, add("k"));
    CHECK(relay.turn() ==
          clients({1}) + add("k") + clients({2}) + get("k") + clients({2, 1}) + add("k"));
    // A client's two ADDs do not join the same request either.
    CHECK(relay.answer(replied({2}, number(2))));
    relay.ask(1, add("k"));
    relay.ask(1, add("k"));
    CHECK(relay.turn() == clients({1}) + add("k") + clients({1}) + add("k"));
}

TEST_CASE("what follows a request without a reply is not combined with what was before it") {
    Relay relay;
    relay.enter(1);
    relay.enter(2);
    relay.enter(3);
    static_cast<void>(relay.turn());
    // When client 2 goes on after SET, client 3 may know of it, and must find the new value.
    const std::string request =
        GENERATE(set("k", "v"), of_value(StoreOpcode::Append, "k", "v"),
                 of_value(StoreOpcode::QueuePush, "k", "v"), multi_set({{"k", "v"}}));
    relay.ask(1, get("k"));
    relay.ask(2, request);
    relay.ask(3, get("k"));
    CHECK(relay.turn() ==
          clients({1}) + get("k") + clients({2}) + request + clients({3}) + get("k"));
}

TEST_CASE("what comes while the store owes an answer goes together when it has come") {
    Relay relay;
    for (const std::uint32_t client : {1U, 2U, 3U}) {
        relay.enter(client);
    }
    static_cast<void>(relay.turn());
    relay.ask(1, add("k"));
    CHECK(relay.turn() == clients({1}) + add("k"));
    relay.ask(2, add("k"));
    CHECK(relay.turn().empty());
    relay.ask(3, add("k"));
    CHECK(relay.turn().empty());
    CHECK(relay.core().waiting_bytes() == add("k").size());
    SECTION("an answer") {
        CHECK(relay.answer(replied({1}, number(1))));
    }
    SECTION("a disconnection") {
        CHECK(relay.answer(replied({1}, "")));
    }
    SECTION("an answer to who has left") {
        relay.leave(1);
        CHECK(relay.turn().empty());
        CHECK(relay.answer(replied({1}, number(1))));
        CHECK(relay.turn() == clients({2, 3}) + add("k") + clients({1}) + kLeave);
        return;
    }
    CHECK(relay.turn() == clients({2, 3}) + add("k"));
    CHECK(relay.core().waiting_bytes() == 0);
}

TEST_CASE("no answer is awaited to what a client has asked for that is gone already") {
    Relay relay;
    relay.enter(1);
    relay.enter(2);
    static_cast<void>(relay.turn());
    relay.ask(2, add("k"));
    static_cast<void>(relay.turn());
    relay.ask(1, add("k"));
    // The store has disconnected client 1 for something before, so it ignores the request.
    CHECK(relay.answer(replied({2}, number(1)) + replied({1}, "")));
    relay.leave(1);
    CHECK(relay.turn() == clients({1}) + add("k") + clients({1}) + kLeave);
    relay.ask(2, add("k"));
    CHECK(relay.turn() == clients({2}) + add("k"));
}

TEST_CASE("what the store may answer late, or never, holds up nothing") {
    Relay relay;
    relay.enter(1);
    relay.enter(2);
    static_cast<void>(relay.turn());
    const std::string request =
        GENERATE(wait({"k"}), of_number(StoreOpcode::Barrier, "k", 2), set("k", "v"),
                 of_keys(StoreOpcode::MultiGet, {}), of_value(StoreOpcode::Append, "k", "v"),
                 multi_set({}), of_value(StoreOpcode::QueuePush, "k", "v"));
    relay.ask(1, request);
    CHECK(relay.turn() == clients({1}) + request);
    relay.ask(2, add("k"));
    CHECK(relay.turn() == clients({2}) + add("k"));
}

TEST_CASE("one frame names no more clients than it may") {
    Limits limits;
    limits.slots_max = 2;
    Relay relay(limits);
    for (const std::uint32_t client : {1U, 2U, 3U}) {
        relay.enter(client);
    }
    CHECK(relay.turn() == clients({1, 2}) + kEnter + clients({3}) + kEnter);
}

TEST_CASE("a big request is not copied") {
    Limits limits;
    RelayCore core(limits);
    core.handle(StoreClient(1), validate());
    const auto request = std::make_shared<const std::string>(set("k", std::string(100000, 'v')));
    core.handle(StoreClient(1), *request, request);
    core.handle(StoreClient(1), set("k", "small"), {});
    const std::vector<RelayFrames> frames = core.take_frames();
    REQUIRE(frames.size() == 2);
    CHECK(frames[0].bytes == clients({1}) + kEnter + clients({1}));
    CHECK(frames[0].shared.bytes.data() == request->data());
    CHECK(frames[1].bytes == clients({1}) + set("k", "small"));
}

TEST_CASE("replies reach those they are for, however the network cuts them") {
    const std::string stream = replied({1}, number(1)) + replied({2, 1}, kStopWaiting) +
                               replied({2}, text(std::string(300, 'v'))) + replied({2}, "");
    for (std::size_t cut = 0; cut <= stream.size(); ++cut) {
        Relay relay;
        relay.enter(1);
        relay.enter(2);
        REQUIRE(relay.answer(std::string_view(stream).substr(0, cut)));
        REQUIRE(relay.answer(std::string_view(stream).substr(cut)));
        REQUIRE(relay.take(1) == number(1) + kStopWaiting);
        REQUIRE(relay.take(2) == kStopWaiting + text(std::string(300, 'v')) + "CLOSE");
    }
}

TEST_CASE("a reply to a client that has left is dropped") {
    Relay relay;
    relay.enter(1);
    relay.enter(2);
    relay.leave(1);
    relay.enter(1);  // Number 3: what was for number 1 is not for it.
    CHECK(relay.answer(replied({1, 2}, kStopWaiting) + replied({1}, "") + replied({9}, "")));
    CHECK(relay.take(1).empty());
    CHECK(relay.take(2) == kStopWaiting);
}

TEST_CASE("a frame of nobody, of too many or of one twice is the end of the store's connection") {
    Limits limits;
    limits.slots_max = 2;
    Relay relay(limits);
    CHECK_FALSE(relay.answer(clients({})));
    Relay another(limits);
    CHECK_FALSE(another.answer(clients({1, 2, 3})));
    Relay third(limits);
    third.enter(1);
    CHECK_FALSE(third.answer(replied({1, 1}, kStopWaiting)));
    CHECK(third.take(1).empty());
}

TEST_CASE("with the store everybody is lost, and the next one is begun anew") {
    Relay relay;
    relay.enter(1);
    relay.enter(2);
    relay.ask(1, set("k", "v"));
    CHECK(relay.answer(clients({1})));  // A part of a frame.
    relay.lose_store();
    CHECK(relay.take(1) == "CLOSE");
    CHECK(relay.take(2) == "CLOSE");
    relay.leave(1);
    relay.leave(2);
    CHECK(relay.turn().empty());
    relay.enter(2);
    CHECK(relay.turn() == clients({1}) + kEnter);
    CHECK(relay.answer(replied({1}, kStopWaiting)));
    CHECK(relay.take(2) == kStopWaiting);
}

}  // namespace ddprun::rdzv::store_test
