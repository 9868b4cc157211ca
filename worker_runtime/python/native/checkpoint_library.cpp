#include "worker_runtime/python/native/checkpoint_library.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstring>
#include <exception>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "worker_runtime/checkpoint/checkpoint_folder.hpp"
#include "worker_runtime/checkpoint/folder.hpp"
#include "worker_runtime/checkpoint/layout.hpp"
#include "worker_runtime/checkpoint/publishing.hpp"
#include "worker_runtime/checkpoint/safetensors.hpp"
#include "worker_runtime/checkpoint/verification.hpp"

namespace worker = ddprun::worker;
using ddprun::Error;
using ddprun::ErrorCode;
using ddprun::Result;

struct DdprunOpen {
    worker::LoadedCheckpoint loaded;
    std::vector<const std::pair<const std::string, std::string>*> values;
    std::vector<const std::pair<const std::string, worker::StoredTensor>*> tensors;
};

namespace {

/// Bytes of a path or a name, and of a text for the manifest.
constexpr std::size_t kNameBytesMax = 1UL << 16;
/// Tensors, values and files of one call.
constexpr std::uint64_t kCountMax = 1UL << 24;

/// Writes a text that fits by its bound; a longer one is cut.
template <std::size_t Size>
void put(char (&into)[Size], std::string_view text) {
    const std::size_t bytes = std::min(text.size(), Size - 1);
    std::memcpy(into, text.data(), bytes);
    into[bytes] = '\0';
}

std::int32_t fail(const Error& why, DdprunError* error) {
    if (error != nullptr) {
        put(error->text, why.what);
    }
    return static_cast<std::int32_t>(why.code) + 1;
}

/// Runs `act`, which returns a Result<void>. No exception crosses the C interface.
template <typename Act>
std::int32_t guarded(DdprunError* error, const Act& act) noexcept {
    try {
        const Result<void> done = act();
        return done ? 0 : fail(done.error(), error);
    } catch (const std::exception& failure) {
        return fail({ErrorCode::System, failure.what()}, error);
    } catch (...) {
        return fail({ErrorCode::System, "an unknown exception"}, error);
    }
}

Error bad(const char* what) {
    return {ErrorCode::InvalidArgument, fmt::format("the library was called with {}", what)};
}

Result<std::string> text_of(const char* text, std::size_t bytes_max = kNameBytesMax) {
    if (text == nullptr) {
        return bad("no text");
    }
    const std::size_t bytes = ::strnlen(text, bytes_max + 1);
    if (bytes > bytes_max) {
        return bad("a text that is too long");
    }
    return std::string(text, bytes);
}

template <typename Item>
Result<std::span<const Item>> list_of(const Item* items, std::uint64_t count) {
    if (count > kCountMax || (items == nullptr && count > 0)) {
        return bad("a list that is too long, or none");
    }
    return std::span<const Item>(items, count);
}

Result<worker::PartialCheckpoint> partial_of(const DdprunPartial* partial) {
    if (partial == nullptr) {
        return bad("no partial checkpoint");
    }
    const Result<std::string> dir = text_of(partial->dir);
    if (!dir) {
        return dir.error();
    }
    std::string name(partial->name, ::strnlen(partial->name, sizeof(partial->name)));
    // A name that leads elsewhere is none.
    if (worker::step_of_aside_name(name, worker::kPartialEnding) != partial->step) {
        return bad("a name that no partial checkpoint of this step has");
    }
    return worker::PartialCheckpoint{.dir = *dir, .name = std::move(name), .step = partial->step};
}

Result<worker::TensorView> view_of(const DdprunTensor& tensor) {
    const Result<std::string> name = text_of(tensor.name);
    const Result<std::string> dtype = text_of(tensor.dtype);
    if (!name || !dtype) {
        return (name ? dtype : name).error();
    }
    const std::uint64_t dimensions = tensor.dimensions;
    const bool has_layout = tensor.global_shape != nullptr || tensor.offsets != nullptr;
    if (dimensions > worker::kSafetensorsDimensionsMax ||
        (dimensions > 0 && tensor.shape == nullptr) ||
        (tensor.bytes == nullptr && tensor.size > 0) ||
        (has_layout && (tensor.global_shape == nullptr || tensor.offsets == nullptr))) {
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
        view.layout = worker::Layout{.global_shape = numbers(tensor.global_shape),
                                     .offsets = numbers(tensor.offsets)};
    }
    return view;
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

worker::ManifestFile file_of(const DdprunFile& file) {
    return {
        .name = std::string(file.name, ::strnlen(file.name, sizeof(file.name))),
        .size = file.size,
        .xxh3_128 = std::string(file.xxh3_128, ::strnlen(file.xxh3_128, sizeof(file.xxh3_128)))};
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

/// The name of a file in a checkpoint, of which the manifest later refuses all but plain names.
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
                                       .generation = ddprun::Generation(given->generation),
                                       .world_size = given->world_size,
                                       .values = *std::move(values)},
                              .files = {}};
    for (const DdprunFile& file : *files) {
        manifest.files.push_back(file_of(file));
    }
    return manifest;
}

