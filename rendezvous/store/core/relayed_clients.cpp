#include "rendezvous/store/core/relayed_clients.hpp"

#include <utility>

#include "rendezvous/store/protocol/request.hpp"

namespace ddprun::rdzv {

std::string& end_of(std::vector<RelayFrames>& frames) {
    if (frames.empty() || frames.back().shared.owner != nullptr) {
        frames.emplace_back();
    }
    return frames.back().bytes;
}

void append_clients(std::string& out, const std::vector<std::uint32_t>& numbers) {
    append_u32(out, static_cast<std::uint32_t>(numbers.size()));
    for (const std::uint32_t number : numbers) {
        append_u32(out, number);
    }
}

std::optional<StoreClient> RelayedClients::find(std::uint32_t number) const {
    const auto found = clients_.find(number);
    return found == clients_.end() ? std::nullopt : std::optional(found->second.client);
}

bool RelayedClients::enter(std::uint32_t number, StoreClient client) {
    return clients_.emplace(number, Client{.client = client}).second;
}

std::vector<StoreClient> RelayedClients::all() const {
    std::vector<StoreClient> clients;
    for (const auto& [number, known] : clients_) {
        clients.push_back(known.client);
    }
    return clients;
}

bool RelayedClients::reply(std::uint32_t number, std::string_view bytes, const SharedText& shared) {
    const bool is_first = frames_.empty() && open_numbers_.empty();
    const bool is_same = bytes == open_bytes_ && shared.bytes.data() == open_shared_.bytes.data() &&
                         shared.bytes.size() == open_shared_.bytes.size();
    const auto found = clients_.find(number);
    const bool is_named = found != clients_.end() && found->second.frame == open_frame_;
    if (!is_same || is_named || open_numbers_.size() == frame_clients_max_) {
        seal();
        open_bytes_ = bytes;
        open_shared_ = shared;
    }
    open_numbers_.push_back(number);
    if (found != clients_.end()) {
        found->second.frame = open_frame_;
    }
    return is_first;
}

std::vector<RelayFrames> RelayedClients::take_frames() {
    seal();
    return std::exchange(frames_, {});
}

void RelayedClients::seal() {
    if (open_numbers_.empty()) {
        return;
    }
    std::string& out = end_of(frames_);
    append_clients(out, open_numbers_);
    append_i64(out, static_cast<std::int64_t>(open_bytes_.size() + open_shared_.bytes.size()));
    out.append(open_bytes_);
    frames_.back().shared = std::exchange(open_shared_, {});
    open_numbers_.clear();
    open_bytes_ = {};
    ++open_frame_;
}

}  // namespace ddprun::rdzv
