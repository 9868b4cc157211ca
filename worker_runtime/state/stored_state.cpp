#include "worker_runtime/state/stored_state.hpp"

#include <optional>
#include <utility>

#include <fmt/format.h>

#include "worker_runtime/state/dtype_names.hpp"

namespace ddprun::worker {

namespace {

/// The elements of `tensor`, whose first one is at `origin` of the whole, that are in `box`.
torch::Tensor elements_in(torch::Tensor tensor, const std::vector<std::int64_t>& origin,
                          const Box& box) {
    for (std::size_t d = 0; d < origin.size(); ++d) {
        tensor =
            tensor.narrow(static_cast<std::int64_t>(d), box.offsets[d] - origin[d], box.lengths[d]);
    }
    return tensor;
}

}  // namespace

Result<StoredState> StoredState::of(LoadedCheckpoint loaded) {
    StoredState state;
    state.values = std::move(loaded.info.values);
    state.storage_ = std::move(loaded.storage);
    for (auto& [name, stored] : loaded.tensors) {
        const std::optional<torch::ScalarType> type = scalar_type_of(stored.dtype);
        if (!type) {
            return Error{
                ErrorCode::BadMessage,
                fmt::format("tensor {} is of type {}, which is unknown", name, stored.dtype)};
        }
        state.tensors[name] = {.type = *type,
                               .shape = std::move(stored.shape),
                               .mesh_dimension = std::move(stored.mesh_dimension),
                               .parts = std::move(stored.parts)};
    }
    return state;
}

void StoredState::Tensor::copy_into(const torch::Tensor& target,
                                    const std::vector<std::int64_t>& offsets) const {
    const Box wanted{.offsets = offsets, .lengths = {target.sizes().begin(), target.sizes().end()}};
    for (const StoredTensor::Part& part : parts) {
        const std::optional<Box> both = overlap(wanted, part.box);
        if (!both || part.bytes.empty()) {
            continue;
        }
        // from_blob() has no form for constant bytes; they are only read.
        const torch::Tensor shown = torch::from_blob(const_cast<std::byte*>(part.bytes.data()),
                                                     part.box.lengths, torch::TensorOptions(type));
        elements_in(target, offsets, *both).copy_(elements_in(shown, part.box.offsets, *both));
    }
}

torch::Tensor StoredState::Tensor::whole() const {
    torch::Tensor all = torch::empty(shape, torch::TensorOptions(type));
    copy_into(all, std::vector<std::int64_t>(shape.size(), 0));
    return all;
}

}  // namespace ddprun::worker
