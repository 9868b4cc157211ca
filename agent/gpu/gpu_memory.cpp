#include "agent/gpu/gpu_memory.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "base/take_until.hpp"
#include "base/whole_number.hpp"

namespace ddprun::agent {

namespace {

std::string amount(std::uint64_t bytes) {
    return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / (1ULL << 30));
}

}  // namespace

std::string text_of(const GpuBytes& memory) {
    std::string text;
    for (const auto& [number, bytes] : memory) {
        text += fmt::format("{}{}:{}", text.empty() ? "" : " ", number, bytes);
    }
    return text;
}

std::optional<GpuBytes> gpu_memory_from(std::string_view text) {
    GpuBytes memory;
    while (!text.empty()) {
        std::string_view word = take_until(text, ' ');
        const auto number = whole_number<int>(take_until(word, ':'));
        const auto bytes = whole_number<std::uint64_t>(word);
        if (!number || !bytes || !memory.emplace(*number, *bytes).second) {
            return std::nullopt;
        }
    }
    return memory;
}

GpuBytes GpuMemoryWatch::allowed() const {
    GpuBytes allowed = before_;
    for (auto& [number, bytes] : allowed) {
        bytes += limits_.gpu_memory_slack;
    }
    return allowed;
}

bool GpuMemoryWatch::is_freed(const GpuBytes& now) {
    held_.clear();
    for (const auto& [number, most] : allowed()) {
        const auto found = now.find(number);
        if (found == now.end()) {
            continue;
        }
        if (found->second > most) {
            held_.insert(*found);
        }
        before_[number] = std::min(before_[number], found->second);
    }
    return held_.empty();
}

std::string GpuMemoryWatch::give_up() {
    std::string which;
    for (const auto& [number, bytes] : held_) {
        which += fmt::format("{}GPU {} holds {}", which.empty() ? "" : ", ", number,
                             amount(bytes - before_[number]));
        before_[number] = bytes;
    }
    return fmt::format(
        "warning: {} s after all workers were gone {} more than before the first of them, for "
        "no process that lives; the next ones start all the same and may run out of it; if "
        "nvidia-smi shows that it stays, reset the GPU (nvidia-smi --gpu-reset) or the node",
        limits_.gpu_memory_timeout.count() / 1000, which);
}

}  // namespace ddprun::agent
