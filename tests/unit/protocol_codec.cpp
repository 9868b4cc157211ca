// Goal: what is encoded decodes to the same value, for every message and made-up values of every
// field; and whatever else arrives is refused with a text that names the field, never a crash.

#include <algorithm>
#include <concepts>
#include <optional>
#include <string>
#include <vector>

#include "base/rng.hpp"
#include "rendezvous/wire/base64.hpp"
#include "rendezvous/wire/codec.hpp"
#include "rendezvous/wire/message_fields.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/result_text.hpp"

namespace ddprun::rdzv {
namespace {

// Fills every field of a message with a value within its bounds, often at one of them.
class Inventor {
public:
    explicit Inventor(std::uint64_t seed) : rng_(seed) {}

    [[nodiscard]] const Limits& limits() const { return limits_; }

    void flag(const char*, bool& value) { value = rng_.chance(1, 2); }

    template <std::integral T, typename Bound>
    void number(const char*, T& value, Bound least, Bound most) {
        const auto range = static_cast<std::uint64_t>(most) - static_cast<std::uint64_t>(least);
        const std::uint64_t above = rng_.chance(1, 4)     ? 0
                                    : rng_.chance(1, 3)   ? range
                                    : range == UINT64_MAX ? rng_.next()
                                                          : rng_.below(range + 1);
        value = static_cast<T>(static_cast<std::uint64_t>(least) + above);
    }
    template <typename Tag, typename Rep, typename Bound>
    void number(const char* key, Tagged<Tag, Rep>& value, Bound least, Bound most) {
        Rep made{};
        number(key, made, least, most);
        value = Tagged<Tag, Rep>(made);
    }
    template <typename T, typename Bound>
    void number(const char* key, std::optional<T>& value, Bound least, Bound most) {
        if (rng_.chance(1, 2)) {
            number(key, value.emplace(), least, most);
        }
    }
    void numbers(const char* key, std::vector<int>& values, std::size_t count_max, int least,
                 int most) {
        values.resize(rng_.below(count_max + 1));
        for (int& value : values) {
            number(key, value, least, most);
        }
    }
    void duration(const char* key, Milliseconds& value) {
        Milliseconds::rep made{};
        number(key, made, Milliseconds::rep{0}, kDurationMax.count());
        value = Milliseconds(made);
    }
    void name(const char*, std::string& value, bool is_required) {
        value = words(limits_.name_bytes_max - 4);
        if (is_required) {
            value += "x";
        }
    }
    template <typename Tag>
    void name(const char* key, Tagged<Tag, std::string>& value, bool is_required) {
        std::string made;
        name(key, made, is_required);
        value = Tagged<Tag, std::string>(made);
    }
    void names(const char* key, std::vector<std::string>& values, std::size_t most) {
        values.resize(rng_.below(std::min<std::size_t>(most, 5) + 1));
        for (std::string& value : values) {
            name(key, value, false);
        }
    }
    void text(const char*, std::string& value) { value = words(300) + "\n\t\"\\"; }
    void bytes(const char*, std::string& value, std::size_t most) {
        value.resize(rng_.chance(1, 8) ? most : rng_.below(200));
        for (char& byte : value) {
            byte = static_cast<char>(rng_.next());
        }
    }
    template <typename T, typename Names>
    void choice(const char*, T& value, const Names& names) {
        value = names[rng_.below(names.size())].second;
    }
    template <typename T>
    void object(const char*, T& value) {
        visit_fields(value, *this);
    }
    template <typename T>
    void object(const char* key, std::optional<T>& value) {
        if (rng_.chance(1, 2)) {
            object(key, value.emplace());
        }
    }
    template <typename T>
    void objects(const char* key, std::vector<T>& values, std::size_t most) {
        values.resize(rng_.below(most + 1));
        for (T& value : values) {
            object(key, value);
        }
    }

private:
    std::string words(std::size_t bytes_max) {
        static constexpr std::string_view kPieces[] = {"a", "node-7", "\xc3\xbc",
                                                       " ", "/",      "\xe6\x97\xa5"};
        std::string made;
        const std::uint64_t count = rng_.below(12);
        for (std::uint64_t i = 0; i < count; ++i) {
            const std::string_view piece = kPieces[rng_.below(std::size(kPieces))];
            if (made.size() + piece.size() <= bytes_max) {
                made += piece;
            }
        }
        return made;
    }

