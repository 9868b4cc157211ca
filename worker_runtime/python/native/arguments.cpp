#include "worker_runtime/python/native/arguments.hpp"

#include <cstring>
#include <memory>

#include <fmt/format.h>

#include "worker_runtime/checkpoint/layout.hpp"
#include "worker_runtime/checkpoint/safetensors.hpp"

namespace ddprun::python {

namespace {

worker::ManifestFile file_of(const DdprunFile& file) {
    return {
        .name = std::string(file.name, ::strnlen(file.name, sizeof(file.name))),
        .size = file.size,
        .xxh3_128 = std::string(file.xxh3_128, ::strnlen(file.xxh3_128, sizeof(file.xxh3_128)))};
}

Result<worker::TensorView> view_of(const DdprunTensor& tensor) {
    const Result<std::string> name = text_of(tensor.name);
    const Result<std::string> dtype = text_of(tensor.dtype);
    if (!name || !dtype) {
        return (name ? dtype : name).error();
    }
    const std::uint64_t dimensions = tensor.dimensions;
    const bool has_layout = tensor.global_shape != nullptr || tensor.offsets != nullptr ||
                            tensor.mesh_dimension != nullptr;
    if (dimensions > worker::kSafetensorsDimensionsMax ||
        (dimensions > 0 && tensor.shape == nullptr) ||
        (tensor.bytes == nullptr && tensor.size > 0) ||
        (has_layout && (tensor.global_shape == nullptr || tensor.offsets == nullptr ||
                        tensor.mesh_dimension == nullptr))) {
        return bad("a tensor that lacks its shape, its bytes or its place");
    }
    const auto numbers = [&](const std::int64_t* from) {
        return std::vector<std::int64_t>(from, from + dimensions);
    };
    worker::TensorView view{.name = *name,
                            .dtype = *dtype,
                            .shape = numbers(tensor.shape),
                            .bytes = {static_cast<const std::byte*>(tensor.bytes), tensor.size}};
    if (has_layout) {
        Result<std::string> dimension = text_of(tensor.mesh_dimension);
        if (!dimension) {
            return dimension.error();
        }
        view.layout = worker::Layout{.global_shape = numbers(tensor.global_shape),
                                     .offsets = numbers(tensor.offsets),
                                     .mesh_dimension = *std::move(dimension)};
    }
    return view;
}

}  // namespace

std::int32_t fail(const Error& why, DdprunError* error) {
    if (error != nullptr) {
        put(error->text, why.what);
    }
    return static_cast<std::int32_t>(why.code) + 1;
}

Error bad(const char* what) {
    return {ErrorCode::InvalidArgument, fmt::format("the library was called with {}", what)};
}

Result<std::string> text_of(const char* text, std::size_t bytes_max) {
    if (text == nullptr) {
        return bad("no text");
    }
    const std::size_t bytes = ::strnlen(text, bytes_max + 1);
    if (bytes > bytes_max) {
        return bad("a text that is too long");
    }
    return std::string(text, bytes);
}

Result<std::map<std::string, std::string>> texts_of(const DdprunText* texts, std::uint64_t count) {
    const Result<std::span<const DdprunText>> list = list_of(texts, count);
    if (!list) {
        return list.error();
    }
    std::map<std::string, std::string> map;
    for (const DdprunText& entry : *list) {
        Result<std::string> key = text_of(entry.key);
        Result<std::string> text = text_of(entry.text, worker::kManifestBytesMax);
        if (!key || !text) {
            return (key ? text : key).error();
        }
        if (!map.emplace(*std::move(key), *std::move(text)).second) {
            return bad("a key twice");
        }
    }
    return map;
}

Result<void> fill_in(const Result<worker::ManifestFile>& from, DdprunFile* file) {
    if (!from) {
        return from.error();
    }
    put(file->name, from->name);
    put(file->xxh3_128, from->xxh3_128);
    file->size = from->size;
    return {};
}

Result<std::string> plain_name(const DdprunFile* file) {
    if (file == nullptr) {
        return bad("no file");
    }
    std::string name = file_of(*file).name;
    if (name.empty() || name.front() == '.' || name.find('/') != std::string::npos) {
        return bad("a file name that is none");
    }
    return name;
}

Result<worker::Manifest> manifest_of(std::int64_t step, const DdprunManifest* given) {
    if (given == nullptr) {
        return bad("no manifest");
    }
    Result<std::map<std::string, std::string>> values = texts_of(given->values, given->value_count);
    const Result<std::span<const DdprunFile>> files = list_of(given->files, given->file_count);
    if (!values || !files) {
        return values ? files.error() : values.error();
    }
    worker::Manifest manifest{.info = {.step = step,
                                       .save = given->save,
                                       .generation = ddprun::Generation(given->generation),
                                       .world_size = given->world_size,
                                       .values = *std::move(values)},
                              .files = {}};
    for (const DdprunFile& file : *files) {
        manifest.files.push_back(file_of(file));
    }
    return manifest;
}

Result<std::vector<worker::TensorView>> views_of(const DdprunTensor* tensors, std::uint64_t count) {
    const Result<std::span<const DdprunTensor>> list = list_of(tensors, count);
    if (!list) {
        return list.error();
    }
    std::vector<worker::TensorView> views;
    for (const DdprunTensor& tensor : *list) {
        Result<worker::TensorView> view = view_of(tensor);
        if (!view) {
            return view.error();
        }
        views.push_back(*std::move(view));
    }
    return views;
}

void hand_out(worker::LoadedCheckpoint loaded, DdprunOpen** open, DdprunInfo* info) {
    auto opened = std::make_unique<DdprunOpen>();
    opened->loaded = std::move(loaded);
    for (const auto& value : opened->loaded.info.values) {
        opened->values.push_back(&value);
    }
    for (const auto& tensor : opened->loaded.tensors) {
        opened->tensors.push_back(&tensor);
    }
    *info = {.save = opened->loaded.info.save,
             .generation = opened->loaded.info.generation.value(),
             .world_size = opened->loaded.info.world_size,
             .value_count = opened->values.size(),
             .tensor_count = opened->tensors.size()};
    *open = opened.release();
}

}  // namespace ddprun::python
