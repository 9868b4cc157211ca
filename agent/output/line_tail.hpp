#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ddprun::agent {

/// The last bytes of a stream, exactly, at most `bytes_max` of them. Takes no memory before the
/// first byte and never more than twice the bound. Pure.
class LineTail {
public:
    explicit LineTail(std::size_t bytes_max) : bytes_max_(bytes_max) {}

    void add(std::string_view bytes);

    [[nodiscard]] std::string_view text() const;

private:
    std::size_t bytes_max_;
    std::string kept_;
};

}  // namespace ddprun::agent