worker::PublishOptions options_of(const DdprunManifest& given) {
    worker::PublishOptions options{.keep = given.keep, .keep_every = given.keep_every};
    if (given.is_isolated != nullptr) {
        options.is_isolated = [ask = given.is_isolated] { return ask() != 0; };
    }
    if (given.on_warning != nullptr) {
        options.on_warning = [warn = given.on_warning](const std::string& text) {
            warn(text.c_str());
        };
    }
    return options;
}

Result<void> publish(const DdprunPartial* partial, const DdprunManifest* given) {
    const Result<worker::PartialCheckpoint> checkpoint = partial_of(partial);
    if (!checkpoint) {
        return checkpoint.error();
    }
    const Result<worker::Manifest> manifest = manifest_of(checkpoint->step, given);
    if (!manifest) {
        worker::abandon(*checkpoint);
        return manifest.error();
    }
    const Result<std::string> path = worker::publish(*checkpoint, *manifest, options_of(*given));
    return path ? Result<void>() : Result<void>(path.error());
}

Result<void> open(const std::string& dir, std::int64_t step, const worker::ReadShare& share,
                  DdprunOpen** open, DdprunInfo* info) {
    Result<worker::LoadedCheckpoint> loaded = worker::read_checkpoint(dir, step, share);
    if (!loaded) {
        return loaded.error();
    }
    auto opened = std::make_unique<DdprunOpen>();
    opened->loaded = *std::move(loaded);
    for (const auto& value : opened->loaded.info.values) {
        opened->values.push_back(&value);
    }
    for (const auto& tensor : opened->loaded.tensors) {
        opened->tensors.push_back(&tensor);
    }
    *info = {.generation = opened->loaded.info.generation.value(),
             .world_size = opened->loaded.info.world_size,
             .value_count = opened->values.size(),
             .tensor_count = opened->tensors.size()};
    *open = opened.release();
    return {};
}

}  // namespace

