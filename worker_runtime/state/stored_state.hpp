#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <torch/types.h>

#include "base/result.hpp"
#include "worker_runtime/checkpoint/checkpoint_folder.hpp"

/// The tensors of a checkpoint, as LibTorch sees them. They are read where a file is mapped.
namespace ddprun::worker {

class StoredState {
public:
    /// Fails for a type that LibTorch lacks.
    [[nodiscard]] static Result<StoredState> of(LoadedCheckpoint loaded);

    struct Tensor {
        torch::ScalarType type = torch::kFloat32;
        std::vector<std::int64_t> shape;        ///< of the whole
        std::string mesh_dimension;             ///< of its parts' Layout
        std::vector<StoredTensor::Part> parts;  ///< disjoint, together the whole

        /// Copies the elements from `offsets` on, as many as `target` has, into it, which may lie
        /// on any device and have any strides.
        void copy_into(const torch::Tensor& target, const std::vector<std::int64_t>& offsets) const;
        /// A copy of all elements, on the CPU.
        [[nodiscard]] torch::Tensor whole() const;
    };

    std::map<std::string, Tensor> tensors;
    std::map<std::string, std::string> values;

private:
    std::shared_ptr<const void> storage_;
};

/// The tensors of a StoredState, by the names that a program has for them.
using StoredTensorsByName = std::map<std::string, const StoredState::Tensor*>;

}  // namespace ddprun::worker
