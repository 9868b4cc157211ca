#include <concepts>
#include <optional>
#include <type_traits>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "rendezvous/wire/base64.hpp"
#include "rendezvous/wire/codec.hpp"
#include "rendezvous/wire/control_fields.hpp"
#include "rendezvous/wire/fixed_frames.hpp"
#include "rendezvous/wire/message_fields.hpp"
#include "rendezvous/wire/run_record_fields.hpp"

namespace ddprun::rdzv {

namespace {

using Json = nlohmann::json;

// Reads one object; the first problem found is kept, and what follows it does not matter.
class Reader {
public:
    Reader(const Json& object, const Limits& limits, std::string place,
           std::optional<Error>& problem)
        : object_(object), limits_(limits), place_(std::move(place)), problem_(problem) {}

    [[nodiscard]] const Limits& limits() const { return limits_; }

    void flag(const char* key, bool& value) {
        if (const Json* field = find(key)) {
            if (const auto* read = field->get_ptr<const Json::boolean_t*>()) {
                value = *read;
            } else {
                refuse(key, "is not true or false");
            }
        }
    }

    template <std::integral T, typename Bound>
    void number(const char* key, T& value, Bound least, Bound most) {
        if (const Json* field = find(key)) {
            read_number(key, *field, value, least, most);
        }
    }
    template <typename Tag, typename Rep, typename Bound>
    void number(const char* key, Tagged<Tag, Rep>& value, Bound least, Bound most) {
        Rep read = value.value();
        number(key, read, least, most);
        value = Tagged<Tag, Rep>(read);
    }
    template <typename T, typename Bound>
    void number(const char* key, std::optional<T>& value, Bound least, Bound most) {
        if (const Json* field = find(key)) {
            number(key, value.emplace(), least, most);
        }
    }
    void numbers(const char* key, std::vector<int>& values, std::size_t count_max, int least,
                 int most) {
        if (const Json* list = find_list(key, count_max)) {
            values.assign(list->size(), least);
            for (std::size_t i = 0; i < values.size(); ++i) {
                read_number(key, (*list)[i], values[i], least, most);
            }
        }
    }
    void duration(const char* key, Milliseconds& value) {
        Milliseconds::rep read = value.count();
        number(key, read, Milliseconds::rep{0}, Milliseconds::rep{kDurationMax.count()});
        value = Milliseconds(read);
    }

    void name(const char* key, std::string& value, bool is_required) {
        if (const Json* field = find(key)) {
            read_name(key, *field, value);
        }
        if (is_required && value.empty()) {
            refuse(key, "is missing");
        }
    }
    template <typename Tag>
    void name(const char* key, Tagged<Tag, std::string>& value, bool is_required) {
        std::string read = value.value();
        name(key, read, is_required);
        value = Tagged<Tag, std::string>(std::move(read));
    }
    void names(const char* key, std::vector<std::string>& values, std::size_t most) {
        if (const Json* list = find_list(key, most)) {
            values.assign(list->size(), {});
            for (std::size_t i = 0; i < values.size(); ++i) {
                read_name(key, (*list)[i], values[i]);
            }
        }
    }
    void text(const char* key, std::string& value) {
        if (const Json* field = find(key)) {
            read_text(key, *field, value);
        }
    }
    void bytes(const char* key, std::string& value, std::size_t most) {
        std::string encoded;
        text(key, encoded);
        if (encoded.empty()) {
            return;
        }
        std::optional<std::string> decoded = base64_decode(encoded);
        if (!decoded) {
            refuse(key, "is not base64");
        } else if (decoded->size() > most) {
            refuse(key, fmt::format("has {} bytes, allowed are {}", decoded->size(), most));
        } else {
            value = *std::move(decoded);
        }
    }