    Rng rng_;
    Limits limits_;
};

template <typename T>
T invented(std::uint64_t seed) {
    T message;
    if constexpr (std::is_same_v<T, Beat> || std::is_same_v<T, Acknowledge>) {
        message.sequence = Rng(seed).next();
    } else {
        Inventor inventor(seed);
        visit_fields(message, inventor);
    }
    return message;
}

template <typename T>
void require_agent_round_trip() {
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
        const T message = invented<T>(seed);
        const std::string body = encode(AgentMessage(message));
        const Result<AgentMessage> decoded = decode_agent_message(body, Limits());
        INFO("seed " << seed << " body " << body << " " << (decoded ? "" : decoded.error().what));
        REQUIRE(decoded);
        REQUIRE(std::get<T>(*decoded) == message);
        REQUIRE(encode(*decoded) == body);
    }
}

template <typename T>
void require_rendezvous_round_trip() {
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
        const T message = invented<T>(seed);
        const std::string body = encode(RendezvousMessage(message));
        const Result<RendezvousMessage> decoded = decode_rendezvous_message(body, Limits());
        INFO("seed " << seed << " body " << body << " " << (decoded ? "" : decoded.error().what));
        REQUIRE(decoded);
        REQUIRE(std::get<T>(*decoded) == message);
        REQUIRE(encode(*decoded) == body);
    }
}

std::string refusal(const std::string& body) {
    const Result<AgentMessage> decoded = decode_agent_message(body, Limits());
    REQUIRE_FALSE(decoded);
    REQUIRE(decoded.error().code == ErrorCode::BadMessage);
    return decoded.error().what;
}

// A join that is fine but for `field`, which is JSON.
std::string join_with(const std::string& field) {
    return R"({"type":"join","job":"j","node":"n",)" + field + "}";
}

TEST_CASE("every message of an agent survives encoding and decoding") {
    require_agent_round_trip<Join>();
    require_agent_round_trip<WorkerFinished>();
    require_agent_round_trip<WorkerFailed>();
    require_agent_round_trip<Quiet>();
    require_agent_round_trip<Stopped>();
    require_agent_round_trip<Leave>();
    require_agent_round_trip<Unkillable>();
    require_agent_round_trip<Goodbye>();
    require_agent_round_trip<Unfit>();
    require_agent_round_trip<Beat>();
}

TEST_CASE("every message of the rendezvous survives encoding and decoding") {
    require_rendezvous_round_trip<Accepted>();
    require_rendezvous_round_trip<Refused>();
    require_rendezvous_round_trip<Waiting>();
    require_rendezvous_round_trip<Prepare>();
    require_rendezvous_round_trip<Start>();
    require_rendezvous_round_trip<Stop>();
    require_rendezvous_round_trip<Released>();
    require_rendezvous_round_trip<Verdict>();
    require_rendezvous_round_trip<Acknowledge>();
}

TEST_CASE("a beat and its acknowledgement are nine bytes") {
    REQUIRE(encode(AgentMessage(Beat{.sequence = 0x0102030405060708})) ==
            std::string("\x01\x01\x02\x03\x04\x05\x06\x07\x08"));
    REQUIRE(encode(RendezvousMessage(Acknowledge{.sequence = 1})) ==
            std::string("\x02\0\0\0\0\0\0\0\x01", 9));
    REQUIRE_FALSE(decode_agent_message(std::string("\x02\0\0\0\0\0\0\0\x01", 9), Limits()));
    REQUIRE_FALSE(decode_agent_message(std::string("\x01\0\0\0\0\0\0\0", 8), Limits()));
}

TEST_CASE("missing fields keep their defaults and unknown ones are ignored") {
    const Result<AgentMessage> decoded = decode_agent_message(
        join_with(R"("from_the_future":{"a":[1]},"node_rank":null)"), Limits());
    REQUIRE(decoded);
    Join expected;
    expected.job = JobId("j");
    expected.node = NodeId("n");
    REQUIRE(std::get<Join>(*decoded) == expected);
}

