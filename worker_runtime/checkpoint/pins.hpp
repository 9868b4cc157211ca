#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.hpp"

/// Pinned checkpoints, which no training removes: a file in a checkpoint's folder says so.
/// Blocking; for any one thread.
namespace ddprun::worker {

constexpr std::string_view kPinName = "pinned";

/// Pins the checkpoint of `step` in `dir`, pinned already or not. Fails if there is none, or if a
/// training has removed it meanwhile.
[[nodiscard]] Result<void> pin_checkpoint(const std::string& dir, std::int64_t step);

/// The inverse, of a pinned one or not. Fails if there is no such checkpoint.
[[nodiscard]] Result<void> unpin_checkpoint(const std::string& dir, std::int64_t step);

/// True if the checkpoint in `folder` is pinned.
[[nodiscard]] bool is_pinned(const std::string& folder);

}  // namespace ddprun::worker