    template <typename T, typename Names>
    void choice(const char* key, T& value, const Names& names) {
        std::string read;
        text(key, read);
        if (read.empty()) {
            return;
        }
        for (const auto& [word, meaning] : names) {
            if (word == read) {
                value = meaning;
                return;
            }
        }
        refuse(key, "is none of the known words");
    }

    template <typename T>
    void object(const char* key, T& value) {
        if (const Json* field = find(key)) {
            read_object(key, *field, value);
        }
    }
    template <typename T>
    void object(const char* key, std::optional<T>& value) {
        if (const Json* field = find(key)) {
            read_object(key, *field, value.emplace());
        }
    }
    template <typename T>
    void objects(const char* key, std::vector<T>& values, std::size_t most) {
        if (const Json* list = find_list(key, most)) {
            values.assign(list->size(), {});
            for (std::size_t i = 0; i < values.size(); ++i) {
                read_object(key, (*list)[i], values[i]);
            }
        }
    }

private:
    void refuse(const char* key, const std::string& why) {
        if (!problem_) {
            problem_ = Error{ErrorCode::BadMessage, fmt::format("{}.{} {}", place_, key, why)};
        }
    }

    // A null is a field that was left out.
    const Json* find(const char* key) {
        const auto found = object_.find(key);
        return found == object_.end() || found->is_null() ? nullptr : &*found;
    }

    const Json* find_list(const char* key, std::size_t most) {
        const Json* const field = find(key);
        if (field == nullptr) {
            return nullptr;
        }
        if (!field->is_array()) {
            refuse(key, "is not a list");
            return nullptr;
        }
        if (field->size() > most) {
            refuse(key, fmt::format("has {} elements, allowed are {}", field->size(), most));
            return nullptr;
        }
        return field;
    }

    template <typename T, typename Bound>
    void read_number(const char* key, const Json& field, T& value, Bound least, Bound most) {
        // The parser makes positive numbers unsigned, others signed; the comparison minds signs.
        if (const auto* natural = field.get_ptr<const Json::number_unsigned_t*>()) {
            accept_number(key, *natural, value, least, most);
        } else if (const auto* integer = field.get_ptr<const Json::number_integer_t*>()) {
            accept_number(key, *integer, value, least, most);
        } else {
            refuse(key, "is not a whole number");
        }
    }
    template <typename Read, typename T, typename Bound>
    void accept_number(const char* key, Read read, T& value, Bound least, Bound most) {
        if (std::cmp_less(read, least) || std::cmp_greater(read, most)) {
            refuse(key, fmt::format("is {}, allowed are {} to {}", read, least, most));
        } else {
            value = static_cast<T>(read);
        }
    }

    void read_text(const char* key, const Json& field, std::string& value) {
        if (const auto* read = field.get_ptr<const Json::string_t*>()) {
            value = *read;
        } else {
            refuse(key, "is not a string");
        }
    }
    void read_name(const char* key, const Json& field, std::string& value) {
        read_text(key, field, value);
        if (value.size() > limits_.name_bytes_max) {
            refuse(key, fmt::format("has {} bytes, allowed are {}", value.size(),
                                    limits_.name_bytes_max));
        }
        // Names end up on consoles, which obey control characters.
        for (const char c : value) {
            if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
                refuse(key, "has a control character");
            }
        }
    }

    template <typename T>
    void read_object(const char* key, const Json& field, T& value) {
        if (!field.is_object()) {
            refuse(key, "is not an object");
            return;
        }
        Reader inner(field, limits_, fmt::format("{}.{}", place_, key), problem_);
        visit_fields(value, inner);
    }

