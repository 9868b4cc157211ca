#include "rendezvous/store/relay/relay_core.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/check.hpp"
#include "rendezvous/store/protocol/request.hpp"

namespace ddprun::rdzv {

namespace {

constexpr std::size_t kNumberBytes = 4;
constexpr std::size_t kSizeBytes = 8;

/// Its replies to several clients are one, or short.
bool is_combined(StoreOpcode opcode) {
    switch (opcode) {
        case StoreOpcode::Get:
        case StoreOpcode::Add:
        case StoreOpcode::Check:
        case StoreOpcode::Wait:
        case StoreOpcode::CancelWait:
        case StoreOpcode::Barrier:
        case StoreOpcode::Enter:
        case StoreOpcode::Leave:
            return true;
        default:
            return false;
    }
}

/// The client goes on before it is carried out.
bool has_no_reply(StoreOpcode opcode) {
    return opcode == StoreOpcode::Set || opcode == StoreOpcode::Append ||
           opcode == StoreOpcode::MultiSet || opcode == StoreOpcode::QueuePush;
}

/// The store answers it, or disconnects its client, before it reads what follows.
bool is_answered_at_once(StoreOpcode opcode) {
    switch (opcode) {
        case StoreOpcode::Wait:
        case StoreOpcode::Barrier:
        case StoreOpcode::MultiGet:  // Without keys it gets no values, and no answer.
        case StoreOpcode::Enter:
        case StoreOpcode::Leave:
            return false;
        default:
            return !has_no_reply(opcode);
    }
}

std::string of_opcode(StoreOpcode opcode) {
    return std::string(1, static_cast<char>(opcode));
}

StoreOpcode opcode_of(std::string_view request) {
    return StoreOpcode{static_cast<std::uint8_t>(request.front())};
}

}  // namespace

void RelayCore::handle(StoreClient client, std::string_view request,
                       const std::shared_ptr<const void>& owner) {
    DDP_CHECK(!request.empty(), client.value());
    if (opcode_of(request) != StoreOpcode::Validate) {
        const auto found = clients_.find(client);
        DDP_CHECK(found != clients_.end(), client.value());
        ask(found->second, request, owner);
        return;
    }
    const auto [entered, is_new] = clients_.try_emplace(client);
    DDP_CHECK(is_new, client.value());
    do {
        ++last_number_;
    } while (by_number_.contains(last_number_));
    entered->second.number = last_number_;
    by_number_.emplace(last_number_, client);
    ask(entered->second, of_opcode(StoreOpcode::Enter), {});
}

void RelayCore::disconnected(StoreClient client) {
    const auto found = clients_.find(client);
    if (found == clients_.end()) {
        return;  // It has not said VALIDATE, or the store is lost.
    }
    ask(found->second, of_opcode(StoreOpcode::Leave), {});
    by_number_.erase(found->second.number);
    clients_.erase(found);
}

/// Requests of one batch that wait for replies are all under way at the same time, so any order of
/// theirs is right as long as each client's own requests keep theirs: an equal one of another
/// client may be joined. One without a reply is done as far as its client knows, which may have
/// told others, so it comes before everything that follows it.
void RelayCore::ask(Client& client, std::string_view request,
                    const std::shared_ptr<const void>& owner) {
    const StoreOpcode opcode = opcode_of(request);
    const bool can_join = is_combined(opcode);
    if (has_no_reply(opcode)) {
        joinable_.clear();
    }
    if (std::exchange(client.batch, batch_) != batch_) {
        client.next_place = 0;
    }
    if (can_join) {
        const auto found = joinable_.find(request);
        if (found != joinable_.end() && found->second >= client.next_place &&
            asked_[found->second].numbers.size() < frame_clients_max(*limits_)) {
            asked_[found->second].numbers.push_back(client.number);
            client.next_place = found->second + 1;
            return;
        }
        joinable_.insert_or_assign(std::string(request), asked_.size());
    }
    const bool is_shared = owner != nullptr && request.size() >= kSharedValueBytesMin;
    asked_.push_back(
        {.numbers = {client.number},
         .request = std::string(is_shared ? std::string_view() : request),
         .shared = is_shared ? SharedText{.owner = owner, .bytes = request} : SharedText()});
    client.next_place = asked_.size();
    waiting_bytes_ += request.size();
}

std::vector<RelayFrames> RelayCore::take_frames() {
    std::vector<RelayFrames> frames;
    if (awaited_) {
        return frames;
    }
    for (Asked& asked : asked_) {
        const std::string_view request = asked.shared.owner ? asked.shared.bytes : asked.request;
        // The store may know already of a client that is gone; then it answers nothing.
        if (is_answered_at_once(opcode_of(request)) && by_number_.contains(asked.numbers.front())) {
            awaited_ = asked.numbers.front();
        }
        std::string& out = end_of(frames);
        append_clients(out, asked.numbers);
        out.append(asked.request);
        frames.back().shared = std::move(asked.shared);
    }
    asked_.clear();
    joinable_.clear();
    waiting_bytes_ = 0;
    ++batch_;
    return frames;
}

Result<void> RelayCore::take_replies(std::string_view bytes, StoreReplies& replies) {
    while (!bytes.empty()) {
        if (answered_.empty()) {
            const Result<bool> is_complete = read_header(bytes);
            if (!is_complete) {
                return is_complete.error();
            }
            if (!*is_complete) {
                return {};
            }
        }
        const std::string_view part = bytes.substr(0, std::min<std::uint64_t>(left_, bytes.size()));
        pass_on(part, replies);
        bytes.remove_prefix(part.size());
        left_ -= part.size();
        if (left_ == 0) {
            answered_.clear();
        }
    }
    return {};
}

/// Takes from `bytes` what belongs to the header; false when that is not all there.
Result<bool> RelayCore::read_header(std::string_view& bytes) {
    const auto fill = [&](std::size_t size) {
        const std::string_view part = bytes.substr(0, size - std::min(size, header_.size()));
        header_.append(part);
        bytes.remove_prefix(part.size());
        return header_.size() >= size;
    };
    if (!fill(kNumberBytes)) {
        return false;
    }
    const std::size_t count = FieldReader(header_).u32();
    if (count == 0 || count > frame_clients_max(*limits_)) {
        return Error{ErrorCode::BadMessage, fmt::format("a reply to {} clients; there are 1 to {}",
                                                        count, frame_clients_max(*limits_))};
    }
    if (!fill(kNumberBytes + count * kNumberBytes + kSizeBytes)) {
        return false;
    }
    FieldReader fields(header_);
    answered_.resize(fields.u32());
    for (std::uint32_t& number : answered_) {
        number = fields.u32();
        if (number == awaited_) {
            awaited_.reset();
        }
    }
    left_ = fields.u64();
    header_.clear();
    // It would get its bytes twice, in an order that depends on how they arrive.
    std::sort(answered_.begin(), answered_.end());
    const auto twice = std::adjacent_find(answered_.begin(), answered_.end());
    if (twice != answered_.end()) {
        return Error{ErrorCode::BadMessage, fmt::format("a reply to client {} twice", *twice)};
    }
    return true;
}

/// A client may have left meanwhile; its reply is then dropped.
void RelayCore::pass_on(std::string_view bytes, StoreReplies& replies) {
    if (bytes.empty() && left_ > 0) {
        return;
    }
    for (const std::uint32_t number : answered_) {
        const auto found = by_number_.find(number);
        if (found == by_number_.end()) {
            continue;
        }
        if (left_ == 0) {
            replies.disconnect(found->second);
        } else {
            replies.begin_reply(found->second).append(bytes);
            replies.end_reply();
        }
    }
}

void RelayCore::lose_store(StoreReplies& replies) {
    for (const auto& [client, known] : clients_) {
        replies.disconnect(client);
    }
    clients_.clear();
    by_number_.clear();
    last_number_ = 0;
    asked_.clear();
    joinable_.clear();
    waiting_bytes_ = 0;
    awaited_.reset();
    header_.clear();
    answered_.clear();
    left_ = 0;
}

}  // namespace ddprun::rdzv