TEST_CASE("a field of the wrong type or beyond its bounds is refused by name") {
    REQUIRE(refusal(join_with(R"("slots":"2")")) == "join.slots is not a whole number");
    REQUIRE(refusal(join_with(R"("slots":1.5)")) == "join.slots is not a whole number");
    REQUIRE(refusal(join_with(R"("slots":0)")) == "join.slots is 0, allowed are 1 to 1024");
    REQUIRE(refusal(join_with(R"("slots":-1)")) == "join.slots is -1, allowed are 1 to 1024");
    REQUIRE(refusal(join_with(R"("slots":18446744073709551615)")) ==
            "join.slots is 18446744073709551615, allowed are 1 to 1024");
    REQUIRE(refusal(join_with(R"("hostname":7)")) == "join.hostname is not a string");
    REQUIRE(refusal(join_with(R"("hostname":"a\u0007b")")) ==
            "join.hostname has a control character");
    REQUIRE(refusal(join_with(R"("settings":[])")) == "join.settings is not an object");
    REQUIRE(refusal(join_with(R"("settings":{"grow":1})")) ==
            "join.settings.grow is not true or false");
    REQUIRE(refusal(join_with(R"("settings":{"patience_ms":99999999999999})")) ==
            "join.settings.patience_ms is 99999999999999, allowed are 0 to 315360000000");
    REQUIRE(refusal(join_with(R"("store":{"port":70000})")) ==
            "join.store.port is 70000, allowed are 0 to 65535");
    REQUIRE(refusal(join_with(R"("addresses":{})")) == "join.addresses is not a list");
    REQUIRE(refusal(join_with(R"("addresses":[1])")) == "join.addresses is not a string");
    REQUIRE(refusal(join_with(R"("role":")" + std::string(256, 'r') + "\"")) ==
            "join.role has 256 bytes, allowed are 255");
    REQUIRE(refusal(R"({"type":"join","node":"n"})") == "join.job is missing");
    REQUIRE(refusal(R"({"type":"worker_failed","evidence":{"stderr_tail":"?"}})") ==
            "worker_failed.evidence.stderr_tail is not base64");
    const std::string unfit = R"({"type":"unfit","job":"j","node":"n")";
    REQUIRE(refusal(unfit + "}") == "unfit.why is missing");
    REQUIRE(refusal(unfit + R"(,"why":"a\u0007b"})") == "unfit.why has a control character");
    REQUIRE(refusal(unfit + ",\"why\":\"" + std::string(256, 'y') + "\"}") ==
            "unfit.why has 256 bytes, allowed are 255");
    REQUIRE(refusal(R"({"type":"unfit","job":"j","why":"w"})") == "unfit.node is missing");
    std::string addresses = "\"a\"";
    for (int i = 0; i < 64; ++i) {
        addresses += ",\"a\"";
    }
    REQUIRE(refusal(join_with("\"addresses\":[" + addresses + "]")) ==
            "join.addresses has 65 elements, allowed are 64");
    const Result<RendezvousMessage> stop =
        decode_rendezvous_message(R"({"type":"stop","cause":"mood"})", Limits());
    REQUIRE_FALSE(stop);
    REQUIRE(stop.error().what == "stop.cause is none of the known words");
}

TEST_CASE("any step a worker told arrives, and none stays none") {
    for (const std::optional<std::uint64_t> step :
         {std::optional<std::uint64_t>{}, std::optional<std::uint64_t>{0},
          std::optional<std::uint64_t>{UINT64_MAX}}) {
        WorkerFailed failed;
        failed.evidence.progress = step;
        const auto decoded = decode_agent_message(encode(AgentMessage(failed)), Limits());
        REQUIRE(decoded);
        REQUIRE(std::get<WorkerFailed>(*decoded).evidence.progress == step);
    }
    REQUIRE(refusal(R"({"type":"worker_failed","evidence":{"progress":-1}})")
                .find("worker_failed.evidence.progress is -1") == 0);
}

TEST_CASE("evidence beyond its bound is refused") {
    WorkerFailed failed;
    failed.evidence.stderr_tail.assign(Limits().stderr_tail_bytes_max + 1, 'x');
    REQUIRE(refusal(encode(AgentMessage(failed))) ==
            "worker_failed.evidence.stderr_tail has 65537 bytes, allowed are 65536");
}

TEST_CASE("what is no message is refused") {
    REQUIRE(refusal("") == "a message is not a JSON object");
    REQUIRE(refusal("[]") == "a message is not a JSON object");
    REQUIRE(refusal("{") == "a message is not a JSON object");
    REQUIRE(refusal("{\"type\":\"\xff\"}") == "a message is not a JSON object");
    REQUIRE(refusal(std::string("{\"type\":\"goodbye\"}\0}", 20)) ==
            "a message is not a JSON object");
    REQUIRE(refusal("{}") == "a message has no type");
    REQUIRE(refusal(R"({"type":1})") == "a message has no type");
    REQUIRE(refusal(R"({"type":"accepted"})") == "a message has an unknown type");
}

