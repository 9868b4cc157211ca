#pragma once

#include <chrono>
#include <functional>
#include <string_view>

namespace ddprun::worker {

class Loss;

/// Calls `call`, whose own bounds are none or other ones, on a thread of its own with all signals
/// blocked. Throws what it throws, what `loss` is told, and `late`, with the time, after `bound`:
/// then the call goes on, on a detached thread, so it owns all that it uses. A `bound` of 0 or
/// less is none, as in c10d.
void call_within(std::chrono::milliseconds bound, Loss& loss, std::string_view late,
                 std::function<void()> call);

}  // namespace ddprun::worker
