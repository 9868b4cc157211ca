#include "worker_runtime/comm/texts.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>

#include <torch/types.h>

namespace ddprun::worker {

namespace {

/// A text's length and beginning go in one exchange; few texts are longer than that. Each exchange
/// waits for the slowest rank's threads.
constexpr std::int64_t kLengthBytes = sizeof(std::int64_t);
constexpr std::int64_t kBeginningBytes = 1024 - kLengthBytes;

torch::Tensor bytes_of(std::string_view text, std::int64_t room) {
    torch::Tensor bytes = torch::zeros({room}, torch::kUInt8);
    std::copy(text.begin(), text.end(), bytes.data_ptr<std::uint8_t>());
    return bytes;
}

std::string text_of(const torch::Tensor& bytes, std::int64_t length) {
    return {static_cast<const char*>(bytes.const_data_ptr()), static_cast<std::size_t>(length)};
}

torch::Tensor head_of(std::string_view text) {
    torch::Tensor head = torch::zeros({kLengthBytes + kBeginningBytes}, torch::kUInt8);
    const auto length = static_cast<std::int64_t>(text.size());
    std::memcpy(head.data_ptr(), &length, kLengthBytes);
    const std::string_view beginning = text.substr(0, kBeginningBytes);
    std::copy(beginning.begin(), beginning.end(), head.data_ptr<std::uint8_t>() + kLengthBytes);
    return head;
}

std::int64_t length_in(const torch::Tensor& head) {
    std::int64_t length = 0;
    std::memcpy(&length, head.const_data_ptr(), kLengthBytes);
    return length;
}

std::string beginning_in(const torch::Tensor& head) {
    return text_of(head.narrow(0, kLengthBytes, kBeginningBytes),
                   std::min(length_in(head), kBeginningBytes));
}

std::string_view rest_of(std::string_view text) {
    return text.substr(std::min(text.size(), static_cast<std::size_t>(kBeginningBytes)));
}

}  // namespace

Result<std::string> broadcast_text(ProcessGroup& group, const std::string& text, int root) {
    const std::string_view own = group.rank() == root ? std::string_view(text) : "";
    torch::Tensor head = head_of(own);
    if (const Result<void> sent = group.broadcast(head, root); !sent) {
        return sent.error();
    }
    std::string all = beginning_in(head);
    if (const std::int64_t room = length_in(head) - kBeginningBytes; room > 0) {
        torch::Tensor rest = bytes_of(rest_of(own), room);
        if (const Result<void> sent = group.broadcast(rest, root); !sent) {
            return sent.error();
        }
        all += text_of(rest, room);
    }
    return all;
}

Result<std::vector<std::string>> gather_texts(ProcessGroup& group, const std::string& text) {
    const Result<torch::Tensor> heads = group.all_gather(head_of(text));
    if (!heads) {
        return heads.error();
    }
    std::vector<std::string> texts;
    std::int64_t room = 0;  // for the longest one's rest: Gloo gathers equal shapes
    for (int rank = 0; rank < group.world_size(); ++rank) {
        const torch::Tensor head = (*heads)[rank];
        texts.push_back(beginning_in(head));
        room = std::max(room, length_in(head) - kBeginningBytes);
    }
    if (room > 0) {
        const Result<torch::Tensor> rests = group.all_gather(bytes_of(rest_of(text), room));
        if (!rests) {
            return rests.error();
        }
        for (int rank = 0; rank < group.world_size(); ++rank) {
            const std::int64_t rest = length_in((*heads)[rank]) - kBeginningBytes;
            texts[static_cast<std::size_t>(rank)] +=
                text_of((*rests)[rank], std::max<std::int64_t>(rest, 0));
        }
    }
    return texts;
}

}  // namespace ddprun::worker
