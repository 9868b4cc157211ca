#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "base/limits.hpp"
#include "rendezvous/store/protocol/request.hpp"
#include "tests/fuzz/choices.hpp"

namespace ddprun::fuzz {

/// A request by its meaning and by its bytes.
struct StoreRequest {
    bool is_end = false;  ///< no request: the client is gone
    rdzv::StoreOpcode opcode = rdzv::StoreOpcode::Ping;
    std::vector<std::string> texts;  ///< keys and values in the order of the fields
    std::int64_t number = 0;
    std::string bytes;
};

/// One of the requests that the model knows, with few keys, so that clients meet.
inline StoreRequest choose_request(Choices& choices) {
    using rdzv::StoreOpcode;
    StoreRequest request;
    const unsigned kind = choices.below(20);
    request.is_end = kind == 0 || kind == 19;
    if (request.is_end) {
        return request;
    }
    request.opcode = StoreOpcode{static_cast<std::uint8_t>(kind)};
    rdzv::append_u8(request.bytes, static_cast<std::uint8_t>(kind));
    const auto add = [&request](std::string text) {
        rdzv::append_text(request.bytes, text);
        request.texts.push_back(std::move(text));
    };
    const auto key = [&] { add(std::string(1, static_cast<char>('a' + choices.below(4)))); };
    const auto value = [&] {
        add(choices.flag() ? std::to_string(choices.below(8))
                           : std::string(choices.bytes(choices.below(24))));
    };
    const auto keys = [&](unsigned count, bool have_values) {
        rdzv::append_i64(request.bytes, count);
        for (; count > 0; --count) {
            key();
            if (have_values) {
                value();
            }
        }
    };
    switch (request.opcode) {
        case StoreOpcode::Set:
        case StoreOpcode::Append:
        case StoreOpcode::QueuePush:
            key();
            value();
            break;
        case StoreOpcode::CompareSet:
            key();
            value();
            value();
            break;
        case StoreOpcode::Get:
        case StoreOpcode::DeleteKey:
        case StoreOpcode::QueuePop:
        case StoreOpcode::QueueLen:
            key();
            break;
        case StoreOpcode::Add:
        case StoreOpcode::Barrier:
            key();
            request.number = static_cast<std::int64_t>(choices.below(8)) - 2;
            rdzv::append_i64(request.bytes, request.number);
            break;
        case StoreOpcode::Check:
        case StoreOpcode::Wait:
        case StoreOpcode::MultiGet:
            keys(choices.below(4), false);
            break;
        case StoreOpcode::MultiSet:
            keys(choices.below(4), true);
            break;
        case StoreOpcode::Ping:
            request.number = choices.byte();
            rdzv::append_u32(request.bytes, static_cast<std::uint32_t>(request.number));
            break;
        default:
            break;
    }
    return request;
}

/// The worker store by its README, with maps and without any care for speed. Exact but for one
/// thing: which waiting client is told of an element that was pushed. A client that may have been
/// told may be answered later; a client that waits for a key is answered as soon as the key exists.
class StoreModel {
public:
    /// Bytes to each client.
    using Sent = std::map<std::uint32_t, std::string>;

    explicit StoreModel(const Limits& limits) : limits_(limits) {}

    [[nodiscard]] std::size_t key_count() const { return values_.size(); }
    [[nodiscard]] std::size_t waiter_count() const { return waiting_.size(); }
    [[nodiscard]] std::size_t queue_count() const {
        return static_cast<std::size_t>(
            std::count_if(queues_.begin(), queues_.end(),
                          [](const auto& queue) { return !queue.second.empty(); }));
    }

    void disconnected(std::uint32_t client) { waiting_.erase(client); }

    /// False: the request cannot be carried out.
    bool handle(std::uint32_t client, const StoreRequest& request) {
        const bool is_done = carry_out(client, request);
        // A client's own answer comes before what its request releases, itself included.
        for (const std::uint32_t waiter : std::exchange(released_, {})) {
            expected_[waiter].push_back(kStopWaiting);
        }
        return is_done;
    }

    /// Compares `sent` with the answers to the last calls. A possibly released client may have one.
    void check_sent(const Sent& sent) {
        for (const auto& [client, bytes] : sent) {
            std::string expected = std::exchange(expected_[client], {});
            const auto waiter = waiting_.find(client);
            if (bytes != expected && waiter != waiting_.end() &&
                waiter->second.is_perhaps_released()) {
                expected.push_back(kStopWaiting);
                waiting_.erase(waiter);
            }
            DDP_CHECK(bytes == expected, client, bytes.size(), expected.size());
        }
        for (const auto& [client, expected] : expected_) {
            DDP_CHECK(expected.empty(), client, expected.size());
        }
    }

private:
    static constexpr char kStopWaiting = 0;

