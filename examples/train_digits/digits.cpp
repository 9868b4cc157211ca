#include "examples/train_digits/digits.hpp"

#include <charconv>
#include <cstdint>
#include <fstream>
#include <string_view>
#include <system_error>
#include <vector>

#include <fmt/format.h>
#include <torch/torch.h>

namespace digits {

namespace {

constexpr int kPixels = 64;
constexpr int kPixelMax = 16;
constexpr int kLabelMax = 9;

/// 64 pixels and a label; false if the line is anything else.
bool parse_line(std::string_view line, std::vector<float>& pixels,
                std::vector<std::int64_t>& labels) {
    const char* at = line.data();
    const char* const end = at + line.size();
    for (int i = 0; i <= kPixels; ++i) {
        int value = -1;
        const auto [stop, failure] = std::from_chars(at, end, value);
        if (failure != std::errc{} || value < 0 || value > (i < kPixels ? kPixelMax : kLabelMax)) {
            return false;
        }
        const bool is_last = i == kPixels;
        if (is_last ? stop != end : (stop == end || *stop != ',')) {
            return false;
        }
        at = is_last ? stop : stop + 1;
        if (is_last) {
            labels.push_back(value);
        } else {
            pixels.push_back(static_cast<float>(value) / kPixelMax);
        }
    }
    return true;
}

}  // namespace

ddprun::Result<Digits> read_digits(const std::string& path) {
    std::ifstream file(path);
    if (!file) {
        return ddprun::Error{
            ddprun::ErrorCode::NotFound,
            fmt::format("cannot read the images {}: name the file with --data", path)};
    }
    std::vector<float> pixels;
    std::vector<std::int64_t> labels;
    std::string line;
    for (int number = 1; std::getline(file, line); ++number) {
        if (!parse_line(line, pixels, labels)) {
            return ddprun::Error{
                ddprun::ErrorCode::BadMessage,
                fmt::format("{}:{}: not 64 pixels from 0 to 16 and a label from 0 to 9: {:.40}",
                            path, number, line)};
        }
    }
    const auto count = static_cast<std::int64_t>(labels.size());
    if (count < 5) {
        return ddprun::Error{ddprun::ErrorCode::BadMessage,
                             fmt::format("{} has {} images, at least 5 are wanted", path, count)};
    }
    const torch::Tensor images = torch::tensor(pixels).reshape({count, 1, 8, 8});
    const torch::Tensor classes = torch::tensor(labels);
    const torch::Tensor is_test = torch::arange(count).remainder(5).eq(4);
    const torch::Tensor is_train = is_test.logical_not();
    return Digits{.train = {images.index({is_train}), classes.index({is_train})},
                  .test = {images.index({is_test}), classes.index({is_test})}};
}

}  // namespace digits
