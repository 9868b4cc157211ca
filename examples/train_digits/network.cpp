#include "examples/train_digits/network.hpp"

#include <torch/nn.h>

#define XXH_INLINE_ALL  // no library to link
#include <xxhash.h>

namespace digits {

torch::nn::Sequential make_network(torch::Device device) {
    using torch::nn::Conv2d;
    using torch::nn::Conv2dOptions;
    using torch::nn::Linear;
    using torch::nn::ReLU;
    torch::nn::Sequential network(Conv2d(Conv2dOptions(1, 16, 3).padding(1)), ReLU(),
                                  Conv2d(Conv2dOptions(16, 32, 3).padding(1)), ReLU(),
                                  torch::nn::MaxPool2d(2), torch::nn::Flatten(),
                                  Linear(32 * 4 * 4, 64), ReLU(), Linear(64, 10));
    network->to(device);
    return network;
}

std::uint64_t parameter_hash(const torch::nn::Module& network) {
    std::uint64_t hash = 0;
    for (const torch::Tensor& parameter : network.parameters()) {
        const torch::Tensor plain = parameter.detach().to(torch::kCPU).contiguous();
        hash = XXH3_64bits_withSeed(plain.const_data_ptr(), plain.nbytes(), hash);
    }
    return hash;
}

}  // namespace digits
