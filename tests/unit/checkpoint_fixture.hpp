#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/cluster.hpp"
#include "tests/support/result_text.hpp"
#include "worker_runtime/checkpoint/checkpoint_folder.hpp"
#include "worker_runtime/checkpoint/publishing.hpp"

namespace ddprun::worker::test {

using ddprun::test::TempDir;

inline std::span<const std::byte> bytes_of(std::string_view text) {
    return std::as_bytes(std::span(text.data(), text.size()));
}

inline std::string text_of(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

inline std::string read_text(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    REQUIRE(file.good());
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline void write_text(const std::string& path, std::string_view text) {
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file << text;
    file.close();
    REQUIRE(file.good());
}

/// Names in a folder, sorted, with those that begin with a dot.
inline std::vector<std::string> names_in(const std::string& dir) {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(dir)) {
        names.push_back(entry.path().filename());
    }
    std::sort(names.begin(), names.end());
    return names;
}

/// Distinct bytes for a tensor, kept alive by the caller.
inline std::string some_bytes(std::size_t size, unsigned seed = 1) {
    std::string bytes(size, '\0');
    for (std::size_t i = 0; i < size; ++i) {
        bytes[i] = static_cast<char>((i * 37 + seed * 101) & 0xff);
    }
    return bytes;
}

inline TensorView tensor(const std::string& name, const std::string& dtype,
                         std::vector<std::int64_t> shape, std::string_view bytes) {
    return {.name = name, .dtype = dtype, .shape = std::move(shape), .bytes = bytes_of(bytes)};
}

/// The bytes of a tensor that lies in one part.
inline std::string text_of(const StoredTensor& stored) {
    REQUIRE(stored.parts.size() == 1);
    return text_of(stored.parts.front().bytes);
}

inline constexpr const char* kModelFile = "model-00001-of-00001.safetensors";

}  // namespace ddprun::worker::test
