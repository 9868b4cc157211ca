#include "rendezvous/store/core/store_core.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/check.hpp"
#include "base/printable.hpp"

namespace ddprun::rdzv {

namespace {

constexpr std::uint8_t kReady = 0;
constexpr std::uint8_t kNotReady = 1;
constexpr std::uint8_t kStopWaiting = 0;
constexpr std::uint8_t kWaitCanceled = 1;
constexpr std::size_t kLengthBytes = 8;
/// Memory that a key, or an element of a queue, takes besides its text.
constexpr std::uint64_t kOverheadBytes = 128;
/// Shown length of a key or a value in an error.
constexpr std::size_t kShownColumns = 64;

void reply_u8(StoreReplies& replies, StoreClient client, std::uint8_t value) {
    append_u8(replies.begin_reply(client), value);
    replies.end_reply();
}

void reply_i64(StoreReplies& replies, StoreClient client, std::int64_t value) {
    append_i64(replies.begin_reply(client), value);
    replies.end_reply();
}

void reply_text(StoreReplies& replies, StoreClient client, std::string_view text) {
    append_text(replies.begin_reply(client), text);
    replies.end_reply();
}

std::int64_t size_of(std::size_t size) {
    return static_cast<std::int64_t>(size);
}

}  // namespace

Result<void> StoreCore::handle(StoreClient client, std::string_view request, StoreReplies& replies,
                               const std::shared_ptr<const void>& owner) {
    DDP_CHECK(!request.empty(), client.value());
    const std::vector<std::string> queues = queues_.retract(client);
    const StoreOpcode opcode{static_cast<std::uint8_t>(request.front())};
    FieldReader fields(request.substr(1));
    Result<void> done = check_room(opcode, request.size());
    if (done) {
        done = dispatch(opcode, client, fields, replies, owner);
    }
    offer_again(queues);
    release_waiters(replies);
    return done;
}

void StoreCore::disconnected(StoreClient client, StoreReplies& replies) {
    waiters_.forget(client);
    offer_again(queues_.retract(client));
    release_waiters(replies);
}

Result<void> StoreCore::dispatch(StoreOpcode opcode, StoreClient client, FieldReader& fields,
                                 StoreReplies& replies, const std::shared_ptr<const void>& owner) {
    switch (opcode) {
        case StoreOpcode::Validate:
        case StoreOpcode::Relay:  // These three concern connections, not what is stored.
        case StoreOpcode::Enter:
        case StoreOpcode::Leave:
            break;
        case StoreOpcode::Set:
            set(fields, owner);
            break;
        case StoreOpcode::CompareSet:
            return compare_set(client, fields, replies);
        case StoreOpcode::Get:
            return get(client, fields, replies);
        case StoreOpcode::Add:
            return add(client, fields, replies);
        case StoreOpcode::Check:
            check(client, fields, replies);
            break;
        case StoreOpcode::Wait:
            return wait(client, fields, replies);
        case StoreOpcode::GetNumKeys:
            reply_i64(replies, client, size_of(values_.size()));
            break;
        case StoreOpcode::DeleteKey:
            delete_key(client, fields, replies);
            break;
        case StoreOpcode::Append:
            append(fields);
            break;
        case StoreOpcode::MultiGet:
            return multi_get(client, fields, replies);
        case StoreOpcode::MultiSet:
            multi_set(fields);
            break;
        case StoreOpcode::CancelWait:
            waiters_.forget(client);
            reply_u8(replies, client, kWaitCanceled);
            break;
        case StoreOpcode::Ping:
            append_u32(replies.begin_reply(client), fields.u32());
            replies.end_reply();
            break;
        case StoreOpcode::QueuePush:
            queue_push(fields, owner);
            break;
        case StoreOpcode::QueuePop:
            queue_pop(client, fields, replies);
            break;
        case StoreOpcode::QueueLen:
            reply_i64(replies, client, size_of(queues_.length(fields.text())));
            break;
        case StoreOpcode::ListKeys:
            return list_keys(client, replies);
        case StoreOpcode::Barrier:
            return barrier(client, fields, replies);
    }
    return {};
}

bool StoreCore::exists(std::string_view name) const {
    return values_.find(name) != values_.end() || queues_.has_elements(name);
}

/// A request adds no more than it carries.
Result<void> StoreCore::check_room(StoreOpcode opcode, std::size_t request_bytes) const {
    if (may_grow_store(opcode) && stored_bytes_ + request_bytes > limits_->store_bytes_max) {
        return Error{
            ErrorCode::LimitExceeded,
            fmt::format("{} of {} bytes, and the store holds {} of at most {}", name_of(opcode),
                        request_bytes, stored_bytes_, limits_->store_bytes_max)};
    }
    return {};
}

StoreValue& StoreCore::value_of(std::string_view key) {
    const auto found = values_.find(key);
    if (found != values_.end()) {
        return found->second;
    }
    stored_bytes_ += key.size() + kOverheadBytes;
    return values_.try_emplace(std::string(key)).first->second;
}

void StoreCore::store(std::string_view key, std::string_view value,
                      const std::shared_ptr<const void>& owner) {
    StoreValue& stored = value_of(key);
    stored_bytes_ -= stored.view().size();
    stored.assign(value, owner);
    stored_bytes_ += value.size();
    value_changed(key, value);
}

/// Finds out who waited for the key, or for the counter to reach what it is now.
void StoreCore::value_changed(std::string_view key, std::string_view value) {
    if (waiters_.size() == 0) {
        return;
    }
    waiters_.key_appeared(key, released_);
    if (waiters_.has_count_waiters(key)) {
        if (const Result<std::int64_t> count = counter_value(value)) {
            waiters_.count_changed(key, *count, released_);
        }
    }
}

void StoreCore::release_waiters(StoreReplies& replies) {
    for (const StoreClient client : released_) {
        reply_u8(replies, client, kStopWaiting);
    }
    released_.clear();
}

Result<void> StoreCore::check_reply_size(StoreOpcode opcode, std::uint64_t size) const {
    if (size > limits_->store_reply_bytes_max) {
        return Error{ErrorCode::LimitExceeded,
                     fmt::format("the answer to {} would have {} bytes, more than {}",
                                 name_of(opcode), size, limits_->store_reply_bytes_max)};
    }
    return {};
}

void StoreCore::set(FieldReader& fields, const std::shared_ptr<const void>& owner) {
    const std::string_view key = fields.text();
    store(key, fields.text(), owner);
}

Result<void> StoreCore::compare_set(StoreClient client, FieldReader& fields,
                                    StoreReplies& replies) {
    const std::string_view key = fields.text();
    const std::string_view expected = fields.text();
    const std::string_view desired = fields.text();
    const auto found = values_.find(key);
    if (found == values_.end() ? expected.empty() : found->second.view() == expected) {
        store(key, desired);
        reply_text(replies, client, desired);
        return {};
    }
    if (found == values_.end()) {
        reply_text(replies, client, expected);
        return {};
    }
    if (Result<void> fits = check_reply_size(StoreOpcode::CompareSet, found->second.view().size());
        !fits) {
        return fits;
    }
    replies.reply_value(client, found->second);
    return {};
}

Result<void> StoreCore::get(StoreClient client, FieldReader& fields, StoreReplies& replies) {
    const auto found = values_.find(fields.text());
    if (found == values_.end()) {
        reply_text(replies, client, {});
        return {};
    }
    if (Result<void> fits = check_reply_size(StoreOpcode::Get, found->second.view().size());
        !fits) {
        return fits;
    }
    replies.reply_value(client, found->second);
    return {};
}

Result<std::int64_t> StoreCore::increase(StoreOpcode opcode, std::string_view key,
                                         std::int64_t amount) {
    auto found = values_.find(key);
    std::int64_t value = 0;
    if (found != values_.end()) {
        const Result<std::int64_t> current = counter_value(found->second.view());
        if (!current) {
            return Error{
                current.error().code,
                fmt::format("{} on key {}: its value {} {}", name_of(opcode),
                            printable(key, kShownColumns),
                            printable(found->second.view(), kShownColumns), current.error().what)};
        }
        value = *current;
    }
    // Wraps at the end of the range, as PyTorch's store does; signed overflow would be undefined.
    value = static_cast<std::int64_t>(static_cast<std::uint64_t>(value) +
                                      static_cast<std::uint64_t>(amount));
    const fmt::format_int text(value);
    store(key, std::string_view(text.data(), text.size()));
    return value;
}

Result<void> StoreCore::add(StoreClient client, FieldReader& fields, StoreReplies& replies) {
    const std::string_view key = fields.text();
    const Result<std::int64_t> value = increase(StoreOpcode::Add, key, fields.i64());
    if (!value) {
        return value.error();
    }
    reply_i64(replies, client, *value);
    return {};
}

void StoreCore::check(StoreClient client, FieldReader& fields, StoreReplies& replies) {
    bool is_ready = true;
    for (std::uint64_t left = fields.u64(); left > 0 && is_ready; --left) {
        is_ready = exists(fields.text());
    }
    reply_u8(replies, client, is_ready ? kReady : kNotReady);
}

Result<void> StoreCore::wait(StoreClient client, FieldReader& fields, StoreReplies& replies) {
    waiters_.forget(client);  // The last WAIT of a connection counts.
    missing_.clear();
    for (std::uint64_t left = fields.u64(); left > 0; --left) {
        const std::string_view name = fields.text();
        if (!exists(name)) {
            missing_.push_back(name);
        }
    }
    if (missing_.empty()) {
        reply_u8(replies, client, kStopWaiting);
        return {};
    }
    return waiters_.wait_for_names(client, missing_);
}

void StoreCore::delete_key(StoreClient client, FieldReader& fields, StoreReplies& replies) {
    const auto found = values_.find(fields.text());
    const bool is_there = found != values_.end();
    if (is_there) {
        stored_bytes_ -= found->first.size() + found->second.view().size() + kOverheadBytes;
        values_.erase(found);
    }
    reply_i64(replies, client, is_there ? 1 : 0);
}

void StoreCore::append(FieldReader& fields) {
    const std::string_view key = fields.text();
    const std::string_view more = fields.text();
    StoreValue& stored = value_of(key);
    stored.append(more);
    stored_bytes_ += more.size();
    value_changed(key, stored.view());
}

Result<void> StoreCore::multi_get(StoreClient client, FieldReader& fields, StoreReplies& replies) {
    std::vector<StoreValue*> values;
    std::uint64_t size = 0;
    for (std::uint64_t left = fields.u64(); left > 0; --left) {
        const auto found = values_.find(fields.text());
        values.push_back(found == values_.end() ? nullptr : &found->second);
        size += kLengthBytes + (values.back() == nullptr ? 0 : values.back()->view().size());
    }
    if (Result<void> fits = check_reply_size(StoreOpcode::MultiGet, size); !fits) {
        return fits;
    }
    for (StoreValue* value : values) {
        if (value == nullptr) {
            reply_text(replies, client, {});
        } else {
            replies.reply_value(client, *value);
        }
    }
    return {};
}

void StoreCore::multi_set(FieldReader& fields) {
    for (std::uint64_t left = fields.u64(); left > 0; --left) {
        const std::string_view key = fields.text();
        store(key, fields.text());
    }
}

void StoreCore::queue_push(FieldReader& fields, const std::shared_ptr<const void>& owner) {
    const std::string_view name = fields.text();
    StoreValue element;
    element.assign(fields.text(), owner);
    stored_bytes_ += name.size() + element.view().size() + kOverheadBytes;
    queues_.push(name, std::move(element));
    queues_.offer(name, waiters_, released_);
}

void StoreCore::queue_pop(StoreClient client, FieldReader& fields, StoreReplies& replies) {
    const std::string_view name = fields.text();
    StoreValue element;
    const std::size_t length = queues_.pop(name, element);
    reply_i64(replies, client, size_of(length));
    if (length > 0) {
        stored_bytes_ -= name.size() + element.view().size() + kOverheadBytes;
        replies.reply_value(client, element);
    }
}

void StoreCore::offer_again(const std::vector<std::string>& queues) {
    for (const std::string& name : queues) {
        queues_.offer(name, waiters_, released_);
    }
}

Result<void> StoreCore::list_keys(StoreClient client, StoreReplies& replies) {
    std::vector<std::string_view> keys;
    keys.reserve(values_.size());
    std::uint64_t size = kLengthBytes;
    for (const auto& [key, value] : values_) {
        keys.push_back(key);
        size += kLengthBytes + key.size();
    }
    if (Result<void> fits = check_reply_size(StoreOpcode::ListKeys, size); !fits) {
        return fits;
    }
    std::sort(keys.begin(), keys.end());  // The answer does not depend on a hash function.
    reply_i64(replies, client, size_of(keys.size()));
    for (const std::string_view key : keys) {
        reply_text(replies, client, key);
    }
    return {};
}

Result<void> StoreCore::barrier(StoreClient client, FieldReader& fields, StoreReplies& replies) {
    const std::string_view key = fields.text();
    const std::int64_t world_size = fields.i64();
    waiters_.forget(client);  // As in wait().
    if (Result<void> fits = waiters_.check_room(key); !fits) {
        return fits;
    }
    const Result<std::int64_t> count = increase(StoreOpcode::Barrier, key, 1);
    if (!count) {
        return count.error();
    }
    if (*count >= world_size || world_size <= 0) {
        reply_u8(replies, client, kStopWaiting);
        return {};
    }
    waiters_.wait_for_count(client, key, world_size);
    return {};
}

}  // namespace ddprun::rdzv
