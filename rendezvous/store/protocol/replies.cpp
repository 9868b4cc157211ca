#include "rendezvous/store/protocol/replies.hpp"

#include "rendezvous/store/protocol/request.hpp"

namespace ddprun::rdzv {

void StoreReplies::clear() {
    constexpr std::size_t kKeptBytesMax = std::size_t{1} << 20;
    if (bytes_.capacity() > kKeptBytesMax) {
        std::string().swap(bytes_);
    }
    bytes_.clear();
    pieces_.clear();
    shared_bytes_ = 0;
}

std::string& StoreReplies::begin_reply(StoreClient client) {
    client_ = client;
    begin_ = bytes_.size();
    return bytes_;
}

void StoreReplies::end_reply() {
    const std::size_t size = bytes_.size() - begin_;
    if (!pieces_.empty() && pieces_.back().client == client_ && !pieces_.back().shared.owner &&
        !pieces_.back().is_last) {
        pieces_.back().size += size;
    } else {
        pieces_.push_back({.client = client_, .size = size, .shared = {}});
    }
}

void StoreReplies::disconnect(StoreClient client) {
    begin_reply(client);
    end_reply();
    pieces_.back().is_last = true;
}

void StoreReplies::reply_value(StoreClient client, StoreValue& value) {
    const std::string_view bytes = value.view();
    if (bytes.size() < kSharedValueBytesMin) {
        append_text(begin_reply(client), bytes);
        end_reply();
        return;
    }
    append_i64(begin_reply(client), static_cast<std::int64_t>(bytes.size()));
    end_reply();
    pieces_.back().shared = value.share();
    shared_bytes_ += bytes.size();
}

}  // namespace ddprun::rdzv
