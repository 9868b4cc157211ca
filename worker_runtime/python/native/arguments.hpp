#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "worker_runtime/checkpoint/loaded_checkpoint.hpp"
#include "worker_runtime/checkpoint/manifest.hpp"
#include "worker_runtime/checkpoint/tensor_view.hpp"
#include "worker_runtime/python/native/checkpoint_library.hpp"

/// The arguments of the C functions, checked, as the C++ functions take them.
struct DdprunOpen {
    ddprun::worker::LoadedCheckpoint loaded;
    std::vector<const std::pair<const std::string, std::string>*> values;
    std::vector<const std::pair<const std::string, ddprun::worker::StoredTensor>*> tensors;
};

namespace ddprun::python {

/// Bytes of a path or a name, and of a text for the manifest.
constexpr std::size_t kNameBytesMax = 1UL << 16;
/// Tensors, values and files of one call.
constexpr std::uint64_t kCountMax = 1UL << 24;

/// Writes a text that fits by its bound; a longer one is cut.
template <std::size_t Size>
void put(char (&into)[Size], std::string_view text) {
    const std::size_t bytes = std::min(text.size(), Size - 1);
    std::memcpy(into, text.data(), bytes);
    into[bytes] = '\0';
}

/// Returns the code of `why`, and puts its text into `error`, unless that is null.
std::int32_t fail(const Error& why, DdprunError* error);

/// Runs `act`, which returns a Result<void>. No exception crosses the C interface.
template <typename Act>
std::int32_t guarded(DdprunError* error, const Act& act) noexcept {
    try {
        const Result<void> done = act();
        return done ? 0 : fail(done.error(), error);
    } catch (const std::exception& failure) {
        return fail({ErrorCode::System, failure.what()}, error);
    } catch (...) {
        return fail({ErrorCode::System, "an unknown exception"}, error);
    }
}

/// The error of a call with an argument that cannot be.
[[nodiscard]] Error bad(const char* what);

[[nodiscard]] Result<std::string> text_of(const char* text, std::size_t bytes_max = kNameBytesMax);

template <typename Item>
[[nodiscard]] Result<std::span<Item>> list_of(Item* items, std::uint64_t count) {
    if (count > kCountMax || (items == nullptr && count > 0)) {
        return bad("a list that is too long, or none");
    }
    return std::span<Item>(items, count);
}

[[nodiscard]] Result<std::map<std::string, std::string>> texts_of(const DdprunText* texts,
                                                                  std::uint64_t count);
[[nodiscard]] Result<std::vector<worker::TensorView>> views_of(const DdprunTensor* tensors,
                                                               std::uint64_t count);
[[nodiscard]] Result<worker::Manifest> manifest_of(std::int64_t step, const DdprunManifest* given);

/// The name of a file in a checkpoint, of which the manifest later refuses all but plain names.
[[nodiscard]] Result<std::string> plain_name(const DdprunFile* file);

/// Fills in `file`.
[[nodiscard]] Result<void> fill_in(const Result<worker::ManifestFile>& from, DdprunFile* file);

/// Makes `open` and `info` of a checkpoint.
void hand_out(worker::LoadedCheckpoint loaded, DdprunOpen** open, DdprunInfo* info);

}  // namespace ddprun::python