    struct Waiter {
        std::set<std::string> missing;
        std::set<std::string> perhaps;  ///< missing, or it was told of an element
        std::optional<std::int64_t> count;
        std::string counter;

        [[nodiscard]] bool is_perhaps_released() const {
            return !count && missing.empty() && !perhaps.empty();
        }
    };

    static void append_text(std::string& out, std::string_view text) {
        rdzv::append_text(out, text);
    }

    [[nodiscard]] bool is_there(const std::string& name) const {
        const auto queue = queues_.find(name);
        return values_.contains(name) || (queue != queues_.end() && !queue->second.empty());
    }
    [[nodiscard]] std::string value_of(const std::string& key) const {
        const auto found = values_.find(key);
        return found == values_.end() ? std::string() : found->second;
    }
    [[nodiscard]] bool fits(std::size_t reply) const {
        return reply <= limits_.store_reply_bytes_max;
    }

    /// Blanks, a sign, digits, then anything.
    static std::optional<std::int64_t> number_of(const std::string& text);
    void set(const std::string& key, const std::string& value);
    std::optional<std::int64_t> add(const std::string& key, std::int64_t amount);
    bool carry_out(std::uint32_t client, const StoreRequest& request);
    bool handle_many(std::uint32_t client, const StoreRequest& request);
    void handle_queue(std::uint32_t client, const StoreRequest& request);
    bool barrier(std::uint32_t client, const StoreRequest& request);

