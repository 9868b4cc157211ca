#include "worker_runtime/nn/autocast.hpp"

#include <ATen/autocast_mode.h>

namespace ddprun {

namespace {

/// The device, once it and `options` are found usable: nothing is to be undone when it throws.
torch::DeviceType usable(torch::DeviceType device, const AutocastOptions& options) {
    TORCH_CHECK(at::autocast::is_autocast_available(device), "Autocast: LibTorch has none for ",
                c10::DeviceTypeName(device, /*lower_case=*/true), "; use the CPU's or a GPU's");
    const torch::ScalarType dtype =
        options.dtype.value_or(at::autocast::get_autocast_dtype(device));
    TORCH_CHECK(!options.enabled || dtype == torch::kBFloat16 || dtype == torch::kFloat16,
                "Autocast: to ", c10::toString(dtype), "; it must be BFloat16 or Half");
    return device;
}

}  // namespace

Autocast::Autocast(torch::DeviceType device, AutocastOptions options)
    : device_(usable(device, options)),
      was_enabled_(at::autocast::is_autocast_enabled(device)),
      dtype_before_(at::autocast::get_autocast_dtype(device)),
      was_caching_(at::autocast::is_autocast_cache_enabled()) {
    at::autocast::set_autocast_enabled(device, options.enabled);
    at::autocast::set_autocast_dtype(device, options.dtype.value_or(dtype_before_));
    at::autocast::set_autocast_cache_enabled(options.cache.value_or(was_caching_));
    at::autocast::increment_nesting();
}

Autocast::~Autocast() {
    if (at::autocast::decrement_nesting() == 0) {
        at::autocast::clear_cache();
    }
    at::autocast::set_autocast_enabled(device_, was_enabled_);
    at::autocast::set_autocast_dtype(device_, dtype_before_);
    at::autocast::set_autocast_cache_enabled(was_caching_);
}

}  // namespace ddprun
