#include "worker_runtime/checkpoint/safetensors.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/utf8.hpp"
#include "worker_runtime/checkpoint/json_text.hpp"
#include "worker_runtime/checkpoint/safetensors_header.hpp"

namespace ddprun::worker {

namespace {

struct Dtype {
    std::string_view name;
    std::size_t bytes;
};

// The types that the format and LibTorch both have.
constexpr std::array<Dtype, 18> kDtypes{{
    {"F64", 8},
    {"F32", 4},
    {"F16", 2},
    {"BF16", 2},
    {"I64", 8},
    {"I32", 4},
    {"I16", 2},
    {"I8", 1},
    {"U8", 1},
    {"BOOL", 1},
    {"F8_E4M3", 1},
    {"F8_E5M2", 1},
    {"F8_E4M3FNUZ", 1},
    {"F8_E5M2FNUZ", 1},
    {"C64", 8},
    {"U64", 8},
    {"U32", 4},
    {"U16", 2},
}};

/// Bytes of one element; nothing for a type that is unknown here.
std::optional<std::size_t> dtype_bytes(std::string_view dtype) {
    const auto* const found =
        std::find_if(kDtypes.begin(), kDtypes.end(),
                     [&](const Dtype& candidate) { return candidate.name == dtype; });
    return found == kDtypes.end() ? std::nullopt : std::optional(found->bytes);
}

Error bad_file(std::string what) {
    return Error{ErrorCode::BadMessage, std::move(what)};
}

std::optional<Error> check_tensor(const TensorView& tensor) {
    const auto refused = [&](const std::string& why) {
        return Error{ErrorCode::InvalidArgument,
                     fmt::format("tensor {} {}", in_quotes(tensor.name), why)};
    };
    if (!is_utf8(tensor.name)) {
        return refused("has a name that is not UTF-8; rename it");
    }
    if (tensor.name == kSafetensorsMetadataKey) {
        return refused("has the name that safetensors reserves; rename it");
    }
    const Result<std::uint64_t> bytes = tensor_bytes(tensor.dtype, tensor.shape);
    if (!bytes) {
        return refused(bytes.error().what);
    }
    if (*bytes != tensor.bytes.size()) {
        return refused(fmt::format("has {} bytes, shape [{}] of {} takes {}", tensor.bytes.size(),
                                   fmt::join(tensor.shape, ","), tensor.dtype, *bytes));
    }
    return std::nullopt;
}

static_assert(std::endian::native == std::endian::little,
              "the header's size and the tensors are written as they lie in memory");

Result<std::string> make_header(const std::vector<const TensorView*>& tensors) {
    std::string json = R"({"__metadata__":{"format":"pt"})";
    std::uint64_t begin = 0;
    for (const TensorView* const tensor : tensors) {
        const std::uint64_t end = begin + tensor->bytes.size();
        json += fmt::format(R"(,{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                            nlohmann::json(tensor->name).dump(), tensor->dtype,
                            fmt::join(tensor->shape, ","), begin, end);
        begin = end;
    }
    json += '}';
    json.resize((json.size() + 7) / 8 * 8, ' ');
    if (json.size() > kSafetensorsHeaderBytesMax) {
        return Error{ErrorCode::LimitExceeded,
                     fmt::format("the header of {} tensors takes {} bytes, allowed are {}; use "
                                 "fewer or shorter names",
                                 tensors.size(), json.size(), kSafetensorsHeaderBytesMax)};
    }
    const std::uint64_t size = json.size();
    return std::string(reinterpret_cast<const char*>(&size), sizeof size) + json;
}

// The place of one tensor, checked against the end of the one before and against the file.
std::optional<Error> check_place(const SafetensorsEntry& entry, std::uint64_t begin,
                                 std::uint64_t data_bytes) {
    const auto refused = [&](const std::string& why) {
        return bad_file(fmt::format("tensor {}: {}", in_quotes(entry.name), why));
    };
    const std::string offsets = fmt::format("data_offsets [{},{}]", entry.begin, entry.end);
    if (entry.begin > entry.end || entry.end > data_bytes) {
        return refused(
            fmt::format("{} are not within the file's {} data bytes", offsets, data_bytes));
    }
    if (entry.begin != begin) {
        return refused(fmt::format("{} leave a hole or overlap, the tensor before ends at {}",
                                   offsets, begin));
    }
    const Result<std::uint64_t> bytes = tensor_bytes(entry.dtype, entry.shape);
    if (!bytes) {
        return refused(bytes.error().what);
    }
    if (*bytes != entry.end - entry.begin) {
        return refused(fmt::format("{} hold {} bytes, shape [{}] of {} takes {}", offsets,
                                   entry.end - entry.begin, fmt::join(entry.shape, ","),
                                   entry.dtype, *bytes));
    }
    return std::nullopt;
}

}  // namespace

Result<std::uint64_t> tensor_bytes(const std::string& dtype,
                                   const std::vector<std::int64_t>& shape) {
    const std::optional<std::size_t> element = dtype_bytes(dtype);
    if (!element) {
        return bad_file(fmt::format("type {} is not known", in_quotes(dtype)));
    }
    if (shape.size() > kSafetensorsDimensionsMax) {
        return bad_file(
            fmt::format("{} dimensions, allowed are {}", shape.size(), kSafetensorsDimensionsMax));
    }
    std::uint64_t bytes = *element;
    for (const std::int64_t dimension : shape) {
        if (dimension < 0) {
            return bad_file(
                fmt::format("shape [{}] has a negative dimension", fmt::join(shape, ",")));
        }
        if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(dimension), &bytes)) {
            return bad_file(
                fmt::format("shape [{}] of {} overflows", fmt::join(shape, ","), dtype));
        }
    }
    return bytes;
}

