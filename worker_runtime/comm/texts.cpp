#include "worker_runtime/comm/texts.hpp"

#include <algorithm>
#include <cstdint>

#include <torch/types.h>

namespace ddprun::worker {

namespace {

torch::Tensor bytes_of(const std::string& text, std::int64_t room) {
    torch::Tensor bytes = torch::zeros({room}, torch::kUInt8);
    std::copy(text.begin(), text.end(), bytes.data_ptr<std::uint8_t>());
    return bytes;
}

std::string text_of(const torch::Tensor& bytes, std::int64_t length) {
    return {static_cast<const char*>(bytes.const_data_ptr()), static_cast<std::size_t>(length)};
}

}  // namespace

Result<std::string> broadcast_text(ProcessGroup& group, const std::string& text, int root) {
    torch::Tensor length = torch::full({1}, static_cast<std::int64_t>(text.size()), torch::kInt64);
    if (const Result<void> sent = group.broadcast(length, root); !sent) {
        return sent.error();
    }
    const auto size = length.item<std::int64_t>();
    torch::Tensor bytes = bytes_of(group.rank() == root ? text : std::string(), size);
    if (size > 0) {
        if (const Result<void> sent = group.broadcast(bytes, root); !sent) {
            return sent.error();
        }
    }
    return text_of(bytes, size);
}

Result<std::vector<std::string>> gather_texts(ProcessGroup& group, const std::string& text) {
    const Result<torch::Tensor> lengths =
        group.all_gather(torch::full({1}, static_cast<std::int64_t>(text.size()), torch::kInt64));
    if (!lengths) {
        return lengths.error();
    }
    // Gloo gathers equal shapes.
    const auto room = std::max<std::int64_t>(lengths->max().item<std::int64_t>(), 1);
    const Result<torch::Tensor> all = group.all_gather(bytes_of(text, room));
    if (!all) {
        return all.error();
    }
    std::vector<std::string> texts;
    for (int rank = 0; rank < group.world_size(); ++rank) {
        texts.push_back(text_of((*all)[rank], (*lengths)[rank].item<std::int64_t>()));
    }
    return texts;
}

}  // namespace ddprun::worker
