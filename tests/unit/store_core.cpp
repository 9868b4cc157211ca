#include "rendezvous/store/core/store_core.hpp"

#include <limits>
#include <map>
#include <string>
#include <utility>

#include "tests/support/catch.hpp"
#include "tests/support/store_requests.hpp"

namespace ddprun::rdzv::store_test {

namespace {

/// A core and what its clients have been sent; clients are small numbers.
class Store {
public:
    explicit Store(Limits limits = {}) : limits_(limits), core_(limits_) {}

    /// Carries out `request` and returns what this client is sent by it. A refusal is "CLOSE".
    std::string ask(std::uint32_t client, const std::string& request) {
        StoreReplies replies;
        const Result<void> done = core_.handle(StoreClient(client), request, replies);
        deliver(replies);
        if (!done) {
            refusal_ = done.error().what;
            return "CLOSE";
        }
        return take(client);
    }

    void leave(std::uint32_t client) {
        StoreReplies replies;
        core_.disconnected(StoreClient(client), replies);
        deliver(replies);
    }

    /// Takes the bytes that `client` has been sent since the last look.
    std::string take(std::uint32_t client) { return std::exchange(inbox_[client], {}); }

    const std::string& refusal() const { return refusal_; }
    const StoreCore& core() const { return core_; }

private:
    void deliver(const StoreReplies& replies) {
        std::size_t at = 0;
        std::size_t shared = 0;
        for (const StoreReplies::Piece& piece : replies.pieces()) {
            inbox_[piece.client.value()] += replies.bytes().substr(at, piece.size);
            inbox_[piece.client.value()] += piece.shared.bytes;
            at += piece.size;
            shared += piece.shared.bytes.size();
        }
        CHECK(at == replies.bytes().size());
        CHECK(at + shared == replies.size());
    }