extern "C" {

std::int32_t ddprun_checkpoint_abi() {
    return kDdprunCheckpointAbi;
}

void ddprun_checkpoint_ring(std::uint32_t* bell) {
    std::atomic_ref<std::uint32_t>(*bell).fetch_add(1);
    ::syscall(SYS_futex, bell, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

std::int32_t ddprun_checkpoint_check_folder(const char* dir, DdprunError* error) {
    return guarded(error, [&]() -> Result<void> {
        const Result<std::string> path = text_of(dir);
        return path ? worker::check_checkpoint_folder(*path) : path.error();
    });
}

std::int32_t ddprun_checkpoint_begin(DdprunPartial* partial, std::uint64_t bytes,
                                     DdprunError* error) {
    return guarded(error, [&]() -> Result<void> {
        if (partial == nullptr || partial->step < 0) {
            return bad("no partial checkpoint, or a step below 0");
        }
        const Result<std::string> dir = text_of(partial->dir);
        if (!dir) {
            return dir.error();
        }
        const Result<worker::PartialCheckpoint> begun =
            worker::begin_checkpoint(*dir, partial->step, bytes);
        if (!begun) {
            return begun.error();
        }
        put(partial->name, begun->name);
        return {};
    });
}

std::int32_t ddprun_checkpoint_file_name(const char* kind, std::int32_t number, std::int32_t count,
                                         DdprunFile* file, DdprunError* error) {
    return guarded(error, [&]() -> Result<void> {
        const Result<std::string> text = text_of(kind, worker::kManifestFileNameBytesMax / 2);
        if (!text || file == nullptr) {
            return text ? bad("no file") : text.error();
        }
        put(file->name, worker::tensor_file_name(*text, number, count));
        return {};
    });
}

std::int32_t ddprun_checkpoint_write_tensors(const DdprunPartial* partial, const char* prefix,
                                             const DdprunTensor* tensors, std::uint64_t count,
                                             DdprunFile* file, DdprunError* error) {
    return guarded(error, [&]() -> Result<void> {
        const Result<worker::PartialCheckpoint> checkpoint = partial_of(partial);
        const Result<std::string> before = text_of(prefix);
        const Result<std::span<const DdprunTensor>> list = list_of(tensors, count);
        const Result<std::string> name = plain_name(file);
        if (!checkpoint || !before) {
            return checkpoint ? before.error() : checkpoint.error();
        }
        if (!list || !name) {
            return list ? name.error() : list.error();
        }
        std::vector<worker::TensorView> views;
        for (const DdprunTensor& tensor : *list) {
            Result<worker::TensorView> view = view_of(tensor);
            if (!view) {
                return view.error();
            }
            views.push_back(*std::move(view));
        }
        return fill_in(worker::write_tensors(*checkpoint, *name, *before, views), file);
    });
}

std::int32_t ddprun_checkpoint_write_model_index(const DdprunPartial* partial,
                                                 const DdprunText* files, std::uint64_t count,
                                                 std::uint64_t bytes, DdprunFile* file,
                                                 DdprunError* error) {
    return guarded(error, [&]() -> Result<void> {
        const Result<worker::PartialCheckpoint> checkpoint = partial_of(partial);
        const Result<std::map<std::string, std::string>> places = texts_of(files, count);
        if (!checkpoint || !places) {
            return checkpoint ? places.error() : checkpoint.error();
        }
        if (file == nullptr) {
            return bad("no file");
        }
        return fill_in(worker::write_model_index(*checkpoint, *places, bytes), file);
    });
}

std::int32_t ddprun_checkpoint_publish(const DdprunPartial* partial, const DdprunManifest* manifest,
                                       DdprunError* error) {
    return guarded(error, [&] { return publish(partial, manifest); });
}

void ddprun_checkpoint_abandon(const DdprunPartial* partial) {
    (void)guarded(nullptr, [&]() -> Result<void> {
        const Result<worker::PartialCheckpoint> checkpoint = partial_of(partial);
        if (checkpoint) {
            worker::abandon(*checkpoint);
        }
        return {};
    });
}

std::int32_t ddprun_checkpoint_list(const char* dir, std::int64_t* steps, std::uint64_t capacity,
                                    std::uint64_t* count, DdprunError* error) {
    return guarded(error, [&]() -> Result<void> {
        const Result<std::string> path = text_of(dir);
        if (!path || count == nullptr || (steps == nullptr && capacity > 0)) {
            return path ? bad("no place for steps") : path.error();
        }
        const Result<std::vector<std::int64_t>> found = worker::list_checkpoints(*path);
        if (!found) {
            return found.error();
        }
        *count = found->size();
        std::copy_n(found->begin(), std::min<std::uint64_t>(capacity, found->size()), steps);
        return {};
    });
}

void ddprun_checkpoint_remove_leftovers(const char* dir) {
    (void)guarded(nullptr, [&]() -> Result<void> {
        const Result<std::string> path = text_of(dir);
        if (path) {
            worker::remove_leftovers(*path);
        }
        return {};
    });
}

std::int32_t ddprun_checkpoint_verify(const char* dir, std::int64_t step, DdprunError* error) {
    return guarded(error, [&]() -> Result<void> {
        const Result<std::string> path = text_of(dir);
        return path ? worker::verify_checkpoint(*path, step, [](std::uint64_t /*bytes*/) {})
                    : path.error();
    });
}

std::int32_t ddprun_checkpoint_share_out(const std::uint64_t* sizes, std::uint64_t count,
                                         std::int32_t world_size, std::int32_t* ranks,
                                         DdprunError* error) {
    return guarded(error, [&]() -> Result<void> {
        const Result<std::span<const std::uint64_t>> list = list_of(sizes, count);
        if (!list || world_size < 1 || (ranks == nullptr && count > 0)) {
            return list ? bad("a world size below 1, or no place for ranks") : list.error();
        }
        const std::vector<int> shared = worker::share_out({list->begin(), list->end()}, world_size);
        std::copy(shared.begin(), shared.end(), ranks);
        return {};
    });
}

std::int32_t ddprun_checkpoint_check_parts(const DdprunTensor* parts, const std::int32_t* ranks,
                                           std::uint64_t count, DdprunError* error) {
    return guarded(error, [&]() -> Result<void> {
        const Result<std::span<const DdprunTensor>> list = list_of(parts, count);
        if (!list || count == 0 || ranks == nullptr) {
            return bad("no parts, or no ranks of them");
        }
        std::vector<worker::RankPart> all;
        for (std::size_t i = 0; i < count; ++i) {
            Result<worker::TensorView> view = view_of((*list)[i]);
            if (!view) {
                return view.error();
            }
            worker::Box box = worker::whole_box(view->shape);
            if (view->layout) {
                box.offsets = view->layout->offsets;
            }
            all.push_back({.rank = ranks[i],
                           .dtype = view->dtype,
                           .global_shape = view->layout ? view->layout->global_shape : view->shape,
                           .box = std::move(box)});
        }
        const Result<std::string> name = text_of(list->front().name);
        return name ? worker::check_parts(*name, all) : name.error();
    });
}

std::int32_t ddprun_checkpoint_open(const char* dir, std::int64_t step, std::uint64_t reader,
                                    std::uint64_t readers, DdprunOpen** opened, DdprunInfo* info,
                                    DdprunError* error) {
    return guarded(error, [&]() -> Result<void> {
        const Result<std::string> path = text_of(dir);
        if (!path) {
            return path.error();
        }
        if (opened == nullptr || info == nullptr || reader >= readers || step < 0) {
            return bad("no reader of so many, or a step below 0");
        }
        return open(*path, step, {.reader = reader, .readers = readers}, opened, info);
    });
}

std::int32_t ddprun_checkpoint_value(const DdprunOpen* opened, std::uint64_t index,
                                     DdprunText* text) {
    if (opened == nullptr || text == nullptr || index >= opened->values.size()) {
        return 1;
    }
    const auto& [key, value] = *opened->values[index];
    *text = {.key = key.c_str(), .text = value.c_str()};
    return 0;
}

std::int32_t ddprun_checkpoint_tensor(const DdprunOpen* opened, std::uint64_t index,
                                      DdprunStored* tensor) {
    if (opened == nullptr || tensor == nullptr || index >= opened->tensors.size()) {
        return 1;
    }
    const auto& [name, stored] = *opened->tensors[index];
    *tensor = {.name = name.c_str(),
               .dtype = stored.dtype.c_str(),
               .dimensions = stored.shape.size(),
               .shape = stored.shape.data(),
               .part_count = stored.parts.size()};
    return 0;
}

std::int32_t ddprun_checkpoint_part(const DdprunOpen* opened, std::uint64_t tensor,
                                    std::uint64_t index, DdprunPart* part) {
    if (opened == nullptr || part == nullptr || tensor >= opened->tensors.size() ||
        index >= opened->tensors[tensor]->second.parts.size()) {
        return 1;
    }
    const worker::StoredTensor::Part& stored = opened->tensors[tensor]->second.parts[index];
    *part = {.offsets = stored.box.offsets.data(),
             .lengths = stored.box.lengths.data(),
             .bytes = stored.bytes.data(),
             .size = stored.bytes.size()};
    return 0;
}

void ddprun_checkpoint_close(DdprunOpen* opened) {
    const std::unique_ptr<DdprunOpen> owned(opened);
}

}  // extern "C"
