#include "tests/fake_gpu/machine/gpus.hpp"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <string_view>

#include "tests/fake_gpu/machine/settings.hpp"

namespace fake_gpu {

namespace {

constexpr unsigned kFirstBus = 0x1a;

/// Returns the FNV-1a hash of the text.
std::uint64_t hash_of(std::string_view text) {
    std::uint64_t hash = 14695981039346656037ULL;
    for (const char letter : text) {
        hash = (hash ^ static_cast<unsigned char>(letter)) * 1099511628211ULL;
    }
    return hash;
}

std::optional<int> gpu_called(std::string_view name) {
    const int count = settings().gpu_count;
    if (name.starts_with("GPU-")) {
        for (int gpu = 0; gpu < count; ++gpu) {
            if (std::string_view(uuid_text(gpu)).starts_with(name)) {
                return gpu;
            }
        }
        return std::nullopt;
    }
    int gpu = -1;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), gpu);
    const bool is_number = error == std::errc() && end == name.data() + name.size();
    return is_number && gpu >= 0 && gpu < count ? std::optional(gpu) : std::nullopt;
}

std::vector<int> find_visible_gpus() {
    const char* const list = std::getenv("CUDA_VISIBLE_DEVICES");
    if (list == nullptr) {
        std::vector<int> all(static_cast<std::size_t>(settings().gpu_count));
        std::iota(all.begin(), all.end(), 0);
        return all;
    }
    std::vector<int> found;
    std::string_view rest = list;
    while (!rest.empty()) {
        const std::string_view name = rest.substr(0, rest.find(','));
        rest.remove_prefix(std::min(name.size() + 1, rest.size()));
        const std::optional<int> gpu = gpu_called(name);
        if (!gpu) {
            break;
        }
        found.push_back(*gpu);
    }
    return found;
}

}  // namespace

Uuid uuid_of(int gpu) {
    constexpr std::size_t kPlaceOfMark = 8;
    constexpr std::array<unsigned char, 2> kMark = {0xfa, 0xce};
    Uuid uuid{};
    const std::uint64_t hash = hash_of(settings().node);
    std::memcpy(uuid.data(), &hash, sizeof hash);
    std::copy(kMark.begin(), kMark.end(), uuid.begin() + kPlaceOfMark);
    uuid.back() = static_cast<unsigned char>(gpu);
    return uuid;
}

std::string uuid_text(int gpu) {
    constexpr std::array<std::size_t, 5> kDashBefore = {0, 4, 6, 8, 10};
    const Uuid uuid = uuid_of(gpu);
    std::string text = "GPU";
    for (std::size_t i = 0; i < uuid.size(); ++i) {
        if (std::find(kDashBefore.begin(), kDashBefore.end(), i) != kDashBefore.end()) {
            text += '-';
        }
        std::array<char, 3> digits{};
        (void)std::snprintf(digits.data(), digits.size(), "%02x", uuid[i]);
        text += digits.data();
    }
    return text;
}

unsigned pci_bus_of(int gpu) {
    return kFirstBus + static_cast<unsigned>(gpu);
}

const std::vector<int>& visible_gpus() {
    static const std::vector<int>& found =
        *std::make_unique<std::vector<int>>(find_visible_gpus()).release();
    return found;
}

}  // namespace fake_gpu
