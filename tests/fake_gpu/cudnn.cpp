// libcudnn.so.9: LibTorch compares its version, and is told to use no more of it.

#include <cstddef>

namespace {

constexpr std::size_t kVersion = 92400;  // 9.24.0, which LibTorch 2.14.1 was built with
constexpr std::size_t kCudaVersion = 13000;

}  // namespace

extern "C" {

std::size_t cudnnGetVersion() {
    return kVersion;
}

std::size_t cudnnGetCudartVersion() {
    return kCudaVersion;
}
}