    Limits limits_;
    StoreCore core_;
    std::map<std::uint32_t, std::string> inbox_;
    std::string refusal_;
};

std::string add(std::string_view key, std::int64_t amount) {
    return of_number(StoreOpcode::Add, key, amount);
}
std::string barrier(std::string_view key, std::int64_t world_size) {
    return of_number(StoreOpcode::Barrier, key, world_size);
}
std::string check(std::initializer_list<std::string_view> keys) {
    return of_keys(StoreOpcode::Check, keys);
}
std::string push(std::string_view name, std::string_view element) {
    return of_value(StoreOpcode::QueuePush, name, element);
}
std::string pop(std::string_view name) {
    return of_key(StoreOpcode::QueuePop, name);
}
std::string append(std::string_view key, std::string_view value) {
    return of_value(StoreOpcode::Append, key, value);
}
std::string erase(std::string_view key) {
    return of_key(StoreOpcode::DeleteKey, key);
}
std::string cancel() {
    return opcode(StoreOpcode::CancelWait);
}

}  // namespace

TEST_CASE("SET stores and GET returns, and a missing key has an empty value") {
    Store store;
    CHECK(store.ask(1, set("k", "v")).empty());
    CHECK(store.ask(2, get("k")) == text("v"));
    CHECK(store.ask(2, set("k", "")).empty());
    CHECK(store.ask(1, get("k")) == text(""));
    CHECK(store.ask(1, get("none")) == text(""));
    CHECK(store.ask(1, set("", "empty key")).empty());
    CHECK(store.ask(1, get("")) == text("empty key"));
}

TEST_CASE("COMPARE_SET stores when the value is as expected, and else returns what there is") {
    Store store;
    CHECK(store.ask(1, compare_set("k", "", "a")) == text("a"));
    CHECK(store.ask(1, compare_set("k", "a", "b")) == text("b"));
    CHECK(store.ask(1, compare_set("k", "a", "c")) == text("b"));
    CHECK(store.ask(1, compare_set("k", "", "c")) == text("b"));
    CHECK(store.ask(1, get("k")) == text("b"));
    CHECK(store.ask(1, compare_set("none", "expected", "x")) == text("expected"));
    CHECK(store.ask(1, check({"none"})) == kNotReady);
}

TEST_CASE("a COMPARE_SET wakes waiters if it stores and only then") {
    Store store;
    store.ask(1, wait({"k"}));
    store.ask(2, compare_set("k", "wrong", "x"));
    CHECK(store.take(1).empty());
    store.ask(2, compare_set("k", "", "x"));
    CHECK(store.take(1) == kStopWaiting);
}

TEST_CASE("ADD counts in decimal text and starts from 0") {
    Store store;
    CHECK(store.ask(1, add("n", 5)) == number(5));
    CHECK(store.ask(1, add("n", -12)) == number(-7));
    CHECK(store.ask(1, get("n")) == text("-7"));
    CHECK(store.ask(1, add("zero", 0)) == number(0));
    CHECK(store.ask(1, get("zero")) == text("0"));
    store.ask(1, set("n", std::to_string(std::numeric_limits<std::int64_t>::max())));
    CHECK(store.ask(1, add("n", 1)) == number(std::numeric_limits<std::int64_t>::min()));
}

TEST_CASE("a counter's text may have blanks, a sign and a tail, but needs digits that fit") {
    CHECK(counter_value(" \t\n12abc").value() == 12);
    CHECK(counter_value("+7").value() == 7);
    CHECK(counter_value("-7").value() == -7);
    CHECK(counter_value("-9223372036854775808").value() ==
          std::numeric_limits<std::int64_t>::min());
    for (const char* text : {"", " ", "abc", "+-5", "-", "+", "- 5", "9223372036854775808"}) {
        CAPTURE(text);
        CHECK_FALSE(counter_value(text).has_value());
    }
}

TEST_CASE("ADD and BARRIER on what is no number close the connection and change nothing") {
    Store store;
    for (const char* value : {"abc", "", "99999999999999999999"}) {
        CAPTURE(value);
        store.ask(1, set("n", value));
        CHECK(store.ask(1, add("n", 1)) == "CLOSE");
        CHECK(store.ask(1, barrier("n", 1)) == "CLOSE");
        CHECK(store.ask(2, get("n")) == text(value));
    }
    CHECK(store.refusal() ==
          "BARRIER on key n: its value 99999999999999999999 does not fit into 64 bits");
}

TEST_CASE("CHECK wants every name to be a key or a filled queue") {
    Store store;
    CHECK(store.ask(1, check({})) == kReady);
    store.ask(1, set("k", ""));
    store.ask(1, push("q", "1"));
    CHECK(store.ask(1, check({"k", "q"})) == kReady);
    CHECK(store.ask(1, check({"k", "none", "q"})) == kNotReady);
    store.ask(1, pop("q"));
    CHECK(store.ask(1, check({"q"})) == kNotReady);
}

TEST_CASE("WAIT is answered at once when everything is there") {
    Store store;
    CHECK(store.ask(1, wait({})) == kStopWaiting);
    store.ask(1, set("k", "1"));
    store.ask(1, push("q", "1"));
    CHECK(store.ask(1, wait({"k", "q", "k"})) == kStopWaiting);
    CHECK(store.core().waiter_count() == 0);
}

TEST_CASE("every operation that makes a key releases who waits for it, once") {
    const std::string making =
        GENERATE(set("k", "1"), compare_set("k", "", "1"), add("k", 1), append("k", "1"),
                 multi_set({{"x", "1"}, {"k", "1"}}), barrier("k", 5), push("k", "1"));
    Store store;
    CHECK(store.ask(1, wait({"k"})).empty());
    store.ask(2, set("other", "1"));
    CHECK(store.take(1).empty());
    store.ask(2, making);
    CHECK(store.take(1) == kStopWaiting);
    store.ask(3, making);
    CHECK(store.take(1).empty());
}

TEST_CASE("WAIT for several names ends when the last one has appeared, a name given twice once") {
    Store store;
    store.ask(1, wait({"a", "b", "a", "q", "q"}));
    store.ask(2, set("a", "1"));
    store.ask(2, set("a", "2"));
    store.ask(2, push("q", "1"));
    CHECK(store.take(1).empty());
    store.ask(2, set("b", "1"));
    CHECK(store.take(1) == kStopWaiting);
}

TEST_CASE("a name that has appeared stays counted for a waiter though it is deleted") {
    Store store;
    store.ask(1, wait({"a", "b"}));
    store.ask(2, set("a", "1"));
    store.ask(2, erase("a"));
    store.ask(2, set("b", "1"));
    CHECK(store.take(1) == kStopWaiting);
}

TEST_CASE("a key releases all its waiters, in the order in which they came") {
    Limits limits;
    StoreCore core(limits);
    StoreReplies replies;
    for (std::uint32_t client = 0; client < 1000; ++client) {
        REQUIRE(core.handle(StoreClient(client), wait({"go"}), replies).has_value());
    }
    REQUIRE(core.waiter_count() == 1000);
    REQUIRE(core.handle(StoreClient(1000), set("go", "1"), replies).has_value());
    REQUIRE(replies.pieces().size() == 1000);
    for (std::uint32_t client = 0; client < 1000; ++client) {
        CHECK(replies.pieces()[client].client == StoreClient(client));
    }
    CHECK(core.waiter_count() == 0);
}

TEST_CASE("CANCEL_WAIT forgets the wait and is answered in any case") {
    Store store;
    CHECK(store.ask(1, cancel()) == kWaitCanceled);
    store.ask(1, wait({"a", "b"}));
    store.ask(2, set("a", "1"));
    CHECK(store.ask(1, cancel()) == kWaitCanceled);
    store.ask(2, set("b", "1"));
    CHECK(store.take(1).empty());
    store.ask(1, wait({"c"}));
    store.ask(2, set("c", "1"));
    CHECK(store.take(1) == kStopWaiting);
}

TEST_CASE("who waits, and for what most wait") {
    Store store;
    CHECK(store.core().waits() == StoreWaits());
    const std::string group = "default_pg/0//rank_5";
    for (const std::uint32_t client : {1u, 2u, 3u}) {
        CHECK(store.ask(client, wait({group, "other"})).empty());
    }
    CHECK(store.ask(4, wait({"a"})).empty());
    CHECK(store.ask(5, barrier("b", 2)).empty());
    CHECK(store.core().waits() ==
          StoreWaits{.clients = 0, .waiting = 5, .key = group, .for_key = 3});
    store.leave(3);
    store.ask(6, set(group, "here"));
    CHECK(store.core().waits() ==
          StoreWaits{.clients = 0, .waiting = 4, .key = "other", .for_key = 2});
    store.ask(6, barrier("b", 2));
    store.ask(6, set("other", ""));
    CHECK(store.core().waits() == StoreWaits{.clients = 0, .waiting = 1, .key = "a", .for_key = 1});
}

TEST_CASE("a waiting client's other requests are answered at once") {
    Store store;
    store.ask(1, wait({"k"}));
    CHECK(store.ask(1, ping(7)) == nonce(7));
    CHECK(store.ask(1, set("k", "1")) == kStopWaiting);
}

TEST_CASE("the last WAIT of a connection counts") {
    Store store;
    store.ask(1, wait({"a"}));
    store.ask(1, wait({"b"}));
    store.ask(2, set("a", "1"));
    CHECK(store.take(1).empty());
    store.ask(2, set("b", "1"));
    CHECK(store.take(1) == kStopWaiting);
    store.ask(1, wait({"c"}));
    CHECK(store.ask(1, barrier("c", 2)).empty());
    CHECK(store.ask(2, barrier("c", 2)) == kStopWaiting);
    CHECK(store.take(1) == kStopWaiting);
}

TEST_CASE("nothing is left of a client that waited and left") {
    Store store;
    store.ask(1, wait({"a", "b"}));
    store.ask(2, barrier("c", 2));
    store.leave(1);
    store.leave(2);
    CHECK(store.core().waiter_count() == 0);
    store.ask(3, multi_set({{"a", "1"}, {"b", "1"}}));
    CHECK(store.ask(3, barrier("c", 2)) == kStopWaiting);
    CHECK(store.take(1).empty());
    CHECK(store.take(2).empty());
}

TEST_CASE("GETNUMKEYS and LIST_KEYS see keys, not queues") {
    Store store;
    CHECK(store.ask(1, opcode(StoreOpcode::GetNumKeys)) == number(0));
    CHECK(store.ask(1, opcode(StoreOpcode::ListKeys)) == number(0));
    store.ask(1, multi_set({{"b", "1"}, {"a", "2"}}));
    store.ask(1, push("q", "1"));
    CHECK(store.ask(1, opcode(StoreOpcode::GetNumKeys)) == number(2));
    CHECK(store.ask(1, opcode(StoreOpcode::ListKeys)) == number(2) + text("a") + text("b"));
}

TEST_CASE("DELETE_KEY says whether there was a key and leaves queues alone") {
    Store store;
    store.ask(1, set("k", "1"));
    store.ask(1, push("k", "element"));
    CHECK(store.ask(1, erase("k")) == number(1));
    CHECK(store.ask(1, erase("k")) == number(0));
    CHECK(store.ask(1, of_key(StoreOpcode::QueueLen, "k")) == number(1));
}

TEST_CASE("APPEND makes or lengthens a value") {
    Store store;
    store.ask(1, append("k", "ab"));
    store.ask(1, append("k", "c"));
    CHECK(store.ask(1, get("k")) == text("abc"));
}

TEST_CASE("MULTI_GET answers in the order asked, empty for what is missing") {
    Store store;
    store.ask(1, multi_set({{"a", "1"}, {"b", "22"}}));
    CHECK(store.ask(1, of_keys(StoreOpcode::MultiGet, {"b", "none", "a"})) ==
          text("22") + text("") + text("1"));
    CHECK(store.ask(1, of_keys(StoreOpcode::MultiGet, {})).empty());
    CHECK(store.ask(1, multi_set({})).empty());
}

TEST_CASE("a queue gives its elements in order, with the length before") {
    Store store;
    store.ask(1, push("q", "one"));
    store.ask(1, push("q", ""));
    CHECK(store.ask(1, of_key(StoreOpcode::QueueLen, "q")) == number(2));
    CHECK(store.ask(1, pop("q")) == number(2) + text("one"));
    CHECK(store.ask(1, pop("q")) == number(1) + text(""));
    CHECK(store.ask(1, pop("q")) == number(0));
    CHECK(store.ask(1, of_key(StoreOpcode::QueueLen, "q")) == number(0));
    CHECK(store.ask(1, get("q")) == text(""));
    CHECK(store.core().queue_count() == 0);
}

TEST_CASE("a push releases one waiter, the one that has waited longest") {
    Store store;
    store.ask(1, wait({"q"}));
    store.ask(2, wait({"q"}));
    store.ask(3, push("q", "1"));
    CHECK(store.take(1) == kStopWaiting);
    CHECK(store.take(2).empty());
    CHECK(store.ask(1, pop("q")) == number(1) + text("1"));
    CHECK(store.take(2).empty());
    store.ask(3, push("q", "2"));
    CHECK(store.take(2) == kStopWaiting);
}

TEST_CASE("a client released from a queue is not woken out of a later wait by that queue") {
    Store store;
    store.ask(1, wait({"q"}));
    store.ask(2, push("q", "1"));
    CHECK(store.take(1) == kStopWaiting);
    store.ask(1, pop("q"));
    store.ask(1, wait({"x"}));
    store.ask(2, push("q", "2"));
    CHECK(store.take(1).empty());
}

TEST_CASE("an element that the released client does not take is offered to the next one") {
    Store store;
    store.ask(1, wait({"q"}));
    store.ask(2, wait({"q"}));
    store.ask(3, push("q", "1"));
    REQUIRE(store.take(1) == kStopWaiting);
    SECTION("because it leaves") {
        store.leave(1);
        CHECK(store.take(2) == kStopWaiting);
    }
    SECTION("because it gave up at the same moment") {
        CHECK(store.ask(1, cancel()) == kWaitCanceled);
        CHECK(store.take(2) == kStopWaiting);
    }
    SECTION("but not when another has taken it") {
        CHECK(store.ask(4, pop("q")) == number(1) + text("1"));
        store.leave(1);
        CHECK(store.take(2).empty());
        store.ask(3, push("q", "2"));
        CHECK(store.take(2) == kStopWaiting);
    }
    SECTION("and only one is told of one element") {
        store.ask(4, wait({"q", "x"}));
        store.ask(5, wait({"x"}));
        CHECK(store.ask(1, pop("q")) == number(1) + text("1"));
        CHECK(store.take(2).empty());
        store.ask(3, push("q", "2"));
        CHECK(store.take(2) == kStopWaiting);
        CHECK(store.take(4).empty());
    }
}

TEST_CASE("BARRIER opens when the count is reached and stays open") {
    Store store;
    CHECK(store.ask(1, barrier("b", 3)).empty());
    CHECK(store.ask(2, barrier("b", 3)).empty());
    CHECK(store.take(1).empty());
    CHECK(store.ask(3, barrier("b", 3)) == kStopWaiting);
    CHECK(store.take(1) == kStopWaiting);
    CHECK(store.take(2) == kStopWaiting);
    CHECK(store.ask(4, barrier("b", 3)) == kStopWaiting);
    CHECK(store.ask(4, get("b")) == text("4"));
    CHECK(store.ask(4, barrier("none", 0)) == kStopWaiting);
    CHECK(store.ask(4, barrier("less", -1)) == kStopWaiting);
}

TEST_CASE("a barrier's waiters go when the counter reaches their number, however it does") {
    Store store;
    store.ask(1, barrier("b", 3));
    store.ask(2, barrier("b", 5));
    store.ask(3, set("b", "not a number"));
    store.ask(3, set("b", "2"));
    CHECK(store.take(1).empty());
    store.ask(3, add("b", 1));
    CHECK(store.take(1) == kStopWaiting);
    CHECK(store.take(2).empty());
    store.ask(3, set("b", "7"));
    CHECK(store.take(2) == kStopWaiting);
}

TEST_CASE("a barrier that a client left keeps its count") {
    Store store;
    store.ask(1, barrier("b", 2));
    CHECK(store.ask(1, cancel()) == kWaitCanceled);
    CHECK(store.ask(1, get("b")) == text("1"));
    CHECK(store.ask(2, barrier("b", 2)) == kStopWaiting);
    CHECK(store.take(1).empty());
}

TEST_CASE("a reply that would pass the limit closes the connection") {
    Limits limits;
    limits.store_reply_bytes_max = 100;
    Store store(limits);
    store.ask(1, append("k", std::string(60, 'x')));
    CHECK(store.ask(1, get("k")) == text(std::string(60, 'x')));
    CHECK(store.ask(1, of_keys(StoreOpcode::MultiGet, {"k", "k"})) == "CLOSE");
    store.ask(1, append("k", std::string(60, 'x')));
    CHECK(store.ask(1, get("k")) == "CLOSE");
    CHECK(store.ask(1, compare_set("k", "", "x")) == "CLOSE");
    store.ask(1, set(std::string(100, 'k'), ""));
    CHECK(store.ask(1, opcode(StoreOpcode::ListKeys)) == "CLOSE");
    CHECK(store.refusal() == "the answer to LIST_KEYS would have 125 bytes, more than 100");
}

TEST_CASE(
    "what would make the store larger than it may be closes the connection, until there is room") {
    Limits limits;
    limits.store_bytes_max = 1000;
    Store store(limits);
    store.ask(1, set("a", std::string(700, 'x')));
    const std::string more =
        GENERATE(set("b", std::string(700, 'x')), multi_set({{"b", std::string(700, 'x')}}),
                 append("a", std::string(700, 'x')), compare_set("b", "", std::string(700, 'x')),
                 of_value(StoreOpcode::QueuePush, "q", std::string(700, 'x')));
    CHECK(store.ask(1, more) == "CLOSE");
    CHECK(store.refusal().find("the store holds 829 of at most 1000") != std::string::npos);
    CHECK(store.ask(1, opcode(StoreOpcode::GetNumKeys)) == number(1));
    CHECK(store.ask(1, get("a")) == text(std::string(700, 'x')));
    CHECK(store.ask(1, of_key(StoreOpcode::DeleteKey, "a")) == number(1));
    CHECK(store.ask(1, more) != "CLOSE");
}

TEST_CASE("values that are replaced and elements that are popped leave their room to others") {
    Limits limits;
    limits.store_bytes_max = 1000;
    Store store(limits);
    for (int i = 0; i < 10; ++i) {
        CHECK(store.ask(1, set("a", std::string(i % 2 == 0 ? 300 : 3, 'x'))).empty());
        CHECK(store.ask(1, of_value(StoreOpcode::QueuePush, "q", std::string(200, 'y'))).empty());
        CHECK(store.ask(1, of_key(StoreOpcode::QueuePop, "q")) ==
              number(1) + text(std::string(200, 'y')));
        CHECK(store.ask(1, of_number(StoreOpcode::Add, "n", 1)) == number(i + 1));
        CHECK(store.ask(1, append("t", "z")).empty());
        CHECK(store.ask(1, of_key(StoreOpcode::DeleteKey, "t")) == number(1));
    }
    CHECK(store.ask(1, set("b", std::string(900, 'x'))) == "CLOSE");
}

TEST_CASE("what one client waits for is bounded, and so is what all of them wait for") {
    const auto names = [](std::string_view prefix, int count) {
        std::string out = opcode(StoreOpcode::Wait) + number(count);
        for (int i = 0; i < count; ++i) {
            out += text(std::string(prefix) + std::to_string(i));
        }
        return out;
    };
    Limits limits;
    limits.store_wait_bytes_max = 10'000;
    limits.store_waits_bytes_max = 25'000;
    Store store(limits);
    SECTION("one client") {
        CHECK(store.ask(1, names("k", 1000)) == "CLOSE");
        CHECK(store.refusal().starts_with("WAIT for 1000 names takes "));
        CHECK(store.refusal().ends_with(" bytes, more than 10000"));
        CHECK(store.ask(1, wait({std::string(9'990, 'k')})) == "CLOSE");
        CHECK(store.core().waiter_count() == 0);
        CHECK(store.core().waiting_bytes() == 0);
        CHECK(store.ask(1, names("k", 20)).empty());
        CHECK(store.core().waiter_count() == 1);
    }
    SECTION("all clients") {
        std::uint32_t client = 0;
        while (store.ask(client, names(std::to_string(client) + ".", 20)).empty()) {
            ++client;
            REQUIRE(client < 100);
        }
        CHECK(store.refusal().find("all clients wait for take more than 25000 bytes") !=
              std::string::npos);
        CHECK(client > 2);
        CHECK(store.core().waiter_count() == client);
        const std::uint64_t most = store.core().waiting_bytes();
        CHECK(most <= 25'000);
        CHECK(store.ask(100, barrier(std::string(8'000, 'b'), 2)) == "CLOSE");
        CHECK(store.ask(101, opcode(StoreOpcode::GetNumKeys)) == number(0));
        // A client that goes, or is released, leaves its room to others.
        store.leave(0);
        store.ask(101, multi_set({{"1.0", ""}}));
        CHECK(store.core().waiting_bytes() < most);
        CHECK(store.ask(102, names("late", 20)).empty());
        for (std::uint32_t i = 1; i <= 102; ++i) {
            store.leave(i);
        }
        CHECK(store.core().waiting_bytes() == 0);
    }
    SECTION("a name that many wait for is counted once") {
        for (std::uint32_t client = 0; client < 50; ++client) {
            CHECK(store.ask(client, wait({std::string(8'000, 'k')})).empty());
        }
        CHECK(store.core().waiting_bytes() < 25'000);
        store.ask(50, set(std::string(8'000, 'k'), ""));
        CHECK(store.core().waiting_bytes() == 0);
        CHECK(store.take(49) == kStopWaiting);
    }
}

}  // namespace ddprun::rdzv::store_test
