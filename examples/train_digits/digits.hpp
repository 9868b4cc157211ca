#pragma once

#include <string>

#include <torch/types.h>

#include "base/result.hpp"

namespace digits {

struct ImageSet {
    torch::Tensor images;  ///< float32 [n, 1, 8, 8], 0 to 1
    torch::Tensor labels;  ///< int64 [n], 0 to 9

    [[nodiscard]] std::int64_t size() const { return images.size(0); }
};

struct Digits {
    ImageSet train;  ///< four fifths
    ImageSet test;   ///< every fifth image: the writers are mixed alike in both
};

/// Reads a file of UCI's "Optical Recognition of Handwritten Digits": 64 pixels from 0 to 16 and
/// the label per line, separated by commas. The error names the file and the line.
[[nodiscard]] ddprun::Result<Digits> read_digits(const std::string& path);

}  // namespace digits
