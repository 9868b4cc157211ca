// Big values: in memory once, however many clients get them.

#include <memory>
#include <string>

#include "rendezvous/store/core/store_core.hpp"
#include "rendezvous/store/protocol/value.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/store_requests.hpp"

namespace ddprun::rdzv::store_test {

namespace {

const std::string kBig(kSharedValueBytesMin, 'b');
const StoreClient kClient(1);

/// One request's replies, joined.
std::string ask(StoreCore& core, const std::string& request) {
    StoreReplies replies;
    REQUIRE(core.handle(kClient, request, replies).has_value());
    std::string all;
    std::size_t at = 0;
    for (const StoreReplies::Piece& piece : replies.pieces()) {
        all += replies.bytes().substr(at, piece.size);
        all += piece.shared.bytes;
        at += piece.size;
    }
    return all;
}

}  // namespace

TEST_CASE("a value that is handed on stays as it was, whatever becomes of its key") {
    const std::string next =
        GENERATE(set("k", "new"), set("k", kBig), of_value(StoreOpcode::Append, "k", "tail"),
                 of_key(StoreOpcode::DeleteKey, "k"), compare_set("k", kBig, "new"));
    Limits limits;
    StoreCore core(limits);
    ask(core, set("k", kBig));
    StoreReplies replies;
    REQUIRE(core.handle(kClient, get("k"), replies).has_value());
    ask(core, next);
    REQUIRE(replies.pieces().size() == 1);
    CHECK(replies.bytes() == number(static_cast<std::int64_t>(kBig.size())));
    CHECK((replies.pieces()[0].shared.bytes == kBig));
}

TEST_CASE("all who get a big value have the same copy, and a small one is sent as it is") {
    Limits limits;
    StoreCore core(limits);
    ask(core, set("k", kBig));
    StoreReplies replies;
    REQUIRE(core.handle(kClient, get("k"), replies).has_value());
    REQUIRE(core.handle(StoreClient(2), get("k"), replies).has_value());
    REQUIRE(replies.pieces().size() == 2);
    CHECK(replies.pieces()[0].shared.bytes.data() == replies.pieces()[1].shared.bytes.data());
    ask(core, set("k", kBig.substr(1)));
    replies.clear();
    CHECK(replies.size() == 0);
    REQUIRE(core.handle(kClient, get("k"), replies).has_value());
    CHECK((replies.bytes() == text(kBig.substr(1))));
}

TEST_CASE("a big value is kept where it arrived, a small one is not") {
    Limits limits;
    StoreCore core(limits);
    const auto arrived = std::make_shared<const std::string>(
        GENERATE(set("k", kBig), of_value(StoreOpcode::QueuePush, "k", kBig)));
    StoreReplies replies;
    REQUIRE(core.handle(kClient, *arrived, replies, arrived).has_value());
    CHECK(arrived.use_count() == 2);
    const auto small = std::make_shared<const std::string>(set("small", "1"));
    REQUIRE(core.handle(kClient, *small, replies, small).has_value());
    CHECK(small.use_count() == 1);
    if (arrived->front() == static_cast<char>(StoreOpcode::Set)) {
        CHECK((ask(core, get("k")) == text(kBig)));
        ask(core, of_value(StoreOpcode::Append, "k", "tail"));
        CHECK((ask(core, get("k")) == text(kBig + "tail")));
    } else {
        CHECK((ask(core, of_key(StoreOpcode::QueuePop, "k")) == number(1) + text(kBig)));
    }
    CHECK(arrived.use_count() == 1);
}

TEST_CASE("big values come in the middle of other replies") {
    Limits limits;
    StoreCore core(limits);
    ask(core, multi_set({{"a", "1"}, {"b", kBig}, {"c", kBig + kBig}}));
    CHECK((ask(core, of_keys(StoreOpcode::MultiGet, {"a", "b", "none", "c", "a"})) ==
           text("1") + text(kBig) + text("") + text(kBig + kBig) + text("1")));
    CHECK((ask(core, compare_set("b", "other", "x")) == text(kBig)));
}

}  // namespace ddprun::rdzv::store_test
