// TypedKeys sorts the keys that a user types while a worker has ddprun's terminal.

#include "agent/output/typed_keys.hpp"

#include <chrono>
#include <csignal>
#include <optional>
#include <string>
#include <string_view>

#include "tests/support/catch.hpp"

namespace ddprun::agent {

namespace {

using std::chrono::milliseconds;

constexpr SignalKeys kUsual{.interrupt = '\x03', .quit = '\x1c', .suspend = '\x1a'};
constexpr SignalKeys kRaw{};

struct Keyboard {
    Typed type(std::string_view bytes, const SignalKeys& means = kUsual) {
        return keys.type(now, means, is_interrupt_ours, bytes);
    }

    TypedKeys keys{milliseconds(1000)};
    Instant now = Instant(std::chrono::seconds(1000));
    bool is_interrupt_ours = false;
};

}  // namespace

TEST_CASE("what is typed goes to the worker, keys that make signals of its terminal too") {
    Keyboard board;
    const Typed typed = board.type("p x\n\x03\x1c\x04\xc3\xa9");
    CHECK(typed.passed == "p x\n\x03\x1c\x04\xc3\xa9");
    CHECK(typed.interrupts == 0);
    CHECK_FALSE(typed.suspends);
    CHECK_FALSE(typed.is_hint_due);
}

TEST_CASE("suspend is ddprun's, unless it is a key like others") {
    Keyboard board;
    const Typed typed = board.type(
        "a\x1a"
        "b");
    CHECK(typed.passed == "ab");
    CHECK(typed.suspends);
    const Typed raw = board.type(
        "a\x1a"
        "b",
        kRaw);
    CHECK(raw.passed ==
          "a\x1a"
          "b");
    CHECK_FALSE(raw.suspends);
}

TEST_CASE("the third interrupt in a row, each within a second, is ddprun's, and all that follow") {
    Keyboard board;
    CHECK(board.type("\x03").passed == "\x03");
    board.now += milliseconds(1000);
    const Typed second = board.type("\x03");
    CHECK(second.passed == "\x03");
    CHECK(second.is_hint_due);
    board.now += milliseconds(1000);
    const Typed third = board.type("\x03");
    CHECK(third.passed.empty());
    CHECK(third.interrupts == 1);
    CHECK_FALSE(third.is_hint_due);
    board.now += std::chrono::minutes(1);
    const Typed later = board.type("x\x03");
    CHECK(later.passed == "x");
    CHECK(later.interrupts == 1);
}

TEST_CASE("interrupts that are slow, or keys of a raw terminal, never end the job") {
    Keyboard board;
    for (int i = 0; i < 10; ++i) {
        const Typed typed = board.type("\x03");
        CHECK(typed.passed == "\x03");
        CHECK_FALSE(typed.is_hint_due);
        board.now += milliseconds(1001);
    }
    const Typed raw = board.type("\x03\x03\x03\x03", kRaw);
    CHECK(raw.passed == "\x03\x03\x03\x03");
    CHECK(raw.interrupts == 0);
    CHECK(board.type("\x03\x03").passed == "\x03\x03");
}

TEST_CASE("interrupts of a worker that ddprun asks to leave are ddprun's, the first one too") {
    Keyboard board;
    board.is_interrupt_ours = true;
    const Typed typed = board.type("a\x03\x1c");
    CHECK(typed.passed == "a\x1c");
    CHECK(typed.interrupts == 1);
    CHECK(board.keys.cause_of(130, std::nullopt) == 0);
}

TEST_CASE("a worker that ends by the signal of a key was ended by its user") {
    Keyboard board;
    CHECK(board.keys.cause_of(std::nullopt, SIGINT) == 0);
    static_cast<void>(board.type("\x03"));
    CHECK(board.keys.cause_of(std::nullopt, SIGINT) == SIGINT);
    CHECK(board.keys.cause_of(128 + SIGINT, std::nullopt) == SIGINT);
    CHECK(board.keys.cause_of(1, std::nullopt) == 0);
    CHECK(board.keys.cause_of(0, std::nullopt) == 0);
    CHECK(board.keys.cause_of(std::nullopt, SIGTERM) == 0);
    CHECK(board.keys.cause_of(std::nullopt, SIGQUIT) == 0);
    static_cast<void>(board.type("\x1c"));
    CHECK(board.keys.cause_of(std::nullopt, SIGQUIT) == SIGQUIT);
    board.keys.begin();
    CHECK(board.keys.cause_of(std::nullopt, SIGINT) == 0);
    CHECK(board.keys.cause_of(std::nullopt, SIGQUIT) == 0);
}

}  // namespace ddprun::agent
