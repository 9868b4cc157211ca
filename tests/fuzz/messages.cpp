// Goal: what the codec accepts from a peer it can pass on unchanged, at a bounded depth, and
// unknown fields do not matter. Method: any body is decoded as a message of both directions;
// what is accepted is held against the bounds of message_fields.hpp, encoded, compared with what
// was sent, and decoded again, also with a field more.
#include <algorithm>
#include <concepts>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/check.hpp"
#include "rendezvous/wire/codec.hpp"
#include "rendezvous/wire/fixed_frames.hpp"
#include "rendezvous/wire/message_fields.hpp"
#include "tests/fuzz/choices.hpp"

namespace ddprun::rdzv {

namespace {

/// Returns the depth of objects and lists; the brackets in texts do not count.
std::size_t nesting(std::string_view json) {
    std::size_t depth = 0;
    std::size_t most = 0;
    bool is_text = false;
    for (std::size_t i = 0; i < json.size(); ++i) {
        const char c = json[i];
        if (is_text) {
            i += c == '\\' ? 1 : 0;
            is_text = c != '"';
        } else if (c == '{' || c == '[') {
            most = std::max(most, ++depth);
        } else if (c == '}' || c == ']') {
            --depth;
        } else {
            is_text = c == '"';
        }
    }
    DDP_CHECK(depth == 0 && !is_text, json);
    return most;
}

using Json = nlohmann::json;

/// Every field of `encoded` that the peer sent has the peer's value.
void check_same(const Json& encoded, const Json& sent) {
    if (encoded.is_object()) {
        for (const auto& [key, value] : encoded.items()) {
            const auto found = sent.find(key);
            if (found != sent.end() && !found->is_null()) {
                check_same(value, *found);
            }
        }
    } else if (encoded.is_array()) {
        DDP_CHECK(encoded.size() == sent.size(), encoded.size(), sent.size());
        for (std::size_t i = 0; i < encoded.size(); ++i) {
            check_same(encoded[i], sent[i]);
        }
    } else {
        // An empty text stands for the default where words are to be chosen from.
        DDP_CHECK(encoded == sent || sent == "", encoded.dump(), sent.dump());
    }
}

/// A visitor of message_fields.hpp.
class Bounds {
public:
    [[nodiscard]] const Limits& limits() const { return limits_; }

    void flag(const char* /*key*/, bool /*value*/) {}
    template <std::integral T, typename Bound>
    void number(const char* key, T value, Bound least, Bound most) {
        DDP_CHECK(!std::cmp_less(value, least) && !std::cmp_greater(value, most), key, value);
    }
    template <typename Tag, typename Rep, typename Bound>
    void number(const char* key, const Tagged<Tag, Rep>& value, Bound least, Bound most) {
        number(key, value.value(), least, most);
    }
    template <typename T, typename Bound>
    void number(const char* key, const std::optional<T>& value, Bound least, Bound most) {
        if (value) {
            number(key, *value, least, most);
        }
    }
    void numbers(const char* key, const std::vector<int>& values, std::size_t count_max, int least,
                 int most) {
        DDP_CHECK(values.size() <= count_max, key, values.size());
        for (const int value : values) {
            number(key, value, least, most);
        }
    }
    void duration(const char* key, Milliseconds value) {
        DDP_CHECK(value >= Milliseconds{0} && value <= kDurationMax, key, value.count());
    }
    void name(const char* key, const std::string& value, bool is_required) {
        DDP_CHECK(value.size() <= limits_.name_bytes_max, key, value.size());
        DDP_CHECK(!is_required || !value.empty(), key);
        DDP_CHECK(std::none_of(value.begin(), value.end(),
                               [](char c) { return (c >= 0 && c < 0x20) || c == 0x7f; }),
                  key);
    }
    template <typename Tag>
    void name(const char* key, const Tagged<Tag, std::string>& value, bool is_required) {
        name(key, value.value(), is_required);
    }
    void names(const char* key, const std::vector<std::string>& values, std::size_t most) {
        DDP_CHECK(values.size() <= most, key, values.size());
        for (const std::string& value : values) {
            name(key, value, false);
        }
    }
    void text(const char* /*key*/, const std::string& /*value*/) {}
    void bytes(const char* key, const std::string& value, std::size_t most) {
        DDP_CHECK(value.size() <= most, key, value.size());
    }
    template <typename T, typename Names>
    void choice(const char* /*key*/, T /*value*/, const Names& /*names*/) {}
    template <typename T>
    void object(const char* /*key*/, const T& value) {
        visit_fields(value, *this);
    }
    template <typename T>
    void object(const char* key, const std::optional<T>& value) {
        if (value) {
            object(key, *value);
        }
    }
    template <typename T>
    void objects(const char* key, const std::vector<T>& values, std::size_t most) {
        DDP_CHECK(values.size() <= most, key, values.size());
        for (const T& value : values) {
            object(key, value);
        }
    }

private:
    Limits limits_;
};

template <typename T>
void check_bounds(const T& message) {
    if constexpr (!std::is_same_v<T, Beat> && !std::is_same_v<T, Acknowledge>) {
        Bounds bounds;
        visit_fields(message, bounds);
    }
}

template <typename Message>
void check(std::string_view body, Result<Message> (*decode)(std::string_view, const Limits&)) {
    const Limits limits;
    const Result<Message> message = decode(body, limits);
    if (!message) {
        DDP_CHECK(!message.error().what.empty());
        return;
    }
    std::visit([](const auto& which) { check_bounds(which); }, *message);
    const std::string encoded = encode(*message);
    const Result<Message> again = decode(encoded, limits);
    DDP_CHECK(again.has_value() && *again == *message, body, encoded);
    if (encoded.front() != '{') {
        DDP_CHECK(body.size() == kBeatBytes && body == encoded, body.size());
        return;
    }
    DDP_CHECK(nesting(body) <= limits.json_depth_max, body);
    check_same(Json::parse(encoded, nullptr, false), Json::parse(body, nullptr, false));
    const std::string extended = R"({"nobody_knows":[{"this":[1.5]}],)" + encoded.substr(1);
    const Result<Message> known = decode(extended, limits);
    DDP_CHECK(known.has_value() && *known == *message, extended);
}

}  // namespace

}  // namespace ddprun::rdzv

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    ddprun::fuzz::Choices choices(data, size);
    const std::string_view body = choices.rest();
    ddprun::rdzv::check(body, &ddprun::rdzv::decode_agent_message);
    ddprun::rdzv::check(body, &ddprun::rdzv::decode_rendezvous_message);
    return 0;
}
