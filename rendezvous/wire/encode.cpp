#include <optional>
#include <type_traits>
#include <utility>

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

// A number or a string, or a Tagged one.
template <typename T>
const T& plain(const T& value) {
    return value;
}
template <typename Tag, typename Rep>
const Rep& plain(const Tagged<Tag, Rep>& value) {
    return value.value();
}

class Writer {
public:
    [[nodiscard]] const Limits& limits() const { return limits_; }
    Json take() { return std::move(object_); }

    void flag(const char* key, bool value) { object_[key] = value; }

    template <typename T, typename Bound>
    void number(const char* key, const T& value, Bound /*least*/, Bound /*most*/) {
        object_[key] = plain(value);
    }
    template <typename T, typename Bound>
    void number(const char* key, const std::optional<T>& value, Bound /*least*/, Bound /*most*/) {
        if (value) {
            object_[key] = plain(*value);
        }
    }
    void numbers(const char* key, const std::vector<int>& values, std::size_t /*count_max*/,
                 int /*least*/, int /*most*/) {
        object_[key] = values;
    }
    void duration(const char* key, Milliseconds value) { object_[key] = value.count(); }

    template <typename T>
    void name(const char* key, const T& value, bool /*is_required*/) {
        object_[key] = plain(value);
    }
    void names(const char* key, const std::vector<std::string>& values, std::size_t /*most*/) {
        object_[key] = values;
    }
    void text(const char* key, const std::string& value) { object_[key] = value; }
    void bytes(const char* key, const std::string& value, std::size_t /*most*/) {
        object_[key] = base64_encode(value);
    }

    template <typename T, typename Names>
    void choice(const char* key, T value, const Names& names) {
        object_[key] = std::string(word_of(value, names));
    }

    template <typename T>
    void object(const char* key, const T& value) {
        Writer inner;
        visit_fields(value, inner);
        object_[key] = inner.take();
    }
    template <typename T>
    void object(const char* key, const std::optional<T>& value) {
        if (value) {
            object(key, *value);
        }
    }
    template <typename T>
    void objects(const char* key, const std::vector<T>& values, std::size_t /*most*/) {
        Json list = Json::array();
        for (const T& value : values) {
            Writer inner;
            visit_fields(value, inner);
            list.push_back(inner.take());
        }
        object_[key] = std::move(list);
    }

private:
    Json object_ = Json::object();
    Limits limits_;
};

std::string fixed_frame(char kind, std::uint64_t sequence) {
    std::string body(1, kind);
    append_number(body, sequence, kBeatBytes - 1);
    return body;
}

template <typename T>
std::string encode_one(const T& message) {
    if constexpr (std::is_same_v<T, Beat>) {
        return fixed_frame(kBeatByte, message.sequence);
    } else if constexpr (std::is_same_v<T, Acknowledge>) {
        return fixed_frame(kAcknowledgeByte, message.sequence);
    } else {
        Writer writer;
        visit_fields(message, writer);
        Json object = writer.take();
        object["type"] = std::string(T::kType);
        return object.dump(-1, ' ', false, Json::error_handler_t::replace);
    }
}

}  // namespace

std::string encode(const AgentMessage& message) {
    return std::visit([](const auto& which) { return encode_one(which); }, message);
}

std::string encode(const RendezvousMessage& message) {
    return std::visit([](const auto& which) { return encode_one(which); }, message);
}

std::string_view RepeatEncoder::body_of(const RendezvousMessage& message) {
    if (!last_ || *last_ != message) {
        body_ = encode(message);
        last_ = message;
    }
    return body_;
}

std::string encode(const RunRecord& record) {
    return encode_one(record);
}

std::string encode(const OperatorOrder& order) {
    return encode_one(order);
}

std::string encode(const OperatorReply& reply) {
    return encode_one(reply);
}

std::string encode(const AskStatus& question) {
    return encode_one(question);
}

std::string encode(const StatusReply& reply) {
    return encode_one(reply);
}

std::string encode(const JobStatus& job) {
    Writer writer;
    visit_fields(job, writer);
    return writer.take().dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace ddprun::rdzv
