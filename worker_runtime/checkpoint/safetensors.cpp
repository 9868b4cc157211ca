#include "worker_runtime/checkpoint/safetensors.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/check.hpp"
#include "base/utf8.hpp"
#include "worker_runtime/checkpoint/json_text.hpp"
#include "worker_runtime/checkpoint/safetensors_header.hpp"

namespace ddprun::worker {

namespace {

constexpr const char* kMeshDimension = "mesh_dimension";

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

std::optional<Error> check_tensor(const TensorView& tensor, const std::string& prefix) {
    const auto refused = [&](const std::string& why) {
        return Error{ErrorCode::InvalidArgument,
                     fmt::format("tensor {} {}", in_quotes(tensor.name), why)};
    };
    if (!is_utf8(tensor.name)) {
        return refused("has a name that is not UTF-8; rename it");
    }
    if (tensor.name.substr(prefix.size()) == kSafetensorsMetadataKey) {
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
    if (tensor.layout) {
        if (!is_utf8(tensor.layout->mesh_dimension)) {
            return refused("has a mesh dimension whose name is not UTF-8; rename it");
        }
        const Result<void> within = check_layout(*tensor.layout, tensor.shape);
        if (!within) {
            return refused("cannot be a part: " + within.error().what);
        }
    }
    return std::nullopt;
}

static_assert(std::endian::native == std::endian::little,
              "the header's size and the tensors are written as they lie in memory");

/// The place of each tensor in its whole; nothing if none is a part.
std::optional<std::string> sharding_text(const std::vector<const TensorView*>& tensors,
                                         const std::string& prefix) {
    if (std::none_of(tensors.begin(), tensors.end(),
                     [](const TensorView* tensor) { return tensor->layout.has_value(); })) {
        return std::nullopt;
    }
    nlohmann::json sharding = nlohmann::json::object();
    for (const TensorView* const tensor : tensors) {
        const Layout layout = tensor->layout.value_or(
            Layout{.global_shape = tensor->shape,
                   .offsets = std::vector<std::int64_t>(tensor->shape.size(), 0)});
        nlohmann::json& place = sharding[tensor->name.substr(prefix.size())];
        place = {{"saved_offsets", layout.offsets}, {"global_shape", layout.global_shape}};
        if (!layout.mesh_dimension.empty()) {
            place[kMeshDimension] = layout.mesh_dimension;
        }
    }
    return sharding.dump();
}

Result<std::string> make_header(const std::vector<const TensorView*>& tensors,
                                const std::string& prefix) {
    nlohmann::json metadata = {{"format", "pt"}};
    if (!prefix.empty()) {
        metadata[kPrefixKey] = prefix;
    }
    if (const std::optional<std::string> sharding = sharding_text(tensors, prefix)) {
        if (sharding->size() > kShardingBytesMax) {
            return Error{ErrorCode::LimitExceeded,
                         fmt::format("the places of {} parts take {} bytes, allowed are {}",
                                     tensors.size(), sharding->size(), kShardingBytesMax)};
        }
        metadata[kShardingKey] = *sharding;
    }
    std::string json = R"({"__metadata__":)" + metadata.dump();
    std::uint64_t begin = 0;
    for (const TensorView* const tensor : tensors) {
        const std::uint64_t end = begin + tensor->bytes.size();
        json += fmt::format(R"(,{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                            nlohmann::json(tensor->name.substr(prefix.size())).dump(),
                            tensor->dtype, fmt::join(tensor->shape, ","), begin, end);
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

std::optional<std::vector<std::int64_t>> numbers_in(const nlohmann::json& object, const char* key) {
    const auto list = object.find(key);
    if (list == object.end() || !list->is_array() || list->size() > kSafetensorsDimensionsMax) {
        return std::nullopt;
    }
    std::vector<std::int64_t> numbers;
    for (const nlohmann::json& number : *list) {
        const auto* const value = number.get_ptr<const nlohmann::json::number_unsigned_t*>();
        if (value == nullptr || *value > std::numeric_limits<std::int64_t>::max()) {
            return std::nullopt;
        }
        numbers.push_back(static_cast<std::int64_t>(*value));
    }
    return numbers;
}

/// By the names in the file; empty if it has whole tensors alone.
Result<std::map<std::string, Layout>> parse_sharding(const SafetensorsHeader& header) {
    std::map<std::string, Layout> layouts;
    const auto text = header.metadata.find(kShardingKey);
    if (text == header.metadata.end()) {
        return layouts;
    }
    if (text->second.size() > kShardingBytesMax) {
        return bad_file(fmt::format("{} has {} bytes, allowed are {}", kShardingKey,
                                    text->second.size(), kShardingBytesMax));
    }
    constexpr int kDepthMax = 3;
    const Result<nlohmann::json> json = parse_json(text->second, kDepthMax);
    if (!json || !json->is_object()) {
        return bad_file(fmt::format("{} cannot be read: {}", kShardingKey,
                                    json ? "it is no object" : json.error().what));
    }
    for (const SafetensorsEntry& entry : header.entries) {
        const auto place = json->find(entry.name);
        const auto offsets =
            place == json->end() ? std::nullopt : numbers_in(*place, "saved_offsets");
        const auto shape = place == json->end() ? std::nullopt : numbers_in(*place, "global_shape");
        if (!offsets || !shape) {
            return bad_file(
                fmt::format("{} has no \"saved_offsets\" and \"global_shape\" of "
                            "tensor {}",
                            kShardingKey, in_quotes(entry.name)));
        }
        const nlohmann::json dimension = place->value(kMeshDimension, nlohmann::json(""));
        if (!dimension.is_string()) {
            return bad_file(fmt::format("{} has a \"{}\" of tensor {} that is no text",
                                        kShardingKey, kMeshDimension, in_quotes(entry.name)));
        }
        Layout layout{.global_shape = *shape,
                      .offsets = *offsets,
                      .mesh_dimension = dimension.get<std::string>()};
        const Result<std::uint64_t> bytes = tensor_bytes(entry.dtype, layout.global_shape);
        const Result<void> within =
            bytes ? check_layout(layout, entry.shape) : Result<void>(bytes.error());
        if (!within) {
            return bad_file(
                fmt::format("tensor {}: {}", in_quotes(entry.name), within.error().what));
        }
        layouts.emplace(entry.name, std::move(layout));
    }
    return layouts;
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

Result<SafetensorsPlan> plan_safetensors(const std::vector<TensorView>& tensors,
                                         const std::string& prefix) {
    SafetensorsPlan plan;
    std::set<std::string_view> names;
    for (const TensorView& tensor : tensors) {
        DDP_CHECK(tensor.name.starts_with(prefix), tensor.name, prefix);
        if (const std::optional<Error> problem = check_tensor(tensor, prefix)) {
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
    Result<std::string> header = make_header(plan.tensors, prefix);
    if (!header) {
        return header.error();
    }
    plan.header = *std::move(header);
    return plan;
}

std::vector<std::span<const std::byte>> pieces_of(const SafetensorsPlan& plan) {
    std::vector<std::span<const std::byte>> pieces{std::as_bytes(std::span(plan.header))};
    for (const TensorView* const tensor : plan.tensors) {
        pieces.push_back(tensor->bytes);
    }
    return pieces;
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
    Result<SafetensorsHeader> header =
        parse_safetensors_header(file.subspan(kSizeBytes, header_bytes));
    if (!header) {
        return header.error();
    }
    const Result<std::map<std::string, Layout>> layouts = parse_sharding(*header);
    if (!layouts) {
        return layouts.error();
    }
    const std::string prefix = header->metadata[kPrefixKey];
    if (!prefix.empty() && !prefix.ends_with('.')) {
        return bad_file(
            fmt::format("{} is {}, which does not end with a dot", kPrefixKey, in_quotes(prefix)));
    }
    const std::span<const std::byte> data = file.subspan(kSizeBytes + header_bytes);
    std::sort(header->entries.begin(), header->entries.end(),
              [](const SafetensorsEntry& left, const SafetensorsEntry& right) {
                  return std::pair(left.begin, left.end) < std::pair(right.begin, right.end);
              });
    std::vector<TensorView> tensors;
    std::uint64_t end = 0;
    for (SafetensorsEntry& entry : header->entries) {
        if (const std::optional<Error> problem = check_place(entry, end, data.size())) {
            return *problem;
        }
        end = entry.end;
        const auto layout = layouts->find(entry.name);
        TensorView& tensor = tensors.emplace_back(
            TensorView{.name = prefix + entry.name,
                       .dtype = std::move(entry.dtype),
                       .shape = std::move(entry.shape),
                       .bytes = data.subspan(entry.begin, entry.end - entry.begin)});
        // A whole one beside parts has a place, too.
        if (layout != layouts->end() && (layout->second.global_shape != tensor.shape ||
                                         !layout->second.mesh_dimension.empty())) {
            tensor.layout = layout->second;
        }
    }
    if (end != data.size()) {
        return bad_file(fmt::format("{} bytes follow the last tensor, which ends at {}",
                                    data.size() - end, end));
    }
    return tensors;
}

}  // namespace ddprun::worker
