// Goal: a damaged or hostile checkpoint is refused, and what is accepted means one thing and lies
// within its bytes. Method: the input is a manifest or a safetensors file, as it is or with the
// checksum, or the sizes in front, put right, so that the search gets behind them; what is accepted
// is written and read again.
#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "base/check.hpp"
#include "tests/fuzz/choices.hpp"
#include "worker_runtime/checkpoint/hashing.hpp"
#include "worker_runtime/checkpoint/manifest.hpp"
#include "worker_runtime/checkpoint/safetensors.hpp"

namespace ddprun::worker {

namespace {

// -------------------------------------------------------------------------------------- manifest

bool is_same(const Manifest& left, const Manifest& right) {
    return left.info.step == right.info.step && left.info.generation == right.info.generation &&
           left.info.world_size == right.info.world_size && left.info.values == right.info.values &&
           std::equal(left.files.begin(), left.files.end(), right.files.begin(), right.files.end(),
                      [](const ManifestFile& a, const ManifestFile& b) {
                          return a.name == b.name && a.size == b.size && a.xxh3_128 == b.xxh3_128;
                      });
}

void check_manifest(std::string text, unsigned where, unsigned with) {
    const Result<Manifest> manifest = parse_manifest(text);
    if (!manifest) {
        return;
    }
    DDP_CHECK(manifest->info.world_size >= 1, manifest->info.world_size);
    std::set<std::string> names;
    for (const ManifestFile& file : manifest->files) {
        DDP_CHECK(file.name.find('/') == std::string::npos && file.name.front() != '.', file.name);
        DDP_CHECK(names.insert(file.name).second && file.name != kManifestName, file.name);
        DDP_CHECK(file.xxh3_128.size() == kXxh3HexDigits, file.xxh3_128);
    }
    const Result<std::string> written = format_manifest(*manifest);
    DDP_CHECK(written.has_value(), written.has_value() ? std::string() : written.error().what);
    const Result<Manifest> again = parse_manifest(*written);
    DDP_CHECK(again.has_value() && is_same(*again, *manifest), *written);
    // No byte of it can change unnoticed.
    char& byte = text[where % text.size()];
    byte = static_cast<char>(byte ^ static_cast<char>(with));
    DDP_CHECK(!parse_manifest(text), where);
}

std::string with_checksum(std::string_view before) {
    return fmt::format("{},\n  \"checksum\": \"{}\"\n}}\n", before, xxh3_128_hex(before));
}

// ----------------------------------------------------------------------------------- safetensors

bool is_same(const TensorView& left, const TensorView& right) {
    const bool has_same_layout =
        left.layout.has_value() == right.layout.has_value() &&
        (!left.layout || (left.layout->offsets == right.layout->offsets &&
                          left.layout->global_shape == right.layout->global_shape));
    return left.name == right.name && left.dtype == right.dtype && left.shape == right.shape &&
           has_same_layout &&
           std::equal(left.bytes.begin(), left.bytes.end(), right.bytes.begin(), right.bytes.end());
}

/// By name: writing sorts them.
std::map<std::string, TensorView> by_name(const std::vector<TensorView>& tensors) {
    std::map<std::string, TensorView> named;
    for (const TensorView& tensor : tensors) {
        DDP_CHECK(named.emplace(tensor.name, tensor).second, tensor.name);
    }
    return named;
}

void check_safetensors(std::span<const std::byte> file) {
    const Result<std::vector<TensorView>> tensors = parse_safetensors(file);
    if (!tensors) {
        return;
    }
    // The views follow each other, from somewhere in the file to its last byte.
    std::size_t data_bytes = 0;
    for (const TensorView& tensor : *tensors) {
        const Result<std::uint64_t> bytes = tensor_bytes(tensor.dtype, tensor.shape);
        DDP_CHECK(bytes.has_value() && *bytes == tensor.bytes.size(), tensor.name);
        data_bytes += tensor.bytes.size();
    }
    DDP_CHECK(data_bytes + 8 <= file.size(), data_bytes, file.size());
    std::size_t begin = file.size() - data_bytes;
    for (const TensorView& tensor : *tensors) {
        DDP_CHECK(tensor.bytes.empty() || tensor.bytes.data() == file.data() + begin, begin);
        begin += tensor.bytes.size();
    }
    const Result<SafetensorsPlan> plan = plan_safetensors(*tensors);
    DDP_CHECK(plan.has_value(), plan.has_value() ? std::string() : plan.error().what);
    const auto header = std::as_bytes(std::span(plan->header.data(), plan->header.size()));
    std::vector<std::byte> written(header.begin(), header.end());
    for (const TensorView* const tensor : plan->tensors) {
        written.insert(written.end(), tensor->bytes.begin(), tensor->bytes.end());
    }
    const Result<std::vector<TensorView>> again = parse_safetensors(written);
    DDP_CHECK(again.has_value(), again.has_value() ? std::string() : again.error().what);
    const std::map<std::string, TensorView> before = by_name(*tensors);
    const std::map<std::string, TensorView> after = by_name(*again);
    DDP_CHECK(std::equal(before.begin(), before.end(), after.begin(), after.end(),
                         [](const auto& a, const auto& b) { return is_same(a.second, b.second); }),
              before.size(), after.size());
}

/// A file with this header and so many bytes of data.
std::vector<std::byte> with_sizes(std::string_view header, std::size_t data_bytes) {
    std::vector<std::byte> file;
    for (unsigned shift = 0; shift < 64; shift += 8) {
        file.push_back(static_cast<std::byte>(std::uint64_t{header.size()} >> shift & 0xff));
    }
    const auto bytes = std::as_bytes(std::span(header.data(), header.size()));
    file.insert(file.end(), bytes.begin(), bytes.end());
    for (std::size_t i = 0; i < data_bytes; ++i) {
        file.push_back(static_cast<std::byte>(i));
    }
    return file;
}

void run(fuzz::Choices& choices) {
    const unsigned kind = choices.below(4);
    const unsigned number = choices.byte();
    if (kind == 0) {
        check_manifest(std::string(choices.rest()), number, 1);
    } else if (kind == 1) {
        const unsigned where = choices.word();
        check_manifest(with_checksum(choices.rest()), where, 1 + number % 255);
    } else if (kind == 2) {
        const std::string_view rest = choices.rest();
        check_safetensors(std::as_bytes(std::span(rest.data(), rest.size())));
    } else {
        check_safetensors(with_sizes(choices.rest(), number));
    }
}

}  // namespace

}  // namespace ddprun::worker

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    ddprun::fuzz::Choices choices(data, size);
    ddprun::worker::run(choices);
    return 0;
}