    const Limits& limits_;
    std::map<std::string, std::string> values_;
    std::map<std::string, std::deque<std::string>> queues_;
    std::map<std::uint32_t, Waiter> waiting_;
    Sent expected_;
    std::vector<std::uint32_t> released_;
};

inline std::optional<std::int64_t> StoreModel::number_of(const std::string& text) {
    // The values that matter here are short, so nothing overflows unnoticed.
    std::size_t at = 0;
    while (at < text.size() &&
           std::string_view(" \t\n\v\f\r").find(text[at]) != std::string::npos) {
        ++at;
    }
    const bool is_negative = at < text.size() && text[at] == '-';
    at += at < text.size() && (text[at] == '-' || text[at] == '+') ? 1 : 0;
    std::optional<std::int64_t> number;
    for (; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at) {
        std::int64_t next = 0;
        const std::int64_t digit = is_negative ? '0' - text[at] : text[at] - '0';
        if (__builtin_mul_overflow(number.value_or(0), std::int64_t{10}, &next) ||
            __builtin_add_overflow(next, digit, &next)) {
            return std::nullopt;
        }
        number = next;
    }
    return number;
}

inline void StoreModel::set(const std::string& key, const std::string& value) {
    values_[key] = value;
    const std::optional<std::int64_t> count = number_of(value);
    for (auto waiter = waiting_.begin(); waiter != waiting_.end();) {
        Waiter& wait = waiter->second;
        const bool counted = wait.count && wait.counter == key && count && *count >= *wait.count;
        const bool was_named = wait.missing.erase(key) + wait.perhaps.erase(key) > 0;
        if (counted || (was_named && wait.missing.empty() && wait.perhaps.empty())) {
            released_.push_back(waiter->first);
            waiter = waiting_.erase(waiter);
        } else {
            ++waiter;
        }
    }
}

inline std::optional<std::int64_t> StoreModel::add(const std::string& key, std::int64_t amount) {
    const std::optional<std::int64_t> number =
        values_.contains(key) ? number_of(values_[key]) : std::int64_t{0};
    if (!number) {
        return std::nullopt;
    }
    const auto sum = static_cast<std::int64_t>(static_cast<std::uint64_t>(*number) +
                                               static_cast<std::uint64_t>(amount));
    set(key, std::to_string(sum));
    return sum;
}

inline bool StoreModel::barrier(std::uint32_t client, const StoreRequest& request) {
    const std::string& key = request.texts.front();
    waiting_.erase(client);
    const std::optional<std::int64_t> count = add(key, 1);
    if (count && request.number > 0 && *count < request.number) {
        Waiter& waiter = waiting_[client];
        waiter.counter = key;
        waiter.count = request.number;
    } else if (count) {
        expected_[client].push_back(kStopWaiting);
    }
    return count.has_value();
}

inline void StoreModel::handle_queue(std::uint32_t client, const StoreRequest& request) {
    std::deque<std::string>& queue = queues_[request.texts.front()];
    if (request.opcode == rdzv::StoreOpcode::QueuePush) {
        queue.push_back(request.texts.back());
        for (auto& [other, waiter] : waiting_) {
            if (waiter.missing.erase(request.texts.front()) > 0) {
                waiter.perhaps.insert(request.texts.front());
            }
        }
        return;
    }
    rdzv::append_i64(expected_[client], static_cast<std::int64_t>(queue.size()));
    if (request.opcode == rdzv::StoreOpcode::QueuePop && !queue.empty()) {
        append_text(expected_[client], queue.front());
        queue.pop_front();
    }
}

inline bool StoreModel::handle_many(std::uint32_t client, const StoreRequest& request) {
    using rdzv::StoreOpcode;
    std::string& reply = expected_[client];
    if (request.opcode == StoreOpcode::MultiSet) {
        for (std::size_t i = 0; i < request.texts.size(); i += 2) {
            set(request.texts[i], request.texts[i + 1]);
        }
    } else if (request.opcode == StoreOpcode::MultiGet) {
        std::string values;
        for (const std::string& key : request.texts) {
            append_text(values, value_of(key));
        }
        if (!fits(values.size())) {
            return false;
        }
        reply += values;
    } else if (request.opcode == StoreOpcode::Check) {
        const bool are_there = std::all_of(request.texts.begin(), request.texts.end(),
                                           [this](const auto& name) { return is_there(name); });
        reply.push_back(are_there ? 0 : 1);
    } else if (request.opcode == StoreOpcode::Wait) {
        waiting_.erase(client);
        Waiter waiter;
        for (const std::string& name : request.texts) {
            if (!is_there(name)) {
                waiter.missing.insert(name);
            }
        }
        if (waiter.missing.empty()) {
            reply.push_back(kStopWaiting);
        } else {
            waiting_[client] = waiter;
        }
    } else {
        std::string keys;
        rdzv::append_i64(keys, static_cast<std::int64_t>(values_.size()));
        for (const auto& [key, value] : values_) {
            append_text(keys, key);
        }
        reply += keys;
    }
    return true;
}

inline bool StoreModel::carry_out(std::uint32_t client, const StoreRequest& request) {
    using rdzv::StoreOpcode;
    const std::string key = request.texts.empty() ? std::string() : request.texts.front();
    std::string& reply = expected_[client];
    switch (request.opcode) {
        case StoreOpcode::Set:
            set(key, request.texts[1]);
            return true;
        case StoreOpcode::Append:
            set(key, value_of(key) + request.texts[1]);
            return true;
        case StoreOpcode::CompareSet: {
            const bool is_missing = !values_.contains(key);
            const std::string& expected = request.texts[1];
            const bool is_set = is_missing ? expected.empty() : values_[key] == expected;
            const std::string answer = is_set       ? request.texts[2]
                                       : is_missing ? expected
                                                    : values_[key];
            if (is_set) {
                set(key, request.texts[2]);
            }
            if (fits(answer.size())) {
                append_text(reply, answer);
            }
            return fits(answer.size());
        }
        case StoreOpcode::Get:
            if (fits(value_of(key).size())) {
                append_text(reply, value_of(key));
            }
            return fits(value_of(key).size());
        case StoreOpcode::Add: {
            const std::optional<std::int64_t> sum = add(key, request.number);
            if (sum) {
                rdzv::append_i64(reply, *sum);
            }
            return sum.has_value();
        }
        case StoreOpcode::DeleteKey:
            rdzv::append_i64(reply, static_cast<std::int64_t>(values_.erase(key)));
            return true;
        case StoreOpcode::GetNumKeys:
            rdzv::append_i64(reply, static_cast<std::int64_t>(values_.size()));
            return true;
        case StoreOpcode::CancelWait:
            waiting_.erase(client);
            reply.push_back(1);
            return true;
        case StoreOpcode::Ping:
            rdzv::append_u32(reply, static_cast<std::uint32_t>(request.number));
            return true;
        case StoreOpcode::Barrier:
            return barrier(client, request);
        case StoreOpcode::QueuePush:
        case StoreOpcode::QueuePop:
        case StoreOpcode::QueueLen:
            handle_queue(client, request);
            return true;
        default:
            return handle_many(client, request);
    }
}

}  // namespace ddprun::fuzz