TEST_CASE("a deeply nested message is refused without building it") {
    REQUIRE(refusal(std::string(std::size_t{1} << 20, '[')) ==
            "a message is nested deeper than 16");
    std::string objects;
    for (int i = 0; i < 100000; ++i) {
        objects += "{\"a\":";
    }
    REQUIRE(refusal(objects) == "a message is nested deeper than 16");
    std::string inner = "1";
    for (int i = 0; i < 15; ++i) {
        inner = "[" + inner + "]";
    }
    REQUIRE(decode_agent_message(join_with("\"x\":" + inner), Limits()));
    REQUIRE(refusal(join_with("\"x\":[" + inner + "]")) == "a message is nested deeper than 16");
    inner.erase(inner.find('1'), 1);
    REQUIRE(decode_agent_message(join_with("\"x\":" + inner), Limits()));
    REQUIRE(refusal(join_with("\"x\":[" + inner + "]")) == "a message is nested deeper than 16");
}

TEST_CASE("bytes that are not UTF-8 never stop a message") {
    WorkerFailed failed;
    failed.evidence.program = "a\xff\xfe.out";
    failed.evidence.stderr_tail = std::string("\0\xff\x80", 3);
    const Result<AgentMessage> decoded =
        decode_agent_message(encode(AgentMessage(failed)), Limits());
    REQUIRE(decoded);
    const Evidence& evidence = std::get<WorkerFailed>(*decoded).evidence;
    REQUIRE(evidence.stderr_tail == failed.evidence.stderr_tail);
    REQUIRE(evidence.program == "a\xef\xbf\xbd\xef\xbf\xbd.out");
}

TEST_CASE("damaged messages decode to an error or to a message that encodes again") {
    Rng rng(11);
    int decoded_count = 0;
    for (std::uint64_t seed = 0; seed < 3000; ++seed) {
        std::string body = encode(AgentMessage(invented<Join>(seed % 40)));
        const std::uint64_t cuts = 1 + rng.below(3);
        for (std::uint64_t i = 0; i < cuts && !body.empty(); ++i) {
            const std::size_t at = rng.below(body.size());
            if (rng.chance(1, 2)) {
                body[at] = static_cast<char>(rng.next());
            } else {
                body.erase(at, 1 + rng.below(4));
            }
        }
        if (const Result<AgentMessage> decoded = decode_agent_message(body, Limits())) {
            const Result<AgentMessage> again = decode_agent_message(encode(*decoded), Limits());
            REQUIRE(again);
            REQUIRE(*again == *decoded);
            ++decoded_count;
        }
    }
    REQUIRE(decoded_count > 0);
}

TEST_CASE("base64 is strict") {
    REQUIRE(base64_encode("") == "");
    REQUIRE(base64_encode("f") == "Zg==");
    REQUIRE(base64_encode("foobar") == "Zm9vYmFy");
    REQUIRE(base64_decode("Zm8=") == "fo");
    REQUIRE_FALSE(base64_decode("Zm8"));
    REQUIRE_FALSE(base64_decode("Zm9="));  // bits behind the last byte
    REQUIRE_FALSE(base64_decode("Zm8=Zm8="));
    REQUIRE_FALSE(base64_decode(" Zm9v   "));
    REQUIRE_FALSE(base64_decode("===="));
    REQUIRE_FALSE(base64_decode("="));
}

TEST_CASE("what is said to many in a row is encoded once, and as it would be alone") {
    RepeatEncoder encoder;
    const RendezvousMessage verdict = Verdict{.text = "every rank exited 0"};
    const std::string_view first = encoder.body_of(verdict);
    CHECK(first == encode(verdict));
    const char* const bytes = first.data();
    CHECK(encoder.body_of(verdict).data() == bytes);
    const RendezvousMessage other = Verdict{.text = "another"};
    CHECK(encoder.body_of(other) == encode(other));
    CHECK(encoder.body_of(verdict) == encode(verdict));
    for (const std::uint64_t sequence : {1, 2}) {
        const RendezvousMessage answer = Acknowledge{sequence};
        CHECK(encoder.body_of(answer) == encode(answer));
    }
}

}  // namespace
}  // namespace ddprun::rdzv
