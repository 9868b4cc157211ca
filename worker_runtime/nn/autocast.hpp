#pragma once

#include <optional>

#include <torch/types.h>

namespace ddprun {

struct AutocastOptions {
    /// bfloat16 or float16; none: LibTorch's own, float16 on GPUs and bfloat16 on CPUs.
    std::optional<torch::ScalarType> dtype = std::nullopt;
    /// False: as without it, say for a part of a region that loses too much precision.
    bool enabled = true;
    /// Whether a parameter that is used several times is cast once, and the cast kept until the
    /// outermost guard ends. Unset: as around it, and outside of all guards it is.
    std::optional<bool> cache = std::nullopt;
};

/// While it lives, this thread's operations on tensors of one kind of device compute in the lower
/// precision where LibTorch finds that safe, and in float32 where it does not; as Python's
/// torch.autocast. For forward and loss; backward runs after it and takes the types of forward.
/// Guards nest; the end of each restores what was before. Throws what LibTorch throws, and for a
/// type or a kind of device that has no autocast.
class [[nodiscard]] Autocast {
public:
    explicit Autocast(torch::DeviceType device, AutocastOptions options = {});
    ~Autocast();
    Autocast(const Autocast&) = delete;
    Autocast& operator=(const Autocast&) = delete;

private:
    torch::DeviceType device_;
    bool was_enabled_;
    torch::ScalarType dtype_before_;
    bool was_caching_;
};

}  // namespace ddprun
