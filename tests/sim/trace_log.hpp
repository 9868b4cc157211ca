#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/instant.hpp"

namespace ddprun::sim {

/// Hashes each line of what happened; equal runs have equal hashes. Keeps the lines if wanted.
class TraceLog {
public:
    explicit TraceLog(bool keeps_lines) : keeps_lines_(keeps_lines) {}

    void add(Instant now, std::string_view who, std::string_view text);

    [[nodiscard]] std::uint64_t hash() const { return hash_; }
    [[nodiscard]] const std::vector<std::string>& lines() const { return lines_; }

private:
    void mix(std::string_view bytes);

    bool keeps_lines_;
    std::uint64_t hash_ = 14695981039346656037ULL;
    std::vector<std::string> lines_;
};

}  // namespace ddprun::sim