Result<SafetensorsPlan> plan_safetensors(const std::vector<TensorView>& tensors) {
    SafetensorsPlan plan;
    std::set<std::string_view> names;
    for (const TensorView& tensor : tensors) {
        if (const std::optional<Error> problem = check_tensor(tensor)) {
            return *problem;
        }
        if (!names.insert(tensor.name).second) {
            return Error{ErrorCode::InvalidArgument,
                         fmt::format("tensor {} is given twice", in_quotes(tensor.name))};
        }
        plan.tensors.push_back(&tensor);
    }
    std::sort(plan.tensors.begin(), plan.tensors.end(),
              [](const TensorView* left, const TensorView* right) {
                  const std::size_t left_bytes = dtype_bytes(left->dtype).value_or(0);
                  const std::size_t right_bytes = dtype_bytes(right->dtype).value_or(0);
                  return left_bytes != right_bytes ? left_bytes > right_bytes
                                                   : left->name < right->name;
              });
    Result<std::string> header = make_header(plan.tensors);
    if (!header) {
        return header.error();
    }
    plan.header = *std::move(header);
    return plan;
}

Result<std::vector<TensorView>> parse_safetensors(std::span<const std::byte> file) {
    constexpr std::size_t kSizeBytes = 8;
    if (file.size() < kSizeBytes) {
        return bad_file(fmt::format("{} bytes are too few for safetensors", file.size()));
    }
    std::uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, file.data(), kSizeBytes);
    if (header_bytes > kSafetensorsHeaderBytesMax) {
        return bad_file(fmt::format("the header claims {} bytes, allowed are {}", header_bytes,
                                    kSafetensorsHeaderBytesMax));
    }
    if (header_bytes > file.size() - kSizeBytes) {
        return bad_file(fmt::format("the header claims {} bytes, the file has {} after its size",
                                    header_bytes, file.size() - kSizeBytes));
    }
    Result<std::vector<SafetensorsEntry>> entries =
        parse_safetensors_header(file.subspan(kSizeBytes, header_bytes));
    if (!entries) {
        return entries.error();
    }
    const std::span<const std::byte> data = file.subspan(kSizeBytes + header_bytes);
    std::sort(entries->begin(), entries->end(),
              [](const SafetensorsEntry& left, const SafetensorsEntry& right) {
                  return std::pair(left.begin, left.end) < std::pair(right.begin, right.end);
              });
    std::vector<TensorView> tensors;
    std::uint64_t end = 0;
    for (SafetensorsEntry& entry : *entries) {
        if (const std::optional<Error> problem = check_place(entry, end, data.size())) {
            return *problem;
        }
        end = entry.end;
        tensors.push_back(TensorView{.name = std::move(entry.name),
                                     .dtype = std::move(entry.dtype),
                                     .shape = std::move(entry.shape),
                                     .bytes = data.subspan(entry.begin, entry.end - entry.begin)});
    }
    if (end != data.size()) {
        return bad_file(fmt::format("{} bytes follow the last tensor, which ends at {}",
                                    data.size() - end, end));
    }
    return tensors;
}

}  // namespace ddprun::worker