    const Json& object_;
    const Limits& limits_;
    std::string place_;
    std::optional<Error>& problem_;
};

/// Nothing deep is ever built. Looked at beforehand: nlohmann's parser with a callback goes through
/// a whole list at the end of each of its objects.
bool is_deeper(std::string_view body, std::size_t most) {
    std::size_t depth = 0;
    bool is_text = false;
    for (std::size_t i = 0; i < body.size(); ++i) {
        const char c = body[i];
        if (is_text) {
            i += c == '\\' ? 1 : 0;
            is_text = c != '"';
        } else if (c == '"') {
            is_text = true;
        } else if (c == '{' || c == '[') {
            if (++depth > most) {
                return true;
            }
        } else if ((c == '}' || c == ']') && depth > 0) {
            --depth;
        }
    }
    return false;
}

// json itself converts from and to nearly everything, so it does not go into a Result.
std::optional<Error> parse(std::string_view body, const Limits& limits, Json& object) {
    if (is_deeper(body, limits.json_depth_max)) {
        return Error{ErrorCode::BadMessage,
                     fmt::format("a message is nested deeper than {}", limits.json_depth_max)};
    }
    // nlohmann takes a NUL byte for the end; JSON has none.
    const bool has_nul = body.find('\0') != std::string_view::npos;
    object = has_nul ? Json() : Json::parse(body, nullptr, false);
    if (!object.is_object()) {
        return Error{ErrorCode::BadMessage, "a message is not a JSON object"};
    }
    return std::nullopt;
}

// Fills `message` and returns true if `type` is that of T.
template <typename T, typename Message>
bool read_as(const Json& object, std::string_view type, const Limits& limits, Message& message,
             std::optional<Error>& problem) {
    if constexpr (std::is_same_v<T, Beat> || std::is_same_v<T, Acknowledge>) {
        return false;
    } else {
        if (type != T::kType) {
            return false;
        }
        Reader reader(object, limits, std::string(type), problem);
        visit_fields(message.template emplace<T>(), reader);
        return true;
    }
}

template <typename... Ts>
Result<std::variant<Ts...>> decode_json(std::string_view body, const Limits& limits,
                                        const std::variant<Ts...>* /*which*/) {
    Json object;
    if (std::optional<Error> unreadable = parse(body, limits, object)) {
        return *std::move(unreadable);
    }
    const auto found = object.find("type");
    const auto* const type =
        found == object.end() ? nullptr : found->template get_ptr<const Json::string_t*>();
    if (type == nullptr) {
        return Error{ErrorCode::BadMessage, "a message has no type"};
    }
    std::variant<Ts...> message;
    std::optional<Error> problem;
    if (!(read_as<Ts>(object, *type, limits, message, problem) || ...)) {
        return Error{ErrorCode::BadMessage, "a message has an unknown type"};
    }
    if (problem) {
        return *std::move(problem);
    }
    return message;
}

}  // namespace

Result<AgentMessage> decode_agent_message(std::string_view body, const Limits& limits) {
    if (body.size() == kBeatBytes && body.front() == kBeatByte) {
        return AgentMessage(Beat{.sequence = read_number(body.substr(1))});
    }
    return decode_json(body, limits, static_cast<const AgentMessage*>(nullptr));
}

Result<RendezvousMessage> decode_rendezvous_message(std::string_view body, const Limits& limits) {
    if (body.size() == kBeatBytes && body.front() == kAcknowledgeByte) {
        return RendezvousMessage(Acknowledge{.sequence = read_number(body.substr(1))});
    }
    return decode_json(body, limits, static_cast<const RendezvousMessage*>(nullptr));
}

template <typename T>
Result<T> decode(std::string_view body, const Limits& limits) {
    Result<std::variant<T>> message =
        decode_json(body, limits, static_cast<const std::variant<T>*>(nullptr));
    if (!message) {
        return message.error();
    }
    return std::get<T>(*std::move(message));
}

template Result<RunRecord> decode(std::string_view, const Limits&);
template Result<AskStatus> decode(std::string_view, const Limits&);
template Result<StatusReply> decode(std::string_view, const Limits&);
template Result<OperatorOrder> decode(std::string_view, const Limits&);
template Result<OperatorReply> decode(std::string_view, const Limits&);

}  // namespace ddprun::rdzv
