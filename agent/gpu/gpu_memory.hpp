#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/limits.hpp"

namespace ddprun::agent {

/// Bytes of each GPU, by the driver's number of it. GPUs that cannot be read are left out.
using GpuBytes = std::map<int, std::uint64_t>;

/// "0:1024 3:0", as ddprun-gpu-use is asked and answers; none if it is not that.
[[nodiscard]] std::string text_of(const GpuBytes& memory);
[[nodiscard]] std::optional<GpuBytes> gpu_memory_from(std::string_view text);

/// Decides whether the GPUs have back what ended workers had: no more may be in use there than
/// before the first workers, beyond Limits::gpu_memory_slack. Memory of living processes does not
/// count, for no worker lives then. Pure; owned and called by one thread.
class GpuMemoryWatch {
public:
    explicit GpuMemoryWatch(const Limits& limits) : limits_(limits) {}

    /// Takes the memory in use, by no living process, before the first workers had anything.
    void remember(GpuBytes before) { before_ = std::move(before); }

    /// Until it is remembered nothing can be told; without GPUs that report it, never.
    [[nodiscard]] bool can_tell() const { return !before_.empty(); }

    /// So much may be in use: who holds it need not be asked.
    [[nodiscard]] GpuBytes allowed() const;

    /// Whether what is in use `now` says that all is freed. Memory that was in use before and is
    /// not any more must stay free, too.
    [[nodiscard]] bool is_freed(const GpuBytes& now);

    /// It is waited for no longer, and the same bytes never again. A line for the user.
    [[nodiscard]] std::string give_up();

private:
    Limits limits_;
    GpuBytes before_;
    GpuBytes held_;  ///< in use, of the GPUs that were not freed at the last look
};

}  // namespace ddprun::agent
